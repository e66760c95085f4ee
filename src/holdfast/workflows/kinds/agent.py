"""`agent`: a call of a language model, paid for once and written into the run's ledger."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from holdfast.agents.provider import (
    AgentError,
    AgentReply,
    AgentRequest,
    Tool,
    TransientAgentError,
    Usage,
    cost,
    provider_for,
)
from holdfast.engine.context import Context
from holdfast.state.state import State, origin_of
from holdfast.workflows.kinds.kind import Kind, Result, write_json
from holdfast.workflows.kinds.python import Streaming, find_function
from holdfast.workflows.model import Step
from holdfast.workflows.scope import Resources, StepFailed, guidance_in
from holdfast.workflows.settings import AgentContext

logger = logging.getLogger("holdfast")


class CallAgent(Kind):
    """Asks a model. A reply is remembered as soon as it is there, so that no resume pays for it again."""

    transient_only: ClassVar[bool] = True

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        assert step.agent is not None
        self._agent, self._timeout, self._name = step.agent, step.timeout, step.name
        self._tools = tuple(_tool(target, resources) for target in step.agent.tools)
        self._price = None if step.agent.price is None else step.agent.price.model_dump()
        workflow = resources.workflow
        self._instructions = (
            None if workflow is None else self.text("workflow.instructions", workflow.instructions)
        )
        self._context = AgentContext() if workflow is None else workflow.context
        self._mode = step.agent.context or self._context.mode
        if self._mode != "explicit":
            self._paths |= {("inputs",), ("steps",)}

    def settings(self) -> dict[str, Any]:
        workflow = self._resources.workflow
        if workflow is None:
            return {}
        context = {} if self._mode == "explicit" else {"context": [self._mode, self._context.max_characters]}
        return context | ({"instructions": workflow.instructions} if workflow.instructions else {})

    def functions(self) -> Sequence[Callable[..., Any]]:
        return [tool.function for tool in self._tools]

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        begun = time.monotonic()
        try:
            reply = ctx.recall("reply")
            if not reply:
                request = self._request(scope, state)
                self._resources.budget.refuse_if_empty(ctx)
                self._check_price(request.model)
                reply = ctx.once("reply", self._call, request, ctx)
        except AgentError as error:
            raise self._failure(error, scope, ctx, begun) from error.__cause__
        return {"output": reply["output"], "usage": reply["usage"]}

    def _check_price(self, model: str) -> None:
        """A budget can only be kept if it is known what a call costs."""
        budget = self._resources.budget
        if budget.limit is None or cost(model, Usage(1, 1, 1), self._price) is not None:
            return
        message = f"what {model} costs is not known, so limits.budget cannot be kept; give agent.price"
        if budget.enforced:
            raise StepFailed(f"agent.price: {message}")
        logger.warning("step %s: %s", self._name, message)

    def _call(self, request: AgentRequest, ctx: Context) -> dict[str, Any]:
        streamed = Streaming(self._resources, ctx.stream)
        reply = provider_for(request.model).complete(request, streamed.piece)
        streamed.rest()
        usage = self._spend(ctx, request.model, reply.usage, reply)
        return self._resources.hide({"output": reply.output, "usage": usage})  # type: ignore[no-any-return]

    def _failure(self, error: AgentError, scope: Mapping[str, Any], ctx: Context, begun: float) -> AgentError:
        """Return the error with what is known of it: whether another attempt may help. What was spent counts."""
        if error.usage.requests or error.usage.input_tokens:
            self._spend(ctx, self.fill("model", scope), error.usage)
        late = self._timeout is not None and time.monotonic() - begun >= self._timeout
        error.__dict__.update(transient=isinstance(error, TransientAgentError), timed_out=late)
        error.args = (self._resources.hide_cut(str(error)),)
        return error

    def _request(self, scope: Mapping[str, Any], state: State) -> AgentRequest:
        agent, texts = self._agent, {name: self.fill(name, scope) for name in self._agent.templates}
        instructions = "" if self._instructions is None else self._instructions.fill(scope)
        texts["system"] = "\n\n".join(
            text for text in (instructions, texts["system"], guidance_in(state)) if text
        )
        if self._mode != "explicit":
            texts["prompt"] = "\n\n".join([*self._known(scope, state), texts["prompt"]])
        return AgentRequest(
            **texts,
            output_schema=agent.output,
            tools=self._tools,
            temperature=agent.temperature,
            max_tokens=agent.max_tokens,
            timeout=self._timeout,
            max_turns=agent.max_turns,
        )

    def _known(self, scope: Mapping[str, Any], state: State) -> list[str]:
        """Return the inputs and the outputs so far as texts; of too much, the oldest are left out."""
        last = origin_of(state).checkpoint_node.rpartition("/")[2].partition(":")[0]
        found = [f"Inputs:\n{_as_text(scope['inputs'])}"] if scope["inputs"] else []
        for name, step in scope["steps"].items():
            is_wanted = self._mode == "accumulate" or name == last
            if is_wanted and step.get("status") == "completed" and step.get("output") is not None:
                found.append(f"Output of step {name!r}:\n{_as_text(step['output'])}")
        while found and sum(map(len, found)) > self._context.max_characters:
            del found[0]
        return found

    def _spend(
        self, ctx: Context, model: str, usage: Usage, reply: AgentReply | None = None
    ) -> dict[str, Any]:
        """Write a call into the ledger; what it used."""
        price = cost(model, usage, self._price)
        if price is None and reply is not None:
            price = reply.cost
        model = str(self._resources.hide(model if reply is None else reply.model))
        tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        ctx.spend(model, **tokens, cost=price, calls=max(1, usage.requests))
        return {"model": model, **tokens, "cost": price}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else write_json(value, "agent.context").decode()


def _tool(target: str, resources: Resources) -> Tool:
    function = find_function(target, resources.base)
    return Tool(target.rpartition(":")[2], function, inspect.getdoc(function) or "")
