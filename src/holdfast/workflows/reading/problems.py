"""What is wrong with a workflow file, and where: problems that quote the place and name the cure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.errors import INVALID, HoldfastError

_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_SHOWN_COLUMNS = 100
_SHOWN_PROBLEMS = 50
MOST_PROBLEMS = 500
"""When so many problems are found, no more are searched for: each takes time to be put into words."""


class Position(NamedTuple):
    """A place in a file; the first line and the first column are 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: what, where, the line it is on, and the way out."""

    message: str
    position: Position
    text: str = ""
    hint: str = ""
    width: int = 1

    def __str__(self) -> str:
        lines = [f"{self.position}: {self.message}"]
        if self.text.strip():
            lines += self._quoted()
        if self.hint:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)

    def _quoted(self) -> list[str]:
        """Return the line and, below it, a mark under the place; long lines are cut around it."""
        start = self.position.column - 1
        cut = max(0, start - _SHOWN_COLUMNS // 2) if len(self.text) > _SHOWN_COLUMNS else 0
        shown = self.text[cut : cut + _SHOWN_COLUMNS]
        shown = "".join(character if character.isprintable() else " " for character in shown)
        room = max(1, len(shown.rstrip()) - (start - cut))
        number = str(self.position.line)
        mark = " " * (start - cut) + "^" * max(1, min(self.width, room))
        return [f"    {number} | {shown.rstrip()}", f"    {' ' * len(number)} | {mark}"]


class WorkflowInvalid(HoldfastError):
    """A workflow file cannot be used; `problems` lists the reasons at once, in the order of the file.

    Of a file with more than 500 problems, 500 or a few more are listed.
    """

    exit_code = INVALID

    def __init__(self, problems: Iterable[Problem]) -> None:
        found = dict.fromkeys(problems)
        files: dict[str, int] = {}
        for problem in found:
            files.setdefault(problem.position.file, len(files))
        self.problems = tuple(
            sorted(found, key=lambda problem: (files[problem.position.file], problem.position[1:]))
        )
        shown = [str(problem) for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > len(shown):
            least = "at least " if len(self.problems) >= MOST_PROBLEMS else ""
            shown.append(f"and {least}{len(self.problems) - len(shown)} more problems")
        super().__init__("\n".join(shown))


class Page:
    """The text of one file by lines, to quote from."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = _LINE_BREAK.split(text)

    def line(self, number: int) -> str:
        """Return the text of a line, nothing if there is no such line."""
        return self.lines[number - 1] if 1 <= number <= len(self.lines) else ""

    def problem(self, line: int, column: int, message: str, hint: str = "", width: int = 1) -> Problem:
        """Return a problem at a place of this file."""
        return Problem(message, Position(self.file, line, column), self.line(line), hint, width)


def listed(names: Iterable[str], limit: int = 40) -> str:
    """Return names one after the other, as text; a long list is cut."""
    given = names if isinstance(names, Collection) else list(names)
    more = f" and {len(given) - limit} more" if len(given) > limit else ""
    return ", ".join(itertools.islice(given, limit)) + more


def given(data: Any) -> str:
    """Describe what was given: `text 'x'`, `a list`, `nothing`."""
    if data is None:
        return "nothing"
    if isinstance(data, bool):
        return str(data).lower()
    if isinstance(data, (int, float)):
        return f"the number {data}"
    if isinstance(data, str):
        return f"text {data!r}" if len(data) <= 40 else f"text {data[:40] + '…'!r}"
    return "a list" if isinstance(data, list) else "fields"
