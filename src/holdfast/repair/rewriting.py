"""A new run with what is intact of a damaged one: the same records, chained anew under a key of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator

from holdfast.data.codec import TolerantCodec
from holdfast.errors import HoldfastError
from holdfast.journal.bodies import is_sealed
from holdfast.journal.checkpoints import encode_mark, new_run_key, sealed_mark
from holdfast.journal.journal import Journal, Loaded, genesis, link
from holdfast.journal.records import Fault, Remarked, RunEnded
from holdfast.journal.run_state import DONE
from holdfast.journal.wire import Track
from holdfast.journal.wire_runs import decode_run
from holdfast.journal.writer import Writer
from holdfast.repair.report import RunReport, Stretch
from holdfast.stores.base import PAGE_BYTES, PAGE_ENTRIES, Append, Entry, Message, RunInfo, Snapshot
from holdfast.stores.mending import Mender
from holdfast.values import RunStatus

_BY = "holdfast fsck"


class Rewriting:
    """Carries the intact stretch of one run over to a new run of the same store."""

    def __init__(self, journal: Journal, mender: Mender, info: RunInfo, report: RunReport) -> None:
        assert report.intact is not None
        self._journal, self._mender, self._info, self._report = journal, mender, info, report
        self._stretch: Stretch = report.intact
        self._codec = TolerantCodec()
        self._new = _free_name(journal, info.run)
        self._key = new_run_key()
        self._old_bodies = journal.bodies(info)
        self._new_bodies = journal.bodies(dataclasses.replace(info, run=self._new, key=self._key))

    def write(self) -> str:
        """Write it; answer its id. Until it is complete, nobody takes it for a run to go on with."""
        unfinished = self._facts(RunStatus.DAMAGED)
        after = 0
        for page in _pages(self._rechained()):
            snapshots = self._beginning(page[0]) if after == 0 else ()
            facts = unfinished if after == 0 else None
            (conflict,) = self._journal.store.commit([Append(self._new, after, page, facts, snapshots)])
            if conflict is not None:
                raise conflict
            after = page[-1].seq
        self._end(unfinished)
        self._carry_messages()
        return self._new

    def _facts(self, status: RunStatus) -> RunInfo:
        """Those of the damaged run, but workers leave it to people."""
        return dataclasses.replace(
            self._info,
            run=self._new,
            key=self._key,
            status=status.value,
            updated_at=time.time(),
            driver="",
            queue="",
            due_at=None,
        )

    def _rechained(self) -> Iterator[Entry]:
        chain = genesis(self._new, self._key)
        for entry in self._mender.entries(self._info.run):
            if entry.seq < self._stretch.start:
                continue
            seq, at = entry.seq, entry.at
            mark = None if entry.mark is None else sealed_mark(entry.mark, self._key, seq, at)
            body = self._old_bodies.reseal_entry(entry, self._new_bodies, chain, mark)
            chain = link(chain, seq, at, mark, body)
            yield Entry(seq, at, chain, body, mark)
            if seq >= self._stretch.end:
                return

    def _beginning(self, first: Entry) -> tuple[Snapshot, ...]:
        """The snapshot that the new run begins with, if that is how the stretch begins."""
        if self._stretch.start == 0:
            return ()
        for found in self._mender.snapshots(self._info.run):
            if found.number == first.seq and isinstance(found.content, Snapshot):
                body = self._old_bodies.open_snapshot(found.content)
                track = Track()
                run = decode_run(body, track, self._codec)
                info, sealed = self._facts(RunStatus.DAMAGED), is_sealed(first.body)
                loaded = Loaded(info, run, track, first.seq, first.chain, 0, sealed)
                return (self._journal.make_snapshot(loaded, self._codec),)
        raise HoldfastError(f"the snapshot at {first.seq} of run {self._info.run!r} is gone")

    def _end(self, unfinished: RunInfo) -> None:
        loaded = self._journal.load(unfinished, self._codec)
        run, status = loaded.run, RunStatus(loaded.run.status)
        why = f"repaired from run {self._info.run!r}, {self._what()}"
        writer = Writer(self._journal, loaded, self._codec, durable=True)
        writer.record(Remarked(0, why, by=_BY))
        if status in (RunStatus.RUNNING, RunStatus.QUEUED):
            status = RunStatus.INTERRUPTED
            writer.record(RunEnded(status, Fault("Repaired", why)))
        if status != RunStatus.COMPLETED:
            upcoming = [step.node for step in run.active() if step.status != DONE]
            writer.mark(encode_mark(run.root.waves, [], list(dict.fromkeys(upcoming)), ""))
        writer.set_info(dataclasses.replace(self._facts(status), workflow=run.workflow))
        writer.flush()

    def _what(self) -> str:
        intact, head = self._stretch, self._report.head
        what = f"up to entry {intact.end} of {head}" if intact.end < head else f"all {head} entries"
        return f"{what}, from the snapshot at {intact.start} on" if intact.start > 1 else what

    def _carry_messages(self) -> None:
        for number, found in enumerate(self._mender.messages(self._info.run), 1):
            body = b""
            if isinstance(found.content, Message):
                with contextlib.suppress(HoldfastError):
                    body = self._old_bodies.reseal_message(found.content, self._new_bodies, number)
            self._journal.store.post(self._new, body, number)


def _free_name(journal: Journal, run: str) -> str:
    for number in itertools.count(1):
        name = f"{run}-repaired" if number == 1 else f"{run}-repaired-{number}"
        if not journal.store.runs(run=name):
            return name
    raise AssertionError


def _pages(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    page: list[Entry] = []
    size = 0
    for entry in entries:
        page.append(entry)
        size += len(entry.body)
        if len(page) >= PAGE_ENTRIES or size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page
