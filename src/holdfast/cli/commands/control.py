"""`holdfast answer`, `pause`, `cancel` and `delete`: what another terminal may ask of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.command_lines import command_line, resume_line_of
from holdfast.cli.inputs import question_names
from holdfast.cli.options import BY, JSON, REASON, RUN, STORE, YES, ExecutionOptions
from holdfast.cli.questions import read_answers
from holdfast.cli.session import Session, command, config_of
from holdfast.cli.targets import stored_workflow
from holdfast.engine.commands import control
from holdfast.engine.owner import has_owner
from holdfast.engine.resume import refuse_finished
from holdfast.errors import HoldfastError, RunConflict
from holdfast.journal.copying import delete_run
from holdfast.journal.provenance import me
from holdfast.journal.run_state import NO_ANSWER
from holdfast.state.codec import Codec

if TYPE_CHECKING:
    from holdfast.stores.base import RunInfo


@command(
    RUN,
    click.argument("values", metavar="VALUE | NAME=VALUE...", nargs=-1),
    click.option(
        "--resume", "go_on", is_flag=True, help="Resume the run here, unless a process executes it."
    ),
    click.option("--status", is_flag=True, help="Print the status of an earlier answer; RUN is its handle."),
    BY,
    STORE,
    JSON,
)
def answer(
    session: Session, run: str, values: tuple[str, ...], go_on: bool, status: bool, by: str | None
) -> int:
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
    if status:
        return _print_status(session, run, values)
    if not values:
        raise click.UsageError("Missing argument 'VALUE | NAME=VALUE...'.")
    info = session.unfinished_run(run)
    refuse_finished(info)
    owned = has_owner(session.store, info)
    pauses = control.waiting(session.journal, info.run)
    answers = read_answers(values, pauses, lambda: _later(session, info))
    receipt = control.answer(session.journal, info.run, answers=answers, by=by or me())
    if receipt.status != "applied":
        return _print_receipt(session, receipt)
    if go_on and not owned:
        return _resume(session, info.run)
    left = [pause.name for pause in pauses if pause.id not in answers and pause.kind not in NO_ANSWER]
    lines = [f"answered {', '.join(receipt.names)} of run {info.run}"]
    if not owned:
        lines.append(_next_command(session, info, left))
    session.print({**receipt.as_json(), "open": left}, *lines)
    return 0


def _next_command(session: Session, info: RunInfo, left: list[str]) -> str:
    if left:
        return f"still open: {', '.join(left)}"
    if info.queue:
        return f"a worker of queue {info.queue} resumes it"
    return f"resume with: {resume_line_of(session.journal, info)}"


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


def _later(session: Session, info: RunInfo) -> set[str]:
    """Return the names of all questions of the run's workflow file; none if it cannot be read."""
    try:
        return question_names(stored_workflow(info, config_of(session.journal, info)).definition)
    except HoldfastError:
        return set()


def _resume(session: Session, run_id: str) -> int:
    from holdfast.cli.execution import resume_target
    from holdfast.cli.targets import find_target

    found = find_target(session, run_id)
    return resume_target(found, found.open(), ExecutionOptions(session.as_json), {})


@command(RUN, REASON, BY, STORE, JSON)
def pause(session: Session, run: str, reason: str, by: str | None) -> None:
    """Pause a run after the steps under way, wherever it is executed. `resume` resumes it.

    \b
    Example:
      holdfast pause report --reason "the service is down"
    """
    _stop(session, run, "pause", reason or "paused", by)


@command(RUN, REASON, BY, STORE, JSON)
def cancel(session: Session, run: str, reason: str, by: str | None) -> None:
    """Stop a run, wherever it is executed. Finished steps are kept.

    \b
    Example:
      holdfast cancel 3f2a --reason "wrong inputs"
    """
    _stop(session, run, "cancel", reason or "cancelled", by)


def _stop(session: Session, run: str, what: str, reason: str, by: str | None) -> None:
    run_id = session.unfinished_run(run).run
    status = str(control.stop(session.journal, run_id, what, reason, by=by or me()))
    asked = f"is asked to {'stop' if what == 'cancel' else what}; it will soon"
    done = status == "cancelled" if what == "cancel" else status in ("interrupted", "paused")
    text = asked if status == "running" else f"is {status}{'' if done else f'; there is nothing to {what}'}"
    session.print({"run_id": run_id, "status": status, "asked": what}, f"run {run_id} {text}")


@command(RUN, YES, STORE, JSON)
def delete(session: Session, run: str, yes: bool) -> None:
    """Delete a run with its history, checkpoints and messages. A run that a process executes is refused.

    Forks of the run stay whole.

    \b
    Example:
      holdfast delete 3f2a
      holdfast delete 3f2a --yes --json
    """
    info = session.run(run)
    session.confirm(f"delete run {info.run} of {info.workflow} ({info.status}) and all its data", yes)
    if has_owner(session.store, session.journal.info(info.run)):
        raise RunConflict(
            f"run {info.run!r} is executed by a process; cancel it first, or wait until it stops"
        )
    delete_run(session.journal, info.run)
    session.print({"run_id": info.run, "deleted": True}, f"run {info.run} is deleted")
