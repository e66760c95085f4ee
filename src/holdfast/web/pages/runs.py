"""The page of runs: filters, counts, and pages by cursor."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.routing import BaseRoute

from holdfast.service.reading import RequestInvalid
from holdfast.values import RunStatus
from holdfast.web.pages.rendering import Asked, Page, Pages

FILTERS = ("status", "workflow", "tag", "text", "since", "until")
ON_A_PAGE = 50


def routes(pages: Pages) -> list[BaseRoute]:
    """Return the routes of the page of runs."""
    return [pages.view("/runs", show_runs)]


def show_runs(asked: Asked) -> Page:
    """Show the runs that the filters leave, the last updated first."""
    given = {name: asked.query[name] for name in FILTERS if asked.query.get(name)}
    cursor = asked.query.get("cursor") or None
    found = asked.service.runs(
        status=given.get("status"),
        workflow=given.get("workflow"),
        tag=given.get("tag"),
        text=given.get("text"),
        since=given_time("since", given),
        until=given_time("until", given),
        limit=ON_A_PAGE,
        cursor=cursor,
        counts=True,
    )
    facts = {
        "runs": found["runs"],
        "counts": [(str(status), found["counts"].get(str(status), 0)) for status in RunStatus],
        "total": sum(found["counts"].values()),
        "given": {name: given.get(name, "") for name in FILTERS},
        "is_filtered": bool(given),
        "is_counted": not given.keys() - {"status"},
        "names": [line["name"] for line in asked.service.workflows()],
        "cursor": cursor,
        "next": found["next"] and _link(given, cursor=found["next"]),
        "first": _link(given),
        "by_status": {str(status): _link({**given, "status": str(status)}) for status in RunStatus},
        "of_any_status": _link({name: value for name, value in given.items() if name != "status"}),
        "here_with_filters": _link(given, cursor=cursor),
    }
    return Page("runs.html", "Runs", facts)


def given_time(name: str, given: Mapping[str, str]) -> float | None:
    """Return a time that a filter gives, as `2026-11-18T10:30` or `2026-11-18`, in UTC."""
    text = given.get(name)
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise RequestInvalid(f"{name} must be a time such as 2026-11-18T10:30, not {text!r:.80}") from None
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()


def _link(given: Mapping[str, Any], **more: Any) -> str:
    query = {name: value for name, value in {**given, **more}.items() if value}
    return f"/runs?{urlencode(query)}" if query else "/runs"
