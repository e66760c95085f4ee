"""What an error means to the caller of a command: a message and an exit code. Decided here and nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable

import click

COMPLETED, FAILED, INVALID, CONFIGURATION, PAUSED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143
"""The exit codes of every command."""

_CODES = {
    "WorkflowInvalid": INVALID,
    "InputInvalid": INVALID,
    "GraphInvalid": INVALID,
    "ExpressionError": INVALID,
    "TemplateError": INVALID,
    "StateInvalid": INVALID,
    "GraphChanged": INVALID,
    "PlanOutdated": INVALID,
    "RunNotFound": INVALID,
    "RunExists": INVALID,
    "RunFinished": INVALID,
    "CheckpointNotFound": INVALID,
    "NotPaused": INVALID,
    "AnswerRejected": INVALID,
    "CronInvalid": INVALID,
    "ScheduleRefused": INVALID,
    "LimitInvalid": INVALID,
    "CommandRefused": INVALID,
    "CannotRerun": INVALID,
    "CannotReuse": INVALID,
    "CapsuleInvalid": INVALID,
    "ForeignRun": INVALID,
    "CorruptJournal": FAILED,
    "StoreError": CONFIGURATION,
    "SecretError": CONFIGURATION,
    "UsageError": INVALID,
    "ClickException": INVALID,
    "HoldfastError": FAILED,
    "ModuleNotFoundError": CONFIGURATION,
}
"""Exit codes by the name of the error's class or of the nearest base: nothing is imported to tell them."""


_ID = r"(?:'([^']*)'|\"([^\"]*)\")"


def _pasted(words: str) -> Callable[[re.Match[str]], str]:
    """Return what makes a command of the texts that a message quotes, each quoted for a shell."""

    def command(found: re.Match[str]) -> str:
        texts = (text for text in found.groups() if text is not None)
        return words.format(*map(shlex.quote, texts))

    return command


_PHRASES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (rf"with app\.resume\(app\.fork\({_ID}\)\)", _pasted("with: holdfast fork {} --run")),
    (rf"app\.fork\({_ID}\) begins", _pasted("`holdfast fork {}` begins")),
    (rf"app\.rerun\({_ID}, {_ID}\) runs", _pasted("`holdfast rerun {} --from {}` runs")),
    (rf"build the graph with StateGraph\(…, max_iterations=(\d+)\) or more, then app\.resume\({_ID}\)",
     r"set limits.max_iterations in the file to \1 or more, then: holdfast resume \2\3"),
    (rf"wait for it, or stop it with app\.cancel\({_ID}\), or give the new run another run_id",
     r"wait for it, stop it with: holdfast cancel \1\2, or choose another --run-id"),
    (r"a worker takes it up, or give the new run another run_id", "a worker takes it up, or choose another --run-id"),
    (rf"read it with app\.get_state\({_ID}\), remove it with app\.delete\({_ID}\)"
     r"(?:, or give the new run another run_id)?",
     r"choose another --run-id; `holdfast show \1\2` shows it"),
    (rf"resume it with app\.resume\({_ID}\)(?:, or give the new run another run_id)?",
     r"choose another --run-id, or go on with it: holdfast resume \1\2"),
    (rf"look at what it would run with \(`disclosure` of this error has it\), then app\.resume\({_ID}, trust=True\)",
     r"`holdfast resume \1\2` shows what it would run with, and --trust confirms it"),
    (rf"(?:resume |resumed )?with app\.resume\({_ID}\)(?: in Python)?", r"resume with: holdfast resume \1\2"),
    (rf"app\.resume\({_ID}\)", r"holdfast resume \1\2"),
    (r"resume with remap=\{'old': 'new'\}", "resume with --remap OLD=NEW"),
    (r"remap=\{'([^']*)': '([^']*)'\}", r"--remap \1=\2"),
    (r"resume with takeover=True", "resume with --takeover"),
    (rf"a fork with as_node={_ID} has it chosen", r"`holdfast fork` with --as-node \1\2 has it chosen"),
    (r"change the state with update= instead", "change the state with --set instead"),
    (r"give either input= or output=:", "give either --input or --output:"),
    (r"give either run_id= or in_place=True,", "give either --run-id or --in-place,"),
    (r"\bin_place=True goes on", "--in-place goes on"),
    (rf"reuses what is still the same: reuse={_ID}", r"reuses what is still the same: run FILE --reuse \1\2"),
    (r"rerun_changed goes on with the graph at hand, and on_change='use_saved' does not",
     "--rerun-changed goes on with the file as it is, and --on-change use_saved does not"),
    (r"\brerun_changed is for", "--rerun-changed is for"),
    (r"run it with follow=True", "inject it with --follow"),
    (r"replace it with replace=True", "replace it with --replace"),
    (r"resume with if_interrupted='rerun' or 'skip'", "resume with --if-interrupted rerun or skip"),
    (rf"go on with it by giving the graph its old name: StateGraph\(…, name={_ID}\)",
     r"go on with it by giving the file its old name: workflow.name: \1\2"),
    (r"compile with a longer Retention\(pause_ttl=…\), or start the run anew",
     "raise retention.pause_ttl in the file's checkpoint block, or start the run anew"),
    (rf"the code of node {_ID} changed", r"step '\1\2' changed"),
    (rf"\bnode {_ID} (was removed|was added|failed)", r"step '\1\2' \3"),
    (r"\bthe graph changed since", "the workflow changed since"),
    (r", and this graph is ", ", and this file is of "),
    (r"which the graph no longer has", "which the workflow no longer has"),
    (r"the graph no longer has (it|its node)", "the workflow no longer has it"),
    (r"resume with remap\b(?!=)", "resume with --remap OLD=NEW"),
    (r"to go on with node ", "to go on with step "),
    (r"say which with answers=\{name: value\}, names:", "say which with NAME=VALUE, names:"),
    (r"(?<![\w-])([\w-]++):(?:item|done|flow)#\d+", r"\1"),
    (r"\b(node|step) '([\w/-]+):(?:items?|done|flow)\b", r"\1 '\2"),
    (r"StepInterrupted: step '[^']*' was interrupted and may or may not have taken effect, and its node may not be "
     "repeated unasked", "it was interrupted and may or may not have taken effect; it is not repeated unasked"),
    (r"\bstep '([\w/-]+)#\d+(\[[^\]]*\])?'", r"step '\1\2'"),
    (r"(no store is known for (?:(?! \(known: )[^;])*+)( \(known: .*\))?$",
     r"\1; write sqlite:///PATH for a SQLite file or file:///DIR for a folder"),
    (r"^(no run(?:, checkpoint or| and no) workflow .*)$",
     r"\1 (if it was run elsewhere, give the workflow file, or --store URL)"),
)  # fmt: skip
"""What the engine says to programmers, and what it means on the command line."""

