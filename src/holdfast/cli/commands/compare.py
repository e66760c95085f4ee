"""`holdfast compare`: what two runs did differently."""

from __future__ import annotations

import click

from holdfast.cli.display.tables import print_json, terminal_width
from holdfast.cli.moments import reading_moments
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import store_option


@click.command()
@click.argument("one", metavar="RUN")
@click.argument("other", metavar="OTHER")
@click.option("--all", "show_all", is_flag=True, help="All steps and changes, however many there are.")
@store_option
@json_option
def compare(one: str, other: str, show_all: bool, store: str | None, as_json: bool) -> int:
    """Compare two runs, usually forks of one: where they part, steps, results, time, money, status and code.

    RUN and OTHER are runs' ids or their beginnings, workflows' names, or moments as in `holdfast diff`. Runs that do
    not come from one are compared from their beginnings.

    \b
    Example:
      holdfast compare research 3f2a
      holdfast compare 3f2a 77b1 --json | jq .diverging
    """
    from holdfast.cli.display.compare_text import print_comparison
    from holdfast.engine.travel.comparing import compare_moments

    journal, (first, second) = reading_moments(store, one, other)
    found = compare_moments(journal, first, second)
    if as_json:
        print_json({"store": journal.store.url, **found.as_json()})
    else:
        print_comparison(found, terminal_width(), show_all)
    return 0
