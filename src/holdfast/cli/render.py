"""The renderer of the command line: views and values as tables, facts, lines and JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import shutil
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from holdfast.views.plain import OWN, iso, plain, size_text
from holdfast.views.terminal import BOLD, PLAIN, control, count, gated_console, money, one_line, visible

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
"""Colours of status words; a cell is coloured by its first word."""

MOST_SHOWN = 4000
"""How many characters of a value are shown; `--json` shows all."""


# Texts of a few words.


def clock(at: float) -> str:
    """Return the local time of day."""
    return _clock(int(at))


@lru_cache(maxsize=8)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


def local_time(at: dt.datetime | None) -> str:
    """Return a date and a local time, to the second; empty for `None`."""
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def size(number: int | None) -> str:
    """Return a number of bytes for people; empty for `None`."""
    return "" if number is None else size_text(number)


def spent_text(spent: Any) -> str:
    """Return spending as `$0.42: 3 calls, 1200 tokens in, 80 out, 1 without a price`; empty if there is none."""
    if not spent.calls:
        return ""
    tokens = f"{spent.input_tokens} tokens in, {spent.output_tokens} out"
    unpriced = f", {spent.unpriced} without a price" if spent.unpriced else ""
    return f"{money(spent.cost)}: {count(spent.calls, 'call')}, {tokens}{unpriced}"


# JSON of anything.


def json_text(data: Any, indent: int | None = 2) -> str:
    """Return data as JSON: views and dataclasses by their keys, user's values as plain data.

    Control characters are escaped, so that it is the same data and harmless in a terminal.
    """
    try:
        text = json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False, default=_json_of)
    except (TypeError, ValueError):
        text = json.dumps(plain(data), indent=indent, ensure_ascii=False)
    return visible(text)


def _json_of(value: Any) -> Any:
    if hasattr(value, "as_json"):
        return value.as_json()
    if isinstance(value, dt.datetime):
        return iso(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return plain(value)


def print_json(data: Any) -> None:
    """Print data as one JSON document."""
    click.echo(json_text(data))


def shortened(value: Any, rest: str) -> str:
    """Return a text, or another value as indented JSON; of a long one the beginning, and what prints the rest."""
    text = visible(value) if isinstance(value, str) else json_text(plain(value))
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}\n… {len(text) - MOST_SHOWN} more characters: {rest}"


# Tables, facts and styled lines on stdout: coloured on a terminal, plain elsewhere.


def is_terminal() -> bool:
    """Return True if stdout is a terminal that can show colours."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """Return the number of columns of the terminal; plenty if there is none."""
    return shutil.get_terminal_size().columns if is_terminal() else 160


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their columns; cells are data, from which no terminal takes commands or markup."""
    cells = [[one_line(cell, 300) for cell in row] for row in rows]
    if is_terminal():
        _print_rich(columns, cells)
        return
    lines = [[column.upper() for column in columns], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    only_last_gives_way = sum(widths[:-1]) + 2 * len(widths) + len(columns[-1]) <= terminal_width()
    for index, column in enumerate(columns):
        last = index == len(columns) - 1
        kept = not index or (only_last_gives_way and not last)
        how: dict[str, Any] = {"no_wrap": True, "min_width": widths[index]} if kept else {"no_wrap": last}
        table.add_column(Text(column.upper()), overflow="fold" if not last else "ellipsis", **how)
    for row in rows:
        table.add_row(*(Text(cell, STATUS_STYLES.get(cell.partition(" ")[0], "")) for cell in row))
    gated_console().print(table)


def print_styled(lines: Iterable[Sequence[tuple[str, str]]]) -> None:
    """Print lines that consist of texts with a style each; styles are for terminals only."""
    if not is_terminal():
        for parts in lines:
            click.echo("".join(text for text, _ in parts))
        return
    from rich.text import Text

    console = gated_console(soft_wrap=True)
    for parts in lines:
        console.print(Text.assemble(*parts))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, one a line; empty values are left out."""
    shown = [(name, text) for name, text in facts if text]
    width = max((len(name) for name, _ in shown), default=0) + 2
    for name, text in shown:
        print_label(name.ljust(width), BOLD)
        click.echo(one_line(text, 5_000))


def print_label(label: str, style: str) -> None:
    """Print the beginning of a line, in a style if there is a terminal."""
    if is_terminal():
        control(style)
    click.echo(label, nl=False)
    if is_terminal():
        control(PLAIN)


def print_block(title: str, text: str) -> None:
    """Print a title and a text below it, after an empty line."""
    click.echo(f"\n{title}\n{text}")


# Where an error was raised.


_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))


def place_in_code(error: BaseException | None) -> str:
    """Return where the user's code raised an error, as in `acts.py:6, in boom`; empty if it did not."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    found = [frame for frame in frames if not frame.filename.startswith((OWN, "<"))]
    if not found:
        return ""
    own_code = [frame for frame in found if not frame.filename.startswith(_LIBRARIES)]
    last = (own_code or found)[-1]
    return f"{_short(last.filename)}:{last.lineno}, in {last.name}"


def _short(filename: str) -> str:
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return filename
