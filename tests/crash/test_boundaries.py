"""A real process is killed with SIGKILL wherever it could hurt, and what was finished stays finished."""

from __future__ import annotations

import pytest

from holdfast.testing.wrapped_store import POINTS
from tests.crash.programs import harness

WORKFLOWS = {
    "chain": 5,
    "async_chain": 4,
    "wave": 3,
    "loop": 7,
    "for_each": 4,
    "pausing": 6,
    "nested": 5,
    "once": 5,
}
"""The workflows of the harness, and how many appends they have at least."""

WAYS = ([("sqlite", "full"), ("file", "process")], [("sqlite", "process"), ("file", "full")])
"""Each workflow is tried in both stores and in both ways to save, which of them together alternates."""


@pytest.mark.parametrize(
    ("workflow", "scheme", "durability"),
    [(name, *way) for place, name in enumerate(WORKFLOWS) for way in WAYS[place % 2]],
)
def test_a_run_killed_at_any_append_is_resumed_to_the_same_result_and_repeats_no_finished_step(
    workflow: str, scheme: str, durability: str
) -> None:
    """S0.9, S0.11, S1.3, S2.2: before the commit, after it, and after its acknowledgement."""
    counts = harness("boundaries", workflow, scheme, durability)

    assert set(counts) == set(POINTS)
    assert all(count >= WORKFLOWS[workflow] for count in counts.values()), counts
