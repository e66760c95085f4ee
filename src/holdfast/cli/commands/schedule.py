"""`holdfast schedule`: runs that are submitted again and again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.display.tables import print_json, print_table
from holdfast.cli.display.text import moment, one_line
from holdfast.cli.main import loading
from holdfast.cli.options import priority_option, queue_option
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import chosen_url, store_option
from holdfast.cli.values import read_inputs
from holdfast.journal.provenance import me

if TYPE_CHECKING:
    from holdfast.fleet.schedules import ScheduleLine, Schedules

_CRON = (
    "minute hour day month weekday, as in '*/5 * * * *' or '0 9 * * MON-FRI'; "
    "or @hourly, @daily, @weekly, @monthly, @yearly"
)


@click.group()
def schedule() -> None:
    """Submit a workflow's runs at the times of a cron expression; PostgreSQL only.

    The workers of the store submit the runs, by the clock of its server, each time once however many they are.

    \b
    Example:
      holdfast schedule add nightly report.yaml --cron "0 2 * * *" --zone Europe/Berlin
      holdfast schedule list
      holdfast schedule next "0 2 * * *" --count 3
    """


@schedule.command()
@click.argument("name")
@click.argument("flow", metavar="WORKFLOW", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--cron", required=True, metavar="CRON", help=f"When: {_CRON}.")
@click.option(
    "--zone", default="UTC", show_default=True, metavar="ZONE", help="The time zone of those times."
)
@click.option(
    "-i",
    "--input",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input of every run, as in run. May be repeated.",
)
@click.option("--inputs", "inputs_file", metavar="FILE", help="Inputs as a JSON object; - is stdin.")
@queue_option
@priority_option
@click.option(
    "--missed",
    type=click.Choice(("skip", "one", "all")),
    default="one",
    show_default=True,
    help="What becomes of times that passed while no worker ran: none of them has a run, all together have one, or "
    "each has its own (the last 100).",
)
@click.option("--skip-gates", is_flag=True, help="Ask nothing: questions get their defaults.")
@click.option("--replace", is_flag=True, help="Replace the schedule of that name, if there is one.")
@store_option
@json_option
def add(
    name: str,
    flow: Path,
    cron: str,
    zone: str,
    pairs: tuple[str, ...],
    inputs_file: str | None,
    queue: str | None,
    priority: int | None,
    missed: str,
    skip_gates: bool,
    replace: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Add a schedule. The file and the inputs are checked now, as `run` checks them.

    Every run carries the workflow with it as the file is now; add it again with --replace when the file has changed.
    Times are in the schedule's zone. Where clocks are put forward, a time that is skipped comes at the end of the
    gap; where they are put back, a time that comes twice has one run.

    \b
    Example:
      holdfast schedule add nightly report.yaml --cron "0 2 * * *" -i topic=tides --queue night
    """
    with loading():
        from holdfast.cli.run_settings import Wishes
        from holdfast.engine.submission import DEFAULT_QUEUE
        from holdfast.fleet.cron import Cron
        from holdfast.fleet.schedules import Schedule
        from holdfast.workflows.workflow import load_workflow

    when = Cron(cron, zone)
    loaded = load_workflow(flow)
    inputs = loaded.read_inputs(*read_inputs(inputs_file, pairs))
    wishes = Wishes(skip_gates=skip_gates)
    wishes.open(loaded, "memory://", interactive=False)
    wanted = Schedule(
        name,
        when,
        loaded.name,
        loaded.begin(inputs),
        wishes.config(loaded),
        queue or DEFAULT_QUEUE,
        priority or 0,
        missed,
    )
    with _opened(chosen_url(store, loaded.store_url())) as schedules:
        line = schedules.add(wanted, replace=replace, by=me())
    return _told(line, as_json)


