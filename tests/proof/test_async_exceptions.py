"""Exceptions between any two lines of a run, and real signals: the run goes on as if nothing had been."""

from __future__ import annotations

import pytest

from tests.proof.programs import proof


@pytest.mark.parametrize(
    ("store", "shape", "kind"),
    [
        ("sqlite", "plain", "interrupt"),
        ("sqlite", "awaited_wave", "cancel"),
        ("sqlite", "once", "signal"),
        ("file", "gated", "exit"),
        ("file", "awaited", "signal"),
        ("memory", "items", "cancelled"),
        ("file", "function", "exit"),
        ("memory", "dag", "interrupt"),
    ],
)
def test_an_exception_between_two_lines_breaks_nothing(store: str, shape: str, kind: str) -> None:
    """S0.9, S1.3: some places here; `python -m tests.proof.async_exceptions --full` takes all of them."""
    where = ("--store", store, "--shape", shape, "--kind", kind)

    counts = proof("async_exceptions", *where, "--some", "15", "--jobs", "1")

    assert counts["exceptions"] > 0
    assert counts["violations"] == 0


@pytest.mark.parametrize(
    ("shape", "file", "kind"),
    [
        ("awaited", "threads.py", "interrupt"),
        ("once", "engine/once.py", "interrupt"),
        ("awaited_function", "functions/saving.py", "cancelled"),
    ],
)
def test_an_exception_where_others_wait_leaves_nobody_waiting(shape: str, file: str, kind: str) -> None:
    """S1.3: every line that brings the answer of a store's thread to its caller, or ends what runs once."""
    where = ("--store", "sqlite", "--shape", shape, "--kind", kind, "--within", file)

    counts = proof("async_exceptions", *where, "--jobs", "1")

    assert counts["exceptions"] > 0
    assert counts["violations"] == 0


def test_a_function_that_fails_while_it_waits_for_an_answer_waits_again() -> None:
    """S1.3: its attempt comes to nothing, though what it asked is stored."""
    where = (
        "--store",
        "memory",
        "--shape",
        "function",
        "--kind",
        "cancelled",
        "--within",
        "engine/attempt.py",
    )

    counts = proof("async_exceptions", *where, "--jobs", "1", "--timeout", "20")

    assert counts["exceptions"] > 0
    assert counts["violations"] == 0


def test_a_handler_that_exits_leaves_a_run_that_can_be_resumed() -> None:
    """S1.3: `signal.signal(SIGTERM, lambda *a: sys.exit(0))`, as every container has it, at random times."""
    shapes = ("--shape", "plain", "--shape", "wave", "--shape", "awaited")

    counts = proof("async_exceptions", *shapes, "--signals", "4", "--jobs", "1")

    assert counts == {"signals": 24, "violations": 0}
