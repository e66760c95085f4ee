"""Naming a moment of a run: a run, a checkpoint, `RUN@3`, `RUN@-1`, `RUN@NODE`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.engine.resume import find_run
from holdfast.errors import CheckpointNotFound, RunFinished
from holdfast.journal.checkpoints import Checkpoint, read_mark
from holdfast.plan.check import suggestion
from holdfast.stores.base import Mark, RunInfo, Store

_PAGE = 500
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of a run: after its entry `seq`, or, without one, as it stands now."""

    info: RunInfo
    seq: int | None = None


def find_moment(store: Store, target: str) -> Moment:
    """The moment that somebody means.

    A run id, or a workflow's name for its latest run, is that run as it stands; a checkpoint id is that checkpoint.
    `RUN@3` is after wave 3 and `RUN@0` before the first; `RUN@-1` is one checkpoint before the newest; `RUN@NODE`
    is after the last finish of a node, `RUN@NODE#2` after its second.
    """
    if store.runs(run=target) or "@" not in target:
        return Moment(*_run(store, target))
    run, _, place = target.rpartition("@")
    info, _ = _run(store, run)
    return Moment(info, _place(store, info, place))


def checkpoint_at(store: Store, moment: Moment) -> Checkpoint | None:
    """The checkpoint at a moment, or the newest before it; `None` where there is none."""
    before = None if moment.seq is None else moment.seq + 1
    found = store.marks(moment.info.run, before, 1)
    return read_mark(moment.info.key, found[0], moment.info.run) if found else None


def checkpoints_back(store: Store, info: RunInfo, before: int | None = None) -> Iterator[Checkpoint]:
    """The checkpoints of a run, newest first, read page by page."""
    while page := store.marks(info.run, before, _PAGE):
        for mark in page:
            yield read_mark(info.key, mark, info.run)
        before = page[-1].seq


def _run(store: Store, target: str) -> tuple[RunInfo, int | None]:
    try:
        return find_run(store, target)
    except RunFinished:
        return store.runs(workflow=target, limit=1)[0], None


def _place(store: Store, info: RunInfo, place: str) -> int:
    if place.isdecimal():
        return _after_wave(store, info, int(place))
    if place.startswith("-") and place[1:].isdecimal():
        back = int(place[1:])
        found = store.marks(info.run, None, back + 1)
        if len(found) <= back:
            raise CheckpointNotFound(
                f"run {info.run!r} has no checkpoint {back} before its newest; it has {len(found)}"
            )
        return found[back].seq
    return _after_node(store, info, place)


def _after_wave(store: Store, info: RunInfo, wave: int) -> int:
    found = _searched(store, info, wave) or _walked(store, info, lambda point: _is_wave(point, wave))
    if found is not None:
        return found
    first = next(iter(store.read(info.run, 0, 1)), None)
    if wave == 0 and first is not None and first.mark is None:
        return first.seq
    newest = store.marks(info.run, None, 1)
    last = read_mark(info.key, newest[0], info.run).wave if newest else 0
    raise CheckpointNotFound(
        f"run {info.run!r} has no checkpoint after wave {wave}: it was pruned, not saved, or never came; "
        f"its newest is after wave {last}"
    )


def _is_wave(point: Checkpoint, wave: int) -> bool:
    return point.wave == wave and not point.frame


def _searched(store: Store, info: RunInfo, wave: int) -> int | None:
    """The checkpoint after a wave, found by halving; `None` where the waves do not simply count up."""
    guess = store.marks(info.run, wave + 2, 1)
    if guess and guess[0].seq == wave + 1 and _is_wave(_read(info, guess[0]), wave):
        return guess[0].seq  # Each step was alone in its wave, and each wave was saved.
    newest = store.marks(info.run, None, 1)
    low, high = 0, newest[0].seq if newest else 0
    while low < high:
        middle = (low + high + 1) // 2
        found = store.marks(info.run, middle + 1, 1)
        if not found or _read(info, found[0]).wave < wave:
            low = middle
        else:
            high = min(middle - 1, found[0].seq - 1)
    found = _next_mark(store, info, low, newest)
    return found[0].seq if found and _is_wave(_read(info, found[0]), wave) else None


def _next_mark(store: Store, info: RunInfo, seq: int, newest: list[Mark]) -> list[Mark]:
    """The first checkpoint after an entry, if it comes soon."""
    last = min(newest[0].seq, seq + _SHOWN) if newest else 0
    return [mark for mark in reversed(store.marks(info.run, last + 1, _SHOWN)) if mark.seq > seq][:1]


def _read(info: RunInfo, mark: Mark) -> Checkpoint:
    return read_mark(info.key, mark, info.run)


def _walked(store: Store, info: RunInfo, wanted: Callable[[Checkpoint], bool]) -> int | None:
    return next((point.seq for point in checkpoints_back(store, info) if wanted(point)), None)


def _after_node(store: Store, info: RunInfo, place: str) -> int:
    node, _, visit = place.rpartition("#")
    if not node or not visit.isdecimal():
        node, visit = place, ""
    seen: dict[str, None] = {}
    finishes = []
    for point in checkpoints_back(store, info):
        prefix = (
            "/".join(part.rpartition("#")[0] for part in point.frame.split("/")) + "/" if point.frame else ""
        )
        names = [prefix + name for name in point.nodes]
        seen |= dict.fromkeys(names)
        if node in names:
            if not visit:
                return point.seq
            finishes.append(point.seq)
    if visit and 0 < int(visit) <= len(finishes):
        return finishes[-int(visit)]
    which = f"{node!r} for the {visit}. time" if visit else repr(node)
    known = f"; the last to finish were {', '.join(list(seen)[:_SHOWN])}" if seen else ""
    raise CheckpointNotFound(
        f"run {info.run!r} has no checkpoint after {which}{suggestion(node, list(seen))}{known}"
    )
