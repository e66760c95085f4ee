"""What a failure looks like to whoever reads it."""

from __future__ import annotations

import traceback

import pytest

from holdfast import CheckpointPolicy, ExecutionError, RunNotFound
from tests.graphs import chain


def fails(state: object) -> None:
    raise ValueError("no")


def test_a_failure_is_traced_to_its_cause_and_to_nothing_of_the_engine_s_own() -> None:
    app = chain("a", nodes={"a": fails}).compile("memory://")

    with pytest.raises(ExecutionError) as caught:
        app.invoke()

    text = "".join(traceback.format_exception(caught.value))
    assert "ValueError: no" in text
    assert "no running event loop" not in text


def test_the_message_of_a_rolled_back_run_does_not_say_that_it_can_be_resumed() -> None:
    """S1.7"""
    app = chain("a", nodes={"a": fails}).compile("memory://", policy=CheckpointPolicy(on_failure="rollback"))

    with pytest.raises(ExecutionError, match="rolled back") as caught:
        app.invoke(run_id="r1")

    assert "resume" not in str(caught.value)
    with pytest.raises(RunNotFound):
        app.resume("r1")
