"""The provider that asks models through pydantic-ai."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import pydantic_ai
from pydantic_ai import ModelRetry, StructuredDict, ToolOutput
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
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.usage import RunUsage, UsageLimits

from holdfast.agents.provider import (
    AgentError,
    AgentOutputInvalid,
    AgentReply,
    AgentRequest,
    Tool,
    TransientAgentError,
    Usage,
)
from holdfast.agents.schema import misfit, unsupported
from holdfast.errors import ResourceExhausted
from holdfast.threads import start

# Async work for a caller that is not: a private event loop beside the caller's thread.


_Result = TypeVar("_Result")
_Value = TypeVar("_Value")

_GRACE_SECONDS = 1.0
_LOOK_EVERY = 1.0


class Late(Exception):
    """The work was not done in time."""


class Aside(Generic[_Result]):
    """Runs one coroutine in a thread of its own and, while waiting, what it wants run in the caller's thread.

    So it matters neither whether the caller has an event loop, nor whether what is called back may only be
    used in the caller's thread. What a function that was called back raises leaves `run` as it is.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._result: list[_Result] = []
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[_Result] | None = None
        self._left = False

    def run(self, work: Callable[[], Coroutine[Any, Any, _Result]], timeout: float | None) -> _Result:
        """Return what the coroutine returns. `Late` after `timeout` seconds; the coroutine is then cancelled."""
        args = (self._run_loop, work)
        target = contextvars.copy_context().run
        thread = threading.Thread(target=target, args=args, name="holdfast-agent", daemon=True)
        is_over = start(thread, "an agent")
        try:
            self._serve(math.inf if timeout is None else time.monotonic() + timeout, is_over)
        except BaseException:
            self._leave(thread)
            raise
        thread.join()
        if self._error is not None:
            raise self._error
        if not self._result:
            raise ResourceExhausted(
                "the thread of an agent ended without a word, as one does that has no memory left"
            )
        return self._result[0]

    async def call(self, function: Callable[[], _Value]) -> _Value:
        """Inside the coroutine: what `function` returns when it is called in the caller's thread."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Value] = loop.create_future()

        def settle(value: _Value) -> None:
            if not answer.done():
                answer.set_result(value)

        self._jobs.put(lambda: loop.call_soon_threadsafe(settle, function()))
        return await answer

    def _serve(self, deadline: float, is_over: Callable[[], bool]) -> None:
        """Run the coroutine's jobs in this thread until it ends. Poll, since its thread may die silently."""
        while True:
            was_over = is_over()
            left = max(0.0, min(_LOOK_EVERY, deadline - time.monotonic()))
            try:
                job = self._jobs.get(timeout=0.0 if was_over else left)
            except queue.Empty:
                if was_over:
                    return
                if time.monotonic() >= deadline:
                    raise Late from None
                continue
            if job is None:
                return
            job()

    def _leave(self, thread: threading.Thread) -> None:
        """Cancel the coroutine, and wait up to a second for it to close its connections."""
        self._left = True
        if self._loop is not None and self._task is not None:
            try:
                self._loop.call_soon_threadsafe(self._task.cancel)
            except RuntimeError:
                return  # The loop has ended by itself meanwhile.
        thread.join(_GRACE_SECONDS)

    def _run_loop(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> None:
        async def main() -> _Result:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._left:
                raise asyncio.CancelledError
            return await work()

        try:
            with asyncio.Runner() as runner:
                self._result.append(runner.run(main()))
        except BaseException as error:
            self._error = error
        finally:
            self._jobs.put(None)


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


def subject(request: AgentRequest) -> str:
    """Return the model and where it is asked, for messages: without user names, keys and paths."""
    if request.base_url is None:
        return f"{request.model} at the service"
    parts = urlsplit(request.base_url)
    return f"{request.model} at {parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def model_for(request: AgentRequest) -> Model[Any]:
    """Return the model that `request` names, with an HTTP client of its own: enter it to have that closed."""
    model, base_url, key = request.model, request.base_url, request.api_key
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise AgentError(f"base_url {base_url!r} for {model} must begin with http:// or https://")
    if model.startswith("openai:"):
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        return _openai(model, base_url, key or os.environ.get("OPENAI_API_KEY") or None)
    given = {"base_url": base_url, "api_key": key}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        if not given:
            return infer_model(model, provider_factory=infer_provider)
        return infer_model(model, provider_factory=lambda name: infer_provider_class(name)(**given))
    except ImportError as error:
        raise AgentError(
            f"model {model!r} needs a package that is not installed: {error}; "
            "pip install 'holdfast[agents]' brings the one for openai"
        ) from error
    except TypeError as error:
        if not given:
            raise
        raise AgentError(f"model {model!r} does not take {' or '.join(given)} from a workflow") from error


def _openai(model: str, base_url: str | None, key: str | None) -> Model[Any]:
    provider: Provider[Any]
    if base_url is not None:
        provider = OpenAICompatibleProvider("openai", base_url=base_url, api_key=key or _NO_KEY)
    elif key is not None:
        provider = OpenAIProvider(api_key=key)
    else:
        raise AgentError(
            f"model {model!r} needs a key: set OPENAI_API_KEY, or give a base_url that needs none"
        )
    # A stream that just stops is a lost connection, not the end of the text.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(model.partition(":")[2], provider=provider, profile=whole)


# A request as one of pydantic-ai's agents: its settings, its tools, and the output it must give.


_OUTPUT_TOOL = "final_result"
_WRAPPED = "result"


class ToolBroke(Exception):
    """A tool raised an error, which ends the call."""

    def __init__(self, tool: str, error: Exception) -> None:
        self.error = error
        super().__init__(f"tool {tool!r} failed with {type(error).__name__}: {error}")


def agent_for(request: AgentRequest, aside: Aside[Any]) -> pydantic_ai.Agent[Any, Any]:
    """Return the agent that answers `request`. Its tools run in the thread that `aside` runs for."""
    settings = pydantic_ai.ModelSettings(max_retries=0)
    for name in ("temperature", "max_tokens", "timeout"):
        if (value := getattr(request, name)) is not None:
            settings[name] = value
    schema = None if request.output_schema is None else _as_object(request.output_schema)
    agent: pydantic_ai.Agent[Any, Any] = pydantic_ai.Agent(
        name="holdfast",
        output_type=str if schema is None else ToolOutput(StructuredDict(schema), name=_OUTPUT_TOOL),
        instructions=request.system or None,
        model_settings=settings,
        tools=[_tool(tool, aside) for tool in request.tools],
        # Wrong arguments cost a turn, and corrections are counted where turns are: no second budget here.
        retries=pydantic_ai.AgentRetries(tools=request.max_turns, output=request.max_turns),
    )

    async def check(output: dict[str, Any]) -> dict[str, Any]:
        if reason := misfit(output, schema):
            raise ModelRetry(reason)
        return output

    if schema is not None:
        agent.output_validator(check)
    return agent


def _tool(tool: Tool, aside: Aside[Any]) -> pydantic_ai.Tool[Any]:
    @functools.wraps(tool.function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        call = functools.partial(tool.function, *args, **kwargs)
        if inspect.iscoroutinefunction(tool.function):
            try:
                return await call()
            except (pydantic_ai.ModelRetry, pydantic_ai.ToolFailed):
                raise
            except Exception as error:
                raise ToolBroke(tool.name, error) from error
        value, again = await aside.call(functools.partial(_attempt, tool.name, call))
        if again is not None:
            raise again
        return value

    description = tool.description or inspect.getdoc(tool.function)
    try:
        return pydantic_ai.Tool(called, takes_ctx=False, name=tool.name, description=description)
    except Exception as error:
        raise AgentError(
            f"tool {tool.name!r} cannot be offered to a model: {error}; "
            "give each of its parameters a type that JSON can express"
        ) from error


def _attempt(name: str, call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Call a tool; return its result, or the error that the model should read; raise `ToolBroke` for any other."""
    try:
        return call(), None
    except (pydantic_ai.ModelRetry, pydantic_ai.ToolFailed) as again:
        return None, again
    except Exception as error:
        raise ToolBroke(name, error) from error


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" or ("type" not in schema and "properties" in schema)


def _as_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object schema, since models accept no other; wrap any other schema as the only key of an object."""
    if _is_object(schema):
        return {**schema, "type": "object"}
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in shared}
    return {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED], **shared}


# What a failed call means: which errors of pydantic-ai are worth another try, and what to tell people.


_PASSING = frozenset({408, 409, 425, 429})
_MOST_CHARACTERS = 500


def failure(error: Exception, request: AgentRequest, usage: Usage, answered: bool) -> AgentError | None:
    """Return the error to raise for `error`, or `None` if it is not one of pydantic-ai's.

    `answered` says whether the model's last turn succeeded; if it did not, the failure may be transient.
    """
    said = _short(str(error).partition("\n")[0], request)
    if isinstance(error, known.ModelAPIError):
        return _refused(error, request, usage)
    if isinstance(error, known.UsageLimitExceeded):
        message = (
            f"{request.model} wanted more than {request.max_turns} turns; "
            "raise max_turns, or give it fewer tools or a narrower task"
        )
    elif isinstance(error, known.ContentFilterError):
        message = f"{request.model} declined to answer: {_short(str(error), request)}"
    elif isinstance(error, known.UnexpectedModelBehavior) and not answered:
        message = f"{subject(request)} sent an answer that cannot be used: {said}"
        return TransientAgentError(message, usage=usage)
    elif isinstance(error, (known.AgentRunError, known.UserError)):
        message = f"{request.model} failed: {said}"
    else:
        return None
    return AgentError(message, usage=usage)


def _refused(error: Any, request: AgentRequest, usage: Usage) -> AgentError:
    status = error.status_code if isinstance(error, known.ModelHTTPError) else None
    message = f"{subject(request)} {_happened(error, status, request)}"
    passes = not isinstance(error, known.ModelRequestRejectedError)
    if status is not None:
        passes = status in _PASSING or status >= 500
    # A quota that is used up is sent as 429, but waiting does not fill an account.
    if not passes or isinstance(error, known.ModelQuotaExceededError):
        return AgentError(message, usage=usage)
    return TransientAgentError(message, usage=usage, retry_after=_retry_after(error))


def _retry_after(error: Any) -> float | None:
    """Seconds to wait, as the service says; some say it with a fraction, which the standard does not know."""
    if error.retry_after is not None:
        return float(error.retry_after)
    try:
        seconds = float((getattr(error, "headers", None) or {}).get("retry-after", "nan"))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _happened(error: Any, status: int | None, request: AgentRequest) -> str:
    said = _short(_said(error), request)
    if isinstance(error, known.ModelQuotaExceededError):
        return f"says the account's quota is used up: {said}"
    if status in (401, 403):
        # What the service says here may repeat the key.
        used = "the api_key that the request carries" if request.api_key else key_variable(request.model)
        return f"refused the key (HTTP {status}): check {used}"
    if status == 404:
        return f"was not found (HTTP 404): {said}; check the model's name and base_url"
    if status is not None:
        return f"answered HTTP {status}: {said}"
    if isinstance(error, known.ModelTimeoutError):
        return "did not answer in time"
    if isinstance(error, known.ModelConnectionError):
        return f"cannot be reached or broke off: {said}"
    return f"sent an answer that cannot be used: {said}"


def _said(error: Any) -> str:
    """Return what the service itself says, or what happened on the way to it, without the frames around it."""
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message") if isinstance(inner, dict) else inner
    if body:
        return str(body)
    while error.__cause__ is not None and str(error.__cause__):
        error = error.__cause__
    return str(error).partition("\n")[0]


def _short(text: str, request: AgentRequest) -> str:
    for key in (request.api_key, os.environ.get(key_variable(request.model))):
        if key:
            text = text.replace(key, "***")
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


# The call itself.


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
            message = f"{subject(request)} did not answer within {request.timeout:g} s"
            return TransientAgentError(message, usage=self.usage)
        if isinstance(error, AgentError):
            error.usage = self.usage
            return error
        return failure(error, request, self.usage, answered=self._spent.requests >= self._turns)

    async def converse(self) -> AgentReply:
        """Return the reply, after as many turns as it takes."""
        pydantic_ai.BANNER_ENABLED = False
        request, model = self.request, model_for(self.request)
        agent = agent_for(request, self.aside)
        limits = UsageLimits(request_limit=request.max_turns)
        async with (
            model,
            agent.iter(request.prompt, model=model, usage=self._spent, usage_limits=limits) as run,
        ):
            async for node in run:
                if pydantic_ai.Agent.is_model_request_node(node):
                    self._count(node.request.parts, run.all_messages())
                    if self.on_text is not None:
                        await self._stream(node.stream(run.ctx), self.on_text)
        assert run.result is not None
        text = output = run.result.output
        if request.output_schema is not None:
            output = output if _is_object(request.output_schema) else output[_WRAPPED]
            text = json.dumps(output, ensure_ascii=False)
        cost = None if self._spent.cost is None else float(self._spent.cost)
        return AgentReply(output, text, self.usage, run.result.response.model_name or request.model, cost)

    def _count(self, parts: Any, before: Sequence[Any]) -> None:
        """Let the model correct its output once; the second time, give up and say what was wrong."""
        self._turns += 1
        reasons = [part.content for part in parts if self._corrects(part)]
        if reasons and before and getattr(before[-1], "finish_reason", None) == "length":
            raise AgentOutputInvalid(
                f"the output of {self.request.model} was cut off at max_tokens; raise it, or ask for less"
            )
        self._corrections += bool(reasons)
        if self._corrections > _CORRECTIONS:
            first = reasons[0]
            said = first if isinstance(first, str) else "; ".join(str(problem["msg"]) for problem in first)
            raise AgentOutputInvalid(
                f"{self.request.model} gave no usable output, even when asked to correct it: {said}"
            )

    def _corrects(self, part: Any) -> bool:
        """Return True if a part of a request asks for the output again, rather than for other arguments of a tool."""
        if isinstance(part, ToolReturnPart):
            own = {tool.name for tool in self.request.tools}
            return part.outcome == "retried" and part.tool_name not in own
        return isinstance(part, RetryFeedbackPart)

    async def _stream(self, opening: Any, on_text: Callable[[str], None]) -> None:
        async with opening as stream:
            async for event in stream:
                text = ""
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    text = str(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    text = str(event.delta.content_delta)
                if text:
                    await self.aside.call(functools.partial(on_text, text))
