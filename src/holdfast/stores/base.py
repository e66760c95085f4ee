"""The store protocol: opaque bytes with a few plain columns, and few verbs; and what all stores do alike.

A store knows nothing of graphs, state or meaning. It keeps, per run, an append-only list of
entries, some snapshots, an inbox, and one row of plain facts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack, cast, runtime_checkable

from holdfast import clock
from holdfast.errors import HoldfastError, StoreError


class Entry(NamedTuple):
    """One or more records that one append adds to a run's journal, all or none.

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

    A run with a `queue` belongs to the fleet: workers of that queue execute it, those of a higher `priority`
    first. `due_at` is when a worker may execute a queued or paused run; `None` means at once for a queued run, and
    never for a paused one.
    """

    run: str
    key: bytes
    workflow: str
    status: str
    created_at: float
    updated_at: float
    owner: str = ""
    tags: tuple[str, ...] = ()
    queue: str = ""
    priority: int = 0
    due_at: float | None = None
    parent: bytes = b""
    """The key of the run that it was forked from, if it was."""
    origin: str = ""
    """The provenance of a run from outside, and who confirmed it; see `journal.provenance`."""


FACTS = tuple(field.name for field in fields(RunInfo))
"""The columns of a run's facts, its id and its key first."""


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
class StoredCheckpoint:
    """One checkpoint as listed: its position, time, plain facts and the size of its entry's body."""

    seq: int
    at: float
    facts: bytes
    size: int

    @classmethod
    def of(cls, entry: Entry) -> StoredCheckpoint:
        """Return the checkpoint that an entry ends in."""
        return cls(entry.seq, entry.at, entry.mark or b"", len(entry.body))


@dataclass(frozen=True, slots=True)
class Message:
    """A command in a run's inbox; `number` counts up within the run."""

    number: int
    at: float
    body: bytes


class Conflict(HoldfastError):
    """The run's last seq is not the one that the append names; nothing of that append was written.

    `head` is the last seq that the store has for the run, or `None` if it has no such run.
    """

    def __init__(self, run: str, after: int, head: int | None) -> None:
        self.run, self.after, self.head = run, after, head
        super().__init__(f"run {run!r} is at {head}, not at {after}")


class RunFilter(TypedDict, total=False):
    """The filters of `Store.runs`. A run matches if it matches every filter that is given and not `None`."""

    run: str | None
    key: bytes | None
    workflow: str | None
    status: Sequence[str] | None
    limit: int | None
    prefix: str | None
    """The beginning of the run ids."""
    before: float | None
    """A time that `updated_at` lies before."""
    parent: bytes | None
    """The key of the run that the runs were forked from."""
    since: float | None
    """The earliest `updated_at`."""
    past: tuple[float, str] | None
    """`updated_at` and id of the last run of a page: those that come after it in the list."""


class Readable(Protocol):
    """The reading half of a store."""

    url: str

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        """Return the entries with `after < seq <= upto`, in order; none for an unknown run.

        Large journals are read page by page; pruning one meanwhile may raise a `StoreError`.
        """

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        """Return the run's checkpoints, newest first, with `seq < before`, at most `limit`."""

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        """Return the newest snapshot with `seq <= upto`."""

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        """Return the runs that match every filter given, latest `updated_at` first, then by run id."""

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        """Return the messages with `number > after`, in order."""


@runtime_checkable
class Store(Readable, Protocol):
    """A place for journals. Every method may be called from any thread; errors are `StoreError`s."""

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        """Write all `appends` in one transaction and one sync; return one answer per append, in order.

        `None` says that the append is written (and durable as asked), a `Conflict` that nothing of it is; the
        others are written all the same. Creating a run whose id or key is taken is a `Conflict` too. Several
        appends may follow each other on one run. Raises `StoreError`, with nothing of any append written, if the
        medium refuses or an append is malformed.
        """

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        """Keep `horizon`, drop every entry and snapshot before its seq; return how many entries were dropped.

        The entry at the horizon stays, so a run never loses its last entry. If the run has no entry of
        that seq (unknown run, beyond the head, below an earlier horizon), nothing changes: 0. Nor does it if
        `forks` is given and the run is the parent of runs with other keys. A concurrent fork is either created
        before, and seen here, or after, and sees what is gone.
        """

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        """Remove a run and all that belongs to it; `False` if there is none, or, as in `prune`, other `forks`."""

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        """Put a message into the run's inbox, durably; return its number (1, 2, 3 …).

        With `number`, raises `Conflict` unless that is the next number; its `head` is the last number. Raises
        `StoreError` if there is no such run.
        """

    def close(self) -> None:
        """Release every resource. Closing twice is harmless; other calls then raise `StoreError`."""


