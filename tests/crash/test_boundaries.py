"""A real process is killed with SIGKILL wherever it could hurt, and what was finished stays finished."""

from __future__ import annotations

import pytest

from holdfast.testing import POINTS
from tests.crash.running import harness

PLACES = [("sqlite", "full"), ("sqlite", "process"), ("file", "full"), ("file", "process")]


@pytest.mark.parametrize(("scheme", "durability"), PLACES)
@pytest.mark.parametrize(
    ("workflow", "fewest"),
    [
        ("chain", 5),
        ("async_chain", 4),
        ("wave", 3),
        ("loop", 7),
        ("for_each", 4),
        ("pausing", 6),
        ("nested", 5),
        ("once", 5),
    ],
)
def test_a_run_killed_at_any_append_is_resumed_to_the_same_result_and_repeats_no_finished_step(
    workflow: str, fewest: int, scheme: str, durability: str
) -> None:
    """S0.9, S0.11, S1.3, S2.2: before the commit, after it, and after its acknowledgement."""
    counts = harness("boundaries", workflow, scheme, durability)

    assert set(counts) == set(POINTS)
    assert all(count >= fewest for count in counts.values()), counts
