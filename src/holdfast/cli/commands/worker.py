"""`holdfast worker`: execute the runs of a store's queues."""

from __future__ import annotations

import datetime as dt
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.cli.command_lines import store_words
from holdfast.cli.errors import explain
from holdfast.cli.lines import logged_warnings, scrubbed_records
from holdfast.cli.options import (
    JSON,
    STORE_ONLY,
    Options,
    RunOptions,
    flag,
    number,
    read_duration,
    repeated,
    value,
)
from holdfast.cli.programs import Program
from holdfast.cli.render import clock, json_text, local_time
from holdfast.cli.run_files import Scrub
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import close_store, lasting_url
from holdfast.engine.app import App
from holdfast.engine.checkpoint_files import check_options
from holdfast.errors import UnknownWorkflow
from holdfast.fleet.catalog import Catalog, Known, Opener
from holdfast.fleet.worker import History, Worker, WorkerEvent
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.values import utc_time
from holdfast.views.terminal import one_line
from holdfast.workflows.workflow import Workflow, load_workflow, workflow_of_run


@command(
    number("--concurrency", 1, "N", "How many runs execute at once.", 10),
    value("--queues", "A,B", "Execute runs of these queues only; by default of every queue."),
    value(
        "--workflow workflows",
        "FILE|DIR",
        "Execute runs of this workflow file, or of those in this folder. May be repeated.",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
    ),
    repeated(
        "--app apps",
        "MODULE:NAME",
        "Execute runs of a workflow function, App or StateGraph in Python.",
    ),
    value(
        "--lease",
        "SECONDS",
        "Lease timeout before another worker takes over; PostgreSQL only, by default 15.",
        type=click.FloatRange(1, 3600),
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
    number(
        "--history",
        0,
        "N",
        "Delete submitted runs that are completed or cancelled, but for the newest N.",
    ),
    value(
        "--history-age",
        "DURATION",
        "Delete submitted runs that were completed or cancelled so long ago.",
    ),
    flag("--until-idle", "Stop when nothing is queued, running or due within a second."),
    value("--name", "NAME", "The name of this worker; by default its host and process."),
    STORE_ONLY,
    JSON,
)
def worker(session: Session, options: Options) -> None:
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
    queues, text = (), options.queues
    if text is not None:
        queues = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        if not all(queues):
            raise click.BadParameter(f"--queues {text!r} is not a list of names such as reports,mail")
    loaded, secrets = workflow_files(options.workflows), Secrets()
    urls = {workflow.store_url() for workflow in loaded}
    if len(urls) > 1:
        raise click.UsageError("the workflow files name different stores; say which with --store URL")
    url = lasting_url(session.url(urls.pop() if urls else None))
    opened = open_store(_with_lease(url, options.lease))
    session.callback(close_store, opened)
    own_name = options.name or f"{socket.gethostname()}:{os.getpid()}"
    lines = WorkerLines(own_name, session.as_json, secrets.scrub, opened.url)
    catalog = catalog_of(loaded, [Program(name).open(opened) for name in options.apps], secrets)
    with scrubbed_records(secrets.scrub), logged_warnings(secrets.scrub):
        running = Worker(
            opened,
            catalog,
            concurrency=options.concurrency,
            queues=queues,
            idle_timeout=options.idle_timeout,
            grace=options.grace,
            history=_history(options),
            tell=lines.tell,
        )
        lines.begin(opened.url, queues, options.concurrency)
        running.run(until_idle=options.until_idle)
        lines.end()


def _history(options: Options) -> History | None:
    age = options.history_age
    if options.history is None and age is None:
        return None
    max_age = None if age is None else dt.timedelta(seconds=read_duration("--history-age", age))
    return History(options.history, max_age)


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
        if workflow is None and "workflow_file" not in config:
            raise UnknownWorkflow(
                "this run is one of a Python program and carries no workflow with it; start a worker that knows the "
                "program: holdfast worker --app MODULE:NAME"
            )
        found = workflow or workflow_of_run(config, prefer="saved")
        check_options(config)
        secrets.keep(found)
        app = RunOptions.of(config).open(found, store, stored=True)
        return Known(app, found.announcer())

    return opened


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


# What a worker does.


class WorkerLines:
    """Lines on stderr, or NDJSON on stdout, of what a worker does; may be called from any thread."""

    def __init__(self, name: str, as_json: bool, scrub: Scrub, url: str) -> None:
        self._name, self._as_json, self._scrub = name, as_json, scrub
        self._where = store_words(url)
        self._lock = threading.Lock()

    def begin(self, store: str, queues: tuple[str, ...], concurrency: int) -> None:
        """Write that the worker has started."""
        of = f"the queues {', '.join(queues)}" if queues else "every queue"
        self._write(
            f"worker {self._name} executes runs of {of} in {store}, {concurrency} at once; Ctrl+C stops it",
            {"kind": "started", "store": store, "queues": list(queues), "concurrency": concurrency},
        )

    def end(self) -> None:
        """Write that the worker has stopped."""
        self._write(f"worker {self._name} has stopped", {"kind": "stopped"})

    def tell(self, event: WorkerEvent) -> None:
        """Write what became of a run."""
        text = explain(str(self._scrub(event.text)), event.remedies, self._where, detach=True)
        due = None if event.due_at is None else utc_time(event.due_at)
        facts = {"run_id": event.run, "workflow": event.workflow, "queue": event.queue, "text": text}
        self._write(
            f"{event.run} {event.workflow}: {_result(event.kind, text, due)}",
            {"kind": event.kind, **facts, "due_at": due},
        )

    def _write(self, line: str, facts: dict[str, Any]) -> None:
        at = time.time()
        with self._lock:
            if self._as_json:
                when = dt.datetime.fromtimestamp(at, dt.UTC)
                out, text = sys.stdout, json_text({"at": when, "worker": self._name, **facts}, indent=None)
            else:
                out, text = sys.stderr, f"{clock(at)} {one_line(line, 1000)}"
            out.write(text + "\n")
            out.flush()


def _result(kind: str, text: str, due: dt.datetime | None) -> str:
    """Return what became of a run in a few words."""
    details = f": {text}" if text else ""
    match kind:
        case "taken":
            return f"started ({text})"
        case "conflict":
            return f"left to another worker{details}"
        case "refused":
            return f"cannot be executed{details}"
        case "queued" | "paused" if due is not None:
            return f"released until {local_time(due)}"
        case "queued":
            return "released"
        case "paused":
            return f"paused, waits for {text}" if text else "paused"
        case _:
            return f"{kind}{details}"
