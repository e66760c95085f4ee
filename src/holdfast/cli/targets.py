"""What `resume` and `rerun` continue with: a run, its workflow and its store, found from whatever names them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_lines import app_of, app_words, command_line, this_line
from holdfast.cli.options import RunOptions
from holdfast.cli.programs import Program
from holdfast.cli.questions import Terminal
from holdfast.cli.session import Session, is_workflow_file, refuse_repaired
from holdfast.cli.store_option import close_store, config_in, config_of, default_url, store_of_file
from holdfast.engine import checkpoint_files
from holdfast.engine.confirmation import as_of, disclose
from holdfast.engine.owner import is_alive
from holdfast.engine.resume import find_checkpoint, find_run, refuse_finished
from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position
from holdfast.errors import CheckpointNotFound, ForeignRun, Remedy, RunNotFound
from holdfast.journal.checkpoint_ids import is_checkpoint_id
from holdfast.state.codec import Codec
from holdfast.stores import open_store
from holdfast.stores.base import is_in_memory
from holdfast.values import RunStatus
from holdfast.views.plain import escaped
from holdfast.views.run_view import UNKNOWN, app_in
from holdfast.views.timeline import read_environment
from holdfast.workflows.foreign import Effect, effects_of, reads_of, source_lines, warning_of
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.workflow import Workflow, load_workflow, workflow_of_run

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.confirmation import Disclosure
    from holdfast.journal.run_state import RunState
    from holdfast.stores.base import RunInfo, Store

REPLANNED = "replanned"
"""The key of a run's config that says when it was last given another version of its workflow file."""

STOPPED = (RunStatus.PAUSED, RunStatus.FAILED, RunStatus.INTERRUPTED)


# The workflow of a stored run.


def stored_workflow(info: RunInfo, config: Mapping[str, Any], file: Path | None = None) -> Workflow:
    """Return the workflow of a stored run; of a run from outside the one that came with it."""
    try:
        return workflow_of_run(config, file=file, prefer="saved" if info.origin else "file")
    except WorkflowInvalid as error:
        if file is not None or Path(error.problems[0].position.file).is_file():
            raise
        raise click.UsageError(
            f"{error}\nthis is the workflow file that run {info.run!r} has; continue with a file that can be used: "
            f"holdfast resume {info.run} --workflow FILE"
        ) from None


