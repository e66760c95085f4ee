"""Text for terminals: short forms of values, and gates through which no text sends commands to a terminal.

While a command runs, `sys.stdout` and `sys.stderr` are gates. They escape control characters, characters that change
the direction of text, invisible separators and unpaired surrogates. New lines and tabs pass, because they are layout;
data is brought onto one line before it is printed.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, TextIO, cast

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_CONTROL = re.compile(r"\r?(?:\x1b\[[0-9;]*[A-Za-z])*")
BOLD, DIM, RED, GREEN, CYAN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[36m"
PLAIN, CLEAR_LINE = "\x1b[0m", "\r\x1b[K"


def visible(text: str) -> str:
    """Return text with control characters escaped as `\\u001b`, and without colours.

    JSON stays the same JSON, since that is how JSON writes such characters.
    """
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(_written_out, _COLOURS.sub("", text).replace("\r\n", "\n"))


def _written_out(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


class Gate:
    """A stream that escapes control characters."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def buffer(self) -> BinaryIO:
        """Raise `AttributeError`: bytes written to the buffer would not be escaped."""
        raise AttributeError("use binary_stdout()")

    def write(self, text: str) -> int:
        """Write text with control characters escaped."""
        self._stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def gated() -> Iterator[None]:
    """Put gates around stdout and stderr."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        cast("TextIO", stream if stream is None else Gate(ungated(stream))) for stream in streams
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def ungated(stream: Any) -> IO[str]:
    """Return the stream behind a gate, for code that writes its own control sequences."""
    found: IO[str] = stream._stream if isinstance(stream, Gate) else stream
    return found


def control(sequence: str, err: bool = False) -> None:
    """Write one of our control sequences, such as `BOLD`."""
    assert _CONTROL.fullmatch(sequence), "only control sequences"
    ungated(sys.stderr if err else sys.stdout).write(sequence)


def binary_stdout() -> BinaryIO:
    """Return standard output for the bytes of a file."""
    return ungated(sys.stdout).buffer  # type: ignore[attr-defined, no-any-return]


def gated_console(**options: Any) -> Any:
    """Return a console of rich on stdout: its styles reach the terminal, its texts are made visible."""
    from rich.console import Console
    from rich.segment import Segment

    class GatedConsole(Console):
        def render(self, *args: Any, **how: Any) -> Any:
            for segment in super().render(*args, **how):
                yield segment if segment.control else Segment(visible(segment.text), segment.style)

    return GatedConsole(file=ungated(sys.stdout), highlight=False, **options)


# Texts of a few words.


def one_line(text: str, limit: int = 200) -> str:
    """Return the beginning of a text as one harmless line."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def count(number: int, noun: str) -> str:
    """Return `1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Return a length of time: `0.2s`, `12s`, `2m05s`, `1h02m`, `3d04h`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    for small, large, size, small_size in (("s", "m", 60, 1), ("m", "h", 3600, 60)):
        if whole < size * (60 if large == "m" else 24):
            return f"{whole // size}{large}{whole % size // small_size:02}{small}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def money(dollars: float) -> str:
    """Return an amount of US dollars; small ones with as many digits as they need."""
    if dollars == 0 or abs(dollars) >= 0.1:
        return f"${dollars:.2f}"
    return f"${dollars:.{min(8, 1 - math.floor(math.log10(abs(dollars))))}f}"
