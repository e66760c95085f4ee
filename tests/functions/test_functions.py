"""Workflows and steps that are plain functions: what is recorded, and what a call gives on a resume."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import ExecutionError, Retry, RunPaused, ask, now, random, sleep, step, uuid, workflow
from holdfast.errors import (
    AnswerRejected,
    GraphInvalid,
    HoldfastError,
    RunExists,
    StateInvalid,
    StepChanged,
    StepError,
    StepTimeout,
)
from holdfast.functions import carried, context
from holdfast.stores.base import Store
from holdfast.values import RunStatus
from holdfast.views.runs import run_view

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@step
def double(n: int) -> int:
    seen.append(n)
    return 2 * n


@step
async def triple(n: int) -> int:
    seen.append(n)
    await asyncio.sleep(0)
    return 3 * n


def status(store: Store, run: str = "r") -> str:
    [info] = store.runs(run=run)
    return info.status


def steps_of(job: Any, run: str = "r") -> list[str]:
    """The steps of a run that is under way, in the order of their calls."""
    loaded = job.app._settings.journal.load(job.app.store.runs(run=run)[0], job.app._settings.codec)
    return [
        step.id for frame in loaded.run.frames.values() if frame.is_body for step in frame.active.values()
    ]


# What a call is.


def test_outside_of_a_workflow_a_step_is_the_plain_function() -> None:
    assert double(2) == 4 and asyncio.run(triple(2)) == 6
    assert double.map([1, 2]) == [2, 4]
    assert asyncio.run(triple.map([1, 2])) == [3, 6]
    assert double.__name__ == "double" and double.options(key="k")(3) == 6


def test_a_finished_run_gives_its_result_and_runs_nothing(store: Store) -> None:
    @workflow(store=store)
    def job(n: int, m: int = 1) -> list[int]:
        return [double(n), triple(n) + m]

    assert job.run(1, run_id="r") == [2, 4]
    assert job.run(1, run_id="r") == job.run(n=1, m=1, run_id="r") == job.resume("r") == [2, 4]
    assert seen == [1, 1]


def test_other_arguments_for_a_run_are_refused(memory: Store) -> None:
    @workflow(store=memory)
    def job(n: int) -> int:
        return double(n)

    job.run(1, run_id="r")
    with pytest.raises(RunExists, match="began with another input: 'n'"):
        job.run(2, run_id="r")
    with pytest.raises(TypeError, match=r"job.*missing a required argument"):
        job.run(run_id="r")


def test_a_run_of_another_workflow_is_refused(memory: Store) -> None:
    @workflow(store=memory)
    def one(n: int) -> int:
        return n

    @workflow(store=memory)
    def other(n: int) -> int:
        return n

    one.run(1, run_id="r")
    with pytest.raises(HoldfastError, match="is of workflow 'one'"):
        other.run(1, run_id="r")


def test_an_async_workflow_awaits_its_steps(store: Store) -> None:
    @workflow(store=store)
    async def job(n: int) -> list[int]:
        first = await triple(n)
        both = await asyncio.gather(triple(first), triple(2))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(triple(each)) for each in both]
        return [double(n), *(await double.map(both, max_parallel=1)), *(task.result() for task in tasks)]

    assert job.run(1, run_id="r") == [2, 18, 12, 27, 18]
    assert asyncio.run(job.arun(1, run_id="s")) == [2, 18, 12, 27, 18]
    assert asyncio.run(job.arun(1, run_id="s")) == [2, 18, 12, 27, 18]
    assert len(seen) == 16


def test_methods_are_steps(memory: Store) -> None:
    class Shop:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @step
        def price(self, n: int) -> int:
            seen.append(n)
            return n * self.factor

    shop = Shop(3)

    @workflow(store=memory)
    def job() -> list[int]:
        return [shop.price(2), *shop.price.map([4, 5]), shop.price.options(key="k")(6), ask("ok?")]

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    assert job.resume("r", 0) == [6, 12, 15, 18, 0] and sorted(seen) == [2, 4, 5, 6]


def test_what_cannot_be_recorded_is_refused_with_the_reason() -> None:
    def generate() -> Iterator[int]:
        yield 1

    async def generate_async() -> Any:
        yield 1

    for bad in (generate, generate_async):
        with pytest.raises(GraphInvalid, match=r"cannot be a generator.*return a list"):
            step(bad)
        with pytest.raises(GraphInvalid, match="cannot be a generator"):
            workflow(bad)
    with pytest.raises(GraphInvalid, match="put @step under @staticmethod"):
        step(staticmethod(generate))
    with pytest.raises(GraphInvalid, match="decorates a function, not partial; call it in a function"):
        step(functools.partial(generate_later, 1))
    with pytest.raises(GraphInvalid, match="a workflow cannot be a method: a resume in another process"):
        workflow(lambda self: self)
    with pytest.raises(GraphInvalid, match="ignore names 'm', which is no parameter"):
        step(ignore=("m",))(lambda n: n)
    with pytest.raises(GraphInvalid, match="timeout=-1"):
        step(timeout=-1)(generate_later)
    with pytest.raises(GraphInvalid, match=r"executor='process'.*did you mean 'processes'"):
        step(executor="process")(generate_later)
    with pytest.raises(GraphInvalid, match="another process cannot find a function inside another"):
        step(executor="processes")(lambda n: n)
    with pytest.raises(HoldfastError, match="on_change must be one of"):
        step(on_change="never")(generate_later)
    with pytest.raises(GraphInvalid, match="parameter 'result' has a name"):
        workflow(lambda result: result)
    with pytest.raises(HoldfastError, match="ask works in a workflow only"):
        ask("?")
    with pytest.raises(HoldfastError, match="works in a workflow only"):
        context()


def generate_later(n: int) -> int:
    return n


@dataclass
class Page:
    text: str


def test_classes_that_steps_declare_can_be_stored(memory: Store) -> None:
    @step
    def page(text: str) -> Page:
        return Page(text)

    @step
    def length(page: Page) -> int:
        return len(page.text)

    @workflow(store=memory)
    def job(first: Page) -> tuple[Page, int]:
        made = page(first.text)
        return made, length(made) + ask("more?")

    with pytest.raises(RunPaused):
        job.run(Page("abc"), run_id="r")
    assert job.resume("r", 2) == (Page("abc"), 5)


def test_what_cannot_be_stored_is_named(memory: Store) -> None:
    @step
    def use(connection: Any, n: int) -> int:
        return n

    @step(ignore=("connection",))
    def use_only(connection: Any, n: int) -> Any:
        return n if n else connection

    @workflow(store=memory)
    def job(n: int) -> int:
        return int(use_only(object(), 1)) + int(use(object(), 1) if n else 1)

    assert job.run(0) == 2
    with pytest.raises(
        ExecutionError, match=r"argument 'connection' of step 'use' cannot be stored.*ignore="
    ):
        job.run(1)

    @workflow(store=memory)
    def other() -> Any:
        return use_only(object(), 0)

    with pytest.raises(ExecutionError, match="step 'other/use_only' failed: CodecError"):
        other.run()


def test_a_step_in_a_step_is_a_plain_call_and_a_workflow_in_a_step_too(memory: Store) -> None:
    @workflow(store=memory)
    def inner(n: int) -> int:
        return double(n) + 1

    @step
    def outer_step(n: int) -> int:
        return double(n) + inner(n)

    @workflow(store=memory)
    def job(n: int) -> int:
        return outer_step(n) + ask("more?")

    with pytest.raises(RunPaused):
        job.run(2, run_id="r")
    assert steps_of(job) == ["job#1/outer_step#1", "job#1/ask#1[more?]"]
    assert job.resume("r", 1) == 10 and seen == [2, 2]


def test_a_workflow_in_a_workflow_is_a_part_of_its_run(store: Store) -> None:
    @workflow
    async def grandchild(n: int) -> int:
        return await triple(n) + ask("how much?", name="much")

    @workflow
    async def child(n: int) -> int:
        return double(n) + await grandchild(n + 1)

    @workflow(store=store)
    async def job(n: int) -> list[int]:
        return [await child(n), await child(n + 10)]

    with pytest.raises(RunPaused, match="'much'"):
        job.run(1, run_id="r")
    assert "job#1/child#1/grandchild#1/triple#1" in steps_of(job)
    with pytest.raises(RunPaused):
        job.resume("r", 100)
    assert job.resume("r", 200) == [108, 258]
    assert seen == [1, 2, 11, 12] and len(store.runs()) == 1


def test_a_workflow_may_call_itself(memory: Store) -> None:
    @workflow(store=memory)
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1) + 0 * double(n)

    assert factorial.run(5) == 120 and seen == [1, 2, 3, 4, 5]


def test_answers_are_given_to_the_questions_that_a_run_comes_to(memory: Store) -> None:
    @workflow(store=memory)
    def job(n: int) -> list[Any]:
        return [ask("one?"), double(n), ask("two?"), ask("three?")]

    with pytest.raises(RunPaused, match=r"waits for an answer to 'three\?'"):
        job.run(1, run_id="r", answers={"two?": 2, "one?": 1, "other?": 0})
    with pytest.raises(RunExists, match="another input"):
        job.run(2, run_id="r", answers={"three?": 3})
    assert job.run(1, run_id="r", answers={"one?": 7, "three?": 3}) == [1, 2, 2, 3] and seen == [1]
    assert asyncio.run(job.arun(2, answers={"one?": 1, "two?": 2, "three?": 3})) == [1, 4, 2, 3]


def test_a_run_of_that_id_can_be_refused_or_only_looked_at(memory: Store) -> None:
    @workflow(store=memory)
    def job(n: int) -> int:
        return double(n) + ask("more?")

    for run in (job.run, job.submit):
        with pytest.raises(StateInvalid, match="name it with run_id="):
            run(1, if_exists="return")
    assert job.submit(1, run_id="r") == "r"
    with pytest.raises(RunPaused):
        job.run(1, run_id="r")
    for call in (job.run, job.submit, lambda *given, **options: list(job.stream(*given, **options))):
        with pytest.raises(RunExists):
            call(1, run_id="r", if_exists="fail")
    with pytest.raises(RunExists):
        asyncio.run(job.arun(1, run_id="r", if_exists="fail"))
    job.app.answer("r", 3)
    with pytest.raises(RunPaused):
        job.run(1, run_id="r", if_exists="return")
    assert job.run(1, run_id="r") == job.run(1, run_id="r", if_exists="return") == 5


def test_what_an_error_says_works_when_it_is_pasted(memory: Store) -> None:
    broken = [True]

    @step
    def fragile() -> int:
        if broken:
            raise OSError("no disk")
        return 1

    @workflow(store=memory, name="named")
    def job() -> int:
        return fragile() + ask("more?") + ask("and more?")

    with pytest.raises(ExecutionError) as failed:
        job.run(run_id="r 1")
    broken.clear()
    with pytest.raises(RunPaused) as paused:
        job.run(run_id="r 1")
    for error, words in ((failed.value, "resume with "), (paused.value, "answer with ")):
        call = str(error).partition(words)[2].replace("…", "5")
        assert call.startswith("job."), str(error)
        with contextlib.suppress(RunPaused):
            eval(call, {"job": job})
    assert job.run(run_id="r 1", answers={"and more?": 1}) == 7


# Failures.


def test_an_error_that_the_function_catches_is_raised_again_on_a_resume(memory: Store) -> None:
    class Broken(Exception):
        def __init__(self, code: int, *, why: str) -> None:
            super().__init__(f"code {code}")
            self.code, self.why = code, why

    @step
    def fail(n: int) -> None:
        seen.append(n)
        raise Broken(n, why="because")

    @workflow(store=memory)
    def job() -> list[Any]:
        caught = []
        for n in (1, 2):
            try:
                fail(n)
            except Broken as error:
                caught += [error.code, error.why, str(error), type(error) is Broken]
        return [*caught, ask("ok?")]

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    expected = [1, "because", "code 1", True, 2, "because", "code 2", True, "yes"]
    assert job.resume("r", "yes") == expected and seen == [1, 2]


def test_an_error_whose_type_is_not_loaded_stays_an_error(memory: Store) -> None:
    def local(name: str) -> type[Exception]:
        return type(name, (Exception,), {"__module__": "gone", "__qualname__": name})

    kinds = [local("Gone")]

    @step
    def fail() -> None:
        raise kinds[0]("first")

    @workflow(store=memory)
    def job() -> str:
        try:
            fail()
        except Exception as error:
            return f"{type(error).__name__}: {error.args[0]}" + ask("?")
        return ""

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    kinds.clear()
    gc.collect()
    found = job.resume("r", "!")
    assert found.startswith(("StepError: Gone: first", "Gone: first"))
    assert issubclass(StepError, HoldfastError)


def test_a_step_whose_error_ends_the_run_runs_again_on_a_resume(store: Store) -> None:
    broken = [True]

    @step
    def fragile(n: int) -> int:
        seen.append(n)
        if broken[0]:
            raise OSError("no disk")
        return n

    @workflow(store=store)
    def job() -> int:
        try:
            return double(1) + fragile(7)
        except OSError as error:
            raise RuntimeError("gave up") from error

    with pytest.raises(ExecutionError, match="step 'job/fragile' failed: OSError: no disk"):
        job.run(run_id="r")
    assert status(store) == RunStatus.FAILED
    broken.clear()
    broken.append(False)
    assert job.run(run_id="r") == 9 and seen == [1, 7, 7]


def test_a_function_that_fails_itself_goes_on_after_a_repair(memory: Store) -> None:
    broken = [True]

    @workflow(store=memory)
    async def job() -> int:
        found = await triple(2)
        if broken:
            raise ValueError("a bug")
        return found

    with pytest.raises(ExecutionError, match="step 'job' failed: ValueError: a bug"):
        job.run(run_id="r")
    broken.clear()
    assert job.run(run_id="r") == 6 and seen == [2]


def test_steps_are_retried_and_have_timeouts(store: Store) -> None:
    @step(retry=Retry(attempts=3, delay=0.001))
    def flaky(n: int) -> int:
        seen.append(context().attempt)
        if context().attempt < 3:
            raise OSError("again")
        return n

    @step(timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(30)

    release = threading.Event()

    @step(timeout=0.05)
    def slow_too() -> None:
        release.wait(30)

    @workflow(store=store)
    async def job() -> list[Any]:
        found: list[Any] = [flaky(1)]
        for each in (slow, slow_too):
            try:
                waiting = each()
                if waiting is not None:
                    await waiting
            except StepTimeout as error:
                found.append(str(error))
        return found

    assert job.run() == [
        1,
        *(f"step '{name}' ran longer than its timeout of 0.05 s" for name in ("slow", "slow_too")),
    ]
    release.set()
    assert seen == [1, 2, 3]


@step(executor="processes:1")
def elsewhere(n: int) -> int:
    return os.getpid() * n


@step(executor="processes:1")
async def known_elsewhere(n: int) -> list[Any]:
    own = context()
    own.log.warning("seen %s", n)
    own.spend("m", cost=0.5)
    return [own.attempt, own.step, own.run_id, bool(own.idempotency_key), double(n), random() < 1]


@step(executor="processes:1")
def asks_elsewhere(way: str) -> Any:
    return ask("?") if way == "ask" else getattr(context(), way)("x")


pool = ThreadPoolExecutor(1, thread_name_prefix="own")


@step(executor="threads")
def in_thread(n: int) -> list[Any]:
    seen.append(n)
    return [threading.current_thread() is threading.main_thread(), double(n), context().attempt]


@step(executor=pool)
async def in_own_pool(n: int) -> list[Any]:
    await asyncio.sleep(0)
    seen.append(n)
    return [threading.current_thread().name.startswith("own"), await triple(n), context().attempt]


def test_a_step_in_another_process_has_its_context_and_names_what_does_not_work_there(
    memory: Store, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow(store=memory)
    def job() -> list[Any]:
        return known_elsewhere(4)

    assert job.run(run_id="r") == [1, "job#1/known_elsewhere#1", "r", True, 8, True]
    assert "seen 4" in caplog.text and sum(each.spent.cost for each in job.app.cost("r").charges) == 0.5

    @workflow(store=memory)
    def asks(way: str) -> Any:
        return asks_elsewhere(way)

    for way in ("ask", "once", "stream"):
        with pytest.raises(
            ExecutionError, match=rf"ctx\.{way} does not work in a worker process.* into a step of its own"
        ):
            asks.run(way)


def test_executors_run_steps_elsewhere_and_once(memory: Store) -> None:
    def found(n: int) -> list[Any]:
        return [elsewhere(n) not in (0, os.getpid()), *in_thread(n)]

    @workflow(store=memory)
    def job() -> list[Any]:
        return [*found(1), *in_own_pool(1), ask("more?")]  # type: ignore[misc]

    @workflow(store=memory)
    async def job_async() -> list[Any]:
        return [*found(1), *await in_own_pool(1), *await in_thread.map([2, 3]), ask("more?")]

    expected = [True, False, 2, 1, True, 3, 1]
    more = [[False, 4, 1], [False, 6, 1]]
    for each, result in ((job, expected), (job_async, [*expected, *more])):
        with pytest.raises(RunPaused):
            each.run(run_id=each.name)
        assert sum("double" in name or "triple" in name for name in steps_of(each, each.name)) == 0
        assert each.resume(each.name, 1) == [*result, 1]
    assert seen.count(1) == 8


def test_sync_and_async_functions_call_each_other_whatever_their_threads_wait_for(memory: Store) -> None:
    @step(timeout=60)
    def watched(n: int) -> int:
        return n + 1

    @workflow
    async def inner(n: int) -> list[int]:
        return [watched(n), await triple(n)]

    @workflow
    def outer(n: int) -> list[Any]:
        return [inner(n), watched(n), double.map([n])]

    def blocking() -> list[Any]:
        with ThreadPoolExecutor(2) as threads:
            return [*threads.map(carried(watched), range(2)), *threads.map(carried(triple), range(2))]

    @workflow(store=memory)
    async def job_async() -> list[Any]:
        aside = await asyncio.gather(*(asyncio.to_thread(outer, n) for n in range(3)))
        return [outer(1), blocking(), aside, await inner(1)]

    @workflow(store=memory)
    def job() -> list[Any]:
        return [outer(1), blocking(), [outer(n) for n in range(3)], inner(1)]

    def made(n: int) -> list[Any]:
        return [[n + 1, 3 * n], n + 1, [2 * n]]

    expected = [made(1), [1, 2, 0, 3], [made(n) for n in range(3)], [2, 3]]
    assert job.run() == job_async.run() == expected


def test_a_pause_cannot_be_swallowed(memory: Store) -> None:
    @workflow(store=memory)
    def careless() -> int:
        with contextlib.suppress(BaseException):
            ask("?")
        return 1

    @workflow(store=memory)
    def careful() -> int:
        try:
            ask("?")
        except Exception:
            return 0
        return 1

    for job in (careless, careful):
        with pytest.raises(RunPaused):
            job.run(run_id=job.name)
        assert job.resume(job.name, "x") == 1


# Pauses.


def test_a_question_waits_and_takes_answers_that_fit(store: Store) -> None:
    @workflow(store=store)
    async def job() -> list[Any]:
        first = ask("Publish?", choices=["yes", "no"])
        return [first, ask("Publish?", choices=["yes", "no"]), double(2)]

    with pytest.raises(RunPaused, match="waits for an answer to 'Publish\\?'") as paused:
        job.run(run_id="r")
    assert paused.value.run_id == "r" and paused.value.pauses[0].prompt == "Publish?"
    with pytest.raises(AnswerRejected):
        job.resume("r", "maybe")
    with pytest.raises(RunPaused):
        job.run(run_id="r")
    with pytest.raises(RunPaused):
        job.resume("r", "yes")
    assert job.run(run_id="r", answers={"Publish?": "no"}) == ["yes", "no", 4]


def test_siblings_of_a_question_finish_first(store: Store) -> None:
    @step
    async def slow(n: int) -> int:
        seen.append(n)
        await asyncio.sleep(0.02)
        return n

    async def asking(name: str) -> Any:
        await asyncio.sleep(0)
        return ask(name)

    @workflow(store=store)
    async def gathered() -> list[Any]:
        return await asyncio.gather(slow(1), asking("one"), asking("two"))

    @workflow(store=store)
    async def grouped() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (slow(2), asking("one"))]
        return [task.result() for task in tasks]

    with pytest.raises(RunPaused) as paused:
        gathered.run(run_id="gathered")
    assert {pause.name for pause in paused.value.pauses} == {"one", "two"} and seen == [1]
    assert gathered.run(run_id="gathered", answers={"one": 1, "two": 2}) == [1, 1, 2]
    with pytest.raises(RunPaused):
        grouped.run(run_id="grouped")
    assert seen == [1, 2]
    assert grouped.resume("grouped", 3) == [2, 3]
    assert seen == [1, 2]


def test_a_sleep_and_values_are_recorded(memory: Store) -> None:
    made: list[Any] = []

    @workflow(store=memory)
    def job() -> list[Any]:
        values = [now(), random(), uuid(), random()]
        made.append(values)
        sleep(0.001)
        return [*values, ask("ok?")]

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    result = job.resume("r", 1)
    assert made[0] == made[1] == result[:4] and result[1] != result[3]
    assert 0 <= random() < 1 and uuid() != uuid() and now().tzinfo is not None


# Identity.


def test_a_finished_step_is_never_given_for_other_arguments(store: Store) -> None:
    numbers = iter([1, 2, 1])

    @workflow(store=store)
    def job() -> int:
        try:
            return double(next(numbers)) + ask("more?")
        except Exception:
            return -1  # Even if the function swallows it.

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    with pytest.raises(ExecutionError) as error:
        job.resume("r", 3)
    text = str(error.value)
    for part in (
        "job/double",
        '{"n": 1}',
        '{"n": 2}',
        "options(key=",
        "on_change",
        "holdfast.now()",
        "run step 'job#1/double#1' again",
        "in_place=True (--in-place)",
        "job.app.rerun('r', 'job#1/double#1')",
    ):
        assert part in text
    assert isinstance(error.value.cause, StepChanged) and error.value.cause.step == "job#1/double#1"
    assert job.resume("r") == 5 and seen == [1]


@pytest.mark.parametrize("kind", ["tasks", "threads"])
def test_calls_in_tasks_and_threads_are_told_apart_by_their_arguments_in_whatever_order(
    memory: Store, kind: str
) -> None:
    """Functions: what is finished is kept, and is nobody else's, if a resume comes to the calls in another order."""
    order, fails = [[2, 1, 3], [3, 1, 2]], [True]

    @step
    def charge(n: int) -> int:
        seen.append(n)
        if n == 1 and fails:
            raise OSError("no answer")
        return n * 10

    async def process(n: int, turn: asyncio.Event, then: asyncio.Event) -> int:
        await turn.wait()
        result = charge(n) if kind == "tasks" else await asyncio.to_thread(charge, n)
        then.set()
        return result

    @workflow(store=memory)
    async def job() -> list[int]:
        turns = [asyncio.Event() for _ in range(4)]
        turns[0].set()
        places = {n: place for place, n in enumerate(order.pop(0))}
        return await asyncio.gather(*(process(n, turns[places[n]], turns[places[n] + 1]) for n in (1, 2, 3)))

    with pytest.raises(ExecutionError, match="no answer"):
        job.run(run_id="r")
    assert seen == [2, 1]
    fails.clear()
    assert job.run(run_id="r") == [10, 20, 30] and seen == [2, 1, 3, 1]


