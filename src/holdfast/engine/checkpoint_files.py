"""Checkpoint files: a state and the node to go on with, in one pickle that is read with care."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import decimal
import fractions
import hashlib
import io
import logging
import os
import pathlib
import pickle
import pickletools
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import clock
from holdfast.errors import (
    CheckpointNotFound,
    CodecError,
    CorruptJournal,
    HoldfastError,
    Remedy,
    StateInvalid,
    StoreError,
    problem_of,
)
from holdfast.journal.provenance import Provenance
from holdfast.state.codec import MAX_DEPTH as CODEC_MAX_DEPTH
from holdfast.state.codec import Codec
from holdfast.state.ops import thaw
from holdfast.state.standard_types import FACTORIES, MOST_ALIKE, distinct
from holdfast.state.state import State, origin_of
from holdfast.state.types import BUILTIN, Types
from holdfast.views.plain import MAX_DEPTH

if TYPE_CHECKING:
    from holdfast.engine.confirmation import Disclosure


# The config that a run was saved with: what a workflow file's run takes of it is plain data, or refused.


AGAIN = Remedy(text="have the run exported again by somebody who has its workflow")
"""The remedy where the run is not in a store yet."""

_OWN_FILE, _OWN_RUN = (Remedy("use_own_file", "RUN"), AGAIN), (Remedy("begin_own_run", "RUN"), AGAIN)

_LEAVES = (type(None), bool, int, float, str)
_FILE_KEYS = {"path": str, "digest": str, "source": str, "included": dict, "files": dict}


def has_workflow_file(config: Any) -> bool:
    """Return whether a config names the workflow file of its run."""
    return isinstance(config, Mapping) and isinstance(config.get("workflow_file"), Mapping)


def check_config(config: Any, *remedies: Remedy) -> None:
    """Raise `CodecError` unless a workflow file saved in a config, and the options beside it, are plain data.

    What is shown of a definition has to be what runs: keys are text, nothing else, and so nothing looks like something
    that it is not. The config of a Python graph is left to its program. `remedies` say what to do instead, by default
    with a run in a store.
    """
    if not has_workflow_file(config):
        return
    check_options(config, *remedies)
    with _remedied(remedies or _OWN_FILE):
        _check_plain({"workflow_file": config["workflow_file"]})
        _check_file(config["workflow_file"], "config['workflow_file']", tuple(_FILE_KEYS))


def check_options(config: Any, *remedies: Remedy) -> None:
    """Raise `CodecError` unless all of a config beside the workflow file in it is plain data.

    That is what is taken from a run that goes on with a workflow file of its owner's.
    """
    rest = (
        {key: value for key, value in config.items() if key != "workflow_file"}
        if has_workflow_file(config)
        else config
    )
    with _remedied(remedies or _OWN_RUN):
        _check_plain(rest)


@contextlib.contextmanager
def _remedied(remedies: tuple[Remedy, ...]) -> Iterator[None]:
    """Give a refusal its remedies."""
    try:
        yield
    except CodecError as error:
        error.remedies = remedies
        raise


def _check_plain(config: Any) -> None:
    todo: list[tuple[Any, str, int]] = [(config, "config", 0)]
    while todo:
        value, place, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise _refusal(place, "is nested too deep to be shown")
        if type(value) is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise _refusal(
                        place, f"has the key {key!r:.80}, a {_kind(key)}, where only text is taken"
                    )
                todo.append((item, f"{place}[{key!r:.80}]", depth + 1))
        elif type(value) in (list, tuple):
            todo += [(item, f"{place}[{number}]", depth + 1) for number, item in enumerate(value)]
        elif type(value) not in _LEAVES:
            raise _refusal(place, f"is a {_kind(value)}, where only plain data is taken")


def _check_file(saved: Mapping[str, Any], place: str, known: tuple[str, ...]) -> None:
    for key, value in saved.items():
        if key not in known:
            raise _refusal(place, f"has the unknown key {key!r:.80}; known are {', '.join(known)}")
        if type(value) is not _FILE_KEYS[key]:
            raise _refusal(f"{place}[{key!r}]", f"is a {_kind(value)}, not a {_FILE_KEYS[key].__name__}")
    for name, text in saved.get("included", {}).items():
        if type(text) is not str:
            raise _refusal(f"{place}['included'][{name!r:.80}]", f"is a {_kind(text)}, not a str")
    for name, file in saved.get("files", {}).items():
        inside = f"{place}['files'][{name!r:.80}]"
        if not name or type(file) is not dict:
            raise _refusal(inside, "is not a file with a name")
        _check_file(file, inside, ("source", "included"))


def _refusal(place: str, why: str) -> CodecError:
    return CodecError(f"the saved definition is refused: {place} {why}")


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


logger = logging.getLogger("holdfast")

VERSION = "1.0"
SUFFIX = ".pkl"


_BEGINNING = re.compile(rb"\x80[\x04\x05]\x95.{8}\}\x94\(\x8c\x05state\x94", re.DOTALL)
"""How the pickle of `_content` begins."""


def check_replaceable(path: Path) -> None:
    """Raise `ValueError` if something else than a checkpoint file is at a path."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a file")
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        if not _BEGINNING.match(file.read(64)):
            raise ValueError(
                "another file is there, which is no checkpoint file; remove it or choose another path"
            )


