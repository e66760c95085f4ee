"""A store that writes to a ledger what it is about to do, and what it has acknowledged to survive a power cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.stores.base import Append, Conflict, Snapshot, Store
from holdfast.testing import WrappedStore
from tests.invariants import STORED, Ledger

TRIED = "tried"
"""An entry is about to be stored; the key is `RUN:SEQ`, the detail its chain."""
POSTED = "posted"
"""A message was acknowledged; the key is `RUN:NUMBER`, the detail its body."""
DELETING, DELETED = "deleting", "deleted"
"""A run is about to be deleted, and is; the key is the run."""
BEING_PRUNED, PRUNED = "being pruned", "pruned"
"""A run is about to lose its beginning, and has; the key is the run, the detail its first entry then."""


class PowerWitness(WrappedStore):
    """Only what was asked to be durable counts as acknowledged."""

    def __init__(self, inner: Store, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self._tell(TRIED, appends)
        answers = self.inner.commit(appends)
        fine = [append for append, conflict in zip(appends, answers, strict=True) if conflict is None]
        self._tell(STORED, [append for append in fine if append.durable])
        return answers

    def _tell(self, what: str, appends: Sequence[Append]) -> None:
        for append in appends:
            for entry in append.entries:
                self._ledger.write(what, f"{append.run}:{entry.seq}", entry.chain.hex())

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        posted = self.inner.post(run, body, number)
        self._ledger.write(POSTED, f"{run}:{posted}", body.hex())
        return posted

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        self._ledger.write(DELETING, run)
        done = self.inner.delete(run, forks=forks)
        self._ledger.write(DELETED, run)
        return done

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        self._ledger.write(BEING_PRUNED, run, str(horizon.seq))
        gone = self.inner.prune(run, horizon, forks=forks)
        self._ledger.write(PRUNED, run, str(horizon.seq))
        return gone
