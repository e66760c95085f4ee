"""Errors as problem documents (RFC 9457): code, problem, facts, and remedies as HTTP calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast import errors
from holdfast.capsules.summary import TooLarge
from holdfast.errors import HoldfastError, Remedy
from holdfast.service.catalogue import InlineRefused
from holdfast.service.links import LinkRefused, NoLinks
from holdfast.service.reading import RequestInvalid
from holdfast.service.roles import Forbidden, Unauthorized
from holdfast.service.service import ReadOnly, TooManyRuns
from holdfast.web.context import RateExceeded
from holdfast.web.endpoints import PREFIX
from holdfast.workflows.description import problem_facts
from holdfast.workflows.reading.problems import WorkflowInvalid

logger = logging.getLogger("holdfast.web")


class TooLong(RequestInvalid):
    """The body of a request has more bytes than it may."""


class TooSlow(RequestInvalid):
    """The body of a request did not arrive in time."""


class NoSuchPath(HoldfastError):
    """There is nothing at this path, or nothing for this method."""


class Unexpected(HoldfastError):
    """A bug, or something that nobody thought of."""


STATUSES: Mapping[type[HoldfastError], int] = {
    RequestInvalid: 400,
    Unauthorized: 401,
    Forbidden: 403,
    ReadOnly: 403,
    InlineRefused: 403,
    errors.ForeignRun: 403,
    NoLinks: 403,
    NoSuchPath: 404,
    errors.RunNotFound: 404,
    errors.CheckpointNotFound: 404,
    errors.UnknownWorkflow: 404,
    LinkRefused: 410,
    errors.RunConflict: 409,
    errors.RunExists: 409,
    errors.RunFinished: 409,
    errors.NotPaused: 409,
    errors.CommandRefused: 409,
    errors.PlanOutdated: 409,
    errors.GraphChanged: 409,
    TooLarge: 413,
    TooLong: 413,
    TooSlow: 408,
    Unexpected: 500,
    errors.CorruptJournal: 500,
    TooManyRuns: 429,
    RateExceeded: 429,
    errors.ResourceExhausted: 503,
    errors.StoreError: 503,
}
"""The status of each kind of error; that of the nearest class holds. All others are 422: the request does not fit."""

CALLS: Mapping[str, tuple[str, str]] = {
    "answer": ("POST", "/runs/{run}/answer"),
    "cancel": ("POST", "/runs/{run}/cancel"),
    "delete": ("DELETE", "/runs/{run}"),
    "fork": ("POST", "/runs/{run}/fork"),
    "list_checkpoints": ("GET", "/checkpoints"),
    "list_runs": ("GET", "/runs"),
    "list_workflows": ("GET", "/workflows"),
    "read": ("GET", "/runs/{run}"),
    "rerun": ("POST", "/runs/{run}/rerun"),
    "resume": ("POST", "/runs/{run}/resume"),
    "skip": ("POST", "/runs/{run}/skip"),
    "check": ("GET", "/health"),
}
"""The call of each remedy; one that is not here and has no text of its own is left out."""

WORDS = {"choose_run_id": "give the new run another id"}


def status_of(error: HoldfastError) -> int:
    """Return the HTTP status of an error."""
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 422)


def problem(error: HoldfastError) -> dict[str, Any]:
    """Return an error as a problem document."""
    return {
        "type": "about:blank",
        "title": error.code.replace("_", " "),
        "status": status_of(error),
        "detail": error.public_problem,
        "code": error.code,
        "facts": _facts(error),
        "remedies": [found for remedy in error.remedies if (found := _remedy(remedy)) is not None],
    }


def _facts(error: HoldfastError) -> dict[str, Any]:
    if isinstance(error, WorkflowInvalid):
        return {"problems": [problem_facts(each) for each in error.problems]}
    plain = (str, int, float, bool, type(None))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(error).items()
        if not name.startswith("_")
        and name not in ("remedies", "store")
        and (
            isinstance(value, plain)
            or (isinstance(value, tuple) and all(isinstance(x, plain) for x in value))
        )
    }


def _remedy(remedy: Remedy) -> dict[str, Any] | None:
    if remedy.text or remedy.action in WORDS:
        return {"action": remedy.action or "note", "text": remedy.text or WORDS[remedy.action]}
    if remedy.action not in CALLS:
        return None
    method, path = CALLS[remedy.action]
    call = f"{PREFIX}{path.format(run=quote(remedy.run_id, safe=''))}"
    found: dict[str, Any] = {
        "action": remedy.action,
        "method": method,
        "path": call,
        "text": f"{method} {call}",
    }
    body = {name: value for name, value in remedy.options.items() if name == "step"}
    return {**found, "body": body} if body else found


def response(error: HoldfastError) -> Response:
    """Return an error as a response."""
    document = problem(error)
    headers = {}
    if document["status"] == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if document["status"] in (429, 503):
        headers["Retry-After"] = "5"
    return JSONResponse(document, document["status"], headers=headers, media_type="application/problem+json")


async def on_error(request: Request, error: Exception) -> Response:
    """Return an error of ours as a problem document."""
    assert isinstance(error, HoldfastError)
    if status_of(error) >= 500:
        logger.error("%s %s: %s", request.method, request.url.path, error)
    return response(error)


def crash(request: Request, error: Exception) -> Response:
    """Return any other error as a problem document that tells nothing of it; the log has it."""
    logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return response(Unexpected("something unexpected went wrong; the log of the server says what"))
