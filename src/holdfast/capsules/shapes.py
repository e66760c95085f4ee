"""Whether records and runs have the shape that they declare: what a stranger wrote need not.

Those who read journals rely on it; a journal that is not of that shape is not taken.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any

from holdfast.data.ops import Op
from holdfast.errors import CapsuleInvalid
from holdfast.journal import records, run_state
from holdfast.journal.records import Record
from holdfast.journal.run_state import RunState
from holdfast.plan.outline import is_outline
from holdfast.values import RunStatus

_LATEST = 253402300800.0


def check_record(record: Record) -> None:
    """Refuse a record whose fields are not what they should be."""
    if not fits(record, type(record)):
        raise CapsuleInvalid(f"a {type(record).__name__} record in it is not of the shape of one")
    outline = getattr(record, "outline", None)
    if outline and not is_outline(outline):
        raise CapsuleInvalid("the definition in it is not the outline of a graph")
    if isinstance(record, records.RunEnded) and record.status not in set(RunStatus):
        raise CapsuleInvalid("a run in it ended in no known way")


def check_run(run: RunState) -> None:
    """Refuse a run whose parts are not what they should be."""
    if not fits(run, RunState) or run.status not in set(RunStatus) or "" not in run.frames:
        raise CapsuleInvalid("the run in it is not of the shape of one")
    if run.outline and not is_outline(run.outline):
        raise CapsuleInvalid("the definition in it is not the outline of a graph")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type; lists do for tuples, integers for numbers."""
    if hint is Any:
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is tuple:
        return isinstance(value, (list, tuple)) and _members_fit(value, inner)
    if origin is list:
        return isinstance(value, (list, tuple)) and all(fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, inner[0]) and fits(item, inner[1]) for key, item in value.items()
        )
    return _is(value, hint)


def _members_fit(value: Any, inner: tuple[Any, ...]) -> bool:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return all(fits(item, inner[0]) for item in value)
    return len(value) == len(inner) and all(map(fits, value, inner))


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value) and -_LATEST < value < _LATEST
    if kind in (int, str, bytes, bool):
        return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))
    if kind is Op:
        return isinstance(value, Op) and _is_change(value)
    if not isinstance(kind, type) or not isinstance(value, kind):
        return value is None and kind is type(None)
    fields = _fields(kind)
    return all(fits(getattr(value, name, None), hint) for name, hint in fields)


def _is_change(op: Op) -> bool:
    """Whether a change has a key, bytes, and, if it adds to something, something of several parts."""
    if not (isinstance(op.key, str) and isinstance(op.raw, bytes) and type(op.limit) is int):
        return False
    return op.kind not in _OF_SEVERAL or op.raw[1:2] in _SEVERAL


_OF_SEVERAL = ("append", "keep", "merge", "union")
_SEVERAL = frozenset(bytes([code]) for code in (*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
"""How lists and mappings begin in MessagePack."""


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """The declared fields of a record or of a part of a run; other classes look after themselves."""
    if not dataclasses.is_dataclass(kind) and not hasattr(kind, "_fields"):
        return ()
    names = {**vars(records), **vars(run_state)}
    return tuple(typing.get_type_hints(kind, names).items())
