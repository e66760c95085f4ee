"""The steps that every workflow's function can call: questions, sleeps, and values that a resume gives again."""

from __future__ import annotations

import datetime as dt
import random as _random
import uuid as _uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from holdfast import clock
from holdfast.engine.context import NOTHING, Context
from holdfast.errors import HoldfastError
from holdfast.functions.call_attempts import InsideStep, _current
from holdfast.functions.calls import Calls, current_context
from holdfast.functions.steps import StepFunction

Made = TypeVar("Made")


def context() -> Context:
    """Return the context of the step at hand: its `run_id`, `idempotency_key`, `log`, `emit`, `spend`, `heartbeat` …"""
    return current_context("holdfast.functions.context()")


def _asked(prompt: str, options: dict[str, Any]) -> Any:
    return current_context("ask").ask(prompt, **options)


_ask = StepFunction(_asked, name="ask", ignore=("prompt", "options"), asks=True)


def ask(
    prompt: str,
    *,
    name: str | None = None,
    schema: Any = None,
    choices: Sequence[Any] | None = None,
    timeout: float | dt.timedelta | None = None,
    default: Any = NOTHING,
) -> Any:
    """Return somebody's answer: if it is not there yet, the run pauses, and is left.

    The question is found again by its `name` (the prompt, if none is given). `schema` (a JSON Schema or a type) and
    `choices` say which answers fit; `timeout` how many seconds one is taken; then the `default` is returned, or
    `AnswerTimeout` raised. In a step it is the step's own question: the step runs again when it is answered.
    """
    given = {"name": name, "schema": schema, "choices": choices, "timeout": timeout, "default": default}
    calls = _calls("ask")
    if calls is None:
        return _asked(prompt, given)
    return _ask.called(calls, (prompt, given), {}, prompt if name is None else name)


async def _slept(seconds: float) -> None:
    waiting = current_context("sleep").sleep(seconds)
    assert waiting is not None
    await waiting


_sleep = StepFunction(_slept, name="sleep")


def sleep(seconds: float | dt.timedelta) -> Any:
    """Wait until so many seconds have passed since this was first called, crashes included.

    In an async function, `await` it. A worker does not wait for long: it leaves the run until its time has come.
    """
    length = seconds.total_seconds() if isinstance(seconds, dt.timedelta) else float(seconds)
    calls = _calls("sleep")
    if calls is None:
        return current_context("sleep").sleep(length)
    return _sleep.called(calls, (length,), {})


def now() -> dt.datetime:
    """Return the time, in UTC, when this was first called here: a resume gives the same."""
    return _value(_now, lambda: dt.datetime.fromtimestamp(clock.time(), dt.UTC))


def random() -> float:
    """Return a random number of at least 0 and below 1: a resume gives the same."""
    return _value(_number, _random.random)


def uuid() -> _uuid.UUID:
    """Return a random UUID: a resume gives the same."""
    return _value(_unique, _uuid.uuid4)


def _value(step: StepFunction[Any, Any], make: Callable[[], Made]) -> Made:
    calls = _calls(step.name) if _current.get() is not None else None
    if calls is None:
        return make()
    return cast(Made, calls.record_value(step.call(calls.codec_for(step), (), {}, None), make))


def _calls(what: str) -> Calls | None:
    """Return the calls of the workflow's function at hand; `None` inside of a step."""
    found = _current.get()
    if found is None:
        raise HoldfastError(
            f"{what} works in a workflow only: call it in a function under @workflow or @step"
        )
    return None if isinstance(found, InsideStep) else found


def _made() -> None:
    """Stand for a value that is made where it is recorded."""


_now = StepFunction(_made, name="now")
_number = StepFunction(_made, name="random")
_unique = StepFunction(_made, name="uuid")

__all__ = ["ask", "context", "now", "random", "sleep", "uuid"]
