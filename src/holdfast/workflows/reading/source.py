"""A workflow file as plain data that remembers the place of every key and value."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from holdfast.workflows.reading.documents import (
    Entry,
    Event,
    Fields,
    Items,
    Node,
    Reader,
    Scalar,
    Stop,
    at,
    core_scalar,
    place_inside,
    place_of,
)
from holdfast.workflows.reading.problems import Page, Position, Problem, WorkflowInvalid

# `!file path`: the text or the data of another file in the workflow file's folder.


MAX_BYTES = 1_000_000
_MAX_NESTING = 5
_DATA = (".yaml", ".yml", ".json")


class Includes:
    """Reads what a workflow file includes, never anything outside of its folder.

    `kept` are texts that are taken instead of the files of these names; `texts` are those that were read. With
    `only_kept` nothing is looked for on disk.
    """

    def __init__(self, base: Path, kept: Mapping[str, str], only_kept: bool = False) -> None:
        self._base, self._kept, self._only_kept = base, kept, only_kept
        self._open: list[str] = []
        self.texts: dict[str, str] = {}

    def __call__(self, reader: Reader, page: Page, event: Event, depth: int) -> Node:
        """Return the node that stands for an include; one that cannot be read is a problem and stands for no text."""
        try:
            name = self._name(event.value)
            text = self._text(name)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            hint = "give the path of a file in the workflow file's folder, such as `!file prompts/draft.md`"
            reader.problems.append(at(page, event, f"{event.value!r} cannot be included: {reason}", hint))
            return Scalar(page, place_of(page, event))
        included = Page(str(self._base / name), text)
        if not name.lower().endswith(_DATA):
            reader.count(page, event, 0, len(text))
            place = Position(included.file, 1, 1)
            return Scalar(included, place, characters=len(text), value=text, style="file")
        return self._data(reader, page, event, included, name, depth)

    def _data(self, reader: Reader, page: Page, event: Event, included: Page, name: str, depth: int) -> Node:
        if name in self._open or len(self._open) >= _MAX_NESTING:
            message = f"{name!r} includes itself, or files include files more than {_MAX_NESTING} deep"
            raise Stop(at(page, event, message, "include files one level deep"))
        self._open.append(name)
        try:
            return reader.read(included, self.texts[name], depth - 1)
        finally:
            self._open.pop()

    def _name(self, given: str) -> str:
        """Return the path relative to the base folder, checked as text."""
        path = PurePosixPath(given.strip())
        if not path.parts or path.is_absolute() or Path(given).is_absolute():
            raise ValueError("the path has to be relative to the workflow file's folder")
        if ".." in path.parts or "\\" in given or "\0" in given:
            raise ValueError("the path may not lead out of the workflow file's folder")
        folder = PurePosixPath(self._open[-1]).parent if self._open else PurePosixPath()
        return (folder / path).as_posix()

    def _text(self, name: str) -> str:
        if name not in self.texts:
            self.texts[name] = self._kept[name] if name in self._kept else self._read(name)
        return self.texts[name]

    def _read(self, name: str) -> str:
        if self._only_kept:
            raise ValueError("the run that this file came with has not saved it")
        raw = read_beneath(self._base, name, MAX_BYTES)
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start + 1} of it is not UTF-8") from None


def read_beneath(base: Path, name: str, limit: int) -> bytes:
    """Read a regular file in a folder or below it, and nothing else, whatever happens to the folder meanwhile.

    Every part of the path is opened from the one before it, and none may be a symbolic link: there is no time
    between looking at a file and reading it.
    """
    *folders, file = PurePosixPath(name).parts
    at = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            at = _replaced(at, _opened(at, folder, os.O_DIRECTORY))
        at = _replaced(at, _opened(at, file, os.O_NONBLOCK))
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise ValueError("it is not a file")
        with open(at, "rb", closefd=False) as opened:
            raw = opened.read(limit + 1)
    finally:
        os.close(at)
    if len(raw) > limit:
        raise ValueError(f"it is larger than {limit:,} bytes")
    return raw


def _opened(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(folder, name):
            raise ValueError("a symbolic link is not followed; give the path of the file itself") from None
        raise


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


# `${NAME}` and `${NAME:-default}` in the texts of a workflow file, from the environment.


KeyPath = tuple[str | int, ...]

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
_WHOLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?\}")
_SCRIPT = re.compile(r"steps\0\d+(\0parallel(\0steps)?\0\d+)*\0shell(\0run)?|workflow\0hooks\0[^\0]*")


class Missing(Exception):
    """A variable without a default is not set; `offset` says where in the text it is named."""

    def __init__(self, name: str, offset: int) -> None:
        super().__init__(name)
        self.name, self.offset = name, offset


def is_script(path: KeyPath) -> bool:
    """Return True if the text at this path is a shell script, where `${NAME}` belongs to the shell."""
    return _SCRIPT.fullmatch("\0".join(map(str, path))) is not None


def expand(text: str, env: Mapping[str, str], typed: bool = False) -> Any:
    """Return the text with its variables replaced; `$${` is `${`. Other things with a dollar stay as they are.

    With `typed` a variable that is the whole text may be a number, true or false, as if written in its place.
    """

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name is None:
            return "${"
        given = env.get(name)
        if given is not None and (given or default is None):
            return given
        if default is None:
            raise Missing(name, found.start())
        return str(default)

    expanded = _REFERENCE.sub(value, text)
    if not typed or not _WHOLE.fullmatch(text):
        return expanded
    try:
        read = core_scalar(expanded)
    except ValueError:
        return expanded
    return expanded if read is None else read


__all__ = ["Position", "Problem", "Source", "WorkflowInvalid", "read_source"]

DataPath = tuple[str | int, ...]


class Source:
    """A workflow file that was read. `data` is plain (dict, list, str, int, float, bool, `None`).

    `text` is the file's own text, `included` the texts of the files it includes by their paths below `base`.
    `has_file` tells whether there is another workflow file at a path.
    """

    def __init__(
        self,
        path: Path,
        text: str,
        root: Node,
        base: Path,
        included: Mapping[str, str],
        has_file: Callable[[Path], bool] = Path.is_file,
    ) -> None:
        self.path, self.text, self.base, self.included = path, text, base, dict(included)
        self.has_file = has_file
        self.data: Any = None
        self._root = root

    @property
    def digest(self) -> str:
        """A hash of the file and of all it includes, as 64 hexadecimal digits."""
        digest = hashlib.sha256(self.text.encode())
        for name, text in sorted(self.included.items()):
            digest.update(f"\0{name}\0{text}".encode())
        return digest.hexdigest()

    def at(self, path: DataPath, key: bool = False) -> Position:
        """Return the place of the value at a path, or of its key; of the nearest thing around it that is there."""
        return self._found(path, key).position

    def problem(self, path: DataPath, message: str, hint: str = "", key: bool = False) -> Problem:
        """Return a problem with the value at a path, or with its key."""
        found = self._found(path, key)
        _, line, column = found.position
        return found.page.problem(line, column, message, hint, found.width)

    def problem_inside(
        self, path: DataPath, offset: int, message: str, hint: str = "", width: int = 1
    ) -> Problem:
        """Return a problem at a character of the text at a path."""
        node = self._found(path, False)
        if not isinstance(node, Scalar) or not isinstance(node.value, str) or self._value(path) != node.value:
            return self.problem(path, message, hint)
        _, line, column = place_inside(node, offset)
        return node.page.problem(line, column, message, hint, width)

    def _found(self, path: DataPath, key: bool) -> Node | Entry:
        found: Node | Entry = self._root
        node = self._root
        for part in path:
            if isinstance(node, Fields) and part in node.fields:
                entry = node.fields[str(part)]
                found, node = (entry if key else entry.node), entry.node
            elif isinstance(node, Items) and isinstance(part, int) and part < len(node.items):
                found = node = node.items[part]
            else:
                break
        return found

    def long_form(self, path: DataPath, field: str) -> DataPath:
        """Return the path of a part's field, which is the part itself if it is written in its short form."""
        return (*path, field) if isinstance(self._value(path), dict) else path

    def _value(self, path: DataPath) -> Any:
        """Return the value at a path, or the text on the way to it: the short form of a part."""
        value = self.data
        for part in path:
            if isinstance(value, str):
                break
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def read_source(
    path: Path,
    *,
    env: Mapping[str, str] | None,
    text: str | None = None,
    base: Path | None = None,
    included: Mapping[str, str] | None = None,
    only_included: bool = False,
    has_file: Callable[[Path], bool] = Path.is_file,
) -> Source:
    """Reads a workflow file, or `text` in its place; `WorkflowInvalid` lists all that is wrong with its YAML.

    `!file` is relative to `base`, by default the folder of `path`. `included` gives texts that are taken
    instead of the files of these names, so that a file can be read again from what was saved of it, and nothing else
    with `only_included`; `has_file` tells which other workflow files there are. Without an `env`, `${NAME:-default}`
    stays as it is written.
    """
    content = (
        _read(path) if text is None else _bounded(path, text.encode("utf-8", "surrogatepass"))
    ).removeprefix("\ufeff")
    folder = path.parent if base is None else base
    includes = Includes(folder, included or {}, only_included)
    reader = Reader(includes)
    try:
        root = reader.read(Page(str(path), content), content)
    except Stop as stop:
        raise WorkflowInvalid([*reader.problems, stop.problem]) from None
    source = Source(path, content, root, folder, includes.texts, has_file)
    source.data = _plain(source, root, (), env, reader.problems)
    if reader.problems:
        raise WorkflowInvalid(reader.problems)
    return source


