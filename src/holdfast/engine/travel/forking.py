"""Beginning a run where another stood: by reference to that run's journal, not by copying it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast import clock
from holdfast.data.codec import Codec
from holdfast.engine.travel.editing import Edit, Hands, checkpoint_of, edited
from holdfast.engine.travel.moments import Moment
from holdfast.errors import CheckpointNotFound, StateInvalid
from holdfast.journal.checkpoints import new_run_key
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.provenance import set_back
from holdfast.journal.pruning import add_snapshot
from holdfast.journal.records import Forked, RunEnded
from holdfast.journal.run_state import EVERY_STEP, RunState, at_checkpoint
from holdfast.journal.writer import Writer
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus

_DEEP = 16
"""A fork of a fork of … this often is given a snapshot of its own, so that reading it stays cheap."""


Forgetting = Callable[[RunState], tuple[str, ...]]
"""Names steps of a run."""


def forget_all(run: RunState) -> tuple[str, ...]:
    """Every step: what they noted was meant for another state."""
    return EVERY_STEP


class Fork(NamedTuple):
    """A run that is about to be stored, and the run that it begins as."""

    writer: Writer
    base: Loaded


def begin_fork(
    journal: Journal,
    codec: Codec,
    parent: RunInfo,
    seq: int | None,
    run: str,
    *,
    driver: str = "",
    durable: bool = True,
    forget: Forgetting | None = None,
) -> Fork:
    """A new run that begins where `parent` stood at its entry `seq`, or stands now; nothing is stored yet.

    `forget` says which steps do not remember what they noted for their next attempts.
    """
    base = journal.load(parent, codec, seq)
    if seq is not None and base.seq != seq:
        raise CheckpointNotFound(f"run {parent.run!r} has no entry {seq}; its last is {base.seq}")
    now = clock.time()
    status = RunStatus.RUNNING.value
    info = RunInfo(
        run,
        new_run_key(),
        parent.workflow,
        status,
        now,
        now,
        driver,
        parent.tags,
        parent=parent.key,
        origin=set_back(parent.origin),
    )
    writer = Writer.create(journal, info, codec, durable=durable, base=base)
    start = at_checkpoint(base.run)
    names = forget(start) if forget is not None else ()
    writer.record(Forked(parent.run, base.seq, b"", start, driver, b"", parent.key, base.chain, names))
    found = journal.store.marks(parent.run, base.seq + 1, 1)
    writer.mark(found[0].mark if found and found[0].seq == base.seq else checkpoint_of(writer))
    return Fork(writer, base)


async def store_fork(fork: Fork) -> None:
    """Store a fork, and see to it that it can be read whatever became of its parent meanwhile."""
    await fork.writer.flush_async()
    _make_safe(fork)


def _make_safe(fork: Fork) -> None:
    """Give a fork that was just stored a snapshot, if its parent is gone by now, or far away.

    Whoever prunes or deletes the parent later finds the fork, and does the same.
    """
    writer, base = fork
    journal = writer.journal
    there = next(iter(journal.store.read(base.info.run, base.seq - 1, base.seq)), None)
    if base.depth >= _DEEP or there is None or there.chain != base.chain:
        weight, sealed = writer.weight, writer.sealed
        loaded = Loaded(writer.info, writer.run, writer.track, writer.seq, writer.chain, weight, sealed)
        add_snapshot(journal, writer.info.run, journal.make_snapshot(loaded, writer.codec))


def fork_run(
    hands: Hands,
    moment: Moment,
    run: str,
    edit: Edit | None = None,
    *,
    tags: Sequence[str] | None = None,
) -> str:
    """Store a new run, called `run`, that begins at a moment of another, and is not driven; answer its id."""
    edit = edit or Edit()
    forget = forget_all if edit.update or edit.as_node is not None else None
    fork = begin_fork(
        hands.journal, hands.codec, moment.info, moment.seq, run, durable=hands.durable, forget=forget
    )
    writer = fork.writer
    place = edited(writer, hands, edit, moment.info.run)
    if place is not None:
        writer.mark(place)
    writer.record(RunEnded(RunStatus.INTERRUPTED))
    facts = dataclasses.replace(writer.info, status=RunStatus.INTERRUPTED.value, updated_at=clock.time())
    writer.set_info(facts if tags is None else dataclasses.replace(facts, tags=_checked(tags)))
    writer.flush()
    _make_safe(fork)
    return run


def _checked(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not all(isinstance(tag, str) and tag and tag.isprintable() for tag in tags):
        raise StateInvalid(f"tags are a list of printable texts, not {tags!r:.80}")
    return tuple(dict.fromkeys(tags))