class KeepsCheckpoints(Protocol):
    """Something that only keeps checkpoints, sync or async: a `holdfast.checkpoints.CheckpointStore`, or alike."""

    def save(self, data: Any, /) -> Any: ...
    def load(self, checkpoint_id: str, /) -> Any: ...
    def delete(self, checkpoint_id: str, /) -> Any: ...


@runtime_checkable
class Leases(Protocol):
    """Leases of processes, by the clock of a store that several machines share."""

    def lease(self) -> str:
        """Return the name of this process's lease, which is renewed from now until the store is closed."""

    def is_live(self, lease: str) -> bool:
        """Return whether a lease was renewed in time."""

    def lapses(self) -> int:
        """Return a number that changes whenever this process's lease, by its own clock, was not renewed in time.

        While that lasts each call returns another number, since any worker may take over at any time; it changes
        once more afterwards. Called before every step, so it costs nothing.
        """


def leases_of(store: Store) -> Leases | None:
    """Return the store if it has leases. Called for every run, so each class is looked at only once.

    A class with `__getattr__`, which may wrap any store, is looked at each time.
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
    """Notifications of changes, so that nobody has to poll."""

    def changed(self, run: str, timeout: float) -> bool:
        """Wait until something of a run may have changed, its journal or its inbox; `False` after `timeout`."""


@runtime_checkable
class Overview(Protocol):
    """Answers about many runs in one round trip."""

    def newest_checkpoints(self, runs: Sequence[str]) -> dict[str, StoredCheckpoint]:
        """Return the newest checkpoint of each of these runs that has one."""

    def inboxes(self, after: Mapping[str, int]) -> dict[str, list[Message]]:
        """Return `Store.inbox` for each of these runs; runs without such messages are left out."""


class StatusCount(NamedTuple):
    """How many runs have a status, and when the first of them was last updated."""

    runs: int
    oldest: float


@runtime_checkable
class Counts(Protocol):
    """A store that counts its runs without listing them."""

    def count_runs(self) -> dict[str, StatusCount]:
        """Return how many runs there are of each status that any has."""


def count_runs(store: Store) -> dict[str, StatusCount]:
    """Return how many runs of a store there are of each status."""
    if isinstance(store, Counts):
        return store.count_runs()
    found: dict[str, StatusCount] = {}
    for info in store.runs():
        known = found.get(info.status, StatusCount(0, info.updated_at))
        found[info.status] = StatusCount(known.runs + 1, min(known.oldest, info.updated_at))
    return found


class RunSize(NamedTuple):
    """How much one run holds; sizes are those of the bodies, in bytes."""

    run: str
    entries: int = 0
    checkpoints: int = 0
    entry_bytes: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0
    messages: int = 0
    message_bytes: int = 0

    @property
    def size(self) -> int:
        """Return the sum of all sizes, in bytes."""
        return self.entry_bytes + self.snapshot_bytes + self.message_bytes


class Footprint(NamedTuple):
    """The kind of a store and its place; the version of its schema, if it has one, and its size on disk."""

    kind: str
    place: str
    schema: int | None = None
    disk_bytes: int | None = None


@runtime_checkable
class Measured(Protocol):
    """A store that can tell how much it holds."""

    def footprint(self) -> Footprint:
        """Return the store as a whole."""

    def sizes(self) -> Iterable[RunSize]:
        """Return how much each run of the store's namespace holds, without reading any body."""


def newest_checkpoints(store: Store, runs: Sequence[str]) -> dict[str, StoredCheckpoint]:
    """Return the newest checkpoint of each of these runs that has one."""
    if isinstance(store, Overview):
        return store.newest_checkpoints(runs)
    found = {run: store.checkpoints(run, limit=1) for run in runs}
    return {run: stored[0] for run, stored in found.items() if stored}


def inboxes(store: Store, after: Mapping[str, int]) -> dict[str, list[Message]]:
    """Return the messages of each of these runs with numbers above the one given."""
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

SCHEMA_VERSION = 1
"""The version of the tables of SQLite and PostgreSQL; a store with another version is refused."""


def other_version(url: str, version: int) -> StoreError:
    """Return the error for a store that was made by another version of Holdfast."""
    return StoreError(
        f"{url} was made by another version of Holdfast (schema {version}, this version has {SCHEMA_VERSION}); "
        "use that version, or choose another store"
    )


def namespace_of(store: Readable) -> str:
    """Return the namespace that a store is bound to: it neither lists nor reads the runs of another."""
    return str(getattr(store, "namespace", DEFAULT_NAMESPACE))


