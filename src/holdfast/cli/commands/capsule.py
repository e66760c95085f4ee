"""`holdfast capsule`: a run in one file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.display.tables import print_json
from holdfast.cli.display.text import count, one_line
from holdfast.cli.errors import COMPLETED
from holdfast.cli.output import binary_stdout
from holdfast.cli.reading import json_option, reading_run
from holdfast.cli.store_option import chosen_url, lasting_url, meant_run, store_option
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.capsules.exports import ExportedRun
    from holdfast.capsules.imports import ImportedRun
    from holdfast.capsules.signing import Trust
    from holdfast.capsules.summary import CapsuleInfo
    from holdfast.journal.journal import Journal
    from holdfast.workflows.foreign import Deed


FORMATS = ("capsule", "jsonl")
MEGABYTE = 1_000_000

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _passphrase_option(command: Decorated) -> Decorated:
    return click.option(
        "--passphrase-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Read the passphrase from the first line of this file. By default HOLDFAST_CAPSULE_PASSPHRASE, else it "
        "is asked for.",
    )(command)


@click.group()
def capsule() -> None:
    """Export a run to one file, a capsule, and import it into any store on any machine.

    \b
    Example:
      holdfast capsule export research -o research.holdfast
      holdfast capsule import research.holdfast
    """


@capsule.command("export")
@click.argument("run", metavar="RUN|WORKFLOW")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write it; - is stdout.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="capsule",
    show_default=True,
    help="A capsule to be carried, or lines of JSON to be read and searched.",
)
@click.option(
    "--sign", type=click.Path(path_type=Path, dir_okay=False), metavar="KEY", help="Sign it with this key."
)
@click.option("--encrypt", is_flag=True, help="Encrypt it with a passphrase.")
@_passphrase_option
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@store_option
@json_option
def export(
    run: str,
    output: str,
    form: str,
    sign: Path | None,
    encrypt: bool,
    passphrase_file: Path | None,
    force: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Write a run into one file: its definition, its journal, and what it used.

    `holdfast capsule import` reads the file into any store on any machine, where the run can be resumed. RUN is a
    run's id or its beginning, or a workflow's name or file, which means its latest run. A run under way is written as
    far as it is. Exporting the same run again gives the same bytes, wherever it is.

    \b
    Example:
      holdfast capsule export research -o research.holdfast
      holdfast capsule export research -o research.holdfast --sign my.key --encrypt
      holdfast capsule export research -o - --format jsonl | grep StepFailed
    """
    from holdfast.views.runs import find_run_info

    if passphrase_file is not None and not encrypt:
        raise click.UsageError("--passphrase-file is for --encrypt, which is not given")
    if form == "jsonl" and (encrypt or sign is not None):
        raise click.UsageError("--format jsonl is for reading; it is neither signed nor encrypted")
    if output == "-" and as_json:
        raise click.UsageError("-o - and --json both write to stdout; give a file")
    secret = _needed_passphrase(passphrase_file) if encrypt else None
    journal, name = reading_run(store, run)
    try:
        info = find_run_info(journal, meant_run(journal.store, name))
        _refuse_checkpoint(name, info.run, info.workflow)
        if form == "jsonl":
            return _export_lines(journal, info.run, output, force, as_json)
        exported = _export(journal, info.run, output, force, sign, secret)
    finally:
        journal.store.close()
    _tell_export(exported, output, as_json)
    return COMPLETED


def _refuse_checkpoint(name: str, run: str, workflow: str) -> None:
    if name != workflow and not run.startswith(name):
        raise click.UsageError(f"{name} is a checkpoint of run {run}; whole runs are exported")


def _needed_passphrase(file: Path | None) -> str:
    from holdfast.capsules.signing import PASSPHRASE_VARIABLE as VARIABLE
    from holdfast.cli.options import passphrase

    secret = passphrase(file, new=True)
    if secret is None:
        raise click.UsageError(
            f"--encrypt needs a passphrase: set {VARIABLE}, or give --passphrase-file FILE"
        )
    return secret


