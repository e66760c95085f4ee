"""`holdfast history`: a run's checkpoints, what happened between them, and the forks."""

from __future__ import annotations

import click

from holdfast.cli.display.tables import print_json, terminal_width
from holdfast.cli.display.text import one_line
from holdfast.cli.errors import COMPLETED, FAILED
from holdfast.cli.reading import json_option, reading_moments
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
    from holdfast.cli.display import history as history_text
    from holdfast.engine.time_travel.queries import run_forks, run_history

    if tree and (limit is not None or before is not None):
        raise click.UsageError("--tree shows runs, not checkpoints; leave --limit and --before out")
    if show_all and limit is not None:
        raise click.UsageError("give either --all or --limit")
    journal, (moment,) = reading_moments(store, run)
    url = journal.store.url
    if tree:
        family = run_forks(journal, moment)
        if as_json:
            print_json({"store": url, **family.as_json()})
        else:
            history_text.print_family(family, show_all)
        return 0
    page = run_history(journal, moment, limit=None if show_all else limit or PAGE, before=before)
    if as_json:
        print_json({"store": url, **page.as_json()})
    else:
        history_text.print_history(page, url)
    return 0


# `holdfast runs compare`: what two runs did differently.


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
      holdfast runs compare research 3f2a
      holdfast runs compare 3f2a 77b1 --json | jq .diverging
    """
    from holdfast.cli.display.history import print_comparison
    from holdfast.engine.time_travel.queries import compare_runs

    journal, (first, second) = reading_moments(store, one, other)
    found = compare_runs(journal, first, second)
    if as_json:
        print_json({"store": journal.store.url, **found.as_json()})
    else:
        print_comparison(found, terminal_width(), show_all)
    return 0


# `holdfast diff`: what differs between two moments of runs.


MOST_LINES = 200


@click.command()
@click.argument("one", metavar="MOMENT")
@click.argument("other", metavar="[MOMENT]", required=False)
@click.option(
    "--key", "keys", multiple=True, metavar="KEY", help="Only this key of the state; may be repeated."
)
@click.option(
    "--patch",
    is_flag=True,
    help="Print a JSON Patch (RFC 6902) that makes the one state the other; "
    "standard error names the keys that it leaves out.",
)
@click.option(
    "--max-lines",
    type=click.IntRange(1),
    metavar="N",
    help=f"At most so many lines of changes; {MOST_LINES} unless it is given.",
)
@click.option("--all", "show_all", is_flag=True, help="All lines, however many there are.")
@click.option(
    "--width",
    type=click.IntRange(40),
    metavar="N",
    help="Cut lines after so many characters; as the terminal is.",
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 if the states differ.")
@store_option
@json_option
def diff(
    one: str,
    other: str | None,
    keys: tuple[str, ...],
    patch: bool,
    max_lines: int | None,
    show_all: bool,
    width: int | None,
    exit_code: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Tell what differs between two moments of any runs.

    One moment alone is compared with the checkpoint before it. A moment is a run's id or its beginning
    (4 characters or more), a checkpoint's id, or a workflow's name or file, which means its latest run.
    RUN@3 is after wave 3, RUN@-1 one checkpoint before the newest, RUN@STEP after the last time that a step
    finished, RUN@STEP#2 after the second.

    \b
    Example:
      holdfast diff research
      holdfast diff research@2 research@5 --key draft
      holdfast diff good-run bad-run --patch | jq length
    """
    if show_all and max_lines is not None:
        raise click.UsageError("give either --all or --max-lines")
    if (patch or as_json) and (show_all or max_lines is not None or width is not None):
        raise click.UsageError("--all, --max-lines and --width are for text; --json and --patch are whole")
    if patch and as_json:
        raise click.UsageError("give either --json or --patch, which is JSON already")
    from holdfast.engine.time_travel.queries import diff_states

    journal, (first, *second) = reading_moments(store, one, *([] if other is None else [other]))
    found = diff_states(journal, first, second[0] if second else None, keys=keys)
    if patch:
        print_json(found.patch)
        for key, reason in found.not_compared.items():
            click.echo(
                f"the patch leaves out {one_line(key)}, which was not compared: {one_line(reason, 500)}",
                err=True,
            )
    elif as_json:
        print_json({"store": journal.store.url, **found.as_json()})
    else:
        from holdfast.cli.display.diff import print_difference

        most = None if show_all else max_lines or MOST_LINES
        print_difference(found, journal.store.url, width or terminal_width(), most)
    return FAILED if exit_code and found else COMPLETED
