"""The only road to a store: loading runs, appending to them, group commit, snapshots."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast import clock
from holdfast.errors import CodecError, CorruptJournal, Remedy, RunNotFound, suggestion
from holdfast.journal.commit import Committer, Inboxes, committer_of
from holdfast.journal.encoding import Track, decode_records, decode_run, encode_run
from holdfast.journal.fold import apply, parts_of
from holdfast.journal.records import Forked, Record
from holdfast.journal.run_state import RunState, at_checkpoint
from holdfast.journal.sealing import CHAIN_BYTES, SEALED, Bodies, Seal, has_sealed, is_sealed, snapshot_digest
from holdfast.state.codec import Codec
from holdfast.stores.base import Conflict, Entry, Readable, RunInfo, Snapshot, Store, namespace_of

# Durable deadlines as a process waits for them: by wall time, bounded by the monotonic clock.


_RUNS_KEPT, _DEADLINES_KEPT = 10_000, 1000
"""Of how many runs deadlines are remembered, and how many of each."""


class Deadlines:
    """The deadlines of runs that this process has looked at. May be used from any thread.

    A deadline is wall time, for any process to read. A wait for one ends when the wall clock has come to it, or when
    as much time has passed by the monotonic clock as was left when this process first looked at it, whichever is
    first: a wall clock that is set back does not prolong a wait.
    """

    def __init__(self) -> None:
        self._ends: dict[str, dict[float, float]] = {}

    def after(self, run: str, seconds: float) -> float:
        """Return the deadline that is so many seconds away, which this process waits for from now on."""
        deadline = clock.time() + seconds
        self.left(run, deadline)
        return deadline

    def left(self, run: str, deadline: float) -> float:
        """Return how many seconds a deadline of a run is away; 0 or less if it has passed."""
        by_wall, ticks = deadline - clock.time(), clock.monotonic()
        ends = self._ends.setdefault(run, {})
        end = ends.setdefault(deadline, ticks + by_wall)
        _drop_oldest(ends, _DEADLINES_KEPT)
        _drop_oldest(self._ends, _RUNS_KEPT)
        return min(by_wall, end - ticks)

    def has_passed(self, run: str, deadline: float) -> bool:
        """Return True if a wait for a deadline of a run is over."""
        return self.left(run, deadline) <= 0

    def forget(self, run: str) -> None:
        """Forget the deadlines of a run that waits for none of them any more."""
        self._ends.pop(run, None)


def _drop_oldest(remembered: dict[Any, Any], most: int) -> None:
    if len(remembered) > most:
        for oldest in list(remembered)[: -most * 9 // 10]:
            remembered.pop(oldest, None)


_of_stores: weakref.WeakKeyDictionary[Store, Deadlines] = weakref.WeakKeyDictionary()


def deadlines_of(store: Store) -> Deadlines:
    """Return the deadlines of a store's runs, shared by all in this process that wait for them."""
    return _of_stores.setdefault(store, Deadlines())


logger = logging.getLogger("holdfast")

_PLACE = struct.Struct(">Qdi")


def genesis(run: str, key: bytes) -> bytes:
    """Return what the first entry's checksum is chained to."""
    return hashlib.blake2b(run.encode("utf-8", "surrogatepass") + key, digest_size=16).digest()


def link(previous: bytes, seq: int, at: float, mark: bytes | None, body: bytes) -> bytes:
    """Return the checksum of an entry, chained to its predecessor's."""
    return hashlib.blake2b(
        b"".join((previous, _PLACE.pack(seq, at, -1 if mark is None else len(mark)), mark or b"", body)),
        digest_size=16,
    ).digest()


def corrupt(run: str, seq: int, text: str) -> CorruptJournal:
    """Return the error about an entry of a run that is not what was written."""
    return CorruptJournal(f"run {run!r}: {text}", run=run, seq=seq)


Result = TypeVar("Result")


