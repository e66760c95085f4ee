"""A workflow file as plain data that remembers the place of every key and value."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.flows.reading.environment import Missing, expand, is_script
from holdfast.flows.reading.includes import MAX_BYTES, Includes
from holdfast.flows.reading.nodes import Entry, Fields, Items, Node, Scalar, place_inside
from holdfast.flows.reading.problems import FlowInvalid, Page, Position, Problem
from holdfast.flows.reading.strict_yaml import Reader, Stop

__all__ = ["FlowInvalid", "Position", "Problem", "Source", "read_source"]

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
        """The place of the value at a path, or of its key; of the nearest thing around it that is there."""
        return self._found(path, key).position

    def problem(self, path: DataPath, message: str, hint: str = "", key: bool = False) -> Problem:
        """A problem with the value at a path, or with its key."""
        found = self._found(path, key)
        _, line, column = found.position
        return found.page.problem(line, column, message, hint, found.width)

    def problem_inside(
        self, path: DataPath, offset: int, message: str, hint: str = "", width: int = 1
    ) -> Problem:
        """A problem at a character of the text at a path."""
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

    def _value(self, path: DataPath) -> Any:
        value = self.data
        for part in path:
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
    """Reads a workflow file, or `text` in its place; `FlowInvalid` lists all that is wrong with its YAML.

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
        raise FlowInvalid([*reader.problems, stop.problem]) from None
    source = Source(path, content, root, folder, includes.texts, has_file)
    source.data = _plain(source, root, (), env, reader.problems)
    if reader.problems:
        raise FlowInvalid(reader.problems)
    return source


def _plain(
    source: Source, node: Node, path: DataPath, env: Mapping[str, str] | None, problems: list[Problem]
) -> Any:
    """The data of a node, with the environment put in."""
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
        raise FlowInvalid([problem]) from None


def _bounded(path: Path, raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES:,} bytes"
        hint = "split it into workflows that call each other, or read large data in a step"
        raise FlowInvalid([Problem(message, Position(str(path), 1, 1), "", hint)])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8").split("\n")
        place = Position(str(path), len(before), len(before[-1]) + 1)
        message = f"the byte {raw[error.start]:#04x} is not UTF-8"
        raise FlowInvalid([Problem(message, place, before[-1], "save the file as UTF-8 text")]) from None
