"""The stored format stays what it is: stores that were written before, read and resumed by the code of now."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import open_store
from holdfast.integrity import check_store
from holdfast.stores.base import Store
from tests.golden.graphs import GRAPHS, UNFINISHED, plain, resumed
from tests.golden.make import HERE, KINDS


class Golden(NamedTuple):
    """A store as it was written, and what was in it then."""

    store: Store
    runs: dict[str, Any]
    ids: dict[str, list[str]]


@pytest.fixture(params=list(KINDS))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Golden]:
    """A copy of the store of each kind."""
    kind = request.param
    expected = json.loads((HERE / "expected.json").read_text())
    with tarfile.open(HERE / "stores.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = open_store(KINDS[kind].format(tmp_path / kind))
    yield Golden(store, expected["runs"], expected["ids"][kind])
    store.close()


def test_every_stored_run_and_checkpoint_is_as_it_was(golden: Golden) -> None:
    seen = 0
    for name, (run, *ids) in golden.ids.items():
        expected = golden.runs[name]
        app = GRAPHS[expected["workflow"]]().compile(golden.store)
        info = golden.store.runs(run=run)[0]
        assert (info.workflow, info.status) == (expected["workflow"], expected["status"])
        assert plain(app.get_state(run)) == expected["state"]
        found = app.checkpoints(run)
        assert [str(each.id) for each in found] == ids
        for each, told in zip(found, expected["checkpoints"], strict=True):
            assert (each.wave, list(each.nodes), list(each.next)) == (
                told["wave"],
                told["nodes"],
                told["next"],
            )
            assert plain(app.get_state(run, checkpoint_id=each.id)) == told["state"]
            seen += 1
    assert seen > 20


def test_stored_unfinished_runs_resume_to_the_same_end(golden: Golden) -> None:
    for run in UNFINISHED:
        assert resumed(golden.store, run) == golden.runs[run]["resumed"]


def test_stored_checkpoints_can_be_forked_and_pruned_ones_too(golden: Golden) -> None:
    for name in ("done", "pages", "pruned", "forked"):
        expected, first = golden.runs[name], golden.ids[name][1]
        app = GRAPHS[expected["workflow"]]().compile(golden.store)
        assert plain(app.resume(first).state) == expected["state"]


def test_nothing_is_wrong_with_a_stored_store(golden: Golden) -> None:
    """Before and after its runs were resumed."""
    assert check_store(golden.store).problems == ()
    for run in UNFINISHED:
        resumed(golden.store, run)
    assert check_store(golden.store).problems == ()
