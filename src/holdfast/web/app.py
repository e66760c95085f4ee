"""The ASGI app: routes of the API and the pages, what every response carries, and what starts and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import typing
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.service.reading import RequestInvalid
from holdfast.service.requests import Keyed, once
from holdfast.service.roles import Caller, Unauthorized
from holdfast.service.service import LONGEST_WAIT, Service
from holdfast.service.webhooks import Webhooks
from holdfast.values import RunStatus
from holdfast.web import problems
from holdfast.web.context import Context, Login
from holdfast.web.endpoints import ENDPOINTS, PREFIX, Endpoint, openapi, read_body, read_query
from holdfast.web.links import LinkPages
from holdfast.web.pages import page_routes
from holdfast.web.pages.rendering import as_page, run_path
from holdfast.web.reading import read_bytes
from holdfast.web.streams import Streams, stream_owner

KEY_HEADER = "idempotency-key"

MOST_KEPT = 2_000
"""How many replies are kept; a request whose reply is gone is looked up in the journal of its run."""

LONGEST_KEPT = 100_000
"""How many bytes a reply may have that is kept."""

MOST_BYTES = 5_000_000
"""How many bytes the body of a request may have."""

MOST_CAPSULE_BYTES = 200_000_000
"""How many bytes a capsule that is sent may have."""

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_WAIT = 0.05


def make_app(
    context: Context,
    *,
    pages: bool = True,
    mcp: Protocols | None = None,
    webhooks: Sequence[Webhooks] = (),
) -> Starlette:
    """Return the app of a context."""
    api = Api(context)
    spoken = None if mcp is None else Spoken(context, mcp, api.streams)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        for each in context.services.values():
            each.start()
        try:
            for hooks in webhooks:
                await run_in_threadpool(hooks.start)
            async with contextlib.AsyncExitStack() as stack:
                if spoken is not None:
                    await spoken.start(stack)
                yield
        finally:
            await api.streams.close()
            for hooks in webhooks:
                await run_in_threadpool(hooks.close)
            for each in context.services.values():
                await run_in_threadpool(each.close)

    routes: list[BaseRoute] = [
        *api.routes(),
        *LinkPages(context).routes(),
        *(page_routes(context) if pages else ()),
    ]
    if spoken is not None:
        routes.append(Route("/mcp", spoken))
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, context=context)],
        exception_handlers={
            HoldfastError: as_page(context, problems.on_error) if pages else problems.on_error,
            404: as_page(context, _not_found) if pages else _not_found,
            405: as_page(context, _not_found) if pages else _not_found,
        },
        lifespan=lifespan,
    )
    app.state.context, app.state.streams = context, api.streams
    return app


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    found = problems.NoSuchPath(f"there is no {request.method} {request.url.path!r:.200}")
    document = {**problems.problem(found), "status": status}
    headers = getattr(error, "headers", None)
    return JSONResponse(document, status, headers=headers, media_type="application/problem+json")


class Protocol(typing.Protocol):
    """What speaks another protocol over HTTP, while `run` is entered."""

    def run(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Start it, and end it."""

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""


Protocols = Callable[[Service], Protocol]
"""What makes the protocol of a service."""


