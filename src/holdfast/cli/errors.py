"""Errors as commands print them: the problem, the remedies in the words of the command line, and an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast.errors import Remedy

COMPLETED, FAILED, INVALID, CONFIGURATION, PAUSED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143
"""The exit codes of every command."""

STATUS_CODES = {
    "completed": COMPLETED,
    "running": COMPLETED,
    "queued": COMPLETED,
    "paused": PAUSED,
    "interrupted": INTERRUPTED,
}
"""The exit codes of a run's status; a run that is still running is no failure."""

REMEDIES = {
    "answer": ("answer {run}", "answer it with: {command}"),
    "begin_own_run": ("show {run} --state", "begin a run of your own with what the run holds: {command}"),
    "cancel": ("cancel {run}", "stop it with: {command}"),
    "check": ("store fsck", "`{command}` tells what is intact"),
    "choose_run_id": ("", "choose another --run-id"),
    "confirm": ("resume {run}{given}", "`{command}` shows what it would run with, and --trust confirms it"),
    "delete": ("delete {run}", "remove it with: {command}"),
    "extend": ("runs extend {run}", "give it more time with: {command}"),
    "export": ("capsule export RUN -o FILE", "`{command}` writes one"),
    "fork": ("fork {run} --run{given}", "begin a run there with: {command}"),
    "list_checkpoints": ("checkpoints list", "`{command}` shows what is there"),
    "list_runs": ("runs", "`{command}` lists those that are there"),
    "list_schedules": ("schedule list", "`{command}` lists those that are there"),
    "look_elsewhere": ("", "if it was run elsewhere, give the workflow file, or --store URL"),
    "make_keys": ("capsule keygen -o NAME", "`{command}` makes a pair"),
    "migrate": ("store migrate", "run `{command}` as its owner"),
    "plan": ("resume {run} --plan{given}", "plan the resume again with: {command}"),
    "read": ("show {run}", "`{command}` shows it"),
    "repair": ("store fsck --repair", "`{command}` restores it from the journal"),
    "replace_schedule": ("", "replace it with --replace, or choose another name"),
    "rerun": ("rerun {run} --from {step}{given}", "run this one again with: {command}"),
    "resume": ("resume {run}{given}", "resume with: {command}"),
    "reuse": ("run FILE --reuse {run}", "start a new run that reuses what is still the same with: {command}"),
    "set_max_iterations": (
        "resume {run}{given}",
        "set limits.max_iterations in the file to {limit} or more, then: {command}",
    ),
    "settle": (
        "resume {run} --if-interrupted rerun{given}",
        "look what became of it, then resume with: {command}, or skip instead of rerun",
    ),
    "skip": ("steps skip {run} {step}", "leave its result out with: {command}, and then resume the run"),
    "use_own_file": ("resume {run} --workflow FILE", "go on with a workflow file of your own: {command}"),
}
"""The command of each action, and what is said of it. An action that is not here is left out."""

_ANYWHERE = ("export", "make_keys")
"""Actions whose commands take no store, or any."""


NEED_APP = ("resume", "fork", "rerun", "plan", "settle", "set_max_iterations", "confirm")
"""Remedies that execute a run; those of Python programs need `--app`."""


def for_app(remedy: Remedy, app: str) -> Remedy:
    """Return a remedy; if it executes a run, with the app of the run's program."""
    if not app or remedy.action not in NEED_APP or "app" in remedy.options:
        return remedy
    return replace(remedy, options={**remedy.options, "app": app})


