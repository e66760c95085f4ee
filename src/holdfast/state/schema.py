"""What a state may hold: keys, their reducers and defaults; and turning updates into changes."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, TypedDict, get_args, get_origin

from holdfast.errors import StateInvalid, closest, suggestion
from holdfast.state.codec import Codec
from holdfast.state.ops import (
    Cells,
    Op,
    ReadOnlyDict,
    ReadOnlyList,
    ReadOnlySet,
    Slot,
    advance,
    growth,
    make_op,
)
from holdfast.state.types import Types, declared_types, field_defaults

# How an update of a key meets the value that is there: the built-in reducers.


ReducerFunction = Callable[[Any, Any], Any]


class Reducer:
    """A built-in reducer. It is journalled as its delta, so its cost is that of the update alone.

    It can be called like any reducer: `append([1], [2]) == [1, 2]`.
    """

    def __init__(
        self, kind: str, identity: Callable[[], Any], accepts: tuple[type, ...], limit: int = 0
    ) -> None:
        self.kind, self.identity, self.accepts, self.limit = kind, identity, accepts, limit

    def check(self, key: str, update: Any) -> None:
        """Refuse an update that this reducer cannot apply."""
        kinds: Any = self.accepts
        if not isinstance(update, kinds):
            wanted = " or ".join(kind.__name__ for kind in self.accepts)
            raise StateInvalid(
                f"state key {key!r} has the reducer {self!r}, which needs a {wanted}, "
                f"not {type(update).__name__}: {update!r:.80}"
            )
        if self.kind == "union":
            for item in update:
                try:
                    hash(item)
                except TypeError as error:
                    raise StateInvalid(
                        f"state key {key!r} is a set, which cannot hold {item!r:.80}: {error}"
                    ) from None

    def __call__(self, old: Any, new: Any) -> Any:
        return combine(self.kind, self.identity() if old is None else old, new, self.limit)

    def __repr__(self) -> str:
        return f"keep_last({self.limit})" if self.kind == "keep" else self.kind


def combine(kind: str, old: Any, new: Any, limit: int = 0) -> Any:
    """Return the value that a built-in reducer makes of an old value and an update."""
    match kind:
        case "append":
            return [*old, *new]
        case "keep":
            return [*old, *new][-limit:]
        case "merge":
            return {**old, **new}
        case "union":
            return set(old) | set(new)
        case "add":
            return old + new
    raise StateInvalid(f"unknown state operation {kind!r}")


append = Reducer("append", list, (list, tuple))
"""Adds the update's items to the end of a list."""

merge = Reducer("merge", dict, (dict,))
"""Puts the update's items into a dict, replacing those of the same key."""

union = Reducer("union", set, (set, frozenset, list, tuple))
"""Adds the update's items to a set."""


add = Reducer("add", int, (int, float, complex))
"""Adds a number to a number."""


def keep_last(limit: int) -> Reducer:
    """Adds the update's items to the end of a list and keeps the last `limit` of it."""
    if limit < 1:
        raise StateInvalid(f"keep_last needs a limit of at least 1, not {limit!r}")
    return Reducer("keep", list, (list, tuple), limit)


REDUCERS = ("append", "merge", "union", "add", "keep_last")
"""The names of the built-in reducers."""


def reducer_problem(reducer: object) -> str | None:
    """Return why `reducer` cannot be one, or `None` if it can."""
    if isinstance(reducer, Reducer):
        return None
    if isinstance(reducer, type):
        return f"{reducer.__name__} is a type; write a function (old, new), or a reducer such as append"
    if not callable(reducer):
        return f"{reducer!r} cannot be called"
    try:
        inspect.signature(reducer).bind(None, None)
    except TypeError:
        return f"{getattr(reducer, '__name__', reducer)!r} does not take two arguments (old, new)"
    except ValueError:
        pass  # Its signature is not known.
    return None


_QUALIFIERS = (typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required))


@dataclasses.dataclass(frozen=True, slots=True)
class Channel:
    """One key of a state."""

    name: str
    annotation: Any = Any
    reducer: Reducer | ReducerFunction | None = None
    default: Callable[[], Any] | None = None
    validate: Callable[[Any], Any] | None = None

    def empty(self) -> Any:
        """Return what a custom reducer of this key meets first: an empty value of the declared type, else `None`."""
        kind = get_origin(self.annotation) or self.annotation
        return kind() if kind in _EMPTY else None


def _check_whole(channel: Channel, value: Any) -> None:
    """Refuse a whole value that its key's reducer could not be applied to later; `None` counts as empty."""
    if isinstance(channel.reducer, Reducer) and value is not None:
        channel.reducer.check(channel.name, value)


