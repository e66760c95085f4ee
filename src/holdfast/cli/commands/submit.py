"""`holdfast submit`: store a run for workers to drive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.display.tables import print_json
from holdfast.cli.display.text import one_line
from holdfast.cli.main import loading
from holdfast.cli.options import (
    priority_option,
    queue_option,
    read_when,
    reuse_option,
    when_options,
    wish_options,
    workflow_options,
)
from holdfast.cli.reading import json_option
from holdfast.cli.store_option import chosen_url, lasting_url, store_option
from holdfast.cli.values import read_inputs

if TYPE_CHECKING:
    pass


@click.command()
@workflow_options
@reuse_option
@click.option(
    "--key",
    metavar="TEXT",
    help="Submit once: the same workflow and key are the same run, however often this is called.",
)
@queue_option
@priority_option
@when_options
@wish_options
@store_option
@json_option
def submit(
    flow: Path,
    pairs: tuple[str, ...],
    inputs_file: str | None,
    run_id: str | None,
    reuse: str | None,
    key: str | None,
    queue: str | None,
    priority: int | None,
    delay: str | None,
    at: str | None,
    skip_gates: bool,
    interrupt_before: tuple[str, ...],
    interrupt_after: tuple[str, ...],
    durability: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Store a run for workers to drive, and print its id at once.

    The file and the inputs are checked as `run` checks them. `holdfast worker` on the same store, here or on another
    machine, takes the run up; `status`, `show`, `answer`, `pause` and `cancel` work meanwhile.

    \b
      holdfast submit report.yaml -i topic=tides --store postgresql://localhost/jobs
      holdfast submit report.yaml --queue night --delay 2h --priority 5
      holdfast runs status $(holdfast submit report.yaml --key order-7) --wait
    """
    with loading():
        from holdfast.cli.detach import queued_as_json
        from holdfast.cli.reading import Reused
        from holdfast.cli.run_settings import Wishes
        from holdfast.engine.submission import DEFAULT_QUEUE, id_of_key
        from holdfast.workflows.workflow import load_workflow

    if run_id is not None and key is not None:
        raise click.UsageError("give either --run-id or --key")
    when = read_when(delay, at)
    loaded = load_workflow(flow)
    url = lasting_url(chosen_url(store, loaded.store_url()))
    source = Reused.find(reuse, url, loaded)
    inputs = source.inputs(*read_inputs(inputs_file, pairs))
    wishes = Wishes(interrupt_before, interrupt_after, skip_gates, durability)
    app = wishes.open(loaded, url, interactive=False)
    try:
        known = app.store.runs(run=id_of_key(loaded.name, key)) if key is not None else []
        name = app.submit(
            loaded.begin(inputs),
            run_id=run_id,
            key=key,
            queue=queue or DEFAULT_QUEUE,
            priority=priority or 0,
            when=when,
            config=wishes.config(loaded),
            reuse=source.moment,
        )
        [info] = app.store.runs(run=name)
    finally:
        app.store.close()
    if as_json:
        print_json({**queued_as_json(info), "created": not known, "store": url})
    else:
        click.echo(one_line(name, 2_000))
    return 0
