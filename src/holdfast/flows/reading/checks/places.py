"""Where a file has expressions and templates, and what may be named at each place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.flows.model import Agent, Ask, End, Http, Shell, Wait
from holdfast.flows.reading.checks.names import SCOPE
from holdfast.flows.reading.checks.reading import Placed, Reading
from holdfast.flows.reading.source import DataPath

_EXECUTED = ("shell", "http", "agent")


@dataclass(frozen=True, slots=True)
class Text:
    """An expression, or else a template: its place in the file and in words, and the names it may use."""

    path: DataPath
    value: str
    names: frozenset[str]
    place: str
    expression: bool = False


def texts(reading: Reading) -> Iterator[Text]:
    """Every expression and template of a file."""
    for name, script in reading.definition.workflow.hooks.model_dump(exclude_none=True).items():
        path = ("workflow", "hooks", name)
        yield Text(path, script, SCOPE | {"output", "status", "error"}, f"the hook {name}")
    for placed in reading.steps:
        yield from _conditions(placed)
        if placed.path not in reading.unread:
            yield from _body(placed)
    yield from _tree(("output",), reading.definition.output, SCOPE, "the workflow's output")


def _conditions(placed: Placed) -> Iterator[Text]:
    step, name = placed.step, placed.title
    if step.when is not None:
        yield Text((*placed.path, "when"), step.when, SCOPE, f"`when` of {name}", expression=True)
    told = SCOPE | {"output", "status", "error"} | ({"answer"} if step.ask is not None else set())
    for index, route in enumerate(step.routes or ()):
        if route.when is not None:
            path = (*placed.path, "routes", index, "when")
            yield Text(path, route.when, told, f"a route of {name}", expression=True)
    loop = step.for_each
    if loop is None:
        return
    path = (*placed.path, "for_each")
    yield from _tree((*path, "in"), loop.in_, SCOPE, f"for_each.in of {name}")
    if loop.key is not None:
        names = SCOPE | {loop.as_, "index", "key"}
        yield Text((*path, "key"), loop.key, names, f"for_each.key of {name}", expression=True)


def _body(placed: Placed) -> Iterator[Text]:
    """The templates of what a step does."""
    step = placed.step
    names = SCOPE | ({step.for_each.as_, "index", "key"} if step.for_each is not None else set())
    executed = names | {"secrets"} if step.kind in _EXECUTED else names
    for field, value in _templates(step.kind, getattr(step, step.kind)):
        path = (*placed.path, step.kind, *field)
        where = ".".join(str(part) for part in (step.kind, *field))
        yield from _tree(path, value, executed, f"{where} of {placed.title}")
    arguments = names | {"secrets"} if step.kind == "python" else names
    yield from _tree((*placed.path, "with"), step.with_, arguments, f"`with` of {placed.title}")


def _templates(kind: str, body: Any) -> Iterator[tuple[DataPath, Any]]:
    """The fields of a kind that may hold templates."""
    match body:
        case Shell():
            yield from _fields(body, "run", "cwd", "env", "stdin")
        case Http():
            yield from _fields(body, "url", "headers", "query", "body")
            yield ("json",), body.json_
        case Agent():
            yield from _fields(body, "model", "prompt", "system", "base_url", "api_key")
        case Ask():
            yield from _fields(body, "prompt")
            for index, question in enumerate(body.questions):
                yield ("questions", index, "prompt"), question.prompt
        case Wait():
            yield from _fields(body, "until")
        case End():
            yield from _fields(body, "reason")
        case str() | dict() if kind in ("shell", "http", "ask", "set"):
            yield (), body
        case _ if kind == "checkpoint":
            yield from _fields(body, "save", "load")


def _fields(part: Any, *names: str) -> Iterator[tuple[DataPath, Any]]:
    return (((name,), getattr(part, name)) for name in names)


def _tree(path: DataPath, value: Any, names: frozenset[str], place: str) -> Iterator[Text]:
    """The templates in a value, however deep; keys are plain."""
    if isinstance(value, str):
        yield Text(path, value, names, place)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tree((*path, key), item, names, place)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _tree((*path, index), item, names, place)