class Spoken:
    """Another protocol under one path, with the same callers: each speaks with the service of their namespace."""

    def __init__(self, context: Context, make: Protocols, streams: Streams) -> None:
        self._context, self._make, self._streams = context, make, streams
        self._by_namespace: dict[str, Protocol] = {}

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Start it for every service."""
        for name, service in self._context.services.items():
            self._by_namespace[name] = self._make(service)
            await stack.enter_async_context(self._by_namespace[name].run())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; `caller` in its scope says who asks."""
        request = Request(scope, receive)
        try:
            caller = self._context.require(request, "read")
            self._context.service_of(request)
            with contextlib.ExitStack() as place:
                if request.method == "POST":
                    receive = _replayed(await read_bytes(request, MOST_BYTES), receive)
                else:
                    place.enter_context(self._streams.counted(stream_owner(caller)))
                protocol = self._by_namespace[caller.namespace]
                await protocol.handle_request({**scope, "caller": caller}, receive, send)
        except HoldfastError as error:
            await problems.response(error)(scope, receive, send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what receives a body that was read already, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


class Guard:
    """Refuses requests of other sites and under other names, and puts the same headers on every response."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_begun = False

        async def guarded(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                known = {name for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in known)]
            await send(message)

        request = Request(scope, receive)
        try:
            self._context.check_site(request)
        except HoldfastError as error:
            await problems.response(error)(scope, receive, guarded)
            return
        try:
            await self._app(scope, receive, guarded)
        except Exception as error:
            if is_begun:
                raise  # The server ends the connection, so that the client sees that the response is not whole.
            await problems.crash(request, error)(scope, receive, guarded)


class QuotedRoute(Route):
    """A route whose parameters are unquoted one by one: a quoted slash in a name separates nothing."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a request is for this route, and its parameters."""
        if scope["type"] != "http":
            return Match.NONE, {}
        match, found = super().matches({**scope, "path": quoted_path(scope)})
        params = found.get("path_params", {})
        for name in self.param_convertors.keys() & params.keys():
            params[name] = unquote(params[name])
        return match, found


def quoted_path(scope: Scope) -> str:
    """Return the path of a request as it was sent; what the app is mounted under is as the server says it."""
    path, root = scope["path"], scope.get("root_path", "")
    raw = (scope.get("raw_path") or quote(path).encode()).decode("latin-1").partition("?")[0]
    inner = raw.split("/")[root.count("/") + 1 :]
    return "/".join([root, *inner]) if path.startswith(root) else raw


class Replies:
    """The latest replies by the key of their request; two requests of one key never act at the same time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, Response]] = OrderedDict()
        self._busy: dict[str, asyncio.Lock] = {}

    async def reply(self, request: Keyed, act: Callable[[], Awaitable[Response]]) -> Response:
        """Return the reply that a request got before, or what `act` returns. An error is not kept."""
        lock = self._busy.setdefault(request.name, asyncio.Lock())
        try:
            async with lock:
                content, kept = self._kept.get(request.name, (request.content, None))
                if content != request.content:
                    raise request.reused()
                if kept is not None:
                    return kept
                found = await act()
                if len(found.body) <= LONGEST_KEPT:
                    self._kept[request.name] = request.content, found
                    while len(self._kept) > MOST_KEPT:
                        self._kept.popitem(last=False)
                return found
        finally:
            if not lock.locked():
                self._busy.pop(request.name, None)


class Api:
    """The handlers of the API."""

    def __init__(self, context: Context) -> None:
        self._context, self.streams = context, Streams()
        self._document, self._replies = openapi(bool(context.tokens)), Replies()

    def routes(self) -> list[Route]:
        """Return the routes of the API, of its document, of the metrics and of logins."""
        made = [
            QuotedRoute(
                f"{PREFIX}{endpoint.path}",
                partial_async(self._answer, endpoint),
                methods=[endpoint.method],
                name=f"{endpoint.method} {endpoint.path}",
            )
            for endpoint in ENDPOINTS
        ]
        return [
            *made,
            Route(f"{PREFIX}/openapi.json", self._openapi, methods=["GET"]),
            Route(f"{PREFIX}/login-links", self._login_link, methods=["POST"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/login", self._login, methods=["GET"]),
        ]

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(self._document)

    async def _metrics(self, request: Request) -> Response:
        self._context.require(request, "read")
        text = await run_in_threadpool(self._context.service_of(request).metrics)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _login_link(self, request: Request) -> Response:
        caller = self._context.require(request, "read")
        return JSONResponse(
            {"path": f"/login?code={self._context.logins.add(Login(caller))}", "seconds": 300}
        )

    async def _login(self, request: Request) -> Response:
        found = self._context.logins.take(request.query_params.get("code", ""))
        if found is None:
            raise Unauthorized("this link was used, or is too old; `holdfast ui` makes another")
        target = run_path(found.run_id) if found.run_id else "/"
        answer = RedirectResponse(f"{request.scope.get('root_path', '')}{target}", 303)
        self._context.keep_session(answer, self._context.sessions.add(found.caller), request)
        return answer

    # Endpoints.

    async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
        """Answer a request by the method of the service that its endpoint names."""
        if endpoint.is_open:
            service, caller = next(iter(self._context.services.values())), Caller("anybody")
        else:
            caller = self._context.require(request, endpoint.role)
            service = self._context.service_of(request)
        given: dict[str, Any] = dict(request.path_params)
        given |= read_query(endpoint, request.query_params.multi_items())
        if endpoint.call == "import_":
            given["data"] = await read_bytes(request, MOST_CAPSULE_BYTES)
        elif endpoint.body is not None:
            given |= read_body(endpoint, await _json(request))
        if endpoint.acts and endpoint.call != "validate":
            given["who"] = caller.name
        if endpoint.answers == "events" and (last := request.headers.get("last-event-id")) is not None:
            given["after"] = last
        if endpoint.answers == "events" and "text/event-stream" in request.headers.get("accept", ""):
            return await self._stream(service, request, given, caller)
        if (key := request.headers.get(KEY_HEADER)) is not None and endpoint.method == "POST":
            asked = {
                **given,
                "data": hashlib.sha256(given.get("data", b"")).hexdigest(),
                "call": endpoint.call,
            }
            keyed = Keyed.of(caller.name, caller.namespace, key, asked)
            return await self._replies.reply(keyed, lambda: self._done(endpoint, service, given, keyed))
        return await self._done(endpoint, service, given)

    async def _done(
        self, endpoint: Endpoint, service: Service, given: dict[str, Any], keyed: Keyed | None = None
    ) -> Response:
        """Call the method of the service that an endpoint names; return what it returns."""
        seconds = given.pop("wait" if endpoint.acts else "seconds", None)
        if endpoint.call == "wait":
            return await self._waited(service, given["run_id"], seconds or 0.0, {})
        act = partial(getattr(service, endpoint.call), **given)
        found = await run_in_threadpool(
            act if keyed is None else partial(once, service, keyed, endpoint.call, given)
        )
        if seconds:
            return await self._waited(service, found["run_id"], seconds, found)
        if endpoint.is_open:  # Nothing about the machine, for strangers see it.
            return JSONResponse({"status": found["status"], "worker": found["worker"]})
        if endpoint.answers == "capsule":
            name = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in given["run_id"])[:80]
            headers = {"content-disposition": f'attachment; filename="{name}.capsule"'}
            return Response(found, media_type="application/octet-stream", headers=headers)
        return JSONResponse(found)

    async def _waited(self, service: Service, run_id: str, seconds: float, first: dict[str, Any]) -> Response:
        """Answer when a run has stopped, or after so many seconds; no thread waits meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(seconds, LONGEST_WAIT)
        while loop.time() < end:
            found = await run_in_threadpool(partial(service.store.runs, run=run_id))
            if not found or found[0].status not in (RunStatus.QUEUED, RunStatus.RUNNING):
                break
            await asyncio.sleep(_WAIT)
        return JSONResponse({**first, **await run_in_threadpool(service.wait, run_id, None)})

    async def _stream(
        self, service: Service, request: Request, given: dict[str, Any], who: Caller
    ) -> Response:
        after = str(given.get("after", "0"))
        found = await run_in_threadpool(service.events, given["run_id"], after, 1)
        status = await run_in_threadpool(partial(service.store.runs, run=given["run_id"]))
        if not found and status and status[0].status == RunStatus.COMPLETED:
            return Response(status_code=204)  # A browser does not connect again after this.
        return self.streams.response(self.streams.follow(service, given["run_id"], after), who)


def partial_async(
    answer: Callable[[Endpoint, Request], Awaitable[Response]], endpoint: Endpoint
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler of requests for one endpoint."""

    async def handle(request: Request) -> Response:
        return await answer(endpoint, request)

    return handle


async def _json(request: Request) -> Any:
    data = await read_bytes(request, MOST_BYTES)
    if not data:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestInvalid(f"the body must be application/json, not {kind!r:.80}")
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"the body is no JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
