"""`holdfast events`: what happened in a run, from its journal, and what is happening now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.display.tables import json_text
from holdfast.cli.display.text import moment, one_line
from holdfast.cli.errors import INTERRUPTED
from holdfast.cli.reading import held_reason, json_option, line_of, reading_run
from holdfast.cli.store_option import store_option
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.views import Timeline

OPEN = (RunStatus.RUNNING, RunStatus.PAUSED)
"""How a run stands that may go on by itself or once it is answered."""


@click.command()
@click.argument("run", metavar="RUN|WORKFLOW")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends; a paused run has not ended.")
@click.option(
    "--since",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="SEQ",
    help="Only what was stored after this entry of the journal.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.02),
    default=0.3,
    show_default=True,
    metavar="SECONDS",
    help="How often --follow looks.",
)
@store_option
@json_option
def events(run: str, follow: bool, since: int, every: float, store: str | None, as_json: bool) -> int:
    """Tell what happened in a run, one line a moment, oldest first.

    RUN is a run's id or its beginning, or a workflow's name or file, which means its latest run. With --json
    every line is one JSON object with the keys seq, at, type, step, text and data.

    \b
    Example:
      holdfast events research --follow
      holdfast events research --json | jq -r 'select(.type == "node.error") | .text'
    """
    from holdfast.views import Timeline

    journal, run = reading_run(store, run)
    run_id = line_of(journal, run).run_id
    told = Timeline(journal, run_id, since)
    try:
        _print(told, as_json)
        while follow and _goes_on(journal, run_id, told):
            time.sleep(every)
            _print(told, as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _print(told: Timeline, as_json: bool) -> None:
    for each in told.read():
        text = f"{moment(each.at)}  {each.seq:>5}  {one_line(each.text, 500)}"
        click.echo(json_text(each.as_json(), indent=None) if as_json else text)


def _goes_on(journal: Journal, run_id: str, told: Timeline) -> bool:
    if told.status not in OPEN:
        return False
    line = line_of(journal, run_id)
    is_lost = line.is_dead and (not line.is_orphaned or held_reason(journal, line) is not None)
    if is_lost and told.status == RunStatus.RUNNING:
        click.echo(f"the process of run {run_id!r} is gone; nothing follows until it is resumed", err=True)
        return False
    return True
