"""Cron expressions against a search minute by minute, and durations."""

from __future__ import annotations

import datetime as dt
import math
from random import Random
from zoneinfo import ZoneInfo

from holdfast.fleet.cron import Cron, CronInvalid
from holdfast.workflows.settings import seconds
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.target import Check, Target, Wrong

_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FAR = 3000
"""How many minutes the search looks ahead."""


def _part(choices: Choices, low: int, high: int) -> str:
    kind = choices.below(8)
    first = low + choices.below(high - low + 1)
    last = first + choices.below(high - first + 1)
    step = 1 + choices.below(min(12, high))
    return (
        "*",
        f"*/{step}",
        str(first),
        f"{first}-{last}",
        f"{first}-{last}/{step}",
        f"{first}/{step}",
        "*",
        f"{first:02d}",
    )[kind]


def _cron(choices: Choices) -> str:
    words = []
    for place, (low, high) in enumerate(_FIELDS):
        if choices.below(3):
            words.append("*")
        elif place == 3 and choices.below(2):
            words.append(choices.of(_MONTHS).upper())
        elif place == 4 and choices.below(2):
            words.append(f"{choices.of(_DAYS)}" if choices.below(2) else "fri-sun")
        else:
            words.append(",".join(_part(choices, low, high) for _ in range(1 + choices.below(2))))
    return " ".join(words)


def _numbers(word: str, place: int) -> set[int]:
    """What a field means, read apart from what is tested."""
    low, high = _FIELDS[place]
    names = (
        {name: number for number, name in enumerate(_MONTHS, 1)}
        if place == 3
        else dict(zip(_DAYS, range(7), strict=True))
    )
    found: set[int] = set()
    for part in word.lower().split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = low if first == "*" else names[first] if first in names else int(first)
        if last:
            end = names[last] if last in names else int(last)
            end = 7 if place == 4 and end == 0 and begin > 0 else end
        else:
            end = high if first == "*" or step else begin
        found.update(range(begin, end + 1, int(step or 1)))
    return found


class _Search:
    """The times of an expression, found by looking at every minute."""

    def __init__(self, text: str) -> None:
        self._words = text.split()
        self._sets = [_numbers(word, place) for place, word in enumerate(self._words)]
        self._either = self._words[2][0] != "*" and self._words[4][0] != "*"

    def is_time(self, local: dt.datetime) -> bool:
        minutes, hours, days, months, weekdays = self._sets
        weekday = local.isoweekday()
        by_weekday = bool({weekday, weekday % 7} & weekdays)
        by_day = local.day in days
        is_day = by_day or by_weekday if self._either else by_day and by_weekday
        return is_day and local.month in months and local.hour in hours and local.minute in minutes

    def is_day(self, day: dt.datetime) -> bool:
        _, _, days, months, weekdays = self._sets
        by_weekday = bool({day.isoweekday(), day.isoweekday() % 7} & weekdays)
        by_day = day.day in days
        return day.month in months and (by_day or by_weekday if self._either else by_day and by_weekday)

    def next_after(self, when: dt.datetime) -> dt.datetime | None:
        local = when.replace(second=0, microsecond=0)
        for _ in range(_FAR):
            local += dt.timedelta(minutes=1)
            if local.hour == 0 and local.minute == 0:
                while not self.is_day(local):
                    local += dt.timedelta(days=1)
                    if local > when + dt.timedelta(days=4000):
                        return None
            if self.is_time(local):
                return local
        return None


def cron() -> Check:
    """Expressions of every form: the next time is the one that a search minute by minute finds."""
    zones = (
        "UTC",
        "Europe/Berlin",
        "Australia/Lord_Howe",
        "America/Havana",
        "Asia/Kathmandu",
        "Pacific/Apia",
    )

    def check(data: bytes) -> str:
        choices = Choices(data)
        zone = choices.of(zones) if choices.below(2) else "UTC"
        when = dt.datetime(1971, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=choices.below(3_000_000_000))
        text = _cron(choices)
        one = Cron(text, zone)
        found = one.next_after(when)
        if found <= when or found.second or found.microsecond:
            raise Wrong(f"{text} in {zone} after {when} is {found}")
        if zone == "UTC":
            wanted = _Search(text).next_after(when)
            if wanted is not None and wanted != found:
                raise Wrong(f"{text} after {when} is {wanted}, not {found}")
            return f"UTC {wanted is None}"
        if one.next_after(found - dt.timedelta(microseconds=1)) != found or one.next_after(found) <= found:
            raise Wrong(f"{text} in {zone} around {found}: times are lost, or come twice")
        local = found.astimezone(ZoneInfo(zone))
        before = (found - dt.timedelta(minutes=1)).astimezone(ZoneInfo(zone))
        is_after_gap = before.utcoffset() != local.utcoffset()
        if not _Search(text).is_time(local.replace(tzinfo=None)) and not is_after_gap:
            raise Wrong(f"{text} in {zone} after {when} is {local}, which it does not mean")
        latest = one.latest(found, found + dt.timedelta(hours=2), 2)
        if not latest or latest[0] < found:
            raise Wrong(f"{text} in {zone}: of those since {found} the latest are {latest}")
        return f"zone {is_after_gap}"

    return check


def cron_text() -> Check:
    """Any text as an expression: refused with a reason, or it has a next time or says that it has none."""
    when = dt.datetime(2026, 2, 28, 23, 59, tzinfo=dt.UTC)

    def check(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape")
        text, _, zone = text.partition("|")
        found = Cron(text, zone or "UTC").next_after(when)
        return f"a time in {min(2, found.year - 2026)} years"

    return check


def durations() -> Check:
    """Any text as a duration: a finite number of seconds, or a `ValueError`."""

    def check(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape")
        found = seconds(text)
        if not isinstance(found, float) or not math.isfinite(found) or found < 0:
            raise Wrong(f"{text!r} is {found!r} seconds")
        return f"about {min(9, int(found)).bit_length()}"

    return check


def cron_words(rng: Random) -> bytes:
    """An expression as text."""
    return (_cron(Choices(rng.randbytes(30))) + rng.choice(("", "", "|Europe/Berlin", "|UTC"))).encode()


_CRON_SEEDS = (
    b"*/5 * * * *",
    b"0 9 * * mon-fri",
    b"0 0 29 2 *",
    b"@daily",
    b"59 23 31 12 7|Europe/Berlin",
    b"0 0 31 4,6 *",
)
TARGETS = [
    Target("cron", cron, (CronInvalid,), make=random_choices, share=60, longest=80, fresh=0.7),
    Target(
        "cron-text",
        cron_text,
        (CronInvalid,),
        lambda: list(_CRON_SEEDS),
        cron_words,
        share=200,
        longest=120,
        words=(b"*/", b"-", b",", b"@yearly", b"JAN", b"sun", b"60", b"0 0 30 2 *", b"99999999999"),
    ),
    Target(
        "durations",
        durations,
        (ValueError,),
        lambda: [b"30s", b"1h30m", b"2d", b"0.5 s", b"1w 2d"],
        share=900,
        longest=40_000,
        words=(b"9" * 30_000, b"ms", b"s", b"m", b"h", b"d", b"w", b".", b"9" * 320),
    ),
]
