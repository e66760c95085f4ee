"""Looking into stores: how much they hold, and inspectors that read past what is damaged and repair the medium."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from holdfast.errors import HoldfastError, RunConflict, StoreError, problem_of
from holdfast.stores.base import (
    SCHEMA_VERSION,
    Append,
    Entry,
    Footprint,
    Measured,
    Message,
    RunInfo,
    RunSize,
    Snapshot,
    Store,
    file_of,
    folder_of,
    is_in_memory,
    is_server,
    namespace_in,
    namespace_of,
    split_namespace,
    wanted_namespace,
)
from holdfast.stores.memory import MemoryStore
from holdfast.values import RunStatus

Keep = Callable[[str, bytes], None]
"""Puts bytes aside under a name before they are removed."""

REPAIRED_AS = "repaired-as:"
"""The beginning of the tag of a damaged run that names the run with what could be read of it."""


def repaired_as(info: RunInfo) -> str:
    """Return the run that has what could be read of a damaged one; empty if it was not repaired."""
    if info.status != RunStatus.DAMAGED:
        return ""
    names = [tag.removeprefix(REPAIRED_AS) for tag in info.tags if tag.startswith(REPAIRED_AS)]
    return names[-1] if names else ""


class Found(NamedTuple):
    """A snapshot or a message as far as it can be read: its number, its bytes, and its content or its problem."""

    number: int
    raw: bytes
    content: Snapshot | Message | None
    problem: str = ""


class Listing(NamedTuple):
    """The runs whose facts can be read, and why others cannot."""

    infos: list[RunInfo]
    problems: list[str]


class Observed(NamedTuple):
    """The facts of a run as they were read, and a `version` that differs once somebody has changed the run.

    `head` is the last entry that there was when the facts were written. `problem` says why the facts cannot be
    trusted, if so; `raw` is what is stored of them.
    """

    info: RunInfo
    head: int
    version: object
    problem: str = ""
    raw: bytes = b""


class Inspector:
    """Reads a store through its usual verbs. Stores that know their medium better have inspectors of their own."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def problems(self) -> list[str]:
        """Return what is wrong with the medium, and with what belongs to no run."""
        return []

    def leftovers(self) -> list[str]:
        """Return what a crash left behind and nobody needs; no damage."""
        return []

    def beside_runs(self) -> list[str]:
        """Return what the store holds that belongs to none of the runs of its namespace: a copy does not have it."""
        return []

    def runs(self) -> Listing:
        """Return all runs."""
        try:
            return Listing(self.store.runs(), [])
        except HoldfastError as error:
            return Listing([], [problem_of(error)])

    def observe(self, run: str) -> Observed | None:
        """Return the facts of a run as they are now; `None` if it is gone."""
        found = self.store.runs(run=run)
        return Observed(found[0], 0, found[0]) if found else None

    def facts_problems(self, info: RunInfo) -> list[str]:
        """Return what is wrong with how a run's facts are kept, and found."""
        try:
            by = {"id": self.store.runs(run=info.run), "key": self.store.runs(key=info.key)}
        except HoldfastError as error:
            return [problem_of(error)]
        return [f"looking for its {how} does not find it" for how, infos in by.items() if infos != [info]]

    def reading_problems(self, run: str) -> list[str]:
        """Return what keeps the store from reading a run whose entries are all there."""
        return []

    def entries(self, run: str) -> Iterator[Entry]:
        """Yield the entries in order; where one cannot be read, raise a `StoreError`."""
        return self.store.read(run)

    def snapshots(self, run: str) -> list[Found]:
        """Return all snapshots, in order."""
        found: list[Found] = []
        upto: int | None = None
        while True:
            try:
                snapshot = self.store.snapshot(run, upto)
            except HoldfastError as error:
                return [Found(0, b"", None, problem_of(error)), *found]
            if snapshot is None:
                return found
            found.insert(0, Found(snapshot.seq, snapshot.body, snapshot))
            upto = snapshot.seq - 1

    def messages(self, run: str) -> list[Found]:
        """Return all messages, in order."""
        try:
            return [Found(message.number, message.body, message) for message in self.store.inbox(run)]
        except HoldfastError as error:
            return [Found(0, b"", None, problem_of(error))]

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        """Remove a snapshot, if it is still the one with these bytes."""
        raise StoreError(f"{self.store.url} cannot remove the snapshot at {number} of run {run!r}")

    def blank_message(self, run: str, number: int) -> None:
        """Put an empty message, which the run refuses, where one cannot be read or is missing."""
        raise StoreError(f"{self.store.url} cannot replace message {number} of run {run!r}")

    def put_facts(self, info: RunInfo, head: int, seen: Observed) -> None:
        """Replace a run's facts; raise `RunConflict` if it changed since it was `seen`. `head` is its last entry."""
        if self.observe(info.run) != seen:
            raise changed_meanwhile(info.run)
        (conflict,) = self.store.commit([Append(info.run, head, (), info)])
        if conflict is not None and conflict.head is not None:  # The end of the journal is missing.
            (conflict,) = self.store.commit([Append(info.run, conflict.head, (), info)])
        if conflict is not None:
            raise changed_meanwhile(info.run)

    def lost_and_found(self) -> Path:
        """Return the folder for what is put aside, unless another is given."""
        return Path("lost+found")

    def repair(self, keep: Keep) -> list[str]:
        """Repair what `problems` found and can be repaired; return what was done. What is removed is kept aside."""
        return []

    def close(self) -> None:
        """Release what was opened to read; the store stays open."""


