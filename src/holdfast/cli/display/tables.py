"""Tables and key-value blocks on stdout: coloured on a terminal, plain columns elsewhere."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.text import count, duration, moment, money, one_line, visible
from holdfast.cli.output import BOLD, PLAIN, control
from holdfast.stores.base import SCHEMA_VERSION
from holdfast.views.plain import iso, size_text, when

if TYPE_CHECKING:
    from holdfast.journal.run_state import Spending
    from holdfast.stores.maintenance import Usage
    from holdfast.views.charges import Portion, Row
    from holdfast.views.usage import RunLedger


STATUS_STYLES = {
    "completed": "green",
    "failed": "red",
    "paused": "yellow",
    "waiting": "yellow",
    "running": "cyan",
    "retrying": "cyan",
    "next": "cyan",
    "interrupted": "magenta",
    "dead": "magenta",
    "cancelled": "magenta",
    "skipped": "dim",
    "pending": "dim",
    "queued": "blue",
    "broken": "red",
    "damaged": "red",
    "ok": "green",
    "warning": "yellow",
}
"""The colours of the words that say how something stands; a cell is coloured by its first word."""


def is_terminal() -> bool:
    """Whether stdout is a terminal that can show colours."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their columns. Cells are data: nothing in them is obeyed, by a terminal or as markup."""
    cells = [[one_line(cell, 300) for cell in row] for row in rows]
    if is_terminal():
        _print_rich(columns, cells)
    else:
        _print_plain(columns, cells)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[column.upper() for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(padded).rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.display.console import GatedConsole

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        last = index == len(columns) - 1
        first = {"no_wrap": True, "min_width": max(len(row[0]) for row in rows)} if not index and rows else {}
        how: dict[str, Any] = first or {"no_wrap": last}
        table.add_column(Text(column.upper()), overflow="fold" if not last else "ellipsis", **how)
    for row in rows:
        table.add_row(*(Text(cell, STATUS_STYLES.get(cell.partition(" ")[0], "")) for cell in row))
    GatedConsole().print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and what they are, one a line; facts that are empty are left out."""
    told = [(name, text) for name, text in facts if text]
    width = max((len(name) for name, _ in told), default=0) + 2
    for name, text in told:
        print_label(name.ljust(width), BOLD)
        click.echo(one_line(text, 5_000))


def print_label(label: str, style: str) -> None:
    """Print the beginning of a line, in a style where there is a terminal."""
    if is_terminal():
        control(style)
    click.echo(label, nl=False)
    if is_terminal():
        control(PLAIN)


def json_text(data: Any, indent: int | None = 2) -> str:
    """Plain data as JSON. What a terminal would obey is escaped, so that it is the same data and does no harm."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return visible(text)


def print_json(data: Any) -> None:
    """Print plain data as one JSON document."""
    click.echo(json_text(data))


def terminal_width() -> int:
    """How many columns there are: those of the terminal, or plenty."""
    return shutil.get_terminal_size().columns if is_terminal() else 160


# What is told of a store as a whole: what it holds, and how its schema stands.


_NAMES = ("kind", "place", "namespace", "schema", "disk_bytes", "runs", "statuses")
_COUNTS = (
    "entries",
    "checkpoints",
    "snapshots",
    "messages",
    "entry_bytes",
    "snapshot_bytes",
    "message_bytes",
)


def usage_as_json(usage: Usage, url: str, drivers: dict[str, int]) -> dict[str, Any]:
    """Keys: store, kind, place, namespace, schema, disk_bytes, runs, statuses, oldest, newest, entries, checkpoints,
    snapshots, messages, entry_bytes, snapshot_bytes, message_bytes, drivers, largest.
    """
    largest = [
        {
            "run_id": large.run,
            "workflow": large.workflow,
            "status": large.status,
            "entries": large.entries,
            "bytes": large.size,
        }
        for large in usage.largest
    ]
    return {
        "store": url,
        **{name: getattr(usage, name) for name in _NAMES},
        "oldest": None if usage.oldest is None else iso(when(usage.oldest)),
        "newest": None if usage.newest is None else iso(when(usage.newest)),
        **{name: getattr(usage, name) for name in _COUNTS},
        "drivers": [{"driver": driver, "runs": runs} for driver, runs in drivers.items()],
        "largest": largest,
    }


def print_usage(usage: Usage, url: str, drivers: dict[str, int]) -> None:
    """Print what a store holds, and its largest runs."""
    print_facts(_facts(usage, url, drivers))
    if usage.largest:
        click.echo()
        rows = [
            [large.run, large.workflow, large.status, str(large.entries), size_text(large.size)]
            for large in usage.largest
        ]
        print_table(("largest runs", "workflow", "status", "entries", "size"), rows)


def _facts(usage: Usage, url: str, drivers: dict[str, int]) -> list[tuple[str, str]]:
    by_status = ", ".join(f"{number} {status}" for status, number in usage.statuses.items())
    return [
        ("store", url),
        ("kind", usage.kind),
        ("place", usage.place if usage.place != url else ""),
        ("namespace", usage.namespace),
        ("schema", "" if usage.schema is None else str(usage.schema)),
        ("on disk", "" if usage.disk_bytes is None else size_text(usage.disk_bytes)),
        ("runs", f"{usage.runs:,}" + (f" ({by_status})" if by_status else "")),
        ("checkpoints", _amount(usage.checkpoints)),
        ("entries", _amount(usage.entries, usage.entry_bytes)),
        ("snapshots", _amount(usage.snapshots, usage.snapshot_bytes)),
        ("messages", _amount(usage.messages, usage.message_bytes)),
        ("oldest run", "" if usage.oldest is None else moment(when(usage.oldest))),
        ("last change", "" if usage.newest is None else moment(when(usage.newest))),
        ("drivers", ", ".join(f"{driver} ({count(runs, 'run')})" for driver, runs in drivers.items())),
    ]


def _amount(number: int | None, size: int | None = None) -> str:
    if number is None:
        return ""
    return f"{number:,}" if size is None else f"{number:,}, {size_text(size)}"


def schema_as_json(url: str, before: int, after: int) -> dict[str, Any]:
    """Keys: store, from, to, newest."""
    return {"store": url, "from": before, "to": after, "newest": SCHEMA_VERSION}


def schema_text(url: str, before: int, after: int) -> str:
    """Return the version of a schema, and whether it was created."""
    if not after:
        return f"{url}: there is no schema yet; run `holdfast store migrate --store {shlex.quote(url)}`"
    return f"{url}: schema {after} {'is up to date' if before else 'was created'}"


# How `holdfast cost` looks as text.


_COST_NAMES = {"step": "step", "model": "model", "run": "run", "workflow": "workflow", "day": "day (UTC)"}


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
            ("time", f"{duration(own.seconds)} in steps, executed for {duration(ledger.executed_seconds)}"),
            ("saved", _saved(ledger)),
            ("reused", f"{_portion(ledger.reused)}, from other runs" if ledger.reused.steps else ""),
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
    columns = (_COST_NAMES[by], *timed, "calls", "in", "out", "cost", "in vain")
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
