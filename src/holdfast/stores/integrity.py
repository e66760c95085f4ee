"""Looking at what a store holds as far as it can be read, whatever is damaged, and putting right what can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from holdfast.errors import HoldfastError, RunConflict, StoreError, problem_of
from holdfast.stores.base import Append, Entry, Message, RunInfo, Snapshot, Store
from holdfast.values import RunStatus

Keep = Callable[[str, bytes], None]
"""Puts bytes aside under a name before they are removed."""


REPAIRED_AS = "repaired-as:"
"""How the tag of a damaged run begins that names the run with what could be read of it."""


def repaired_as(info: RunInfo) -> str:
    """The run that has what could be read of a damaged one; empty if it was not repaired."""
    if info.status != RunStatus.DAMAGED:
        return ""
    names = [tag.removeprefix(REPAIRED_AS) for tag in info.tags if tag.startswith(REPAIRED_AS)]
    return names[-1] if names else ""


class Found(NamedTuple):
    """A snapshot or a message as far as it can be read: its number, its bytes, itself, or what is wrong with it."""

    number: int
    raw: bytes
    content: Snapshot | Message | None
    problem: str = ""


class Listing(NamedTuple):
    """The runs whose facts can be read, and what stands in the way of others."""

    infos: list[RunInfo]
    problems: list[str]


class Standing(NamedTuple):
    """How a run stands: its facts, and what tells whether somebody has changed it since.

    `head` is the last entry that there was when the facts were written, 0 where that is not known. `problem` says why
    the facts cannot be believed, if so; `raw` is what is stored of them.
    """

    info: RunInfo
    head: int
    stamp: object
    problem: str = ""
    raw: bytes = b""


class Mender:
    """Asks a store through its usual verbs. Stores that know their medium better have menders of their own."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def problems(self) -> list[str]:
        """What is wrong with the medium, and with what belongs to no run."""
        return []

    def leftovers(self) -> list[str]:
        """What a crash left behind and nobody needs; no damage."""
        return []

    def runs(self) -> Listing:
        """All runs."""
        try:
            return Listing(self.store.runs(), [])
        except HoldfastError as error:
            return Listing([], [problem_of(error)])

    def standing(self, run: str) -> Standing | None:
        """How a run stands now; `None` if it is gone."""
        found = self.store.runs(run=run)
        return Standing(found[0], 0, found[0]) if found else None

    def facts_problems(self, info: RunInfo) -> list[str]:
        """What is wrong with how a run's facts are kept, and found."""
        found = []
        for how, infos in (("id", self.store.runs(run=info.run)), ("key", self.store.runs(key=info.key))):
            if infos != [info]:
                found.append(f"looking for its {how} does not find it")
        return found

    def reading_problems(self, run: str) -> list[str]:
        """What keeps the store from reading a run whose entries are all there."""
        return []

    def entries(self, run: str) -> Iterator[Entry]:
        """The entries in order; where one cannot be read, a `StoreError` ends them."""
        return self.store.read(run)

    def snapshots(self, run: str) -> list[Found]:
        """All snapshots, in order."""
        found: list[Found] = []
        upto: int | None = None
        while True:
            try:
                snapshot = self.store.snapshot(run, upto)
            except HoldfastError as error:
                return [Found(0, b"", None, problem_of(error)), *found]
            if snapshot is None:
                return found
            found.insert(0, Found(snapshot.seq, snapshot.body, snapshot))
            upto = snapshot.seq - 1

    def messages(self, run: str) -> list[Found]:
        """All messages, in order."""
        try:
            return [Found(message.number, message.body, message) for message in self.store.inbox(run)]
        except HoldfastError as error:
            return [Found(0, b"", None, problem_of(error))]

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        """Remove a snapshot, if it is still the one with these bytes."""
        raise StoreError(f"{self.store.url} cannot remove the snapshot at {number} of run {run!r}")

    def void_message(self, run: str, number: int) -> None:
        """Put a message that says nothing, which the run refuses, where one cannot be read, or is missing."""
        raise StoreError(f"{self.store.url} cannot replace message {number} of run {run!r}")

    def put_facts(self, info: RunInfo, head: int, seen: Standing) -> None:
        """Replace a run's facts, if it stands as it was `seen`; else `RunConflict`. `head` is its last known entry."""
        if self.standing(info.run) != seen:
            raise changed_meanwhile(info.run)
        after: int | None = head
        for _ in range(2):  # What is missing at the end was known of, and is not there.
            (conflict,) = self.store.commit([Append(info.run, after or head, (), info)])
            if conflict is None:
                return
            after = conflict.head
        raise changed_meanwhile(info.run)

    def beside(self) -> Path:
        """The folder for what is put aside, unless another is given."""
        return Path("lost+found")

    def close(self) -> None:
        """Release what was opened to look; the store stays open."""

    def mend(self, keep: Keep) -> list[str]:
        """Put right what `problems` found and can be; what is removed is kept aside. Answers what was done."""
        return []


def changed_meanwhile(run: str) -> RunConflict:
    """The error for a run that does not stand as it was checked."""
    return RunConflict(f"run {run!r} was changed while it was being repaired; check it again")


@runtime_checkable
class Mendable(Protocol):
    """What a store adds that knows its medium."""

    def mender(self) -> Mender:
        """A mender of its own, which whoever asks for it closes."""
        ...


@contextmanager
def mending(store: Store) -> Iterator[Mender]:
    """A mender of the store's kind, for this block."""
    mender = store.mender() if isinstance(store, Mendable) else Mender(store)
    try:
        yield mender
    finally:
        mender.close()
