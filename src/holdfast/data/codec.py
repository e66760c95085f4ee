"""Values to bytes and back, exactly: typed msgpack with an allow-list of types.

Plain data is plain msgpack. Anything else is a list that begins with a mark, an empty Ext whose code
says what to build from the rest of the list. Marked lists nest like any list, so a value of any depth
is written and read in one pass, without recursion.
"""

from __future__ import annotations

from typing import Any

import ormsgpack

from holdfast.data.budget import UNMEASURED, check_memory
from holdfast.data.encoding import CUT, MAX_DEPTH, SAFE, SCALARS, Encoding
from holdfast.data.marks import ALIASES, LEAVES, MARKS, NESTED, USER, Mark, Unknown, alias
from holdfast.data.standard import BY_CODE
from holdfast.data.types import BUILTIN, Types
from holdfast.errors import CodecError

__all__ = ["ALIASES", "Codec", "TolerantCodec", "Unknown", "alias"]

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
        """The bytes of `value`; raise `CodecError` naming the part that cannot be stored.

        With `plain` the caller promises None, bool, int, float, str and bytes in lists and in dicts
        with str keys, which is faster. Equal sets of equal types have equal bytes.
        """
        if plain:
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
        """The value of `raw`, of the same types as it was stored; raise `CodecError` for anything else.

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
    """Bytes that can be read again; refuses what would be too much to read."""
    if len(raw) > UNMEASURED:
        try:
            check_memory(raw)
        except CodecError as error:
            raise CodecError(f"cannot store the value: {error}") from None
    return raw


class _Reading:
    """What msgpack does not know, met while reading one value."""

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
    """Every list that begins with a mark and where it sits, outer ones before inner ones."""
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
