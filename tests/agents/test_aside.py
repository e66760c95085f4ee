"""Async work beside the caller's thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from holdfast.agents.pydantic_ai_provider import Aside, Late

here: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nowhere")


def test_the_work_sees_the_callers_context_and_calls_back_into_its_thread() -> None:
    aside: Aside[tuple[str, bool, bool]] = Aside()
    caller = threading.current_thread()
    here.set("home")

    async def work() -> tuple[str, bool, bool]:
        back = await aside.call(threading.current_thread)
        return here.get(), threading.current_thread() is caller, back is caller

    assert aside.run(work, None) == ("home", False, True)


def test_what_the_work_raises_is_raised() -> None:
    async def work() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        Aside[None]().run(work, None)


def test_late_work_is_cancelled_and_can_clean_up() -> None:
    cleaned = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    with pytest.raises(Late):
        Aside[None]().run(work, 0.05)

    assert cleaned.wait(60)


@pytest.mark.parametrize("_", range(20))
def test_no_time_at_all_is_too_late_however_far_the_work_has_come(_: int) -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Late):
        Aside[None]().run(work, 0)


def test_what_a_call_back_raises_leaves_at_once() -> None:
    class Leave(BaseException):
        pass

    ended = threading.Event()
    aside: Aside[None] = Aside()

    def leave() -> None:
        raise Leave

    async def work() -> None:
        try:
            await aside.call(leave)
        finally:
            ended.set()

    with pytest.raises(Leave):
        aside.run(work, None)

    assert ended.wait(60)
