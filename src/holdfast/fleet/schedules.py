"""Runs that are submitted again and again, at the times of a cron expression."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from holdfast.engine.submission import DEFAULT_QUEUE, Place
from holdfast.errors import INVALID, HoldfastError, problem_of
from holdfast.fleet.catalog import Catalog, UnknownWorkflow
from holdfast.fleet.postgres_claims import on_postgres
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import open_value, seal_value
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.state.encryption import Seal
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.stores.postgres.connection import Connection


# Cron expressions: at which times, in which time zone.


_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_LONGEST_MONTHS = dict(enumerate((31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), 1))
_EVERY_HOUR = frozenset(range(24))
_CYCLE = 400
"""After so many years the calendar repeats itself."""

_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_PART = re.compile(
    r"(?:(?P<all>\*)|(?P<first>[0-9]+|[A-Za-z]+)(?:-(?P<last>[0-9]+|[A-Za-z]+))?)(?:/(?P<step>[0-9]+))?"
)
_MINUTE = dt.timedelta(minutes=1)


class CronInvalid(HoldfastError):
    """A cron expression or a time zone makes no sense."""

    exit_code = INVALID


class _Field(NamedTuple):
    """What one field of an expression may say."""

    name: str
    low: int
    high: int
    longest_step: int
    words: Mapping[str, int]

    def read(self, text: str) -> frozenset[int]:
        """The numbers that a field's text means."""
        return frozenset(number for part in text.split(",") for number in self._read_part(part, text))

    def _read_part(self, part: str, text: str) -> range:
        found = _PART.fullmatch(part)
        if found is None:
            raise self._wrong(text, f"{part!r} cannot be read" if part else "a part of it is empty")
        if found["all"]:
            first, last = self.low, self.high
        else:
            first = self._number(found["first"], text)
            last = self._last(found["last"], first, found["step"] is not None, text)
        if last < first:
            raise self._wrong(text, f"{part!r} runs backwards")
        step = _number(found["step"]) if found["step"] else 1
        if not 1 <= step <= self.longest_step:
            raise self._wrong(text, f"a step is from 1 to {self.longest_step}")
        return range(first, last + 1, step)

    def _last(self, word: str | None, first: int, is_open: bool, text: str) -> int:
        if word is None:
            return self.high if is_open else first
        last = self._number(word, text)
        return 7 if last == 0 and self.name == "weekday" and first > 0 else last

    def _number(self, word: str, text: str) -> int:
        number = self.words.get(word.upper()) if word.isalpha() else _number(word)
        if number is None or not self.low <= number <= self.high:
            raise self._wrong(text, f"{word!r} is none of them")
        return number

    def _wrong(self, text: str, why: str) -> CronInvalid:
        names = f" or {', '.join(self.words)}" if self.words else ""
        return CronInvalid(
            f"the {self.name} field {text!r} of a cron expression takes {self.low} to {self.high}{names}, "
            f"as in *, 5, 1-5, */2 or 1,3: {why}"
        )


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 10 else 10**9


