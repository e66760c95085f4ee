"""`holdfast worker`: execute the runs of a store's queues."""

from __future__ import annotations

import dataclasses
import importlib
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.cli.display.lines import WorkerLines, logged_warnings, scrubbed_records
from holdfast.cli.options import JSON, STORE, RunOptions, number, repeated
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import close_store, lasting_url
from holdfast.engine.app import App
from holdfast.engine.checkpoint_files import check_options
from holdfast.fleet.catalog import Catalog, Known, Opener, UnknownWorkflow
from holdfast.fleet.worker import Worker
from holdfast.graph.builder import StateGraph
from holdfast.journal.journal import Journal
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.workflows.workflow import Workflow, load_workflow, workflow_of_run


@command(
    number("--concurrency", 1, "N", "How many runs execute at once.", 10),
    click.option(
        "--queues", metavar="A,B", help="Execute runs of these queues only; by default of every queue."
    ),
    click.option(
        "--workflow",
        "workflows",
        multiple=True,
        metavar="FILE|DIR",
        type=click.Path(exists=True, path_type=Path),
        help="Execute runs of this workflow file, or of those in this folder. May be repeated.",
    ),
    repeated(
        "--app", "apps", "MODULE:ATTRIBUTE", "Execute runs of the App or StateGraph of a Python program."
    ),
    click.option(
        "--lease",
        type=click.FloatRange(1, 3600),
        metavar="SECONDS",
        help="Lease timeout before another worker takes over; PostgreSQL only, by default 15.",
    ),
    number(
        "--grace", 0.0, "SECONDS", "How long steps may take to finish when the worker is asked to stop.", 30.0
    ),
    number(
        "--idle-timeout",
        0.0,
        "SECONDS",
        "How long a run that only waits is kept; one that waits longer is released until its time comes.",
        1.0,
    ),
    click.option(
        "--until-idle", is_flag=True, help="Stop when nothing is queued, running or due within a second."
    ),
    click.option("--name", metavar="NAME", help="The name of this worker; by default its host and process."),
    STORE,
    JSON,
)
def worker(
    session: Session,
    concurrency: int,
    queues: str | None,
    workflows: tuple[Path, ...],
    apps: tuple[str, ...],
    lease: float | None,
    grace: float,
    idle_timeout: float,
    until_idle: bool,
    name: str | None,
) -> None:
    """Execute the runs that were submitted to a store, until it is asked to stop.

    Any number of workers may share a store; on PostgreSQL on any number of machines. Each run is executed by one at
    a time, and the runs of a worker that dies are resumed by another. SIGTERM and Ctrl+C let the steps under way
    finish and release the runs; a second one stops at once.

    Trust: without --workflow and --app a worker executes the workflows that runs carry with them, so who may write
    to the store may run commands here. With --workflow it executes runs of those workflow files only, and --app imports
    a program that you name; what runs carry with them is then never executed. A run of a Python program needs a worker
    with --app; keep such runs in a queue of their own if other workers share the store.

    \b
    Example:
      holdfast worker --store postgresql://localhost/jobs --concurrency 20
      holdfast worker --workflow workflows/ --queues reports,mail
      holdfast worker --app shop.orders:app --until-idle
    """
    wanted = _queues(queues)
    loaded, secrets = workflow_files(workflows), Secrets()
    opened = open_store(_with_lease(lasting_url(session.url(_common_store(loaded))), lease))
    session.callback(close_store, opened)
    own_name = name or f"{socket.gethostname()}:{os.getpid()}"
    lines = WorkerLines(own_name, session.as_json, secrets.scrub, opened.url)
    catalog = catalog_of(loaded, apps_of(apps, opened), secrets)
    with scrubbed_records(secrets.scrub), logged_warnings(secrets.scrub):
        running = Worker(
            opened,
            catalog,
            concurrency=concurrency,
            queues=wanted,
            idle_timeout=idle_timeout,
            grace=grace,
            tell=lines.tell,
        )
        lines.begin(opened.url, wanted, concurrency)
        running.run(until_idle=until_idle)
        lines.end()


