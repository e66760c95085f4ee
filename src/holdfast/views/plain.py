"""Stored values as plain data that JSON can carry, and as one short line."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import inspect
import itertools
import json
import math
import operator
import os
import pathlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from holdfast.errors import CodecError, problem_of
from holdfast.journal.run_state import Spending
from holdfast.state import standard_types as budget
from holdfast.state.codec import Codec, Unknown
from holdfast.state.ops import Op, Slot
from holdfast.state.standard_types import Allowance
from holdfast.state.state import State, slots_of
from holdfast.values import utc_time

MAX_DEPTH = 60
"""Containers nested deeper than this are named, not shown."""

TOO_BIG_TO_PREVIEW = 256 * 1024
"""A stored value of more bytes is not decoded for a preview."""

MOST_PARTS = 2_000_000
"""A value with more parts (items, keys, numbers of an array) is shown without those that are too many."""

_MOST_BITS = 14_000
"""Python writes integers of up to 4300 digits, which have a few more bits than this."""

_TEXTUAL = (decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath, complex)
_DATED = (dt.datetime, dt.date, dt.time)


class LenientCodec(Codec):
    """Reads values of types that this process does not know as `Unknown`, so that any run can be looked at."""

    def decode(self, raw: bytes, *, lenient: bool = True) -> Any:
        return super().decode(raw, lenient=True)


CODEC = LenientCodec()


class ViewCodec(LenientCodec):
    """Reads the values of one view, as long as all of them together fit into memory."""

    def __init__(self, memory: int | None = None) -> None:
        super().__init__()
        self._memory = budget.MOST_TOGETHER if memory is None else memory
        self._allowance: Allowance | None = Allowance(self._memory)

    def decode(self, raw: bytes, *, lenient: bool = True) -> Any:
        if self._allowance is not None and not self._allowance.takes(raw):
            raise CodecError(
                f"{size_text(len(raw))}, not read: the values of one view may need {size_text(self._memory)} of memory "
                "together; read it alone with `holdfast show RUN --key KEY`"
            )
        return super().decode(raw, lenient=True)

    def renew(self) -> None:
        """Read as much again, for what somebody has asked for by name."""
        self._allowance = Allowance(self._memory)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Read what somebody has asked for by name, whatever was read before: only the limits of each value hold."""
        held, self._allowance = self._allowance, None
        try:
            yield
        finally:
            self._allowance = held


@dataclasses.dataclass(frozen=True, slots=True)
class Unread:
    """What stands for a value in a view that cannot be read, or was not, and says why."""

    reason: str


def read_or_unread(read: Callable[[], Any]) -> Any:
    """Return what `read` returns, or, if that cannot be read, an `Unread` that says why."""
    try:
        return read()
    except CodecError as error:
        return Unread(problem_of(error))