# Confirming a run from outside.


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Shows a run from outside completely, and takes `--trust`, or an answer in a terminal, for a yes."""

    trust: bool = False
    asks: bool = False

    def digest(self, found: Disclosure, command: str) -> str:
        """Return the digest of what was confirmed; `command` is the one that confirms it. Raise `ForeignRun`."""
        if found.is_confirmed:
            return ""
        _show(found)
        if self.trust:
            return found.digest
        remedy, said = f"if you trust all that is shown above: {command}", ""
        if self.asks:
            remedy = "it is left as it is"
            with contextlib.suppress(EOFError):
                said = Terminal(sys.stderr).line("Run it, with your rights and in your environment? [y/N] ")
        if said.strip().lower() not in ("y", "yes"):
            raise ForeignRun(
                f"{_name(found)} came from outside, and nobody has confirmed it; {remedy}",
                run=found.run_id,
                digest=found.digest,
            )
        return found.digest


def _show(found: Disclosure) -> None:
    saved, origin = found.config.get("workflow_file"), found.provenance
    click.echo(f"{_name(found)} came from outside: {escaped(origin.source)}, {origin.signer}", err=True)
    effects, reads = (effects_of(saved), reads_of(saved)) if isinstance(saved, Mapping) else ([], [])
    if effects:
        click.echo(warning_of(effects), err=True)
    print_source(found.config, found.inbox, effects, reads, err=True)


def print_source(
    config: Mapping[str, Any],
    inbox: Sequence[Mapping[str, Any]],
    effects: Sequence[Effect],
    reads: Sequence[str],
    *,
    err: bool = False,
) -> None:
    """Print the complete definition and options of a run from outside, with control characters escaped."""
    for effect in effects:
        if effect.reach:
            click.echo(f"  {escaped(effect.name)} ({effect.kind}): {escaped(effect.reach)}", err=err)
    if reads:
        click.echo(f"it would read of your environment: {escaped(', '.join(reads))}", err=err)
    for line in source_lines(config, inbox):
        click.echo(line, err=err)


def _name(found: Disclosure) -> str:
    return f"run {escaped(found.run_id)}" if found.run_id else "this checkpoint file"


# Finding what to continue with.


@dataclass(frozen=True, slots=True)
class Target:
    """What to continue with. `run_id` is empty for a checkpoint file, which starts a run of its own."""

    workflow: Workflow | Program
    store: Store
    url: str
    what: str | Path
    run_id: str = ""
    file: Path | None = None
    options: RunOptions = field(default_factory=RunOptions)
    trust: str = ""
    """The digest of what was confirmed of a run from outside."""
    config: Mapping[str, Any] | None = None
    """Changes to the config of the run or the checkpoint file: the definition that it continues with."""

    def open(self, *, interactive: bool = False, renamed: Mapping[str, str] | None = None) -> App:
        """Return the workflow on the store, with the options that the run was started with."""
        if isinstance(self.workflow, Program):
            return self.workflow.open(self.store)
        options = self.options.renamed(renamed or {})
        return options.open(self.workflow, self.store, interactive=interactive, stored=True)


def find_target(
    session: Session,
    target: str | None,
    *,
    checkpoint: str | None = None,
    workflow: Path | None = None,
    app: str | None = None,
    confirmation: Confirmation | None = None,
    command: str = "resume",
) -> Target:
    """Return the run, checkpoint or file to resume; with the command `rerun` a completed run, too."""
    confirmation = confirmation or Confirmation()
    program = _program(session, app, workflow)
    if target is not None and target.endswith(".pkl") and command == "resume":
        return _from_file(session, Path(target), program or workflow, confirmation)
    if target is not None and is_workflow_file(target):
        workflow = workflow or Path(target)
        target = load_workflow(Path(target)).name
    if workflow is not None:
        session.open(store_of_file(workflow)[0])
    else:
        session.find(checkpoint or target)
    url, journal, trust, own, run = session.url(), session.journal, "", None, None
    info, what = _find(session, target, checkpoint) if command == "resume" else _find_any(session, target)
    refuse_repaired(journal.store, info)
    if info.origin:
        named = is_checkpoint_id(what) and what != info.run
        info, run = as_of(journal, info, find_checkpoint(journal.store, what)[1] if named else None, Codec())
    config = config_of(journal, info) if run is None else config_in(run)
    if workflow is not None:
        checkpoint_files.check_options(config)
    if run is not None:
        own = None if workflow is None else RunOptions.of(config).config(load_workflow(workflow))
        disclosure = disclose(journal, info, run, own)
        assert disclosure is not None
        shown = disclosure if workflow is None else disclosure.with_file(workflow)
        words = _words_of(run, config) if program is None and workflow is None else []
        trust = confirmation.digest(shown, confirming(url, info.run, what, *words))
    if program is not None:
        return Target(program, session.store, url, what, info.run, trust=trust)
    if "workflow_file" not in config and workflow is None:
        if (
            command == "resume"
            and what == info.run
            and not click.get_current_context().params.get("rerun_changed")
        ):
            refuse_finished(info)
        raise click.UsageError(_without_file(session, info, command))
    found, options = stored_workflow(info, config, workflow), RunOptions.of(config)
    if workflow is not None or (info.origin and command == "rerun"):
        own = options.config(found)
    return Target(found, session.store, url, what, info.run, options=options, trust=trust, config=own)


def _program(session: Session, app: str | None, workflow: Path | None) -> Program | None:
    """Return the program that `--app` names; its own store is the one to look in, if no other is chosen."""
    if app is None:
        return None
    if workflow is not None:
        raise click.UsageError("--app and --workflow both say what to continue with; give one of them")
    program = Program(app)
    if program.own_store is not None and not is_in_memory(program.own_store):
        session.prefer(program.own_store.url)
    return program


def _without_file(session: Session, info: RunInfo, command: str) -> str:
    """Return what to do with a run of a Python program."""
    app = app_of(session.journal, info) or UNKNOWN
    known = app_words(app.place)
    call = (
        f"{app.name}.resume({info.run!r})"
        if command == "resume"
        else f"{app.in_python}.{command}({info.run!r}, …)"
    )
    here = this_line(session.store.url, *known) if known else "--app MODULE:NAME"
    return (
        f"run {info.run!r} was not started from a workflow file; {command} it with {call} in Python, or name its app: "
        f"{here}"
    )


def _words_of(run: RunState, config: Mapping[str, Any]) -> list[str]:
    """Return the option that names the app of a Python run from outside, as the run itself says, for a person to check.

    Nothing is imported by that: who confirms the run sees the app, and gives it.
    """
    if "workflow_file" in config:
        return []
    return app_words(app_in(read_environment(run.facts), is_foreign=False)) or ["--app", "MODULE:NAME"]


def confirming(url: str, run_id: str, what: str = "", *words: str) -> str:
    """Return the command that confirms a run: the one that is being executed, with `--trust` and these words.

    `what` is what that command names, without the chance of another run being the latest by then.
    """
    params = click.get_current_context().params
    if "trust" not in params:
        return command_line("resume", run_id, "--trust", *words, store=url)
    name = "target" if "target" in params else "run"
    if not what or is_workflow_file(params[name] or "") or params.get("checkpoint_id"):
        return this_line(url, "--trust", *words)
    return this_line(url, "--trust", *words, **{name: what})


def _find(session: Session, target: str | None, checkpoint: str | None) -> tuple[RunInfo, str]:
    """Return the run, and what to hand to `App.resume`."""
    store = session.store
    if checkpoint is not None:
        found, _ = find_checkpoint(store, checkpoint)
        if target not in (None, found.run, found.workflow):
            raise click.UsageError(f"checkpoint {checkpoint} is of run {found.run!r}, not of {target!r}")
        return found, checkpoint
    if target is None:
        latest = latest_unfinished(store)
        return latest, latest.run
    [name] = session.names(target)
    if "@" in target and not store.runs(run=target):
        found_at = find_position(store, name)
        point = checkpoint_at(store, found_at)
        if point is None or point.seq != found_at.seq:
            raise CheckpointNotFound(f"there is no checkpoint at {target}", remedies=Remedy("fork", target))
        return found_at.info, point.id
    info, seq = find_run(store, name)
    return info, info.run if seq is None else name


def _find_any(session: Session, target: str | None) -> tuple[RunInfo, str]:
    """Return the run, completed or not, and the checkpoint of it that is named."""
    [name] = session.names(target or "")
    found = find_position(session.store, name)
    return found.info, found.info.run if found.seq is None else name


def latest_unfinished(store: Store) -> RunInfo:
    """Return the run that was updated last of those that are not completed and that no process executes."""
    stopped = store.runs(status=STOPPED, limit=1)
    for info in store.runs(status=[RunStatus.RUNNING]):
        if stopped and stopped[0].updated_at >= info.updated_at:
            break
        if not is_alive(info.owner, store):
            return info
    if stopped:
        return stopped[0]
    raise RunNotFound(f"no run in {store.url} is unfinished", remedies=Remedy("list_runs"))


def _from_file(
    session: Session, path: Path, workflow: Path | Program | None, confirmation: Confirmation
) -> Target:
    """Return a checkpoint file with the workflow in it, once that is confirmed, or with another workflow.

    Of a file for which a workflow is given, neither the workflow in it nor its options are used.
    """
    found = checkpoint_files.read(path)
    config = found.content["config"]
    if isinstance(workflow, Program):
        url, options = session.url(), RunOptions()
        store = open_store(url)
        session.callback(close_store, store)
        return Target(workflow, store, url, path, file=path, options=options)
    used: Workflow
    if workflow is not None:
        used, options, trust = load_workflow(workflow), RunOptions(), ""
    elif "workflow_file" not in config:
        raise click.UsageError(f"{path} does not say which workflow it is of; give --workflow FILE")
    else:
        trust = confirmation.digest(found.disclosure(), this_line(session.given or default_url(), "--trust"))
        used, options = workflow_of_run(config, prefer="saved"), RunOptions.of(config)
    url = session.url(used.store_url())
    own = None if workflow is None else options.config(used)
    store = open_store(url)
    session.callback(close_store, store)
    return Target(used, store, url, path, file=path, options=options, trust=trust, config=own)
