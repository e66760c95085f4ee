"""`executor`: python steps of workflow files that are run elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.engine.executors.executors import shared
from holdfast.errors import ExecutionError, StepTimeout
from holdfast.workflows.reading.problems import WorkflowInvalid
from tests.workflows.workshop import Workshop

CODE = '''
import asyncio
import os
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent


def note(word):
    """Write down that a step is at work; how often one was."""
    with (HERE / "calls").open("a") as file:
        file.write(f"{word}\\n")
    return (HERE / "calls").read_text().split().count(word)


def where():
    return [os.getpid(), threading.get_ident()]


async def later(n):
    await asyncio.sleep(0.001)
    return [n, os.getpid()]


def facts(inputs, state, ctx):
    ctx.log.warning("at work on %s", ctx.step)
    return [inputs["n"], state.run_id, ctx.run_id, ctx.step, ctx.item_key, ctx.idempotency_key]


def asks(ctx):
    return ctx.ask("well?")


def grows(inputs):
    inputs["list"].append(4)


def tells(token, ctx):
    ctx.log.warning("it is %s", token)
    return token


def leaks(token):
    raise ValueError(f"refused: {token}")


def dies(word):
    if note(word) == 1:
        os._exit(3)
    return word


def each(item, index):
    if item == "b" and note(item) == 1:
        os._exit(3)
    if item == "c" and not (HERE / "fixed").exists():
        raise ValueError("c is broken")
    return [item, index, os.getpid()]


def hangs():
    time.sleep(600)
'''


@pytest.fixture(autouse=True)
def tidy_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module", autouse=True)
def processes_end() -> Iterator[None]:
    yield
    shared.close()


@pytest.fixture
def away(shop: Workshop) -> Workshop:
    shop.write(CODE, "own.py")
    return shop


def text(function: str, executor: str = "processes", around: str = "") -> str:
    return f"""
        workflow:
          name: test
          inputs: {{n: {{type: integer, default: 3}}, list: {{type: array, default: [3]}}}}
        steps:
          - name: x
            python: own.py:{function}
            executor: {executor}
            {around}
        """


def anew(shop: Workshop) -> Workshop:
    """The same workshop without its runs."""
    for path in shop.folder.glob("runs.db*"):
        path.unlink()
    return shop


def test_a_step_runs_in_another_process(away: Workshop) -> None:
    process, _ = away.step(text("where"))["output"]

    assert process != os.getpid()


def test_a_step_runs_in_another_thread(away: Workshop) -> None:
    process, thread = away.step(text("where", "threads"))["output"]

    assert process == os.getpid() and thread != threading.get_ident()


def test_an_async_function_is_awaited_there(away: Workshop) -> None:
    n, process = away.step(text("later", around="with: {n: '{{ inputs.n }}'}"))["output"]

    assert n == 3 and process != os.getpid()


def test_a_function_is_given_what_it_names(away: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    assert away.step(text("facts"))["output"] == [3, "r", "r", "x#1", None, "r:x#1"]
    assert "at work on x#1" in caplog.messages


def test_what_it_cannot_ask_is_told(away: Workshop) -> None:
    assert "ctx.ask does not work in a worker process" in away.error(text("asks"))


def test_what_it_is_given_is_read_only(away: Workshop) -> None:
    assert "own.py:grows changed a value that it was given, which would be lost" in away.error(text("grows"))


def test_secrets_stay_hidden(away: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    """In the result, in the log, and in the traceback of an error that happened there."""
    away.env["HOLDFAST_SECRET_TOKEN"] = "open-sesame"
    around = "with: {token: '{{ secrets.TOKEN }}'}"

    assert away.step(text("tells", around=around))["output"] == "***"
    assert "it is ***" in caplog.messages
    assert "refused: ***" in anew(away).error(text("leaks", around=around))
    assert "sesame" not in caplog.text


def test_a_process_that_dies_is_tried_again(away: Workshop) -> None:
    assert away.step(text("dies", around="with: {word: again}"))["output"] == "again"
    assert away.calls() == ["again", "again"]


def test_a_step_that_may_not_be_repeated_is_not(away: Workshop) -> None:
    around = "with: {word: once}\n            idempotent: false"

    assert "may or may not have taken effect" in away.error(text("dies", around=around))
    assert away.calls() == ["once"]


def test_a_timeout_ends_it(away: Workshop) -> None:
    with pytest.raises(ExecutionError) as failed:
        away.run(text("hangs", around="timeout: 0.3"))

    assert isinstance(failed.value.cause, StepTimeout)


def test_every_item_goes_there_and_is_kept_as_it_finishes(away: Workshop) -> None:
    around = "for_each: {in: [a, b, c, d], on_error: all_or_nothing}"
    assert "c is broken" in away.error(text("each", "processes:2", around))
    before = away.state()["x:items"]
    away.fix()

    after = away.resume().state["x:items"]

    outputs = [found["output"] for found in sorted(after.values(), key=lambda found: found["index"])]
    assert [[item, index] for item, index, _ in outputs] == [["a", 0], ["b", 1], ["c", 2], ["d", 3]]
    assert os.getpid() not in {process for _, _, process in outputs}
    assert all(after[key] == before[key] for key in "013")


def test_another_executor_is_no_other_step(away: Workshop) -> None:
    def version(executor: str) -> Any:
        return away.open(text("where", executor)).graph.nodes["x"].fingerprint()

    assert version("processes") == version("threads") == version("dask:tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("python: own.py:where\n    executor: proceses", "did you mean 'processes'?"),
        ("python: own.py:where\n    executor: dask", "name the scheduler, as in dask:tcp://host:8786"),
        ("python: own.py:where\n    executor: 'dask:{{ vars.x }}'", "cannot be a template"),
        ("python: own.py:where\n    executor: 4", "executor"),
        (
            "python: own.py:where\n    executor: dask:x:1\n    idempotent: false",
            "where Dask repeats the steps",
        ),
        ("shell: ls\n    executor: processes", "is of kind shell, which takes no executor"),
        ("workflow: other.yaml\n    executor: processes", "is of kind workflow, which takes no executor"),
    ],
)
def test_nonsense_is_told_with_its_line(away: Workshop, step: str, problem: str) -> None:
    away.write("workflow:\n  name: other\nsteps:\n  - {name: y, set: {}}\n", "other.yaml")
    with pytest.raises(WorkflowInvalid) as refused:
        away.load(f"workflow:\n  name: test\nsteps:\n  - name: x\n    {step}\n")

    assert problem in str(refused.value) and "flow.yaml:6" in str(refused.value)


def test_a_missing_package_is_named(away: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(WorkflowInvalid, match=r"step 'x'(.|\n)*pip install 'holdfast\[dask\]'"):
        away.open(text("where", "dask:tcp://127.0.0.1:1"))
