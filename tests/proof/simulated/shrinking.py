"""Making a failing schedule small: fewer faults, fewer processes, a smaller workflow, fewer surprises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.invariants import Violation

from .schedule import Verdict, replay

_MOST_MOMENTS = 400_000
"""Schedules that never end are long; they are shrunk as far as that takes a few seconds."""

Fails = Callable[[Verdict], bool]


def same_failure(violations: Sequence[Violation]) -> Fails:
    """Whether a schedule breaks one of the promises that were broken before."""
    names = {violation.invariant.name for violation in violations}
    return lambda verdict: any(found.invariant.name in names for found in verdict.violations)


def shrink(verdict: Verdict, *, most: int = 600) -> Verdict:
    """A simpler schedule that fails in the same way, found in at most so many tries.

    Choices are dropped, set to zero and made smaller, in ever smaller pieces; whatever still fails is kept.
    """
    fails, best, left, moments = same_failure(verdict.violations), verdict, most, 0
    choices = _trimmed(verdict.choices)
    size = max(1, len(choices) // 2)
    while size and left > 0 and moments <= _MOST_MOMENTS:
        changed = False
        for start in range(0, len(choices), size):
            for candidate in _simpler(choices, start, size):
                if left <= 0 or moments > _MOST_MOMENTS:
                    break
                left -= 1
                found = _tried(candidate)
                moments += found.moments if found is not None else 0
                if found is not None and fails(found):
                    best, choices, changed = found, candidate, True
                    break
        size = size if changed and size == 1 else size // 2
    return best._replace(choices=choices)


def _simpler(choices: tuple[int, ...], start: int, size: int) -> list[tuple[int, ...]]:
    piece = choices[start : start + size]
    if not piece:
        return []
    before, after = choices[:start], choices[start + size :]
    found = [_trimmed(before + after)]
    if any(piece):
        found.append(_trimmed(before + (0,) * len(piece) + after))
    if size == 1 and piece[0] > 1:
        found += [(*before, smaller, *after) for smaller in (piece[0] // 2, piece[0] - 1)]
    return [candidate for candidate in found if candidate != choices]


def _trimmed(choices: Sequence[int]) -> tuple[int, ...]:
    """Without the zeros at the end, which are there anyway."""
    end = len(choices)
    while end and not choices[end - 1]:
        end -= 1
    return tuple(choices[:end])


def _tried(choices: tuple[int, ...]) -> Verdict | None:
    try:
        return replay(choices)
    except (RuntimeError, RecursionError, ValueError, AssertionError):
        return None


def as_test(verdict: Verdict) -> str:
    """A regression test to paste."""
    lines = [
        "def test_a_schedule_that_once_failed() -> None:",
        f'    """{verdict.scenario}"""',
        f"    assert not replay({list(verdict.choices)}).violations",
    ]
    return "\n".join(lines)
