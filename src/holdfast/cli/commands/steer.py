"""`holdfast edit`, `skip`, `modify`, `inject` and `replan`: letting a run go on in another way than it was to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.asking.given import read_pairs
from holdfast.cli.speaking import by_option, json_option, reason_option, run_argument
from holdfast.cli.store_option import store_option

if TYPE_CHECKING:
    from holdfast.flows.flow import Flow

_STEP = click.argument("step", metavar="STEP")
_CHANGES = click.argument("pairs", metavar="NAME=VALUE...", nargs=-1, required=True)


@click.command()
@run_argument
@_CHANGES
@reason_option
@by_option
@json_option
@store_option
def edit(run: str, pairs: tuple[str, ...], json: bool, **who: str | None) -> None:
    """Change the state of a run, between two of its steps.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name. Of a workflow file, NAME is
    inputs.X or steps.STEP.output; of a Python graph a key of the state, or key.part.part for a place inside. VALUE is
    JSON or text, NAME=@FILE reads it from a file, NAME:=JSON insists on JSON. Keys with a reducer take the value as an
    update, as from a node.

    Whoever drives the run does it soon; if nobody does, it is done now, and `resume` goes on with it. What cannot
    be done is refused with the reason. All that steers a run is told by `holdfast events`, with who asked for it.

    \b
      holdfast edit report inputs.topic=tides --reason "the customer called"
      holdfast edit 3f2a 'steps.draft.output=@draft.md'
    """
    from holdfast.cli.steering import steering

    with steering("edit", run, json, **who) as steer:
        steer.edit(pairs)


@click.command()
@run_argument
@_STEP
@reason_option
@by_option
@json_option
@store_option
def skip(run: str, step: str, json: bool, **who: str | None) -> None:
    """Pass over a step that is about to run, waits, failed, or was interrupted. What follows it follows.

    STEP is the step's name, step[KEY] for one item of a for-each, outer/inner in a sub-workflow, or a step's id. A step
    that is running is not skipped; neither is one whose turn has not come.

    \b
      holdfast skip report publish --reason "not this time"
      holdfast skip 3f2a 'fetch[7]'
    """
    from holdfast.cli.steering import steering

    with steering("skip", run, json, **who) as steer:
        steer.skip(step)


@click.command()
@run_argument
@_STEP
@_CHANGES
@reason_option
@by_option
@json_option
@store_option
def modify(run: str, step: str, pairs: tuple[str, ...], json: bool, **who: str | None) -> None:
    """Let one step that has not begun, or that failed, see other values; the state stays as it is.

    NAME is as for `edit`; for an item of a for-each also item, or what the file calls it.

    \b
      holdfast modify report summarise inputs.words:=200
      holdfast modify 3f2a 'fetch[7]' item=https://example.org/mirror
    """
    from holdfast.cli.steering import steering

    with steering("modify", run, json, **who) as steer:
        steer.modify(step, pairs)


@click.command()
@run_argument
@click.argument("node", metavar="STEP")
@click.option("--item", metavar="JSON", help="Values that the step sees over the state: a JSON object.")
@click.option("--key", metavar="KEY", help="Make it an item with this key, as of a for-each.")
@click.option("--follow", is_flag=True, help="Let what usually follows the step follow it.")
@reason_option
@by_option
@json_option
@store_option
def inject(
    run: str,
    node: str,
    item: str | None,
    key: str | None,
    follow: bool,
    json: bool,
    **who: str | None,
) -> None:
    """Run a further step of the workflow now, beside those that are about to run or are running.

    Its results count, and nothing follows it unless --follow is given. STEP is outer/inner in a sub-workflow.

    \b
      holdfast inject report fetch --follow --reason "the page changed"
    """
    from holdfast.cli.steering import read_item, steering

    with steering("inject", run, json, **who) as steer:
        steer.inject(node, read_item(item), key, follow)


@click.command()
@run_argument
@click.argument("plan", metavar="[FILE | STEP...]", nargs=-1)
@click.option("--nothing", is_flag=True, help="Run nothing more: the run ends after what is running.")
@click.option(
    "--remap", multiple=True, metavar="OLD=NEW", help="With FILE: a step was renamed. May be repeated."
)
@reason_option
@by_option
@json_option
@store_option
def replan(
    run: str, plan: tuple[str, ...], nothing: bool, remap: tuple[str, ...], json: bool, **who: str | None
) -> None:
    """Run these steps instead of those that were to come, or go on with a changed workflow file.

    With STEPs, all that is neither running nor finished is dropped, and these run; what usually follows them
    follows. With FILE, the run goes on with that version of its workflow: finished steps stay finished, the name
    must be the same, and every step that is under way or next must be there, or be renamed with --remap.

    \b
      holdfast replan report review publish
      holdfast replan 3f2a --nothing --reason "good enough"
      holdfast replan 3f2a report-v2.yaml
    """
    from holdfast.cli.steering import steering

    names = read_pairs(remap, "--remap")
    flow = _changed_file(plan)
    if nothing == bool(plan):
        raise click.UsageError("say what to go on with: a workflow file, steps, or --nothing")
    if names and flow is None:
        raise click.UsageError("--remap is for a workflow file")
    with steering("replan", run, json, **who) as steer:
        if flow is None:
            steer.replan(plan)
        else:
            steer.redefine(flow, names)


def _changed_file(plan: tuple[str, ...]) -> Flow | None:
    files = [word for word in plan if word.endswith((".yaml", ".yml"))]
    if not files:
        return None
    if len(plan) > 1:
        raise click.UsageError(f"give either one workflow file, or steps, not {' '.join(plan)}")
    if not Path(files[0]).is_file():
        raise click.UsageError(f"there is no file {files[0]}")
    from holdfast.flows.flow import load_flow

    return load_flow(Path(files[0]))
