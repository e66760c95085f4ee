"""A ledger outside the store: what really happened, whatever becomes of the process and of its journal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.events import Event
from holdfast.stores.base import Append, Conflict, Store
from holdfast.testing.wrapped_store import WrappedStore

START = "start"
"""The body of a step began; the key is the step."""
FINISHED = "finished"
"""Somebody was told that a step is finished, or found it so in the journal; the key is the step."""
EFFECT = "effect"
"""Something happened in the world; the key is the idempotency key that it was done with."""
STORED = "stored"
"""A store acknowledged an entry; the key is `RUN:SEQ`, the detail its chain."""
DUE = "due"
"""Something waits; the key is what, the detail until when."""
FIRED = "fired"
"""It goes on after waiting; the key is what, the detail when."""
CONSUMED = "consumed"
"""A signal was taken in; the key is the signal."""


class Line(NamedTuple):
    """One thing that happened."""

    what: str
    key: str
    detail: str = ""


class Ledger:
    """Lines in the order in which they were written. This one lives and dies with its process."""

    def __init__(self) -> None:
        self._lines: list[Line] = []

    def write(self, what: str, key: str, detail: str = "") -> None:
        """Add a line. On return it outlives whatever the ledger is to outlive."""
        self._lines.append(Line(what, key, detail))

    def lines(self) -> Sequence[Line]:
        """All lines, from the first."""
        return self._lines

    def observe(self, event: Event) -> None:
        """Note the steps that are told to be finished; an observer's callback."""
        if event.type == "node.complete" and not event.data["error"]:
            self.write(FINISHED, event.data["step"])

    def repeated(self) -> list[str]:
        """The steps that began although they had finished. There must be none."""
        return list(self._repeated())

    def _repeated(self) -> Iterator[str]:
        finished: set[str] = set()
        for what, key, _ in self.lines():
            if what == FINISHED:
                finished.add(key)
            elif what == START and key in finished:
                yield key


class FileLedger(Ledger):
    """Lines in a file that outlive any process and any power cut: each is on the disk before `write` returns."""

    def __init__(self, path: Path | str, *, sync: bool = True) -> None:
        super().__init__()
        self.path, self._sync = Path(path), sync

    def write(self, what: str, key: str, detail: str = "") -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{what}\t{key}\t{detail}\n".encode())
            if self._sync:
                os.fsync(handle)
        finally:
            os.close(handle)

    def lines(self) -> Sequence[Line]:
        if not self.path.exists():
            return []
        return [Line(*line.split("\t")) for line in self.path.read_text().splitlines()]


class WitnessedStore(WrappedStore):
    """A store whose acknowledgements a ledger hears of, before the engine does."""

    def __init__(self, inner: Store, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        answers = self.inner.commit(appends)
        for append, conflict in zip(appends, answers, strict=True):
            if conflict is None:
                for entry in append.entries:
                    self._ledger.write(STORED, f"{append.run}:{entry.seq}", entry.chain.hex())
        return answers
