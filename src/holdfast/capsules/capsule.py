"""A capsule that was opened: every byte verified, and then a store of one run that can only be read."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Unpack

from holdfast.capsules.format import (
    CHECK_BYTES,
    ENCRYPTED,
    HEAD,
    LONGEST_SUMMARY,
    Facts,
    Kind,
    Origin,
    Section,
    read_canonical,
    read_entry,
    read_facts,
    read_head,
    read_message,
    read_section,
    read_sections,
    read_snapshot,
)
from holdfast.capsules.signing import Unlocked, verify
from holdfast.errors import CapsuleInvalid, CapsuleLocked, CorruptJournal, StoreError, problem_of
from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.journal.journal import break_at, genesis, is_whole, misplaced
from holdfast.journal.sealing import CHAIN_BYTES, is_sealed
from holdfast.stores.base import Entry, Message, RunFilter, RunInfo, Snapshot, StoredCheckpoint, select


class FileOrigin:
    """The bytes of a file."""

    def __init__(self, path: Path) -> None:
        try:
            # Asked before it is opened: opening a pipe waits for a writer.
            if not stat.S_ISREG(path.stat().st_mode):
                raise CapsuleInvalid("it cannot be read: it is not a file")
            self._file = path.open("rb")
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise CapsuleInvalid(f"it cannot be read: {error.strerror}") from None

    def read_at(self, place: int, length: int) -> bytes:
        """Return the bytes there; fewer at the end."""
        try:
            self._file.seek(place)
            return self._file.read(length)
        except OSError as error:
            raise CapsuleInvalid(f"it cannot be read: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Capsule:
    """One run in one file, read as any store is read; what would change it is refused.

    Opening reads the file once, to the end: checksums, chain, digest and signature are then known to be right.
    """

    facts: Facts

    def __init__(self, path: str | Path, passphrase: str | None = None) -> None:
        self.path = Path(path)
        self.url = f"capsule:{self.path}"
        self._entries, self._marked, self._messages = array("Q"), array("Q"), array("Q")
        self._entry_checks, self._message_checks = bytearray(), bytearray()
        """The checksums of the verified entries and messages; the file may be changed before they are used."""
        self.summary: bytes | None = None
        """What it says of its run to those who cannot read journals."""
        self.signed_by: bytes | None = None
        self.digest = b""
        self.sealed = 0
        """How many entries and snapshots are encrypted with the key of a store."""
        self.sealed_messages = self.body_bytes = 0
        self.beginning: Snapshot | None = None
        """The snapshot without which its journal cannot be read."""
        self._admitted: int | None = None
        self._file = FileOrigin(self.path)
        try:
            self.size = self._file.size
            self.is_encrypted = read_head(self._file.read_at(0, HEAD.size)) == ENCRYPTED
            if self.is_encrypted and passphrase is None:
                raise CapsuleLocked("it is encrypted; give its passphrase")
            if not self.is_encrypted and passphrase is not None:
                raise CapsuleInvalid("it is not encrypted, so a passphrase has no meaning with it; give none")
            self._origin: Origin = Unlocked(self._file, passphrase or "") if self.is_encrypted else self._file
            self._index()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Capsule:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _index(self) -> None:
        before: Entry | None = None
        for section in read_sections(self._origin):
            match section.kind:
                case Kind.FACTS:
                    self.facts = read_facts(section.payload)
                case Kind.SUMMARY:
                    if len(section.payload) > LONGEST_SUMMARY:
                        raise CapsuleInvalid("the summary in it is too long to be one")
                    read_canonical(section.payload)
                    self.summary = section.payload
                case Kind.SNAPSHOT:
                    self.beginning = snapshot = read_snapshot(section.payload)
                    if snapshot.seq != self.facts.first or not is_whole(snapshot):
                        raise CapsuleInvalid(
                            "the snapshot that its journal begins with is not one of this run"
                        )
                    self.sealed += is_sealed(snapshot.body[CHAIN_BYTES:])
                case Kind.ENTRY:
                    before = self._take_entry(section, before)
                case Kind.MESSAGE:
                    self._take_message(section)
                case Kind.END:
                    self.digest = section.payload
                case Kind.SIGNATURE:
                    self.signed_by = verify(section.payload, self.digest)
        if self.facts.first + len(self._entries) - 1 != self.facts.last:
            raise CapsuleInvalid("entries of its journal are missing")
        if self.facts.parent and self.facts.first == 1 and self.beginning is None:
            raise CapsuleInvalid("it is said to be a fork, and what it began with is missing")

    def _take_entry(self, section: Section, before: Entry | None) -> Entry:
        entry = read_entry(section.payload)
        seq, snapshot = self.facts.first + len(self._entries), self.beginning
        if entry.seq != seq or seq > self.facts.last:
            raise CapsuleInvalid(f"entry {seq} of its journal is missing")
        if before is not None:
            broken = break_at(before.chain, is_sealed(before.body), entry)
        elif seq == 1:
            broken = break_at(genesis(self.facts.run, self.facts.key), False, entry)
        else:
            broken = "it has no snapshot" if snapshot is None else ""
        if before is None and snapshot is not None:
            broken = broken or misplaced(snapshot, entry)
        if broken:
            raise CapsuleInvalid(
                f"entry {seq} of its journal does not follow from what came before: {broken}"
            )
        if entry.mark is not None:
            try:  # Those who list checkpoints have to be able to read it.
                decode_checkpoint(self.facts.key, StoredCheckpoint.of(entry), self.facts.run)
            except CorruptJournal as error:
                raise CapsuleInvalid(problem_of(error)) from None
            self._marked.append(seq)
        self._entries.append(section.place)
        self._entry_checks += section.check
        self.sealed += is_sealed(entry.body)
        self.body_bytes += len(entry.body)
        return entry._replace(body=entry.body[:1])

    def _take_message(self, section: Section) -> None:
        self._messages.append(section.place)
        self._message_checks += section.check
        message = read_message(section.payload)
        if message.number != len(self._messages):
            raise CapsuleInvalid("messages in it are missing")
        self.sealed_messages += is_sealed(message.body)

    @property
    def checkpoint_count(self) -> int:
        """How many of its entries end in a checkpoint."""
        return len(self._marked)

    @property
    def message_count(self) -> int:
        """The number of messages in the run's inbox."""
        return len(self._messages)

    @property
    def info(self) -> RunInfo:
        """The facts of its run."""
        return self.facts.info()

    @property
    def namespace(self) -> str:
        """The namespace of the store that it is from, for which what is sealed was sealed."""
        return self.facts.namespace

    @property
    def last(self) -> Entry:
        """The newest entry of its journal."""
        return self._entry(self.facts.last)

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        """As any store."""
        if run == self.facts.run:
            last = self.facts.last if upto is None else min(upto, self.facts.last)
            yield from map(self._entry, range(max(after + 1, self.facts.first), last + 1))

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        """As any store."""
        if run != self.facts.run:
            return []
        wanted = [seq for seq in reversed(self._marked) if before is None or seq < before][:limit]
        return [StoredCheckpoint.of(self._entry(seq)) for seq in wanted]

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        """As any store."""
        own = self.beginning
        fits = run == self.facts.run and own is not None and (upto is None or own.seq <= upto)
        return own if fits else None

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        """As any store."""
        return select([self.info], **wanted)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        """As any store."""
        if run != self.facts.run:
            return []
        numbers = range(after, len(self._messages) if self._admitted is None else self._admitted)
        return [read_message(self._again(self._messages, self._message_checks, number)) for number in numbers]

    def admit(self, messages: int) -> int:
        """Leave all messages but the first ones out from now on; return how many are left out."""
        self._admitted = min(messages, len(self._messages))
        return len(self._messages) - self._admitted

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Refuse to change anything."""
        raise StoreError(f"{self.path} is a capsule, which can only be read; import it into a store")

    commit = prune = delete = post = _refuse

    def _entry(self, seq: int) -> Entry:
        return read_entry(self._again(self._entries, self._entry_checks, seq - self.facts.first))

    def _again(self, places: Sequence[int], checks: bytearray, number: int) -> bytes:
        """Read a section again; raise if it differs from the section that was verified."""
        section = read_section(self._origin, places[number])
        if section.check != checks[number * CHECK_BYTES : (number + 1) * CHECK_BYTES]:
            raise CapsuleInvalid("it was changed while it was read")
        return section.payload
