"""`holdfast history`, `diff` and `runs compare`: checkpoints, forks, and what differs between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.command_lines import command_line
from holdfast.cli.difference import print_changes, print_difference, print_not_compared, print_state_changes
from holdfast.cli.errors import COMPLETED, FAILED
from holdfast.cli.options import ALL, JSON, RUN_AT, STORE, Options, flag, number, repeated, value
from holdfast.cli.render import (
    STATUS_STYLES,
    local_time,
    print_facts,
    print_json,
    print_styled,
    print_table,
    terminal_width,
)
from holdfast.cli.session import Session, command
from holdfast.engine.time_travel.queries import compare_runs, diff_states, run_forks, run_history
from holdfast.views.comparison import step_name
from holdfast.views.history import steps_text
from holdfast.views.plain import size_text, when
from holdfast.views.terminal import count, duration, money, one_line, visible

if TYPE_CHECKING:
    from holdfast.views.comparison import ComparedRun, Comparison
    from holdfast.views.family import Family, Member
    from holdfast.views.history import History, KeyChange, Point

ONE = click.argument("one", metavar="RUN[@PLACE]")
PAGE = 20
MOST_RUNS, MOST_STEPS, MOST_COMPARED_LINES, MOST_DIFF_LINES = 100, 10, 40, 200
_DEEPEST = 12
"""Runs that are nested deeper are not indented any further."""
_MOST_KEYS = 6
_NARROW, _WIDE = 120, 150
"""Terminals with fewer columns than these show less of each checkpoint."""


@command(
    RUN_AT,
    number("-n --limit", 1, "N", f"How many checkpoints to list at most; {PAGE} unless given."),
    value("--before", "CHECKPOINT", "Those before this one: the next page. An id, or @3, @-1, @STEP."),
    ALL,
    flag("--tree", "List the runs that it was forked from, and its forks."),
    STORE,
    JSON,
)
def history(session: Session, options: Options) -> None:
    """List a run's checkpoints, newest first, each with what happened since the one before.

    Each line has the checkpoint's id, the steps that finished, their time and money, the steps that came next, and what
    was changed. With --tree: the forks, where each branched off, its status, and what it spent itself.

    \b
    Example:
      holdfast history research
      holdfast history research -n 5 --before 6eca4c13-89b6-47b8-9f78-4c0b03999354
      holdfast history research --tree
    """
    limit, before, show_all = options.limit, options.before, options.show_all
    if options.tree and (limit is not None or before is not None):
        raise click.UsageError("--tree lists runs, not checkpoints; leave --limit and --before out")
    if show_all and limit is not None:
        raise click.UsageError("give either --all or --limit")
    [name] = session.names(options.run)
    url = session.store.url
    if options.tree:
        family = run_forks(session.journal, name)
        if not session.as_json:
            _print_family(family, show_all)
        session.print({"store": url, **family.as_json()})
        return
    page = run_history(session.journal, name, limit=None if show_all else limit or PAGE, before=before)
    if not session.as_json:
        _print_history(page, url)
    session.print({"store": url, **page.as_json()})


def _print_history(page: History, url: str) -> None:
    """Print a page of checkpoints, what happened after the newest, and the command for the next page."""
    if page.since.events:
        click.echo("since the newest checkpoint")
        for text in page.since.events:
            click.echo(f"  {one_line(text, 300)}")
    if not page.points:
        click.echo(f"run {one_line(page.run_id)} has no checkpoints here")
        return
    rows = [_row(point) for point in page.points]
    width = terminal_width()
    more = ("time", "cost", "changed") if width < _WIDE else ("saved", "time", "size", "cost", "changed")
    shown = ("checkpoint", "wave", "kind", "after", "next", *(more if width >= _NARROW else ()))
    spent = any(row["cost"] for row in rows)
    columns = [column for column in shown if column != "cost" or spent]
    print_table(columns, [[row[column] for column in columns] for row in rows])
    noted = [point for point in page.points if _notes(point)]
    if noted:
        click.echo()
    for point in noted:
        click.echo(f"{point.id}")
        for text in _notes(point):
            click.echo(f"  {one_line(text, 300)}")
    if page.more:
        again = command_line("history", page.run_id, "--before", page[-1].id, store=url)
        click.echo(f"\nthere are older ones: {again}")


def _row(point: Point) -> dict[str, str]:
    spent = point.spending
    inside = f"{point.frame}: " if point.frame else ""
    time = duration(point.seconds)
    if point.failed_attempts:
        time += f" (+{duration(point.failed_seconds)} in {count(point.failed_attempts, 'failed attempt')})"
    cost = money(spent.cost) if spent.calls else ""
    left = len(point.changes) - _MOST_KEYS
    return {
        "checkpoint": point.id,
        "wave": f"{point.frame_wave} of {point.frame}" if point.frame else str(point.wave),
        "kind": point.kind,
        "after": inside + steps_text(point.nodes),
        "next": steps_text(point.next),
        "saved": local_time(point.created_at),
        "time": time,
        "size": size_text(point.size),
        "cost": cost + (f" ({spent.unpriced} unpriced)" if spent.unpriced else ""),
        "changed": ", ".join(map(_change, point.changes[:_MOST_KEYS]))
        + (f", … {left} more" if left > 0 else ""),
    }


def _change(change: KeyChange) -> str:
    kinds = "" if change.kinds == ("set",) else f" {'+'.join(change.kinds)}"
    inside = f"{change.frame}: " if change.frame else ""
    return f"{inside}{change.key}{kinds} ({size_text(change.size)})"


def _notes(point: Point) -> list[str]:
    said = [f"tags: {', '.join(point.tags)}"] if point.tags else []
    said += [f"note{f' by {by}' if by else ''}: {text}" for _, by, text in point.annotation.notes]
    said += ["kept for good"] if point.annotation.keep else []
    return [*said, *point.events]


def _print_family(family: Family, show_all: bool) -> None:
    """Print runs as a tree, each run above its forks."""
    shown = family.members if show_all else family.members[:MOST_RUNS]
    print_styled(_member_parts(member, member.run_id == family.run_id) for member in shown)
    left = len(family.members) - len(shown)
    if left:
        click.echo(f"… {count(left, 'more run')}; --all shows them")
    elif family.more:
        click.echo("… and more runs than can be printed")


def _member_parts(member: Member, is_named: bool) -> list[tuple[str, str]]:
    depth = min(member.depth, _DEEPEST)
    indent = "  " * depth + (f"({member.depth}) " if member.depth > _DEEPEST else "")
    facts = []
    if (branch := member.branch) is not None and not branch.is_there:
        facts = [f"forked from {visible(branch.run_id)} at entry {branch.seq}, which is gone"]
    elif branch is not None and branch.wave is None:
        facts = [f"forked at entry {branch.seq}"]
    elif branch is not None:
        facts = [f"forked after wave {branch.wave} ({steps_text(branch.nodes)})"]
    facts += [duration(member.seconds)]
    facts += [money(member.spending.cost)] if member.spending.calls else []
    facts += [local_time(when(member.info.created_at))]
    if member.problem:
        facts = [one_line(member.problem, 200)]
    name = f"{indent}{'* ' if is_named else ''}{one_line(member.run_id)}  "
    return [
        (name, "bold" if is_named else ""),
        (member.status, STATUS_STYLES.get(member.status, "")),
        (f"  {one_line(', '.join(facts), 300)}", "dim"),
    ]


# `holdfast runs compare`.


@command(ONE, click.argument("other", metavar="OTHER[@PLACE]"), ALL, STORE, JSON)
def compare(session: Session, options: Options) -> None:
    """Compare two runs, usually forks of one: where they part, steps, results, time, money, status and code.

    Runs that have no common ancestor are compared from their beginnings.

    \b
    Example:
      holdfast runs compare research 3f2a
      holdfast runs compare 3f2a 77b1 --json | jq .diverging
    """
    first, second = session.names(options.one, options.other)
    found = compare_runs(session.journal, first, second)
    if not session.as_json:
        _print_comparison(found, terminal_width(), options.show_all)
    session.print({"store": session.store.url, **found.as_json()})


def _print_comparison(found: Comparison, width: int, show_all: bool) -> None:
    print_facts(_common_facts(found))
    click.echo()
    columns = ("run", "status", "steps", "time", "tokens in", "tokens out", "cost", "failed attempts")
    sides = ((found.one, found.only_one), (found.other, found.only_other))
    print_table(columns, [_side_row(side) for side, _ in sides])
    for side, _ in sides:
        for text in side.interventions:
            click.echo(f"{one_line(side.run_id)}: {one_line(text, 300)}")
    for node, reason in found.code.items():
        click.echo(f"code of {one_line(node)}: {one_line(reason)}")
    for text in found.problems:
        click.echo(one_line(text, 300))
    for side, steps in sides:
        if steps:
            click.echo(f"only in {one_line(side.run_id)}: {_listed(steps, show_all)}")
    _print_steps(found, width, show_all)
    click.echo()
    print_not_compared(found.state)
    print_state_changes(found.state, width, None if show_all else MOST_COMPARED_LINES)


def _print_steps(found: Comparison, width: int, show_all: bool) -> None:
    most = None if show_all else MOST_COMPARED_LINES
    for step in found.differing if show_all else found.differing[:MOST_STEPS]:
        reason = f": {one_line(step.reason)}" if step.reason else ""
        click.echo(f"\nstep {one_line(step_name(step.step))}{reason}")
        if step.result is not None and step.result.change is not None:
            print_changes(step.result.change, width, most)
    left = 0 if show_all else len(found.differing) - MOST_STEPS
    if left > 0:
        click.echo(f"\n… {count(left, 'more step')} with other results; --all shows them")


def _common_facts(found: Comparison) -> list[tuple[str, str]]:
    ancestor = found.ancestor
    if ancestor is None:
        other = found.one.workflow != found.other.workflow
        common = "nothing: they are not related" + (", nor of one workflow" if other else "")
    else:
        place = (
            f"after wave {ancestor.wave} ({steps_text(ancestor.nodes)})" if ancestor.wave is not None else ""
        )
        gone = "" if ancestor.is_there else ", which is gone"
        common = f"{ancestor.run_id}{gone}, {place or f'entry {ancestor.seq}'}"
    parted = step_name(found.diverging) if found.diverging else "no step differs"
    same = count(found.same, "step")
    return [("in common", common), ("diverging step", parted), ("the same in both", same)]


def _side_row(side: ComparedRun) -> list[str]:
    spent = side.spending
    amounts = (
        [str(spent.input_tokens), str(spent.output_tokens), money(spent.cost)] if spent.calls else [""] * 3
    )
    facts = [side.run_id, side.status, str(side.steps), duration(side.seconds)]
    return [*facts, *amounts, str(side.failed_attempts or "")]


def _listed(steps: tuple[str, ...], show_all: bool) -> str:
    shown = steps if show_all else steps[:MOST_STEPS]
    left = len(steps) - len(shown)
    names = ", ".join(one_line(step_name(step)) for step in shown)
    return names + (f", … {left} more" if left else "")


# `holdfast diff`.


@command(
    ONE,
    click.argument("other", metavar="[OTHER[@PLACE]]", required=False),
    repeated("--key keys", "KEY", "Only this key of the state."),
    flag(
        "--patch",
        "Print a JSON Patch (RFC 6902) that makes the one state the other; standard error names the keys that it "
        "leaves out.",
    ),
    number("--max-lines", 1, "N", f"At most so many lines of changes; {MOST_DIFF_LINES} unless it is given."),
    ALL,
    number("--width", 40, "N", "Cut lines after so many characters; as the terminal is."),
    flag("--exit-code", "Exit with 1 if the states differ."),
    STORE,
    JSON,
)
def diff(session: Session, options: Options) -> int:
    """Print what differs between two checkpoints of any runs. One alone is compared with the checkpoint before it.

    \b
    Example:
      holdfast diff research
      holdfast diff research@2 research@5 --key draft
      holdfast diff good-run bad-run --patch | jq length
    """
    show_all, max_lines, width = options.show_all, options.max_lines, options.width
    if show_all and max_lines is not None:
        raise click.UsageError("give either --all or --max-lines")
    if (options.patch or session.as_json) and (show_all or max_lines is not None or width is not None):
        raise click.UsageError("--all, --max-lines and --width are for text; --json and --patch are whole")
    if options.patch and session.as_json:
        raise click.UsageError("give either --json or --patch, which is JSON already")
    first, *second = session.names(options.one, *([] if options.other is None else [options.other]))
    found = diff_states(session.journal, first, second[0] if second else None, keys=options.keys)
    if options.patch:
        print_json(found.patch)
        for key, reason in found.not_compared.items():
            text = f"the patch leaves out {one_line(key)}, which was not compared: {one_line(reason, 500)}"
            click.echo(text, err=True)
    elif session.as_json:
        print_json({"store": session.store.url, **found.as_json()})
    else:
        most = None if show_all else max_lines or MOST_DIFF_LINES
        print_difference(found, session.store.url, width or terminal_width(), most)
    return FAILED if options.exit_code and found else COMPLETED
