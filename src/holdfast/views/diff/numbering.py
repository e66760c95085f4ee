"""Numbers for values: two values have the same number exactly if they are the same, types included."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import ormsgpack

from holdfast.data.codec import Codec, Unknown
from holdfast.data.marks import stored_class
from holdfast.errors import CodecError

CONTAINERS = frozenset((dict, list, tuple, set, frozenset, Unknown))
"""What is looked into; everything else is compared as a whole."""

_FLAT = frozenset((str, int, float, bool, type(None), bytes))
_TEXT = frozenset((str,))
_MOST_ALIKE = 64
_LARGE = 2**60
"""Larger numbers are known by their digits: any number of them can be made to have the same hash."""

_CODEC = Codec()


class Numbering:
    """Numbers values, each container once: linear in their sizes, and not bound by how deep they are nested.

    Containers are told apart by identity while this lives, so they have to stay as they are and alive.
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self._containers: dict[int, int] = {}
        self._odd: dict[type, list[tuple[Any, int]]] = {}

    def number(self, value: Any) -> int:
        """The number of a value. Equal dicts have the same in whatever order, NaN is the same as NaN."""
        if type(value) is str:
            return self._intern(value)
        if stored_class(value) not in CONTAINERS:
            return self._leaf(value)
        found = self._containers.get(id(value))
        return self._all(value) if found is None else found

    def numbers(self, values: Iterable[Any]) -> list[int]:
        """The number of each."""
        return [self.number(value) for value in values]

    def _all(self, root: Any) -> int:
        """Number the containers in `root`, inner ones first."""
        containers, under_way = self._containers, set[int]()
        waiting: list[tuple[Any, bool]] = [(root, False)]
        while waiting:
            value, is_ready = waiting.pop()
            ident = id(value)
            if is_ready:
                under_way.discard(ident)
                containers[ident] = self._combined(value)
            elif ident not in containers:
                flat = _flat_bytes(value)
                if flat is not None:
                    containers[ident] = self._intern(flat)
                    continue
                if ident in under_way:
                    raise ValueError("the value contains itself, so it cannot be compared")
                under_way.add(ident)
                waiting.append((value, True))
                waiting.extend(
                    (part, False)
                    for part in _parts(value)
                    if stored_class(part) in CONTAINERS and id(part) not in containers
                )
        return containers[id(root)]

    def _combined(self, value: Any) -> int:
        """The number of a container whose own containers are numbered."""
        cls, number = stored_class(value), self.number
        if cls is dict:
            pairs = sorted((number(key), number(item)) for key, item in value.items())
            return self._intern((dict, *pairs))
        if cls is Unknown:
            return self._intern((Unknown, value.type_name, number(value.data)))
        items = [number(item) for item in value]
        return self._intern((cls, *(items if cls in (list, tuple) else sorted(items))))

    def _leaf(self, value: Any) -> int:
        cls = type(value)
        if value is None:
            return self._intern(value)
        if cls is float:
            return self._intern((float, struct.pack("d", value) if value == value else "nan"))
        if cls is int and not -_LARGE < value < _LARGE:
            return self._intern((int, hex(value)))
        if cls in _FLAT:
            return self._intern((cls, value))
        return self._atom(value)

    def _atom(self, value: Any) -> int:
        """A value of another type: by its stored form if it has one, else by equality."""
        cls = type(value)
        try:
            return self._intern((cls, "stored", _CODEC.encode(value)))
        except (CodecError, RecursionError):
            pass
        try:
            return self._intern((cls, "equal", value))
        except (TypeError, RecursionError):
            pass
        alike = self._odd.setdefault(cls, [])
        for other, number in alike:
            if other is value or _equal(other, value):
                return number
        number = self._intern((cls, "odd", len(self._known)))
        if len(alike) < _MOST_ALIKE:
            alike.append((value, number))
        return number

    def _intern(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))


def _parts(value: Any) -> list[Any]:
    cls = stored_class(value)
    if cls is dict:
        return [*value, *value.values()]
    return [value.data] if cls is Unknown else list(value)


def _flat_bytes(value: Any) -> bytes | None:
    """A container of nothing but plain scalars as bytes, which are the same for the same values; else `None`."""
    cls = stored_class(value)
    if cls is dict:
        if not _TEXT.issuperset(map(type, value)):
            return None
        items: Iterable[Any] = value.values()
    elif cls is list or cls is tuple:
        items = value
    else:
        return None
    types = set(map(type, items))
    if not _FLAT.issuperset(types) or (float in types and any(item != item for item in items)):
        return None
    try:
        if cls is dict:
            return b"d" + ormsgpack.packb(value, option=ormsgpack.OPT_SORT_KEYS)
        return cls.__name__[0].encode() + ormsgpack.packb(value if cls is list else list(value))
    except TypeError:
        return None


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False
