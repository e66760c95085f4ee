"""A run as it is in another namespace: what is sealed is sealed anew for that one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.data.seal import Seal
from holdfast.errors import CorruptJournal
from holdfast.journal.bodies import CHAIN_BYTES, Bodies, is_sealed
from holdfast.journal.journal import break_at, genesis, link
from holdfast.stores.base import Entry, Mark, Message, Readable, RunInfo, Snapshot, namespace_of

_REMEMBERED = 1000
"""After so many entries each the chains are remembered, so that reading on does not begin anew."""


class _Chains(NamedTuple):
    """The chain of an entry, here and there, and whether the entry is sealed."""

    here: bytes
    there: bytes
    sealed: bool


class Resealed:
    """Reads one run of a store as another namespace has it. Sealing anew gives the same bytes every time.

    That takes the key; a run that is not sealed is the same everywhere.
    """

    def __init__(self, inner: Readable, info: RunInfo, namespace: str, seal: Seal | None) -> None:
        self.url, self.namespace = inner.url, namespace
        self._inner, self._info = inner, info
        self._here = Bodies(seal, namespace_of(inner), info.run, info.key)
        self._there = Bodies(seal, namespace, info.run, info.key)
        self._known: dict[int, _Chains] = {}

    def runs(self, *, run: str | None = None, key: bytes | None = None) -> list[RunInfo]:
        """As the store."""
        return self._inner.runs(run=run, key=key)

    def marks(self, run: str, before: int | None = None, limit: int | None = None) -> list[Mark]:
        """As the store."""
        return self._inner.marks(run, before, limit)

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        """The entries of the run, each checked against its predecessor."""
        start = max(0, after) // _REMEMBERED * _REMEMBERED
        chains = self._known.get(start)
        for entry in self._inner.read(run, start if chains else 0, upto):
            own = self._moved(entry, chains)
            chains = _Chains(entry.chain, own.chain, is_sealed(entry.body))
            if entry.seq % _REMEMBERED == 0:
                self._known[entry.seq] = chains
            if entry.seq > after:
                yield own

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot with `seq <= upto`."""
        found = self._inner.snapshot(run, upto)
        return None if found is None else self.moved_snapshot(found)

    def moved_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot of the run, as it is there."""
        run, seq = self._info.run, snapshot.seq
        own = next(iter(self.read(run, seq - 1, seq)), None)
        if own is None:
            raise CorruptJournal(f"run {run!r}: entry {seq} is missing", run=run, seq=seq)
        body = self._here.reseal_snapshot(snapshot, self._there, own.chain)
        return dataclasses.replace(snapshot, chain=own.chain, body=body)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        """The messages with `number > after`, in order."""
        return [
            dataclasses.replace(each, body=self._here.reseal_message(each, self._there, each.number))
            for each in self._inner.inbox(run, after)
        ]

    def _moved(self, entry: Entry, before: _Chains | None) -> Entry:
        """An entry that follows one with these chains; the first of a pruned run follows none that is there."""
        seq, at, _, body, mark = entry
        if before is None:
            if seq > 1 and not is_sealed(body):
                return entry
            start = genesis(self._info.run, self._info.key) if seq == 1 else body[1 : 1 + CHAIN_BYTES]
            before = _Chains(start, start, sealed=False)
        if broken := break_at(before.here, before.sealed, entry):
            raise CorruptJournal(f"run {self._info.run!r}: {broken}", run=self._info.run, seq=seq)
        if not is_sealed(body):
            return entry
        body = self._here.reseal_entry(entry, self._there, before.there, mark)
        return Entry(seq, at, link(before.there, seq, at, mark, body), body, mark)
