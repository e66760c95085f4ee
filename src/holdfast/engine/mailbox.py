"""A driven run's inbox: looked into now and then, obeyed between steps, every message recorded once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from holdfast.engine.inbox import CANCEL, PAUSE, Wish, read_message
from holdfast.engine.saving import Saving
from holdfast.errors import CodecError, StoreError
from holdfast.journal.records import Commanded

logger = logging.getLogger("holdfast")

POLL = 0.25
"""How often, in seconds, a run looks into its inbox."""

STOPS = (CANCEL, PAUSE)
_STALE = "it was meant for an earlier drive of this run"

Obey = Callable[[Wish], str]
"""Does what a message asks for and answers nothing, or answers why it is refused."""


class Stoppable(Protocol):
    """What a mailbox asks of the drive that it belongs to."""

    def heed(self, wish: Wish) -> None: ...


class Mailbox:
    """The messages of one run from being read to being recorded."""

    def __init__(self, saving: Saving, drive: Stoppable, obey: Obey, *, resumed: bool) -> None:
        self._saving, self._drive, self._obey = saving, drive, obey
        self._journal = saving.settings.journal
        self._wishes: dict[int, Wish] = {}
        self.polled = time.perf_counter()
        """When the inbox was last looked into, by `time.perf_counter`."""
        if resumed:
            self._read(late=True)

    @property
    def holds_any(self) -> bool:
        """Whether there are messages that were read and are not recorded yet."""
        return bool(self._wishes)

    def look_if_due(self) -> None:
        """Look into the inbox, unless that was done a moment ago."""
        if time.perf_counter() - self.polled > POLL:
            self.look()

    def look(self) -> None:
        """Read what is new. Whoever wants the run to stop is heeded at once, all else between steps."""
        self._read(late=False)

    def _read(self, late: bool) -> None:
        """`late` says that nobody can have known of this drive yet: wishes to stop are not for it."""
        self.polled = time.perf_counter()
        run_id = self._saving.run_id
        try:
            messages = self._journal.store.inbox(run_id, self._saving.run.inbox_seen)
        except StoreError as error:
            logger.warning("run %s: the inbox cannot be read: %s", run_id, error)
            return
        for message in messages:
            if message.number in self._wishes:
                continue
            try:
                body = self._journal.open_body(run_id, 0, message.body)
            except CodecError as error:
                logger.warning("run %s: a message cannot be read: %s", run_id, error)
                body = b""
            wish = read_message(body)
            stale = late and wish.command in STOPS
            self._wishes[message.number] = wish._replace(refused=_STALE) if stale else wish
            if wish.command in STOPS and not stale:
                self._drive.heed(wish)

    def obey_all(self) -> None:
        """Do what was asked for, and record each message, so that no later drive obeys it again."""
        wishes, self._wishes = self._wishes, {}
        for number, wish in sorted(wishes.items()):
            if number > self._saving.run.inbox_seen:
                refused = wish.refused or self._obey(wish)
                if refused:
                    logger.warning(
                        "run %s: %r of %s was refused: %s",
                        self._saving.run_id,
                        wish.command,
                        wish.by or "somebody",
                        refused,
                    )
                self._saving.record(Commanded(number, wish.command, refused, wish.by, wish.reason))
                self._saving.say(
                    "command", command=wish.command, by=wish.by, reason=wish.reason, refused=refused
                )
