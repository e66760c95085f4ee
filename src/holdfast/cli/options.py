"""The options that commands share, each declared once, and what they mean."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

import click

from holdfast.cli.store_option import DEFAULT_STORE, note_namespace, store_in_namespace
from holdfast.engine.settings import DURABILITY
from holdfast.engine.submission import Place
from holdfast.errors import HoldfastError
from holdfast.events import DIALECTS
from holdfast.stores.base import NAMESPACE_VARIABLE

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.stores.base import Store
    from holdfast.workflows.workflow import Workflow

Decorator = Callable[[Any], Any]
Options = SimpleNamespace
"""The options and arguments of one command, by their names."""

MOST = 2**31 - 1
STDOUT = "-"


def option(names: str, text: str, **settings: Any) -> Decorator:
    """Return an option; `names` are its flags, and its name in Python where that is another one."""
    return click.option(*names.split(), help=text, **settings)


def flag(names: str, text: str) -> Decorator:
    """Return an option without a value."""
    return option(names, text, is_flag=True)


def value(names: str, metavar: str, text: str, **settings: Any) -> Decorator:
    """Return an option with a value, which is text unless a type is given."""
    return option(names, text, metavar=metavar, **settings)


def repeated(names: str, metavar: str, text: str) -> Decorator:
    """Return an option that may be given several times."""
    return option(names, f"{text} May be repeated.", multiple=True, metavar=metavar)


def choice(names: str, choices: Iterable[str], text: str, default: str | None = None) -> Decorator:
    """Return an option whose value is one of some words."""
    kind = click.Choice([*choices])
    return option(names, text, type=kind, default=default, show_default=default is not None)


def number(names: str, least: float, metavar: str, text: str, default: float | None = None) -> Decorator:
    """Return an option for a number that is not below `least`, and whole if `least` is."""
    kind: Any = click.IntRange(int(least)) if isinstance(least, int) else click.FloatRange(least)
    return value(names, metavar, text, type=kind, default=default, show_default=default is not None)


def file_path(**rules: bool) -> click.Path:
    """Return the type of a parameter that is the path of a file."""
    return click.Path(dir_okay=False, path_type=Path, **rules)


IN_PYTHON = re.compile(r"[\w./-]+:[\w.]+")
"""A workflow in Python: MODULE:NAME, or FILE.py:NAME."""


class WorkflowPath(click.Path):
    """The path of a workflow file. A Python program is refused with what to do with it."""

    def __init__(self, **rules: bool) -> None:
        super().__init__(dir_okay=False, path_type=Path, **rules)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        refuse_program(str(value))
        return super().convert(value, param, ctx)


def refuse_program(text: str) -> None:
    """Refuse a Python program where a workflow file belongs."""
    place, is_named, name = text.rpartition(":") if IN_PYTHON.fullmatch(text) else (text, "", "NAME")
    is_file = place.endswith(".py")
    if Path(text).exists() if is_named else not is_file:
        return
    start = f"`{shlex.join(['python', place])}`" if is_file else f"`{shlex.join(['python', '-m', place])}`"
    what = shlex.quote(f"{place}:{name}")
    raise click.UsageError(
        f"{text} is a Python program, not a workflow file: start its runs with {start}, resume them with `holdfast "
        f"resume RUN --app {what}`, and check it with `holdfast validate {what}`"
    )


# Which runs, where they are, and how a command prints.

RUN = click.argument("run", metavar="RUN")
RUN_AT = click.argument("run", metavar="RUN[@PLACE]")
RUN_HELP = (
    "RUN is a run's id or its beginning (4 characters or more), or a workflow's name or file, which means its latest "
    "run."
)
AT_HELP = (
    "RUN@3 is the run after wave 3, RUN@-1 one checkpoint before the newest, RUN@STEP after the last time that a step "
    "finished, RUN@STEP#2 after the second time. The id of a checkpoint names that checkpoint."
)
WORKFLOW_NAME = value("--workflow", "NAME", "Only runs of this workflow; its file names it, too.")
JSON = flag("--json as_json", "Print JSON for programs.")
YES = flag("--yes -y", "Do not ask for confirmation.")
FORCE = flag("--force", "Overwrite an existing file.")
ALL = flag("--all show_all", "Print everything, however long it is.")
REASON = value("--reason", "TEXT", "Why; recorded in the run's history.", default="")
BY = value("--by", "NAME", "Who asks for it; by default you at this machine. Recorded in the run's history.")
_NAMESPACE = value(
    "--namespace",
    "NAME",
    f"The namespace of the runs. By default {NAMESPACE_VARIABLE}, else default.",
    is_eager=True,
    expose_value=False,
    callback=note_namespace,
)
_URL = value(
    "--store",
    "URL",
    "Where the runs are: sqlite:///PATH, file:///DIR or postgresql://…. By default HOLDFAST_STORE, else what the "
    f"workflow file says, else {DEFAULT_STORE}.",
    callback=store_in_namespace,
)
STORE_ONLY = (_URL, _NAMESPACE)
"""`--store URL` and `--namespace NAME`; a session gets both as its store."""
STORE = (
    *STORE_ONLY,
    value(
        "--file of_file",
        "FILE",
        "A workflow file that says where its runs are.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    ),
)
"""The same, and `--file FILE`, for commands that are given no workflow file otherwise."""


def limit(default: int = 50) -> Decorator:
    """Return `--limit N`."""
    return number("-n --limit", 1, "N", "How many to list at most.", default)


def every(default: float) -> Decorator:
    """Return `--every SECONDS`."""
    return number("--every", 0.02, "SECONDS", "How often to look.", default)


# What a new run is made of.

WORKFLOW = click.argument("workflow", metavar="WORKFLOW", type=WorkflowPath(exists=True))
INPUT = repeated(
    "-i --input pairs",
    "NAME=VALUE",
    "An input; NAME=@FILE reads it from a file, NAME:=JSON gives it typed. All at once: a JSON object, or @FILE.",
)
INPUTS_FILE = value("--inputs inputs_file", "FILE", "Inputs as a JSON object; - is stdin.")
RUN_ID = value("--run-id", "ID", "The id of the new run; by default a random one.")
CONTINUE = flag(
    "--continue continues",
    "Continue the run of that id, or else the workflow's latest unfinished run, if there is one; a completed run of "
    "that id is printed and not run again. Inputs have to be the same, or none.",
)
REUSE = value(
    "--reuse",
    "RUN",
    "Reuse the result of every step that this run has finished with the same definition and inputs. Inputs that are "
    "not given are taken from that run.",
)
SKIP_GATES = flag("--skip-gates", "Ask nothing: questions get their defaults.")
RUN_OPTIONS = (
    SKIP_GATES,
    repeated("--interrupt-before", "STEP", "Pause before that step."),
    repeated("--interrupt-after", "STEP", "Pause after that step."),
    choice(
        "--durability",
        DURABILITY,
        "What a saved step survives: a power loss (full), a killed process (process), or save at the end (exit).",
    ),
    value("--timeout", "DURATION", "How long one execution may take; by default as the file says."),
    repeated("--metadata", "NAME=VALUE", "What templates see as metadata.NAME, beside what the file says."),
)
"""The options that a run remembers: see `RunOptions`."""

OTHER_WORKFLOW = value(
    "--workflow",
    "FILE",
    "Continue with this workflow file instead of the one that the run was started with.",
    type=file_path(exists=True),
)
APP = value(
    "--app",
    "MODULE:NAME",
    "Execute the run of a Python program with this workflow function, App or StateGraph: jobs.report:app, or a file, "
    "report.py:app. It is imported from this folder, or as installed.",
)
REMAP = repeated("--remap", "OLD=NEW", "A step was renamed; in a sub-workflow it is OUTER/OLD=OUTER/NEW.")
SET = repeated("--set changes", "NAME=VALUE", "Change the state first, as `runs edit` does.")
PLAN = flag("--plan", "Print what would be kept and what would run, step by step; do nothing.")
TRUST = flag("--trust", "Confirm the definition and options of a run from outside, as they are shown.")


def _checked_queue(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            Place.of(value, 0, None)
        except HoldfastError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return value


def _checked_priority(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    if value is not None and not -MOST <= value <= MOST:
        raise click.BadParameter(f"{value} is not from {-MOST} to {MOST}", ctx, param)
    return value


QUEUE = value(
    "--queue",
    "NAME",
    "The queue whose workers execute the run; by default the one that it was in, or `default`.",
    callback=_checked_queue,
)
PRIORITY = value(
    "--priority",
    "N",
    "Runs of a higher priority start first; by default the run's previous one, or 0.",
    type=int,
    callback=_checked_priority,
)
DELAY = value("--delay", "DURATION", "Start no earlier than that from now: 30s, 1h30m, 2d.")
AT = value("--at", "TIME", "Start no earlier than then: ISO 8601, in local time unless it says otherwise.")


def read_duration(flag: str, text: str) -> float:
    """Return the seconds that a text such as `1h30m` means."""
    from holdfast.workflows.settings import seconds  # It loads pydantic.

    try:
        return seconds(float(text) if text.strip().replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise click.BadParameter(f"{flag} {text!r}: {error}") from None


def read_when(delay: str | None, at: str | None) -> float | dt.datetime | None:
    """Return when a run may start, as `App.submit` takes it."""
    if delay is not None and at is not None:
        raise click.UsageError("give either --delay or --at")
    if delay is not None:
        return read_duration("--delay", delay)
    if at is None:
        return None
    try:
        return dt.datetime.fromisoformat(at).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"--at {at!r} is not a time such as 2030-01-31T18:00 or 2030-01-31T18:00Z"
        ) from None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options that `run` and `submit` store with a run, so that every resume keeps to them."""

    interrupt_before: tuple[str, ...] = ()
    interrupt_after: tuple[str, ...] = ()
    skip_gates: bool = False
    durability: str | None = None
    timeout: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def given(cls, options: Options) -> RunOptions:
        """Return the options of a command."""
        found = {each.name: getattr(options, each.name) for each in fields(cls)}
        if options.timeout is not None:
            found["timeout"] = read_duration("--timeout", options.timeout)
            if found["timeout"] <= 0:
                raise click.BadParameter(f"--timeout {options.timeout!r} must be more than 0 seconds")
        found["metadata"] = {}
        for pair in options.metadata:
            name, mark, text = pair.partition("=")
            if not mark or not name.isidentifier():
                raise click.BadParameter(f"--metadata {pair!r} is not NAME=VALUE")
            try:
                found["metadata"][name] = json.loads(text)
            except (ValueError, RecursionError):
                found["metadata"][name] = text
        return cls(**found)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RunOptions:
        """Return the options that a run's config holds; those of the wrong type are ignored."""
        from holdfast.workflows.workflow import stored_options  # It loads pydantic.

        return cls(**stored_options(config))

    def config(self, workflow: Workflow) -> dict[str, Any]:
        """Return the config of a run: its workflow file and these options."""
        return workflow.config(asdict(self))

    def renamed(self, names: Mapping[str, str]) -> RunOptions:
        """Return the same options for renamed steps."""
        before, after = (
            tuple(names.get(name, name) for name in wanted)
            for wanted in (self.interrupt_before, self.interrupt_after)
        )
        return replace(self, interrupt_before=before, interrupt_after=after)

    def open(
        self, workflow: Workflow, store: Store | str, *, interactive: bool = False, stored: bool = False
    ) -> App:
        """Return the workflow on a store with these options, which are `stored` ones of an earlier command.

        A pause at an unknown step is refused.
        """
        from holdfast.workflows.reading.problems import WorkflowInvalid  # It loads pydantic.

        try:
            return workflow.open(store, interactive=interactive, **asdict(self))
        except WorkflowInvalid as error:
            if not all(problem.message.startswith("a pause is wanted") for problem in error.problems):
                raise
            found = [
                f"{problem.message} ({problem.hint})" if problem.hint else problem.message
                for problem in error.problems
            ]
            remedy = "; if the step was renamed, resume with --remap OLD=NEW" if stored else ""
            raise click.UsageError(f"{'; '.join(found)}{remedy}") from None


