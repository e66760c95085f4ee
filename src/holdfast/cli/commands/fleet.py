"""`holdfast queue` and `holdfast schedule`: limits of queues, and runs that are submitted again and again."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from holdfast.cli.options import (
    INPUT,
    INPUTS_FILE,
    JSON,
    MOST,
    PRIORITY,
    QUEUE,
    SKIP_GATES,
    STORE,
    STORE_ONLY,
    WORKFLOW,
    Options,
    RunOptions,
    choice,
    flag,
    option,
    value,
)
from holdfast.cli.questions import read_inputs
from holdfast.cli.render import local_time
from holdfast.cli.session import Session, command
from holdfast.engine.submission import DEFAULT_QUEUE
from holdfast.errors import RunNotFound
from holdfast.fleet.cron import Cron
from holdfast.fleet.queues import Limit, Limits, QueueLine, Rate, open_postgres, queue_lines
from holdfast.fleet.schedules import Schedule, ScheduleLine, Schedules
from holdfast.journal.provenance import me
from holdfast.views.terminal import duration, one_line
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
def list_queues(session: Session, options: Options) -> None:
    """List the queues, what waits in them, and their limits.

    Of the runs that are queued or asleep, `due` ones could start now; `oldest` is how long the first of them has been
    waiting. `held` ones made no progress in three attempts: `show` says why, and `resume --detach` lets workers try
    again.

    \b
    Example:
      holdfast queue list --store postgresql://localhost/jobs
    """
    try:
        lines = queue_lines(session.store)
    except RunNotFound:
        lines = []
    columns = ("queue", "queued", "due", "running", "paused", "held", "oldest", "limits")
    empty = "no runs wait in {url}; submit one with: holdfast submit WORKFLOW.yaml"
    session.print_rows("queues", lines, columns, _queue_row, empty)


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
    value("--max-running", "N", "How many of its runs execute at once.", type=click.IntRange(1, MOST)),
    value(
        "--rate",
        "N/SECONDS",
        "How many may start in so many seconds, as in 100/60: that many at once, then more as time goes by.",
    ),
    STORE,
    JSON,
    group=queue,
    name="set",
)
def set_limit(session: Session, options: Options) -> None:
    """Limit a queue, on PostgreSQL. Limits that are not given stay.

    \b
    Example:
      holdfast queue set mail --max-running 5
      holdfast queue set mail --rate 100/60
    """
    if options.max_running is None and options.rate is None:
        raise click.UsageError("say what the limit is: --max-running N, --rate N/SECONDS, or both")
    given = {"max_running": options.max_running, "rate": None}
    if (text := options.rate) is not None:
        found = re.fullmatch(r"\s*(\d{1,10})\s*/\s*(\d{0,12}(?:\.\d{1,6})?)\s*s?", text)
        if found is None or not found[2]:
            raise click.BadParameter(f"--rate {text!r} is not N/SECONDS, as in 100/60")
        given["rate"] = Rate(int(found[1]), float(found[2]))
    _change(session, options.name, "set", **given)


@command(NAME, STORE, JSON, group=queue, name="pause")
def pause_queue(session: Session, options: Options) -> None:
    """Let workers start nothing from a queue. What they are executing goes on.

    \b
    Example:
      holdfast queue pause mail
    """
    _change(session, options.name, "pause")


@command(NAME, STORE, JSON, group=queue, name="resume")
def resume_queue(session: Session, options: Options) -> None:
    """Let workers start what waits in a queue again.

    \b
    Example:
      holdfast queue resume mail
    """
    _change(session, options.name, "resume")


@command(NAME, STORE, JSON, group=queue, name="unset")
def unset_limit(session: Session, options: Options) -> None:
    """Remove a queue's limits. If it is paused, it stays so.

    \b
    Example:
      holdfast queue unset mail
    """
    _change(session, options.name, "unset")


def _change(session: Session, name: str, change: str, **given: Any) -> None:
    """Change the limits of a queue by a method of `Limits`, and print them."""
    with closing(open_postgres(session.url(), "limits of queues")) as opened:
        limits = Limits(opened)
        getattr(limits, change)(name, **given)
        found = next((limit for limit in limits.lines() if limit.queue == name), Limit(name))
    facts = QueueLine(name, limit=found).as_json()
    shown = {key: facts[key] for key in ("queue", "max_running", "rate", "is_paused")}
    session.print(shown, f"queue {name}: {_limit_text(found) or 'no limits'}")


# Schedules.


_CRON_HELP = (
    "minute hour day month weekday, as in '*/5 * * * *' or '0 9 * * MON-FRI'; "
    "or @hourly, @daily, @weekly, @monthly, @yearly"
)
ZONE = value("--zone", "ZONE", "The time zone of those times.", default="UTC", show_default=True)


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
    value("--cron", "CRON", f"When: {_CRON_HELP}.", required=True),
    ZONE,
    INPUT,
    INPUTS_FILE,
    QUEUE,
    PRIORITY,
    choice(
        "--missed",
        ("skip", "one", "all"),
        "Times that passed while no worker ran get no run, one run together, or a run each (the last 100).",
        "one",
    ),
    SKIP_GATES,
    flag("--replace", "Replace the schedule of that name, if there is one."),
    STORE_ONLY,
    JSON,
    group=schedule,
)
def add(session: Session, options: Options) -> None:
    """Add a schedule. The file and the inputs are checked now, as `run` checks them.

    Every run carries the workflow as the file is now; add it again with --replace when the file has changed. Times are
    in the schedule's zone. Where clocks are put forward, a time that is skipped comes at the end of the gap; where they
    are put back, a time that comes twice has one run.

    \b
    Example:
      holdfast schedule add nightly report.yaml --cron "0 2 * * *" -i topic=tides --queue night
    """
    when = Cron(options.cron, options.zone)
    loaded = load_workflow(options.workflow)
    inputs = loaded.read_inputs(*read_inputs(options.inputs_file, options.pairs))
    stored = RunOptions(skip_gates=options.skip_gates)
    stored.open(loaded, "memory://")
    wanted = Schedule(
        options.name,
        when,
        loaded.name,
        loaded.begin(inputs),
        stored.config(loaded),
        options.queue or DEFAULT_QUEUE,
        options.priority or 0,
        options.missed,
    )
    url = session.url(loaded.store_url())
    _print_schedule(
        session, _scheduled(url, lambda known: known.add(wanted, replace=options.replace, by=me()))
    )


@command(STORE, JSON, group=schedule, name="list")
def list_schedules(session: Session, options: Options) -> None:
    """List the schedules. The column `trouble` says why a schedule submits nothing.

    \b
    Example:
      holdfast schedule list --json
    """
    lines = _scheduled(session.url(), Schedules.lines)
    columns = ("schedule", "cron", "zone", "workflow", "queue", "next", "last", "run", "trouble")
    session.print_rows("schedules", lines, columns, _schedule_row, "no schedules in {url}")


def _schedule_row(line: ScheduleLine) -> list[str]:
    upcoming = "paused" if line.paused else local_time(line.next_at)
    last = [local_time(line.last_at), line.last_run or "", one_line(line.trouble or "")]
    return [line.name, line.cron, line.zone, line.workflow, line.queue, upcoming, *last]


@command(NAME, STORE, JSON, group=schedule, name="pause")
def pause_schedule(session: Session, options: Options) -> None:
    """Let a schedule submit nothing until it is resumed.

    \b
    Example:
      holdfast schedule pause nightly
    """
    _print_schedule(session, _scheduled(session.url(), lambda known: known.pause(options.name)))


@command(NAME, STORE, JSON, group=schedule, name="resume")
def resume_schedule(session: Session, options: Options) -> None:
    """Let a schedule continue with its next time. The times of the pause are skipped.

    \b
    Example:
      holdfast schedule resume nightly
    """
    _print_schedule(session, _scheduled(session.url(), lambda known: known.resume(options.name)))


@command(NAME, STORE, JSON, group=schedule)
def remove(session: Session, options: Options) -> None:
    """Remove a schedule. The runs that it submitted stay.

    \b
    Example:
      holdfast schedule remove nightly
    """
    name = options.name
    _scheduled(session.url(), lambda known: known.remove(name))
    session.print({"name": name, "removed": True}, f"schedule {name} is removed")


@command(
    click.argument("cron"),
    ZONE,
    option("--count", "How many times.", type=click.IntRange(1, 1000), default=5, show_default=True),
    JSON,
    group=schedule,
    name="next",
)
def next_times(session: Session, options: Options) -> None:
    """Print the next times of a cron expression. No store is needed.

    \b
    Example:
      holdfast schedule next "0 9 * * MON-FRI" --zone Europe/Berlin
    """
    cron, zone = options.cron, options.zone
    wanted, at, times = Cron(cron, zone), dt.datetime.now(dt.UTC), []
    for _ in range(options.count):
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
