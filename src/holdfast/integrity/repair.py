"""The repair of what a check found: the damaged bytes are kept aside, and a second repair changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.engine.owner import describe, has_owner
from holdfast.engine.runner import tags_of
from holdfast.errors import CorruptJournal, HoldfastError, RunConflict, StoreError
from holdfast.integrity.check import (
    WAITING_FOR_WORKERS,
    Checked,
    RunCheck,
    check_run,
    given_tags,
    wanted_runs,
)
from holdfast.integrity.report import UNREADABLE, Part, Progress, Repair, RunReport, StoreRepair, Stretch
from holdfast.journal.checkpoint_ids import encode_mark, moved_mark, new_run_key
from holdfast.journal.copying import add_snapshot, pages
from holdfast.journal.encoding import Track, decode_run
from holdfast.journal.journal import Journal, Loaded, genesis, link
from holdfast.journal.records import Fault, RunAnnotated, RunEnded
from holdfast.journal.run_state import DONE
from holdfast.journal.sealing import Seal, is_sealed
from holdfast.journal.writer import Writer
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import Append, Entry, Message, RunInfo, Snapshot, Store, sync_folder
from holdfast.stores.files.disk import explained, sync, write_at
from holdfast.stores.files.run_folder import folder_name
from holdfast.stores.inspection import REPAIRED_AS, Inspector, inspecting
from holdfast.values import RunStatus

_BY = "holdfast store fsck"


class NewRun:
    """A new run with the intact stretch of a damaged one: the same records, chained again under a key of its own."""

    def __init__(self, journal: Journal, inspector: Inspector, info: RunInfo, report: RunReport) -> None:
        assert report.intact is not None
        self._journal, self._inspector, self._info, self._report = journal, inspector, info, report
        self._stretch: Stretch = report.intact
        self._codec = TolerantCodec()
        numbered = (f"{info.run}-repaired-{number}" for number in itertools.count(2))
        names = itertools.chain([f"{info.run}-repaired"], numbered)
        self._new = next(name for name in names if not journal.store.runs(run=name))
        self._key = new_run_key()
        self._old_bodies = journal.bodies(info)
        self._new_bodies = journal.bodies(dataclasses.replace(info, run=self._new, key=self._key))

    def write(self) -> str:
        """Write the run; return its id. Until it is complete it has the status damaged, so that nobody resumes it."""
        unfinished = self._facts(RunStatus.DAMAGED)
        after = 0
        for page, _ in pages(self._rechained()):
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
        """Return those of the damaged run, without its queue: people decide what becomes of it."""
        return dataclasses.replace(
            self._info,
            run=self._new,
            key=self._key,
            status=status.value,
            updated_at=time.time(),
            owner="",
            queue="",
            due_at=None,
        )

    def _rechained(self) -> Iterator[Entry]:
        chain = genesis(self._new, self._key)
        for entry in self._inspector.entries(self._info.run):
            if entry.seq < self._stretch.start:
                continue
            seq, at = entry.seq, entry.at
            mark = None if entry.mark is None else moved_mark(entry.mark, self._key, seq, at)
            body = self._old_bodies.reseal_entry(entry, self._new_bodies, chain, mark)
            chain = link(chain, seq, at, mark, body)
            yield Entry(seq, at, chain, body, mark)
            if seq >= self._stretch.end:
                return

    def _beginning(self, first: Entry) -> tuple[Snapshot, ...]:
        """Return the snapshot that the new run begins with, if the stretch begins with one."""
        if self._stretch.start == 0:
            return ()
        for found in self._inspector.snapshots(self._info.run):
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
        intact, head = self._stretch, self._report.head
        what = f"up to entry {intact.end} of {head}" if intact.end < head else f"all {head} entries"
        what += f", from the snapshot at {intact.start} on" if intact.start > 1 else ""
        why = f"repaired from run {self._info.run!r}, {what}"
        writer = Writer(self._journal, loaded, self._codec, durable=True)
        writer.record(RunAnnotated(0, why, by=_BY))
        if status in (RunStatus.RUNNING, RunStatus.QUEUED):
            status = RunStatus.INTERRUPTED
            writer.record(RunEnded(status, Fault("Repaired", why)))
        if status != RunStatus.COMPLETED:
            upcoming = [step.node for step in run.active() if step.status != DONE]
            writer.mark(encode_mark(run.root.waves, [], list(dict.fromkeys(upcoming)), ""))
        writer.set_info(dataclasses.replace(self._facts(status), workflow=run.workflow))
        writer.flush()

    def _carry_messages(self) -> None:
        for number, found in enumerate(self._inspector.messages(self._info.run), 1):
            body = b""
            if isinstance(found.content, Message):
                with contextlib.suppress(HoldfastError):
                    body = self._old_bodies.reseal_message(found.content, self._new_bodies, number)
            self._journal.store.post(self._new, body, number)


def corrected(check: RunCheck) -> tuple[RunInfo, tuple[str, ...]]:
    """Return the facts of a run as its journal has them, and the names of those that could not be verified.

    Damaged facts are kept only where nothing else is known.
    """
    best, info, first = check.best, check.info, check.first
    if best is None or check.sealed:
        return info, ()
    run = best.run
    facts = dataclasses.replace(
        info,
        workflow=run.workflow,
        status=info.status if {info.status, str(run.status)} <= WAITING_FOR_WORKERS else str(run.status),
        owner=run.owner if run.status == RunStatus.RUNNING else "",
        parent=check.parent_of(first) if first is not None and first.seq == 1 else info.parent,
    )
    if not check.seen.problem:
        return dataclasses.replace(facts, tags=tuple(dict.fromkeys((*info.tags, *given_tags(run))))), ()
    begun: tuple[str, ...] | None = None
    with contextlib.suppress(HoldfastError):
        config = check.codec.decode(run.config) if run.config else {}
        begun = tags_of(config) if isinstance(config, Mapping) else ()
    # All that ever happened to the run is known only if its journal reaches back to its beginning.
    is_known = best.start == 0 and not facts.parent and begun is not None
    kept = () if is_known else (tag for tag in info.tags if tag.isprintable())
    tags = [tag for tag in (*(begun or ()), *kept) if tag not in check.removed]
    facts = dataclasses.replace(
        facts,
        created_at=run.started_at,
        updated_at=run.updated_at,
        tags=tuple(dict.fromkeys((*tags, *given_tags(run)))),
    )
    others = ("queue", "priority", "due time", "whether the end of its journal is there")
    return facts, others if is_known else ("tags", *others)


class Aside:
    """A folder for bytes before they are replaced: never overwritten, readable by their owner only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: list[Path] = []

    def keep(self, name: str, data: bytes) -> None:
        """Write bytes to a new file named `name`, with a number after it if that file exists."""
        with explained(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for number in itertools.count(1):
                path = self.folder / (folder_name(name) if number == 1 else f"{folder_name(name)}.{number}")
                try:
                    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                except FileExistsError:
                    continue
                break
            try:
                write_at(fd, data, 0)
                sync(fd)
            finally:
                os.close(fd)
            sync_folder(self.folder)
        self.kept.append(path)


def repair_run(store: Store, run: str, *, seal: Seal | None = None, aside: Path | None = None) -> Repair:
    """Repair one run; raise `RunConflict` if it is being executed, `CorruptJournal` if nothing of it can be read.

    A damaged journal is left as it is, with the status `damaged`; a new run has what is intact of it and can be
    resumed. Damaged snapshots are written again, and facts are made to agree with the journal; the old bytes are
    in the folder `aside`, by default `lost+found` beside the store.
    """
    done = repair_store(store, [run], seal=seal, aside=aside)
    repair = done.runs[0] if done.runs else Repair(run)
    if repair.error is not None:
        raise repair.error
    return repair


def repair_store(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    seal: Seal | None = None,
    aside: Path | None = None,
    progress: Progress | None = None,
) -> StoreRepair:
    """Repair the medium and every run, or only the runs that are named. A second call does nothing."""
    journal = Journal(store, seal)
    with inspecting(store) as inspector:
        kept = Aside(aside or inspector.lost_and_found())
        medium = inspector.repair(kept.keep) if runs is None else []
        wanted = wanted_runs(inspector.runs().infos, runs, store)
        repairs = []
        for number, info in enumerate(wanted):
            if progress is not None:
                progress(number, len(wanted), info.run)
            repair = _RunRepair(journal, inspector, info.run, kept).repair()
            repairs += [repair] if repair is not None else []
    return StoreRepair(tuple(medium), tuple(repairs), tuple(map(str, kept.kept)))


class _RunRepair:
    """The repair of one run."""

    def __init__(self, journal: Journal, inspector: Inspector, run: str, aside: Aside) -> None:
        self._journal, self._inspector, self._run, self._aside = journal, inspector, run, aside
        self._done: list[str] = []
        self._new_run: str | None = None

    def repair(self) -> Repair | None:
        """Repair the run; return what was done, `None` if there was nothing to do."""
        refused: HoldfastError | None = None
        try:
            checked = check_run(self._journal, self._inspector, self._run)
            if checked is None or checked.report.is_fine or checked.report.repaired_as:
                return None
            self._repair(checked)
        except HoldfastError as error:
            refused = error
        except Exception as error:  # What is in a damaged store must not keep other runs from being repaired.
            refused = StoreError(f"{type(error).__name__}: {error}")
        done = tuple(dict.fromkeys(self._done))
        return Repair(self._run, done, self._new_run, refused) if done or refused else None

    def _repair(self, checked: Checked) -> None:
        check, report, error = checked
        info = check.info
        if has_owner(self._journal.store, info):
            raise RunConflict(f"run {info.run!r} is being executed by {describe(info.owner)}; pause it first")
        if error is not None:
            raise error
        if check.sealed or (check.first_sealed and self._journal.seal is None):
            raise RunConflict(f"run {info.run!r} is encrypted; set HOLDFAST_KEY to its key to repair it")
        if report.needs_new_run:
            self._write_new_run(check, report)
            return
        for damage in report.damages:
            if damage.part == Part.SNAPSHOT and damage.seq:
                self._renew_snapshot(check, damage.seq)
            elif damage.part == Part.INBOX and damage.seq:
                self._blank_message(damage.seq)
        if any(damage.part == Part.FACTS for damage in report.damages):
            self._correct_facts(check)

    def _write_new_run(self, check: RunCheck, report: RunReport) -> None:
        info = corrected(check)[0] if check.seen.problem else check.info
        if report.intact is not None:
            self._new_run = NewRun(self._journal, self._inspector, info, report).write()
        elif info.status == RunStatus.DAMAGED:
            raise CorruptJournal(UNREADABLE, run=info.run)
        tags = (*info.tags, f"{REPAIRED_AS}{self._new_run}") if self._new_run else info.tags
        damaged = RunStatus.DAMAGED.value
        facts = dataclasses.replace(info, status=damaged, owner="", queue="", due_at=None, tags=tags)
        try:
            self._put_facts(check, facts)
        except HoldfastError:
            if self._new_run:
                self._journal.store.delete(self._new_run)
                self._new_run = None
            raise
        if self._new_run:
            self._done.append(f"run {self._new_run!r} has what is intact, and can be resumed")
        self._done.append("it stays as it is, with the status damaged")
        if report.intact is None:
            raise CorruptJournal(UNREADABLE, run=info.run)

    def _renew_snapshot(self, check: RunCheck, seq: int) -> None:
        """Rewrite a snapshot from the journal; put the damaged one aside."""
        info, run = check.info, self._run
        for found in self._inspector.snapshots(run):
            if found.number == seq:
                self._aside.keep(f"{run}.snapshot-{seq}", found.raw)
                self._inspector.drop_snapshot(run, seq, found.raw)
        if seq > check.head:
            self._done.append(f"the snapshot at {seq} is put aside")
            return
        loaded = self._journal.load(info, check.codec, seq)
        add_snapshot(self._journal, run, self._journal.make_snapshot(loaded, check.codec))
        self._done.append(f"the snapshot at {seq} is written again")

    def _correct_facts(self, check: RunCheck) -> None:
        if check.best is None:
            return
        facts, unverified = corrected(check)
        self._put_facts(check, facts)
        self._done.append("its facts agree with its journal again")
        if unverified:
            self._done.append(f"of its facts these could not be verified: {', '.join(unverified)}")

    def _put_facts(self, check: RunCheck, facts: RunInfo) -> None:
        """Replace the facts, if the run is still as it was checked; put the old ones aside before."""
        seen = check.seen
        if seen.raw and (seen.problem or facts.status != RunStatus.DAMAGED):
            self._aside.keep(f"{self._run}.facts.json", seen.raw)
        self._inspector.put_facts(facts, max(check.head, seen.head), seen)

    def _blank_message(self, number: int) -> None:
        there = [found for found in self._inspector.messages(self._run) if found.number == number]
        for found in there:
            self._aside.keep(f"{self._run}.message-{number}", found.raw)
        self._inspector.blank_message(self._run, number)
        what = "is put aside" if there else "is lost; an empty one replaces it"
        self._done.append(f"message {number} {what}; the run will refuse it")
