"""The integrity check of a run: its chain, its fold, its snapshots, checkpoints, facts and inbox; and of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from holdfast import clock
from holdfast.engine.commands.inbox import UNREADABLE, open_message
from holdfast.errors import CodecError, CorruptJournal, HoldfastError, Remedy, RunNotFound, problem_of
from holdfast.integrity.report import Damage, Part, Progress, RunReport, StoreReport, Stretch
from holdfast.journal.checkpoint_ids import Checkpoint, decode_checkpoint
from holdfast.journal.encoding import Track, decode_run
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal, break_at, genesis, is_whole, misplaced
from holdfast.journal.records import RunAnnotated
from holdfast.journal.run_state import Annotation, Frame, RunState
from holdfast.journal.sealing import CHAIN_BYTES, Seal, has_sealed, is_sealed
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.stores.base import Entry, Message, RunInfo, Snapshot, Store, StoredCheckpoint
from holdfast.stores.inspection import Found, Inspector, Observed, changed_meanwhile, inspecting, repaired_as
from holdfast.values import RunStatus

WAITING_FOR_WORKERS = {RunStatus.QUEUED.value, RunStatus.INTERRUPTED.value}
"""Statuses that differ without damage: a run that moves between stores is queued by its facts alone."""

_SET_BY_THE_LAST_ENTRY = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.PAUSED)
"""Statuses that the facts have only once the journal has them."""

_MOST_MISSING = 100
"""The messages in a row that are reported, and replaced, at once."""

_UNREADABLE = (HoldfastError, OSError, ValueError)
_TRIES, _MOST_LOOKS = 6, 3


class _Damaged(Exception):
    """An entry that cannot be folded."""


@dataclass
class Fold:
    """A folded stretch of a journal."""

    run: RunState
    track: Track
    start: int
    end: int
    last_good: Checkpoint | None = None


@dataclass
class RunCheck:
    """The check of one run, past every damage."""

    journal: Journal
    inspector: Inspector
    seen: Observed
    codec: TolerantCodec = field(default_factory=TolerantCodec)
    damages: list[Damage] = field(default_factory=list)
    sealed: bool = False
    """Whether something of it is sealed with an unknown key."""
    opened: bool = False
    """Whether something of it was opened with a known key."""
    entries: int = 0
    head: int = 0
    first: Entry | None = None
    first_sealed: int = 0
    """The first entry that is encrypted; 0 if none is. All that follow have to be."""
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    """The snapshots that can be read."""
    beside: dict[int, Entry] = field(default_factory=dict)
    """The entries that have snapshots, with only the beginning of their bodies."""
    marks: list[int] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    """The tags that were ever removed from the run."""
    best: Fold | None = None
    """The stretch that reaches furthest."""

    @property
    def info(self) -> RunInfo:
        return self.seen.info

    def report(self) -> RunReport:
        """Check everything; return what was found."""
        info, run = self.info, self.info.run
        snapshots = self.inspector.snapshots(run)
        self.snapshots = {
            each.number: each.content for each in snapshots if isinstance(each.content, Snapshot)
        }
        with suppress(*_UNREADABLE):  # It is reported when the entries are read.
            entries = self.inspector.entries(run)
            self.first_sealed = next((entry.seq for entry in entries if is_sealed(entry.body)), 0)
        self._walk()
        self._check_end()
        self._check_snapshots(snapshots)
        if not self.journal_is_damaged:
            self._check_reading()
        self._check_facts()
        messages = self._check_inbox()
        best = self.best
        missing = [damage.seq or 0 for damage in self.damages if damage.part == Part.JOURNAL]
        return RunReport(
            run=run,
            workflow=info.workflow,
            status=info.status,
            damages=tuple(self.damages),
            entries=self.entries,
            head=max([self.head, self.seen.head, *missing]),
            checkpoints=len(self.marks),
            snapshots=len(snapshots),
            messages=messages,
            intact=Stretch(best.start, best.end) if best else None,
            last_good=best.last_good if best else None,
            sealed=self.sealed,
            repaired_as=repaired_as(info) or None,
        )

    @property
    def journal_is_damaged(self) -> bool:
        return any(damage.part == Part.JOURNAL for damage in self.damages)

    def _add(self, part: Part, text: str, seq: int | None = None) -> None:
        self.damages.append(Damage(part, text, seq))

    def _walk(self) -> None:
        """Fold entry after entry; after a damaged one continue from the next snapshot."""
        fold: Fold | None = None
        before: Entry | None = None
        for entry in self._entries():
            self.entries, self.head, self.first = self.entries + 1, entry.seq, self.first or entry
            if entry.mark is not None:
                self.marks.append(entry.seq)
            if entry.seq in self.snapshots:
                self.beside[entry.seq] = entry._replace(body=entry.body[:1])
            try:
                self._check_place(before, entry)
                fold = self._first_fold(entry) if before is None else self._folded(fold, entry)
            except _Damaged as error:
                self._add(Part.JOURNAL, problem_of(error), entry.seq)
                fold = None
            # Readers of a journal that is not pruned begin with its first entry: no snapshot stands for that one.
            before, fold = entry, fold or (self._from_snapshot(entry) if entry.seq > 1 else None)
            if fold is not None:
                self._compare_beside(fold, entry)
        if before is None and not self.journal_is_damaged:
            self._add(Part.JOURNAL, "it has no entries", 1)
        elif self.best is None and not self.journal_is_damaged:
            self._add(Part.JOURNAL, "none of its snapshots can be read, and it was pruned", self.head)

    def _entries(self) -> Iterator[Entry]:
        try:
            yield from self.inspector.entries(self.info.run)
        except _UNREADABLE as error:
            self.head += 1
            text = f"entry {self.head} and what follows cannot be read: {problem_of(error)}"
            self._add(Part.JOURNAL, text, self.head)

    def _check_place(self, before: Entry | None, entry: Entry) -> None:
        """Raise `_Damaged` unless an entry follows the one before it."""
        broken = ""
        if before is not None and entry.seq != before.seq + 1:
            broken = f"entry {before.seq + 1} is missing"
        elif before is not None:
            broken = break_at(before.chain, is_sealed(before.body), entry)
        elif entry.seq == 1 and break_at(genesis(self.info.run, self.info.key), False, entry):
            broken = "entry 1 is damaged, or the run's id or key is (its checksum does not match)"
        elif entry.seq > 1 and is_sealed(entry.body):
            # What a sealed entry followed is in its body, so that the first of a pruned run can be checked, too.
            broken = break_at(entry.body[1 : 1 + CHAIN_BYTES], True, entry)
        if broken:
            raise _Damaged(broken)

    def _first_fold(self, entry: Entry) -> Fold | None:
        """Return the fold at the first entry that there is."""
        if entry.seq == 1:
            try:
                return self._folded(Fold(RunState(), Track(), 0, 0), entry)
            except _Damaged:
                based = self._from_snapshot(entry)
                with suppress(HoldfastError):  # A fork that cannot be read through its parent.
                    if based is not None and self.journal.fork_of(self.info, entry, self.codec) is not None:
                        return based
                raise
        based = self._from_snapshot(entry)
        if based is not None:
            return based
        what = f"the snapshot at {entry.seq}, before which it was pruned, is"
        snapshot, sealed = self.snapshots.get(entry.seq), self.snapshots.get(self.first_sealed)
        if snapshot is None or not self.first_sealed or has_sealed(snapshot):
            raise _Damaged(f"{what} missing or damaged")
        if sealed is None or not has_sealed(sealed):
            raise _Damaged(f"{what} not encrypted, and entry {self.first_sealed} is")
        return None  # A run that was pruned in the clear continues from its first sealed snapshot.

    def _from_snapshot(self, entry: Entry) -> Fold | None:
        """Return the fold at an entry by its snapshot, if that is whole."""
        snapshot, track, run = self.snapshots.get(entry.seq), Track(), RunState()
        if snapshot is None or misplaced(snapshot, entry) or not is_whole(snapshot):
            return None
        if self.first_sealed and not has_sealed(snapshot):
            return None
        try:
            run = self._decoded(snapshot, track)
        except CodecError:
            if self.journal.seal is not None:
                return None
            self.sealed = True
        except HoldfastError:
            return None
        return Fold(run, track, entry.seq, entry.seq)

    def _decoded(self, snapshot: Snapshot, track: Track) -> RunState:
        return decode_run(self.journal.bodies(self.info).open_snapshot(snapshot), track, self.codec)

    def _folded(self, fold: Fold | None, entry: Entry) -> Fold | None:
        """Return the fold with one entry more; raise `_Damaged` if that cannot be read."""
        if fold is None:
            return None
        if not self._is_unreadable(entry):
            try:
                for record in self.journal.records(self.info, entry, fold.track, self.codec):
                    apply(fold.run, record, entry.at)
                    if isinstance(record, RunAnnotated) and not record.at:
                        self.removed.update(record.remove)
            except HoldfastError as error:
                raise _Damaged(f"entry {entry.seq} cannot be read: {problem_of(error)}") from None
            except Exception as error:
                text = f"entry {entry.seq} does not follow from what came before ({error!r})"
                raise _Damaged(text) from None
            if entry.mark is not None:
                fold.run.saved_seq = entry.seq
        fold.end = entry.seq
        return fold

    def _is_unreadable(self, entry: Entry) -> bool:
        """Return whether a body is sealed with an unknown key, so that only its checksum can be verified."""
        if self.sealed:
            return True
        try:
            self.journal.bodies(self.info).open_entry(entry)
            self.opened = self.opened or is_sealed(entry.body)
        except CodecError:
            self.sealed = True
            if self.opened:
                text = f"entry {entry.seq} is sealed with another key, which is not here"
                self._add(Part.JOURNAL, text, entry.seq)
        except CorruptJournal as error:
            raise _Damaged(_alone(error)) from None
        return self.sealed

    def _compare_beside(self, fold: Fold, entry: Entry) -> None:
        """Compare the checkpoint and the snapshot of an entry with the fold of the journal up to it."""
        if self.best is None or fold.end >= self.best.end:
            self.best = fold
        if entry.mark is not None:
            self._check_mark(fold, entry)
        snapshot = self.snapshots.get(entry.seq)
        if snapshot is None or fold.start == entry.seq or self.sealed:
            return
        if misplaced(snapshot, entry) or not is_whole(snapshot):
            return  # That is reported with the snapshots.
        try:
            run = self._decoded(snapshot, Track())
            what = difference(run, fold.run, self.codec)
            what = what or ("" if run.updated_at == snapshot.at else "time")
        except HoldfastError as error:
            what = problem_of(error)
        if what:
            text = f"the snapshot at {entry.seq} is not what the journal adds up to ({what})"
            self._add(Part.SNAPSHOT, text, entry.seq)

    def _check_mark(self, fold: Fold, entry: Entry) -> None:
        try:
            found = decode_checkpoint(self.info.key, StoredCheckpoint.of(entry), self.info.run)
        except HoldfastError as error:
            self._add(Part.CHECKPOINT, problem_of(error), entry.seq)
            return
        fold.last_good = found
        frame = fold.run.frames.get(found.frame)
        if frame is not None and not self.sealed and found.wave != frame.waves:
            text = f"the checkpoint at {entry.seq} says wave {found.wave}, the journal {frame.waves}"
            self._add(Part.CHECKPOINT, text, entry.seq)

    def _check_end(self) -> None:
        """Report a journal that ends before its facts were written: it has lost its end."""
        best, known, status = self.best, self.seen.head, self.info.status
        if self.journal_is_damaged or best is None:
            return
        text = ""
        if self.head < known:
            several = known > self.head + 1
            which = f"entries {self.head + 1} to {known} are" if several else f"entry {known} is"
            text = f"{which} missing at its end: its facts are newer"
        elif known or self.sealed or self.seen.problem:
            return
        elif best.run.status == RunStatus.RUNNING and status in _SET_BY_THE_LAST_ENTRY:
            text = f"its facts say that it is {status}: the entry that says so is missing at its end"
        if text:
            self._add(Part.JOURNAL, text, self.head + 1)

    def _check_snapshots(self, snapshots: list[Found]) -> None:
        for number, _, snapshot, problem in snapshots:
            entry, what = self.beside.get(number), f"the snapshot at {number}"
            if problem or not isinstance(snapshot, Snapshot):
                wrong = f"{what} cannot be read: {problem}"
            elif not is_whole(snapshot):
                wrong = f"{what} is damaged (its checksum does not match)"
            elif entry is None or entry.chain != snapshot.chain:
                wrong = f"{what} belongs to no entry of the journal"
            else:
                wrong = misplaced(snapshot, entry)
            if wrong:
                self._add(Part.SNAPSHOT, wrong, number)

    def _check_reading(self) -> None:
        """Compare what the store itself reads with what was found in it."""
        best, run = self.best, self.info.run
        if best is None:
            return
        for problem in self.inspector.reading_problems(run):
            self._add(Part.STORE, problem)
        try:
            if not self.sealed:
                loaded = self.journal.load(self.info, self.codec)
                if loaded.seq != best.end:
                    loaded = self.journal.load(self.info, self.codec, best.end)
                if what := difference(loaded.run, best.run, self.codec):
                    text = f"it is read as another run than its journal tells ({what})"
                    self._add(Part.STORE, text, best.end)
            listed = [each.seq for each in self.journal.store.checkpoints(run, best.end + 1)]
            if listed != [seq for seq in reversed(self.marks) if seq <= best.end]:
                self._add(Part.STORE, "its checkpoints are not listed as they are stored")
        except HoldfastError as error:
            self._add(Part.STORE, f"the store cannot read it: {error}")

    def _check_facts(self) -> None:
        best, info = self.best, self.info
        wrong = self.inspector.facts_problems(info)
        if not (best is None or self.journal_is_damaged or self.sealed or info.status == RunStatus.DAMAGED):
            run = best.run
            if info.workflow != run.workflow:
                wrong.append(f"its facts say workflow {info.workflow!r}, its journal {run.workflow!r}")
            if info.status != run.status and not {info.status, str(run.status)} <= WAITING_FOR_WORKERS:
                wrong.append(f"its facts say that it is {info.status}, its journal {run.status}")
            elif info.status == RunStatus.RUNNING and info.owner != run.owner:
                wrong.append("its facts name another owner than its journal")
            if self.first is not None and self.first.seq == 1 and info.parent != self.parent_of(self.first):
                wrong.append("its facts name another run that it was forked from than its journal")
            if tags := [tag for tag in given_tags(run) if tag not in info.tags]:
                wrong.append(f"its facts lack tags that its journal has: {', '.join(tags)}")
        self.damages += [Damage(Part.FACTS, text) for text in wrong]

    def parent_of(self, first: Entry) -> bytes:
        """Return the key of the run that this one is read through, by its first entry."""
        fork = self.journal.fork_of(replace(self.info, parent=b"?"), first, self.codec)
        return b"" if fork is None else fork.key

    def _check_inbox(self) -> int:
        found = self.inspector.messages(self.info.run)
        seen = self.best.run.inbox_seen if self.best is not None and not self.sealed else 0
        expected = 1
        for number, _, message, problem in found:
            for missing in range(expected, min(number, expected + _MOST_MISSING)):
                self._add(Part.INBOX, f"message {missing} is missing", missing)
            expected = number + 1
            if problem or not isinstance(message, Message):
                self._add(Part.INBOX, f"message {number} cannot be read: {problem}", number)
            elif message.body and (wrong := self._problem_of(message, is_seen=number <= seen)):
                self._add(Part.INBOX, f"{wrong}; the run will refuse it", number)
        return len(found)

    def _problem_of(self, message: Message, *, is_seen: bool) -> str:
        """Return why the run refuses a message, if it does; of a message that it has seen, only if not encrypted."""
        always, what = self.first is not None and is_sealed(self.first.body), f"message {message.number}"
        if is_seen and (is_sealed(message.body) or not always):
            return ""
        try:
            self.journal.bodies(self.info).open_message(message, sealed=bool(self.first_sealed))
        except CodecError:
            has_key = not self.sealed and self.journal.seal is not None
            return f"{what} is sealed with another key, which is not here" if has_key else ""
        except CorruptJournal as error:
            return _alone(error)
        command = open_message(self.journal, self.info, message, sealed=False)
        return f"{what} is damaged" if command.kind == UNREADABLE else ""


def _alone(error: CorruptJournal) -> str:
    """Return the text of an error without the run that it is about."""
    return problem_of(error).removeprefix(f"run {error.run!r}: ")


def given_tags(run: RunState) -> tuple[str, ...]:
    """Return the tags that a run was given, by its journal."""
    return run.annotations.get(0, Annotation()).tags


_APART = {"started_at", "updated_at", "faults", "inherited_seconds", "frames", "cells", "writes"}
"""Fields that are compared apart, or that only the writer of a run knows: the times of records, not of entries."""

_SHOWN = {"active": "steps under way", "log": "changes"}


def difference(one: RunState, other: RunState, codec: Codec) -> str:
    """Return in what two folds of a journal differ, in a few words; empty if they are the same."""
    what = _differing_field(one, other)
    if what or one.frames.keys() != other.frames.keys():
        return what or "sub-graphs"
    for path, frame in one.frames.items():
        if what := _differing_field(frame, other.frames[path]) or _differing_key(
            frame, other.frames[path], codec
        ):
            return f"{what} of {path}" if path else what
    return ""


def _differing_field(one: RunState | Frame, other: RunState | Frame) -> str:
    for each in fields(one):
        if each.name not in _APART and _compared(one, each.name) != _compared(other, each.name):
            return _SHOWN.get(each.name, each.name)
    return ""


def _compared(part: RunState | Frame, name: str) -> Any:
    value = getattr(part, name)
    match name:
        case "pauses":
            return {key: replace(pause, since=0.0) for key, pause in value.items()}
        case "active":
            return list(value.values())
        case "log" if value is not None:
            return {key: ops for key, ops in value.items() if ops}
    return value


def _differing_key(one: Frame, other: Frame, codec: Codec) -> str:
    if one.cells.keys() != other.cells.keys():
        return "keys of the state"
    for key, slot in one.cells.items():
        raws = (slot.encoded(codec), other.cells[key].encoded(codec))
        if raws[0] != raws[1]:
            with suppress(CodecError):
                if codec.decode(raws[0]) == codec.decode(raws[1]):
                    continue
            return f"state {key!r}"
    return ""


class Checked(NamedTuple):
    """The check of a run and its report. `error` is what stopped it."""

    check: RunCheck
    report: RunReport
    error: Exception | None = None


def check_run(journal: Journal, inspector: Inspector, run: str) -> Checked | None:
    """Check a run until nothing is wrong, or the same twice while nobody changed it; return `None` if it is gone.

    Others may be working on the run: what is seen only once is no damage.
    """
    found: list[Checked] = []
    for _ in range(_TRIES):
        seen = inspector.observe(run)
        if seen is None:
            return None
        check = RunCheck(journal, inspector, seen)
        try:
            found.append(Checked(check, check.report()))
        except Exception as error:  # Whatever is in a damaged store, the other runs are checked.
            found.append(Checked(check, _unchecked(seen.info, error), error))
        before, last = found[-2:] if len(found) > 1 else (None, found[-1])
        is_same = before is not None and before.report.damages == last.report.damages
        if last.report.is_fine or (before and is_same and before.check.seen.version == seen.version):
            return last
    if inspector.observe(run) is None:
        return None
    # It changes all the time; what is damaged in it stays so.
    common = tuple(damage for damage in last.report.damages if before and damage in before.report.damages)
    return Checked(last.check, replace(last.report, damages=common), last.error or changed_meanwhile(run))


def _unchecked(info: RunInfo, error: Exception) -> RunReport:
    damage = Damage(Part.STORE, f"it cannot be checked: {type(error).__name__}: {error}")
    return RunReport(info.run, info.workflow, info.status, (damage,))


def check_store(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    seal: Seal | None = None,
    progress: Progress | None = None,
) -> StoreReport:
    """Verify every run, or those that are named: chains, snapshots, checkpoints, facts, inboxes, and the medium.

    Nothing is changed, and no damage stops it. `seal` holds the key of encrypted runs; without it only their
    chains are verified. `progress` is called before every run. A run that is not there raises `RunNotFound`.
    """
    journal = Journal(store, seal)
    with inspecting(store) as inspector:
        listing = inspector.runs()
        medium = listing.problems
        infos = wanted_runs(listing.infos, runs, store)
        if runs is None:
            try:
                medium += _lasting_problems(inspector)
            except HoldfastError as error:
                medium.append(problem_of(error))
        found = _reports(journal, inspector, infos, progress)
        leftovers = tuple(inspector.leftovers()) if runs is None else ()
    return StoreReport(store.url, tuple(found), tuple(dict.fromkeys(medium)), leftovers)


def check_runs(
    store: Store, infos: Sequence[RunInfo], *, seal: Seal | None = None, seconds: float
) -> list[RunReport]:
    """Verify some runs, as many as can be in so many seconds, in this order; nothing else is looked at."""
    end = clock.monotonic() + seconds

    def is_over(number: int, total: int, run: str) -> bool:
        return clock.monotonic() > end

    with inspecting(store) as inspector:
        return _reports(Journal(store, seal), inspector, infos, is_over)


def _reports(
    journal: Journal,
    inspector: Inspector,
    infos: Sequence[RunInfo],
    progress: Callable[[int, int, str], object] | None,
) -> list[RunReport]:
    """Verify one run after the other, until `progress` returns `True`."""
    found = []
    for number, info in enumerate(infos):
        if progress is not None and progress(number, len(infos), info.run) is True:
            break
        try:
            checked = check_run(journal, inspector, info.run)
            found += [checked.report] if checked is not None else []
        except Exception as error:  # Whatever is in a damaged store, the other runs are checked.
            found.append(_unchecked(info, error))
    return found


def _lasting_problems(inspector: Inspector) -> list[str]:
    """Return what is wrong with the medium; what others are writing just now may look wrong once."""
    problems = inspector.problems()
    for _ in range(_MOST_LOOKS - 1):
        before, problems = problems, inspector.problems() if problems else []
        if lasting := [problem for problem in problems if problem in before]:
            return lasting
    return problems  # Damage is worded in another way once its page was read.


def wanted_runs(infos: list[RunInfo], runs: Sequence[str] | None, store: Store) -> list[RunInfo]:
    """Return the runs that are named, or all, the latest first; raise `RunNotFound` if one is not there."""
    known = {info.run: info for info in sorted(infos, key=lambda info: (-info.updated_at, info.run))}
    for run in runs or ():
        if run not in known:
            raise RunNotFound(f"no run {run!r}", remedies=Remedy("list_runs"), store=store.url)
    return list(known.values()) if runs is None else [known[run] for run in dict.fromkeys(runs)]
