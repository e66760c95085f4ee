"""How `holdfast compare` looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.display.diff_text import print_changes, print_not_compared
from holdfast.cli.display.tables import print_facts, print_table
from holdfast.cli.display.text import count, duration, money, one_line
from holdfast.views.comparison import step_name
from holdfast.views.history import steps_told

if TYPE_CHECKING:
    from holdfast.views.comparison import Comparison, Tale

MOST_STEPS, MOST_LINES = 10, 40


def print_comparison(found: Comparison, width: int, show_all: bool) -> None:
    """Print what two runs did differently."""
    print_facts(_facts(found))
    click.echo()
    columns = ("run", "status", "steps", "time", "tokens in", "tokens out", "cost", "failed attempts")
    print_table(columns, [_row(found.one), _row(found.other)])
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
    most = None if show_all else MOST_LINES
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


def _row(tale: Tale) -> list[str]:
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
