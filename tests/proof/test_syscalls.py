"""Kills and errors at system calls that change the store of a real process, and the resume of its run."""

from __future__ import annotations

import pytest

from tests.proof.programs import proof
from tests.proof.syscalls import FAULTS


@pytest.mark.parametrize(
    ("workflow", "store", "durability"),
    [("pausing", "sqlite", "full"), ("for_each", "file", "full")],
)
def test_a_fault_at_a_system_call_loses_nothing_that_was_acknowledged(
    workflow: str, store: str, durability: str
) -> None:
    """S0.9, S1.3, S2.2: a few calls here; `python -m tests.proof.syscalls --every` takes all of five workflows."""
    where = ("--workflow", workflow, "--store", store, "--durability", durability)

    counts = proof("syscalls", *where, "--some", "1", "--jobs", "1")

    assert counts["kinds"].keys() == set(FAULTS)
    assert counts["violations"] == 0
