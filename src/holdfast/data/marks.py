"""What special values look like in storage: the marks, and what stands for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ormsgpack

from holdfast.data.standard import BY_CODE

BIG_INT, ODD_TEXT, BYTEARRAY, NESTED, USER = 1, 2, 3, 26, 127

LEAVES: dict[int, Callable[[bytes], Any]] = {
    BIG_INT: lambda body: int.from_bytes(body, "little", signed=True),
    ODD_TEXT: lambda body: body.decode("utf-8", "surrogatepass"),
    BYTEARRAY: bytearray,
}
"""Values whose Ext carries all of them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The first item of a stored list that is to become something else."""

    code: int


MARKS = {code: Mark(code) for code in (*BY_CODE, USER)}
"""A mark as it is read."""

WRITTEN = {code: ormsgpack.Ext(code, b"") for code in MARKS}
"""A mark as it is written."""

ALIASES: dict[type, type] = {}
"""Classes that are stored as the built-in class they extend."""


def alias(cls: type, plain: type) -> None:
    """From now on, store instances of `cls`, a subclass of `plain`, as instances of `plain`."""
    ALIASES[cls] = plain


def stored_class(value: Any) -> type:
    """The class a value is stored as."""
    return ALIASES.get(type(value)) or type(value)


@dataclass(frozen=True)
class Unknown:
    """A stored value whose type is not known here: its tag and the data it would be built from."""

    type_name: str
    data: Any

    def __hash__(self) -> int:
        return hash((self.type_name, _mixed(self.data, _MIXED_DEPTH)))


_MIXED_DEPTH = 8


def _mixed(data: Any, depth: int) -> int:
    """A hash of data that may have none itself: equal data has equal hashes, different data hardly ever."""
    if not depth:
        return 0
    if isinstance(data, dict):
        return hash(
            frozenset((_mixed(key, depth - 1), _mixed(item, depth - 1)) for key, item in data.items())
        )
    if isinstance(data, (list, tuple)):
        return hash(tuple(_mixed(item, depth - 1) for item in data))
    if isinstance(data, (set, frozenset)):
        return hash(frozenset(_mixed(item, depth - 1) for item in data))
    try:
        return hash(data)
    except TypeError:
        return 0
