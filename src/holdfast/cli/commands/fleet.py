"""`holdfast queue` and `holdfast schedule`: limits of queues, and runs that are submitted again and again."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo

import click

from holdfast.cli.inputs import read_inputs
from holdfast.cli.options import (
    INPUT,
    INPUTS_FILE,
    JSON,
    MOST,
    PRIORITY,
    QUEUE,
    SKIP_GATES,
    STORE,
    WORKFLOW,
    RunOptions,
)
from holdfast.cli.render import duration, local_time, one_line, print_table
from holdfast.cli.session import Session, command
from holdfast.engine.submission import DEFAULT_QUEUE
from holdfast.errors import RunNotFound
from holdfast.fleet.cron import Cron
from holdfast.fleet.queues import Limit, Limits, QueueLine, Rate, open_postgres, queue_lines
from holdfast.fleet.schedules import Schedule, ScheduleLine, Schedules
from holdfast.journal.provenance import me
from holdfast.workflows.workflow import load_workflow

NAME = click.argument("name")
Answer = TypeVar("Answer")


@click.group()
def queue() -> None:
    """List queues, limit and pause them. A queue exists as soon as a run is submitted to it.

    \b
    Example:
      holdfast queue list
      holdfast queue set mail --max-running 5 --rate 100/60
      holdfast queue pause mail
    """


@command(STORE, JSON, group=queue, name="list")
def list_queues(session: Session) -> None:
    """List the queues, what waits in them, and their limits.

    Of the runs that are queued or asleep, `due` ones could start now; `oldest` is how long the first of them has been
    waiting. `held` ones made no progress in three attempts: `show` says why, and `resume --detach` lets workers try
    again.

    \b
    Example:
      holdfast queue list --store postgresql://localhost/jobs
    """
    url = session.url()
    try:
        lines = queue_lines(session.store)
    except RunNotFound:
        lines = []
    if session.as_json or not lines:
        empty = f"no runs wait in {url}; submit one with: holdfast submit WORKFLOW.yaml"
        session.print({"store": url, "queues": lines}, empty)
        return
    columns = ("queue", "queued", "due", "running", "paused", "held", "oldest", "limits")
    print_table(columns, map(_queue_row, lines))


def _queue_row(line: QueueLine) -> list[str]:
    counts = (line.queued, line.due, line.running, line.paused, line.held)
    oldest = "" if line.oldest is None else duration(line.oldest)
    return [line.queue, *map(str, counts), oldest, _limit_text(line.limit)]


def _limit_text(limit: Limit | None) -> str:
    if limit is None:
        return ""
    parts = ["paused"] if limit.paused else []
    parts += [f"{limit.max_running} at once"] if limit.max_running is not None else []
    parts += [f"{limit.rate.starts} in {duration(limit.rate.seconds)}"] if limit.rate is not None else []
    return ", ".join(parts)


@command(
    NAME,
    click.option(
        "--max-running",
        type=click.IntRange(1, MOST),
        metavar="N",
        help="How many of its runs execute at once.",
    ),
    click.option(
        "--rate",
        metavar="N/SECONDS",
        help="How many may start in so many seconds, as in 100/60: that many at once, then more as time goes by.",
    ),
    STORE,
    JSON,
    group=queue,
    name="set",
)
def set_limit(session: Session, name: str, max_running: int | None, rate: str | None) -> None:
    """Limit a queue, on PostgreSQL. Limits that are not given stay.

    \b
    Example:
      holdfast queue set mail --max-running 5
      holdfast queue set mail --rate 100/60
    """
    if max_running is None and rate is None:
        raise click.UsageError("say what the limit is: --max-running N, --rate N/SECONDS, or both")
    wanted = None if rate is None else _rate(rate)
    _change(session, name, lambda limits: limits.set(name, max_running=max_running, rate=wanted))


def _rate(text: str) -> Rate:
    found = re.fullmatch(r"\s*(\d{1,10})\s*/\s*(\d{0,12}(?:\.\d{1,6})?)\s*s?", text)
    if found is None or not found[2]:
        raise click.BadParameter(f"--rate {text!r} is not N/SECONDS, as in 100/60")
    return Rate(int(found[1]), float(found[2]))


@command(NAME, STORE, JSON, group=queue, name="pause")
def pause_queue(session: Session, name: str) -> None:
    """Let workers start nothing from a queue. What they are executing goes on.

    \b
    Example:
      holdfast queue pause mail
    """
    _change(session, name, lambda limits: limits.pause(name))


@command(NAME, STORE, JSON, group=queue, name="resume")
def resume_queue(session: Session, name: str) -> None:
    """Let workers start what waits in a queue again.

    \b
    Example:
      holdfast queue resume mail
    """
    _change(session, name, lambda limits: limits.resume(name))


@command(NAME, STORE, JSON, group=queue, name="unset")
def unset_limit(session: Session, name: str) -> None:
    """Remove a queue's limits. If it is paused, it stays so.

    \b
    Example:
      holdfast queue unset mail
    """
    _change(session, name, lambda limits: limits.unset(name))


def _change(session: Session, name: str, change: Callable[[Limits], object]) -> None:
    """Change the limits of a queue and print them."""
    with closing(open_postgres(session.url(), "limits of queues")) as opened:
        limits = Limits(opened)
        change(limits)
        found = next((limit for limit in limits.lines() if limit.queue == name), Limit(name))
    facts = QueueLine(name, limit=found).as_json()
    shown = {key: facts[key] for key in ("queue", "max_running", "rate", "is_paused")}
    session.print(shown, f"queue {name}: {_limit_text(found) or 'no limits'}")


# Schedules.


_CRON_HELP = (
    "minute hour day month weekday, as in '*/5 * * * *' or '0 9 * * MON-FRI'; "
    "or @hourly, @daily, @weekly, @monthly, @yearly"
)
ZONE = click.option(
    "--zone", default="UTC", show_default=True, metavar="ZONE", help="The time zone of those times."
)


@click.group()
def schedule() -> None:
    """Submit a workflow's runs at the times of a cron expression; PostgreSQL only.

    The workers of the store submit the runs, by the clock of its server, each time once however many workers there are.

    \b
    Example:
      holdfast schedule add nightly report.yaml --cron "0 2 * * *" --zone Europe/Berlin
      holdfast schedule list
      holdfast schedule next "0 2 * * *" --count 3
    """


@command(
    NAME,
    WORKFLOW,
    click.option("--cron", required=True, metavar="CRON", help=f"When: {_CRON_HELP}."),
    ZONE,
    INPUT,
    INPUTS_FILE,
    QUEUE,
    PRIORITY,
    click.option(
        "--missed",
        type=click.Choice(("skip", "one", "all")),
        default="one",
        show_default=True,
        help="Times that passed while no worker ran get no run, one run together, or a run each (the last 100).",
    ),
    SKIP_GATES,
    click.option("--replace", is_flag=True, help="Replace the schedule of that name, if there is one."),
    STORE,
    JSON,
    group=schedule,
)
def add(
    session: Session,
    name: str,
    workflow: Path,
    cron: str,
    zone: str,
    pairs: tuple[str, ...],
    inputs_file: str | None,
    queue: str | None,
    priority: int | None,
    missed: str,
    skip_gates: bool,
    replace: bool,
) -> None:
    """Add a schedule. The file and the inputs are checked now, as `run` checks them.

    Every run carries the workflow as the file is now; add it again with --replace when the file has changed. Times are
    in the schedule's zone. Where clocks are put forward, a time that is skipped comes at the end of the gap; where they
    are put back, a time that comes twice has one run.

    \b
    Example:
      holdfast schedule add nightly report.yaml --cron "0 2 * * *" -i topic=tides --queue night
    """
    when = Cron(cron, zone)
    loaded = load_workflow(workflow)
    inputs = loaded.read_inputs(*read_inputs(inputs_file, pairs))
    options = RunOptions(skip_gates=skip_gates)
    options.open(loaded, "memory://")
    wanted = Schedule(
        name,
        when,
        loaded.name,
        loaded.begin(inputs),
        options.config(loaded),
        queue or DEFAULT_QUEUE,
        priority or 0,
        missed,
    )
    url = session.url(loaded.store_url())
    _print_schedule(session, _scheduled(url, lambda known: known.add(wanted, replace=replace, by=me())))


@command(STORE, JSON, group=schedule, name="list")
def list_schedules(session: Session) -> None:
    """List the schedules. The column `trouble` says why a schedule submits nothing.

    \b
    Example:
      holdfast schedule list --json
    """
    url = session.url()
    lines = _scheduled(url, Schedules.lines)
    if session.as_json or not lines:
        session.print({"store": url, "schedules": lines}, f"no schedules in {url}")
        return
    columns = ("schedule", "cron", "zone", "workflow", "queue", "next", "last", "run", "trouble")
    print_table(columns, map(_schedule_row, lines))


def _schedule_row(line: ScheduleLine) -> list[str]:
    upcoming = "paused" if line.paused else local_time(line.next_at)
    last = [local_time(line.last_at), line.last_run or "", one_line(line.trouble or "")]
    return [line.name, line.cron, line.zone, line.workflow, line.queue, upcoming, *last]


@command(NAME, STORE, JSON, group=schedule, name="pause")
def pause_schedule(session: Session, name: str) -> None:
    """Let a schedule submit nothing until it is resumed.

    \b
    Example:
      holdfast schedule pause nightly
    """
    _print_schedule(session, _scheduled(session.url(), lambda known: known.pause(name)))


@command(NAME, STORE, JSON, group=schedule, name="resume")
def resume_schedule(session: Session, name: str) -> None:
    """Let a schedule continue with its next time. The times of the pause are skipped.

    \b
    Example:
      holdfast schedule resume nightly
    """
    _print_schedule(session, _scheduled(session.url(), lambda known: known.resume(name)))


@command(NAME, STORE, JSON, group=schedule)
def remove(session: Session, name: str) -> None:
    """Remove a schedule. The runs that it submitted stay.

    \b
    Example:
      holdfast schedule remove nightly
    """
    _scheduled(session.url(), lambda known: known.remove(name))
    session.print({"name": name, "removed": True}, f"schedule {name} is removed")


@command(
    click.argument("cron"),
    ZONE,
    click.option(
        "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many times."
    ),
    JSON,
    group=schedule,
    name="next",
)
def next_times(session: Session, cron: str, zone: str, count: int) -> None:
    """Print the next times of a cron expression. No store is needed.

    \b
    Example:
      holdfast schedule next "0 9 * * MON-FRI" --zone Europe/Berlin
    """
    wanted, at, times = Cron(cron, zone), dt.datetime.now(dt.UTC), []
    for _ in range(count):
        at = wanted.next_after(at)
        times.append(at.astimezone(ZoneInfo(zone)))
    data = {"cron": cron, "zone": zone, "times": [time.isoformat() for time in times]}
    session.print(data, *(f"{time:%a %Y-%m-%d %H:%M %Z}" for time in times))


def _scheduled(url: str, ask: Callable[[Schedules], Answer]) -> Answer:
    with closing(open_postgres(url, "schedules")) as store:
        return ask(Schedules(store))


def _print_schedule(session: Session, line: ScheduleLine) -> None:
    if line.paused:
        session.print(line, f"schedule {line.name} is paused")
    else:
        upcoming = local_time(line.next_at)
        session.print(line, f"schedule {line.name} submits {line.workflow} next at {upcoming}")
