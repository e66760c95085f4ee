"""A capsule that was opened: every byte verified, and then a store of one run that can only be read."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
import struct
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Unpack

from holdfast.capsules.format import (
    CHECK_BYTES,
    ENCRYPTED,
    HEAD,
    Kind,
    Origin,
    Section,
    read_head,
    read_section,
    read_sections,
)
from holdfast.capsules.signing import Unlocked, verify
from holdfast.errors import CapsuleInvalid, CapsuleLocked, CorruptJournal, StoreError, problem_of
from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.journal.journal import break_at, genesis, is_whole, misplaced
from holdfast.journal.records import Forked
from holdfast.journal.run_state import RunState
from holdfast.journal.sealing import CHAIN_BYTES, is_sealed
from holdfast.stores.base import (
    DEFAULT_NAMESPACE,
    Append,
    Conflict,
    Entry,
    Message,
    RunFilter,
    RunInfo,
    Snapshot,
    StoredCheckpoint,
    select,
)
from holdfast.values import RunStatus

# What the sections of a capsule say: facts, entries, a snapshot, messages; each in one way only.


LONGEST_NAME = 1000
"""How many characters a run id, a workflow's name or a tag may have."""

MOST_TAGS = 1000
LONGEST_FACTS, LONGEST_SUMMARY = 2_000_000, 4_000_000
"""How many bytes the facts of a run, or the summary of it, may have: reading JSON takes many times its size."""

KEY_BYTES = 8
_LAST_SECOND = 253402300800.0
_ENTRY = struct.Struct(">Qd16si")
_SNAPSHOT = struct.Struct(">Qd16s")
_MESSAGE = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Facts:
    """The plain facts of a run that travel. `first` and `last` are those of its entries.

    Its status is that of a run without an owner: `under_way` says that its journal ends within an execution.
    """

    run: str
    key: bytes
    workflow: str
    status: str
    under_way: bool
    created_at: float
    updated_at: float
    tags: tuple[str, ...]
    parent: bytes
    first: int
    last: int
    namespace: str = DEFAULT_NAMESPACE
    """The one that it is from: what is sealed with the key of a store opens as of there."""

    @classmethod
    def of(cls, info: RunInfo, first: int, last: int, *, under_way: bool, namespace: str) -> Facts:
        """Return those of a stored run, without its owner and its queue."""
        return cls(
            namespace=namespace,
            run=info.run,
            key=info.key,
            workflow=info.workflow,
            status=stopped(info.status),
            under_way=under_way,
            created_at=float(info.created_at),
            updated_at=float(info.updated_at),
            tags=tuple(info.tags),
            parent=info.parent,
            first=first,
            last=last,
        )

    def info(self) -> RunInfo:
        """The facts as a store keeps them."""
        return RunInfo(
            run=self.run,
            key=self.key,
            workflow=self.workflow,
            status=self.status,
            created_at=self.created_at,
            updated_at=self.updated_at,
            tags=self.tags,
            parent=self.parent,
        )


_OWNED = (RunStatus.RUNNING, RunStatus.QUEUED)


def stopped(status: str) -> str:
    """Return the status of a run that has no owner."""
    return (RunStatus.INTERRUPTED if status in _OWNED else RunStatus(status)).value


