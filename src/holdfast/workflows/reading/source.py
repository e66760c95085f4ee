"""A workflow file as plain data: strict YAML, with includes and the environment, and the place of every key and value.

What is ambiguous, hidden or endless is refused.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml

from holdfast.workflows.folders import checked_path, read_beneath
from holdfast.workflows.reading.problems import Page, Position, Problem, WorkflowInvalid

__all__ = ["Position", "Problem", "Source", "WorkflowInvalid", "read_source"]

MAX_NODES = 100_000
MAX_DEPTH = 50
MAX_CHARACTERS = 10_000_000
MAX_BYTES = 1_000_000
_MAX_DIGITS = 300
_MAX_NESTING = 5
_DATA = (".yaml", ".yml", ".json")

DataPath = tuple[str | int, ...]
Event = Any
"""An event of the YAML parser; its types leave out that every event has its marks."""

# Scalars by the YAML 1.2 core schema.


_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"[-+]?(?:0|[1-9][0-9]*)"), int),
    (re.compile(r"0o[0-7]+"), lambda text: int(text[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    (re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), float),
)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def core_scalar(text: str) -> Any:
    """Return what an unquoted scalar means by the YAML 1.2 core schema; a `ValueError` says why it means nothing.

    Numbers with a leading zero stay text: nobody who writes 0123 means 123.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a number that can be stored")
    for pattern, read in _NUMBERS:
        if pattern.fullmatch(text):
            if len(text) > _MAX_DIGITS and read is not float:
                raise ValueError(f"a number of {len(text)} digits is too long")
            value = read(text)
            if value in (float("inf"), float("-inf")):
                raise ValueError(f"{text} is too large a number")
            return value
    return text


# What a YAML parser's complaints mean, in plain words and with a cure.


_ALIGN = "align it with its neighbours; close quotes and brackets"
_MEANINGS = (
    ("mapping values are not allowed", "a colon is out of place", "put text with ': ' in quotes"),
    ("expected alphabetic or numeric", "a name is missing", "put text that begins with & or * in quotes"),
    ("could not find expected ':'", "a key without a colon", "write `name: value`, or indent the line more"),
    ("did not find expected key", "the line does not fit those around it", _ALIGN),
    ("expected <block end>", "the line does not fit those around it", _ALIGN),
    (
        "expected '-' indicator",
        "the line does not fit the list above it",
        "align it with its neighbours, or begin it with `- `",
    ),
    ("unexpected end of stream", "the file ends inside a quoted text", "close the quote"),
    ("document start", "the line does not fit those around it", "top fields stand in the first column"),
    ("expected ',' or", "a bracket is not closed", "close it, or put a comma between the items"),
    ("expected node content", "a value is missing", "close the bracket, or put the text in quotes"),
    ("unknown escape character", "an unknown escape", "write \\\\ for a backslash, or use single quotes"),
    ("undefined tag handle", "an unknown tag", "the only tag is !file, which takes another file's text"),
    ("block entries are not allowed", "a list cannot begin here", "begin it on a line of its own"),
)
"""What a parser's words contain, what that means, and the cure."""


def explain(error: yaml.YAMLError, page: Page) -> Problem:
    """Return the problem that a parser's error stands for."""
    opened = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or opened
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    said = f"{getattr(error, 'context', None) or ''} {getattr(error, 'problem', None) or error}"
    before, character = page.line(line)[: column - 1], page.line(line)[column - 1 : column]
    if character == "\t" or "\t" in before or "tab character" in said:
        return page.problem(line, column, "a tab is used to indent", "indent with spaces")
    if "cannot start any token" in said:
        hint = f"put text that begins with {character} in quotes"
        return page.problem(line, column, f"a value cannot begin with {character}", hint)
    for part, message, hint in _MEANINGS:
        if part in said:
            if opened is not None and hint.startswith("close"):
                line, column = opened.line + 1, opened.column + 1
            return page.problem(line, column, message, hint)
    hint = "check the indentation, quotes and colons around this place"
    return page.problem(line, column, f"this is not YAML: {' '.join(said.split())}", hint)


