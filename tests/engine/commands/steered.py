"""Runs to be steered: stopped ones, executing ones, and their journals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import END, START, App, ExecutionError, StateGraph
from holdfast.journal.records import Commanded, Record, StepFinished, StepStarted
from holdfast.state.codec import Codec
from holdfast.views.timeline import timeline
from tests.graphs import Log, chain, says


def told(app: App, run: str = "r") -> list[str]:
    return [moment.text for moment in timeline(app._settings.journal, run)]


def commands(app: App, run: str = "r") -> list[Commanded]:
    _, history = app._settings.journal.history(app._settings.journal.info(run), Codec())
    return [record for _, found in history for record in found if isinstance(record, Commanded)]


def asks(state: Any, ctx: Any) -> dict[str, Any]:
    return {"log": [str(ctx.ask("well?"))]}


def sees(word: str) -> Callable[[Any], dict[str, Any]]:
    """A node that notes its name and the number it sees."""
    return lambda state: {"log": [f"{word}{state.get('n', '')}"]}


class Flaky:
    """A node that fails until it is repaired."""

    def __init__(self) -> None:
        self.broken = True

    def __call__(self, state: Any) -> dict[str, Any]:
        if self.broken:
            raise ValueError("broken")
        return {"log": [f"mended{state.get('n', '')}"]}


def failed(store: Any, *names: str, **options: Any) -> tuple[App, Flaky]:
    """A chain that failed at its node `b`."""
    flaky = Flaky()
    app = chain(*names, nodes={"b": flaky, **{name: sees(name) for name in names if name != "b"}}).compile(
        store, **options
    )
    with pytest.raises(ExecutionError):
        app.invoke({"n": 1}, run_id="r")
    return app, flaky


def waiting(store: Any) -> App:
    app = chain("a", "b", "c", nodes={"b": asks}).compile(store)
    app.invoke(run_id="r")
    return app


def gated(store: Any) -> App:
    app = chain("a", "b", "c").compile(store, interrupt_before=["b"])
    app.invoke(run_id="r")
    return app


def in_doubt(store: Any) -> App:
    def stopped(state: Any) -> Any:
        raise KeyboardInterrupt

    app = chain("a", "b", "c", nodes={"b": stopped}).compile(store)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(run_id="r")
    return app


def refused_to_rerun(store: Any) -> App:
    def stopped(state: Any) -> Any:
        raise KeyboardInterrupt

    graph = StateGraph(Log, name="graph").add_node("a", says("a")).add_node("b", stopped, idempotent=False)
    graph.add_node("c", says("c")).add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
    app = graph.add_edge("c", END).compile(store)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(run_id="r")
    with pytest.raises(ExecutionError):
        app.resume("r")
    return app


class Held:
    """A node that says when it has begun and waits to be let go."""

    def __init__(self, word: str = "held") -> None:
        self.word, self.begun, self.free = word, threading.Event(), threading.Event()

    def __call__(self, state: Any) -> dict[str, Any]:
        self.begun.set()
        assert self.free.wait(30)
        return {"log": [self.word]}


class Driven:
    """A run in a thread of its own, and what became of it."""

    def __init__(self, app: App, held: Held, **options: Any) -> None:
        self._held, self.outcome = held, None
        self._thread = threading.Thread(target=self._drive, args=(app, options))
        self._thread.start()
        assert held.begun.wait(30)

    def _drive(self, app: App, options: Any) -> None:
        try:
            self.outcome = app.invoke({"n": 1}, run_id="r", **options)
        except ExecutionError:
            self.outcome = None

    def end(self) -> Any:
        self._held.free.set()
        self._thread.join()
        return self.outcome


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


def journalled(app: App) -> Iterator[Record]:
    _, history = app._settings.journal.history(app._settings.journal.info("r"), Codec())
    for _, records in history:
        yield from records


def under_way(records: list[Record]) -> set[str]:
    """The steps that were running at the end of some records."""
    running: set[str] = set()
    for record in records:
        if isinstance(record, StepStarted):
            running.add(record.step)
        elif isinstance(record, StepFinished):
            running.discard(record.step)
    return running
