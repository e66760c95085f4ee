"""Command lines that messages show: each works when it is pasted into a shell in this folder."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.session import config_of
from holdfast.cli.store_option import absolute_url, default_url, same_store
from holdfast.views.run_view import resume_call
from holdfast.views.terminal import visible

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo
    from holdfast.views.run_view import PauseView


def command_line(name: str, run_id: str, *words: str, store: str) -> str:
    """Return a command about a run of a store; the words of `answer` are values, those of others are options."""
    values = [run_id, *(words if name == "answer" else ())]
    return _line(name, values, [*_where(store), *(words if name != "answer" else ())])


def this_line(store: str, *more: str, **changed: str) -> str:
    """Return the command that is being executed with more options, and with other values of its arguments."""
    context, values, options = click.get_current_context(), [], [*_where(store), *more]
    for param in context.command.params:
        name = str(param.name)
        given = changed.get(name, context.params.get(name))
        is_given = context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
        if name == "store" or given is None or not (is_given or name in changed):
            continue
        each = given if isinstance(given, tuple) else (given,)
        if isinstance(param, click.Option) and param.is_flag:
            options.append(param.opts[-1] if given else param.secondary_opts[-1])
        elif isinstance(param, click.Option):
            options += [word for value in each for word in (param.opts[-1], str(value))]
        else:
            values += [str(value) for value in each]
    return _line(str(context.info_name), values, options)


def _line(name: str, values: Sequence[str], options: Sequence[str]) -> str:
    if any(value.startswith("-") for value in values):
        return _pasteable([*program(), *name.split(), *options, "--", *values])
    return _pasteable([*program(), *name.split(), *values, *options])


def resume_line(run_id: str, url: str, queue: str = "", *, is_of_program: bool = False) -> str:
    """Return the command that resumes a run, by workers if it is in a queue; for a Python program the call."""
    if is_of_program:
        return resume_call(run_id)
    return command_line("resume", run_id, *(["--detach"] if queue else []), store=url)


def resume_line_of(journal: Journal, info: RunInfo) -> str:
    """Return the command or the call that resumes a stored run."""
    is_of_program = not info.queue and "workflow_file" not in config_of(journal, info)
    return resume_line(info.run, journal.store.url, info.queue, is_of_program=is_of_program)


def answer_line(pause: PauseView, url: str, queue: str = "") -> str:
    """Return the command that answers a pause, or passes a gate."""
    if pause.is_gate or pause.is_wait:
        return resume_line(pause.run_id, url, queue, is_of_program=pause.is_of_program)
    return command_line("answer", pause.run_id, f"{pause.handle}={pause.example}", store=url)


def answerable(pauses: Sequence[PauseView], url: str, queue: str = "") -> list[dict[str, Any]]:
    """Return pauses as plain data, each with the command that answers it."""
    return [{**pause.as_json(), "command": answer_line(pause, url, queue)} for pause in pauses]


def doubt_lines(run_id: str, store: str, *, in_program: bool = False) -> list[str]:
    """Return the commands, or calls, that resume past an interrupted step that may not be repeated unasked."""
    ways = (("rerun", "it did not happen: run it again"), ("skip", "it did happen: continue after it"))
    if in_program:
        return [f"  app.resume({run_id!r}, if_interrupted={way!r})  # {meaning}" for way, meaning in ways]
    return [
        f"  {command_line('resume', run_id, '--if-interrupted', way, store=store)}  # {meaning}"
        for way, meaning in ways
    ]


def skip_lines(run_id: str, step: str, store: str, *, in_program: bool = False) -> list[str]:
    """Return the commands, or calls, that resume a run without the result of a step."""
    ways = [f"app.skip({run_id!r}, {step!r})", resume_call(run_id)]
    if not in_program:
        words = ("steps", "skip", run_id, step), ("resume", run_id)
        ways = [command_line(*each, store=store) for each in words]
    return ["leave its result out, then resume:", *(f"  {way}" for way in ways)]


def store_words(store: str) -> str:
    """Return the options, as they are pasted after a command, that name a store; none for the default store."""
    return "".join(f" {_pasteable([word])}" for word in _where(store))


def _where(store: str) -> list[str]:
    return [] if same_store(store, default_url()) else ["--store", absolute_url(store)]


def _pasteable(words: Sequence[str]) -> str:
    """Return words as one line for a shell; invisible characters are written as bash reads them, in `$'…'`."""
    return " ".join(shlex.quote(word) if _is_shown(word) else _ansi_quoted(word) for word in words)


def _is_shown(word: str) -> bool:
    return visible(word) == word and not {"\n", "\t"} & set(word)


def _ansi_quoted(word: str) -> str:
    signs = []
    for sign in word:
        try:
            raw = sign.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raw = sign.encode("utf-8", "surrogatepass")
        codes = "".join(f"\\x{byte:02x}" for byte in raw)
        signs.append({"'": "\\'", "\\": "\\\\"}.get(sign, sign) if _is_shown(sign) else codes)
    return f"$'{''.join(signs)}'"


def program(argv: Sequence[str] | None = None) -> list[str]:
    """Return the words that start this program again."""
    started = Path((argv or sys.argv)[0])
    if started.name == "holdfast":
        found = shutil.which("holdfast")
        same = found is not None and Path(found).resolve() == started.resolve()
        return ["holdfast"] if same else [str(started.absolute())]
    return [sys.executable, "-m", "holdfast"]
