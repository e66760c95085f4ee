"""Records `holdfast demo` in a pseudo-terminal and writes docs/demo.svg, an animation in CSS without scripts.

The output is real; only its pace is changed, so that it can be read. Viewers that show no animations, and readers who
prefer none, see the last screen.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from html import escape, unescape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).with_name("demo.svg")
COLUMNS, ROWS = 100, 60
WIDTH, HEIGHT, SIZE, LEFT, TOP = 8.0, 19, 13.3, 16, 48
TYPED, LINE, PARAGRAPH, REST = 0.07, 0.22, 0.7, 5.0
"""Seconds: for a typed letter, after a line, after an empty line, and at the end."""

COLORS = ("#8b949e", "#ff8882", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", "#e6edf3")
_PART = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[^\[]|([\r\n\b])|([^\x1b\r\n\b\x00-\x1f])", re.DOTALL)


class Cell(NamedTuple):
    """A character on the screen and how it is shown."""

    text: str = " "
    color: str = ""
    bold: bool = False


Screen = tuple[tuple[Cell, ...], ...]


class Terminal:
    """A screen that understands what programs write for cursors, erasing and colors."""

    def __init__(self) -> None:
        self.cells = [[Cell()] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.style = Cell()

    def write(self, text: str) -> Iterator[str]:
        """Show a text, and yield every character after it was shown."""
        for match in _PART.finditer(text):
            numbers, letter, control, character = match.groups()
            if character is not None:
                self._put(character)
            elif control is not None:
                self._control(control)
            elif letter is not None:
                self._command(letter, [int(part) for part in re.findall(r"\d+", numbers or "")])
            yield character or control or ""

    def _put(self, character: str) -> None:
        if self.column == COLUMNS:
            self._control("\r")
            self._control("\n")
        self.cells[self.row][self.column] = self.style._replace(text=character)
        self.column += 1

    def _control(self, character: str) -> None:
        if character == "\n":
            self.row = min(self.row + 1, ROWS - 1)
        else:
            self.column = 0 if character == "\r" else max(self.column - 1, 0)

    def _command(self, letter: str, numbers: list[int]) -> None:
        many = numbers[0] if numbers else 1
        if letter == "m":
            self._restyle(numbers or [0])
        elif letter in "AB":
            self.row = max(0, min(ROWS - 1, self.row + (many if letter == "B" else -many)))
        elif letter in "CD":
            self.column = max(0, min(COLUMNS, self.column + (many if letter == "C" else -many)))
        elif letter == "G":
            self.column = many - 1
        elif letter in "KJ":
            self._erase(letter, numbers[0] if numbers else 0)

    def _erase(self, letter: str, part: int) -> None:
        start = 0 if part == 2 else self.column
        self.cells[self.row][start:] = [Cell()] * (COLUMNS - start)
        if letter == "J":
            self.cells[self.row + 1 :] = [[Cell()] * COLUMNS for _ in range(ROWS - self.row - 1)]

    def _restyle(self, numbers: list[int]) -> None:
        for number in numbers:
            if number == 0:
                self.style = Cell()
            elif number in (1, 22):
                self.style = self.style._replace(bold=number == 1)
            elif number == 2:
                self.style = self.style._replace(color=COLORS[0])
            elif number in (39, *range(30, 38), *range(90, 98)):
                self.style = self.style._replace(color="" if number == 39 else COLORS[number % 10])

    def screen(self) -> Screen:
        return tuple(tuple(row) for row in self.cells)


def output_of(command: list[str]) -> str:
    """Return what a command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST")}
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder, os.fdopen(ours, "rb", buffering=0) as reader:
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment
            | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "TMPDIR": folder, "PATH": path},
        )
        os.close(theirs)
        found = b"".join(_chunks(reader.fileno()))
        if child.wait():
            raise SystemExit(found.decode("utf-8", "replace"))
    return found.decode("utf-8").replace(folder, "/tmp")


def _chunks(reader: int) -> Iterator[bytes]:
    """Read until the other side of the terminal is closed, which Linux reports as an error."""
    try:
        while chunk := os.read(reader, 65536):
            yield chunk
    except OSError:
        return


