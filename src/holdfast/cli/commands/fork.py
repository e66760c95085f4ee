"""`holdfast fork`, `rerun`, `runs promote` and `runs rollback`: going on from an earlier checkpoint."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.confirmation import gate, trust_option
from holdfast.cli.display.tables import print_json
from holdfast.cli.display.text import as_json, one_line
from holdfast.cli.options import manners, manners_options
from holdfast.cli.reading import by_option, json_option, reason_option
from holdfast.cli.store_option import close_store, store_option
from holdfast.cli.values import read_inputs, value_of
from holdfast.journal.provenance import me

if TYPE_CHECKING:
    from holdfast.cli.execution import Manners
    from holdfast.cli.targets import Target
    from holdfast.engine.app import App
    from holdfast.engine.time_travel.checkpoints import Position
    from holdfast.engine.time_travel.edits import Access
    from holdfast.engine.time_travel.rerun import Rerun
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo


@click.command()
@click.argument("run", metavar="RUN[@PLACE]")
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change the state of the fork, as `edit` does.",
)
@click.option(
    "--as-node", metavar="STEP", help="Let the changes be what this step came to; what follows it comes next."
)
@click.option("--run-id", metavar="ID", help="The id of the new run; by default a random one.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="Tag the new run; by default it has the tags of the old.",
)
@click.option("--run", "go_on", is_flag=True, help="Go on with the new run here and now.")
@reason_option
@by_option
@store_option
@manners_options
def fork(
    run: str,
    pairs: tuple[str, ...],
    as_node: str | None,
    run_id: str | None,
    tags: tuple[str, ...],
    go_on: bool,
    reason: str,
    by: str | None,
    store: str | None,
    **how: Any,
) -> int:
    """Begin a new run where another stood; that one stays as it is.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name or file, which means its latest
    run. PLACE is 3 for after wave 3, -1 for one checkpoint before the newest, or a step's name for after its last
    finish; without it the run as it stands is meant. A checkpoint's id will do for both. The fork shares the journal
    of the old run and costs next to nothing; pruning or deleting the old run does it no harm.

    NAME and VALUE are as for `edit`. With --as-node STEP of a workflow file, steps.STEP.output is what the step came
    to.

    \b
    Example:
      holdfast fork research@2 --set inputs.topic=tides --run
      holdfast fork research@draft --as-node draft --set 'steps.draft.output=@better.md'
    """
    from holdfast.cli.display.lines import told_warnings
    from holdfast.cli.reading import reading_moments
    from holdfast.engine.time_travel.checkpoints import find_position
    from holdfast.engine.time_travel.edits import Edit
    from holdfast.engine.time_travel.rewind import fork_run

    polite, as_json = manners(**how), bool(how["as_json"])
    if not go_on:
        _refuse_unused(how)
    journal, (text,) = reading_moments(store, run)
    try:
        moment = find_position(journal.store, text)
        hands, update = _prepared(journal, moment, text, pairs, as_node, go_on)
        name = _free_id(journal, run_id)
        with told_warnings(str):
            fork_run(hands, moment, name, Edit(update, as_node, by or me(), reason), tags=tags or None)
        url = journal.store.url
        parent = moment.info.run
    finally:
        journal.store.close()
    if go_on:
        return _go_on(name, url, polite)
    if as_json:
        print_json({"run_id": name, "parent": parent, "status": "interrupted", "store": url})
    else:
        click.echo(f"run {one_line(name)} begins where {one_line(text)} stood")
        click.echo(f"go on with: {_resume(name, url)}")
    return 0


def _prepared(
    journal: Journal, moment: Position, told: str, pairs: tuple[str, ...], as_node: str | None, go_on: bool
) -> tuple[Access, dict[tuple[str, ...], Any] | None]:
    """What it takes to change the run, and the changes; only a workflow file's graph can be had here."""
    from holdfast.cli.commands.steer import Speaker, Steering
    from holdfast.cli.run_settings import Wishes
    from holdfast.cli.targets import config_of, stored_workflow
    from holdfast.engine.confirmation import refuse_unconfirmed
    from holdfast.engine.time_travel.edits import Access
    from holdfast.state.codec import Codec, TolerantCodec

    info = moment.info
    config = config_of(journal, info)
    if "flow" not in config:
        if go_on or pairs or as_node is not None:
            changes = ", update={…}" if pairs else ""
            node = f", as_node={as_node!r}" if as_node is not None else ""
            raise click.UsageError(
                f"run {info.run!r} was not started from a workflow file, so its program has to change or run a fork: "
                f"fork = app.fork({told!r}{changes}{node}), then app.resume(fork)"
            )
        return Access(journal, TolerantCodec()), None
    if not (pairs or as_node is not None):
        return Access(journal, TolerantCodec()), None
    refuse_unconfirmed(journal, info, Codec())
    flow = stored_workflow(info, config)
    app = Wishes.of(config).open(flow, journal.store, interactive=False, stored=True)
    run = journal.load(info, Codec(), moment.seq).run
    speaker = Speaker("fork", "", "", False, "", "")
    update = Steering(speaker, journal, info.run, run, flow, True).changes(pairs)
    if as_node is not None:
        update = _as_result(update, as_node, run.root.cells)
    return Access.of(app._settings), update


