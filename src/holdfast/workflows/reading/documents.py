"""Strict YAML: what is ambiguous, hidden or endless is refused, every node knows its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from holdfast.workflows.reading.problems import Page, Position, Problem

# A YAML document as nodes that know their place, with the bounds that aliases and nesting are held to.


MAX_NODES = 100_000
MAX_DEPTH = 50
MAX_CHARACTERS = 10_000_000
_MAX_DIGITS = 300

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


@dataclass(slots=True, eq=False)
class Node:
    """A value of a document and its place. Size, height and characters count aliases written out."""

    page: Page
    position: Position
    width: int = 1
    size: int = 1
    height: int = 1
    characters: int = 0


@dataclass(slots=True, eq=False)
class Scalar(Node):
    """Text, a number, true, false or nothing. `style` is YAML's, or `file` for the text of a whole file."""

    value: Any = None
    style: str = ""


@dataclass(slots=True, eq=False)
class Items(Node):
    """A list."""

    items: list[Node] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Entry:
    """One key of a mapping, its place, and its value."""

    page: Page
    position: Position
    width: int
    node: Node


@dataclass(slots=True, eq=False)
class Fields(Node):
    """A mapping."""

    fields: dict[str, Entry] = field(default_factory=dict)


def core_scalar(text: str) -> Any:
    """Return what an unquoted scalar means by the YAML 1.2 core schema; a `ValueError` says why it means nothing.

    Numbers with a leading zero stay text: nobody who writes 0123 means 123.
    """
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a number that can be stored")
    if len(text) > _MAX_DIGITS and (_INTEGER.fullmatch(text) or text.startswith(("0x", "0o"))):
        raise ValueError(f"a number of {len(text)} digits is too long")
    return _number(text)


def _number(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"{text} is too large a number")
        return value
    return text


def place_inside(node: Scalar, offset: int) -> Position:
    """Return where the character at `offset` of a scalar's text stands in its file, as nearly as can be said.

    Text and file are walked together: indentation, folded lines and escapes of the file are passed over.
    """
    text = str(node.value)
    if node.style == "file":
        before = text[:offset].split("\n")
        return Position(node.position.file, len(before), len(before[-1]) + 1)
    line, column = node.position.line, node.position.column - 1
    if node.style in ("|", ">"):
        line, column = line + 1, 0
    elif node.style in ("'", '"'):
        column += 1
    for index, character in enumerate(text):
        found = None if character.isspace() else _next(node.page, line, column, character)
        if not character.isspace():
            if found is None:
                return node.position
            line, column = found
        if index >= offset:
            return Position(node.position.file, line, column + 1)
        column += 0 if character == "\n" else 1
    return node.position


def _next(page: Page, line: int, column: int, character: str) -> tuple[int, int] | None:
    """Return the next place of a character, at most a few lines on."""
    for number in range(line, min(line + 200, len(page.lines)) + 1):
        found = page.line(number).find(character, column if number == line else 0)
        if found >= 0:
            return number, found
    return None


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
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    said = f"{getattr(error, 'context', None) or ''} {getattr(error, 'problem', None) or error}"
    character = page.line(line)[column - 1 : column]
    if character == "\t" or "\t" in page.line(line)[: column - 1] or "tab character" in said:
        return page.problem(line, column, "a tab is used to indent", "indent with spaces")
    if "cannot start any token" in said:
        message, hint = (
            f"a value cannot begin with {character}",
            f"put text that begins with {character} in quotes",
        )
        return page.problem(line, column, message, hint)
    for part, message, hint in _MEANINGS:
        if part in said:
            line, column = _opened(error, hint, (line, column))
            return page.problem(line, column, message, hint)
    hint = "check the indentation, quotes and colons around this place"
    return page.problem(line, column, f"this is not YAML: {' '.join(said.split())}", hint)


def _opened(error: yaml.YAMLError, hint: str, place: tuple[int, int]) -> tuple[int, int]:
    """Return where the quote or bracket begins that has to be closed, else the place itself."""
    mark = getattr(error, "context_mark", None)
    return (mark.line + 1, mark.column + 1) if mark is not None and hint.startswith("close") else place


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Event = Any
"""An event of the YAML parser; its types leave out that every event has its marks."""
Include = Callable[["Reader", Page, Event, int], Node]


