"""Read-only containers, so that what a node receives cannot be changed behind the journal's back."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import pathlib
import uuid
from collections.abc import Iterable
from typing import Any, NoReturn

from holdfast.data.codec import alias
from holdfast.errors import StateInvalid


class ReadOnly(StateInvalid, TypeError):
    """State was changed in place."""


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise ReadOnly(
        "state is read-only: return an update such as {'key': new_value} instead of changing it in place "
        "(copy first: list(value), dict(value), or copy.deepcopy(value) for what is nested)"
    )


class ReadOnlyList(list[Any]):
    """A list that refuses to change; `list(value)` and `copy.copy` give a plain, changeable one."""

    __slots__ = ("care",)
    care: int
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def copy(self) -> list[Any]:
        return list(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (list, (list(self),))


class ReadOnlyDict(dict[Any, Any]):
    """A dict that refuses to change; `dict(value)` and `copy.copy` give a plain, changeable one."""

    __slots__ = ("care",)
    care: int
    clear = pop = popitem = setdefault = update = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def copy(self) -> dict[Any, Any]:
        return dict(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (dict, (dict(self),))


class ReadOnlySet(set[Any]):
    """A set that refuses to change; `set(value)` and `copy.copy` give a plain, changeable one."""

    __slots__ = ()
    add = clear = discard = pop = remove = update = _refuse
    difference_update = intersection_update = symmetric_difference_update = _refuse
    __iand__ = __ior__ = __isub__ = __ixor__ = _refuse

    def __repr__(self) -> str:
        return repr(set(self))

    def copy(self) -> set[Any]:
        return set(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> set[Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (set, (set(self),))


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
    """A read-only copy of `value` and the care it needs.

    Containers are copied, so later changes to the original do not show. Objects that cannot be made
    read-only (mutable dataclasses, deques, …) are kept as they are and reported as `GUARDED`.
    """
    kind = type(value)
    if kind in SCALARS:
        return value, PLAIN
    if kind is dict:
        return _freeze_dict(value)
    if kind is list:
        return _freeze_list(value)
    if kind is ReadOnlyDict or kind is ReadOnlyList:
        return value, value.care
    if kind is tuple:
        items, care = _freeze_all(value)
        return tuple(items), max(care, EXOTIC)
    if kind is set:
        return ReadOnlySet(value), EXOTIC
    if kind in _IMMUTABLE or isinstance(value, enum.Enum) or kind is ReadOnlySet:
        return value, EXOTIC
    if _is_frozen_dataclass(value):
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


def _freeze_list(value: list[Any]) -> tuple[ReadOnlyList, int]:
    items, care = _freeze_all(value)
    return frozen_list(items, care), care


def frozen_list(items: list[Any], care: int) -> ReadOnlyList:
    """A read-only list of items that are frozen already and need at most that care."""
    result = ReadOnlyList(items)
    result.care = care
    return result


def frozen_dict(items: dict[Any, Any], care: int) -> ReadOnlyDict:
    """A read-only dict of values that are frozen already and need at most that care."""
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


def _is_frozen_dataclass(value: Any) -> bool:
    params = getattr(type(value), "__dataclass_params__", None)
    return params is not None and params.frozen


def _freeze_dataclass(value: Any) -> tuple[Any, int]:
    copy = object.__new__(type(value))
    care = EXOTIC
    for field in dataclasses.fields(value):
        item, item_care = freeze(getattr(value, field.name))
        care = max(care, item_care)
        object.__setattr__(copy, field.name, item)
    return copy, care


def thaw(value: Any) -> Any:
    """A plain copy of a frozen value: ordinary lists, dicts and sets all the way down."""
    if isinstance(value, ReadOnlyList):
        return [thaw(item) for item in value]
    if isinstance(value, ReadOnlyDict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, ReadOnlySet):
        return set(value)
    if type(value) is tuple:
        return tuple(thaw(item) for item in value)
    return value
