"""What a store is: opaque bytes with a few plain columns, and few verbs.

A store knows nothing of graphs, state or meaning. It keeps, per run, an append-only list of
entries, some snapshots, an inbox, and one row of plain facts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast, runtime_checkable

from holdfast import clock
from holdfast.errors import HoldfastError, StoreError


class Entry(NamedTuple):
    """What one append adds to a run's journal: one or more records, all or none.

    `seq` counts 1, 2, 3 … without gaps. `chain` is a checksum over the body and the chain of the
    entry before. `mark` holds the plain facts of a checkpoint when the entry ends in one.
    """

    seq: int
    at: float
    chain: bytes
    body: bytes
    mark: bytes | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cached fold of the entries 1 … `seq`; only a cache, except below a pruned horizon."""

    seq: int
    at: float
    chain: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The plain facts of one run. `key` is eight bytes, unique in the store, and never changes.

    A run with a `queue` belongs to the fleet: workers of that queue drive it, those of a higher `priority`
    first. `due_at` is when a queued or paused run wants to be taken up; `None` is: a queued one at once, a
    paused one never by itself.
    """

    run: str
    key: bytes
    workflow: str
    status: str
    created_at: float
    updated_at: float
    driver: str = ""
    tags: tuple[str, ...] = ()
    queue: str = ""
    priority: int = 0
    due_at: float | None = None
    parent: bytes = b""
    """The key of the run that it was forked from, if it was."""
    origin: str = ""
    """Where it came from, if from outside, and who confirmed it; see `journal.provenance`."""


class Append(NamedTuple):
    """One atomic addition to one run.

    `after` is the seq the writer believes to be the last; 0 creates the run (and then `info` and at
    least one entry are required). The entries count on from `after`; there may be none, to change
    only the facts. A run whose beginning was pruned elsewhere is created from its horizon on: its first
    entry is then one that has a snapshot among `snapshots`. `info`, when given, replaces the run's facts,
    except that its `key` stays what it was at creation. `snapshots` are kept beside the entries and lie at
    or below the new last seq.
    `durable` asks that the addition survive a power loss, not only the death of the process. `link`, when
    given, is the chain of the entry at `after`: a store whose server can lose what it acknowledged (a
    fail-over, a commit that did not wait for the disk) refuses an append whose predecessor is another.
    """

    run: str
    after: int
    entries: Sequence[Entry]
    info: RunInfo | None = None
    snapshots: Sequence[Snapshot] = ()
    durable: bool = True
    link: bytes = b""


@dataclass(frozen=True, slots=True)
class Mark:
    """One checkpoint as listed: its position, time, plain facts and the size of its entry's body."""

    seq: int
    at: float
    mark: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Message:
    """Something the outside asked of a run; `number` counts up within the run."""

    number: int
    at: float
    body: bytes


class Conflict(HoldfastError):
    """The run is not where the writer believed it to be; nothing of that append was written.

    `head` is the last seq that the store has for the run, or `None` if it has no such run.
    """

    def __init__(self, run: str, after: int, head: int | None) -> None:
        self.run, self.after, self.head = run, after, head
        super().__init__(f"run {run!r} is at {head}, not at {after}")


class Readable(Protocol):
    """What can be read as a store is."""

    url: str

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]: ...
    def marks(self, run: str, before: int | None = None, limit: int | None = None) -> list[Mark]: ...
    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None: ...
    def runs(self, *, run: str | None = None, key: bytes | None = None) -> list[RunInfo]: ...
    def inbox(self, run: str, after: int = 0) -> list[Message]: ...