class BaseStore:
    """The parts that the stores of this package share."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        self._closed = False

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        """Return the entries of a run page by page."""
        if upto is not None and upto <= after:
            return iter(())
        # The first page is fetched at once, so that errors appear where `read` is called.
        page, more = self._page(run, within(after), within(upto))
        return self._pages(run, page, within(upto)) if more else iter(page)

    def _pages(self, run: str, page: list[Entry], last: int) -> Iterator[Entry]:
        more = True
        while page:
            yield from page
            end = page[-1].seq
            page, more = self._page(run, end, last) if more else ([], False)
            if page and page[0].seq != end + 1:
                raise StoreError(f"run {run!r} was pruned while it was read; read it again")

    def _page(self, run: str, after: int, last: int) -> tuple[list[Entry], bool]:
        """Return the entries after `after` up to `last`, as many as fit on a page, and whether there may be more."""
        raise NotImplementedError

    def close(self) -> None:
        """Refuse every further call."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.url} is closed; open it again", is_closed=True)


LAST_SEQ = (1 << 32) - 1
"""The largest seq, or number of a message, that a run can have."""


def within(number: int | None) -> int:
    """Return a number as a seq, `None` as the largest one."""
    return LAST_SEQ if number is None else max(0, min(number, LAST_SEQ))


def no_inbox(run: str) -> StoreError:
    """Return the error for a message to an unknown run."""
    return StoreError(f"no run {run!r} is stored, so it has no inbox")


_MATCHES: Mapping[str, Callable[[RunInfo, Any], bool]] = {
    "run": lambda info, run: info.run == run,
    "key": lambda info, key: info.key == key,
    "workflow": lambda info, workflow: info.workflow == workflow,
    "status": lambda info, statuses: info.status in statuses,
    "prefix": lambda info, prefix: info.run.startswith(prefix),
    "before": lambda info, time: info.updated_at < time,
    "parent": lambda info, key: info.parent == key,
    "since": lambda info, time: info.updated_at >= time,
    "past": lambda info, last: (-info.updated_at, info.run) > (-last[0], last[1]),
}


def select(infos: Iterable[RunInfo], **wanted: Unpack[RunFilter]) -> list[RunInfo]:
    """Filter and order runs the way `Store.runs` promises."""
    limit = wanted.pop("limit", None)
    tests = [(_MATCHES[name], value) for name, value in wanted.items() if value is not None]
    matching = [info for info in infos if all(test(info, value) for test, value in tests)]
    return sorted(matching, key=lambda info: (-info.updated_at, info.run))[:limit]


def has_other_forks(infos: Iterable[RunInfo], key: bytes, forks: Collection[bytes] | None) -> bool:
    """Return whether runs with keys other than `forks` were forked from the run with `key`; `None` allows all."""
    return forks is not None and any(info.parent == key and info.key not in forks for info in infos)


def check_number(run: str, number: int | None, last: int) -> None:
    """Raise `Conflict` if `number` is not the next number of an inbox."""
    if number is not None and number != last + 1:
        raise Conflict(run, number - 1, last)


def end_of_prefix(prefix: str) -> str | None:
    """Return the first text, by code points, after all that begin with `prefix`; `None` if there is none."""
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
        if append.info is None or not append.entries:
            raise StoreError(f"run {append.run!r}: creating it needs its facts and an entry")
        try:
            is_valid = bool(append.run.encode())
        except UnicodeEncodeError:
            is_valid = False
        if not is_valid:
            raise StoreError(f"{append.run!r} cannot be a run id; use text that is not empty")
    if append.info is not None and append.info.run != append.run:
        raise StoreError(f"run {append.run!r}: the facts given are those of {append.info.run!r}")
    for snapshot in append.snapshots:
        if not 0 < snapshot.seq <= head:
            raise StoreError(f"run {append.run!r}: snapshot {snapshot.seq} lies outside 1 to {head}")


def pruned_before(append: Append) -> int:
    """Return how many entries a run that is created lacks at its beginning: they were pruned elsewhere."""
    first = append.entries[0].seq if append.entries else 1
    return first - 1 if any(snapshot.seq == first for snapshot in append.snapshots) else 0


PAGE_ENTRIES, PAGE_BYTES = 1000, 4 << 20
"""The limits of a page of a journal."""


def is_in_memory(store: Store) -> bool:
    """Return whether a store is lost with the process."""
    return store.url.startswith("memory:")


def in_memory_only(store: Store, option: str) -> str:
    """Return what a message adds to "kept" if this store is lost with the process; empty for all others.

    `option` says how to have another.
    """
    if not is_in_memory(store):
        return ""
    return f" in memory only, until this process ends (to keep them, {option})"


# Namespaces: a store is bound to one, and neither lists nor reads the runs of another.


