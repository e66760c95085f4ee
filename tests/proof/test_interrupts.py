"""Ctrl+C at random times: it is caught as in a notebook, and the same process resumes."""

from __future__ import annotations

import pytest

from tests.proof.programs import proof
from tests.proof.stopping import STORES


@pytest.mark.parametrize("store", STORES)
def test_a_run_that_ctrl_c_stopped_at_any_moment_is_resumed_by_the_same_process(store: str) -> None:
    """A few interrupts here; `python -m tests.proof.interrupts --times 4000` makes thousands."""
    counts = proof("interrupts", "--store", store, "--times", "24", "--limit", "100")

    assert counts["interrupts"] >= 24
    assert counts["violations"] == 0
