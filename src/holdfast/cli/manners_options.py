"""The options that `run` and `resume` share: how a run is shown, and whether somebody is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.display.watching import Display
from holdfast.cli.driving import Manners

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

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
