"""Command lines that messages show: each works when it is pasted into a shell in this folder."""

from __future__ import annotations

import ast
import contextlib
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.store_option import absolute_url, config_in, default_url, same_store
from holdfast.errors import StoreError
from holdfast.state.codec import Codec
from holdfast.views.run_view import AppPlace
from holdfast.views.runs import recorded_app
from holdfast.views.terminal import visible

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo
    from holdfast.views.run_view import PauseView


_STARTS = frozenset({"invoke", "ainvoke", "stream", "astream", "resume", "aresume", "submit", "rerun", "run"})
"""Methods that start runs."""


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


def resume_line(run_id: str, url: str, queue: str = "", *, app: AppPlace | None = None) -> str:
    """Return the command that resumes a run, by workers if it is in a queue.

    For a Python program whose `app` cannot be imported that is a call.
    """
    app = None if queue else app
    words = app_words(app.place) if app is not None else []
    if app is not None and not words:
        return app.resume_call(run_id)
    return command_line("resume", run_id, *(["--detach"] if queue else words), store=url)


def resume_line_of(journal: Journal, info: RunInfo) -> str:
    """Return the command or the call that resumes a stored run."""
    return resume_line(info.run, journal.store.url, info.queue, app=app_of(journal, info))


def app_of(journal: Journal, info: RunInfo) -> AppPlace | None:
    """Return where the app of a Python run is, as far as that is known; `None` for a run of a workflow file."""
    run = journal.load(info, Codec()).run
    return recorded_app(journal, info, run, config_in(run))


def answer_line(pause: PauseView, url: str, queue: str = "") -> str:
    """Return the command that answers a pause, or passes a gate."""
    if pause.is_gate or pause.is_wait:
        return resume_line(pause.run_id, url, queue, app=pause.app if pause.is_of_program else None)
    return command_line("answer", pause.run_id, f"{pause.handle}={pause.example}", store=url)


def answerable(pauses: Sequence[PauseView], url: str, queue: str = "") -> list[dict[str, Any]]:
    """Return pauses as plain data, each with the command that answers it."""
    return [{**pause.as_json(), "command": answer_line(pause, url, queue)} for pause in pauses]


def doubt_lines(
    run_id: str, store: str, *, app: AppPlace | None = None, words: Sequence[str] = ()
) -> list[str]:
    """Return the commands, or calls, that resume past an interrupted step that may not be repeated unasked."""
    ways = (("rerun", "it did not happen: run it again"), ("skip", "it did happen: continue after it"))
    if app is not None and not words:
        return [
            f"  {app.name}.resume({run_id!r}, if_interrupted={way!r})  # {meaning}" for way, meaning in ways
        ]
    return [
        f"  {command_line('resume', run_id, *words, '--if-interrupted', way, store=store)}  # {meaning}"
        for way, meaning in ways
    ]


def skip_lines(
    run_id: str, step: str, store: str, *, app: AppPlace | None = None, words: Sequence[str] = ()
) -> list[str]:
    """Return the commands, or calls, that resume a run without the result of a step."""
    if app is not None and not words:
        ways = [f"{app.in_python}.skip({run_id!r}, {step!r})", app.resume_call(run_id)]
    else:
        skip = command_line("steps skip", run_id, store=store)
        ways = [f"{skip} {_pasteable([step])}", command_line("resume", run_id, *words, store=store)]
    return ["leave its result out, then resume:", *(f"  {way}" for way in ways)]


def app_words(app: str) -> list[str]:
    """Return the option that names the app of a run as it was recorded, if a command can import it from here.

    A file must be there, and start nothing when it is imported; it is read, and not executed.
    """
    place, _, attribute = app.rpartition(":")
    if not place.endswith(".py"):
        return ["--app", app] if app else []
    path, here = Path(place), Path.cwd()
    if not _can_be_imported(path):
        return []
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return ["--app", f"{shown}:{attribute}"]


def _can_be_imported(path: Path) -> bool:
    """Return whether the code of a file, outside functions and `if` statements, seems to start no runs."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    left_out = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If)
    parts = [
        node for statement in tree.body if not isinstance(statement, left_out) for node in ast.walk(statement)
    ]
    return not _starts_runs(parts, _starting(tree))


def _starting(tree: ast.Module) -> frozenset[str]:
    """Return the names of the functions of a file that start runs, themselves or by others of them."""
    functions = [each for each in tree.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = frozenset[str]()
    for _ in functions:
        more = {each.name for each in functions if _starts_runs(list(ast.walk(each)), found)}
        if more == found:
            break
        found = frozenset(more)
    return found


def _starts_runs(nodes: Sequence[ast.AST], starting: frozenset[str]) -> bool:
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    methods = {call.attr for call in calls if isinstance(call, ast.Attribute)}
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    return not _STARTS.isdisjoint(methods) or not starting.isdisjoint(names)


def store_words(store: str) -> str:
    """Return the options, as they are pasted after a command, that name a store; none for the default store."""
    return "".join(f" {_pasteable([word])}" for word in _where(store))


def _where(store: str) -> list[str]:
    with contextlib.suppress(StoreError):  # What the environment names may be none; the store was given then.
        if same_store(store, default_url()):
            return []
    return ["--store", absolute_url(store)]


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