def shown_url(url: str) -> str:
    """Return the URL without its password, wherever that stands."""
    place, mark, query = url.partition("?")
    if is_cut_short(place.partition("://")[2], query):
        return f"{place.partition('://')[0]}://…"
    place = re.sub(r"(://[^:@]*):.*@", r"\1@", place)
    kept = [part for part in query.split("&") if not re.match("[a-z_]*(password|secret|_key)=", part)]
    return f"{place}{mark if any(kept) else ''}{'&'.join(kept)}"


def is_cut_short(place: str, query: str) -> bool:
    """Return whether a `?` in the password cut a URL short: no port follows the colon, and an `@` comes later."""
    hosts = re.sub(r"\[[^\]]*\]", "", place)
    return "@" not in place and "@" in query and re.search(r":(?!\d*(,|/|$))", hosts) is not None


NAMESPACE_VARIABLE = "HOLDFAST_NAMESPACE"
"""The environment variable that names the namespace of stores whose URL names none."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_GIVEN = re.compile(r"[?&]namespace=([^?&]*)")
_QUERY = re.compile(r"\?([^?=/]*)=[^?/]*$")


def is_server(url: str) -> bool:
    """Return whether a URL is of a PostgreSQL server."""
    return url.lower().startswith(("postgres:", "postgresql:", "pg-embedded:"))


def check_namespace(name: str) -> str:
    """Return `name`; raise `StoreError` if it cannot name a namespace."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise StoreError(
            f"{name!r} cannot name a namespace; use at most 63 of a-z, A-Z, digits, '-', '_' and '.'"
        )
    return name


def split_namespace(url: str) -> tuple[str, str | None]:
    """Split a URL or a path into the part before `?namespace=NAME`, and that name if there is one."""
    found = _QUERY.search(url)
    if found is None:
        return url, None
    if found[1] != "namespace":
        raise StoreError(
            f"{shown_url(url)!r} has the parameter {found[1]!r}; only ?namespace=NAME is known here"
        )
    return url[: found.start()], check_namespace(found[0].partition("=")[2])


def in_namespace(url: str, name: str) -> str:
    """Return the URL of the same store in that namespace; raise `StoreError` if it names another."""
    check_namespace(name)
    found = _GIVEN.search(url)
    if found is None:
        joint = "&" if "?" in url and is_server(url) else "?"
        return f"{url}{joint}namespace={name}"
    if found[1] != name:
        raise StoreError(
            f"{shown_url(url)} names the namespace {found[1]!r}, and {name!r} is wanted; give one of them"
        )
    return url


def namespace_in(url: str) -> str | None:
    """Return the namespace that a URL of any kind names, if it names one."""
    found = _GIVEN.search(url)
    return found[1] if found else None


def wanted_namespace(environ: Mapping[str, str] = os.environ) -> str:
    """Return the namespace of a store whose URL names none."""
    name = environ.get(NAMESPACE_VARIABLE, "")
    return check_namespace(name) if name else DEFAULT_NAMESPACE


def chosen_namespace(given: str | None, of_url: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the namespace to open; raise `StoreError` if a URL names another than the one that is given."""
    if given is not None and of_url not in (None, check_namespace(given)):
        raise StoreError(f"the URL names the namespace {of_url!r}, and {given!r} is wanted; give one of them")
    return check_namespace(of_url) if of_url is not None else given or wanted_namespace(environ)


def own_url(place: str, namespace: str) -> str:
    """Return a store's URL, which opens the same namespace again whatever the environment says."""
    by_default = os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
    return place if namespace == by_default == DEFAULT_NAMESPACE else f"{place}?namespace={namespace}"


def file_of(path: Path, namespace: str) -> Path:
    """Return the database file of a namespace: the file itself, or one beside it, `runs@NAME.db`."""
    if namespace == DEFAULT_NAMESPACE:
        return path
    return path.with_name(f"{path.stem}@{_on_disk(namespace)}{path.suffix}")


def folder_of(folder: Path, namespace: str) -> Path:
    """Return the folder of a namespace: the folder itself, or `@NAME` in it, which no run's folder is called."""
    return folder if namespace == DEFAULT_NAMESPACE else folder / f"@{_on_disk(namespace)}"


def _on_disk(namespace: str) -> str:
    """Return a name that differs from all others also where file names have no case."""
    return re.sub("[A-Z]", lambda found: f"%{ord(found[0]):02x}", namespace)


# The folders that stores are kept in.


def sync_folder(folder: Path) -> None:
    """Return once the folder's names survive a power loss."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it that are missing, so that their names survive a power loss."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=mode if place == folder else 0o777, exist_ok=True)
        # A process that may make a folder there need not be allowed to read it.
        with suppress(PermissionError):
            sync_folder(place.parent)
