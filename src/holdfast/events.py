"""What a run tells the outside: typed events, observers, and their registry.

There is one canonical set of dotted names (`EVENT_TYPES`). Names that other systems use for the
same events are aliases (`EVENT_ALIASES`): `event.matches("checkpoint_saved")` is true for a
`checkpoint.save` event.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from holdfast import clock
from holdfast.errors import HoldfastError

logger = logging.getLogger("holdfast")

EVENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "graph.start": "a new run begins",
        "graph.complete": "a run reached its end; data: exit_point, iterations",
        "graph.fail": "a run stopped on a failure and can be resumed; data: error",
        "graph.cancel": "a run was cancelled or interrupted; data: status, reason",
        "wave.start": "the steps of a wave are about to run; data: wave, nodes",
        "node.start": "a step is about to run; data: step, attempt, iteration",
        "node.complete": "a step ended and its outcome is stored; data: step, error, seconds, update",
        "node.reuse": "a step was given the result of an earlier run and did not run; data: step, origin, update",
        "node.error": "an attempt failed; data: step, attempt, error",
        "node.retry": "a failed attempt will be repeated; data: step, attempt, delay",
        "node.warning": "a step failed and the run goes on without it; data: step, error",
        "node.message": "what a node said with ctx.emit; data: as given",
        "node.spend": "a node used up what costs money; data: step, attempt, model, input_tokens, output_tokens, cost, "
        "calls",
        "once.in_doubt": "a function given to ctx.once was interrupted earlier; data: step, key, decision: "
        "rerun, skip, ask, fail, look or done",
        "state.create": "a state was made; data: keys",
        "state.clone": "a state was copied; data: keys",
        "state.update": "a wave changed the state; data: keys",
        "edge.evaluate": "a condition was looked at; data: from, to, result",
        "edge.transition": "an edge was taken; data: from, to",
        "cycle.detected": "a node is visited again; data: node, visit_count, iteration, path_length",
        "join.incomplete": "a run ended while a join still waited; data: node, arrived",
        "checkpoint.save": "a checkpoint is stored; data: checkpoint_id, timestamp, node, run_id, size",
        "checkpoint.fail": "a checkpoint could not be stored; data: error, consecutive",
        "checkpoint.load": "a run was loaded; data: node, run_id",
        "checkpoint.resume": "a run goes on; data: checkpoint_node, resume_node, run_id",
        "pause": "a run waits; data: kind, pause, name, prompt, state, checkpoint_path",
        "command": "somebody asked something of the run; data: command, by, reason, refused (why, or empty)",
        "graph.changed": "the graph differs from the one the run started with; data: changes",
    }
)

EVENT_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "workflow_start": "graph.start",
        "workflow_complete": "graph.complete",
        "workflow_abort": "graph.cancel",
        "layer_start": "wave.start",
        "task_start": "node.start",
        "task_complete": "node.complete",
        "task_error": "node.error",
        "task_warning": "node.warning",
        "state_updated": "state.update",
        "checkpoint": "checkpoint.save",
        "checkpoint_saved": "checkpoint.save",
        "checkpoint_failed": "checkpoint.fail",
        "decision_required": "pause",
        "interrupt": "pause",
    }
)


def canonical(name: str) -> str:
    """The canonical name of an event type or alias; an unknown name is refused."""
    name = EVENT_ALIASES.get(name, name)
    if name not in EVENT_TYPES:
        known = ", ".join(sorted({*EVENT_TYPES, *EVENT_ALIASES}))
        raise HoldfastError(f"unknown event type {name!r}; known are: {known}")
    return name


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in one run. `node` is empty for events of the whole run."""

    type: str
    run_id: str = ""
    node: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=lambda: clock.time())

    def matches(self, name: str) -> bool:
        """Whether this is an event of that type, by canonical name or alias."""
        return self.type == canonical(name)


