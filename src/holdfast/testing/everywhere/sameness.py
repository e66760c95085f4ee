"""Where two states differ, as paths into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Path = tuple[str | int, ...]

_MOST = 200


def differing_paths(one: Any, other: Any, path: Path = (), *, unordered: bool = False) -> list[Path]:
    """The innermost places at which two values differ; lists of different lengths differ as a whole.

    With `unordered` lists that have the same items in another order do not differ.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found: list[Path] = []
        for key in [*one, *(key for key in other if key not in one)]:
            if key in one and key in other:
                found += differing_paths(one[key], other[key], (*path, key), unordered=unordered)
            else:
                found.append((*path, key))
        return found[:_MOST]
    both_lists = isinstance(one, (list, tuple)) and isinstance(other, (list, tuple))
    if both_lists and type(one) is type(other) and len(one) == len(other):
        if unordered and sorted(map(repr, one)) == sorted(map(repr, other)):
            return []
        return [
            place
            for index, (mine, theirs) in enumerate(zip(one, other, strict=True))
            for place in differing_paths(mine, theirs, (*path, index), unordered=unordered)
        ][:_MOST]
    return [] if _are_same(one, other) else [path]


def _are_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or (one != one and other != other)
    except Exception:
        return repr(one) == repr(other)  # Arrays and the like do not answer with a truth.


def shown_at(state: Any, path: Path) -> str:
    """What a state has at a path, for people."""
    name = "".join(f"[{part!r}]" for part in path) or "the state"
    for part in path:
        try:
            state = state[part]
        except (KeyError, IndexError, TypeError):
            return f"{name} is missing"
    text = repr(state)
    return f"{name} = {text if len(text) <= 160 else text[:157] + '…'}"