def _plain(
    source: Source, node: Node, path: DataPath, env: Mapping[str, str] | None, problems: list[Problem]
) -> Any:
    """Return the data of a node, with the environment put in."""
    if isinstance(node, Fields):
        return {
            name: _plain(source, entry.node, (*path, name), env, problems)
            for name, entry in node.fields.items()
        }
    if isinstance(node, Items):
        return [_plain(source, item, (*path, index), env, problems) for index, item in enumerate(node.items)]
    assert isinstance(node, Scalar)
    if (
        env is None
        or not isinstance(node.value, str)
        or "${" not in node.value
        or node.style == "file"
        or is_script(path)
    ):
        return node.value
    try:
        return expand(node.value, env, typed=node.style == "")
    except Missing as missing:
        _, line, column = place_inside(node, missing.offset)
        message = f"the environment variable {missing.name} is not set"
        hint = f"set it, give a default with ${{{missing.name}:-default}}, or write $${{{missing.name}}} for the text"
        problems.append(node.page.problem(line, column, message, hint, len(missing.name) + 3))
        return node.value


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _bounded(path, file.read(MAX_BYTES + 1))
    except OSError as error:
        hint = "give the path of a workflow file"
        problem = Problem(
            f"the file cannot be read: {error.strerror or error}", Position(str(path), 1, 1), "", hint
        )
        raise WorkflowInvalid([problem]) from None


def _bounded(path: Path, raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES:,} bytes"
        hint = "split it into workflows that call each other, or read large data in a step"
        raise WorkflowInvalid([Problem(message, Position(str(path), 1, 1), "", hint)])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8").split("\n")
        place = Position(str(path), len(before), len(before[-1]) + 1)
        message = f"the byte {raw[error.start]:#04x} is not UTF-8"
        raise WorkflowInvalid([Problem(message, place, before[-1], "save the file as UTF-8 text")]) from None
