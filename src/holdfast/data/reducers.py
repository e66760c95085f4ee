"""How an update of a key meets the value that is there: the built-in reducers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from holdfast.errors import StateInvalid

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
    """The value that a built-in reducer makes of an old value and an update."""
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


def _zero() -> int:
    return 0


add = Reducer("add", _zero, (int, float, complex))
"""Adds a number to a number."""


def keep_last(limit: int) -> Reducer:
    """Adds the update's items to the end of a list and keeps the last `limit` of it."""
    if limit < 1:
        raise StateInvalid(f"keep_last needs a limit of at least 1, not {limit!r}")
    return Reducer("keep", list, (list, tuple), limit)


REDUCERS = ("append", "merge", "union", "add", "keep_last")
"""The names of the built-in reducers."""


def reducer_problem(reducer: object) -> str | None:
    """Why `reducer` cannot be one, or `None` if it can."""
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
        return None
    return None
