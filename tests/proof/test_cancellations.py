"""Async calls that are cancelled at random times, and whose runs are resumed at once in the same process."""

from __future__ import annotations

import pytest

from tests.proof.programs import proof
from tests.proof.stopping import STORES


@pytest.mark.parametrize("store", STORES)
def test_a_call_that_is_cancelled_at_any_moment_leaves_a_run_that_can_be_resumed_at_once(store: str) -> None:
    """A few cancels here; `python -m tests.proof.cancellations --times 4000` makes thousands."""
    counts = proof("cancellations", "--store", store, "--times", "24")

    assert counts["cancels"] >= 24
    assert counts["violations"] == 0
