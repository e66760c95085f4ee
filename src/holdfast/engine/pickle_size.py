"""How large a pickle is once it is read: its program is gone through, and nothing of it is made."""

from __future__ import annotations

import pickletools
from collections import Counter
from typing import Any

from holdfast.data.budget import MOST_ALIKE
from holdfast.data.encoding import MAX_DEPTH
from holdfast.errors import CodecError

MOST_PARTS = 5_000_000
"""How many parts a pickle may come to. What it refers to again counts again: so it is read, shown and stored."""

MOST_LEVELS = 4 * MAX_DEPTH
"""How deep the parts of a pickle may be nested. A level of a value, as it is stored, is up to four of them."""

MOST_ODD_KEYS = 5_000
"""How many keys of one mapping may be objects whose hash cannot be told from the pickle."""

_POPPED = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "NEWOBJ": 2, "NEWOBJ_EX": 3, "STACK_GLOBAL": 2}
_GATHERED = ("TUPLE", "LIST", "DICT", "FROZENSET")
_ADDED = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "APPENDS": 0, "SETITEMS": 0, "ADDITEMS": 0}
_NUMBERED = ("PUT", "BINPUT", "LONG_BINPUT")
"""An unpickler makes room for all numbers up to the one that these name."""
_KEPT = (*_NUMBERED, "MEMOIZE")
_FETCHED = ("GET", "BINGET", "LONG_BINGET")
_IGNORED = ("PROTO", "FRAME")
_REFUSED = ("POP", "POP_MARK", "DUP", "INST", "OBJ", "NEXT_BUFFER", "READONLY_BUFFER")
_WELL_MIXED = ("datetime", "uuid", "pathlib", "pathlib._local")
"""Modules whose objects have hashes that nobody can foresee."""


class _Part:
    """A value that the pickle makes: its parts, its name if it is a global, and its hash as far as it is known."""

    __slots__ = ("called", "hash", "hashes", "levels", "parts")

    def __init__(self, hash_: int | None = None, called: Any = None) -> None:
        self.parts: list[_Part] | tuple[()] = ()
        self.hash, self.called, self.levels = hash_, called, 1
        self.hashes: Counter[int | None] | None = None

    def hold(self, parts: list[_Part]) -> None:
        """Take more parts. What these take later, they are too late to tell: `_weigh` finds it."""
        if not parts:
            return
        if isinstance(self.parts, list):
            self.parts += parts
        else:
            self.parts = parts
        self.levels = max(self.levels, 1 + max(part.levels for part in parts))
        _check_levels(self.levels)

    def add_keys(self, keys: list[_Part]) -> None:
        """Refuse keys that would meet in one place of a mapping: each is compared with all before it."""
        hashes = self.hashes = self.hashes if self.hashes is not None else Counter()
        for key in keys:
            hashes[key.hash] += 1
            most = MOST_ODD_KEYS if key.hash is None else MOST_ALIKE
            if hashes[key.hash] > most:
                raise CodecError(f"more than {most} keys of one mapping in it may have the same hash")


def check_size(data: bytes) -> None:
    """Refuse a pickle that comes to more parts than are allowed, holds itself, or does what no pickler writes."""
    _weigh(_Program().root(data))


