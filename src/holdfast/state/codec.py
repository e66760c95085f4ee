"""Values to bytes and back, exactly: typed msgpack with an allow-list of types.

Plain data is plain msgpack. Anything else is a list that begins with a mark, an empty Ext whose code
says what to build from the rest of the list. Marked lists nest like any list, so a value of any depth
is written and read in one pass, without recursion.
"""

from __future__ import annotations

import io
import reprlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ormsgpack

from holdfast.errors import CodecError
from holdfast.state.standard_types import BY_CODE, BY_NAME, SETS, UNMEASURED, check_memory, standard_of
from holdfast.state.types import BUILTIN, Types, has_shape

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


# What special values look like in storage: the marks, and what stands for what.


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
    """Return the class a value is stored as."""
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
    """Return a hash of data that may have none itself: equal data has equal hashes, different data hardly ever."""
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


# One value on its way to bytes: special values become marked lists, without recursion.


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
        """Return a value as bytes; raise `CodecError` or, for a scalar that msgpack rejects, `TypeError`."""
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
            if not self.scalars.issuperset(map(type, value)):
                part.holder[part.key] = items = list(value)
                self.await_items(part, items, 0)
        elif cls is dict and TEXT.issuperset(map(type, value)) and self.are_plain(value):
            if not self.scalars.issuperset(map(type, value.values())):
                part.holder[part.key] = copy = dict(value)
                for key, item in copy.items():
                    if type(item) not in self.scalars:
                        self.waiting.append(Part(copy, key, item, part.depth + 1, part))
        else:
            self.marked(part, cls)
        if part.depth % CUT == CUT - 1 or cls in SETS:
            self.unordered.append(part)

    def are_plain(self, keys: Iterable[str]) -> bool:
        return str in self.scalars or all(map(_is_text, keys))

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
    """Return where in the original the part is: `value['meta'][3].sock`."""
    segments: list[str] = []
    here: Part | None = part
    while here is not None and here.parent is not None:
        segments.append(_segment(here, here.parent))
        here = here.parent
    path = "value" + "".join(reversed(segments))
    return path if len(path) <= 300 else f"{path[:120]} ... {path[-120:]}"


def _is_fields(part: Part | None) -> bool:
    if part is None or part.parent is None or type(part.holder) is not list:
        return False
    return part.key == 2 and part.holder[0] is WRITTEN[USER]


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


VERSION = 1
MAX_NESTED = 2 * MAX_DEPTH // CUT
PREFIX = bytes([VERSION])
STRICT = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


class Codec:
    """Stores plain data, the standard library's value types, numpy arrays, and `types`; nothing else."""

    def __init__(self, types: Types = BUILTIN) -> None:
        self.types = types

    def encode(self, value: Any, *, plain: bool = False) -> bytes:
        """Return the bytes of `value`; raise `CodecError` naming the part that cannot be stored.

        With `plain` the caller promises None, bool, int, float, str and bytes in lists and in dicts
        with str keys, which is faster. Equal sets of equal types have equal bytes.
        """
        if plain or type(value) in SCALARS:
            try:
                return _readable(PREFIX + ormsgpack.packb(value, option=STRICT))
            except TypeError:
                pass
        try:
            return _readable(PREFIX + Encoding(self.types, SCALARS).packed(value))
        except TypeError:
            pass
        try:
            return _readable(PREFIX + Encoding(self.types, SAFE).packed(value))
        except TypeError as error:
            raise CodecError(f"cannot store the value: {error}") from error

    def decode(self, raw: bytes, *, lenient: bool = False) -> Any:
        """Return the value of `raw`, of the same types as it was stored; raise `CodecError` for anything else.

        A type that is not allowed, or no longer fits its data, is an error; if `lenient`, an `Unknown`.
        """
        if raw[:1] != PREFIX:
            version = f"version {raw[0]}" if raw else "no bytes at all"
            raise CodecError(f"cannot read the stored value: {version}, known is version {VERSION}")
        reading = _Reading()
        try:
            check_memory(raw)
            tree = ormsgpack.unpackb(memoryview(raw)[1:], ext_hook=reading.on_ext)
        except (ValueError, CodecError) as error:
            if reading.interrupted is not None:
                raise reading.interrupted from None
            raise CodecError(f"cannot read the stored value: {error}") from None
        return _Decoding(self.types, lenient).rebuilt(tree, reading.marks) if reading.marks else tree