_FIELDS = (
    _Field("minute", 0, 59, 60, {}),
    _Field("hour", 0, 23, 24, {}),
    _Field("day", 1, 31, 31, {}),
    _Field("month", 1, 12, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("weekday", 0, 7, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)


@dataclass(frozen=True)
class Cron:
    """The times that an expression of five fields means: minute, hour, day, month, weekday.

    If both day and weekday are restricted, either will do; a field that begins with `*` restricts nothing in that
    sense. Where clocks are put forward, a time that is skipped is the first moment after the gap; where they are
    put back, a time that comes twice is meant once, the first time. An expression for every hour follows real time
    instead: it has no gap when an hour comes twice, and nothing is made up for an hour that never came.
    """

    text: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _zone(self.zone)
        if len(self._words) != len(_FIELDS):
            raise CronInvalid(
                f"a cron expression has five fields, minute hour day month weekday, as in '*/5 * * * *', or is one of "
                f"{', '.join(_SHORTHANDS)}; {self.text!r} has {len(self._words)}"
            )
        _, _, days, months, _ = self._sets
        if not self._is_either and all(min(days) > _LONGEST_MONTHS[month] for month in months):
            raise CronInvalid(f"the cron expression {self.text!r} means a day that no such month has")

    def next_after(self, when: dt.datetime) -> dt.datetime:
        """The first time later than `when`, in UTC."""
        if when.tzinfo is None:
            raise CronInvalid(
                f"{when.isoformat()} has no time zone; say which, for example with tzinfo=dt.UTC"
            )
        zone = _zone(self.zone)
        search = self._in_real_time if self._sets[1] == _EVERY_HOUR else self._by_the_clock
        try:
            found = search(when.astimezone(dt.UTC), zone)
        except OverflowError:
            found = None
        if found is None:
            raise CronInvalid(f"the cron expression {self.text!r} means no time after {when.isoformat()}")
        return found

    def latest(self, since: dt.datetime, until: dt.datetime, most: int = 1) -> list[dt.datetime]:
        """The last `most` times from `since` to `until`, both included, oldest first."""
        before, window = dt.timedelta(microseconds=1), dt.timedelta(hours=1)
        while True:
            start = max(since, until - window)
            found = list(self._times(start - before, until))
            if len(found) >= most or start <= since:
                return found[-most:]
            window *= 2

    def _times(self, after: dt.datetime, until: dt.datetime) -> Iterator[dt.datetime]:
        while (after := self.next_after(after)) <= until:
            yield after

    # What the text says.

    @cached_property
    def _words(self) -> list[str]:
        text = self.text.strip()
        return _SHORTHANDS.get(text.lower(), text).split()

    @cached_property
    def _sets(self) -> tuple[frozenset[int], ...]:
        return tuple(field.read(word) for field, word in zip(_FIELDS, self._words, strict=True))

    @cached_property
    def _is_either(self) -> bool:
        return not (self._words[2].startswith("*") or self._words[4].startswith("*"))

    # Finding times.

    def _is_day(self, day: dt.date) -> bool:
        _, _, days, months, weekdays = self._sets
        by_day = day.day in days
        by_weekday = not weekdays.isdisjoint({day.isoweekday(), day.isoweekday() % 7})
        return day.month in months and (by_day or by_weekday if self._is_either else by_day and by_weekday)

    def _days_from(self, first: dt.date) -> Iterator[dt.date]:
        """The days that match, from the first on."""
        for month in _months_from(first):
            if month.month in self._sets[3]:
                yield from filter(self._is_day, _days_of(month, first))

    def _by_the_clock(self, when: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
        minutes, hours = sorted(self._sets[0]), sorted(self._sets[1])
        now = when.astimezone(zone).replace(tzinfo=None)
        for day in self._days_from(now.date()):
            for hour in hours:
                for minute in minutes:
                    local = dt.datetime.combine(day, dt.time(hour, minute))
                    # What lies before now on the clock lies before it in time too: of two moments the first counts.
                    if local > now and (found := _moment(local, zone)) > when:
                        return found
        return None

    def _in_real_time(self, when: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
        minutes = self._sets[0]
        moment = when + _to_next_minute(when.astimezone(zone))
        while True:
            local = moment.astimezone(zone)
            is_day = self._is_day(local.date())
            if is_day and local.minute in minutes:
                return moment
            # A clock that is put back shortly after midnight shows yesterday once more.
            if is_day or local.hour < 3:
                moment += _to_next_minute(local)
            elif (day := next(self._days_from(local.date()), None)) is not None:
                # That day's midnight may have been already, before the clock was put back past it.
                moment = max(
                    moment + _to_next_minute(local), _moment(dt.datetime.combine(day, dt.time()), zone)
                )
            else:
                return None


def _months_from(first: dt.date) -> Iterator[dt.date]:
    """The first days of the months, from that of `first` on, for a whole cycle of the calendar."""
    for year in range(first.year, min(first.year + _CYCLE + 1, dt.MAXYEAR)):
        for month in range(1, 13):
            if (year, month) >= (first.year, first.month):
                yield dt.date(year, month, 1)


def _days_of(month: dt.date, first: dt.date) -> Iterator[dt.date]:
    day = max(month, first)
    while day.month == month.month:
        yield day
        day += dt.timedelta(days=1)


def _to_next_minute(local: dt.datetime) -> dt.timedelta:
    return _MINUTE - dt.timedelta(seconds=local.second, microseconds=local.microsecond)


def _moment(local: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    """The moment that a local time means: the first of two, or the end of the gap that it lies in."""
    late = local.replace(tzinfo=zone).astimezone(dt.UTC)
    if late.astimezone(zone).replace(tzinfo=None) == local:
        return late
    early = local.replace(tzinfo=zone, fold=1).astimezone(dt.UTC)
    while late - early > dt.timedelta(seconds=1):
        middle = early + (late - early) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).replace(tzinfo=None) > local:
            late = middle
        else:
            early = middle
    return late


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        way_out = (
            "names are like UTC or Europe/Berlin"
            if available_timezones()
            else "this machine has no time zones; install the package tzdata"
        )
        raise CronInvalid(f"there is no time zone {name!r}; {way_out}") from None


logger = logging.getLogger("holdfast.fleet")

MISSED = ("skip", "one", "all")
"""What becomes of times that passed while no worker looked."""

MOST_MISSED = 100
"""How many of them are made up for at most: the latest."""

ON_TIME = dt.timedelta(seconds=60)
"""How late a time may be noticed and still not count as missed."""

TRY_AGAIN_AFTER = 60
"""After how many seconds a time that could not be submitted is tried again."""

_FACTS = "name, cron, zone, workflow, queue, priority, missed, paused, next_at, last_at, last_run, trouble, created_by"
_PATIENCE = "SELECT set_config('idle_in_transaction_session_timeout', '60s', true)"
"""A worker that hangs while it holds on to a schedule is made to let go of it."""

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
    """What is asked of a schedule makes no sense: no such name, a name that is taken, a wrong word."""

    exit_code = INVALID


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is to be submitted, and when. `input` and `config` are what `App.submit` takes."""

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
        """The submit key of the run for one time, so that no time has two runs."""
        return f"{self.name}@{when.astimezone(dt.UTC).isoformat()}"

    def times(self, due: dt.datetime, now: dt.datetime) -> list[dt.datetime]:
        """The times from the one that is `due` until now that are to have a run, oldest first."""
        found = self.cron.latest(due, now, MOST_MISSED if self.missed == "all" else 1)
        if self.missed == "skip":
            return [time for time in found if now - time <= ON_TIME]
        return found


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """How a schedule stands. `trouble` is why its last time could not be submitted."""

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

    def as_json(self) -> dict[str, Any]:
        """Keys: name, cron, zone, workflow, queue, priority, missed, paused, next_at, last_at, last_run, trouble,
        created_by."""
        facts = {name: getattr(self, name) for name in self.__slots__}
        times = {name: facts[name] and facts[name].isoformat() for name in ("next_at", "last_at")}
        return {**facts, **times, "next_at": None if self.paused else times["next_at"]}


Submit = Callable[[Schedule, dt.datetime], str]
"""Submits the run of a schedule for one time, under `key_at` that time; answers its id."""


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
                    f"there is a schedule {schedule.name!r} already; replace it, or choose another name"
                )
            return self._line(connection, schedule.name)

    def lines(self) -> list[ScheduleLine]:
        """Every schedule, by name."""
        with self._store.transaction() as connection:
            rows = connection.execute(
                f"SELECT {_FACTS} FROM schedule WHERE namespace = %s ORDER BY name", (self._store.namespace,)
            ).fetchall()
        return [_line(row) for row in rows]

    def pause(self, name: str) -> ScheduleLine:
        """Let a schedule submit nothing until it is resumed."""
        with self._store.transaction() as connection:
            self._update(connection, name, "paused = true")
            return self._line(connection, name)

    def resume(self, name: str) -> ScheduleLine:
        """Let a schedule go on with its next time; those of the pause are not made up for."""
        with self._store.transaction() as connection:
            line = self._line(connection, name)
            if line.paused:
                next_at = Cron(line.cron, line.zone).next_after(_now(connection))
                changes = "paused = false, next_at = %(next_at)s, trouble = NULL, retry_at = NULL"
                self._update(connection, name, changes, next_at=next_at)
            return self._line(connection, name)

    def remove(self, name: str) -> None:
        """Forget a schedule; the runs that it submitted stay."""
        with self._store.transaction() as connection:
            self._line(connection, name)
            connection.execute(f"DELETE FROM schedule WHERE {_THIS}", self._names(name))

    def tick(self, submit: Submit, workflows: Collection[str] | None = None) -> list[str]:
        """Submit what is due and answer the run ids; of these `workflows` alone, if they are given.

        Several workers may do so at once: each schedule is one's alone at a time. One whose workflow is not known here
        is left to them as it is; one whose runs cannot be submitted keeps the reason as its trouble, and is tried
        again later.
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
        """Submit what is due of one schedule that was not seen yet; `False` if there is none."""
        values = {"namespace": self._store.namespace, "seen": seen, "workflows": workflows}
        with self._store.transaction() as connection:
            row = connection.execute(_TAKE, values).fetchone()
            if row is None:
                return False
            name, (due, now) = row[0], row[-2:]
            seen.append(name)
            connection.execute(_PATIENCE)
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
        told = text.replace("\0", "")[:1000].encode(errors="backslashreplace").decode()
        self._update(connection, name, changes, trouble=told, seconds=TRY_AGAIN_AFTER)

    def _schedule(self, row: tuple[Any, ...]) -> Schedule:
        name, cron, zone, workflow, config, content, queue, priority, missed, _, _ = row
        return Schedule(
            name,
            Cron(cron, zone),
            workflow,
            self._opened(name, "input", content),
            self._opened(name, "config", config),
            queue,
            priority,
            missed,
        )

    def _sealed(self, name: str, part: str, value: Any) -> bytes:
        journal, what = self._journal, f"schedule's {part}"
        return seal_value(journal.seal, journal.namespace, what, name, self._codec.encode(value))

    def _opened(self, name: str, part: str, body: bytes) -> Any:
        journal, what = self._journal, f"schedule's {part}"
        return self._codec.decode(open_value(journal.seal, journal.namespace, what, name, bytes(body)))

    def _update(self, connection: Connection, name: str, changes: str, **values: Any) -> None:
        connection.execute(f"UPDATE schedule SET {changes} WHERE {_THIS}", {**values, **self._names(name)})

    def _line(self, connection: Connection, name: str) -> ScheduleLine:
        """A schedule as it stands, for this transaction alone; an unknown one is refused."""
        found = connection.execute(
            f"SELECT {_FACTS} FROM schedule WHERE {_THIS} FOR UPDATE", self._names(name)
        ).fetchone()
        if found is None:
            raise ScheduleRefused(f"there is no schedule {name!r} in {self._store.url}")
        return _line(found)

    def _names(self, name: str) -> dict[str, Any]:
        return {"namespace": self._store.namespace, "name": name}


def submitting(store: Store, catalog: Catalog) -> Submit:
    """What submits the runs of the workflows that a catalog knows."""

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
    """The time by the server's clock."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None and isinstance(row[0], dt.datetime)
    return row[0]
