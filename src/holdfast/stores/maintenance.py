"""What a store holds and how much room that takes, told without reading what is in it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from holdfast.errors import StoreError
from holdfast.stores import open_store
from holdfast.stores.base import RunInfo, Store, namespace_of


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
        """All of it, in bytes."""
        return self.entry_bytes + self.snapshot_bytes + self.message_bytes


class Footprint(NamedTuple):
    """What kind of store it is and where; the version of its schema, if it has one, and its size on disk."""

    kind: str
    place: str
    schema: int | None = None
    disk_bytes: int | None = None


@runtime_checkable
class Measured(Protocol):
    """What a store adds that can tell how much it holds."""

    def footprint(self) -> Footprint:
        """The store as a whole."""
        ...

    def sizes(self) -> Iterable[RunSize]:
        """How much each run of the store's namespace holds. No body is read."""
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
    """When a run was touched last."""
    entries: int | None = None
    checkpoints: int | None = None
    snapshots: int | None = None
    messages: int | None = None
    entry_bytes: int | None = None
    snapshot_bytes: int | None = None
    message_bytes: int | None = None
    largest: tuple[LargeRun, ...] = ()


def usage_of(store: Store, largest: int = 5) -> Usage:
    """What a store holds, with its `largest` runs."""
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


# Bringing a store's schema up to date, and telling whether that is needed.


class Schema(NamedTuple):
    """How a store's schema stands: its version, 0 if it has none yet, and the newest that is known here."""

    current: int
    newest: int
    missing: tuple[str, ...] = ()
    """The names of the migrations that it lacks."""

    @property
    def is_current(self) -> bool:
        """Whether nothing is to be done."""
        return not self.missing


SERVERS = ("postgres:", "postgresql:", "pg-embedded:")


def schema_of(url: str, place: Path | None) -> Schema:
    """How the schema of a store stands; nothing is changed. `place` is its file or folder, if it has one."""
    if url.lower().startswith(SERVERS):
        return _of_server(url)
    if place is None or place.is_dir():
        return Schema(1, 1)
    return _of_file(place)


def migrate_store(url: str, place: Path | None) -> tuple[Schema, Schema]:
    """Bring a store to the newest schema, creating it if need be; how it stood before, and how it stands now."""
    before = schema_of(url, place)
    if url.lower().startswith(SERVERS):
        from holdfast.stores.postgres.migrations import migrate

        migrate(url)
    else:
        open_store(url).close()
    return before, schema_of(url, place)


def _of_server(url: str) -> Schema:
    try:
        from holdfast.stores.postgres.migrations import version
    except ImportError as error:
        raise StoreError(
            f"PostgreSQL stores need the package {error.name}: pip install 'holdfast[postgres]'"
        ) from error
    return Schema(*version(url))


def _of_file(path: Path) -> Schema:
    from holdfast.stores.sqlite.connection import migration_names, stored_version

    current, names = stored_version(path), migration_names()
    return Schema(current, max(names), tuple(name for number, name in names.items() if number > current))
