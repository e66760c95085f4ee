"""Making pages: templates, views and forms as handlers of requests, and errors as pages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.errors import HoldfastError
from holdfast.service.reading import RequestInvalid
from holdfast.service.roles import NEEDS, Caller, Unauthorized
from holdfast.service.service import Service
from holdfast.web import problems
from holdfast.web.context import COOKIE, Context
from holdfast.web.pages import wording
from holdfast.web.pages.statics import static_path
from holdfast.web.reading import read_bytes

logger = logging.getLogger("holdfast.web")

MOST_FORM_BYTES = 5_000_000
"""How many bytes a form may have."""

NAVIGATION = (
    ("Runs", "/runs"),
    ("Workflows", "/workflows"),
    ("Costs", "/costs"),
    ("Fleet", "/fleet"),
    ("Store", "/store"),
)
"""The pages that every page leads to."""

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page to show: its template, and the facts that fill it."""

    template: str
    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as views and forms see it: the service of its caller, the caller, and what the request gives."""

    service: Service
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)
    request: Request | None = None

    def may(self, method: str) -> bool:
        """Return whether the caller may use a method of the service."""
        role = NEEDS.get(method, "read")
        return self.caller.may(role) and (role == "read" or not self.service.read_only)

    def given(self, name: str) -> str:
        """Return a part of the query, or of the form that was sent; empty if it is missing."""
        return self.form.get(name, self.query.get(name, ""))

    @property
    def root(self) -> str:
        """The path that the app is mounted at."""
        return "" if self.request is None else _root(self.request)

    @property
    def session(self) -> str:
        """What distinguishes the browser, if it has a session."""
        return "" if self.request is None else self.request.cookies.get(COOKIE, "")

    @property
    def run_id(self) -> str:
        """The run in the path."""
        return unquote(self.path["run_id"])

    @property
    def step(self) -> str:
        """The step in the path."""
        return unquote(self.path["step"])


View = Callable[[Asked], Page]
Form = Callable[[Asked], "str | Page"]
"""What a form does; it returns the path of the page that is shown next, or the form again with what is wrong."""
Answering = Callable[[Asked], Awaitable[Response]]
"""What answers a request with something that is no page: a file, a stream."""


def segment(name: str) -> str:
    """Return a name as one segment of a path, whatever signs it has; `unquote` of the path parameter reverses it."""
    inner = name.replace("%", "%25").replace("/", "%2F")
    if not inner.strip("."):
        inner = inner.replace(".", "%2E")
    return quote(inner, safe="")


def run_path(run_id: str, *rest: str, **query: Any) -> str:
    """Return the path of a run's page, or of one below it."""
    path = "/".join(["/runs", segment(run_id), *rest])
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


