"""`agent`: a call of a language model, paid for once and written into the run's ledger."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.agents.prices import cost
from holdfast.agents.provider import (
    AgentError,
    AgentReply,
    AgentRequest,
    Tool,
    TransientAgentError,
    Usage,
    provider_for,
)
from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.flows.kinds.kind import Plain, Result
from holdfast.flows.kinds.python_call import find_function
from holdfast.flows.model import Step
from holdfast.flows.world import World
from holdfast.plan.fingerprint import fingerprint


class CallAgent(Plain):
    """Asks a model. A reply is remembered as soon as it is there, so that no resume pays for it again."""

    transient_only: ClassVar[bool] = True

    def __init__(self, step: Step, world: World) -> None:
        super().__init__()
        assert step.agent is not None
        self._agent, self._world, self._timeout = step.agent, world, step.timeout
        agent = step.agent
        self._prompt, self._system = self.texts.text(agent.prompt), self.texts.text(agent.system)
        self._model = self.texts.text(agent.model)
        self._base_url = None if agent.base_url is None else self.texts.text(agent.base_url)
        self._api_key = None if agent.api_key is None else self.texts.text(agent.api_key)
        self._tools = tuple(_tool(target, world) for target in agent.tools)
        self._price = None if agent.price is None else agent.price.model_dump()

    def code(self) -> str:
        return " ".join(fingerprint(tool.function) for tool in self._tools)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        spent = self._spent_before(ctx)
        purse, ledger = self._world.purse, state.get("ledger") or ()
        purse.refuse_if_empty(purse.spent(ledger, ctx.step, _total(spent)))
        try:
            reply = ctx.once("reply", self._call, scope, ctx)
        except AgentError as error:
            entry = self._entry(ctx, error.usage, scope)
            if error.usage.requests or error.usage.input_tokens:
                ctx.once(f"spent:{ctx.attempt}", lambda: entry)
                spent.append(entry)
            purse.note(ctx.step, _total(spent))
            error.spent = spent  # type: ignore[attr-defined]
            error.transient = isinstance(error, TransientAgentError)  # type: ignore[attr-defined]
            raise
        spent.append(reply["entry"])
        purse.note(ctx.step, _total(spent))
        usage = {key: reply["entry"][key] for key in ("model", "input_tokens", "output_tokens", "cost")}
        return {"output": reply["output"], "usage": usage, "ledger": spent}

    def _call(self, scope: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
        request = self._request(scope)
        scrub = self._world.scrubber.scrub
        reply = provider_for(request.model).complete(request, lambda text: ctx.emit(scrub(text)))
        entry = self._entry(ctx, reply.usage, scope, reply)
        return scrub({"output": reply.output, "entry": entry})  # type: ignore[no-any-return]

    def _request(self, scope: Mapping[str, Any]) -> AgentRequest:
        agent = self._agent
        return AgentRequest(
            model=self._model.render(scope),
            prompt=self._prompt.render(scope),
            system=self._system.render(scope),
            output_schema=agent.output,
            tools=self._tools,
            temperature=agent.temperature,
            max_tokens=agent.max_tokens,
            base_url=None if self._base_url is None else self._base_url.render(scope),
            api_key=None if self._api_key is None else self._api_key.render(scope),
            timeout=self._timeout,
            max_turns=agent.max_turns,
        )

    def _entry(
        self, ctx: Context, usage: Usage, scope: Mapping[str, Any], reply: AgentReply | None = None
    ) -> dict[str, Any]:
        model = reply.model if reply is not None else self._model.render(scope)
        price = cost(self._model.render(scope), usage, self._price)
        if price is None and reply is not None:
            price = reply.cost
        return {
            "id": ctx.step,
            "step": ctx.node,
            "model": model,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost": price,
        }

    def _spent_before(self, ctx: Context) -> list[dict[str, Any]]:
        """What earlier attempts of this step spent in vain."""
        found = (ctx.recall(f"spent:{attempt}") for attempt in range(1, ctx.attempt + 1))
        return [entry for entry in found if entry is not None]


def _total(entries: list[dict[str, Any]]) -> float:
    return float(sum(entry["cost"] or 0.0 for entry in entries))


def _tool(target: str, world: World) -> Tool:
    function = find_function(target, world.base)
    return Tool(target.rpartition(":")[2], function, inspect.getdoc(function) or "")
