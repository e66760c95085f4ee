"""The allow-list: which of the user's types may be stored, under which tags."""

from __future__ import annotations

import dataclasses
import enum
import sys
import threading
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ForwardRef, TypeVar, overload

from holdfast.errors import CodecError
from holdfast.state.classes import Handler, handler_for, has_shape, is_model

# Which storable classes a type annotation mentions, at any depth.


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


__all__ = ["BUILTIN", "Types", "declared_types", "register_type"]

T = TypeVar("T")


def _origin(cls: type) -> tuple[str, str]:
    """What stays the same when a module is reloaded, or is both `__main__` and imported."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return (str(Path(file).resolve()) if file else cls.__module__, cls.__qualname__)


class _Registry:
    """Handlers by tag and by class; a reloaded class takes over the tag of its predecessor."""

    def __init__(self) -> None:
        self.by_name: dict[str, Handler] = {}
        self.by_class: dict[type, Handler] = {}

    def copy(self) -> _Registry:
        twin = _Registry()
        twin.by_name, twin.by_class = dict(self.by_name), dict(self.by_class)
        return twin

    def check(self, cls: type, name: str) -> None:
        """Refuse a tag that another class holds."""
        other = self.by_name.get(name)
        if other is not None and _origin(other.cls) != _origin(cls):
            raise CodecError(
                f"two types are called {name!r}: {other.cls.__module__}.{other.cls.__qualname__} and "
                f"{cls.__module__}.{cls.__qualname__}; give one of them another name: "
                f"holdfast.register_type({cls.__name__}, name=...)"
            )

    def add(self, handler: Handler) -> None:
        self.check(handler.cls, handler.name)
        self.by_name[handler.name] = handler
        self.by_class[handler.cls] = handler


_registered = _Registry()
_registering = threading.Lock()


@overload
def register_type(
    cls: type[T],
    *,
    name: str | None = None,
    encode: Callable[[T], Any] | None = None,
    decode: Callable[[Any], T] | None = None,
) -> type[T]: ...


@overload
def register_type(
    cls: None = None,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> Callable[[type[T]], type[T]]: ...


def register_type(
    cls: type[T] | None = None,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> type[T] | Callable[[type[T]], type[T]]:
    """Allow instances of `cls` in any state, for the whole process; also a decorator.

    `name` is the tag in storage (default: the qualified name of the class without its module). A
    dataclass, pydantic model, Enum or named tuple needs nothing else. Any other class needs both
    `encode` (instance to storable data) and `decode` (that data to an equal instance).
    """
    if cls is None:
        return lambda decorated: register_type(decorated, name=name, encode=encode, decode=decode)
    tag = cls.__qualname__ if name is None else name
    if not tag or ":" in tag:
        raise CodecError(f"{tag!r} cannot be the name of a stored type: it is empty or has a ':'")
    if (encode is None) != (decode is None):
        raise CodecError(f"register_type({cls.__name__}) needs both encode and decode, or neither")
    if encode is not None and decode is not None:
        handler = Handler(tag, cls, encode, decode)
    else:
        handler = handler_for(cls, tag)
    with _registering:
        _registered.add(handler)
    return cls


class Types:
    """The types one codec may store: its own, and whatever `register_type` was told at any time."""

    def __init__(self) -> None:
        self._own = _Registry()

    @classmethod
    def of(cls, *classes: type) -> Types:
        """The registered types and `classes`."""
        return cls().including(classes)

    def including(self, classes: Iterable[type]) -> Types:
        """New types that also know `classes`; this one stays as it is."""
        wider = Types()
        wider._own = self._own.copy()
        for added in classes:
            if added not in _registered.by_class and added not in wider._own.by_class:
                _registered.check(added, added.__qualname__)
                wider._own.add(handler_for(added, added.__qualname__))
        return wider

    @classmethod
    def of_handlers(cls, handlers: Iterable[Handler]) -> Types:
        """The registered types and those of `handlers` whose tags are free."""
        types = cls()
        for handler in handlers:
            if types.named(handler.name) is None:
                types._own.add(handler)
        return types

    def handlers(self) -> list[Handler]:
        """What is known of every user type on the list."""
        return [*_registered.by_class.values(), *self._own.by_class.values()]

    def find(self, cls: type) -> Handler | None:
        """The handler of exactly this class; a registration wins over what a schema declared."""
        return _registered.by_class.get(cls) or self._own.by_class.get(cls)

    def named(self, name: str) -> Handler | None:
        """The handler of a stored tag. Looks only in the allow-list; never imports."""
        return self._own.by_name.get(name) or _registered.by_name.get(name)

    def classes(self) -> list[type]:
        """Every user type on the list."""
        return [*_registered.by_class, *self._own.by_class]

    def __contains__(self, cls: type) -> bool:
        return self.find(cls) is not None

    def __repr__(self) -> str:
        return f"Types({', '.join(sorted({*_registered.by_name, *self._own.by_name}))})"


BUILTIN = Types()
"""Knows the registered types only."""
