"""The places where a run can die, in words, and which of them are tried."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.journal.encoding import Track, decode_records
from holdfast.journal.records import (
    Answered,
    Noted,
    OnceStarted,
    Paused,
    Record,
    Resumed,
    RunEnded,
    RunStarted,
    StepAdvanced,
    StepFailed,
    StepFinished,
    StepStarted,
)
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, Conflict, Store
from holdfast.testing.ledger import START, STORED, FileLedger
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
    words = list(dict.fromkeys(_words(records)))
    more = f", and {len(words) - _MOST_RECORDS} more" if len(words) > _MOST_RECORDS else ""
    return ", ".join(words[:_MOST_RECORDS]) + more or "bookkeeping"


def _words(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        match record:
            case RunStarted():
                yield "the run begins"
            case Resumed():
                yield "the run is resumed"
            case StepStarted(step=step):
                yield f"step {step!r} begins"
            case StepFinished(step=step, skipped=skipped):
                yield f"step {step!r} is {'passed over' if skipped else 'finished'}"
            case StepFailed(step=step):
                yield f"step {step!r} failed"
            case StepAdvanced(step=step, next=following):
                yield f"step {step!r} is finished"
                yield f"step {following!r} begins"
            case Paused(step=step, kind=kind, name=name):
                yield (
                    f"step {step!r} asks {name!r}" if kind == "ask" else f"a pause ({kind}) at step {step!r}"
                )
            case Answered(pause=pause):
                yield f"{pause!r} is answered"
            case Noted(step=step, key=key):
                kind, _, name = key.partition(":")
                yield (
                    f"ctx.{kind}({name!r}) of step {step!r}" if kind in ("once", "sleep") else f"note {key!r}"
                )
            case OnceStarted(step=step, key=key):
                yield f"ctx.once({key!r}) of step {step!r} begins"
            case RunEnded(status=status):
                yield f"the run is {status}"
            case _:
                continue


# Watching one execution of a run: every boundary that it comes to, and the one where it crashes.


DIED = "died"
EXECUTION = "execution"
LEFT, FAILED, RETURNED = "left", "failed", "returned"
"""How the body of a step ends; the key is the step."""
LOOKS = "looks"
"""The function that its node gives as `if_interrupted` looks what became of a step; the key is the step."""
BEGINS = (START, LOOKS)
"""How a pass of a step begins."""


class Watch:
    """A counter of the boundaries that an execution comes to, which ends it at the one to crash at."""

    def __init__(self, ledger: FileLedger, crash_at: Boundary | None, crash: Callable[[], object]) -> None:
        self.ledger, self._crash_at, self._crash = ledger, crash_at, crash
        self.seen: list[Boundary] = []
        self.dead = self.is_late = False
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def reached(self, point: str, what: str) -> None:
        """Crash here, if this is the boundary; refuse what threads of a crashed execution still do."""
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


class Pass(NamedTuple):
    """One run of the body of a step."""

    step: str
    context: Any
    watch: Watch

    def is_in_once(self) -> bool:
        """Whether a function given to `ctx.once` is at work."""
        return bool(getattr(self.context, "_once", 0))


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
        if not append.entries:
            return "facts of the run"
        track = self._track_of(append.run, append.after)
        if track is None:
            return f"entries {append.entries[0].seq} to {append.entries[-1].seq}"
        records = []
        for entry in append.entries:
            records.extend(decode_records(entry.body, track, self._codec))
        return commit_text(records)

    def _track_of(self, run: str, after: int) -> Track | None:
        """What has to be known to read the next entry of a run, if it can be read at all."""
        if not self._readable:
            return None
        if run not in self._tracks:
            track = self._tracks[run] = Track()
            try:
                for entry in self.inner.read(run, 0, after):
                    decode_records(entry.body, track, self._codec)
            except HoldfastError:
                self._readable = False
                return None
        return self._tracks[run]


# An error as its author wants to see it: what was raised, why, and where in the author's own code.


_NOT_OWN = tuple(
    f"{folder}/"
    for folder in (
        Path(__file__).resolve().parents[2],
        Path(asyncio.__file__).parent,
        Path(concurrent.futures.__file__).parent,
    )
)
_NOT_OWN_FILES = (threading.__file__, contextlib.__file__)
_MOST_FRAMES = 8


def own_trace(error: BaseException) -> str:
    """Return an error and what caused it, each with the frames that are neither Holdfast's nor the event loop's."""
    shown = traceback.TracebackException.from_exception(error)
    _keep_own_frames(shown)
    return "".join(shown.format()).strip()


def _keep_own_frames(shown: traceback.TracebackException | None) -> None:
    if shown is None:
        return
    own = [frame for frame in shown.stack if not _is_foreign(frame.filename)]
    shown.stack = traceback.StackSummary.from_list(own[-_MOST_FRAMES:])
    for part in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        _keep_own_frames(part)


def _is_foreign(filename: str) -> bool:
    return filename.startswith(("<frozen", *_NOT_OWN)) or filename in _NOT_OWN_FILES


# Which node a step is a step of, and in which sub-graphs that is.


def nodes_of(step: str) -> tuple[str, ...]:
    """The nodes that a step lies in, from the outermost to its own."""
    return tuple(part.partition("#")[0].partition("[")[0] for part in step.split("/"))


def node_text(step: str) -> str:
    """The node of a step, for people."""
    *outer, own = nodes_of(step)
    return f"node {own!r}" + (f" in the sub-graph {'/'.join(outer)!r}" if outer else "")


def counted(number: int, one: str, several: str = "") -> str:
    """A number of things, in the right number."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def often(times: int) -> str:
    """How often, in words."""
    return {0: "not at all", 1: "once", 2: "twice"}.get(times, f"{times} times")


# Where two states differ, as paths into them.


StatePath = tuple[str | int, ...]

_MOST_PATHS = 200


def differing_paths(
    one: Any, other: Any, path: StatePath = (), *, unordered: bool = False
) -> list[StatePath]:
    """The innermost places at which two values differ; lists of different lengths differ as a whole.

    With `unordered` lists that have the same items in another order do not differ.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found: list[StatePath] = []
        for key in [*one, *(key for key in other if key not in one)]:
            if key in one and key in other:
                found += differing_paths(one[key], other[key], (*path, key), unordered=unordered)
            else:
                found.append((*path, key))
        return found[:_MOST_PATHS]
    both_lists = isinstance(one, (list, tuple)) and isinstance(other, (list, tuple))
    if both_lists and type(one) is type(other) and len(one) == len(other):
        if unordered and sorted(map(repr, one)) == sorted(map(repr, other)):
            return []
        return [
            place
            for index, (mine, theirs) in enumerate(zip(one, other, strict=True))
            for place in differing_paths(mine, theirs, (*path, index), unordered=unordered)
        ][:_MOST_PATHS]
    return [] if _are_same(one, other) else [path]


def _are_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or (one != one and other != other)
    except Exception:
        return repr(one) == repr(other)  # Arrays and the like do not answer with a truth.


def shown_at(state: Any, path: StatePath) -> str:
    """What a state has at a path, for people."""
    name = "".join(f"[{part!r}]" for part in path) or "the state"
    for part in path:
        try:
            state = state[part]
        except (KeyError, IndexError, TypeError):
            return f"{name} is missing"
    text = repr(state)
    return f"{name} = {text if len(text) <= 160 else text[:157] + '…'}"