def _queues(text: str | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text is not None else ()
    if not all(names):
        raise click.BadParameter(f"--queues {text!r} is not a list of names such as reports,mail")
    return names


def _common_store(workflows: list[Workflow]) -> str | None:
    """Return the store that all these workflow files name."""
    urls = {workflow.store_url() for workflow in workflows}
    if len(urls) > 1:
        raise click.UsageError("the workflow files name different stores; say which with --store URL")
    return urls.pop() if urls else None


def _with_lease(url: str, lease: float | None) -> str:
    if lease is None:
        return url
    if not url.lower().startswith(("postgres:", "postgresql:", "pg-embedded:")):
        raise click.UsageError(
            "--lease is for PostgreSQL; other stores see whether a process of this machine is alive"
        )
    place, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("lease=")]
    return f"{place}?{'&'.join([*kept, f'lease={lease:g}'])}"


# The graphs of a worker: workflow files and programs that its operator names, or what runs carry with them.


_KEPT = 256


class Secrets:
    """The secrets of all workflows that were opened, to be scrubbed from all output."""

    def __init__(self) -> None:
        self._workflows: dict[int, Workflow] = {}

    def keep(self, workflow: Workflow) -> None:
        """Scrub the secrets of this workflow, too."""
        if len(self._workflows) >= _KEPT:
            self._workflows.pop(next(iter(self._workflows)))
        self._workflows[id(workflow)] = workflow

    def scrub(self, value: Any) -> Any:
        """Return a value without secrets."""
        for workflow in list(self._workflows.values()):
            value = workflow.scrub(value)
        return value


def catalog_of(workflows: Sequence[Workflow], apps: Sequence[App], secrets: Secrets) -> Catalog:
    """Return the graphs of these workflow files and programs; without any, those that runs carry with them."""
    openers: dict[str, Opener] = {}
    for workflow in workflows:
        if workflow.name in openers:
            raise click.UsageError(
                f"two workflow files are named {workflow.name!r}; a worker tells them apart by their names"
            )
        openers[workflow.name] = _opener(workflow, secrets)
    return Catalog(apps, openers=openers, carried=None if workflows or apps else _opener(None, secrets))


def _opener(workflow: Workflow | None, secrets: Secrets) -> Opener:
    def opened(config: Mapping[str, Any], store: Store) -> Known:
        found = workflow or _carried(config)
        check_options(config)
        secrets.keep(found)
        app = RunOptions.of(config).open(found, store, stored=True)
        return Known(app, found.announcer())

    return opened


def _carried(config: Mapping[str, Any]) -> Workflow:
    if "workflow_file" not in config:
        raise UnknownWorkflow(
            "this run is one of a Python program and carries no workflow with it; start a worker that knows the "
            "program: holdfast worker --app MODULE:ATTRIBUTE"
        )
    return workflow_of_run(config, prefer="saved")


def workflow_files(places: Iterable[Path]) -> list[Workflow]:
    """Return the workflows of these files, and of the workflow files right in these folders."""
    found: list[Workflow] = []
    for place in places:
        files = (
            sorted(file for file in place.iterdir() if file.suffix in (".yaml", ".yml"))
            if place.is_dir()
            else [place]
        )
        if not files:
            raise click.UsageError(f"there are no workflow files in {place}")
        found += [load_workflow(file) for file in files]
    return found


def apps_of(names: Iterable[str], store: Store) -> list[App]:
    """Return the graphs that `module:attribute` texts name, on the store."""
    return [_app(name, store) for name in names]


def _app(name: str, store: Store) -> App:
    place, colon, attribute = name.partition(":")
    if not colon or not place or not attribute:
        raise click.BadParameter(f"--app {name!r} is not of the form MODULE:ATTRIBUTE, as in shop.orders:app")
    found: Any = _module(place, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"--app {name}: there is no {attribute!r} in {place!r}")
        found = getattr(found, part)
    if isinstance(found, StateGraph):
        return found.compile(store)
    if not isinstance(found, App):
        raise click.UsageError(
            f"--app {name}: {attribute!r} is {type(found).__name__}, not an App or a StateGraph"
        )
    journal = Journal(store, found._settings.journal.seal)
    return App(dataclasses.replace(found._settings, journal=journal))


def _module(place: str, name: str) -> Any:
    """Return a module, imported as a program in this folder would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"--app {name}: {place} needs the package {error.name!r}, which is missing"
            ) from None
        raise click.UsageError(f"--app {name}: there is no module {place!r}, here or installed") from None
    except Exception as error:
        raise click.UsageError(
            f"--app {name}: importing {place} fails: {type(error).__name__}: {error}"
        ) from error
