"""`holdfast fork`, `rerun`, `runs promote` and `runs rollback`: continuing from an earlier checkpoint."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_lines import app_of, app_words, resume_line_of, this_line
from holdfast.cli.commands.control import read_changes
from holdfast.cli.execution import Execution, kept_at, resume_target
from holdfast.cli.lines import logged_warnings
from holdfast.cli.options import (
    APP,
    BY,
    EXECUTION,
    JSON,
    OTHER_WORKFLOW,
    PLAN,
    REASON,
    RUN_AT,
    RUN_ID,
    SET,
    STORE,
    TRUST,
    WATCHING,
    ExecutionOptions,
    Options,
    RunOptions,
    flag,
    repeated,
    value,
)
from holdfast.cli.plans import rerun_lines
from holdfast.cli.programs import Program
from holdfast.cli.questions import read_inputs, value_of
from holdfast.cli.render import json_text
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import config_of
from holdfast.cli.targets import Confirmation, Target, find_target, stored_workflow
from holdfast.engine.commands.subject import nodes_of
from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.engine.resume import find_checkpoint
from holdfast.engine.time_travel.checkpoints import Position, find_position
from holdfast.engine.time_travel.edits import Access, Edit
from holdfast.engine.time_travel.rewind import fork_run, promote_fork, roll_back
from holdfast.errors import RunExists, StateInvalid
from holdfast.graph.graph import base_name
from holdfast.journal.provenance import me
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.state.ops import thaw
from holdfast.values import RunStatus
from holdfast.views.run_view import UNKNOWN
from holdfast.workflows.workflow import returned

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.stores.base import RunInfo

Changes = dict[tuple[str, ...], Any]


@command(
    RUN_AT,
    SET,
    value("--as-node", "STEP", "Make the changes the result of this step; what follows it comes next."),
    RUN_ID,
    repeated("--tag tags", "TAG", "Tag the new run; by default it has the tags of the old."),
    flag("--run go_on", "Execute the new run here and now."),
    APP,
    REASON,
    BY,
    EXECUTION,
    STORE,
    JSON,
)
def fork(session: Session, options: Options) -> int:
    """Start a new run at a checkpoint of another run, which stays as it is.

    Without @PLACE the run as it is now is forked. The fork shares the journal of the old run and costs next to nothing;
    pruning or deleting the old run does it no harm. NAME and VALUE are as for `runs edit`. With --as-node STEP of a
    workflow file, steps.STEP.output is the result of the step.

    \b
    Example:
      holdfast fork research@2 --set inputs.topic=tides --run
      holdfast fork research@draft --as-node draft --set 'steps.draft.output=@better.md'
    """
    how = ExecutionOptions.given(options)
    if not options.go_on:
        _refuse_unused(options)
    [text] = session.names(options.run)
    found = find_position(session.store, text)
    access, update = _prepared(session, found, text, options)
    name = _free_id(session, options.run_id)
    edit = Edit(update, options.as_node, options.by or me(), options.reason)
    with logged_warnings(str):
        fork_run(access, found, name, edit, tags=options.tags or None)
    if options.go_on:
        target = find_target(session, name, app=options.app)
        return resume_target(target, target.open(interactive=how.asks), how, {})
    url, parent = session.store.url, found.info.run
    resume = resume_line_of(session.journal, session.journal.info(name))
    data = {"run_id": name, "parent": parent, "status": "interrupted", "store": url}
    session.print(data, f"run {name} starts at {text}", f"resume with: {resume}")
    return 0


def _prepared(
    session: Session, found: Position, text: str, options: Options
) -> tuple[Access, Changes | None]:
    """Return what it takes to change the fork, and the changes; only a workflow file's graph is available here."""
    info, journal, step = found.info, session.journal, options.as_node
    config = config_of(journal, info)
    is_changed = bool(options.changes) or step is not None
    is_of_file = "workflow_file" in config
    if not is_of_file and options.app is None and (options.go_on or is_changed):
        update = ", update={…}" if options.changes else ""
        node = f", as_node={step!r}" if step is not None else ""
        place = app_of(journal, info) or UNKNOWN
        words = app_words(place.place)
        here = this_line(session.store.url, *words) if words else "--app MODULE:NAME"
        raise click.UsageError(
            f"run {info.run!r} was not started from a workflow file, so its program has to change or run a fork: "
            f"fork = {place.in_python}.fork({text!r}{update}{node}), then {place.name}.resume(fork); or name its app: "
            f"{here}"
        )
    if not is_changed:
        return Access(journal, TolerantCodec()), None
    refuse_unconfirmed(journal, info, Codec())
    if options.app is not None:
        workflow, app = None, Program(options.app).open(journal.store)
    else:
        workflow = stored_workflow(info, config)
        app = RunOptions.of(config).open(workflow, journal.store, stored=True)
    run = journal.load(info, Codec(), found.seq).run
    changes = read_changes(run, workflow, options.changes, is_of_file=options.app is None)
    if step is not None and options.app is None:
        changes = _as_result(changes, step, run.root.cells)
    return Access.of(app._settings), changes


