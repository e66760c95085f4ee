"""The places where a run can die, which of them are tried, and the watch over an execution that comes to them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.engine.context import PauseSignal
from holdfast.errors import HoldfastError
from holdfast.functions.step_nodes import StepNodes
from holdfast.graph.fingerprint import Fingerprint
from holdfast.graph.graph import Graph, Node
from holdfast.graph.validation import choice_of
from holdfast.journal.encoding import Track, decode_records
from holdfast.journal.fold import parts_of
from holdfast.journal.records import (
    Answered,
    Noted,
    OnceStarted,
    Paused,
    Record,
    Resumed,
    RunEnded,
    RunStarted,
    StepFailed,
    StepFinished,
    StepStarted,
)
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, Conflict, Store
from holdfast.testing.ledger import (
    DIED,
    FAILED,
    LEFT,
    LOOKS,
    RETURNED,
    START,
    STORED,
    FileLedger,
    Pass,
    current_pass,
    effects_elsewhere,
)
from holdfast.testing.wrapped_store import Crash, WrappedStore, when_caller_returns

COMMIT_POINTS = ("before", "committed", "acknowledged")
EVERY_POINT = (*COMMIT_POINTS, "effect", "ran")

_WORDS = {
    "before": "before commit {number} was stored: {what}",
    "committed": "after commit {number} was stored, before the engine heard of it: {what}",
    "acknowledged": "after commit {number} was stored and the engine had heard of it: {what}",
    "effect": "right after effect {number}: {what}",
    "ran": "when the body of {what} had run, before its outcome was stored",
}


class Boundary(NamedTuple):
    """A place in a run: the `number`-th commit, effect or finished body, and on which side of it."""

    point: str
    number: int
    what: str = ""

    def __str__(self) -> str:
        return _WORDS[self.point].format(number=self.number, what=self.what or "(not shown)")

    @property
    def place(self) -> tuple[str, int]:
        """What stays the same in every run that goes the same way."""
        return self.point, self.number


def check_points(points: str | Sequence[str]) -> tuple[str, ...]:
    """The points that are wanted, in their own order; raise `HoldfastError` for one that there is not."""
    __tracebackhide__ = True
    points = (points,) if isinstance(points, str) else tuple(points)
    for point in points:
        if point not in EVERY_POINT:
            raise HoldfastError(f"points are {', '.join(map(repr, EVERY_POINT))}; there is no {point!r}")
    if not points:
        raise HoldfastError("crash_everywhere needs at least one point to crash at")
    return tuple(point for point in EVERY_POINT if point in points)


def sampled(boundaries: Sequence[Boundary], limit: int | None) -> list[Boundary]:
    """At most `limit` boundaries, spread evenly over the run and over the points; all if that is not more."""
    if limit is None or len(boundaries) <= limit:
        return list(boundaries)
    groups: dict[str, list[int]] = {}
    for index, boundary in enumerate(boundaries):
        groups.setdefault(boundary.point, []).append(index)
    chosen: set[int] = set()
    left, groups_left = limit, len(groups)
    for indexes in sorted(groups.values(), key=len):
        share = min(len(indexes), max(1, left // groups_left))
        chosen.update(
            indexes[round(place * (len(indexes) - 1) / max(1, share - 1))] for place in range(share)
        )
        left, groups_left = left - share, groups_left - 1
    return [boundaries[index] for index in sorted(chosen)][:limit]


# What a commit stores, in a few words.


_MOST_RECORDS = 6


def commit_text(records: Iterable[Record]) -> str:
    """The records in words, those that say nothing to people left out."""
    words = list(
        dict.fromkeys(word for record in records for part in parts_of(record) for word in _words(part))
    )
    more = f", and {len(words) - _MOST_RECORDS} more" if len(words) > _MOST_RECORDS else ""
    return ", ".join(words[:_MOST_RECORDS]) + more or "bookkeeping"


def _words(record: Record) -> tuple[str, ...]:
    match record:
        case RunStarted():
            return ("the run begins",)
        case Resumed():
            return ("the run is resumed",)
        case StepStarted(step=step):
            return (f"step {step!r} begins",)
        case StepFinished(step=step, skipped=skipped):
            return (f"step {step!r} is {'passed over' if skipped else 'finished'}",)
        case StepFailed(step=step):
            return (f"step {step!r} failed",)
        case Paused(step=step, kind=kind, name=name):
            asks = f"step {step!r} asks {name!r}"
            return (asks if kind == "ask" else f"a pause ({kind}) at step {step!r}",)
        case Answered(pause=pause):
            return (f"{pause!r} is answered",)
        case Noted(step=step, key=key):
            kind, _, name = key.partition(":")
            call = f"ctx.{kind}({name!r}) of step {step!r}"
            return (call if kind in ("once", "sleep") else f"note {key!r}",)
        case OnceStarted(step=step, key=key):
            return (f"ctx.once({key!r}) of step {step!r} begins",)
        case RunEnded(status=status):
            return (f"the run is {status}",)
        case _:
            return ()


# Watching one execution of a run: every boundary that it comes to, and the one where it crashes.


class Watch:
    """A counter of the boundaries that an execution comes to, which ends it at the one to crash at."""

    def __init__(self, ledger: FileLedger, crash_at: Boundary | None, crash: Callable[[], object]) -> None:
        self.ledger, self._crash_at, self._crash = ledger, crash_at, crash
        self.seen: list[Boundary] = []
        self.dead = self.is_late = False
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def reached(self, point: str, what: str) -> None:
        """Crash if this is the chosen boundary; raise in threads that a crashed execution left running."""
        self.refuse_if_dead()
        with self._lock:
            number = self._counts[point] = self._counts.get(point, 0) + 1
            boundary = Boundary(point, number, what)
            self.seen.append(boundary)
            if not self._is_crash_at(point, number):
                return
            self.dead = True
        self.ledger.write(DIED, f"{point}-{number}", json.dumps(str(boundary)))
        self._crash()

    def comes_next(self, point: str) -> bool:
        """Whether the next boundary of this kind is the one to die at."""
        return self._is_crash_at(point, self._counts.get(point, 0) + 1)

    def refuse_if_dead(self) -> None:
        """Raise `Crash` in what goes on although the execution crashed."""
        if self.dead:
            raise Crash("the process died before this")

    def give_up(self) -> None:
        """End this execution, which takes too long: whatever still goes on in it is refused."""
        self.dead = self.is_late = True

    def _is_crash_at(self, point: str, number: int) -> bool:
        return self._crash_at is not None and self._crash_at.place == (point, number)


class WatchedStore(WrappedStore):
    """A store whose commits are boundaries: before, committed, acknowledged."""

    def __init__(self, inner: Store, watch: Watch, codec: Codec, readable: bool) -> None:
        super().__init__(inner)
        self._watch, self._codec, self._readable = watch, codec, readable
        self._tracks: dict[str, Track] = {}
        self._lock = threading.Lock()

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        before, committed, acknowledged = COMMIT_POINTS
        with self._lock:
            what = "; ".join(self._text(append) for append in appends)
            self._watch.reached(before, what)
            answers = self.inner.commit(appends)
            self._watch.reached(committed, what)
            for append, conflict in zip(appends, answers, strict=True):
                if conflict is None:
                    for entry in append.entries:
                        self._watch.ledger.write(STORED, f"{append.run}:{entry.seq}", entry.chain.hex())
            if self._watch.comes_next(acknowledged):
                when_caller_returns(lambda: self._watch.reached(acknowledged, what))
            else:
                self._watch.reached(acknowledged, what)
        return answers

    def _text(self, append: Append) -> str:
        """What an append stores, as far as the journal before it can be read."""
        if not append.entries:
            return "facts of the run"
        if self._readable and append.run not in self._tracks:
            track = self._tracks[append.run] = Track()
            try:
                for entry in self.inner.read(append.run, 0, append.after):
                    decode_records(entry.body, track, self._codec)
            except HoldfastError:
                self._readable = False
        if not self._readable:
            return f"entries {append.entries[0].seq} to {append.entries[-1].seq}"
        track = self._tracks[append.run]
        return commit_text(
            record for entry in append.entries for record in decode_records(entry.body, track, self._codec)
        )


# Node functions that say when they begin and how they end; everything else about a graph stays what it was.


def watched_graph(graph: Graph, outline: Mapping[str, Any], watch: Watch) -> Graph:
    """A graph that does the same, watched: fingerprints (from its outline), names and edges are the original's."""
    facts = outline.get("nodes", {})
    nodes = {name: _watched_node(node, facts.get(name, {}), watch) for name, node in graph.nodes.items()}
    if isinstance(graph.nodes, StepNodes):
        nodes = StepNodes(nodes, lambda node: _watched_node(node, {}, watch))
    return dataclasses.replace(graph, nodes=nodes)


