"""Runs for the fleet: new ones, and stopped ones that workers are to go on with."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid

from holdfast import clock
from holdfast.engine.commands.inbox import STALE, STOPS, open_message
from holdfast.engine.confirmation import confirm
from holdfast.engine.owner import has_owner
from holdfast.engine.resume import load_latest, refuse_finished
from holdfast.errors import HoldfastError, RunConflict
from holdfast.journal.checkpoint_ids import encode_mark
from holdfast.journal.journal import Journal
from holdfast.journal.records import Commanded, Record, Resumed, RunEnded
from holdfast.journal.run_state import DONE, NO_ANSWER, SLEEP, WAITING, Pause, RunState
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus

DEFAULT_QUEUE = "default"

When = float | dt.datetime | dt.timedelta | None

_SUBMITTED = uuid.UUID("6d0b7f6e-7c57-4a2c-9a0e-52f7d6a1c1f4")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a run waits for a worker: in which queue, how urgently, and until when at least."""

    queue: str = DEFAULT_QUEUE
    priority: int = 0
    due_at: float | None = None

    @classmethod
    def of(cls, queue: str, priority: int, when: When) -> Place:
        """Return a place, once its parts make sense. `when` is a time, or a delay as `timedelta` or in seconds."""
        if not isinstance(queue, str) or not queue.strip() or not queue.isprintable() or "," in queue:
            raise HoldfastError(f"a queue is named by printable text without commas, not {queue!r}")
        if not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
            raise HoldfastError(f"priority must be a whole number, not {priority!r}")
        return cls(queue, priority, _due_at(when))

    def on(self, info: RunInfo, status: RunStatus = RunStatus.QUEUED) -> RunInfo:
        """Return the facts of a run that waits here."""
        place = dataclasses.replace(info, queue=self.queue, priority=self.priority, due_at=self.due_at)
        return dataclasses.replace(place, status=status.value, updated_at=clock.time(), owner="")


def _due_at(when: When) -> float | None:
    if when is None:
        return None
    if isinstance(when, dt.datetime):
        if when.tzinfo is None:
            raise HoldfastError(f"{when!r} has no time zone; say which, for example with tzinfo=dt.UTC")
        return when.timestamp()
    seconds = when.total_seconds() if isinstance(when, dt.timedelta) else when
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < 1e10:
        raise HoldfastError(f"a delay is given in seconds, 0 or more, not {when!r}")
    return clock.time() + seconds


def id_of_key(workflow: str, key: str) -> str:
    """Return the id of the run that is submitted under `key`: the same for the same workflow and key."""
    if not isinstance(key, str) or not key:
        raise HoldfastError(f"a submit key is text that is not empty, not {key!r}")
    return str(uuid.uuid5(_SUBMITTED, f"{workflow}\n{key}"))


def open_questions(run: RunState, now: float) -> tuple[Pause, ...]:
    """Return what a paused run must be answered before anything can be done; nothing if there is something to do."""
    pauses = run.pauses.values()
    questions = tuple(pause for pause in pauses if pause.kind not in NO_ANSWER)
    can_pass = any(pause.kind in NO_ANSWER and pause.kind != SLEEP for pause in pauses)
    is_due = any(pause.expires_at is not None and pause.expires_at <= now for pause in pauses)
    idle = all(step.status in (WAITING, DONE) or step.id in run.frames for step in run.active())
    return questions if run.status == RunStatus.PAUSED and idle and not (can_pass or is_due) else ()


def requeue(
    journal: Journal,
    run_id: str,
    place: Place | None = None,
    *,
    codec: Codec | None = None,
    trust: bool | str = False,
    by: str = "",
) -> RunInfo:
    """Let workers go on with a run that stopped: failed, interrupted, cancelled, or paused at gates.

    Without a `place` it waits where it was, or else in the default queue. Return its facts. A run that is
    executing, or completed, is refused; a paused one goes on with what was answered, past its gates. `trust` is as for
    `App.resume`; `by` is who asked, for the journal.
    """
    codec = codec or Codec()
    loaded = load_latest(journal, journal.info(run_id), codec)
    info = loaded.info
    refuse_finished(info)
    if has_owner(journal.store, info):
        raise RunConflict(f"run {run_id!r} is being executed; cancel or pause it first")
    info, confirmed = confirm(journal, info, loaded.run, trust)
    place = place or Place(info.queue or DEFAULT_QUEUE, info.priority)
    writer = Writer(journal, loaded, codec, durable=True)
    found: list[Record] = [RunEnded(RunStatus.QUEUED)]
    if confirmed is not None:
        found.insert(0, confirmed)
    if loaded.run.status == RunStatus.PAUSED:
        found.insert(0, Resumed("", approve=True))
    for message in journal.store.inbox(run_id, loaded.run.inbox_seen):
        command = open_message(journal, info, message, sealed=loaded.sealed)
        if command.kind not in STOPS:
            break
        # A caller that wants it to go on knows that it was to stop before.
        writer.record(Commanded(message.number, command.kind, STALE, command.by, command.reason))
    if by:
        writer.record(Commanded(writer.run.inbox_seen, "resume", "", by))
    for record in found:
        writer.record(record)
    upcoming = [step.node for step in loaded.run.active() if step.status != DONE]
    writer.mark(encode_mark(loaded.run.root.waves, [], list(dict.fromkeys(upcoming)), ""))
    writer.set_info(place.on(info))
    writer.flush()
    return writer.info
