"""Ctrl+C while a call inside a running event loop, as in a notebook, waits for the thread of its run."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import END, START, StateGraph


class Interrupt:
    """A trace function that raises KeyboardInterrupt at one line of the standard library's threading module."""

    def __init__(self, at: int) -> None:
        self.at, self.lines = at, 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename == threading.__file__ else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self._line


def _app(folder: Path) -> Any:
    def work(state: dict[str, int]) -> dict[str, int]:
        time.sleep(0.02)
        return {"n": state["n"] + 1}

    graph = StateGraph({"n": int}, name="waits")
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    return graph.compile(store=f"sqlite:///{folder}/runs.db")


async def _call(app: Any, interrupt: Interrupt, run_id: str) -> BaseException | None:
    sys.settrace(interrupt)
    try:
        app.invoke({"n": 0}, run_id=run_id)
    except BaseException as error:
        return error
    finally:
        sys.settrace(None)
        # An interrupt at the end of a `with` of that module leaves its lock taken, and no later thread could start.
        lock: Any = threading._active_limbo_lock  # type: ignore[attr-defined]
        while lock._is_owned():
            lock.release()
    return None


def test_an_interrupt_at_any_line_of_a_wait_is_raised_as_an_interrupt(tmp_path: Path) -> None:
    """An event's wait that is interrupted while it takes its lock again raises RuntimeError in its place."""
    app = _app(tmp_path)
    counted = Interrupt(at=0)
    assert asyncio.run(_call(app, counted, "counted")) is None
    assert counted.lines > 20
    for at in range(1, counted.lines + 1):
        run_id = f"r{at}"
        error = asyncio.run(_call(app, Interrupt(at), run_id))
        assert error is None or isinstance(error, KeyboardInterrupt), f"line {at}: {error!r}"
        for info in app.runs():
            if info.run == run_id and info.status != "completed":
                app.resume(run_id)
            if info.run == run_id:
                assert app.get_state(run_id)["n"] == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_flag_may_be_set_again(times: int) -> None:
    from holdfast.threads import Flag

    flag = Flag()
    assert not flag.wait(0.001)
    for _ in range(times):
        flag.set()
    assert flag.wait() and flag.wait(0)
