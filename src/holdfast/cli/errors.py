"""What an error means to the caller of a command: a message and an exit code. Decided here and nowhere else."""

from __future__ import annotations

import contextlib
import os
import sys

import click

COMPLETED, FAILED, INVALID, CONFIGURATION, PAUSED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143
"""The exit codes of every command."""

_CODES = {
    "FlowInvalid": INVALID,
    "InputInvalid": INVALID,
    "GraphInvalid": INVALID,
    "ExpressionError": INVALID,
    "TemplateError": INVALID,
    "StateInvalid": INVALID,
    "GraphChanged": INVALID,
    "RunNotFound": INVALID,
    "RunExists": INVALID,
    "RunFinished": INVALID,
    "CheckpointNotFound": INVALID,
    "NotPaused": INVALID,
    "AnswerRejected": INVALID,
    "CorruptJournal": FAILED,
    "StoreError": CONFIGURATION,
    "SecretError": CONFIGURATION,
    "UsageError": INVALID,
    "ClickException": INVALID,
    "HoldfastError": FAILED,
    "ModuleNotFoundError": CONFIGURATION,
}
"""Exit codes by the name of the error's class or of the nearest base: nothing is imported to tell them."""


def exit_code(error: BaseException) -> int:
    """The exit code that an error ends a command with."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    return next((_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES), FAILED)


def report(error: BaseException, debug: bool = False) -> int:
    """Tell an error on stderr, with its traceback only if `debug`; answer the exit code."""
    if isinstance(error, BrokenPipeError):
        _silence()
        return FAILED
    with contextlib.suppress(OSError):
        if debug and not isinstance(error, (SystemExit, click.UsageError)):
            import traceback

            traceback.print_exception(error)
        else:
            _tell(error)
    return exit_code(error)


def _tell(error: BaseException) -> None:
    text = message(error)
    if text:
        click.echo(text, err=True)


def message(error: BaseException) -> str:
    """What to say of an error, without a traceback."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"holdfast: {error.format_message()}\n{error.ctx.get_usage()}\n{_more(error.ctx)}"
    if isinstance(error, click.ClickException):
        return f"holdfast: {error.format_message()}"
    if isinstance(error, SystemExit):
        return f"holdfast: {error.code}" if isinstance(error.code, str) else ""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return f"holdfast: {error}" if str(error) else "holdfast: interrupted"
    if _is_expected(error):
        return f"holdfast: {error}"
    if isinstance(error, ModuleNotFoundError):
        return f"holdfast: the package {error.name!r} is missing; install holdfast with its dependencies"
    return f"holdfast: unexpected {type(error).__name__}: {error}; run again with --debug to see where"


def _is_expected(error: BaseException) -> bool:
    return any(kind.__name__ == "HoldfastError" for kind in type(error).__mro__)


def _more(context: click.Context) -> str:
    return f"`{context.command_path} --help` tells more."


def _silence() -> None:
    """The reader of stdout has gone: nothing may be written there any more, not even at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
