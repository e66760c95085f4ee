"""Steps of functions that fail: what a resume raises again, what it runs again, and when."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import threading
import time
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import ExecutionError, Retry, RunPaused, ask, clock, step, workflow
from holdfast.errors import StepChanged
from holdfast.functions import context
from holdfast.journal.run_state import RETRYING
from holdfast.stores.base import Store
from holdfast.testing import skipping_time

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


# Answers that are given with the line that starts or continues.


@pytest.mark.parametrize("error", [ValueError("down"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_async", [False, True])
def test_answers_are_taken_by_a_run_that_stopped_before_its_question(
    store: Store, error: BaseException, is_async: bool
) -> None:
    @step
    def work() -> int:
        seen.append("work")
        if len(seen) == 1:
            raise error
        return 1

    @workflow(store=store)
    def job() -> str:
        return f"{work()} {ask('Publish?')}"

    def go() -> Any:
        if is_async:
            return asyncio.run(job.arun(run_id="r", answers={"Publish?": "yes"}))
        return job.run(run_id="r", answers={"Publish?": "yes"})

    with pytest.raises((ExecutionError, KeyboardInterrupt)):
        go()
    assert go() == "1 yes"


# Errors that were caught.


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Made(Exception):
    """Calls nothing of its own when it is raised again."""

    def __new__(cls, one: int, other: int) -> Made:
        seen.append("new")
        return super().__new__(cls, one, other)

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one, other)
        self.other = other


def noted() -> Exception:
    error = ValueError("x")
    error.add_note("a hint")
    return error


def caused() -> Exception:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    return error


def undecodable() -> Exception:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


def unimportable() -> Exception:
    return ImportError("no module", name="nowhere", path="/x")


FACTS = (
    *("args", "errno", "strerror", "filename", "code", "reason", "object", "start", "end", "name", "path"),
    *("returncode", "cmd", "other", "value", "msg", "exceptions", "__notes__", "__cause__"),
)

ERRORS: dict[str, Callable[[], Exception]] = {
    "file": lambda: FileNotFoundError(2, "No such file", "/x/y"),
    "text": lambda: OSError("just text"),
    "connection": lambda: ConnectionResetError(104, "reset"),
    "group": lambda: ExceptionGroup("two", [ValueError(1), ExceptionGroup("inner", [TypeError("t")])]),
    "url": lambda: urllib.error.URLError(OSError(111, "refused")),
    "process": lambda: subprocess.CalledProcessError(3, ["ls", "x"], b"out"),
    "unicode": undecodable,
    "import": unimportable,
    "slots": lambda: Slotted(4),
    "made": lambda: Made(1, 2),
    "notes": noted,
    "cause": caused,
    "stop": lambda: StopAsyncIteration(5),
}


def facts_of(error: BaseException) -> dict[str, str]:
    found = {name: getattr(error, name) for name in FACTS if hasattr(error, name)}
    return {"type": type(error).__qualname__, "text": str(error), **{n: repr(v) for n, v in found.items()}}


@pytest.mark.parametrize("kind", ERRORS)
def test_a_caught_error_is_the_same_after_a_resume(memory: Store, kind: str) -> None:
    @step
    def fail() -> None:
        raise ERRORS[kind]()

    @workflow(store=memory)
    def job() -> str:
        try:
            fail()
        except Exception as error:
            seen.append(facts_of(error))
        return str(ask("Go on?"))

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    del seen[:-1]
    assert job.run(run_id="r", answers={"Go on?": "yes"}) == "yes"
    first, *later = seen
    assert later and all(each == first for each in later)


def test_an_error_whose_type_is_not_loaded_is_caught_by_what_it_is_based_on(memory: Store) -> None:
    @step
    def fail() -> None:
        class Lost(ValueError):
            pass

        raise Lost("gone")

    @workflow(store=memory)
    def job() -> str:
        try:
            fail()
        except ValueError as error:
            seen.append(type(error).__name__)
        return str(ask("Go on?"))

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    gc.collect()  # What the class is kept by.
    assert job.run(run_id="r", answers={"Go on?": "yes"}) == "yes"
    assert set(seen) == {"Lost"}


@pytest.mark.parametrize("how", ["bare", "cause", "context", "no context"])
@pytest.mark.parametrize("cleans_up", [False, True])
def test_a_step_whose_failure_ended_the_function_runs_again(memory: Store, how: str, cleans_up: bool) -> None:
    """Whatever the function raised for it, and whatever steps it called before that."""

    @step
    def work() -> int:
        seen.append("work")
        if len(seen) == 1:
            raise ConnectionError("down")
        return 1

    @step
    def clean() -> None:
        seen.append("clean")

    @workflow(store=memory)
    def job() -> int:
        try:
            return work()
        except ConnectionError as error:
            if cleans_up:
                clean()
            if how == "bare":
                raise
            if how == "no context":
                raise RuntimeError("x") from None
            raise RuntimeError("x") from (error if how == "cause" else error.__cause__)

    with pytest.raises(ExecutionError):
        job.run(run_id="r")
    assert job.run(run_id="r") == 1
    assert seen.count("work") == 2


def test_a_caught_failure_is_not_forgotten_if_the_run_pauses_at_the_next_call(store: Store) -> None:
    @step
    def charge() -> str:
        seen.append("charge")
        if len(seen) == 1:
            order.app.pause("r")
            raise ValueError("card declined")
        return "paid"

    @step
    def mail(text: str) -> str:
        return text

    @workflow(store=store)
    def order() -> str:
        try:
            found = charge()
        except ValueError:
            found = "declined"
        return mail(found)

    with pytest.raises(RunPaused):
        order.run(run_id="r")
    assert order.run(run_id="r") == "declined"
    assert seen == ["charge"]


# Attempts.


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_attempt_is_stored_before_the_wait_for_the_next(store: Store, is_async: bool) -> None:
    """So that a crash meanwhile neither forgets it nor shortens the wait."""

    def fail_once() -> str:
        seen.append((context().attempt, clock.time()))
        if len(seen) == 1:
            raise ValueError("down")
        return "done"

    async def fail_once_async() -> str:
        return fail_once()

    pay = step(retry=Retry(attempts=3, delay=600), name="pay")(fail_once_async if is_async else fail_once)

    @workflow(store=store)
    async def job() -> str:
        return await pay() if is_async else pay()  # type: ignore[misc]

    def waiting() -> float:
        settings = job.app._settings
        for info in store.runs(run="r"):
            run = settings.journal.load(info, settings.codec).run
            for frame in run.frames.values():
                for each in frame.active.values():
                    if each.status == RETRYING and each.retry_at is not None:
                        return each.retry_at
        return 0.0

    def until_paused() -> None:
        with pytest.raises(RunPaused):
            job.run(run_id="r")

    thread = threading.Thread(target=until_paused, daemon=True)
    thread.start()
    while not (due := waiting()):
        time.sleep(0.005)
    job.app.pause("r")
    thread.join()
    with skipping_time():
        assert job.run(run_id="r") == "done"
    (_, early), (_, late) = seen
    assert [attempt for attempt, _ in seen] == [1, 2] and early < due <= late


# Steps in doubt, and keys of services that deduplicate.


def test_a_step_in_doubt_does_not_start_over_with_other_arguments_unasked(store: Store) -> None:
    amounts = iter([40, 50, 40])

    @step(if_interrupted="fail")
    def charge(amount: int) -> str:
        seen.append(amount)
        raise KeyboardInterrupt

    @workflow(store=store)
    def job() -> str:
        return charge(next(amounts))

    with pytest.raises(KeyboardInterrupt):
        job.run(run_id="r")
    with pytest.raises(ExecutionError, match=r"may have taken effect with \{\"amount\": 40\}") as refused:
        job.run(run_id="r")
    assert isinstance(refused.value.__cause__, StepChanged)
    with pytest.raises(ExecutionError, match="interrupted"):
        job.run(run_id="r")
    assert seen == [40]


def test_a_step_that_starts_over_with_other_arguments_has_another_key(memory: Store) -> None:
    amounts = iter([40, 40, 50])

    @step(on_change="rerun")
    def charge(amount: int) -> str:
        seen.append(context().idempotency_key)
        return f"paid {amount}"

    @workflow(store=memory)
    def job() -> str:
        return f"{charge(next(amounts))} {ask('Go on?')} {ask('Sure?')}"

    for answers in ({}, {"Go on?": "yes"}):
        with pytest.raises(RunPaused):
            job.run(run_id="r", answers=answers)
    assert job.run(run_id="r", answers={"Sure?": "yes"}) == "paid 50 yes yes"
    one, other = seen
    assert one != other and one.startswith("r:job#1/charge#1")


# Workflows that call themselves.


@step
def leaf(n: int) -> int:
    seen.append(n)
    return n


@workflow
def tree(n: int) -> int:
    return leaf(n) + (tree(n - 1) if n else 0)


def test_steps_of_a_workflow_that_calls_itself_can_be_run_again(memory: Store) -> None:
    @workflow(store=memory)
    def top(n: int) -> int:
        return tree(n) + leaf(100)

    assert top.run(3, run_id="r") == 106
    seen.clear()
    assert top.app.plan_rerun("r", "top/leaf").steps
    assert top.app.rerun("r", "top/leaf").state["result"] == 106
    assert seen == [100]


def test_workflows_that_call_each_other_for_ever_are_told_so(memory: Store) -> None:
    @workflow(store=memory)
    def endless(n: int) -> int:
        return int(endless(n + 1))

    with pytest.raises(ExecutionError, match="call each other more than 100 deep"):
        endless.run(0, run_id="r")
    assert sum(each.name == "holdfast-beside" for each in threading.enumerate()) < 100
