"""Nodes that may fail, nodes with a limit, and the last node of a graph."""

from __future__ import annotations

import threading
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import (
    END,
    START,
    Command,
    ExecutionError,
    GraphInvalid,
    HoldfastError,
    Retry,
    Send,
    StateGraph,
    append,
)


class Work(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


def broken(state: Any) -> Any:
    raise ValueError("no luck")


def note(text: str) -> Any:
    return lambda state: {"log": [text]}


def test_what_on_error_returns_stands_in_for_a_failed_node() -> None:
    graph = StateGraph(Work, name="g")
    graph.add_node("a", broken, on_error=lambda state, error: {"log": [f"{state['n']}: {error}"]})
    graph.add_node("b", note("b"), after=["a"])
    app = graph.compile("memory://")

    outcome = app.invoke({"n": 7})

    assert outcome.status == "completed" and outcome.state["log"] == ["7: no luck", "b"]
    assert outcome.warnings == ("step 'a' failed and was passed over: ValueError: no luck",)


def test_on_error_is_asked_only_when_no_attempt_is_left() -> None:
    tries: list[int] = []

    def work(state: Any, ctx: Any) -> Any:
        tries.append(ctx.attempt)
        raise ValueError("again")

    graph = StateGraph(Work, name="g")
    graph.add_node("a", work, retry=Retry(3, delay=0), on_error=lambda state, error: {"log": ["gave up"]})
    graph.add_edge(START, "a").add_edge("a", END)

    assert graph.compile("memory://").invoke({"n": 0}).state["log"] == ["gave up"] and tries == [1, 2, 3]


def test_on_error_may_choose_where_to_go_on() -> None:
    graph = StateGraph(Work, name="g")
    graph.add_node("a", broken, on_error=lambda state, error: Command(goto="rescue"), goto=["rescue"])
    graph.add_node("b", note("b"))
    graph.add_node("rescue", note("rescued"))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).add_edge("rescue", END)

    assert graph.compile("memory://").invoke({"n": 0}).state["log"] == ["rescued"]


def test_an_on_error_that_fails_itself_leaves_the_failure() -> None:
    graph = StateGraph(Work, name="g")
    graph.add_node("a", broken, on_error=lambda state, error: {"unknown": 1})
    graph.add_edge(START, "a").add_edge("a", END)

    with pytest.raises(ExecutionError, match="no luck"):
        graph.compile("memory://").invoke({"n": 0})


def test_an_on_error_may_decline(caplog: pytest.LogCaptureFixture) -> None:
    def decline(state: Any, error: BaseException) -> Any:
        raise error

    graph = StateGraph(Work, name="g")
    graph.add_node("a", broken, on_error=decline)
    graph.add_edge(START, "a").add_edge("a", END)

    with pytest.raises(ExecutionError, match="no luck"):
        graph.compile("memory://").invoke({"n": 0})
    assert "on_error" not in caplog.text


