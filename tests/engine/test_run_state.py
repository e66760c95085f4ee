"""The state of a run: schemas, reducers, refused values, and changes in place."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, Field

from holdfast import (
    END,
    START,
    CodecError,
    ExecutionError,
    StateGraph,
    StateInvalid,
    append,
)
from holdfast.state.ops import ReadOnly
from holdfast.stores.base import Store
from tests.graphs import Log, Reduced, chain, counter, one, reduces, says


def test_an_unknown_input_key_is_refused_before_anything_is_stored() -> None:
    app = chain("a").compile("memory://")

    with pytest.raises(StateInvalid, match="unknown state key 'm'"):
        app.invoke({"m": 1})
    with pytest.raises(StateInvalid, match="the input must be a dict"):
        app.invoke([1])
    assert app.runs() == []


def test_an_unknown_key_in_an_update_fails_the_step() -> None:
    calls: list[str] = []
    nodes = {"a": lambda s: {"lgo": ["x"]}, "b": lambda s: calls.append("b")}

    with pytest.raises(ExecutionError, match=r"unknown state key 'lgo'.*did you mean 'log'") as caught:
        chain("a", "b", nodes=nodes).compile("memory://").invoke()
    assert caught.value.node == "a" and isinstance(caught.value.cause, StateInvalid) and calls == []


@pytest.mark.parametrize(
    "value", [object(), lambda: 1, threading.Lock(), {"deep": [object()]}, (x for x in "a")]
)
@pytest.mark.parametrize("interval", [1, 10])
def test_a_value_that_cannot_be_stored_fails_its_step_at_once(value: Any, interval: int) -> None:
    from holdfast import CheckpointPolicy

    calls: list[str] = []
    graph = (
        StateGraph(dict).add_node("a", lambda s: {"bad": value}).add_node("b", lambda s: calls.append("b"))
    )
    app = (
        graph.add_edge(START, "a").add_edge("a", "b").compile("memory://", policy=CheckpointPolicy(interval))
    )

    with pytest.raises(ExecutionError, match="step 'a' failed: CodecError: state key 'bad'") as caught:
        app.invoke()
    assert isinstance(caught.value.cause, CodecError) and calls == []


@dataclass
class Basket:
    items: list[int] = field(default_factory=list)


class Held(TypedDict, total=False):
    items: list[Any]
    facts: dict[str, Any]
    tags: set[str]
    basket: Basket
    queue: deque[int]
    n: int


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["items"].append(9),
        lambda s: s["items"][1].append(9),
        lambda s: s["facts"].update(x=1),
        lambda s: s["facts"]["deep"]["er"].append(9),
        lambda s: s["tags"].add("x"),
        lambda s: s["basket"].items.append(9),
        lambda s: setattr(s["basket"], "items", [9]),
        lambda s: s["queue"].append(9),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_change_in_place_fails_the_step_and_is_never_kept(change: Any, is_async: bool) -> None:
    def change_it(state: Any) -> dict[str, Any]:
        change(state)
        return {"n": 1}

    async def change_later(state: Any) -> dict[str, Any]:
        return change_it(state)

    begin = {
        "items": [1, [2]],
        "facts": {"deep": {"er": []}},
        "tags": {"t"},
        "basket": Basket([1]),
        "queue": deque([1]),
    }
    app = one(change_later if is_async else change_it, Held).compile("memory://")

    with pytest.raises(ExecutionError, match="return") as caught:
        app.invoke(begin, run_id="r")
    assert isinstance(caught.value.cause, ReadOnly)
    assert app.get_state("r").to_dict() == begin


def test_a_node_that_catches_the_refusal_has_still_changed_nothing() -> None:
    def stubborn(state: Any) -> dict[str, Any]:
        try:
            state["items"].append(1)
        except TypeError:
            return {"n": len(state["items"])}
        return {"n": -1}

    assert one(stubborn, Held).compile("memory://").invoke({"items": [1]}).state["n"] == 1


def test_old_checkpoints_never_change_with_new_state(store: Store) -> None:
    app = counter(5, node=lambda s: {"n": s["n"] + 1, "log": [f"step {s['n']}"]}).compile(store)
    app.invoke({"n": 0}, run_id="r")

    states = [app.get_state("r", checkpoint_id=checkpoint.id) for checkpoint in app.checkpoints("r")]

    assert [state["n"] for state in states] == [1, 2, 3, 4, 5]
    assert [len(state["log"]) for state in states] == [1, 2, 3, 4, 5]
    assert [checkpoint.wave for checkpoint in app.checkpoints("r")] == [1, 2, 3, 4, 5]
    assert [checkpoint.nodes for checkpoint in app.checkpoints("r")] == [("work",)] * 5
    assert app.checkpoints("r")[0].next == ("work",) and app.checkpoints("r")[-1].next == ()


@dataclass
class AsDataclass:
    n: int = 0
    log: Annotated[list[str], append] = field(default_factory=list)


class AsModel(BaseModel):
    n: int = Field(default=0, ge=0)
    log: Annotated[list[str], append] = Field(default_factory=list)


@pytest.mark.parametrize(
    "schema", [Log, AsDataclass, AsModel, {"n": int, "log": Annotated[list[str], append]}]
)
def test_every_kind_of_schema_runs_alike(schema: Any, store: Store) -> None:
    graph = StateGraph(schema).add_node("a", lambda s: {"n": s.n + 1, "log": ["a"]}).add_node("b", says("b"))
    app = graph.add_edge(START, "a").add_edge("a", "b").compile(store)

    assert app.invoke({"n": 1}, run_id="r").state == {"n": 2, "log": ["a", "b"]}
    assert app.get_state("r") == {"n": 2, "log": ["a", "b"]}


@pytest.mark.parametrize(("schema", "make"), [(AsDataclass, AsDataclass), (AsModel, AsModel)])
def test_inputs_and_updates_may_be_instances(schema: Any, make: Any) -> None:
    app = one(lambda s: make(n=5), schema).compile("memory://")

    assert app.invoke(make(n=1, log=["first"])).state == {"n": 5, "log": ["first"]}


def test_a_model_refuses_a_bad_update_naming_the_key() -> None:
    with pytest.raises(ExecutionError, match="state key 'n' of AsModel"):
        one(lambda s: {"n": -1}, AsModel).compile("memory://").invoke()
    with pytest.raises(StateInvalid, match="state key 'n' of AsModel"):
        one(lambda s: None, AsModel).compile("memory://").invoke({"n": "many"})


def test_a_plain_dict_takes_any_key(store: Store) -> None:
    app = one(lambda s: {"new": s["old"] + 1}, dict).compile(store)

    assert app.invoke({"old": 1}).state == {"old": 1, "new": 2}


def test_objects_that_the_schema_declares_travel_through_a_run(store: Store) -> None:
    app = one(lambda s: {"basket": Basket([*s["basket"].items, 2])}, Held).compile(store)
    app.invoke({"basket": Basket([1])}, run_id="r")

    assert app.get_state("r")["basket"] == Basket([1, 2])


def test_all_reducers_work_across_siblings(store: Store) -> None:
    graph = StateGraph(Reduced)
    for n in (3, 1, 2):
        graph.add_node(f"n{n}", reduces(n)).add_edge(START, f"n{n}")
    app = graph.compile(store)
    app.invoke(run_id="r")

    assert app.get_state("r") == {
        "log": ["3", "1", "2"],
        "facts": {"3": 3, "1": 1, "2": 2},
        "total": 6,
        "tags": {"1", "2", "3"},
        "recent": [1, 2],
        "top": 3,
        "joined": [3, 1, 2],
    }


def grown(old: list[str] | None, new: list[str]) -> list[str]:
    return [*(old or []), *new]


def test_a_custom_reducer_that_grows_a_list_is_journalled_as_its_growth() -> None:
    schema = {"n": int, "log": Annotated[list[str], grown]}
    graph = StateGraph(schema, max_iterations=200)
    graph.add_node("a", lambda s: {"n": s["n"] + 1, "log": ["word " * 20]})
    graph.add_edge(START, "a").add_edge("a", "a", when=lambda s: s["n"] < 100).add_edge("a", END)
    out = graph.compile("memory://").invoke({"n": 0, "log": []})

    assert len(out.state["log"]) == 100
    assert out.stats.bytes_written < 100 * 100 * 6


def test_a_custom_reducer_that_raises_fails_the_run() -> None:
    def picky(old: Any, new: Any) -> Any:
        raise ValueError("not like this")

    graph = one(lambda s: {"n": 1}, {"n": Annotated[int, picky]})

    with pytest.raises(ExecutionError, match="not like this"):
        graph.compile("memory://").invoke()


def test_a_large_untouched_value_is_written_once() -> None:
    import random

    big = random.Random(1).randbytes(300_000)
    graph = StateGraph(dict, max_iterations=100).add_node("a", lambda s: {"n": s["n"] + 1})
    graph.add_edge(START, "a").add_edge("a", "a", when=lambda s: s["n"] < 50).add_edge("a", END)
    out = graph.compile("memory://").invoke({"n": 0, "big": big})

    assert out.stats.bytes_written < len(big) + 30_000
