"""Reading data into the models' shape: every misfit is told in plain words, the rest can still be checked."""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

from holdfast.suggestions import did_you_mean
from holdfast.workflows.model import KINDS, STEP_NAME, Definition, Step, WorkflowSettings, seconds
from holdfast.workflows.reading.problems import MOST_PROBLEMS, Problem, listed
from holdfast.workflows.reading.source import DataPath, Source

# What fields expect and what was given instead, in plain words.


_SIMPLE = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_NAME_RULE = "use letters, digits, _ and -; do not begin with a digit; at most 64 characters"
_RULES = {
    "greater_than_equal": ("has to be at least {ge}", "ge"),
    "greater_than": ("has to be above {gt}", "gt"),
    "less_than_equal": ("can be at most {le}", "le"),
    "less_than": ("has to be below {lt}", "lt"),
}


def options(annotation: Any) -> list[Any]:
    """The types that a field's annotation allows, one by one, without `None`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        found = [option for arg in typing.get_args(annotation) for option in options(arg)]
        return [option for option in found if option is not type(None)]
    return [annotation]


def bare(annotation: Any) -> Any:
    """A type without what `Annotated` adds to it."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def shape(annotation: Any) -> str:
    """Whether a type is written as `fields`, as a `list`, as a `value`, or in `any` way."""
    plain = bare(annotation)
    if plain is Any:
        return "any"
    if typing.get_origin(plain) is dict or (isinstance(plain, type) and issubclass(plain, BaseModel)):
        return "fields"
    return "list" if typing.get_origin(plain) is list else "value"


def shape_of(data: Any) -> str:
    """The shape that data has."""
    return "fields" if isinstance(data, dict) else "list" if isinstance(data, list) else "value"


def expected(annotation: Any) -> str:
    """What a type stands for: `text`, `a list of steps`, `one of a, b`."""
    return " or ".join(dict.fromkeys(_expected(option) for option in options(annotation)))


def _expected(option: Any) -> str:
    plain = bare(option)
    if is_duration(option):
        return "a duration such as 30s or 1h30m"
    if is_step_name(option):
        return "a step's name"
    if typing.get_origin(plain) is Literal:
        return "one of " + listed(map(str, typing.get_args(plain)))
    if typing.get_origin(plain) is list:
        return f"a list of {_plural(typing.get_args(plain)[0])}"
    if typing.get_origin(plain) is dict:
        return "fields (`name: value`)"
    if isinstance(plain, type) and issubclass(plain, BaseModel):
        return f"fields ({listed(field_names(plain), 6)})"
    return _SIMPLE.get(plain, "a value")


def _plural(annotation: Any) -> str:
    first = options(annotation)[0]
    plain = bare(first)
    if is_step_name(first):
        return "step names"
    if isinstance(plain, type) and issubclass(plain, BaseModel):
        return "steps" if plain is Step else f"{plain.__name__.lower()}s"
    return {str: "texts", int: "whole numbers"}.get(plain, "values")


def is_duration(annotation: Any) -> bool:
    """Whether a type is a duration."""
    return any(getattr(part, "func", None) is seconds for part in typing.get_args(annotation)[1:])


def is_step_name(annotation: Any) -> bool:
    """Whether a type is the name of a step."""
    for part in typing.get_args(annotation)[1:]:
        pattern = getattr(part, "pattern", None)
        pieces = [getattr(piece, "pattern", None) for piece in getattr(part, "metadata", ())]
        if STEP_NAME in (pattern, *pieces):
            return True
    return False


def field_names(model: type[BaseModel]) -> list[str]:
    """The fields of a part as they are written in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def given(data: Any) -> str:
    """What was given: `text 'x'`, `a list`, `nothing`."""
    if data is None:
        return "nothing"
    if isinstance(data, bool):
        return str(data).lower()
    if isinstance(data, (int, float)):
        return f"the number {data}"
    if isinstance(data, str):
        return f"text {_short(data)!r}"
    return "a list" if isinstance(data, list) else "fields"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"


def failure(annotation: Any, data: Any, error: dict[str, Any]) -> tuple[str, str]:
    """What is wrong with a value, and the cure, from what pydantic says of it."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        cure = "write it as 30s, 5m, 1h30m or 2d" if "duration" in str(context["error"]) else "change it"
        return f"{context['error']}, got {given(data)}", cure
    if kind == "string_pattern_mismatch":
        rule = _NAME_RULE if STEP_NAME in str(context["pattern"]) else f"it has to match {context['pattern']}"
        return f"{data!r} cannot be a name", rule
    if kind in _RULES:
        words, key = _RULES[kind]
        rule = words.format(**{key: context[key]})
        return f"the value {rule}, got {data}", f"give a number that fits: it {rule}"
    if kind == "too_short":
        return "the list is empty", "add an item, or leave the field out"
    message = f"expected {expected(annotation)}, got {given(data)}"
    return message, _choice(annotation, data) or _cure(annotation, data)