def _watched_node(node: Node, facts: Mapping[str, Any], watch: Watch) -> Node:
    if node.graph is not None:
        return dataclasses.replace(node, graph=watched_graph(node.graph, facts.get("graph", {}), watch))
    if node.function is None:
        return node
    version = node.version
    if version is None:
        version = Fingerprint(facts.get("fingerprint") or node.fingerprint())
    if runs_here(node):
        function = (_watched_async if node.is_async else _watched)(node.function, watch)
    else:
        function = Elsewhere(node.function, str(watch.ledger.path))
    look = node.if_interrupted
    look = look if isinstance(look, str) else _watched(look, watch, LOOKS)
    wants = ("ctx", *node.wants)
    return dataclasses.replace(node, function=function, version=version, wants=wants, if_interrupted=look)


def runs_here(node: Node) -> bool:
    """Whether its function runs in this process; another has nobody who watches it."""
    return node.executor is None or choice_of(node.executor).in_threads


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A node's function that runs in another process: what it does there is written to the same ledger."""

    function: Callable[..., Any]
    path: str

    def __call__(self, ctx: Any, *given: Any, **named: Any) -> Any:
        with self._passing(ctx.step) as ledger:
            value = self.function(*given, **named)
            if not inspect.isawaitable(value):
                ledger.write(RETURNED, ctx.step)
                return value
        return self._awaited(value, ctx.step)

    async def _awaited(self, value: Any, step: str) -> Any:
        with self._passing(step, begins=False) as ledger:
            result = await value
            ledger.write(RETURNED, step)
            return result

    @contextlib.contextmanager
    def _passing(self, step: str, begins: bool = True) -> Iterator[FileLedger]:
        ledger = FileLedger(self.path, sync=False)
        if begins:
            ledger.write(START, step)
        try:
            with effects_elsewhere(ledger, step):
                yield ledger
        except Exception as error:
            ledger.write(FAILED, step, _error_text(error))
            raise


