"""What a failure looks like to whoever reads it."""

from __future__ import annotations

import traceback
from pathlib import Path

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


def test_what_a_memory_store_keeps_is_promised_until_the_process_ends_and_no_longer() -> None:
    with pytest.raises(ExecutionError, match="kept in memory only, until this process ends") as caught:
        chain("a", nodes={"a": fails}).compile().invoke(run_id="r1")

    assert "store='sqlite:///runs.db'" in str(caught.value)


def test_a_store_on_disk_promises_without_a_condition(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="finished steps are kept; resume with") as caught:
        chain("a", nodes={"a": fails}).compile(f"sqlite:///{tmp_path / 'runs.db'}").invoke()

    assert "memory" not in str(caught.value)


@pytest.mark.parametrize(("store", "times"), [(None, 1), ("memory://", 0)])
def test_a_pause_that_nobody_chose_to_keep_in_memory_says_so_once(
    store: str | None, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.22: what memory does not survive is said where a user meets it."""
    app = chain("a", nodes={"a": lambda state, ctx: {"n": ctx.ask("How many?")}}).compile(store)
    outcome = app.invoke()
    app.resume(outcome.run_id)

    told = [message for message in caplog.messages if "waits, and is kept in memory only" in message]
    assert len(told) == times
