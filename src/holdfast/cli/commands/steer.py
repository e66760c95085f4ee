"""`holdfast runs edit` and `holdfast steps`: changing how a run continues."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_lines import command_line, resume_line
from holdfast.cli.inputs import all_steps, read_inputs, read_pairs, value_of
from holdfast.cli.options import BY, JSON, REASON, REMAP, RUN, STORE
from holdfast.cli.session import Session, command, config_of
from holdfast.cli.targets import REPLANNED, stored_workflow
from holdfast.engine.commands import control
from holdfast.engine.commands.control import ASKED
from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.engine.owner import has_owner
from holdfast.errors import HoldfastError
from holdfast.journal.provenance import me
from holdfast.journal.run_state import RunState
from holdfast.state.codec import Codec
from holdfast.values import RunStatus
from holdfast.workflows.scope import place_in_state
from holdfast.workflows.workflow import Workflow, load_workflow

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.commands.inbox import RunCommand

STEP = click.argument("step", metavar="STEP")
CHANGES = click.argument("pairs", metavar="NAME=VALUE...", nargs=-1, required=True)
WHO = (REASON, BY, STORE, JSON)
TIMEOUT = 1.0
"""How many seconds a command waits for the owner of a run to report the result."""


@command(RUN, CHANGES, WHO)
def edit(session: Session, run: str, pairs: tuple[str, ...], reason: str, by: str | None) -> None:
    """Change the state of a run, between two of its steps.

    Of a workflow file, NAME is inputs.X or steps.STEP.output; of a Python graph a key of the state, or key.part.part
    for a place inside. VALUE is JSON or text, NAME=@FILE reads it from a file, NAME:=JSON insists on JSON. Keys with a
    reducer take the value as an update, as from a node.

    If a process executes the run, it applies the change between two steps; otherwise the change is applied now, and
    `resume` continues with it. A change that is impossible is refused with the reason. `holdfast events` prints all
    commands to a run, with who asked for them.

    \b
    Example:
      holdfast runs edit report inputs.topic=tides --reason "the customer called"
      holdfast runs edit 3f2a 'steps.draft.output=@draft.md'
    """
    steering = Steering(session, run, reason, by)
    update = steering.changes(pairs)
    listed = _listed(update)
    steering.send(control.edit(update, steering.codec), f"{listed} changed", f"change {listed}")


@click.group()
def steps() -> None:
    """Change which steps of a run come next, and what they see.

    \b
    Example:
      holdfast steps skip report publish
      holdfast steps replan report review publish
    """


@command(RUN, STEP, WHO, group=steps)
def skip(session: Session, run: str, step: str, reason: str, by: str | None) -> None:
    """Skip a step that is about to run, waits, failed, or was interrupted. What follows it runs.

    STEP is the step's name, step[KEY] for one item of a for-each, outer/inner in a sub-workflow, or a step's id. A step
    that is running cannot be skipped; neither can one whose turn has not come.

    \b
    Example:
      holdfast steps skip report publish --reason "not this time"
      holdfast steps skip 3f2a 'fetch[7]'
    """
    Steering(session, run, reason, by).send(control.skip(step), f"{step} is skipped", f"skip {step}")


@command(RUN, STEP, CHANGES, WHO, group=steps)
def modify(
    session: Session, run: str, step: str, pairs: tuple[str, ...], reason: str, by: str | None
) -> None:
    """Let one step that has not started, or that failed, see other values; the state stays as it is.

    NAME is as for `runs edit`; for an item of a for-each also item, or what the file calls it.

    \b
    Example:
      holdfast steps modify report summarise inputs.words:=200
      holdfast steps modify 3f2a 'fetch[7]' item=https://example.org/mirror
    """
    steering = Steering(session, run, reason, by)
    update = steering.changes(pairs, step)
    listed = _listed(update)
    wanted = control.modify(step, update, steering.codec)
    steering.send(wanted, f"{step} sees other {listed}", f"let {step} see other {listed}")


@command(
    RUN,
    STEP,
    click.option("--item", metavar="JSON", help="Values that the step sees over the state: a JSON object."),
    click.option("--key", metavar="KEY", help="Make it an item with this key, as of a for-each."),
    click.option("--follow", is_flag=True, help="Run what usually follows the step, too."),
    WHO,
    group=steps,
)
def inject(
    session: Session,
    run: str,
    step: str,
    item: str | None,
    key: str | None,
    follow: bool,
    reason: str,
    by: str | None,
) -> None:
    """Run one more step of the workflow now, beside those that are about to run or are running.

    Its results count, and nothing follows it unless --follow is given. STEP is outer/inner in a sub-workflow.

    \b
    Example:
      holdfast steps inject report fetch --follow --reason "the page changed"
    """
    added = {"node": step, "item": _read_item(item), "key": key}
    steering = Steering(session, run, reason, by)
    wanted = control.inject([added], steering.codec, follow=follow)
    steering.send(wanted, f"{step} is to run", f"run {step}")


@command(
    RUN,
    click.argument("plan", metavar="[FILE | STEP...]", nargs=-1),
    click.option("--nothing", is_flag=True, help="Run nothing more: the run ends after what is running."),
    REMAP,
    WHO,
    group=steps,
)
def replan(
    session: Session,
    run: str,
    plan: tuple[str, ...],
    nothing: bool,
    remap: tuple[str, ...],
    reason: str,
    by: str | None,
) -> None:
    """Run these steps instead of those that were to come, or continue with a changed workflow file.

    With STEPs, all that is neither running nor finished is dropped, and these run; what usually follows them follows.
    With FILE, the run continues with that version of its workflow: finished steps stay finished, the name must be the
    same, and every step that is under way or next must be there, or be renamed with --remap.

    \b
    Example:
      holdfast steps replan report review publish
      holdfast steps replan 3f2a --nothing --reason "good enough"
      holdfast steps replan 3f2a report-v2.yaml
    """
    names = read_pairs(remap, "--remap")
    workflow = _changed_file(plan)
    if nothing == bool(plan):
        raise click.UsageError("say what to continue with: a workflow file, steps, or --nothing")
    if names and workflow is None:
        raise click.UsageError("--remap is for a workflow file")
    steering = Steering(session, run, reason, by)
    if workflow is not None:
        steering.redefine(workflow, names)
        return
    then = f"continue with {', '.join(plan)}" if plan else "end after what is running"
    steering.send(control.replan(list(plan), steering.codec), f"it is to {then}", then)


def _changed_file(plan: tuple[str, ...]) -> Workflow | None:
    files = [word for word in plan if word.endswith((".yaml", ".yml"))]
    if not files:
        return None
    if len(plan) > 1:
        raise click.UsageError(f"give either one workflow file, or steps, not {' '.join(plan)}")
    if not Path(files[0]).is_file():
        raise click.UsageError(f"there is no file {files[0]}")
    return load_workflow(Path(files[0]))


def _read_item(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"--item: not JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise click.BadParameter(
            f'--item takes a JSON object with values, such as {{"n": 1}}, not {text!r:.80}'
        )
    return found


def _listed(update: dict[tuple[str, ...], Any]) -> str:
    return ", ".join(".".join(path) for path in update)


class Steering:
    """Commands to one run. `workflow` is the run's workflow file, if it has one that can be read."""

    def __init__(self, session: Session, run: str, reason: str, by: str | None) -> None:
        self._session, self._reason, self._by = session, reason, by or me()
        self._info = session.unfinished_run(run)
        config = config_of(session.journal, self._info)
        self._is_of_file = "workflow_file" in config
        self._workflow = self._read_workflow(config) if self._is_of_file else None
        self._owned = has_owner(session.store, self._info)
        self._app = self._open()

    def _read_workflow(self, config: dict[str, Any]) -> Workflow | None:
        """Return the workflow file of a run, if it can be read and, if it came from outside, is confirmed."""
        try:
            refuse_unconfirmed(self._session.journal, self._info, Codec())
            return stored_workflow(self._info, config)
        except HoldfastError:
            return None

    def changes(self, pairs: Sequence[str], step: str = "") -> dict[tuple[str, ...], Any]:
        """Return changes of the state, or of what a step sees, by their places in the state."""
        run = self._session.journal.load(self._info, Codec()).run
        return read_changes(run, self._workflow, pairs, step, is_of_file=self._is_of_file)

    def send(self, command: RunCommand, done: str, asked: str) -> None:
        """Send a command to the run, and print what came of it."""
        graph = None if self._app is None else self._app.graph
        answer = control.send(
            self._session.journal,
            self._info.run,
            command,
            codec=self.codec,
            graph=graph,
            timeout=TIMEOUT,
            by=self._by,
            reason=self._reason,
        )
        self._print(command.kind, answer, done, asked)

    def redefine(self, workflow: Workflow, names: dict[str, str]) -> None:
        """Let the run continue with another version of its workflow file."""
        if not self._is_of_file:
            raise click.UsageError(
                f"run {self._info.run!r} was not started from a workflow file; compile the changed graph, and resume it"
            )
        outline = workflow.open(self._session.store)._settings.outline
        config = {**workflow.config(), REPLANNED: time.time()}
        wanted = control.redefine(workflow.name, outline, config, names=names)
        self._app = None
        self.send(wanted, f"it continues with {workflow.path}", f"continue with {workflow.path}")

    def _open(self) -> App | None:
        """Return the run's workflow on its store; `None` if it cannot be opened, and then the owner decides."""
        try:
            return None if self._workflow is None else self._workflow.open(self._session.store)
        except HoldfastError:
            return None

    @property
    def codec(self) -> Codec:
        """The codec of the run's workflow."""
        return Codec() if self._app is None else self._app._settings.codec

    def _print(self, name: str, answer: str, done: str, asked: str) -> None:
        run_id, applied = self._info.run, answer != ASKED
        status = str(answer if applied else self._session.journal.info(run_id).status)
        lines = [f"run {run_id}: {done}" if applied else f"run {run_id} is asked to {asked}"]
        if status == RunStatus.QUEUED:
            lines.append("a worker resumes it")
        elif status == RunStatus.RUNNING and not applied:
            lines.append(f"it does between two steps; see: {command_line('events', run_id, store=self._url)}")
        elif status != RunStatus.RUNNING and not self._owned:
            of_program = not self._is_of_file and not self._info.queue
            line = resume_line(run_id, self._url, self._info.queue, is_of_program=of_program)
            lines.append(f"resume with: {line}" if applied else f"it does when it is resumed: {line}")
        facts = {"run_id": run_id, "command": name, "applied": applied, "status": status}
        self._session.print(facts, *lines)

    @property
    def _url(self) -> str:
        return self._session.url()