def pairs_of(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the items of a mapping; of a state, with an `Unread` for each value that cannot be read."""
    if not isinstance(value, State):
        yield from value.items()
        return
    for key in value:
        yield key, read_or_unread(functools.partial(value.__getitem__, key))


def when(at: float) -> dt.datetime:
    """Return a time of the journal, in UTC."""
    return utc_time(at)


def iso(at: dt.datetime | None) -> str | None:
    """Return a time as ISO 8601 text with milliseconds, in UTC."""
    return None if at is None else at.astimezone(dt.UTC).isoformat(timespec="milliseconds")


class View:
    """Base of the frozen dataclasses that people and programs read; `as_json` gives all of them as plain data.

    `JSON` names the keys. An entry is an attribute (`run_id`), another name for one or for what a method returns
    (`bytes=size`), a value of the user's (`output!`), an attribute that is left out if it is `None` (`delta?`), one
    that is null if it is empty (`parent~`), or one whose own keys are taken (`*spending`).
    Without `JSON` the keys are the fields that do not begin with an underscore.
    """

    __slots__ = ()
    JSON: ClassVar[str] = ""

    @classmethod
    def _json_entries(cls) -> list[str]:
        """Return the entries of `JSON`, or the names of the fields."""
        if cls.JSON:
            return cls.JSON.split()
        own: Any = cls
        return [field.name for field in dataclasses.fields(own) if not field.name.startswith("_")]

    @classmethod
    def json_keys(cls) -> str:
        """Return the names of the keys of `as_json`, for documentation."""
        names = [
            entry.partition("=")[0].rstrip("!~") for entry in cls._json_entries() if not entry.endswith("?")
        ]
        every = [", ".join(Spending._fields) if name.startswith("*") else name for name in names]
        optional = [entry[:-1] for entry in cls._json_entries() if entry.endswith("?")]
        return ", ".join(every) + (f"; if known also {', '.join(optional)}" if optional else "")

    def as_json(self) -> dict[str, Any]:
        """Return the view as plain data that JSON can carry."""
        found: dict[str, Any] = {}
        for entry in self._json_entries():
            key, _, name = entry.strip("*?!~").partition("=")
            value = functools.reduce(_attribute, (name or key).split("."), self)
            if entry.startswith("*"):
                found |= _view_value(key, value)
            elif entry.endswith("!"):
                found[key] = plain(value)
            elif entry.endswith("~"):
                found[key] = _view_value(key, value) or None
            elif value is not None or not entry.endswith("?"):
                found[key] = _view_value(key, value)
        return found


def _attribute(value: Any, name: str) -> Any:
    if value is None or isinstance(value, Mapping):
        return None if value is None else value.get(name)
    found = getattr(value, name)
    return found() if inspect.ismethod(found) else found


def _view_value(key: str, value: Any) -> Any:
    """Return an attribute of a view as plain data."""
    if isinstance(value, View):
        return value.as_json()
    if isinstance(value, Spending):
        return {name: _view_value(name, amount) for name, amount in value._asdict().items()}
    if isinstance(value, float) and key.endswith(("seconds", "cost")):
        return round(value, 6 if key.endswith("seconds") else 12)
    if isinstance(value, dt.datetime):
        return iso(value)
    if isinstance(value, (tuple, list)) and any(isinstance(each, View) for each in value):
        return [_view_value("", each) for each in value]
    if isinstance(value, Mapping) and any(isinstance(each, View) for each in value.values()):
        return {name: _view_value("", each) for name, each in named(value.items())}
    return plain(value)


class Room:
    """How many parts of a value may still be shown; `is_cut` says that something was left out."""

    def __init__(self, parts: int = MOST_PARTS) -> None:
        self._left, self.is_cut = parts, False

    def takes(self, parts: int) -> bool:
        """Whether so many parts more may be shown."""
        if parts > self._left:
            self.is_cut = True
            return False
        self._left -= parts
        return True


def plain(value: Any, depth: int = 0, room: Room | None = None) -> Any:
    """`value` as JSON carries it.

    Dates are ISO 8601, time spans seconds; numbers that JSON lacks, ids and paths are text; integers of thousands of
    digits are hexadecimal text; tuples and sets are lists; keys are text, with their type where two would be the same.
    Anything else is an object whose `$type` says what it was. So is what has more parts than there is `room` for, and
    what could not be read (`$type` is `unread`), with a text that says so.
    """
    room = Room() if room is None else room
    if value is None or (isinstance(value, (bool, int, str, float)) and not isinstance(value, enum.Enum)):
        return _scalar(value)
    if depth > MAX_DEPTH:
        return {"$type": type(value).__name__, "text": "nested too deep to be shown"}
    if isinstance(value, (Mapping, list, tuple, set, frozenset)) and not room.takes(len(value)):
        return _left_out(value, len(value))
    if isinstance(value, Mapping):
        return {name: plain(item, depth + 1, room) for name, item in named(pairs_of(value))}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [plain(item, depth + 1, room) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, depth + 1, room) for item in value), key=repr)
    if isinstance(value, enum.Enum):
        return plain(value.value, depth + 1, room)
    if isinstance(value, _DATED):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, _TEXTUAL):
        return _scalar(_text(value))
    if isinstance(value, (bytes, bytearray)):
        return {"$type": "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, Unread):
        return {"$type": "unread", "text": value.reason}
    if isinstance(value, Unknown):
        return {"$type": value.type_name, "value": plain(value.data, depth + 1, room)}
    return _object(value, depth, room)


def _left_out(value: Any, parts: int) -> dict[str, Any]:
    return {"$type": type_name(value), "text": f"{parts:,} parts, too many to be shown"}


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if value.isascii() else str(value).encode("utf-8", "backslashreplace").decode()
    return hex(value) if isinstance(value, int) and value.bit_length() > _MOST_BITS else value


def _text(value: Any) -> str:
    """`value` as Python writes it, unless that would take a decimal number which is too long for Python."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return hex(value)
    try:
        return str(value)
    except ValueError:
        return f"<{type_name(value)} of very large numbers>"


def _object(value: Any, depth: int, room: Room) -> dict[str, Any]:
    fields: Mapping[str, Any] | None = None
    if hasattr(value, "_fields"):
        fields = dict(zip(value._fields, value, strict=True))
    elif dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "tolist"):
        return _array(value, depth, room)
    elif isinstance(getattr(value, "__dict__", None), dict):
        fields = {key: item for key, item in vars(value).items() if not key.startswith("_")}
    if fields is None:
        try:
            text = f"{value!r:.200}"
        except ValueError:
            text = f"<{type_name(value)} of very large numbers>"
        return {"$type": type_name(value), "text": _scalar(text)}
    return {"$type": type_name(value), **{key: plain(item, depth + 1, room) for key, item in fields.items()}}


