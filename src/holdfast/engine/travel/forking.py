"""Beginning a run where another stood: by reference to that run's journal, not by copying it."""

from __future__ import annotations

import time
from typing import NamedTuple

from holdfast.data.codec import Codec
from holdfast.errors import CheckpointNotFound
from holdfast.journal.checkpoints import new_run_key
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.pruning import add_snapshot
from holdfast.journal.records import Forked
from holdfast.journal.run_state import at_checkpoint
from holdfast.journal.writer import Writer
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus

_DEEP = 16
"""A fork of a fork of … this often is given a snapshot of its own, so that reading it stays cheap."""


class Fork(NamedTuple):
    """A run that is about to be stored, and the run that it begins as."""

    writer: Writer
    base: Loaded


def begin_fork(
    journal: Journal, codec: Codec, parent: RunInfo, seq: int, run: str, *, driver: str = "", durable: bool = True
) -> Fork:
    """A new run that begins where `parent` stood at its entry `seq`; nothing is stored yet."""
    base = journal.load(parent, codec, seq)
    if base.seq != seq:
        raise CheckpointNotFound(f"run {parent.run!r} has no entry {seq}; its last is {base.seq}")
    now = time.time()
    status = RunStatus.RUNNING.value
    info = RunInfo(run, new_run_key(), parent.workflow, status, now, now, driver, parent.tags, parent=parent.key)
    writer = Writer.create(journal, info, codec, durable=durable, base=base)
    start = at_checkpoint(base.run)
    writer.record(Forked(parent.run, seq, b"", start, driver, b"", parent.key, base.chain))
    found = journal.store.marks(parent.run, seq + 1, 1)
    if found and found[0].seq == seq:
        writer.mark(found[0].mark)
    return Fork(writer, base)


async def store_fork(fork: Fork) -> None:
    """Store a fork, and see to it that it can be read whatever became of its parent meanwhile."""
    writer, base = fork
    await writer.flush_async()
    journal = writer.journal
    there = next(iter(journal.store.read(base.info.run, base.seq - 1, base.seq)), None)
    if base.depth >= _DEEP or there is None or there.chain != base.chain:
        loaded = Loaded(writer.info, writer.run, writer.track, writer.seq, writer.chain, writer.weight)
        add_snapshot(journal, writer.info.run, journal.make_snapshot(loaded, writer.codec))