def canonical(data: Any) -> bytes:
    """Plain data as JSON, always the same bytes."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def read_canonical(payload: bytes) -> Any:
    """Data that `canonical` wrote."""
    try:
        data = json.loads(payload)
        if canonical(data) == payload:
            return data
    except (ValueError, RecursionError):
        pass
    raise CapsuleInvalid("it was not written by holdfast: a section of it is not in its one form")


def write_facts(facts: Facts) -> bytes:
    """Facts as a section."""
    data = dataclasses.asdict(facts)
    if facts.namespace == DEFAULT_NAMESPACE:
        del data["namespace"]
    return canonical({**data, "key": facts.key.hex(), "parent": facts.parent.hex()})


def read_facts(payload: bytes) -> Facts:
    """Facts from a section; nothing that a stranger writes there is taken unseen."""
    if len(payload) > LONGEST_FACTS:
        raise CapsuleInvalid("the facts in it are too long to be those of a run")
    data = read_canonical(payload)
    try:
        key, parent = bytes.fromhex(data.pop("key")), bytes.fromhex(data.pop("parent"))
        facts = Facts(key=key, parent=parent, **{**data, "tags": tuple(data["tags"])})
        if _is_sound(facts) and write_facts(facts) == payload:
            return facts
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise CapsuleInvalid("the facts in it are not those of a run")


def _is_sound(facts: Facts) -> bool:
    texts = (facts.run, facts.workflow, facts.namespace, *facts.tags)
    return (
        all(isinstance(text, str) and len(text) <= LONGEST_NAME for text in texts)
        and bool(facts.run)
        and len(facts.tags) <= MOST_TAGS
        and len(facts.key) == KEY_BYTES
        and facts.key[0] < 0x80
        and len(facts.parent) in (0, KEY_BYTES)
        and facts.status in set(RunStatus) - set(_OWNED)
        and isinstance(facts.under_way, bool)
        and all(isinstance(at, float) and is_time(at) for at in (facts.created_at, facts.updated_at))
        and type(facts.first) is int
        and type(facts.last) is int
        and 1 <= facts.first <= facts.last < 1 << 56
    )


def is_time(at: float) -> bool:
    """Whether a time is one that calendars have."""
    return math.isfinite(at) and 0 <= at < _LAST_SECOND


def checked_summary(payload: bytes) -> bytes:
    """A summary as it is, which has to be one."""
    if len(payload) > LONGEST_SUMMARY:
        raise CapsuleInvalid("the summary in it is too long to be one")
    read_canonical(payload)
    return payload


def write_entry(entry: Entry) -> bytes:
    """An entry as a section."""
    mark = entry.mark or b""
    start = _ENTRY.pack(entry.seq, entry.at, entry.chain, -1 if entry.mark is None else len(mark))
    return b"".join((start, mark, entry.body))


def read_entry(payload: bytes) -> Entry:
    """An entry from a section."""
    seq, at, chain, length = _unpacked(_ENTRY, payload)
    inside, marked = _ENTRY.size, max(length, 0)
    if length < -1 or marked > len(payload) - inside or not is_time(at):
        raise CapsuleInvalid("an entry in it is not one of a journal")
    mark = payload[inside : inside + marked] if length >= 0 else None
    return Entry(seq, at, chain, payload[inside + marked :], mark)


def write_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot as a section."""
    return _SNAPSHOT.pack(snapshot.seq, snapshot.at, snapshot.chain) + snapshot.body


def read_snapshot(payload: bytes) -> Snapshot:
    """A snapshot from a section."""
    seq, at, chain = _unpacked(_SNAPSHOT, payload)
    if not is_time(at):
        raise CapsuleInvalid("the snapshot in it is not one of a run")
    return Snapshot(seq, at, chain, payload[_SNAPSHOT.size :])


def write_message(message: Message) -> bytes:
    """A message as a section. When it came is left out: a store dates it when it gets it."""
    return _MESSAGE.pack(message.number) + message.body


def read_message(payload: bytes) -> Message:
    """A message from a section."""
    (number,) = _unpacked(_MESSAGE, payload)
    return Message(number, 0.0, payload[_MESSAGE.size :])


