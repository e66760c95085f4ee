"""`holdfast store`: copying runs between stores, and looking after a store as a whole."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from holdfast.cli import errors
from holdfast.cli.display.tables import print_json
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import (
    chosen_url,
    meant_run,
    open_existing,
    same_store,
    store_option,
    store_place,
)
from holdfast.errors import StoreError
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.stores.base import Store


@click.group()
def store() -> None:
    """Copy runs between stores, measure a store, bring its schema up to date.

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
    from holdfast.cli.copying import Progress, report_as_json, stoppable, tell
    from holdfast.engine.moving.transfer import copy_runs
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
            progress = Progress()
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
    from holdfast.cli.display.store_text import print_usage, usage_as_json
    from holdfast.stores.usage import usage_of

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
    from holdfast.engine.driver import describe, is_driven

    running = [info for info in store.runs(status=[RunStatus.RUNNING.value]) if is_driven(store, info)]
    return dict(Counter(describe(info.driver) for info in running).most_common())


@store.command()
@click.option("--check", is_flag=True, help="Only tell; exit code 1 if something is to be done.")
@store_option
@json_option
def migrate(check: bool, store: str | None, as_json: bool) -> int:
    """Bring the schema of a store up to date.

    SQLite files are brought up to date by whoever opens them. On PostgreSQL, roles that may not change the
    schema need its owner to do this before they use a new version.

    \b
    Example:
      holdfast store migrate --check
      holdfast store migrate --store postgresql://owner@localhost/holdfast
    """
    from holdfast.cli.display.store_text import schema_as_json, schema_text
    from holdfast.stores.migrating import migrate_store, schema_of

    url = chosen_url(store)
    place = store_place(url)
    if check and place is not None and not place.exists():
        raise StoreError(f"there is no store at {url} yet; the first run, or this without --check, makes it")
    if check:
        before = after = schema_of(url, place)
    else:
        before, after = migrate_store(url, place)
    applied = [] if check else [name for name in before.missing if name not in after.missing]
    if as_json:
        print_json(schema_as_json(url, before, after, applied))
    else:
        click.echo(schema_text(url, before, after, applied))
    return errors.COMPLETED if after.is_current else errors.FAILED
