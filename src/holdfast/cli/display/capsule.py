"""How capsules look: what is in one, for people, with nothing in it obeyed by the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from holdfast.capsules.summary import CapsuleInfo
from holdfast.cli.display.tables import print_facts, print_table
from holdfast.cli.display.text import count, moment, money, one_line
from holdfast.views.plain import escaped, size_text
from holdfast.views.timeline import facts_told
from holdfast.workflows.foreign import Deed, source_lines, warning_of

_MOST_LINES = 100


def print_capsule(info: CapsuleInfo, deeds: Sequence[Deed], reads: Sequence[str]) -> None:
    """Print what is in a capsule."""
    if not info.is_open:
        click.echo(f"an encrypted capsule, {size_text(info.size)}; its passphrase shows more")
        return
    print_facts([(name, one_line(text, 300)) for name, text in _facts(info)])
    if info.steps:
        click.echo("")
        rows = [
            [step.name, step.status, str(step.visits), str(step.attempts), f"{step.seconds:.3f}s"]
            for step in info.steps[:_MOST_LINES]
        ]
        print_table(["step", "status", "visits", "attempts", "time"], rows)
        _print_rest(len(info.steps))
    _print_deeds(info, deeds, reads)
    for note in info.notes:
        click.echo(f"note: {one_line(note, 500)}")


def _facts(info: CapsuleInfo) -> list[tuple[str, str]]:
    created = "" if info.created_at is None else moment(info.created_at)
    updated = "" if info.updated_at is None else moment(info.updated_at)
    under_way = " (it was under way; it goes on where its journal ends)" if info.under_way else ""
    pruned = f", {info.pruned} before them were pruned" if info.pruned else ""
    return [
        ("run", info.run_id),
        ("workflow", info.workflow),
        ("status", f"{info.status}{under_way}"),
        ("begun", created),
        ("touched", updated),
        ("tags", ", ".join(info.tags)),
        ("forked from", info.parent),
        ("journal", f"{info.entries} entries, {size_text(info.journal_size)}{pruned}"),
        ("checkpoints", str(info.checkpoints)),
        ("messages", str(info.messages) if info.messages else ""),
        ("used", _used(info.summary.get("ledger"))),
        ("environment", _environment(info.summary.get("environment"))),
        ("capsule", f"{size_text(info.size)}, {_secrecy(info)}"),
        ("digest", info.digest),
        ("signed", f"by {info.signed_by}" if info.signed_by else "by nobody"),
    ]


def _secrecy(info: CapsuleInfo) -> str:
    if info.encrypted or info.sealed:
        return "encrypted" if info.encrypted else "its journal is encrypted with the key of a store"
    return "not encrypted: inputs, prompts and results can be read by whoever has it"


def _used(ledger: Any) -> str:
    if not isinstance(ledger, Mapping) or not ledger.get("calls"):
        return ""
    tokens = f"{ledger['input_tokens']:,} + {ledger['output_tokens']:,} tokens"
    return f"{count(ledger['calls'], 'call')}, {tokens}, {money(ledger['cost'])}"


def _environment(facts: Any) -> str:
    return facts_told(facts) if isinstance(facts, Mapping) else ""


def _print_deeds(info: CapsuleInfo, deeds: Sequence[Deed], reads: Sequence[str]) -> None:
    if not info.is_read:
        return
    click.echo("")
    if info.flow is None:
        click.echo("no code is in it: it goes on only with the Python program that has its workflow")
    else:
        click.echo(warning_of(deeds))
    print_source(info.config, info.inbox, deeds, reads)


def print_source(
    config: Mapping[str, Any],
    inbox: Sequence[Mapping[str, Any]],
    deeds: Sequence[Deed],
    reads: Sequence[str],
    *,
    err: bool = False,
) -> None:
    """Print all that a run from outside would run with; nothing is cut, and nothing is obeyed by a terminal."""
    for deed in deeds:
        if deed.reach:
            click.echo(f"  {escaped(deed.name)} ({deed.kind}): {escaped(deed.reach)}", err=err)
    if reads:
        click.echo(f"it would read of your environment: {escaped(', '.join(reads))}", err=err)
    for line in source_lines(config, inbox):
        click.echo(line, err=err)


def _print_rest(total: int) -> None:
    if total > _MOST_LINES:
        click.echo(f"… and {total - _MOST_LINES} more")
