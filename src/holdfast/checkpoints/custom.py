"""Stores of checkpoints that users write: the abstract class, and the full store that is made of one."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import itertools
import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Unpack

import ormsgpack

from holdfast import clock
from holdfast.checkpoints.data import CheckpointData, Reading, read_checkpoint, save_by_hand
from holdfast.engine.owner import active_runs, describe, is_alive
from holdfast.errors import CheckpointNotFound, CorruptJournal, HoldfastError, StoreError
from holdfast.journal.checkpoint_ids import checkpoint_id
from holdfast.journal.encoding import Track
from holdfast.journal.fold import parts_of
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import RunState
from holdfast.state.codec import TolerantCodec
from holdfast.state.state import State, origin_of
from holdfast.stores.base import (
    Append,
    Conflict,
    Entry,
    Footprint,
    Message,
    RunFilter,
    RunInfo,
    Snapshot,
    Store,
)
from holdfast.stores.memory import JournalInMemory, MemoryStore
from holdfast.threads import locked, resolved, synchronized
from holdfast.values import RunStatus, utc_time

logger = logging.getLogger("holdfast")


class CheckpointStore(ABC):
    """Where checkpoints are kept. Subclass it, or write any class with these methods, sync or async.

    `compile(store=…)`, `register_store` and `CheckpointManager` take such a store. What is saved is a
    `CheckpointData`; keep it under its `checkpoint_id` (or its `run_id`, if one per run is enough), and give it back
    as it was: the object itself, a pickle of it, or `CheckpointData.from_dict(data.to_dict())`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "list" not in cls.__dict__ and "list_checkpoints" in cls.__dict__:
            cls.list = cls.list_checkpoints  # type: ignore[method-assign]

    @abstractmethod
    def save(self, data: Any) -> Any:
        """Keep a checkpoint, in place of an earlier one of the same id."""

    @abstractmethod
    def load(self, checkpoint_id: str) -> Any:
        """Return the checkpoint of that id; `None`, or raise `CheckpointNotFound`, if there is none."""

    @abstractmethod
    def list(self, workflow_name: str | None = None) -> Any:
        """Return all checkpoints, or those of one workflow; either themselves or the ids that `load` takes.

        It may be called `list_checkpoints` instead.
        """

    @abstractmethod
    def delete(self, checkpoint_id: str) -> Any:
        """Remove a checkpoint; one that is not there is no error."""

    def save_state(self, state: State) -> str:
        """Save a state as the checkpoint of its run, which is its id; `state.checkpoint(store)` does this."""
        data = CheckpointData(origin_of(state).run_id, "state", state=state)
        call(self, "save", data)
        return data.checkpoint_id

    def list_checkpoints(self, workflow_name: str | None = None) -> Any:
        """Return all checkpoints, or those of one workflow, newest first."""
        found = (data for _, data in listed(self) if workflow_name in (None, data.workflow_name))
        return sorted(found, key=lambda data: data.created_at, reverse=True)

    def exists(self, checkpoint_id: str) -> Any:
        """Return whether there is a checkpoint of that id."""
        return loaded(self, checkpoint_id) is not None

    def prune(self, max_age_days: float | None = None, max_count: int | None = None) -> Any:
        """Keep at most `max_count` checkpoints per workflow, none older than `max_age_days`; return how many went."""
        check_limits(max_age_days=max_age_days, max_count=max_count)
        newest_first = sorted(listed(self), key=lambda pair: pair[1].created_at, reverse=True)
        kept, gone, now = dict[str, int](), 0, clock.time()
        for ident, data in newest_first:
            age = (now - data.created_at.timestamp()) / 86_400
            place = kept[data.workflow_name] = kept.get(data.workflow_name, 0) + 1
            if (max_age_days is not None and age > max_age_days) or (
                max_count is not None and place > max_count
            ):
                call(self, "delete", ident)
                gone += 1
        return gone

    def cleanup_expired(self, max_age_hours: float = 24) -> Any:
        """Remove the checkpoints that are older than that; return how many went."""
        check_limits(max_age_hours=max_age_hours)
        return CheckpointStore.prune(self, max_age_days=max_age_hours / 24)


