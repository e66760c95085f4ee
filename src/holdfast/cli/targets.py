"""What `resume` is to go on with: a run, its workflow and its store, from whatever names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.confirmation import Gate, gate
from holdfast.cli.display.progress import DONE, HELPERS, PENDING, place_of
from holdfast.cli.main import loading
from holdfast.cli.run_settings import Wishes
from holdfast.cli.store_option import chosen_url, meant_run, open_existing, open_journal
from holdfast.errors import CheckpointNotFound, HoldfastError, Remedy, RunNotFound
from holdfast.values import RunStatus
from holdfast.views.charges import total
from holdfast.views.run_view import NOTHING, Counts, counted, statuses, steps_in

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.confirmation import Disclosure
    from holdfast.engine.settings import Settings
    from holdfast.journal.journal import Journal, Loaded
    from holdfast.journal.run_state import RunState
    from holdfast.stores.base import RunInfo, Store
    from holdfast.workflows.workflow import Workflow


# What a stored run has, for those who go on with it: what is kept, what failed, and its workflow.


REPLANNED = "replanned"
"""Where a run's config says when it was last given another version of its workflow file."""

MANY_ENTRIES = 5000
"""A journal with more entries is not read as a whole to tell how long the finished steps took."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The finished steps of a stored run and what they cost; and the attempt that failed, if one did."""

    counts: Counts = NOTHING
    """The finished steps and items, those of open sub-workflows included."""
    steps: int = 0
    """The finished steps of the workflow itself."""
    seconds: float = 0.0
    cost: float = 0.0
    spent: float = 0.0
    """US dollars that the run has spent, in vain too."""
    failed_step: str = ""
    failed_attempt: int = 0
    statuses: tuple[tuple[str, str], ...] = ()
    """Each finished step of a workflow file with its status."""
    items: tuple[tuple[str, str], ...] = ()
    """The items of for-each steps under way, by the names of their steps: done, failed or pending."""
    reused: int = 0
    """How many of the steps were given the results of another run."""


def kept_of(app: App, run_id: str) -> Kept | None:
    """What is kept of a run; `None` if nothing is, or the store does not say."""
    from holdfast.engine.runner import state_of
    from holdfast.journal.run_state import FAILED

    settings = app._settings
    try:
        loaded = settings.journal.load(settings.journal.info(run_id), settings.codec)
        state = state_of(loaded, settings)
        failed = next((step for step in loaded.run.active() if step.status == FAILED), None)
        spent = total(*loaded.run.spending.values()).cost
        seconds, cost = _kept(settings, loaded, spent)
        return Kept(
            counts=counted(loaded.run),
            steps=steps_in(state),
            seconds=seconds,
            cost=cost,
            spent=spent,
            failed_step="" if failed is None else place_of(failed.id, failed.node).label,
            failed_attempt=0 if failed is None else failed.attempt,
            statuses=tuple(statuses(state)),
            items=_open_items(loaded.run),
            reused=_reused(app, loaded) if loaded.run.reuse is not None else 0,
        )
    except HoldfastError:
        return None


def _open_items(run: RunState) -> tuple[tuple[str, str], ...]:
    from holdfast.journal.run_state import DONE as FINISHED

    items = (step for step in run.active() if step.key is not None)
    return tuple((step.id, DONE if step.status == FINISHED else PENDING) for step in items)


def _reused(app: App, loaded: Loaded) -> int:
    from holdfast.journal.records import StepFinished

    settings = app._settings
    _, history = settings.journal.history(loaded.info, settings.codec)
    found = [record for _, records in history for record in records if isinstance(record, StepFinished)]
    return reused_steps(app, {record.step for record in found if record.origin}).steps


def reused_steps(app: App, ids: Iterable[str]) -> Counts:
    """How many steps of the workflow itself, and items, are over by what was taken over, and not run."""
    nodes = app._settings.graph.nodes
    own = {place_of(name) for name in ids if "/" not in name}
    whole = [place for place in own if place.role == "done" or f"{place.path[0]}:done" not in nodes]
    steps = {place.path for place in whole if place.role not in HELPERS.values()}
    return Counts(len(steps), sum(place.key is not None for place in own))


def kept_at(app: App, info: RunInfo, seq: int | None) -> Kept | None:
    """What of a run is kept that goes on from where it, or another, stood at an entry; `None` if nothing is."""
    from holdfast.engine.runner import state_of

    settings = app._settings
    if not seq:
        return None
    try:
        loaded = settings.journal.load(info, settings.codec, seq)
    except HoldfastError:
        return None
    state, spent = state_of(loaded, settings), total(*loaded.run.spending.values()).cost
    kept = Kept(counted(loaded.run), steps_in(state), loaded.run.seconds, spent, spent)
    return replace(kept, statuses=tuple(statuses(state))) if kept.steps else None


def counts_of(app: App, run_id: str) -> Counts:
    """How many steps and items of a run are finished."""
    settings = app._settings
    return counted(settings.journal.load(settings.journal.info(run_id), settings.codec).run)