def _choice(annotation: Any, data: Any) -> str:
    """A close one of the words that a field takes."""
    known = [
        str(word)
        for option in options(annotation)
        if typing.get_origin(bare(option)) is Literal
        for word in typing.get_args(bare(option))
    ]
    return did_you_mean(data, known) if isinstance(data, str) else ""


def _cure(annotation: Any, data: Any) -> str:
    shapes = {shape(option) for option in options(annotation)}
    if data is None:
        return "give it a value, or leave the field out"
    if "list" in shapes and not isinstance(data, list):
        return "begin each item with `- `"
    if shapes == {"fields"}:
        return "write its fields on lines of their own, each as `name: value`"
    if isinstance(data, (int, float, bool)) and any(bare(option) is str for option in options(annotation)):
        return f'put it in quotes: "{given(data).removeprefix("the number ")}"'
    return f"write {expected(annotation)}"


_LOST: Any = object()
"""Stands for a value that could not be read."""
MADE_UP = "__unread__"
"""How the names begin that steps without a readable one are given."""
_MENDED = (Definition, Step, WorkflowSettings)
"""Parts that are given what they lack, so that the rest can be checked."""


@dataclass(slots=True)
class Shape:
    """What could be read of a file: data that fits the models, and what was put aside for it.

    A step at one of the `unread` paths keeps its place and what could be read of it, but not its kind.
    """

    data: Any = None
    problems: list[Problem] = field(default_factory=list)
    unread: set[DataPath] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


def read_shape(source: Source) -> Shape:
    """The data of a file, with everything that does not fit the models reported and left out."""
    found = _Reading(source, Shape())
    data = found.value(Definition, source.data, ())
    data["workflow"] = {"name": "unread", **data.get("workflow", {})}
    data["steps"] = data.get("steps") or [{"name": MADE_UP, "set": {}}]
    found.shape.data = data
    return found.shape


