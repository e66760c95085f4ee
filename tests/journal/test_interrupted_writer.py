"""A writer that an exception came into stores nothing half done, and says what to do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from holdfast import RunConflict, StoreError
from holdfast.journal.checkpoint_ids import new_run_key
from holdfast.journal.journal import Journal
from holdfast.journal.records import Noted, RunEnded, RunStarted, StateEdited, StepStarted, Target
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, Conflict, RunInfo, Store

CODEC = Codec()


def new_writer(store: Store, run: str = "r") -> Writer:
    info = RunInfo(run, new_run_key(), "w", "running", 0.0, 0.0)
    writer = Writer.create(Journal(store), info, CODEC, durable=False)
    writer.record(RunStarted("w", (), (Target("a"),), b"", {}, ""))
    return writer


def raising_at(function: Callable[..., Any], line: int, error: type[BaseException]) -> Callable[[], bool]:
    """Raise at the n-th line that is executed in a function, once; answers whether it was."""
    seen = 0

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return see if frame.f_code is function.__code__ else None

    def see(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == line:
                raise error
        return see

    sys.settrace(enter)
    return lambda: seen >= line


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ["_record", "_seal_entry", "_settle"])
def test_an_exception_at_any_line_of_a_change_leaves_a_journal_that_can_be_read(
    store: Store, name: str
) -> None:
    line, struck = 0, True
    while struck:
        line += 1
        run = f"{name}-{line}"
        writer = new_writer(store, run)
        writer.flush()
        is_struck = raising_at(getattr(Writer, name), line, SystemExit)
        try:
            writer.record(StepStarted("a#1", 1))
            writer.flush()
        except SystemExit:
            pass
        finally:
            sys.settrace(None)
        struck = is_struck()
        try:
            writer.record(RunEnded("interrupted"))
            writer.flush()
        except RunConflict as error:
            assert f"app.resume('{run}')" in str(error)
        loaded = Journal(store).load(Journal(store).info(run), CODEC)
        assert loaded.seq == len(list(store.read(run)))
    assert line > 5


def test_a_writer_that_was_interrupted_refuses_and_says_what_to_do(memory: Store) -> None:
    writer = new_writer(memory)
    writer.flush()
    with pytest.raises(KeyError):
        writer.record(StateEdited("nowhere#1", ()))

    for use in (lambda: writer.record(StepStarted("a#1", 1)), lambda: writer.build()):
        with pytest.raises(RunConflict, match=r"resume with app\.resume\('r'\)"):
            use()
    assert writer.was_interrupted and len(list(memory.read("r"))) == 1


def test_records_that_belong_together_are_stored_together_or_not_at_all(memory: Store) -> None:
    writer = new_writer(memory)
    writer.flush()

    def half() -> None:
        writer.record(StepStarted("a#1", 1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.together(half)
    with pytest.raises(RunConflict, match="what was stored is intact"):
        writer.flush()
    assert len(list(memory.read("r"))) == 1


def test_a_note_of_a_step_that_is_gone_does_not_harm_the_run(memory: Store) -> None:
    writer = new_writer(memory)

    with pytest.raises(KeyError):
        writer.record(Noted("gone#1", "key", b""))
    writer.record(StepStarted("a#1", 1))
    writer.flush()

    assert not writer.was_interrupted and writer.stored == 1


class InterruptedOnce:
    """A store whose first commit is interrupted after it has written everything."""

    def __init__(self, store: Store, error: BaseException) -> None:
        self._commit, self._error = store.commit, error
        store.commit = self  # type: ignore[method-assign, assignment]
        self.begun = threading.Event()

    def __call__(self, appends: list[Append]) -> list[Conflict | None]:
        answers = self._commit(appends)
        error, self._error = self._error, None  # type: ignore[assignment]
        if error is not None:
            raise error
        return answers


def test_a_commit_that_was_interrupted_is_known_again(store: Store) -> None:
    writer = new_writer(store)
    InterruptedOnce(store, SystemExit(0))
    with pytest.raises(SystemExit):
        writer.flush()

    writer.record(StepStarted("a#1", 1))
    writer.flush()

    assert [entry.seq for entry in store.read("r")] == [1, 2] and writer.stored == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_those_who_wait_for_a_leader_that_is_interrupted_are_answered(memory: Store) -> None:
    writers = [new_writer(memory, f"r{number}") for number in range(3)]
    InterruptedOnce(memory, SystemExit(0))

    answers = await asyncio.gather(*(writer.flush_async() for writer in writers), return_exceptions=True)
    assert any(isinstance(answer, StoreError) for answer in answers)

    for writer in writers:
        await writer.flush_async()
    assert [writer.stored for writer in writers] == [1, 1, 1]
