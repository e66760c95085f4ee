"""`holdfast submit`, `worker` and `queue`: runs that workers drive."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.asking.given import read_inputs
from holdfast.cli.display.tables import print_json, print_table
from holdfast.cli.display.text import duration
from holdfast.cli.loading import loading
from holdfast.cli.place_options import MOST, priority_option, queue_option, read_when, when_options
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import chosen_url, close_store, open_existing, store_option
from holdfast.errors import RunNotFound

if TYPE_CHECKING:
    from holdfast.fleet.limits import Limit, Limits, Rate
    from holdfast.fleet.queues import QueueLine
    from holdfast.flows.flow import Flow

DURABILITY = ("full", "process", "exit")


@click.command()
@click.argument("flow", metavar="FLOW", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-i",
    "--input",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input; NAME=@FILE reads it from a file, NAME:=JSON gives it typed. May be repeated.",
)
@click.option("--inputs", "inputs_file", metavar="FILE", help="Inputs as a JSON object; - is stdin.")
@click.option("--run-id", metavar="ID", help="Name the run; by default it gets a random id.")
@click.option(
    "--key",
    metavar="TEXT",
    help="Submit once: the same workflow and key are the same run, however often this is called.",
)
@queue_option
@priority_option
@when_options
@click.option("--skip-gates", is_flag=True, help="Ask nothing: questions get their defaults.")
@click.option("--interrupt-before", multiple=True, metavar="STEP", help="Pause before that step.")
@click.option("--interrupt-after", multiple=True, metavar="STEP", help="Pause after that step.")
@click.option(
    "--durability",
    type=click.Choice(DURABILITY),
    help="What a saved step survives: a power loss (full), a killed process (process), or save at the end (exit).",
)
@store_option
@json_option
def submit(
    flow: Path,
    pairs: tuple[str, ...],
    inputs_file: str | None,
    run_id: str | None,
    key: str | None,
    queue: str | None,
    priority: int | None,
    delay: str | None,
    at: str | None,
    skip_gates: bool,
    interrupt_before: tuple[str, ...],
    interrupt_after: tuple[str, ...],
    durability: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Store a run for workers to drive, and print its id at once.

    The file and the inputs are checked as `run` checks them. `holdfast worker` on the same store, here or on another
    machine, takes the run up; `status`, `show`, `answer`, `pause` and `cancel` work meanwhile.

    \b
      holdfast submit report.yaml -i topic=tides --store postgresql://localhost/jobs
      holdfast submit report.yaml --queue night --delay 2h --priority 5
      holdfast status $(holdfast submit report.yaml --key order-7) --wait
    """
    with loading():
        from holdfast.cli.handing_over import queued_as_json
        from holdfast.cli.wishes import Wishes
        from holdfast.engine.queueing import DEFAULT_QUEUE, id_of_key
        from holdfast.flows.flow import load_flow

    if run_id is not None and key is not None:
        raise click.UsageError("give either --run-id or --key")
    when = read_when(delay, at)
    loaded = load_flow(flow)
    inputs = loaded.read_inputs(*read_inputs(inputs_file, pairs))
    url = _lasting(chosen_url(store, loaded.store_url()))
    wishes = Wishes(interrupt_before, interrupt_after, skip_gates, durability)
    app = wishes.open(loaded, url, interactive=False)
    try:
        known = app.store.runs(run=id_of_key(loaded.name, key)) if key is not None else []
        name = app.submit(
            loaded.begin(inputs),
            run_id=run_id,
            key=key,
            queue=queue or DEFAULT_QUEUE,
            priority=priority or 0,
            when=when,
            config=wishes.config(loaded),
        )
        [info] = app.store.runs(run=name)
    finally:
        app.store.close()
    if as_json:
        print_json({**queued_as_json(info), "created": not known, "store": url})
    else:
        click.echo(name)
    return 0


