"""Answer links: a page with a form that answers one question once, without a login."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.errors import AnswerRejected, HoldfastError, NotPaused, RunFinished
from holdfast.service.links import LinkRefused, Question
from holdfast.service.reading import RequestInvalid, pause_facts
from holdfast.service.requests import Keyed, KeyReused, once
from holdfast.service.service import Service
from holdfast.views.run_view import PauseView
from holdfast.web import problems
from holdfast.web.context import Context
from holdfast.web.pages.rendering import Page, Pages
from holdfast.web.reading import read_bytes

MOST_FORM_BYTES = 1_000_000
"""How many bytes an answer may have."""

OVER = (LinkRefused, NotPaused, RunFinished, KeyReused)


class LinkPages:
    """The pages of answer links. What a link allows is one answer to one question, and to read that question."""

    def __init__(self, context: Context) -> None:
        self._context, self._pages = context, Pages(context)
        self._turn = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Return the routes: reading changes nothing, so that programs that look at links answer nothing."""
        return [
            Route("/answer/{token}", self._show, methods=["GET"]),
            Route("/answer/{token}", self._take, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        try:
            service, question = self._meant(request)
            _, pause = await run_in_threadpool(service.asked_by, question)
        except HoldfastError as error:
            return self._refused(request, error)
        return self._asking(request, question, pause)

    async def _take(self, request: Request) -> Response:
        try:
            service, question = self._meant(request)
            async with self._turn:
                info, pause = await run_in_threadpool(service.asked_by, question)
                form = await read_form(request)
                try:
                    value = answer_in(form, pause)
                    await run_in_threadpool(partial(_answer, service, question, pause, value))
                except (AnswerRejected, RequestInvalid) as error:
                    return self._asking(request, question, pause, form, error.public_problem)
        except HoldfastError as error:
            return self._refused(request, error)
        facts = {"workflow": info.workflow, "run_id": info.run}
        return self._pages.render(request, Page("answered.html", "Thank you", facts))

    def _meant(self, request: Request) -> tuple[Service, Question]:
        """Return the question of a link, and the service that has its run."""
        any_service = next(iter(self._context.services.values()))
        if any_service.links is None:
            raise LinkRefused("this server has no answer links")
        try:
            question = any_service.links.read(request.path_params["token"])
        except LinkRefused:
            self._context.count_guess(request)
            raise
        service = self._context.services.get(question.namespace)
        if service is None:
            raise LinkRefused("the runs of this link are not served here any more")
        return service, question

    def _asking(
        self,
        request: Request,
        question: Question,
        pause: PauseView,
        form: Mapping[str, str] | None = None,
        problem: str = "",
    ) -> Response:
        facts = {
            "pause": pause_facts(pause),
            "run_id": question.run_id,
            "choices": choices_of(pause),
            "written": (form or {}).get("answer", ""),
            "problem": problem,
        }
        return self._pages.render(
            request, Page("answer.html", "A question", facts, 422 if problem else 200), None
        )

    def _refused(self, request: Request, error: HoldfastError) -> Response:
        """Say why a link is no use."""
        status = 410 if isinstance(error, OVER) else problems.status_of(error)
        facts = {"problem": error.public_problem}
        return self._pages.render(request, Page("link_refused.html", "This link is no use", facts, status))


def _answer(service: Service, question: Question, pause: PauseView, value: Any) -> None:
    """Answer a question, once however often that is asked, in any process."""
    given = {"run_id": question.run_id, "question": pause.id, "value": value}
    once(service, Keyed.of("answer link", question.namespace, json.dumps(question), given), "answer", given)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that was sent."""
    data = await read_bytes(request, MOST_FORM_BYTES)
    try:
        return dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError as error:
        raise RequestInvalid(f"this is no form: {error}") from None


def choices_of(pause: PauseView) -> list[tuple[str, str]]:
    """Return what can be chosen, as JSON and as it reads; nothing if the answer is written."""
    if (pause.schema or {}).get("type") == "boolean":
        return [("true", "yes"), ("false", "no")]
    return [
        (json.dumps(choice), choice if isinstance(choice, str) else json.dumps(choice))
        for choice in pause.choices or ()
    ]


def answer_in(form: Mapping[str, str], pause: PauseView) -> Any:
    """Return the answer in a form; raise `RequestInvalid` if it has none."""
    text = form.get("answer", "")
    is_text = not choices_of(pause) and (pause.schema or {}).get("type", "string") == "string"
    if is_text:
        return text.replace("\r\n", "\n")
    if not text:
        raise RequestInvalid("choose or write an answer")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RequestInvalid(
            "the answer has to be JSON: a number, a list, an object, or text in quotes"
        ) from None
