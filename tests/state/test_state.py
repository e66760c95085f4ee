"""`State`: an immutable mapping that knows its run and its place."""

from __future__ import annotations

import copy
import pickle
import re
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from holdfast import START, State, StateGraph, StateInvalid
from holdfast.state.ops import ReadOnly
from holdfast.state.state import check_untouched, origin_of, state_view
from tests.graphs import Heard


def test_a_state_reads_like_a_dict_and_like_an_object() -> None:
    state = State({"n": 1, "log": ["a"]})

    assert state["n"] == state.n == 1
    assert dict(state) == {"n": 1, "log": ["a"]}
    assert len(state) == 2 and "n" in state and list(state) == ["n", "log"]
    assert state.get("missing", 7) == 7
    assert state == {"n": 1, "log": ["a"]}
    assert state | {"n": 2} == {"n": 2, "log": ["a"]}


def test_a_new_state_has_a_run_of_its_own() -> None:
    """S3.1, S3.2"""
    first, second = State(), State()

    assert uuid.UUID(first.run_id).version == 4
    assert first.run_id != second.run_id
    assert first.checkpoint_node == "" and first.checkpoint_id == ""
    assert first.timestamp.tzinfo is not None


def test_a_state_without_an_observer_is_silent_and_one_with_an_observer_tells_of_its_birth(
    heard: Heard,
) -> None:
    """S3.2"""
    state = State({"n": 1}, observer=heard)

    assert heard.types == ["state.create"]
    assert heard.events[0].run_id == state.run_id


def test_set_and_merge_give_new_states_and_leave_the_old_one() -> None:
    """S3.3"""
    old = State({"n": 1, "m": 2})

    assert old.set("n", 5) == {"n": 5, "m": 2}
    assert old.merge({"m": 3, "k": 4}) == {"n": 1, "m": 3, "k": 4}
    assert old == {"n": 1, "m": 2}


@pytest.mark.parametrize(
    "derive",
    [
        lambda s: s.clone(),
        lambda s: s.set("n", 2),
        lambda s: s.merge({"n": 3}),
    ],
)
def test_derived_states_keep_the_run_the_node_and_the_time(derive: Any) -> None:
    """S3.3"""
    state = State({"n": 1}, checkpoint_node="one", checkpoint_id="c1", timestamp=12.5)

    other = derive(state)

    assert other is not state
    assert (other.run_id, other.checkpoint_node, other.checkpoint_id, other.timestamp) == (
        state.run_id,
        "one",
        "c1",
        state.timestamp,
    )


def test_cloning_tells_the_observer_how_many_keys_there_are(heard: Heard) -> None:
    """S3.3"""
    State({"n": 1, "m": 2}, observer=heard).clone()

    assert heard.types == ["state.create", "state.clone"]
    assert heard.events[-1].data == {"keys": 2}


def test_derived_states_keep_telling_the_observer(heard: Heard) -> None:
    State({"n": 1}, observer=heard).set("n", 2).clone()

    assert heard.types == ["state.create", "state.set", "state.clone"]


def test_setting_the_checkpoint_node_freshens_the_time() -> None:
    """S3.4"""
    state = State({"n": 1}, timestamp=1.0)

    moved = state.set_checkpoint_node("two")

    assert moved.checkpoint_node == "two" and moved.timestamp > state.timestamp
    assert state.checkpoint_node == "" and moved.run_id == state.run_id and moved == state


