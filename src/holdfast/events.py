"""What a run tells the outside: typed events, observers, and their registry.

There is one canonical set of dotted names (`EVENT_TYPES`). Names that other systems use for the
same events are aliases (`EVENT_ALIASES`): `event.matches("checkpoint_saved")` is true for a
`checkpoint.save` event. A dialect (`DIALECTS`) is one system's set of names: a stream or an observer
that chooses one gets its events under these names.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

from holdfast import clock
from holdfast.errors import HoldfastError, suggestion

logger = logging.getLogger("holdfast")

EVENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "graph.start": "a new run begins",
        "graph.complete": "a run reached its end; data: exit_point, iterations, state",
        "graph.fail": "a run stopped on a failure and can be resumed; data: error, node, state",
        "graph.cancel": "a run was cancelled or interrupted; data: status, reason",
        "wave.start": "the steps of a wave are about to run; data: wave, nodes",
        "node.start": "a step is about to run; data: node, step, attempt, iteration, input (a preview), "
        "input_size (bytes)",
        "node.complete": "a step ended and its outcome is stored; data: node, step, iteration, error, seconds, update, "
        "output (a preview), output_size (bytes)",
        "node.reuse": "a step was given the result of an earlier run and did not run; data: step, origin, update",
        "node.speculate": "a step had run ahead on guessed inputs, which were right; data: step, seconds, gained",
        "node.error": "an attempt failed; data: step, attempt, error",
        "node.retry": "a failed attempt will be repeated; data: step, attempt, delay",
        "node.warning": "a step failed and the run goes on without it; data: step, error",
        "node.message": "what a node said with ctx.emit; data: as given",
        "node.stream": "a piece of text that a node streams with ctx.stream; data: step, attempt, text, cursor",
        "node.spend": "a node used up what costs money; data: step, attempt, model, input_tokens, output_tokens, cost, "
        "calls",
        "circuit.open": "a node failed too often in a row and is left alone for a while; data: step, failures, seconds",
        "circuit.close": "a node that was left alone has succeeded again; data: step",
        "secrets.use": "a step of a workflow file is about to use secrets; data: step, attempt, names",
        "once.in_doubt": "a function given to ctx.once was interrupted earlier; data: step, key, decision: "
        "rerun, skip, ask, fail, look or done",
        "state.create": "a state was made; data: keys",
        "state.clone": "a state was copied; data: keys",
        "state.set": "a key of a state was set; data: key",
        "state.merge": "several keys of a state were set; data: keys",
        "state.update": "a wave changed the state; data: keys, nodes, state",
        "edge.evaluate": "a condition was looked at; data: from, to, name, result",
        "edge.transition": "an edge was taken; data: from, to, name",
        "cycle.detected": "a node is visited again; data: node, visit_count, iteration, path_length",
        "join.incomplete": "a run ended while a join still waited; data: node, arrived",
        "checkpoint.save": "a checkpoint is stored; data: checkpoint_id, timestamp, node, run_id, size",
        "checkpoint.fail": "a checkpoint could not be stored; data: error, consecutive",
        "checkpoint.load": "a run was loaded; data: node, run_id",
        "checkpoint.resume": "a run goes on; data: checkpoint_node, resume_node, run_id",
        "chain.start": "a chain of items begins; data: items",
        "chain.complete": "a chain of items ended; data: steps, error",
        "step.start": "an item of a chain begins; data: index, total",
        "step.complete": "an item of a chain ended; data: index, total, error",
        "parallel.start": "items begin to be processed side by side; data: items, workers, fail_fast",
        "parallel.complete": "items were processed side by side; data: results, errors",
        "worker.start": "one of the workers of parallel items begins; data: worker",
        "worker.complete": "one of the workers of parallel items ended; data: worker, items",
        "route.evaluate": "a route was named; data: route",
        "route.select": "a route was found; data: route, is_default",
        "route.execute": "a route was executed; data: route, error",
        "pause": "a run waits; data: kind, pause, name, prompt, state, checkpoint_path",
        "command": "somebody asked something of the run; data: command, by, reason, refused (why, or empty)",
        "graph.changed": "the graph differs from the one the run started with; data: changes",
    }
)

DIALECTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "node": {},
        "task": {
            "graph.start": "workflow_start",
            "graph.complete": "workflow_complete",
            "graph.cancel": "workflow_abort",
            "wave.start": "layer_start",
            "node.start": "task_start",
            "node.complete": "task_complete",
            "node.error": "task_error",
            "node.warning": "task_warning",
            "state.update": "state_updated",
            "checkpoint.save": "checkpoint_saved",
            "checkpoint.fail": "checkpoint_failed",
            "pause": "decision_required",
        },
        "agent": {
            "graph.start": "workflow_started",
            "graph.complete": "workflow_completed",
            "graph.fail": "workflow_failed",
            "node.start": "agent_started",
            "node.complete": "agent_completed",
            "node.error": "agent_failed",
            "edge.transition": "route_taken",
            "checkpoint.save": "checkpoint_saved",
            "checkpoint.fail": "checkpoint_save_failed",
            "checkpoint.resume": "agent_resumed",
            "pause": "agent_paused",
        },
        "state": {
            "state.update": "state",
            "pause": "interrupt",
            "node.complete": "branch_complete",
            "node.error": "parallel_error",
            "graph.fail": "error",
            "graph.complete": "final",
        },
    }
)
"""By dialect, named after its word for a step: the name of each event that has another one there.

