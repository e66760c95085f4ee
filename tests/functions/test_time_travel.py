"""Runs of functions in time travel, in the fleet, and killed everywhere: as those of graphs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import ExecutionError, Retry, RunPaused, ask, open_store, sleep, step, workflow
from holdfast.capsules import export_run, import_run
from holdfast.errors import CannotRerun, CheckpointNotFound, HoldfastError
from holdfast.fleet import Worker
from holdfast.functions import context
from holdfast.stores.base import Store
from holdfast.testing import crash_everywhere, record_effect
from holdfast.values import RunStatus
from tests.cli.in_process import caller

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@step
def fetch(page: str) -> str:
    seen.append(page)
    return page.upper()


@step
def glue(parts: list[str]) -> str:
    seen.append("glue")
    return "-".join(parts)


@step
def publish(text: str) -> str:
    seen.append("publish")
    return f"<{text}>"


def report(store: Store) -> Any:
    @workflow(store=store, name="report")
    def made(pages: list[str]) -> str:
        return publish(glue([fetch(page) for page in pages]))

    return made


def result(outcome: Any) -> Any:
    return outcome.state["result"]


def test_a_step_and_all_after_it_run_again(store: Store) -> None:
    job = report(store)
    assert job.run(["a", "b", "c"], run_id="r") == "<A-B-C>"
    seen.clear()

    planned = {planned.step: planned.what for planned in job.app.plan_rerun("r", "report#1/fetch#2").steps}
    assert planned == {f"report#1/{name}": "rerun" for name in ("fetch#2", "fetch#3", "glue#1", "publish#1")}
    assert result(job.app.rerun("r", "report#1/fetch#2")) == "<A-B-C>"
    assert seen == ["b", "c", "glue", "publish"]
    seen.clear()
    assert result(job.app.rerun("r", "report/publish")) == "<A-B-C>" and seen == ["publish"]
    with pytest.raises(CannotRerun, match="has no step 'report/missing' that ran"):
        job.app.rerun("r", "report/missing")


def test_what_other_workflows_ran_after_a_step_runs_again_too(memory: Store) -> None:
    @workflow
    def deep(page: str) -> str:
        return fetch(page)

    @workflow
    def child(page: str) -> str:
        return deep(page)

    @workflow(store=memory)
    def job() -> list[str]:
        return [child("a"), fetch("b"), fetch("c"), child("d")]

    job.run(run_id="r")
    for name in ("job#1/fetch#2", "job/fetch#2", "job/fetch (2)"):  # As events, errors and plans write it.
        planned = {planned.step: planned.what for planned in job.app.plan_rerun("r", name).steps}
        assert planned == dict.fromkeys(("job#1/fetch#2", "job#1/child#2/deep#1/fetch#1"), "rerun")
    seen.clear()
    assert result(job.app.rerun("r", "job#1/fetch#2")) == ["A", "B", "C", "D"] and seen == ["c", "d"]
    seen.clear()
    assert result(job.app.rerun("r", "job/child#2/deep/fetch")) == ["A", "B", "C", "D"] and seen == ["d"]


def test_the_output_of_a_step_can_be_given(store: Store) -> None:
    job = report(store)
    job.run(["a", "b"], run_id="r")
    seen.clear()
    assert result(job.app.rerun("r", "report#1/fetch#2", output="Z")) == "<A-Z>"
    assert seen == ["glue", "publish"]


def nested(store: Store) -> Any:
    @workflow
    def child(page: str) -> str:
        return glue([fetch(page), fetch(page * 2)])

    @workflow(store=store, name="nested")
    async def made(pages: list[str]) -> list[str]:
        found = await fetch.map(pages)
        return [child(page) for page in found] + [publish("end")]

    return made


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("name", "expected", "ran"),
    [
        ("nested#1/fetch#1", ["X-XX", "B-BB"], ["X", "XX", "glue", "B", "BB", "glue", "publish"]),
        ("nested#1/fetch#2", ["A-AA", "X-XX"], ["A", "AA", "glue", "X", "XX", "glue", "publish"]),
        ("nested#1/child#1/fetch#1", ["x-AA", "B-BB"], ["AA", "glue", "B", "BB", "glue", "publish"]),
        ("nested#1/child#2/fetch#2", ["A-AA", "B-x"], ["glue", "publish"]),
        ("nested#1/child#2/glue#1", ["A-AA", "x"], ["publish"]),
        ("nested#1/child#1", ["x", "B-BB"], ["B", "BB", "glue", "publish"]),
        ("nested/child#2", ["A-AA", "x"], ["publish"]),
        ("nested/child (2)", ["A-AA", "x"], ["publish"]),
    ],
)
def test_the_output_of_any_finished_step_can_be_given(
    memory: Store, name: str, expected: list[str], ran: list[str], in_place: bool
) -> None:
    job = nested(memory)
    job.run(["a", "b"], run_id="r")
    seen.clear()
    given = "X" if name.startswith("nested#1/fetch") else "x"
    assert result(job.app.rerun("r", name, output=given, in_place=in_place)) == [*expected, "<end>"]
    assert seen[-len(ran) :] == ran  # An item of the map may run again beside the one whose output is given.


def test_an_output_that_a_run_has_not_come_to_yet_is_given_after_a_failure(store: Store) -> None:
    broken: list[bool] = []

    @workflow(store=store)
    def job() -> str:
        if broken:
            raise OSError("later")
        return glue([fetch("a"), fetch("b")])

    job.run(run_id="r")
    broken.append(True)
    with pytest.raises(ExecutionError) as failure:
        job.app.rerun("r", "job#1/fetch#1", output=lambda state: state["arguments"]["page"] + "!")
    broken.clear()
    seen.clear()
    assert job.resume(failure.value.run_id) == "a!-B" and seen == ["b", "glue"]


def test_the_input_of_a_call_cannot_be_given(memory: Store) -> None:
    job = report(memory)
    job.run(["a"], run_id="r")
    with pytest.raises(
        CannotRerun, match="gets its arguments from the function that calls it; give its output"
    ):
        job.app.rerun("r", "report/fetch", input={"page": "b"})


def test_a_fork_goes_on_from_a_checkpoint(store: Store) -> None:
    job = report(store)
    job.run(["a", "b"], run_id="r")
    saved = job.app.checkpoints("r")
    assert [checkpoint.nodes for checkpoint in saved] == [("fetch",), ("fetch",), ("glue",), ("report",)]
    seen.clear()
    assert result(job.app.resume(job.app.fork(saved[0].id))) == "<A-B>"
    assert seen == ["b", "glue", "publish"]

    job.app.rollback("r", saved[1].id)
    seen.clear()
    assert job.resume("r") == "<A-B>" and seen == ["glue", "publish"]


@pytest.mark.parametrize(
    ("place", "nodes"),
    [
        ("nested/fetch", ("fetch",)),
        ("nested#1/fetch#1", ("fetch",)),
        ("nested/fetch#2", ("fetch",)),
        ("nested/child/glue#1", ("child",)),
        ("nested/child#2", ("child",)),
        ("nested#1/child#2/glue#1", ("child",)),
        ("nested/publish", ("nested",)),
        ("nested#1/publish#1", ("nested",)),
    ],
)
def test_a_place_finds_the_checkpoint_that_has_the_result_of_a_step(
    store: Store, place: str, nodes: tuple[str, ...]
) -> None:
    job = nested(store)
    job.run(["a", "b"], run_id="r")
    seen.clear()
    fork = job.app.fork(f"r@{place}")
    assert job.app.checkpoints(fork)[0].nodes == nodes
    assert result(job.app.invoke(run_id=fork, if_exists="resume")) == ["A-AA", "B-BB", "<end>"]
    ran = {"nested/fetch": ["A", "AA"], "nested/publish": []}
    assert seen[: len(ran.get(place, []))] == ran.get(place, []) and (nodes != ("nested",) or not seen)


def test_places_name_items_by_their_keys_and_calls_by_their_numbers(memory: Store) -> None:
    @workflow(store=memory)
    def job() -> list[str]:
        found = [fetch.options(key=f"{page}/x")(page) for page in "ab"]
        return [*found, *(fetch(page) for page in "cde")]

    job.run(run_id="r")
    rest = {"job/fetch[a/x]": "bcde", "job#1/fetch#2": "e", "job/fetch#1": "de", "job/fetch#3": ""}
    for place, left in rest.items():
        seen.clear()
        job.app.invoke(run_id=job.app.fork(f"r@{place}"), if_exists="resume")
        assert "".join(seen) == left
    with pytest.raises(CheckpointNotFound, match=r"job/fetch' for the 4\. time"):
        job.app.fork("r@job/fetch#4")


def test_history_and_show_number_the_checkpoints_of_functions_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    report(open_store(url)).run(["a"], run_id="r")
    call = caller(capsys)
    shown = call("history", "r", "--store", url).lines
    assert ["2 of report#1" in line for line in shown[1:4]] == [False, False, True]
    assert call("show", "r@-2", "--store", url).out.startswith("as of wave 2 of report#1, checkpoint ")


def test_another_run_reuses_what_has_the_same_arguments(store: Store) -> None:
    job = report(store)
    job.run(["a", "b"], run_id="r")
    seen.clear()
    assert result(job.app.invoke(reuse="r")) == "<A-B>" and seen == []
    assert result(job.app.invoke({"pages": ["a", "c"]}, reuse="r")) == "<A-C>"
    assert seen == ["c", "glue", "publish"]


def helped(page: str) -> str:
    return glue([page, fetch(page)])


def test_another_run_reuses_the_steps_of_workflows_and_helpers_that_a_function_calls(memory: Store) -> None:
    @workflow
    async def deep(page: str) -> list[str]:
        return [helped(page)]

    @workflow
    async def child(page: str) -> list[str]:
        return await deep(page)

    @workflow(store=memory)
    async def job(pages: list[str]) -> list[list[str]]:
        return [await child(page) for page in pages]

    job.run(["a", "b"], run_id="r")
    seen.clear()
    assert result(job.app.invoke(reuse="r")) == [["a-A"], ["b-B"]] and seen == []
    assert result(job.app.invoke({"pages": ["a", "c"]}, reuse="r")) == [["a-A"], ["c-C"]]
    assert seen == ["c", "glue"]


@step
def less(n: int) -> int:
    seen.append(n)
    return n - 1


@workflow
def down(n: int) -> list[int]:
    return [n, *down(less(n))] if n else []


def test_a_workflow_may_call_itself(memory: Store) -> None:
    job = workflow(store=memory, name="job")(lambda n: down(n))
    assert job.run(2, run_id="r") == [2, 1] and seen == [2, 1]
    seen.clear()
    assert result(job.app.invoke(reuse="r")) == [2, 1]
    assert result(job.app.rerun("r", "job/down/down/less")) == [2, 1] and seen[-1] == 1


def test_a_capsule_has_the_whole_run(memory: Store, tmp_path: Path) -> None:
    job = report(memory)
    job.run(["a"], run_id="r")
    export_run(memory, "r", tmp_path / "r.capsule")
    other = open_store("memory://")
    import_run(other, tmp_path / "r.capsule")

    assert result(report(other).app.rerun("r", "report/publish", trust=True)) == "<A>"


def test_a_plan_says_what_a_resume_does(memory: Store) -> None:
    @workflow(store=memory)
    def job() -> Any:
        return fetch("a"), ask("ok?")

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    planned = {planned.step: planned.what for planned in job.app.plan_resume("r").steps}
    assert planned == {"job#1/fetch#1": "kept", "job#1/ask#1[ok?]": "asked"}


# The fleet.


def test_workers_execute_submitted_functions(store: Store) -> None:
    @step(retry=Retry(attempts=2, delay=0.05))
    def flaky() -> int:
        seen.append(context().attempt)
        if context().attempt == 1:
            raise OSError("later")
        return 7

    @workflow(store=store)
    async def job(page: str) -> list[Any]:
        found = await fetch.map([page, f"{page}{page}"])
        await sleep(0.05)
        return [*found, flaky(), ask("ok?")]

    run = job.submit("a")
    while 2 not in seen:  # It is left until the sleep is over, and until the retry is due.
        Worker(store, [job], idle_timeout=0.01).run(until_idle=True)
        assert store.runs(run=run)[0].status == RunStatus.PAUSED
        time.sleep(0.01)
    assert job.resume(run, "yes") == ["A", "AA", 7, "yes"] and sorted(map(str, seen)) == ["1", "2", "a", "aa"]


def test_a_worker_works_on_the_store_of_its_workflows(store: Store) -> None:
    job = report(store)
    run = job.submit(["a"])
    Worker([job]).run(until_idle=True)
    assert job.run(["a"], run_id=run) == "<A>" and seen == ["a", "glue", "publish"]

    other = workflow(store=open_store("memory://"), name="other")(lambda: 1)
    if store.url != other.app.store.url:
        with pytest.raises(HoldfastError, match=r"works on one store.*Worker\(store, …\)"):
            Worker([job, other])
    with pytest.raises(HoldfastError, match="given a store, not 'sqlite:"):
        Worker("sqlite:///runs.db", [job])  # type: ignore[arg-type]


# Killed everywhere.


@step
def charge(amount: int) -> int:
    def pay() -> int:
        record_effect("charge", amount=amount)
        return amount

    return int(context().once("pay", pay, if_interrupted="skip") or amount)


@step
async def look(text: str) -> str:
    await asyncio.sleep(0)
    return text * 2


@workflow
async def inner(text: str) -> str:
    return await look(text)


@workflow
async def shop(amount: int, words: list[str]) -> list[Any]:
    found = await asyncio.gather(*(look(word) for word in words))
    parts = await fetch.map(found, max_parallel=2)
    paid = charge(amount)
    await sleep(10)
    return [*parts, paid, await inner("x"), ask("ok?")]


def test_a_workflow_survives_a_crash_at_every_boundary() -> None:
    report = crash_everywhere(
        shop, (3, ["a", "b"]), answers={"ok?": "yes"}, mode="fast", repeatable=("charge",), limit=40
    )
    assert report.passed and "no effects" not in str(report)


def test_a_function_that_is_not_deterministic_is_found() -> None:
    @workflow
    def careless(n: int) -> str:
        seen.append(n)
        return fetch(str(len(seen))) + fetch("b")

    with pytest.raises(AssertionError, match=r"is called with|breaks"):
        crash_everywhere(careless, 1, mode="fast")


def test_a_step_that_keeps_killing_the_process_is_asked_about(memory: Store) -> None:
    deadly = [True]

    @step
    def deadly_step() -> int:
        if deadly:
            raise KeyboardInterrupt
        return 1

    @workflow(store=memory)
    def job() -> int:
        return deadly_step()

    with pytest.raises(KeyboardInterrupt):
        job.run(run_id="r")
    deadly.clear()
    assert job.run(run_id="r") == 1
    assert ExecutionError.code == "execution_error"
