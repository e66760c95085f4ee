"""Putting a wish to a run: into its inbox, and, if nobody drives it, from there into its journal at once."""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import Any

from holdfast import clock
from holdfast.engine.commands.handlers import decided, tags_after
from holdfast.engine.commands.inbox import (
    CANCEL,
    EDIT,
    OF_WHAT_IS_NEXT,
    REMARK,
    REPLAN,
    STALE,
    STOPS,
    Ground,
    NeedsGraph,
    Refused,
    Wish,
    open_message,
    warn_of_decided_route,
    write_message,
)
from holdfast.engine.owner import active_runs, has_owner
from holdfast.engine.resume import load_latest, refuse_finished
from holdfast.errors import CommandRefused, RunConflict
from holdfast.graph.graph import Graph
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Commanded, Remarked, RunEnded
from holdfast.journal.run_state import DONE, REFUSALS, RunState
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.stores.base import RunInfo, wait_for_change
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast")

ASKED = "asked"
"""The answer to a command that is in the run's inbox and still to be obeyed."""

TRIES = 5
_GLANCE = 0.05
_PASSING = 1.0
"""How long, in seconds, a drive of this process may take from its first or to its last save."""


def post(journal: Journal, run_id: str, wish: Wish) -> int:
    """Put a wish into a run's inbox; the number of the message."""
    number = journal.post(run_id, write_message(wish))
    drive = active_runs.find(journal.store, run_id)
    if drive is not None:
        drive.request_look()
    return number


def ask(
    journal: Journal, run_id: str, wish: Wish, codec: Codec, graph: Graph | None, patience: float = 0.0
) -> str:
    """Ask something of a run: the status that it has when it is done, or `asked` if that comes later.

    A refusal is raised, if it is known within `patience` seconds; the run's journal tells it in any case. A remark is
    taken by completed runs, too.
    """
    refuse = refuse_finished if wish.command != REMARK else _refuse_nothing
    if active_runs.find(journal.store, run_id) is not None and not journal.store.runs(run=run_id):
        raise CommandRefused(
            f"run {run_id!r} is stored only when it stops; until then it can be paused or cancelled"
        )
    refuse(journal.info(run_id))
    number = post(journal, run_id, wish)
    end, conflicts = clock.monotonic() + patience, 0
    while True:
        loaded = load_latest(journal, journal.info(run_id), codec)
        if loaded.run.inbox_seen >= number:
            return _verdict(loaded, number)
        refuse(loaded.info)
        if has_owner(journal.store, loaded.info):
            passing = 0.0 if loaded.run.status == RunStatus.RUNNING else _PASSING
            if clock.monotonic() >= end + passing:
                return ASKED
            wait_for_change(journal.store, run_id, _GLANCE)
            continue
        try:
            if not obey_inbox(journal, loaded, codec, graph):
                return ASKED
        except RunConflict:
            conflicts += 1  # Somebody recorded something, or took the run up, at this very moment.
            if conflicts == TRIES:
                raise


def _refuse_nothing(info: RunInfo) -> None:
    return None


def see_to(journal: Journal, run_id: str, codec: Codec, graph: Graph | None = None) -> None:
    """Let no message lie: obey those of a run that nobody drives, or drives any more, now.

    Whoever posts to a driver asks for this afterwards, and so does a driver that has left the run; one of them
    comes after both the message and the end.
    """
    for last in range(TRIES):
        found = journal.store.runs(run=run_id)
        if not found or found[0].status == RunStatus.COMPLETED:
            return
        loaded = load_latest(journal, found[0], codec)
        if has_owner(journal.store, loaded.info) or not journal.store.inbox(run_id, loaded.run.inbox_seen):
            return
        try:
            obey_inbox(journal, loaded, codec, graph)
        except RunConflict:
            if last == TRIES - 1:
                raise
        else:
            return


