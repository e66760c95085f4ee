"""`holdfast cost`: what runs have used up, and what they saved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.display.tables import print_json
from holdfast.cli.display.text import one_line
from holdfast.cli.moments import reading_moments
from holdfast.cli.reading import json_option, reading
from holdfast.cli.store_option import store_option

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo

BY = ("step", "model", "run", "workflow", "day")
_LONGEST = 1000


@click.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1)
@click.option("--workflow", metavar="NAME", help="All runs of this workflow.")
@click.option("--since", metavar="TIME", help="Only what was used up in the last 7d, 12h, 30m.")
@click.option(
    "--by",
    type=click.Choice(BY),
    help="What to tell apart; the steps of one run, or several runs, unless it is given. Days are in UTC.",
)
@click.option("--family", is_flag=True, help="The RUN, what it was forked from, and all forks of these.")
@click.option("--ids", is_flag=True, help="Tell each visit and each item of a step apart.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many lines.")
@store_option
@json_option
def cost(
    runs: tuple[str, ...],
    workflow: str | None,
    since: str | None,
    by: str | None,
    family: bool,
    ids: bool,
    limit: int,
    store: str | None,
    as_json: bool,
) -> int:
    """Tell what runs have used up: tokens, money, time; what of it was in vain, and what resumes saved.

    RUN is a run's id or its beginning (4 characters or more), a workflow's name or file, which means its latest
    run, or a moment such as RUN@3, which means by then. Without one all runs count. What a fork inherited was used
    up by the run that it was forked from, so over several runs nothing is counted twice.

    \b
    Example:
      holdfast cost research
      holdfast cost research --family --by run
      holdfast cost --since 7d --by model --json
    """
    if runs and workflow is not None:
        raise click.UsageError("give either RUNs or --workflow")
    if family and len(runs) != 1:
        raise click.UsageError("--family takes one RUN")
    if ids and by not in (None, "step"):
        raise click.UsageError("--ids tells steps apart; give it with --by step, or without --by")
    begin = None if since is None else time.time() - _seconds(since)
    if len(runs) == 1 and by is None and not family and begin is None:
        return _of_one(runs[0], ids, limit, store, as_json)
    return _of_many(
        runs, workflow, begin, by or ("step" if ids else "run"), family, ids, limit, store, as_json
    )


def _seconds(text: str) -> float:
    from holdfast.flows.model import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise click.BadParameter(f"--since: {error}") from None


def _of_one(target: str, ids: bool, limit: int, store: str | None, as_json: bool) -> int:
    from holdfast.cli.display.cost_text import print_ledger
    from holdfast.engine.travel.moments import find_moment
    from holdfast.views.ledger import ledger

    journal, (meant,) = reading_moments(store, target)
    moment = find_moment(journal.store, meant)
    found = ledger(journal, moment.info.run, upto=moment.seq)
    if as_json:
        print_json({**found.as_json(ids=ids), "store": journal.store.url})
    else:
        print_ledger(found, ids, limit)
    return 0


def _of_many(
    runs: tuple[str, ...],
    workflow: str | None,
    since: float | None,
    by: str,
    family: bool,
    ids: bool,
    limit: int,
    store: str | None,
    as_json: bool,
) -> int:
    from holdfast.cli.display.cost_text import print_rows
    from holdfast.views.amounts import row_of, rows
    from holdfast.views.ledger import charges_of

    journal, meant = reading_moments(store, *runs) if runs else (reading(store), [])
    found = _runs(journal, meant, workflow, since, family)
    unread: dict[str, str] = {}
    charges = list(
        charges_of(
            journal,
            [info.run for info in found],
            since=since,
            unreadable=lambda run, error: unread.update({run: str(error)}),
        )
    )
    whole, parts = row_of("total", charges), rows(charges, by, ids=ids)
    if as_json:
        print_json(
            {
                "store": journal.store.url,
                "by": by,
                "runs": len(found),
                "total": whole.as_json(),
                "rows": [row.as_json() for row in parts[:limit]],
                "more": max(0, len(parts) - limit),
                "unreadable": [{"run_id": run, "error": error} for run, error in unread.items()],
            }
        )
    elif found:
        print_rows(by, whole, parts, limit, len(found))
    else:
        click.echo(f"no runs in {journal.store.url} that match")
    for error in unread.values():
        click.echo(f"left out, since it cannot be read: {one_line(error, _LONGEST)}", err=True)
    return 0


def _runs(
    journal: Journal, meant: list[str], workflow: str | None, since: float | None, family: bool
) -> list[RunInfo]:
    """The runs that are meant, each once."""
    from holdfast.engine.travel.moments import find_moment
    from holdfast.values import RunStatus
    from holdfast.views import ledger

    if not meant:
        every = journal.store.runs(workflow=workflow)
        # The facts of a run whose process died are as old as its start.
        return [
            info
            for info in every
            if since is None or info.updated_at >= since or info.status == RunStatus.RUNNING
        ]
    moments = [find_moment(journal.store, text) for text in meant]
    for text, moment in zip(meant, moments, strict=True):
        if moment.seq is not None:
            raise click.UsageError(f"{text} is a moment of a run; give it alone, without --by and --since")
    if family:
        return ledger.family(journal, moments[0].info.run)
    return list({moment.info.run: moment.info for moment in moments}.values())
