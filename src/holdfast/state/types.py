"""The allow-list: which of the user's types may be stored, under which tags, and how they become plain data."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ForwardRef, TypeVar, overload

from holdfast.errors import CodecError

# How a user's class becomes plain data and back: dataclasses, pydantic models, enums, named tuples.


Defaults = Mapping[str, Callable[[], Any] | None]
"""What makes the default of each field; `None` for a field without one."""


@dataclass(frozen=True, slots=True)
class Handler:
    """Turns instances of exactly `cls` into storable data and back, under the tag `name`."""

    name: str
    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def is_model(cls: type) -> bool:
    """Return whether `cls` is a pydantic model; never imports pydantic."""
    model = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return isinstance(model, type) and issubclass(cls, model) and cls is not model


def is_enum(cls: type) -> bool:
    """Return whether `cls` is an enum with members."""
    return issubclass(cls, enum.Enum) and bool(cls.__members__)


def is_named_tuple(cls: type) -> bool:
    """Return whether `cls` is a named tuple, written either way."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def has_shape(cls: Any) -> bool:
    """Return whether instances of `cls` can be stored without `encode` and `decode` functions of the user."""
    if not isinstance(cls, type):
        return False
    return dataclasses.is_dataclass(cls) or is_model(cls) or is_enum(cls) or is_named_tuple(cls)


def handler_for(cls: type, name: str) -> Handler:
    """Return a handler that runs no code of `cls`: no `__init__`, no validation. Other classes are refused."""
    if is_enum(cls):
        return _enum(cls, name)
    if is_model(cls):
        return _model(cls, name)
    if is_named_tuple(cls):
        return _named_tuple(cls, name)
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls, name)
    raise CodecError(
        f"cannot store instances of {cls.__qualname__!r}: it is no dataclass, pydantic model, Enum or named "
        f"tuple; call holdfast.register_type({cls.__name__}, encode=..., decode=...)"
    )


def _filled(name: str, data: Any, defaults: Defaults, values: dict[str, Any]) -> dict[str, Any]:
    """Put the fields of stored data into `values`; those that it lacks get their defaults."""
    if not isinstance(data, dict):
        raise CodecError(f"the stored {name!r} is no mapping of fields")
    for field, default in defaults.items():
        if field not in data and default is None:
            raise CodecError(
                f"the stored {name!r} has no field {field!r}, and the class gives no default for it; "
                "add a default to the field"
            )
        values[field] = data[field] if field in data or default is None else default()
    return values


