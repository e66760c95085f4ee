"""Names of checkpoints: a run, a checkpoint, `RUN@3`, `RUN@-1`, `RUN@NODE`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from holdfast.engine.resume import find_checkpoint, find_run
from holdfast.errors import (
    CheckpointNotFound,
    HoldfastError,
    Remedy,
    RunFinished,
    StateInvalid,
    suggestion,
)
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import Checkpoint, decode_checkpoint, is_checkpoint_id, times_reset
from holdfast.journal.journal import Journal
from holdfast.journal.records import StepCalled, StepFinished
from holdfast.journal.run_state import frame_of, node_of
from holdfast.journal.sealing import Seal
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import RunInfo, Store, StoredCheckpoint
from holdfast.values import step_label

_PAGE = 500
_SHOWN = 20
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Position:
    """A point of a run: after its entry `seq`, or, without one, as it stands now."""

    info: RunInfo
    seq: int | None = None


def find_position(store: Store, target: str) -> Position:
    """Return the position that a name stands for.

    A run id, or a workflow's name for its latest run, is that run as it stands; a checkpoint id is that checkpoint.
    `RUN@3` is after wave 3, and in a run that was taken back after the last time that it came there; `RUN@0` is
    before the first; `RUN@-1` is one checkpoint before the newest; `RUN@NODE` is after the last finish of a node,
    `RUN@NODE#2` after its second. Of a step that a function called, `RUN@report/fetch#2` or its whole id, it is the
    checkpoint that has the step's result.
    """
    if store.runs(run=target) or "@" not in target:
        return Position(*_run(store, target))
    run, _, place = parted(target)
    info, _ = _run(store, run)
    return Position(info, _place(store, info, place))


def parted(target: str) -> tuple[str, str, str]:
    """Return the run, the `@` and the place in the name of a checkpoint; an item's key may have an `@`."""
    name, bracket, key = target.partition("[") if target.endswith("]") else (target, "", "")
    run, at, place = name.rpartition("@")
    return (run, at, f"{place}{bracket}{key}") if at else target.rpartition("@")


def checkpoint_at(store: Store, position: Position) -> Checkpoint | None:
    """Return the checkpoint at a position, or the newest before it; `None` where there is none."""
    before = None if position.seq is None else position.seq + 1
    found = store.checkpoints(position.info.run, before, 1)
    return decode_checkpoint(position.info.key, found[0], position.info.run) if found else None


