"""`holdfast runs tag`, `runs note` and `checkpoints keep`: tags and notes of runs and checkpoints."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.tables import print_json
from holdfast.cli.display.text import moment, one_line, visible
from holdfast.cli.reading import by_option, json_option, meant_moment
from holdfast.cli.store_option import chosen_url, open_existing, open_journal, store_option
from holdfast.journal.provenance import me

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.views.run_view import RemarkView


TIMEOUT = 1.0
"""Seconds to wait until the process that executes the run has recorded it."""

_target = click.argument("target", metavar="RUN|MOMENT")


@click.command()
@_target
@click.argument("tags", metavar="[TAG...]", nargs=-1)
@click.option("--remove", multiple=True, metavar="TAG", help="Remove this tag; may be repeated.")
@by_option
@store_option
@json_option
def tag(
    target: str,
    tags: tuple[str, ...],
    remove: tuple[str, ...],
    by: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Tag a run or a checkpoint, or tell its tags.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name, which means its latest run;
    `holdfast runs --tag` finds tagged runs. A moment such as RUN@3 or a checkpoint's id tags that checkpoint. Runs
    may be completed; whoever drives one writes it down between two steps.

    \b
    Example:
      holdfast runs tag research good reviewed
      holdfast runs tag research@3 before-the-crash
      holdfast runs tag research --remove good
    """
    from holdfast.engine.commands import control

    with _journal(store, target) as (journal, meant):
        if not tags and not remove:
            return _tell(journal, meant, as_json, "tags")
        answer = control.annotate(journal, meant, add=tags, remove=remove, by=by or me(), timeout=TIMEOUT)
        told = [
            f"tagged {', '.join(tags)}" if tags else "",
            f"no longer tagged {', '.join(remove)}" if remove else "",
        ]
        return _said(journal, meant, answer, ", ".join(part for part in told if part), as_json, "tag")


@click.command()
@_target
@click.argument("text", metavar="[TEXT]", required=False)
@by_option
@store_option
@json_option
def note(target: str, text: str | None, by: str | None, store: str | None, as_json: bool) -> int:
    """Write a note to a run or a checkpoint, or read them.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name, which means its latest run. A
    moment such as RUN@3 or a checkpoint's id is that checkpoint. Notes are never changed or removed. TEXT of - is
    read from stdin.

    \b
    Example:
      holdfast runs note research "the second draft is the better one"
      holdfast runs note research@5 "from here the prices are the new ones"
      holdfast runs note research
    """
    from holdfast.engine.commands import control

    with _journal(store, target) as (journal, meant):
        if text is None:
            return _tell(journal, meant, as_json, "notes")
        if text == "-":
            text = sys.stdin.read().rstrip("\n")
        answer = control.annotate(journal, meant, text=text, by=by or me(), timeout=TIMEOUT)
        return _said(journal, meant, answer, "noted", as_json, "note")


@click.command()
@_target
@click.option("--no", "drop", is_flag=True, help="Let retention have it again.")
@by_option
@store_option
@json_option
def keep(target: str, drop: bool, by: str | None, store: str | None, as_json: bool) -> int:
    """Keep a checkpoint for good: no retention and no pruning removes it, nor its run.

    Without a moment such as RUN@3 it is the newest checkpoint of the run. `holdfast checkpoints clear`, which removes
    all that a workflow has, still does.

    \b
    Example:
      holdfast checkpoints keep research@3
      holdfast checkpoints keep research@3 --no
    """
    from holdfast.engine.commands import control

    with _journal(store, target) as (journal, meant):
        answer = control.annotate(journal, meant, keep=not drop, by=by or me(), timeout=TIMEOUT)
        told = "the checkpoint is no longer kept" if drop else "the checkpoint is kept"
        return _said(journal, meant, answer, told, as_json, "keep")


@contextlib.contextmanager
def _journal(store: str | None, target: str) -> Iterator[tuple[Journal, str]]:
    opened: Any = open_existing(chosen_url(store))
    try:
        yield open_journal(opened), meant_moment(opened, target)
    finally:
        opened.close()


def _said(journal: Journal, target: str, answer: str, told: str, as_json: bool, command: str) -> int:
    from holdfast.engine.commands.control import ASKED
    from holdfast.engine.time_travel.checkpoints import find_position

    info, applied = find_position(journal.store, target).info, answer != ASKED
    if as_json:
        facts = {"run_id": info.run, "command": command, "applied": applied, "status": info.status}
        print_json({**facts, "tags": list(info.tags)})
    else:
        later = "" if applied else "; its driver writes that down between two steps"
        click.echo(one_line(f"{target}: {told}{later}", 500))
    return 0


def _tell(journal: Journal, target: str, as_json: bool, what: str) -> int:
    """Tell what was said of a run or a checkpoint."""
    from holdfast.engine.time_travel.checkpoints import find_position
    from holdfast.views.plain import CODEC
    from holdfast.views.run_view import remark_views

    meant = find_position(journal.store, target)
    every = remark_views(meant.info, journal.load(meant.info, CODEC).run)
    found = [said for said in every if meant.seq in (None, said.seq)]
    if as_json:
        facts = {"run_id": meant.info.run, "tags": list(meant.info.tags)}
        print_json({**facts, "remarks": [said.as_json() for said in found]})
        return 0
    if what == "tags" and meant.seq is None:
        click.echo(one_line(", ".join(meant.info.tags) or "no tags", 500))
    told = [line for said in found for line in _LINES[what](said)]
    for line in told:
        click.echo(line)
    if not told and (what == "notes" or meant.seq is not None):
        click.echo(f"no {what}")
    return 0


def _tag_lines(said: RemarkView) -> list[str]:
    if not said.seq or not (said.tags or said.keep):
        return []
    return [
        one_line(f"{said.checkpoint_id}: {', '.join([*said.tags, *(['kept'] if said.keep else [])])}", 500)
    ]


def _note_lines(said: RemarkView) -> list[str]:
    where = said.checkpoint_id or "run"
    lines = []
    for written in said.notes:
        by = f" by {one_line(written.by)}" if written.by else ""
        lines.append(f"{where}, {moment(written.at)}{by}")
        lines += [f"  {line}" for line in visible(written.text).splitlines()]
    return lines


_LINES: dict[str, Callable[[RemarkView], list[str]]] = {"tags": _tag_lines, "notes": _note_lines}