def test_an_item_that_fails_does_not_stop_the_others() -> None:
    def item(state: Any) -> Any:
        if state["n"] == 2:
            raise ValueError("two")
        return {"log": [str(state["n"])]}

    graph = StateGraph(Work, name="g")
    graph.add_node("split", lambda state: None)
    graph.add_node("item", item, on_error=lambda state, error: {"log": [f"{state['n']} failed"]})
    graph.add_edge(START, "split").add_edge("item", END)
    graph.add_conditional_edges("split", lambda state: [Send("item", {"n": i}) for i in range(4)], ["item"])

    assert graph.compile("memory://").invoke({"n": 0}).state["log"] == ["0", "1", "2 failed", "3"]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_node_may_limit_how_many_of_its_items_run_at_once(limit: int) -> None:
    lock, running, most = threading.Lock(), 0, 0
    gate = threading.Semaphore(0)

    def item(state: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == limit:
                for _ in range(limit):
                    gate.release()
        assert gate.acquire(timeout=60)
        with lock:
            running -= 1
        return {"log": [str(state["n"])]}

    graph = StateGraph(Work, name="g")
    graph.add_node("split", lambda state: None)
    graph.add_node("item", item, max_parallel=limit)
    graph.add_edge(START, "split").add_edge("item", END)
    graph.add_conditional_edges("split", lambda state: [Send("item", {"n": i}) for i in range(9)], ["item"])

    assert len(graph.compile("memory://").invoke({"n": 0}).state["log"]) == 9
    assert most == limit


def test_a_limit_below_one_is_refused() -> None:
    graph = StateGraph(Work, name="g").add_node("a", broken, max_parallel=0).add_edge(START, "a")

    with pytest.raises(GraphInvalid, match="max_parallel=0; it must be a whole number"):
        graph.compile("memory://")


def closing(**options: Any) -> StateGraph:
    graph = StateGraph(Work, name="g")
    graph.add_node("report", lambda state: {"log": [f"report on {len(state['log'])}"]})
    return graph.set_last_node("report")


def test_the_last_node_runs_once_when_all_branches_have_ended() -> None:
    graph = closing()
    graph.add_node("a", note("a"), after=[])
    graph.add_node("b", note("b"), after=[])
    graph.add_node("c", note("c"), after=["b"])

    for barrier in (True, False):
        app = graph.compile("memory://", barrier=barrier)
        log = app.invoke({"n": 0}).state["log"]
        assert sorted(log[:3]) == ["a", "b", "c"] and log[3:] == ["report on 3"]


def test_the_last_node_runs_after_an_early_end_and_in_a_sub_graph() -> None:
    inner = closing()
    inner.add_node("work", note("inner"))
    inner.add_edge(START, "work")
    inner.add_edge("work", END, when=lambda state: True).add_edge("work", "report")
    graph = StateGraph(Work, name="outer")
    graph.add_node("inner", inner)
    graph.add_edge(START, "inner").add_edge("inner", END)

    assert graph.compile("memory://").invoke({"n": 0}).state["log"] == ["inner", "report on 1"]


def test_a_last_node_that_is_none_is_refused() -> None:
    graph = StateGraph(Work, name="g").add_node("a", broken).add_edge(START, "a").set_last_node("b")

    with pytest.raises(GraphInvalid, match="the last node: node not found: b"):
        graph.compile("memory://")


def test_an_error_may_say_how_long_to_wait() -> None:
    class Busy(Exception):
        retry_after = 7.5

    assert Retry(3, delay=1.0).delay_after(1, Busy()) == 7.5
    assert Retry(3, delay=30.0).delay_after(1, Busy()) == 30.0
    Busy.retry_after = 999_999_999
    assert Retry(3, delay=1.0).delay_after(1, Busy()) == 60.0
    assert Retry(3, delay=1.0, max_delay=2.0).delay_after(1, Busy()) == 2.0
    assert Retry(3, delay=1.0, max_delay=1e9).delay_after(1, Busy()) == 999_999_999


def test_a_run_fails_when_its_time_is_used_up_and_a_resume_has_it_anew() -> None:
    visits: list[int] = []

    def slow(state: Any, ctx: Any) -> Any:
        visits.append(1)
        while len(visits) == 1 and not ctx.cancelled:
            threading.Event().wait(0.01)
        return {"log": ["slow"]}

    graph = StateGraph(Work, name="g")
    graph.add_node("first", note("first")).add_node("slow", slow).add_node("last", note("last"))
    graph.add_edge(START, "first").add_edge("first", "slow").add_edge("slow", "last").add_edge("last", END)
    app = graph.compile("memory://", time_limit=0.1)

    with pytest.raises(ExecutionError, match=r"the time limit of 0\.1 s is used up"):
        app.invoke({"n": 0}, run_id="r")

    assert app.runs()[0].status == "failed"
    assert graph.compile(app.store, time_limit=60).resume("r").state["log"][-2:] == ["slow", "last"]


def test_a_time_limit_of_nothing_is_refused() -> None:
    graph = StateGraph(Work, name="g").add_node("a", broken).add_edge(START, "a")

    with pytest.raises(HoldfastError, match="time_limit must be more than 0"):
        graph.compile("memory://", time_limit=0)