def check_limits(**limits: float | None) -> None:
    """Refuse limits that are no numbers or are negative: what is older than a negative age is everything.

    A limit whose name ends in `_count` is a whole number of at least 1.
    """
    for name, limit in limits.items():
        is_count = name.endswith("_count")
        kind: type | tuple[type, ...] = int if is_count else (int, float)
        if limit is None and name != "max_age_hours":
            continue
        if limit is None or isinstance(limit, bool) or not isinstance(limit, kind) or not limit >= is_count:
            wanted = "a whole number of at least 1" if is_count else "a number of at least 0"
            raise HoldfastError(f"{name} must be {wanted}, not {limit!r:.80}")


# Calling a store that somebody else wrote.


def call(custom: Any, method: str, *args: Any) -> Any:
    """Return what a method of a user's store returns, awaited if need be; what it raises becomes a `StoreError`."""
    try:
        return resolved(getattr(custom, method)(*args))
    except (HoldfastError, MemoryError):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise StoreError(f"{type(custom).__name__}.{method} failed: {text}", raised=error) from error


def loaded(custom: Any, ident: str) -> CheckpointData | None:
    """Return the checkpoint that a user's store has under an id; `None` if it says that it has none."""
    try:
        found = call(custom, "load", ident)
    except CheckpointNotFound:
        return None
    except StoreError as error:
        if isinstance(error.__cause__, LookupError):  # KeyError: a dict's way of saying that it has none.
            return None
        raise
    return None if found is None else as_data(custom, found)


def listed(custom: Any) -> Iterator[tuple[str, CheckpointData]]:
    """Yield everything in a user's store: the ids that its `load` takes, and the checkpoints."""
    found = call(custom, "list" if hasattr(custom, "list") else "list_checkpoints")
    if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
        raise StoreError(
            f"{type(custom).__name__}.list returned {found!r:.80}, not a list of checkpoints or ids"
        )
    for each in list(found):
        if isinstance(each, str):
            data = loaded(custom, each)
            if data is not None:
                yield each, data
        else:
            data = as_data(custom, each)
            yield getattr(each, "checkpoint_id", "") or data.checkpoint_id or data.run_id, data


def as_data(custom: Any, found: Any) -> CheckpointData:
    """Return what a user's store has kept as a checkpoint: itself, its plain data, a state, or something like it."""
    if isinstance(found, CheckpointData):
        return found
    if isinstance(found, State):
        return CheckpointData(state=found)
    if isinstance(found, Mapping):
        return CheckpointData.from_dict(found)
    names = ("checkpoint_id", "workflow_name", "workflow_inputs", "completed_agents", "journal", "created_at")
    facts = {name: getattr(found, name) for name in names if hasattr(found, name)}
    if "checkpoint_id" not in facts:
        raise StoreError(
            f"{type(custom).__name__} returned {found!r:.80}, which is no checkpoint: it has no id"
        )
    context: Any = getattr(found, "context_snapshot", getattr(found, "context", {}))
    return CheckpointData(context=context, **facts)


def run_of(data: CheckpointData) -> str:
    """Return the run that a checkpoint belongs to; one that was made by hand is a run of its own."""
    return data.run_id if data.journal else data.checkpoint_id or data.run_id


# A full store made of a user's: journals are in memory, and each save has all that a later process needs.


_numbers = itertools.count(1)
_adapted: weakref.WeakValueDictionary[int, AdaptedStore] = weakref.WeakValueDictionary()
_NEEDED = ("save", "load", "delete")


def is_custom(given: object) -> bool:
    """Return whether an object has the methods of a `CheckpointStore`."""
    lists = hasattr(given, "list") or hasattr(given, "list_checkpoints")
    return lists and all(callable(getattr(given, name, None)) for name in _NEEDED)


def adapted(custom: Any) -> Store:
    """Return the full store that a user's store of checkpoints is used as; always the same one for the same object."""
    whole = getattr(custom, "_whole_store", None)
    if isinstance(custom, CheckpointStore) and isinstance(whole, Store):
        return whole
    if isinstance(custom, type) or not is_custom(custom):
        raise StoreError(
            f"{custom!r:.80} names no store; give a URL such as sqlite:///runs.db, a store, or an object with the "
            "methods save, load, list and delete (holdfast.checkpoints.CheckpointStore)"
        )
    found = _adapted.get(id(custom))
    if found is None or found.custom is not custom or found.is_closed:
        found = _adapted[id(custom)] = AdaptedStore(custom)
        logger.warning(
            "runs are kept through %s: a process that dies can be resumed from what it saved, but nothing keeps two "
            "processes on different machines from executing one run at once, a command reaches a run only in the "
            "process that executes it, and every save holds the whole run (docs/howto/writing-a-store.md)",
            type(custom).__name__,
        )
    return found


