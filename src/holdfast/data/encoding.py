"""One value on its way to bytes: special values become marked lists, without recursion."""

from __future__ import annotations

import io
import reprlib
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any

import ormsgpack

from holdfast.data.marks import BIG_INT, BYTEARRAY, NESTED, ODD_TEXT, USER, WRITTEN, Unknown, stored_class
from holdfast.data.shapes import has_shape
from holdfast.data.standard import BY_NAME, SETS, standard_of
from holdfast.data.types import Types
from holdfast.errors import CodecError

MAX_DEPTH = 500
CUT = 100
SMALLEST, LARGEST = -(2**63), 2**64 - 1
TEXT = frozenset([str])
SAFE = frozenset([type(None), bool, float, bytes])
SCALARS = SAFE | {int, str}
FIRST_ITEM: dict[type, int] = {list: 0, tuple: 1, deque: 2}
FIRST_KEY: dict[type, int] = {dict: 1, OrderedDict: 1, Counter: 1, defaultdict: 2}


@dataclass(slots=True)
class Part:
    """A value on its way into `holder[key]` of what is stored; in the original it sits in `parent`."""

    holder: Any
    key: Any
    value: Any
    depth: int
    parent: Part | None


class Encoding:
    """One value on its way to bytes. `scalars` are the types passed on to msgpack unseen."""

    def __init__(self, types: Types, scalars: frozenset[type]) -> None:
        self.types, self.scalars = types, scalars
        self.waiting: list[Part] = []
        self.unordered: list[Part] = []

    def packed(self, value: Any) -> bytes:
        """Raise `TypeError` if a scalar that was passed on unseen is beyond msgpack."""
        root = [value]
        if type(value) not in self.scalars:
            self.waiting.append(Part(root, 0, value, 0, None))
        while self.waiting:
            part = self.waiting.pop()
            try:
                self.convert(part)
            except CodecError as error:
                raise CodecError(f"cannot store {_path(part)}: {error}") from None
            except Exception as error:
                raise CodecError(f"cannot store {_path(part)}: {type(error).__name__}: {error}") from error
        for part in reversed(self.unordered):
            self.settle(part)
        return ormsgpack.packb(root[0])

    def convert(self, part: Part) -> None:
        value = part.value
        cls = stored_class(value)
        if cls is int or cls is str or cls is bytearray:
            part.holder[part.key] = _leaf(value)
        elif part.depth >= MAX_DEPTH:
            raise CodecError(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
        elif cls is list:
            self.plain_list(part)
        elif cls is dict and self.plain_keys(value):
            self.plain_dict(part)
        else:
            self.marked(part, cls)
        if part.depth % CUT == CUT - 1 or cls in SETS:
            self.unordered.append(part)

    def plain_keys(self, value: dict[Any, Any]) -> bool:
        if not TEXT.issuperset(map(type, value)):
            return False
        return str in self.scalars or all(map(_is_text, value))

    def plain_list(self, part: Part) -> None:
        if not self.scalars.issuperset(map(type, part.value)):
            part.holder[part.key] = copy = list(part.value)
            self.await_items(part, copy, 0)

    def plain_dict(self, part: Part) -> None:
        if not self.scalars.issuperset(map(type, part.value.values())):
            part.holder[part.key] = copy = dict(part.value)
            for key, item in copy.items():
                if type(item) not in self.scalars:
                    self.waiting.append(Part(copy, key, item, part.depth + 1, part))

    def await_items(self, part: Part, items: list[Any], start: int) -> None:
        for index in range(start, len(items)):
            if type(items[index]) not in self.scalars:
                self.waiting.append(Part(items, index, items[index], part.depth + 1, part))

    def marked(self, part: Part, cls: type) -> None:
        value = part.value
        known = BY_NAME.get(value.type_name) if cls is Unknown else standard_of(cls)
        if known is not None:
            items = value.data if cls is Unknown else known.items(value)
            part.holder[part.key] = marked = [WRITTEN[known.code], *items]
            self.await_items(part, marked, 1)
            return
        name, data = self.named(cls, value)
        part.holder[part.key] = marked = [WRITTEN[USER], name, data]
        if type(data) not in self.scalars:
            deeper = 0 if type(data) in (dict, list) else 1
            self.waiting.append(Part(marked, 2, data, part.depth + deeper, part))

    def named(self, cls: type, value: Any) -> tuple[str, Any]:
        if cls is Unknown:
            return value.type_name, value.data
        handler = self.types.find(cls)
        if handler is None:
            raise CodecError(f"type {cls.__qualname__!r} is not storable; {_storable_instead(cls)}")
        return handler.name, handler.encode(value)

    def settle(self, part: Part) -> None:
        """Order a set by its items' bytes; pack a deep part by itself, for ormsgpack packs 255 levels."""
        done = part.holder[part.key]
        if stored_class(part.value) in SETS:
            done[1:] = sorted(done[1:], key=ormsgpack.packb)
        if part.depth % CUT == CUT - 1:
            part.holder[part.key] = ormsgpack.Ext(NESTED, ormsgpack.packb(done))


_OF_THE_PROCESS = (
    "builtins",
    "types",
    "_thread",
    "threading",
    "asyncio",
    "socket",
    "_io",
    "sqlite3",
    "ssl",
    "queue",
    "re",
)
"""Modules whose types are nothing to store: functions, locks, threads, connections, open files."""


def _storable_instead(cls: type) -> str:
    """Return what to do about a value of a type that is on no list: what holds for this very type."""
    if has_shape(cls):
        call = f"holdfast.register_type({cls.__name__})"
        return f"return plain data, declare the type in the state schema, or call {call}"
    if cls.__module__ in _OF_THE_PROCESS or issubclass(cls, (io.IOBase, BaseException)):
        return "it belongs to the running process: make it where it is used, and return plain data"
    return (
        f"return plain data, or call holdfast.register_type({cls.__name__}, encode=…, decode=…) with functions that "
        "turn it into plain data and back"
    )


def _is_text(text: str) -> bool:
    try:
        return text.isascii() or text.encode() is not None
    except UnicodeEncodeError:
        return False


def _leaf(value: Any) -> Any:
    if isinstance(value, bytearray):
        return ormsgpack.Ext(BYTEARRAY, bytes(value))
    if isinstance(value, str):
        return value if _is_text(value) else ormsgpack.Ext(ODD_TEXT, value.encode("utf-8", "surrogatepass"))
    if SMALLEST <= value <= LARGEST:
        return value
    return ormsgpack.Ext(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _path(part: Part) -> str:
    """Where in the original the part is: `value['meta'][3].sock`."""
    segments: list[str] = []
    here: Part | None = part
    while here is not None and here.parent is not None:
        segments.append(_segment(here, here.parent))
        here = here.parent
    path = "value" + "".join(reversed(segments))
    return path if len(path) <= 300 else f"{path[:120]} ... {path[-120:]}"


def _is_fields(part: Part | None) -> bool:
    return part is not None and part.parent is not None and _holds_fields(part)


def _holds_fields(part: Part) -> bool:
    return type(part.holder) is list and part.key == 2 and part.holder[0] is WRITTEN[USER]


def _segment(part: Part, parent: Part) -> str:
    cls = stored_class(parent.value)
    if type(part.holder) is dict:
        named = _is_fields(parent) or _is_fields(parent.parent)
        return f".{part.key}" if named else f"[{reprlib.repr(part.key)}]"
    if _is_fields(part) or _is_fields(parent):
        return ""
    if cls in FIRST_ITEM:
        return f"[{part.key - FIRST_ITEM[cls]}]"
    if cls in FIRST_KEY:
        index, is_value = divmod(part.key - FIRST_KEY[cls], 2)
        return f"[{reprlib.repr(list(parent.value)[index])}]" if is_value else f".keys()[{index}]"
    if cls in SETS:
        return ".<item>"
    return ".tzinfo" if hasattr(parent.value, "tzinfo") else ""
