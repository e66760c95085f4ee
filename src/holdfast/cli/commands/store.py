"""`holdfast store`: checking and repairing a store, copying runs, measuring and migrating."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.checkpoints.tables import write_tables
from holdfast.cli import errors
from holdfast.cli.command_lines import store_words
from holdfast.cli.options import JSON, STORE, WORKFLOW_NAME, YES, Options, flag, number, option, value
from holdfast.cli.render import local_time, print_facts, print_json, print_label, print_table, size
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import (
    absolute_url,
    chosen_url,
    meant_run,
    open_existing,
    same_store,
)
from holdfast.engine.owner import describe, has_owner
from holdfast.engine.transfer import CopyOutcome, CopyReport, copy_runs
from holdfast.errors import StoreError
from holdfast.integrity.check import check_store
from holdfast.integrity.repair import repair_store
from holdfast.integrity.report import StoreReport
from holdfast.journal.sealing import Seal
from holdfast.stores import open_store
from holdfast.stores.base import SCHEMA_VERSION
from holdfast.stores.inspection import exists, schema_version, store_place, usage_of
from holdfast.values import RunStatus
from holdfast.views.plain import iso, when
from holdfast.views.terminal import CLEAR_LINE, PLAIN, RED, control, count, one_line

if TYPE_CHECKING:
    from types import FrameType

    from holdfast.integrity.report import RunReport, StoreRepair
    from holdfast.stores.base import Store
    from holdfast.stores.inspection import Usage

_LONGEST = 1000


@click.group()
def store() -> None:
    """Check and repair a store, copy its runs, write them to SQL tables, measure it, migrate its schema.

    \b
    Example:
      holdfast store fsck
      holdfast store copy .holdfast/runs.db postgresql://localhost/holdfast
      holdfast store stats
    """


class ProgressLine:
    """A line on stderr that says how far a command is, if a terminal shows it."""

    EVERY = 0.1
    """How many seconds pass at least between two updates."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began, self._updated = time.monotonic(), 0.0

    def show(self, done: int, total: int, text: Callable[[float], str]) -> None:
        """Update the line, with a text that gets the seconds since the beginning."""
        now = time.monotonic()
        if self._shown and (now - self._updated >= self.EVERY or done == total):
            self._updated = now
            _clear_line()
            click.echo(f"{done} of {total} runs{text(now - self._began)}", nl=False, err=True)

    def close(self) -> None:
        """Remove the line."""
        if self._shown and self._updated:
            _clear_line()


def _clear_line() -> None:
    if sys.stderr.isatty():
        control(CLEAR_LINE, err=True)


# `holdfast store copy`.


@command(
    click.argument("source", metavar="FROM"),
    click.argument("target", metavar="TO"),
    click.argument("runs", metavar="[RUN]...", nargs=-1),
    WORKFLOW_NAME,
    option(
        "--status statuses",
        "Only runs with this status. May be repeated.",
        type=click.Choice([status.value for status in RunStatus]),
        multiple=True,
    ),
    flag("--move", "Delete each run from FROM once its copy has been read back."),
    number("--wait", 0.0, "SECONDS", "With --move: how long a run under way may take to pause.", 30.0),
    flag(
        "--foreign",
        "FROM is untrusted: each copy has to be confirmed before it is resumed; commands in its inbox stay.",
    ),
    JSON,
    group=store,
)
def copy(session: Session, options: Options) -> int:
    """Copy runs from one store to another, or move them: all, or those that are named.

    FROM and TO are URLs of stores. Every checksum is verified on the way; a damaged run, or one that TO has with
    another history, is left out, and then the exit code is 1. What belongs to no run (queues, schedules, other
    namespaces) is left out, too, and named. Copying again copies what is new. A run under way is
    copied as far as it is, and can be resumed there; with --move it is asked to pause first. A store that somebody gave
    you is untrusted: copy it with --foreign before you resume any of its runs.

    \b
    Example:
      holdfast store copy .holdfast/runs.db file:backup
      holdfast store copy given.db .holdfast/runs.db --foreign
      holdfast store copy .holdfast/runs.db postgresql://localhost/holdfast --move
    """
    if options.foreign and options.move:
        raise click.UsageError("runs of an untrusted store are copied, not moved; give --foreign or --move")
    here_url, there_url = (_on_disk(url) for url in (options.source, options.target))
    if same_store(here_url, there_url):
        raise click.UsageError(f"FROM and TO are the same store, {here_url}")
    here = session.enter_context(contextlib.closing(open_existing(here_url)))
    wanted = [meant_run(here, run) for run in options.runs] or None
    there = session.enter_context(contextlib.closing(open_store(there_url)))
    line = ProgressLine()
    with _interruptible() as stopped:
        report = copy_runs(
            here,
            there,
            runs=wanted,
            workflow=options.workflow,
            status=options.statuses or None,
            move=options.move,
            wait=options.wait,
            foreign=options.foreign,
            progress=lambda _, done, total: line.show(
                done, total, lambda seconds: f", {done / max(seconds, 0.001):,.0f} runs/s"
            ),
            stopped=stopped,
        )
    line.close()
    _print_copies(session, report, here_url, there_url)
    if report.stopped:
        return errors.INTERRUPTED
    return errors.FAILED if report.problems else errors.COMPLETED


