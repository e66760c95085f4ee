"""Which storable classes a type annotation mentions, at any depth."""

from __future__ import annotations

import dataclasses
import enum
import sys
import typing
from collections.abc import Iterator
from typing import Any, ForwardRef

from holdfast.data.shapes import has_shape, is_model


def declared_types(annotation: Any) -> list[type]:
    """Every dataclass, pydantic model, Enum and named tuple in `annotation`, in order of appearance.

    Looks into unions, generics, `Annotated`, `NewType`, and the fields of dataclasses, TypedDicts,
    models and named tuples. What cannot be resolved is left out.
    """
    found: list[type] = []
    seen: set[int] = set()
    kept: list[Any] = []
    waiting = [annotation]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        kept.append(part)
        if has_shape(part):
            found.append(part)
        waiting.extend(reversed(list(_parts(part))))
    return found


def _parts(part: Any) -> Iterator[Any]:
    if isinstance(part, enum.Enum):
        yield type(part)
        return
    origin = typing.get_origin(part)
    if origin is not None:
        yield origin
    arguments = typing.get_args(part)
    yield from arguments[:1] if origin is typing.Annotated else arguments
    if isinstance(part, (list, tuple)):
        yield from part
    for inner in ("__supertype__", "__value__", "__bound__"):
        if not isinstance(part, type) and getattr(part, inner, None) is not None:
            yield getattr(part, inner)
    if isinstance(part, typing.TypeVar):
        yield from part.__constraints__
    if isinstance(part, type) and origin is None:
        yield from _fields(part)


def _fields(cls: type) -> Iterator[Any]:
    if is_model(cls):
        for field in getattr(cls, "__pydantic_fields__", {}).values():
            yield field.annotation
    elif dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or hasattr(cls, "_fields"):
        yield from _hints(cls)


def _hints(cls: type) -> Iterator[Any]:
    try:
        yield from typing.get_type_hints(cls, include_extras=True).values()
    except Exception:
        for base in cls.__mro__:
            scope = {**vars(sys.modules.get(base.__module__, typing)), cls.__name__: cls}
            for hint in vars(base).get("__annotations__", {}).values():
                yield from _resolved(hint, scope)


def _resolved(hint: Any, scope: dict[str, Any]) -> Iterator[Any]:
    """One hint of a class of which another hint names something out of reach."""
    holder = type("Holder", (), {"__annotations__": {"hint": hint}})
    try:
        yield from typing.get_type_hints(holder, globalns=scope, include_extras=True).values()
    except Exception:
        if not isinstance(hint, (str, ForwardRef)):
            yield hint
