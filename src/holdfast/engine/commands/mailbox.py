"""A driven run's inbox: looked into now and then, obeyed between steps, every message recorded once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast import clock
from holdfast.engine.commands.inbox import LATE, OF_WHAT_IS_NEXT, REMARK, STALE, STOPS, Wish, open_message
from holdfast.engine.saving import Saving
from holdfast.errors import StoreError
from holdfast.journal.records import Commanded
from holdfast.stores.base import Message
from holdfast.threads import locked

logger = logging.getLogger("holdfast")

POLL = 0.25
"""How often, in seconds, a run looks into its inbox."""

Obey = Callable[[Wish], str]
"""Does what a message asks for and answers nothing, or answers why it is refused."""


class Stoppable(Protocol):
    """What a mailbox asks of the drive that it belongs to."""

    def heed(self, wish: Wish) -> None: ...


class Mailbox:
    """The messages of one run from being read to being recorded."""

    def __init__(
        self, saving: Saving, drive: Stoppable, obey: Obey, *, resumed: bool, by_worker: bool
    ) -> None:
        """Whoever resumes a run means it to go on: wishes to stop it from before are not for them.

        A worker that takes a run up decides nothing, so it heeds them.
        """
        self._saving, self._drive, self._obey = saving, drive, obey
        self._journal = saving.settings.journal
        self._wishes: dict[int, Wish] = {}
        self._noted: list[Wish] = []
        self._obeyed = 0
        self._is_redefined = False
        self.polled = clock.perf_counter()
        """When the inbox was last looked into, by `clock.perf_counter`."""
        self._lock = threading.Lock()
        if resumed and by_worker:
            self.polled = float("-inf")
        elif resumed:
            self._read(late=True)

    @property
    def holds_any(self) -> bool:
        """Whether there are messages that were read and are not recorded yet."""
        return bool(self._wishes)

    @property
    def is_about_what_is_next(self) -> bool:
        """Whether the oldest of them speaks of steps that come next."""
        wish = locked(self._lock, lambda: self._wishes[min(self._wishes)])
        return wish.command in OF_WHAT_IS_NEXT and not (wish.redefines or self._is_redefined)

    def note(self, wish: Wish) -> None:
        """Remember, to be recorded, what this very process asked for without a message, and got."""
        self._noted.append(wish)

    @property
    def is_due(self) -> bool:
        """Whether the inbox was not looked into for a while."""
        return clock.perf_counter() - self.polled > POLL

    def look_if_due(self) -> None:
        """Look into the inbox, unless that was done a moment ago."""
        if self.is_due:
            self.look()

    def look(self) -> None:
        """Read what is new. Whoever wants the run to stop is heeded at once, all else between steps."""
        self._read(late=False)

    async def look_async(self) -> None:
        """As `look`, without blocking the event loop."""
        self.polled = clock.perf_counter()
        try:
            messages = await self._journal.inboxes.look(self._saving.run_id, self._saving.run.inbox_seen)
        except StoreError as error:
            self._tell_unread(error)
        else:
            self._take(messages, late=False)

    def _read(self, late: bool) -> None:
        self.polled = clock.perf_counter()
        try:
            messages = self._journal.store.inbox(self._saving.run_id, self._saving.run.inbox_seen)
        except StoreError as error:
            self._tell_unread(error)
        else:
            self._take(messages, late)

    def _tell_unread(self, error: StoreError) -> None:
        logger.warning("run %s: the inbox cannot be read: %s", self._saving.run_id, error)

    def _take(self, messages: Sequence[Message], late: bool) -> None:
        """`late` says that nobody can have known of this drive yet: wishes to stop are not for it."""
        for message in messages:
            writer = self._saving.writer
            wish = open_message(self._journal, writer.info, message, sealed=writer.sealed)
            stale = late and wish.command in STOPS
            if not locked(
                self._lock, self._kept, message.number, wish._replace(refused=STALE) if stale else wish
            ):
                continue
            if wish.command in STOPS and not stale:
                self._drive.heed(wish)

    def _kept(self, number: int, wish: Wish) -> bool:
        """Remember what a message asks for; `False` if that is known."""
        if number in self._wishes or number <= self._obeyed:
            return False
        self._wishes[number] = wish
        return True

    def obey_next(self, *, busy: bool = False) -> bool:
        """Do what the oldest message asks for, and record it, so that no later drive obeys it again.

        While the drive is `busy` with steps, a new definition of the workflow has to wait, and all that was asked
        for after it: then the answer is `False`.
        """
        found = locked(self._lock, self._next, busy)
        if found is None:
            return False
        number, wish = found
        if number > self._saving.run.inbox_seen:
            refused = self._saving.writer.together(lambda: self._obeyed_on_record(number, wish))
            if wish.redefines and not refused:
                self._is_redefined = True
                self._drive.heed(wish)
        return True

    def _next(self, busy: bool) -> tuple[int, Wish] | None:
        number = min(self._wishes)
        wish = self._wishes[number]
        if busy and wish.redefines:
            return None
        del self._wishes[number]
        self._obeyed = max(self._obeyed, number)
        return number, wish

    def _obeyed_on_record(self, number: int, wish: Wish) -> str:
        late = LATE if self._is_redefined and wish.command not in STOPS else ""
        refused = wish.refused or late or self._obey(wish)
        self._record(number, wish, refused)
        return refused

    def close(self, completed: bool) -> None:
        """Obey, or at least record, what was asked for before the drive ends; a completed run takes no more."""
        while self._noted:
            self._record(self._saving.run.inbox_seen, self._noted.pop(0), "")
        if completed:
            self._refuse_all("the run is completed")
        while self._wishes:
            self.obey_next()

    def _refuse_all(self, reason: str) -> None:
        locked(self._lock, self._mark_refused, reason)

    def _mark_refused(self, reason: str) -> None:
        self._wishes = {
            number: wish if wish.command == REMARK else wish._replace(refused=wish.refused or reason)
            for number, wish in self._wishes.items()
        }

    def _record(self, number: int, wish: Wish, refused: str) -> None:
        command, reason, by = wish.command, wish.reason, wish.by
        if refused:
            who = by or "somebody"
            logger.warning("run %s: %r of %s was refused: %s", self._saving.run_id, command, who, refused)
        self._saving.record(Commanded(number, command, refused, by, reason))
        self._saving.say("command", command=command, by=by, reason=reason, refused=refused)
