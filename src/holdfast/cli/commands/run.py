"""`holdfast run`: run a workflow file."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.confirmation import gate, trust_option
from holdfast.cli.display.text import as_json
from holdfast.cli.main import loading
from holdfast.cli.options import (
    manners,
    manners_options,
    priority_option,
    queue_option,
    reuse_option,
    wish_options,
    workflow_options,
)
from holdfast.cli.questions import read_answers
from holdfast.cli.store_option import chosen_url, close_store, store_option
from holdfast.cli.values import read_inputs, read_pairs
from holdfast.demo import STEPS, Story, play

if TYPE_CHECKING:
    from holdfast.cli.execution import Manners
    from holdfast.cli.targets import Target
    from holdfast.engine.app import App


@click.command()
@workflow_options
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
        from holdfast.cli.execution import Driving
        from holdfast.cli.reading import Reused
        from holdfast.cli.run_settings import Wishes
        from holdfast.workflows.workflow import load_workflow

    polite = manners(**how)
    loaded = load_workflow(flow)
    url = chosen_url(store, loaded.store_url())
    source = Reused.find(reuse, url, loaded)
    inputs = source.inputs(*read_inputs(inputs_file, pairs))
    if dry_run:
        from holdfast.cli.execution import show_plan

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


# `holdfast resume`: go on with a run where it stopped.


IF_INTERRUPTED = ("rerun", "skip", "ask", "fail")
ON_CHANGE = ("warn", "fail", "use_saved")


@click.command()
@click.argument("target", metavar="[TARGET]", required=False)
@click.option("--checkpoint-id", metavar="ID", help="Start a new run from that checkpoint.")
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="[NAME=]VALUE",
    help="Answer what the run waits for; VALUE is JSON or text. May be repeated.",
)
@click.option(
    "--if-interrupted",
    type=click.Choice(IF_INTERRUPTED),
    help="What to do with steps that were running when the process died; by default as the workflow says.",
)
@click.option(
    "-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="Change an input first, as in run."
)
@click.option("--plan", is_flag=True, help="Show what a resume would do with every step; do nothing.")
@click.option(
    "--as-planned",
    metavar="ID",
    help="Go on only if exactly what --plan showed under this id, with the same options, would still be done.",
)
@click.option(
    "--rerun-changed",
    is_flag=True,
    help="Run finished steps again that the workflow does otherwise now, and what comes after them.",
)
@click.option(
    "--workflow",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Go on with this workflow file instead of the one that the run was started with.",
)
@click.option(
    "--on-change",
    type=click.Choice(ON_CHANGE),
    help="What to do if the workflow changed since the run was saved.",
)
@click.option(
    "--remap",
    multiple=True,
    metavar="OLD=NEW",
    help="A step was renamed; in a sub-workflow it is OUTER/OLD=OUTER/NEW. May be repeated.",
)
@click.option("--takeover", is_flag=True, help="Take the run from a process that hangs.")
@trust_option
@click.option("--detach", is_flag=True, help="Let workers go on with the run, instead of driving it here.")
@queue_option
@priority_option
@store_option
@manners_options
def resume(
    target: str | None,
    checkpoint_id: str | None,
    answers: tuple[str, ...],
    if_interrupted: str | None,
    pairs: tuple[str, ...],
    plan: bool,
    as_planned: str | None,
    rerun_changed: bool,
    workflow: Path | None,
    on_change: str | None,
    remap: tuple[str, ...],
    takeover: bool,
    trust: bool,
    detach: bool,
    queue: str | None,
    priority: int | None,
    store: str | None,
    **how: Any,
) -> int:
    """Go on with a run where it stopped. Finished steps do not run again.

    TARGET is a run id or its beginning (4 characters or more), a workflow's name, a checkpoint id, a workflow
    file or a checkpoint file (.pkl). A workflow means its latest unfinished run; without TARGET the latest
    unfinished run of the store is meant. Gates and options given to `run` hold for a resume too. A run that came from
    outside, and a checkpoint file with a workflow in it, is shown first, and has to be confirmed.

    \b
      holdfast resume
      holdfast resume report --answer yes
      holdfast resume 3f2a --plan
      holdfast resume 3f2a --rerun-changed --plan
      holdfast resume 3f2a --answer yes --detach
    """
    from holdfast.cli.targets import find_target

    polite = manners(**how)
    if detach:
        here = any((checkpoint_id, if_interrupted, pairs, plan, workflow, on_change, remap, takeover))
        others = here or bool(as_planned) or rerun_changed
        return _detached(target, answers, store, queue, priority, others, polite, trust)
    if queue is not None or priority is not None:
        raise click.UsageError("--queue and --priority are for workers; add --detach to let them go on")
    renamed = read_pairs(remap, "--remap")
    found = find_target(target, checkpoint_id, store, workflow, gate(trust, polite.asks))
    try:
        app = found.open(interactive=polite.asks, renamed=renamed)
        options: dict[str, Any] = {
            "answers": _answers(app, found, answers),
            "update": _changed_inputs(app, found, pairs) or None,
            "if_interrupted": if_interrupted,
            "on_change": on_change,
            "remap": _renamed(app, found, renamed) or None,
            "rename_keys": renamed or None,
            "takeover": takeover,
            "rerun_changed": rerun_changed,
        }
        if plan:
            _show_plan(app, found, options, polite.display.as_json)
            return 0
        options["plan"] = as_planned
        if found.file is not None and any(options.values()):
            raise click.UsageError("a checkpoint file starts a new run, which takes none of these options")
        return resume_run(found, app, polite, options)
    finally:
        close_store(found.store)


def _detached(
    target: str | None,
    answers: tuple[str, ...],
    store: str | None,
    queue: str | None,
    priority: int | None,
    has_others: bool,
    polite: Manners,
    trust: bool,
) -> int:
    from holdfast.cli.detach import hand_over

    display = polite.display
    watched = polite.interactive or polite.auto_continue or polite.fail_on_state or display.events
    if has_others or watched or display.heartbeat:
        raise click.UsageError(
            "--detach takes --answer, --queue, --priority and --trust; other options are for a resume here"
        )
    return hand_over(target, answers, store, queue, priority, display, gate(trust, polite.asks))


def resume_run(found: Target, app: App, polite: Any, options: dict[str, Any]) -> int:
    """Go on with what was found, and tell how it went; answer the exit code."""
    from holdfast.cli.execution import Driving
    from holdfast.cli.targets import kept_at, kept_of

    before = kept_of(app, found.run_id) if found.run_id else None
    options = {**options, "trust": found.trust or False}
    if found.config is not None:
        options["config"] = found.config
    if (
        options.get("rerun_changed")
        and (back := app.plan_changes(found.run_id, options.get("remap"))) is not None
    ):
        before = kept_at(app, back.base, back.seq)
    return Driving(found.flow, app, found.url, polite, before).drive(
        lambda observer: app.resume(found.what, observer=observer, **options), found.run_id
    )


def _answers(app: App, found: Target, texts: tuple[str, ...]) -> dict[str, Any] | None:
    from holdfast.cli.values import question_names

    if not texts or not found.run_id:
        return None
    return read_answers(texts, app.pauses(found.run_id), lambda: question_names(found.flow.definition))


def _renamed(app: App, found: Target, names: dict[str, str]) -> dict[str, str]:
    """The nodes of renamed steps."""
    return found.flow.renamed_nodes(app, found.run_id, names) if names and found.run_id else names


def _changed_inputs(app: App, found: Target, pairs: tuple[str, ...]) -> dict[str, Any]:
    if not pairs:
        return {}
    if not found.run_id:
        raise click.UsageError("the inputs of a checkpoint file cannot be changed")
    typed, text = read_inputs(None, pairs)
    saved = {
        name: value
        for name, value in app.get_state(found.run_id).get("inputs", {}).items()
        if name not in text
    }
    return {"inputs": found.flow.read_inputs({**saved, **typed}, text)}


def _show_plan(app: App, found: Target, options: dict[str, Any], json: bool) -> None:
    from holdfast.cli.display.plans import plan_as_json, plan_lines
    from holdfast.cli.targets import counts_of

    if found.file is not None:
        raise click.UsageError("a checkpoint file starts a new run; there is nothing to plan")
    plan = app.plan_resume(str(found.what), **options)
    shown = (plan, counts_of(app, found.run_id), app._settings.graph.nodes, options["if_interrupted"])
    click.echo(as_json(plan_as_json(*shown)) if json else "\n".join(plan_lines(*shown)))


# `holdfast demo`: the demonstration, told in words or as JSON.


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print what happened as JSON.")
@click.option(
    "--store",
    metavar="URL",
    help="Keep the run there (sqlite:///PATH, file:///DIR) instead of in a temporary folder.",
)
def demo(store: str | None, as_json: bool) -> None:
    """Run ten steps into a rate limit, stop, and resume; needs no key and no network.

    \b
      holdfast demo
      holdfast demo --store sqlite:///demo.db
    """
    if store is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            story = play(f"sqlite:///{Path(folder) / 'runs.db'}")
    else:
        story = play(store)
    click.echo(json.dumps(story.to_dict(), indent=2) if as_json else _told(story, kept=store is not None))


def _told(story: Story, kept: bool) -> str:
    first, second = story.first, story.second
    lines = [
        "Holdfast demo: ten steps, a rate limit at step 9, and a resume.",
        f"The run is {story.run_id!r} in {story.store}",
        "",
        "First drive:",
        *_steps(first.ran, "done"),
        *_steps((first.failed,), "FAILED, the service answered 429"),
        "",
        "The run stopped; everything finished is saved. The error says how to go on:",
        f"  {first.error}",
        "",
        "Later the limit is lifted. The store is opened anew and the run resumed:",
        f"  {story.resume}",
        "",
        "Second drive:",
        f"   1-{second.kept}  kept, not run again",
        *_steps(second.ran, "done"),
        "",
        f"The run is {second.status}: {second.kept} steps kept, {len(second.ran)} run after the resume, "
        f"{len(story.parts)} parts written, {story.checkpoints} checkpoints.",
        f"The service was called {sum(story.calls.values())} times for {len(STEPS)} steps: "
        f"only {first.failed!r}, which was refused, was called twice.",
    ]
    if not kept:
        lines.append("The store was in a temporary folder and is gone; --store sqlite:///demo.db keeps it.")
    return "\n".join(lines)


def _steps(names: Sequence[str], how: str) -> list[str]:
    return [f"  {STEPS.index(name) + 1:2}  {name:<9} {how}" for name in names]
