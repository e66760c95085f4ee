"""`holdfast worker`: drive the runs of a store's queues."""

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

from holdfast.cli.main import loading
from holdfast.cli.run_settings import Wishes
from holdfast.cli.store_option import chosen_url, close_store, lasting_url, store_option
from holdfast.engine.app import App
from holdfast.engine.checkpoint_files import check_options
from holdfast.fleet.catalog import Catalog, Known, Opener, UnknownWorkflow
from holdfast.graph.builder import StateGraph
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store
from holdfast.workflows.workflow import Workflow, load_workflow, workflow_of_run


@click.command()
@store_option
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many runs are driven at once.",
)
@click.option("--queues", metavar="A,B", help="Take up runs of these queues only; by default of every queue.")
@click.option(
    "--workflow",
    "flows",
    multiple=True,
    metavar="FILE|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Drive runs of this workflow file, or of those in this folder. May be repeated.",
)
@click.option(
    "--app",
    "apps",
    multiple=True,
    metavar="MODULE:ATTRIBUTE",
    help="Drive runs of the App or StateGraph of a Python program. May be repeated.",
)
@click.option(
    "--lease",
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    help="After how long without a sign of life others take over; PostgreSQL only, by default 15.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long steps may take to finish when the worker is told to stop.",
)
@click.option(
    "--idle-timeout",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a run that only waits is kept; one that waits longer is left until its time comes.",
)
@click.option(
    "--until-idle", is_flag=True, help="Stop when nothing is queued, running or due within a second."
)
@click.option("--name", metavar="NAME", help="What to call this worker; by default its host and process.")
@click.option("--json", "as_json", is_flag=True, help="Tell what happens on stdout, one JSON object a line.")
def worker(
    store: str | None,
    concurrency: int,
    queues: str | None,
    flows: tuple[Path, ...],
    apps: tuple[str, ...],
    lease: float | None,
    grace: float,
    idle_timeout: float,
    until_idle: bool,
    name: str | None,
    as_json: bool,
) -> int:
    """Drive the runs that were submitted to a store, until it is told to stop.

    Any number of workers may share a store; on PostgreSQL on any number of machines. Each run is driven by one at
    a time, and what a worker that dies was doing is taken up by another. SIGTERM and Ctrl+C let the steps under way
    finish and hand the runs over; a second one stops at once.

    Whom it trusts: without --workflow and --app a worker drives the workflows that runs carry with them, so whoever
    may write to the store may run commands here. With --workflow it drives runs of those workflow files only, and
    --app imports a program that you name; what runs carry with them is then never executed. A run of a Python program
    needs a worker with --app; keep such runs in a queue of their own if other workers share the store.

    \b
      holdfast worker --store postgresql://localhost/jobs --concurrency 20
      holdfast worker --workflow workflows/ --queues reports,mail
      holdfast worker --app shop.orders:app --until-idle
    """
    with loading():
        from holdfast.cli.display.lines import WorkerLines, scrubbed_records, told_warnings
        from holdfast.fleet.worker import Worker
        from holdfast.stores import open_store

    wanted = _queues(queues)
    loaded, secretive = workflow_files(flows), Secretive()
    url = _with_lease(lasting_url(chosen_url(store, _common_store(loaded))), lease)
    opened = open_store(url)
    try:
        lines = WorkerLines(
            name or f"{socket.gethostname()}:{os.getpid()}", as_json, secretive.scrub, opened.url
        )
        catalog = catalog_of(loaded, apps_of(apps, opened), secretive)
        with scrubbed_records(secretive.scrub), told_warnings(secretive.scrub):
            at_work = Worker(
                opened,
                catalog,
                concurrency=concurrency,
                queues=wanted,
                idle_timeout=idle_timeout,
                grace=grace,
                tell=lines.tell,
            )
            lines.begin(opened.url, wanted, concurrency)
            at_work.run(until_idle=until_idle)
            lines.end()
    finally:
        close_store(opened)
    return 0


def _queues(text: str | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text is not None else ()
    if not all(names):
        raise click.BadParameter(f"--queues {text!r} is not a list of names such as reports,mail")
    return names


def _common_store(flows: list[Workflow]) -> str | None:
    """Where all these workflow files say that runs are kept."""
    urls = {flow.store_url() for flow in flows}
    if len(urls) > 1:
        raise click.UsageError("the workflow files name different stores; say which with --store URL")
    return urls.pop() if urls else None


def _with_lease(url: str, lease: float | None) -> str:
    if lease is None:
        return url
    if not url.lower().startswith(("postgres:", "postgresql:", "pg-embedded:")):
        raise click.UsageError(
            "--lease is for PostgreSQL; on this machine a store sees whether a process lives"
        )
    place, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("lease=")]
    return f"{place}?{'&'.join([*kept, f'lease={lease:g}'])}"


# Which graphs a worker drives: workflow files and programs that its operator names, or what runs carry wit.


_KEPT = 256


class Secretive:
    """Keeps the secrets of all workflows that were opened out of what is told."""

    def __init__(self) -> None:
        self._flows: dict[int, Workflow] = {}

    def keep(self, flow: Workflow) -> None:
        """Scrub what this workflow uses too."""
        if len(self._flows) >= _KEPT:
            self._flows.pop(next(iter(self._flows)))
        self._flows[id(flow)] = flow

    def scrub(self, value: Any) -> Any:
        """A value without secrets."""
        for flow in list(self._flows.values()):
            value = flow.scrub(value)
        return value


def catalog_of(flows: Sequence[Workflow], apps: Sequence[App], secretive: Secretive) -> Catalog:
    """The graphs of these workflow files and programs; of none, whatever runs carry with them."""
    openers: dict[str, Opener] = {}
    for flow in flows:
        if flow.name in openers:
            raise click.UsageError(
                f"two workflow files are named {flow.name!r}; a worker tells them apart by their names"
            )
        openers[flow.name] = _opener(flow, secretive)
    return Catalog(apps, openers=openers, carried=None if flows or apps else _opener(None, secretive))


def _opener(flow: Workflow | None, secretive: Secretive) -> Opener:
    def opened(config: Mapping[str, Any], store: Store) -> Known:
        found = flow or _carried(config)
        check_options(config)
        secretive.keep(found)
        wishes = Wishes.of(config)
        return Known(wishes.open(found, store, interactive=False, stored=True), found.announcer())

    return opened


def _carried(config: Mapping[str, Any]) -> Workflow:
    if "flow" not in config:
        raise UnknownWorkflow(
            "this run is one of a Python program and carries no workflow with it; start a worker that knows the "
            "program: holdfast worker --app MODULE:ATTRIBUTE"
        )
    return workflow_of_run(config, prefer="saved")


def workflow_files(places: Iterable[Path]) -> list[Workflow]:
    """The workflows of these files, and of the workflow files right in these folders."""
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
    """The graphs that `module:attribute` texts name, on the store."""
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
    """The module, imported as a program in this folder would."""
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
