"""`holdfast queue`: how queues stand, and what limits them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from holdfast.cli.display.tables import print_json, print_table
from holdfast.cli.display.text import duration, one_line
from holdfast.cli.options import MOST
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import chosen_url, open_existing, store_option
from holdfast.errors import RunNotFound

if TYPE_CHECKING:
    from holdfast.fleet.queues import Limit, Limits, QueueLine, Rate


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
        click.echo(f"no runs wait in {url}; submit one with: holdfast submit WORKFLOW.yaml")
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
    from holdfast.fleet.queues import Rate

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
    from holdfast.fleet.queues import Limit, Limits, QueueLine, open_postgres

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
        click.echo(one_line(f"queue {name}: {_told(found) or 'no limits'}", 2_000))
    return 0
