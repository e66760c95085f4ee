"""The provider that asks models through pydantic-ai."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.agents.aside import Aside, Late
from holdfast.agents.endpoints import model_for, place
from holdfast.agents.failures import failure
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

if TYPE_CHECKING:
    from pydantic_ai.usage import RunUsage

_CORRECTIONS = 1


class PydanticAIProvider:
    """Asks any model that pydantic-ai knows. Keeps nothing between calls."""

    def complete(self, request: AgentRequest, on_text: Callable[[str], None] | None = None) -> AgentReply:
        """The model's reply, as `Provider.complete` promises. Tools and `on_text` run in the caller's thread.

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
        from pydantic_ai.usage import RunUsage

        self.request, self.on_text = request, on_text
        self.aside: Aside[AgentReply] = Aside()
        self._spent: RunUsage = RunUsage()
        self._turns = self._corrections = 0

    @property
    def usage(self) -> Usage:
        """What the call has used up so far."""
        return Usage(self._spent.input_tokens, self._spent.output_tokens, self._spent.requests)

    def failure(self, error: Exception) -> AgentError | None:
        """The error that the caller gets for `error`, if it is about the model."""
        request = self.request
        if isinstance(error, Late):
            message = f"{request.model} at {place(request)} did not answer within {request.timeout:g} s"
            return TransientAgentError(message, usage=self.usage)
        if isinstance(error, AgentError):
            error.usage = self.usage
            return error
        return failure(error, request, self.usage, answered=self._spent.requests >= self._turns)

    async def converse(self) -> AgentReply:
        """The reply, after as many turns as it takes."""
        import pydantic_ai
        from pydantic_ai.usage import UsageLimits

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
        """Whether a part of a request asks for the output again: not so for a tool's wrong arguments."""
        from pydantic_ai.messages import RetryFeedbackPart, ToolReturnPart

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
    """Why an output was not taken: a sentence, or what pydantic found wrong."""
    return content if isinstance(content, str) else "; ".join(str(problem["msg"]) for problem in content)


def _text_of(event: Any) -> str:
    """The text that an event of a stream adds to the reply."""
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return str(event.part.content)
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return str(event.delta.content_delta)
    return ""
