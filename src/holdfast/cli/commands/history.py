"""`holdfast history`: a run's checkpoints, what happened between them, and the forks."""

from __future__ import annotations

import click

from holdfast.cli.display.tables import print_json
from holdfast.cli.moments import reading_moments
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import store_option

PAGE = 20


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"At most so many checkpoints; {PAGE} unless given.",
)
@click.option(
    "--before", metavar="CHECKPOINT", help="Those before this one: the next page. An id, or @3, @-1, @STEP."
)
@click.option("--all", "show_all", is_flag=True, help="All checkpoints, however many there are.")
@click.option(
    "--tree", is_flag=True, help="Show the runs that it was forked from and that were forked from it."
)
@store_option
@json_option
def history(
    run: str,
    limit: int | None,
    before: str | None,
    show_all: bool,
    tree: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """List a run's checkpoints, newest first, each with what happened since the one before.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name or file, which means its latest
    run; RUN@3 begins after wave 3. Each line has the checkpoint's id, the steps that finished, their time and money,
    the steps that came next, and what was changed. With --tree: the forks, where each branched off, how it stands,
    and what it spent itself.

    \b
    Example:
      holdfast history research
      holdfast history research -n 5 --before 6eca4c13-89b6-47b8-9f78-4c0b03999354
      holdfast history research --tree
    """
    from holdfast.cli.display import history_text
    from holdfast.engine.travel.looking import family_of, history_page

    if tree and (limit is not None or before is not None):
        raise click.UsageError("--tree shows runs, not checkpoints; leave --limit and --before out")
    if show_all and limit is not None:
        raise click.UsageError("give either --all or --limit")
    journal, (moment,) = reading_moments(store, run)
    url = journal.store.url
    if tree:
        family = family_of(journal, moment)
        if as_json:
            print_json({"store": url, **family.as_json()})
        else:
            history_text.print_family(family, show_all)
        return 0
    page = history_page(journal, moment, None if show_all else limit or PAGE, before)
    if as_json:
        print_json({"store": url, **page.as_json()})
    else:
        history_text.print_history(page, url)
    return 0