class _Reading:
    def __init__(self, source: Source, shape: Shape) -> None:
        self.source, self.shape = source, shape

    def value(self, annotation: Any, data: Any, path: DataPath) -> Any:
        """The data as the type wants it, or `_LOST` with the reason reported."""
        fitting = [option for option in options(annotation) if shape(option) in (shape_of(data), "any")]
        if not fitting:
            self._misfit(path, annotation, data, {"type": "shape"})
            return _LOST
        plain = bare(fitting[0])
        if isinstance(plain, type) and issubclass(plain, BaseModel):
            return self._part(plain, data, path)
        if typing.get_origin(plain) is list:
            return self._items(typing.get_args(plain)[0], data, path)
        if typing.get_origin(plain) is dict:
            return self._entries(typing.get_args(plain)[1], data, path)
        return self._leaf(annotation, fitting, data, path)

    def _leaf(self, annotation: Any, fitting: list[Any], data: Any, path: DataPath) -> Any:
        error: dict[str, Any] = {}
        for option in fitting:
            try:
                _adapter(option).validate_python(data)
                return data
            except ValidationError as invalid:
                error = error or dict(invalid.errors()[0])
        self._misfit(path, annotation, data, error)
        return _LOST

    def _items(self, annotation: Any, data: list[Any], path: DataPath) -> Any:
        read = [self.value(annotation, item, (*path, index)) for index, item in enumerate(data)]
        if bare(options(annotation)[0]) is Step:
            return [self._stub(item, (*path, index)) for index, item in enumerate(read)]
        return [item for item in read if item is not _LOST]

    def _entries(self, annotation: Any, data: dict[str, Any], path: DataPath) -> Any:
        if annotation is Any:
            return data
        read = {name: self.value(annotation, item, (*path, name)) for name, item in data.items()}
        return {name: item for name, item in read.items() if item is not _LOST}

    def _part(self, model: type[BaseModel], data: dict[str, Any], path: DataPath) -> Any:
        before = len(self.shape.problems)
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        read = {}
        for name, item in data.items():
            if name not in fields:
                self._unknown(model, name, path)
            elif item is not None or fields[name].is_required() or not _optional(fields[name]):
                read[name] = self._field(fields[name], item, (*path, name))
        for name, declared in fields.items():
            if declared.is_required() and name not in data:
                self._report(path, f"{self._where(path)} has no {name!r}", f"add `{name}: …`", key=True)
        if model is Step:
            self._one_kind(data, read, path)
        if len(self.shape.problems) == before:
            self._whole(model, data, path)
        kept = {name: item for name, item in read.items() if item is not _LOST}
        unspoilt = len(self.shape.problems) == before
        return kept if unspoilt or model in _MENDED or _fits(model, kept) else _LOST

    def _field(self, declared: Any, item: Any, path: DataPath) -> Any:
        parts = options(declared.annotation)
        if item is not None and any(shape(option) == shape_of(item) for option in parts):
            if shape_of(item) == "list" and not item and declared.metadata:
                self._misfit(path, declared.annotation, item, {"type": "too_short"})
                return _LOST
            if shape_of(item) == "value" and declared.metadata:
                narrowed = Annotated[(declared.annotation, *declared.metadata)]
                return self._leaf(narrowed, [narrowed], item, path)
        read = self.value(declared.annotation, item, path)
        return _LOST if read == [] and item else read

    def _whole(self, model: type[BaseModel], data: dict[str, Any], path: DataPath) -> None:
        """What a part's own rules say, once all its fields fit."""
        try:
            model.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as invalid:
            for error in invalid.errors():
                cause = error.get("ctx", {}).get("error", error["msg"])
                hint = "keep one of the two" if len(data) > 1 else "add one of the two"
                self._report(path, f"{self._where(path)}: {cause}", hint, key=True)

    def _one_kind(self, data: dict[str, Any], read: dict[str, Any], path: DataPath) -> None:
        kinds = [kind for kind in data if kind in KINDS and data[kind] is not None]
        where = self._where(path)
        if len(kinds) > 1:
            hint = "keep one of them, and make the others steps of their own"
            self._report((*path, kinds[1]), f"{where} is of several kinds: {listed(kinds)}", hint, key=True)
        elif not kinds:
            empty = [kind for kind in KINDS if kind in data]
            message = f"{where} says {empty[0]!r} without a value" if empty else f"{where} says nothing to do"
            hint = f"give it one of {listed(KINDS)}"
            self._report((*path, *empty[:1]), message, hint, key=bool(empty))

    def _stub(self, read: Any, path: DataPath) -> dict[str, Any]:
        """A step that can stand in the list, whatever of it could be read."""
        step = dict(read) if read is not _LOST else {}
        raw = self._raw(path)
        if isinstance(raw, dict) and isinstance(raw.get("name"), str):
            self.shape.names.add(raw["name"])
        if "name" not in step:
            step["name"] = MADE_UP + "".join(f"_{part}" for part in path if isinstance(part, int))
            self.shape.unread.add(path)
        kinds = [kind for kind in KINDS if kind in step]
        if len(kinds) != 1:
            step = {name: item for name, item in step.items() if name not in kinds} | {"set": {}}
            self.shape.unread.add(path)
        return step if _fits(Step, step) else {"name": step["name"], "set": {}}

    def _unknown(self, model: type[BaseModel], name: str, path: DataPath) -> None:
        known = field_names(model)
        inside = [place for place, names in _inner_fields(model).items() if name in names]
        if inside:
            hint = f"it belongs inside {' or '.join(f'`{place}`' for place in inside)}"
        else:
            hint = did_you_mean(name, known) if len(self.shape.problems) < MOST_PROBLEMS else ""
        hint = f"{hint} allowed here: {listed(known)}" if hint.endswith("?") else hint
        self._report(
            (*path, name),
            f"unknown field {name!r} in {self._where(path)}",
            hint or f"allowed here: {listed(known)}",
            key=True,
        )

    def _report(self, path: DataPath, message: str, hint: str = "", key: bool = False) -> None:
        self.shape.problems.append(self.source.problem(path, message, hint, key))

    def _misfit(self, path: DataPath, annotation: Any, data: Any, error: dict[str, Any]) -> None:
        message, hint = failure(annotation, data, error)
        self._report(path, f"{self._where(path)}: {message}", hint)

    def _raw(self, path: DataPath) -> Any:
        value = self.source.data
        for part in path:
            value = value[part]
        return value

    def _where(self, path: DataPath) -> str:
        return where(self.source.data, path)


def where(data: Any, path: DataPath) -> str:
    """A path in words: `step 'search'`, `http.url of step 'search'`, `workflow.limits`."""
    owner, rest, value = "", "", data
    for index, part in enumerate(path):
        value = _at(value, part)
        if isinstance(part, int) and _lists_steps(path, index):
            name = value.get("name") if isinstance(value, dict) else None
            owner, rest = f"step {name!r}" if isinstance(name, str) else f"step {part + 1}", ""
        elif isinstance(part, int):
            rest += f"[{part}]"
        else:
            rest = f"{rest}.{part}" if rest else part
    if not owner:
        return rest or "the file"
    return f"{rest} of {owner}" if rest else owner


def _at(value: Any, part: str | int) -> Any:
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):
        return None


def _lists_steps(path: DataPath, index: int) -> bool:
    """Whether the number at this place of a path counts steps."""
    before = path[:index]
    return before == ("steps",) or before[-1:] == ("parallel",) or before[-2:] == ("parallel", "steps")


def _optional(declared: Any) -> bool:
    return type(None) in typing.get_args(declared.annotation) or declared.annotation is Any


def _fits(model: type[BaseModel], data: dict[str, Any]) -> bool:
    try:
        model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


@functools.cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


@functools.cache
def _inner_fields(model: type[BaseModel]) -> dict[str, list[str]]:
    """The fields of the parts right inside a part, by the name that the part has there."""
    found: dict[str, list[str]] = {}
    for name, declared in model.model_fields.items():
        for option in options(declared.annotation):
            plain = bare(option)
            if isinstance(plain, type) and issubclass(plain, BaseModel):
                found[declared.alias or name] = field_names(plain)
    return found
