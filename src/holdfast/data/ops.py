"""Resolved changes of state: what a step did to which key, as data, and the values they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.frozen import (
    EXOTIC,
    GUARDED,
    PLAIN,
    SCALARS,
    ReadOnlySet,
    freeze,
    frozen_dict,
    frozen_list,
)
from holdfast.errors import CodecError

KINDS = ("set", "append", "merge", "add", "union", "keep", "drop", "reduce")
"""Every kind of change. `reduce` holds the update of a custom reducer until its wave resolves it."""

UNREAD: Any = object()


class Op:
    """One change of one key. The value is decoded when it is first asked for."""

    __slots__ = ("_codec", "_value", "care", "key", "kind", "limit", "raw")

    def __init__(
        self,
        kind: str,
        key: str,
        raw: bytes,
        value: Any = UNREAD,
        care: int = PLAIN,
        limit: int = 0,
        codec: Codec | None = None,
    ) -> None:
        self.kind, self.key, self.raw, self.limit = kind, key, raw, limit
        self._value, self.care, self._codec = value, care, codec

    @property
    def value(self) -> Any:
        """The frozen operand of the change."""
        if self._value is UNREAD:
            if self._codec is None:
                raise CodecError(f"no codec to read state key {self.key!r} with")
            self._value, self.care = freeze(self._codec.decode(self.raw))
        return self._value

    def __repr__(self) -> str:
        return f"Op({self.kind} {self.key!r}, {len(self.raw)} bytes)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Op):
            return NotImplemented
        mine = (self.kind, self.key, self.raw, self.limit)
        return mine == (other.kind, other.key, other.raw, other.limit)

    __hash__ = None  # type: ignore[assignment]


def make_op(codec: Codec, kind: str, key: str, value: Any, limit: int = 0) -> Op:
    """A change made of a live value: frozen, and encoded at once, so a bad value fails here."""
    try:
        frozen, care = (value, PLAIN) if type(value) in SCALARS else freeze(value)
        raw = codec.encode(frozen, plain=care == PLAIN)
    except CodecError as error:
        raise CodecError(f"state key {key!r}: {error}") from None
    except RecursionError:
        raise CodecError(f"state key {key!r}: the value is nested too deeply or contains itself") from None
    if care == GUARDED:
        frozen = codec.decode(raw)
    return Op(kind, key, raw, frozen, care, limit)


class Slot:
    """The value of one key as a chain of changes; put together only when somebody reads it."""

    __slots__ = ("_op", "_prev", "_value", "care")

    def __init__(self, op: Op | None, prev: Slot | None, value: Any = None, care: int = PLAIN) -> None:
        self._op, self._prev, self._value, self.care = op, prev, value, care

    def get(self) -> Any:
        """The frozen value."""
        if self._op is not None:
            self._settle()
        return self._value

    def encoded(self, codec: Codec) -> bytes:
        """The value as bytes; what was read but never looked at is not decoded for it."""
        op = self._op
        if op is not None and op.kind == "set":
            return op.raw
        return codec.encode(self.get(), plain=self.care == PLAIN)

    def written(self) -> list[tuple[str, bytes, int]] | None:
        """The changes that make up the value, as stored, the first one first; `None` once it was put together."""
        changes: list[tuple[str, bytes, int]] = []
        slot: Slot | None = self
        while slot is not None:
            prev, op = slot._prev, slot._op
            if op is None:
                return None
            changes.append((op.kind, op.raw, op.limit))
            slot = None if op.kind == "set" else prev
        return changes[::-1]

    def _settle(self) -> None:
        # Another thread may settle the same slot meanwhile: it clears `_op` before `_prev`, so reading
        # them in the other order never loses a part of the chain.
        ops: list[Op] = []
        slot: Slot | None = self
        while slot is not None:
            prev, op = slot._prev, slot._op
            if op is None:
                break
            ops.append(op)
            slot = None if op.kind == "set" else prev
        known = slot is not None
        value = slot._value if slot is not None else None
        care = slot.care if slot is not None else PLAIN
        try:
            self._value, self.care = settle(known, value, care, reversed(ops))
        except (TypeError, AttributeError) as error:
            raise CodecError(f"state key {ops[0].key!r}: its changes do not fit: {error}") from error
        self._op = None
        self._prev = None


def settle(known: bool, value: Any, care: int, ops: Iterable[Op]) -> tuple[Any, int]:
    """Apply changes of one key in order; answer the frozen value and its care."""
    shape = "frozen"
    known = known and value is not None
    for op in ops:
        operand = op.value
        care = max(care, op.care) if op.kind != "set" else op.care
        match op.kind:
            case "set":
                value, shape = operand, "frozen"
            case "append" | "keep":
                if shape != "list":
                    value, shape = list(value) if known else [], "list"
                value.extend(operand)
                if op.kind == "keep":
                    del value[: -op.limit]
            case "merge":
                if shape != "dict":
                    value, shape = dict(value) if known else {}, "dict"
                value.update(operand)
            case "union":
                if shape != "set":
                    value, shape = set(value) if known else set(), "set"
                value.update(operand)
            case "add":
                value = value + operand if known else operand
            case _:
                raise CodecError(f"state key {op.key!r}: cannot apply a {op.kind!r} change")
        known = value is not None
    if shape == "list":
        return frozen_list(value, care), care
    if shape == "dict":
        return frozen_dict(value, care), care
    if shape == "set":
        return ReadOnlySet(value), max(care, EXOTIC)
    return value, care


Cells = dict[str, Slot]


def advance(cells: Mapping[str, Slot], ops: Iterable[Op]) -> Cells:
    """The cells after `ops`; the given ones stay as they are."""
    result = dict(cells)
    for op in ops:
        kind = op.kind
        if kind == "drop":
            result.pop(op.key, None)
        elif kind == "set" and op._value is not UNREAD:
            result[op.key] = Slot(None, None, op._value, op.care)
        elif kind != "reduce":
            result[op.key] = Slot(op, None if kind == "set" else result.get(op.key))
    return result


def growth(old: Any, new: Any) -> list[Any] | None:
    """The items by which list `new` merely grew out of list `old`, or `None` if it did something else.

    Items are compared by identity, so this is cheap and never takes a changed item for the same.
    """
    if not isinstance(old, list) or not isinstance(new, list) or len(new) < len(old) or not old:
        return None
    if all(map(_same, old, new)):
        return new[len(old) :]
    return None


def _same(one: object, other: object) -> bool:
    return one is other
