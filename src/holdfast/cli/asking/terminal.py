"""Talking with a person: reading lines while something else is looked after now and then."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO

from holdfast.cli.errors import TERMINATED

POLL = 0.5
"""How often, in seconds, a question looks whether it was answered elsewhere."""


class Terminal:
    """Reads whole lines from stdin and writes to `out`. While it waits, it calls `poll`, which may raise."""

    def __init__(self, out: IO[str], poll: Callable[[], None] | None = None) -> None:
        self._out, self.poll = out, poll
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._ended = False

    def say(self, text: str = "") -> None:
        """Write a line."""
        self._out.write(f"{text}\n")
        self._out.flush()

    def line(self, prompt: str) -> str:
        """The next line that the person writes; `EOFError` at the end of the input."""
        self._out.write(prompt)
        self._out.flush()
        while "\n" not in self._text and not self._ended:
            self._wait()
            self._read()
        line, _, self._text = self._text.partition("\n")
        if not line and self._ended and not self._text:
            raise EOFError
        return line.rstrip("\r")

    def lines(self, prompt: str) -> str:
        """Lines up to a lone `.` or the end of the input, as one text; `EOFError` if there is none at all."""
        self.say(prompt)
        found: list[str] = []
        try:
            while (line := self.line("| ")) != ".":
                found.append(line)
        except EOFError:
            if not found:
                raise
            self._ended = False
            self.say()
        return "\n".join(found)

    def _wait(self) -> None:
        if self.poll is None or os.name == "nt":
            return
        while not select.select([sys.stdin.fileno()], [], [], POLL)[0]:
            self.poll()

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        self._ended = not data
        self._text += self._decoder.decode(data, final=not data)


class Terminated(SystemExit):
    """SIGTERM arrived while somebody was asked."""


@contextlib.contextmanager
def sigterm_leaves() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` here, where nobody else handles it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
