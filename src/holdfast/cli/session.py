"""One command's session: its store, the runs that its arguments name, and its output as text or JSON."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_lines import app_of, app_words
from holdfast.cli.errors import NEED_APP, for_app
from holdfast.cli.options import AT_HELP, RUN_HELP, Options
from holdfast.cli.render import print_json, print_table
from holdfast.cli.store_option import (
    LikelyStore,
    absolute_url,
    chosen_url,
    close_store,
    holds,
    is_chosen,
    likely_stores,
    meant_run,
    open_existing,
    open_journal,
    store_of_file,
)
from holdfast.engine.owner import liveness
from holdfast.engine.resume import find_run
from holdfast.engine.time_travel.checkpoints import Position, find_position, parted
from holdfast.errors import CorruptJournal, HoldfastError, Remedy, RunNotFound, StoreError, problem_of
from holdfast.stores.base import is_server
from holdfast.stores.inspection import exists, repaired_as
from holdfast.views.runs import find_run_info, run_line
from holdfast.views.terminal import one_line

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo, Store
    from holdfast.views.run_view import RunLine

LONG = 2_000
"""How many characters a line of a message has at most."""


class Session(contextlib.ExitStack):
    """The store and the output of one command. Stores that it opens are closed at its end."""

    def __init__(
        self,
        store: str | None = None,
        as_json: bool = False,
        journal: Journal | None = None,
        file: Path | None = None,
    ) -> None:
        super().__init__()
        if store and not store.startswith("?") and file is not None:
            raise click.UsageError("--store and --file both say where the runs are; give one of them")
        self.given, self.as_json = store, as_json
        self._journal = journal
        self.app = ""
        """What was given as `--app`."""
        self._of_file = None if file is None else store_of_file(file)[0]
        """Where a workflow file says that the runs are."""

    def __exit__(self, *error: Any) -> bool | None:
        """Close the stores. Remedies of an error that concern Python runs say where their app is."""
        problem = error[1]
        if self._journal is not None and isinstance(problem, HoldfastError) and problem.remedies:
            problem.remedies = tuple(self._for_program(remedy) for remedy in problem.remedies)
        return super().__exit__(*error)

    def _for_program(self, remedy: Remedy) -> Remedy:
        """Return a remedy that executes a run with the app of its program, or, if that is not known, as a call."""
        run = parted(remedy.run_id)[0] or remedy.run_id
        if remedy.action not in NEED_APP or "app" in remedy.options or self._journal is None:
            return remedy
        with contextlib.suppress(HoldfastError):
            for info in self._journal.store.runs(run=run):
                app = app_of(self._journal, info)
                if app is not None and not info.queue:
                    words = ["--app", self.app] if self.app else app_words(app.place)
                    called = Remedy(text=str(replace(remedy, app=app.in_python)))
                    return for_app(remedy, words[-1]) if words else called
        return remedy

    def url(self, of_file: str | None = None) -> str:
        """Return the absolute URL of the store: as given, else as the environment or a workflow file says."""
        return absolute_url(chosen_url(self.given, self._of_file or of_file))

    def prefer(self, url: str) -> None:
        """Look for runs in this store, unless another one is given or chosen in the environment."""
        if self._of_file is None and not is_chosen(self.given):
            self._of_file = url

    @property
    def journal(self) -> Journal:
        """The journals of the store, which must exist."""
        self.find()
        return self._journal or self.open()

    @property
    def store(self) -> Store:
        """The store, which must exist."""
        return self.journal.store

    def open(self, of_file: str | None = None) -> Journal:
        """Open the store, unless it is open; a workflow file may say where it is."""
        if self._journal is None:
            store = open_existing(self.url(of_file))
            self.callback(close_store, store)
            self._journal, self._of_file = open_journal(store), self._of_file or of_file
        return self._journal

    def find(self, name: str | None = None) -> None:
        """Open the store that has a run, a checkpoint or a workflow of this name, unless a store is open.

        Without `--store`, `--file` and the environment that is the one that a workflow file here, or one folder below,
        names for its own workflow, else the usual one, else a file or folder that another one names. Raise
        `RunNotFound` if none of them has it.
        """
        if self._journal is not None:
            return
        if name is not None and is_workflow_file(name):
            self.open(store_of_file(Path(name))[0])
        if self._of_file is not None or is_chosen(self.given):
            self.open()
            return
        looked: dict[str, str] = {}
        for likely in likely_stores(name, Path()):
            url = self.url(likely.url)
            if url not in looked and self._takes(url, likely, name, looked):
                return
        if len(looked) > 1:
            places = "; ".join(f"{url}: {what}" for url, what in looked.items())
            what = (
                "no run was found" if name is None else f"no run, checkpoint or workflow {name!r} was found"
            )
            raise RunNotFound(f"{what}. {places}", remedies=Remedy("look_elsewhere"))
        self.open()

    def _takes(self, url: str, likely: LikelyStore, name: str | None, looked: dict[str, str]) -> bool:
        """Open a store that may have what a name names; if it does not, note why in `looked`.

        A server is asked only for the workflow of the file that names the server: no other server learns of a name.
        """
        path = likely.path
        if path is not None and is_server(url):
            place = f"{one_line(url, LONG)}, which {one_line(str(path))} names"
            if not likely.is_own:
                looked[url] = f"not asked; give --file {path}"
                click.echo(f"not looked in {place}; --file {one_line(str(path))} looks there", err=True)
                return False
            click.echo(f"looking in {place}", err=True)
        try:
            if not exists(url):
                looked[url] = "nothing has been run there yet"
                return False
            store = open_existing(url)
        except StoreError as error:
            if path is None:
                raise
            looked[url] = problem_of(error)
            return False
        if name is not None and not (holds(store, name) or holds(store, _split(name)[0])):
            looked[url] = "it is not there"
            close_store(store)
            return False
        self.callback(close_store, store)
        self._journal, self._of_file = open_journal(store), likely.url
        if path is not None and not is_server(url):
            click.echo(f"in {one_line(url, LONG)}, which {one_line(str(path))} names", err=True)
        return True

    def workflow(self, text: str | None) -> str | None:
        """Open the store that has the runs of a workflow, which is named, or given as its file; return its name."""
        self.find(text)
        return _load(text).name if text is not None and is_workflow_file(text) else text

    def names(self, *texts: str) -> list[str]:
        """Return each text with the whole id of its run; the first one says where the store is."""
        run = _split(texts[0])[0]
        self.find(run if is_workflow_file(run) else texts[0])
        return [self._name(text) for text in texts]

    def _name(self, text: str) -> str:
        if self.store.runs(run=text):
            return text
        run, at, place = _split(text)
        name = _load(run).name if is_workflow_file(run) else run
        return f"{meant_run(self.store, name)}{at}{place}"

    def run(self, text: str) -> RunInfo:
        """Return the run that an argument names; of a workflow the latest run."""
        [name] = self.names(text)
        return find_run_info(self.journal, name)

    def unfinished_run(self, text: str) -> RunInfo:
        """Return the run that an argument names; of a workflow the latest unfinished run."""
        [name] = self.names(text)
        info = find_run(self.store, name)[0]
        refuse_repaired(self.store, info)
        return info

    def checkpoint(self, text: str) -> Position:
        """Return the run and the checkpoint that an argument such as RUN@3 names."""
        [name] = self.names(text)
        return find_position(self.store, name)

    def line(self, text: str) -> RunLine:
        """Return the summary of the run that an argument names."""
        info = self.run(text)
        return run_line(self.journal, info, liveness(self.store))

    def print(self, data: Any, *lines: str, err: bool = False) -> None:
        """Print the data if `--json` is given, else the lines, each cut if it is too long."""
        if self.as_json:
            print_json(data)
            return
        for line in lines:
            click.echo(one_line(line, LONG), err=err)

    def print_rows(
        self,
        name: str,
        found: Sequence[Any],
        columns: Sequence[str],
        row: Callable[[Any], Sequence[str]],
        empty: str,
    ) -> None:
        """Print a list as a table, or, if it is empty, a line; with `--json` under its name, beside the store."""
        if found and not self.as_json:
            print_table(columns, map(row, found))
        else:
            self.print({"store": self.url(), name: found}, empty.format(url=self.url()))

    def confirm(self, what: str, yes: bool) -> None:
        """Ask before something that cannot be undone; without a terminal `--yes` is required."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"this would {what}; --yes confirms it")
        click.confirm(f"{what[:1].upper()}{what[1:]}?", abort=True, err=True)