class _Program:
    """The stack and the memory of an unpickler, with parts in place of values."""

    def __init__(self) -> None:
        self.stack: list[_Part | None] = []
        self.memo: dict[int, _Part] = {}

    def root(self, data: bytes) -> _Part:
        """The part that the whole pickle makes."""
        for opcode, argument, place in pickletools.genops(data):
            if opcode.name == "STOP":
                if len(self.stack) != 1:
                    raise CodecError("it makes things that are not part of what it holds")
                return self.top()
            if opcode.name in _NUMBERED:
                _check_number(argument, place or 0)
            self.step(opcode.name, argument)
            if len(self.stack) > MOST_PARTS:
                raise CodecError(f"it comes to more than {MOST_PARTS:,} parts")
        raise ValueError("pickle exhausted before end of frame")

    def top(self) -> _Part:
        found = self.stack[-1]
        if found is None:
            raise ValueError("unexpected MARK found")
        return found

    def pop(self, count: int) -> list[_Part]:
        found = [part for part in self.stack[-count:] if part is not None] if count else []
        if len(found) != count:
            raise ValueError("pickle stack underflow")
        del self.stack[len(self.stack) - count :]
        return found

    def gathered(self) -> list[_Part]:
        """What lies above the last mark."""
        place = len(self.stack) - 1
        while place >= 0 and self.stack[place] is not None:
            place -= 1
        if place < 0:
            raise ValueError("could not find MARK")
        found = self.pop(len(self.stack) - 1 - place)
        self.stack.pop()
        return found

    def step(self, name: str, argument: Any) -> None:
        if name == "MARK":
            self.stack.append(None)
        elif name in _ADDED:
            self.add(name, self.pop(_ADDED[name]) if _ADDED[name] else self.gathered())
        elif name in _POPPED or name in _GATHERED:
            self.stack.append(_made(name, self.pop(_POPPED[name]) if name in _POPPED else self.gathered()))
        elif name in _KEPT:
            self.memo[len(self.memo) if name == "MEMOIZE" else int(argument)] = self.top()
        elif name in _FETCHED:
            self.stack.append(self.memo[int(argument)])
        elif name == "GLOBAL":
            self.stack.append(_Part(called=tuple(str(argument).split(" ", 1))))
        elif name in _REFUSED or "PERSID" in name or name.startswith("EXT"):
            raise CodecError(f"it has the instruction {name}, which no pickle of plain data has")
        elif name not in _IGNORED:
            self.stack.append(
                _Part(hash_=_hash_of(name, argument), called=argument if isinstance(argument, str) else None)
            )

    def add(self, name: str, parts: list[_Part]) -> None:
        holder = self.top()
        if name == "BUILD" and isinstance(holder.called, tuple):
            raise CodecError("it changes a type or a function")
        if name in ("SETITEM", "SETITEMS"):
            holder.add_keys(parts[::2])
        elif name == "ADDITEMS":
            holder.add_keys(parts)
        holder.hold(parts)


def _check_number(number: Any, place: int) -> None:
    """Refuse a number for a value that is larger than the numbers of all instructions before it can be."""
    if not 0 <= int(number) <= place:
        raise CodecError(f"it keeps a value under the number {number:,}, which no pickle of its size has")


def _check_levels(levels: int) -> None:
    if levels > MOST_LEVELS:
        raise CodecError(f"it is nested deeper than {MOST_LEVELS:,} levels")


def _made(name: str, parts: list[_Part]) -> _Part:
    if name == "STACK_GLOBAL":
        return _Part(called=(parts[0].called, parts[1].called))
    made = _Part()
    made.hold(parts)
    if name.startswith("TUPLE") and all(part.hash is not None for part in parts):
        made.hash = hash(tuple(part.hash for part in parts))
    elif name == "REDUCE" and isinstance(parts[0].called, tuple) and parts[0].called[0] in _WELL_MIXED:
        made.hash = id(made)
    elif name == "DICT":
        made.add_keys(parts[::2])
    elif name == "FROZENSET":
        made.add_keys(parts)
    return made


def _hash_of(name: str, argument: Any) -> int | None:
    if argument is None:
        return hash(name)
    return hash(argument) if isinstance(argument, (int, float, str, bytes)) else None


def _weigh(root: _Part) -> None:
    weights: dict[_Part, int] = {}
    open_: set[_Part] = set()
    coming = [root]
    while coming:
        part = coming[-1]
        if part in weights:
            coming.pop()
        elif part in open_:
            coming.pop()
            open_.remove(part)
            weights[part] = 1 + sum(weights[inner] for inner in part.parts)
            part.levels = 1 + max((inner.levels for inner in part.parts), default=0)
            _check_levels(part.levels)
            if weights[part] > MOST_PARTS:
                raise CodecError(f"it comes to more than {MOST_PARTS:,} parts")
        else:
            open_.add(part)
            for inner in part.parts:
                if inner in open_:
                    raise CodecError("it holds a value that contains itself")
                if inner not in weights:
                    coming.append(inner)