class Stop(Exception):
    """Reading cannot go on after this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Reader:
    """Turns YAML text into nodes. The problems and the bounds are shared by a file and what it includes."""

    def __init__(self, include: Include) -> None:
        self.problems: list[Problem] = []
        self._include = include
        self._nodes = 0
        self._characters = 0

    def read(self, page: Page, text: str, depth: int = 0) -> Node:
        """Return the one document of a text; `Stop` if it cannot be read any further."""
        unreadable = _FORBIDDEN.search(text)
        if unreadable:
            raise Stop(_junk(page, text, unreadable.start()))
        try:
            return _Document(self, page, _events(text)).node(depth)
        except yaml.YAMLError as error:
            raise Stop(explain(error, page)) from None

    def count(self, page: Page, event: Event, nodes: int, characters: int) -> None:
        """Adds to what the document holds once its aliases are written out."""
        self._nodes += nodes
        self._characters += characters
        if self._nodes > MAX_NODES:
            raise Stop(
                at(
                    page,
                    event,
                    f"the file holds more than {MAX_NODES:,} values, aliases written out",
                    "use fewer aliases, or read large data in a step",
                )
            )
        if self._characters > MAX_CHARACTERS:
            hint = "use fewer aliases, or read large texts in a step"
            raise Stop(at(page, event, "the file holds too much text, aliases written out", hint))

    def include(self, page: Page, event: Event, depth: int) -> Node:
        """Return the node that stands for `!file path`."""
        return self._include(self, page, event, depth)


class _Document:
    """One pass over the events of one document."""

    def __init__(self, reader: Reader, page: Page, events: Iterator[Event]) -> None:
        self.reader, self.page, self.events = reader, page, events
        self.anchors: dict[str, Node | None] = {}

    def node(self, depth: int) -> Node:
        """Return the root; nothing may follow its document."""
        root: Node = Scalar(self.page, Position(self.page.file, 1, 1))
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    hint = "keep one workflow per file: remove the line with ---"
                    raise Stop(at(self.page, event, "a second document begins here", hint))
            elif isinstance(event, yaml.NodeEvent):
                root = self._value(event, depth + 1)
        return root

    def _value(self, event: Event, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise Stop(self._too_deep(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        anchor: str | None = event.anchor
        if anchor is not None:
            self.anchors[anchor] = None
        self.reader.count(self.page, event, 1, 0)
        node = self._new(event, depth)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _new(self, event: Event, depth: int) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, depth)
        if event.tag is not None:
            self._refuse_tag(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(event, depth)
        return self._mapping(event, depth)

    def _too_deep(self, event: Event) -> Problem:
        return at(
            self.page, event, f"values are nested more than {MAX_DEPTH} deep", "use a flatter structure"
        )

    def _alias(self, event: Event, depth: int) -> Node:
        name = event.anchor
        node = self.anchors.get(name)
        if name not in self.anchors:
            hint = f"put text that begins with * in quotes, or write &{name} before the value that is meant"
            raise Stop(at(self.page, event, f"the alias *{name} refers to nothing", hint))
        if node is None:
            hint = "write the value out, or refer to a value that ended before"
            raise Stop(at(self.page, event, f"the alias *{name} refers to what it is a part of", hint))
        if depth + node.height - 1 > MAX_DEPTH:
            raise Stop(self._too_deep(event))
        self.reader.count(self.page, event, node.size, node.characters)
        return node

    def _scalar(self, event: Event, depth: int) -> Node:
        if event.tag == "!file":
            return self.reader.include(self.page, event, depth)
        if event.tag is not None:
            self._refuse_tag(event)
        self.reader.count(self.page, event, 0, len(event.value))
        node = Scalar(
            self.page, place_of(self.page, event), width_of(self.page, event), characters=len(event.value)
        )
        node.value, node.style = event.value, event.style or ""
        if event.implicit[0]:
            try:
                node.value = core_scalar(event.value)
            except ValueError as error:
                self.reader.problems.append(
                    at(self.page, event, str(error), "use a finite number, or put it in quotes to mean text")
                )
        return node

    def _list(self, event: Event, depth: int) -> Node:
        node = Items(self.page, place_of(self.page, event), width_of(self.page, event))
        for child in self.events:
            if isinstance(child, yaml.SequenceEndEvent):
                break
            item = self._value(child, depth + 1)
            node.items.append(item)
            _grow(node, item)
        return node

    def _mapping(self, event: Event, depth: int) -> Node:
        node = Fields(self.page, place_of(self.page, event), width_of(self.page, event))
        for key in self.events:
            if isinstance(key, yaml.MappingEndEvent):
                break
            name = self._key(key, depth + 1)
            value = next(self.events)
            entry = Entry(
                self.page, place_of(self.page, key), width_of(self.page, key), self._value(value, depth + 1)
            )
            if name is not None:
                self._add(node, name, entry)
        if not event.flow_style and node.fields:
            node.width = next(iter(node.fields.values())).width
        return node

    def _add(self, node: Fields, name: str, entry: Entry) -> None:
        _grow(node, entry.node)
        first = node.fields.get(name)
        if first is None:
            node.fields[name] = entry
            return
        line, column = entry.position.line, entry.position.column
        message = (
            f"{name!r} is given twice, first at line {first.position.line}, column {first.position.column}"
        )
        hint = "remove or rename one of the two"
        self.reader.problems.append(self.page.problem(line, column, message, hint, entry.width))

    def _key(self, event: Event, depth: int) -> str | None:
        """Return the text of a key; `None` after reporting why it is none."""
        if not isinstance(event, yaml.ScalarEvent):
            message, hint = _bad_key(self.page, event)
            self.reader.problems.append(at(self.page, event, message, hint))
            self._value(event, depth)
            return None
        self.reader.count(self.page, event, 0, len(event.value))
        if event.tag is not None:
            self._refuse_tag(event)
            return None
        plain = bool(event.implicit[0])
        if plain and event.value == "<<":
            hint = "write the fields out, or use an alias for a whole value"
            self.reader.problems.append(at(self.page, event, "merge keys (<<) are not supported", hint))
            return None
        if plain and not _is_text(event.value):
            message, hint = f"the key {event.value or 'here'} is not text", "keys are text: put it in quotes"
            self.reader.problems.append(at(self.page, event, message, hint))
            return None
        return str(event.value)

    def _refuse_tag(self, event: Event) -> None:
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        hint = "remove it; the only tag is !file, which takes the text of another file"
        self.reader.problems.append(at(self.page, event, f"the tag {tag} is not supported", hint))


def at(page: Page, event: Event, message: str, hint: str) -> Problem:
    """Return a problem at the place of an event."""
    start = event.start_mark
    return page.problem(start.line + 1, start.column + 1, message, hint, width_of(page, event))


def width_of(page: Page, event: Event) -> int:
    """Return how many columns of its first line an event takes."""
    start, end = event.start_mark, event.end_mark
    if end.line == start.line:
        return max(1, int(end.column - start.column))
    return max(1, len(page.line(start.line + 1)) - int(start.column))


def place_of(page: Page, event: Event) -> Position:
    """Return where an event begins."""
    return Position(page.file, event.start_mark.line + 1, event.start_mark.column + 1)


def _grow(node: Node, child: Node) -> None:
    node.size += child.size
    node.characters += child.characters
    node.height = max(node.height, child.height + 1)


def _is_text(text: str) -> bool:
    try:
        return isinstance(core_scalar(text), str)
    except ValueError:
        return False


def _bad_key(page: Page, event: Event) -> tuple[str, str]:
    start = event.start_mark
    before = page.line(start.line + 1)[: start.column + 1]
    if before.endswith("{{"):
        return "a template is not in quotes", 'put text that begins with {{ in quotes: "{{ … }}"'
    return "a key has to be text", "use plain text before the colon"


def _events(text: str) -> Iterator[Event]:
    loader = _LOADER(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


def _junk(page: Page, text: str, offset: int) -> Problem:
    before = Page(page.file, text[:offset]).lines
    message = f"the character {text[offset]!r} cannot be in a workflow file"
    hint = 'remove it, or write it as an escape in double quotes, such as "\\e"; is this a text file?'
    return page.problem(len(before), len(before[-1]) + 1, message, hint)