class MemoryInspector(Inspector):
    """Memory has no medium that could be damaged."""

    store: MemoryStore

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        with self.store._lock:
            found = self.store._runs[run]
            if number in found.snapshots and found.snapshots[number].body == raw:
                kept = {seq: snapshot for seq, snapshot in found.snapshots.items() if seq != number}
                self.store._runs[run] = replace(found, snapshots=kept)

    def blank_message(self, run: str, number: int) -> None:
        with self.store._lock:
            found = self.store._runs[run]
            others = [message for message in found.inbox if message.number != number]
            inbox = sorted([*others, Message(number, 0.0, b"")], key=lambda message: message.number)
            self.store._runs[run] = replace(found, inbox=inbox)


class TableInspector(Inspector):
    """Inspects the tables of a database for rows that belong to no run."""

    TABLES: ClassVar[tuple[str, ...]]
    STRAY: ClassVar[str]
    """The rows of a `{table}` that belong to no run, as the end of a query."""

    def rows(self, query: str, *values: Any) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query; raise `StoreError` where one cannot be read."""
        raise NotImplementedError

    def change(self, statement: str, *values: Any) -> None:
        """Execute a statement in a transaction."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        return self.strays()

    def beside_runs(self) -> list[str]:
        return self.strays()

    def strays(self) -> list[str]:
        """Return how many rows of each table are of no run."""
        found = []
        for table in self.tables():
            try:
                ((count,),) = self.rows(f"SELECT count(*) {self.STRAY.format(table=table)}")
                found += [f"{count} rows of table {table} are of no run"] if count else []
            except StoreError as error:
                found.append(f"table {table} cannot be read as a whole: {error}")
        return found

    def tables(self) -> Sequence[str]:
        """Return the tables of which all rows can be seen."""
        return self.TABLES

    def repair(self, keep: Keep) -> list[str]:
        done = []
        for table in self.tables():
            stray = self.STRAY.format(table=table)
            try:
                if rows := list(self.rows(f"SELECT * {stray}")):
                    keep(f"{table}.json", plain_json(rows))
                    self.change(f"DELETE {stray}")
                    done.append(f"{len(rows)} rows of table {table} that were of no run are put aside")
            except StoreError:
                continue  # A table that cannot be read is reported as a problem.
        return done


def put_aside(folder: Path) -> list[str]:
    """Return a line about a folder with what repairs have replaced, if there is one."""
    number = len(list(folder.iterdir())) if folder.is_dir() else 0
    return [f"{folder}: what repairs have replaced, {number} files"] if number else []


def plain_json(value: Any) -> bytes:
    """Return rows or facts as JSON, bytes in hexadecimal."""

    def plain(other: Any) -> str:
        return bytes(other).hex() if isinstance(other, (bytes, memoryview)) else str(other)

    return json.dumps(value, default=plain).encode()


def changed_meanwhile(run: str) -> RunConflict:
    """Return the error for a run that was changed after it was checked."""
    return RunConflict(f"run {run!r} was changed while it was being repaired; check it again")


@contextmanager
def inspecting(store: Store) -> Iterator[Inspector]:
    """Open the inspector of a store for this block; a store that knows its medium has one of its own."""
    is_memory = isinstance(store, MemoryStore) and is_in_memory(store)
    inspector = MemoryInspector(store) if is_memory else Inspector(store)
    if (own := getattr(store, "inspector", None)) is not None:
        inspector = own()
    try:
        yield inspector
    finally:
        inspector.close()


