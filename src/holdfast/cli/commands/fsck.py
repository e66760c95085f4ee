"""`holdfast fsck`: verifying every run of a store, and repairing what is damaged."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import errors
from holdfast.cli.display.closing import place_of_store
from holdfast.cli.display.tables import print_json, print_label
from holdfast.cli.display.text import count, moment, one_line
from holdfast.cli.output import CLEAR_LINE, PLAIN, RED, control
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import chosen_url, exists, meant_run, open_existing, store_option
from holdfast.errors import StoreError

if TYPE_CHECKING:
    from holdfast.repair.repairing import StoreRepair
    from holdfast.repair.report import RunReport, StoreReport
    from holdfast.stores.base import Store

_EVERY = 0.1
_LONGEST = 1000


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--repair", is_flag=True, help="Repair what is damaged; what is replaced is put aside.")
@click.option(
    "--aside",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --repair: the folder for what is replaced. By default STORE.lost+found beside the store, or "
    "lost+found where the store is on a server.",
)
@click.option("--yes", "-y", is_flag=True, help="With --repair: do not ask.")
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
      holdfast fsck
      holdfast fsck research-7 --repair
    """
    from holdfast.data.seal import Seal
    from holdfast.repair.repairing import repair_store
    from holdfast.repair.store_check import check_store

    if (aside is not None or yes) and not repair:
        raise click.UsageError("--aside and --yes belong to --repair")
    url = chosen_url(store)
    opened = _opened(url)
    if isinstance(opened, str):
        return _told_unopened(url, opened, as_json)
    seal = Seal.from_environment(os.environ)
    try:
        wanted = [_meant(opened, run) for run in runs] or None
        progress = Progress()
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
    from holdfast.repair.report import StoreReport

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
    if yes:
        return
    what = f"{count(len(report.damaged), 'run')} of {report.store}" if report.damaged else report.store
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would repair {what}; --yes says that it may")
    click.confirm(f"Repair {what}?", abort=True, err=True)


class Progress:
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
    place = place_of_store(url)
    for problem in report.medium:
        print_label("damaged", RED)
        click.echo(f" store: {errors.placed(one_line(problem, _LONGEST), place)}")
    for run in report.runs:
        if not run.is_fine:
            _tell_run(run, place)
    for leftover in report.leftovers:
        click.echo(f"left over, harmless: {one_line(leftover, _LONGEST)}")
    if done is not None:
        _tell_done(done)
    sealed = sum(run.sealed for run in report.runs)
    if sealed:
        text = f"{count(sealed, 'run')} are encrypted: without HOLDFAST_KEY only checksums were verified"
        click.echo(text, err=True)
    damaged = len(report.damaged)
    fine = count(len(report.runs) - damaged, "run")
    ends = (
        f"{count(damaged, 'run')} damaged"
        if damaged
        else ("nothing damaged" if report.is_fine else "damaged")
    )
    click.echo(f"{url}: {fine} fine, {ends}")


def _tell_run(run: RunReport, place: str) -> None:
    print_label(*(("repaired", PLAIN) if run.repaired_as else ("damaged", RED)))
    click.echo(f" run {one_line(run.run)} (workflow {one_line(run.workflow)}, {one_line(run.status)})")
    for damage in run.damages:
        click.echo(f"  {errors.placed(one_line(str(damage), _LONGEST), place)}")
    facts: list[tuple[str, Any]] = [("intact", _intact(run)), ("last good checkpoint", _last_good(run))]
    for name, text in [*facts, ("way out", errors.placed(run.way_out, place))]:
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
