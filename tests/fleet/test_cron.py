"""Cron expressions: the times they mean, against counting minutes, and what is refused."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fleet.cron import Cron, CronInvalid

MINUTE = dt.timedelta(minutes=1)


def at(text: str, zone: str = "UTC", fold: int = 0) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


def following(cron: Cron, when: dt.datetime, count: int) -> list[str]:
    found = []
    for _ in range(count):
        when = cron.next_after(when)
        found.append(when.astimezone(ZoneInfo(cron.zone)).isoformat())
    return found


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("*/20 * * * *", ["2026-01-01T00:20", "2026-01-01T00:40", "2026-01-01T01:00"]),
        ("5/25 22 * * *", ["2026-01-01T22:05", "2026-01-01T22:30", "2026-01-01T22:55"]),
        ("30 8,17 * * *", ["2026-01-01T08:30", "2026-01-01T17:30", "2026-01-02T08:30"]),
        ("0 9 * * MON-FRI", ["2026-01-01T09:00", "2026-01-02T09:00", "2026-01-05T09:00"]),
        ("0 9 * * fri-sun", ["2026-01-02T09:00", "2026-01-03T09:00", "2026-01-04T09:00"]),
        ("0 0 * * 0", ["2026-01-04T00:00", "2026-01-11T00:00"]),
        ("0 0 * * 7", ["2026-01-04T00:00", "2026-01-11T00:00"]),
        ("0 0 31 * *", ["2026-01-31T00:00", "2026-03-31T00:00", "2026-05-31T00:00"]),
        (
            "0 12 1-7/3 jun,DEC *",
            ["2026-06-01T12:00", "2026-06-04T12:00", "2026-06-07T12:00", "2026-12-01T12:00"],
        ),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 29 2 */7", ["2032-02-29T00:00", "2060-02-29T00:00"]),
        ("0 0 13 * FRI", ["2026-01-02T00:00", "2026-01-09T00:00", "2026-01-13T00:00", "2026-01-16T00:00"]),
        ("0 0 */13 * FRI", ["2026-02-27T00:00", "2026-03-27T00:00", "2026-05-01T00:00"]),
        ("@hourly", ["2026-01-01T01:00", "2026-01-01T02:00"]),
        ("@daily", ["2026-01-02T00:00"]),
        ("@Weekly", ["2026-01-04T00:00"]),
        ("@monthly", ["2026-02-01T00:00"]),
        ("@yearly", ["2027-01-01T00:00", "2028-01-01T00:00"]),
    ],
)
def test_the_times_that_an_expression_means(text: str, times: list[str]) -> None:
    cron = Cron(text)

    assert following(cron, at("2026-01-01"), len(times)) == [f"{time}:00+00:00" for time in times]


def test_a_time_zone_is_heeded_and_seconds_are_not_lost() -> None:
    cron = Cron("0 9 * * *", "Asia/Kolkata")

    assert cron.next_after(at("2026-05-01T03:29:59")) == at("2026-05-01T03:30")
    assert cron.next_after(at("2026-05-01T03:30")) == at("2026-05-02T09:00", "Asia/Kolkata")
    assert cron.next_after(at("2026-05-01T03:30")).tzinfo == dt.UTC


def test_a_skipped_time_is_the_first_moment_after_the_gap() -> None:
    before = at("2026-03-28T12:00", "Europe/Berlin")

    assert following(Cron("30 2 * * *", "Europe/Berlin"), before, 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert following(Cron("*/30 2,3 * * *", "Europe/Berlin"), before, 3) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T03:30:00+02:00",
        "2026-03-30T02:00:00+02:00",
    ]
    assert following(Cron("0 12 30 12 *", "Pacific/Apia"), at("2011-12-01"), 1) == [
        "2011-12-31T00:00:00+14:00"
    ], "Samoa left a whole day out"


def test_a_time_that_comes_twice_is_meant_once() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")

    assert following(cron, at("2026-10-24T12:00", "Europe/Berlin"), 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]
    assert cron.next_after(at("2026-10-25T02:10", "Europe/Berlin", fold=1)).day == 26


def test_an_expression_for_every_hour_follows_real_time() -> None:
    cron = Cron("*/30 * * * *", "Europe/Berlin")

    for beginning in ("2026-03-28T22:00", "2026-10-24T22:00"):
        when = at(beginning)
        for _ in range(12):
            assert cron.next_after(when) - when == 30 * MINUTE
            when += 30 * MINUTE


def test_a_clock_that_is_put_back_past_midnight_shows_yesterday_once_more() -> None:
    cron = Cron("*/10 * * * SAT", "America/St_Johns")

    assert following(cron, at("2010-11-07T02:29"), 1) == ["2010-11-06T23:10:00-03:30"]


def test_a_midnight_that_comes_twice_is_passed_and_not_gone_back_to() -> None:
    cron = Cron("59 * 7/9 * *", "America/St_Johns")

    assert following(cron, at("1992-10-24T09:18"), 2) == [
        "1992-10-25T00:59:00-03:30",
        "1992-10-25T01:59:00-03:30",
    ]


fields = st.tuples(
    st.sampled_from(["*", "*/7", "0", "30", "1-50/17", "59", "0,1,2"]),
    st.sampled_from(["*", "*/5", "0", "1,2,3", "23", "0-3", "12"]),
    st.sampled_from(["*", "1", "29-31", "*/10", "15", "7/9"]),
    st.sampled_from(["*", "1-3", "MAR,OCT,NOV", "*/4", "4"]),
    st.sampled_from(["*", "SUN", "1-5", "6,7", "*/3", "SAT-SUN"]),
)
zones = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo"]
)
moments = st.datetimes(dt.datetime(1988, 1, 1), dt.datetime(2030, 1, 1), timezones=st.just(dt.UTC))
near_a_change = st.builds(
    lambda base, minutes: base + minutes * MINUTE,
    st.sampled_from(
        [
            at("2026-03-29T01:00"),
            at("2026-10-25T01:00"),
            at("2010-11-07T02:31"),
            at("2010-03-14T03:31"),
            at("2026-04-04T15:00"),
            at("2026-10-03T15:30"),
            at("2017-02-19T02:00"),
            at("2017-10-15T03:00"),
        ]
    ),
    st.integers(-200, 200),
)


def is_meant(cron: Cron, moment: dt.datetime) -> bool:
    """By the fields alone, written down once more in the plainest way."""
    local = moment.astimezone(ZoneInfo(cron.zone))
    minute, hour, day, month, weekday = cron.text.split()
    by_day = local.day in numbers(day, 1, 31)
    by_weekday = local.isoweekday() in {number or 7 for number in numbers(weekday, 0, 7)}
    either = not (day.startswith("*") or weekday.startswith("*"))
    return (
        local.minute in numbers(minute, 0, 59)
        and local.hour in numbers(hour, 0, 23)
        and local.month in numbers(month, 1, 12)
        and ((by_day or by_weekday) if either else (by_day and by_weekday))
    )


def numbers(text: str, low: int, high: int) -> set[int]:
    names = {"SUN": 7, "SAT": 6, "MAR": 3, "OCT": 10, "NOV": 11}
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = low if first == "*" else names.get(first) or int(first)
        end = high if first == "*" or (step and not last) else names.get(last) or int(last or begin)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


@settings(max_examples=150, deadline=None)
@given(fields, zones, st.one_of(moments, near_a_change))
def test_the_next_time_is_what_counting_minutes_finds(
    words: tuple[str, ...], zone: str, when: dt.datetime
) -> None:
    cron = Cron(" ".join(words), zone)
    skips = words[1] != "*"

    found = cron.next_after(when)

    assert found > when
    moment = when.replace(second=0, microsecond=0) + MINUTE
    for _ in range(1600):
        local = moment.astimezone(ZoneInfo(zone))
        if moment == found:
            after_gap = (
                skips and local.utcoffset() != (moment - MINUTE).astimezone(ZoneInfo(zone)).utcoffset()
            )
            assert is_meant(cron, moment) or after_gap
            break
        is_repeated = skips and local.fold == 1
        assert not is_meant(cron, moment) or is_repeated, f"{moment} was passed over"
        moment += MINUTE


@settings(max_examples=30, deadline=None)
@given(fields, zones, near_a_change, st.integers(0, 3000), st.integers(1, 20))
def test_the_latest_times_of_a_span_are_the_last_that_following_it_finds(
    words: tuple[str, ...], zone: str, since: dt.datetime, minutes: int, most: int
) -> None:
    cron, until = Cron(" ".join(words), zone), since + minutes * MINUTE
    every, when = [], since - dt.timedelta(microseconds=1)
    while (when := cron.next_after(when)) <= until:
        every.append(when)

    assert cron.latest(since, until, most) == every[-most:]


def test_the_latest_time_of_a_very_long_span_is_found_at_once() -> None:
    cron = Cron("* * * * *")

    assert cron.latest(at("1926-01-01"), at("2026-01-01T00:00:30"), 2) == [
        at("2025-12-31T23:59"),
        at("2026-01-01T00:00"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has five fields"),
        ("* * * *", "has 4"),
        ("0 0 1 1 * 2026", "has 6"),
        ("@reboot", "@hourly"),
        ("60 * * * *", "minute field '60' .* 0 to 59"),
        ("* 24 * * *", "hour field '24' .* 0 to 23"),
        ("* * 0 * *", "day field '0' .* 1 to 31"),
        ("* * * 13 *", "month field '13' .* 1 to 12 or JAN"),
        ("* * * * 8", "weekday field '8' .* 0 to 7 or SUN"),
        ("* * * * FOO", "'FOO' is none of them"),
        ("* * JAN * *", "day field 'JAN'"),
        ("*/0 * * * *", "a step is from 1 to 60"),
        ("*/90 * * * *", "a step is from 1 to 60"),
        ("30-10 * * * *", "runs backwards"),
        ("1,,2 * * * *", "a part of it is empty"),
        ("* * L * *", "day field 'L'"),
        ("5- * * * *", "cannot be read"),
        ("٣ * * * *", "cannot be read"),
        ("9999999999999999999 * * * *", "is none of them"),
        ("0 0 30 2 *", "a day that no such month has"),
        ("0 0 31 4,6 *", "a day that no such month has"),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_field_is_named(text: str, told: str) -> None:
    with pytest.raises(CronInvalid, match=told):
        Cron(text)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "Europe", "../etc/passwd", "UTC\0"])
def test_a_time_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(CronInvalid, match="time zone"):
        Cron("* * * * *", zone)


def test_a_time_without_a_zone_is_refused_and_so_is_the_end_of_the_calendar() -> None:
    with pytest.raises(CronInvalid, match="no time zone"):
        Cron("@daily").next_after(dt.datetime(2026, 1, 1))
    for text in ("0 0 29 2 *", "* * 29 2 *", "@daily", "@hourly"):
        with pytest.raises(CronInvalid, match="means no time after"):
            Cron(text).next_after(at("9999-12-31T23:59"))
