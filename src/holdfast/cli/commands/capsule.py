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
from holdfast.cli.options import FORCE, JSON, RUN, STORE, file_path, number
from holdfast.cli.output import binary_stdout
from holdfast.cli.render import count, local_time, money, one_line, print_facts, print_json, print_table
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import lasting_url
from holdfast.cli.targets import print_source
from holdfast.stores import open_store
from holdfast.values import RunStatus
from holdfast.views.plain import size_text
from holdfast.views.timeline import environment_text
from holdfast.workflows.foreign import effects_of, reads_of, warning_of

if TYPE_CHECKING:
    from holdfast.capsules.exports import ExportedRun
    from holdfast.capsules.imports import ImportedRun
    from holdfast.capsules.signing import Trust
    from holdfast.capsules.summary import CapsuleInfo
    from holdfast.workflows.foreign import Effect

MEGABYTE = 1_000_000
MOST_STEPS = 100
PASSPHRASE = click.option(
    "--passphrase-file",
    type=file_path(),
    help=f"Read the passphrase from the first line of this file. By default {VARIABLE}, else it is asked for.",
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
    """Return the passphrase of a file, the environment or the terminal, which asks twice for a `new` one."""
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
    click.option("-o", "--output", required=True, metavar="FILE", help="Where to write it; - is stdout."),
    click.option(
        "--format",
        "form",
        type=click.Choice(("capsule", "jsonl")),
        default="capsule",
        show_default=True,
        help="A capsule that can be imported, or lines of JSON for reading and searching.",
    ),
    click.option("--sign", type=file_path(), metavar="KEY", help="Sign it with this key."),
    click.option("--encrypt", is_flag=True, help="Encrypt it with a passphrase."),
    PASSPHRASE,
    FORCE,
    STORE,
    JSON,
    group=capsule,
)
def export(
    session: Session,
    run: str,
    output: str,
    form: str,
    sign: Path | None,
    encrypt: bool,
    passphrase_file: Path | None,
    force: bool,
) -> None:
    """Write a run into one file: its definition, its journal, and what it used.

    `holdfast capsule import` reads the file into any store on any machine, where the run can be resumed. A run under
    way is written as far as it is. Exporting the same run again gives the same bytes, wherever it is.

    \b
    Example:
      holdfast capsule export research -o research.holdfast
      holdfast capsule export research -o research.holdfast --sign my.key --encrypt
      holdfast capsule export research -o - --format jsonl | grep StepFailed
    """
    if passphrase_file is not None and not encrypt:
        raise click.UsageError("--passphrase-file is for --encrypt, which is not given")
    if form == "jsonl" and (encrypt or sign is not None):
        raise click.UsageError("--format jsonl is for reading; it is neither signed nor encrypted")
    if output == "-" and session.as_json:
        raise click.UsageError("-o - and --json both write to stdout; give a file")
    secret = _passphrase(passphrase_file, new=True) if encrypt else None
    if encrypt and secret is None:
        raise click.UsageError(
            f"--encrypt needs a passphrase: set {VARIABLE}, or give --passphrase-file FILE"
        )
    [name] = session.names(run)
    info = session.run(run)
    if name != info.workflow and not info.run.startswith(name):
        raise click.UsageError(f"{name} is a checkpoint of run {info.run}; whole runs are exported")
    if output != "-" and Path(output).exists() and not force:
        raise click.UsageError(f"{output} exists; --force overwrites it")
    if form == "jsonl":
        _export_lines(session, info.run, output)
        return
    _print_export(session, _export(session, info.run, output, force, sign, secret), output)


def _export(
    session: Session, run: str, output: str, force: bool, sign: Path | None, secret: str | None
) -> ExportedRun:
    given: dict[str, Any] = {"sign": sign, "encrypt": secret, "seal": session.journal.seal}
    if output != "-":
        return export_run(session.store, run, output, overwrite=force, **given)
    if sys.stdout.isatty():
        raise click.UsageError("a capsule is not for terminals; give -o FILE, or send stdout somewhere")
    out = binary_stdout()
    exported = write_capsule(session.store, run, out, **given)
    out.flush()
    return exported


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


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"note: {one_line(note, 500)}", err=True)


def _print_export(session: Session, exported: ExportedRun, output: str) -> None:
    _print_notes(exported.notes)
    signed = f", signed by {exported.signed_by}" if exported.signed_by else ""
    text = (
        f"wrote run {exported.run} ({exported.status}) to {'stdout' if output == '-' else output}: "
        f"{exported.entries} entries, {size_text(exported.size)}{signed}{', encrypted' if exported.encrypted else ''}"
    )
    session.print({**exported.as_json(), "file": output}, text, err=output == "-")


