"""The integrity check of a run: its chain, its fold, its snapshots, checkpoints, facts and inbox; and of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.engine.commands.inbox import UNREADABLE, open_message
from holdfast.errors import CodecError, CorruptJournal, HoldfastError, Remedy, RunNotFound, problem_of
from holdfast.integrity.comparison import Corrected, corrected, difference, missing_tags
from holdfast.integrity.report import Damage, Part, Progress, RunReport, StoreReport, Stretch
from holdfast.journal.checkpoint_ids import Checkpoint, decode_checkpoint
from holdfast.journal.encoding import Track, decode_run
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal, break_at, genesis, is_whole, misplaced
from holdfast.journal.records import RunAnnotated
from holdfast.journal.run_state import RunState
from holdfast.journal.sealing import CHAIN_BYTES, has_sealed, is_sealed
from holdfast.state.codec import TolerantCodec
from holdfast.state.encryption import Seal
from holdfast.stores.base import Entry, Message, RunInfo, Snapshot, Store, StoredCheckpoint
from holdfast.stores.integrity import Found, Inspector, Observed, changed_meanwhile, inspecting, repaired_as
from holdfast.values import RunStatus

_WAITING_FOR_WORKERS = {RunStatus.QUEUED.value, RunStatus.INTERRUPTED.value}
"""Statuses that differ without damage: a run that moves between stores is queued by its facts alone."""

_SET_BY_THE_LAST_ENTRY = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.PAUSED)
"""Statuses that the facts have only once the journal has them."""

_MOST_MISSING = 100
"""The messages in a row that are reported, and replaced, at once."""

_UNREADABLE = (HoldfastError, OSError, ValueError)


class _Damaged(Exception):
    """An entry that cannot be folded."""


@dataclass
class Fold:
    """A folded stretch of a journal."""

    run: RunState
    track: Track
    start: int
    end: int
    chain: bytes
    last_good: Checkpoint | None = None

    @property
    def stretch(self) -> Stretch:
        return Stretch(self.start, self.end)


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
        snapshots = self.inspector.snapshots(self.info.run)
        self.first_sealed = self._find_sealed()
        self._walk({found.number: found for found in snapshots})
        self._check_end()
        self._check_snapshots(snapshots)
        if not self.journal_is_damaged:
            self._check_reading()
        self._check_facts()
        messages = self._check_inbox()
        best = self.best
        return RunReport(
            run=self.info.run,
            workflow=self.info.workflow,
            status=self.info.status,
            damages=tuple(self.damages),
            entries=self.entries,
            head=self._last_known(),
            checkpoints=len(self.marks),
            snapshots=len(snapshots),
            messages=messages,
            intact=best.stretch if best else None,
            last_good=best.last_good if best else None,
            sealed=self.sealed,
            repaired_as=repaired_as(self.info) or None,
        )

    def _last_known(self) -> int:
        """Return the last entry that there is, or is known to be missing."""
        missing = [damage.seq or 0 for damage in self.damages if damage.part == Part.JOURNAL]
        return max([self.head, self.seen.head, *missing])

    @property
    def journal_is_damaged(self) -> bool:
        return any(damage.part == Part.JOURNAL for damage in self.damages)

    def _report(self, part: Part, text: str, seq: int | None = None) -> None:
        self.damages.append(Damage(part, text, seq))

    def _walk(self, snapshots: dict[int, Found]) -> None:
        """Fold entry after entry; after a damaged one continue from the next snapshot."""
        fold: Fold | None = None
        before: Entry | None = None
        for entry in self._entries():
            self.entries, self.head, self.first = self.entries + 1, entry.seq, self.first or entry
            if entry.mark is not None:
                self.marks.append(entry.seq)
            try:
                self._check_place(before, entry)
                fold = self._first_fold(entry, snapshots) if before is None else self._folded(fold, entry)
            except _Damaged as error:
                self._report(Part.JOURNAL, problem_of(error), entry.seq)
                fold = None
            before = entry
            if fold is None:
                fold = self._from_snapshot(entry, snapshots)
            if fold is not None:
                self._compare_beside(fold, entry, snapshots)
        if before is None and not self.journal_is_damaged:
            self._report(Part.JOURNAL, "it has no entries", 1)
        elif self.best is None and not self.journal_is_damaged:
            self._report(Part.JOURNAL, "none of its snapshots can be read, and it was pruned", self.head)

    def _find_sealed(self) -> int:
        try:
            entries = self.inspector.entries(self.info.run)
            return next((entry.seq for entry in entries if is_sealed(entry.body)), 0)
        except _UNREADABLE:
            return 0  # It is reported when the entries are read.

    def _check_end(self) -> None:
        """Report a journal that ends before its facts were written: it has lost its end."""
        best, known, status = self.best, self.seen.head, self.info.status
        if self.journal_is_damaged or best is None:
            return
        if self.head < known:
            missing = (
                f"entry {known} is" if known == self.head + 1 else f"entries {self.head + 1} to {known} are"
            )
            self._report(Part.JOURNAL, f"{missing} missing at its end: its facts are newer", self.head + 1)
        elif known or self.sealed or self.seen.problem:
            return
        elif best.run.status == RunStatus.RUNNING and status in _SET_BY_THE_LAST_ENTRY:
            text = f"its facts say that it is {status}: the entry that says so is missing at its end"
            self._report(Part.JOURNAL, text, self.head + 1)

    def _entries(self) -> Iterator[Entry]:
        try:
            yield from self.inspector.entries(self.info.run)
        except _UNREADABLE as error:
            self.head += 1
            self._report(
                Part.JOURNAL,
                f"entry {self.head} and what follows cannot be read: {problem_of(error)}",
                self.head,
            )

    def _check_place(self, before: Entry | None, entry: Entry) -> None:
        if before is None:
            if entry.seq == 1 and break_at(genesis(self.info.run, self.info.key), False, entry):
                raise _Damaged("entry 1 is damaged, or the run's id or key is (its checksum does not match)")
            if entry.seq > 1 and is_sealed(entry.body):
                # What a sealed entry followed is in its body, so that the first of a pruned run can be checked, too.
                self._check_link(entry.body[1 : 1 + CHAIN_BYTES], True, entry)
            return
        if entry.seq != before.seq + 1:
            raise _Damaged(f"entry {before.seq + 1} is missing")
        self._check_link(before.chain, is_sealed(before.body), entry)

    def _check_link(self, previous: bytes, sealed: bool, entry: Entry) -> None:
        if broken := break_at(previous, sealed, entry):
            raise _Damaged(broken)

    def _first_fold(self, entry: Entry, snapshots: dict[int, Found]) -> Fold | None:
        """Return the fold at the first entry that there is."""
        if entry.seq > 1:
            based = self._from_snapshot(entry, snapshots)
            if based is None and (clear := self._in_clear(entry, snapshots)):
                if not self._goes_on_sealed(snapshots):
                    raise _Damaged(clear)
            elif based is None:
                raise _Damaged(
                    f"the snapshot at {entry.seq}, before which it was pruned, is missing or damaged"
                )
            return based
        fold = Fold(RunState(), Track(), 0, 0, genesis(self.info.run, self.info.key))
        try:
            return self._folded(fold, entry)
        except _Damaged:
            if (based := self._from_snapshot(entry, snapshots)) is not None and self._is_fork(entry):
                return based
            raise

    def _in_clear(self, entry: Entry, snapshots: dict[int, Found]) -> str:
        """Return why a whole snapshot of an entry is not used: it is in the clear, and the run is not."""
        found = snapshots.get(entry.seq)
        snapshot = found.content if found is not None else None
        if not self.first_sealed or not isinstance(snapshot, Snapshot) or has_sealed(snapshot):
            return ""
        what = f"the snapshot at {entry.seq}, before which it was pruned, is not encrypted"
        return f"{what}, and entry {self.first_sealed} is"

    def _goes_on_sealed(self, snapshots: dict[int, Found]) -> bool:
        """Return whether a run that was pruned in the clear has a snapshot at its first sealed entry."""
        found = snapshots.get(self.first_sealed)
        return found is not None and isinstance(found.content, Snapshot) and has_sealed(found.content)

    def _is_fork(self, entry: Entry) -> bool:
        try:
            return self.journal.fork_of(self.info, entry, self.codec) is not None
        except HoldfastError:
            return False

    def _from_snapshot(self, entry: Entry, snapshots: dict[int, Found]) -> Fold | None:
        """Return the fold at an entry by its snapshot, if that is whole."""
        found = snapshots.get(entry.seq)
        snapshot = found.content if found is not None else None
        if not isinstance(snapshot, Snapshot) or misplaced(snapshot, entry) or not is_whole(snapshot):
            return None
        if self.first_sealed and not has_sealed(snapshot):
            return None
        track, run = Track(), RunState()
        try:
            run = self._decoded(snapshot, track)
        except CodecError:
            if self.journal.seal is not None:
                return None
            self.sealed = True
        except HoldfastError:
            return None
        return Fold(run, track, entry.seq, entry.seq, entry.chain)

    def _decoded(self, snapshot: Snapshot, track: Track) -> RunState:
        return decode_run(self.journal.bodies(self.info).open_snapshot(snapshot), track, self.codec)

    def _folded(self, fold: Fold | None, entry: Entry) -> Fold | None:
        if fold is None:
            return None
        if self._is_unreadable(entry):
            fold.end, fold.chain = entry.seq, entry.chain
            return fold
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
        fold.end, fold.chain = entry.seq, entry.chain
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
                self._report(
                    Part.JOURNAL,
                    f"entry {entry.seq} is sealed with another key, which is not here",
                    entry.seq,
                )
        except CorruptJournal as error:
            raise _Damaged(_alone(error)) from None
        return self.sealed

    def _compare_beside(self, fold: Fold, entry: Entry, snapshots: dict[int, Found]) -> None:
        """Compare what is stored beside an entry with what the entries add up to."""
        if self.best is None or fold.end >= self.best.end:
            self.best = fold
        if entry.mark is not None:
            self._check_mark(fold, entry, entry.mark)
        found = snapshots.get(entry.seq)
        snapshot = found.content if found is not None else None
        if isinstance(snapshot, Snapshot) and fold.start != entry.seq and not self.sealed:
            self._compare(fold, snapshot, entry)

    def _check_mark(self, fold: Fold, entry: Entry, mark: bytes) -> None:
        try:
            found = decode_checkpoint(self.info.key, StoredCheckpoint.of(entry), self.info.run)
        except HoldfastError as error:
            self._report(Part.CHECKPOINT, problem_of(error), entry.seq)
            return
        fold.last_good = found
        frame = fold.run.frames.get(found.frame)
        if frame is None or self.sealed:
            return
        if found.wave != frame.waves:
            self._report(
                Part.CHECKPOINT,
                f"the checkpoint at {entry.seq} says wave {found.wave}, the journal {frame.waves}",
                entry.seq,
            )

    def _compare(self, fold: Fold, snapshot: Snapshot, entry: Entry) -> None:
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
            self._report(Part.SNAPSHOT, text, entry.seq)

    def _check_snapshots(self, snapshots: list[Found]) -> None:
        entries = self._entries_of({found.number for found in snapshots}) if snapshots else {}
        for number, _, snapshot, problem in snapshots:
            if problem or not isinstance(snapshot, Snapshot):
                self._report(Part.SNAPSHOT, f"the snapshot at {number} cannot be read: {problem}", number)
            elif not is_whole(snapshot):
                self._report(
                    Part.SNAPSHOT,
                    f"the snapshot at {number} is damaged (its checksum does not match)",
                    number,
                )
            elif number not in entries or entries[number].chain != snapshot.chain:
                self._report(
                    Part.SNAPSHOT, f"the snapshot at {number} belongs to no entry of the journal", number
                )
            elif wrong := misplaced(snapshot, entries[number]):
                self._report(Part.SNAPSHOT, wrong, number)

    def _entries_of(self, wanted: set[int]) -> dict[int, Entry]:
        """Return the entries that are wanted, with only the beginning of their bodies."""
        found: dict[int, Entry] = {}
        try:
            for entry in self.inspector.entries(self.info.run):
                if entry.seq in wanted:
                    found[entry.seq] = entry._replace(body=entry.body[:1])
        except _UNREADABLE:
            pass  # It was reported when the entries were read.
        return found

    def _check_reading(self) -> None:
        """Compare what the store itself reads with what was found in it."""
        best, run = self.best, self.info.run
        if best is None:
            return
        for problem in self.inspector.reading_problems(run):
            self._report(Part.STORE, problem)
        try:
            if not self.sealed:
                loaded = self.journal.load(self.info, self.codec)
                if loaded.seq != best.end:
                    loaded = self.journal.load(self.info, self.codec, best.end)
                if what := difference(loaded.run, best.run, self.codec):
                    self._report(
                        Part.STORE, f"it is read as another run than its journal tells ({what})", best.end
                    )
            listed = [each.seq for each in self.journal.store.checkpoints(run, best.end + 1)]
            if listed != [seq for seq in reversed(self.marks) if seq <= best.end]:
                self._report(Part.STORE, "its checkpoints are not listed as they are stored")
        except HoldfastError as error:
            self._report(Part.STORE, f"the store cannot read it: {error}")

    def _check_facts(self) -> None:
        for problem in self.inspector.facts_problems(self.info):
            self._report(Part.FACTS, problem)
        best, info = self.best, self.info
        if best is None or self.journal_is_damaged or self.sealed or info.status == RunStatus.DAMAGED:
            return
        run = best.run
        if info.workflow != run.workflow:
            self._report(
                Part.FACTS, f"its facts say workflow {info.workflow!r}, its journal {run.workflow!r}"
            )
        if info.status != run.status and not {info.status, str(run.status)} <= _WAITING_FOR_WORKERS:
            self._report(Part.FACTS, f"its facts say that it is {info.status}, its journal {run.status}")
        elif info.status == RunStatus.RUNNING and info.owner != run.owner:
            self._report(Part.FACTS, "its facts name another owner than its journal")
        if self.first is not None and self.first.seq == 1 and info.parent != self.parent_of(self.first):
            self._report(Part.FACTS, "its facts name another run that it was forked from than its journal")
        if tags := missing_tags(info, run):
            self._report(Part.FACTS, f"its facts lack tags that its journal has: {', '.join(tags)}")

    def corrected(self) -> Corrected:
        """Return its facts as the journal has them, as far as that can be read."""
        best = self.best
        if best is None or self.sealed:
            return Corrected(self.info)
        first = self.first
        parent = self.parent_of(first) if first is not None and first.seq == 1 else None
        # All that ever happened to the run is known only if its journal reaches back to its beginning.
        is_all = best.start == 0 and parent == b""
        return corrected(self.seen, best.run, self.removed, parent, is_all, self.codec)

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
                self._report(Part.INBOX, f"message {missing} is missing", missing)
            expected = number + 1
            if problem or not isinstance(message, Message):
                self._report(Part.INBOX, f"message {number} cannot be read: {problem}", number)
            elif message.body and (wrong := self._problem_of(message, is_seen=number <= seen)):
                self._report(Part.INBOX, f"{wrong}; the run will refuse it", number)
        return len(found)

    def _problem_of(self, message: Message, *, is_seen: bool) -> str:
        """Return why the run refuses a message, if it does; of a message that it has seen, only if not encrypted."""
        always = self.first is not None and is_sealed(self.first.body)
        if is_seen and (is_sealed(message.body) or not always):
            return ""
        try:
            self.journal.bodies(self.info).open_message(message, sealed=bool(self.first_sealed))
        except CodecError:
            has_key = not self.sealed and self.journal.seal is not None
            return (
                f"message {message.number} is sealed with another key, which is not here" if has_key else ""
            )
        except CorruptJournal as error:
            return _alone(error)
        command = open_message(self.journal, self.info, message, sealed=False)
        return f"message {message.number} is damaged" if command.kind == UNREADABLE else ""


def _alone(error: CorruptJournal) -> str:
    """Return the text of an error without the run that it is about."""
    return problem_of(error).removeprefix(f"run {error.run!r}: ")


_TRIES = 6


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
        found.append(_checked_once(RunCheck(journal, inspector, seen)))
        if found[-1].report.is_fine or (len(found) > 1 and _is_same(*found[-2:])):
            return found[-1]
    if inspector.observe(run) is None:
        return None
    # It changes all the time; what is damaged in it stays so.
    before, last = found[-2:]
    common = tuple(damage for damage in last.report.damages if damage in before.report.damages)
    return Checked(last.check, replace(last.report, damages=common), last.error or changed_meanwhile(run))


def _is_same(one: Checked, other: Checked) -> bool:
    return one.check.seen.version == other.check.seen.version and one.report.damages == other.report.damages


def _checked_once(check: RunCheck) -> Checked:
    try:
        return Checked(check, check.report())
    except Exception as error:  # Whatever is in a damaged store, the other runs are checked.
        return Checked(check, _unchecked(check.info, error), error)


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
        infos, problems = inspector.runs()
        wanted = _wanted(infos, runs, store)
        medium = [*problems, *_medium_problems(inspector)] if runs is None else problems
        found = []
        for number, info in enumerate(wanted):
            if progress is not None:
                progress(number, len(wanted), info.run)
            report = _report_of(journal, inspector, info)
            found += [report] if report is not None else []
        leftovers = tuple(inspector.leftovers()) if runs is None else ()
    return StoreReport(store.url, tuple(found), tuple(dict.fromkeys(medium)), leftovers)


def _wanted(infos: list[RunInfo], runs: Sequence[str] | None, store: Store) -> list[RunInfo]:
    ordered = sorted(infos, key=lambda info: (-info.updated_at, info.run))
    if runs is None:
        return ordered
    known = {info.run: info for info in ordered}
    for run in runs:
        if run not in known:
            raise RunNotFound(f"no run {run!r} in {store.url}", remedies=Remedy("list_runs"))
    return [known[run] for run in dict.fromkeys(runs)]


def _medium_problems(inspector: Inspector) -> list[str]:
    """Return what is wrong with the medium twice: what others are writing just now may look wrong once."""
    try:
        found = inspector.problems()
        again = set(inspector.problems()) if found else ()
        return [problem for problem in found if problem in again]
    except HoldfastError as error:
        return [problem_of(error)]


def _report_of(journal: Journal, inspector: Inspector, info: RunInfo) -> RunReport | None:
    try:
        checked = check_run(journal, inspector, info.run)
    except Exception as error:  # Whatever is in a damaged store, the other runs are checked.
        return _unchecked(info, error)
    return None if checked is None else checked.report