def test_threads_of_a_workflow_call_steps_of_it(memory: Store) -> None:
    @workflow(store=memory)
    def job() -> list[int]:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(carried(double), range(8)))
        return [*found, ask("more?")]

    @workflow(store=memory)
    async def in_threads() -> list[int]:
        return [*await asyncio.gather(*(asyncio.to_thread(double, n) for n in range(8))), ask("more?")]

    for each in (job, in_threads):
        seen.clear()
        with pytest.raises(RunPaused):
            each.run(run_id=each.name)
        assert len(steps_of(each, each.name)) == 9
        assert each.resume(each.name, 1) == [*range(0, 16, 2), 1] and sorted(seen) == list(range(8))


def test_a_thread_that_knows_nothing_of_its_workflow_is_warned_of(
    memory: Store, caplog: pytest.LogCaptureFixture
) -> None:
    @step
    def unnoticed(n: int) -> int:
        return n

    @workflow(store=memory)
    def job() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(unnoticed, 1).result()

    assert job.run() == 1
    assert "unnoticed was called in thread" in caplog.text and "carried" in caplog.text


def test_a_step_that_the_function_cancels_is_in_doubt(memory: Store) -> None:
    @step
    async def forever(n: int) -> None:
        seen.append(n)
        await asyncio.sleep(30)

    @workflow(store=memory)
    async def job() -> str:
        try:
            await asyncio.wait_for(forever(1), 0.02)
        except TimeoutError:
            return "late" + ask("?")
        return ""

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    assert job.resume("r", "!") == "late!" and seen == [1, 1]


