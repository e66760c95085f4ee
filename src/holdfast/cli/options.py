"""The options of whatever begins a run, here or in the fleet: its file, its inputs, where it pauses."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.capsules.signing import PASSPHRASE_VARIABLE as VARIABLE
from holdfast.capsules.signing import read_passphrase
from holdfast.cli.display.lines import Display
from holdfast.cli.execution import Manners
from holdfast.engine.settings import DURABILITY
from holdfast.errors import HoldfastError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def workflow_options(command: Decorated) -> Decorated:
    """Add WORKFLOW, `--input`, `--inputs` and `--run-id` to a command."""
    return _with(
        command,
        click.argument(
            "flow", metavar="WORKFLOW", type=click.Path(exists=True, dir_okay=False, path_type=Path)
        ),
        click.option(
            "-i",
            "--input",
            "pairs",
            multiple=True,
            metavar="NAME=VALUE",
            help="An input; NAME=@FILE reads it from a file, NAME:=JSON gives it typed. May be repeated.",
        ),
        click.option("--inputs", "inputs_file", metavar="FILE", help="Inputs as a JSON object; - is stdin."),
        click.option("--run-id", metavar="ID", help="Name the run; by default it gets a random id."),
    )


def reuse_option(command: Decorated) -> Decorated:
    """Add `--reuse` to a command."""
    return click.option(
        "--reuse",
        metavar="RUN",
        help="Take over every step that this run has finished with the same definition and the same inputs. Inputs "
        "that are not given are that run's.",
    )(command)


def wish_options(command: Decorated) -> Decorated:
    """Add what `Wishes` holds: `--skip-gates`, `--interrupt-before`, `--interrupt-after`, `--durability`."""
    return _with(
        command,
        click.option("--skip-gates", is_flag=True, help="Ask nothing: questions get their defaults."),
        click.option("--interrupt-before", multiple=True, metavar="STEP", help="Pause before that step."),
        click.option("--interrupt-after", multiple=True, metavar="STEP", help="Pause after that step."),
        click.option(
            "--durability",
            type=click.Choice(DURABILITY),
            help="What a saved step survives: a power loss (full), a killed process (process), or save at the end "
            "(exit).",
        ),
    )


def _with(command: Decorated, *options: Callable[[Any], Any]) -> Decorated:
    """The command with these options, in this order."""
    return reduce(lambda made, option: option(made), reversed(options), command)


# The options that `run` and `resume` share: how a run is shown, and whether somebody is asked.


_OPTIONS = (
    click.option(
        "--interactive/--no-interactive",
        "interactive",
        default=None,
        help="Ask here what the run waits for, or never. By default if there is a terminal.",
    ),
    click.option("--auto-continue", is_flag=True, help="Pass gates before and after steps without asking."),
    click.option(
        "--fail-on-state",
        "fail_on_state",
        multiple=True,
        metavar="KEY=VALUE",
        help="Exit with 1 if the final state has it, as in review.output.ok=false.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Print the output of the run and nothing else."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end."),
    click.option(
        "--events", metavar="FILE", help="Append every event to FILE, one JSON object a line; - is stdout."
    ),
    click.option(
        "--heartbeat",
        type=click.FloatRange(min=0.1),
        metavar="SECONDS",
        help="Where plain lines are written: tell every so often which steps are still running.",
    ),
)


def manners_options(command: Decorated) -> Decorated:
    """Add the shared options to a command, which takes them as keywords and hands them to `manners`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def manners(
    *,
    interactive: bool | None,
    auto_continue: bool,
    fail_on_state: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    events: str | None,
    heartbeat: float | None,
) -> Manners:
    """What the shared options mean."""
    for condition in fail_on_state:
        if "=" not in condition.lstrip("="):
            raise click.BadParameter(f"--fail-on-state {condition!r} is not KEY=VALUE")
    display = Display(quiet, as_json, events, heartbeat).check()
    return Manners(display, interactive, auto_continue, fail_on_state)


# The options that say where and when a run waits for a worker.


MOST = 2**31 - 1


def _checked_queue(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from holdfast.engine.submission import Place

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


def queue_option(command: Decorated) -> Decorated:
    """Add `--queue NAME`, which is `None` if it is not given."""
    return click.option(
        "--queue",
        metavar="NAME",
        callback=_checked_queue,
        help="The queue whose workers are to drive it; by default the one that it was in, or `default`.",
    )(command)


def priority_option(command: Decorated) -> Decorated:
    """Add `--priority N`, which is `None` if it is not given."""
    return click.option(
        "--priority",
        type=int,
        metavar="N",
        callback=_checked_priority,
        help="Runs of a higher priority begin first; by default the one that it had, or 0.",
    )(command)


def when_options(command: Decorated) -> Decorated:
    """Add `--delay DURATION` and `--at TIME`; `read_when` tells what they mean."""
    delay = click.option(
        "--delay", metavar="DURATION", help="Begin no earlier than that from now: 30s, 1h30m, 2d."
    )
    at = click.option(
        "--at",
        metavar="TIME",
        help="Begin no earlier than then: ISO 8601, in local time unless it says otherwise.",
    )
    return delay(at(command))


def read_when(delay: str | None, at: str | None) -> float | dt.datetime | None:
    """When a run may begin, as `App.submit` takes it."""
    if delay is not None and at is not None:
        raise click.UsageError("give either --delay or --at")
    if delay is not None:
        return _seconds(delay)
    if at is None:
        return None
    try:
        return dt.datetime.fromisoformat(at).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"--at {at!r} is not a time such as 2030-01-31T18:00 or 2030-01-31T18:00Z"
        ) from None


def _seconds(text: str) -> float:
    from holdfast.workflows.model import seconds

    try:
        return seconds(float(text) if text.strip().replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise click.BadParameter(f"--delay {text!r}: {error}") from None


# The passphrase of a capsule: from a file, the environment, or whoever sits at the terminal.


def passphrase(file: Path | None, *, new: bool) -> str | None:
    """The passphrase that is given, or asked for; `None` if there is none. A `new` one is asked for twice."""
    if file is not None:
        return read_passphrase(file)
    given = os.environ.get(VARIABLE)
    if given:
        return given
    if not sys.stdin.isatty():
        return None
    text: str = click.prompt("passphrase", hide_input=True, confirmation_prompt=new, err=True)
    return text
