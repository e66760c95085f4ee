"""`holdfast run`: run a workflow file."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import click

from holdfast.cli.asking.given import read_inputs
from holdfast.cli.loading import loading
from holdfast.cli.manners_options import manners, manners_options
from holdfast.cli.run_options import flow_options, reuse_option, wish_options
from holdfast.cli.store_option import chosen_url, close_store, store_option


@click.command()
@flow_options
@reuse_option
@store_option
@click.option("--dry-run", is_flag=True, help="Check everything and show the plan; run and write nothing.")
@wish_options
@manners_options
def run(
    flow: Path,
    pairs: tuple[str, ...],
    inputs_file: str | None,
    run_id: str | None,
    reuse: str | None,
    store: str | None,
    dry_run: bool,
    skip_gates: bool,
    interrupt_before: tuple[str, ...],
    interrupt_after: tuple[str, ...],
    durability: str | None,
    **how: Any,
) -> int:
    """Run a workflow file. Every finished step is saved; whatever stops the run, `resume` goes on.

    \b
      holdfast run report.yaml -i topic=tides -i pages:=3
      holdfast run report.yaml --inputs inputs.json --json
      holdfast run report.yaml --dry-run
      holdfast run report.yaml --reuse report

    Exit codes: 0 completed, 1 failed, 2 invalid, 3 configuration, 4 paused, 130 interrupted.
    """
    with loading():
        from holdfast.cli.driving import Driving
        from holdfast.cli.reused import Reused
        from holdfast.cli.wishes import Wishes
        from holdfast.flows.flow import load_flow

    polite = manners(**how)
    loaded = load_flow(flow)
    url = chosen_url(store, loaded.store_url())
    source = Reused.find(reuse, url, loaded)
    inputs = source.inputs(*read_inputs(inputs_file, pairs))
    if dry_run:
        from holdfast.cli.dry_run import show_plan

        show_plan(loaded, inputs, url, skip_gates, polite.display.as_json)
        return 0
    wishes = Wishes(interrupt_before, interrupt_after, skip_gates, durability)
    app = wishes.open(loaded, url, interactive=polite.asks)
    name = run_id if run_id is not None else str(uuid.uuid4())
    try:
        return Driving(loaded, app, url, polite).drive(
            lambda observer: app.invoke(
                loaded.begin(inputs),
                run_id=name,
                config=wishes.config(loaded),
                reuse=source.moment,
                observer=observer,
            ),
            name,
        )
    finally:
        close_store(app.store)