def checkpoints_back(store: Store, info: RunInfo, before: int | None = None) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a run, newest first, read page by page."""
    return (_read(info, stored) for stored in _checkpoints_back(store, info, before))


def _run(store: Store, target: str) -> tuple[RunInfo, int | None]:
    try:
        return find_run(store, target)
    except RunFinished:
        return store.runs(workflow=target, limit=1)[0], None


def _place(store: Store, info: RunInfo, place: str) -> int:
    if place.isdecimal():
        return _after_wave(store, info, _number(place))
    if place.startswith("-") and place[1:].isdecimal():
        back = _number(place[1:])
        found = store.checkpoints(info.run, None, back + 1)
        if len(found) <= back:
            raise CheckpointNotFound(
                f"run {info.run!r} has no checkpoint {back} before its newest; it has {len(found)}"
            )
        return found[back].seq
    return _after_node(store, info, place)


def _number(digits: str) -> int:
    """A number of waves or checkpoints; more than any run can have is as good as the most that stores count to."""
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS


def _after_wave(store: Store, info: RunInfo, wave: int) -> int:
    newest = store.checkpoints(info.run, None, 1)
    found = _searched(store, info, wave, newest[0]) if newest else None
    found = found or _walked(store, info, wave)
    if found is not None:
        return found
    first = next(iter(store.read(info.run, 0, 1)), None)
    if wave == 0 and first is not None and first.mark is None:
        return first.seq
    waves = (point.run_wave for point in checkpoints_back(store, info))
    last = next((found for found in waves if found is not None), 0)
    raise CheckpointNotFound(
        f"run {info.run!r} has no checkpoint after wave {wave}: it was pruned, not saved, or never came; "
        f"its newest is after wave {last}"
    )


def _searched(store: Store, info: RunInfo, wave: int, newest: StoredCheckpoint) -> int | None:
    """The checkpoint that a wave ended with, found by halving; `None` where the waves do not simply count up."""
    if _read(info, newest).wave < wave or times_reset(newest.facts):
        return None
    low, high = 0, newest.seq
    # Where each step is alone in its wave, and each wave is saved, nothing has to be searched for.
    for guess in (wave, wave + 1):
        if low < guess < high:
            low, high = _halved(store, info, wave, guess, low, high)
    while high - low > 1:
        low, high = _halved(store, info, wave, (low + high) // 2, low, high)
    before, found = store.checkpoints(info.run, low + 1, 1), store.checkpoints(info.run, high + 1, 1)
    if not found or (before and _read(info, before[0]).frame):
        return None
    point = _read(info, found[0])
    return point.seq if point.wave == wave and not point.frame else None


def _halved(store: Store, info: RunInfo, wave: int, middle: int, low: int, high: int) -> tuple[int, int]:
    """Entries between which a wave ended, as the checkpoint at or before the one in the middle tells."""
    found = store.checkpoints(info.run, middle + 1, 1)
    if found and _read(info, found[0]).wave >= wave:
        return low, found[0].seq
    return middle, high


def _walked(store: Store, info: RunInfo, wave: int) -> int | None:
    """The checkpoint that a wave ended with, the last time that the run came to its end."""
    found: StoredCheckpoint | None = None
    for stored in _checkpoints_back(store, info):
        point = _read(info, stored)
        if point.frame:
            continue
        if found is not None and (
            point.wave != wave or times_reset(stored.facts) != times_reset(found.facts)
        ):
            break
        if point.wave == wave:
            found = stored
    return None if found is None else found.seq


def _checkpoints_back(store: Store, info: RunInfo, before: int | None = None) -> Iterator[StoredCheckpoint]:
    while page := store.checkpoints(info.run, before, _PAGE):
        yield from page
        before = page[-1].seq


def _read(info: RunInfo, stored: StoredCheckpoint) -> Checkpoint:
    return decode_checkpoint(info.key, stored, info.run)


def _with_result(store: Store, info: RunInfo, place: str) -> tuple[int | None, bool]:
    """Return the first checkpoint that has the result of a step, and whether a function calls steps of that kind."""
    named = step_label if "#" in place or "[" in place else node_of
    wanted, frames, last = place if named is node_of else step_label(place), set[str](), 0
    with suppress(HoldfastError):  # It is encrypted, say: the marks beside its entries are not.
        journal = Journal(store, Seal.chosen(None, None, os.environ))
        for entry in store.read(info.run):
            for record in journal.skimmed(info, entry, TolerantCodec()):
                if isinstance(record, StepCalled):
                    frames.add(record.frame)
                elif isinstance(record, StepFinished) and named(record.step) == wanted:
                    last = entry.seq if frame_of(record.step) in frames else last
    found = None
    for point in checkpoints_back(store, info) if last else ():
        if point.seq < last:
            break
        found = point.seq
    caller = "/".join(part.partition("#")[0] for part in frame_of(place).split("/"))
    return found, caller in map(node_of, frames)


def _after_node(store: Store, info: RunInfo, place: str) -> int:
    result, is_call = _with_result(store, info, place) if "/" in place else (None, False)
    if result is not None:
        return result
    node, _, visit = place.rpartition("#")
    if not node or not visit.isdecimal():
        node, visit = place, ""
    seen: dict[str, None] = {}
    finishes = []
    ends = (
        set[str]() if is_call else {node, f"{node}:done"}
    )  # A step of several nodes ends with the last of them.
    for point in checkpoints_back(store, info):
        prefix = (
            "/".join(part.rpartition("#")[0] for part in point.frame.split("/")) + "/" if point.frame else ""
        )
        names = [prefix + name for name in point.nodes]
        seen |= dict.fromkeys(names)
        if not ends.isdisjoint(names):
            ends = {f"{node}:done"} if f"{node}:done" in names else ends
            if not visit:
                return point.seq
            finishes.append(point.seq)
    if visit and 0 < (times := _number(visit)) <= len(finishes):
        return finishes[-times]
    _refuse_item(info, place, seen)
    which = f"{node!r} for the {visit:.{_MOST_DIGITS}}. time" if visit else repr(node)
    finished = list(dict.fromkeys(map(base_name, seen)))
    known = f"; the last to finish were {', '.join(finished[:_SHOWN])}" if finished else ""
    raise CheckpointNotFound(
        f"run {info.run!r} has no checkpoint after {which}{suggestion(node, finished)}{known}"
    )


def _refuse_item(info: RunInfo, place: str, seen: Iterable[str]) -> None:
    """Refuse the name of an item of a step that finished: the step's items have one checkpoint together."""
    step, bracket, _ = place.partition("[")
    node = step.partition("#")[0]
    if bracket and place.endswith("]") and node in set(map(base_name, seen)):
        raise CheckpointNotFound(
            f"run {info.run!r} has no checkpoint after {place!r}: the items of a step have one together",
            remedies=(Remedy("fork", f"{info.run}@{step}"), Remedy("rerun", info.run, {"step": place})),
        )


Place = str | int
"""A checkpoint of a run: its id, the number of a wave, or what follows the `@` of a position."""


def find_place(store: Store, run: str, place: Place | None) -> Position:
    """Return the position of a place in a run; without a place, the one that `run` names."""
    if place is None:
        return find_position(store, run)
    if isinstance(place, bool) or not isinstance(place, (str, int)):
        raise StateInvalid(
            f"a checkpoint is named by its id, the number of a wave, or '@…', not {place!r:.80}"
        )
    info = find_position(store, run).info
    text = str(place).removeprefix("@")
    if is_checkpoint_id(text):
        found, seq = find_checkpoint(store, text)
        if found.key != info.key:
            raise CheckpointNotFound(f"checkpoint not found: {text} (it is one of run {found.run!r})")
        return Position(info, seq)
    return find_position(store, f"{info.run}@{text}")
