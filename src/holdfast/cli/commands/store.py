"""`holdfast store`: copying runs between stores, and looking after a store as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import errors
from holdfast.cli.display.show import place_of_store
from holdfast.cli.display.tables import print_json, print_label
from holdfast.cli.display.text import count, moment, one_line
from holdfast.cli.output import CLEAR_LINE, PLAIN, RED, control
from holdfast.cli.reading import confirm, json_option, yes_option
from holdfast.cli.store_option import (
    chosen_url,
    exists,
    meant_run,
    open_existing,
    same_store,
    store_option,
    store_place,
)
from holdfast.engine.transfer import CopiedRun, CopyOutcome, CopyReport
from holdfast.errors import StoreError
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from types import FrameType

    from holdfast.integrity.report import RunReport, StoreRepair, StoreReport
    from holdfast.stores.base import Store


@click.group()
def store() -> None:
    """Check and repair a store, copy runs between stores, measure a store, bring its schema up to date.

    \b
    Example:
      holdfast store copy .holdfast/runs.db postgresql://localhost/holdfast
      holdfast store stats
    """


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--workflow", metavar="NAME", help="Only the runs of this workflow.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice([status.value for status in RunStatus]),
    multiple=True,
    help="Only runs that stand like this. May be repeated.",
)
@click.option("--move", is_flag=True, help="Delete each run from FROM once its copy has been read back.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="With --move: how long a run under way may take to pause.",
)
@click.option(
    "--foreign",
    is_flag=True,
    help="FROM is a stranger's: each copy has to be confirmed before it is resumed; commands in its inbox stay.",
)
@json_option
def copy(
    source: str,
    target: str,
    runs: tuple[str, ...],
    workflow: str | None,
    statuses: tuple[str, ...],
    move: bool,
    wait: float,
    foreign: bool,
    as_json: bool,
) -> int:
    """Copy runs from one store to another, or move them: all, or those that are named.

    FROM and TO are URLs of stores, RUN is a run's id or its beginning. Every checksum is verified on the way; a
    damaged run, or one that TO has with another history, is left out, and then the exit code is 1. Copying again
    brings what is new. A run under way is copied as far as it is, and can be resumed there; with --move it is
    asked to pause first. A store that somebody gave you is a stranger's file: copy it with --foreign before you
    resume any of its runs.

    \b
    Example:
      holdfast store copy .holdfast/runs.db file:backup
      holdfast store copy given.db .holdfast/runs.db --foreign
      holdfast store copy .holdfast/runs.db postgresql://localhost/holdfast --move
    """
    from holdfast.engine.transfer import copy_runs
    from holdfast.stores import open_store

    if foreign and move:
        raise click.UsageError("runs of a stranger's store are copied, not moved; give --foreign or --move")
    here_url, there_url = (_on_disk(url) for url in (source, target))
    if same_store(here_url, there_url):
        raise click.UsageError(f"FROM and TO are the same store, {here_url}")
    here = open_existing(here_url)
    try:
        wanted = [meant_run(here, run) for run in runs] or None
        there = open_store(there_url)
        try:
            progress = CopyProgress()
            with stoppable() as stopped:
                report = copy_runs(
                    here,
                    there,
                    runs=wanted,
                    workflow=workflow,
                    status=statuses or None,
                    move=move,
                    wait=wait,
                    foreign=foreign,
                    progress=progress,
                    stopped=stopped,
                )
            progress.close()
        finally:
            there.close()
    finally:
        here.close()
    if as_json:
        print_json(report_as_json(report, here_url, there_url))
    else:
        tell(report, here_url, there_url)
    if report.stopped:
        return errors.INTERRUPTED
    return errors.FAILED if report.problems else errors.COMPLETED


def _on_disk(text: str) -> str:
    url = chosen_url(text)
    if url == "memory" or url.startswith(("memory:", "memory?")):
        raise click.UsageError(f"{text} is in the memory of a process that ends with this command")
    return url


@store.command()
@store_option
@json_option
def stats(store: str | None, as_json: bool) -> int:
    """Tell what a store holds: runs by status, checkpoints, sizes, who drives, the largest runs.

    \b
    Example:
      holdfast store stats
      holdfast store stats --store postgresql://localhost/holdfast --json
    """
    from holdfast.cli.display.tables import print_usage, usage_as_json
    from holdfast.stores.maintenance import usage_of

    url = chosen_url(store)
    opened = open_existing(url)
    try:
        usage, drivers = usage_of(opened), _drivers(opened)
    finally:
        opened.close()
    if as_json:
        print_json(usage_as_json(usage, url, drivers))
    else:
        print_usage(usage, url, drivers)
    return errors.COMPLETED


def _drivers(store: Store) -> dict[str, int]:
    """The live processes that drive runs, each with how many."""
    from holdfast.engine.owner import describe, has_owner

    running = [info for info in store.runs(status=[RunStatus.RUNNING.value]) if has_owner(store, info)]
    return dict(Counter(describe(info.driver) for info in running).most_common())


@store.command()
@click.option("--check", is_flag=True, help="Only tell; exit code 1 if something is to be done.")
@store_option
@json_option
def migrate(check: bool, store: str | None, as_json: bool) -> int:
    """Create the schema of a store, or verify its version.

    A store is created by the first process that opens it. On PostgreSQL, roles that may not create the
    schema need its owner to do this before they use it.

    \b
    Example:
      holdfast store migrate --check
      holdfast store migrate --store postgresql://owner@localhost/holdfast
    """
    from holdfast.cli.display.tables import schema_as_json, schema_text
    from holdfast.stores import open_store
    from holdfast.stores.maintenance import schema_version

    url = chosen_url(store)
    place = store_place(url)
    if check and place is not None and not place.exists():
        raise StoreError(f"there is no store at {url} yet; the first run, or this without --check, makes it")
    before = after = schema_version(url, place)
    if not check:
        open_store(url).close()
        after = schema_version(url, place)
    if as_json:
        print_json(schema_as_json(url, before, after))
    else:
        click.echo(schema_text(url, before, after))
    return errors.COMPLETED if after else errors.FAILED


# `holdfast store fsck`: verifying every run of a store, and repairing what is damaged.


_EVERY = 0.1
_LONGEST = 1000


@store.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--repair", is_flag=True, help="Repair what is damaged; what is replaced is put aside.")
@click.option(
    "--aside",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --repair: the folder for what is replaced. By default STORE.lost+found beside the store, or "
    "lost+found where the store is on a server.",
)
@yes_option
@store_option
@json_option
def fsck(
    runs: tuple[str, ...], repair: bool, aside: Path | None, yes: bool, store: str | None, as_json: bool
) -> int:
    """Verify every run of a store, or those that are named: all checksums, snapshots, checkpoints and facts.

    Tells what is damaged, what is intact, and the last good checkpoint; the exit code is 1 if something is damaged.
    With --repair a run whose journal is damaged stays as it is, and a new run, RUN-repaired, has everything up to
    the damage and can be resumed; snapshots, facts and indexes are written anew.

    \b
    Example:
      holdfast store fsck
      holdfast store fsck research-7 --repair
    """
    from holdfast.integrity.check import check_store
    from holdfast.integrity.repair import repair_store
    from holdfast.state.encryption import Seal

    if (aside is not None or yes) and not repair:
        raise click.UsageError("--aside and --yes belong to --repair")
    url = chosen_url(store)
    opened = _opened(url)
    if isinstance(opened, str):
        return _told_unopened(url, opened, as_json)
    seal = Seal.from_environment(os.environ)
    try:
        wanted = [_meant(opened, run) for run in runs] or None
        progress = CheckProgress()
        report = check_store(opened, wanted, seal=seal, progress=progress)
        progress.close()
        done = None
        if repair and not report.is_fine:
            _confirm(report, yes)
            done = repair_store(opened, wanted, seal=seal, aside=aside, progress=progress)
            report = check_store(opened, wanted, seal=seal, progress=progress)
            progress.close()
    finally:
        opened.close()
    if as_json:
        data = report.as_json()
        print_json({**data, "store": url, "repair": done.as_json() if done else None})
    else:
        _tell(report, done, url)
    return errors.COMPLETED if report.is_fine else errors.FAILED


def _opened(url: str) -> Store | str:
    """The store, or why it cannot even be opened."""
    try:
        return open_existing(url)
    except StoreError as error:
        if not exists(url):
            raise
        return str(error)


def _told_unopened(url: str, problem: str, as_json: bool) -> int:
    from holdfast.integrity.report import StoreReport

    report = StoreReport(url, medium=(problem,))
    if as_json:
        print_json({**report.as_json(), "repair": None})
    else:
        _tell(report, None, url)
    return errors.FAILED


def _meant(store: Store, run: str) -> str:
    """A run's id by its beginning; what is damaged may stand in the way of looking for it."""
    try:
        return meant_run(store, run)
    except StoreError:
        return run


