"""Chains, parallel work and choices, as functions and as nodes."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from holdfast import END, START, ExecutionError, HoldfastError, Retry, State, StateGraph
from holdfast.graph.patterns import worker_count
from holdfast.patterns import (
    ChainResult,
    ParallelResult,
    chain_node,
    conditional_node,
    parallel_node,
    process_chain,
    process_conditional,
    process_parallel,
)
from tests.graphs import Heard, one


def lone(node: Any, **options: Any) -> StateGraph:
    return one(node, schema=dict, **options)


# Chains.


def test_a_chain_hands_each_value_to_the_next_item() -> None:
    """R3.5: ProcessChain with intermediate states and a progress callback."""
    told: list[tuple[int, int, str]] = []
    heard = Heard()
    result = process_chain(
        iter("abc"),
        "",
        lambda item, text: text + item,
        progress=lambda *each: told.append(each),
        observer=heard,
    )

    assert result == ChainResult("abc", ("", "a", "ab", "abc"), 3)
    assert told == [(1, 3, "a"), (2, 3, "ab"), (3, 3, "abc")]
    assert heard.types == ["chain.start", *["step.start", "step.complete"] * 3, "chain.complete"]
    assert process_chain([], 7, lambda item, value: 0) == ChainResult(7, (7,), 0)
    assert process_chain("ab", "", lambda item, text: item, intermediate=False) == ChainResult("b", (), 2)


def test_a_chain_ends_with_the_first_error_and_says_where() -> None:
    heard = Heard()

    def step(item: int, value: float) -> float:
        return value / item

    with pytest.raises(ZeroDivisionError) as caught:
        process_chain([1, 0, 2], 8, step, observer=heard)
    assert caught.value.__notes__ == ["in step 2 of a chain of 3"]
    assert (heard.events[-1].type, dict(heard.events[-1].data)) == (
        "chain.complete",
        {"steps": 1, "error": True},
    )
    with pytest.raises(HoldfastError, match="step must be a function, not 3"):
        process_chain([1], 0, 3)  # type: ignore[arg-type]


async def test_an_async_chain_is_awaited() -> None:
    async def step(item: int, value: int) -> int:
        await asyncio.sleep(0)
        return value + item

    assert (await process_chain([1, 2], 0, step)).intermediate == (0, 1, 3)


def test_a_plain_function_that_returns_an_awaitable_is_refused() -> None:
    async def step(item: int, value: int) -> int:
        await asyncio.sleep(0)
        return value

    with pytest.raises(HoldfastError, match="write it as `async def`"):
        process_chain([1], 0, lambda item, value: step(item, value))


# Parallel work.


def test_the_number_of_workers_follows_the_processors_and_the_items() -> None:
    """R3.5: min(2 * cpu, 16, n)."""
    processors = os.cpu_count() or 1
    assert worker_count(1000) == min(2 * processors, 16) and worker_count(1) == 1 and worker_count(0) == 0
    assert worker_count(1000, 40) == 40 and worker_count(3, 40) == 3
    for bad in (0, -1, 1.5, True):
        with pytest.raises(HoldfastError, match="workers must be a whole number"):
            process_parallel([1], str, workers=bad)  # type: ignore[arg-type]


def test_parallel_results_are_in_the_order_of_the_items() -> None:
    """R3.5: ordered results, whichever ends first; progress; events of the workers."""
    second_is_done = threading.Event()

    def process(item: int) -> int:
        if item == 1:
            assert second_is_done.wait(60)
        else:
            second_is_done.set()
        return item * 10

    told: list[tuple[int, int, int]] = []
    heard = Heard()
    result = process_parallel(
        [1, 2], process, workers=2, progress=lambda *each: told.append(each), observer=heard
    )

    assert result == ParallelResult((10, 20), ())
    assert told == [(1, 2, 20), (2, 2, 10)]
    assert heard.types[0] == "parallel.start" and heard.types[-1] == "parallel.complete"
    assert heard.types.count("worker.start") == heard.types.count("worker.complete") == 2
    assert process_parallel([], process) == ParallelResult((), ())
    with pytest.raises(HoldfastError, match="items must be a list or another iterable, not None"):
        process_parallel(None, process)  # type: ignore[arg-type]


def test_the_first_failure_ends_parallel_work_or_all_are_collected() -> None:
    """R3.5: fail-fast or collect-all."""
    seen: list[int] = []

    def process(item: int) -> float:
        seen.append(item)
        return 1 / item

    with pytest.raises(ZeroDivisionError) as caught:
        process_parallel([1, 0, 2, 3], process, workers=1)
    assert seen == [1, 0] and caught.value.__notes__ == ["in item 2 of 4"]

    result = process_parallel([1, 0, 2], process, workers=1, fail_fast=False)
    assert result.results == (1.0, 0.5)
    (error,) = result.errors
    assert (error.index, error.item, type(error.error)) == (1, 0, ZeroDivisionError)


async def test_async_parallel_work_is_awaited() -> None:
    both = asyncio.Barrier(2)

    async def process(item: int) -> int:
        await both.wait()
        return item + 1

    assert (await process_parallel([1, 2], process, workers=2)).results == (2, 3)


# Choices.


def test_a_choice_calls_the_route_that_is_named() -> None:
    """R3.5: ProcessConditional."""
    heard = Heard()
    routes = {"odd": lambda n: n + 1, "even": lambda n: n}

    assert process_conditional(3, lambda n: "odd" if n % 2 else "even", routes, observer=heard) == 4
    assert (
        heard.types == ["route.evaluate", "route.select", "route.execute"]
        and heard.events[0]["route"] == "odd"
    )
    assert process_conditional(3, lambda n: "other", routes, default=lambda n: -n) == -3
    with pytest.raises(HoldfastError, match=r"no route 'od' .*and no default; did you mean 'odd'"):
        process_conditional(3, lambda n: "od", routes)
    with pytest.raises(HoldfastError, match=r"no route \['odd'\]"):
        process_conditional(3, lambda n: ["odd"], routes)


# Nodes.


@pytest.mark.parametrize("is_async", [False, True])
def test_a_chain_that_fails_goes_on_with_the_item_that_failed(is_async: bool) -> None:
    """R3.5: ChainNode; what is finished is stored, and a resume does not repeat it."""
    calls: list[str] = []
    broken = ["b"]

    def step(item: str, state: State) -> Any:
        calls.append(item)
        if item in broken:
            raise RuntimeError("down")
        return state.set("text", state.get("text", "") + item) if item != "c" else {"last": item}

    async def later(item: str, state: State) -> Any:
        return step(item, state)

    app = lone(chain_node("abc", later if is_async else step)).compile("memory://")
    with pytest.raises(ExecutionError, match="down"):
        app.invoke({"n": 1}, run_id="r")
    broken.clear()

    assert app.resume("r").state == {"n": 1, "text": "ab", "last": "c"}
    assert calls == ["a", "b", "b", "c"]


def test_a_chain_that_remembers_nothing_begins_anew() -> None:
    calls: list[str] = []

    def step(item: str, state: State) -> State:
        calls.append(item)
        if calls == ["a", "b"]:
            raise RuntimeError("down")
        return state.set(item, True)

    node = chain_node("ab", step, remember=False)
    lone(node, retry=Retry(attempts=2, delay=0, on=RuntimeError)).compile("memory://").invoke({})
    assert calls == ["a", "b", "a", "b"]


@pytest.mark.parametrize("is_async", [False, True])
def test_parallel_items_that_are_done_are_not_processed_again(is_async: bool) -> None:
    """R3.5: ParallelNode."""
    calls: list[int] = []
    broken = [2]

    def process(item: int) -> int:
        calls.append(item)
        if item in broken:
            raise RuntimeError("down")
        return item * item

    async def later(item: int) -> int:
        return process(item)

    heard = Heard()
    node = parallel_node(
        lambda state: range(state["n"]), later if is_async else process, "squares", workers=1
    )
    app = lone(node).compile("memory://", observer=heard)
    with pytest.raises(ExecutionError, match="down"):
        app.invoke({"n": 4}, run_id="r")
    broken.clear()

    assert app.resume("r").state == {"n": 4, "squares": [0, 1, 4, 9]}
    assert calls == [0, 1, 2, 2, 3]
    started = heard.of("parallel.start")[0]
    assert (started["run_id"], started["node"], started["step"], started["items"]) == (
        "r",
        "work",
        "work#1",
        4,
    )


def test_a_parallel_node_may_make_an_update_of_results_and_errors() -> None:
    def count(found: ParallelResult, state: State) -> dict[str, int]:
        return {"ok": len(found.results), "bad": len(found.errors)}

    node = parallel_node([1, 0], lambda n: 1 // n, count, fail_fast=False)
    assert lone(node).compile("memory://").invoke({}).state == {"ok": 1, "bad": 1}


def test_a_conditional_node_returns_what_its_route_returns() -> None:
    """R3.5: ConditionalNode."""
    node = conditional_node(
        lambda s: "big" if s["n"] > 5 else "small",
        {"big": lambda s: {"is_big": True}},
        default=lambda s: None,
    )
    graph = StateGraph(dict).add_node("size", node).add_edge(START, "size").add_edge("size", END)
    app = graph.compile("memory://")

    assert app.invoke({"n": 9}).state == {"n": 9, "is_big": True}
    assert app.invoke({"n": 1}).state == {"n": 1}


def test_a_step_of_a_chain_returns_a_state_or_values() -> None:
    with pytest.raises(ExecutionError, match="returns a state or a mapping of new values, not 7"):
        lone(chain_node([1], lambda item, state: 7)).compile("memory://").invoke({})
