"""For-each: items, their keys and limits, and the order in which siblings apply."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from holdfast import (
    START,
    RunStatus,
    Send,
    StateGraph,
    StateInvalid,
)
from holdfast.stores.base import Store
from tests.graphs import Log, fan, one, says

# For-each.


def mapper(items: list[Send], work: Any, **options: Any) -> StateGraph:
    graph = StateGraph(Log, **options).add_node("item", work).add_node("end", lambda s: {"n": len(s["log"])})
    return graph.add_conditional_edges(START, lambda s: items, ["item"]).add_edge("item", "end")


def test_each_item_sees_its_own_state_and_updates_apply_in_item_order(store: Store) -> None:
    def work(state: Any) -> dict[str, Any]:
        time.sleep(0.02 if state["n"] == 0 else 0)
        return {"log": [f"item {state['n']}"]}

    out = mapper([Send("item", {"n": n}) for n in range(5)], work).compile(store).invoke({"n": 99})

    assert out.state == {"n": 5, "log": [f"item {n}" for n in range(5)]}


def test_an_item_is_not_written_into_the_state() -> None:
    out = one(says("x"), dict).add_node("item", lambda s: {"seen": s["secret"]})
    out.add_conditional_edges("work", lambda s: [Send("item", {"secret": 7})])
    out._edges = [edge for edge in out._edges if edge.source != "work"]

    assert out.compile("memory://").invoke().state == {"log": ["x"], "seen": 7}


def test_items_have_keys_that_name_their_steps() -> None:
    steps: list[tuple[str, str | None]] = []
    items = [Send("item", {}, key) for key in ("b", "a/b", None)] + [Send("item", {}, 7)]  # type: ignore[arg-type]

    mapper(items, lambda s, ctx: steps.append((ctx.step, ctx.item_key))).compile(
        "memory://", max_parallel=1
    ).invoke()

    assert steps == [("item#1[b]", "b"), ("item#1[a%2Fb]", "a/b"), ("item#1[2]", "2"), ("item#1[7]", "7")]


def test_an_item_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(StateInvalid, match=r"item key .* is not valid text"):
        mapper([Send("item", {}, "\ud800")], says("x")).compile("memory://").invoke()


def test_no_items_means_nothing_follows() -> None:
    assert mapper([], says("x")).compile("memory://").invoke().state == {"log": []}


def test_an_item_may_hold_keys_that_the_state_does_not_have() -> None:
    out = mapper([Send("item", {"own": 1})], lambda s: {"log": [str(s["own"])]}).compile("memory://").invoke()

    assert out.state["log"] == ["1"]


def test_at_most_so_many_steps_run_at_once() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def work(state: Any) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1

    mapper([Send("item", {}) for _ in range(12)], work).compile("memory://", max_parallel=3).invoke()

    assert 1 <= most[0] <= 3


def test_siblings_do_run_at_the_same_time() -> None:
    together = threading.Barrier(8)

    def meet(state: Any) -> None:
        together.wait(60)

    out = mapper([Send("item", {}) for _ in range(8)], meet).compile("memory://").invoke()

    assert out.status == RunStatus.COMPLETED


def test_a_wave_of_two_hundred_needs_at_most_five_commits(sqlite_url: str) -> None:
    graph = StateGraph(Log).add_node("item", lambda s: {"log": [str(s["n"])]})
    graph.add_conditional_edges(START, lambda s: [Send("item", {"n": n}) for n in range(200)])
    app = graph.compile(sqlite_url)

    out = app.invoke()

    assert out.state["log"] == [str(n) for n in range(200)] and out.stats.commits <= 5
    app.store.close()


def test_items_that_finish_one_shortly_after_the_other_share_commits() -> None:
    ended = [threading.Event() for _ in range(41)]
    ended[0].set()

    def work(state: Any) -> None:
        assert ended[state["n"]].wait(20)
        time.sleep(0.001)
        ended[state["n"] + 1].set()

    out = mapper([Send("item", {"n": n}) for n in range(40)], work).compile("memory://").invoke()

    assert out.stats.commits <= 20


# Order.


def test_siblings_see_the_same_state_and_apply_in_node_order_whoever_is_first() -> None:
    first = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        assert first.wait(60)
        return {"log": [f"slow saw {state['n']}"]}

    def quick(state: Any) -> dict[str, Any]:
        first.set()
        return {"log": [f"quick saw {state['n']}"]}

    for _ in range(5):
        first.clear()
        out = fan("slow", "quick", nodes={"slow": slow, "quick": quick}).compile("memory://").invoke({"n": 0})
        assert out.state == {"n": 0, "log": ["slow saw 0", "quick saw 0"]}


def test_siblings_apply_in_the_order_of_their_nodes_not_of_their_edges() -> None:
    graph = StateGraph(Log)
    for name in ("a", "b", "c"):
        graph.add_node(name, says(name))
    graph.add_edge(START, "c").add_edge(START, "b").add_edge(START, "a")

    assert graph.compile("memory://").invoke().state["log"] == ["a", "b", "c"]


def test_without_a_barrier_a_node_starts_when_its_own_predecessors_are_done() -> None:
    released = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        assert released.wait(60)
        return {"log": ["slow"]}

    def release(state: Any) -> dict[str, Any]:
        released.set()
        return {"log": ["release"]}

    graph = (
        StateGraph(Log).add_node("slow", slow).add_node("quick", says("quick")).add_node("release", release)
    )
    graph.add_node("end", says("end"))
    graph.add_edge(START, "slow").add_edge(START, "quick").add_edge("quick", "release")
    graph.add_edge(["slow", "release"], "end")
    out = graph.compile("memory://", barrier=False).invoke()

    assert out.state["log"][0] == "quick" and out.state["log"][-1] == "end"
    assert sorted(out.state["log"]) == ["end", "quick", "release", "slow"]