def test_a_coroutine_that_is_awaited_twice_is_an_error_of_python(memory: Store) -> None:
    @workflow(store=memory)
    async def job() -> int:
        call = triple(1)
        await call
        return await call

    with pytest.raises(ExecutionError, match="cannot reuse already awaited coroutine"):
        job.run()


def test_a_run_is_paused_between_steps(memory: Store) -> None:
    paused: list[str] = []

    @workflow(store=memory)
    async def job() -> int:
        total = 0
        for n in range(1000):
            total += await triple(n)
            if n == 3 and not paused:
                paused.append(job.app.pause("r"))
        return total

    with pytest.raises(RunPaused, match="is interrupted"):
        job.run(run_id="r")
    assert len(seen) == 4
    assert job.resume("r") == sum(range(1000)) * 3 and len(seen) == 1000


def test_two_steps_of_one_name_are_refused(memory: Store) -> None:
    def make(factor: int) -> Callable[[int], int]:
        @step(name="same")
        def times(n: int) -> int:
            return n * factor

        return times

    one, other = make(1), make(2)

    @workflow(store=memory)
    def job() -> int:
        return one(1) + other(1)

    with pytest.raises(ExecutionError, match="two steps are named 'same'"):
        job.run()


def test_costs_and_events_are_those_of_the_step(memory: Store) -> None:
    @step
    def pay() -> None:
        context().spend("model", cost=0.5)

    @workflow(store=memory)
    def job() -> None:
        pay()
        pay()

    events = [(event.type, event.node) for event in job.stream(run_id="r")]
    assert events.count(("node.start", "pay")) == events.count(("node.complete", "pay")) == 2
    assert job.app.cost("r").total.cost == 1.0