class AdaptedStore(MemoryStore):
    """Journals in memory, and in a user's store of checkpoints: it is saved to before a commit is acknowledged.

    Each commit saves a `CheckpointData` under the id of the run's newest checkpoint, with the journal as text. What
    other processes have saved is read when runs are looked for.
    """

    def __init__(self, custom: Any) -> None:
        super().__init__()
        self.url = f"checkpoint-store:{type(custom).__name__}#{next(_numbers)}"
        self.custom = custom
        self._lock = threading.RLock()  # type: ignore[assignment]
        self._seen: dict[str, str] = {}
        """By id in the user's store, the digest of the journal that was last read or saved there."""
        self._damaged: dict[str, CorruptJournal] = {}
        self._growing: dict[str, _Growing] = {}

    @property
    def is_closed(self) -> bool:
        """Whether it refuses every call."""
        return self._closed

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        locked(self._lock, self._refresh)
        self._refuse_damaged(wanted.get("run"))
        return super().runs(**wanted)

    @synchronized
    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        staged = self._staged(run)
        dropped = staged.prune(run, horizon, forks=forks)
        if dropped:
            self._keep(staged, run)
            newest = self._ids(run)[-1:]
            for ident in [ident for ident in self._ids(run, below=horizon.seq) if ident not in newest]:
                call(self.custom, "delete", ident)
        return dropped

    @synchronized
    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        found = self._find(run)
        if found is None or self._is_parent(found, forks):
            return False
        for ident in self._ids(run):
            call(self.custom, "delete", ident)
        if any(run_of(data) == run for _, data in listed(self.custom)):
            call(self.custom, "delete", run)
        return super().delete(run, forks=forks)

    @synchronized
    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        found = self._find(run)
        if found is not None and self._is_elsewhere(found.info):
            raise StoreError(
                f"run {run!r} is executed by {describe(found.info.owner)}, and {type(self.custom).__name__} cannot "
                "pass commands to another process; give the command there, or use a store of open_store"
            )
        staged = self._staged(run)
        posted = staged.post(run, body, number)
        self._keep(staged, run)
        return posted

    def _is_elsewhere(self, info: RunInfo) -> bool:
        """Return whether another process executes a run, as far as can be seen."""
        if info.status != RunStatus.RUNNING or active_runs.find(self, info.run) is not None:
            return False
        return is_alive(info.owner, self)

    def footprint(self) -> Footprint:
        """Return what kind of store this is."""
        return Footprint("checkpoint store", type(self.custom).__name__)

    def _find(self, run: str) -> JournalInMemory | None:
        found = super()._find(run)
        if found is None:
            locked(self._lock, self._refresh)
            self._refuse_damaged(run)
            found = super()._find(run)
        return found

    def _refuse_damaged(self, run: str | None) -> None:
        if run is not None and run in self._damaged:
            raise self._damaged[run]

    def _apply(self, append: Append) -> Conflict | None:
        if append.after == 0:
            self._find(append.run)  # Another process may have made it.
        staged = self._staged(append.run)
        conflict = staged._apply(append)
        if conflict is None:
            self._keep(staged, append.run)
        return conflict

    def _staged(self, run: str) -> MemoryStore:
        """Return a store with the same runs, of which one may be changed: what is not saved must not be seen."""
        self._check_open()
        staged = MemoryStore()
        staged._runs, staged._keys = dict(self._runs), dict(self._keys)
        found = self._runs.get(run)
        if found is not None:
            staged._runs[run] = dataclasses.replace(
                found, entries=list(found.entries), inbox=list(found.inbox)
            )
        return staged

    def _keep(self, staged: MemoryStore, run: str) -> None:
        """Save a run as it is now, then take it over."""
        changed = staged._runs[run]
        growing = self._growing.pop(run, None)  # If this is interrupted, the next one reads everything again.
        if growing is None and changed.first == 1:
            growing = _Growing(changed.info)
        data = _described(staged, changed, growing)
        call(self.custom, "save", data)
        first = checkpoint_id(changed.info.key, 1)
        is_bare = changed.first == 1 and changed.entries[0].mark is None
        if is_bare and first in self._seen and data.checkpoint_id != first:
            # What the run was saved as before it had a checkpoint.
            self._seen.pop(first)
            with suppress(StoreError):
                call(self.custom, "delete", first)
        self._keys[changed.info.key] = run
        self._seen[data.checkpoint_id] = data.journal[:_DIGEST]
        self._runs[run] = changed
        if growing is not None and growing.is_current and changed.info.status == RunStatus.RUNNING:
            self._growing[run] = growing

    def _ids(self, run: str, below: int | None = None) -> list[str]:
        """Return under which ids the user's store has a run, oldest first; those of entries before `below`."""
        found = []
        for ident, data in listed(self.custom):
            if run_of(data) == run:
                found.append((_unpacked(data).journal.head if data.journal else 0, ident))
        return [ident for seq, ident in sorted(found) if below is None or seq < below]

    def _refresh(self) -> None:
        """Read what the user's store has, but for the runs that this process executes: of these it has no more."""
        self._check_open()
        by_run: dict[str, list[tuple[str, CheckpointData]]] = {}
        for ident, data in listed(self.custom):
            by_run.setdefault(run_of(data), []).append((ident, data))
        runs, damaged = self._runs.copy(), dict[str, CorruptJournal]()
        for run, items in by_run.items():
            fresh = {ident: data.journal[:_DIGEST] for ident, data in items}
            known = run in runs and all(self._seen.get(ident) == seen for ident, seen in fresh.items())
            if known or (run in runs and active_runs.find(self, run) is not None):
                continue
            try:
                runs[run] = _merged([data for _, data in items])
                self._growing.pop(run, None)
            except CorruptJournal as error:
                damaged[run] = error
                runs.pop(run, None)
                logger.error("%s; the run is left out", error)
                continue
            self._seen.update(fresh)
        for run in list(runs):
            if run not in by_run and active_runs.find(self, run) is None:
                del runs[run]
        self._keys = {found.info.key: run for run, found in runs.items()}
        self._runs, self._damaged = runs, damaged


