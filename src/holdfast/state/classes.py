"""How a user's class becomes plain data and back: dataclasses, pydantic models, enums, named tuples."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CodecError

Missing = Callable[[str, dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """Turns instances of exactly `cls` into storable data and back, under the tag `name`."""

    name: str
    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def is_model(cls: type) -> bool:
    """Whether `cls` is a pydantic model; never imports pydantic."""
    model = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return isinstance(model, type) and issubclass(cls, model) and cls is not model


def is_enum(cls: type) -> bool:
    """Whether `cls` is an enum with members."""
    return issubclass(cls, enum.Enum) and bool(cls.__members__)


def is_named_tuple(cls: type) -> bool:
    """Whether `cls` is a named tuple, written either way."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def has_shape(cls: Any) -> bool:
    """Whether instances of `cls` can be stored without `encode` and `decode` functions of the user."""
    if not isinstance(cls, type):
        return False
    return dataclasses.is_dataclass(cls) or is_model(cls) or is_enum(cls) or is_named_tuple(cls)


def handler_for(cls: type, name: str) -> Handler:
    """A handler that runs no code of `cls`: no `__init__`, no validation. Other classes are refused."""
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


def _filled(name: str, data: Any, fields: tuple[str, ...], missing: Missing) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise CodecError(f"the stored {name!r} is no mapping of fields")
    values: dict[str, Any] = {}
    for field in fields:
        values[field] = data[field] if field in data else missing(field, values)
    return values


def _absent(name: str, field: str) -> CodecError:
    return CodecError(
        f"the stored {name!r} has no field {field!r}, and the class gives no default for it; "
        "add a default to the field"
    )


def _dataclass(cls: Any, name: str) -> Handler:
    if not inspect.isabstract(cls):
        try:
            object.__new__(cls)
        except TypeError:
            raise CodecError(
                f"cannot store dataclass {cls.__qualname__!r}: it extends a built-in type; "
                f"call holdfast.register_type({cls.__name__}, encode=..., decode=...)"
            ) from None
    declared = {field.name: field for field in dataclasses.fields(cls)}
    fields = tuple(declared)

    def missing(field: str, _: dict[str, Any]) -> Any:
        known = declared[field]
        if known.default is not dataclasses.MISSING:
            return known.default
        if known.default_factory is not dataclasses.MISSING:
            return known.default_factory()
        raise _absent(name, field)

    def encode(value: Any) -> dict[str, Any]:
        return {field: getattr(value, field) for field in fields}

    def decode(data: Any) -> Any:
        made = object.__new__(cls)
        for field, value in _filled(name, data, fields, missing).items():
            object.__setattr__(made, field, value)
        return made

    return Handler(name, cls, encode, decode)


def _named_tuple(cls: Any, name: str) -> Handler:
    fields: tuple[str, ...] = cls._fields
    defaults: Mapping[str, Any] = getattr(cls, "_field_defaults", {})

    def missing(field: str, _: dict[str, Any]) -> Any:
        if field in defaults:
            return defaults[field]
        raise _absent(name, field)

    def encode(value: Any) -> dict[str, Any]:
        return dict(zip(fields, tuple(value), strict=True))

    def decode(data: Any) -> Any:
        return tuple.__new__(cls, _filled(name, data, fields, missing).values())

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
    """A model whose fields are all set and that holds nothing else is a dict, any other a list of four."""

    def missing(field: str, values: dict[str, Any]) -> Any:
        known = cls.__pydantic_fields__[field]
        if known.is_required():
            raise _absent(name, field)
        return known.get_default(call_default_factory=True, validated_data=values)

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
        fields = _filled(name, stored, tuple(cls.__pydantic_fields__), missing)
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