def test_a_workflow_whose_store_nobody_chose_says_once_that_it_is_in_memory(
    memory: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one() -> Any:
        return ask("Publish?", choices=["yes", "no", 3])

    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    chosen, mine = workflow(store=memory)(one), workflow(one)
    for job in (chosen, mine, mine):
        with pytest.raises(RunPaused, match=r"'Publish\?' \('yes', 'no' or 3\); answer with one.resume"):
            job.run()
    assert [each for each in caplog.messages if "memory" in each] == [
        "runs of workflow 'one' are kept in memory only, until this process ends (to keep them, give it a store: "
        "@workflow(store='sqlite:///runs.db') or HOLDFAST_STORE)"
    ]


def test_a_run_that_waits_for_a_decision_names_the_step_in_doubt_and_the_answers(memory: Store) -> None:
    deadly = [True]

    @step(if_interrupted="ask")
    def pay() -> int:
        if deadly.pop():
            raise KeyboardInterrupt
        return 1

    @workflow(store=memory)
    def order() -> int:
        return pay()

    with pytest.raises(KeyboardInterrupt):
        order.run(run_id="r")
    with pytest.raises(RunPaused) as paused:
        order.run(run_id="r")
    assert "'if_interrupted' ('rerun', 'skip' or 'fail'): step 'order/pay' was interrupted" in str(
        paused.value
    )


def test_a_misspelt_option_is_named_in_words_of_functions() -> None:
    with pytest.raises(TypeError, match="@step has no option 'retrys'; did you mean 'retry'"):
        step(retrys=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="@step has no option 'reads'; it has name, retry, "):
        step(reads=("a",))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="@workflow has no option 'stor'; did you mean 'store'"):
        workflow(stor="runs.db")  # type: ignore[call-overload]
    with pytest.raises(GraphInvalid, match=r"^step 'generate_later': it has timeout=-1; it must be a number"):
        step(timeout=-1)(generate_later)


def test_the_calls_of_a_run_are_counted_and_not_the_function_itself() -> None:
    @step
    def one(n: int) -> int:
        return n

    @step
    def later(n: int) -> int:
        return n

    @workflow
    def inner(n: int) -> int:
        return one(n)

    @workflow(store="memory://")
    def outer(n: int) -> int:
        if ask("Go on?", choices=["no", "yes"]) == "yes":
            return later(n)
        return one(n) + one(n) + inner(n)

    @workflow(store="memory://")
    def nothing(n: int) -> int:
        return n

    app = outer.app
    waiting = app.invoke({"n": 1}, run_id="r")
    out = app.resume("r", "no")
    journal = app._settings.journal
    view = run_view(journal, "r")
    assert (out.stats.steps_run, out.stats.steps_kept, waiting.stats.steps_run) == (5, 0, 1)
    assert view.steps_done == 5 and app.invoke(run_id="r", if_exists="return").stats.steps_kept == 5
    assert (
        [each.name for each in view.steps if each.status == "pending"]
        == [view.steps[-1].name]
        == ["outer/later"]
    )
    assert nothing.app.invoke({"n": 1}).stats.steps_run == 0
