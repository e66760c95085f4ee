"""What is tested: a graph, an app, a function that makes one, or a workflow file; made ready for each life anew."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.define.builder import StateGraph
from holdfast.engine.app import App
from holdfast.errors import HoldfastError
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore


@dataclass(frozen=True)
class Ready:
    """A workflow that can be run: its app on a store, and what its run is given."""

    app: App
    inputs: Any
    config: dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """What was given to be tested, and how it is compiled."""

    given: Any
    inputs: Any
    config: Mapping[str, Any] | None = None
    durability: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def settled(self) -> Subject:
        """The same, compiled once for all lives, where nobody is to make it anew."""
        __tracebackhide__ = True
        is_graph = isinstance(self.given, (StateGraph, App))
        return dataclasses.replace(self, given=self.ready()) if is_graph else self

    def ready(self) -> Ready:
        """The workflow, made anew by whoever makes it; not yet on a store of its own."""
        __tracebackhide__ = True
        if isinstance(self.given, Ready):
            return self.given
        made = self._made()
        config = dict(self.config or {})
        if isinstance(made, App):
            return Ready(self._of_app(made), self.inputs, config)
        if isinstance(made, StateGraph):
            options = {"durability": self.durability or _durability_of(self.options), **self.options}
            try:
                return Ready(made.compile(MemoryStore(), **options), self.inputs, config)
            except HoldfastError as error:
                # It is about the graph, not about where that is checked.
                raise error.with_traceback(None) from error.__cause__
        return self._of_flow(made, config)

    def _made(self) -> Any:
        __tracebackhide__ = True
        given = self.given
        if callable(given) and not _is_workflow(given):
            given = given()
        if isinstance(given, (str, os.PathLike)):
            from holdfast.flows.flow import load_flow

            return load_flow(Path(given))
        if not _is_workflow(given):
            raise HoldfastError(
                "crash_everywhere takes a StateGraph, an App, a function that returns one, or the path of a "
                f"workflow file, not {type(given).__name__}"
            )
        return given

    def _of_app(self, app: App) -> App:
        __tracebackhide__ = True
        if self.options:
            raise HoldfastError(
                f"an app is compiled already: {', '.join(self.options)} cannot be given; give its graph instead"
            )
        if self.durability is None:
            return app
        policy = dataclasses.replace(app.settings.policy, durability=self.durability)
        return App(dataclasses.replace(app.settings, policy=policy))

    def _of_flow(self, flow: Any, config: dict[str, Any]) -> Ready:
        app = flow.open(MemoryStore(), durability=self.durability, **self.options)
        inputs = flow.begin(flow.read_inputs(dict(self.inputs or {})))
        return Ready(app, inputs, {**flow.config(), **config})


def _is_workflow(given: Any) -> bool:
    """Whether it is a graph, an app or a `Flow`; workflow files need much that graphs do not, so it is not imported."""
    return isinstance(given, (StateGraph, App)) or type(given).__module__ == "holdfast.flows.flow"


def _durability_of(options: Mapping[str, Any]) -> str | None:
    return None if "policy" in options else "full"


def on_store(app: App, store: Store, changed: Callable[[Any, Any], Any]) -> App:
    """The app on another store, its graph changed; nothing else of it is, but that it is not noted where it runs."""
    settings = app.settings
    journal = Journal(store, settings.journal.seal)
    graph = changed(settings.graph, settings.outline)
    return App(dataclasses.replace(settings, journal=journal, graph=graph, facts=None))