# Changes of a state, as people write them.


def read_changes(
    run: RunState, workflow: Workflow | None, pairs: Sequence[str], step: str = "", *, is_of_file: bool = True
) -> dict[tuple[str, ...], Any]:
    """Return changes of a run's state, or of what a step sees, by their places in the state."""
    typed, text = read_inputs(None, pairs)
    values = {**typed, **{name: value_of(given) for name, given in text.items()}}
    if not is_of_file:
        return {_key(run, name): value for name, value in values.items()}
    if "/" not in step and workflow is not None:
        values |= _inputs(run, workflow, typed, text)
    item = _item_name(workflow, step)
    return {place_in_state(run.outline, name.split("."), step, item): value for name, value in values.items()}


def _key(run: RunState, name: str) -> tuple[str, ...]:
    """Return a key of a Python graph's state, or a place inside one."""
    known = any(name in frame.cells for frame in run.frames.values())
    return (name,) if known else tuple(name.split("."))


def _inputs(run: RunState, workflow: Workflow, typed: dict[str, Any], text: dict[str, str]) -> dict[str, Any]:
    """Return the inputs among some changes, read as the workflow declares them; wrong ones are refused."""
    prefix = "inputs."
    plain = {name.removeprefix(prefix): value for name, value in typed.items() if _is_input(name)}
    written = {name.removeprefix(prefix): value for name, value in text.items() if _is_input(name)}
    if not (plain or written):
        return {}
    slot = run.root.cells.get("inputs")
    saved = dict(slot.get() or {}) if slot is not None else {}
    others = {name: value for name, value in saved.items() if name not in written}
    found = workflow.read_inputs({**others, **plain}, written)
    return {f"{prefix}{name}": found[name] for name in (*plain, *written)}


def _is_input(name: str) -> bool:
    return name.startswith("inputs.") and name.count(".") == 1


def _item_name(workflow: Workflow | None, step: str) -> str:
    """Return what a step of the file calls its item."""
    own = step.partition("[")[0]
    steps = all_steps(workflow.definition.steps) if workflow is not None else ()
    each = next((found.for_each for found in steps if found.name == own), None)
    return each.as_ if each is not None else "item"
