"""A run as lines of JSON: every record of every kind, whatever it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import CodecError, open_store
from holdfast.capsules.exports import lines_of
from holdfast.journal.copying import prune_run
from holdfast.journal.journal import Journal
from tests.capsules.samples import driven, varied
from tests.graphs import one
from tests.stores.copied_runs import growing


def test_every_record_is_a_line() -> None:
    store = open_store("memory://")
    app = varied(store, {"b": "ask", "x": "fail", "item": "large"})
    driven(app, "r", begin=True)
    app.edit("r", {"n": 5}, by="ada")
    app.answer("r", "fine")
    driven(app, "r", begin=False)

    lines = [json.loads(line) for line in lines_of(Journal(store), "r")]

    types = {line.get("type") for line in lines[1:]}
    assert {
        "RunStarted",
        "StepStarted",
        "StepFinished",
        "Paused",
        "Answered",
        "StateEdited",
        "FrameOpened",
    } <= types
    assert {"StepFailed", "RunEnded", "Resumed", "Checkpoint"} <= types
    assert all({"seq", "at", "type"} <= set(line) for line in lines[1:])
    edited = next(line for line in lines if line.get("type") == "StateEdited")
    assert edited["ops"] == [{"op": "set", "key": "n", "bytes": 2, "value": 5}] and edited["by"] == "ada"
    answered = next(line for line in lines if line.get("type") == "Answered")
    assert answered["value"] == "fine"
    marks = [line["checkpoint_id"] for line in lines if line.get("type") == "Checkpoint"]
    assert marks == [found.id for found in app.checkpoints("r")]


def test_a_pruned_run_begins_with_its_state(tmp_path: Path) -> None:
    store = open_store("memory://")
    growing(store, 10).invoke({}, run_id="r")
    journal = Journal(store)
    prune_run(journal, journal.info("r"), store.checkpoints("r")[3].seq)

    _, first, *_ = [json.loads(line) for line in lines_of(journal, "r")]

    assert first["type"] == "Beginning" and first["state"][""]["noise"]["$type"] == "bytes"


def test_what_is_sealed_is_not_told() -> None:
    store = open_store("memory://")
    one(lambda state: {"n": 1}).compile(store, encryption_key="11" * 32).invoke({}, run_id="r")

    with pytest.raises(CodecError, match="HOLDFAST_KEY"):
        list(lines_of(Journal(store), "r"))
