"""A store beside which everything that was ever appended is kept, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.frozen import thaw
from holdfast.journal.journal import Journal
from holdfast.stores.base import Append, Conflict, Entry, Mark, Message, RunInfo, Snapshot, Store
from holdfast.stores.memory import MemoryStore

CODEC = Codec()


class Mirrored:
    """Works as `inner` does. `mirror` has the same journals, without snapshots; nothing is pruned or deleted there."""

    def __init__(self, inner: Store) -> None:
        self.inner, self.mirror, self.url = inner, MemoryStore(), inner.url

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        answers = self.inner.commit(appends)
        for append, answer in zip(appends, answers, strict=True):
            if answer is None:
                assert self.mirror.commit([append._replace(snapshots=())]) == [None]
        return answers

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        return self.inner.read(run, after, upto)

    def marks(self, run: str, before: int | None = None, limit: int | None = None) -> list[Mark]:
        return self.inner.marks(run, before, limit)

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        return self.inner.snapshot(run, upto)

    def runs(self, **filters: Any) -> list[RunInfo]:
        return self.inner.runs(**filters)

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        return self.inner.prune(run, horizon, forks=forks)

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        return self.inner.delete(run, forks=forks)

    def post(self, run: str, body: bytes) -> int:
        return self.inner.post(run, body)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        return self.inner.inbox(run, after)

    def close(self) -> None:
        self.inner.close()

    def expected(self, run: str, seq: int | None = None) -> dict[str, Any]:
        """The state of a run at an entry, recomputed from every record since its beginning."""
        loaded = Journal(self.mirror).load(self.mirror.runs(run=run)[0], CODEC, seq)
        return {key: thaw(slot.get()) for key, slot in loaded.run.root.cells.items()}

    def waits_for(self, run: str) -> set[str]:
        """The pauses of a run, recomputed in the same way."""
        return set(Journal(self.mirror).load(self.mirror.runs(run=run)[0], CODEC).run.pauses)
