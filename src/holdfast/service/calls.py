"""The journal of calls: which tools clients called, about what, and who asked."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import secrets
import threading
from collections.abc import Mapping
from typing import Any

from holdfast import clock
from holdfast.engine.owner import has_owner, this_owner
from holdfast.errors import RunConflict, RunNotFound
from holdfast.journal.checkpoint_ids import new_run_key
from holdfast.journal.copying import delete_run
from holdfast.journal.journal import Journal
from holdfast.journal.records import Commanded, RunEnded, RunStarted
from holdfast.journal.sealing import Seal
from holdfast.journal.writer import Writer
from holdfast.service.reading import beside
from holdfast.state.codec import Codec
from holdfast.stores import open_store
from holdfast.stores.base import RunInfo, Store, namespace_of
from holdfast.threads import synchronized
from holdfast.values import RunStatus

WORKFLOW = "calls"
"""The workflow that the journals of calls are runs of."""

MOST_CALLS = 10_000
"""How many calls one journal has; then another is begun."""

MOST_JOURNALS = 200
"""How many journals are kept."""

NAMES = (
    *("workflow", "run_id", "job_id", "checkpoint_id", "checkpoint", "step", "question"),
    *("a", "b", "path", "status", "mode"),
)
"""The arguments whose values are journalled. The others may be secret, or large: of these only the names are."""

LONGEST_VALUE = 200


def about(arguments: Mapping[str, Any]) -> str:
    """Return what a call is about, in words: the names of its arguments, and the values that name something."""
    return ", ".join(
        f"{name}={value[:LONGEST_VALUE]}" if name in NAMES and isinstance(value, str) else name
        for name, value in arguments.items()
        if value is not None
    )


class CallJournal:
    """The calls of one process, as commands in the journal of a run, in a namespace beside that of the runs.

    Each is stored before it is carried out. The journal begins with the first call; `close` ends it. May be used from
    any thread.
    """

    def __init__(self, store: Store, seal: Seal | None = None) -> None:
        self._url, self._seal = beside(store, f"{namespace_of(store)}.calls"[-63:]), seal
        self._lock = threading.RLock()
        self._journal: Journal | None = None
        self._writer: Writer | None = None
        self._count = 0

    @synchronized
    def note(self, who: str, call: str, what: str = "", refused: str = "") -> None:
        """Store who called what, and why that was refused, if it was."""
        record = Commanded(0, call, refused, who, what)
        if self._count >= MOST_CALLS:
            self._end()
        try:
            self._store(record)
        except RunConflict:  # Somebody deleted the journal.
            self._writer = None
            self._store(record)

    def _store(self, record: Commanded) -> None:
        if self._writer is None:
            self._writer, self._count = self._begun(), 0
        self._writer.record(record)
        self._writer.flush()
        self._count += 1

    def _begun(self) -> Writer:
        if self._journal is None:
            self._journal = Journal(open_store(self._url), self._seal)
        journal, now = self._journal, clock.time()
        self._forget_old(journal)
        name = f"{dt.datetime.fromtimestamp(now, dt.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        owner = this_owner(journal.store)
        info = RunInfo(name, new_run_key(), WORKFLOW, RunStatus.RUNNING.value, now, now, owner)
        writer = Writer.create(journal, info, Codec(), durable=True)
        writer.record(RunStarted(WORKFLOW, (), (), b"", {}, owner))
        return writer

    def _forget_old(self, journal: Journal) -> None:
        """Delete the oldest journals, but none that a process still writes."""
        for info in journal.store.runs(workflow=WORKFLOW, limit=2 * MOST_JOURNALS)[MOST_JOURNALS - 1 :]:
            if info.status != RunStatus.RUNNING or not has_owner(journal.store, info):
                with contextlib.suppress(RunNotFound):
                    delete_run(journal, info.run)

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.record(RunEnded(RunStatus.COMPLETED))
        facts = dataclasses.replace(writer.info, status=RunStatus.COMPLETED.value, updated_at=clock.time())
        writer.set_info(facts)
        with contextlib.suppress(RunConflict):
            writer.flush()

    @synchronized
    def close(self) -> None:
        """End the journal, and close its store."""
        self._end()
        if self._journal is not None:
            self._journal.store.close()
            self._journal = None