def _export(
    journal: Journal, run: str, output: str, force: bool, sign: Path | None, secret: str | None
) -> ExportedRun:
    from holdfast.capsules.exports import export_run, write_capsule

    if output != "-":
        _refuse_present(output, force)
        return export_run(
            journal.store, run, output, sign=sign, encrypt=secret, overwrite=force, seal=journal.seal
        )
    if sys.stdout.isatty():
        raise click.UsageError("a capsule is not for terminals; give -o FILE, or send stdout somewhere")
    out = binary_stdout()
    exported = write_capsule(journal.store, run, out, sign=sign, encrypt=secret, seal=journal.seal)
    out.flush()
    return exported


def _refuse_present(output: str, force: bool) -> None:
    if Path(output).exists() and not force:
        raise click.UsageError(f"{output} is there already; --force writes over it")


def _export_lines(journal: Journal, run: str, output: str, force: bool, as_json: bool) -> int:
    from holdfast.capsules.exports import fresh_file
    from holdfast.capsules.format import lines_of

    if output == "-":
        for line in lines_of(journal, run):
            click.echo(line)
        return COMPLETED
    _refuse_present(output, force)
    written = 0
    with fresh_file(Path(output)) as file:
        for line in lines_of(journal, run):
            file.write(line.encode("utf-8") + b"\n")
            written += 1
    if as_json:
        print_json({"run_id": run, "file": output, "lines": written})
    else:
        click.echo(f"wrote {count(written, 'line')} of run {one_line(run)} to {output}")
    return COMPLETED


def _tell_export(exported: ExportedRun, output: str, as_json: bool) -> None:
    from holdfast.views.plain import size_text

    for note in exported.notes:
        click.echo(f"note: {one_line(note, 500)}", err=True)
    if as_json:
        print_json({**exported.as_json(), "file": output})
        return
    signed = f", signed by {exported.signed_by}" if exported.signed_by else ""
    locked = ", encrypted" if exported.encrypted else ""
    where = "stdout" if output == "-" else output
    click.echo(
        f"wrote run {one_line(exported.run)} ({exported.status}) to {where}: {exported.entries} entries, "
        f"{size_text(exported.size)}{signed}{locked}",
        err=output == "-",
    )


@capsule.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--inspect", "look", is_flag=True, help="Only show what is in it.")
@click.option("--as", "run_id", metavar="ID", help="Give the run another id.")
@click.option(
    "--trust",
    is_flag=False,
    flag_value="",
    multiple=True,
    metavar="[PUBLIC]",
    help="Confirm that the run may be resumed here as it is. With a public key, or a folder of them, one of them has "
    "to have signed it; may be repeated. By default those of HOLDFAST_TRUSTED have to.",
)
@_passphrase_option
@click.option(
    "--max-state",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    metavar="MB",
    help="The memory that reading the run may take.",
)
@store_option
@json_option
def import_(
    file: Path,
    look: bool,
    run_id: str | None,
    trust: tuple[str, ...],
    passphrase_file: Path | None,
    max_state: int,
    store: str | None,
    as_json: bool,
) -> int:
    """Read a run from a file that `holdfast capsule export` wrote, or look into it.

    All of the file is verified before anything is written. A run that is here already is brought up to date; one of
    the same id with another history is refused. Nothing in the file is run by importing it: that is what resuming
    the run does, with the workflow file in it. --inspect shows all of that. The first resume shows it again, and asks,
    unless the file is trusted: by --trust, or by the signature of a trusted key. Commands that wait in the inbox of a
    run that is not trusted are left out.

    \b
    Example:
      holdfast capsule import --inspect research.holdfast
      holdfast capsule import research.holdfast
      holdfast capsule import research.holdfast --trust colleagues/
      holdfast resume research
    """
    from holdfast.capsules.summary import inspect_capsule

    if look and run_id is not None:
        raise click.UsageError("--inspect writes nothing, so --as has no meaning with it")
    size, trusted = max_state * MEGABYTE, _trusted(trust)
    secret = _passphrase_to_open(file, passphrase_file, look)
    if look:
        _show(inspect_capsule(file, passphrase=secret, trust=trusted, max_state=size), file, as_json)
    else:
        url = lasting_url(chosen_url(store))
        _tell_import(_import(url, file, run_id, secret, trusted, size), url, as_json)
    return COMPLETED