def _verdict(loaded: Loaded, number: int) -> str:
    for refusal in loaded.run.refusals:
        if refusal.number == number:
            raise CommandRefused(f"run {loaded.info.run!r}: {refusal.command} is refused: {refusal.reason}")
    return RunStatus(loaded.run.status)


def waits_for_worker(status: str, info: RunInfo) -> bool:
    """Whether workers would go on with a run only later, or when it was answered."""
    waits = status == RunStatus.PAUSED or (status == RunStatus.QUEUED and info.due_at is not None)
    return bool(info.queue) and waits


def stopping(command: str, status: str, info: RunInfo) -> RunStatus | None:
    """The status that a wish to stop gives to a run that nobody drives; `None` if there is nothing to stop."""
    if command == CANCEL:
        return None if status == RunStatus.CANCELLED else RunStatus.CANCELLED
    goes_on_alone = status == RunStatus.PAUSED and info.queue and info.due_at is not None
    if status in (RunStatus.RUNNING, RunStatus.QUEUED) or goes_on_alone:
        return RunStatus.INTERRUPTED
    return None


def _is_to_lead_on(run: RunState) -> bool:
    """Whether all that a frame has is finished, so that only its graph can tell what is next."""
    frames = [frame.active.values() for frame in run.frames.values() if frame.active]
    return any(all(step.status == DONE for step in steps) for steps in frames)


def obey_inbox(journal: Journal, loaded: Loaded, codec: Codec, graph: Graph | None) -> bool:
    """Record what the inbox of a run that nobody drives asks for, in order; `False` if nothing can be.

    What only the run's graph can decide is left, with all after it, to whoever has that.
    """
    name, run = loaded.info.run, loaded.run
    writer, seen = Writer(journal, loaded, codec, durable=True), run.inbox_seen
    stirred, stop, facts = False, None, loaded.info
    is_over = run.status == RunStatus.COMPLETED
    for message in journal.store.inbox(name, run.inbox_seen):
        wish, refused = open_message(journal, loaded.info, message, sealed=loaded.sealed), ""
        try:
            if wish.refused:
                raise Refused(wish.refused)
            if is_over and wish.command != REMARK:
                raise Refused("the run is completed")
            if wish.command in STOPS:
                stop = stopping(wish.command, run.status, loaded.info)
                if stop is None:
                    raise Refused(STALE)
            elif wish.command in OF_WHAT_IS_NEXT and wish.command != REPLAN and _is_to_lead_on(run):
                raise NeedsGraph
            for record in (
                () if wish.command in STOPS else decided(Ground(name, run, codec, graph, driven=False), wish)
            ):
                writer.record(record)
                if isinstance(record, Remarked):
                    facts = tags_after(facts, record)
                stirred = stirred or wish.command != REMARK
            if wish.command == EDIT:
                warn_of_decided_route(Ground(name, run, codec, graph, driven=False))
        except NeedsGraph:
            stirred = True
            break
        except Refused as refusal:
            refused = str(refusal)
            logger.info("run %s: %r is refused: %s", name, wish.command, refused)
        writer.record(Commanded(message.number, wish.command, refused, wish.by, wish.reason))
        if wish.command != REMARK:  # To say something of a run does not touch it.
            facts = dataclasses.replace(facts, updated_at=clock.time())
        graph = None if wish.redefines and not refused else graph
    if stop is None and stirred and waits_for_worker(run.status, facts):
        stop = RunStatus.QUEUED  # A worker looks what there is to do now.
    if stop is not None:
        writer.record(RunEnded(stop))
        facts = dataclasses.replace(facts, status=stop.value, driver="", due_at=None)
    writer.set_info(facts)
    writer.flush()
    return run.inbox_seen > seen


# What became of a command that was put into a run's inbox: applied, refused, or still waiting.


APPLIED, REFUSED, WAITING = "applied", "refused", "waiting"

