"""Cron expressions: at which times, in which time zone."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from holdfast.errors import INVALID, HoldfastError

_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_LONGEST_MONTHS = dict(enumerate((31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), 1))
_EVERY_HOUR = frozenset(range(24))
_CYCLE = 400
"""The years after which the calendar repeats itself."""

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
    """A cron expression or a time zone is invalid."""

    exit_code = INVALID


class _Field(NamedTuple):
    """The range of one field of an expression, and the words for its numbers."""

    name: str
    low: int
    high: int
    longest_step: int
    words: Mapping[str, int]

    def read(self, text: str) -> frozenset[int]:
        """Return the numbers that a field's text means."""
        return frozenset(number for part in text.split(",") for number in self._read_part(part, text))

    def _read_part(self, part: str, text: str) -> range:
        found = _PART.fullmatch(part)
        if found is None:
            raise self._wrong(text, f"{part!r} cannot be read" if part else "a part of it is empty")
        if found["all"]:
            first, last = self.low, self.high
        else:
            first = self._number(found["first"], text)
            last = self.high if found["step"] else first
            if found["last"] is not None:
                last = self._number(found["last"], text)
                last = 7 if last == 0 and self.name == "weekday" and first > 0 else last
        if last < first:
            raise self._wrong(text, f"{part!r} runs backwards")
        step = _number(found["step"]) if found["step"] else 1
        if not 1 <= step <= self.longest_step:
            raise self._wrong(text, f"a step is from 1 to {self.longest_step}")
        return range(first, last + 1, step)

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
    """The times of an expression of five fields: minute, hour, day, month, weekday.

    If both day and weekday are restricted, either suffices; a field that begins with `*` restricts nothing in that
    sense. Where clocks are put forward, a skipped time is the first time after the gap; where they are put back, a
    time that comes twice counts once, the first time. An expression for every hour follows real time instead: it
    has no gap when an hour comes twice, and nothing replaces an hour that never came.
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
        """Return the first time later than `when`, in UTC."""
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
        """Return the last `most` times from `since` to `until`, both included, oldest first."""
        before, window = dt.timedelta(microseconds=1), dt.timedelta(hours=1)
        while True:
            start = max(since, until - window)
            found, time = [], start - before
            while (time := self.next_after(time)) <= until:
                found.append(time)
            if len(found) >= most or start <= since:
                return found[-most:]
            window *= 2

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

    def _is_day(self, day: dt.date) -> bool:
        _, _, days, months, weekdays = self._sets
        by_day = day.day in days
        by_weekday = not weekdays.isdisjoint({day.isoweekday(), day.isoweekday() % 7})
        return day.month in months and (by_day or by_weekday if self._is_either else by_day and by_weekday)

    def _days_from(self, first: dt.date) -> Iterator[dt.date]:
        """Yield the days that match, from `first` on, for a whole cycle of the calendar."""
        day = first
        while day.year <= first.year + _CYCLE:
            if day.month in self._sets[3]:
                if self._is_day(day):
                    yield day
                day += dt.timedelta(days=1)
            else:
                day = (day.replace(day=1) + dt.timedelta(days=32)).replace(day=1)

    def _by_the_clock(self, when: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
        minutes, hours = sorted(self._sets[0]), sorted(self._sets[1])
        now = when.astimezone(zone).replace(tzinfo=None)
        for day in self._days_from(now.date()):
            for hour in hours:
                for minute in minutes:
                    local = dt.datetime.combine(day, dt.time(hour, minute))
                    # What is earlier on the clock is earlier in time too: of two times the first counts.
                    if local > now and (found := _in_utc(local, zone)) > when:
                        return found
        return None

    def _in_real_time(self, when: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
        minutes = self._sets[0]
        time = when + _to_next_minute(when.astimezone(zone))
        while True:
            local = time.astimezone(zone)
            is_day = self._is_day(local.date())
            if is_day and local.minute in minutes:
                return time
            # A clock that is put back shortly after midnight shows yesterday once more.
            if is_day or local.hour < 3:
                time += _to_next_minute(local)
            elif (day := next(self._days_from(local.date()), None)) is not None:
                # That day's midnight may have been already, before the clock was put back past it.
                time = max(time + _to_next_minute(local), _in_utc(dt.datetime.combine(day, dt.time()), zone))
            else:
                return None


def _to_next_minute(local: dt.datetime) -> dt.timedelta:
    return _MINUTE - dt.timedelta(seconds=local.second, microseconds=local.microsecond)


def _in_utc(local: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    """Return the time of a local time: the first of two, or the end of the gap that it lies in."""
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
        remedy = (
            "names are like UTC or Europe/Berlin"
            if available_timezones()
            else "this machine has no time zones; install the package tzdata"
        )
        raise CronInvalid(f"there is no time zone {name!r}; {remedy}") from None