def frames(text: str, typed: str = "holdfast demo") -> tuple[list[tuple[float, Screen]], float]:
    """Return the screens with the times at which they are shown, and the time at the end."""
    terminal, now, found = Terminal(), 0.6, []
    [*terminal.write("\x1b[1m$\x1b[0m ")]
    found.append((0.0, terminal.screen()))
    for character in typed:
        [*terminal.write(character)]
        found.append((now, terminal.screen()))
        now += TYPED
    now += PARAGRAPH
    [*terminal.write("\r\n")]
    for character in terminal.write(text):
        if character == "\n":
            found.append((now, terminal.screen()))
            now += LINE if any(cell.text != " " for cell in terminal.cells[terminal.row - 1]) else PARAGRAPH
    found.append((now, terminal.screen()))
    return found, now + REST


def spans(shown: list[tuple[float, Screen]], end: float) -> list[tuple[int, float, float, tuple[Cell, ...]]]:
    """Return the rows with the times between which they stay the same."""
    found = []
    for row in range(ROWS):
        changes = [(time, screen[row]) for time, screen in shown]
        kept = [(cells, next(group)[0]) for cells, group in groupby(changes, key=lambda change: change[1])]
        ends = [*(time for _, time in kept[1:]), end]
        found += [
            (row, start, stop, cells)
            for (cells, start), stop in zip(kept, ends, strict=True)
            if any(cell.text != " " for cell in cells)
        ]
    return found


def svg(shown: list[tuple[float, Screen]], end: float) -> str:
    """Return the animation."""
    rows = spans(shown, end)
    times = sorted({(start, stop) for _, start, stop, _ in rows})
    width, height = int(2 * LEFT + COLUMNS * WIDTH), TOP + (max(row for row, *_ in rows) + 1) * HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="A recording of holdfast demo in a terminal">',
        "<style>",
        f"text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"fill:#e6edf3;white-space:pre;animation:{end:.2f}s step-end infinite}}",
        ".b{font-weight:bold}.gone{visibility:hidden}",
        *(f".c{number}{{fill:{color}}}" for number, color in enumerate(COLORS)),
        *(_keyframes(number, start, stop, end) for number, (start, stop) in enumerate(times)),
        "@media (prefers-reduced-motion:reduce){text{animation:none!important}}",
        "</style>",
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="9" fill="#0d1117" stroke="#6e7681"/>',
        *(f'<circle cx="{22 + 20 * dot}" cy="20" r="6" fill="#484f58"/>' for dot in range(3)),
        *(_text(row, cells, times.index((start, stop)), stop < end) for row, start, stop, cells in rows),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _keyframes(number: int, start: float, stop: float, end: float) -> str:
    """Return the rule of rows that are shown between two times."""
    shown = f"{start / end:.2%}{{visibility:visible}}"
    gone = f"{stop / end:.2%},to{{visibility:hidden}}" if stop < end else ""
    before = "from{visibility:hidden}" if start else ""
    return f"@keyframes k{number}{{{before}{shown}{gone}}}.k{number}{{animation-name:k{number}}}"


def _text(row: int, cells: tuple[Cell, ...], number: int, is_gone: bool) -> str:
    parts, column = [], 0
    for style, group in groupby(cells, key=lambda cell: cell._replace(text="")):
        text = "".join(cell.text for cell in group)
        if text.strip():
            start = column + len(text) - len(text.lstrip())
            parts.append(_part(text.strip(), LEFT + start * WIDTH, style))
        column += len(text)
    kind = f"k{number} gone" if is_gone else f"k{number}"
    return f'<text y="{TOP + row * HEIGHT}" class="{kind}">{"".join(parts)}</text>'


def _part(text: str, left: float, style: Cell) -> str:
    names = [*(["b"] if style.bold else []), *([f"c{COLORS.index(style.color)}"] if style.color else [])]
    kind = f' class="{" ".join(names)}"' if names else ""
    return f'<tspan x="{left:g}" textLength="{len(text) * WIDTH:g}"{kind}>{escape(text)}</tspan>'


def lines_of(picture: str) -> list[str]:
    """Return the texts of the last screen of a recording."""
    rows = re.findall(r'<text y="\d+" class="k\d+">(.*?)</text>', picture)
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in rows]


def record() -> str:
    """Return a new recording."""
    return svg(*frames(output_of([str(Path(sys.executable).with_name("holdfast")), "demo"])))


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0]).parse_args()
    TARGET.write_text(record(), "utf-8")


if __name__ == "__main__":
    main()
