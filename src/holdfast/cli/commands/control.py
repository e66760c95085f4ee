"""`holdfast answer`, `pause`, `cancel`, `delete`, `runs edit`, `extend` and `steps`: what is asked of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_lines import app_of, command_line, resume_line_of
from holdfast.cli.execution import resume_target
from holdfast.cli.options import (
    APP,
    BY,
    JSON,
    REASON,
    REMAP,
    RUN,
    STORE,
    YES,
    ExecutionOptions,
    Options,
    flag,
    read_duration,
    value,
)
from holdfast.cli.questions import (
    all_steps,
    question_names,
    read_answers,
    read_inputs,
    read_json,
    read_pairs,
    value_of,
)
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import config_of
from holdfast.cli.targets import REPLANNED, find_target, stored_workflow
from holdfast.engine.commands import control
from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.engine.owner import has_owner
from holdfast.engine.resume import refuse_finished
from holdfast.errors import CommandRefused, HoldfastError, RunConflict
from holdfast.journal.copying import delete_run
from holdfast.journal.provenance import me
from holdfast.journal.run_state import NO_ANSWER, RunState
from holdfast.state.codec import Codec
from holdfast.values import RunStatus
from holdfast.workflows.scope import guided, place_in_state, takes_guidance
from holdfast.workflows.workflow import Workflow, load_workflow

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.commands.inbox import RunCommand
    from holdfast.engine.settings import Pause

STEP = click.argument("step", metavar="STEP")
CHANGES = click.argument("pairs", metavar="NAME=VALUE...", nargs=-1, required=True)
WHO = (REASON, BY, *STORE, JSON)
TIMEOUT = 1.0
"""How many seconds a command waits for the owner of a run to report the result."""


@command(
    RUN,
    click.argument("values", metavar="VALUE | NAME=VALUE...", nargs=-1),
    flag("--resume go_on", "Resume the run here, unless a process executes it."),
    APP,
    flag("--status", "Print the status of an earlier answer; RUN is its handle."),
    BY,
    STORE,
    JSON,
)
def answer(session: Session, options: Options) -> int:
    """Answer what a run waits for. VALUE is JSON or text and must be one of the choices, if there are any.

    NAME is the name of the question, or what follows the step's dot in it, or its id; yes and no will do for true and
    false.

    A terminal that waits for the answer takes it at once; a submitted run is resumed by a worker; otherwise the next
    `resume` takes it. If another process executes the run, that process decides: the answer is applied, or refused
    because somebody was faster (exit code 1), or still waiting after two seconds; then a handle is printed for
    --status.

    \b
    Example:
      holdfast answer 3f2a yes
      holdfast answer report title="On tides" pages=3 --resume
      holdfast answer 3f2a#1 --status
    """
    values = options.values
    if options.app is not None and not options.go_on:
        raise click.UsageError("--app is for a run that is resumed here: give --resume, too")
    if options.status:
        return _print_status(session, options.run, values)
    if not values:
        raise click.UsageError("Missing argument 'VALUE | NAME=VALUE...'.")
    info = session.unfinished_run(options.run)
    refuse_finished(info)
    owned = has_owner(session.store, info)
    pauses = control.waiting(session.journal, info.run)

    workflow: Workflow | None = None
    with contextlib.suppress(HoldfastError):
        workflow = stored_workflow(info, config_of(session.journal, info))
    answers = read_answers(
        values, pauses, lambda: set() if workflow is None else question_names(workflow.definition)
    )
    retention = None if workflow is None else workflow.retention()
    receipt = control.answer(
        session.journal, info.run, answers=answers, by=options.by or me(), retention=retention
    )
    if receipt.status != "applied":
        return _print_receipt(session, receipt)
    if options.go_on and not owned:
        if options.app is None and app_of(session.journal, info) is not None:
            line = resume_line_of(session.journal, session.journal.info(info.run))
            raise click.UsageError(
                f"the answer to {', '.join(receipt.names)} of run {info.run} is stored; the run is one of a Python "
                f"program, which --app names; resume with: {line}"
            )
        found = find_target(session, info.run, app=options.app)
        return resume_target(found, found.open(), ExecutionOptions(session.as_json), {})
    left = [pause.name for pause in pauses if pause.id not in answers and pause.kind not in NO_ANSWER]
    lines = [f"answered {', '.join(receipt.names)} of run {info.run}"]
    if left and not owned:
        lines.append(f"still open: {', '.join(left)}")
    elif info.queue and not owned:
        lines.append(f"a worker of queue {info.queue} resumes it")
    elif not owned:
        lines.append(f"resume with: {resume_line_of(session.journal, info)}")
    session.print({**receipt.as_json(), "open": left}, *lines)
    return 0


def _print_receipt(session: Session, receipt: control.Receipt) -> int:
    what = f"the answer to {', '.join(receipt.names)}" if receipt.names else "the answer"
    text = f"{what} of run {receipt.run_id}"
    refused = receipt.status == "refused"
    if refused:
        text += f" is refused: {receipt.reason}"
    elif receipt.status == "waiting":
        later = command_line("answer", receipt.handle, store=session.url())
        text += f" is waiting; ask again with: {later} --status"
    else:
        text += " is applied"
    session.print(receipt, text, err=refused)
    return 1 if refused else 0


def _print_status(session: Session, handle: str, values: tuple[str, ...]) -> int:
    if values:
        raise click.UsageError("--status takes the handle of an answer, and no values.")
    run, mark, number = handle.rpartition("#")
    if not mark:
        raise click.UsageError(
            f"--status takes the handle that `answer` printed, such as RUN#1, not {handle!r}."
        )
    info = session.unfinished_run(run)
    return _print_receipt(session, control.find_receipt(session.journal, f"{info.run}#{number}", Codec()))


@command(RUN, WHO)
def pause(session: Session, options: Options) -> None:
    """Pause a run after the steps under way, wherever it is executed. `resume` resumes it.

    \b
    Example:
      holdfast pause report --reason "the service is down"
    """
    _stop(session, options, "pause")


@command(RUN, WHO)
def cancel(session: Session, options: Options) -> None:
    """Stop a run, wherever it is executed. Finished steps are kept.

    \b
    Example:
      holdfast cancel 3f2a --reason "wrong inputs"
    """
    _stop(session, options, "cancel")


def _stop(session: Session, options: Options, what: str) -> None:
    run_id = session.unfinished_run(options.run).run
    done = "paused" if what == "pause" else "cancelled"
    status = str(control.stop(session.journal, run_id, what, options.reason or done, by=options.by or me()))
    if status == "running":
        text = f"is asked to {'stop' if what == 'cancel' else what}; it will soon"
    else:
        is_done = status == done or (what == "pause" and status == "interrupted")
        text = f"is {status}" + ("" if is_done else f"; there is nothing to {what}")
    session.print({"run_id": run_id, "status": status, "asked": what}, f"run {run_id} {text}")


@command(RUN, YES, STORE, JSON)
def delete(session: Session, options: Options) -> None:
    """Delete a run with its history, checkpoints and messages. A run that a process executes is refused.

    Forks of the run stay whole.

    \b
    Example:
      holdfast delete 3f2a
      holdfast delete 3f2a --yes --json
    """
    info = session.run(options.run)
    session.confirm(f"delete run {info.run} of {info.workflow} ({info.status}) and all its data", options.yes)
    if has_owner(session.store, session.journal.info(info.run)):
        raise RunConflict(
            f"run {info.run!r} is executed by a process; cancel it first, or wait until it stops"
        )
    delete_run(session.journal, info.run)
    session.print({"run_id": info.run, "deleted": True}, f"run {info.run} is deleted")


# `holdfast runs edit` and `holdfast steps`.


@command(RUN, CHANGES, WHO)
def edit(session: Session, options: Options) -> None:
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
    steering = Steering(session, options)
    update = steering.changes(options.pairs)
    listed = _listed(update)
    steering.send(control.edit(update, steering.codec), f"{listed} changed", f"change {listed}")


@command(
    RUN,
    value("--for duration", "DURATION", "How long from now: 30m, 24h, 7d.", default="24h", show_default=True),
    value("--question", "NAME", "Only this question, by its name or id; by default all that are open."),
    WHO,
)
def extend(session: Session, options: Options) -> None:
    """Give the open questions of a run more time, also if they have expired.

    A question expires by its own `timeout`, or by the `pause_ttl` of its workflow's retention. An expired one takes no
    answer; `resume` continues with its default, or asks it again.

    \b
    Example:
      holdfast runs extend report
      holdfast runs extend 3f2a --for 7d --question publish
    """
    steering = Steering(session, options)
    duration = read_duration("--for", options.duration)
    command = control.extend(steering.pauses(), duration, options.question or "")
    what = f"question {options.question!r}" if options.question else "the open questions"
    steering.send(command, f"{what} can be answered for at least {options.duration}", f"extend {what}")


@click.group()
def steps() -> None:
    """Change which steps of a run come next, and what they see.

    \b
    Example:
      holdfast steps skip report publish
      holdfast steps replan report review publish
    """


@command(RUN, click.argument("text", metavar="TEXT"), WHO, group=steps)
def guide(session: Session, options: Options) -> None:
    """Tell the agents of a run something: every model that is asked from now on gets TEXT with its system prompt.

    What was said before stays. A call that is under way is not repeated.

    \b
    Example:
      holdfast steps guide report "Cite only sources after 2020."
    """
    update = guided(options.text)
    steering = Steering(session, options)
    steering.refuse_without_agents()
    steering.send(control.edit(update, steering.codec), "its agents are guided", "guide its agents")


@command(RUN, STEP, WHO, group=steps)
def skip(session: Session, options: Options) -> None:
    """Skip a step that is about to run, waits, failed, or was interrupted. What follows it runs.

    STEP is the step's name, step[KEY] for one item of a for-each, outer/inner in a sub-workflow, or a step's id. A step
    that is running cannot be skipped; neither can one whose turn has not come.

    \b
    Example:
      holdfast steps skip report publish --reason "not this time"
      holdfast steps skip 3f2a 'fetch[7]'
    """
    step = options.step
    Steering(session, options).send(control.skip(step), f"{step} is skipped", f"skip {step}")


@command(RUN, STEP, CHANGES, WHO, group=steps)
def modify(session: Session, options: Options) -> None:
    """Let one step that has not started, or that failed, see other values; the state stays as it is.

    NAME is as for `runs edit`; for an item of a for-each also item, or what the file calls it.

    \b
    Example:
      holdfast steps modify report summarise inputs.words:=200
      holdfast steps modify 3f2a 'fetch[7]' item=https://example.org/mirror
    """
    steering, step = Steering(session, options), options.step
    update = steering.changes(options.pairs, step)
    listed = _listed(update)
    wanted = control.modify(step, update, steering.codec)
    steering.send(wanted, f"{step} sees other {listed}", f"let {step} see other {listed}")


@command(
    RUN,
    STEP,
    value("--item", "JSON", "Values that the step sees over the state: a JSON object."),
    value("--key", "KEY", "Make it an item with this key, as of a for-each."),
    flag("--follow", "Run what usually follows the step, too."),
    WHO,
    group=steps,
)
def inject(session: Session, options: Options) -> None:
    """Run one more step of the workflow now, beside those that are about to run or are running.

    Its results count, and nothing follows it unless --follow is given. STEP is outer/inner in a sub-workflow.

    \b
    Example:
      holdfast steps inject report fetch --follow --reason "the page changed"
    """
    step = options.step
    added = {"node": step, "item": _read_item(options.item), "key": options.key}
    steering = Steering(session, options)
    wanted = control.inject([added], steering.codec, follow=options.follow)
    steering.send(wanted, f"{step} is to run", f"run {step}")


@command(
    RUN,
    click.argument("plan", metavar="[FILE | STEP...]", nargs=-1),
    flag("--nothing", "Run nothing more: the run ends after what is running."),
    REMAP,
    WHO,
    group=steps,
)
def replan(session: Session, options: Options) -> None:
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
    names, plan, workflow = read_pairs(options.remap, "--remap"), options.plan, None
    if files := [word for word in plan if word.endswith((".yaml", ".yml"))]:
        if len(plan) > 1:
            raise click.UsageError(f"give either one workflow file, or steps, not {' '.join(plan)}")
        if not Path(files[0]).is_file():
            raise click.UsageError(f"there is no file {files[0]}")
        workflow = load_workflow(Path(files[0]))
    if options.nothing == bool(plan):
        raise click.UsageError("say what to continue with: a workflow file, steps, or --nothing")
    if names and workflow is None:
        raise click.UsageError("--remap is for a workflow file")
    steering = Steering(session, options)
    if workflow is not None:
        steering.redefine(workflow, names)
        return
    then = f"continue with {', '.join(plan)}" if plan else "end after what is running"
    steering.send(control.replan(list(plan), steering.codec), f"it is to {then}", then)


def _read_item(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    found = read_json(text, "--item")
    if not isinstance(found, dict) or not found:
        raise click.BadParameter(
            f'--item takes a JSON object with values, such as {{"n": 1}}, not {text!r:.80}'
        )
    return found


def _listed(update: dict[tuple[str, ...], Any]) -> str:
    return ", ".join(".".join(path) for path in update)


class Steering:
    """Commands to one run. `workflow` is the run's workflow file, if it has one that can be read."""

    def __init__(self, session: Session, options: Options) -> None:
        self._session, self._reason, self._by = session, options.reason, options.by or me()
        self._info = session.unfinished_run(options.run)
        config = config_of(session.journal, self._info)
        self._is_of_file = "workflow_file" in config
        self._workflow: Workflow | None = None
        self._app: App | None = None
        """The workflow on its store, if it can be read and, if it came from outside, is confirmed."""
        if self._is_of_file:
            with contextlib.suppress(HoldfastError):
                refuse_unconfirmed(session.journal, self._info, Codec())
                self._workflow = stored_workflow(self._info, config)
                self._app = self._workflow.open(session.store)
        self._owned = has_owner(session.store, self._info)

    def changes(self, pairs: Sequence[str], step: str = "") -> dict[tuple[str, ...], Any]:
        """Return changes to the state, or to the state that a step sees, by their paths in the state."""
        run = self._session.journal.load(self._info, Codec()).run
        return read_changes(run, self._workflow, pairs, step, is_of_file=self._is_of_file)

    def pauses(self) -> tuple[Pause, ...]:
        """Return what the run waits for."""
        if self._app is not None:
            return self._app.pauses(self._info.run)
        return control.waiting(self._session.journal, self._info.run, codec=self.codec)

    def refuse_without_agents(self) -> None:
        """Refuse guidance for a run that asks no model."""
        if self._app is None or not takes_guidance(self._app.graph):
            raise CommandRefused(
                f"run {self._info.run!r} asks no model, so that nobody would follow the guidance"
            )

    def send(self, command: RunCommand, done: str, asked: str) -> None:
        """Send a command to the run, and print what came of it."""
        journal, info, url = self._session.journal, self._info, self._session.url()
        answer = control.send(
            journal,
            info.run,
            command,
            codec=self.codec,
            graph=None if self._app is None else self._app.graph,
            timeout=TIMEOUT,
            by=self._by,
            reason=self._reason,
        )
        applied = answer != control.ASKED
        status = str(answer if applied else journal.info(info.run).status)
        lines = [f"run {info.run}: {done}" if applied else f"run {info.run} is asked to {asked}"]
        if status == RunStatus.QUEUED:
            lines.append("a worker resumes it")
        elif status == RunStatus.RUNNING and not applied:
            lines.append(f"it does between two steps; see: {command_line('events', info.run, store=url)}")
        elif status != RunStatus.RUNNING and not self._owned:
            line = resume_line_of(journal, info)
            lines.append(f"resume with: {line}" if applied else f"it does when it is resumed: {line}")
        facts = {"run_id": info.run, "command": command.kind, "applied": applied, "status": status}
        self._session.print(facts, *lines)

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

    @property
    def codec(self) -> Codec:
        """The codec of the run's workflow."""
        return Codec() if self._app is None else self._app._settings.codec


