"""`!file path`: the text or the data of another file in the workflow file's folder."""

from __future__ import annotations

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

    `kept` are texts that are taken instead of the files of these names; `texts` are those that were read.
    """

    def __init__(self, base: Path, kept: Mapping[str, str]) -> None:
        self._base, self._kept = base, kept
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
        path = (self._base / name).resolve(strict=True)
        if not path.is_relative_to(self._base.resolve()):
            raise ValueError("it leads out of the workflow file's folder")
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start + 1} of it is not UTF-8") from None