@runtime_checkable
class Store(Protocol):
    """Where journals live. Every method may be called from any thread; errors are `StoreError`s."""

    url: str

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        """Write all `appends` in one transaction and one sync; answer in their order.

        Each append stands or falls alone: `None` says it is written (and durable as asked),
        a `Conflict` says that nothing of it was. Creating a run whose id or key is taken is a
        `Conflict` too. Several appends may follow each other on one run. Raises `StoreError`, with
        nothing of any append written, if the medium refuses or an append is malformed.
        """
        ...

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        """The entries with `after < seq <= upto`, in order; none for an unknown run.

        Large journals are read page by page; pruning one meanwhile may raise a `StoreError`.
        """
        ...

    def marks(self, run: str, before: int | None = None, limit: int | None = None) -> list[Mark]:
        """The run's checkpoints, newest first, with `seq < before`, at most `limit`."""
        ...

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot with `seq <= upto`."""
        ...

    def runs(
        self,
        *,
        run: str | None = None,
        key: bytes | None = None,
        workflow: str | None = None,
        status: Sequence[str] | None = None,
        limit: int | None = None,
        prefix: str | None = None,
        before: float | None = None,
        parent: bytes | None = None,
    ) -> list[RunInfo]:
        """The runs that match every filter given, latest `updated_at` first, then by run id.

        `prefix` is how their ids begin; their `updated_at` lies before `before`; `parent` is the key of the run that
        they were forked from.
        """
        ...

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        """Keep `horizon`, drop every entry and snapshot before its seq; answer how many entries went.

        The entry at the horizon stays, so a run never loses its head. If the run has no entry of
        that seq (unknown run, beyond the head, below an earlier horizon), nothing changes: 0. Nor does it if
        `forks` is given and the run is the parent of others than those with these keys: whoever creates a run
        with a parent either comes before, and is seen here, or comes after, and sees what is gone.
        """
        ...

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        """Remove a run and all that belongs to it; `False` if there was none, or, as in `prune`, other `forks`."""
        ...

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        """Put a message into the run's inbox, durably; answer its number (1, 2, 3 …).

        With `number` it is put there only if that is the number it gets: else a `Conflict`, whose `head` is the last
        number there is, is raised. Raises `StoreError` if there is no such run.
        """
        ...

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        """The messages with `number > after`, in order."""
        ...

    def close(self) -> None:
        """Release every resource. Closing twice is harmless; other calls then raise `StoreError`."""
        ...


@runtime_checkable
class Leases(Protocol):
    """What a store adds that several machines share: telling by its own clock whether a driver is alive."""

    def lease(self) -> str:
        """The name of this process's lease, which is renewed from now until the store is closed."""
        ...

    def is_live(self, lease: str) -> bool:
        """Whether a lease was renewed in time."""
        ...

    def lapses(self) -> int:
        """A number that changes whenever this process may have been thought dead: its lease was not renewed in time.

        By its own clock. While that lasts it is another each time, for anybody may come at any moment, and once more
        when it is over. Asked before every step, so it costs nothing.
        """
        ...


def leases_of(store: Store) -> Leases | None:
    """The store, if it has leases. Asked for every run, so each kind of store is looked at only once.

    One that stands for another, whatever that is, is looked at each time.
    """
    kind = type(store)
    has_leases = _LEASED.get(kind)
    if has_leases is None:
        has_leases = isinstance(store, Leases)
        if not hasattr(kind, "__getattr__"):
            _LEASED[kind] = has_leases
    return cast(Leases, store) if has_leases else None


_LEASED: dict[type, bool] = {}


@runtime_checkable
class Watched(Protocol):
    """What a store adds that is told of changes, so that nobody has to ask again and again."""

    def changed(self, run: str, timeout: float) -> bool:
        """Wait until something of a run may have changed, its journal or its inbox; `False` after `timeout`."""
        ...


@runtime_checkable
class Overview(Protocol):
    """What a store adds that is a round trip away: telling of many runs in one answer."""

    def newest_marks(self, runs: Sequence[str]) -> dict[str, Mark]:
        """The newest checkpoint of each of these runs that has one."""
        ...

    def inboxes(self, after: Mapping[str, int]) -> dict[str, list[Message]]:
        """As `Store.inbox` for each of these runs; one that is not answered has no such messages."""
        ...


def newest_marks(store: Store, runs: Sequence[str]) -> dict[str, Mark]:
    """The newest checkpoint of each of these runs that has one."""
    if isinstance(store, Overview):
        return store.newest_marks(runs)
    found = {run: store.marks(run, limit=1) for run in runs}
    return {run: marks[0] for run, marks in found.items() if marks}