# Changes of a state, as people write them.


def read_changes(
    run: RunState, workflow: Workflow | None, pairs: Sequence[str], step: str = "", *, is_of_file: bool = True
) -> dict[tuple[str, ...], Any]:
    """Return changes of a run's state, or of what a step sees, by their places in the state."""
    typed, text = read_inputs(None, pairs)
    values = {**typed, **{name: value_of(given) for name, given in text.items()}}
    if not is_of_file:
        known = {name for frame in run.frames.values() for name in frame.cells}
        return {(name,) if name in known else tuple(name.split(".")): value for name, value in values.items()}
    if "/" not in step and workflow is not None:
        values |= _inputs(run, workflow, typed, text)
    own = step.partition("[")[0]
    steps = all_steps(workflow.definition.steps) if workflow is not None else ()
    each = next((found.for_each for found in steps if found.name == own), None)
    item = "item" if each is None else each.as_
    return {place_in_state(run.outline, name.split("."), step, item): value for name, value in values.items()}


def _inputs(run: RunState, workflow: Workflow, typed: dict[str, Any], text: dict[str, str]) -> dict[str, Any]:
    """Return the inputs among some changes, read as the workflow declares them; wrong ones are refused."""
    prefix = "inputs."
    plain, written = (
        {
            name.removeprefix(prefix): value
            for name, value in values.items()
            if name.startswith(prefix) and name.count(".") == 1
        }
        for values in (typed, text)
    )
    if not (plain or written):
        return {}
    slot = run.root.cells.get("inputs")
    saved = dict(slot.get() or {}) if slot is not None else {}
    others = {name: value for name, value in saved.items() if name not in written}
    found = workflow.read_inputs({**others, **plain}, written)
    return {f"{prefix}{name}": found[name] for name in (*plain, *written)}
