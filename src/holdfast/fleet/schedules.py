"""Schedules: runs that are submitted at the times of a cron expression."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.engine.submission import DEFAULT_QUEUE, Place
from holdfast.errors import INVALID, HoldfastError, Remedy, UnknownWorkflow, problem_of, suggestion
from holdfast.fleet.catalog import Catalog
from holdfast.fleet.cron import Cron
from holdfast.fleet.queues import on_postgres
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal, open_value, seal_value
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.stores.base import Store
from holdfast.views.plain import View

if TYPE_CHECKING:
    from holdfast.stores.postgres.connection import Connection


logger = logging.getLogger("holdfast.fleet")

MISSED = ("skip", "one", "all")
"""The ways to handle times that passed while no worker looked."""

MOST_MISSED = 100
"""The missed times that get a run at most: the latest."""

ON_TIME = dt.timedelta(seconds=60)
"""How late a time may be noticed and still not count as missed."""

TRY_AGAIN_AFTER = 60
"""The seconds after which a time that could not be submitted is retried."""

_FACTS = "name, cron, zone, workflow, queue, priority, missed, paused, next_at, last_at, last_run, trouble, created_by"
_GIVE_UP = "SELECT set_config('idle_in_transaction_session_timeout', '60s', true)"
"""The timeout after which a worker that hangs loses the schedule that it has locked."""

_THIS = "namespace = %(namespace)s AND name = %(name)s"

_ADD = """
INSERT INTO schedule (namespace, name, cron, zone, workflow, config, input, queue, priority, missed, next_at,
    created_by)
VALUES (%(namespace)s, %(name)s, %(cron)s, %(zone)s, %(workflow)s, %(config)s, %(input)s, %(queue)s, %(priority)s,
    %(missed)s, %(next_at)s, %(created_by)s)
ON CONFLICT (namespace, name)
"""

_REPLACE = """DO UPDATE SET cron = excluded.cron, zone = excluded.zone, workflow = excluded.workflow,
    config = excluded.config, input = excluded.input, queue = excluded.queue, priority = excluded.priority,
    missed = excluded.missed, next_at = excluded.next_at, trouble = NULL, retry_at = NULL,
    created_by = excluded.created_by"""

_TAKE = """
SELECT name, cron, zone, workflow, config, input, queue, priority, missed, next_at, clock_timestamp()
FROM schedule WHERE namespace = %(namespace)s AND NOT paused AND next_at <= statement_timestamp()
    AND (retry_at IS NULL OR retry_at <= statement_timestamp()) AND name <> ALL (%(seen)s::text[])
    AND (%(workflows)s::text[] IS NULL OR workflow = ANY (%(workflows)s::text[]))
ORDER BY next_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
"""


class ScheduleRefused(HoldfastError):
    """A schedule is invalid: no such name, a name that is taken, an invalid value."""

    exit_code = INVALID


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to submit, and when. `input` and `config` are those of `App.submit`."""

    name: str
    cron: Cron
    workflow: str
    input: Any = None
    config: Mapping[str, Any] = field(default_factory=dict)
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    missed: str = "one"

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.name.isprintable() or len(self.name) > 200:
            raise ScheduleRefused(
                f"a schedule is named by printable text of at most 200 characters, not {self.name!r}"
            )
        if self.missed not in MISSED:
            raise ScheduleRefused(f"missed times can be handled as {', '.join(MISSED)}, not {self.missed!r}")
        Place.of(self.queue, self.priority, None)

    def key_at(self, when: dt.datetime) -> str:
        """Return the submit key of the run for one time, so that no time has two runs."""
        return f"{self.name}@{when.astimezone(dt.UTC).isoformat()}"

    def times(self, due: dt.datetime, now: dt.datetime) -> list[dt.datetime]:
        """Return the times from the one that is `due` until now that get a run, oldest first."""
        found = self.cron.latest(due, now, MOST_MISSED if self.missed == "all" else 1)
        if self.missed == "skip":
            return [time for time in found if now - time <= ON_TIME]
        return found