def test_a_state_hands_itself_to_a_store_that_saves_states() -> None:
    """S3.8"""
    saved: list[State] = []

    class Saver:
        def save(self, state: State) -> None:
            saved.append(state)

    state = State({"n": 1})
    state.checkpoint(Saver())

    assert saved == [state]


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.__setitem__("n", 1),
        lambda s: s.__delitem__("n"),
        lambda s: setattr(s, "n", 1),
        lambda s: delattr(s, "n"),
        lambda s: s["items"].append(1),
        lambda s: s["items"].sort(),
        lambda s: s["items"].__setitem__(0, 9),
        lambda s: s["items"].__iadd__([1]),
        lambda s: s["items"][1].append(1),
        lambda s: s["map"].update(a=1),
        lambda s: s["map"].__setitem__("a", 1),
        lambda s: s["map"].setdefault("z", 1),
        lambda s: s["map"]["deep"]["er"].append(1),
        lambda s: s["map"].__ior__({"a": 1}),
        lambda s: s["tags"].add("x"),
        lambda s: s["tags"].__ior__({"x"}),
        lambda s: s["pair"][1].append(3),
    ],
)
def test_changing_a_state_in_place_raises_and_says_what_to_do(change: Any) -> None:
    state = State(
        {"n": 0, "items": [1, [2]], "map": {"a": 0, "deep": {"er": []}}, "tags": {"t"}, "pair": (1, [2])}
    )

    with pytest.raises(ReadOnly, match="return"):
        change(state)


def test_read_only_is_both_an_error_of_ours_and_a_type_error() -> None:
    assert issubclass(ReadOnly, StateInvalid) and issubclass(ReadOnly, TypeError)


def test_a_state_does_not_change_with_what_it_was_made_of() -> None:
    source: dict[str, Any] = {"items": [1], "map": {"a": [1]}, "tags": {1}}
    state = State(source)

    source["items"].append(2)
    source["map"]["a"].append(2)
    source["tags"].add(2)

    assert state == {"items": [1], "map": {"a": [1]}, "tags": {1}}


def test_copies_of_values_can_be_changed() -> None:
    state = State({"items": [1, [2]], "map": {"a": [1]}, "tags": {1}})

    items, tags = list(state["items"]), set(state["tags"])
    items.append(3)
    tags.add(2)
    deep = copy.deepcopy(state["map"])
    deep["a"].append(2)
    shallow = copy.copy(state["items"])
    shallow.append(1)

    assert state == {"items": [1, [2]], "map": {"a": [1]}, "tags": {1}}
    assert state["items"].copy() == [1, [2]]


def test_to_dict_is_plain_all_the_way_down() -> None:
    plain = State({"items": [1, {"a": [2]}], "pair": ([1], 2), "tags": {1}}).to_dict()

    plain["items"][1]["a"].append(3)
    plain["pair"][0].append(2)
    plain["tags"].add(2)

    assert plain == {"items": [1, {"a": [2, 3]}], "pair": ([1, 2], 2), "tags": {1, 2}}
    assert type(plain["items"]) is list and type(plain["items"][1]) is dict and type(plain["tags"]) is set


def test_a_state_survives_pickling_with_its_place() -> None:
    state = State({"items": [1]}, checkpoint_node="one", checkpoint_id="c1", timestamp=5.0)

    again = pickle.loads(pickle.dumps(state))

    assert again == state and isinstance(again, State)
    assert (again.run_id, again.checkpoint_node, again.checkpoint_id) == (state.run_id, "one", "c1")
    assert again.timestamp == state.timestamp


@pytest.mark.parametrize("value", [[1, [2]], {"a": {"b": 1}}, {1, 2}])
def test_read_only_values_become_plain_when_they_are_copied_or_pickled(value: Any) -> None:
    held = State({"value": value})["value"]

    for plain in (copy.copy(held), copy.deepcopy(held), held.copy(), pickle.loads(pickle.dumps(held))):
        assert plain == value and type(plain) is type(value)
    assert held == value and repr(held) == repr(value)


class Pair(NamedTuple):
    left: list[int]
    right: int


def test_named_tuples_keep_their_names_and_their_lists_become_read_only() -> None:
    held = State({"pair": Pair([1], 2)})["pair"]

    assert held == Pair([1], 2) and held.left == [1]
    with pytest.raises(ReadOnly):
        held.left.append(2)


