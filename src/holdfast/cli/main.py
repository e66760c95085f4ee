"""The command line: which commands there are, and the way in and out of each."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple

import click

from holdfast.cli.errors import report
from holdfast.views.terminal import gated

# Loading what a command needs without losing a Ctrl+C: libraries may swallow one that arrives in their mid.


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Hold Ctrl+C back while something is loaded; one that came meanwhile is raised afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


PROGRAM = "holdfast"


class Entry(NamedTuple):
    """Where a command is found, and what the overview says of it."""

    section: str
    module: str
    help: str


RUN, LOOK, FLEET, FILES = "Run", "Look and go back", "Fleet", "Files and stores"

ENTRIES = {
    "demo": Entry(RUN, "demo", "Watch a workflow whose process is killed, and which goes on."),
    "run": Entry(RUN, "run", "Run a workflow file."),
    "resume": Entry(RUN, "run", "Resume a run where it stopped."),
    "answer": Entry(RUN, "control", "Answer what a run waits for."),
    "pause": Entry(RUN, "control", "Pause a run after the steps under way."),
    "cancel": Entry(RUN, "control", "Stop a run."),
    "steps": Entry(RUN, "control", "Skip, modify, inject and replan steps of a run."),
    "delete": Entry(RUN, "control", "Delete a run and its data."),
    "runs": Entry(LOOK, "runs", "List runs; edit, compare, tag, roll back and promote them."),
    "show": Entry(LOOK, "runs", "Show all about a run."),
    "events": Entry(LOOK, "runs", "Print what happened in a run, and follow it."),
    "history": Entry(LOOK, "history", "List a run's checkpoints and forks."),
    "diff": Entry(LOOK, "history", "Print what differs between two checkpoints."),
    "fork": Entry(LOOK, "fork", "Start a new run at a checkpoint of another."),
    "rerun": Entry(LOOK, "fork", "Run a step and what follows it again."),
    "submit": Entry(FLEET, "run", "Store a run for workers to execute."),
    "worker": Entry(FLEET, "worker", "Execute the runs that were submitted."),
    "mcp": Entry(FLEET, "mcp", "Serve workflows and runs to a language model."),
    "serve": Entry(FLEET, "serve", "Serve workflows and runs over HTTP, and execute them."),
    "ui": Entry(FLEET, "serve", "Look at runs in a browser, and answer what they ask."),
    "queue": Entry(FLEET, "fleet", "List, limit and pause queues."),
    "schedule": Entry(FLEET, "fleet", "Submit runs at the times of a cron expression."),
    "init": Entry(FILES, "workflow", "Write a first workflow file."),
    "validate": Entry(FILES, "workflow", "Check workflow files and print every problem."),
    "workflow": Entry(FILES, "workflow", "Describe and draw a workflow; print the JSON Schema."),
    "checkpoints": Entry(FILES, "checkpoints", "List, show, keep, prune and clear checkpoints."),
    "capsule": Entry(FILES, "capsule", "Export a run to one file, and import it."),
    "store": Entry(FILES, "store", "Check, repair, copy, measure and migrate a store."),
    "doctor": Entry(FILES, "doctor", "Check the installation and the store."),
}
"""Every command. Its module is imported when the command is used, so that the overview costs nothing."""

HIDDEN = {"export": "capsule", "import": "capsule"}
"""Commands of groups that are understood without the name of the group, too, and are listed nowhere."""

ELSEWHERE = {
    **dict.fromkeys(("checkpoint", "ckpt"), "checkpoints"),
    "status": "runs status RUN",
    **dict.fromkeys(("list", "ls", "ps", "jobs"), "runs"),
    **dict.fromkeys(("stop", "kill"), "cancel RUN"),
    "continue": "resume RUN",
    **dict.fromkeys(("approve", "respond", "gate"), "answer RUN VALUE"),
    "guide": "steps guide RUN TEXT",
    "replay": "events RUN --replay",
    "logs": "events RUN",
    "inspect": "workflow inspect FILE",
    "fleet": "worker",
    **dict.fromkeys(("web", "dashboard"), "ui"),
}
"""What the commands of other systems are called here."""

EXAMPLE = """\
  holdfast init hello.yaml              write a first workflow
  holdfast run hello.yaml -i name=Ada   run it; every finished step is saved
  holdfast resume                       go on after a failure, a crash or Ctrl+C"""


def _imported(module: str, name: str) -> click.Command:
    with loading():
        found = importlib.import_module(f"holdfast.cli.commands.{module}")
    command: click.Command = getattr(found, f"{name}_" if iskeyword(name) else name)
    return command


class SpreadGroup(click.Group):
    """A group some of whose commands are in other modules, which are imported when they are used."""

    elsewhere: Mapping[str, str] = {}
    """The modules of these commands, by the names of the commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [*super().list_commands(ctx), *self.elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name."""
        module = self.elsewhere.get(cmd_name)
        return super().get_command(ctx, cmd_name) if module is None else _imported(module, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; the list is the command without a subcommand."""
        if args[0] in ("list", "ls") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"there is no command {args[0]!r}; `{ctx.command_path}` lists them", ctx)
        return super().resolve_command(ctx, args)