# One pass over the events of a document: its data, and the place of everything in it.


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG_HINT = "remove it; the only tag is !file, which takes the text of another file"
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
_SCRIPT = re.compile(
    r"(imports\0\d+\0)?steps\0\d+(\0(parallel|while_loop)(\0steps)?\0\d+)*\0shell(\0run)?|workflow\0hooks\0[^\0]*"
)
"""The paths of shell scripts, where `${NAME}` belongs to the shell."""


class Place(NamedTuple):
    """The place of a key or a value. `style` is YAML's, or `file` for the text of a whole file; `text` is as read."""

    page: Page
    line: int
    column: int
    width: int = 1
    style: str = ""
    text: str | None = None

    @classmethod
    def of(cls, page: Page, event: Event) -> Place:
        """Return the place of an event, as wide as it is on its first line."""
        start, end = event.start_mark, event.end_mark
        stop = end.column if end.line == start.line else len(page.line(start.line + 1))
        return cls(page, start.line + 1, start.column + 1, max(1, stop - start.column))

    def problem(self, message: str, hint: str = "") -> Problem:
        """Return a problem at this place."""
        return self.page.problem(self.line, self.column, message, hint, self.width)

    def inside(self, offset: int) -> tuple[int, int]:
        """Return the line and column of the character at `offset` of the text, as nearly as can be said.

        Text and file are walked together: indentation, folded lines and escapes of the file are passed over.
        """
        text = self.text or ""
        if self.style == "file":
            before = text[:offset].split("\n")
            return len(before), len(before[-1]) + 1
        line, column = self.line, self.column - 1
        if self.style in ("|", ">"):
            line, column = line + 1, 0
        elif self.style in ("'", '"'):
            column += 1
        for index, character in enumerate(text):
            if not character.isspace():
                found = self._next(line, column, character)
                if found is None:
                    break
                line, column = found
            if index >= offset:
                return line, column + 1
            column += 0 if character == "\n" else 1
        return self.line, self.column

    def _next(self, line: int, column: int, character: str) -> tuple[int, int] | None:
        """Return the next place of a character, at most a few lines on."""
        for number in range(line, min(line + 200, len(self.page.lines)) + 1):
            found = self.page.line(number).find(character, column if number == line else 0)
            if found >= 0:
                return number, found
        return None


