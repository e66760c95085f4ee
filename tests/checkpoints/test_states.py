"""A checkpoint is a state: what a state carries, and keeps through every change."""

from __future__ import annotations

import datetime as dt
import pickle
import uuid

import pytest

from holdfast import State, open_store
from holdfast.checkpoints import JournalCheckpointStore
from tests.graphs import Heard


def test_a_state_carries_all_that_a_checkpoint_needs():
    """S3.1, S3.4: data, run, node and time, read by accessors; there is no wrapper around it."""
    state = State({"n": 1}, run_id="r", checkpoint_id="c", checkpoint_node="a", timestamp=100.0)

    assert dict(state) == {"n": 1}
    assert (state.run_id, state.checkpoint_id, state.checkpoint_node) == ("r", "c", "a")
    assert state.timestamp == dt.datetime(1970, 1, 1, 0, 1, 40, tzinfo=dt.UTC)
    loaded = JournalCheckpointStore("memory://")
    loaded.save(state)
    assert isinstance(loaded.load_state("r"), State)


def test_a_new_state_has_a_run_of_its_own_and_says_so(heard: Heard):
    """S3.2: a fresh run id, now as its time, `state.create` to the observer; without one, silence."""
    before = dt.datetime.now(dt.UTC)
    state = State(observer=heard)

    assert uuid.UUID(state.run_id).version == 4
    assert state.run_id != State().run_id
    assert before <= state.timestamp <= dt.datetime.now(dt.UTC)
    assert (state.checkpoint_node, state.checkpoint_id, len(state)) == ("", "", 0)
    assert heard.types == ["state.create"]
    assert [State(observer=each).run_id != "" for each in ("noop", heard.on_event, [heard])] == [True] * 3
    assert heard.types == ["state.create"] * 3


def test_every_change_gives_a_new_state_and_keeps_the_place(heard: Heard):
    """S3.3, S3.22: run, node, time and checkpoint survive set, merge and clone; the original never changes."""
    state = State({"n": 1}, observer=heard, checkpoint_id="c").set_checkpoint_node("a")
    heard.events.clear()

    for changed in (state.set("n", 2), state.merge({"n": 2, "m": 3}), state.clone()):
        assert changed is not state
        assert (changed.run_id, changed.checkpoint_node, changed.timestamp, changed.checkpoint_id) == (
            state.run_id,
            "a",
            state.timestamp,
            "c",
        )
    assert state == {"n": 1}
    told = [(event.type, dict(event.data)) for event in heard.events]
    assert told == [("state.set", {"key": "n"}), ("state.merge", {"keys": 2}), ("state.clone", {"keys": 1})]


def test_a_new_checkpoint_node_comes_with_a_new_time():
    """S3.4: the state before keeps its own."""
    state = State({"n": 1}, timestamp=100.0)

    moved = state.set_checkpoint_node("b")

    assert (moved.checkpoint_node, state.checkpoint_node) == ("b", "")
    assert moved.timestamp > state.timestamp
    assert moved == state and moved.run_id == state.run_id


def test_a_state_survives_serialisation_with_its_place():
    """S0.5, S3.1: the checkpoint id is part of what is serialised."""
    state = State({"n": [1]}).set_checkpoint_node("a").checkpoint(JournalCheckpointStore("memory://"))

    again = pickle.loads(pickle.dumps(state))

    assert again == state
    assert (again.run_id, again.checkpoint_id, again.checkpoint_node, again.timestamp) == (
        state.run_id,
        state.checkpoint_id,
        "a",
        state.timestamp,
    )


def test_saving_a_state_needs_only_something_that_saves():
    """S3.8: `state.checkpoint(store)` is `store.save(state)`; what that raises is passed on."""
    store = open_store("memory://")
    checkpoints = JournalCheckpointStore(store)
    store.close()

    with pytest.raises(Exception, match="closed"):
        State({"n": 1}).checkpoint(checkpoints)