# How a command that executes a run prints, and whether it asks.

EXECUTION = (
    option(
        "--interactive/--no-interactive interactive",
        "Ask here what the run waits for, or never. By default if there is a terminal.",
        default=None,
    ),
    flag("--auto-continue", "Pass gates before and after steps without asking."),
    repeated(
        "--fail-on-state",
        "KEY=VALUE",
        "Exit with 1 if the final state has it, as in review.output.ok=false.",
    ),
    flag("-q --quiet", "Print the output of the run and nothing else."),
    value("--events", "FILE", "Append every event to FILE, one JSON object a line; - is stdout."),
    choice("--events-dialect", DIALECTS, "Name the events in FILE as another system does, in flat objects."),
    flag("--stream", "Print every event, one JSON object a line: the same as --events -."),
    number("--heartbeat", 0.1, "SECONDS", "In plain lines: print that often which steps are still running."),
    value("--log-file", "FILE", "Append the plain lines of the execution to FILE."),
    value(
        "--trace-file", "FILE", "Append the time of every attempt of a step to FILE, one JSON object a line."
    ),
    value("--debug-state", "DIR", "Write the state after each checkpoint to a file in DIR."),
)
"""The options of commands that execute a run: see `ExecutionOptions`."""

WATCHING = (
    *("interactive", "auto_continue", "fail_on_state", "events", "events_dialect", "stream"),
    *("heartbeat", "log_file", "trace_file", "debug_state"),
)
"""Those of them that make no sense if the run is not executed by the command."""


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Options of an execution: how its progress is shown, and whether the user is prompted."""

    as_json: bool = False
    quiet: bool = False
    events: str | None = None
    events_dialect: str | None = None
    heartbeat: float | None = None
    interactive: bool | None = None
    """`None`: if there is somebody at a terminal."""
    auto_continue: bool = False
    fail_on_state: tuple[str, ...] = ()
    log_file: str | None = None
    trace_file: str | None = None
    debug_state: str | None = None

    @classmethod
    def given(cls, options: Options) -> ExecutionOptions:
        """Return the options of a command."""
        found = {each.name: getattr(options, each.name) for each in fields(cls)}
        if options.stream:
            if options.events is not None:
                raise click.UsageError("--stream writes the events to stdout; give it or --events, not both")
            found["events"] = STDOUT
        return cls(**found)

    def __post_init__(self) -> None:
        """Refuse options that exclude each other."""
        for condition in self.fail_on_state:
            if "=" not in condition.lstrip("="):
                raise click.BadParameter(f"--fail-on-state {condition!r} is not KEY=VALUE")
        if self.events_dialect is not None and self.events is None:
            raise click.UsageError(
                "--events-dialect names the events that --events FILE or --stream writes; give both"
            )
        if self.as_json and self.events == STDOUT:
            raise click.UsageError("--json and --events - both write to stdout; write the events to a file")

    @property
    def asks(self) -> bool:
        """Whether there is somebody to be asked."""
        if self.interactive is not None:
            return self.interactive
        busy = self.as_json or self.events == STDOUT
        return sys.stdin.isatty() and sys.stdout.isatty() and not busy

    @property
    def is_verbose(self) -> bool:
        """Whether the progress is printed."""
        return not (self.quiet or self.as_json)

    @property
    def is_live(self) -> bool:
        """Whether the progress is drawn on a terminal."""
        drawable = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        return self.is_verbose and drawable and self.events != STDOUT

    @property
    def out(self) -> IO[str]:
        """The stream for people."""
        return sys.stderr if self.events == STDOUT or self.as_json else sys.stdout