def _unpacked(shape: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    if len(payload) < shape.size:
        raise CapsuleInvalid("a section in it is too short to be what it says")
    return shape.unpack_from(payload)


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
        """The bytes there; fewer at the end."""
        try:
            self._file.seek(place)
            return self._file.read(length)
        except OSError as error:
            raise CapsuleInvalid(f"it cannot be read: {error.strerror}") from None

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class Capsule:
    """One run in one file, read as any store is read; what would change it is refused.

    Opening reads the file once, to the end: checksums, chain, digest and signature are then known to be right.
    """

    def __init__(self, path: str | Path, passphrase: str | None = None) -> None:
        self.path = Path(path)
        self.url = f"capsule:{self.path}"
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
        self._entries, self._marked, self._messages = array("Q"), array("Q"), array("Q")
        self._entry_checks, self._message_checks = bytearray(), bytearray()
        """The checksums of the verified entries and messages; the file may be changed before they are used."""
        self.summary: bytes | None = None
        """What it says of its run to those who cannot read journals."""
        self.signed_by: bytes | None = None
        self.digest = b""
        self.sealed = 0
        """How many entries and snapshots are encrypted with the key of a store."""
        self.sealed_messages = 0
        self.body_bytes = 0
        self._admitted: int | None = None
        self._snapshot: Snapshot | None = None
        before: Entry | None = None
        for section in read_sections(self._origin):
            match section.kind:
                case Kind.FACTS:
                    self.facts: Facts = read_facts(section.payload)
                case Kind.SUMMARY:
                    self.summary = checked_summary(section.payload)
                case Kind.SNAPSHOT:
                    self._take_snapshot(read_snapshot(section.payload))
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
        self._check_parent()

    def _check_parent(self) -> None:
        """Refuse a fork that could only be read through a run that its capsule does not hold."""
        if self.facts.parent and self.facts.first == 1 and self._snapshot is None:
            raise CapsuleInvalid("it is said to be a fork, and what it began with is missing")

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        if snapshot.seq != self.facts.first or not is_whole(snapshot):
            raise CapsuleInvalid("the snapshot that its journal begins with is not one of this run")
        self._snapshot = snapshot
        self.sealed += is_sealed(snapshot.body[CHAIN_BYTES:])

    def _take_entry(self, section: Section, before: Entry | None) -> Entry:
        entry = read_entry(section.payload)
        seq, snapshot = self.facts.first + len(self._entries), self._snapshot
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
            self._check_mark(entry)
            self._marked.append(seq)
        self._entries.append(section.place)
        self._entry_checks += section.check
        self.sealed += is_sealed(entry.body)
        self.body_bytes += len(entry.body)
        return entry._replace(body=entry.body[:1])

    def _check_mark(self, entry: Entry) -> None:
        """Refuse the mark of a checkpoint that those who list checkpoints could not read."""
        mark = StoredCheckpoint.of(entry)
        try:
            decode_checkpoint(self.facts.key, mark, self.facts.run)
        except CorruptJournal as error:
            raise CapsuleInvalid(problem_of(error)) from None

    def _take_message(self, section: Section) -> None:
        self._messages.append(section.place)
        self._message_checks += section.check
        message = read_message(section.payload)
        if message.number != len(self._messages):
            raise CapsuleInvalid("messages in it are missing")
        self.sealed_messages += is_sealed(message.body)

    @property
    def entry_count(self) -> int:
        """How many entries its journal has."""
        return len(self._entries)

    @property
    def checkpoint_count(self) -> int:
        """How many of them end in a checkpoint."""
        return len(self._marked)

    @property
    def message_count(self) -> int:
        """How many messages its inbox has."""
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

    @property
    def beginning(self) -> Snapshot | None:
        """The snapshot without which its journal cannot be read."""
        return self._snapshot

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        """As any store."""
        if run != self.facts.run:
            return
        last = self.facts.last if upto is None else min(upto, self.facts.last)
        for seq in range(max(after + 1, self.facts.first), last + 1):
            yield self._entry(seq)

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        """As any store."""
        if run != self.facts.run:
            return []
        wanted = [seq for seq in reversed(self._marked) if before is None or seq < before][:limit]
        entries = map(self._entry, wanted)
        return [StoredCheckpoint.of(entry) for entry in entries]

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        """As any store."""
        own = self._snapshot
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
        """Let the file go."""
        self._file.close()

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        """Refused."""
        self._refuse()

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        """Refused."""
        self._refuse()

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        """Refused."""
        self._refuse()

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(f"{self.path} is a capsule, which can only be read; import it into a store")

    def _entry(self, seq: int) -> Entry:
        return read_entry(self._again(self._entries, self._entry_checks, seq - self.facts.first))

    def _again(self, places: Sequence[int], checks: bytearray, number: int) -> bytes:
        """Read a section once more; one that is not the verified one is refused."""
        section = read_section(self._origin, places[number])
        if section.check != checks[number * CHECK_BYTES : (number + 1) * CHECK_BYTES]:
            raise CapsuleInvalid("it was changed while it was read")
        return section.payload


# Whether what a capsule says of its run, for those who list runs, is what its journal tells.


def check_claims(facts: Facts, run: RunState, fork: Forked | None) -> None:
    """Refuse facts that are not those of the run; `fork` is how its first entry refers to another, if it does."""
    said: list[tuple[str, object, object]] = [("workflow", facts.workflow, run.workflow)]
    if facts.status != RunStatus.DAMAGED:  # A repair says so, and leaves the journal alone.
        said.append(("status", facts.status, stopped(run.status)))
        said.append(("being under way", facts.under_way, run.status == RunStatus.RUNNING))
    if facts.first == 1:
        said.append(("parent", facts.parent.hex(), "" if fork is None else fork.key.hex()))
    elif run.parent is None:
        said.append(("parent", facts.parent.hex(), ""))
    for what, claimed, found in said:
        if claimed != found:
            raise CapsuleInvalid(
                f"what it says of its run is not what its journal tells: {what} {claimed!r:.80}, not {found!r:.80}"
            )
