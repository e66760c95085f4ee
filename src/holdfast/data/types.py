"""The allow-list: which of the user's types may be stored, under which tags."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, overload

from holdfast.data.declared import declared_types
from holdfast.data.shapes import Handler, handler_for
from holdfast.errors import CodecError

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
