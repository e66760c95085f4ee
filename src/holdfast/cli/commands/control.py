"""`holdfast answer`, `pause`, `cancel` and `delete`: what another terminal may ask of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.display.text import as_json, one_line
from holdfast.cli.questions import read_answers
from holdfast.cli.reading import by_option, confirm, found_run, reason_option, run_argument, yes_option
from holdfast.cli.reading import plain_json_option as json_option
from holdfast.cli.store_option import close_store, store_option
from holdfast.journal.provenance import me

if TYPE_CHECKING:
    from holdfast.engine.commands.control import Receipt
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo


@click.command()
@run_argument
@click.argument("values", metavar="VALUE | NAME=VALUE...", nargs=-1)
@click.option("--resume", "go_on", is_flag=True, help="Go on with the run here, if nobody executes it.")
@click.option("--by", metavar="NAME", help="Who answers; by default you at this machine.")
@click.option(
    "--status", "ask_status", is_flag=True, help="Tell what became of an earlier answer: RUN is its handle."
)
@json_option
@store_option
def answer(
    run: str,
    values: tuple[str, ...],
    go_on: bool,
    by: str | None,
    ask_status: bool,
    json: bool,
    store: str | None,
) -> int:
    """Answer what a run waits for. VALUE is JSON or text and must be one of the choices, if there are any.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name. NAME is the name of the
    question, or what follows the step's dot in it, or its id; yes and no will do for true and false.

    A terminal that waits for the answer takes it at once; a run that was submitted goes on with a worker;
    otherwise the next `resume` takes it. If another process executes the run, it has the last word: the answer is
    applied, or refused because somebody was faster (exit code 1), or still waiting to be taken after two seconds;
    then a handle is printed to ask for it later.

    \b
      holdfast answer 3f2a yes
      holdfast answer report title="On tides" pages=3 --resume
      holdfast answer 3f2a#1 --status
    """
    from holdfast.cli.reading import how_to_resume
    from holdfast.engine.commands import control
    from holdfast.engine.owner import has_owner
    from holdfast.engine.resume import refuse_finished
    from holdfast.journal.run_state import NO_ANSWER

    if ask_status:
        return _status(run, values, store, json)
    if not values:
        raise click.UsageError("Missing argument 'VALUE | NAME=VALUE...'.")
    with found_run(run, store) as (journal, run_id, url):
        info = journal.info(run_id)
        refuse_finished(info)
        driven = has_owner(journal.store, info)
        pauses = control.waiting(journal, run_id)
        answers = read_answers(values, pauses, lambda: _later(journal, info))
        receipt = control.answer(journal, run_id, answers=answers, by=by or me())
        resume = how_to_resume(journal, info, url)
    if receipt.status != "applied":
        return _tell(receipt, url, json)
    if go_on and not driven:
        return _go_on(run_id, url, json)
    left = [pause.name for pause in pauses if pause.id not in answers and pause.kind not in NO_ANSWER]
    if json:
        click.echo(as_json({**receipt.as_json(), "open": left}))
    else:
        click.echo(one_line(f"answered {', '.join(receipt.names)} of run {run_id}", 2_000))
        click.echo("" if driven else _how_to_go_on(resume, left, info.queue), nl=not driven)
    return 0


def _tell(receipt: Receipt, url: str, json: bool) -> int:
    """Print what became of an answer; the exit code."""
    from holdfast.cli.display.show import command

    what = f"the answer to {', '.join(receipt.names)}" if receipt.names else "the answer"
    if json:
        click.echo(as_json(receipt.as_json()))
    elif receipt.status == "refused":
        click.echo(one_line(f"{what} of run {receipt.run_id} is refused: {receipt.reason}", 2_000), err=True)
    elif receipt.status == "waiting":
        later = command("answer", receipt.handle, store=url) + " --status"
        click.echo(
            one_line(f"{what} of run {receipt.run_id} waits to be taken; ask later with: {later}", 2_000)
        )
    else:
        click.echo(one_line(f"{what} of run {receipt.run_id} is applied", 2_000))
    return 1 if receipt.status == "refused" else 0


def _status(handle: str, values: tuple[str, ...], store: str | None, json: bool) -> int:
    from holdfast.engine.commands import control
    from holdfast.state.codec import Codec

    if values:
        raise click.UsageError("--status takes the handle of an answer, and no values.")
    run, mark, number = handle.rpartition("#")
    if not mark:
        raise click.UsageError(
            f"--status takes the handle that `answer` printed, such as RUN#1, not {handle!r}."
        )
    with found_run(run, store) as (journal, run_id, url):
        receipt = control.find_receipt(journal, f"{run_id}#{number}", Codec())
        return _tell(receipt, url, json)


def _how_to_go_on(resume: str, left: list[str], queue: str) -> str:
    if left:
        return f"still open: {', '.join(left)}"
    return f"a worker of queue {queue} goes on with it" if queue else f"go on with: {resume}"


def _later(journal: Journal, info: RunInfo) -> set[str]:
    """The names of all questions of the run's workflow file; none if it cannot be read."""
    from holdfast.cli.targets import config_of, stored_workflow
    from holdfast.cli.values import question_names
    from holdfast.errors import HoldfastError

    try:
        return question_names(stored_workflow(info, config_of(journal, info)).definition)
    except HoldfastError:
        return set()