def _confirm(report: StoreReport, yes: bool) -> None:
    what = f"{count(len(report.damaged), 'run')} of {report.store}" if report.damaged else report.store
    confirm(f"repair {what}", yes)


class CheckProgress:
    """A line on stderr that says how far a check is, if a terminal shows it."""

    def __init__(self) -> None:
        self._shown, self._told = sys.stderr.isatty(), 0.0

    def __call__(self, done: int, total: int, run: str) -> None:
        """Tell which run is next."""
        now = time.monotonic()
        if self._shown and now - self._told >= _EVERY:
            self._told = now
            control(CLEAR_LINE, err=True)
            click.echo(f"{done} of {total} runs: {one_line(run)}", nl=False, err=True)

    def close(self) -> None:
        """Take the line away."""
        if self._shown and self._told:
            control(CLEAR_LINE, err=True)


def _tell(report: StoreReport, done: StoreRepair | None, url: str) -> None:
    for problem in report.medium:
        print_label("damaged", RED)
        click.echo(f" store: {one_line(problem, _LONGEST)}")
    for run in report.runs:
        if not run.is_fine:
            _tell_run(run)
    for leftover in report.leftovers:
        click.echo(f"left over, harmless: {one_line(leftover, _LONGEST)}")
    if done is not None:
        _tell_done(done)
    sealed = sum(run.sealed for run in report.runs)
    if sealed:
        text = f"{count(sealed, 'run')} are encrypted: without HOLDFAST_KEY only checksums were verified"
        click.echo(text, err=True)
    if any(run.is_repairable for run in report.runs):
        click.echo(f"repair with: holdfast store fsck --repair{place_of_store(url)}")
    damaged = len(report.damaged)
    fine = count(len(report.runs) - damaged, "run")
    ends = (
        f"{count(damaged, 'run')} damaged"
        if damaged
        else ("nothing damaged" if report.is_fine else "damaged")
    )
    click.echo(f"{url}: {fine} fine, {ends}")


