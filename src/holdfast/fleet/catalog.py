"""The graphs that a worker knows: those that the operator named, or the workflow that a run carries with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from holdfast.engine.app import App
from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.errors import HoldfastError, UnknownWorkflow
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import Store

_KEPT = 64


class Announces(Protocol):
    """The hooks of a workflow that are called when a run starts and ends."""

    def started(self, run_id: str) -> None: ...
    def ended(self, run_id: str, status: str, error: str = "") -> None: ...


class HasApp(Protocol):
    """A workflow that can be executed as an app: an app itself, or a function under `@workflow`."""

    @property
    def app(self) -> App: ...


class Known(NamedTuple):
    """A graph on a store, and the hooks of its runs."""

    app: App
    announcer: Announces | None = None


Opener = Callable[[Mapping[str, Any], Store], Known]
"""Makes a graph on a store from a run's config."""


class Catalog:
    """The graphs that a worker knows.

    `known` are found by the names of their workflows; `openers`, by name, make a graph for each run from its config.
    With `carried`, a run of any other workflow is executed by what its own config says; without, this worker leaves
    it to others.
    """

    def __init__(
        self,
        known: Iterable[Known | App | HasApp] = (),
        *,
        openers: Mapping[str, Opener] | None = None,
        carried: Opener | None = None,
    ) -> None:
        self._known: dict[str, Known] = {}
        for each in known:
            app = each if isinstance(each, (App, Known)) else each.app
            found = app if isinstance(app, Known) else Known(app)
            if found.app.name in {*self._known, *(openers or ())}:
                raise HoldfastError(
                    f"two graphs are named {found.app.name!r}; a worker finds them by their names"
                )
            self._known[found.app.name] = found
        self._openers, self._carried = dict(openers or {}), carried
        # Read at once: a worker that lacks the key that is required must not claim runs.
        self._seal = Seal.from_environment(os.environ) if openers or carried else None
        self._opened: dict[tuple[str, bytes], Known] = {}
        self._lock = threading.Lock()

    @property
    def workflows(self) -> tuple[str, ...] | None:
        """Return the workflows whose runs can be executed; `None` for every one."""
        return (*self._known, *self._openers) if self._carried is None else None

    def of_run(self, store: Store, run_id: str, workflow: str) -> Known:
        """Return the graph of a run."""
        if workflow in self._known:
            return self._known[workflow]
        journal, codec = Journal(store, self._seal), TolerantCodec()
        info = journal.info(run_id)
        refuse_unconfirmed(journal, info, codec)
        raw = journal.load(info, codec).run.config
        with self._lock:
            if (workflow, raw) not in self._opened:
                if len(self._opened) >= _KEPT:
                    self._opened.clear()
                self._opened[workflow, raw] = self.of_workflow(store, workflow, codec.decode(raw))
            return self._opened[workflow, raw]

    def of_workflow(self, store: Store, workflow: str, config: Mapping[str, Any]) -> Known:
        """Return the graph of a new run of a workflow with that config."""
        if workflow in self._known:
            return self._known[workflow]
        opener = self._openers.get(workflow, self._carried)
        if opener is None:
            raise UnknownWorkflow(f"this worker does not know workflow {workflow!r}")
        return opener(config, store)
