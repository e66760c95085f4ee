"""The page of costs: what runs used by day, workflow and model, as charts that are laid out here, and tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.routing import BaseRoute

from holdfast import clock
from holdfast.service.reading import RequestInvalid
from holdfast.web.pages.rendering import Asked, Page, Pages
from holdfast.web.pages.runs import given_time
from holdfast.web.pages.wording import lasted, money

PERIODS = {"1": "24 hours", "7": "7 days", "30": "30 days", "90": "90 days", "all": "all time"}
"""The periods to choose from: days until now, and how they are called."""

USUAL = "30"
MOST_DAYS = 92
"""How many days a chart shows; of more, the latest."""

MOST_BARS = 20
"""How many rows a table shows; the smaller ones are added up."""

KINDS = ("day", "workflow", "model")


class Measure(NamedTuple):
    """Something that is added up: how it is called, and how an amount of it reads."""

    title: str
    wasted: str | None
    """The name of the part of which nothing came."""

    def of(self, row: Mapping[str, Any]) -> float:
        """Return how much of it a row has."""
        if self.title == "Cost":
            return float(row["cost"])
        if self.title == "Time":
            return float(row["seconds"])
        return float(row["input_tokens"] + row["output_tokens"])

    def said(self, amount: float) -> str:
        """Return an amount as text."""
        if self.title == "Cost":
            return money(amount)
        return lasted(amount) if self.title == "Time" else f"{amount:,.0f}"


MEASURES = {
    "cost": Measure("Cost", "wasted_cost"),
    "tokens": Measure("Tokens", None),
    "time": Measure("Time", "wasted_seconds"),
}


class Bar(NamedTuple):
    """A bar of a chart, in hundredths of the longest; `wasted` is a part of it."""

    name: str
    amount: float
    said: str
    length: float
    wasted: float
    row: Mapping[str, Any]


def routes(pages: Pages) -> list[BaseRoute]:
    """Return the route of the page of costs."""
    return [pages.view("/costs", show_costs)]


def show_costs(asked: Asked) -> Page:
    """Show what runs used in a time, by day, workflow and model."""
    given: dict[str, str] = {
        name: asked.query[name] for name in ("days", "since", "until", "by") if asked.query.get(name)
    }
    since, until = given_time("since", given), given_time("until", given)
    days = given.get("days", "" if since is not None or until is not None else USUAL)
    if days and days not in PERIODS:
        raise RequestInvalid(f"days must be one of {', '.join(PERIODS)}, not {days!r:.80}")
    if days not in ("", "all"):
        since = clock.time() // 60 * 60 - int(days) * 86_400
    found = asked.service.all_costs(KINDS, since, until)
    usual = "cost" if found["total"]["cost"] else "time"
    if (chosen := given.get("by", usual)) not in MEASURES:
        raise RequestInvalid(f"by must be one of {', '.join(MEASURES)}, not {chosen!r:.80}")
    measure = MEASURES[chosen]
    period: dict[str, str] = {name: given[name] for name in ("days", "since", "until") if name in given}
    shown = columns(found["day"], measure)
    facts = {
        "found": found,
        "total": found["total"],
        "measure": measure,
        "columns": shown,
        "has_wasted": any(column.wasted for column in shown),
        "most": measure.said(max((measure.of(row) for row in found["day"]), default=0.0)),
        "days": bars(list(reversed(found["day"])), measure, MOST_DAYS),
        "sections": [
            ("Workflow", bars(found["workflow"], measure, MOST_BARS)),
            ("Model", bars(found["model"], MEASURES["tokens"] if chosen == "time" else measure, MOST_BARS)),
        ],
        "periods": [(text, _link({**given, "days": each}), each == days) for each, text in PERIODS.items()],
        "measures": [
            (each.title, _link({**period, "by": name}, keep=True), name == chosen)
            for name, each in MEASURES.items()
        ],
        "since": given.get("since", ""),
        "until": given.get("until", ""),
        "by": given.get("by", ""),
    }
    return Page("costs.html", "Costs", facts)


def _link(given: Mapping[str, str], *, keep: bool = False) -> str:
    """Return the path of this page; a period in days stands for itself."""
    query = {name: value for name, value in given.items() if keep or name in ("days", "by")}
    return f"/costs?{urlencode(query)}"


def bars(rows: Sequence[Mapping[str, Any]], measure: Measure, most: int) -> list[Bar]:
    """Return rows as bars; those after the first `most` are left out."""
    longest = max((measure.of(row) for row in rows), default=0.0) or 1.0
    return [_bar(row, measure, longest) for row in rows[:most]]


def _bar(row: Mapping[str, Any], measure: Measure, longest: float) -> Bar:
    amount = measure.of(row)
    wasted = float(row[measure.wasted]) if measure.wasted else 0.0
    return Bar(
        row["name"],
        amount,
        measure.said(amount),
        round(100 * amount / longest, 2),
        round(100 * min(wasted, amount) / longest, 2),
        row,
    )


def columns(rows: Sequence[Mapping[str, Any]], measure: Measure) -> list[Bar]:
    """Return a bar for each day from the first to the last, those without any use included."""
    if not rows:
        return []
    by_day = {row["name"]: row for row in rows}
    last = dt.date.fromisoformat(rows[-1]["name"])
    first = max(dt.date.fromisoformat(rows[0]["name"]), last - dt.timedelta(days=MOST_DAYS - 1))
    longest = max(measure.of(row) for row in rows) or 1.0
    found = []
    for number in range((last - first).days + 1):
        name = (first + dt.timedelta(days=number)).isoformat()
        nothing = {"name": name, **dict.fromkeys(rows[0].keys() - {"name"}, 0)}
        found.append(_bar(by_day.get(name, nothing), measure, longest))
    return found