@command(
    click.argument("file", metavar="FILE", type=click.Path(path_type=Path)),
    click.option("--inspect", "look", is_flag=True, help="Only print what is in it."),
    click.option("--as", "run_id", metavar="ID", help="Give the run another id."),
    click.option(
        "--trust",
        is_flag=False,
        flag_value="",
        multiple=True,
        metavar="[PUBLIC]",
        help="Confirm that the run may be resumed here as it is. With a public key, or a folder of them, one of them "
        "must have signed it; may be repeated. By default one of HOLDFAST_TRUSTED must have.",
    ),
    PASSPHRASE,
    number("--max-state", 1, "MB", "The memory that reading the run may take.", 256),
    STORE,
    JSON,
    group=capsule,
)
def import_(
    session: Session,
    file: Path,
    look: bool,
    run_id: str | None,
    trust: tuple[str, ...],
    passphrase_file: Path | None,
    max_state: int,
) -> None:
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
    if look and run_id is not None:
        raise click.UsageError("--inspect writes nothing, so --as has no meaning with it")
    given: dict[str, Any] = {"trust": _trusted(trust), "max_state": max_state * MEGABYTE}
    secret = _passphrase_to_open(file, passphrase_file, look)
    if look:
        _print_capsule(session, inspect_capsule(file, passphrase=secret, **given), file)
        return
    url = lasting_url(session.url())
    with contextlib.closing(open_store(url)) as store:
        imported = import_run(store, file, run_id=run_id, passphrase=secret, **given)
    _print_import(session, imported, url)


def _trusted(given: tuple[str, ...]) -> Trust:
    """Return what `--trust` says: keys, one of which must have signed it, or, without any, this very file."""
    keys = [Path(place) for place in given if place]
    for key in keys:
        if not key.exists():
            raise click.BadParameter(
                f"--trust: there is no public key {key}; give FILE before a bare --trust"
            )
    return keys or bool(given)


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


def _effects_json(effects: Sequence[Effect]) -> list[dict[str, str]]:
    return [effect._asdict() for effect in effects]


def _print_import(session: Session, imported: ImportedRun, url: str) -> None:
    effects = [] if imported.workflow_file is None else effects_of(imported.workflow_file)
    _print_notes(imported.notes)
    signed = f"signed by {imported.signed_by}" if imported.signed_by else "signed by nobody"
    text = f"run {imported.run} of {imported.workflow} ({imported.status}) {imported.outcome}: "
    session.print(
        {**imported.as_json(), "effects": _effects_json(effects), "store": url},
        f"{text}{imported.entries} new entries, {signed}",
    )
    if not session.as_json and imported.workflow_file is not None and imported.status != RunStatus.COMPLETED:
        click.echo(warning_of(effects))
        if not imported.is_confirmed:
            click.echo("its first resume shows its complete definition, and has to be confirmed")
        click.echo(f"resume with: {resume_line(imported.run, url)}")


def _print_capsule(session: Session, info: CapsuleInfo, file: Path) -> None:
    effects = [] if info.workflow_file is None else effects_of(info.workflow_file)
    reads = [] if info.workflow_file is None else reads_of(info.workflow_file)
    if session.as_json:
        print_json({**info.as_json(), "effects": _effects_json(effects), "reads": reads, "file": str(file)})
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
    for note in info.notes:
        click.echo(f"note: {one_line(note, 500)}")


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
    click.option(
        "-o",
        "--output",
        required=True,
        type=file_path(),
        metavar="NAME",
        help="Write the private key to NAME, the public one to NAME.pub.",
    ),
    JSON,
    group=capsule,
)
def keygen(session: Session, output: Path) -> None:
    """Make a pair of keys for signing capsules.

    Keep NAME to yourself; give NAME.pub to those who are to trust your capsules, and send them the fingerprint some
    other way.

    \b
    Example:
      holdfast capsule keygen -o my.key
      holdfast capsule export research -o research.holdfast --sign my.key
      holdfast capsule import research.holdfast --trust my.key.pub
    """
    pair = make_key_pair(output)
    session.print(
        {"private": str(pair.private), "public": str(pair.public), "fingerprint": pair.fingerprint},
        f"wrote {pair.private}, which is yours alone, and {pair.public}, which you give to others",
        f"fingerprint: {pair.fingerprint}",
    )