def _tell_run(run: RunReport) -> None:
    print_label(*(("repaired", PLAIN) if run.repaired_as else ("damaged", RED)))
    click.echo(f" run {one_line(run.run)} (workflow {one_line(run.workflow)}, {one_line(run.status)})")
    for damage in run.damages:
        click.echo(f"  {one_line(str(damage), _LONGEST)}")
    facts: list[tuple[str, Any]] = [("intact", _intact(run)), ("last good checkpoint", _last_good(run))]
    for name, text in [*facts, ("remedy", run.remedy)]:
        if text:
            click.echo(f"  {name}: {text}")


def _intact(run: RunReport) -> str:
    if run.intact is None:
        return "nothing"
    first = max(run.intact.start, 1)
    return f"entries {first} to {run.intact.end} of {max(run.head, run.intact.end)}"


def _last_good(run: RunReport) -> str:
    good = run.last_good
    if good is None:
        return "none"
    place = f"wave {good.wave}" + (f" of {one_line(good.frame)}" if good.frame else "")
    after = f" after {one_line(', '.join(good.nodes))}" if good.nodes else ""
    return f"{good.id}, {place}{after}, {moment(good.created_at)}"


def _tell_done(done: StoreRepair) -> None:
    for text in done.medium:
        click.echo(f"done: {one_line(text, _LONGEST)}")
    for repair in done.runs:
        for text in repair.done:
            click.echo(f"done: run {one_line(repair.run)}: {one_line(text, _LONGEST)}")
        if repair.refused:
            click.echo(
                f"not repaired: run {one_line(repair.run)}: {one_line(repair.refused, _LONGEST)}", err=True
            )
    for path in done.aside:
        click.echo(f"put aside: {path}")