@dataclass(frozen=True, slots=True)
class ScheduleLine(View):
    """A schedule as it is listed. `trouble` is why its last time could not be submitted."""

    JSON = "name cron zone workflow queue priority missed paused next_at=next_time last_at last_run trouble created_by"

    name: str
    cron: str
    zone: str
    workflow: str
    queue: str
    priority: int
    missed: str
    paused: bool
    next_at: dt.datetime
    last_at: dt.datetime | None
    last_run: str | None
    trouble: str | None
    created_by: str

    @property
    def next_time(self) -> dt.datetime | None:
        """Return the next time, `None` while the schedule is paused."""
        return None if self.paused else self.next_at


Submit = Callable[[Schedule, dt.datetime], str]
"""Submits the run of a schedule for one time, under `key_at` that time; returns its id."""


class Schedules:
    """The schedules of a store. Its workers submit their runs, by the clock of its server."""

    def __init__(self, store: Store, *, codec: Codec | None = None) -> None:
        self._store = on_postgres(store, "schedules")
        self._journal = Journal(store, Seal.from_environment(os.environ))
        self._codec = codec or TolerantCodec()

    def add(self, schedule: Schedule, *, replace: bool = False, by: str = "") -> ScheduleLine:
        """Add a schedule; one of that name is refused, unless it is to be replaced."""
        with self._store.transaction() as connection:
            values = {
                "cron": schedule.cron.text,
                "zone": schedule.cron.zone,
                "workflow": schedule.workflow,
                "config": self._sealed(schedule.name, "config", dict(schedule.config)),
                "input": self._sealed(schedule.name, "input", schedule.input),
                "queue": schedule.queue,
                "priority": schedule.priority,
                "missed": schedule.missed,
                "next_at": schedule.cron.next_after(_now(connection)),
                "created_by": by,
            }
            sql = _ADD + (_REPLACE if replace else "DO NOTHING")
            if not connection.execute(sql, {**self._names(schedule.name), **values}).rowcount:
                raise ScheduleRefused(
                    f"there is a schedule {schedule.name!r} already", remedies=Remedy("replace_schedule")
                )
            return self._line(connection, schedule.name)

    def lines(self) -> list[ScheduleLine]:
        """Return every schedule, by name."""
        with self._store.transaction() as connection:
            rows = connection.execute(
                f"SELECT {_FACTS} FROM schedule WHERE namespace = %s ORDER BY name", (self._store.namespace,)
            ).fetchall()
        return [_line(row) for row in rows]

    def pause(self, name: str) -> ScheduleLine:
        """Keep a schedule from submitting until it is resumed."""
        with self._store.transaction() as connection:
            self._update(connection, name, "paused = true")
            return self._line(connection, name)

    def resume(self, name: str) -> ScheduleLine:
        """Continue a schedule with its next time; those of the pause get no runs."""
        with self._store.transaction() as connection:
            line = self._line(connection, name)
            if line.paused:
                next_at = Cron(line.cron, line.zone).next_after(_now(connection))
                changes = "paused = false, next_at = %(next_at)s, trouble = NULL, retry_at = NULL"
                self._update(connection, name, changes, next_at=next_at)
            return self._line(connection, name)

    def remove(self, name: str) -> None:
        """Delete a schedule; the runs that it submitted stay."""
        with self._store.transaction() as connection:
            self._line(connection, name)
            connection.execute(f"DELETE FROM schedule WHERE {_THIS}", self._names(name))

    def tick(self, submit: Submit, workflows: Collection[str] | None = None) -> list[str]:
        """Submit the runs that are due, only those of `workflows` if given; return the run ids.

        Several workers may do so at once: each locks one schedule at a time. One whose workflow is not known here is
        left to others; one whose runs cannot be submitted stores the reason in `trouble` and is retried later.
        """
        runs: list[str] = []
        seen: list[str] = []
        wanted = None if workflows is None else list(workflows)
        while self._submit_next(submit, wanted, seen, runs):
            pass
        return runs

    def _submit_next(
        self, submit: Submit, workflows: list[str] | None, seen: list[str], runs: list[str]
    ) -> bool:
        """Submit what is due of one schedule that was not seen yet; return `False` if there is none."""
        values = {"namespace": self._store.namespace, "seen": seen, "workflows": workflows}
        with self._store.transaction() as connection:
            row = connection.execute(_TAKE, values).fetchone()
            if row is None:
                return False
            name, (due, now) = row[0], row[-2:]
            seen.append(name)
            connection.execute(_GIVE_UP)
            try:
                schedule = self._schedule(row)
                submitted = [(submit(schedule, time), time) for time in schedule.times(due, now)]
                next_at = schedule.cron.next_after(now)
            except UnknownWorkflow as error:
                logger.info("schedule %s is left to others: %s", name, error)
                return True
            except Exception as error:
                self._note_trouble(connection, name, error)
                return True
            changes = "next_at = %(next_at)s, trouble = NULL, retry_at = NULL"
            self._update(connection, name, changes, next_at=next_at)
            if submitted:
                run, at = submitted[-1]
                self._update(connection, name, "last_run = %(run)s, last_at = %(at)s", run=run, at=at)
        runs += [run for run, _ in submitted]
        return True

    def _note_trouble(self, connection: Connection, name: str, error: Exception) -> None:
        if isinstance(error, HoldfastError):
            logger.warning("schedule %s: %s", name, error)
        else:
            logger.exception("schedule %s: its run cannot be submitted", name)
        text = problem_of(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        changes = "trouble = %(trouble)s, retry_at = clock_timestamp() + make_interval(secs => %(seconds)s)"
        trouble = text.replace("\0", "")[:1000].encode(errors="backslashreplace").decode()
        self._update(connection, name, changes, trouble=trouble, seconds=TRY_AGAIN_AFTER)

    def _schedule(self, row: tuple[Any, ...]) -> Schedule:
        name, cron, zone, workflow, config, content, *options = row[:9]
        given, settings = self._opened(name, "input", content), self._opened(name, "config", config)
        return Schedule(name, Cron(cron, zone), workflow, given, settings, *options)

    def _sealed(self, name: str, part: str, value: Any) -> bytes:
        journal, what = self._journal, f"schedule's {part}"
        return seal_value(journal.seal, journal.namespace, what, name, self._codec.encode(value))

    def _opened(self, name: str, part: str, body: bytes) -> Any:
        journal, what = self._journal, f"schedule's {part}"
        return self._codec.decode(open_value(journal.seal, journal.namespace, what, name, bytes(body)))

    def _update(self, connection: Connection, name: str, changes: str, **values: Any) -> None:
        connection.execute(f"UPDATE schedule SET {changes} WHERE {_THIS}", {**values, **self._names(name)})

    def _line(self, connection: Connection, name: str) -> ScheduleLine:
        """Return a schedule and lock it; an unknown one is refused."""
        found = connection.execute(
            f"SELECT {_FACTS} FROM schedule WHERE {_THIS} FOR UPDATE", self._names(name)
        ).fetchone()
        if found is None:
            known = connection.execute(
                "SELECT name FROM schedule WHERE namespace = %s", (self._store.namespace,)
            ).fetchall()
            close = suggestion(name, [row[0] for row in known])
            raise ScheduleRefused(
                f"there is no schedule {name!r} in {self._store.url}{close}",
                remedies=Remedy("list_schedules"),
            )
        return _line(found)

    def _names(self, name: str) -> dict[str, Any]:
        return {"namespace": self._store.namespace, "name": name}


def submitting(store: Store, catalog: Catalog) -> Submit:
    """Return what submits the runs of the workflows that a catalog knows."""

    def submit(schedule: Schedule, when: dt.datetime) -> str:
        app = catalog.of_workflow(store, schedule.workflow, schedule.config).app
        return app.submit(
            schedule.input,
            key=schedule.key_at(when),
            queue=schedule.queue,
            priority=schedule.priority,
            config=schedule.config,
        )

    return submit


def _line(row: tuple[Any, ...]) -> ScheduleLine:
    line = ScheduleLine(*row)
    last_at = line.last_at and line.last_at.astimezone(dt.UTC)
    return dataclasses.replace(line, next_at=line.next_at.astimezone(dt.UTC), last_at=last_at)


def _now(connection: Connection) -> dt.datetime:
    """Return the time by the server's clock."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None and isinstance(row[0], dt.datetime)
    return row[0]