`state`, whose events carry states, has only these events; in the others the rest keep their canonical names.
"""

EVENT_ALIASES: Mapping[str, str] = MappingProxyType(
    {name: type_ for names in DIALECTS.values() for type_, name in names.items()}
    | {"checkpoint": "checkpoint.save", "parallel_state": "state.update"}
    | {"interrupt_before": "pause", "interrupt_after": "pause"}
)

_KINDS = {"interrupt_before": "before", "interrupt_after": "after"}
"""The aliases that mean only some events of their type: those of a `kind`."""


def canonical(name: str) -> str:
    """The canonical name of an event type or alias; an unknown name is refused."""
    name = EVENT_ALIASES.get(name, name)
    if name not in EVENT_TYPES:
        known = ", ".join(sorted({*EVENT_TYPES, *EVENT_ALIASES}))
        raise HoldfastError(f"unknown event type {name!r}; known are: {known}")
    return name


class LateData(Mapping[str, Any]):
    """The data of an event, of which some is computed when somebody first looks at it."""

    __slots__ = ("_known", "_late")

    def __init__(self, known: Mapping[str, Any], late: Mapping[str, Callable[[], Any]]) -> None:
        self._known, self._late = dict(known), late

    def __getitem__(self, key: str) -> Any:
        if key not in self._known and key in self._late:
            self._known[key] = self._late[key]()
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._known, *self._late)))

    def __len__(self) -> int:
        return len({*self._known, *self._late})

    def __contains__(self, key: object) -> bool:
        return key in self._known or key in self._late

    def __repr__(self) -> str:
        return repr({key: self._known.get(key, ...) for key in self})

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


_OWN = ("type", "run_id", "node", "timestamp")


@dataclass(frozen=True, slots=True)
class Event(Mapping[str, Any]):
    """One thing that happened in one run. `node` is empty for events of the whole run.

    It is also a mapping of its type, run_id, node, timestamp and data: `event["checkpoint_id"]`, `dict(event)`.
    """

    type: str
    run_id: str = ""
    node: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=lambda: clock.time())

    def matches(self, name: str) -> bool:
        """Whether this is an event of that type, by canonical name or alias."""
        is_kind = name not in _KINDS or self.data.get("kind") == _KINDS[name]
        return is_kind and EVENT_ALIASES.get(self.type, self.type) == canonical(name)

    def __getitem__(self, key: str) -> Any:
        if key == "node":
            return self.node or self.data.get("node", "")
        if key in _OWN:
            return getattr(self, key)
        if key in self.data:
            return self.data[key]
        raise KeyError(f"an event {self.type!r} has no {key!r}{suggestion(str(key), self)}")

    def __iter__(self) -> Iterator[str]:
        yield from _OWN
        yield from (key for key in self.data if key not in _OWN)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return key in _OWN or key in self.data


@runtime_checkable
class Observer(Protocol):
    """Receives every event as it happens, most of them on the run's own thread; it should return quickly.

    What nodes emit while they run side by side comes from their threads. What an observer raises is logged
    and never reaches the run. One with an attribute `wants`, a collection of types, may be spared others. One with an
    attribute `dialect` gets events in that dialect.
    """

    def on_event(self, event: Event) -> None: ...


def wanted(observer: Observer | None) -> frozenset[str] | None:
    """The types that an observer says, in its attribute `wants`, to listen to; `None` means all."""
    if observer is None:
        return frozenset()
    types = getattr(observer, "wants", None)
    return None if types is None else frozenset(map(canonical, types))


_Happened = TypeVar("_Happened", bound=Any)
"""An `Event`, or one of a journal: a dataclass with a type and data."""


class Translator:
    """An observer that hands events to another one in the names of a dialect."""

    def __init__(self, observer: Observer, dialect: str) -> None:
        self.observer, self._dialect = observer, checked_dialect(dialect)
        self._names, self._is_wide = DIALECTS[dialect], False

    @property
    def wants(self) -> frozenset[str] | None:
        """The types that the other observer listens to, and those that are needed to name them."""
        types = wanted(self.observer)
        if self._dialect != "state":
            return types
        known = frozenset(self._names)
        return (known if types is None else known & types) | {"wave.start"}

    def on_event(self, event: Event) -> None:
        if (translated := self.translate(event)) is not None:
            tell(self.observer, translated)

    def translate(self, event: _Happened) -> _Happened | None:
        """Return an event, of a run or of a journal, as this dialect has it; `None` if it has none for it."""
        name = self._names.get(event.type)
        if self._dialect == "state":
            return self._with_state(event, name)
        if name is None:
            return event
        return replace(event, type=name, data=_Renamed(event.data) if self._dialect == "task" else event.data)

    def _with_state(self, event: _Happened, name: str | None) -> _Happened | None:
        """Return an event with the state as a plain dict; those of steps count only beside others."""
        if event.type == "wave.start":
            self._is_wide = len(event.data.get("nodes", ())) > 1
        if name is None or (event.type in ("node.complete", "node.error") and not self._is_wide):
            return None
        state = event.data.get("state")
        if state is None:
            return replace(event, type=name)
        if event.type == "state.update" and len(event.data.get("nodes", ())) > 1:
            name = "parallel_state"
        data = {key: value for key, value in event.data.items() if key != "state"}
        return replace(event, type=name, data=LateData(data, {"state": state.to_dict}))


_TASK_WORDS = {
    "update": "result",
    "output": "preview",
    "output_size": "size",
    "wave": "layer",
    "nodes": "tasks",
}


class _Renamed(Mapping[str, Any]):
    """The data of an event under the words of the dialect `task`."""

    __slots__ = ("_data", "_names")

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data, self._names = data, {_TASK_WORDS.get(key, key): key for key in data}

    def __getitem__(self, key: str) -> Any:
        return self._data[self._names[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self._names


def checked_dialect(dialect: str) -> str:
    """Return the name of a dialect; refuse one that there is not."""
    if dialect not in DIALECTS:
        known = ", ".join(map(repr, DIALECTS))
        raise HoldfastError(f"unknown dialect of events: {dialect!r}; known are: {known}")
    return dialect


def in_dialect(observer: Observer, dialect: str | None) -> Observer:
    """Return an observer that gets its events in a dialect; without one the observer itself."""
    is_settled = dialect in (None, "node") or isinstance(observer, Translator)
    return observer if is_settled else Translator(observer, str(dialect))


class NoOpObserver:
    """Listens to nothing."""

    def on_event(self, event: Event) -> None:
        return None


class LoggingObserver:
    """Writes each event to a standard logger: failures as errors, warnings as warnings, streamed text for debugging,
    and the rest as info.
    """

    _LEVELS: Mapping[str, int] = MappingProxyType(
        {
            "graph.fail": logging.ERROR,
            "node.error": logging.ERROR,
            "node.stream": logging.DEBUG,
            "checkpoint.fail": logging.WARNING,
            "node.warning": logging.WARNING,
            "circuit.open": logging.WARNING,
            "graph.changed": logging.WARNING,
            "join.incomplete": logging.WARNING,
        }
    )

    def __init__(self, log: logging.Logger | None = None, *, dialect: str | None = None) -> None:
        self._log, self.dialect = log or logging.getLogger("holdfast.events"), dialect

    def on_event(self, event: Event) -> None:
        level = self._LEVELS.get(EVENT_ALIASES.get(event.type, event.type), logging.INFO)
        if not self._log.isEnabledFor(level):
            return
        facts = {key: value for key, value in event.data.items() if key not in _TOO_LONG_TO_LOG}
        text = " ".join(f"{key}={value!r}" for key, value in facts.items())
        extra = {"event": event.type, "run_id": event.run_id, "node": event.node, "data": facts}
        self._log.log(
            level, "%s run=%s node=%s %s", event.type, event.run_id, event.node or "-", text, extra=extra
        )


_TOO_LONG_TO_LOG = ("state", "update", "result")


class CallbackObserver:
    """Calls a function with each event, or only with those of the given types or aliases."""

    def __init__(self, callback: Callable[[Event], object], *types: str, dialect: str | None = None) -> None:
        self._callback, self.dialect = callback, dialect
        self._types = frozenset(map(canonical, types))

    @property
    def wants(self) -> frozenset[str] | None:
        return self._types or None

    def on_event(self, event: Event) -> None:
        if not self._types or EVENT_ALIASES.get(event.type, event.type) in self._types:
            self._callback(event)


class MultiObserver:
    """Tells several observers, given as they are, as functions or by their registered names.

    One that raises does not silence the others.
    """

    def __init__(self, *observers: ObserverLike) -> None:
        resolved = map(resolve_observer, observers)
        self.observers = tuple(observer for observer in resolved if observer is not None)

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


ObserverLike = Observer | str | Callable[[Event], object] | Sequence[Any] | None
"""What is taken for an observer: itself, a function, a registered name, or several of these."""


def resolve_observer(observer: ObserverLike, dialect: str | None = None) -> Observer | None:
    """An observer from itself, its registered name, a plain function, or several of these.

    One that has no `dialect` of its own gets its events in the given one.
    """
    if dialect is not None:
        checked_dialect(dialect)
    if observer is None:
        return None
    if isinstance(observer, str):
        observer = get_observer(observer)
    if isinstance(observer, NoOpObserver):
        return None
    if isinstance(observer, Observer):
        return in_dialect(observer, getattr(observer, "dialect", None) or dialect)
    if isinstance(observer, Sequence):
        several = MultiObserver(*(resolve_observer(each, dialect) for each in observer))
        return several if several.observers else None
    if callable(observer):
        return in_dialect(CallbackObserver(observer), dialect)
    raise HoldfastError(
        f"{observer!r} is not an observer: give an object with on_event, a function, a name or a list of these"
    )