def refuse_repaired(store: Store, info: RunInfo) -> None:
    """Refuse a damaged run that was repaired: name the run that has what could be read of it."""
    if (other := repaired_as(info)) and store.runs(run=other):
        raise CorruptJournal(
            f"run {info.run!r} is damaged, and run {other!r} has what could be read of it",
            remedies=Remedy("resume", other),
        )


def is_workflow_file(text: str) -> bool:
    """Return True if a text is the path of a workflow file that exists."""
    return text.endswith((".yaml", ".yml")) and Path(text).is_file()


def _load(path: str) -> Any:
    from holdfast.workflows.workflow import load_workflow

    return load_workflow(Path(path))


def _split(text: str) -> tuple[str, str, str]:
    run, at, place = parted(text)
    return (run, at, place) if at else (text, "", "")


def command(
    *params: Any, group: click.Group | None = None, name: str = "", **attributes: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a command of a function, which gets a `Session` and the options.

    `params` are decorators of click, or tuples of them, in the order of the help text. What RUN and RUN@3 mean is
    added to the help text where the usage names them.
    """

    def made(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(**given: Any) -> Any:
            options = Options(**given)
            with Session(
                given.get("store"), given.get("as_json", False), file=given.get("of_file")
            ) as session:
                session.app = given.get("app") or ""
                return function(session, options)

        decorated: Any = run
        for param in reversed(params):
            for each in reversed(param if isinstance(param, tuple) else (param,)):
                decorated = each(decorated)
        own = name or function.__name__.rstrip("_")
        make: Any = click.command(own, **attributes)
        found: click.Command = make(decorated)
        metavars = " ".join(str(param.metavar) for param in found.params if isinstance(param, click.Argument))
        if "RUN" in metavars:
            found.epilog = f"{RUN_HELP} {AT_HELP}" if "@" in metavars else RUN_HELP
        if group is not None:
            group.add_command(found)
        return found

    return made