_COLLECTING = ("union", "append", "keep")

_EMPTY = frozenset({list, dict, set, tuple, frozenset, str, bytes, int, float, complex})


def _reduced(channel: Channel, old: Any, new: Any) -> Any:
    assert channel.reducer is not None
    try:
        return channel.reducer(old, new)
    except Exception as error:
        name = getattr(channel.reducer, "__name__", repr(channel.reducer))
        raise StateInvalid(
            f"the reducer {name!r} of state key {channel.name!r} failed on {old!r:.60} and the update "
            f"{new!r:.60}: {type(error).__name__}: {error}"
        ) from error


_COMPARED = frozenset({str, int, bool, bytes})


@dataclasses.dataclass(frozen=True, slots=True)
class Certain:
    """For which keys it is certain what a change will meet: `None` means all.

    Elsewhere, `passed_on` says that a container or a long text which is the very one that the state holds
    was only passed on, and need not be written.
    """

    keys: Collection[str] | None
    passed_on: bool = False


EVERYWHERE = Certain(None)


class Schema:
    """The keys a state may hold. An open schema (a plain `dict`) takes any key."""

    def __init__(self, name: str, channels: Mapping[str, Channel], *, is_open: bool = False) -> None:
        self.name, self.channels, self.is_open = name, dict(channels), is_open
        self.begun_keys = frozenset(
            key
            for key, channel in self.channels.items()
            if channel.default is not None or isinstance(channel.reducer, Reducer)
        )
        """The keys that every state of this schema holds from its beginning."""

    @classmethod
    def of(cls, source: Any) -> Schema:
        """Return a schema from a TypedDict, a dataclass, a pydantic model, a mapping of annotations, or `dict`."""
        if isinstance(source, Schema):
            return source
        if source is None or source is dict or get_origin(source) is dict:
            return cls("dict", {}, is_open=True)
        if isinstance(source, Mapping):
            return cls("state", {key: _channel(key, hint) for key, hint in source.items()})
        if not isinstance(source, type):
            raise StateInvalid(
                f"{source!r} is not a state schema: give a TypedDict, a dataclass, a pydantic model or dict"
            )
        hints = _hints(source)
        defaults: dict[str, Callable[[], Any]] = {}
        validators: dict[str, Callable[[Any], Any]] = {}
        if dataclasses.is_dataclass(source):
            defaults = {
                key: default for key, default in field_defaults(source).items() if default is not None
            }
        elif hasattr(source, "model_fields"):
            hints, defaults, validators = _pydantic_fields(source)
        elif not typing.is_typeddict(source):
            raise StateInvalid(
                f"{source.__name__} is not a state schema: give a TypedDict, a dataclass, a pydantic model or dict"
            )
        channels = {
            key: _channel(key, hint, defaults.get(key), validators.get(key)) for key, hint in hints.items()
        }
        return cls(source.__name__, channels)

    def problems(self) -> list[str]:
        """Return what is wrong with this schema; empty if nothing is."""
        return [
            f"state key {channel.name!r} has a bad reducer: {why}"
            for channel in self.channels.values()
            if channel.reducer is not None and (why := reducer_problem(channel.reducer))
        ]

    def types(self, base: Types) -> Types:
        """Return the storable types: those of `base` and those that this schema declares."""
        declared: list[type] = []
        for channel in self.channels.values():
            declared.extend(declared_types(channel.annotation))
        return base.including(declared) if declared else base

    def reduces(self, key: str) -> bool:
        """Return whether a key has a reducer of the user's own."""
        channel = self.channels.get(key)
        return (
            channel is not None and channel.reducer is not None and not isinstance(channel.reducer, Reducer)
        )

    def channel(self, key: object) -> Channel:
        """Return the channel of a key; an undeclared key is refused."""
        channel = self.channels.get(key)  # type: ignore[call-overload]
        if channel is not None:
            return channel  # type: ignore[no-any-return]
        if self.is_open and isinstance(key, str):
            return Channel(key)
        known = ", ".join(map(repr, self.channels)) or "no keys"
        meant = suggestion(str(key), self.channels)
        raise StateInvalid(f"unknown state key {key!r}: {self.name} declares {known}{meant}")

    def initial(self, codec: Codec, values: Mapping[str, Any]) -> list[Op]:
        """Return the changes that make a first state of the input and the schema's defaults."""
        ops = []
        for key, channel in self.channels.items():
            if key in values:
                continue
            if channel.default is not None:
                value = channel.default()
                _check_whole(channel, value)
                ops.append(make_op(codec, "set", key, value))
            elif isinstance(channel.reducer, Reducer):
                ops.append(make_op(codec, "set", key, channel.reducer.identity()))
        for key, value in values.items():
            channel = self.channel(key)
            if channel.validate is not None:
                value = channel.validate(value)
            _check_whole(channel, value)
            reducer = channel.reducer
            if isinstance(reducer, Reducer) and reducer.kind in _COLLECTING and value is not None:
                value = reducer(None, value)
            ops.append(make_op(codec, "set", key, value))
        return ops

    def resolve(
        self, codec: Codec, cells: Cells, update: Mapping[str, Any], certain: Certain = EVERYWHERE
    ) -> list[Op]:
        """Return the changes that an update asks for, in its order. A value that did not change costs nothing.

        The update of a custom reducer becomes a `reduce` change, to be settled with its wave. Where the
        cells that the changes will meet are not `certain`, values are set as they are.
        """
        ops = []
        for key, value in update.items():
            channel = self.channels.get(key) or self.channel(key)
            if channel.validate is not None:
                value = channel.validate(value)
            reducer = channel.reducer
            if reducer is None:
                slot = cells.get(key)
                op = _set_op(codec, key, slot, value, certain)
                if op is not None:
                    ops.append(op)
            elif isinstance(reducer, Reducer):
                reducer.check(key, value)
                if value or reducer.kind == "add":
                    ops.append(make_op(codec, reducer.kind, key, value, reducer.limit))
            else:
                ops.append(make_op(codec, "reduce", key, value))
        return ops

    def replace(self, codec: Codec, cells: Cells, values: Mapping[str, Any]) -> list[Op]:
        """Return the changes that make the state hold these values, whatever the reducers."""
        ops = []
        for key, value in values.items():
            channel = self.channel(key)
            if channel.validate is not None:
                value = channel.validate(value)
            _check_whole(channel, value)
            op = _set_op(codec, key, cells.get(key), value, EVERYWHERE)
            if op is not None:
                ops.append(op)
        return ops

    def reduce(self, codec: Codec, cells: Cells, ops: Iterable[Op]) -> list[Op]:
        """Return the changes that the custom reducers among these changes result in, in order."""
        result: list[Op] = []
        for op in ops:
            if op.kind != "reduce":
                continue
            channel, slot = self.channel(op.key), cells.get(op.key)
            value = op.value
            if channel.reducer is not None and not isinstance(channel.reducer, Reducer):
                value = _reduced(channel, slot.get() if slot else channel.empty(), value)
            change = _set_op(codec, op.key, slot, value, EVERYWHERE)
            if change is not None:
                result.append(change)
                cells = advance(cells, [change])
        return result