def _as_result(update: dict[tuple[str, ...], Any], step: str, cells: Any) -> dict[tuple[str, ...], Any]:
    """Changes with the record of a step that is to have come to them: of a workflow file's step its output."""
    from holdfast.state.ops import thaw

    before = dict(thaw(cells[step].get()) or {}) if step in cells else {}
    given = {path[1:]: value for path, value in update.items() if path[0] == step}
    visits = before.get("visits", 0) + 1
    record = {"output": None, **before, "status": "completed", "visits": visits}
    for inside, value in given.items():
        if inside != ("output",):
            raise click.UsageError(f"give what {step} came to as a whole: steps.{step}.output=…")
        record["output"] = value
    return {**{path: value for path, value in update.items() if path[0] != step}, (step,): record}


def _free_id(journal: Journal, run_id: str | None) -> str:
    import uuid

    from holdfast.errors import RunExists, StateInvalid

    if run_id is None:
        return str(uuid.uuid4())
    if not run_id.strip() or not run_id.isprintable():
        raise StateInvalid(f"a run id must be printable text, not {run_id!r}")
    if journal.store.runs(run=run_id):
        raise RunExists(f"run {run_id!r} exists in {journal.store.url}; choose another --run-id")
    return run_id


def _refuse_unused(how: dict[str, Any]) -> None:
    """Refuse what only says how the new run is driven, and shown meanwhile, if it is not driven."""
    given = [name for name, value in how.items() if name != "as_json" and value not in (None, False, ())]
    if how["interactive"] is False:
        given.append("no-interactive")
    if given:
        raise click.UsageError(
            f"--{given[0].replace('_', '-')} is for a fork that goes on here and now: give --run, too"
        )


def _go_on(run_id: str, url: str, polite: Manners) -> int:
    from holdfast.cli.commands.run import resume_run
    from holdfast.cli.targets import find_target

    found = find_target(run_id, None, url, None)
    try:
        return resume_run(found, found.open(interactive=polite.asks), polite, {})
    finally:
        close_store(found.store)


def _resume(run_id: str, url: str) -> str:
    from holdfast.cli.reading import how_to_resume
    from holdfast.cli.store_option import open_existing, open_journal

    store = open_existing(url)
    try:
        return how_to_resume(open_journal(store), store.runs(run=run_id)[0], url)
    finally:
        store.close()


@click.command()
@click.argument("fork", metavar="FORK")
@click.option(
    "--into", metavar="RUN", help="An earlier ancestor, instead of the run that it was forked from."
)
@reason_option
@by_option
@store_option
@json_option
def promote(
    fork: str, into: str | None, reason: str, by: str | None, store: str | None, as_json: bool
) -> int:
    """Promote a fork's result to its parent run.

    The run's own history stays, and `holdfast runs rollback` goes back to it; the fork stays, too. A fork that waits
    for an answer makes the run wait for the same. No process may execute either of them meanwhile.

    \b
    Example:
      holdfast runs promote 3f2a --reason "the shorter draft won"
    """
    from holdfast.cli.reading import reading_moments
    from holdfast.engine.time_travel.checkpoints import find_position
    from holdfast.engine.time_travel.edits import Access
    from holdfast.engine.time_travel.rewind import promote_fork
    from holdfast.state.codec import TolerantCodec

    journal, texts = reading_moments(store, fork, *([] if into is None else [into]))
    own, *target = [_whole_run(find_position(journal.store, text), text) for text in texts]
    who = {"by": by or me(), "reason": reason}
    ident = promote_fork(Access(journal, TolerantCodec()), own, target[0] if target else None, **who)
    from holdfast.engine.resume import find_checkpoint

    info, _ = find_checkpoint(journal.store, ident)
    return _told(
        journal, info, ident, f"it now stands where {one_line(own.run)} does: {info.status}", as_json
    )


