"""What the sections of a capsule say: facts, entries, a snapshot, messages; each in one way only."""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CapsuleInvalid
from holdfast.stores.base import DEFAULT_NAMESPACE, Entry, Message, RunInfo, Snapshot
from holdfast.values import RunStatus

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

    Its status is that of a run that nobody drives: `under_way` says that its journal ends in the middle of a drive.
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
        """Those of a stored run. Whoever drives it, or is to drive it, stays behind."""
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


_DRIVEN = (RunStatus.RUNNING, RunStatus.QUEUED)


def stopped(status: str) -> str:
    """The status of a run once nobody drives it, or is to."""
    return (RunStatus.INTERRUPTED if status in _DRIVEN else RunStatus(status)).value


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
        and facts.status in set(RunStatus) - set(_DRIVEN)
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
    """A message as a section. When it came is not told: a store dates it when it gets it."""
    return _MESSAGE.pack(message.number) + message.body


def read_message(payload: bytes) -> Message:
    """A message from a section."""
    (number,) = _unpacked(_MESSAGE, payload)
    return Message(number, 0.0, payload[_MESSAGE.size :])


def _unpacked(shape: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    if len(payload) < shape.size:
        raise CapsuleInvalid("a section in it is too short to be what it says")
    return shape.unpack_from(payload)
