"""`holdfast capsule`: a run in one file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.capsules.exports import export_run, fresh_file, lines_of, write_capsule
from holdfast.capsules.imports import import_run
from holdfast.capsules.signing import PASSPHRASE_VARIABLE as VARIABLE
from holdfast.capsules.signing import make_key_pair, read_passphrase
from holdfast.capsules.summary import inspect_capsule, is_locked, naming
from holdfast.cli.command_lines import resume_line
from holdfast.cli.options import (
    FORCE,
    JSON,
    RUN,
    STORE,
    Options,
    choice,
    file_path,
    flag,
    number,
    option,
    value,
)
from holdfast.cli.render import local_time, print_facts, print_json, print_table
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import lasting_url
from holdfast.cli.targets import print_source
from holdfast.stores import open_store
from holdfast.values import RunStatus
from holdfast.views.plain import size_text
from holdfast.views.terminal import binary_stdout, count, money, one_line
from holdfast.views.timeline import environment_text
from holdfast.workflows.foreign import effects_of, reads_of, warning_of

if TYPE_CHECKING:
    from holdfast.capsules.summary import CapsuleInfo

MEGABYTE = 1_000_000
MOST_STEPS = 100
PASSPHRASE = option(
    "--passphrase-file",
    f"Read the passphrase from the first line of this file. By default {VARIABLE}, else it is asked for.",
    type=file_path(),
)


@click.group()
def capsule() -> None:
    """Export a run to one file, a capsule, and import it into any store on any machine.

    \b
    Example:
      holdfast capsule export research -o research.holdfast
      holdfast capsule import research.holdfast
    """


def _passphrase(file: Path | None, *, new: bool) -> str | None:
    """Return the passphrase from a file, the environment or a terminal prompt, which asks twice for a `new` one."""
    if file is not None:
        return read_passphrase(file)
    if given := os.environ.get(VARIABLE):
        return given
    if not sys.stdin.isatty():
        return None
    text: str = click.prompt("passphrase", hide_input=True, confirmation_prompt=new, err=True)
    return text


@command(
    RUN,
    value("-o --output", "FILE", "Where to write it; - is stdout.", required=True),
    choice(
        "--format form",
        ("capsule", "jsonl"),
        "A capsule that can be imported, or lines of JSON for reading and searching.",
        "capsule",
    ),
    value("--sign", "KEY", "Sign it with this key.", type=file_path()),
    flag("--encrypt", "Encrypt it with a passphrase."),
    PASSPHRASE,
    FORCE,
    STORE,
    JSON,
    group=capsule,
)
def export(session: Session, options: Options) -> None:
    """Write a run into one file: its definition, its journal, and what it used.

    `holdfast capsule import` reads the file into any store on any machine, where the run can be resumed. A run under
    way is written as far as it is. Exporting the same run again gives the same bytes, wherever it is.

    \b
    Example:
      holdfast capsule export research -o research.holdfast
      holdfast capsule export research -o research.holdfast --sign my.key --encrypt
      holdfast capsule export research -o - --format jsonl | grep StepFailed
    """
    output, encrypt = options.output, options.encrypt
    if options.passphrase_file is not None and not encrypt:
        raise click.UsageError("--passphrase-file is for --encrypt, which is not given")
    if options.form == "jsonl" and (encrypt or options.sign is not None):
        raise click.UsageError("--format jsonl is for reading; it is neither signed nor encrypted")
    if output == "-" and session.as_json:
        raise click.UsageError("-o - and --json both write to stdout; give a file")
    secret = _passphrase(options.passphrase_file, new=True) if encrypt else None
    if encrypt and secret is None:
        raise click.UsageError(
            f"--encrypt needs a passphrase: set {VARIABLE}, or give --passphrase-file FILE"
        )
    [name] = session.names(options.run)
    info = session.run(options.run)
    if name != info.workflow and not info.run.startswith(name):
        raise click.UsageError(f"{name} is a checkpoint of run {info.run}; whole runs are exported")
    if output != "-" and Path(output).exists() and not options.force:
        raise click.UsageError(f"{output} exists; --force overwrites it")
    if options.form == "jsonl":
        _export_lines(session, info.run, output)
        return
    given: dict[str, Any] = {"sign": options.sign, "encrypt": secret, "seal": session.journal.seal}
    if output != "-":
        exported = export_run(session.store, info.run, output, overwrite=options.force, **given)
    elif sys.stdout.isatty():
        raise click.UsageError("a capsule is not for terminals; give -o FILE, or send stdout somewhere")
    else:
        out = binary_stdout()
        exported = write_capsule(session.store, info.run, out, **given)
        out.flush()
    _print_notes(exported.notes)
    signed = f", signed by {exported.signed_by}" if exported.signed_by else ""
    text = (
        f"wrote run {exported.run} ({exported.status}) to {'stdout' if output == '-' else output}: "
        f"{exported.entries} entries, {size_text(exported.size)}{signed}{', encrypted' if exported.encrypted else ''}"
    )
    session.print({**exported.as_json(), "file": output}, text, err=output == "-")


def _export_lines(session: Session, run: str, output: str) -> None:
    if output == "-":
        for line in lines_of(session.journal, run):
            click.echo(line)
        return
    written = 0
    with fresh_file(Path(output)) as file:
        for line in lines_of(session.journal, run):
            file.write(line.encode("utf-8") + b"\n")
            written += 1
    data = {"run_id": run, "file": output, "lines": written}
    session.print(data, f"wrote {count(written, 'line')} of run {run} to {output}")


def _print_notes(notes: Sequence[str], err: bool = True) -> None:
    for note in notes:
        click.echo(f"note: {one_line(note, 500)}", err=err)


@command(
    click.argument("file", metavar="FILE", type=click.Path(path_type=Path)),
    flag("--inspect", "Only print what is in it."),
    value("--as run_id", "ID", "Give the run another id."),
    value(
        "--trust",
        "[PUBLIC]",
        "Confirm that the run may be resumed here as it is. With a public key, or a folder of them, one of them must "
        "have signed it; may be repeated. By default one of HOLDFAST_TRUSTED must have.",
        is_flag=False,
        flag_value="",
        multiple=True,
    ),
    PASSPHRASE,
    number("--max-state", 1, "MB", "The memory that reading the run may take.", 256),
    STORE,
    JSON,
    group=capsule,
)
def import_(session: Session, options: Options) -> None:
    """Read a run from a file that `holdfast capsule export` wrote, or print what is in it.

    All of the file is verified before anything is written. A run that is here already is brought up to date; one of
    the same id with another history is refused. Nothing in the file is run by importing it: that is what resuming
    the run does, with the workflow file in it. --inspect shows all of that. The first resume shows it again, and asks,
    unless the file is trusted: by --trust, or by the signature of a trusted key. Commands in the inbox of a run that
    is not trusted are left out.

    \b
    Example:
      holdfast capsule import --inspect research.holdfast
      holdfast capsule import research.holdfast
      holdfast capsule import research.holdfast --trust colleagues/
      holdfast resume research
    """
    file = options.file
    if options.inspect and options.run_id is not None:
        raise click.UsageError("--inspect writes nothing, so --as has no meaning with it")
    keys = [Path(place) for place in options.trust if place]
    for key in keys:
        if not key.exists():
            raise click.BadParameter(
                f"--trust: there is no public key {key}; give FILE before a bare --trust"
            )
    # Keys, one of which must have signed it, or, without any, this very file.
    given: dict[str, Any] = {
        "trust": keys or bool(options.trust),
        "max_state": options.max_state * MEGABYTE,
        "passphrase": _passphrase_to_open(file, options.passphrase_file, options.inspect),
    }
    if options.inspect:
        _print_capsule(session, inspect_capsule(file, **given), file)
        return
    url = lasting_url(session.url())
    with contextlib.closing(open_store(url)) as store:
        imported = import_run(store, file, run_id=options.run_id, **given)
    effects = [] if imported.workflow_file is None else effects_of(imported.workflow_file)
    _print_notes(imported.notes)
    signed = f"signed by {imported.signed_by}" if imported.signed_by else "signed by nobody"
    text = f"run {imported.run} of {imported.workflow} ({imported.status}) {imported.outcome}: "
    facts = [effect._asdict() for effect in effects]
    data = {**imported.as_json(), "effects": facts, "store": url}
    session.print(data, f"{text}{imported.entries} new entries, {signed}")
    if not session.as_json and imported.workflow_file is not None and imported.status != RunStatus.COMPLETED:
        click.echo(warning_of(effects))
        if not imported.is_confirmed:
            click.echo("its first resume shows its complete definition, and has to be confirmed")
        click.echo(f"resume with: {resume_line(imported.run, url)}")


def _passphrase_to_open(file: Path, passphrase_file: Path | None, look: bool) -> str | None:
    """Return the passphrase of an encrypted capsule. Its outside can be inspected without one."""
    with naming(file):
        locked = is_locked(file)
    if not locked:
        if passphrase_file is not None:
            raise click.UsageError(f"{file} is not encrypted; --passphrase-file has no meaning with it")
        if os.environ.get(VARIABLE):
            raise click.UsageError(
                f"{file} is not encrypted, and {VARIABLE} says that it should be; unset that to import it nevertheless"
            )
        return None
    secret = _passphrase(passphrase_file, new=False)
    if secret is None and not look:
        raise click.UsageError(f"{file} is encrypted: set {VARIABLE}, or give --passphrase-file FILE")
    return secret


def _print_capsule(session: Session, info: CapsuleInfo, file: Path) -> None:
    effects = [] if info.workflow_file is None else effects_of(info.workflow_file)
    reads = [] if info.workflow_file is None else reads_of(info.workflow_file)
    if session.as_json:
        facts = [effect._asdict() for effect in effects]
        print_json({**info.as_json(), "effects": facts, "reads": reads, "file": str(file)})
        return
    if not info.is_open:
        click.echo(f"an encrypted capsule, {size_text(info.size)}; its passphrase shows more")
        return
    print_facts([(name, one_line(text, 300)) for name, text in _facts(info)])
    if info.steps:
        click.echo()
        rows = [
            [step.name, step.status, str(step.visits), str(step.attempts), f"{step.seconds:.3f}s"]
            for step in info.steps[:MOST_STEPS]
        ]
        print_table(("step", "status", "visits", "attempts", "time"), rows)
    if len(info.steps) > MOST_STEPS:
        click.echo(f"… and {len(info.steps) - MOST_STEPS} more")
    if info.is_read:
        no_code = "no code is in it: it can be resumed only by the Python program that has its workflow"
        click.echo(f"\n{no_code if info.workflow_file is None else warning_of(effects)}")
        print_source(info.config, info.inbox, effects, reads)
    _print_notes(info.notes, err=False)


def _facts(info: CapsuleInfo) -> list[tuple[str, str]]:
    under_way = " (it was under way; it continues where its journal ends)" if info.under_way else ""
    pruned = f", {info.pruned} before them were pruned" if info.pruned else ""
    environment = info.summary.get("environment")
    return [
        ("run", info.run_id),
        ("workflow", info.workflow),
        ("status", f"{info.status}{under_way}"),
        ("started", local_time(info.created_at)),
        ("updated", local_time(info.updated_at)),
        ("tags", ", ".join(info.tags)),
        ("forked from", info.parent),
        ("journal", f"{info.entries} entries, {size_text(info.journal_size)}{pruned}"),
        ("checkpoints", str(info.checkpoints)),
        ("messages", str(info.messages) if info.messages else ""),
        ("used", _used(info.summary.get("ledger"))),
        ("environment", environment_text(environment) if isinstance(environment, Mapping) else ""),
        ("capsule", f"{size_text(info.size)}, {_secrecy(info)}"),
        ("digest", info.digest),
        ("signed", f"by {info.signed_by}" if info.signed_by else "by nobody"),
    ]


def _secrecy(info: CapsuleInfo) -> str:
    if info.encrypted or info.sealed:
        return "encrypted" if info.encrypted else "its journal is encrypted with the key of a store"
    return "not encrypted: inputs, prompts and results can be read by anybody who has it"


def _used(ledger: Any) -> str:
    if not isinstance(ledger, Mapping) or not ledger.get("calls"):
        return ""
    tokens = f"{ledger['input_tokens']:,} + {ledger['output_tokens']:,} tokens"
    return f"{count(ledger['calls'], 'call')}, {tokens}, {money(ledger['cost'])}"


@command(
    value(
        "-o --output",
        "NAME",
        "Write the private key to NAME, the public one to NAME.pub.",
        required=True,
        type=file_path(),
    ),
    JSON,
    group=capsule,
)
def keygen(session: Session, options: Options) -> None:
    """Make a pair of keys for signing capsules.

    Keep NAME to yourself; give NAME.pub to those who are to trust your capsules, and send them the fingerprint some
    other way.

    \b
    Example:
      holdfast capsule keygen -o my.key
      holdfast capsule export research -o research.holdfast --sign my.key
      holdfast capsule import research.holdfast --trust my.key.pub
    """
    pair = make_key_pair(options.output)
    session.print(
        {"private": str(pair.private), "public": str(pair.public), "fingerprint": pair.fingerprint},
        f"wrote {pair.private}, which is yours alone, and {pair.public}, which you give to others",
        f"fingerprint: {pair.fingerprint}",
    )
