"""The declaration of a tool: a function whose signature and docstring say what a model must know."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from mcp_types import Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from holdfast.errors import INVALID, HoldfastError, closest
from holdfast.mcp.replies import Data, Rest
from holdfast.service.requests import COMMANDS, LONGEST_KEY, NEW_RUNS

READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
ACTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False)
ORDERS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)


KEY = "idempotency_key"
KEYED = (*NEW_RUNS, *COMMANDS)
"""The methods of a service that act once though they are called again with the same key."""

Key = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=LONGEST_KEY,
        description="Any text of your own, another for each call. If you lose the reply, repeat the call with the "
        "same text: it acts once.",
    ),
]

_Function = TypeVar("_Function", bound="Callable[..., Reply | Follow]")


class BadArguments(HoldfastError):
    """A tool was called with arguments that it does not take."""

    exit_code = INVALID


@dataclass(frozen=True, slots=True)
class Reply:
    """What a tool found, and how to read on what does not fit into one reply."""

    data: Data
    rest: Rest | None = None


@dataclass(frozen=True, slots=True)
class Follow:
    """A run that a call goes on to watch, for at most so many seconds, until it pauses or ends."""

    run_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Declared:
    """A tool: its name, its function, what it takes and what it returns."""

    name: str
    function: Callable[..., Reply | Follow]
    arguments: type[BaseModel]
    output: Data
    effect: ToolAnnotations
    method: str
    """The method of the service that it calls; who may call that one may call the tool."""

    @property
    def is_reading(self) -> bool:
        """Whether it changes nothing."""
        return bool(self.effect.read_only_hint)

    def listed(self) -> Tool:
        """Return the tool as clients list it."""
        schema = self.arguments.model_json_schema()
        schema.pop("title", None)
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
        return Tool(
            name=self.name,
            description=inspect.getdoc(self.function),
            input_schema=schema,
            output_schema=self.output,
            annotations=self.effect,
        )

    def read(self, given: Mapping[str, Any]) -> Data:
        """Return arguments by name, or raise an error that names every problem of them."""
        try:
            found = self.arguments.model_validate(given)
        except ValidationError as error:
            raise BadArguments(
                f"{self.name} was not called: {'; '.join(_problems(error, self.arguments.model_fields))}"
            ) from None
        return {name: getattr(found, name) for name in type(found).model_fields}


def _problems(error: ValidationError, known: Iterable[str]) -> Iterable[str]:
    names = list(known)
    for each in error.errors(include_url=False, include_context=False)[:10]:
        place = ".".join(map(str, each["loc"])) or "the arguments"
        if each["type"] == "extra_forbidden":
            like = closest(place, names)
            hint = f"did you mean {like!r}?" if like else f"it takes {', '.join(names) or 'no arguments'}"
            yield f"{place!r:.80} is no argument of it; {hint}"
        else:
            yield f"{place}: {each['msg']}"


def tool(
    method: str, effect: ToolAnnotations, output: Data, into: dict[str, Declared]
) -> Callable[[_Function], _Function]:
    """Return a decorator that declares a function as the tool of its name.

    Its first parameter is the call; the others are the arguments of the tool.
    """

    def declared(function: _Function) -> _Function:
        name = function.__name__
        hints = typing.get_type_hints(function, include_extras=True)
        _, *params = inspect.signature(function).parameters.values()
        fields: Any = {
            each.name: (hints[each.name], ... if each.default is each.empty else each.default)
            for each in params
        }
        if method in KEYED:
            fields[KEY] = (Key, None)
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        into[name] = Declared(name, function, arguments, output, effect, method)
        return function

    return declared
