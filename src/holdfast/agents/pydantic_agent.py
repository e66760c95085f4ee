"""A request as one of pydantic-ai's agents: its settings, its tools, and the output it must give."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pydantic_ai
from pydantic_ai import ModelRetry, StructuredDict, ToolOutput

from holdfast.agents.aside import Aside
from holdfast.agents.provider import AgentError, AgentRequest, Tool
from holdfast.agents.schema import misfit

_OUTPUT_TOOL = "final_result"
_WRAPPED = "result"


class ToolBroke(Exception):
    """A tool raised an error, which ends the call."""

    def __init__(self, tool: str, error: Exception) -> None:
        self.error = error
        super().__init__(f"tool {tool!r} failed with {type(error).__name__}: {error}")


def agent_for(request: AgentRequest, aside: Aside[Any]) -> pydantic_ai.Agent[Any, Any]:
    """Return the agent that answers `request`. Its tools run in the thread that `aside` runs for."""
    schema = request.output_schema
    agent: pydantic_ai.Agent[Any, Any] = pydantic_ai.Agent(
        name="holdfast",
        output_type=str if schema is None else _output(schema),
        instructions=request.system or None,
        model_settings=_settings(request),
        tools=[_tool(tool, aside) for tool in request.tools],
        # Wrong arguments cost a turn, and corrections are counted where turns are: no second budget here.
        retries=pydantic_ai.AgentRetries(tools=request.max_turns, output=request.max_turns),
    )
    if schema is not None:
        agent.output_validator(_checking(_as_object(schema)))
    return agent


def unwrapped(output: Any, schema: Mapping[str, Any]) -> Any:
    """Return an agent's output as the request's schema describes it."""
    return output if _is_object(schema) else output[_WRAPPED]


def _settings(request: AgentRequest) -> pydantic_ai.ModelSettings:
    settings = pydantic_ai.ModelSettings(max_retries=0)
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.max_tokens is not None:
        settings["max_tokens"] = request.max_tokens
    if request.timeout is not None:
        settings["timeout"] = request.timeout
    return settings


def _tool(tool: Tool, aside: Aside[Any]) -> pydantic_ai.Tool[Any]:
    @functools.wraps(tool.function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        call = functools.partial(tool.function, *args, **kwargs)
        if inspect.iscoroutinefunction(tool.function):
            return await _awaited(tool.name, call)
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
    """Return what a tool returns, or what the model should read; any other error ends the call."""
    try:
        return call(), None
    except (pydantic_ai.ModelRetry, pydantic_ai.ToolFailed) as again:
        return None, again
    except Exception as error:
        raise ToolBroke(name, error) from error


async def _awaited(name: str, call: Callable[[], Any]) -> Any:
    try:
        return await call()
    except (pydantic_ai.ModelRetry, pydantic_ai.ToolFailed):
        raise
    except Exception as error:
        raise ToolBroke(name, error) from error


def _output(schema: Mapping[str, Any]) -> Any:
    return ToolOutput(StructuredDict(_as_object(schema)), name=_OUTPUT_TOOL)


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" or ("type" not in schema and "properties" in schema)


def _as_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of an object, which is all that models take: any other becomes the only key of one."""
    if _is_object(schema):
        return {**schema, "type": "object"}
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in shared}
    return {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED], **shared}


def _checking(schema: Mapping[str, Any]) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    """Return what an agent does with its output: takes it, or tells the model why it does not fit."""

    async def check(output: dict[str, Any]) -> dict[str, Any]:
        if reason := misfit(output, schema):
            raise ModelRetry(reason)
        return output

    return check