def _kept(settings: Settings, loaded: Loaded, spent: float) -> tuple[float, float]:
    """The time and the money that went into the finished steps; of a very long journal with what was in vain."""
    from holdfast.views.usage import ledger

    if loaded.seq > MANY_ENTRIES:
        return loaded.run.seconds, spent
    kept = ledger(settings.journal, loaded.info.run).kept
    return min(kept.seconds, loaded.run.seconds), kept.cost


def stored_workflow(info: RunInfo, config: Mapping[str, Any], file: Path | None = None) -> Workflow:
    """The workflow of a stored run; of one from outside what came with it, whatever files are on this machine."""
    from holdfast.workflows.reading.problems import WorkflowInvalid
    from holdfast.workflows.workflow import workflow_of_run

    try:
        return workflow_of_run(config, file=file, prefer="saved" if info.origin else "file")
    except WorkflowInvalid as error:
        if file is not None or Path(error.problems[0].position.file).is_file():
            raise
        raise click.UsageError(
            f"{error}\nthis is what run {info.run!r} has for its workflow file; go on with a file that can be used: "
            f"holdfast resume {info.run} --workflow FILE"
        ) from None


def config_of(journal: Journal, info: RunInfo) -> dict[str, Any]:
    """The config that a run was started with; it says which workflow file the run is of."""
    from holdfast.state.codec import Codec

    codec = Codec()
    return config_in(journal.load(info, codec).run)


def config_in(run: RunState) -> dict[str, Any]:
    """The config of a run that was loaded."""
    from holdfast.state.codec import Codec

    found = Codec().decode(run.config, lenient=True) if run.config else {}
    return dict(found) if isinstance(found, dict) else {}


