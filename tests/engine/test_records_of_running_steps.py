"""Records that a step stores while it runs: an unreachable store, or another owner, does not fail the step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    Context,
    ExecutionError,
    Retry,
    RunConflict,
    StateGraph,
    StoreError,
    open_store,
)
from holdfast.stores.base import Append, Conflict, Entry, Store
from holdfast.testing import Crash, CrashingStore, WrappedStore, raise_crash
from holdfast.values import RunStatus


class Faltering(WrappedStore):
    """A store that calls a function instead of its n-th commit."""

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


@pytest.mark.parametrize(("commit", "ran"), [(2, ["charge"]), (3, ["charge", "paid"])])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_whose_note_cannot_be_stored_has_not_failed(
    memory: Store, is_async: bool, commit: int, ran: list[str]
) -> None:
    """S2.2: the run stops as it does when a step's end cannot be stored, and is resumed."""
    calls: list[str] = []
    graph = charging(calls, is_async=is_async, retry=Retry(attempts=3, delay=0.0))
    app = graph.compile(Faltering(memory, commit, away))

    with pytest.raises(ExecutionError, match="the server is away") as caught:
        asyncio.run(app.ainvoke({}, run_id="r")) if is_async else app.invoke({}, run_id="r")

    assert isinstance(caught.value.cause, StoreError)
    assert memory.runs(run="r")[0].status == "running" and calls == ran
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

    with pytest.raises(RunConflict, match="advanced by another owner"):
        app.invoke({}, run_id="r")

    assert len(list(memory.read("r"))) == 1


class Unreliable(WrappedStore):
    """A store with leases: while one is late, each look differs, and reading may fail."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.late, self.failures, self._lapses = False, 0, 0

    def lease(self) -> str:
        return "00000000-0000-0000-0000-000000000001"

    def is_live(self, lease: str) -> bool:
        return False

    def lapses(self) -> int:
        self._lapses += self.late
        return self._lapses

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        if self.late and self.failures:
            self.failures -= 1
            raise StoreError("the server closed the connection")
        return super().read(run, after, upto)


@pytest.mark.parametrize("siblings", [0, 1, 2])
def test_a_look_that_fails_while_the_lease_is_late_ends_the_drive_and_fails_no_step(siblings: int) -> None:
    store = Unreliable(open_store("memory://"))

    def first(state: Any, ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            store.late, store.failures = not siblings, 1
        ctx.once("k", lambda: 1)
        store.late = store.failures > 0
        return {"first": 1}

    graph = StateGraph(dict, name="late").add_node("first", first).add_edge(START, "first")
    for number in range(siblings):
        graph.add_node(f"s{number}", lambda state: {}).add_edge("first", f"s{number}").add_edge(
            f"s{number}", END
        )
    app = (graph if siblings else graph.add_edge("first", END)).compile(store)

    with pytest.raises(StoreError, match="closed the connection"):
        app.invoke({}, run_id="r")

    store.late, store.failures = False, 0
    assert app.resume("r").status == "completed"


def test_what_finished_beside_a_step_whose_note_was_not_stored_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its siblings have finished, and wait to be saved together with it, when the store fails."""
    monkeypatch.setattr("holdfast.engine.loop.GATHERING", 30.0)
    ran: list[str] = []

    class Outage(WrappedStore):
        due = False

        def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
            if self.due:
                self.due = False
                raise StoreError("a moment's outage")
            return super().commit(appends)

    store = Outage(open_store("memory://"))

    def noting(state: Any, ctx: Context) -> dict[str, Any]:
        if not ran.count("noting"):
            end = time.monotonic() + 30
            while len(ctx._host._finished) < 2 and time.monotonic() < end:  # type: ignore[attr-defined]
                time.sleep(0.001)
            store.due = True
        ran.append("noting")
        ctx.once("k", lambda: 1)
        return {}

    def other(state: Any, ctx: Context) -> dict[str, Any]:
        ran.append(ctx.node)
        return {ctx.node: 1}

    graph = StateGraph(dict, name="siblings")
    for name, node in (("noting", noting), ("b", other), ("c", other)):
        graph.add_node(name, node).add_edge(START, name).add_edge(name, END)
    app = graph.compile(store)

    with pytest.raises(ExecutionError, match="a moment's outage"):
        app.invoke({}, run_id="r")

    assert app.resume("r").status == "completed"
    assert sorted(ran) == ["b", "c", "noting", "noting"]


def test_a_stop_while_a_step_in_doubt_is_looked_at_fails_nothing() -> None:
    store = open_store("memory://")
    hosts: list[Any] = []

    def look(ctx: Context) -> bool:
        if not hosts:
            hosts.append(ctx._host)
            ctx._host.request_stop(RunStatus.INTERRUPTED, "asked to stop")
        ctx.once("seen", lambda: 1)
        return True

    graph = StateGraph(dict, name="looking").add_node("first", lambda state: {"n": 1}, if_interrupted=look)
    graph.add_edge(START, "first").add_edge("first", END)
    with pytest.raises(Crash):
        graph.compile(CrashingStore(store, 1, "committed", raise_crash)).invoke({}, run_id="r")
    app = graph.compile(store)

    assert app.resume("r").status == "interrupted"
    assert app.resume("r").status == "completed"
