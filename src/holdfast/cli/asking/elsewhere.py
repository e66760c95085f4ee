"""Noticing, while a question is asked here, that it was answered in another terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.asking.gates import AnsweredElsewhere
from holdfast.errors import StoreError
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.outcome import Outcome
    from holdfast.stores.base import RunInfo


class Lookout:
    """Looks whether a paused run still waits for what it waited for."""

    def __init__(self, app: App, outcome: Outcome) -> None:
        self._app, self._run_id = app, outcome.run_id
        self._open = {pause.id for pause in outcome.pauses}
        self._seen = self._facts()
        self.status: str = outcome.status
        """How the run stands. If it is not paused, somebody else has taken it up, and it is not for us to resume."""

    def forget(self, pause: str) -> None:
        """No longer look for a pause, which was answered here."""
        self._open.discard(pause)
        self._seen = self._facts()

    def look(self) -> None:
        """Raise `AnsweredElsewhere` if the run waits no longer for all of it; a busy store is asked later."""
        try:
            facts = self._facts()
            if facts is None or facts == self._seen:
                return
            self._seen = facts
            self._compare(facts)
        except StoreError:
            return

    def _compare(self, facts: RunInfo) -> None:
        if facts.status != RunStatus.PAUSED:
            self.status = facts.status
            raise AnsweredElsewhere(f"The run was taken up elsewhere; it is {facts.status}.")
        left = {pause.id for pause in self._app.pauses(self._run_id)}
        if self._open - left:
            raise AnsweredElsewhere(f"Answered {self._by(self._open - left)}.")

    def _by(self, pauses: set[str]) -> str:
        from holdfast.journal.records import Answered

        settings = self._app.settings
        _, history = settings.journal.history(settings.journal.info(self._run_id), settings.codec)
        given = [record for _, records in history for record in records if isinstance(record, Answered)]
        names = {record.by for record in given if record.pause in pauses and record.by}
        return f"by {', '.join(sorted(names))}" if names else "elsewhere"

    def _facts(self) -> RunInfo | None:
        found = self._app.store.runs(run=self._run_id)
        return found[0] if found else None
