"""Differences between two checkpoints of runs, on every store."""

from __future__ import annotations

import base64
import dataclasses
import os
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import (
    CheckpointNotFound,
    CodecError,
    RunNotFound,
    StateGraph,
    StateInvalid,
    append,
    register_type,
)
from holdfast.journal.journal import Journal
from holdfast.state import Unknown
from holdfast.state.ops import Op, Slot
from holdfast.stores.base import Store
from holdfast.values import END, START
from holdfast.views import apply_difference, apply_patch, diff_states
from holdfast.views.changes import ItemsInserted, ListEdited, MapEdited, ObjectEdited, Replaced
from holdfast.views.comparison import load_plainly, state_difference
from holdfast.views.plain import plain
from tests.cli.in_process import three_runs
from tests.graphs import chain


@dataclasses.dataclass(frozen=True)
class Plan:
    title: str
    steps: list[str]


class Notes(TypedDict, total=False):
    n: int
    messages: Annotated[list[Any], append]
    plan: Plan
    blob: bytes


def notes(**options: Any) -> Any:
    def first(state: Any) -> dict[str, Any]:
        return {"n": 1, "messages": ["hello"], "plan": Plan("draft", ["a", "b"])}

    def second(state: Any) -> dict[str, Any]:
        return {"n": 3, "messages": ["world"], "plan": Plan("draft", ["a", "c", "b"])}

    graph = StateGraph(Notes, name="notes")
    graph.add_node("first", first).add_node("second", second)
    graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    return graph.compile(**options)


def test_two_moments_of_a_run_tell_what_a_step_did(store: Store) -> None:
    """S1.17: the difference of two checkpoints, on every store."""
    app = notes(store=store)
    app.invoke({"blob": b"x" * 10_000}, run_id="r")

    found = app.diff("r@first", "r")

    assert found and found.state.count == 3
    assert found.state.change == MapEdited(
        {},
        {},
        {
            "messages": ListEdited((ItemsInserted(1, 1, ("world",)),)),
            "n": Replaced(1, 3),
            "plan": ObjectEdited(
                "Plan", MapEdited({}, {}, {"steps": ListEdited((ItemsInserted(1, 1, ("c",)),))})
            ),
        },
    )
    assert found.facts == {
        "status": ("running", "completed"),
        "wave": (1, 2),
        "node": ("first", "second"),
        "next": (("second",), ()),
    }
    assert [side.checkpoint_id for side in (found.one, found.other)] == [
        point.id for point in app.checkpoints("r")
    ]
    assert app.diff("r") == found == diff_states(store, "r@-1", "r@second")
    assert app.diff("r", keys=["n"]).state.count == 1


def test_a_moment_does_not_differ_from_itself(store: Store) -> None:
    app = notes(store=store)
    app.invoke(run_id="r")
    app.invoke(run_id="s")

    assert not app.diff("r", "r") and not app.diff("r", "r").facts
    assert not app.diff("r", "s") and app.diff("r@1", "s@first").state.count == 0
    assert app.diff("r", "s").patch == []


def test_a_run_s_only_checkpoint_is_compared_with_its_beginning(store: Store) -> None:
    chain("a", name="short").compile(store).invoke({"n": 1}, run_id="r")

    found = diff_states(store, "r")

    assert (found.one.wave, found.other.wave) == (0, 1)
    assert found.state.change == MapEdited({}, {}, {"log": ListEdited((ItemsInserted(0, 0, ("a",)),))})
    with pytest.raises(
        CheckpointNotFound, match="nothing saved before that to compare with; give two checkpoints"
    ):
        diff_states(store, "r@0")


def test_a_difference_put_on_the_one_state_gives_the_other(memory: Store) -> None:
    app = notes(store=memory)
    app.invoke({"blob": b"x"}, run_id="r")
    found = app.diff("r@0", "r")
    before, after = (
        {key: plain(value) for key, value in side.items()} for side in (found.before, found.after)
    )

    assert apply_difference(found.state, dict(found.before)) == found.after
    assert apply_patch(before, found.patch) == after
    assert {"op": "add", "path": "/messages/0", "value": "hello"} in found.patch
    assert "blob" not in found.before


