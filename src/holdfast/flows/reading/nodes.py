"""A YAML document as nodes that know their place, with the bounds that aliases and nesting are held to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from holdfast.flows.reading.problems import Page, Position

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
    """What an unquoted scalar means by the YAML 1.2 core schema; a `ValueError` says why it means nothing.

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
    """Where the character at `offset` of a scalar's text stands in its file, as nearly as can be told.

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
    """The next place of a character, at most a few lines on."""
    for number in range(line, min(line + 200, len(page.lines)) + 1):
        found = page.line(number).find(character, column if number == line else 0)
        if found >= 0:
            return number, found
    return None