class Stop(Exception):
    """Reading cannot go on after this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Reader:
    """A reader of YAML. The problems, places and bounds are shared by a file and what it includes."""

    def __init__(self, includes: Includes, env: Mapping[str, str] | None) -> None:
        self.includes, self.env = includes, env
        self.problems: list[Problem] = []
        self.values: dict[DataPath, Place] = {}
        self.keys: dict[DataPath, Place] = {}
        self._nodes = self._characters = 0

    def read(self, page: Page, text: str, path: DataPath = (), depth: int = 0) -> Any:
        """Return the data of the one document of a text; `Stop` if it cannot be read any further."""
        if unreadable := _FORBIDDEN.search(text):
            before = Page(page.file, text[: unreadable.start()]).lines
            message = f"the character {unreadable[0]!r} cannot be in a workflow file"
            hint = 'remove it, or write it as an escape in double quotes, such as "\\e"; is this a text file?'
            raise Stop(page.problem(len(before), len(before[-1]) + 1, message, hint))
        try:
            return _Document(self, page, _events(text)).root(path, depth)
        except yaml.YAMLError as error:
            raise Stop(explain(error, page)) from None

    def count(self, place: Place, nodes: int, characters: int) -> None:
        """Add to the size of the document with its aliases expanded; raise `Stop` if it is too large."""
        self._nodes += nodes
        self._characters += characters
        if self._nodes > MAX_NODES:
            message = f"the file holds more than {MAX_NODES:,} values, aliases written out"
            raise Stop(place.problem(message, "use fewer aliases, or read large data in a step"))
        if self._characters > MAX_CHARACTERS:
            hint = "use fewer aliases, or read large texts in a step"
            raise Stop(place.problem("the file holds too much text, aliases written out", hint))

    def expanded(self, text: str, place: Place) -> Any:
        """Return a text with its variables replaced; `$${` is `${`. Other things with a dollar stay as they are.

        A variable that is the whole of a text without quotes may be a number, true or false, as if written there.
        """
        env = self.env or {}

        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if name is None:
                return "${"
            given = env.get(name)
            if given is not None and (given or default is None):
                return given
            if default is None:
                line, column = place.inside(found.start())
                hint = f"set it, give a default with ${{{name}:-default}}, or write $${{{name}}} for the text"
                message = f"the environment variable {name} is not set"
                self.problems.append(place.page.problem(line, column, message, hint, len(name) + 3))
            return default or ""

        expanded = _REFERENCE.sub(value, text)
        if place.style or not _REFERENCE.fullmatch(text) or text.startswith("$$"):
            return expanded
        try:
            read = core_scalar(expanded)
        except ValueError:
            return expanded
        return expanded if read is None else read


class _Alias(NamedTuple):
    """An alias, with the events of the value that it refers to."""

    event: Event
    events: list[Any]


class _Document:
    """One pass over the events of one document. The events of values with anchors are kept, and read again."""

    def __init__(self, reader: Reader, page: Page, events: Iterator[Event]) -> None:
        self._reader, self._page, self._events = reader, page, events
        self.anchors: dict[str, list[Any] | None] = {}
        self._kept: list[list[Any]] = []
        self._alias_place: Place | None = None
        """The place of the alias that is written out now."""

    def root(self, path: DataPath, depth: int) -> Any:
        """Return the data of the document; nothing may follow it."""
        root, documents = None, 0
        self._reader.values[path] = Place(self._page, 1, 1)
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    hint = "keep one workflow per file: remove the line with ---"
                    raise Stop(self._place(event).problem("a second document begins here", hint))
            elif isinstance(event, yaml.NodeEvent):
                root = self._value(event, path, depth + 1)
        return root

    def _next(self) -> Event:
        event = next(self._events)
        for kept in self._kept:
            kept.append(event)
        return event

    def _place(self, event: Event) -> Place:
        return Place.of(self._page, event)

    def _report(self, event: Event, message: str, hint: str) -> None:
        self._reader.problems.append(self._place(event).problem(message, hint))

    def _value(self, event: Event, path: DataPath, depth: int) -> Any:
        """Return the data that begins with an event."""
        if depth > MAX_DEPTH:
            place = self._alias_place or self._place(event)
            message = f"values are nested more than {MAX_DEPTH} deep"
            raise Stop(place.problem(message, "use a flatter structure"))
        if isinstance(event, (_Alias, yaml.AliasEvent)):
            return self._alias(event, path, depth)
        place = self._reader.values[path] = self._place(event)
        self._reader.count(self._alias_place or place, 1, 0)
        if event.anchor is None or self._alias_place is not None:
            return self._new(event, place, path, depth)
        self.anchors[event.anchor] = None
        kept = [event]
        self._kept.append(kept)
        data = self._new(event, place, path, depth)
        self._kept.pop()
        self.anchors[event.anchor] = kept
        return data

    def _alias(self, event: Any, path: DataPath, depth: int) -> Any:
        """Read the events of the value that an alias refers to once more."""
        if not isinstance(event, _Alias):
            name, place = event.anchor, self._place(event)
            if name not in self.anchors:
                hint = (
                    f"put text that begins with * in quotes, or write &{name} before the value that is meant"
                )
                raise Stop(place.problem(f"the alias *{name} refers to nothing", hint))
            events = self.anchors[name]
            if events is None:
                hint = "write the value out, or refer to a value that ended before"
                raise Stop(place.problem(f"the alias *{name} refers to what it is a part of", hint))
            event = _Alias(event, events)
            for kept in self._kept:
                kept[-1] = event
        before = self._events, self._kept, self._alias_place
        self._events, self._kept = iter(event.events), []
        self._alias_place = self._alias_place or self._place(event.event)
        data = self._value(next(self._events), path, depth)
        self._events, self._kept, self._alias_place = before
        return data

    def _new(self, event: Event, place: Place, path: DataPath, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent) and event.tag == "!file":
            return self._reader.includes.read(self._reader, place, event.value, path, depth)
        self._refuse_tag(event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, place, path)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(event, place, path, depth)
        items: list[Any] = []
        while not isinstance(child := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(child, (*path, len(items)), depth + 1))
        return items

    def _scalar(self, event: Event, place: Place, path: DataPath) -> Any:
        reader, text = self._reader, event.value
        reader.count(self._alias_place or place, 0, len(text))
        value = text
        if event.implicit[0]:
            try:
                value = core_scalar(text)
            except ValueError as error:
                self._report(event, str(error), "use a finite number, or put it in quotes to mean text")
        if isinstance(value, str):
            place = reader.values[path] = place._replace(style=event.style or "", text=text)
            if reader.env is not None and "${" in text and not _SCRIPT.fullmatch("\0".join(map(str, path))):
                return reader.expanded(text, place)
        return value

    def _mapping(self, event: Event, place: Place, path: DataPath, depth: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while not isinstance(key := self._next(), yaml.MappingEndEvent):
            name, inner = self._key(key, path, depth + 1), self._place(key)
            first = self._reader.keys.get((*path, name)) if name in data else None
            value = self._value(self._next(), (*path, "" if name is None else name), depth + 1)
            if first is not None:
                where = f"line {first.line}, column {first.column}"
                self._report(
                    key, f"{name!r} is given twice, first at {where}", "remove or rename one of the two"
                )
            elif name is not None:
                if not data and not event.flow_style:
                    self._reader.values[path] = place._replace(width=inner.width)
                data[name], self._reader.keys[*path, name] = value, inner
        return data

    def _key(self, event: Event, path: DataPath, depth: int) -> str | None:
        """Return the text of a key; report the problem and return `None` if it is not valid."""
        place = self._place(event)
        if not isinstance(event, yaml.ScalarEvent):
            if self._page.line(place.line)[: place.column].endswith("{{"):
                hint = 'put text that begins with {{ in quotes: "{{ … }}"'
                self._report(event, "a template is not in quotes", hint)
            else:
                self._report(event, "a key has to be text", "use plain text before the colon")
            self._value(event, (*path, ""), depth)
            return None
        self._reader.count(self._alias_place or place, 0, len(event.value))
        if self._refuse_tag(event):
            return None
        plain = bool(event.implicit[0])
        if plain and event.value == "<<":
            hint = "write the fields out, or use an alias for a whole value"
            self._report(event, "merge keys (<<) are not supported", hint)
            return None
        if plain and not _is_text(event.value):
            message = f"the key {event.value or 'here'} is not text"
            self._report(event, message, "keys are text: put it in quotes")
            return None
        return str(event.value)

    def _refuse_tag(self, event: Event) -> bool:
        if event.tag is None:
            return False
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        self._report(event, f"the tag {tag} is not supported", _TAG_HINT)
        return True


def _is_text(text: str) -> bool:
    try:
        return isinstance(core_scalar(text), str)
    except ValueError:
        return False


def _events(text: str) -> Iterator[Event]:
    loader = _LOADER(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


# `!file path`: the text or the data of another file in the workflow file's folder.


class Includes:
    """Reads what a workflow file includes, never anything outside of its folder.

    `kept` are texts that are taken instead of the files of these names; `texts` are those that were read. With
    `only_kept` nothing is looked for on disk.
    """

    def __init__(self, base: Path, kept: Mapping[str, str], only_kept: bool = False) -> None:
        self._base, self._kept, self._only_kept = base, kept, only_kept
        self._open: list[str] = []
        self.texts: dict[str, str] = {}

    def read(self, reader: Reader, place: Place, given: str, path: DataPath, depth: int) -> Any:
        """Return what an include stands for; one that cannot be read is a problem and stands for nothing."""
        try:
            name = self._name(given)
            if name not in self.texts:
                self.texts[name] = self._kept[name] if name in self._kept else self._text(name)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            hint = "give the path of a file in the workflow file's folder, such as `!file prompts/draft.md`"
            reader.problems.append(place.problem(f"{given!r} cannot be included: {reason}", hint))
            return None
        text = self.texts[name]
        page = Page(str(self._base / name), text)
        if not name.lower().endswith(_DATA):
            reader.count(place, 0, len(text))
            reader.values[path] = Place(page, 1, 1, style="file", text=text)
            return text
        if name in self._open or len(self._open) >= _MAX_NESTING:
            message = f"{name!r} includes itself, or files include files more than {_MAX_NESTING} deep"
            raise Stop(place.problem(message, "include files one level deep"))
        self._open.append(name)
        data = reader.read(page, text, path, depth - 1)
        self._open.pop()
        return data

    def _name(self, given: str) -> str:
        """Return the path relative to the base folder, checked as text."""
        path = checked_path(given)
        folder = PurePosixPath(self._open[-1]).parent if self._open else PurePosixPath()
        return (folder / path).as_posix()

    def _text(self, name: str) -> str:
        if self._only_kept:
            raise ValueError("the run that this file came with has not saved it")
        raw = read_beneath(self._base, name, MAX_BYTES)
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start + 1} of it is not UTF-8") from None


# `workflow.imports`: the variables and steps of other files.


class Imports:
    """The variables and steps that a workflow file imports, put where the file uses them."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._steps = reader, dict[str, tuple[DataPath, dict[str, Any]]]()

    def into(self, data: Any) -> Any:
        """Return the data of a file with what it imports; what is no import or no step is left to the checks."""
        workflow = data.get("workflow") if isinstance(data, dict) else None
        listed = workflow.get("imports") if isinstance(workflow, dict) else None
        if isinstance(workflow, dict) and isinstance(listed, list):
            shared: dict[str, Any] = {}
            for index, each in enumerate(listed):
                file, prefix = (each.get("file"), each.get("as")) if isinstance(each, dict) else (each, None)
                if isinstance(file, str):
                    found = self._read(file, index, prefix if isinstance(prefix, str) else "")
                    shared |= {prefix: found} if isinstance(prefix, str) and prefix else found
            if shared and isinstance(workflow.get("vars", {}), dict):
                workflow["vars"] = {**shared, **workflow.get("vars", {})}
        if isinstance(data, dict):
            self._expand(data.get("steps"), ("steps",))
        return data

    def _read(self, file: str, index: int, prefix: str) -> dict[str, Any]:
        """Keep the steps of a file, and return its variables."""
        path: DataPath = ("imports", index)
        place = self._reader.values["workflow", "imports", index]
        before = len(self._reader.problems)
        data = self._reader.includes.read(self._reader, place, file, path, 1)
        if len(self._reader.problems) > before:
            return {}
        parts = {"vars": dict, "steps": list}
        if not isinstance(data, dict) or any(
            not isinstance(data.get(key), parts.get(key, ())) for key in data
        ):
            hint = "an imported file is YAML, and has `vars:` with fields and a list of `steps:` only"
            self._reader.problems.append(place.problem(f"{file!r} cannot be imported", hint))
            return {}
        for number, step in enumerate(data.get("steps", ())):
            name = step.get("name") if isinstance(step, dict) else None
            if isinstance(name, str):
                self._steps[f"{prefix}.{name}" if prefix else name] = (*path, "steps", number), step
        return dict(data.get("vars", {}))

    def _expand(self, steps: Any, path: DataPath) -> None:
        """Replace `uses` by the fields of the imported step, members of steps included."""
        for index, step in enumerate(steps if isinstance(steps, list) else ()):
            if not isinstance(step, dict):
                continue
            if isinstance(step.get("uses"), str):
                steps[index] = step = self._used(step, (*path, index))
            for kind in ("parallel", "while_loop"):
                inner, below = step.get(kind), (*path, index, kind)
                if isinstance(inner, dict):
                    inner, below = inner.get("steps"), (*below, "steps")
                self._expand(inner, below)

    def _used(self, step: dict[str, Any], path: DataPath) -> dict[str, Any]:
        reader, place = self._reader, self._reader.values[*path, "uses"]
        own = {name: value for name, value in step.items() if name != "uses"}
        if step["uses"] not in self._steps:
            known = ", ".join(list(self._steps)[:20]) or "none; list its file under workflow.imports"
            message = f"there is no imported step {step['uses']!r:.100}"
            reader.problems.append(place.problem(message, f"imported are: {known}"))
            return own
        source, imported = self._steps[step["uses"]]
        taken = {name: value for name, value in imported.items() if name not in own}
        size = len(source)
        for places in (reader.values, reader.keys):
            below = [
                (found, at) for found, at in places.items() if found[:size] == source and len(found) > size
            ]
            reader.count(place, len(below), 0)
            places.update({(*path, *found[size:]): at for found, at in below if found[size] in taken})
        return {**copy.deepcopy(taken), **own}