STOPPED = (RunStatus.PAUSED, RunStatus.FAILED, RunStatus.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Target:
    """What to resume. `run_id` is empty for a checkpoint file, which begins a run of its own."""

    flow: Workflow
    store: Store
    url: str
    what: str | Path
    run_id: str = ""
    file: Path | None = None
    wishes: Wishes = field(default_factory=Wishes)
    trust: str = ""
    """The digest of what was confirmed of a run from outside."""
    config: Mapping[str, Any] | None = None
    """What is laid over the config of the run or of the checkpoint file: the definition that it goes on with."""

    def open(self, *, interactive: bool = False, renamed: Mapping[str, str] | None = None) -> App:
        """Its workflow on its store, with the gates and options that the run was started with."""
        wishes = self.wishes.renamed(renamed or {})
        return wishes.open(self.flow, self.store, interactive=interactive, stored=True)


def find_moment_of(
    target: str, store_url: str | None, workflow: Path | None, admit: Gate | None = None
) -> Target:
    """The run, completed or not, or the moment of it that is meant, and the workflow to go on with."""
    return _found(target, None, store_url, workflow, "rerun", admit or gate())


def find_target(
    target: str | None,
    checkpoint: str | None,
    store_url: str | None,
    workflow: Path | None,
    admit: Gate | None = None,
) -> Target:
    """The run, checkpoint or file that is meant, and the workflow to go on with; `admit` confirms one from outside."""
    if target is not None and target.endswith(".pkl"):
        return _from_file(Path(target), store_url, workflow, admit or gate())
    return _found(target, checkpoint, store_url, workflow, "resume", admit or gate())


def _found(
    target: str | None,
    checkpoint: str | None,
    store_url: str | None,
    workflow: Path | None,
    command: str,
    admit: Gate,
) -> Target:
    with loading():
        from holdfast.engine.checkpoint_files import check_options
        from holdfast.workflows.workflow import load_workflow

    if target is not None and _is_workflow_file(target):
        workflow = workflow or Path(target)
        target = load_workflow(Path(target)).name
    of_flow = load_workflow(workflow).store_url() if workflow is not None else None
    url = chosen_url(store_url, of_flow)
    store = open_existing(url)
    try:
        info, what = (
            _find(store, target, checkpoint) if command == "resume" else _find_any(store, target or "")
        )
        journal, trust, own = open_journal(store), "", None
        if info.origin:
            info, run = _standing(journal, info, what)
            config = config_in(run)
            if workflow is not None:
                check_options(config)
                own = Wishes.of(config).config(load_workflow(workflow))
            disclosure = _disclosed(journal, info, run, workflow, own)
            trust = admit(disclosure, _way_out(info, url, command))
        else:
            config = config_of(journal, info)
            if workflow is not None:
                check_options(config)
        _refuse_python(info, config, workflow, command)
        flow, wishes = stored_workflow(info, config, workflow), Wishes.of(config)
        if workflow is not None or (info.origin and command == "rerun"):
            own = wishes.config(flow)
        return Target(flow, store, url, what, info.run, wishes=wishes, trust=trust, config=own)
    except BaseException:
        store.close()
        raise


def _standing(journal: Journal, info: RunInfo, what: str) -> tuple[RunInfo, RunState]:
    """A run as it stands, or as it stood at the checkpoint that is meant: what is confirmed is what will run."""
    from holdfast.engine.resume import find_checkpoint
    from holdfast.journal.checkpoint_ids import is_checkpoint_id
    from holdfast.journal.provenance import set_back
    from holdfast.state.codec import Codec

    run = journal.load(info, Codec()).run
    if what == info.run or not is_checkpoint_id(what):
        return info, run
    _, seq = find_checkpoint(journal.store, what)
    if seq == run.saved_seq:
        return info, run
    return replace(info, origin=set_back(info.origin)), journal.load(info, Codec(), seq).run


def _disclosed(
    journal: Journal, info: RunInfo, run: RunState, workflow: Path | None, own: Mapping[str, Any] | None
) -> Disclosure:
    """What a run from outside would run with; with a workflow file of one's own, that instead of its own."""
    from holdfast.engine.confirmation import disclose

    disclosure = disclose(journal, info, run, own)
    assert disclosure is not None
    return disclosure if workflow is None else disclosure.with_file(workflow)


def _way_out(info: RunInfo, url: str, command: str) -> str:
    from holdfast.cli.reading import resume_command

    return f"{resume_command(info.run, url, '')} --trust" if command == "resume" else "the same with --trust"


def _is_workflow_file(target: str) -> bool:
    return target.endswith((".yaml", ".yml")) and Path(target).is_file()


def _find(store: Store, target: str | None, checkpoint: str | None) -> tuple[RunInfo, str]:
    """The run that is meant, and what to hand to `App.resume`."""
    from holdfast.engine.resume import find_checkpoint, find_run

    if checkpoint is not None:
        found, _ = find_checkpoint(store, checkpoint)
        if target not in (None, found.run, found.workflow):
            raise click.UsageError(f"checkpoint {checkpoint} is of run {found.run!r}, not of {target!r}")
        return found, checkpoint
    if target is None:
        latest = latest_unfinished(store)
        return latest, latest.run
    if "@" in target and not store.runs(run=target):
        return _at_moment(store, target)
    target = meant_run(store, target)
    info, seq = find_run(store, target)
    return info, info.run if seq is None else target


def _at_moment(store: Store, target: str) -> tuple[RunInfo, str]:
    """The run, and the checkpoint that `RUN@3` and the like mean."""
    from holdfast.cli.reading import meant_moment
    from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position

    moment = find_position(store, meant_moment(store, target))
    point = checkpoint_at(store, moment)
    if point is None or point.seq != moment.seq:
        raise CheckpointNotFound(f"there is no checkpoint at {target}", remedies=Remedy("fork", target))
    return moment.info, point.id


def _find_any(store: Store, target: str) -> tuple[RunInfo, str]:
    """The run that is meant, completed or not, and the moment of it."""
    from holdfast.cli.reading import meant_moment
    from holdfast.engine.time_travel.checkpoints import find_position

    text = meant_moment(store, target)
    moment = find_position(store, text)
    return moment.info, moment.info.run if moment.seq is None else text


def latest_unfinished(store: Store) -> RunInfo:
    """The run that was touched last of those that are not over and that nobody drives."""
    from holdfast.engine.owner import is_alive

    stopped = store.runs(status=STOPPED, limit=1)
    for info in store.runs(status=[RunStatus.RUNNING]):
        if stopped and stopped[0].updated_at >= info.updated_at:
            break
        if not is_alive(info.driver, store):
            return info
    if stopped:
        return stopped[0]
    raise RunNotFound(f"no run in {store.url} is unfinished", remedies=Remedy("list_runs"))


def _refuse_python(info: RunInfo, config: dict[str, Any], workflow: Path | None, command: str) -> None:
    if "flow" not in config and workflow is None:
        call = f"app.resume({info.run!r})" if command == "resume" else f"app.{command}({info.run!r}, …)"
        raise click.UsageError(
            f"run {info.run!r} was not started from a workflow file; {command} it with {call} in "
            "Python, or give --workflow FILE"
        )


def _from_file(path: Path, store_url: str | None, workflow: Path | None, admit: Gate) -> Target:
    """A checkpoint file, with the workflow that it was saved by, once that was confirmed, or that is given.

    Of a file for which a workflow is given, neither the workflow that it names nor its options are taken.
    """
    from holdfast.engine import checkpoint_files as files
    from holdfast.stores import open_store
    from holdfast.workflows.workflow import load_workflow, workflow_of_run

    found = files.read(path)
    config = found.content["config"]
    if workflow is not None:
        flow, wishes, trust = load_workflow(workflow), Wishes(), ""
    elif "flow" not in config:
        raise click.UsageError(f"{path} does not say which workflow it is of; give --workflow FILE")
    else:
        trust = admit(found.disclosure(), f"holdfast resume {path} --trust")
        flow, wishes = workflow_of_run(config, prefer="saved"), Wishes.of(config)
    url = chosen_url(store_url, flow.store_url())
    over = None if workflow is None else wishes.config(flow)
    return Target(flow, open_store(url), url, path, file=path, wishes=wishes, trust=trust, config=over)