def _lasting(url: str) -> str:
    """The URL, unless it is of a store that is gone when the command ends."""
    if url.partition(":")[0] == "memory":
        raise click.UsageError(
            "the store is in memory, where no other process finds a run; give --store URL, as in "
            "sqlite:///.holdfast/runs.db or postgresql://HOST/DATABASE"
        )
    return url


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
    "--flow",
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
    "--linger",
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
    linger: float,
    until_idle: bool,
    name: str | None,
    as_json: bool,
) -> int:
    """Drive the runs that were submitted to a store, until it is told to stop.

    Any number of workers may share a store; on PostgreSQL on any number of machines. Each run is driven by one at
    a time, and what a worker that dies was doing is taken up by another. SIGTERM and Ctrl+C let the steps under way
    finish and hand the runs over; a second one stops at once.

    Whom it trusts: without --flow and --app a worker drives the workflows that runs carry with them, so whoever
    may write to the store may run commands here. With --flow it drives runs of those workflow files only, and
    --app imports a program that you name; what runs carry with them is then never executed. A run of a Python program
    needs a worker with --app; keep such runs in a queue of their own if other workers share the store.

    \b
      holdfast worker --store postgresql://localhost/jobs --concurrency 20
      holdfast worker --flow workflows/ --queues reports,mail
      holdfast worker --app shop.orders:app --until-idle
    """
    with loading():
        from holdfast.cli.display.watching import scrubbed_records, told_warnings
        from holdfast.cli.display.worker_lines import WorkerLines
        from holdfast.cli.fleet_graphs import Secretive, apps_of, catalog_of, flow_files
        from holdfast.fleet.worker import Worker
        from holdfast.stores import open_store

    wanted = _queues(queues)
    loaded, secretive = flow_files(flows), Secretive()
    url = _with_lease(_lasting(chosen_url(store, _common_store(loaded))), lease)
    opened = open_store(url)
    try:
        lines = WorkerLines(name or f"{socket.gethostname()}:{os.getpid()}", as_json, secretive.scrub)
        catalog = catalog_of(loaded, apps_of(apps, opened), secretive)
        with scrubbed_records(secretive.scrub), told_warnings(secretive.scrub):
            at_work = Worker(
                opened,
                catalog,
                concurrency=concurrency,
                queues=wanted,
                linger=linger,
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


def _common_store(flows: list[Flow]) -> str | None:
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


@click.group()
def queue() -> None:
    """Look at queues, limit and pause them. A queue is there as soon as a run is submitted to it.

    \b
    Example:
      holdfast queue list
      holdfast queue set mail --max-running 5 --rate 100/60
      holdfast queue pause mail
    """


@queue.command("list")
@store_option
@json_option
def list_(store: str | None, as_json: bool) -> int:
    """List the queues, what waits in them, and their limits.

    Of the runs that are queued or asleep, `due` ones could be taken up now; `oldest` is how long the first of them
    has been waiting. `held` ones were taken up three times and nothing came of it: `show` says why, and
    `resume --detach` gives them another chance.

    \b
    Example:
      holdfast queue list --store postgresql://localhost/jobs
    """
    from holdfast.fleet.queues import queue_lines

    url = chosen_url(store)
    try:
        opened = open_existing(url)
    except RunNotFound:
        lines: list[QueueLine] = []
    else:
        try:
            lines = queue_lines(opened)
        finally:
            opened.close()
    if as_json:
        print_json({"store": url, "queues": [line.as_json() for line in lines]})
    elif lines:
        columns = ("queue", "queued", "due", "running", "paused", "held", "oldest", "limits")
        print_table(columns, [_row(line) for line in lines])
    else:
        click.echo(f"no runs wait in {url}; submit one with: holdfast submit FLOW.yaml")
    return 0


def _row(line: QueueLine) -> list[str]:
    counts = (line.queued, line.due, line.running, line.paused, line.held)
    oldest = "" if line.oldest is None else duration(line.oldest)
    return [line.queue, *map(str, counts), oldest, _told(line.limit)]


def _told(limit: Limit | None) -> str:
    """A queue's limits in a few words."""
    if limit is None:
        return ""
    parts = ["paused"] if limit.paused else []
    parts += [f"{limit.max_running} at once"] if limit.max_running is not None else []
    parts += [f"{limit.rate.starts} in {duration(limit.rate.seconds)}"] if limit.rate is not None else []
    return ", ".join(parts)


@queue.command("set")
@click.argument("name")
@click.option(
    "--max-running", type=click.IntRange(1, MOST), metavar="N", help="So many of its runs are driven at once."
)
@click.option(
    "--rate",
    metavar="N/SECONDS",
    help="So many may begin in so many seconds, as in 100/60: that many at once, then more as time goes by.",
)
@store_option
@json_option
def set_(name: str, max_running: int | None, rate: str | None, store: str | None, as_json: bool) -> int:
    """Limit a queue, on PostgreSQL. What is not given stays as it was.

    \b
    Example:
      holdfast queue set mail --max-running 5
      holdfast queue set mail --rate 100/60
    """
    if max_running is None and rate is None:
        raise click.UsageError("say what the limit is: --max-running N, --rate N/SECONDS, or both")
    wanted = None if rate is None else _rate(rate)
    return _changed(
        store, name, as_json, lambda limits: limits.set(name, max_running=max_running, rate=wanted)
    )


def _rate(text: str) -> Rate:
    from holdfast.fleet.limits import Rate

    found = re.fullmatch(r"\s*(\d{1,10})\s*/\s*(\d{0,12}(?:\.\d{1,6})?)\s*s?", text)
    if found is None or not found[2]:
        raise click.BadParameter(f"--rate {text!r} is not N/SECONDS, as in 100/60")
    return Rate(int(found[1]), float(found[2]))


@queue.command()
@click.argument("name")
@store_option
@json_option
def pause(name: str, store: str | None, as_json: bool) -> int:
    """Let workers take nothing up from a queue. What they are driving goes on.

    \b
    Example:
      holdfast queue pause mail
    """
    return _changed(store, name, as_json, lambda limits: limits.pause(name))


@queue.command()
@click.argument("name")
@store_option
@json_option
def resume(name: str, store: str | None, as_json: bool) -> int:
    """Let workers take up again what waits in a queue.

    \b
    Example:
      holdfast queue resume mail
    """
    return _changed(store, name, as_json, lambda limits: limits.resume(name))


@queue.command()
@click.argument("name")
@store_option
@json_option
def unset(name: str, store: str | None, as_json: bool) -> int:
    """Take a queue's limits away. If it is paused, it stays so.

    \b
    Example:
      holdfast queue unset mail
    """
    return _changed(store, name, as_json, lambda limits: limits.unset(name))


def _changed(store: str | None, name: str, as_json: bool, change: Callable[[Limits], object]) -> int:
    """Change the limits of a queue and tell what they are now."""
    from holdfast.fleet.limits import Limit, Limits
    from holdfast.fleet.on_postgres import open_postgres
    from holdfast.fleet.queues import QueueLine

    opened = open_postgres(chosen_url(store), "limits of queues")
    try:
        limits = Limits(opened)
        change(limits)
        found = next((limit for limit in limits.lines() if limit.queue == name), Limit(name))
    finally:
        opened.close()
    if as_json:
        facts = QueueLine(name, limit=found).as_json()
        print_json({key: facts[key] for key in ("queue", "max_running", "rate", "is_paused")})
    else:
        click.echo(f"queue {name}: {_told(found) or 'no limits'}")
    return 0
