"""DAGs as data: what is refused, and how it is said."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest

from holdfast.dags import ControlledExecutor, DAGInvalid, Tools
from holdfast.dags.definition import ERROR, layers, read_dag, resolve
from holdfast.dags.planning import Board
from holdfast.errors import HoldfastError

REF = {"$ref": "tasks.t0.result"}


def tools() -> Tools:
    found = Tools()

    @found.tool
    def fetch(url: str, limit: int = 10) -> dict[str, Any]:
        return {"url": url, "items": list(range(limit))}

    @found.tool(name="files:read")
    def read(path: str, *, encoding: str = "utf-8") -> str:
        return path

    @found.tool
    def anything(**options: Any) -> dict[str, Any]:
        return options

    return found


def task(name: str, *depends_on: str, tool: str = "anything", **arguments: Any) -> dict[str, Any]:
    return {"id": name, "tool": tool, "arguments": arguments, "depends_on": list(depends_on)}


def problems(*tasks: Any, **more: Any) -> tuple[str, ...]:
    with pytest.raises(DAGInvalid) as refused:
        read_dag({"tasks": list(tasks), **more}, tools())
    assert refused.value.code == "dag_invalid" and refused.value.exit_code == 2
    for problem in refused.value.problems:
        assert problem in str(refused.value)
    return refused.value.problems


def test_every_problem_is_reported_at_once() -> None:
    """R0.1: a DAG is checked as a whole, before anything runs."""
    found = problems(
        {"id": "a", "tool": "fech", "arguments": {"url": "u"}},
        {"id": "b", "tool": "fetch", "arguments": {"uri": "u"}, "dependsOn": ["a"]},
        {"id": "c", "tool": "fetch", "arguments": {}, "depends_on": ["nobody"]},
        {"id": "c", "tool": "anything"},
        {"id": "two words", "tool": "anything"},
        {"id": "d", "tool": "anything", "confidence": 2, "safe_to_fail": "yes"},
        "not a task",
        name="x",
    )

    assert found == (
        "unknown field 'name'; a DAG has 'tasks'",
        "task 'a': there is no tool 'fech'; did you mean 'fetch'?",
        "task 'b': unknown field 'dependsOn'; did you mean 'depends_on'?",
        "task 'c': tool 'fetch' needs the argument 'url'",
        "task 'c' is there twice; ids must be unique",
        "tasks[4]: 'id' must be 1 to 200 letters, digits, '-' and '_', not 'two words'",
        "task 'd': 'safe_to_fail' must be true or false, not 'yes'",
        "task 'd': 'confidence' must be a number from 0 to 1, not 2",
        "tasks[6] must be a mapping with 'id' and 'tool', not 'not a task'",
        "task 'c' depends on 'nobody', which is no task of the DAG",
    )


def test_tools_may_be_functions_by_name() -> None:
    """R0.1: a registry as plain data; what is no function is named."""
    executor = ControlledExecutor({"math:double": lambda n: 2 * n})
    result = executor.execute({"tasks": [{"id": "a", "tool": "math:double", "arguments": {"n": 4}}]})
    assert result.results["a"]["result"] == 8
    with pytest.raises(HoldfastError, match="or functions by name, not 3"):
        ControlledExecutor(3)  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match="a tool is a function, not"):
        ControlledExecutor({"a": "no function"})  # type: ignore[dict-item]


def test_arguments_must_fit_the_tools_parameters() -> None:
    assert problems(task("a", tool="fetch", url="u", size=3), task("b", tool="files:read")) == (
        "task 'a': tool 'fetch' takes no argument 'size'; it takes 'url', 'limit'",
        "task 'b': tool 'files:read' needs the argument 'path'",
    )


def test_a_cycle_is_called_a_cycle_and_shown() -> None:
    """R0.1: circular dependencies are an error, each cycle with the way around it."""
    found = problems(
        task("a", "b"), task("b", "c"), task("c", "a"), task("d", "a"), task("e", "e"), task("f")
    )

    assert found == (
        "the tasks depend on each other in a cycle: a -> b -> c -> a",
        "the tasks depend on each other in a cycle: e -> e",
    )


@pytest.mark.parametrize("dag", [None, [], "tasks", {}, {"tasks": {}}, {"tasks": []}])
def test_what_is_no_dag_is_refused(dag: Any) -> None:
    with pytest.raises(DAGInvalid):
        ControlledExecutor(tools()).execute(dag)


def test_tasks_are_sorted_into_layers() -> None:
    """R0.1: a topological sort into layers."""
    dag = read_dag(
        {"tasks": [task("d", "b", "c"), task("a"), task("b", "a"), task("c", "a"), task("e")]}, tools()
    )

    assert layers(dag) == [["a", "e"], ["b", "c"], ["d"]]


def test_a_reference_must_be_to_something_that_is_waited_for() -> None:
    """R0.9: arguments refer to results of tasks that are finished by then."""
    ref = {"$ref": "tasks.a.result"}
    assert problems(task("a"), task("b", x=ref), task("c", y=[{"z": {"$ref": "tasks.no.result"}}])) == (
        "task 'b' refers to 'tasks.a.result' and does not depend on 'a'; add it to 'depends_on'",
        "task 'c' refers to 'tasks.no.result' and does not depend on 'no'; there is no such task",
    )
    read_dag({"tasks": [task("a"), task("b", "a"), task("c", "b", x=ref)]}, tools())


@pytest.mark.parametrize(
    "wrong",
    [
        {"$ref": "tasks.a"},
        {"$ref": "tasks.a.output"},
        {"$ref": "context"},
        {"$ref": "env.HOME"},
        {"$ref": 3},
        {"$ref": ""},
        {"$ref": "tasks..result"},
        {"$ref": "context.a", "otherwise": 1},
    ],
)
def test_what_is_no_reference_is_refused_with_the_form(wrong: dict[str, Any]) -> None:
    (problem,) = problems(task("a", x={"deep": [wrong]}))

    assert 'write {"$ref": "tasks.ID.result"}' in problem


def test_the_references_of_the_document_are_refused_with_ours() -> None:
    """R0.9: `$OUTPUT[task]` is written as a reference."""
    assert problems(task("a"), task("b", "a", x="$OUTPUT[a].items[0]")) == (
        "task 'b': argument 'x': write {\"$ref\": \"tasks.a.result.items.0\"} instead of '$OUTPUT[a].items[0]'",
    )


def test_references_are_resolved_and_all_else_stays_as_it_is() -> None:
    records = {
        "a": {"status": "success", "result": {"items": [{"n": 1}, {"n": 2}], "a.b": 3}},
        "b": {"status": "error", "result": None, "error": "no"},
    }
    arguments = {
        "whole": {"$ref": "tasks.a.result.items"},
        "part": ["x", {"$ref": "tasks.a.result.items.1.n"}],
        "dotted": {"$ref": ["tasks", "a", "result", "a.b"]},
        "error": {"$ref": "tasks.b.error"},
        "missing": {"$ref": "tasks.b.result", "default": []},
        "user": {"$ref": "context.user.name"},
        "schema": {"$literal": {"$ref": "#/$defs/x"}},
        "text": "{{ tasks.a.result }}",
    }

    assert resolve(arguments, records, {"user": {"name": "Ana"}}) == {
        "whole": [{"n": 1}, {"n": 2}],
        "part": ["x", 2],
        "dotted": 3,
        "error": "no",
        "missing": [],
        "user": "Ana",
        "schema": {"$ref": "#/$defs/x"},
        "text": "{{ tasks.a.result }}",
    }


@pytest.mark.parametrize("path", ["tasks.b.result", "tasks.a.result.items.9", "context.other"])
def test_a_reference_to_what_is_not_there_is_an_error_that_names_it(path: str) -> None:
    records = {"a": {"status": "success", "result": {"items": []}}, "b": {"status": "error", "result": None}}

    with pytest.raises(HoldfastError, match=path):
        resolve({"x": {"$ref": path}}, records, {})


def test_data_of_strangers_is_bounded() -> None:
    deep: Any = "x"
    for _ in range(1000):
        deep = [deep]
    assert "nested deeper" in problems(task("a", x=deep))[0]
    many = problems(*[task(f"t{number}") for number in range(10_001)])
    assert many == ("there are 10,001 tasks; at most 10,000 are taken",)
    assert len(problems(*[{"id": f"t{number}", "tool": "no"} for number in range(5000)])) <= 101
    ring = [task(f"t{number}", f"t{(number + 1) % 9000}") for number in range(9000)]
    assert len(problems(*ring)) == 1


HUGE = {
    "references behind long ways": [
        task(f"t{n}", *(f"t{other}" for other in range(max(0, n - 20), n)), x=REF if n else 0)
        for n in range(1500)
    ],
    "unknown tasks": [task(f"t{n}", *(f"t{n}x{other}" for other in range(50))) for n in range(300)],
    "cycles": [task(f"t{n}", f"t{n ^ 1}") for n in range(6000)],
    "unknown fields": [{"id": "a", "tool": "anything", **{f"f{n}": 1 for n in range(50_000)}}],
}


@pytest.mark.no_cover  # Calls are counted here, and only one at a time can do that.
@pytest.mark.parametrize("name", HUGE)
def test_checking_a_dag_takes_work_in_proportion_to_it(name: str) -> None:
    """None of them has more than 50,000 tasks, dependencies and fields."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1
        assert calls < 2_000_000, "the work grows faster than the DAG"

    sys.setprofile(count)
    try:
        with contextlib.suppress(DAGInvalid):
            read_dag({"tasks": HUGE[name]}, tools())
    finally:
        sys.setprofile(None)