def _on_disk(text: str) -> str:
    url = chosen_url(text)
    if url == "memory" or url.startswith(("memory:", "memory?")):
        raise click.UsageError(f"{text} is in the memory of a process that ends with this command")
    return url


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Remember the first Ctrl+C instead of raising it; yield a function that returns True after it."""
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        _clear_line()
        click.echo("stopping after this run; press Ctrl+C again to stop at once", err=True)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)


COPY_KEYS = "from, to, stopped, counts, runs, left_out"
COPIED_KEYS = "run_id, workflow, outcome, entries, bytes, note"


def _print_copies(session: Session, report: CopyReport, source: str, target: str) -> None:
    """Print what became of the runs: in one line, and on stderr the notes to single runs."""
    counts = {str(outcome): report.count(outcome) for outcome in CopyOutcome}
    if session.as_json:
        runs = [
            {
                "run_id": copied.run,
                "workflow": copied.workflow,
                "outcome": str(copied.outcome),
                "entries": copied.entries,
                "bytes": copied.size,
                "note": copied.note or None,
            }
            for copied in report.runs
        ]
        stopped = report.stopped
        print_json(
            {
                "from": absolute_url(source),
                "to": absolute_url(target),
                "stopped": stopped,
                "counts": counts,
                "runs": runs,
                "left_out": report.left_out,
            }
        )
        return
    for copied in report.runs:
        if copied.note:
            label = f"left out ({copied.outcome})" if copied.is_problem else "note"
            click.echo(f"{label}: run {one_line(copied.run)}: {one_line(copied.note, 500)}", err=True)
    for text in report.left_out:
        click.echo(f"left out: {one_line(text, 500)}", err=True)
    entries = sum(copied.entries for copied in report.runs)
    noun = "entry" if entries == 1 else "entries"
    new = f" ({entries:,} new {noun}, {size(sum(copied.size for copied in report.runs))})" if entries else ""
    became = ", ".join(f"{count(number, 'run')} {outcome}" for outcome, number in counts.items() if number)
    click.echo(
        f"{'stopped: ' if report.stopped else ''}{became or 'no runs to copy'}{new}, from {source} to {target}"
    )


# `holdfast store stats`.


_STATS = ("kind", "place", "namespace", "schema", "disk_bytes", "runs", "statuses", "entries", "checkpoints")
_STATS_TOO = ("snapshots", "messages", "entry_bytes", "snapshot_bytes", "message_bytes")
STATS_KEYS = f"store, {', '.join((*_STATS, *_STATS_TOO))}, oldest, newest, owners, largest"


@command(STORE, JSON, group=store)
def stats(session: Session, options: Options) -> None:
    """Print what a store holds: runs by status, checkpoints, sizes, owners, the largest runs.

    \b
    Example:
      holdfast store stats
      holdfast store stats --store postgresql://localhost/holdfast --json
    """
    store = session.store
    url, usage = session.url(), usage_of(store)
    running = [info for info in store.runs(status=[RunStatus.RUNNING.value]) if has_owner(store, info)]
    owners = dict(Counter(describe(info.owner) for info in running).most_common())
    if session.as_json:
        times = {name: getattr(usage, name) for name in ("oldest", "newest")}
        large = [
            {"run_id": run.run, "workflow": run.workflow, "status": run.status}
            | {"entries": run.entries, "bytes": run.size}
            for run in usage.largest
        ]
        print_json(
            {"store": url}
            | {name: getattr(usage, name) for name in (*_STATS, *_STATS_TOO)}
            | {name: None if at is None else iso(when(at)) for name, at in times.items()}
            | {"owners": [{"owner": owner, "runs": runs} for owner, runs in owners.items()], "largest": large}
        )
        return
    print_facts(_stats_facts(usage, url, owners))
    if usage.largest:
        click.echo()
        columns = ("largest runs", "workflow", "status", "entries", "size")
        rows = [
            [run.run, run.workflow, run.status, str(run.entries), size(run.size)] for run in usage.largest
        ]
        print_table(columns, rows)


def _stats_facts(usage: Usage, url: str, owners: dict[str, int]) -> list[tuple[str, str]]:
    by_status = ", ".join(f"{number} {status}" for status, number in usage.statuses.items())
    amounts = [
        (name, f"{getattr(usage, name):,}, {size(getattr(usage, f'{noun}_bytes'))}")
        for name, noun in (("entries", "entry"), ("snapshots", "snapshot"), ("messages", "message"))
        if getattr(usage, name) is not None
    ]
    return [
        ("store", url),
        ("kind", usage.kind),
        ("place", usage.place if usage.place != url else ""),
        ("namespace", usage.namespace),
        ("schema", "" if usage.schema is None else str(usage.schema)),
        ("on disk", size(usage.disk_bytes)),
        ("runs", f"{usage.runs:,}" + (f" ({by_status})" if by_status else "")),
        ("checkpoints", "" if usage.checkpoints is None else f"{usage.checkpoints:,}"),
        *amounts,
        ("oldest run", "" if usage.oldest is None else local_time(when(usage.oldest))),
        ("last change", "" if usage.newest is None else local_time(when(usage.newest))),
        ("owners", ", ".join(f"{owner} ({count(runs, 'run')})" for owner, runs in owners.items())),
    ]


# `holdfast store tables`.


@command(
    value(
        "--into", "URL", "sqlite:///PATH, or postgresql://… with ?schema=NAME. By default beside the store."
    ),
    STORE,
    JSON,
    group=store,
)
def tables(session: Session, options: Options) -> int:
    """Write the runs of a store to ordinary SQL tables with JSON columns, or bring these up to date.

    The tables are workflow_checkpoints, checkpoints, runs, steps and ledger, with the view checkpoint_states. Only what
    is new is written; what the store has no more is removed. Encrypted runs are left out, also with their key; the exit
    code is 1 if a run is left out because it is damaged.

    \b
    Example:
      holdfast store tables
      holdfast store tables --into postgresql://localhost/reports?schema=holdfast_tables
    """
    report = write_tables(session.store, options.into)
    if session.as_json:
        print_json(report)
    else:
        for run, reason in report.left_out.items():
            click.echo(f"left out: run {one_line(run)}: {one_line(reason, 500)}", err=True)
        written = f"{count(report.runs, 'run')} and {count(report.checkpoints, 'checkpoint')} written"
        click.echo(f"{written}, {report.unchanged} unchanged, {report.removed} removed: {report.into}")
    return errors.FAILED if report.damaged else errors.COMPLETED


# `holdfast store migrate`.


MIGRATE_KEYS = "store, from, to, newest"


@command(flag("--check", "Only report; exit code 1 if something is to be done."), STORE, JSON, group=store)
def migrate(session: Session, options: Options) -> int:
    """Create the schema of a store, or verify its version.

    A store is created by the first process that opens it. On PostgreSQL, roles that may not create the schema need its
    owner to do this before they use it.

    \b
    Example:
      holdfast store migrate --check
      holdfast store migrate --store postgresql://owner@localhost/holdfast
    """
    url = session.url()
    place = store_place(url)
    if options.check and place is not None and not place.exists():
        raise StoreError(f"there is no store at {url} yet; the first run, or this without --check, makes it")
    before = after = schema_version(url, place)
    if not options.check:
        open_store(url).close()
        after = schema_version(url, place)
    missing = f"there is no schema yet; run `holdfast store migrate --store {shlex.quote(url)}`"
    text = f"schema {after} {'is up to date' if before else 'was created'}" if after else missing
    data = {"store": url, "from": before, "to": after, "newest": SCHEMA_VERSION}
    session.print(data, f"{url}: {text}")
    return errors.COMPLETED if after else errors.FAILED


# `holdfast store fsck`.


@command(
    click.argument("runs", metavar="[RUN]...", nargs=-1),
    flag("--repair", "Repair what is damaged; what is replaced is put aside."),
    value(
        "--aside",
        "DIR",
        "With --repair: the folder for what is replaced. By default STORE.lost+found beside the store, or lost+found "
        "where the store is on a server.",
        type=click.Path(file_okay=False, path_type=Path),
    ),
    YES,
    STORE,
    JSON,
    group=store,
)
def fsck(session: Session, options: Options) -> int:
    """Verify every run of a store, or those that are named: all checksums, snapshots, checkpoints and facts.

    Prints what is damaged, what is intact, and the last good checkpoint; the exit code is 1 if something is damaged
    and not repaired. With --repair a run whose journal is damaged stays as it is, and a new run, RUN-repaired, has
    everything up to the damage and can be resumed; snapshots, facts and indexes are written again. Later checks list
    the damaged run as repaired until it is deleted.

    \b
    Example:
      holdfast store fsck
      holdfast store fsck research-7 --repair
    """
    if (options.aside is not None or options.yes) and not options.repair:
        raise click.UsageError("--aside and --yes belong to --repair")
    url, done = session.url(), None
    try:
        opened = session.store
        url = session.url()
    except StoreError as error:
        if not exists(url):
            raise
        _print_report(session, StoreReport(url, medium=(str(error),)), None, url)
        return errors.FAILED
    seal, line = Seal.from_environment(os.environ), ProgressLine()

    def progress(checked: int, total: int, run: str) -> None:
        line.show(checked, total, lambda seconds: f": {one_line(run)}")

    wanted = [_meant(opened, run) for run in options.runs] or None
    report = check_store(opened, wanted, seal=seal, progress=progress)
    line.close()
    if options.repair and not report.is_fine:
        damaged = f"{count(len(report.damaged), 'run')} of " if report.damaged else ""
        session.confirm(f"repair {damaged}{report.store}", options.yes)
        done = repair_store(opened, wanted, seal=seal, aside=options.aside, progress=progress)
        report = check_store(opened, wanted, seal=seal, progress=progress)
        line.close()
    _print_report(session, report, done, url)
    return errors.COMPLETED if report.is_fine else errors.FAILED


def _meant(store: Store, run: str) -> str:
    """Return the id of the run that a prefix names; return the prefix itself if damage prevents the search."""
    try:
        return meant_run(store, run)
    except StoreError:
        return run


def _print_report(session: Session, report: StoreReport, done: StoreRepair | None, url: str) -> None:
    if session.as_json:
        print_json({**report.as_json(), "store": url, "repair": done})
        return
    for problem in report.medium:
        print_label("damaged", RED)
        click.echo(f" store: {one_line(problem, _LONGEST)}")
    for run in report.runs:
        if not run.is_fine:
            _print_damaged(run)
    for leftover in report.leftovers:
        click.echo(f"left over, harmless: {one_line(leftover, _LONGEST)}")
    if done is not None:
        _print_repair(done)
    sealed = sum(run.sealed for run in report.runs)
    if sealed:
        text = f"{count(sealed, 'run')} are encrypted: without HOLDFAST_KEY only checksums were verified"
        click.echo(text, err=True)
    if any(run.is_repairable for run in report.runs):
        click.echo(f"repair with: holdfast store fsck --repair{store_words(url)}")
    click.echo(f"{url}: {_counted(report)}")


def _counted(report: StoreReport) -> str:
    """Return how many runs are fine, damaged and repaired as another run, and damaged."""
    fine = sum(run.is_fine for run in report.runs)
    parts = [
        (fine, "fine"),
        (len(report.repaired), "damaged and repaired as another"),
        (len(report.damaged), "damaged"),
    ]
    found = [f"{count(number, 'run')} {what}" for number, what in parts if number or what == "fine"]
    if len(found) == 1:
        found.append("nothing damaged" if report.is_fine else "damaged")
    return ", ".join(found)


def _print_damaged(run: RunReport) -> None:
    label = "repaired" if run.repaired_as else "unreadable" if run.is_unreadable else "damaged"
    print_label(label, PLAIN if run.repaired_as else RED)
    click.echo(f" run {one_line(run.run)} (workflow {one_line(run.workflow)}, {one_line(run.status)})")
    for damage in run.damages:
        click.echo(f"  {one_line(str(damage), _LONGEST)}")
    intact, good = "nothing", "none"
    if run.intact is not None:
        end = max(run.head, run.intact.end)
        intact = f"entries {max(run.intact.start, 1)} to {run.intact.end} of {end}"
    if (point := run.last_good) is not None:
        place = f"wave {point.wave}" + (f" of {one_line(point.frame)}" if point.frame else "")
        after = f" after {one_line(', '.join(point.nodes))}" if point.nodes else ""
        good = f"{point.id}, {place}{after}, {local_time(point.created_at)}"
    for name, text in (("intact", intact), ("last good checkpoint", good), ("remedy", run.remedy)):
        if text:
            click.echo(f"  {name}: {text}")


def _print_repair(done: StoreRepair) -> None:
    for text in done.medium:
        click.echo(f"done: {one_line(text, _LONGEST)}")
    for repair in done.runs:
        name = one_line(repair.run)
        for text in repair.done:
            click.echo(f"done: run {name}: {one_line(text, _LONGEST)}")
        if repair.refused:
            click.echo(f"not repaired: run {name}: {one_line(repair.refused, _LONGEST)}", err=True)
    for path in done.aside:
        click.echo(f"put aside: {path}")