def _go_on(run_id: str, url: str, json: bool) -> int:
    from holdfast.cli.commands.run import resume_run
    from holdfast.cli.display.lines import Display
    from holdfast.cli.execution import Manners
    from holdfast.cli.targets import find_target

    found = find_target(run_id, None, url, None)
    try:
        return resume_run(found, found.open(), Manners(Display(as_json=json)), {})
    finally:
        close_store(found.store)


@click.command()
@run_argument
@reason_option
@by_option
@json_option
@store_option
def pause(run: str, reason: str, by: str | None, json: bool, store: str | None) -> None:
    """Let a run save itself and stop, wherever it is driven. `resume` goes on with it.

    \b
      holdfast pause report --reason "the service is down"
    """
    _stop("pause", run, reason or "paused", by, json, store)


@click.command()
@run_argument
@reason_option
@by_option
@json_option
@store_option
def cancel(run: str, reason: str, by: str | None, json: bool, store: str | None) -> None:
    """Stop a run, wherever it is driven. What is finished is kept.

    \b
      holdfast cancel 3f2a --reason "wrong inputs"
    """
    _stop("cancel", run, reason or "cancelled", by, json, store)


def _stop(what: str, run: str, reason: str, by: str | None, json: bool, store: str | None) -> None:
    from holdfast.engine.commands import control

    with found_run(run, store) as (journal, run_id, _):
        stop = control.pause if what == "pause" else control.cancel
        status = str(stop(journal, run_id, reason, by=by or me()))
    if json:
        click.echo(as_json({"run_id": run_id, "status": status, "asked": what}))
    elif status == "running":
        asked = "stop" if what == "cancel" else "pause"
        click.echo(one_line(f"run {run_id} is asked to {asked}; it will soon", 2_000))
    else:
        click.echo(one_line(f"run {run_id} is {status}", 2_000))


@click.command()
@run_argument
@yes_option
@json_option
@store_option
def delete(run: str, yes: bool, json: bool, store: str | None) -> None:
    """Delete a run with its history, checkpoints and messages. A run that a process executes is refused.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name, which means its latest run. Forks
    of the run stay whole.

    \b
    Example:
      holdfast delete 3f2a
      holdfast delete 3f2a --yes --json
    """
    from holdfast.engine.owner import has_owner
    from holdfast.errors import RunConflict
    from holdfast.journal.copying import delete_run

    with found_run(run, store) as (journal, run_id, _):
        info = journal.info(run_id)
        what = f"run {run_id} of {info.workflow} ({info.status}) and all its data"
        confirm(f"delete {one_line(what, 2_000)}", yes)
        if has_owner(journal.store, journal.info(run_id)):
            raise RunConflict(
                f"run {run_id!r} is executed by a process; cancel it first, or wait until it stops"
            )
        delete_run(journal, run_id)
    click.echo(
        as_json({"run_id": run_id, "deleted": True}) if json else one_line(f"run {run_id} is deleted", 2_000)
    )
