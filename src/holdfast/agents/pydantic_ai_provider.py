"""The provider that asks models through pydantic-ai."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pydantic_ai
from pydantic_ai import exceptions as known
from pydantic_ai.messages import (
    PartDeltaEvent,
    PartStartEvent,
    RetryFeedbackPart,
    TextPart,
    TextPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.usage import RunUsage, UsageLimits

from holdfast.agents.aside import Aside, Late
from holdfast.agents.provider import (
    AgentError,
    AgentOutputInvalid,
    AgentReply,
    AgentRequest,
    TransientAgentError,
    Usage,
)
from holdfast.agents.pydantic_agent import ToolBroke, agent_for, unwrapped
from holdfast.agents.schema import unsupported

# Where a request goes and with which key: from a request to one of pydantic-ai's models.


_KEY_VARIABLES = {
    "azure": "AZURE_OPENAI_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "cohere": "CO_API_KEY",
    "google-cloud": "GOOGLE_API_KEY",
    "heroku": "HEROKU_INFERENCE_KEY",
    "huggingface": "HF_TOKEN",
    "openai-responses": "OPENAI_API_KEY",
    "vercel": "VERCEL_AI_GATEWAY_API_KEY",
}
_NO_KEY = "no-key"


def key_variable(model: str) -> str:
    """Return the environment variable that holds the key for `model`."""
    prefix = model.partition(":")[0]
    return _KEY_VARIABLES.get(prefix, f"{prefix.upper().replace('-', '_')}_API_KEY")


def place(request: AgentRequest) -> str:
    """Return where the request goes, for messages: without user names, keys and paths."""
    if request.base_url is None:
        return "the service"
    parts = urlsplit(request.base_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def model_for(request: AgentRequest) -> Model[Any]:
    """Return the model that `request` names, with an HTTP client of its own: enter it to have that closed."""
    if request.base_url is not None and not request.base_url.startswith(("http://", "https://")):
        raise AgentError(
            f"base_url {request.base_url!r} for {request.model} must begin with http:// or https://"
        )
    try:
        if request.model.startswith("openai:"):
            return _openai(request)
        return _inferred(request)
    except ImportError as error:
        raise AgentError(
            f"model {request.model!r} needs a package that is not installed: {error}; "
            "pip install 'holdfast[agents]' brings the one for openai"
        ) from error


def _openai(request: AgentRequest) -> Model[Any]:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    base_url = request.base_url or os.environ.get("OPENAI_BASE_URL") or None
    key = request.api_key or os.environ.get("OPENAI_API_KEY") or None
    provider: Provider[Any]
    if base_url is not None:
        provider = OpenAICompatibleProvider("openai", base_url=base_url, api_key=key or _NO_KEY)
    elif key is not None:
        provider = OpenAIProvider(api_key=key)
    else:
        raise AgentError(
            f"model {request.model!r} needs a key: set OPENAI_API_KEY, or give a base_url that needs none"
        )
    name = request.model.partition(":")[2]
    # A stream that just stops is a lost connection, not the end of the text.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(name, provider=provider, profile=whole)


def _inferred(request: AgentRequest) -> Model[Any]:
    given = {"base_url": request.base_url, "api_key": request.api_key}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return infer_model(request.model, provider_factory=infer_provider)
    try:
        return infer_model(request.model, provider_factory=lambda name: infer_provider_class(name)(**given))
    except TypeError as error:
        raise AgentError(
            f"model {request.model!r} does not take {' or '.join(given)} from a workflow"
        ) from error


# What a failed call means: which errors of pydantic-ai are worth another try, and what to tell people.


_PASSING = frozenset({408, 409, 425, 429})
_MOST_CHARACTERS = 500


def failure(error: Exception, request: AgentRequest, usage: Usage, answered: bool) -> AgentError | None:
    """Return the error that people get for `error`, or `None` if it is not one of pydantic-ai's.

    `answered` says whether the model's last turn came through; what came instead may be a passing trouble.
    """
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
    if isinstance(error, known.ModelQuotaExceededError):
        return False  # Sent as 429, but waiting does not fill an account.
    if status is not None:
        return status in _PASSING or status >= 500
    return not isinstance(error, known.ModelRequestRejectedError)


def _happened(error: Any, status: int | None, request: AgentRequest) -> str:
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
    """Return what the service itself says, or what happened on the way to it, without the frames around it."""
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message") if isinstance(inner, dict) else inner
    return str(body) if body else _first_line(_root(error))


def _root(error: BaseException) -> BaseException:
    """Return the error that began it, as far as it says anything."""
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


_CORRECTIONS = 1


class PydanticAIProvider:
    """Asks any model that pydantic-ai knows. Keeps nothing between calls."""

    def complete(self, request: AgentRequest, on_text: Callable[[str], None] | None = None) -> AgentReply:
        """Return the model's reply, as `Provider.complete` promises. Tools and `on_text` run in the caller's thread.

        A tool that has begun is not interrupted by the timeout, and what it raises ends the call.
        """
        if request.output_schema is not None and (reason := unsupported(request.output_schema)):
            raise AgentError(f"the output_schema for {request.model} cannot be used: {reason}")
        call = _Call(request, on_text)
        try:
            return call.aside.run(call.converse, request.timeout)
        except ToolBroke as broke:
            raise AgentError(str(broke), usage=call.usage) from broke.error
        except Exception as error:
            raised = call.failure(error)
            if raised is None:
                raise
        # Outside the handler: what the service sent may hold things that belong in no journal.
        raise raised


class _Call:
    """One call: a conversation of as many turns as the tools and one correction need."""

    def __init__(self, request: AgentRequest, on_text: Callable[[str], None] | None) -> None:
        self.request, self.on_text = request, on_text
        self.aside: Aside[AgentReply] = Aside()
        self._spent: RunUsage = RunUsage()
        self._turns = self._corrections = 0

    @property
    def usage(self) -> Usage:
        """What the call has used up so far."""
        return Usage(self._spent.input_tokens, self._spent.output_tokens, self._spent.requests)

    def failure(self, error: Exception) -> AgentError | None:
        """Return the error that the caller gets for `error`, if it is about the model."""
        request = self.request
        if isinstance(error, Late):
            message = f"{request.model} at {place(request)} did not answer within {request.timeout:g} s"
            return TransientAgentError(message, usage=self.usage)
        if isinstance(error, AgentError):
            error.usage = self.usage
            return error
        return failure(error, request, self.usage, answered=self._spent.requests >= self._turns)

    async def converse(self) -> AgentReply:
        """Return the reply, after as many turns as it takes."""
        pydantic_ai.BANNER_ENABLED = False
        prompt, model = self.request.prompt, model_for(self.request)
        agent = agent_for(self.request, self.aside)
        limits = UsageLimits(request_limit=self.request.max_turns)
        async with model, agent.iter(prompt, model=model, usage=self._spent, usage_limits=limits) as run:
            async for node in run:
                if pydantic_ai.Agent.is_model_request_node(node):
                    self._count(node.request.parts, run.all_messages())
                    if self.on_text is not None:
                        await self._stream(node.stream(run.ctx), self.on_text)
        assert run.result is not None
        return self._reply(run.result.output, run.result.response.model_name)

    def _count(self, parts: Any, before: Sequence[Any]) -> None:
        """Let the model correct its output once; the second time, give up and say what was wrong."""
        self._turns += 1
        reasons = [_reason(part.content) for part in parts if self._corrects(part)]
        if reasons and before and getattr(before[-1], "finish_reason", None) == "length":
            raise AgentOutputInvalid(
                f"the output of {self.request.model} was cut off at max_tokens; raise it, or ask for less"
            )
        self._corrections += bool(reasons)
        if self._corrections > _CORRECTIONS:
            raise AgentOutputInvalid(
                f"{self.request.model} gave no usable output, even when asked to correct it: {reasons[0]}"
            )

    def _corrects(self, part: Any) -> bool:
        """Return True if a part of a request asks for the output again: not so for a tool's wrong arguments."""
        if isinstance(part, ToolReturnPart):
            return part.outcome == "retried" and part.tool_name not in {
                tool.name for tool in self.request.tools
            }
        return isinstance(part, RetryFeedbackPart)

    async def _stream(self, opening: Any, on_text: Callable[[str], None]) -> None:
        async with opening as stream:
            async for event in stream:
                if text := _text_of(event):
                    await self.aside.call(functools.partial(on_text, text))

    def _reply(self, output: Any, model: str | None) -> AgentReply:
        schema = self.request.output_schema
        if schema is None:
            text = output
        else:
            output = unwrapped(output, schema)
            text = json.dumps(output, ensure_ascii=False)
        cost = None if self._spent.cost is None else float(self._spent.cost)
        return AgentReply(output, text, self.usage, model or self.request.model, cost)


def _reason(content: Any) -> str:
    """Return why an output was not taken: a sentence, or what pydantic found wrong."""
    return content if isinstance(content, str) else "; ".join(str(problem["msg"]) for problem in content)


def _text_of(event: Any) -> str:
    """Return the text that an event of a stream adds to the reply."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return str(event.part.content)
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return str(event.delta.content_delta)
    return ""
