"""What `resume` is to go on with: a run, its workflow and its store, from whatever names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.confirming import Gate, gate
from holdfast.cli.loading import loading
from holdfast.cli.store_option import chosen_url, meant_run, open_existing, open_journal
from holdfast.cli.stored import config_in, config_of, stored_flow
from holdfast.cli.wishes import Wishes
from holdfast.errors import RunNotFound
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.confirmation import Disclosure
    from holdfast.flows.flow import Flow
    from holdfast.journal.journal import Journal
    from holdfast.journal.run_state import RunState
    from holdfast.stores.base import RunInfo, Store

STOPPED = (RunStatus.PAUSED, RunStatus.FAILED, RunStatus.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Target:
    """What to resume. `run_id` is empty for a checkpoint file, which begins a run of its own."""

    flow: Flow
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
        from holdfast.engine.saved_config import check_options
        from holdfast.flows.flow import load_flow

    if target is not None and _is_workflow_file(target):
        workflow = workflow or Path(target)
        target = load_flow(Path(target)).name
    of_flow = load_flow(workflow).store_url() if workflow is not None else None
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
                own = Wishes.of(config).config(load_flow(workflow))
            disclosure = _disclosed(journal, info, run, workflow, own)
            trust = admit(disclosure, _way_out(info, url, command))
        else:
            config = config_of(journal, info)
            if workflow is not None:
                check_options(config)
        _refuse_python(info, config, workflow, command)
        flow, wishes = stored_flow(info, config, workflow), Wishes.of(config)
        if workflow is not None or (info.origin and command == "rerun"):
            own = wishes.config(flow)
        return Target(flow, store, url, what, info.run, wishes=wishes, trust=trust, config=own)
    except BaseException:
        store.close()
        raise


def _standing(journal: Journal, info: RunInfo, what: str) -> tuple[RunInfo, RunState]:
    """A run as it stands, or as it stood at the checkpoint that is meant: what is confirmed is what will run."""
    from holdfast.data.codec import Codec
    from holdfast.engine.resume import find_checkpoint
    from holdfast.journal.checkpoints import is_checkpoint_id
    from holdfast.journal.provenance import set_back

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
    from holdfast.cli.moments import meant_moment
    from holdfast.engine.travel.moments import checkpoint_at, find_moment

    moment = find_moment(store, meant_moment(store, target))
    point = checkpoint_at(store, moment)
    if point is None or point.seq != moment.seq:
        raise click.UsageError(
            f"there is no checkpoint at {target}; begin there with: holdfast fork {target} --run"
        )
    return moment.info, point.id


def _find_any(store: Store, target: str) -> tuple[RunInfo, str]:
    """The run that is meant, completed or not, and the moment of it."""
    from holdfast.cli.moments import meant_moment
    from holdfast.engine.travel.moments import find_moment

    text = meant_moment(store, target)
    moment = find_moment(store, text)
    return moment.info, moment.info.run if moment.seq is None else text


def latest_unfinished(store: Store) -> RunInfo:
    """The run that was touched last of those that are not over and that nobody drives."""
    from holdfast.engine.driver import is_alive

    stopped = store.runs(status=STOPPED, limit=1)
    for info in store.runs(status=[RunStatus.RUNNING]):
        if stopped and stopped[0].updated_at >= info.updated_at:
            break
        if not is_alive(info.driver, store):
            return info
    if stopped:
        return stopped[0]
    raise RunNotFound(f"no run in {store.url} is unfinished; `holdfast runs` lists them all")


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
    from holdfast.engine import files
    from holdfast.flows.flow import flow_of_run, load_flow
    from holdfast.stores import open_store

    found = files.read(path)
    config = found.content["config"]
    if workflow is not None:
        flow, wishes, trust = load_flow(workflow), Wishes(), ""
    elif "flow" not in config:
        raise click.UsageError(f"{path} does not say which workflow it is of; give --workflow FILE")
    else:
        trust = admit(found.disclosure(), f"holdfast resume {path} --trust")
        flow, wishes = flow_of_run(config, prefer="saved"), Wishes.of(config)
    url = chosen_url(store_url, flow.store_url())
    over = None if workflow is None else wishes.config(flow)
    return Target(flow, open_store(url), url, path, file=path, wishes=wishes, trust=trust, config=over)
