"""What a store holds and how much room that takes, counted without reading what is in it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from holdfast.stores.base import SCHEMA_VERSION, Entry, Message, RunInfo, Snapshot, Store, namespace_of
from holdfast.stores.namespaces import is_server


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


def size_of(
    run: str, entries: Collection[Entry], snapshots: Collection[Snapshot], messages: Collection[Message]
) -> RunSize:
    """Return the size of a run that is all in memory."""
    marks = sum(entry.mark is not None for entry in entries)
    sizes = [sum(len(each.body) for each in part) for part in (entries, snapshots, messages)]
    return RunSize(run, len(entries), marks, sizes[0], len(snapshots), sizes[1], len(messages), sizes[2])


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
        ...

    def sizes(self) -> Iterable[RunSize]:
        """Return how much each run of the store's namespace holds, without reading any body."""
        ...


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
        top = tuple(
            _large(infos[size.run], size) for size in heapq.nlargest(largest, sizes, attrgetter("size"))
        )
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


def _large(info: RunInfo, size: RunSize) -> LargeRun:
    return LargeRun(info.run, info.workflow, info.status, size.entries, size.size)


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