def _readable(raw: bytes) -> bytes:
    """Return bytes that can be read again; refuses what would be too much to read."""
    if len(raw) > UNMEASURED:
        try:
            check_memory(raw)
        except CodecError as error:
            raise CodecError(f"cannot store the value: {error}") from None
    return raw


class _Reading:
    """The decoder of the msgpack extensions in one value."""

    __slots__ = ("depth", "interrupted", "marks")

    def __init__(self) -> None:
        self.marks = self.depth = 0
        self.interrupted: BaseException | None = None
        """An exception from outside, a signal handler's say, that came meanwhile: it is not the value's fault."""

    def on_ext(self, code: int, body: bytes) -> Any:
        try:
            return self._value(code, body)
        except Exception:
            raise
        except BaseException as error:  # msgpack would only tell that its hook has failed.
            self.interrupted = error
            raise

    def _value(self, code: int, body: bytes) -> Any:
        if code in LEAVES:
            return LEAVES[code](body)
        if code == NESTED:
            return self.nested(body)
        self.marks += 1
        return MARKS[code]

    def nested(self, body: bytes) -> Any:
        if self.depth >= MAX_NESTED:
            raise CodecError("it is nested too deep")
        self.depth += 1
        tree = ormsgpack.unpackb(body, ext_hook=self.on_ext)
        self.depth -= 1
        return tree


class _Decoding:
    """One tree of msgpack data on its way to the value that was stored."""

    def __init__(self, types: Types, lenient: bool) -> None:
        self.types, self.lenient = types, lenient

    def rebuilt(self, tree: Any, marks: int) -> Any:
        """Raise `CodecError` unless all `marks` that were read begin a list."""
        root = [tree]
        lists = _marked_lists(root)
        if len(lists) != marks:
            raise CodecError("cannot read the stored value: a mark is out of place")
        for holder, key, marked in reversed(lists):
            try:
                holder[key] = self.build(marked)
            except CodecError:
                raise
            except Exception as error:
                raise CodecError(f"cannot read the stored value: {type(error).__name__}: {error}") from error
        return root[0]

    def build(self, marked: list[Any]) -> Any:
        code = marked.pop(0).code
        if code == USER:
            name, data = marked
            if not isinstance(name, str):
                raise CodecError("cannot read the stored value: a type without a name")
            return self.user(name, data)
        known = BY_CODE[code]
        try:
            return known.build(marked)
        except Exception as error:
            if self.lenient:
                return Unknown(known.name, marked)
            raise CodecError(f"cannot read a stored {known.name!r}: {error}") from error

    def user(self, name: str, data: Any) -> Any:
        handler = self.types.named(name)
        try:
            if handler is None:
                raise CodecError(
                    f"the stored type {name!r} is not allowed here; declare it in the state schema, "
                    "or call holdfast.register_type"
                )
            return handler.decode(data)
        except Exception as error:
            if self.lenient:
                return Unknown(name, data)
            if isinstance(error, CodecError):
                raise
            raise CodecError(f"cannot rebuild a stored {name!r}: {type(error).__name__}: {error}") from error


def _marked_lists(root: list[Any]) -> list[tuple[Any, Any, list[Any]]]:
    """Return every list that begins with a mark and where it sits, outer ones before inner ones."""
    found: list[tuple[Any, Any, list[Any]]] = []
    containers: list[Any] = [root]
    for container in containers:
        for key, item in enumerate(container) if type(container) is list else container.items():
            if type(item) is list:
                containers.append(item)
                if item and type(item[0]) is Mark:
                    found.append((container, key, item))
            elif type(item) is dict:
                containers.append(item)
    return found