# The file as a whole.


class Source:
    """A workflow file that was read. `data` is plain (dict, list, str, int, float, bool, `None`).

    `text` is the file's own text, `included` the texts of the files it includes by their paths below `base`.
    `has_file` tells whether there is another workflow file at a path.
    """

    def __init__(
        self,
        path: Path,
        text: str,
        base: Path,
        data: Any,
        reader: Reader,
        has_file: Callable[[Path], bool],
    ) -> None:
        self.path, self.text, self.base, self.data, self.has_file = path, text, base, data, has_file
        self.included = dict(reader.includes.texts)
        self._values, self._keys = reader.values, reader.keys

    @property
    def digest(self) -> str:
        """A hash of the file and of all it includes, as 64 hexadecimal digits."""
        digest = hashlib.sha256(self.text.encode())
        for name, text in sorted(self.included.items()):
            digest.update(f"\0{name}\0{text}".encode())
        return digest.hexdigest()

    def at(self, path: DataPath, key: bool = False) -> Position:
        """Return the place of the value at a path, or of its key; of the nearest thing around it that is there."""
        place = self._place(path, key)
        return Position(place.page.file, place.line, place.column)

    def problem(self, path: DataPath, message: str, hint: str = "", key: bool = False) -> Problem:
        """Return a problem with the value at a path, or with its key."""
        return self._place(path, key).problem(message, hint)

    def problem_inside(
        self, path: DataPath, offset: int, message: str, hint: str = "", width: int = 1
    ) -> Problem:
        """Return a problem at a character of the text at a path."""
        place = self._place(path, False)
        if place.text is None or self._value(path) != place.text:
            return place.problem(message, hint)
        line, column = place.inside(offset)
        return place.page.problem(line, column, message, hint, width)

    def _place(self, path: DataPath, key: bool) -> Place:
        while path not in self._values:
            path = path[:-1]
        return self._keys.get(path, self._values[path]) if key else self._values[path]

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
    content = _content(path, text).removeprefix("\ufeff")
    folder = path.parent if base is None else base
    reader = Reader(Includes(folder, included or {}, only_included), env)
    try:
        data = Imports(reader).into(reader.read(Page(str(path), content), content))
    except Stop as stop:
        raise WorkflowInvalid([*reader.problems, stop.problem]) from None
    if reader.problems:
        raise WorkflowInvalid(reader.problems)
    return Source(path, content, folder, data, reader, has_file)


def _content(path: Path, text: str | None) -> str:
    """Return the text of a file, or the one in its place, if it is not too large and is UTF-8."""
    place = Position(str(path), 1, 1)
    try:
        if text is None:
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        else:
            raw = text.encode("utf-8", "surrogatepass")
        if len(raw) > MAX_BYTES:
            message = f"the file is larger than {MAX_BYTES:,} bytes"
            hint = "split it into workflows that call each other, or read large data in a step"
            raise WorkflowInvalid([Problem(message, place, "", hint)])
        return raw.decode("utf-8")
    except OSError as error:
        message = f"the file cannot be read: {error.strerror or error}"
        problem = Problem(message, place, "", "give the path of a workflow file")
        raise WorkflowInvalid([problem]) from None
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8").split("\n")
        place = Position(str(path), len(before), len(before[-1]) + 1)
        message = f"the byte {raw[error.start]:#04x} is not UTF-8"
        raise WorkflowInvalid([Problem(message, place, before[-1], "save the file as UTF-8 text")]) from None
