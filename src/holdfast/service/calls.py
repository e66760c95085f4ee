"""The journal of calls: which tools clients called, about what, and who asked."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import re
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast import clock
from holdfast.engine.owner import has_owner, this_owner
from holdfast.errors import HoldfastError, RunConflict, RunNotFound, StoreError
from holdfast.journal.checkpoint_ids import new_run_key
from holdfast.journal.copying import delete_run
from holdfast.journal.journal import Journal
from holdfast.journal.records import Commanded, RunEnded, RunStarted
from holdfast.journal.sealing import Seal
from holdfast.journal.writer import Writer
from holdfast.service.reading import kept_beside
from holdfast.state.codec import Codec
from holdfast.stores import open_store
from holdfast.stores.base import RunInfo, Store
from holdfast.threads import synchronized
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast.service")

WORKFLOW = "calls"
"""The workflow that the journals of calls are runs of."""

TAG = "journal of calls"
"""The tag of these runs, which tells them from those of a user's own workflow of that name."""

MOST_CALLS = 10_000
"""How many calls one journal has; then another is begun."""

MOST_JOURNALS = 200
"""How many journals are kept."""

NAMES = (
    *("workflow", "run_id", "job_id", "task_id", "checkpoint_id", "checkpoint", "step", "question"),
    *("a", "b", "path", "status", "mode", "uri"),
)
"""The arguments whose values are journalled. The others may be secret, or large: of these only the names are."""

LONGEST_VALUE = 200

_PLAIN = re.compile(r"[\w.:/#@+~-]*")

_written: set[bytes] = set()
"""The keys of the journals that this process writes."""


def about(arguments: Mapping[str, Any]) -> str:
    """Return what a call is about, in words: the names of its arguments, and the values that name something."""
    return ", ".join(
        f"{name}={shown(value)}" if name in NAMES and isinstance(value, str) else name
        for name, value in arguments.items()
        if value is not None
    )


def shown(value: str) -> str:
    """Return a value as it is, or in quotes if it could be taken for something else."""
    value = value[:LONGEST_VALUE]
    return value if _PLAIN.fullmatch(value) else repr(value)


class CallJournal:
    """The calls of one process, as commands in the journal of a run, in a namespace beside that of the runs.

    Each is stored before it is carried out; of one that could not be stored, nothing is kept. The journal begins with
    the first call; `close` ends it. May be used from any thread.
    """

    def __init__(self, store: Store, seal: Seal | None = None) -> None:
        self._url, self._seal = kept_beside(store, "calls"), seal
        self._lock = threading.RLock()
        self._journal: Journal | None = None
        self._writer: Writer | None = None
        self._count = 0
        self._is_closed = False

    @synchronized
    def note(self, who: str, call: str, what: str = "", refused: str = "") -> None:
        """Store who called what, and why that was refused, if it was."""
        if self._is_closed:
            raise StoreError("this server is ending: no call is carried out any more")
        record = Commanded(0, call, refused, who, what)
        if self._count >= MOST_CALLS:
            self._end()
        try:
            self._store(record)
        except RunConflict:  # Somebody deleted the journal.
            self._store(record)

    def _store(self, record: Commanded) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            writer, self._count = self._begun(), 0
        try:
            writer.record(record)
            writer.flush()
        except BaseException:  # Its call is refused: it must not be stored with a later one.
            _written.discard(writer.info.key)
            raise
        self._count += 1
        self._writer = writer

    def _begun(self) -> Writer:
        if self._journal is None:
            self._journal = Journal(open_store(self._url), self._seal)
        journal, now = self._journal, clock.time()
        self._forget_old(journal)
        name = f"{dt.datetime.fromtimestamp(now, dt.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        owner = this_owner(journal.store)
        info = RunInfo(name, new_run_key(), WORKFLOW, RunStatus.RUNNING.value, now, now, owner, (TAG,))
        writer = Writer.create(journal, info, Codec(), durable=True)
        writer.record(RunStarted(WORKFLOW, (), (), b"", {}, owner))
        _written.add(info.key)
        return writer

    def _forget_old(self, journal: Journal) -> None:
        """Delete the oldest journals, but none that a process still writes."""
        found = [info for info in journal.store.runs(workflow=WORKFLOW) if TAG in info.tags]
        for info in found[MOST_JOURNALS - 1 :]:
            if info.key not in _written and not has_owner(journal.store, info):
                with suppress(RunNotFound):
                    delete_run(journal, info.run)

    def _end(self) -> None:
        """End the journal; one that cannot be ended stays as it is."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.record(RunEnded(RunStatus.COMPLETED))
            ended = RunStatus.COMPLETED.value
            writer.set_info(dataclasses.replace(writer.info, status=ended, updated_at=clock.time()))
            writer.flush()
        except HoldfastError as error:
            logger.warning("the journal of calls %s could not be ended: %s", writer.info.run, error)
        finally:
            _written.discard(writer.info.key)

    @synchronized
    def close(self) -> None:
        """End the journal, and close its store."""
        self._is_closed = True
        try:
            self._end()
        finally:
            if self._journal is not None:
                self._journal.store.close()
                self._journal = None