def test_runs_of_other_workflows_are_compared_and_what_they_wait_for(sqlite_url: str) -> None:
    store = three_runs(sqlite_url)

    found = diff_states(store, "asked", "bad")

    assert not found
    assert found.facts == {
        "workflow": ("gate", "broken"),
        "status": ("paused", "failed"),
        "pauses": (("q",), ()),
    }
    assert diff_states(store, "fine", "gate").as_json()["changes"] == 1
    with pytest.raises(RunNotFound):
        diff_states(store, "fine", "nobody")
    with pytest.raises(StateInvalid, match="neither state has a key 'm'; there are: log, n"):
        diff_states(store, "fine", "gate", keys=["n", "m"])


def test_registered_types_are_looked_into_as_well(memory: Store) -> None:
    ran: list[Any] = []
    kind = type("Weight", (), {"__init__": lambda self, grams: setattr(self, "grams", grams)})
    register_type(
        kind, name="diff-weight", encode=lambda it: {"grams": it.grams}, decode=lambda data: ran.append(data)
    )
    graph = chain("a", "b", nodes={"a": lambda s: {"n": kind(1)}, "b": lambda s: {"n": kind(2)}}, name="w")
    graph.compile(memory).invoke(run_id="r")
    ran.clear()

    found = diff_states(memory, "r", keys=["n"])

    assert found.before == {"n": Unknown("diff-weight", {"grams": 1})} and found.state.count == 1
    assert ran == [], "none of the user's code is run"


def test_values_that_are_stored_as_the_same_bytes_are_not_decoded(memory: Store) -> None:
    chain("a", "b", name="w").compile(memory).invoke({"n": 1}, run_id="r")
    journal = Journal(memory)
    one, other = (load_plainly(journal, journal.info("r")) for _ in range(2))
    for loaded in (one, other):
        loaded.run.root.cells["same"] = Slot(Op("set", "same", b"no value at all"), None)
        grown = Slot(Op("append", "grown", b"nor this"), Slot(Op("set", "grown", b"nor that"), None))
        loaded.run.root.cells["grown"] = grown
    assert not state_difference(one, other)

    other.run.root.cells["same"] = Slot(Op("set", "same", b"nothing else"), None)

    found = state_difference(one, other)
    assert found and not found.state
    assert (
        list(found.not_compared) == ["same"] and "cannot read the stored value" in found.not_compared["same"]
    )
    assert found.as_json()["same"] is False


def test_an_encrypted_run_is_compared_with_its_key(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = base64.b64encode(os.urandom(32)).decode()
    app = notes(store=sqlite_url, encryption_key=key)
    app.invoke(run_id="r")

    assert app.diff("r").state.count == 3
    with pytest.raises(CodecError, match="encrypted; set HOLDFAST_KEY"):
        diff_states(app.store, "r")
    monkeypatch.setenv("HOLDFAST_KEY", key)
    assert diff_states(app.store, "r").state.count == 3
    app.store.close()


def test_a_fork_is_compared_with_the_run_that_it_came_from(store: Store) -> None:
    app = notes(store=store)
    app.invoke(run_id="r")
    fork = app.resume(app.checkpoints("r")[0].id, update={"n": 7, "messages": ["aside"]})

    found = app.diff("r", fork.run_id)

    assert found.as_json()["state"]["changed"] == {
        "messages": {
            "kind": "list",
            "edits": [{"edit": "inserted", "before": 1, "after": 1, "items": ["aside"]}],
        }
    }


def test_a_run_that_was_saved_only_at_its_end_has_nothing_to_compare_with(memory: Store) -> None:
    chain("a", "b", name="w").compile(memory, durability="exit").invoke(run_id="r")

    with pytest.raises(CheckpointNotFound, match="give two checkpoints"):
        diff_states(memory, "r")
