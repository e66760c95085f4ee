"""`!file path`: the text or the data of another file in the workflow file's folder."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from holdfast.flows.reading.nodes import Node, Scalar
from holdfast.flows.reading.problems import Page, Position
from holdfast.flows.reading.strict_yaml import Event, Reader, Stop, at, place_of

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
        """The node that stands for an include; one that cannot be read is a problem and stands for no text."""
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
        """The path relative to the base folder, checked as text."""
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

    Every part of the path is opened from the one before it, and none may be a symbolic link: there is no moment
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
