"""The pages of the fleet and of the store: who executes runs, what waits, what is planned, and what is intact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.routing import BaseRoute

from holdfast.fleet.queues import is_postgres
from holdfast.service.service import Service
from holdfast.values import RunStatus
from holdfast.web.pages.rendering import Asked, Page, Pages
from holdfast.web.pages.wording import lasted

MOST_NAMED = 8
"""How many runs of a worker are named."""

MOST_CHECKED = 500
"""How many runs, the latest, one check looks at."""

CHECK_SECONDS = 5.0
"""How long one check takes at most."""


def routes(pages: Pages) -> list[BaseRoute]:
    """Return the routes of the pages of the fleet and of the store."""
    return [
        pages.view("/fleet", show_fleet),
        pages.view("/store", show_store),
        pages.form("/store", check_store, role="read"),
    ]


def show_fleet(asked: Asked) -> Page:
    """Show the processes that execute runs, the queues, and the schedules."""
    service = asked.service
    found = service.fleet()
    workers = sorted(
        found["workers"], key=lambda worker: (worker["alive"] is False, worker["host"], worker["pid"])
    )
    facts = {
        "workers": [_worker(each) for each in workers],
        "queues": [{**each, "rate_text": _rate(each["rate"])} for each in found["queues"]],
        "schedules": found["schedules"],
        "is_shared": is_postgres(service.store),
        "has_worker": service.has_worker,
        "read_only": service.read_only,
        "concurrency": service.concurrency,
        "figures": _figures(service, found),
    }
    return Page("fleet.html", "Fleet", facts)


def _figures(service: Service, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a glance should tell: how much goes on, waits, and is left alone."""
    counts = service.counts()
    lapsed = sum(len(each["runs"]) for each in found["workers"] if each["alive"] is False)
    oldest = max((each["oldest_seconds"] or 0.0 for each in found["queues"]), default=0.0)
    return [
        ("Running", f"{counts.get(RunStatus.RUNNING, 0):,}"),
        ("Queued", f"{counts.get(RunStatus.QUEUED, 0):,}"),
        ("Paused", f"{counts.get(RunStatus.PAUSED, 0):,}"),
        ("Without a live process", f"{lapsed:,}"),
        ("Longest wait in a queue", lasted(oldest) if oldest else "none"),
    ]


def _worker(worker: Mapping[str, Any]) -> dict[str, Any]:
    states = {True: "alive", False: "gone", None: "not known"}
    return {
        **worker,
        "state": states[worker["alive"]],
        "named": worker["runs"][:MOST_NAMED],
        "more": max(0, len(worker["runs"]) - MOST_NAMED),
    }


def _rate(rate: Mapping[str, float] | None) -> str:
    return "" if rate is None else f"{rate['starts']:g} in {lasted(rate['seconds'])}"


def show_store(asked: Asked) -> Page:
    """Show what the store holds."""
    return _store(asked, None)


def check_store(asked: Asked) -> Page:
    """Check the latest runs, and show what was found."""
    return _store(asked, asked.service.check_latest(MOST_CHECKED, CHECK_SECONDS))


def _store(asked: Asked, checked: Mapping[str, Any] | None) -> Page:
    service = asked.service
    counts = service.counts()
    facts = {
        "footprint": service.footprint(),
        "counts": [(str(status), counts[str(status)]) for status in RunStatus if str(status) in counts],
        "total": sum(counts.values()),
        "has_worker": service.has_worker,
        "read_only": service.read_only,
        "encrypted": service.journal.seal is not None,
        "checked": checked,
        "most": MOST_CHECKED,
        "seconds": CHECK_SECONDS,
    }
    return Page("store.html", "Store", facts)
