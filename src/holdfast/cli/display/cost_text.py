"""How `holdfast cost` looks as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.display.tables import print_facts, print_table
from holdfast.cli.display.text import count, duration, money

if TYPE_CHECKING:
    from holdfast.journal.run_state import Spending
    from holdfast.views.amounts import Portion, Row
    from holdfast.views.ledger import RunLedger

_NAMES = {"step": "step", "model": "model", "run": "run", "workflow": "workflow", "day": "day (UTC)"}


def print_ledger(ledger: RunLedger, ids: bool, limit: int) -> None:
    """Print what one run used up: in all, by step and by model."""
    own = ledger.own
    print_facts(
        [
            ("run", ledger.run_id),
            ("workflow", ledger.workflow),
            ("status", str(ledger.status)),
            ("spent", spent_told(ledger.total)),
            ("before the fork", spent_told(ledger.inherited) if ledger.inherited.calls else ""),
            ("in vain", _in_vain(own)),
            ("time", f"{duration(own.seconds)} in steps, driven for {duration(ledger.driving)}"),
            ("saved", _saved(ledger)),
            ("adopted", f"{_portion(ledger.adopted)}, from other runs" if ledger.adopted.steps else ""),
        ]
    )
    _print_table("step", ledger.by_step(ids=ids), limit)
    if models := ledger.by_model():
        _print_table("model", models, limit)


def print_rows(by: str, whole: Row, rows: Sequence[Row], limit: int, runs: int) -> None:
    """Print what several runs used up."""
    print_facts(
        [
            ("runs", str(runs)),
            ("spent", spent_told(whole.spent)),
            ("in vain", _in_vain(whole)),
            ("time", f"{duration(whole.seconds)} in steps"),
        ]
    )
    _print_table(by, rows, limit)


def spent_told(spent: Spending) -> str:
    """`$0.42: 3 calls, 1200 tokens in, 80 out, 1 without a price`."""
    if not spent.calls:
        return "nothing"
    tokens = f"{spent.input_tokens} tokens in, {spent.output_tokens} out"
    unpriced = f", {spent.unpriced} without a price" if spent.unpriced else ""
    return f"{money(spent.cost)}: {count(spent.calls, 'call')}, {tokens}{unpriced}"


def _in_vain(row: Row) -> str:
    parts = [money(row.wasted.cost) if row.wasted.cost else ""]
    parts.append(duration(row.wasted_seconds) if row.wasted_seconds else "")
    return ", ".join(part for part in parts if part)


def _saved(ledger: RunLedger) -> str:
    if not ledger.resumes:
        return ""
    return f"{_portion(ledger.saved)}, by {count(ledger.resumes, 'resume')}"


def _portion(portion: Portion) -> str:
    cost = f", {money(portion.cost)}" if portion.cost else ""
    return f"{count(portion.steps, 'step')}, {duration(portion.seconds)}{cost}"


def _print_table(by: str, rows: Sequence[Row], limit: int) -> None:
    if not rows:
        return
    timed = ("done", "time") if by != "model" else ()
    columns = (_NAMES[by], *timed, "calls", "in", "out", "cost", "in vain")
    click.echo()
    print_table(columns, [_cells(row, bool(timed)) for row in rows[:limit]])
    if len(rows) > limit:
        click.echo(f"… {len(rows) - limit} more; see them with --limit {len(rows)}")


def _cells(row: Row, timed: bool) -> list[str]:
    spent = row.spent
    cost = money(spent.cost) + ("+" if spent.unpriced else "") if spent.calls else ""
    tokens = [str(number) if spent.calls else "" for number in (spent.calls, spent.input_tokens)]
    tokens.append(str(spent.output_tokens) if spent.calls else "")
    times = [str(row.steps or ""), duration(row.seconds)] if timed else []
    return [row.name or "(unnamed)", *times, *tokens, cost, _in_vain(row)]
