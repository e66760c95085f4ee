"""The demonstration: ten steps, a rate limit at the ninth, a stop, and a resume that repeats nothing."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from holdfast.engine.app import App
from holdfast.errors import ExecutionError
from holdfast.graph.builder import StateGraph
from holdfast.state.schema import append
from holdfast.stores import open_store
from holdfast.values import END, START

STEPS = ("question", "plan", "search", "read", "notes", "outline", "draft", "check", "revise", "publish")
LIMIT = 8
"""How many calls the stand-in service answers before it says 429."""


class RateLimited(Exception):
    """The refusal of an overloaded service."""


class Report(TypedDict, total=False):
    """The state of the demonstration: a topic, and the parts written so far."""

    topic: str
    parts: Annotated[list[str], append]


class Service:
    """A stand-in for a slow and costly service that counts every call and refuses those beyond its limit."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.calls: list[str] = []

    def write(self, part: str, topic: str) -> str:
        """Return the text for one part of the report."""
        self.calls.append(part)
        if self.limit is not None and len(self.calls) > self.limit:
            raise RateLimited("429 too many requests")
        return f"{part} of {topic}"


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """One of the two executions of the run: the steps it ran, its status, and what was finished before."""

    ran: tuple[str, ...]
    status: str
    kept: int = 0
    failed: str = ""
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DemoReport:
    """What happened in the demonstration."""

    run_id: str
    store: str
    first: Execution
    resume: str
    second: Execution
    calls: dict[str, int]
    checkpoints: int
    parts: tuple[str, ...]


def workflow(service: Service) -> StateGraph:
    """Return a chain of ten steps, each of which calls the service once."""
    graph = StateGraph(Report, name="demo")
    for name in STEPS:
        graph.add_node(name, _writes(name, service))
    for source, target in zip((START, *STEPS), (*STEPS, END), strict=True):
        graph.add_edge(source, target)
    return graph


def _writes(part: str, service: Service) -> Callable[[Any], dict[str, Any]]:
    def write(state: Any) -> dict[str, Any]:
        return {"parts": [service.write(part, state["topic"])]}

    return write


def play(url: str) -> DemoReport:
    """Run the workflow into the limit, close the store, open it again, and resume."""
    run_id = f"demo-{uuid.uuid4().hex[:8]}"
    limited, free = Service(LIMIT), Service(None)
    store = open_store(url)
    first = _fail(workflow(limited).compile(store), run_id, limited)
    if not store.url.startswith("memory"):  # Open it as a new process would.
        store.close()
        store = open_store(url)
    try:
        app = workflow(free).compile(store)
        outcome = app.resume(run_id)
        second = Execution(tuple(free.calls), str(outcome.status), outcome.stats.steps_kept)
        calls = [*limited.calls, *free.calls]
        return DemoReport(
            run_id=run_id,
            store=store.url,
            first=first,
            resume=f"app.resume({run_id!r})",
            second=second,
            calls={name: calls.count(name) for name in STEPS},
            checkpoints=len(app.checkpoints(run_id)),
            parts=tuple(outcome.state["parts"]),
        )
    finally:
        store.close()


def _fail(app: App, run_id: str, service: Service) -> Execution:
    try:
        outcome = app.invoke({"topic": "tides"}, run_id=run_id)
    except ExecutionError as error:
        return Execution(tuple(service.calls[:-1]), "failed", failed=error.node or "", error=str(error))
    return Execution(tuple(service.calls), str(outcome.status))