def save(path: Path, state: Mapping[str, Any], node: str, config: Mapping[str, Any]) -> Path:
    """Write a checkpoint file, whole or not at all, in place of one that is there."""
    for name, given in (("state", state), ("config", config)):
        if not isinstance(given, Mapping):
            raise StateInvalid(f"checkpoint {path}: {name} is a mapping, not {given!r:.80} ({_kind(given)})")
    content = _content(state, node, config, clock.visible_time())
    with _written(path, content) as temporary:
        temporary.replace(path)
    logger.debug("saved checkpoint %s (node %s)", path, node)
    return path


def save_of_interrupt(
    directory: Path, step: str, state: Mapping[str, Any], config: Mapping[str, Any], gate: str, *nodes: str
) -> Path:
    """Write the checkpoint file of an interrupt at a step's node; never over another file.

    It is named after the node and the time in milliseconds, or the next millisecond whose name is free, whichever
    process took it. `nodes` run next; `gate` is the node that the run waits before, if it does.
    """
    now = clock.visible_time()
    stamp, content = int(now * 1000), _content(state, gate or nodes[0], config, now)
    content["next"] = list(nodes)
    if isinstance(state, State):
        content["run_id"] = origin_of(state).run_id
    if gate:
        content["gate"] = gate
    path = directory / f"{step}_{stamp}{SUFFIX}"
    with _written(path, content) as temporary:
        while not _named(temporary, path):
            stamp += 1
            path = directory / f"{step}_{stamp}{SUFFIX}"
    logger.debug("saved checkpoint %s (node %s)", path, content["node"])
    return path


MOST_SEARCHED = 100
"""How many files of a folder are looked into to find one of a run."""


def last_of_run(directory: Path, run_id: str) -> tuple[float, Path] | None:
    """Return the newest file in a folder that was written at an interrupt of a run, with its time in seconds."""
    with contextlib.suppress(OSError):
        names = [(int(found[1]), path) for path in directory.iterdir() if (found := _STAMP.search(path.name))]
        for stamp, path in sorted(names, reverse=True)[:MOST_SEARCHED]:
            with contextlib.suppress(HoldfastError):
                if load(path).get("run_id") == run_id:
                    return stamp / 1000, path
    return None


_STAMP = re.compile(r"_(\d{1,20})\.pkl\Z")


def _content(
    state: Mapping[str, Any], node: str, config: Mapping[str, Any], timestamp: float
) -> dict[str, Any]:
    return {
        "state": {key: thaw(state[key]) for key in state},
        "node": node,
        "config": {key: thaw(value) for key, value in config.items()},
        "timestamp": timestamp,
        "version": VERSION,
    }