LONGEST_WORDED = 10_000
"""Of a longer message the beginning is put into other words: what is long in one is quoted."""

_COMPILED = tuple((re.compile(pattern), meaning) for pattern, meaning in _PHRASES)


def worded(text: str) -> str:
    """A message of the engine in the words of the command line."""
    text, rest = text[:LONGEST_WORDED], text[LONGEST_WORDED:]
    for pattern, meaning in _COMPILED:
        text = pattern.sub(meaning, text)
    return text + rest


def exit_code(error: BaseException) -> int:
    """The exit code that an error ends a command with."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    return next((_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES), FAILED)


_NAMED = re.compile(
    r"(`holdfast (?:runs|show|store fsck|resume|cancel|checkpoints|fork|rerun|store migrate)\b(?! --help)[^`]*)`"
    r"|(: holdfast (?:resume|cancel|fork) (?!\[)(?:'[^'\n]*'|[^\s;,`'])+)"
)
"""The commands about runs that a message names."""


def placed(text: str, place: str) -> str:
    """A message whose commands are about the store and namespace that the command was called with."""

    def there(found: re.Match[str]) -> str:
        command = found[1] or found[2]
        return f"{command}{'' if '--store' in command else place}{'`' if found[1] else ''}"

    return _NAMED.sub(there, text) if place else text


def report(error: BaseException, debug: bool = False, as_json: bool = False, place: str = "") -> int:
    """Tell an error on stderr, with its traceback only if `debug`; answer the exit code.

    With `as_json` it is told on stdout too, as one JSON document on one line. `place` are the options that say where
    the runs are.
    """
    if isinstance(error, BrokenPipeError):
        _silence()
        return FAILED
    with contextlib.suppress(OSError):
        if debug and not isinstance(error, (SystemExit, click.UsageError)):
            import traceback

            traceback.print_exception(error)
        else:
            _tell(error, place)
        if as_json and not isinstance(error, SystemExit):
            click.echo(json.dumps(error_as_json(error, place)))
            sys.stdout.flush()
    return exit_code(error)


def error_as_json(error: BaseException, place: str = "") -> dict[str, object]:
    """Keys: status, error, exit_code."""
    text = error.format_message() if isinstance(error, click.ClickException) else message(error)
    return {
        "status": "error",
        "error": placed(text.removeprefix("holdfast: "), place),
        "exit_code": exit_code(error),
    }


def _tell(error: BaseException, place: str) -> None:
    text = placed(message(error), place)
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
        return f"holdfast: {worded(str(error))}" if str(error) else "holdfast: interrupted"
    if _is_expected(error):
        return f"holdfast: {worded(str(error))}{_way_out(error)}"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"holdfast: {error.filename!r:.300}: {error.strerror}; check the path, or choose another"
    if isinstance(error, ModuleNotFoundError):
        return f"holdfast: the package {error.name!r} is missing; install holdfast with its dependencies"
    return f"holdfast: unexpected {type(error).__name__}: {error}; run again with --debug to see where"


def _way_out(error: BaseException) -> str:
    """What to do about damage, unless that was said."""
    is_damage = any(kind.__name__ == "CorruptJournal" for kind in type(error).__mro__)
    return "; `holdfast store fsck` tells what is intact" if is_damage and "fsck" not in str(error) else ""


def _is_expected(error: BaseException) -> bool:
    return any(kind.__name__ == "HoldfastError" for kind in type(error).__mro__)


def _more(context: click.Context) -> str:
    return f"`{context.command_path} --help` tells more."


def _silence() -> None:
    """The reader of stdout has gone: nothing may be written there any more, not even at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
