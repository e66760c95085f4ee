"""Repairing what a check found: nothing that is damaged is lost, and nothing is done twice."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.engine.owner import describe, has_owner
from holdfast.errors import HoldfastError, Remedy, RunConflict, RunNotFound, problem_of
from holdfast.integrity.check import Look, RunCheck, settled
from holdfast.integrity.report import FACTS, INBOX, NOTHING, SNAPSHOT, Progress, RunReport, Stretch
from holdfast.journal.checkpoint_ids import encode_mark, moved_mark, new_run_key
from holdfast.journal.copying import add_snapshot
from holdfast.journal.encoding import Track, decode_run
from holdfast.journal.journal import Journal, Loaded, genesis, link
from holdfast.journal.records import Fault, Remarked, RunEnded
from holdfast.journal.run_state import DONE
from holdfast.journal.sealing import is_sealed
from holdfast.journal.writer import Writer
from holdfast.state.codec import TolerantCodec
from holdfast.state.encryption import Seal
from holdfast.stores.base import PAGE_BYTES, PAGE_ENTRIES, Append, Entry, Message, RunInfo, Snapshot, Store
from holdfast.stores.files.frames import in_plain_words, sync, sync_folder, write_at
from holdfast.stores.files.run_folder import folder_name
from holdfast.stores.integrity import REPAIRED_AS, Mender, mending
from holdfast.values import RunStatus

# A new run with what is intact of a damaged one: the same records, chained anew under a key of its own.


_BY = "holdfast store fsck"


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
            mark = None if entry.mark is None else moved_mark(entry.mark, self._key, seq, at)
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


# Bytes that are put aside before they are replaced: never overwritten, readable by their owner only.


class Aside:
    """A folder that is made when something is first put there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: list[Path] = []

    def keep(self, name: str, data: bytes) -> None:
        """Write bytes to a new file whose name begins like `name`."""
        with in_plain_words(self.folder):
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


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about one run, in sentences. `new_run` has what was intact, if its journal was damaged.

    `refused` says why nothing could be done.
    """

    run: str
    done: tuple[str, ...] = ()
    new_run: str = ""
    refused: str = ""

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, new_run_id, done, refused."""
        facts = {"run_id": self.run, "new_run_id": self.new_run or None}
        return {**facts, "done": list(self.done), "refused": self.refused or None}


@dataclass(frozen=True, slots=True)
class StoreRepair:
    """What was done about a store: about its medium, and about each run that something was wrong with."""

    medium: tuple[str, ...] = ()
    runs: tuple[Repair, ...] = ()
    aside: tuple[str, ...] = ()
    """The files that hold what was replaced."""

    @property
    def did_nothing(self) -> bool:
        return not self.medium and not self.runs

    def as_json(self) -> dict[str, Any]:
        """Keys: medium, runs, aside."""
        runs = [repair.as_json() for repair in self.runs]
        return {"medium": list(self.medium), "runs": runs, "aside": list(self.aside)}


def repair_run(store: Store, run: str, *, seal: Seal | None = None, aside: Path | None = None) -> Repair:
    """Repair one run; raises what stands in the way: `RunNotFound`, `RunConflict` if it is driven.

    A damaged journal is left as it is, with the status `damaged`; a new run has what is intact of it and can be
    resumed. Damaged snapshots are written anew, and facts are made to agree with the journal; the bytes that were
    there before are in the folder `aside`, by default `lost+found` beside the store.
    """
    done = repair_store(store, [run], seal=seal, aside=aside)
    repair = done.runs[0] if done.runs else Repair(run)
    if repair.refused:
        raise RunConflict(repair.refused)
    return repair


def repair_store(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    seal: Seal | None = None,
    aside: Path | None = None,
    progress: Progress | None = None,
) -> StoreRepair:
    """Repair the medium and every run, or only the runs that are named. Done again, it does nothing."""
    journal = Journal(store, seal)
    with mending(store) as mender:
        kept = Aside(aside or mender.beside())
        medium = mender.mend(kept.keep) if runs is None else []
        there = {info.run for info in mender.runs().infos} if runs is None else set[str]()
        for run in runs or ():
            if mender.standing(run) is None:
                raise RunNotFound(f"no run {run!r} in {store.url}", remedies=Remedy("list_runs"))
        wanted = sorted(there) if runs is None else list(dict.fromkeys(runs))
        repairs = []
        for number, run in enumerate(wanted):
            if progress is not None:
                progress(number, len(wanted), run)
            repair = _Repairing(journal, mender, run, kept).repair()
            repairs += [repair] if repair is not None else []
    return StoreRepair(tuple(medium), tuple(repairs), tuple(map(str, kept.kept)))


