"""Runs that are stopped from within their own process and resumed there: workflows, stores, and what must hold."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import END, START, App, Context, Outcome, State, StateGraph, open_store
from holdfast.events import CallbackObserver
from holdfast.integrity import check_store
from holdfast.stores.base import Store
from holdfast.stores.postgres.embedded import Programs
from tests.crash.workflows import WORKFLOWS, Work, Workflow
from tests.invariants import Ledger, check_run
from tests.postgres import running
from tests.proof.places import scratch

STORES = ("memory", "sqlite", "file", "postgres")


def mixed(ledger: Ledger, pause: float) -> Workflow:
    """Async and sync siblings with notes, between two lone steps."""

    def step(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        time.sleep(pause)
        return {"log": [ctx.node]}

    def noted(ctx: Context, key: str) -> str:
        ledger.write("start", f"{ctx.step}:once:{key}")
        time.sleep(pause)
        return key

    def threaded(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        return {"log": [ctx.once("one", noted, ctx, "one"), ctx.once("two", noted, ctx, "two")]}

    async def awaited(state: Any, ctx: Context) -> dict[str, Any]:
        async def work(key: str) -> str:
            ledger.write("start", f"{ctx.step}:once:{key}")
            await asyncio.sleep(pause)
            return key

        ledger.write("start", ctx.step)
        return {"log": [await ctx.once("three", work, "three"), await ctx.once("four", work, "four")]}

    graph = StateGraph(Work, name="mixed")
    for name, node in {
        "first": step,
        "threaded": threaded,
        "awaited": awaited,
        "plain": step,
        "last": step,
    }.items():
        graph.add_node(name, node)
    graph.add_edge(START, "first")
    for name in ("threaded", "awaited", "plain"):
        graph.add_edge("first", name)
    graph.add_edge(["threaded", "awaited", "plain"], "last")
    graph.add_edge("last", END)
    return Workflow(graph, {"n": 0})


MAKERS: dict[str, Callable[[Ledger, float], Workflow]] = {**WORKFLOWS, "mixed": mixed}


@dataclass
class Subject:
    """One run of a workflow, its ledger, and its undisturbed result."""

    app: App
    workflow: Workflow
    run: str
    ledger: Ledger
    wanted: dict[str, Any]
    stops: int = 0
    found: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, store: Store, name: str, run: str, pause: float, wanted: dict[str, Any]) -> Subject:
        ledger = Ledger()
        workflow = MAKERS[name](ledger, pause)
        return cls(workflow.graph.compile(store, **workflow.options), workflow, run, ledger, wanted)

    @property
    def observer(self) -> CallbackObserver:
        return CallbackObserver(self.ledger.observe)

    @property
    def is_stored(self) -> bool:
        return bool(self.app.store.runs(run=self.run))

    @property
    def is_over(self) -> bool:
        return any(info.status == "completed" for info in self.app.store.runs(run=self.run))

    def answers(self) -> dict[str, Any]:
        """What the questions that are open now are answered with."""
        return {
            pause.id: "rerun" if pause.kind == "poison" else self.workflow.answers[pause.name]
            for pause in self.app.pauses(self.run)
        }

    def look(self) -> list[str]:
        """What was broken, once the run is over."""
        found = [*self.found, *map(str, check_run(self.ledger.lines(), self.app.store, self.run))]
        status = [info.status for info in self.app.store.runs(run=self.run)]
        if status != ["completed"]:
            return [*found, f"the run is {status}"]
        if (state := comparable(self.app.get_state(self.run))) != self.wanted:
            found.append(f"the result is {state}, undisturbed it is {self.wanted}")
        return found


def comparable(state: State | Outcome) -> dict[str, Any]:
    """A state, without the order in which siblings were merged."""
    plain = dict(state.state.to_dict() if isinstance(state, Outcome) else state.to_dict())
    return {**plain, "log": sorted(plain.get("log", []))}


def undisturbed(name: str) -> dict[str, Any]:
    """Return the undisturbed result of a workflow."""
    store = open_store("memory://")
    subject = Subject.make(store, name, "undisturbed", 0.0, {})
    outcome = subject.app.invoke(subject.workflow.input, run_id=subject.run)
    while outcome.status == "paused":
        outcome = subject.app.resume(subject.run, answers=subject.answers())
    return comparable(outcome)


@contextmanager
def opened(kind: str) -> Iterator[Store]:
    """A new store; it is found sound when it is no longer needed."""
    with scratch() as root:
        if kind == "postgres":
            with (
                running(Programs.find()) as server,
                server.schema() as name,
                _closing(server.url(name)) as store,
            ):
                yield store
            return
        with _closing(_url(kind, root)) as store:
            yield store


def _url(kind: str, root: Path) -> str:
    return {"memory": "memory://", "sqlite": f"sqlite:///{root}/runs.db", "file": f"file://{root}/runs"}[kind]


@contextmanager
def _closing(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def unsound(store: Store) -> list[str]:
    """What `fsck` finds."""
    return [f"fsck: {problem}" for problem in check_store(store).problems]


def left_threads(before: set[threading.Thread]) -> list[str]:
    """Threads that are there now, were not before, and do not belong to what is kept for the next run."""
    kept = (
        "holdfast-step",
        "holdfast-commit",
        "asyncio_",
        "holdfast-lease",
        "holdfast-announce",
        "holdfast-listen",
    )
    found = [thread.name for thread in threading.enumerate() if thread not in before]
    return [name for name in found if not name.startswith(kept)]


def moment(chance: random.Random, longest: float) -> float:
    """A time to stop after: often very early, now and then late."""
    return longest * chance.random() ** 2
