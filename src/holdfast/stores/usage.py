"""What a store holds and how much room that takes, told without reading what is in it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple, Protocol, runtime_checkable

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
