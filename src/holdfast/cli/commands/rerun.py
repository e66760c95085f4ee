"""`holdfast rerun`: run a step and what follows it again, and keep everything else."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.asking.given import read_inputs, value_of
from holdfast.cli.confirming import gate, trust_option
from holdfast.cli.display.text import as_json
from holdfast.cli.manners_options import manners, manners_options
from holdfast.cli.speaking import by_option, me
from holdfast.cli.store_option import close_store, store_option

if TYPE_CHECKING:
    from holdfast.cli.targets import Target
    from holdfast.engine.app import App
    from holdfast.engine.travel.rerun import Rerun


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--from", "step", required=True, metavar="STEP", help="The step to begin with.")
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Let this step see another value, as `modify` does: inputs.NAME, steps.NAME.output, item. May be repeated.",
)
@click.option(
    "--output", metavar="VALUE", help="Take this, JSON, text or @FILE, for the step's output; do not run it."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change the state first, for all steps, as `edit` does. May be repeated.",
)
@click.option("--in-place", is_flag=True, help="Take the run itself back, instead of beginning a new one.")
@click.option("--run-id", metavar="ID", help="Name the new run; by default it gets a random id.")
@click.option("--plan", is_flag=True, help="Show what would be kept and what would run again; do nothing.")
@click.option(
    "--workflow",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Go on with this workflow file instead of the one that the run was started with.",
)
@trust_option
@by_option
@store_option
@manners_options
def rerun(
    run: str,
    step: str,
    inputs: tuple[str, ...],
    output: str | None,
    changes: tuple[str, ...],
    in_place: bool,
    run_id: str | None,
    plan: bool,
    workflow: Path | None,
    trust: bool,
    by: str | None,
    store: str | None,
    **how: Any,
) -> int:
    """Run a step of a run, and all that comes after it, again; everything else that was finished is kept.

    This is a new run, which begins at the checkpoint before the step; the old one stays as it is. RUN is a run id or
    its beginning (4 characters or more), or a workflow's name or file, which means its latest run. STEP is a step's
    name for its last visit, or its id: review#2 is the second visit, fetch[3] an item of the last visit, and
    outer/inner is in a sub-workflow.

    \b
      holdfast rerun report --from draft --plan
      holdfast rerun report --from draft --set inputs.tone=dry
      holdfast rerun 3f2a --from draft --output @better.md
    """
    from holdfast.cli.targets import find_moment_of

    polite = manners(**how)
    found = find_moment_of(run, store, workflow, gate(trust, polite.asks))
    try:
        app = found.open(interactive=polite.asks)
        back = app.plan_rerun(str(found.what), step)
        if plan:
            _show(back, polite.display.as_json)
            return 0
        options: dict[str, Any] = {
            "input": _changes(app, found, inputs, step) or None,
            "update": _changes(app, found, changes) or None,
            "in_place": in_place,
            "run_id": run_id,
            "by": by or me(),
            "trust": found.trust or False,
            "config": found.config,
        }
        if output is not None:
            options["output"] = _returned(app, back, step, output)
        return _drive(app, found, back, step, polite, options)
    finally:
        close_store(found.store)


def _drive(app: App, found: Target, back: Rerun, step: str, polite: Any, options: dict[str, Any]) -> int:
    from holdfast.cli.driving import Driving
    from holdfast.cli.stored import kept_at

    if not options["in_place"] and options["run_id"] is None:
        options["run_id"] = str(uuid.uuid4())
    name = found.run_id if options["in_place"] else options["run_id"]
    before = kept_at(app, back.base, back.seq)
    return Driving(found.flow, app, found.url, polite, before).drive(
        lambda observer: app.rerun(str(found.what), step, observer=observer, **options), name or found.run_id
    )


def _changes(app: App, found: Target, pairs: tuple[str, ...], step: str = "") -> dict[tuple[str, ...], Any]:
    from holdfast.cli.steering import Speaker, Steering
    from holdfast.engine.commands.meant import nodes_of
    from holdfast.plan.naming import base_name

    if not pairs:
        return {}
    settings = app.settings
    run = settings.journal.load(settings.journal.info(found.run_id), settings.codec).run
    speaker = Speaker("rerun", "", "", False, "", "")
    steering = Steering(speaker, settings.journal, found.run_id, run, found.flow, True)
    return steering.changes(pairs, base_name(nodes_of(step)) if step else "")


def _returned(app: App, back: Rerun, step: str, text: str) -> Any:
    from holdfast.flows.given import returned

    if not back.step:
        raise click.UsageError(f"--output: {step!r} stands for several steps; name one by its id")
    typed, raw = read_inputs(None, [f"output={text}"])
    value = typed["output"] if typed else raw["output"]
    return returned(app.graph, back.step, value if text.startswith("@") else value_of(value))


def _show(back: Rerun, json: bool) -> None:
    from holdfast.cli.display.rerun_table import rerun_lines

    click.echo(as_json(back.as_json()) if json else "\n".join(rerun_lines(back)))