class _Growing:
    """The checkpoint of a run whose journal grows: each call reads only what is new."""

    def __init__(self, info: RunInfo) -> None:
        self._codec, self._track = TolerantCodec(), Track()
        self._reading, self._seq = Reading(info, RunState(), self._codec), 0
        self.is_current = False
        """Whether the last call has read everything."""

    def read(self, store: MemoryStore, found: JournalInMemory, marked: Entry | None) -> CheckpointData:
        """Return a run as it is now."""
        journal, self.is_current = Journal(store), False
        for entry in found.between(self._seq, None):
            records = journal.records(found.info, entry, self._track, self._codec)
            parts = [part for record in records for part in parts_of(record)]
            self._reading.take(entry, parts)
            self._seq = entry.seq
        self._reading.info, self.is_current = found.info, True
        return self._reading.data(marked.seq if marked else 0, marked.at if marked else found.info.created_at)


_UNREADABLE = (HoldfastError, KeyError, AttributeError)
"""What reading entries raises that are encrypted, or no records."""


def _described(store: MemoryStore, found: JournalInMemory, growing: _Growing | None) -> CheckpointData:
    """Return a run as a checkpoint: what it is at, and its journal. Of an encrypted one only ids, names and times."""
    info = found.info
    marked = next((entry for entry in reversed(found.entries) if entry.mark is not None), None)
    ident = checkpoint_id(info.key, marked.seq if marked else 1)
    try:
        if growing is not None:
            with suppress(*_UNREADABLE):
                data = growing.read(store, found, marked)
        if growing is None or not growing.is_current:
            data = read_checkpoint(Journal(store), info, TolerantCodec(), None)
        return dataclasses.replace(data, checkpoint_id=ident, journal=_packed(found))
    except _UNREADABLE:
        return CheckpointData(
            checkpoint_id=ident,
            run_id=info.run,
            workflow_name=info.workflow,
            status=info.status if info.status in set(RunStatus) else RunStatus.INTERRUPTED,
            created_at=utc_time(marked.at if marked else info.created_at),
            updated_at=utc_time(info.updated_at),
            journal=_packed(found),
        )


_DIGEST, _VERSION = 32, 1
"""How many characters of a journal as text are its checksum, and the version of its form."""


