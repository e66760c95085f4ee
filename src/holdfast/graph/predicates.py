"""Predicates for edges: named conditions on the state, and their combinations."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError

Predicate = Callable[[Any], Any]
"""A function of the state that is true, false, or an awaitable of either."""


def always(state: Mapping[str, Any]) -> bool:
    """Return True: `add_edge(…, when=always)` is taken if no edge before it was."""
    return True


def key_exists(key: str) -> Predicate:
    """Return a predicate: the state has this key."""
    return _named(f"key_exists({key!r})", lambda state: key in state)


def key_equals(key: str, value: Any) -> Predicate:
    """Return a predicate: the state has this key, and its value equals `value`."""
    return _named(
        f"key_equals({key!r}, {value!r:.60})", lambda state: key in state and bool(state[key] == value)
    )


def not_(predicate: Predicate) -> Predicate:
    """Return a predicate: the other one is false."""
    name = f"not_({_name(predicate)})"

    def holds(state: Any) -> Any:
        result = predicate(state)
        return _negated(result) if inspect.isawaitable(result) else not result

    return _named(name, holds)


def and_(*predicates: Predicate) -> Predicate:
    """Return a predicate: all of them are true. They are asked in order, until one is false."""
    return _combined("and_", predicates, stop=False)


def or_(*predicates: Predicate) -> Predicate:
    """Return a predicate: any of them is true. They are asked in order, until one is true."""
    return _combined("or_", predicates, stop=True)


def _combined(word: str, predicates: Sequence[Predicate], *, stop: bool) -> Predicate:
    name = f"{word}({', '.join(map(_name, predicates))})"
    return _named(name, lambda state: _first(predicates, state, stop))


def _first(predicates: Sequence[Predicate], state: Any, stop: bool) -> Any:
    """Return `stop` if any predicate comes to it, else the opposite; an awaitable if one of them is async."""
    for index, predicate in enumerate(predicates):
        result = predicate(state)
        if inspect.isawaitable(result):
            return _first_awaited(result, predicates[index + 1 :], state, stop)
        if bool(result) is stop:
            return stop
    return not stop


async def _first_awaited(first: Awaitable[Any], others: Sequence[Predicate], state: Any, stop: bool) -> bool:
    if bool(await first) is stop:
        return stop
    result = _first(others, state, stop)
    return bool(await result if inspect.isawaitable(result) else result)


async def _negated(result: Awaitable[Any]) -> bool:
    return not await result


def _name(predicate: Predicate) -> str:
    """Return how a predicate is called in events; refuse what is none."""
    if not callable(predicate):
        raise HoldfastError(
            f"a predicate is a function of the state, not {predicate!r:.80}, such as key_exists('answer')"
        )
    return str(getattr(predicate, "__name__", type(predicate).__name__))


def _named(name: str, predicate: Predicate) -> Predicate:
    predicate.__name__ = name
    return predicate
