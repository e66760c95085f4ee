"""What a YAML parser's complaints mean, in plain words and with a cure."""

from __future__ import annotations

import yaml

from holdfast.flows.reading.problems import Page, Problem

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
    """The problem that a parser's error stands for."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    told = f"{getattr(error, 'context', None) or ''} {getattr(error, 'problem', None) or error}"
    character = page.line(line)[column - 1 : column]
    if character == "\t" or "\t" in page.line(line)[: column - 1] or "tab character" in told:
        return page.problem(line, column, "a tab is used to indent", "indent with spaces")
    if "cannot start any token" in told:
        message, hint = (
            f"a value cannot begin with {character}",
            f"put text that begins with {character} in quotes",
        )
        return page.problem(line, column, message, hint)
    for part, message, hint in _MEANINGS:
        if part in told:
            line, column = _opened(error, hint, (line, column))
            return page.problem(line, column, message, hint)
    hint = "check the indentation, quotes and colons around this place"
    return page.problem(line, column, f"this is not YAML: {' '.join(told.split())}", hint)


def _opened(error: yaml.YAMLError, hint: str, place: tuple[int, int]) -> tuple[int, int]:
    """Where the quote or bracket begins that has to be closed, else the place itself."""
    mark = getattr(error, "context_mark", None)
    return (mark.line + 1, mark.column + 1) if mark is not None and hint.startswith("close") else place