@runtime_checkable
class Observer(Protocol):
    """Receives every event as it happens, most of them on the run's own thread; it should return quickly.

    What nodes emit while they run side by side comes from their threads. What an observer raises is logged
    and never reaches the run. One with an attribute `wants`, a collection of types, may be spared others.
    """

    def on_event(self, event: Event) -> None: ...


def wanted(observer: Observer | None) -> frozenset[str] | None:
    """The types that an observer says, in its attribute `wants`, to listen to; `None` means all."""
    if observer is None:
        return frozenset()
    types = getattr(observer, "wants", None)
    return None if types is None else frozenset(map(canonical, types))


class NoOpObserver:
    """Listens to nothing."""

    def on_event(self, event: Event) -> None:
        return None


class LoggingObserver:
    """Writes each event to a standard logger: failures as errors, warnings as warnings, the rest as info."""

    _LEVELS: Mapping[str, int] = MappingProxyType(
        {
            "graph.fail": logging.ERROR,
            "node.error": logging.ERROR,
            "checkpoint.fail": logging.WARNING,
            "node.warning": logging.WARNING,
            "graph.changed": logging.WARNING,
            "join.incomplete": logging.WARNING,
        }
    )

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = log or logging.getLogger("holdfast.events")

    def on_event(self, event: Event) -> None:
        level = self._LEVELS.get(event.type, logging.INFO)
        facts = " ".join(f"{key}={value!r}" for key, value in event.data.items() if key != "state")
        self._log.log(level, "%s run=%s node=%s %s", event.type, event.run_id, event.node or "-", facts)


class CallbackObserver:
    """Calls a function with each event, or only with those of the given types or aliases."""

    def __init__(self, callback: Callable[[Event], object], *types: str) -> None:
        self._callback = callback
        self._types = frozenset(map(canonical, types))

    @property
    def wants(self) -> frozenset[str] | None:
        return self._types or None

    def on_event(self, event: Event) -> None:
        if not self._types or event.type in self._types:
            self._callback(event)


class MultiObserver:
    """Tells several observers; one that raises does not silence the others."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    @property
    def wants(self) -> frozenset[str] | None:
        """The types that any of the observers listens to."""
        all_types = [wanted(observer) for observer in self.observers]
        known = [types for types in all_types if types is not None]
        return frozenset().union(*known) if len(known) == len(all_types) else None

    def on_event(self, event: Event) -> None:
        for observer in self.observers:
            tell(observer, event)


def tell(observer: Observer, event: Event) -> None:
    """Hand an event to an observer; what it raises is logged, never passed on, unless it ends the process."""
    try:
        observer.on_event(event)
    except (Exception, GeneratorExit, asyncio.CancelledError):
        # The others end the process: signals raise them.
        logger.exception("observer %r failed on %s", observer, event.type)


_registry: dict[str, Observer] = {"noop": NoOpObserver(), "slog": LoggingObserver()}
_registry["logging"] = _registry["slog"]
_registry_lock = threading.Lock()


def register_observer(name: str, observer: Observer) -> None:
    """Make an observer available by name, replacing one of the same name."""
    with _registry_lock:
        _registry[name] = observer


def get_observer(name: str) -> Observer:
    """The observer of that name; an unknown name is refused."""
    with _registry_lock:
        if name not in _registry:
            raise HoldfastError(f"unknown observer: {name} (known: {', '.join(sorted(_registry))})")
        return _registry[name]


def resolve_observer(observer: Observer | str | Callable[[Event], object] | None) -> Observer | None:
    """An observer from itself, its registered name, or a plain function."""
    if observer is None:
        return None
    if isinstance(observer, str):
        found = get_observer(observer)
        return None if isinstance(found, NoOpObserver) else found
    if isinstance(observer, Observer):
        return observer
    if callable(observer):
        return CallbackObserver(observer)
    raise HoldfastError(
        f"{observer!r} is not an observer: give an object with on_event, a function or a name"
    )
