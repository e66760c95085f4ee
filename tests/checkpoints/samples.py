"""What several checkpoint tests are made of."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from holdfast import StoreError
from holdfast.stores.base import Append, Conflict, Store
from holdfast.stores.memory import MemoryStore


def age(store: Store, run: str, *, days: float) -> None:
    """Make a run look as if it had not been touched for so long."""
    info = store.runs(run=run)[0]
    head = list(store.read(run))[-1].seq
    facts = dataclasses.replace(info, updated_at=time.time() - days * 86_400)
    assert store.commit([Append(run, head, [], facts)]) == [None]


class FullDisk(MemoryStore):
    """A store whose medium refuses every write while it is full."""

    full = False

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        if self.full:
            raise StoreError("no space left on device")
        return super().commit(appends)


class Calls(list[str]):
    """Remembers which nodes ran."""

    def node(self, name: str, *, fails: Any = None, update: Any = None) -> Any:
        """A node that notes its name, and raises `fails()` if that is an exception."""

        def run(state: Any) -> Any:
            self.append(name)
            error = fails() if fails is not None else None
            if error is not None:
                raise error
            return {"log": [name]} if update is None else update

        return run


class Flaky:
    """A node that raises until it is repaired."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    def __call__(self) -> Exception | None:
        return self.error

    def mend(self) -> None:
        self.error = None