def _as_result(update: Changes, step: str, cells: Any) -> Changes:
    """Return changes with the record of a step of a workflow file whose output they contain."""
    before = dict(thaw(cells[step].get()) or {}) if step in cells else {}
    given = {path[1:]: value for path, value in update.items() if path[0] == step}
    visits = before.get("visits", 0) + 1
    record = {"output": None, **before, "status": "completed", "visits": visits}
    for inside, result in given.items():
        if inside != ("output",):
            raise click.UsageError(f"give the result of {step} as a whole: steps.{step}.output=…")
        record["output"] = result
    return {**{path: value for path, value in update.items() if path[0] != step}, (step,): record}


def _free_id(session: Session, run_id: str | None) -> str:
    if run_id is None:
        return str(uuid.uuid4())
    if not run_id.strip() or not run_id.isprintable():
        raise StateInvalid(f"a run id must be printable text, not {run_id!r}")
    if session.store.runs(run=run_id):
        raise RunExists(f"run {run_id!r} exists in {session.store.url}; choose another --run-id")
    return run_id


def _refuse_unused(options: Options) -> None:
    """Refuse options of an execution if the fork is not executed."""
    given = [name for name in (*WATCHING, "quiet") if getattr(options, name) not in (None, False, ())]
    if options.interactive is False:
        given.append("no-interactive")
    if given:
        raise click.UsageError(
            f"--{given[0].replace('_', '-')} is for a fork that is executed here and now: give --run, too"
        )


@command(
    click.argument("fork", metavar="FORK"),
    value("--into", "RUN", "An earlier ancestor, instead of the fork's parent run."),
    REASON,
    BY,
    STORE,
    JSON,
)
def promote(session: Session, options: Options) -> None:
    """Promote a fork's result to its parent run. FORK is a run.

    The run's own history stays, and `holdfast runs rollback` goes back to it; the fork stays, too. A fork that waits
    for an answer makes the run wait for the same. No process may execute either of them meanwhile.

    \b
    Example:
      holdfast runs promote 3f2a --reason "the shorter draft won"
    """
    runs = []
    for text in session.names(options.fork, *([] if options.into is None else [options.into])):
        found = find_position(session.store, text)
        if found.seq is not None:
            raise click.UsageError(f"a run is promoted as it is now; name it without a place, not {text}")
        runs.append(found.info)
    own, target = runs[0], runs[1] if len(runs) > 1 else None
    access = Access(session.journal, TolerantCodec())
    ident = promote_fork(access, own, target, by=options.by or me(), reason=options.reason)
    info, _ = find_checkpoint(session.store, ident)
    _print_moved(session, info, ident, f"it now has the result of {own.run}: {info.status}")


@command(click.argument("run", metavar="RUN@PLACE"), REASON, BY, STORE, JSON)
def rollback(session: Session, options: Options) -> None:
    """Roll a run back to an earlier checkpoint, so that `resume` continues from there.

    The steps that came after the checkpoint run again when the run is resumed. Questions are asked again, gates are
    closed again. Nothing is deleted: what came after stays in the history, and a rollback to its checkpoints brings it
    back.

    \b
    Example:
      holdfast runs rollback research@2 --reason "the source was wrong"
    """
    found = session.checkpoint(options.run)
    if found.seq is None:
        name = found.info.run
        raise click.UsageError(f"say where to roll run {name} back to: {name}@3, or a checkpoint's id")
    access = Access(session.journal, TolerantCodec())
    ident = roll_back(access, found, by=options.by or me(), reason=options.reason)
    _print_moved(session, session.journal.info(found.info.run), ident, "it is rolled back")


