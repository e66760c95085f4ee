"""Edits of a workflow's function between two executions of a run: each row of the table in the documentation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import ExecutionError, Retry, RunPaused, ask, step, workflow
from holdfast.errors import RunExists, StepChanged
from holdfast.stores.base import Store

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "functions.md"

seen: list[str] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@step
def fetch(url: str) -> str:
    seen.append(url)
    return url.upper()


@step
def count(text: str) -> int:
    seen.append(f"count {text}")
    return len(text)


def changed(**options: Any) -> Any:
    """The step `fetch` after an edit of its decorator."""

    @step(name="fetch", **options)
    def fetch_again(url: str) -> str:
        seen.append(url)
        return url.upper()

    return fetch_again


@step(name="fetch")
def fetch_reversed(url: str) -> str:
    seen.append(url)
    return url[::-1]


@step
def load(url: str) -> str:
    seen.append(url)
    return url.upper()


@step(name="fetch")
def fetch_with_limit(url: str, limit: int = 9) -> str:
    seen.append(url)
    return url.upper()[:limit]


@step(name="fetch")
async def fetch_async(url: str) -> str:
    seen.append(url)
    return url.upper()


@workflow
def child(url: str) -> str:
    return fetch(url)


def helper(url: str) -> str:
    return fetch(url)


class Edit(NamedTuple):
    """An edit, what the function returns before and after it, and what a resume does."""

    name: str
    before: Callable[[], list[Any]]
    after: Callable[[], list[Any]]
    outcome: str
    result: Any = None
    """What the resumed run returns; `None` if it is refused."""
    runs: tuple[str, ...] = ()
    """What is run by the resume."""


def two() -> list[Any]:
    return [fetch("a"), fetch("b")]


GIVEN, REFUSED, ONLY_NEW = "all results are given", "`StepChanged`", "the new call runs, all others are given"
AB = ["A", "B"]

EDITS = (
    Edit("nothing", two, lambda: [fetch("a"), fetch("b")], GIVEN, AB),
    Edit("a call is added at the end", two, lambda: [*two(), fetch("c")], ONLY_NEW, [*AB, "C"], ("c",)),
    Edit(
        "a call of another step is added at the beginning",
        two,
        lambda: [count("x"), *two()],
        ONLY_NEW,
        [1, *AB],
        ("count x",),
    ),
    Edit("a call of the same step is added before calls of it", two, lambda: [fetch("x"), *two()], REFUSED),
    Edit(
        "the same, with a key: `fetch.options(key=…)(…)`",
        two,
        lambda: [fetch.options(key="new")("x"), *two()],
        ONLY_NEW,
        ["X", *AB],
        ("x",),
    ),
    Edit(
        "a call is removed",
        lambda: [*two(), fetch("c")],
        lambda: [fetch("a"), fetch("c")],
        "its result is not used, a warning says so; all others are given",
        ["A", "C"],
    ),
    Edit(
        "independent calls are reordered",
        lambda: [*two(), count("x")],
        lambda: [count("x"), fetch("b"), fetch("a")],
        GIVEN,
        [1, "B", "A"],
    ),
    Edit("a call gets other arguments", two, lambda: [fetch("a"), fetch("z")], REFUSED),
    Edit(
        'the same, under `@step(on_change="rerun")`',
        two,
        lambda: _with(changed(on_change="rerun"), "z"),
        "it runs with the new arguments",
        ["A", "Z"],
        ("z",),
    ),
    Edit(
        'the same, under `@step(on_change="keep")`',
        two,
        lambda: _with(changed(on_change="keep"), "z"),
        "the recorded result is given",
        AB,
    ),
    Edit(
        "an argument is given by its name",
        two,
        lambda: [fetch(url="a"), fetch(url="b")],
        GIVEN,
        AB,
    ),
    Edit(
        "the step gets another parameter",
        two,
        lambda: [fetch_with_limit("a"), fetch_with_limit("b")],
        REFUSED,
    ),
    Edit(
        "the code of the step is changed",
        two,
        lambda: [fetch_reversed("a"), fetch_reversed("b")],
        "all results are given: `rerun --from` runs the new code",
        AB,
    ),
    Edit(
        "retry, timeout or other options of the step are changed",
        two,
        lambda: _with(changed(retry=Retry(attempts=5), timeout=30), "b"),
        GIVEN,
        AB,
    ),
    Edit(
        "the step is renamed",
        two,
        lambda: [load("a"), load("b")],
        "its calls run again, under the new name",
        AB,
        ("a", "b"),
    ),
    Edit('the same, under `@step(name="fetch")`', two, lambda: _with(changed(), "b"), GIVEN, AB),
    Edit("calls move to a helper function", two, lambda: [helper("a"), helper("b")], GIVEN, AB),
    Edit(
        "a call moves to another workflow",
        two,
        lambda: [fetch("a"), child("b")],
        "it runs again, as a step of that workflow",
        AB,
        ("b",),
    ),
    Edit(
        "a loop becomes `fetch.map(…)`, with one item more",
        two,
        lambda: list(fetch.map(["a", "b", "c"])),
        ONLY_NEW,
        [*AB, "C"],
        ("c",),
    ),
    Edit("the step becomes async", two, lambda: [fetch_async("a"), fetch_async("b")], GIVEN, AB),
)


def _with(step: Any, second: str) -> list[Any]:
    """What the function returns whose calls are all of an edited step."""
    return [step("a"), step(second)]


@pytest.mark.parametrize("edit", EDITS, ids=[edit.name for edit in EDITS])
def test_an_edit_between_two_executions(edit: Edit, memory: Store) -> None:
    """Functions: a resume gives, runs or refuses what the table of edits says."""
    body = [edit.before]

    @workflow(store=memory)
    def job() -> list[Any]:
        return [body[0](), ask("more?")]

    with pytest.raises(RunPaused):
        job.run(run_id="r")
    seen.clear()
    body[0] = edit.after

    if edit.result is not None:
        assert job.resume("r", 1) == [edit.result, 1]
        assert tuple(seen) == edit.runs
        return
    with pytest.raises(ExecutionError) as error:
        job.resume("r", 1)
    assert isinstance(error.value.cause, StepChanged) and edit.outcome == REFUSED and seen == []
    body[0] = edit.before  # Nothing is lost.
    assert job.resume("r") == [edit.before(), 1]


def test_a_changed_call_is_run_again_in_place_by_the_id_that_the_error_names(memory: Store) -> None:
    urls, fails = ["a", "b", "c"], [True]

    @workflow(store=memory)
    def job() -> list[str]:
        found = [fetch(url) for url in urls]
        if fails:
            raise OSError("later")
        return found

    with pytest.raises(ExecutionError):
        job.run(run_id="r")
    fails.clear()
    urls[1] = "z"
    with pytest.raises(ExecutionError) as error:
        job.run(run_id="r")
    assert isinstance(error.value.cause, StepChanged) and error.value.cause.step == "job#1/fetch#2"
    seen.clear()
    job.app.rerun("r", error.value.cause.step, in_place=True)
    assert job.run(run_id="r") == ["A", "Z", "C"] and seen == ["z", "c"]


PARAMETER = "the workflow gets a parameter with a default, or loses a parameter"
SAME_LINE = (
    "all results are given: neither is compared; another value than the default is refused, with `RunExists`"
)


def test_a_workflow_may_get_and_lose_parameters(memory: Store) -> None:
    @workflow(store=memory, name="job")
    def before(url: str) -> list[Any]:
        return [fetch(url), ask("more?")]

    @workflow(store=memory, name="job")
    def after(url: str, limit: int = 9, *more: str) -> list[Any]:
        return [fetch(url)[:limit], ask("more?"), *more]

    for old, new, given, run in ((before, after, ("a",), "gets"), (after, before, ("a", 5, "x"), "loses")):
        with pytest.raises(RunPaused):
            old.run(*given, run_id=run)
        seen.clear()
        with pytest.raises(RunPaused):
            new.run("a", run_id=run)
        assert new.run("a", run_id=run, answers={"more?": "no"}) == ["A", "no"] and seen == []
    for other in (("a", 8), ("a", 9, "x"), ("b",)):
        with pytest.raises(RunExists, match=r"began with another input: '(limit|more|url)' differs"):
            after.run(*other, run_id="gets")


def test_the_documentation_has_these_edits() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line[2].isdigit()]
    expected = [f"| {n} | {edit.name} | {edit.outcome} |" for n, edit in enumerate(EDITS, 1)]
    assert rows == [*expected, f"| 21 | {PARAMETER} | {SAME_LINE} |"]