# Copying runs from the command line: how it goes on, stopping it between runs, and what is told of it.


"""How many seconds pass at least between two lines that tell how it goes on."""


class CopyProgress:
    """A line on stderr that says how far a copy is, if a terminal shows it."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began, self._told = time.monotonic(), 0.0

    def __call__(self, copied: CopiedRun, done: int, total: int) -> None:
        """Tell of one more run."""
        now = time.monotonic()
        if self._shown and (now - self._told >= _EVERY or done == total):
            self._told = now
            speed = done / max(now - self._began, 0.001)
            _clear()
            click.echo(f"{done} of {total} runs, {speed:,.0f} runs/s", nl=False, err=True)

    def close(self) -> None:
        """Take the line away."""
        if self._shown and self._told:
            _clear()


def _clear() -> None:
    """Take a line away again, on a terminal."""
    if sys.stderr.isatty():
        control(CLEAR_LINE, err=True)


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Let Ctrl+C only be remembered, the first time; whether it came."""
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        _clear()
        click.echo("stopping after this run; press Ctrl+C again to stop at once", err=True)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)


def report_as_json(report: CopyReport, source: str, target: str) -> dict[str, Any]:
    """Keys: from, to, stopped, counts, runs."""
    counts = {str(outcome): report.count(outcome) for outcome in CopyOutcome}
    runs = [run_as_json(run) for run in report.runs]
    return {"from": source, "to": target, "stopped": report.stopped, "counts": counts, "runs": runs}


def run_as_json(copied: CopiedRun) -> dict[str, Any]:
    """Keys: run_id, workflow, outcome, entries, bytes, note."""
    return {
        "run_id": copied.run,
        "workflow": copied.workflow,
        "outcome": str(copied.outcome),
        "entries": copied.entries,
        "bytes": copied.size,
        "note": copied.note or None,
    }


def tell(report: CopyReport, source: str, target: str) -> None:
    """Tell people what became of the runs: in one line, and what they should know of single ones on stderr."""
    from holdfast.views.plain import size_text

    for run in report.runs:
        if run.note:
            label = f"left out ({run.outcome})" if run.is_problem else "note"
            click.echo(f"{label}: run {one_line(run.run)}: {one_line(run.note, 500)}", err=True)
    entries = sum(run.entries for run in report.runs)
    size = sum(run.size for run in report.runs)
    became = [
        f"{count(report.count(outcome), 'run')} {outcome}" for outcome in CopyOutcome if report.count(outcome)
    ]
    stopped = "stopped: " if report.stopped else ""
    noun = "entry" if entries == 1 else "entries"
    brought = f" ({entries:,} new {noun}, {size_text(size)})" if entries else ""
    click.echo(f"{stopped}{', '.join(became) or 'no runs to copy'}{brought}, from {source} to {target}")