@dataclass(frozen=True, slots=True)
class LargeRun:
    """One of the largest runs."""

    run: str
    workflow: str
    status: str
    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a store holds in its namespace. Counts and sizes are `None` where the store cannot tell."""

    kind: str
    place: str
    namespace: str
    schema: int | None
    disk_bytes: int | None
    runs: int
    statuses: Mapping[str, int]
    oldest: float | None
    """When the run began that began first."""
    newest: float | None
    """When a run was changed last."""
    entries: int | None = None
    checkpoints: int | None = None
    snapshots: int | None = None
    messages: int | None = None
    entry_bytes: int | None = None
    snapshot_bytes: int | None = None
    message_bytes: int | None = None
    largest: tuple[LargeRun, ...] = ()


def usage_of(store: Store, largest: int = 5) -> Usage:
    """Return what a store holds, with its `largest` runs."""
    infos = {info.run: info for info in store.runs()}
    measured = store if isinstance(store, Measured) else None
    kind, place, schema, disk = measured.footprint() if measured else Footprint("unknown", store.url)
    counts: dict[str, int] = {}
    top: tuple[LargeRun, ...] = ()
    if measured is not None:
        sizes = [size for size in measured.sizes() if size.run in infos]
        counts = {name: sum(map(attrgetter(name), sizes)) for name in _COUNTED}
        for size in heapq.nlargest(largest, sizes, attrgetter("size")):
            info = infos[size.run]
            top += (LargeRun(info.run, info.workflow, info.status, size.entries, size.size),)
    return Usage(
        kind=kind,
        place=place,
        namespace=namespace_of(store),
        schema=schema,
        disk_bytes=disk,
        runs=len(infos),
        statuses=dict(sorted(Counter(info.status for info in infos.values()).items())),
        oldest=min((info.created_at for info in infos.values()), default=None),
        newest=max((info.updated_at for info in infos.values()), default=None),
        largest=top,
        **counts,
    )


_COUNTED = [field.name for field in fields(Usage) if field.name in RunSize._fields]


def schema_version(url: str, place: Path | None) -> int:
    """Return the version of a store's schema, 0 if it has none yet; raise `StoreError` if it is not ours.

    Nothing is changed. `place` is the store's file or folder, if it has one.
    """
    if is_server(url):
        from holdfast.stores.postgres.schema import stored_version

        return stored_version(url)
    if place is None or place.is_dir():
        return SCHEMA_VERSION
    from holdfast.stores.sqlite.connection import stored_version as stored_version_in

    return stored_version_in(place)


# Where a store is, by its URL; nothing is opened or created to find out.


BEFORE_PATHS = {"sqlite": "sqlite:///", "file": "file://", "pg-embedded": "pg-embedded:"}


def store_place(url: str) -> Path | None:
    """Return the file or folder of a store, in its namespace, if its URL names one."""
    scheme, path, _ = url_parts(url)
    if path is None or scheme == "pg-embedded":
        return path
    namespace = namespace_in(url) or wanted_namespace()
    return file_of(path, namespace) if scheme == "sqlite" else folder_of(path, namespace)


def url_parts(url: str) -> tuple[str, Path | None, str]:
    """Return the kind of a store, the path in its URL, if there is one, and the rest of the URL."""
    scheme, colon, rest = url.partition(":")
    kind = scheme.lower()
    if not colon:
        return _bare(url)
    if kind == "pg-embedded":
        path, mark, parameters = rest.partition("?")
        return kind, Path(re.sub(r"^//(?=[/~.])", "", path)).expanduser(), mark + parameters
    if kind not in BEFORE_PATHS:
        return kind, None, ""
    text, _ = split_namespace(rest)
    own = re.sub("^/{2,3}", "", text) if kind == "sqlite" else re.sub("^/+", "/", text.removeprefix("//"))
    return kind, Path(own).expanduser(), rest[len(text) :]


def _bare(text: str) -> tuple[str, Path | None, str]:
    """Return the same as `url_parts`, for a path or a name."""
    own, _ = split_namespace(text)
    path = Path(own).expanduser()
    if "/" not in own and "." not in own:
        return "", None, ""
    return "sqlite" if path.suffix and not path.is_dir() else "file", path, text[len(own) :]


def exists(url: str) -> bool:
    """Return True if a store exists; nothing is created to find out."""
    place = store_place(url)
    if place is not None and not place.exists():
        return False
    return not is_server(url) or schema_version(url, place) > 0
