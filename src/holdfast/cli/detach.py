"""Handing a stopped run to the workers: what `holdfast resume --detach` does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.tables import print_json
from holdfast.cli.display.text import count, one_line
from holdfast.cli.questions import read_answers
from holdfast.cli.reading import answer_command, resume_command
from holdfast.cli.store_option import chosen_url, meant_run, open_existing, open_journal
from holdfast.engine.commands import control
from holdfast.engine.confirmation import disclose
from holdfast.engine.resume import find_run
from holdfast.engine.submission import DEFAULT_QUEUE, Place, open_questions, requeue
from holdfast.errors import AnswerRejected, RunConflict
from holdfast.fleet.queues import held_back
from holdfast.journal.provenance import me
from holdfast.state.codec import Codec
from holdfast.values import RunStatus, readable_step
from holdfast.views.plain import iso, when
from holdfast.views.runs import run_pauses

if TYPE_CHECKING:
    from holdfast.cli.confirmation import Gate
    from holdfast.cli.display.lines import Display
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo, Store


def hand_over(
    target: str | None,
    answers: Sequence[str],
    store: str | None,
    queue: str | None,
    priority: int | None,
    display: Display,
    admit: Gate,
) -> int:
    """Take the answers, let workers go on with the run, and tell so."""
    name, of_flow = _named(target)
    opened = open_existing(chosen_url(store, of_flow))
    try:
        info = _meant(opened, name)
        journal = open_journal(opened)
        trust = _admitted(journal, info, admit) if info.origin else ""
        if answers:
            given = read_answers(answers, control.waiting(journal, info.run))
            receipt = control.answer(journal, info.run, answers=given, by=me())
            if receipt.status == "refused":
                raise AnswerRejected(f"run {info.run!r}: {receipt.reason}")
        urgency = info.priority if priority is None else priority
        place = Place.of(queue or info.queue or DEFAULT_QUEUE, urgency, None)
        if not answers and held_back(opened, info.run) is None:
            _refuse_waiting(journal, info)
        moved = queue is not None or priority is not None
        if answers and info.queue and not moved and _goes_on(journal, info):
            info = journal.info(info.run)  # The answer queued it: nothing more is approved.
        else:
            info = _requeued(journal, info, place, trust, taken=bool(answers))
    finally:
        opened.close()
    if display.as_json:
        print_json(queued_as_json(info))
    elif not display.quiet:
        told = f"run {info.run} is {info.status}; a worker of queue {info.queue} goes on with it"
        click.echo(one_line(told, 2_000))
    return 0


def queued_as_json(info: RunInfo) -> dict[str, Any]:
    """Keys: run_id, status, queue, priority, due_at."""
    due_at = None if info.due_at is None else iso(when(info.due_at))
    return {
        "run_id": info.run,
        "status": info.status,
        "queue": info.queue,
        "priority": info.priority,
        "due_at": due_at,
    }


def _named(target: str | None) -> tuple[str | None, str | None]:
    """The run or workflow that is meant, and where a workflow file says that its runs are."""
    if target is None or not target.endswith((".yaml", ".yml")) or not Path(target).is_file():
        return target, None
    from holdfast.workflows.workflow import load_workflow

    flow = load_workflow(Path(target))
    return flow.name, flow.store_url()


def _meant(store: Store, name: str | None) -> RunInfo:
    from holdfast.cli.targets import latest_unfinished

    if name is None:
        return latest_unfinished(store)
    info, seq = find_run(store, meant_run(store, name))
    if seq is not None:
        raise click.UsageError(
            f"{name} is a checkpoint; workers go on with whole runs: give the run {info.run}"
        )
    return info


def _goes_on(journal: Journal, info: RunInfo) -> bool:
    """Whether workers go on with a run by themselves, or did already."""
    return journal.info(info.run).status not in (
        RunStatus.INTERRUPTED,
        RunStatus.FAILED,
        RunStatus.CANCELLED,
    )


def _refuse_waiting(journal: Journal, info: RunInfo) -> None:
    """Refuse a run that can do nothing before it is answered: a worker would only leave it as it is."""
    run = journal.load(info, Codec()).run
    missing = {pause.id for pause in open_questions(run, time.time())}
    if not missing:
        return
    pauses = [pause for pause in run_pauses(journal, info) if pause.id in missing]
    told = [
        f"  {one_line(pause.name or readable_step(pause.step))}: {one_line(pause.prompt)}\n"
        f"    answer with: {answer_command(pause, journal.store.url)}"
        for pause in pauses
    ]
    questions = count(len(pauses), "answer")
    raise click.ClickException(
        "\n".join([f"run {info.run} waits for {questions}; there is nothing to do before:", *told])
    )


def _admitted(journal: Journal, info: RunInfo, admit: Gate) -> str:
    found = disclose(journal, info, journal.load(info, Codec()).run)
    way = f"{resume_command(info.run, journal.store.url, 'x')} --trust"
    return "" if found is None else admit(found, way)


def _requeued(journal: Journal, info: RunInfo, place: Place, trust: str, *, taken: bool) -> RunInfo:
    try:
        return requeue(journal, info.run, place, trust=trust or False)
    except RunConflict:
        if not (taken and info.queue):
            raise
        return journal.info(info.run)  # A worker went on with it as soon as it was answered.
