"""`holdfast diff`: what differs between two moments of runs."""

from __future__ import annotations

import click

from holdfast.cli.display.tables import print_json, terminal_width
from holdfast.cli.display.text import one_line
from holdfast.cli.errors import COMPLETED, FAILED
from holdfast.cli.moments import reading_moments
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import store_option

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
    from holdfast.engine.travel.differing import diff_moments

    journal, (first, *second) = reading_moments(store, one, *([] if other is None else [other]))
    found = diff_moments(journal, first, second[0] if second else None, keys)
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
        from holdfast.cli.display.diff_text import print_difference

        most = None if show_all else max_lines or MOST_LINES
        print_difference(found, journal.store.url, width or terminal_width(), most)
    return FAILED if exit_code and found else COMPLETED
