"""Records as bytes, and back: what an entry holds. Each record is a list that begins with its code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ormsgpack

from holdfast.errors import CodecError
from holdfast.journal.records import (
    Answered,
    Commanded,
    Confirmed,
    Described,
    Forked,
    FrameOpened,
    GraphChanged,
    Migrated,
    MovedOn,
    Noted,
    OnceFailed,
    OnceStarted,
    Paused,
    Record,
    Remarked,
    Reset,
    Resumed,
    Reusing,
    RunEnded,
    RunStarted,
    Spent,
    StateEdited,
    Steered,
    StepFailed,
    StepFinished,
    StepStarted,
    Target,
    WaveFinished,
)
from holdfast.journal.run_state import RunState, frame_of
from holdfast.journal.wire import (
    HEAD,
    Track,
    decode_run,
    read_fault,
    read_item,
    read_ops,
    read_pairs,
    read_targets,
    safe_text,
    unpack_body,
    write_fault,
    write_item,
    write_ops,
    write_targets,
)
from holdfast.state.codec import Codec


def encode_records(records: Sequence[Record], track: Track) -> bytes:
    """The body of an entry. `track` learns what the records hold."""
    return HEAD + ormsgpack.packb([_WRITERS[type(record)](record, track) for record in records])


Base = Callable[[Forked, Track], RunState]
"""Finds the run that a fork began as, and sets a track to where it stood."""


def decode_records(body: bytes, track: Track, codec: Codec, base: Base | None = None) -> list[Record]:
    """The records of a body. Values are decoded with `codec` when they are first read.

    A fork's first records refer to what its parent holds, so that they cannot be read without its `base`.
    """
    wires = unpack_body(body)
    try:
        if base is not None and wires[0][0] == _FORKED and not wires[0][3]:
            fork = _read_forked(wires[0], track, codec)
            fork = fork._replace(run=base(fork, track))
            return [fork, *(_READERS[wire[0]](wire, track, codec) for wire in wires[1:])]
        return [_READERS[wire[0]](wire, track, codec) for wire in wires]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"a record cannot be read: {type(error).__name__}: {error}") from None


def _write_finished(r: StepFinished, track: Track) -> list[Any]:
    if r.promoted:
        track.closed(r.step)
    goto = None if r.goto is None else write_targets(r.goto)
    return [
        2,
        r.step,
        write_ops(r.ops, frame_of(r.step), track),
        goto,
        r.seconds,
        r.promoted,
        safe_text(r.skipped),
        *([r.origin] if r.origin else []),
    ]


def _write_wave(r: WaveFinished, track: Track) -> list[Any]:
    track.saw_items(r.frame, r.next)
    return [4, r.frame, write_ops(r.ops, r.frame, track), write_targets(r.next), r.waiting, r.steps]


def _write_moved_on(r: MovedOn, track: Track) -> list[Any]:
    track.saw_items("", _ONE)
    return [15, r.step, write_ops(r.ops, "", track) if r.ops else r.ops, r.next, r.seconds]


_ONE = (Target(""),)


def _write_run_started(r: RunStarted, track: Track) -> list[Any]:
    track.saw_items("", r.next)
    ops = write_ops(r.ops, "", track)
    return [0, r.workflow, ops, write_targets(r.next), r.config, r.outline, r.driver, r.parent]


def _write_frame(r: FrameOpened, track: Track) -> list[Any]:
    track.saw_items(r.step, r.next)
    return [13, r.step, r.keys, write_ops(r.ops, r.step, track), write_targets(r.next), r.reduced]


def _write_paused(r: Paused, track: Track) -> list[Any]:
    texts = [safe_text(r.name), safe_text(r.prompt)]
    return [5, r.pause, r.kind, r.step, r.node, *texts, r.schema, r.expires_at, r.since]


def _write_steered(r: Steered, track: Track) -> list[Any]:
    _count_steered(r, track)
    items = [[name, write_item(item)] for name, item in r.items]
    add = [[target.node, target.key, write_item(target.item)] for target in r.add]
    texts = [safe_text(r.by), safe_text(r.why)]
    return [16, r.frame, r.drop, items, add, r.one_off, r.replan, *texts, *([True] if r.anew else [])]


def _count_steered(record: Steered, track: Track) -> None:
    items = [item for _, item in record.items]
    track.added_items(record.frame, [*items, *(target.item for target in record.add)])


_FORKED = 14


def _write_forked(r: Forked, track: Track) -> list[Any]:
    if r.body:
        decode_run(r.body, track, Codec())
    return [_FORKED, r.parent, r.seq, r.body, r.driver, r.config, r.key, r.chain, *_optional(r.forget)]


def _write_reset(r: Reset, track: Track) -> list[Any]:
    track.forget()
    decode_run(r.body, track, Codec())
    return [17, r.source, r.seq, r.body, safe_text(r.by), safe_text(r.why), r.forget, r.key, r.renew]


def _optional(names: tuple[str, ...]) -> list[Any]:
    return [names] if names else []


def _write_remarked(r: Remarked, track: Track) -> list[Any]:
    tags = [[safe_text(tag) for tag in some] for some in (r.add, r.remove)]
    return [22, r.at, safe_text(r.text), *tags, r.keep, safe_text(r.by)]


_WRITERS: dict[type[Record], Callable[[Any, Track], list[Any]]] = {
    RunStarted: _write_run_started,
    StepStarted: lambda r, track: [1, r.step, r.attempt],
    StepFinished: _write_finished,
    StepFailed: lambda r, track: [3, r.step, r.attempt, write_fault(r.fault), r.retry_at, r.seconds],
    WaveFinished: _write_wave,
    Paused: _write_paused,
    Answered: lambda r, track: [6, r.pause, r.value, safe_text(r.by)],
    Noted: lambda r, track: [7, r.step, r.key, r.value],
    StateEdited: lambda r, track: [8, r.frame, write_ops(r.ops, r.frame, track), safe_text(r.by), r.over],
    GraphChanged: lambda r, track: [9, r.outline, r.remap, r.config, safe_text(r.by)],
    Commanded: lambda r, track: [10, r.number, *map(safe_text, (r.command, r.refused, r.by, r.why))],
    Resumed: lambda r, track: [11, r.driver, r.approve, r.config],
    RunEnded: lambda r, track: [12, str(r.status), write_fault(r.fault), r.node],
    FrameOpened: _write_frame,
    Forked: _write_forked,
    Reset: _write_reset,
    Reusing: lambda r, track: [18, *r],
    Migrated: lambda r, track: [19, r.frame, r.since, r.until, write_ops(r.ops, r.frame, track)],
    Spent: lambda r, track: [20, r.step, r.attempt, safe_text(r.model), *r[3:]],
    Described: lambda r, track: [21, r.facts],
    Remarked: _write_remarked,
    Confirmed: lambda r, track: [25, *map(safe_text, r)],
    MovedOn: _write_moved_on,
    OnceStarted: lambda r, track: [23, r.step, safe_text(r.key), r.attempt, r.repeated],
    OnceFailed: lambda r, track: [24, r.step, safe_text(r.key)],
    Steered: _write_steered,
}


def _read_run_started(w: list[Any], track: Track, codec: Codec) -> Record:
    next_ = read_targets(w[3], codec)
    track.saw_items("", next_)
    parent = tuple(w[7]) if w[7] else None
    return RunStarted(w[1], read_ops(w[2], "", track, codec), next_, w[4], w[5], w[6], parent)


def _read_finished(w: list[Any], track: Track, codec: Codec) -> Record:
    goto = None if w[3] is None else read_targets(w[3], codec)
    if w[5]:
        track.closed(w[1])
    return StepFinished(w[1], read_ops(w[2], frame_of(w[1]), track, codec), goto, *w[4:8])


def _read_failed(w: list[Any], track: Track, codec: Codec) -> Record:
    fault = read_fault(w[3])
    if fault is None:
        raise ValueError("a failure without a reason")
    return StepFailed(w[1], w[2], fault, w[4], w[5])


def _read_wave(w: list[Any], track: Track, codec: Codec) -> Record:
    next_ = read_targets(w[3], codec)
    track.saw_items(w[1], next_)
    steps = None if w[5] is None else tuple(w[5])
    return WaveFinished(w[1], read_ops(w[2], w[1], track, codec), next_, read_pairs(w[4]), steps)


def _read_moved_on(w: list[Any], track: Track, codec: Codec) -> Record:
    track.saw_items("", _ONE)
    return MovedOn(w[1], read_ops(w[2], "", track, codec), w[3], w[4])


def _read_frame(w: list[Any], track: Track, codec: Codec) -> Record:
    next_ = read_targets(w[4], codec)
    track.saw_items(w[1], next_)
    reduced = tuple(w[5]) if len(w) > 5 else ()
    return FrameOpened(w[1], tuple(w[2]), read_ops(w[3], w[1], track, codec), next_, reduced)


def _read_edited(w: list[Any], track: Track, codec: Codec) -> Record:
    over = tuple(w[4]) if len(w) > 4 else ()
    return StateEdited(w[1], read_ops(w[2], w[1], track, codec), w[3], over)


def _read_steered(w: list[Any], track: Track, codec: Codec) -> Record:
    items = tuple((name, read_item(item, codec)) for name, item in w[3])
    add = tuple(Target(node, key, read_item(item, codec)) for node, key, item in w[4])
    record = Steered(w[1], tuple(w[2]), items, add, *w[5:10])
    _count_steered(record, track)
    return record


def _read_forked(w: list[Any], track: Track, codec: Codec) -> Forked:
    run = decode_run(w[3], track, codec) if w[3] else None
    return Forked(w[1], w[2], w[3], run, *w[4:8], *map(tuple, w[8:9]))


def _read_reset(w: list[Any], track: Track, codec: Codec) -> Record:
    track.forget()
    return Reset(w[1], w[2], w[3], decode_run(w[3], track, codec), *w[4:6], *map(tuple, w[6:7]), *w[7:9])


def _read_reusing(w: list[Any], track: Track, codec: Codec) -> Record:
    remap = tuple((old, new) for old, new in w[6]) if len(w) > 6 else ()
    needs = tuple((key, seq) for key, seq in w[7]) if len(w) > 7 else ()
    return Reusing(w[1], w[2], w[3], w[4], None if w[5] is None else tuple(w[5]), remap, needs)


def _read_migrated(w: list[Any], track: Track, codec: Codec) -> Record:
    return Migrated(w[1], w[2], w[3], read_ops(w[4], w[1], track, codec))


_READERS: dict[int, Callable[[list[Any], Track, Codec], Record]] = {
    0: _read_run_started,
    1: lambda w, track, codec: StepStarted(w[1], w[2]),
    2: _read_finished,
    3: _read_failed,
    4: _read_wave,
    5: lambda w, track, codec: Paused(*w[1:10]),
    6: lambda w, track, codec: Answered(*w[1:4]),
    7: lambda w, track, codec: Noted(*w[1:4]),
    8: _read_edited,
    9: lambda w, track, codec: GraphChanged(w[1], tuple((old, new) for old, new in w[2]), *w[3:5]),
    10: lambda w, track, codec: Commanded(*w[1:6]),
    11: lambda w, track, codec: Resumed(*w[1:4]),
    12: lambda w, track, codec: RunEnded(w[1], read_fault(w[2]), w[3]),
    13: _read_frame,
    _FORKED: _read_forked,
    15: _read_moved_on,
    16: _read_steered,
    17: _read_reset,
    18: _read_reusing,
    19: _read_migrated,
    20: lambda w, track, codec: Spent(*w[1:8]),
    21: lambda w, track, codec: Described(w[1]),
    22: lambda w, track, codec: Remarked(w[1], w[2], tuple(w[3]), tuple(w[4]), *w[5:7]),
    23: lambda w, track, codec: OnceStarted(*w[1:5]),
    24: lambda w, track, codec: OnceFailed(*w[1:3]),
    25: lambda w, track, codec: Confirmed(*w[1:5]),
}
