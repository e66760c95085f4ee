"""Capsules that were written before are read and go on. `python -m tests.capsules.test_golden` writes them anew."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from holdfast import END, START, App, StateGraph, open_store
from holdfast.capsules import import_run, inspect_capsule, make_key_pair
from holdfast.capsules.exports import export_run
from holdfast.capsules.format import VERSION
from holdfast.capsules.signing import LockedSink
from holdfast.stores.base import Store

HERE = Path(__file__).parent / "golden"
VERSIONS = range(1, VERSION + 1)
PASSPHRASE = "golden"


def build(store: Store) -> App:
    """Two steps, the second of which asks."""
    graph = StateGraph(dict, name="golden")
    graph.add_node("first", lambda state: {"words": ["one", "two"], "number": 1.5})
    graph.add_node("second", lambda state, ctx: {"said": ctx.ask("And?", name="and")})
    graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    return graph.compile(store)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", ["plain", "signed", "encrypted"])
def test_a_capsule_of_an_earlier_version_is_read_and_goes_on(version: int, form: str) -> None:
    secret = PASSPHRASE if form == "encrypted" else None
    path = HERE / f"v{version}-{form}.holdfast"
    trust = [HERE / f"v{version}.pub"] if form == "signed" else []
    store = open_store("memory://")

    info = inspect_capsule(path, passphrase=secret, trust=trust)
    import_run(store, path, passphrase=secret, trust=trust or True)

    assert (info.run_id, info.workflow, info.status, info.messages) == ("golden", "golden", "paused", 0)
    assert [(step.name, step.status) for step in info.steps] == [
        ("first", "completed"),
        ("second", "waiting"),
    ]
    state = build(store).resume("golden", answer="gold").state
    assert state.to_dict() == {"words": ["one", "two"], "number": 1.5, "said": "gold"}


def main() -> None:
    """Write the files of the current format."""
    store = open_store("memory://")
    build(store).invoke({}, run_id="golden")
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        pair = make_key_pair(Path(folder) / "key")
        shutil.copy(pair.public, HERE / f"v{VERSION}.pub")
        export_run(store, "golden", HERE / f"v{VERSION}-signed.holdfast", sign=pair.private)
    plain = HERE / f"v{VERSION}-plain.holdfast"
    export_run(store, "golden", plain)
    with (HERE / f"v{VERSION}-encrypted.holdfast").open("wb") as file:
        sink = LockedSink(file, PASSPHRASE, work=14)
        sink.write(plain.read_bytes())
        sink.close()


if __name__ == "__main__":
    main()