def break_at(previous: bytes, sealed: bool, entry: Entry) -> str:
    """Return why an entry cannot follow one whose chain is `previous`, and that is `sealed` or not; empty if it can.

    Once an entry is sealed, all that follow are: nobody without the key can go on with a sealed run.
    """
    seq, at, chain, body, mark = entry
    if body[:1] != SEALED and sealed:
        return f"entry {seq} is not encrypted, and the entries before it are"
    if body[:1] == SEALED and body[1 : 1 + CHAIN_BYTES] != previous:
        return f"entry {seq} was sealed to follow another entry than {seq - 1}"
    if chain != link(previous, seq, at, mark, body):
        return f"entry {seq} is damaged (its checksum does not match)"
    return ""


def verified(
    store: Readable, run: str, seq: int, chain: bytes, sealed: bool, upto: int | None = None
) -> Iterator[Entry]:
    """Return the entries of a run after `seq`, whose chain is given, each checked against its predecessor."""
    return verified_entries(store.read(run, seq, upto), run, seq, chain, sealed)


def verified_entries(
    entries: Iterable[Entry], run: str, seq: int, chain: bytes, sealed: bool
) -> Iterator[Entry]:
    """Yield entries of a run that follow entry `seq`, whose chain is given, each checked against its predecessor.

    `sealed` says whether that entry is.
    """
    for entry in entries:
        seq += 1
        if entry.seq != seq:
            raise corrupt(run, seq, f"entry {seq} is missing")
        if broken := break_at(chain, sealed, entry):
            raise corrupt(run, entry.seq, broken)
        chain, sealed = entry.chain, is_sealed(entry.body)
        yield entry


def is_whole(snapshot: Snapshot) -> bool:
    """Return whether a snapshot is what was written, by its own checksum."""
    return snapshot_digest(snapshot.chain, snapshot.body[CHAIN_BYTES:]) == snapshot.body[:CHAIN_BYTES]


def misplaced(snapshot: Snapshot, entry: Entry) -> str:
    """Return why a snapshot cannot belong to an entry; empty if it can. Either both are sealed or neither is."""
    if (entry.seq, entry.chain) != (snapshot.seq, snapshot.chain):
        return f"the snapshot at {snapshot.seq} does not belong there"
    if is_sealed(entry.body) == has_sealed(snapshot):
        return ""
    if has_sealed(snapshot):
        return f"the snapshot at {snapshot.seq} is encrypted, and its entry is not"
    return f"the snapshot at {snapshot.seq} is not encrypted, and its entry is"


@dataclass(slots=True)
class Loaded:
    """A run as read from a store, with what is needed to write on."""

    info: RunInfo
    run: RunState
    track: Track
    seq: int
    chain: bytes
    weight: int
    """Bytes of journal since the last snapshot."""
    sealed: bool = False
    """Whether its last entry is encrypted."""
    snapshot_size: int = 0
    rests_on_clear: bool = False
    """Whether it was folded from a snapshot that is not encrypted: nothing says who wrote that."""
    depth: int = 0
    """Through how many journals of other runs this one was read: of its parent, and of that one's, and so on."""


def unknown_run(store: Readable, target: str, what: str = "run, checkpoint or workflow") -> RunNotFound:
    """Return the error about a name that no run has; it suggests a known name that is close."""
    known = [name for info in store.runs(limit=200) for name in (info.run, info.workflow)]
    return RunNotFound(
        f"no {what} {target!r}{suggestion(target, dict.fromkeys(known))}",
        remedies=(Remedy("list_runs"), Remedy("look_elsewhere")),
        store=store.url,
    )