def test_of_a_long_way_to_a_failed_task_every_task_is_looked_at_once() -> None:
    """The tasks stand in the order in which each pass over all of them would find only one."""
    tasks = read_dag({"tasks": [task(f"t{n}", f"t{n + 1}") for n in range(3000)] + [task("t3000")]}, tools())
    looked: list[str] = []

    class Counting(Board):
        def status(self, name: str) -> str:
            looked.append(name)
            return super().status(name)

    board = Counting(tasks, {"t3000": ERROR}, 1, tools())
    board.fail_dependents()

    assert set(board.statuses.values()) == {ERROR} and len(board.statuses) == 3001
    assert len(looked) < 4 * len(tasks)


class TestTools:
    def test_names_of_nodes_and_parts_of_every_dag_are_refused(self) -> None:
        found = tools()
        for name in ("fetch", "files.read", "decide", "approve", "abort", "two words", "", "a[b"):
            with pytest.raises(HoldfastError, match="tool"):
                found.tool(lambda: None, name=name)  # type: ignore[call-overload]
        with pytest.raises(HoldfastError, match="rate must be calls per second"):
            found.tool(rate=0, name="fast")(lambda: None)
        with pytest.raises(HoldfastError, match="is a function"):
            found.tool("fetch")  # type: ignore[type-var]

    def test_all_tools_are_registered_before_an_executor_is_made(self) -> None:
        found = tools()
        ControlledExecutor(found)

        with pytest.raises(HoldfastError, match="register all of them before"):
            found.tool(lambda: None, name="late")  # type: ignore[call-overload]

    def test_tools_are_a_mapping_by_name(self) -> None:
        found = tools()

        assert list(found) == ["fetch", "files:read", "anything"] and len(found) == 3
        assert found["files:read"].node == "files.read" and found["fetch"].timeout == 30.0


@pytest.mark.parametrize(
    "option",
    [
        {"decisions": "sometimes"},
        {"approval": "maybe"},
        {"min_confidence": 2},
        {"approval_timeout": 0},
        {"decision_timeout": "soon"},
        {"max_replans": -1},
        {"decide": "agent"},
    ],
)
def test_bad_options_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError, match=next(iter(option))):
        ControlledExecutor(tools(), **option)
    with pytest.raises(HoldfastError, match=r"holdfast\.dags\.Tools"):
        ControlledExecutor([len])  # type: ignore[arg-type]