def _watched(function: Callable[..., Any], watch: Watch, begins: str = START) -> Callable[..., Any]:
    gives_context = begins == LOOKS

    @functools.wraps(function)
    def body(ctx: Any, *given: Any, **named: Any) -> Any:
        with _passing(Pass(ctx.step, ctx, watch), begins):
            value = function(*((ctx,) if gives_context else ()), *given, **named)
            if not inspect.isawaitable(value):
                _returned(ctx.step, watch)
                return value
        return _awaited(value, Pass(ctx.step, ctx, watch))

    return body


def _watched_async(function: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    @functools.wraps(function)
    async def body(ctx: Any, *given: Any, **named: Any) -> Any:
        with _passing(Pass(ctx.step, ctx, watch)):
            value = await function(*given, **named)
            _returned(ctx.step, watch)
            return value

    return body


async def _awaited(value: Any, passing: Pass) -> Any:
    with _passing(passing, ""):
        result = await value
        _returned(passing.step, passing.watch)
        return result


def _returned(step: str, watch: Watch) -> None:
    watch.ledger.write(RETURNED, step)
    watch.reached("ran", f"step {step!r}")


@contextlib.contextmanager
def _passing(passing: Pass, begins: str = START) -> Iterator[None]:
    """Note in the ledger how a pass goes, and let effects know whose they are."""
    watch, step = passing.watch, passing.step
    watch.refuse_if_dead()
    if begins:
        watch.ledger.write(begins, step)
    token = current_pass.set(passing)
    try:
        yield
    except Crash:
        raise
    except PauseSignal as left:
        if not watch.dead:
            watch.ledger.write(LEFT, step, json.dumps([left.asked[0].kind, left.asked[0].name]))
        raise
    except Exception as error:
        if not watch.dead:
            watch.ledger.write(FAILED, step, _error_text(error))
        raise
    finally:
        current_pass.reset(token)


def _error_text(error: Exception) -> str:
    return json.dumps(f"{type(error).__name__}: {error}")