@contextlib.contextmanager
def _written(path: Path, content: dict[str, Any]) -> Iterator[Path]:
    """Yield a file beside `path` that holds the content, to be given its name; it is gone in the end."""
    try:
        data = pickle.dumps(content, protocol=4)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"checkpoint {path} cannot be saved: {error}") from error
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield Path(temporary)
    except OSError as error:
        raise StoreError(f"checkpoint {path} cannot be saved: {error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def _named(temporary: Path, path: Path) -> bool:
    """Give a file a name; return `False` if another file has it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # A file system without links: the name is taken first.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        temporary.replace(path)
    return True


class CheckpointFile(NamedTuple):
    """What is in a checkpoint file, and the digest of the very bytes that it was read from."""

    path: Path
    content: dict[str, Any]
    digest: str

    @property
    def has_workflow(self) -> bool:
        """Whether a workflow file is in it, so that it tells what is run and not only where to go on."""
        return "workflow_file" in self.content["config"]

    def disclosure(self) -> Disclosure:
        """Return all that a run from this file would run with."""
        from holdfast.engine.confirmation import Disclosure

        place = {name: self.content[name] for name in ("node", "next", "gate") if name in self.content}
        own = self.content["config"]
        check_config(own, Remedy("use_own_file", str(self.path)))
        saved, rest = (
            own.get("workflow_file"),
            {key: value for key, value in own.items() if key != "workflow_file"},
        )
        config = {"workflow_file": saved, "taken from the file": rest, "goes on with": place}
        name = str(saved.get("path", "")) if isinstance(saved, Mapping) else ""
        return Disclosure("", name, self.provenance(), self.digest, config, ())

    def provenance(self) -> Provenance:
        """Return where a run comes from that is begun from this file."""
        return Provenance(f"checkpoint file {self.path.name}", clock.time())


def load(path: Path, codec: Codec | None = None) -> dict[str, Any]:
    """Read a checkpoint file. Nothing is imported or run because the file names it."""
    return read(path, codec).content


def read(path: Path, codec: Codec | None = None) -> CheckpointFile:
    """Read a checkpoint file, once, with the digest of what was read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointNotFound(f"checkpoint file not found: {path}") from None
    except OSError as error:
        raise StoreError(f"checkpoint file {path} cannot be read: {error}") from error

    types = codec.types if codec is not None else BUILTIN
    try:
        content = Unpickler(data, types).load()
    except CodecError as error:
        raise CodecError(f"checkpoint file {path} is refused: {problem_of(error)}") from None
    except Exception as error:
        raise CorruptJournal(f"corrupt checkpoint file {path}: {error}") from error
    _check(path, content)
    logger.debug("loaded checkpoint %s (node %s)", path, content["node"])
    return CheckpointFile(path, content, hashlib.blake2b(data, digest_size=16).hexdigest())


def _check(path: Path, content: Any) -> None:
    wanted = {"state": dict, "node": str, "config": dict}
    if not isinstance(content, dict):
        raise CodecError(
            f"incompatible checkpoint file {path}: it holds a {type(content).__name__}, not a dict"
        )
    for key, kind in wanted.items():
        if not isinstance(content.get(key), kind):
            raise CodecError(
                f"incompatible checkpoint file {path}: {key!r} is missing or not a {kind.__name__}"
            )
    if content.get("version") != VERSION:
        raise CodecError(
            f"incompatible checkpoint file {path}: version {content.get('version')!r}, this reads {VERSION!r}"
        )


# How large a pickle is once it is read: its program is gone through, and nothing of it is made.


MOST_PARTS = 5_000_000
"""How many parts a pickle may come to. What it refers to again counts again: so it is read, shown and stored."""

MOST_LEVELS = 4 * CODEC_MAX_DEPTH
"""How deep the parts of a pickle may be nested. A level of a value, as it is stored, is up to four of them."""

MOST_ODD_KEYS = 5_000
"""How many keys of one mapping may be objects whose hash the pickle does not show."""

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
            if opcode.name in _NUMBERED and not 0 <= int(argument or 0) <= (place or 0):
                raise CodecError(
                    f"it keeps a value under the number {argument:,}, which no pickle of its size has"
                )
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


# Unpickling what strangers may have written: plain data and allowed types, and nothing that it names is run.


_RATIONAL = re.compile(r"[+-]?[0-9]+(/[0-9]+)?")
_HELD, _MAPPED = (list, tuple), (dict, list, tuple)


class _Maker:
    """What stands for a type in a pickle: it can be called, and nothing else."""

    __slots__ = ("_make", "kind")

    def __init__(self, kind: Any, make: Callable[..., Any]) -> None:
        self.kind, self._make = kind, make

    def __call__(self, *given: Any) -> Any:
        return self._make(*given)

    def __setstate__(self, state: Any) -> None:
        raise CodecError("it changes a type")


def _maker(make: Any, *allowed: tuple[Any, ...]) -> Callable[..., Any]:
    """Calls `make`, with one of the rows of types that are allowed for its arguments."""

    def call(*given: Any) -> Any:
        if not any(len(row) == len(given) and all(map(isinstance, given, row)) for row in allowed):
            kinds = ", ".join(type(each).__name__ for each in given)
            raise CodecError(f"it makes a {make.__name__} of ({kinds}), as no pickle of one does")
        return make(*given)

    return call


def _bytearray(content: bytes | str = b"", encoding: str = "latin-1") -> bytearray:
    if isinstance(content, bytes):
        return bytearray(content)
    if not isinstance(content, str) or encoding != "latin-1":
        raise CodecError("it makes a bytearray of something that is neither bytes nor text")
    return bytearray(content, encoding)


def _fraction(numerator: Any, denominator: Any = 1) -> fractions.Fraction:
    if isinstance(numerator, str) and denominator == 1 and _RATIONAL.fullmatch(numerator):
        return fractions.Fraction(numerator)
    if type(numerator) is int and type(denominator) is int:
        return fractions.Fraction(numerator, denominator)
    raise CodecError("it makes a fraction of something that is no whole number")


def _members(make: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(members: Any = ()) -> Any:
        if not isinstance(members, _HELD):
            raise CodecError(f"it makes a set of a {type(members).__name__}, as no pickle of one does")
        return make(distinct(members))

    return call


def _default(factory: Any = None, content: Any = ()) -> Any:
    kind = factory.kind if isinstance(factory, _Maker) else factory
    if kind is not None and kind not in FACTORIES.values():
        raise CodecError("it makes a defaultdict with a factory that is not allowed")
    if not isinstance(content, _MAPPED):
        raise CodecError("it makes a defaultdict of something that is no mapping")
    return collections.defaultdict(kind, content)


_NUMBER = (int, float)
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path", "PurePath")


def _path(name: str) -> Callable[..., Any]:
    return lambda *parts: _maker(getattr(pathlib, name), (str,) * len(parts))(*parts)


_SAFE: dict[tuple[str, str], Any] = {
    ("builtins", "set"): _Maker(set, _members(set)),
    ("builtins", "frozenset"): _Maker(frozenset, _members(frozenset)),
    ("builtins", "list"): _Maker(list, _maker(list, (), (_HELD,))),
    ("builtins", "tuple"): _Maker(tuple, _maker(tuple, (), (_HELD,))),
    ("builtins", "dict"): _Maker(dict, _maker(dict, (), (_MAPPED,))),
    ("builtins", "int"): _Maker(int, _maker(int, ())),
    ("builtins", "float"): _Maker(float, _maker(float, ())),
    ("builtins", "str"): _Maker(str, _maker(str, ())),
    ("builtins", "bool"): _Maker(bool, _maker(bool, ())),
    ("collections", "defaultdict"): _default,
    ("builtins", "bytearray"): _bytearray,
    ("builtins", "complex"): _maker(complex, (_NUMBER, _NUMBER)),
    ("builtins", "range"): _maker(range, (int, int, int)),
    ("builtins", "slice"): _maker(slice, (object, object, object)),
    ("collections", "OrderedDict"): _maker(collections.OrderedDict, (), (_MAPPED,)),
    ("collections", "Counter"): _maker(collections.Counter, (), (_MAPPED,)),
    ("collections", "deque"): _maker(collections.deque, (), (_HELD,), (_HELD, (int, type(None)))),
    ("datetime", "datetime"): dt.datetime,
    ("datetime", "date"): dt.date,
    ("datetime", "time"): dt.time,
    ("datetime", "timedelta"): _maker(dt.timedelta, (int, int, int)),
    ("datetime", "timezone"): _maker(dt.timezone, (dt.timedelta,), (dt.timedelta, str)),
    ("decimal", "Decimal"): _maker(decimal.Decimal, (str,)),
    ("fractions", "Fraction"): _fraction,
    ("uuid", "UUID"): uuid.UUID,
    ("uuid", "SafeUUID"): uuid.SafeUUID,
    **{("pathlib", name): _path(name) for name in _PATHS},
    **{("pathlib._local", name): _path(name) for name in _PATHS},
}
"""What a pickle may call, by module and name."""

_SAFE = {
    name: known if isinstance(known, (type, _Maker)) else _Maker(None, known) for name, known in _SAFE.items()
}


class Unpickler(pickle.Unpickler):
    """An unpickler that makes only plain data and the types on the allow-list."""

    def __init__(self, data: bytes, types: Types) -> None:
        check_size(data)
        super().__init__(io.BytesIO(data))
        self._types = types

    def find_class(self, module: str, name: str) -> Any:
        safe = _SAFE.get((module, name))
        if safe is not None:
            return safe
        for known in self._types.classes():
            if (known.__module__, known.__qualname__) == (module, name):
                return known
        raise CodecError(
            f"it names {module}.{name}, which is not on the list of allowed types; "
            "declare it in the state schema or register it with holdfast.register_type"
        )
