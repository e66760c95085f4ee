"""Failures of steps, and ids that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    ExecutionError,
    RunNotFound,
    StateInvalid,
)
from holdfast.stores.base import Store
from tests.graphs import chain, fan, one


def test_a_failure_tells_all_and_ends_with_how_to_resume(sqlite_url: str) -> None:
    def fails(state: Any) -> None:
        raise KeyError("oh")

    app = chain("a", "b", nodes={"b": fails}).compile(sqlite_url)
    with pytest.raises(ExecutionError) as caught:
        app.invoke({"n": 1}, run_id="r")

    error = caught.value
    assert (error.node, error.run_id, error.path) == ("b", "r", ("a", "b"))
    assert (
        error.state == {"n": 1, "log": ["a"]}
        and isinstance(error.cause, KeyError)
        and error.__cause__ is error.cause
    )
    assert str(error) == (
        "run 'r': step 'b' failed: KeyError: 'oh'; finished steps are kept; resume with app.resume('r')"
    )
    assert app.runs(status="failed")[0].run == "r"


def test_siblings_of_a_failed_step_finish_and_are_kept() -> None:
    calls: list[str] = []

    def fails(state: Any) -> None:
        calls.append("bad")
        if calls.count("bad") == 1:
            raise ValueError("once")

    def good(state: Any) -> dict[str, Any]:
        calls.append("good")
        return {"log": ["good"]}

    app = fan("bad", "good", nodes={"bad": fails, "good": good}).compile("memory://")
    with pytest.raises(ExecutionError):
        app.invoke(run_id="r")

    assert app.resume("r").state["log"] == ["good"] and sorted(calls) == ["bad", "bad", "good"]


@pytest.mark.parametrize(
    "error", [StopIteration("x"), StopAsyncIteration("x"), AssertionError("x"), RecursionError("x")]
)
@pytest.mark.parametrize("parallel", [False, True])
def test_odd_exceptions_are_failures_like_any_other(error: Exception, parallel: bool) -> None:
    def fails(state: Any) -> None:
        raise error

    graph = fan("a", "b", nodes={"a": fails}) if parallel else one(fails)
    with pytest.raises(ExecutionError) as caught:
        graph.compile("memory://").invoke(run_id="r")
    assert caught.value.cause is error


def test_an_unknown_run_is_refused_with_the_nearest_name(memory: Store) -> None:
    app = chain("a", name="workflow_file").compile(memory)
    app.invoke(run_id="monday")

    with pytest.raises(RunNotFound, match="did you mean 'monday'"):
        app.resume("munday")
    with pytest.raises(RunNotFound, match="no run 'munday'"):
        app.get_state("munday")


@pytest.mark.parametrize("run_id", ["", "  ", "a\nb", 3])
def test_a_run_id_must_be_printable_text(run_id: Any) -> None:
    with pytest.raises(StateInvalid, match="a run id must be printable text"):
        chain("a").compile("memory://").invoke(run_id=run_id)


def test_odd_run_ids_are_fine(store: Store) -> None:
    app = chain("a").compile(store)
    for run_id in ("../up", "a/b", "ünï code", "x" * 200, "C:\\x", ".hidden", "CON"):
        assert app.invoke(run_id=run_id).run_id == run_id
        assert app.get_state(run_id)["log"] == ["a"]
    assert len(app.runs()) == 7
