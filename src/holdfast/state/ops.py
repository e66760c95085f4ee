"""Resolved changes of state: what a step did to which key, as data, and the values they add up to."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import operator
import pathlib
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn

from holdfast.errors import CodecError, StateInvalid
from holdfast.state.codec import Codec, alias

# Read-only containers, so that what a node receives cannot be changed behind the journal's back.


class ReadOnly(StateInvalid, TypeError):
    """State was changed in place."""


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise ReadOnly(
        "state is read-only: return an update such as {'key': new_value} instead of changing it in place "
        "(copy first: list(value), dict(value), or copy.deepcopy(value) for what is nested)"
    )


class _Frozen:
    """What read-only containers have in common: a copy of one is plain, and can be changed."""

    __slots__ = ()
    plain: ClassVar[type[Any]]

    def copy(self) -> Any:
        return self.plain(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return thaw(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (self.plain, (self.plain(self),))


class ReadOnlyList(_Frozen, list[Any]):
    """A list that refuses to change; `list(value)` and `copy.copy` give a plain, changeable one."""

    __slots__ = ("care",)
    care: int
    plain = list
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse


class ReadOnlyDict(_Frozen, dict[Any, Any]):
    """A dict that refuses to change; `dict(value)` and `copy.copy` give a plain, changeable one."""

    __slots__ = ("care",)
    care: int
    plain = dict
    clear = pop = popitem = setdefault = update = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse


class ReadOnlySet(_Frozen, set[Any]):
    """A set that refuses to change; `set(value)` and `copy.copy` give a plain, changeable one."""

    __slots__ = ()
    plain = set
    add = clear = discard = pop = remove = update = _refuse
    difference_update = intersection_update = symmetric_difference_update = _refuse
    __iand__ = __ior__ = __isub__ = __ixor__ = _refuse

    def __repr__(self) -> str:
        return repr(set(self))


alias(ReadOnlyList, list)
alias(ReadOnlyDict, dict)
alias(ReadOnlySet, set)

PLAIN, EXOTIC, GUARDED = 0, 1, 2
"""How much care a frozen value needs: none; a careful encoding; a private copy per reader."""

SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_IMMUTABLE = frozenset(
    {
        complex,
        range,
        dt.datetime,
        dt.date,
        dt.time,
        dt.timedelta,
        dt.timezone,
        decimal.Decimal,
        fractions.Fraction,
        uuid.UUID,
        frozenset,
        pathlib.PurePosixPath,
        pathlib.PureWindowsPath,
        type(pathlib.Path()),
    }
)


def freeze(value: Any) -> tuple[Any, int]:
    """Return a read-only copy of `value` and the care it needs.

    Containers are copied, so later changes to the original do not show. Objects that cannot be made
    read-only (mutable dataclasses, deques, …) are kept as they are and reported as `GUARDED`.
    """
    kind = type(value)
    if kind in SCALARS:
        return value, PLAIN
    if kind is dict:
        return _freeze_dict(value)
    if kind is list:
        items, care = _freeze_all(value)
        return frozen_list(items, care), care
    if kind is ReadOnlyDict or kind is ReadOnlyList:
        return value, value.care
    if kind is tuple:
        items, care = _freeze_all(value)
        return tuple(items), max(care, EXOTIC)
    if kind is set:
        return ReadOnlySet(value), EXOTIC
    if kind in _IMMUTABLE or isinstance(value, enum.Enum) or kind is ReadOnlySet:
        return value, EXOTIC
    declared = getattr(kind, "__dataclass_params__", None)
    if declared is not None and declared.frozen:
        return _freeze_dataclass(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items, care = _freeze_all(value)
        return kind(*items), max(care, EXOTIC)
    return value, GUARDED


def _freeze_dict(value: dict[Any, Any]) -> tuple[ReadOnlyDict, int]:
    care = PLAIN
    frozen = {}
    for key, item in value.items():
        if type(item) not in SCALARS:
            item, item_care = freeze(item)
            if item_care > care:
                care = item_care
        if type(key) is not str and care == PLAIN:
            care = EXOTIC
        frozen[key] = item
    return frozen_dict(frozen, care), care


def frozen_list(items: list[Any], care: int) -> ReadOnlyList:
    """Return a read-only list of items that are frozen already and need at most that care."""
    result = ReadOnlyList(items)
    result.care = care
    return result


def frozen_dict(items: dict[Any, Any], care: int) -> ReadOnlyDict:
    """Return a read-only dict of values that are frozen already and need at most that care."""
    result = ReadOnlyDict(items)
    result.care = care
    return result


def _freeze_all(values: Iterable[Any]) -> tuple[list[Any], int]:
    care = PLAIN
    items = []
    for item in values:
        if type(item) not in SCALARS:
            item, item_care = freeze(item)
            if item_care > care:
                care = item_care
        items.append(item)
    return items, care


def _freeze_dataclass(value: Any) -> tuple[Any, int]:
    copy = object.__new__(type(value))
    care = EXOTIC
    for field in dataclasses.fields(value):
        item, item_care = freeze(getattr(value, field.name))
        care = max(care, item_care)
        object.__setattr__(copy, field.name, item)
    return copy, care


def thaw(value: Any) -> Any:
    """Return a plain copy of a frozen value: ordinary lists, dicts and sets all the way down."""
    if isinstance(value, ReadOnlyList):
        return [thaw(item) for item in value]
    if isinstance(value, ReadOnlyDict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, ReadOnlySet):
        return set(value)
    if type(value) is tuple:
        return tuple(thaw(item) for item in value)
    return value


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
    """Return a change made of a live value: frozen, and encoded at once, so a bad value fails here."""
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
        """Return the frozen value."""
        if self._op is not None:
            self._settle()
        return self._value

    def encoded(self, codec: Codec) -> bytes:
        """Return the value as bytes; a stored value that was never read is returned without being decoded."""
        op = self._op
        if op is not None and op.kind == "set":
            return op.raw
        return codec.encode(self.get(), plain=self.care == PLAIN)

    def written(self) -> list[tuple[str, bytes, int]] | None:
        """Return the changes that make up the value, as stored, in order; `None` once it was put together."""
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
    """Return the cells after `ops`; the given ones stay as they are."""
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
    """Return the items by which list `new` merely grew out of list `old`, or `None` if it did something else.

    Items are compared by identity, so this is cheap and never takes a changed item for the same.
    """
    if not isinstance(old, list) or not isinstance(new, list) or len(new) < len(old) or not old:
        return None
    return new[len(old) :] if all(map(operator.is_, old, new)) else None