def _set_op(codec: Codec, key: str, slot: Slot | None, value: Any, certain: Certain) -> Op | None:
    """Return the cheapest change that makes `value` of what is there: none, an append, or a set."""
    if slot is None:
        return make_op(codec, "set", key, value)
    old = slot.get() if slot._op is not None else slot._value
    if certain.keys is not None and key not in certain.keys:
        is_long = isinstance(value, (str, bytes)) and len(value) >= 64
        is_weighty = is_long or isinstance(value, (ReadOnlyList, ReadOnlyDict, ReadOnlySet))
        if certain.passed_on and old is value and is_weighty:
            return None
        return make_op(codec, "set", key, value)
    kind = type(value)
    if old is value or (kind in _COMPARED and type(old) is kind and old == value):
        return None
    if kind is list:
        grown = growth(old, value)
        if grown is not None:
            return make_op(codec, "append", key, grown) if grown else None
    op = make_op(codec, "set", key, value)
    if op.care and op.raw == codec.encode(old):
        return None
    return op


def _hints(source: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(source, include_extras=True)
    except NameError as error:
        raise StateInvalid(
            f"the annotations of {source.__name__} cannot be read ({error}); "
            "define the types it names at module level"
        ) from None


def _channel(
    key: str,
    hint: Any,
    default: Callable[[], Any] | None = None,
    validate: Callable[[Any], Any] | None = None,
) -> Channel:
    while get_origin(hint) in _QUALIFIERS:
        hint = get_args(hint)[0]
    reducer = None
    if isinstance(hint, Reducer):
        raise StateInvalid(_bad_annotation(key, f"{hint!r} is no type", repr(hint)))
    if get_origin(hint) is Annotated:
        base, *extras = get_args(hint)
        _check_extras(key, base, extras)
        reducer = next((extra for extra in extras if isinstance(extra, Reducer)), None)
        if reducer is None:
            reducer = next(
                (extra for extra in extras if callable(extra) and not isinstance(extra, type)), None
            )
        if reducer is None and default is None and validate is None:
            reducer = next((extra for extra in extras if not isinstance(extra, str)), None)
        hint = base
    return Channel(key, hint, reducer, default, validate)


def _check_extras(key: str, base: Any, extras: Iterable[Any]) -> None:
    """Refuse what is beside a key's type and was meant as its reducer, but is none."""
    reducers = [extra for extra in extras if isinstance(extra, Reducer)]
    if isinstance(base, Reducer):
        raise StateInvalid(_bad_annotation(key, "the type comes first", repr(base)))
    if len(reducers) > 1:
        given = " and ".join(map(repr, reducers))
        raise StateInvalid(_bad_annotation(key, f"{given} are two reducers", repr(reducers[0])))
    for extra in extras:
        if isinstance(extra, type) and not reducers:
            raise StateInvalid(_bad_annotation(key, f"{extra.__name__} is a type and no reducer", "append"))
        text = extra.lower() if isinstance(extra, str) and not reducers else ""
        if close := closest(text, REDUCERS, 0.75):
            raise StateInvalid(_bad_annotation(key, f"the text {extra!r} is no reducer", close))


def _bad_annotation(key: str, why: str, reducer: str) -> str:
    called = "keep_last(10)" if reducer == "keep_last" else reducer
    return (
        f"state key {key!r}: {why}; write {key}: Annotated[list, {called}], with "
        f"`from typing import Annotated` and `from holdfast import {reducer.partition('(')[0]}`"
    )


def _pydantic_fields(
    source: Any,
) -> tuple[dict[str, Any], dict[str, Callable[[], Any]], dict[str, Callable[[Any], Any]]]:
    hints: dict[str, Any] = {}
    defaults: dict[str, Callable[[], Any]] = {}
    validators: dict[str, Callable[[Any], Any]] = {}
    for name, field in source.model_fields.items():
        _check_extras(name, field.annotation, field.metadata)
        reducers = [extra for extra in field.metadata if isinstance(extra, Reducer) or _is_function(extra)]
        hints[name] = Annotated[(field.annotation, *reducers)] if reducers else field.annotation
        if not field.is_required():
            defaults[name] = partial(field.get_default, call_default_factory=True)
        if not reducers:
            validators[name] = _validator(source, name, field)
    return hints, defaults, validators


def _is_function(extra: object) -> bool:
    return (
        callable(extra)
        and not isinstance(extra, type)
        and type(extra).__module__ in ("builtins", "functools")
    )


def _validator(source: Any, name: str, field: Any) -> Callable[[Any], Any]:
    from pydantic import ValidationError

    if source.__pydantic_decorators__.model_validators:
        raise StateInvalid(
            f"{source.__name__} has a model validator, which needs a whole model; a state is updated key by key, "
            "so use field validators"
        )

    for validator in source.__pydantic_decorators__.field_validators.values():
        if validator.info.mode != "wrap" and len(inspect.signature(validator.func).parameters) > 1:
            raise StateInvalid(
                f"{source.__name__} has a field validator that looks at other fields; a state is updated key by "
                "key, so validators may look at their own value only"
            )

    def validate(value: Any) -> Any:
        try:
            checked = source.__pydantic_validator__.validate_assignment(source.model_construct(), name, value)
            return getattr(checked, name)
        except ValidationError as error:
            first = error.errors()[0]
            raise StateInvalid(
                f"state key {name!r} of {source.__name__}: {first['msg']}, got {value!r:.80}"
            ) from None

    return validate


def as_mapping(value: Any, what: str) -> Mapping[str, Any]:
    """Return the keys and values of a dict, a `State`, a dataclass instance or a pydantic model instance."""
    if type(value) is dict:
        return value
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(type(value), "model_fields"):
        return {name: getattr(value, name) for name in value.model_fields_set}
    raise StateInvalid(f"{what} must be a dict of state keys, not {type(value).__name__}: {value!r:.80}")


# `WorkflowState`: the ready-made schema for agent workflows.


class TaskResult(TypedDict, total=False):
    """One completed task. Only completed tasks belong into a state."""

    task_id: str
    result: Any
    timestamp: float
    duration: float


class WorkflowState(TypedDict, total=False):
    """Messages, completed tasks and decisions, which grow; and a context, which is merged.

    The id of the checkpoint that a state was taken at is `state.checkpoint_id`.
    """

    messages: Annotated[list[Any], append]
    tasks: Annotated[list[TaskResult], append]
    decisions: Annotated[list[Any], append]
    context: Annotated[dict[str, Any], merge]