def in_commands(remedy: Remedy, place: str = "", detach: bool = False) -> str:
    """Return a remedy in the words of the command line; `place` are the options that say where the runs are."""
    if remedy.text or remedy.action not in REMEDIES:
        return remedy.text
    words, phrase = REMEDIES[remedy.action]
    options = {"detach": True, **remedy.options} if detach and remedy.action == "resume" else remedy.options
    quoted = {name: shlex.quote(str(value)) for name, value in options.items()}
    run, last = shlex.quote(remedy.run_id), ""
    if run.startswith("-") and "--reuse" not in words:
        words, last = words.replace(" {run}", "", 1), f" -- {run}"
    named = {name: value for name, value in options.items() if f"{{{name}}}" not in words + phrase}
    command = words.format(run=run, given=_given(named), **quoted)
    if "store" in options:
        place = f" --store {quoted['store']}"
    where = "" if remedy.action in _ANYWHERE else place
    return phrase.format(command=f"holdfast {command}{where}{last}", **quoted)


def _given(options: Mapping[str, Any]) -> str:
    """Return options as a command takes them: `--takeover`, `--remap old=new`."""
    words: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            words += [f"{option} {shlex.quote(f'{old}={new}')}" for old, new in value.items()]
        else:
            words.append(option if value is True else f"{option} {shlex.quote(str(value))}")
    return "".join(f" {word}" for word in words)


def explain(problem: str, remedies: Iterable[Remedy], place: str = "", detach: bool = False) -> str:
    """Return a problem followed by what can be done about it on the command line."""
    ways = (in_commands(remedy, place, detach) for remedy in remedies)
    return "; ".join(filter(None, [problem, ", or ".join(filter(None, ways))]))


def explain_error(error: BaseException, place: str = "") -> str:
    """Return an error in the words of the command line; of one that is not ours its own text."""
    if hasattr(error, "problem"):
        return explain(error.problem, getattr(error, "remedies", ()), place)
    return str(error)


def exit_code(error: BaseException) -> int:
    """Return the exit code that an error ends a command with."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return INVALID
    return CONFIGURATION if isinstance(error, ModuleNotFoundError) else getattr(error, "exit_code", FAILED)


def report(error: BaseException, debug: bool = False, as_json: bool = False, place: str = "") -> int:
    """Print an error on stderr, with its traceback only if `debug`; return the exit code.

    With `as_json` it is printed on stdout too, as one JSON document on one line. `place` are the options that say where
    the runs are.
    """
    if isinstance(error, BrokenPipeError):
        _silence()
        return FAILED
    with contextlib.suppress(OSError):
        if debug and not isinstance(error, (SystemExit, click.UsageError)):
            traceback.print_exception(error)
        elif text := message(error, place):
            click.echo(text, err=True)
        if as_json and not isinstance(error, SystemExit):
            click.echo(json.dumps(error_as_json(error, place)))
            sys.stdout.flush()
    return exit_code(error)


def error_as_json(error: BaseException, place: str = "") -> dict[str, object]:
    """Keys: status, error, code, exit_code."""
    text = error.format_message() if isinstance(error, click.ClickException) else message(error, place)
    return {
        "status": "error",
        "error": text.removeprefix("holdfast: "),
        "code": getattr(error, "code", "usage" if isinstance(error, click.ClickException) else "unexpected"),
        "exit_code": exit_code(error),
    }


def message(error: BaseException, place: str = "") -> str:
    """Return what to say of an error, without a traceback."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        more = f"`{error.ctx.command_path} --help` tells more."
        return f"holdfast: {error.format_message()}\n{error.ctx.get_usage()}\n{more}"
    if isinstance(error, click.ClickException):
        return f"holdfast: {error.format_message()}"
    if isinstance(error, SystemExit):
        return f"holdfast: {error.code}" if isinstance(error.code, str) else ""
    if hasattr(error, "problem"):
        return f"holdfast: {explain_error(error, place)}"
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return f"holdfast: {error}" if str(error) else "holdfast: interrupted"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"holdfast: {error.filename!r:.300}: {error.strerror}; check the path, or choose another"
    if isinstance(error, ModuleNotFoundError):
        return f"holdfast: the package {error.name!r} is missing; install holdfast with its dependencies"
    return f"holdfast: unexpected {type(error).__name__}: {error}; run again with --debug to see where"


def _silence() -> None:
    """Write nothing more to stdout, whose reader has gone, not even at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