def _trusted(given: tuple[str, ...]) -> Trust:
    """What `--trust` says: keys, one of which has to have signed it, or, without any, this very file."""
    keys = [Path(place) for place in given if place]
    for key in keys:
        if not key.exists():
            raise click.BadParameter(
                f"--trust: there is no public key {key}; give FILE before a bare --trust"
            )
    return keys or bool(given)


def _passphrase_to_open(file: Path, passphrase_file: Path | None, look: bool) -> str | None:
    """The passphrase of an encrypted capsule. Looking at the outside of one takes none."""
    from holdfast.capsules.signing import PASSPHRASE_VARIABLE as VARIABLE
    from holdfast.capsules.summary import is_locked, told
    from holdfast.cli.options import passphrase

    with told(file):
        locked = is_locked(file)
    if not locked:
        if passphrase_file is not None:
            raise click.UsageError(f"{file} is not encrypted; --passphrase-file has no meaning with it")
        if os.environ.get(VARIABLE):
            raise click.UsageError(
                f"{file} is not encrypted, and {VARIABLE} says that it should be; unset that to take it nevertheless"
            )
        return None
    secret = passphrase(passphrase_file, new=False)
    if secret is None and not look:
        raise click.UsageError(f"{file} is encrypted: set {VARIABLE}, or give --passphrase-file FILE")
    return secret


def _import(
    url: str, file: Path, run_id: str | None, secret: str | None, trusted: Trust, size: int
) -> ImportedRun:
    from holdfast.capsules.imports import import_run
    from holdfast.stores import open_store

    with contextlib.closing(open_store(url)) as store:
        return import_run(store, file, run_id=run_id, passphrase=secret, trust=trusted, max_state=size)


def _show(info: CapsuleInfo, file: Path, as_json: bool) -> None:
    from holdfast.cli.display.capsule import print_capsule
    from holdfast.workflows.foreign import deeds_of, reads_of

    deeds = [] if info.flow is None else deeds_of(info.flow)
    reads = [] if info.flow is None else reads_of(info.flow)
    if as_json:
        would = {"deeds": _deeds_as_json(deeds), "reads": reads}
        print_json({**info.as_json(), **would, "file": str(file)})
    else:
        print_capsule(info, deeds, reads)


def _deeds_as_json(deeds: list[Deed]) -> list[dict[str, str]]:
    return [deed._asdict() for deed in deeds]


def _tell_import(imported: ImportedRun, url: str, as_json: bool) -> None:
    from holdfast.workflows.foreign import deeds_of, warning_of

    deeds = [] if imported.flow is None else deeds_of(imported.flow)
    for note in imported.notes:
        click.echo(f"note: {one_line(note, 500)}", err=True)
    if as_json:
        print_json({**imported.as_json(), "deeds": _deeds_as_json(deeds), "store": url})
        return
    from holdfast.cli.reading import resume_command

    signed = f"signed by {imported.signed_by}" if imported.signed_by else "signed by nobody"
    click.echo(
        f"run {one_line(imported.run)} of {one_line(imported.workflow)} ({imported.status}) {imported.outcome}: "
        f"{imported.entries} new entries, {signed}"
    )
    if imported.flow is not None and imported.status != RunStatus.COMPLETED:
        click.echo(warning_of(deeds))
        if not imported.is_confirmed:
            click.echo("its first resume shows all that it would run with, and has to be confirmed")
        click.echo(f"go on with it: {resume_command(imported.run, url, '')}")


@capsule.command()
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="NAME",
    help="Write the private key to NAME, the public one to NAME.pub.",
)
@json_option
def keygen(output: Path, as_json: bool) -> int:
    """Make a pair of keys for signing capsules.

    Keep NAME to yourself; give NAME.pub to those who are to trust your capsules, and tell them the fingerprint some
    other way.

    \b
    Example:
      holdfast capsule keygen -o my.key
      holdfast capsule export research -o research.holdfast --sign my.key
      holdfast capsule import research.holdfast --trust my.key.pub
    """
    from holdfast.capsules.signing import make_key_pair

    pair = make_key_pair(output)
    if as_json:
        print_json(
            {"private": str(pair.private), "public": str(pair.public), "fingerprint": pair.fingerprint}
        )
    else:
        click.echo(f"wrote {pair.private}, which is yours alone, and {pair.public}, to be given away")
        click.echo(f"fingerprint: {pair.fingerprint}")
    return COMPLETED
