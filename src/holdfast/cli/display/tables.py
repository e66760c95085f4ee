"""Tables and key-value blocks on stdout: coloured on a terminal, plain columns elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import click

from holdfast.cli.display.text import one_line, visible
from holdfast.cli.output import BOLD, PLAIN, control

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
