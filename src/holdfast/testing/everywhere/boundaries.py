"""The places where a run can die, in words, and which of them are tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import HoldfastError

COMMIT_POINTS = ("before", "committed", "acknowledged")
EVERY_POINT = (*COMMIT_POINTS, "effect", "ran")

_WORDS = {
    "before": "before commit {number} was stored: {what}",
    "committed": "after commit {number} was stored, before the engine heard of it: {what}",
    "acknowledged": "after commit {number} was stored and the engine had heard of it: {what}",
    "effect": "right after effect {number}: {what}",
    "ran": "when the body of {what} had run, before its outcome was stored",
}


class Boundary(NamedTuple):
    """A place in a run: the `number`-th commit, effect or finished body, and on which side of it."""

    point: str
    number: int
    what: str = ""

    def __str__(self) -> str:
        return _WORDS[self.point].format(number=self.number, what=self.what or "(not told)")

    @property
    def place(self) -> tuple[str, int]:
        """What stays the same in every run that goes the same way."""
        return self.point, self.number


def check_points(points: str | Sequence[str]) -> tuple[str, ...]:
    """The points that are wanted, in their own order; raise `HoldfastError` for one that there is not."""
    __tracebackhide__ = True
    points = (points,) if isinstance(points, str) else tuple(points)
    for point in points:
        if point not in EVERY_POINT:
            raise HoldfastError(f"points are {', '.join(map(repr, EVERY_POINT))}; there is no {point!r}")
    if not points:
        raise HoldfastError("crash_everywhere needs at least one point to crash at")
    return tuple(point for point in EVERY_POINT if point in points)


def sampled(boundaries: Sequence[Boundary], limit: int | None) -> list[Boundary]:
    """At most `limit` boundaries, spread evenly over the run and over the points; all if that is not more."""
    if limit is None or len(boundaries) <= limit:
        return list(boundaries)
    groups: dict[str, list[int]] = {}
    for index, boundary in enumerate(boundaries):
        groups.setdefault(boundary.point, []).append(index)
    chosen: set[int] = set()
    left, groups_left = limit, len(groups)
    for indexes in sorted(groups.values(), key=len):
        share = min(len(indexes), max(1, left // groups_left))
        chosen.update(
            indexes[round(place * (len(indexes) - 1) / max(1, share - 1))] for place in range(share)
        )
        left, groups_left = left - share, groups_left - 1
    return [boundaries[index] for index in sorted(chosen)][:limit]