def inboxes(store: Store, after: Mapping[str, int]) -> dict[str, list[Message]]:
    """The messages of each of these runs with numbers above the one given."""
    if len(after) > 1 and isinstance(store, Overview):
        return store.inboxes(after)
    return {run: store.inbox(run, number) for run, number in after.items()}


def wait_for_change(store: Store, run: str, timeout: float) -> None:
    """Wait until something of a run may have changed, at most `timeout` seconds."""
    if isinstance(store, Watched):
        store.changed(run, timeout)
    else:
        clock.sleep(timeout)


DEFAULT_NAMESPACE = "default"


def namespace_of(store: Readable) -> str:
    """The namespace that a store is bound to: it neither lists nor reads the runs of another."""
    return str(getattr(store, "namespace", DEFAULT_NAMESPACE))


def check_number(run: str, number: int | None, last: int) -> None:
    """Raise `Conflict` if a message is to get another number than the next one."""
    if number is not None and number != last + 1:
        raise Conflict(run, number - 1, last)


def end_of_prefix(prefix: str) -> str | None:
    """The first text, by code points, after all that begin with `prefix`; `None` if there is none."""
    for place in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[place]) + 1
        if code <= sys.maxunicode:
            return prefix[:place] + chr(_AFTER_SURROGATES if code in _SURROGATES else code)
    return None


_SURROGATES, _AFTER_SURROGATES = range(0xD800, 0xE000), 0xE000


def check(append: Append) -> None:
    """Raise `StoreError` for an append that no store may accept, whatever the run's head is."""
    _, head, entries, info, snapshots, _, _ = append
    if head > 0 and len(entries) == 1 and entries[0].seq == head + 1 and info is None and not snapshots:
        return
    head = head or pruned_before(append)
    for entry in entries:
        head += 1
        if entry.seq != head:
            raise StoreError(f"run {append.run!r}: entry {entry.seq} given where {head} is next")
    if append.after == 0:
        _check_creation(append)
    if append.info is not None and append.info.run != append.run:
        raise StoreError(f"run {append.run!r}: the facts given are those of {append.info.run!r}")
    for snapshot in append.snapshots:
        if not 0 < snapshot.seq <= head:
            raise StoreError(f"run {append.run!r}: snapshot {snapshot.seq} lies outside 1 to {head}")


def pruned_before(append: Append) -> int:
    """How many entries a run that is created lacks at its beginning, since they were pruned elsewhere."""
    first = append.entries[0].seq if append.entries else 1
    return first - 1 if any(snapshot.seq == first for snapshot in append.snapshots) else 0


def _check_creation(append: Append) -> None:
    if append.info is None or not append.entries:
        raise StoreError(f"run {append.run!r}: creating it needs its facts and an entry")
    try:
        valid = bool(append.run.encode())
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise StoreError(f"{append.run!r} cannot be a run id; use text that is not empty")


PAGE_ENTRIES, PAGE_BYTES = 1000, 4 << 20
"""A page of a journal ends at the first of these."""


def paged(
    fetch: Callable[[int], tuple[list[Entry], bool]], run: str, after: int, upto: int | None
) -> Iterator[Entry]:
    """The entries that `fetch(after)` gives page by page, each with whether there may be more.

    The first page is fetched at once, so that errors appear where `read` is called.
    """
    if upto is not None and upto <= after:
        return iter(())
    page, more = fetch(after)
    return _pages(fetch, run, page) if more else iter(page)


def _pages(fetch: Callable[[int], tuple[list[Entry], bool]], run: str, page: list[Entry]) -> Iterator[Entry]:
    more = True
    while page:
        yield from page
        last = page[-1].seq
        page, more = fetch(last) if more else ([], False)
        if page and page[0].seq != last + 1:
            raise StoreError(f"run {run!r} was pruned while it was read; read it again")


def is_in_memory(store: Store) -> bool:
    """Whether a store is gone with the process."""
    return store.url.startswith("memory:")


def in_memory_only(store: Store) -> str:
    """Return what a message adds to "kept" if this store is gone with the process; empty for all others."""
    if not is_in_memory(store):
        return ""
    return " in memory only, until this process ends (to keep them, compile with store='sqlite:///runs.db')"
