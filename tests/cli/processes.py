"""Calling the command line as people do: in processes of its own, and in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cli.warm import WARM

PROGRAM = [sys.executable, "-W", "error", "-m", "holdfast"]
PATIENCE = 60.0

ACTS = """
import os, pathlib, time

def note(name):
    with open("ran.txt", "a") as file:
        file.write(name + "\\n")

def first():
    note("first")
    return "one"

def second():
    note("second")
    return {"count": 2}

def gated():
    note("gated")
    if not pathlib.Path("open").exists():
        raise RuntimeError("the gate is closed")
    return "through"

def flaky():
    note("flaky")
    if pathlib.Path("ran.txt").read_text().count("flaky") < 2:
        raise ConnectionError("lost")
    return "found"

def slow():
    note("slow")
    until = time.monotonic() + 60
    while not pathlib.Path("open").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return "slept"

def echo(value=None):
    note("echo")
    return value

def loud():
    raise RuntimeError("\\x1b[31mred\\x1b]0;title\\x07 \\x9b2J alert")
"""

CHAIN = """
workflow: {name: chain}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: second, python: "acts.py:second"}
  - {name: gated, python: "acts.py:gated"}
output: {result: "{{ steps.gated.output }}", count: "{{ steps.second.output.count }}"}
"""

ASKING = """
workflow: {name: asking}
steps:
  - {name: first, python: "acts.py:first"}
  - name: approve
    ask: {prompt: "Publish it?", choices: ["yes", "no"]}
  - {name: second, python: "acts.py:second"}
output: {approved: "{{ steps.approve.answer }}"}
"""

SLOW = """
workflow: {name: slow}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: slow, python: "acts.py:slow"}
output: "{{ steps.slow.output }}"
"""


def write(folder: Path, name: str, text: str) -> Path:
    """A workflow file, with the functions that it calls beside it."""
    (folder / "acts.py").write_text(ACTS)
    path = folder / name
    path.write_text(text)
    return path


def ran(folder: Path) -> list[str]:
    """What the functions noted, in order."""
    notes = folder / "ran.txt"
    return notes.read_text().split() if notes.exists() else []


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", **changes}


def call(
    folder: Path, *arguments: str, given: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command line, run to its end in a folder."""
    return WARM.call(list(arguments), folder, given, env or environment(), PATIENCE)


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The command line, begun in a folder; its stdout can be read line by line."""
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        **options,
    )


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """What a process wrote up to the line that has `text`."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came; there was: {seen}\n{process.communicate()[1]}")


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


class Session:
    """The command line in a terminal of its own. `screen` is all that it wrote, without colours and moves."""

    def __init__(self, folder: Path, *arguments: str, program: Sequence[str] = PROGRAM, **env: str) -> None:
        self._raw = b""
        self._seen = 0
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:  # pragma: no cover
            os.chdir(folder)
            os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **env})
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.execv(program[0], [*program, *arguments])

    @property
    def raw(self) -> str:
        return self._raw.decode("utf-8", "replace")

    @property
    def screen(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self.raw)

    def expect(self, text: str) -> None:
        """Wait until `text` is written after what was expected before."""
        end = time.monotonic() + PATIENCE
        while text not in self.screen[self._seen :]:
            if not self._read(end):
                raise AssertionError(f"{text!r} never came; there was: {self.screen}")
        self._seen += self.screen[self._seen :].index(text) + len(text)

    def write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def kill(self, number: int) -> None:
        os.kill(self._pid, number)

    def end(self) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + PATIENCE
        while self._read(end):
            pass
        _, status = os.waitpid(self._pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)

    def _read(self, end: float) -> bool:
        assert time.monotonic() < end, f"nothing more came; there was: {self.screen}"
        if not select.select([self._terminal], [], [], 0.2)[0]:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return False
        self._raw += data
        return bool(data)


def resume_command(text: str) -> str:
    """The command after `resume with: `."""
    found: Sequence[str] = re.findall(r"resume with: (.+)", text)
    assert found, text
    return found[-1].strip()


def pasted(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a command line that was printed."""
    return subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, env=environment()
    )