def _print_moved(session: Session, info: RunInfo, ident: str, what: str) -> None:
    lines = [f"run {info.run}: {what}"]
    if info.status != RunStatus.COMPLETED:
        lines.append(f"resume with: {resume_line_of(session.journal, info)}")
    url = session.store.url
    session.print({"run_id": info.run, "checkpoint_id": ident, "status": info.status, "store": url}, *lines)


# `holdfast rerun`.


@command(
    RUN_AT,
    value("--from step", "STEP", "The first step to run again.", required=True),
    repeated(
        "-i --input inputs",
        "NAME=VALUE",
        "Let this step see another value, as `steps modify` does: inputs.NAME, steps.NAME.output, item.",
    ),
    value("--output", "VALUE", "Use this, JSON, text or @FILE, as the step's output; do not run it."),
    SET,
    flag("--in-place", "Roll the run itself back, instead of starting a new one."),
    RUN_ID,
    PLAN,
    OTHER_WORKFLOW,
    APP,
    TRUST,
    BY,
    EXECUTION,
    STORE,
    JSON,
)
def rerun(session: Session, options: Options) -> int:
    """Run a step of a run, and all that comes after it, again; everything else that was finished is kept.

    This is a new run, which starts at the checkpoint before the step; the old one stays as it is. STEP is a step's
    name for its last visit, or its id: review#2 is the second visit, fetch[3] an item of the last visit, and
    outer/inner is in a sub-workflow.

    \b
    Example:
      holdfast rerun report --from draft --plan
      holdfast rerun report --from draft --set inputs.tone=dry
      holdfast rerun 3f2a --from draft --output @better.md
      holdfast rerun 3f2a --from draft --app jobs.report:app
    """
    how, step = ExecutionOptions.given(options), options.step
    found = find_target(
        session,
        options.run,
        workflow=options.workflow,
        app=options.app,
        confirmation=Confirmation(options.trust, how.asks),
        command="rerun",
    )
    app = found.open(interactive=how.asks)
    back = app.plan_rerun(str(found.what), step)
    if options.plan:
        click.echo(json_text(back) if session.as_json else "\n".join(rerun_lines(back)))
        return 0
    name = options.run_id if options.run_id is not None else str(uuid.uuid4())
    given: dict[str, Any] = {
        "input": _changes(app, found, options.inputs, step) or None,
        "update": _changes(app, found, options.changes) or None,
        "in_place": options.in_place,
        "run_id": options.run_id if options.in_place else name,
        "by": options.by or me(),
        "trust": found.trust or False,
        "config": found.config,
    }
    if (text := options.output) is not None:
        if not back.step:
            raise click.UsageError(f"--output: {step!r} stands for several steps; name one by its id")
        typed, raw = read_inputs(None, [f"output={text}"])
        result = typed["output"] if typed else raw["output"]
        result = result if text.startswith("@") else value_of(result)
        is_of_file = not isinstance(found.workflow, Program)
        given["output"] = returned(app.graph, back.step, result) if is_of_file else result
    before = kept_at(app, back.base, back.seq)
    return Execution(found.workflow, app, found.url, how, before).execute(
        lambda observer: app.rerun(str(found.what), step, observer=observer, **given),
        found.run_id if options.in_place else name,
    )


def _changes(app: App, found: Target, pairs: tuple[str, ...], step: str = "") -> Changes:
    if not pairs:
        return {}
    settings = app._settings
    run = settings.journal.load(settings.journal.info(found.run_id), settings.codec).run
    name = base_name(nodes_of(step)) if step else ""
    if isinstance(found.workflow, Program):
        return read_changes(run, None, pairs, name, is_of_file=False)
    return read_changes(run, found.workflow, pairs, name)
