"""The known name that a misspelt one may mean, found at a bounded cost however many names there are."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

MOST_LOOKED_AT = 1000
"""How many known names are looked at."""

MOST_COMPARED = 50
"""How many of these, the nearest in length, are compared character by character."""

LONGEST = 60
"""Longer names are no misspelt ones."""

_CUTOFF = 0.6


def closest(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """The known name that is most like `name`, or `None`; case, `-` and `_` make no difference."""
    if not name or len(name) > LONGEST:
        return None
    some = [other for other in itertools.islice(known, MOST_LOOKED_AT) if 0 < len(other) <= LONGEST]
    wanted = _folded(name)
    same = next((other for other in some if _folded(other) == wanted), None)
    if same is not None:
        return same
    near = [other for other in some if 2 * min(len(name), len(other)) >= cutoff * (len(name) + len(other))]
    few = heapq.nsmallest(MOST_COMPARED, near, key=lambda other: abs(len(other) - len(name)))
    import difflib

    found = difflib.get_close_matches(name, few, 1, cutoff)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` if a known name is close, else nothing."""
    close = closest(name, known)
    return f"did you mean {close!r}?" if close is not None else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, to be put at the end of a message, if a known name is close, else nothing."""
    asked = did_you_mean(name, known)
    return f"; {asked}" if asked else ""


def _folded(name: str) -> str:
    return name.strip().casefold().replace("-", "_")