class _Repairing:
    """One run."""

    def __init__(self, journal: Journal, mender: Mender, run: str, aside: Aside) -> None:
        self._journal, self._mender, self._run, self._aside = journal, mender, run, aside
        self._done: list[str] = []
        self._new_run = ""

    def repair(self) -> Repair | None:
        """What was done; `None` if there was nothing to do."""
        run = self._run
        try:
            look = settled(self._journal, self._mender, run)
            if look is None or look.report.is_fine or look.report.repaired_as:
                return None
            self._right_all(look)
        except HoldfastError as error:
            return Repair(run, tuple(self._done), self._new_run, problem_of(error))
        except Exception as error:  # What is in a damaged store must not keep other runs from being repaired.
            return Repair(run, tuple(self._done), self._new_run, f"{type(error).__name__}: {error}")
        done = tuple(dict.fromkeys(self._done))
        return Repair(run, done, self._new_run) if done else None

    def _right_all(self, look: Look) -> None:
        check, report, error = look
        info = check.info
        if has_owner(self._journal.store, info):
            raise RunConflict(
                f"run {info.run!r} is being executed by {describe(info.driver)}; pause it first"
            )
        if error is not None:
            raise error
        if check.sealed or (check.first_sealed and self._journal.seal is None):
            raise HoldfastError(f"run {info.run!r} is encrypted; set HOLDFAST_KEY to its key to repair it")
        if report.needs_new_run:
            self._rewrite(check, report)
            return
        for damage in report.damages:
            if damage.part == SNAPSHOT and damage.seq:
                self._renew_snapshot(check, damage.seq)
            elif damage.part == INBOX and damage.seq:
                self._void_message(damage.seq)
        if any(damage.part == FACTS for damage in report.damages):
            self._right_facts(check)

    def _rewrite(self, check: RunCheck, report: RunReport) -> None:
        info = check.righted().info if check.standing.problem else check.info
        if report.intact is not None:
            self._new_run = Rewriting(self._journal, self._mender, info, report).write()
        tags = (*info.tags, f"{REPAIRED_AS}{self._new_run or NOTHING}")
        damaged = RunStatus.DAMAGED.value
        facts = dataclasses.replace(info, status=damaged, driver="", queue="", due_at=None, tags=tags)
        try:
            self._put_facts(check, facts)
        except HoldfastError:
            if self._new_run:
                self._journal.store.delete(self._new_run)
                self._new_run = ""
            raise
        if self._new_run:
            self._done.append(f"run {self._new_run!r} has what is intact, and can be resumed")
        self._done.append("it stays as it is, with the status damaged")

    def _renew_snapshot(self, check: RunCheck, seq: int) -> None:
        """A snapshot is only a cache while the journal reaches back."""
        info, run = check.info, self._run
        for found in self._mender.snapshots(run):
            if found.number == seq:
                self._aside.keep(f"{run}.snapshot-{seq}", found.raw)
                self._mender.drop_snapshot(run, seq, found.raw)
        if seq > check.head:
            self._done.append(f"the snapshot at {seq} is put aside")
            return
        loaded = self._journal.load(info, check.codec, seq)
        add_snapshot(self._journal, run, self._journal.make_snapshot(loaded, check.codec))
        self._done.append(f"the snapshot at {seq} is written anew")

    def _right_facts(self, check: RunCheck) -> None:
        if check.best is None:
            return
        facts, unverified = check.righted()
        self._put_facts(check, facts)
        self._done.append("its facts agree with its journal again")
        if unverified:
            self._done.append(f"of its facts these could not be verified: {', '.join(unverified)}")

    def _put_facts(self, check: RunCheck, facts: RunInfo) -> None:
        """Replace the facts, if the run is still as it was checked; what was there is put aside before."""
        seen = check.standing
        if seen.raw and (seen.problem or facts.status != RunStatus.DAMAGED):
            self._aside.keep(f"{self._run}.facts.json", seen.raw)
        self._mender.put_facts(facts, max(check.head, seen.head), seen)

    def _void_message(self, number: int) -> None:
        there = [found for found in self._mender.messages(self._run) if found.number == number]
        for found in there:
            self._aside.keep(f"{self._run}.message-{number}", found.raw)
        self._mender.void_message(self._run, number)
        what = "is put aside" if there else "is lost; an empty one stands for it"
        self._done.append(f"message {number} {what}; the run will refuse it")
