"""What `resume` is to go on with: a run, its workflow and its store, from whatever names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.loading import loading
from holdfast.cli.store_option import chosen_url, meant_run, open_existing, open_journal
from holdfast.cli.stored import config_of
from holdfast.cli.wishes import Wishes
from holdfast.errors import RunNotFound
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.flows.flow import Flow
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

    def open(self, *, interactive: bool = False, renamed: Mapping[str, str] | None = None) -> App:
        """Its workflow on its store, with the gates and options that the run was started with."""
        wishes = self.wishes.renamed(renamed or {})
        return wishes.open(self.flow, self.store, interactive=interactive, stored=True)


def find_moment_of(target: str, store_url: str | None, workflow: Path | None) -> Target:
    """The run, completed or not, or the moment of it that is meant, and the workflow to go on with."""
    return _found(target, None, store_url, workflow, "rerun")


def find_target(
    target: str | None, checkpoint: str | None, store_url: str | None, workflow: Path | None
) -> Target:
    """The run, checkpoint or file that is meant, and the workflow to go on with."""
    if target is not None and target.endswith(".pkl"):
        return _from_file(Path(target), store_url, workflow)
    return _found(target, checkpoint, store_url, workflow, "resume")


def _found(
    target: str | None, checkpoint: str | None, store_url: str | None, workflow: Path | None, command: str
) -> Target:
    with loading():
        from holdfast.flows.flow import flow_of_run, load_flow

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
        config = config_of(open_journal(store), info)
        _refuse_python(info, config, workflow, command)
        return Target(
            flow_of_run(config, file=workflow), store, url, what, info.run, wishes=Wishes.of(config)
        )
    except BaseException:
        store.close()
        raise


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


def _from_file(path: Path, store_url: str | None, workflow: Path | None) -> Target:
    """A checkpoint file, with the workflow that it was saved by or that is given."""
    from holdfast.engine import files
    from holdfast.flows.flow import flow_of_run
    from holdfast.stores import open_store

    config = files.load(path)["config"]
    if "flow" not in config and workflow is None:
        raise click.UsageError(f"{path} does not say which workflow it is of; give --workflow FILE")
    flow = flow_of_run(config, file=workflow)
    url = chosen_url(store_url, flow.store_url())
    return Target(flow, open_store(url), url, path, file=path, wishes=Wishes.of(config))
