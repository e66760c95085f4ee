"""Confirming a run from outside: it is shown, completely, and somebody says whether it may run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from holdfast.cli.questions import Terminal
from holdfast.errors import ForeignRun

if TYPE_CHECKING:
    from holdfast.engine.confirmation import Disclosure


Gate = Callable[["Disclosure", str], str]
"""Takes what a run from outside would run with, and the command that confirms it; returns the digest of what was
confirmed, or raises `ForeignRun`."""

trust_option = click.option(
    "--trust", is_flag=True, help="Confirm what a run from outside would run with, as it is shown."
)


def gate(trust: bool = False, asks: bool = False) -> Gate:
    """Return a gate that shows what is to be confirmed, and takes `--trust`, or an answer in a terminal, for a yes."""

    def confirmed(found: Disclosure, command: str) -> str:
        if found.is_confirmed:
            return ""
        show(found)
        if not trust:
            _ask(found, command, asks)
        return found.digest

    return confirmed


def show(found: Disclosure) -> None:
    """Print on stderr all that a run from outside would run with."""
    from holdfast.cli.display.capsule import print_source
    from holdfast.views.plain import escaped
    from holdfast.workflows.foreign import deeds_of, reads_of, warning_of

    flow, origin = found.config.get("flow"), found.provenance
    click.echo(f"{_name(found)} came from outside: {escaped(origin.source)}, {origin.signer}", err=True)
    deeds, reads = (deeds_of(flow), reads_of(flow)) if isinstance(flow, Mapping) else ([], [])
    if deeds:
        click.echo(warning_of(deeds), err=True)
    print_source(found.config, found.inbox, deeds, reads, err=True)


def _ask(found: Disclosure, command: str, asks: bool) -> None:
    if not asks:
        raise _refusal(found, f"if you trust all that is shown above: {command}")
    try:
        said = Terminal(sys.stderr).line("Run it, with your rights and in your environment? [y/N] ")
    except EOFError:
        said = ""
    if said.strip().lower() not in ("y", "yes"):
        raise _refusal(found, "it is left as it is")


def _refusal(found: Disclosure, way_out: str) -> ForeignRun:
    return ForeignRun(
        f"{_name(found)} came from outside, and nobody has confirmed it; {way_out}",
        run=found.run_id,
        digest=found.digest,
    )


def _name(found: Disclosure) -> str:
    from holdfast.views.plain import escaped

    return f"run {escaped(found.run_id)}" if found.run_id else "this checkpoint file"
