"""How `holdfast history` looks: checkpoints as a table with what happened, forks as a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.display.diff import print_changes, print_not_compared
from holdfast.cli.display.show import command
from holdfast.cli.display.tables import STATUS_STYLES, is_terminal, print_facts, print_table, terminal_width
from holdfast.cli.display.text import count, duration, moment, money, one_line, visible
from holdfast.views.comparison import step_name
from holdfast.views.history import steps_told
from holdfast.views.plain import size_text, when

if TYPE_CHECKING:
    from holdfast.views.comparison import ComparedRun, Comparison
    from holdfast.views.family import Branch, Family, Member
    from holdfast.views.history import Happened, History, KeyChange, Point


MOST_LINES = 100
_DEEPEST = 12
"""Runs that are nested deeper are not indented any further."""
_MOST_KEYS = 6
_NARROW, _WIDE = 120, 150
"""Terminals with fewer columns than these are shown less of each checkpoint."""


def print_history(page: History, url: str) -> None:
    """Print a page of checkpoints, what happened after the newest, and how to see more."""
    if page.since.told:
        click.echo("since the newest checkpoint")
        for text in page.since.told:
            click.echo(f"  {one_line(text, 300)}")
    if not page.points:
        click.echo(f"run {one_line(page.run_id)} has no checkpoints here")
        return
    rows = [_row(point) for point in page.points]
    columns = _fitting(terminal_width(), any(row["cost"] for row in rows))
    print_table(columns, [[row[column] for column in columns] for row in rows])
    noted = [point for point in page.points if _notes(point)]
    if noted:
        click.echo()
    for point in noted:
        click.echo(f"{point.id}")
        for text in _notes(point):
            click.echo(f"  {one_line(text, 300)}")
    if page.more:
        again = command("history", page.run_id, "--before", page[-1].id, store=url)
        click.echo(f"\nthere are older ones: {again}")


def _fitting(width: int, has_cost: bool) -> tuple[str, ...]:
    """The columns that there is room for; that of money only if some was spent."""
    if width < _NARROW:
        return ("checkpoint", "wave", "kind", "after", "next")
    if width < _WIDE:
        columns: tuple[str, ...] = ("checkpoint", "wave", "kind", "after", "next", "time", "cost", "changed")
    else:
        columns = ("checkpoint", "wave", "kind", "after", "next", "saved", "time", "size", "cost", "changed")
    return columns if has_cost else tuple(column for column in columns if column != "cost")


def _row(point: Point) -> dict[str, str]:
    inside = f"{point.frame}: " if point.frame else ""
    time = duration(point.seconds)
    if point.failed_attempts:
        time += f" (+{duration(point.failed_seconds)} in {count(point.failed_attempts, 'failed attempt')})"
    spent = point.spending
    cost = money(spent.cost) if spent.calls else ""
    return {
        "checkpoint": point.id,
        "wave": "" if point.wave is None else str(point.wave),
        "kind": point.kind,
        "after": inside + steps_told(point.nodes),
        "next": steps_told(point.next),
        "saved": moment(point.created_at),
        "time": time,
        "size": size_text(point.size),
        "cost": cost + (f" ({spent.unpriced} unpriced)" if spent.unpriced else ""),
        "changed": _changed(point),
    }


def _changed(happened: Happened) -> str:
    shown = [_change(change) for change in happened.changes[:_MOST_KEYS]]
    left = len(happened.changes) - len(shown)
    return ", ".join(shown) + (f", … {left} more" if left else "")


def _change(change: KeyChange) -> str:
    kinds = "" if change.kinds == ("set",) else f" {'+'.join(change.kinds)}"
    inside = f"{change.frame}: " if change.frame else ""
    return f"{inside}{change.key}{kinds} ({size_text(change.size)})"


def _notes(point: Point) -> list[str]:
    said = [f"tags: {', '.join(point.tags)}"] if point.tags else []
    said += [f"note{f' by {by}' if by else ''}: {text}" for _, by, text in point.remark.notes]
    said += ["kept for good"] if point.remark.keep else []
    return [*said, *point.told]


def print_family(family: Family, show_all: bool) -> None:
    """Print runs as a tree, those that others were forked from above them."""
    shown = family.members if show_all else family.members[:MOST_LINES]
    for member in shown:
        _print_member(member, member.run_id == family.run_id)
    left = len(family.members) - len(shown)
    if left:
        click.echo(f"… {count(left, 'more run')}; --all shows them")
    elif family.more:
        click.echo("… and more runs than can be shown")


def _print_member(member: Member, is_asked_for: bool) -> None:
    depth = min(member.depth, _DEEPEST)
    indent = "  " * depth + (f"({member.depth}) " if member.depth > _DEEPEST else "")
    parts = [_branched(member.branch)] if member.branch is not None else []
    parts += [duration(member.seconds), moment(when(member.info.created_at))]
    if member.spending.calls:
        parts.insert(-1, money(member.spending.cost))
    if member.problem:
        parts = [one_line(member.problem, 200)]
    name = f"{'* ' if is_asked_for else ''}{one_line(member.run_id)}"
    told = one_line(", ".join(parts), 300)
    if not is_terminal():
        click.echo(f"{indent}{name}  {member.status}  {told}")
        return
    from rich.text import Text

    from holdfast.cli.display.console import GatedConsole

    line = Text(f"{indent}{name}  ", "bold" if is_asked_for else "")
    line.append(member.status, STATUS_STYLES.get(member.status, ""))
    line.append(f"  {told}", "dim")
    GatedConsole(soft_wrap=True).print(line)


def _branched(branch: Branch) -> str:
    if not branch.is_there:
        return f"forked from {visible(branch.run_id)} at entry {branch.seq}, which is gone"
    if branch.wave is None:
        return f"forked at entry {branch.seq}"
    return f"forked after wave {branch.wave} ({steps_told(branch.nodes)})"


# How `holdfast compare` looks.


MOST_STEPS, MOST_COMPARED_LINES = 10, 40


def print_comparison(found: Comparison, width: int, show_all: bool) -> None:
    """Print what two runs did differently."""
    print_facts(_facts(found))
    click.echo()
    columns = ("run", "status", "steps", "time", "tokens in", "tokens out", "cost", "failed attempts")
    print_table(columns, [_compared_row(found.one), _compared_row(found.other)])
    for tale in (found.one, found.other):
        for text in tale.interventions:
            click.echo(f"{one_line(tale.run_id)}: {one_line(text, 300)}")
    for node, reason in found.code.items():
        click.echo(f"code of {one_line(node)}: {one_line(reason)}")
    for text in found.problems:
        click.echo(one_line(text, 300))
    for tale, steps in ((found.one, found.only_one), (found.other, found.only_other)):
        if steps:
            click.echo(f"only in {one_line(tale.run_id)}: {_listed(steps, show_all)}")
    most = None if show_all else MOST_COMPARED_LINES
    for step in found.differing if show_all else found.differing[:MOST_STEPS]:
        click.echo(
            f"\nstep {one_line(step_name(step.step))}{f': {one_line(step.reason)}' if step.reason else ''}"
        )
        if step.result is not None and step.result.change is not None:
            print_changes(step.result.change, width, most)
    left = 0 if show_all else len(found.differing) - MOST_STEPS
    if left > 0:
        click.echo(f"\n… {count(left, 'more step')} with other results; --all shows them")
    change = found.state.state.change
    click.echo()
    print_not_compared(found.state)
    if change is None:
        click.echo(
            "the states are the same" if not found.state.not_compared else "the other keys are the same"
        )
    else:
        click.echo(f"state: {count(change.count, 'change')}")
        print_changes(change, width, most)


def _facts(found: Comparison) -> list[tuple[str, str]]:
    ancestor = found.ancestor
    if ancestor is None:
        other = found.one.workflow != found.other.workflow
        common = "nothing: they are not related" + (", nor of one workflow" if other else "")
    else:
        place = (
            f"after wave {ancestor.wave} ({steps_told(ancestor.nodes)})" if ancestor.wave is not None else ""
        )
        gone = "" if ancestor.is_there else ", which is gone"
        common = f"{ancestor.run_id}{gone}, {place or f'entry {ancestor.seq}'}"
    parted = step_name(found.diverging) if found.diverging else "no step differs"
    return [
        ("in common", one_line(common)),
        ("diverging step", one_line(parted)),
        ("the same in both", count(found.same, "step")),
    ]


def _compared_row(tale: ComparedRun) -> list[str]:
    spent = tale.spending
    tokens = [str(spent.input_tokens), str(spent.output_tokens)] if spent.calls else ["", ""]
    cost = money(spent.cost) if spent.calls else ""
    time = duration(tale.seconds)
    return [tale.run_id, tale.status, str(tale.steps), time, *tokens, cost, str(tale.failed_attempts or "")]


def _listed(steps: tuple[str, ...], show_all: bool) -> str:
    shown = steps if show_all else steps[:MOST_STEPS]
    left = len(steps) - len(shown)
    names = ", ".join(one_line(step_name(step)) for step in shown)
    return names + (f", … {left} more" if left else "")