class Journal:
    """The journals of one store."""

    def __init__(self, store: Store, seal: Seal | None = None) -> None:
        self.store, self.seal, self.namespace = store, seal, namespace_of(store)
        self.committer: Committer = committer_of(store)
        self.inboxes = Inboxes(store)
        self.deadlines = deadlines_of(store)

    def bodies(self, info: RunInfo) -> Bodies:
        """Return what seals and opens the bodies of a run."""
        return Bodies(self.seal, self.namespace, info.run, info.key)

    def post(self, run: str, body: bytes) -> int:
        """Put a message into the inbox of a run, sealed for the number that it gets, if there is a key.

        Without one, a run that is sealed would refuse it: that is said at once.
        """
        if self.seal is None:
            newest = self.store.checkpoints(run, limit=1)
            after = newest[0].seq - 1 if newest else 0
            entry = self._first(run, after, after + 1)
            if entry is not None and is_sealed(entry.body):
                raise CodecError(
                    f"run {run!r} is encrypted, and takes encrypted messages only; set HOLDFAST_KEY"
                )
            return self.store.post(run, body)
        bodies, number = self.bodies(self.info(run)), 1
        while True:
            try:
                return self.store.post(run, bodies.seal_message(number, body), number)
            except Conflict as conflict:
                number = (conflict.head or 0) + 1

    def info(self, run: str) -> RunInfo:
        """Return the plain facts of a run; an unknown run is refused."""
        found = self.store.runs(run=run)
        if not found:
            raise unknown_run(self.store, run, "run")
        return found[0]

    def load(self, info: RunInfo, codec: Codec, upto: int | None = None) -> Loaded:
        """Fold a run from its nearest snapshot, up to and including entry `upto`; verify every checksum."""
        return self._load_from(info, codec, upto, 1)

    def _load_from(self, info: RunInfo, codec: Codec, upto: int | None, begins: int) -> Loaded:
        """Do as `load`, for a journal that is known to begin with entry `begins`, or later."""
        try:
            snapshot = self._nearest(info.run, upto)
        except CorruptJournal as error:
            return self._load_without(error, info, codec, upto)
        try:
            return self._load(info, codec, upto, snapshot)
        except CorruptJournal as error:
            first = self._begins_later(info.run, begins if snapshot is None else snapshot.seq, upto)
            if first > begins:
                return self._load_from(info, codec, upto, first)
            if snapshot is None and info.parent and self._became_whole(info.run):
                return self._load(info, codec, upto, self._nearest(info.run, upto))
            if snapshot is None or error.seq != snapshot.seq:
                raise
            return self._load_without(error, info, codec, upto)

    def _nearest(self, run: str, upto: int | None) -> Snapshot | None:
        """Return the newest usable snapshot up to an entry: in the clear only if nothing of the run is sealed."""
        snapshot = self.store.snapshot(run, upto)
        if snapshot is None or self.seal is None or has_sealed(snapshot):
            return snapshot
        sealed = self._first_sealed(run)
        if sealed is not None and snapshot.seq < sealed.seq and self._reaches_back(run):
            return None
        self._check_origin(run, snapshot)
        return snapshot

    def _check_origin(self, run: str, snapshot: Snapshot) -> None:
        """Refuse a snapshot in the clear of a run of which anything is sealed: anybody can write one."""
        if not has_sealed(snapshot) and (sealed := self._first_sealed(run)) is not None:
            text = (
                f"the snapshot at {snapshot.seq} is not encrypted, and entry {sealed.seq} is: nothing says that it was "
                "written by somebody who has the key"
            )
            raise corrupt(run, snapshot.seq, text)

    def _first_sealed(self, run: str) -> Entry | None:
        """Return the first entry of a run that says that it is encrypted."""
        return next((entry for entry in self.store.read(run) if is_sealed(entry.body)), None)

    def _begins_later(self, run: str, begun: int, upto: int | None) -> int:
        """Return the first entry of a journal that was pruned while it was read from `begun` on; else 0."""
        with contextlib.suppress(CorruptJournal):
            first = self._first(run)
            if first is not None and begun < first.seq and (upto is None or first.seq <= upto):
                horizon = self.store.snapshot(run, first.seq)
                return first.seq if horizon is not None and horizon.seq == first.seq else 0
        return 0

    def read_whole(self, run: str, read: Callable[[], Result]) -> Result:
        """Return what a function returns that reads a run's `history`; again if it was pruned meanwhile."""
        begins = -1
        while True:
            try:
                return read()
            except CorruptJournal:
                begun = max(begins, 1)  # It may be pruned once more between the two looks of `_begins_later`.
                later = self._begins_later(run, begun, None) or self._begins_later(run, begun, None)
                if later <= begins:
                    raise
                begins = later

    def _became_whole(self, run: str) -> bool:
        """Return whether a fork, whose parent went while it was read, has a snapshot to begin with by now."""
        first = self._first(run)
        return first is not None and self.store.snapshot(run, first.seq) is not None

    def _load_without(self, error: CorruptJournal, info: RunInfo, codec: Codec, upto: int | None) -> Loaded:
        """Return a run whose snapshot is damaged, if its journal is enough."""
        if not self._reaches_back(info.run):
            raise error
        logger.error("%s; the run is read from its journal instead", error)
        return self._load(info, codec, upto, None)

    def _first(self, run: str, after: int = 0, upto: int | None = None) -> Entry | None:
        """Return the first entry of a run that is stored after entry `after`."""
        return next(iter(self.store.read(run, after, upto)), None)

    def _reaches_back(self, run: str) -> bool:
        first = self._first(run, 0, 1)
        return first is not None and first.seq == 1

    def _load(self, info: RunInfo, codec: Codec, upto: int | None, snapshot: Snapshot | None) -> Loaded:
        name, track = info.run, Track()
        bodies, sealed = self.bodies(info), False
        if snapshot is None:
            run, seq, chain = RunState(), 0, genesis(name, info.key)
            entries = verified(self.store, name, seq, chain, sealed, upto)
        else:
            sealed, entries = self._after(info, snapshot, upto)
            run = self._read_snapshot(bodies, name, snapshot, track, codec)
            seq, chain = snapshot.seq, snapshot.chain
        weight, size, base = 0, len(snapshot.body) if snapshot else 0, _Base(self, info, codec)
        for entry in entries:
            self._take(run, entry, name, bodies.open_entry(entry), track, codec, base)
            seq, chain, sealed = entry.seq, entry.chain, is_sealed(entry.body)
            weight += len(entry.body)
        if seq == 0:
            raise CorruptJournal(f"run {name!r} has no entries", run=name, seq=1)
        if upto is not None and seq < upto and any(True for _ in self.store.read(name, seq)):
            raise corrupt(name, seq + 1, f"entry {seq + 1} is missing")
        if self.seal is not None and upto is not None and not sealed:
            self._check_before_sealed(info, seq, chain)
        rests_on_clear = snapshot is not None and not has_sealed(snapshot)
        if (parent := base.found) is not None:
            weight, size = weight + parent.weight, parent.snapshot_size
            rests_on_clear = parent.rests_on_clear
        depth = parent.depth + 1 if parent else 0
        return Loaded(info, run, track, seq, chain, weight, sealed, size, rests_on_clear, depth)

    def _check_before_sealed(self, info: RunInfo, seq: int, chain: bytes) -> None:
        """Refuse what was read up to an entry in the clear if the first sealed entry was not written behind that."""
        if self._first_sealed(info.run) is None:
            return
        for entry in verified(self.store, info.run, seq, chain, False):
            if is_sealed(entry.body):
                self.bodies(info).open_entry(entry)
                return

    def _after(self, info: RunInfo, snapshot: Snapshot, upto: int | None) -> tuple[bool, Iterator[Entry]]:
        """Return whether the entry of a snapshot is sealed, and the entries after it; check that it is its entry."""
        run, before = info.run, list[Entry]()
        entries = iter(self.store.read(run, max(0, snapshot.seq - 2), upto))
        own = next(entries, None)
        if own is not None and own.seq == snapshot.seq - 1:
            before, own = [own], next(entries, None)
        wrong = f"the snapshot at {snapshot.seq} does not belong there"
        if own is not None:
            wrong = misplaced(snapshot, own) or self._changed(info, before, own)
        if wrong or own is None:
            raise corrupt(run, snapshot.seq, wrong)
        sealed = is_sealed(own.body)
        return sealed, verified_entries(entries, run, snapshot.seq, snapshot.chain, sealed)

    def _changed(self, info: RunInfo, before: list[Entry], entry: Entry) -> str:
        """Return why the entry of a snapshot is not what was written; a plain one takes the one `before` it to tell.

        A sealed one says itself what it followed, and the chain that comes of it is what its snapshot is sealed for.
        """
        if is_sealed(entry.body):
            return break_at(entry.body[1 : 1 + CHAIN_BYTES], True, entry)
        if entry.seq == 1:
            return break_at(genesis(info.run, info.key), False, entry)
        return break_at(before[0].chain, is_sealed(before[0].body), entry) if before else ""

    def base(self, info: RunInfo, fork: Forked, codec: Codec) -> Loaded:
        """Return the run that a fork began as, where it began; `CorruptJournal` if its parent is not what it was."""
        parent = self.store.runs(key=fork.key)
        lost = f"run {info.run!r} is a fork of {fork.parent!r} at entry {fork.seq}, and cannot be read without it"
        if not parent:
            raise CorruptJournal(f"{lost}: that run is gone", run=info.run, seq=1)
        try:
            loaded = self.load(parent[0], codec, fork.seq)
        except CorruptJournal as error:
            raise CorruptJournal(f"{lost}: {error}", run=info.run, seq=1) from None
        if (loaded.seq, loaded.chain) != (fork.seq, fork.chain):
            raise CorruptJournal(f"{lost}: that run has another history now", run=info.run, seq=1)
        return self._sealed_base(info, loaded, codec, lost) if loaded.rests_on_clear and self.seal else loaded

    def _sealed_base(self, info: RunInfo, loaded: Loaded, codec: Codec, lost: str) -> Loaded:
        """Return what a sealed fork began as: folded from its parent's entries, whose chain the fork has, never from a
        snapshot in the clear."""
        first = self._first(info.run, 0, 1)
        if first is None or not is_sealed(first.body):
            return loaded
        found = loaded
        if self._reaches_back(loaded.info.run):
            found = self._load(loaded.info, codec, loaded.seq, None)
        if found.rests_on_clear or found.chain != loaded.chain:
            text = f"{lost}: what is left of that run begins with a snapshot that is not encrypted"
            raise CorruptJournal(text, run=info.run, seq=1)
        return found

    def materialised(self, info: RunInfo, codec: Codec) -> Snapshot | None:
        """Return the snapshot without which a run cannot be read alone: where it was pruned, or of a fork at
        its first entry; `None` if its journal is enough."""
        first = self._first(info.run)
        if first is None or (first.seq == 1 and not info.parent):
            return None
        snapshot = self.store.snapshot(info.run, first.seq)
        if snapshot is not None and not misplaced(snapshot, first) and is_whole(snapshot):
            self._check_origin(info.run, snapshot)
            return snapshot
        if self.seal is None and is_sealed(first.body):
            raise CodecError(
                f"run {info.run!r} is an encrypted fork, which cannot be separated from its parent without its key; "
                "set HOLDFAST_KEY to its key"
            )
        if self.fork_of(info, first, codec) is None:
            return None
        return self.make_snapshot(self._load(info, codec, 1, None), codec)

    def fork_of(self, info: RunInfo, first: Entry, codec: Codec) -> Forked | None:
        """Return how a run, by its first entry, refers to the journal of another, if it does."""
        if first.seq != 1 or not info.parent:
            return None
        body = self.bodies(info).open_entry(first)
        found: list[Forked] = []

        def seen(fork: Forked, track: Track) -> RunState:
            found.append(fork)
            raise CodecError("only its first record was asked for")

        with contextlib.suppress(CodecError):
            decode_records(body, Track(), codec, seen)
        return found[0] if found else None

    def history(
        self, info: RunInfo, codec: Codec, upto: int | None = None
    ) -> tuple[RunState, Iterator[tuple[Entry, list[Record]]]]:
        """Return a run as its stored journal begins, and every entry with its records, for folding.

        Where the journal was pruned, the run already has its first entry's records, so these are left out.
        """
        name = info.run
        first = self._first(name)
        if first is None:
            raise CorruptJournal(f"run {name!r} has no entries", run=name, seq=1)
        if first.seq == 1 and not self._needs_snapshot(info, first, codec):
            found = self._read_history(info, 0, genesis(name, info.key), False, upto, Track(), codec)
            try:
                # A fork's first entry is read now: its parent may go, but then not without leaving it a snapshot.
                begun = list(itertools.islice(found, 1)) if info.parent else []
                return RunState(), itertools.chain(begun, found)
            except CorruptJournal:
                if not self._became_whole(name):
                    raise
        snapshot, track = self.store.snapshot(name, first.seq), Track()
        if snapshot is None or snapshot.seq != first.seq:
            raise corrupt(name, 1, "entry 1 is missing")
        if self.seal is not None and not has_sealed(snapshot):
            first, snapshot = self._sealed_beginning(name, first, snapshot)
        if wrong := misplaced(snapshot, first) or self._changed(info, [], first):
            raise corrupt(name, first.seq, wrong)
        run = self._read_snapshot(self.bodies(info), name, snapshot, track, codec)
        later = self._read_history(info, first.seq, first.chain, is_sealed(first.body), upto, track, codec)
        return run, itertools.chain([(first, list[Record]())], later)

    def _sealed_beginning(self, run: str, first: Entry, snapshot: Snapshot) -> tuple[Entry, Snapshot]:
        """Return where a run pruned in the clear begins: its first sealed snapshot, if anything is sealed."""
        for entry in self.store.read(run):
            found = self.store.snapshot(run, entry.seq) if is_sealed(entry.body) else None
            if found is not None and found.seq == entry.seq and has_sealed(found):
                return entry, found
        self._check_origin(run, snapshot)
        return first, snapshot

    def _needs_snapshot(self, info: RunInfo, first: Entry, codec: Codec) -> bool:
        """Return whether a fork's beginning can no longer be read through its parent's journal."""
        fork = self.fork_of(info, first, codec)
        if fork is None:
            return False
        parent = self.store.runs(key=fork.key)
        there = self._first(parent[0].run, fork.seq - 1, fork.seq) if parent else None
        return there is None or there.chain != fork.chain

    def _read_history(
        self,
        info: RunInfo,
        seq: int,
        chain: bytes,
        sealed: bool,
        upto: int | None,
        track: Track,
        codec: Codec,
    ) -> Iterator[tuple[Entry, list[Record]]]:
        for entry in verified(self.store, info.run, seq, chain, sealed, upto):
            records = self.records(info, entry, track, codec)
            yield entry, [part for record in records for part in parts_of(record)]

    def records(self, info: RunInfo, entry: Entry, track: Track, codec: Codec) -> list[Record]:
        """Return the records of an entry, those of a fork's first entry included."""
        return decode_records(self.bodies(info).open_entry(entry), track, codec, _Base(self, info, codec))

    def skimmed(self, info: RunInfo, entry: Entry, codec: Codec) -> list[Record]:
        """Return the records of an entry, read without those before: large values stay packed, forks unread."""
        return decode_records(self.bodies(info).open_entry(entry), Track(skims=True), codec)

    def _take(
        self, run: RunState, entry: Entry, name: str, body: bytes, track: Track, codec: Codec, base: _Base
    ) -> None:
        try:
            for record in decode_records(body, track, codec, base):
                apply(run, record, entry.at)
        except (KeyError, AttributeError) as error:
            raise corrupt(
                name, entry.seq, f"entry {entry.seq} does not follow from what came before ({error!r})"
            ) from None
        if entry.mark is not None:
            run.saved_seq = entry.seq

    def _read_snapshot(
        self, bodies: Bodies, name: str, snapshot: Snapshot, track: Track, codec: Codec
    ) -> RunState:
        if not is_whole(snapshot):
            raise corrupt(name, snapshot.seq, f"the snapshot at {snapshot.seq} is damaged")
        return decode_run(bodies.open_snapshot(snapshot), track, codec)

    def make_snapshot(self, loaded: Loaded, codec: Codec) -> Snapshot:
        """Return a snapshot of a run as loaded."""
        body, at = encode_run(loaded.run, loaded.track, codec), loaded.run.updated_at
        bodies, chain, seq = self.bodies(loaded.info), loaded.chain, loaded.seq
        return Snapshot(seq, at, chain, bodies.seal_snapshot(chain, seq, at, body, sealed=loaded.sealed))


class _Base:
    """Finds what a fork began as while its first entry is read."""

    def __init__(self, journal: Journal, info: RunInfo, codec: Codec) -> None:
        self._journal, self._info, self._codec = journal, info, codec
        self.found: Loaded | None = None

    def __call__(self, fork: Forked, track: Track) -> RunState:
        self.found = self._journal.base(self._info, fork, self._codec)
        track.copy_from(self.found.track)
        return at_checkpoint(self.found.run)