def _array(value: Any, depth: int, room: Room) -> dict[str, Any]:
    """A numpy array or scalar. An array as lists has one list for each of its rows, and of theirs."""
    shape = tuple(getattr(value, "shape", ()))
    parts = sum(itertools.accumulate(itertools.takewhile(bool, shape), operator.mul))
    if not room.takes(parts):
        return {**_left_out(value, parts), "shape": list(shape), "dtype": str(getattr(value, "dtype", ""))}
    return {"$type": type_name(value), "value": plain(value.tolist(), depth + 1, Room(2 * parts + 1))}


def named(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield items by their keys as text, each by another: a key that is no text gives way, and shows its type."""
    found = list(pairs)
    taken = {key for key, _ in found if type(key) is str}
    for key, item in found:
        name = str(_scalar(key if isinstance(key, str) else _text(key)))
        if type(key) is not str or name != key:
            if name in taken:
                name = f"{name} ({type_name(key)})"
            while name in taken:
                name += "'"
            taken.add(name)
        yield name, item


def preview(value: Any, width: int = 80) -> str:
    """`value` on one line of at most `width` characters; texts are shown as they are."""
    small = _shortened(value, width)
    text = small if isinstance(small, str) else json.dumps(plain(small), ensure_ascii=False)
    text = " ".join(_scalar(text).split())
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def _shortened(value: Any, width: int, depth: int = 0) -> Any:
    """No more of `value` than fits into `width` characters, so that a large one costs nothing to preview."""
    if isinstance(value, str):
        return value[: width + 1]
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        if depth > MAX_DEPTH:
            return "…"
        pairs = itertools.islice(pairs_of(value), width // 4 + 1)
        return {name: _shortened(item, width, depth + 1) for name, item in named(pairs)}
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        if depth > MAX_DEPTH:
            return "…"
        return [_shortened(item, width, depth + 1) for item in itertools.islice(value, width // 2 + 1)]
    return value


def preview_raw(raw: bytes, codec: Codec, width: int = 80) -> str:
    """As `preview`, of a stored value; a very large one is only measured."""
    if len(raw) > TOO_BIG_TO_PREVIEW:
        return f"<{size_text(len(raw))}>"
    try:
        return preview(codec.decode(raw), width)
    except CodecError as error:
        return f"<unreadable here: {error}>"[:width]


# What steps see and change, at a glance: little of it, without what its name says is secret, at a bounded cost.


GLANCE = 240
"""The most characters of a preview of a state or an update."""
_MOST_GLANCED, _MOST_MEASURED = 300, 2000
_SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token|api_?key|authorization|credential|private_?key", re.I
)


def preview_state(state: State) -> str:
    """Return a state on one line, cut short; texts under keys such as `password` are shown as `***`."""
    some = itertools.islice(slots_of(state).items(), GLANCE)
    return _preview_values((key, partial(_seen, slot)) for key, slot in some)


def preview_ops(ops: Iterable[Op]) -> str:
    """Return the values of changes on one line, as `preview_state` does."""
    some = itertools.islice((op for op in ops if op.kind != "drop"), GLANCE)
    return _preview_values((op.key, partial(_seen, op)) for op in some)


def state_size(state: State) -> int:
    """Return about how many bytes a state has; of values with very many parts, only some parts count."""
    left, found = iter(range(_MOST_MEASURED)), 0
    for key, slot in itertools.islice(slots_of(state).items(), _MOST_MEASURED):
        stored = slot.written()
        found += len(key)
        found += _measured(slot.get(), left) if stored is None else sum(len(change[1]) for change in stored)
    return found


def _preview_values(values: Iterable[tuple[str, Callable[[], Any]]]) -> str:
    left = iter(range(_MOST_GLANCED))
    return preview({key: _glance(key, value(), left) for key, value in values}, GLANCE)


def _seen(held: Slot | Op) -> Any:
    """Return a value; one that is stored, large and not yet decoded is only measured."""
    changes = held.written() if isinstance(held, Slot) else [(held.kind, held.raw, 0)]
    if changes is not None and (size := sum(len(change[1]) for change in changes)) > TOO_BIG_TO_PREVIEW:
        return f"<{size_text(size)}>"
    try:
        return held.get() if isinstance(held, Slot) else held.value
    except CodecError:
        return "<unreadable here>"


def _glance(key: object, value: Any, left: Iterator[int], depth: int = 0) -> Any:
    """Return as many parts of a value as are left; what a key says is secret is hidden."""
    if next(left, None) is None or depth > MAX_DEPTH:
        return "…"
    if isinstance(key, str) and _SECRET.search(key) and not isinstance(value, (int, float, type(None))):
        return "***"
    if isinstance(value, Mapping):
        pairs = itertools.islice(pairs_of(value), GLANCE // 4)
        return {name: _glance(name, item, left, depth + 1) for name, item in named(pairs)}
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return [_glance(None, item, left, depth + 1) for item in itertools.islice(value, GLANCE // 2)]
    return _shortened(value, GLANCE)


def _measured(value: Any, left: Iterator[int]) -> int:
    """Return about how many bytes a value has, counting as many of its parts as are left."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, Mapping):
        parts = (_measured(key, left) + _measured(item, left) for key, item in pairs_of(value))
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = (_measured(item, left) for item in value)
    else:
        return int(getattr(value, "nbytes", 8))
    return sum(size for size, _ in zip(parts, left, strict=False))


def size_text(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


# Any value as indented lines: complete, harmless to terminals, and never the same lines for two values.


_PLAIN = (type(None), bool, int, float, str)
_JSON_WORDS = {"None": "null", "True": "true", "False": "false"}


def tree_lines(value: Any, indent: str = "") -> list[str]:
    """Return a value as indented lines; what is not plain data shows its type. `CodecError` if nested too deep."""
    return list(_lines(value, indent, 0))


def _lines(value: Any, indent: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise CodecError(f"it is nested more than {MAX_DEPTH} deep, which is too deep to be shown")
    is_map = isinstance(value, Mapping)
    for label, item in (
        ((f"{_key(key)}:", value[key]) for key in value) if is_map else (("-", item) for item in value)
    ):
        mark, inner = _opened(item)
        if inner is not None:
            yield f"{indent}{label}{mark}"
            yield from _lines(inner, f"{indent}  ", depth + 1)
        elif type(item) is str and "\n" in item:
            yield f"{indent}{label} |"
            yield from (f"{indent}  {text_line(line)}" for line in item.split("\n"))
        else:
            yield f"{indent}{label} {scalar(item)}"


def _opened(value: Any) -> tuple[str, Any]:
    """What is inside a value that has parts, and how its type is marked; nothing inside of what is one line."""
    kind = type(value)
    if kind in _PLAIN or (kind in (dict, list, tuple) and not value):
        return "", None
    if kind in (dict, list):
        return "", value
    if kind is Unknown:
        return f" (unknown type) {scalar(value.type_name)}", [value.data]
    mark = f" ({type_name(value)})"
    if isinstance(value, (set, frozenset)):
        return (mark, sorted(value, key=repr)) if value else ("", None)
    if hasattr(value, "_fields"):
        return mark, dict(zip(value._fields, value, strict=True))
    if isinstance(value, (Mapping, list, tuple)):
        return (mark, dict(value) if isinstance(value, Mapping) else list(value)) if value else ("", None)
    if dataclasses.is_dataclass(value):
        return mark, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        return f"{mark} {getattr(value, 'dtype', '')}", [value.tolist()]
    return "", None


def _key(key: Any) -> str:
    if type(key) is not str:
        return scalar(key, typed=True)
    if key.isidentifier() and key.isprintable():
        return key
    if any(char in key for char in ':"\\') or not key.isprintable() or key != scalar(key):
        text = key.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{"".join(map(_char, text))}"'
    return key


def scalar(value: Any, typed: bool = False) -> str:
    """Return what has no parts on one line; a text that could be taken for something else is quoted."""
    kind = type(value)
    if kind is str:
        text = escaped(value)
        if text != value:
            return f'\\"{text}"'
        return f'"{text}"' if _is_ambiguous(text) else text
    if kind in _PLAIN:
        is_huge = kind is int and value.bit_length() > _MOST_BITS
        text = hex(value) if is_huge else _JSON_WORDS.get(repr(value), repr(value))
    elif kind in (dict, list, tuple) and not value:
        return str(value)
    else:
        try:
            text = escaped(repr(value))
        except ValueError:
            raise CodecError(f"a {type_name(value)} is too large to be shown") from None
        typed = True
    return f"({type_name(value)}) {text}" if typed else text


def _is_ambiguous(text: str) -> bool:
    if (
        not text
        or text != text.strip()
        or text in _JSON_WORDS.values()
        or text[0] in '"({[\\|'
        or text[:1] == "-"
    ):
        return True
    try:
        float(text)
    except ValueError:
        return text.lstrip("-").startswith("0x")
    return True


def text_line(line: str) -> str:
    """Return a line of a longer text behind a bar, or behind a backslash if characters of it are escaped."""
    text = escaped(line)
    return f"| {text}" if text == line else f"\\ {text}"


def escaped(text: str) -> str:
    """Return text with every character as `\\x1b` that does not show as itself: controls, directions, halves.

    A text that has such characters has its backslashes doubled.
    """
    if text.isprintable() or text.replace("\t", "").isprintable():
        return text
    return "".join("\\\\" if char == "\\" else char if char == "\t" else _char(char) for char in text)


def _char(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char.encode("unicode_escape").decode()


def type_name(value: Any) -> str:
    """Return the name of a value's type, with its module unless it is built in."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


# Tracebacks without Holdfast's own frames.


OWN = f"{pathlib.Path(__file__).resolve().parents[1]}{os.sep}"
"""The folder of Holdfast's own code."""
_FRAME = '  File "'


def user_trace(trace: str) -> str:
    """Return a stored traceback without Holdfast's own frames; empty if it has no others."""
    kept: list[str] = []
    own, others = False, False
    for line in trace.splitlines():
        if line.startswith(_FRAME):
            own = line.startswith((f"{_FRAME}{OWN}", f"{_FRAME}<frozen"))
            others = others or not own
        elif not line.startswith("    "):
            own = False
        if not own:
            kept.append(line)
    return "\n".join(kept) if others else ""
