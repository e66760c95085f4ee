"""Journals of earlier versions open for ever: stores that they wrote, read and resumed by this one."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import check_store, open_store
from holdfast.stores.base import Store
from tests.golden.graphs import GRAPHS, UNFINISHED, plain, resumed
from tests.golden.make import HERE, KINDS

NAMES = sorted(path.parent.name for path in HERE.glob("*/expected.json"))


class Golden(NamedTuple):
    """A store as an earlier version left it, and what that version found in it."""

    store: Store
    runs: dict[str, Any]
    ids: dict[str, list[str]]


@pytest.fixture(params=[(name, kind) for name in NAMES for kind in KINDS], ids="-".join)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Golden]:
    """A copy of each of them."""
    name, kind = request.param
    expected = json.loads((HERE / name / "expected.json").read_text())
    with tarfile.open(HERE / name / "stores.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = open_store(KINDS[kind].format(tmp_path / kind))
    yield Golden(store, expected["runs"], expected["ids"][kind])
    store.close()


def test_there_are_files_of_several_versions() -> None:
    assert len(NAMES) >= 4


def test_every_run_and_every_checkpoint_of_an_earlier_version_is_as_it_was(golden: Golden) -> None:
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


def test_unfinished_runs_of_an_earlier_version_resume_to_the_same_end(golden: Golden) -> None:
    for run in UNFINISHED:
        assert resumed(golden.store, run) == golden.runs[run]["resumed"]


def test_checkpoints_of_an_earlier_version_can_be_forked_and_pruned_ones_too(golden: Golden) -> None:
    for name in ("done", "pages", "pruned", "forked"):
        expected, first = golden.runs[name], golden.ids[name][1]
        app = GRAPHS[expected["workflow"]]().compile(golden.store)
        assert plain(app.resume(first).state) == expected["state"]


def test_nothing_is_wrong_with_a_store_of_an_earlier_version(golden: Golden) -> None:
    """Before and after this version has gone on with its runs."""
    assert check_store(golden.store).problems == ()
    for run in UNFINISHED:
        resumed(golden.store, run)
    assert check_store(golden.store).problems == ()
