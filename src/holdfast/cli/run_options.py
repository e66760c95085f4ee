"""The options of whatever begins a run, here or in the fleet: its file, its inputs, where it pauses."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.engine.policy import DURABILITY

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def flow_options(command: Decorated) -> Decorated:
    """Add FLOW, `--input`, `--inputs` and `--run-id` to a command."""
    return _with(
        command,
        click.argument("flow", metavar="FLOW", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
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