def field_defaults(cls: Any) -> dict[str, Callable[[], Any] | None]:
    """Return what makes the default of each field of a dataclass; `None` for a field without one."""
    found: dict[str, Callable[[], Any] | None] = {}
    for field in dataclasses.fields(cls):
        found[field.name] = None
        if field.default is not dataclasses.MISSING:
            found[field.name] = partial(_same, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory
    return found


def _same(value: Any) -> Any:
    return value


def _dataclass(cls: Any, name: str) -> Handler:
    if not inspect.isabstract(cls):
        try:
            object.__new__(cls)
        except TypeError:
            raise CodecError(
                f"cannot store dataclass {cls.__qualname__!r}: it extends a built-in type; "
                f"call holdfast.register_type({cls.__name__}, encode=..., decode=...)"
            ) from None
    fields = field_defaults(cls)

    def encode(value: Any) -> dict[str, Any]:
        return {field: getattr(value, field) for field in fields}

    def decode(data: Any) -> Any:
        made = object.__new__(cls)
        for field, value in _filled(name, data, fields, {}).items():
            object.__setattr__(made, field, value)
        return made

    return Handler(name, cls, encode, decode)


def _named_tuple(cls: Any, name: str) -> Handler:
    known: Mapping[str, Any] = getattr(cls, "_field_defaults", {})
    fields = {field: partial(_same, known[field]) if field in known else None for field in cls._fields}

    def encode(value: Any) -> dict[str, Any]:
        return dict(zip(fields, tuple(value), strict=True))

    def decode(data: Any) -> Any:
        return tuple.__new__(cls, _filled(name, data, fields, {}).values())

    return Handler(name, cls, encode, decode)


def _enum(cls: Any, name: str) -> Handler:
    def decode(data: Any) -> Any:
        if data not in cls.__members__:
            raise CodecError(
                f"enum {name!r} has no member {data!r} any more; add it back, as an alias if renamed"
            )
        return cls.__members__[data]

    if issubclass(cls, enum.Flag):
        return Handler(name, cls, lambda member: member._value_, cls)
    return Handler(name, cls, lambda member: member._name_, decode)


def _model(cls: Any, name: str) -> Handler:
    """Return a model whose fields are all set and that holds nothing else is a dict, any other a list of four."""

    def encode(value: Any) -> Any:
        fields = {field: getattr(value, field) for field in cls.__pydantic_fields__}
        were_set, extra, private = (
            value.__pydantic_fields_set__,
            value.__pydantic_extra__,
            value.__pydantic_private__,
        )
        if not extra and not private and were_set == fields.keys():
            return fields
        return [fields, sorted(were_set), extra, private]

    def decode(data: Any) -> Any:
        bare_extra: dict[str, Any] | None = {} if cls.model_config.get("extra") == "allow" else None
        simple = isinstance(data, dict)
        stored, were_set, extra, private = (data, data, bare_extra, None) if simple else data
        made = object.__new__(cls)
        fields: dict[str, Any] = {}
        defaults = {
            field: None
            if known.is_required()
            else partial(known.get_default, call_default_factory=True, validated_data=fields)
            for field, known in cls.__pydantic_fields__.items()
        }
        _filled(name, stored, defaults, fields)
        object.__setattr__(made, "__dict__", fields)
        object.__setattr__(made, "__pydantic_fields_set__", {field for field in were_set if field in fields})
        object.__setattr__(made, "__pydantic_extra__", bare_extra if extra is None else extra)
        object.__setattr__(made, "__pydantic_private__", _private(cls, private))
        return made

    return Handler(name, cls, encode, decode)


def _private(cls: Any, stored: dict[str, Any] | None) -> dict[str, Any] | None:
    if not cls.__private_attributes__:
        return None
    undefined = sys.modules["pydantic_core"].PydanticUndefined
    defaults = {field: known.get_default() for field, known in cls.__private_attributes__.items()}
    merged = {**defaults, **(stored or {})}
    return {field: value for field, value in merged.items() if value is not undefined and field in defaults}


# Which storable classes a type annotation mentions, at any depth.


def declared_types(annotation: Any) -> list[type]:
    """Return every dataclass, pydantic model, Enum and named tuple in `annotation`, in order of appearance.

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
    """Yield one hint of a class of which another hint names something out of reach."""
    holder = type("Holder", (), {"__annotations__": {"hint": hint}})
    try:
        yield from typing.get_type_hints(holder, globalns=scope, include_extras=True).values()
    except Exception:
        if not isinstance(hint, (str, ForwardRef)):
            yield hint


T = TypeVar("T")


def _origin(cls: type) -> tuple[str, str]:
    """Return what stays the same when a module is reloaded, or is both `__main__` and imported."""
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
    """The types one codec may store: its own, and whatever was registered with `register_type` at any time."""

    def __init__(self) -> None:
        self._own = _Registry()

    @classmethod
    def of(cls, *classes: type) -> Types:
        """Return the registered types and `classes`."""
        return cls().including(classes)

    def including(self, classes: Iterable[type]) -> Types:
        """Return new types that also know `classes`; this one stays as it is."""
        wider = Types()
        wider._own = self._own.copy()
        for added in classes:
            if added not in _registered.by_class and added not in wider._own.by_class:
                _registered.check(added, added.__qualname__)
                wider._own.add(handler_for(added, added.__qualname__))
        return wider

    @classmethod
    def of_handlers(cls, handlers: Iterable[Handler]) -> Types:
        """Return the registered types and those of `handlers` whose tags are free."""
        types = cls()
        for handler in handlers:
            if types.named(handler.name) is None:
                types._own.add(handler)
        return types

    def handlers(self) -> list[Handler]:
        """Return what is known of every user type on the list."""
        return [*_registered.by_class.values(), *self._own.by_class.values()]

    def find(self, cls: type) -> Handler | None:
        """Return the handler of exactly this class; a registration wins over what a schema declared."""
        return _registered.by_class.get(cls) or self._own.by_class.get(cls)

    def named(self, name: str) -> Handler | None:
        """Return the handler of a stored tag. Looks only in the allow-list; never imports."""
        return self._own.by_name.get(name) or _registered.by_name.get(name)

    def classes(self) -> list[type]:
        """Return every user type on the list."""
        return [*_registered.by_class, *self._own.by_class]

    def __contains__(self, cls: type) -> bool:
        return self.find(cls) is not None

    def __repr__(self) -> str:
        return f"Types({', '.join(sorted({*_registered.by_name, *self._own.by_name}))})"


BUILTIN = Types()
"""Knows the registered types only."""
