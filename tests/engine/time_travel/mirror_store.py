"""A store beside which everything that was ever appended is kept, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.journal.journal import Journal
from holdfast.state.codec import Codec
from holdfast.state.ops import thaw
from holdfast.stores.base import Append, Conflict, Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import WrappedStore

CODEC = Codec()


class Mirrored(WrappedStore):
    """Works as `inner` does. `mirror` has the same journals, without snapshots; nothing is pruned or deleted there."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.mirror = MemoryStore()

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        answers = self.inner.commit(appends)
        for append, answer in zip(appends, answers, strict=True):
            if answer is None:
                assert self.mirror.commit([append._replace(snapshots=())]) == [None]
        return answers

    def expected(self, run: str, seq: int | None = None) -> dict[str, Any]:
        """The state of a run at an entry, recomputed from every record since its beginning."""
        loaded = Journal(self.mirror).load(self.mirror.runs(run=run)[0], CODEC, seq)
        return {key: thaw(slot.get()) for key, slot in loaded.run.root.cells.items()}

    def waits_for(self, run: str) -> set[str]:
        """The pauses of a run, recomputed in the same way."""
        return set(Journal(self.mirror).load(self.mirror.runs(run=run)[0], CODEC).run.pauses)