def _whole_run(moment: Position, text: str) -> RunInfo:
    if moment.seq is not None:
        raise click.UsageError(f"a run is promoted as it stands; name it without a place, not {text}")
    return moment.info


@click.command()
@click.argument("run", metavar="RUN@PLACE")
@reason_option
@by_option
@store_option
@json_option
def rollback(run: str, reason: str, by: str | None, store: str | None, as_json: bool) -> int:
    """Let a run stand where it once stood, so that `resume` goes on from there.

    PLACE is as for `fork`; a checkpoint's id will do, too. The steps that came after it run again when the run is
    resumed; that is what this is for. Questions are asked again, gates are closed again. Nothing is deleted: what came
    after stays in the history, and a rollback to its checkpoints brings it back.

    \b
    Example:
      holdfast runs rollback research@2 --reason "the source was wrong"
    """
    from holdfast.cli.reading import reading_moments
    from holdfast.engine.time_travel.checkpoints import find_position
    from holdfast.engine.time_travel.edits import Access
    from holdfast.engine.time_travel.rewind import roll_back
    from holdfast.state.codec import TolerantCodec

    journal, (text,) = reading_moments(store, run)
    moment = find_position(journal.store, text)
    if moment.seq is None:
        raise click.UsageError(
            f"say where run {moment.info.run} is to stand: {moment.info.run}@3, or a checkpoint's id"
        )
    ident = roll_back(Access(journal, TolerantCodec()), moment, by=by or me(), reason=reason)
    return _told(journal, journal.info(moment.info.run), ident, "it stands there again", as_json)


def _told(journal: Journal, info: RunInfo, ident: str, what: str, as_json: bool) -> int:
    from holdfast.cli.reading import how_to_resume
    from holdfast.values import RunStatus

    url = journal.store.url
    if as_json:
        print_json({"run_id": info.run, "checkpoint_id": ident, "status": info.status, "store": url})
        return 0
    click.echo(f"run {one_line(info.run)}: {what}")
    if info.status != RunStatus.COMPLETED:
        click.echo(f"go on with: {how_to_resume(journal, info, url)}")
    return 0


# `holdfast rerun`: run a step and what follows it again, and keep everything else.


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
    from holdfast.cli.execution import Driving
    from holdfast.cli.targets import kept_at

    if not options["in_place"] and options["run_id"] is None:
        options["run_id"] = str(uuid.uuid4())
    name = found.run_id if options["in_place"] else options["run_id"]
    before = kept_at(app, back.base, back.seq)
    return Driving(found.flow, app, found.url, polite, before).drive(
        lambda observer: app.rerun(str(found.what), step, observer=observer, **options), name or found.run_id
    )


def _changes(app: App, found: Target, pairs: tuple[str, ...], step: str = "") -> dict[tuple[str, ...], Any]:
    from holdfast.cli.commands.steer import Speaker, Steering
    from holdfast.engine.commands.subject import nodes_of
    from holdfast.graph.graph import base_name

    if not pairs:
        return {}
    settings = app._settings
    run = settings.journal.load(settings.journal.info(found.run_id), settings.codec).run
    speaker = Speaker("rerun", "", "", False, "", "")
    steering = Steering(speaker, settings.journal, found.run_id, run, found.flow, True)
    return steering.changes(pairs, base_name(nodes_of(step)) if step else "")


def _returned(app: App, back: Rerun, step: str, text: str) -> Any:
    from holdfast.workflows.workflow import returned

    if not back.step:
        raise click.UsageError(f"--output: {step!r} stands for several steps; name one by its id")
    typed, raw = read_inputs(None, [f"output={text}"])
    value = typed["output"] if typed else raw["output"]
    return returned(app.graph, back.step, value if text.startswith("@") else value_of(value))


def _show(back: Rerun, json: bool) -> None:
    from holdfast.cli.display.plans import rerun_lines

    click.echo(as_json(back.as_json()) if json else "\n".join(rerun_lines(back)))
