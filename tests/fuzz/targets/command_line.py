"""The command line: any row of words ends with an exit code of the table and a message, never with a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import click

from holdfast import open_store
from holdfast.cli.main import ENTRIES, commands, main
from tests.crash.flips import fill
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.target import Check, Target, Wrong, own_folder

_NEVER = ("worker", "serve", "mcp", "ui", "demo")
"""Commands that only end when they are told to, or are long."""

_NEVER_OPTIONS = ("--web", "--follow", "-f", "--watch", "--wait", "--embedded", "--loop")
_CODES = {0, 1, 2, 3, 4, 130, 143}
_HOSTILE = (
    "", " ", "-", "--", "---", "-1", "0", "9" * 30, "9" * 5000, "1e999", "nan", "\udcff", "a\udc80", "é",
    "\u202e", "\x1b[31m", "\n", "a\nb",
    "../../etc/passwd", "/dev/null", "/nonexistent/x", ".", "..", "~", "~nobody/x", "@", "@file", "=", "a=",
    "=b", "a=b", "a:=[", "a:=1", "a=@nofile",
    "long", "asked", "pruned", "long@1", "long@-1", "long@s0", "long@" + "9" * 25, "long@-" + "9" * 25,
    "long@s0#" + "9" * 4500, "asked@0", "@1", "long@",
    "flow.yaml", "broken.yaml", "missing.yaml", "runs.db", "sqlite:///runs.db", "sqlite:///other.db",
    "file:folder", "memory://", "x://y", "postgresql://",
    "{}", "[]", "null", '{"a": 1}', "[" * 2000, "{{ x }}", "'", '"', "$(id)", "`id`", "%s%n", "*", "a,b",
    "json", "yaml", "1d", "5m", "-5m", "0s", "9" * 400 + "w",
    "* * * * *", "0 0 30 2 *", "2026-01-01", "2026-13-45T99:99", "00000000-0000-4000-8000-000000000000", "true",
    "completed", "s0", "s1", "p", "key=value",
)  # fmt: skip


def _all_commands() -> list[tuple[tuple[str, ...], list[click.Parameter]]]:
    found = []
    context = click.Context(commands)

    def walk(words: tuple[str, ...], command: click.Command) -> None:
        found.append((words, list(command.params)))
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None:
                    walk((*words, name), inner)

    for name in ENTRIES:
        if name not in _NEVER and (command := commands.get_command(context, name)) is not None:
            walk((name,), command)
    return found


def _words(choices: Choices, known: list[tuple[tuple[str, ...], list[click.Parameter]]]) -> list[str]:
    words, params = known[choices.below(len(known))]
    out = list(words)
    options = [
        p for p in params if isinstance(p, click.Option) and not any(o in _NEVER_OPTIONS for o in p.opts)
    ]
    for param in params:
        if isinstance(param, click.Argument) and not choices.chance(6):
            out.append(_value(choices, param))
    for _ in range(choices.below(4)):
        if options:
            option = choices.of(options)
            out.append(choices.of([*option.opts, *option.secondary_opts]))
            if not option.is_flag and not choices.chance(12):
                out.append(_value(choices, option))
    if choices.chance(5):
        out.insert(choices.below(len(out) + 1), choices.of(_HOSTILE))
    if choices.chance(9):
        out.append(choices.of(("--json", "--help", "--debug", "--nope", "-q")))
    return out


def _value(choices: Choices, param: click.Parameter) -> str:
    if isinstance(param.type, click.Choice) and not choices.chance(4):
        return str(choices.of(list(param.type.choices)))
    if not choices.below(3) and not isinstance(param, click.Option):
        return choices.of(("long", "asked", "pruned", "long@1", "flow.yaml", "asked"))
    return choices.of(_HOSTILE)


_FLOW = """\
workflow: {name: w}
inputs: {x: {type: integer, default: 1}}
steps:
  - {name: a, set: {y: 1}}
  - {name: b, ask: {prompt: well?}}
"""


class _World:
    """A folder with a store, a workflow file and a broken one; created again for every input."""

    def __init__(self) -> None:
        base = own_folder()
        self._whole, self._here = base / "whole", base / "here"
        self._whole.mkdir()
        store = open_store(f"sqlite:///{self._whole}/runs.db")
        fill(store)
        store.close()
        (self._whole / "flow.yaml").write_text(_FLOW)
        (self._whole / "broken.yaml").write_text("steps: [{name: 1}")
        os.environ.update(
            {"HOLDFAST_STORE": "sqlite:///runs.db", "HOME": str(self._here), "NO_COLOR": "1", "COLUMNS": "80"}
        )

    def enter(self) -> None:
        os.chdir("/")
        shutil.rmtree(self._here, ignore_errors=True)
        shutil.copytree(self._whole, self._here)
        os.chdir(self._here)


def command_line() -> Check:
    """Words of real commands and hostile ones, on a small store."""
    known, world = _all_commands(), _World()
    nothing = open(os.devnull)  # noqa: SIM115, PTH123
    sys.stdin = nothing

    def check(data: bytes) -> str:
        words = _words(Choices(data), known)
        world.enter()
        out = io.TextIOWrapper(io.BytesIO(), "utf-8")
        err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _bounded(words):
            code = main(words)
        out.flush()
        err.flush()
        said = err.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]
        shown = out.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]
        if "--debug" not in words and ("Traceback" in said or "holdfast: unexpected " in said):
            what = re.findall("unexpected (\\w+)|$", said)
            raise Wrong(f"holdfast {words!r:.600}: {said[-600:]}", f"{words[0]} {what[0]}")
        if code not in _CODES:
            raise Wrong(f"holdfast {words!r} ended with {code}")
        if code and not said and not shown:
            raise Wrong(f"holdfast {words!r} ended with {code} without a word")
        return f"{words[0] if words and words[0] in ENTRIES else '?'} {code}"

    return check


@contextlib.contextmanager
def _bounded(words: list[str]) -> Iterator[None]:
    """End a command that waits for something that never comes."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Wrong(f"holdfast {words!r} waits without end")

    before = signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 40)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left, interval)  # A test that is bounded itself stays so.


TARGETS = [
    Target(
        "cli",
        command_line,
        (),
        make=random_choices,
        share=5,
        longest=64,
        fresh=0.7,
        memory=2048 << 20,
        seconds=20.0,
    ),
]
