"""What is told of a store as a whole: what it holds, and how its schema stands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.tables import print_facts, print_table
from holdfast.cli.display.text import count, moment, one_line
from holdfast.views.plain import iso, size_text, when

if TYPE_CHECKING:
    from holdfast.stores.migrating import Schema
    from holdfast.stores.usage import Usage

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


def schema_as_json(url: str, before: Schema, after: Schema, applied: list[str]) -> dict[str, Any]:
    """Keys: store, from, to, newest, applied, missing."""
    return {
        "store": url,
        "from": before.current,
        "to": after.current,
        "newest": after.newest,
        "applied": applied,
        "missing": list(after.missing),
    }


def schema_text(url: str, before: Schema, after: Schema, applied: list[str]) -> str:
    """How a schema stands, and what was done about it."""
    if applied:
        return f"{url}: brought from schema {before.current} to {after.current} ({', '.join(applied)})"
    if after.is_current:
        return f"{url}: schema {after.current} is up to date"
    missing = one_line(", ".join(after.missing))
    return f"{url}: schema {after.current} lacks {missing}; run `holdfast store migrate --store {shlex.quote(url)}`"
