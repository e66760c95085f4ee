"""What any process may ask of a stored run, without its graph: pause, cancel, answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.data.codec import Codec
from holdfast.engine.driver import active_runs, is_alive, is_driven
from holdfast.engine.inbox import ANSWER, CANCEL, PAUSE, Wish, write_message
from holdfast.engine.outcome import Pause, public_pauses
from holdfast.engine.policy import Retention
from holdfast.engine.resume import refuse_finished, take_answers
from holdfast.errors import RunConflict
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Record, RunEnded
from holdfast.journal.writer import Writer
from holdfast.values import RunStatus

_STOPS = {CANCEL: RunStatus.CANCELLED, PAUSE: RunStatus.INTERRUPTED}
_TRIES = 5


def cancel(
    journal: Journal, run_id: str, reason: str = "cancelled", *, codec: Codec | None = None
) -> RunStatus:
    """Stop a run until it is resumed. A run that is driven, in any process, stops soon.

    Answers the status the run then has: `running` if its driver has still to notice.
    """
    return _stop(journal, run_id, Wish(CANCEL, reason), codec or Codec())


def pause(journal: Journal, run_id: str, reason: str = "paused", *, codec: Codec | None = None) -> RunStatus:
    """Let a run that is driven save itself and stop, so that `resume` goes on. Answers as `cancel` does."""
    return _stop(journal, run_id, Wish(PAUSE, reason), codec or Codec())


def waiting(journal: Journal, run_id: str, *, codec: Codec | None = None) -> tuple[Pause, ...]:
    """What a run waits for."""
    codec = codec or Codec()
    return public_pauses(journal.load(journal.info(run_id), codec).run, codec)


def answer(
    journal: Journal,
    run_id: str,
    value: Any = None,
    *,
    answers: Mapping[str, Any] | None = None,
    by: str = "",
    codec: Codec | None = None,
    retention: Retention | None = None,
) -> tuple[str, ...]:
    """Answer what a run waits for, without driving it: `value` if it is one thing, `answers` by name or id.

    Answers the names answered. A run that is driven takes the answers soon; otherwise they are recorded now, and
    the next `resume` goes on with them. Wrong or late ones are refused with the reason, and then none is taken.
    """
    codec = codec or Codec()
    for last in range(_TRIES):
        info = journal.info(run_id)
        refuse_finished(info)
        loaded = journal.load(info, codec)
        found = take_answers(info, loaded.run, value, answers, codec, retention)
        given = [record._replace(by=by) for record in found]
        names = tuple(loaded.run.pauses[record.pause].name for record in given)
        if is_driven(journal.store, loaded.info):
            for record in given:
                _post(journal, run_id, Wish(ANSWER, pause=record.pause, value=record.value, by=by))
            return names
        try:
            if loaded.info.queue and loaded.run.status == RunStatus.PAUSED:
                # A worker goes on with it.
                _append(journal, loaded, codec, [*given, RunEnded(RunStatus.QUEUED)], RunStatus.QUEUED)
            else:
                _append(journal, loaded, codec, given)
        except RunConflict:
            if last == _TRIES - 1:
                raise
        else:
            return names
    raise AssertionError("a try either returns or raises")


def _stop(journal: Journal, run_id: str, wish: Wish, codec: Codec) -> RunStatus:
    drive = active_runs.find(journal.store, run_id)
    if drive is not None:
        if wish.command == PAUSE:
            drive.request_pause(wish.reason)
        else:
            drive.request_stop(RunStatus.CANCELLED, wish.reason)
        return RunStatus.RUNNING
    for _ in range(_TRIES - 1):
        try:
            return _stop_undriven(journal, run_id, wish, codec)
        except RunConflict:
            continue  # Somebody recorded an answer, or took the run up, at this very moment.
    return _stop_undriven(journal, run_id, wish, codec)


def _stop_undriven(journal: Journal, run_id: str, wish: Wish, codec: Codec) -> RunStatus:
    """Stop a run that no drive of this process has: by a message, or, if nobody has it, in its journal."""
    status = _STOPS[wish.command]
    info = journal.info(run_id)
    refuse_finished(info)
    if is_driven(journal.store, info):
        _post(journal, run_id, wish)
        return RunStatus.RUNNING
    loaded = journal.load(info, codec)
    facts = dataclasses.replace(loaded.info, status=str(loaded.run.status), driver=loaded.run.driver)
    refuse_finished(facts)
    if facts.status == status or (
        wish.command == PAUSE and facts.status not in (RunStatus.RUNNING, RunStatus.QUEUED)
    ):
        return RunStatus(facts.status)
    if facts.status == RunStatus.RUNNING and is_alive(facts.driver, journal.store):
        raise RunConflict(f"run {run_id!r} was taken up by another driver just now; ask again")
    _append(journal, loaded, codec, [RunEnded(status)], status)
    return status


def _post(journal: Journal, run_id: str, wish: Wish) -> None:
    journal.store.post(run_id, journal.seal_body(run_id, 0, write_message(wish)))


def _append(
    journal: Journal,
    loaded: Loaded,
    codec: Codec,
    found: Sequence[Record],
    status: RunStatus | None = None,
) -> None:
    writer = Writer(journal, loaded, codec, durable=True)
    for record in found:
        writer.record(record)
    facts = dataclasses.replace(loaded.info, updated_at=time.time())
    if status is not None:
        facts = dataclasses.replace(facts, status=status.value, driver="", due_at=None)
    writer.set_info(facts)
    writer.flush()