PATIENCE = 2.0
"""How long, in seconds, an answer waits for the process that executes the run to take it or refuse it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an answer. `status` is `applied`, `refused` (`reason` says why) or `waiting`.

    While it is `waiting`, the process that executes the run has still to take it: ask later with `handle`. `names` are
    the questions that it answers.
    """

    run_id: str
    status: str
    names: tuple[str, ...] = ()
    reason: str = ""
    by: str = ""
    number: int = 0
    """The number of its message in the run's inbox; 0 if it was applied without one."""

    @property
    def handle(self) -> str:
        """What to ask for it by; empty if it was applied without a message."""
        return f"{self.run_id}#{self.number}" if self.number else ""

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, status, answered, reason, by, handle."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "answered": list(self.names),
            "reason": self.reason,
            "by": self.by,
            "handle": self.handle or None,
        }


def awaited(journal: Journal, receipt: Receipt, codec: Codec, patience: float = PATIENCE) -> Receipt:
    """Return what becomes of a message, if that is known within `patience` seconds.

    If nobody executes the run, its inbox is processed here. A caller in the thread that executes it does not wait.
    """
    run_id, number = receipt.run_id, receipt.number
    drive = active_runs.find(journal.store, run_id)
    if drive is not None and drive.thread == threading.get_ident():
        patience = 0.0
    end, conflicts = clock.monotonic() + patience, 0
    while True:
        loaded = load_latest(journal, journal.info(run_id), codec)
        if loaded.run.inbox_seen >= number:
            return _told(journal, loaded, receipt, codec)
        if has_owner(journal.store, loaded.info):
            if clock.monotonic() >= end:
                return receipt
            wait_for_change(journal.store, run_id, _GLANCE)
            continue
        try:
            if not obey_inbox(journal, loaded, codec, None):
                return receipt
        except RunConflict:
            conflicts += 1  # Somebody recorded something, or resumed the run, at this very moment.
            if conflicts == TRIES:
                raise


def find(journal: Journal, handle: str, codec: Codec) -> Receipt:
    """Return what became of the answer with this handle so far."""
    if not handle:
        raise CommandRefused(
            "an answer that was applied at once has no handle: its receipt says what became of it"
        )
    run_id, mark, number = handle.rpartition("#")
    if not mark or not number.isdecimal() or int(number) < 1:
        raise CommandRefused(f"{handle!r} is no handle of an answer: those look like RUN#3")
    receipt = Receipt(run_id, WAITING, number=int(number))
    loaded = load_latest(journal, journal.info(run_id), codec)
    if loaded.run.inbox_seen >= receipt.number:
        return _told(journal, loaded, receipt, codec)
    for message in journal.store.inbox(run_id, receipt.number - 1):
        if message.number == receipt.number:
            wish = open_message(journal, loaded.info, message, sealed=loaded.sealed)
            receipt = dataclasses.replace(receipt, by=wish.by)
            return awaited(journal, receipt, codec, 0.0)
    raise CommandRefused(f"run {run_id!r} has no message {receipt.number}")


def _told(journal: Journal, loaded: Loaded, receipt: Receipt, codec: Codec) -> Receipt:
    """What a run that has seen a message says of it."""
    run, number = loaded.run, receipt.number
    for refusal in run.refusals:
        if refusal.number == number:
            return dataclasses.replace(receipt, status=REFUSED, reason=refusal.reason, by=refusal.by)
    if run.refused > REFUSALS and number < run.refusals[0].number:
        return _in_journal(journal, loaded, receipt, codec)
    return dataclasses.replace(receipt, status=APPLIED)


def _in_journal(journal: Journal, loaded: Loaded, receipt: Receipt, codec: Codec) -> Receipt:
    """What the journal says of a message that is older than what a run remembers."""
    for _, records in journal.history(loaded.info, codec)[1]:
        for record in records:
            if isinstance(record, Commanded) and record.number == receipt.number and record.refused:
                return dataclasses.replace(receipt, status=REFUSED, reason=record.refused, by=record.by)
    return dataclasses.replace(receipt, status=APPLIED)
