"""A store around another store, to watch or disturb what passes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from holdfast.stores.base import (
    Append,
    Conflict,
    Entry,
    Mark,
    Message,
    RunInfo,
    Snapshot,
    Store,
    namespace_of,
)


class WrappedStore:
    """Hands every call to the store inside; override what you want to see or to spoil."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url, self.namespace = inner.url, namespace_of(inner)

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        return self.inner.commit(appends)

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        return self.inner.read(run, after, upto)

    def marks(self, run: str, before: int | None = None, limit: int | None = None) -> list[Mark]:
        return self.inner.marks(run, before, limit)

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        return self.inner.snapshot(run, upto)

    def runs(self, **wanted: Any) -> list[RunInfo]:
        return self.inner.runs(**wanted)

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        return self.inner.prune(run, horizon, forks=forks)

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        return self.inner.delete(run, forks=forks)

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        return self.inner.post(run, body, number)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        return self.inner.inbox(run, after)

    def close(self) -> None:
        self.inner.close()