def _packed(found: JournalInMemory) -> str:
    """Return a run as text: its facts, its newest snapshot and the entries from there on, its inbox."""
    newest = max(found.snapshots, default=found.first)
    snapshots = [found.snapshots[newest]] if found.snapshots else []
    body = ormsgpack.packb(
        [
            _VERSION,
            found.first,
            list(dataclasses.astuple(found.info)),
            [list(entry) for entry in found.between(newest - 1, None)],
            [list(dataclasses.astuple(snapshot)) for snapshot in snapshots],
            [list(dataclasses.astuple(message)) for message in found.inbox],
        ]
    )
    return hashlib.blake2b(body, digest_size=_DIGEST // 2).hexdigest() + base64.b64encode(body).decode()


class _Kept(NamedTuple):
    """A journal as one checkpoint has it, and the entry before which the whole run was pruned."""

    journal: JournalInMemory
    horizon: int


def _unpacked(data: CheckpointData) -> _Kept:
    """Return the journal that a checkpoint has as text; `CorruptJournal` if it is not what was written."""
    try:
        body = base64.b64decode(data.journal[_DIGEST:], validate=True)
        if hashlib.blake2b(body, digest_size=_DIGEST // 2).hexdigest() != data.journal[:_DIGEST]:
            raise ValueError("its checksum does not match")
        version, horizon, facts, entries, snapshots, inbox = ormsgpack.unpackb(body)
        if version != _VERSION:
            raise ValueError("it is of another version")
        info = RunInfo(*facts)
        journal = JournalInMemory(
            dataclasses.replace(info, tags=tuple(info.tags)),
            entries[0][0],
            [Entry(*entry) for entry in entries],
            {each[0]: Snapshot(*each) for each in snapshots},
            [Message(*each) for each in inbox],
        )
        if not _is_sound(journal) or journal.info.run != data.run_id:
            raise ValueError("it has other parts than a journal")
        return _Kept(journal, int(horizon))
    except (ValueError, TypeError, IndexError, binascii.Error) as error:
        raise CorruptJournal(
            f"run {data.run_id!r}: the journal in checkpoint {data.checkpoint_id} is not what was saved ({error})",
            run=data.run_id,
        ) from None


def _is_sound(journal: JournalInMemory) -> bool:
    """Return whether the parts of a journal have their types; the journal checks that they belong together."""
    info = journal.info
    texts = (info.run, info.workflow, info.status, info.owner, info.queue, info.origin, *info.tags)
    numbers: list[Any] = [info.created_at, info.updated_at, info.priority]
    blobs: list[Any] = [info.key, info.parent]
    others: list[Snapshot | Message] = [*journal.snapshots.values(), *journal.inbox]
    for number, each in enumerate(journal.entries, journal.first):
        numbers += [each.at] if each.seq == number else [None]
        blobs += [each.chain, each.body, each.mark or b""]
    for other in others:
        numbers.append(other.at)
        blobs.append(other.body)
    are_numbers = all(isinstance(number, (int, float)) for number in numbers)
    return (
        are_numbers
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(blob, bytes) for blob in blobs)
    )


def _merged(found: Sequence[CheckpointData]) -> JournalInMemory:
    """Return a run of all its checkpoints in a user's store: as far back as their journals reach without a gap."""
    kept = [_unpacked(data) for data in found if data.journal]
    if not kept:
        return _journal_by_hand(max(found, key=lambda data: data.updated_at))
    newest, horizon = max(
        kept, key=lambda each: (each[0].info.created_at, each[0].head, each[0].info.updated_at)
    )
    same = [each for each, _ in kept if each.info.key == newest.info.key]
    entries = {entry.seq: entry for each in same for entry in each.entries if entry.seq >= horizon}
    snapshots = {seq: one for each in same for seq, one in each.snapshots.items() if seq >= horizon}
    first = newest.head
    while first - 1 in entries:
        first -= 1
    if first > 1:
        first = min((seq for seq in snapshots if seq >= first), default=newest.head)
    return JournalInMemory(
        newest.info,
        first,
        [entries[seq] for seq in range(first, newest.head + 1)],
        {seq: one for seq, one in snapshots.items() if first <= seq <= newest.head},
        newest.inbox,
    )


def _journal_by_hand(data: CheckpointData) -> JournalInMemory:
    """Return a journal for a checkpoint that has none: somebody saved a state, or a store kept only some fields."""
    store, run = MemoryStore(), run_of(data)
    save_by_hand(Journal(store), TolerantCodec(), run, data, is_whole=bool(data.checkpoint_id))
    return store._runs[run]