@schedule.command("list")
@store_option
@json_option
def list_(store: str | None, as_json: bool) -> int:
    """List the schedules. What keeps one from submitting its runs is told as its trouble.

    \b
    Example:
      holdfast schedule list --json
    """
    url = chosen_url(store)
    with _opened(url) as schedules:
        lines = schedules.lines()
    if as_json:
        print_json({"store": url, "schedules": [line.as_json() for line in lines]})
    elif lines:
        columns = ("schedule", "cron", "zone", "workflow", "queue", "next", "last", "run", "trouble")
        print_table(columns, [_row(line) for line in lines])
    else:
        click.echo(f"no schedules in {url}")
    return 0


def _row(line: ScheduleLine) -> list[str]:
    upcoming = "paused" if line.paused else moment(line.next_at)
    last = moment(line.last_at) if line.last_at else ""
    trouble = one_line(line.trouble or "")
    return [
        line.name,
        line.cron,
        line.zone,
        line.workflow,
        line.queue,
        upcoming,
        last,
        line.last_run or "",
        trouble,
    ]


@schedule.command()
@click.argument("name")
@store_option
@json_option
def pause(name: str, store: str | None, as_json: bool) -> int:
    """Let a schedule submit nothing until it is resumed.

    \b
    Example:
      holdfast schedule pause nightly
    """
    return _changed(store, as_json, lambda schedules: schedules.pause(name))


@schedule.command()
@click.argument("name")
@store_option
@json_option
def resume(name: str, store: str | None, as_json: bool) -> int:
    """Let a schedule go on with its next time. Those of the pause are not made up for.

    \b
    Example:
      holdfast schedule resume nightly
    """
    return _changed(store, as_json, lambda schedules: schedules.resume(name))


@schedule.command()
@click.argument("name")
@store_option
@json_option
def remove(name: str, store: str | None, as_json: bool) -> int:
    """Forget a schedule. The runs that it submitted stay.

    \b
    Example:
      holdfast schedule remove nightly
    """
    with _opened(chosen_url(store)) as schedules:
        schedules.remove(name)
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        click.echo(one_line(f"schedule {name} is removed", 2_000))
    return 0


@schedule.command("next")
@click.argument("cron")
@click.option(
    "--zone", default="UTC", show_default=True, metavar="ZONE", help="The time zone of those times."
)
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many times.")
@json_option
def next_(cron: str, zone: str, count: int, as_json: bool) -> int:
    """Print the next times of a cron expression. No store is needed.

    \b
    Example:
      holdfast schedule next "0 9 * * MON-FRI" --zone Europe/Berlin
    """
    from zoneinfo import ZoneInfo

    from holdfast.fleet.cron import Cron

    wanted, at = Cron(cron, zone), dt.datetime.now(dt.UTC)
    times = []
    for _ in range(count):
        at = wanted.next_after(at)
        times.append(at.astimezone(ZoneInfo(zone)))
    if as_json:
        print_json({"cron": cron, "zone": zone, "times": [time.isoformat() for time in times]})
    else:
        click.echo("\n".join(f"{time:%a %Y-%m-%d %H:%M %Z}" for time in times))
    return 0


def _changed(store: str | None, as_json: bool, change: Callable[[Schedules], ScheduleLine]) -> int:
    with _opened(chosen_url(store)) as schedules:
        line = change(schedules)
    return _told(line, as_json)


def _told(line: ScheduleLine, as_json: bool) -> int:
    if as_json:
        print_json(line.as_json())
    elif line.paused:
        click.echo(one_line(f"schedule {line.name} is paused", 2_000))
    else:
        told = f"schedule {line.name} submits {line.workflow} next at {moment(line.next_at)}"
        click.echo(one_line(told, 2_000))
    return 0


@contextmanager
def _opened(url: str) -> Iterator[Schedules]:
    from holdfast.fleet.queues import open_postgres
    from holdfast.fleet.schedules import Schedules

    store = open_postgres(url, "schedules")
    try:
        yield Schedules(store)
    finally:
        store.close()