def test_dicts_may_have_any_keys() -> None:
    assert State({"by": {1: ["a"], (2, 3): "b"}}).to_dict() == {"by": {1: ["a"], (2, 3): "b"}}


def test_an_unknown_attribute_suggests_the_key_that_was_meant() -> None:
    state = State({"messages": []})

    with pytest.raises(AttributeError, match="did you mean 'messages'"):
        state.mesages
    with pytest.raises(AttributeError):
        state._private_thing
    with pytest.raises(KeyError):
        state["nothing"]


@dataclass
class Basket:
    owner: str
    items: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Fixed:
    items: list[int]


def test_a_mutable_object_that_is_changed_in_place_is_found_out() -> None:
    from holdfast.state.codec import Codec
    from holdfast.state.ops import advance, make_op
    from holdfast.state.types import BUILTIN

    codec = Codec(BUILTIN.including([Basket]))
    cells = advance({}, [make_op(codec, "set", "basket", Basket("ann", [1]))])
    state = state_view(cells, codec, "r", "", "", 0.0)
    state["basket"].owner = "bob"

    with pytest.raises(ReadOnly, match="state\\['basket'\\] was changed in place"):
        check_untouched(state)
    assert state_view(cells, codec, "r", "", "", 0.0)["basket"] == Basket("ann", [1])


def test_reading_a_mutable_object_is_not_changing_it() -> None:
    state = State({"ends": deque([1, 2])})

    assert list(state["ends"]) == [1, 2]
    check_untouched(state)

    state["ends"].append(3)
    with pytest.raises(ReadOnly, match="ends"):
        check_untouched(state)


def test_the_lists_inside_a_frozen_dataclass_are_read_only_too() -> None:
    with pytest.raises(ReadOnly):
        State({"fixed": Fixed([1])})["fixed"].items.append(2)


def test_a_state_has_a_readable_form() -> None:
    assert repr(State({"n": 1})) == "State({'n': 1})"


def test_keys_that_are_called_like_facts_of_a_state_come_before_them() -> None:
    state = State({"run_id": "mine", "timestamp": 5}, run_id="r")

    assert (state.run_id, state.timestamp, state["run_id"]) == ("mine", 5, "mine")
    assert origin_of(state).run_id == "r" and pickle.loads(pickle.dumps(state)).run_id == "mine"


@pytest.mark.parametrize(
    "use", [list, len, bool, str, lambda v: v[0], lambda v: v == [1], lambda v: v.append(2)]
)
def test_a_method_is_never_taken_for_the_key_of_the_same_name(use: Any) -> None:
    state = State({"items": [1], "keys": [1], "get": [1]})

    for name in state:
        with pytest.raises(TypeError, match=re.escape(f"the key of that name is state['{name}']")):
            use(getattr(state, name))
    assert (
        dict(state)["items"] == [1]
        and {**state}["keys"] == [1]
        and next(iter(state.items())) == ("items", [1])
    )
    assert state.get("get") == [1] and state.set("n", 1)["items"] == [1]


def test_keys_may_be_called_like_what_the_engine_does_with_states() -> None:
    state = State(dict.fromkeys(("view", "limited", "overlaid", "changed_since", "was_handed_out"), 1))

    assert [getattr(state, name) for name in state] == [1] * 5


def test_a_graph_runs_with_keys_that_are_called_like_methods_and_facts() -> None:
    keys = ("items", "keys", "get", "run_id", "checkpoint_id", "limited", "overlaid", "changed_since", "view")
    graph = StateGraph(dict).add_node("a", lambda s: {key: s[key] + 1 for key in keys}, reads=keys)
    graph.add_node("b", lambda s: s.set("n", s["items"] + s.run_id)).add_edge(START, "a").add_edge("a", "b")
    out = graph.compile("memory://").invoke(dict.fromkeys(keys, 1))

    assert out.state.to_dict() == {**dict.fromkeys(keys, 2), "n": 4} and out.checkpoint_id != 2