class Pages:
    """What makes pages of one server."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._templates = Environment(
            loader=PackageLoader("holdfast.web.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= wording.FILTERS
        self._templates.globals |= {
            "navigation": NAVIGATION,
            "run_path": run_path,
            "segment": segment,
            "static_path": static_path,
        }

    def routes(self) -> list[Route]:
        """Return the routes of the first page and of logins."""
        return [
            Route("/", self._first, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
        ]

    # Views and forms.

    def view(self, path: str, show: View, role: str = "read") -> Route:
        """Return a route that shows a page. `show` runs in a thread, after the caller's role was checked."""

        async def handle(request: Request) -> Response:
            try:
                asked = self._asked(request, role)
                page = await run_in_threadpool(show, asked)
            except HoldfastError as error:
                return self.error(request, error)
            return await run_in_threadpool(self.render, request, page, asked)

        return Route(path, handle, methods=["GET"])

    def form(self, path: str, act: Form, role: str = "operate") -> Route:
        """Return a route that takes a form. `act` runs in a thread, after CSRF token and role were checked."""

        async def handle(request: Request) -> Response:
            try:
                asked = self._asked(request, role, await self._form(request))
                target = await run_in_threadpool(act, asked)
            except HoldfastError as error:
                return self.error(request, error)
            if isinstance(target, Page):
                return await run_in_threadpool(self.render, request, target, asked)
            return RedirectResponse(f"{_root(request)}{target}", 303)

        return Route(path, handle, methods=["POST"])

    def raw(self, path: str, answer: Answering, role: str = "read") -> Route:
        """Return a route that answers with something else than a page, after the caller's role was checked."""

        async def handle(request: Request) -> Response:
            try:
                return await answer(self._asked(request, role))
            except HoldfastError as error:
                return self.error(request, error)

        return Route(path, handle, methods=["GET"])

    def _asked(self, request: Request, role: str, form: Mapping[str, str] | None = None) -> Asked:
        caller = self._context.require(request, role)
        service = self._context.service_of(request)
        query = dict(request.query_params)
        return Asked(service, caller, request.path_params, query, form or {}, request)

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form that was sent; of several with one name the last."""
        data = await read_bytes(request, MOST_FORM_BYTES)
        try:
            pairs = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=10_000)
        except ValueError as error:
            raise RequestInvalid(f"this is no form: {error}") from None
        form = dict(pairs)
        await self._context.check_csrf(request, form)
        return form

    def render(self, request: Request, page: Page, asked: Asked | None = None) -> Response:
        """Return a page as a response. A page of a caller is not kept by caches."""
        facts = {
            "title": page.title,
            "root": _root(request),
            "here": request.url.path.removeprefix(_root(request)),
            "csrf": self._context.csrf(request),
            "caller": asked and asked.caller,
            "may": asked.may if asked is not None else _nothing,
            "store_url": asked and wording.short_url(asked.service.store.url),
            **page.facts,
        }
        text = self._templates.get_template(page.template).render(facts)
        return HTMLResponse(text, page.status, headers={"cache-control": "no-store"})

    # Errors.

    def error(self, request: Request, error: HoldfastError) -> Response:
        """Return an error as a page."""
        document = problems.problem(error)
        if document["status"] >= 500:
            logger.error("%s %s: %s", request.method, request.url.path, error)
        helping = wording.said(error)[1:]
        facts = {
            "problem": document,
            "helps": helping,
            "back": _back(request),
            "is_login": isinstance(error, Unauthorized),
        }
        try:
            asked = self._asked(request, "read") if request.method == "GET" else None
        except HoldfastError:
            asked = None
        title = document["title"].capitalize()
        return self.render(request, Page("error.html", title, facts, document["status"]), asked)

    # The first page, and logins.

    async def _first(self, request: Request) -> Response:
        return RedirectResponse(f"{_root(request)}/runs", 303)

    async def _login(self, request: Request) -> Response:
        """Give a browser a session for a token."""
        try:
            form = await self._form(request)
            session = self._context.login(request, form.get("token", ""))
        except HoldfastError as error:
            return self.error(request, error)
        answer = RedirectResponse(f"{_root(request)}/", 303)
        self._context.keep_session(answer, session, request)
        return answer


def as_page(context: Context, answer: Callable[[Request, Exception], Awaitable[Response]]) -> Any:
    """Return a handler of errors that gives browsers a page, and programs what `answer` gives."""
    pages = Pages(context)

    async def handle(request: Request, error: Exception) -> Response:
        if not wants_page(request):
            return await answer(request, error)
        if not isinstance(error, HoldfastError):
            error = problems.NoSuchPath(f"there is no page {request.url.path!r:.200}")
        return pages.error(request, error)

    return handle


def wants_page(request: Request) -> bool:
    """Return whether a request comes from a person's browser rather than from a program."""
    path = request.url.path.removeprefix(_root(request))
    return "text/html" in request.headers.get("accept", "") and not path.startswith("/api/")


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _back(request: Request) -> str:
    """Return the path of the page that a form was on, if it is one of ours."""
    if request.method == "GET":
        return "/runs"
    path = request.url.path.removeprefix(_root(request))
    parts = path.split("/")
    return run_path(unquote(unquote(parts[2]))) if path.startswith("/runs/") and len(parts) > 2 else "/runs"


def _nothing(method: str) -> bool:
    return False
