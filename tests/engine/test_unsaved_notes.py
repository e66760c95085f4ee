"""What a step has stored while it runs: a store that is away, or another driver, is not the step's failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import END, START, Context, ExecutionError, Retry, RunConflict, StateGraph, StoreError
from holdfast.stores.base import Append, Conflict, Store
from holdfast.testing import WrappedStore


class Faltering(WrappedStore):
    """A store that does what it is told instead of its n-th commit."""

    def __init__(
        self, inner: Store, at: int, instead: Callable[[Sequence[Append]], list[Conflict | None]]
    ) -> None:
        super().__init__(inner)
        self._left, self._instead = at, instead

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self._left -= 1
        return super().commit(appends) if self._left else self._instead(appends)


def away(appends: Sequence[Append]) -> list[Conflict | None]:
    raise StoreError("the server is away; start it")


def overtaken(appends: Sequence[Append]) -> list[Conflict | None]:
    return [Conflict(append.run, append.after, append.after + 5) for append in appends]


def charging(
    calls: list[str], *, is_async: bool = False, careless: bool = False, **options: Any
) -> StateGraph:
    def charge(state: Any, ctx: Context) -> dict[str, Any]:
        calls.append("charge")
        try:
            ctx.once("paid", lambda: calls.append("paid"))
        except Exception:
            if not careless:
                raise
        return {"n": 1}

    async def pay() -> None:
        calls.append("paid")

    async def charge_async(state: Any, ctx: Context) -> dict[str, Any]:
        calls.append("charge")
        await ctx.once("paid", pay)
        return {"n": 1}

    graph = StateGraph(dict, name="charging")
    graph.add_node("charge", charge_async if is_async else charge, **options)
    graph.add_edge(START, "charge")
    graph.add_edge("charge", END)
    return graph


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_whose_note_cannot_be_stored_has_not_failed(memory: Store, is_async: bool) -> None:
    """S2.2: the run stops as it does when a step's end cannot be stored, and is resumed."""
    calls: list[str] = []
    graph = charging(calls, is_async=is_async, retry=Retry(attempts=3, delay=0.0))
    app = graph.compile(Faltering(memory, 2, away))

    with pytest.raises(ExecutionError, match="the server is away") as caught:
        asyncio.run(app.ainvoke({}, run_id="r")) if is_async else app.invoke({}, run_id="r")

    assert isinstance(caught.value.cause, StoreError)
    assert memory.runs(run="r")[0].status == "running" and calls == ["charge", "paid"]
    again = graph.compile(memory)
    outcome = asyncio.run(again.aresume("r")) if is_async else again.resume("r")
    assert outcome.state["n"] == 1


def test_a_step_does_not_stand_in_for_a_store_that_is_away(memory: Store) -> None:
    app = charging([], on_error=lambda state, error: {"n": -1}).compile(Faltering(memory, 2, away))

    with pytest.raises(ExecutionError, match="the server is away"):
        app.invoke({}, run_id="r")

    assert memory.runs(run="r")[0].status == "running"


@pytest.mark.parametrize("careless", [False, True])
def test_a_driver_that_is_refused_within_a_step_is_told_so(memory: Store, careless: bool) -> None:
    """Also if the step takes no notice: nothing that follows is stored, and the reason stays the same."""
    app = charging([], careless=careless).compile(Faltering(memory, 2, overtaken))

    with pytest.raises(RunConflict, match="advanced by another driver"):
        app.invoke({}, run_id="r")

    assert len(list(memory.read("r"))) == 1
