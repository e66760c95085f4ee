"""The page of one run: what it is, what it waits for, its graph, its steps in time, its last events; live."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import BaseRoute

from holdfast.values import RunStatus
from holdfast.web.pages import run_actions, run_parts
from holdfast.web.pages.fields import Field
from holdfast.web.pages.rendering import Asked, Page, Pages, run_path, segment
from holdfast.web.pages.run_bars import bars
from holdfast.web.pages.wording import lasted, mark, one_line
from holdfast.web.streams import Streams

ROWS = 50
"""How many executions of steps, and how many steps, the page shows."""

LATEST = 15
"""How many events the page shows."""


def routes(pages: Pages) -> list[BaseRoute]:
    """Return the routes of the page of a run, and of those below it."""
    return [
        pages.view("/runs/{run_id}", show_run),
        pages.raw("/runs/{run_id}/live", follow),
        *run_parts.routes(pages),
        *run_actions.routes(pages, show_run_again),
    ]


def show_run(asked: Asked) -> Page:
    """Show a run."""
    return _page(asked, done=asked.query.get("done", ""))


def show_run_again(
    asked: Asked, status: int, problem: str = "", pause: str = "", fields: Sequence[Field] = ()
) -> Page:
    """Show a run after an answer was refused: at the form of its question, with what was written, or on top."""
    return _page(asked, status, problem=problem, refused=pause, fields=fields)


def _page(
    asked: Asked,
    status: int = 200,
    *,
    done: str = "",
    problem: str = "",
    refused: str = "",
    fields: Sequence[Field] = (),
) -> Page:
    run_id, service = asked.run_id, asked.service
    facts = service.overview(run_id, lambda step: asked.root + run_path(run_id, "steps", segment(step)))
    questions = [
        {
            **pause,
            "token": _token(asked, pause["id"]),
            "mark": mark(pause["id"]),
            "problem": problem if pause["id"] == refused else "",
            "fields": fields if pause["id"] == refused else run_actions.answer_fields(pause),
        }
        for pause in facts["pauses"]
    ]
    asked_now = [question for question in questions if question["takes_answer"]]
    for number, question in enumerate(asked_now, 1):
        question["number"] = number
    tail = service.tail(run_id, None, LATEST)
    return Page(
        "run.html",
        run_id,
        {
            "run": facts,
            "tab": "run",
            "questions": questions,
            "asked_count": len(asked_now),
            "problem": problem if not any(question["problem"] for question in questions) else "",
            "done": run_actions.done_text(done, asked.query.get("to", ""), facts),
            "done_until": "question"
            if done == "answer"
            else "stopped"
            if done in run_actions.STOPPING
            else "",
            "done_more": run_actions.MORE,
            "answered": run_actions.answered(tail["events"]),
            "is_paused_by_hand": _stopped_by(facts) == "pause",
            "said": said(facts),
            "helps": run_actions.helps(asked, facts),
            "actions": run_actions.actions(asked, facts),
            "drawing": Markup(facts["drawing"]),
            "bars": bars(service.waterfall(run_id, None, ROWS)),
            "steps": facts["steps"][:ROWS],
            "step_count": len(facts["steps"]),
            "events": tail["events"][::-1],
            "has_more_events": tail["before"] is not None,
            "is_going": facts["goes_on"] or facts["status"] == RunStatus.RUNNING,
        },
        status,
    )


def _token(asked: Asked, pause: str) -> str:
    """Return a text that is the same for each form of one question that a browser is shown."""
    return hashlib.sha256(f"{asked.session}\n{asked.run_id}\n{pause}".encode()).hexdigest()[:32]


def _stopped_by(facts: Mapping[str, Any]) -> str:
    """Return the command that stopped a run, if one did."""
    return facts["stopped_by"]["command"] if facts["stopped_by"] else ""


def _by_hand(facts: Mapping[str, Any]) -> str:
    """Return what stopped a run that a command stopped: which, who sent it, and why."""
    stop, name = facts["stopped_by"], {"pause": "paused", "cancel": "cancelled"}[_stopped_by(facts)]
    by = f" by {one_line(stop['by'], 60)}" if stop["by"] else " by hand"
    why = f": {one_line(stop['why'], 200)}" if stop["why"] not in ("", name) else ""
    return f"{name.capitalize()}{by}{why}"


def said(facts: Mapping[str, Any]) -> str:
    """Return how a run is, in one sentence."""
    done, total = facts["progress"]["done"], facts["progress"]["total"]
    steps = f"{done} of {total} steps done" if total else "no steps yet"
    if facts["dead"]:
        return f"The process that executed it is gone; {steps}."
    asked = [pause["prompt"] or pause["name"] for pause in facts["pauses"] if pause["takes_answer"]]
    if facts["status"] == RunStatus.PAUSED and asked:
        return f"It waits for {'an answer' if len(asked) == 1 else f'{len(asked)} answers'}; {steps}."
    if facts["status"] == RunStatus.PAUSED and facts["due_at"]:
        return f"It goes on by itself when its time has come; {steps}."
    if facts["status"] == RunStatus.COMPLETED:
        return f"Completed; its steps took {lasted(facts['seconds'])}."
    how = _by_hand(facts) if facts["stopped_by"] else facts["status"].capitalize()
    return f"{how}; {steps}."


async def follow(asked: Asked) -> Response:
    """Tell a page whenever something happens in a run; the page then asks for what it shows."""
    run_id, service = asked.run_id, asked.service
    assert asked.request is not None
    after = asked.request.headers.get("last-event-id")
    if after is None:
        place = (await run_in_threadpool(service.follow, run_id, None)).place
        after = str(place[0])
    found = await run_in_threadpool(service.events, run_id, after, 1)
    known = await run_in_threadpool(service.status, run_id)
    if not found and known["status"] == RunStatus.COMPLETED:
        return Response(status_code=204)  # A browser does not connect again after this.
    streams: Streams = asked.request.app.state.streams
    return streams.response(_changes(streams.follow(service, run_id, after)), asked.caller)


async def _changes(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield that something happened, without what: events may have large values."""
    async for text in events:
        if not text.startswith("id: "):
            yield text
            continue
        yield f"{text.partition(chr(10))[0]}\nevent: change\ndata: {{}}\n\n"
