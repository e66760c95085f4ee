"""What became of a command that was put into a run's inbox: applied, refused, or still waiting."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from holdfast import clock
from holdfast.data.codec import Codec
from holdfast.engine.commands.inbox import open_message
from holdfast.engine.commands.wishing import TRIES, obey_inbox
from holdfast.engine.driver import active_runs, is_driven
from holdfast.engine.resume import load_latest
from holdfast.errors import CommandRefused, RunConflict
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Commanded
from holdfast.journal.run_state import REFUSALS
from holdfast.stores.base import wait_for_change

APPLIED, REFUSED, WAITING = "applied", "refused", "waiting"

PATIENCE = 2.0
"""How long, in seconds, an answer waits for the process that executes the run to take it or refuse it."""

_GLANCE = 0.05


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
        if is_driven(journal.store, loaded.info):
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
