"""What a failed call means: which errors of pydantic-ai are worth another try, and what to tell people."""

from __future__ import annotations

import math
import os
from typing import Any

from holdfast.agents.endpoints import key_variable, place
from holdfast.agents.provider import (
    AgentError,
    AgentRequest,
    TransientAgentError,
    Usage,
)

_PASSING = frozenset({408, 409, 425, 429})
_MOST_CHARACTERS = 500


def failure(error: Exception, request: AgentRequest, usage: Usage, answered: bool) -> AgentError | None:
    """The error that people get for `error`, or `None` if it is not one of pydantic-ai's.

    `answered` says whether the model's last turn came through; what came instead may be a passing trouble.
    """
    from pydantic_ai import exceptions as known

    if isinstance(error, known.ModelAPIError):
        return _refused(error, request, usage)
    if isinstance(error, known.UsageLimitExceeded):
        return AgentError(
            f"{request.model} wanted more than {request.max_turns} turns; "
            "raise max_turns, or give it fewer tools or a narrower task",
            usage=usage,
        )
    if isinstance(error, known.ContentFilterError):
        return AgentError(f"{request.model} declined to answer: {_short(str(error), request)}", usage=usage)
    if isinstance(error, known.UnexpectedModelBehavior) and not answered:
        said = _short(_first_line(error), request)
        return TransientAgentError(
            f"{_subject(request)} sent an answer that cannot be used: {said}", usage=usage
        )
    if isinstance(error, (known.AgentRunError, known.UserError)):
        return AgentError(f"{request.model} failed: {_short(_first_line(error), request)}", usage=usage)
    return None


def _refused(error: Any, request: AgentRequest, usage: Usage) -> AgentError:
    from pydantic_ai import exceptions as known

    status = error.status_code if isinstance(error, known.ModelHTTPError) else None
    message = f"{_subject(request)} {_happened(error, status, request)}"
    if _passes(error, status):
        return TransientAgentError(message, usage=usage, retry_after=_retry_after(error))
    return AgentError(message, usage=usage)


def _retry_after(error: Any) -> float | None:
    """Seconds to wait, as the service says; some say it with a fraction, which the standard does not know."""
    if error.retry_after is not None:
        return float(error.retry_after)
    try:
        seconds = float((getattr(error, "headers", None) or {}).get("retry-after", "nan"))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _passes(error: Any, status: int | None) -> bool:
    from pydantic_ai import exceptions as known

    if isinstance(error, known.ModelQuotaExceededError):
        return False  # Sent as 429, but waiting does not fill an account.
    if status is not None:
        return status in _PASSING or status >= 500
    return not isinstance(error, known.ModelRequestRejectedError)


def _happened(error: Any, status: int | None, request: AgentRequest) -> str:
    from pydantic_ai import exceptions as known

    said = _short(_said(error), request)
    if isinstance(error, known.ModelQuotaExceededError):
        return f"says the account's quota is used up: {said}"
    if status in (401, 403):
        # What the service says here may repeat the key.
        return f"refused the key (HTTP {status}): check {_key_source(request)}"
    if status == 404:
        return f"was not found (HTTP 404): {said}; check the model's name and base_url"
    if status is not None:
        return f"answered HTTP {status}: {said}"
    if isinstance(error, known.ModelTimeoutError):
        return "did not answer in time"
    if isinstance(error, known.ModelConnectionError):
        return f"cannot be reached or broke off: {said}"
    return f"sent an answer that cannot be used: {said}"


def _subject(request: AgentRequest) -> str:
    return f"{request.model} at {place(request)}"


def _key_source(request: AgentRequest) -> str:
    return "the api_key that the request carries" if request.api_key else key_variable(request.model)


def _said(error: Any) -> str:
    """What the service itself says, or what happened on the way to it, without the frames around it."""
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message") if isinstance(inner, dict) else inner
    return str(body) if body else _first_line(_root(error))


def _root(error: BaseException) -> BaseException:
    """The error that began it, as far as it says anything."""
    while error.__cause__ is not None and str(error.__cause__):
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _short(text: str, request: AgentRequest) -> str:
    for key in (request.api_key, os.environ.get(key_variable(request.model))):
        if key:
            text = text.replace(key, "***")
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