class Commands(click.Group):
    """The commands of `ENTRIES`, loaded when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the overview."""
        return list(ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in ENTRIES and cmd_name not in HIDDEN:
            return None
        return _imported(HIDDEN.get(cmd_name) or ENTRIES[cmd_name].module, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with suggestions from the whole table."""
        if args and args[0] not in {*ENTRIES, *HIDDEN} and not args[0].startswith("-"):
            if args[0] in ELSEWHERE:
                known = f"{PROGRAM} {ELSEWHERE[args[0]]}"
                raise click.UsageError(f"No such command {args[0]!r}; here it is `{known}`", ctx)
            raise click.NoSuchCommand(args[0], possibilities=ENTRIES, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it is, and an example that teaches."""
        super().format_help_text(ctx, formatter)
        formatter.write(f"\n{EXAMPLE}\n")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by section, without importing one."""
        width = max(map(len, ENTRIES)) + 2
        for section in dict.fromkeys(entry.section for entry in ENTRIES.values()):
            rows = [(name.ljust(width), entry.help) for name, entry in ENTRIES.items() if entry[0] == section]
            with formatter.section(section):
                formatter.write_dl(rows)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("holdfast")
        except PackageNotFoundError:
            number = "(not installed)"
        click.echo(f"{PROGRAM} {number}")
        ctx.exit()


_FLAG: Any = {"is_flag": True, "expose_value": False}


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-V", "--version", callback=_print_version, help="Print the version.", is_eager=True, **_FLAG)
@click.option("--debug", help="Show tracebacks of errors; may follow the command too.", **_FLAG)
def commands() -> None:
    """Run workflows that save every finished step; `COMMAND --help` tells more."""


# The arguments of the process: its passwords, which other users of the machine see, and the words before parsing.


_IN_PLACE = re.compile(r"postgres(?:ql)?://[^:@/?]*:(.*)@", re.IGNORECASE | re.DOTALL)
_IN_QUERY = re.compile(r"[?&][a-z_]*(?:password|secret|_key)=([^&]+)", re.IGNORECASE)
_ARG_START, _ARG_END = 47, 48
"""The fields of /proc/self/stat, from 0, with the addresses of a process's arguments."""


def hide_passwords(words: Sequence[str]) -> None:
    """Overwrite passwords of URLs among this process's arguments, where `ps` would show them.

    They are visible from when the process starts until it has come here. Only Linux lets a process do this;
    elsewhere nothing happens.
    """
    urls = [word for word in words if "postgres" in word.lower()]
    found = [match[1] for word in urls for form in (_IN_PLACE, _IN_QUERY) for match in form.finditer(word)]
    if any(found):
        with contextlib.suppress(OSError, ValueError, IndexError):
            _overwrite([password.encode("utf-8", "surrogateescape") for password in found if password])


def _overwrite(passwords: Sequence[bytes]) -> None:
    import ctypes

    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[field - 2]) for field in (_ARG_START, _ARG_END))
    if not 0 < start < end:
        return
    arguments = ctypes.string_at(start, end - start)
    if arguments != Path("/proc/self/cmdline").read_bytes():
        return
    for password in passwords:
        for place in re.finditer(re.escape(password), arguments):
            ctypes.memset(start + place.start(), ord("*"), len(password))


def store_options(options: list[str]) -> str:
    """Return the options of a command that name its store, as they can be pasted after another command."""
    found = []
    for name in ("--store", "--namespace", "--file"):
        for number, word in enumerate(options):
            given = options[number + 1 : number + 2] if word == name else [word.removeprefix(f"{name}=")]
            if given and (word == name or word.startswith(f"{name}=")):
                found += [name, given[0]]
                break
    if "--store" in found:
        from holdfast.cli.store_option import chosen_url

        found[1] = chosen_url(found[1], environ={})
    return "".join(f" {shlex.quote(word)}" for word in found)


def without_debug(words: list[str]) -> tuple[list[str], bool]:
    """Return the words without `--debug`, which may stand anywhere before `--`, and whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word != "--debug"]
    return [*options, *words[end:]], len(options) < end


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; answer its exit code. Nothing ends in a traceback unless `--debug` is given."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    hide_passwords(words)
    words, debug = without_debug(words)
    if "_HOLDFAST_COMPLETE" in os.environ:
        commands.main(words, prog_name=PROGRAM)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        codecs.register_error("holdfast", _escaped)
        sys.stdout.reconfigure(errors="holdfast")
    with gated():
        try:
            result = _run(words, debug)
            sys.stdout.flush()
            return result if isinstance(result, int) else 0
        except BaseException as error:
            options = words[: words.index("--") if "--" in words else None]
            return report(error, debug, "--json" in options, store_options(options))


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Return what cannot be written as JSON and people can read it; it must not end a command that is done."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4)), error.end


def _run(words: list[str], debug: bool) -> Any:
    try:
        with commands.make_context(PROGRAM, words, obj={"debug": debug}) as context:
            return commands.invoke(context)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