class TolerantCodec(Codec):
    """Reads values of types that this process does not know, well enough to store them again."""

    def decode(self, raw: bytes, *, lenient: bool = True) -> Any:
        return super().decode(raw, lenient=True)


# How bodies are made smaller: zstd, alone or as a difference to an earlier body.


STORED, ZSTD, DELTA = 0, 1, 2
LEAST_COMPRESSED = 512
MOST_COMPRESSED = 1 << 30
LONG = 1 << 20
WINDOW_LOG_MIN, WINDOW_LOG_MAX = 10, 30
WINDOW_LOG_ALONE = 27
LEVEL = zstd.CompressionParameter.compression_level
ALONE: dict[int, int] = {LEVEL: 3}


def pack(raw: bytes, base: bytes | None = None) -> tuple[int, bytes]:
    """Return how `raw` is stored, and the bytes to store; never more than `raw` itself.

    0: as it is (small, or not worth it); 1: zstd; 2: zstd, and `unpack` needs the same `base` again.
    """
    size = len(raw)
    if size < LEAST_COMPRESSED or size > MOST_COMPRESSED:
        return STORED, raw
    if base is None or len(base) < LEAST_COMPRESSED:
        how, small = ZSTD, zstd.compress(raw, options=ALONE)
    else:
        how, small = DELTA, zstd.compress(raw, options=_against(base, size), zstd_dict=_prefix(base))
    return (how, small) if len(small) <= size * 0.9 else (STORED, raw)


def unpack(how: int, data: bytes, base: bytes | None = None) -> bytes:
    """Return the bytes that `pack` was given; raise `CodecError` for a damaged body, another base, or a bomb."""
    if how == STORED:
        return data
    if how == ZSTD:
        return _unpacked(data, WINDOW_LOG_ALONE, None)
    if how != DELTA:
        raise CodecError(f"cannot read a stored body: it is packed in the unknown way {how!r}")
    if base is None:
        raise CodecError("cannot read a stored body: it is a difference to an earlier one that is not here")
    return _unpacked(data, _window_log(len(base) + _declared(data)), _prefix(base))


def _unpacked(data: bytes, window_log: int, prefix: Any) -> bytes:
    size = _declared(data)
    limits: dict[int, int] = {zstd.DecompressionParameter.window_log_max: window_log}
    try:
        reader = zstd.ZstdDecompressor(zstd_dict=prefix, options=limits)
        raw = reader.decompress(data, max_length=size + 1)
    except (zstd.ZstdError, ValueError) as error:
        raise CodecError(f"cannot read a stored body: {error}") from None
    if not reader.eof or reader.unused_data or len(raw) != size:
        raise CodecError("cannot read a stored body: it is cut short or has grown")
    return bytes(raw)


def _declared(data: bytes) -> int:
    """Return the length that the frame says it has once unpacked."""
    try:
        size = zstd.get_frame_info(data).decompressed_size
    except zstd.ZstdError as error:
        raise CodecError(f"cannot read a stored body: {error}") from None
    if size is None or size > MOST_COMPRESSED:
        raise CodecError(
            f"cannot read a stored body: it claims {size} bytes, at most {MOST_COMPRESSED} are read"
        )
    return int(size)


def _prefix(base: bytes) -> Any:
    return zstd.ZstdDict(base, is_raw=True).as_prefix


def _window_log(size: int) -> int:
    return max(WINDOW_LOG_MIN, min(WINDOW_LOG_MAX, size.bit_length()))


def _against(base: bytes, size: int) -> dict[int, int]:
    """Return the window covers both; the checksum tells a wrong base; long matches are searched when it pays."""
    whole = len(base) + size
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        LEVEL: 3,
        parameter.window_log: _window_log(whole),
        parameter.checksum_flag: 1,
    }
    if whole > LONG:
        options[parameter.enable_long_distance_matching] = 1
    return options
