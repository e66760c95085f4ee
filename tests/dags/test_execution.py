"""DAGs that run: layers, failures, references, rates, events, decisions, approvals, changes on the way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, ExecutionError, Retry, Send
from holdfast.dags import ControlledExecutor, DAGExecutionResult, DAGInvalid, DecisionPoint, Tools
from holdfast.dags.tools import RateLimit
from holdfast.errors import AnswerRejected, CommandRefused, HoldfastError, NotPaused, RunFinished
from holdfast.fleet import Worker
from holdfast.stores.base import Store
from tests.processes import unmeasured


class Workshop:
    """Tools that note their calls, and executors over one store."""

    def __init__(self, url: str) -> None:
        self.url, self.calls = url, list[Any]()
        self.fails = True

    def tools(self) -> Tools:
        tools = Tools()

        @tools.tool
        def say(text: Any) -> Any:
            self.calls.append(text)
            return text

        @tools.tool
        async def add(*, a: int, b: int = 1) -> int:
            await asyncio.sleep(0)
            self.calls.append(("add", a, b))
            return a + b

        @tools.tool
        def fail(text: str = "out of order") -> str:
            if self.fails:
                raise ValueError(text)
            return text

        @tools.tool(critical=True)
        def pay(amount: int) -> str:
            self.calls.append(("pay", amount))
            return f"paid {amount}"

        return tools

    def executor(self, tools: Tools | None = None, **options: Any) -> ControlledExecutor:
        return ControlledExecutor(tools or self.tools(), self.url, **options)


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(f"sqlite:///{tmp_path}/runs.db")


def task(name: str, tool: str = "say", *depends_on: str, **arguments: Any) -> dict[str, Any]:
    if tool == "say":
        arguments.setdefault("text", name)
    return {"id": name, "tool": tool, "arguments": arguments, "depends_on": list(depends_on)}


def statuses(result: DAGExecutionResult) -> dict[str, str]:
    return {name: record["status"] for name, record in result.results.items()}


def ref(path: str) -> dict[str, str]:
    return {"$ref": path}


# Layers and failures.


def test_a_dag_runs_layer_by_layer_with_results_as_arguments(shop: Workshop) -> None:
    """R0.4, R0.9: `execute` returns totals; arguments refer to results and to the context."""
    dag = {
        "tasks": [
            task("one", "add", a=1),
            task("two", "add", a=ref("context.start.n")),
            task("sum", "add", "one", "two", a=ref("tasks.one.result"), b=ref("tasks.two.result")),
        ]
    }

    result = shop.executor().execute(dag, context={"start": {"n": 10}}, run_id="sums")

    assert (result.run_id, result.status, result.layers) == ("sums", "completed", 2)
    assert (result.total_tasks, result.successful_tasks, result.failed_tasks) == (3, 3, 0)
    assert result.results["sum"]["result"] == 13 and result.results["sum"]["layer"] == 2
    assert result.seconds > 0 and result.errors == {} and result.decisions == []
    assert result.state["tasks"][-1]["task_id"] == "sum" and result.state["context"]["start"] == {"n": 10}


def test_tasks_of_a_layer_run_in_parallel(shop: Workshop) -> None:
    """R0.2: neither of two tasks ends before both have begun."""
    both = threading.Barrier(2, timeout=30)
    tools = Tools()

    @tools.tool
    def meet() -> int:
        return both.wait()

    result = shop.executor(tools).execute({"tasks": [task("a", "meet"), task("b", "meet")]})

    assert result.successful_tasks == 2


def test_max_concurrency_limits_a_layer(shop: Workshop) -> None:
    """R0.9: at most so many tasks at once."""
    tools, running, most = Tools(), set[int](), list[int]()

    @tools.tool
    async def work(n: int) -> None:
        running.add(n)
        most.append(len(running))
        await asyncio.sleep(0)
        running.discard(n)

    dag = {"tasks": [task(f"t{n}", "work", n=n) for n in range(8)]}
    shop.executor(tools, max_concurrency=2).execute(dag)

    assert len(most) == 8 and max(most) <= 2


def test_what_depends_on_a_failed_task_fails_and_the_rest_goes_on(shop: Workshop) -> None:
    """R0.2: all tasks of a layer settle; dependents fail with the name of the failed one; success is partial."""
    dag = {
        "tasks": [
            task("bad", "fail"),
            task("good"),
            task("after_bad", "say", "bad"),
            task("later", "say", "after_bad", "good"),
            task("after_good", "say", "good"),
        ]
    }

    result = shop.executor().execute(dag)

    assert result.status == "completed" and (result.successful_tasks, result.failed_tasks) == (2, 3)
    assert result.errors == {
        "bad": "ValueError: out of order",
        "after_bad": "Dependency task bad failed",
        "later": "Dependency task after_bad failed",
    }
    assert shop.calls == ["good", "after_good"]


def test_a_task_that_is_safe_to_fail_does_not_stop_what_depends_on_it(shop: Workshop) -> None:
    """R0.3: success, error and failed_safe; a failure that is safe is a warning."""
    dag = {
        "tasks": [
            {**task("bad", "fail"), "safe_to_fail": True},
            task("after", "say", "bad", text={"$ref": "tasks.bad.result", "default": "nothing"}),
            task("strict", "say", "bad", text=ref("tasks.bad.result")),
        ]
    }

    events = list(shop.executor().execute_stream(dag, run_id="safe"))
    result = shop.executor().app.get_state("safe")

    assert dict(result["statuses"]) == {"bad": "failed_safe", "after": "success", "strict": "error"}
    assert shop.calls == ["nothing"]
    kinds = [(event["type"], event.get("task_id")) for event in events]
    assert ("task_warning", "bad") in kinds and ("task_error", "strict") in kinds
    assert "'tasks.bad.result' refers to nothing" in result["tasks"][-1]["error"]


def test_a_tool_is_retried_and_timed_out_as_it_was_registered(shop: Workshop) -> None:
    """R0.9: a timeout per task, 30 seconds unless the tool says otherwise."""
    tools, tries = Tools(), list[int]()

    @tools.tool(retry=Retry(attempts=3, delay=0))
    def flaky(ctx: Context) -> int:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")
        return ctx.attempt

    @tools.tool(timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    events = list(shop.executor(tools).execute_stream({"tasks": [task("f", "flaky"), task("s", "slow")]}))

    assert tries == [1, 2, 3] and [event["type"] for event in events].count("task_retry") == 2
    (error,) = [event for event in events if event["type"] == "task_error"]
    assert error["task_id"] == "s" and "timeout of 0.05 s" in error["error"]
    assert events[-1]["type"] == "workflow_complete"
    assert (events[-1]["successful_tasks"], events[-1]["failed_tasks"]) == (1, 1)


def test_a_rate_spaces_the_calls_of_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """R0.9: ten calls a second are a tenth of a second apart, whoever makes them."""
    now = [100.0]
    monkeypatch.setattr("holdfast.clock.monotonic", lambda: now[0])
    limit = RateLimit(10)

    assert [limit.reserve() for _ in range(3)] == pytest.approx([100.0, 100.1, 100.2])
    now[0] = 200.0
    assert limit.reserve() == 200.0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_limited_tool_waits_outside_its_timeout(shop: Workshop, is_async: bool) -> None:
    """R0.9: waiting for the rate is no part of a task's time."""
    tools, begun = Tools(), list[float]()

    def call() -> None:
        begun.append(1.0)

    async def acall() -> None:
        call()

    tools.tool(acall if is_async else call, name="call", rate=2, timeout=1.5)  # type: ignore[call-overload]
    result = shop.executor(tools).execute({"tasks": [task(f"t{n}", "call") for n in range(5)]})

    assert result.successful_tasks == 5 and len(begun) == 5


# State and events.


def test_the_state_has_reducers_and_refuses_what_cannot_be(shop: Workshop) -> None:
    """R0.10: parallel tasks add to it; the context is merged; unknown keys and empty ids are refused."""
    executor = shop.executor(
        decide=lambda point: {"action": "continue", "context": {"seen": point.layer}}, decisions="per_layer"
    )
    result = executor.execute(
        {"tasks": [task("a"), task("b"), task("c")]}, context={"user": "ana"}, run_id="r"
    )

    assert {record["task_id"] for record in result.state["tasks"]} == {"a", "b", "c"}
    assert dict(result.state["context"]) == {"user": "ana", "seen": 1} and result.state["layer"] == 1
    for bad in ("", "  "):
        with pytest.raises(HoldfastError, match="a run id must be printable text"):
            executor.execute({"tasks": [task("a")]}, run_id=bad)
    with pytest.raises(HoldfastError, match="layr"):
        executor.app.invoke({**executor.initial_state({"tasks": [task("a")]}), "layr": 1})


def test_what_a_task_says_and_streams_is_told_as_it_comes(shop: Workshop) -> None:
    tools = Tools()

    @tools.tool
    def write(ctx: Context) -> str:
        ctx.emit("begun")
        ctx.stream("so ")
        ctx.stream("far")
        return "so far"

    events = list(shop.executor(tools).execute_stream({"tasks": [task("w", "write")]}))
    pieces = [event for event in events if event["type"] == "task_stream"]
    assert [(event["task_id"], event["text"]) for event in pieces] == [("w", "so "), ("w", "far")]
    assert [event["message"] for event in events if event["type"] == "task_message"] == ["begun"]


def test_a_slow_reader_does_not_slow_the_run(shop: Workshop) -> None:
    """R0.5: the run is over, in another thread, although only one of its events was taken."""
    executor = shop.executor()
    events = executor.execute_stream({"tasks": [task(f"t{number}") for number in range(20)]}, run_id="r")
    assert next(events)["type"] == "workflow_start"
    while not executor.app.runs(status="completed"):
        threading.Event().wait(0.01)

    assert len(shop.calls) == 20 and [event["type"] for event in events].count("task_complete") == 20


def test_the_events_of_a_dag_have_its_tasks_and_layers(shop: Workshop) -> None:
    """R0.4, R0.5, S0.12: workflow, layers, tasks with results, states, checkpoints, decisions, in order."""
    dag = {"tasks": [task("a", text="x" * 300), task("b", "say", "a"), task("p", "pay", "b", amount=3)]}

    events = list(shop.executor().execute_stream(dag, run_id="seen"))

    kinds = [event["type"] for event in events]
    assert kinds[0] == "workflow_start" and kinds[-1] == "decision_required"
    assert {"state_updated", "checkpoint_saved"} <= set(kinds)
    assert (events[0]["total_tasks"], events[0]["layers"]) == (3, 3)
    layers = [(event["layer"], event["tasks"]) for event in events if event["type"] == "layer_start"]
    assert layers == [(1, ["a"]), (2, ["b"])]
    (done, _) = [event for event in events if event["type"] == "task_complete"]
    assert (done["task_id"], done["tool"], done["result"]) == ("a", "say", "x" * 300)
    assert len(done["preview"]) == 200 and done["size"] == 302 and done["duration"] >= 0
    saved = [event for event in events if event["type"] == "checkpoint_saved"]
    assert all(event["checkpoint_id"] and event["timestamp"] for event in saved)
    assert events[-1]["kind"] == "approval" and "pay({'amount': 3})" in events[-1]["prompt"]
    assert {event["run_id"] for event in events} == {"seen"}


def test_the_same_in_an_event_loop(shop: Workshop) -> None:
    """R0.4: an async generator of events, and `aexecute`, `aresume`."""
    executor = shop.executor(approval="always")
    dag = {"tasks": [task("a")]}

    async def main() -> tuple[list[str], str, str]:
        kinds = [event["type"] async for event in executor.aexecute_stream(dag, run_id="one")]
        paused = await executor.aexecute(dag, run_id="two")
        done = await executor.aresume("two", "approve")
        return kinds, paused.status, done.status

    kinds, paused, done = asyncio.run(main())
    assert kinds[-1] == "decision_required" and (paused, done) == ("paused", "completed")
    executor.reject("one")
    assert asyncio.run(executor.aresume("one")).status == "aborted"


# Decisions of an agent.


def test_an_agent_decides_after_every_layer(shop: Workshop) -> None:
    """R0.7, S0.18: per_layer; what it saw, and its decisions in the state with who and why."""
    points = list[DecisionPoint]()

    def agent(point: DecisionPoint) -> Any:
        points.append(point)
        return {"action": "continue", "reason": f"layer {point.layer} is fine", "message": "go on"}

    dag = {"tasks": [task("a"), task("b", "say", "a")]}
    result = shop.executor(decide=agent, decisions="per_layer").execute(dag, run_id="r")

    assert [(point.layer, [each["id"] for each in point.remaining]) for point in points] == [
        (1, ["b"]),
        (2, []),
    ]
    assert points[0].finished[0]["result"] == "a" and points[0].run_id == "r" and points[0].errors == []
    assert [(each["kind"], each["action"], each["by"], each["reason"]) for each in result.decisions] == [
        ("agent", "continue", "agent", "layer 1 is fine"),
        ("agent", "continue", "agent", "layer 2 is fine"),
    ]
    assert result.state["messages"][0] == {"role": "agent", "content": "go on"}


def test_an_async_agent_replans_after_an_error_with_new_tasks(shop: Workshop) -> None:
    """R0.7: on_error is the default with an agent; it is asked only then, and may let a failed task run again."""
    points = list[DecisionPoint]()

    async def agent(point: DecisionPoint) -> Any:
        points.append(point)
        shop.fails = False
        again = [each["task_id"] for each in point.errors]
        return {"action": "replan", "tasks": [task(again[0], "fail"), task("new", "say", again[0])]}

    dag = {"tasks": [task("a"), task("bad", "fail", "a"), task("old", "say", "bad")]}
    result = shop.executor(decide=agent).execute(dag)

    assert len(points) == 1 and points[0].errors[0]["error"] == "ValueError: out of order"
    assert statuses(result) == {"a": "success", "bad": "success", "new": "success"}
    assert result.decisions[0]["tasks"] == ["bad", "new"] and shop.calls == ["a", "new"]
    assert result.total_tasks == 3 and [each["id"] for each in result.state["dag"]["tasks"]] == [
        "a",
        "bad",
        "new",
    ]


def test_an_agent_aborts(shop: Workshop) -> None:
    """R0.7: the run is aborted with the reason; a resume does not go on."""
    executor = shop.executor(
        decide=lambda point: {"action": "abort", "reason": "too risky"}, decisions="per_layer"
    )

    result = executor.execute({"tasks": [task("a"), task("b", "say", "a")]}, run_id="r")
    again = executor.resume("r")

    assert (result.status, result.reason) == (again.status, again.reason) == ("aborted", "too risky")
    assert shop.calls == ["a"] and executor.app.runs()[0].status == "failed"


def test_an_agent_whose_decision_cannot_be_used_is_asked_again_with_the_problems(shop: Workshop) -> None:
    problems = list[tuple[str, ...]]()

    def agent(point: DecisionPoint) -> Any:
        problems.append(point.problems)
        tool = "say" if point.problems else "sy"
        return {"action": "inject", "tasks": [task("new", tool, text="t")]} if point.remaining else "continue"

    dag = {"tasks": [task("a"), task("b", "say", "a")]}
    result = shop.executor(decide=agent, decisions="per_layer").execute(dag)

    assert problems[:2] == [(), ("task 'new': there is no tool 'sy'; did you mean 'say'?",)]
    assert result.results["new"]["status"] == "success"


@pytest.mark.parametrize("answer", [None, "go on", {"action": "replan"}, {"action": "continue", "who": 1}])
def test_an_agent_that_decides_nothing_fails_the_run_and_a_resume_asks_it_again(
    shop: Workshop, answer: Any
) -> None:
    """R0.7: nothing runs without the decision that was due."""
    dag = {"tasks": [task("a"), task("b", "say", "a")]}
    with pytest.raises(ExecutionError, match="the decision has 1 problem"):
        shop.executor(decide=lambda point: answer, decisions="per_layer").execute(dag, run_id="r")
    assert shop.calls == ["a"]

    result = shop.executor(decide=lambda point: "continue").resume("r")

    assert result.status == "completed" and shop.calls == ["a", "b"] and len(result.decisions) == 2


def test_an_agent_that_takes_too_long_fails_the_run(shop: Workshop) -> None:
    """R0.7: a timeout for decisions."""

    async def agent(point: DecisionPoint) -> Any:
        await asyncio.sleep(60)

    executor = shop.executor(decide=agent, decisions="per_layer", decision_timeout=0.01)
    with pytest.raises(ExecutionError, match=r"agent said nothing within 0\.01 s"):
        executor.execute({"tasks": [task("a")]})


def test_a_decision_below_the_confidence_is_put_to_a_person(shop: Workshop) -> None:
    """R0.7: confidence thresholds; a person approves what the agent proposed, or decides otherwise."""

    asked = list[tuple[str, int]]()

    def agent(point: DecisionPoint) -> Any:
        asked.append((point.run_id, point.layer))
        new = [task(f"new{point.layer}", "say", "a")]
        return {"action": "inject", "tasks": new, "confidence": 0.4} if point.layer == 1 else "continue"

    executor = shop.executor(decide=agent, decisions="per_layer", min_confidence=0.8)
    for run, answer in (("yes", "approve"), ("no", "continue")):
        paused = executor.execute({"tasks": [task("a"), task("b", "say", "a")]}, run_id=run)
        assert "the agent would inject, with a confidence of 0.4, below 0.8" in paused.pauses[0].prompt
        executor.send(run, {"action": answer}, by="ana")

    assert set(executor.resume("yes").results) == {"a", "b", "new1"}
    result = executor.resume("no")
    assert set(result.results) == {"a", "b"}
    assert [(each["kind"], each["by"]) for each in result.decisions] == [("human", "ana"), ("agent", "agent")]
    assert len(asked) == len(set(asked)), "what an agent has decided it is not asked again"


def test_an_agent_may_replan_only_so_often(shop: Workshop) -> None:
    """R0.11: a limit of replans; then a person decides."""

    def agent(point: DecisionPoint) -> Any:
        return {"action": "inject", "tasks": [task(f"n{point.layer}")]}

    executor = shop.executor(decide=agent, decisions="per_layer", max_replans=3)
    result = executor.execute({"tasks": [task("a")]}, run_id="r")

    assert result.status == "paused" and result.layers == 4
    assert executor.app.checkpoints("r")[-1].id == result.checkpoint_id, "the latest checkpoint"
    assert "changed the plan 3 times already" in result.pauses[0].prompt
    executor.proceed("r", by="ana")
    assert executor.resume("r").status == "completed"


def test_a_task_of_a_deciding_tool_is_an_agent_in_the_dag(shop: Workshop) -> None:
    """R0.7: an agent step that continues, aborts or replans; a result that is no decision fails the task."""
    tools = shop.tools()

    @tools.tool(decides=True)
    def review(of: str) -> Any:
        return {"action": "replan", "tasks": [task("better", "say", "check")], "reason": of}

    @tools.tool(decides=True)
    def confused() -> Any:
        return {"do": "something"}

    dag = {
        "tasks": [
            task("a"),
            task("check", "review", "a", of=ref("tasks.a.result")),
            task("what", "confused", "a"),
            task("worse", "say", "check"),
        ]
    }
    result = shop.executor(tools).execute(dag)

    assert shop.calls == ["a", "better"] and result.results["what"]["status"] == "error"
    assert "unknown field 'do'" in result.errors["what"]
    assert [(each["by"], each["action"], each["reason"]) for each in result.decisions] == [
        ("check", "replan", "a")
    ]


# People: decisions without an agent, approvals.


def test_a_run_pauses_after_every_layer_until_somebody_decides(shop: Workshop) -> None:
    """R0.8: continue, replan, abort by the run's id, in another process than the one that paused."""
    dag = {"tasks": [task("a"), task("b", "say", "a"), task("c", "say", "b")]}
    first = shop.executor(decisions="per_layer").execute(dag, run_id="r")
    assert first.status == "paused" and first.pauses[0].prompt.startswith(
        "layer 1 is finished; tasks left: 2"
    )

    other = shop.executor()
    assert other.proceed("r", by="ana") == "applied" and other.resume("r").status == "paused"
    other.replan("r", [task("d", "say", "b")], by="ana", reason="c is not needed")
    assert shop.calls == ["a", "b"], "a command does not execute the run"
    assert other.resume("r").status == "paused" and shop.calls == ["a", "b", "d"]
    other.abort("r", "enough", by="ana")
    result = other.resume("r")

    assert (result.status, result.reason, shop.calls) == ("aborted", "enough", ["a", "b", "d"])
    assert [(each["kind"], each["action"], each["reason"]) for each in result.decisions] == [
        ("human", "continue", ""),
        ("human", "replan", "c is not needed"),
        ("human", "abort", "enough"),
    ]
    assert {each["by"] for each in result.decisions} == {"ana"}


def test_a_decision_of_a_person_that_cannot_be_used_is_refused_or_asked_for_again(shop: Workshop) -> None:
    executor = shop.executor(decisions="per_layer")
    executor.execute({"tasks": [task("a"), task("b", "say", "a")]}, run_id="r")

    with pytest.raises(DAGInvalid, match="there is no tool 'pray'; did you mean 'pay'"):
        executor.inject("r", [task("x", "pray")])
    with pytest.raises(DAGInvalid, match="unknown field 'frm'"):
        executor.send("r", {"action": "continue", "frm": 1})
    again = executor.resume("r", {"action": "inject", "tasks": [task("a")]})
    assert again.status == "paused" and "task 'a' is there already" in again.pauses[0].prompt
    assert executor.resume("r", "continue").status == "paused"


@pytest.mark.parametrize(
    ("mode", "asked"), [("always", ["say", "pay"]), ("critical_only", ["pay"]), ("never", [])]
)
def test_approval_is_asked_for_as_the_mode_says(shop: Workshop, mode: str, asked: list[str]) -> None:
    """R0.7: always, critical_only, never; with the list of tasks, before they run."""
    executor = shop.executor(approval=mode)
    result = executor.execute({"tasks": [task("a"), task("p", "pay", "a", amount=5)]}, run_id="r")
    for tool in asked:
        assert result.status == "paused" and f": {tool}(" in result.pauses[0].prompt
        executor.approve("r", by="ana", reason="looks right")
        result = executor.resume("r")

    assert result.status == "completed" and shop.calls == ["a", ("pay", 5)]
    approvals = [each for each in result.decisions if each["kind"] == "approval"]
    assert [each["by"] for each in approvals] == ["ana"] * len(asked)
    assert all(len(each["dag_hash"]) == 64 and each["reason"] == "looks right" for each in approvals)


def test_a_task_below_the_confidence_needs_approval(shop: Workshop) -> None:
    executor = shop.executor(min_confidence=0.5)
    sure, unsure = {**task("a"), "confidence": 0.9}, {**task("b"), "confidence": 0.1}

    result = executor.execute({"tasks": [sure, unsure]})

    assert "b: say(" in result.pauses[0].prompt and "a: say(" not in result.pauses[0].prompt


def test_all_that_is_approved_is_shown(shop: Workshop) -> None:
    """R0.7: the list of calls, with their whole arguments, in Python and on the command line."""
    executor = shop.executor(approval="always")
    tasks = [task(f"t{number}", text="z" * 50) for number in range(99)]
    executor.execute({"tasks": [task("a", text="z" * 4000 + " rm -rf /"), *tasks]}, run_id="r")

    (pause,) = executor.app.pauses("r")
    line = [sys.executable, "-m", "holdfast", "show", "r", "--store", shop.url]
    shown = subprocess.run(line, capture_output=True, text=True, check=True, env=unmeasured()).stdout
    for text in (pause.prompt, shown):
        assert "z rm -rf /'})" in text and "t98: say(" in text and "NOT SHOWN" not in text


def test_what_is_too_long_to_be_shown_is_named_with_its_digest(shop: Workshop) -> None:
    """R0.7: nothing is left out silently; `next_calls` has the whole of it, with the digest that is approved."""
    executor = shop.executor(approval="always")
    long = "z" * 30_000 + " rm -rf /"
    tasks = [task(f"t{number}", text=long) for number in range(60)]
    prompt = executor.execute({"tasks": [*tasks, task("short", text="x")]}, run_id="r").pauses[0].prompt

    calls = {call["id"]: call for call in executor.next_calls("r")}
    assert calls["t0"]["arguments"] == {"text": long} and calls["t0"]["critical"] is False
    assert f"… (cut: 30,030 characters in all, digest {calls['t0']['digest']})" in prompt
    assert "short: say({'text': 'x'})" in prompt and len(prompt) < 60_000
    assert "NOT SHOWN WHOLE: 60 of 61 calls" in prompt and "next_calls('r')" in prompt
    executor.approve("r")
    (approval,) = executor.resume("r").decisions
    assert approval["calls"] == {name: call["digest"] for name, call in calls.items()}


@pytest.mark.parametrize("answer", ["continue", {"action": "continue"}])
def test_to_continue_is_not_to_approve(shop: Workshop, answer: Any) -> None:
    """R0.7: `proceed` answers decision points only; an approval is given by "approve" and by nothing else."""
    executor = shop.executor()
    executor.execute({"tasks": [task("a"), task("p", "pay", "a", amount=5)]}, run_id="r")

    with pytest.raises(AnswerRejected, match="'continue' gives none: approve, or reject"):
        executor.proceed("r", by="ana")
    for give in (executor.resume, executor.app.resume, executor.app.answer):
        with pytest.raises(AnswerRejected, match="'approve', 'reject'"):
            give("r", answer)
    assert executor.resume("r").status == "paused" and shop.calls == ["a"]
    executor.approve("r", by="ana")
    assert executor.resume("r").status == "completed" and shop.calls == ["a", ("pay", 5)]


def test_an_approval_holds_for_its_run_and_not_for_a_fork(shop: Workshop) -> None:
    """R0.7: from every checkpoint of an approved run, a new run asks again; one approval is one call."""
    executor = shop.executor()
    executor.execute({"tasks": [task("a"), task("p", "pay", "a", amount=5)]}, run_id="r")
    executor.approve("r", by="ana")
    assert executor.resume("r").status == "completed"
    points = executor.app.checkpoints("r")
    between = [point for point in points if executor.app.state_at("r", point.id)["running"] == ["p"]]
    assert between
    shop.calls.clear()

    for point in points[:-1]:
        fork = executor.resume_from_checkpoint(point.id)
        if executor.app.state_at("r", point.id)["statuses"].get("p") != "success":
            assert fork.status == "paused" and fork.pauses[0].node == "approve"
        assert ("pay", 5) not in shop.calls
    fork = executor.resume_from_checkpoint(between[0].id)
    executor.approve(fork.run_id, by="bob")
    done = executor.resume(fork.run_id)
    assert done.status == "completed" and shop.calls.count(("pay", 5)) == 1
    given = [(each["by"], each["run_id"]) for each in done.decisions]
    assert given == [("ana", "r"), ("bob", fork.run_id)]


@pytest.mark.parametrize("approval", ["always", "critical_only"])
def test_an_approval_does_not_outlive_a_rollback(shop: Workshop, approval: str) -> None:
    """S0.24, R0.7: rolled back to any checkpoint before the call, also to one after its approval, a run asks again."""
    executor = shop.executor(approval=approval)
    executor.execute({"tasks": [task("p", "pay", amount=5)]}, run_id="r")
    assert executor.resume("r", "approve").status == "completed"
    points = executor.app.checkpoints("r")
    before = [
        point for point in points if executor.app.state_at("r", point.id)["statuses"].get("p") != "success"
    ]
    assert executor.app.state_at("r", before[-1].id)["running"] == ["p"]
    shop.calls.clear()

    for number, point in enumerate(before, 1):
        executor.app.rollback("r", point.id)
        asked = executor.resume("r")
        assert asked.status == "paused" and asked.pauses[0].node == "approve"
        assert len(shop.calls) == number - 1
        assert executor.resume("r", "approve").status == "completed"
        assert shop.calls == [("pay", 5)] * number


def test_a_call_that_is_rerun_in_place_is_approved_again(shop: Workshop) -> None:
    """S0.24, R0.7: what was approved once is not called twice."""
    executor = shop.executor()
    executor.execute({"tasks": [task("p", "pay", amount=5)]}, run_id="r")
    executor.resume("r", "approve")

    assert executor.app.rerun("r", "pay", in_place=True).pauses[0].node == "approve"
    assert shop.calls == [("pay", 5)]


def test_an_agent_writes_its_costs_into_the_ledger(shop: Workshop) -> None:
    """R0.11: an agent that names `ctx` spends as a node does, once for each decision."""

    def agent(point: DecisionPoint, ctx: Context) -> str:
        ctx.spend("model-1", input_tokens=10, cost=0.5)
        return "continue"

    executor = shop.executor(decide=agent, decisions="per_layer")
    executor.execute({"tasks": [task("a"), task("b", "say", "a")]}, run_id="r")

    assert executor.app.cost("r").total.cost == 1.0


def test_a_rejected_layer_aborts_and_a_resume_does_not_bypass_it(shop: Workshop) -> None:
    """R0.7: reject means abort. Only another plan goes on."""
    executor = shop.executor()
    executor.execute({"tasks": [task("p", "pay", amount=5)]}, run_id="r")
    executor.reject("r", by="bob", reason="too much")

    for _ in range(2):
        result = executor.resume("r")
        assert (result.status, result.reason, shop.calls) == ("aborted", "too much", [])
    executor.replan("r", [task("q", "pay", amount=4)], by="ana")
    assert executor.resume("r").pauses[0].prompt.endswith("q: pay({'amount': 4})")
    assert executor.resume("r", "approve").status == "completed" and shop.calls == [("pay", 4)]


def test_an_approval_holds_for_what_was_asked_and_for_nothing_else(shop: Workshop) -> None:
    """R0.7: an approval is bound to the definition's hash; changed arguments are asked for again."""
    executor = shop.executor()
    executor.execute({"tasks": [task("p", "pay", amount=5)]}, run_id="r")
    executor.app.edit("r", {"requests": [{"action": "modify", "task": "p", "arguments": {"amount": 500}}]})

    result = executor.resume("r", "approve")

    assert result.status == "paused" and "pay({'amount': 500})" in result.pauses[0].prompt
    assert shop.calls == []
    assert executor.resume("r", "approve").status == "completed" and shop.calls == [("pay", 500)]


def test_an_approval_does_not_hold_for_other_values_of_its_references(shop: Workshop) -> None:
    """R0.7: what an argument refers to is a part of what is approved."""
    executor = shop.executor()
    dag = {"tasks": [task("p", "pay", amount=ref("context.amount"))]}
    executor.execute(dag, context={"amount": 5}, run_id="r")
    executor.app.edit("r", {"context": {"amount": 500}}, by="mallory")

    result = executor.resume("r", "approve")

    assert (
        result.status == "paused" and "pay({'amount': 500})" in result.pauses[0].prompt and shop.calls == []
    )


def test_a_step_that_was_changed_behind_an_approval_does_not_run(shop: Workshop) -> None:
    """R0.7: the node of a critical tool itself checks that exactly this call was approved."""
    executor = shop.executor(interrupt_before=["pay"])
    executor.execute({"tasks": [task("p", "pay", amount=5)]}, run_id="r")
    assert executor.resume("r", "approve").pauses[0].kind == "before"
    executor.app.modify("r", "pay", {"task": task("p", "pay", amount=500)}, by="mallory")

    result = executor.resume("r")

    assert result.errors == {"p": "task 'p' was not approved as it is now, and did not run"}
    assert shop.calls == []


def test_an_executor_that_would_not_ask_does_not_lift_the_approvals_of_a_run(shop: Workshop) -> None:
    """R0.7, S0.22: the options are saved with the run; other ones hold only if the resume names them."""
    dag = {"tasks": [task("a"), task("b", "say", "a")]}
    shop.executor(approval="always", decisions="per_layer").execute(dag, run_id="r")
    lenient = shop.executor(approval="never")

    assert lenient.resume("r").status == "paused"
    assert lenient.resume("r", "approve").status == "paused" and shop.calls == ["a"]
    done = lenient.resume("r", "continue", config={"approval": "never", "decisions": "manual"})
    assert done.status == "completed"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"aproval": "never"}, "a DAG has no option 'aproval'; .* did you mean 'approval'?"),
        ({"approval": "nevr"}, "approval must be one of 'always', 'critical_only', 'never', not 'nevr'"),
        ({"max_replans": -1}, "max_replans must be a whole number, 0 or more, not -1"),
        ({"max_concurrency": 0}, "max_concurrency is no option of a run; make the executor with it"),
    ],
)
def test_a_resume_refuses_options_that_a_run_does_not_have(
    shop: Workshop, config: dict[str, Any], problem: str
) -> None:
    """S0.22: what the constructor refuses, the executor and its app refuse, before anything is executed or recorded."""
    executor = shop.executor(approval="always")
    executor.execute({"tasks": [task("a")]}, run_id="r")
    checkpoint = executor.app.get_state("r").checkpoint_id

    with pytest.raises(HoldfastError, match=problem):
        executor.resume("r", "approve", config=config)
    with pytest.raises(HoldfastError, match=problem):
        asyncio.run(executor.aresume("r", "approve", config=config))
    app = executor.app
    older, given = app.checkpoints("r")[0].id, executor.initial_state({"tasks": [task("a")]})
    for call in (
        lambda: app.resume("r", "approve", config=config),
        lambda: app.resume(older, config=config),
        lambda: app.plan_resume("r", config=config),
        lambda: app.rerun("r", "decide", config=config),
        lambda: app.invoke(given, config=config),
        lambda: app.submit(given, config=config),
    ):
        with pytest.raises(HoldfastError, match=problem):
            call()
    assert len(app.runs()) == 1

    assert executor.app.get_state("r").checkpoint_id == checkpoint and shop.calls == []


def test_a_run_of_a_dag_has_tags(shop: Workshop) -> None:
    """S0.22: of what is no option of a DAG, a config may name tags."""
    executor = shop.executor()
    given = executor.initial_state({"tasks": [task("a")]})

    executor.app.invoke(given, run_id="r", config={"tags": ["night"]})

    assert [info.run for info in executor.app.runs(tag="night")] == ["r"] and shop.calls == ["a"]


@pytest.mark.parametrize("steps", [["say"], [Send("say", {"task": task("x")}, "x")], ["decide"], []])
@pytest.mark.parametrize("command", ["inject", "replan"])
def test_steps_of_a_dag_are_not_added_beside_its_plan(shop: Workshop, command: str, steps: list[Any]) -> None:
    """R0.6: the commands of graphs are refused with the right ones; the run is as it was."""
    executor = shop.executor()
    executor.execute({"tasks": [task("a"), task("p", "pay", "a", amount=5)]}, run_id="r")

    with pytest.raises(CommandRefused, match=r"inject or replan of the ControlledExecutor|at least one step"):
        getattr(executor.app, command)("r", steps, by="ana")

    assert executor.resume("r").pauses[0].node == "approve" and shop.calls == ["a"]
    getattr(executor, command)("r", [task("b")], by="ana", reason="b is missing")
    result = executor.resume("r")
    assert "b" in [each["id"] for each in result.state["dag"]["tasks"]]
    told = [(each["by"], each["action"], each["reason"]) for each in result.decisions]
    assert told == [("ana", command, "b is missing")]


def test_a_step_whose_task_was_made_no_task_fails_with_what_is_wrong(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """R0.6: a step that was changed to what is no task has an error of ours, and no traceback is logged."""
    executor = shop.executor(interrupt_before=["say"])
    executor.execute({"tasks": [task("a")]}, run_id="r")
    executor.app.modify("r", "say", {"task": {"id": "a"}}, by="mallory")

    with pytest.raises(ExecutionError, match=r"the task of the step(.|\n)*there is no tool None"):
        executor.resume("r")

    assert shop.calls == [] and "Traceback" not in caplog.text


@pytest.mark.parametrize("node", ["approve", "decide"])
def test_what_is_between_layers_is_not_skipped(shop: Workshop, node: str) -> None:
    """R0.7: to skip a question would end the run with tasks that never ran."""
    executor = shop.executor(decisions="per_layer" if node == "decide" else "manual")
    executor.execute({"tasks": [task("a"), task("p", "pay", "a", amount=5)]}, run_id="r")

    with pytest.raises(
        CommandRefused, match="it leads on to the next layer; use skip_layer, reject or abort"
    ):
        executor.app.skip("r", node)

    assert executor.resume("r").pauses[0].node == node and shop.calls == ["a"]


def test_an_approval_that_comes_too_late_aborts(shop: Workshop) -> None:
    """R0.7: a timeout of approvals, after which the DAG is aborted."""
    executor = shop.executor(approval_timeout=0.01)
    executor.execute({"tasks": [task("p", "pay", amount=5)]}, run_id="r")
    threading.Event().wait(0.05)

    result = executor.resume("r")

    assert (result.status, result.reason) == ("aborted", "nobody answered in time") and shop.calls == []


# Changes while a run is under way.


def test_commands_are_applied_between_layers_first_in_first_out(shop: Workshop) -> None:
    """R0.6: inject, modify, skip_layer from outside, checked, in order, with sender and reason; refused ones too."""
    tools = shop.tools()
    holder = list[ControlledExecutor]()

    @tools.tool
    def steer(ctx: Context) -> None:
        executor = holder[0]
        assert executor.inject(ctx.run_id, [task("late", "say", "b")], by="ana", reason="more") == "asked"
        executor.modify(ctx.run_id, "b", {"text": "B"}, by="ana")
        executor.app.edit(
            ctx.run_id, {"requests": [{"action": "inject", "tasks": [task("x", "no")], "by": "eve"}]}
        )
        with pytest.raises(DAGInvalid, match="task 'a' has begun: its status is running"):
            executor.modify(ctx.run_id, "a", {})
        with pytest.raises(DAGInvalid, match="task 'a' is there already, with the status running"):
            executor.inject(ctx.run_id, [task("a")])

    holder.append(shop.executor(tools))
    result = holder[0].execute({"tasks": [task("a", "steer"), task("b", "say", "a")]})

    assert result.status == "completed" and shop.calls == ["B", "late"]
    assert [(each["kind"], each["action"], each["by"], each["reason"]) for each in result.decisions] == [
        ("command", "inject", "ana", "more"),
        ("command", "modify", "ana", ""),
        ("command", "inject", "eve", ""),
    ]
    assert "there is no tool 'no'" in result.decisions[2]["refused"]


@pytest.mark.parametrize("way", ["execute", "aexecute"])
def test_what_was_asked_for_before_the_last_layer_ended_is_applied(shop: Workshop, way: str) -> None:
    """R0.6: a command of another process, which nobody has noticed yet, is applied before the run completes."""
    tools, elsewhere = shop.tools(), shop.executor()

    @tools.tool
    def steer(ctx: Context) -> str:
        return elsewhere.inject(ctx.run_id, [task("late")], by="ana", reason="more")

    executor, dag = shop.executor(tools), {"tasks": [task("a", "steer")]}
    result = executor.execute(dag) if way == "execute" else asyncio.run(executor.aexecute(dag))

    assert result.results["a"]["result"] == "asked" and result.status == "completed"
    assert shop.calls == ["late"] and result.layers == 2
    assert [(each["action"], each["by"], each["reason"]) for each in result.decisions] == [
        ("inject", "ana", "more")
    ]


def test_a_skipped_layer_lets_what_depends_on_it_run(shop: Workshop) -> None:
    """R0.6: skip_layer."""
    executor = shop.executor(decisions="per_layer")
    executor.execute({"tasks": [task("a"), task("b", "say", "a"), task("c", "say", "b")]}, run_id="r")
    executor.skip_layer("r", by="ana")

    executor.resume("r")
    result = executor.resume("r", "continue")

    assert statuses(result) == {"a": "success", "b": "skipped", "c": "success"} and shop.calls == ["a", "c"]


def test_what_a_finished_run_is_asked_for_is_refused(shop: Workshop) -> None:
    executor = shop.executor()
    executor.execute({"tasks": [task("a")]}, run_id="r")

    with pytest.raises(NotPaused, match="does not wait for a decision"):
        executor.approve("r")
    with pytest.raises(RunFinished, match="has completed"):
        executor.inject("r", [task("b")])
    with pytest.raises(HoldfastError, match="r2"):
        executor.inject("r2", [task("b")])


def test_the_journal_says_who_changed_a_dag_and_why(shop: Workshop) -> None:
    """R0.11: the journal is the audit of decisions, beside `decisions` of the state; a shell can read and answer."""
    executor = shop.executor(decisions="per_layer", approval="always")

    def shell(*words: str) -> str:
        line = [sys.executable, "-m", "holdfast", *words, "--store", shop.url]
        return subprocess.run(line, capture_output=True, text=True, check=True, env=unmeasured()).stdout

    executor.execute({"tasks": [task("a"), task("b", "say", "a")]}, run_id="r")
    shell("answer", "r", "approve")
    executor.resume("r")
    executor.inject("r", [task("c")], by="ana", reason="c is missing")
    executor.app.cancel("r", "lunch", by="bob")
    told = shell("events", "r")

    assert "was answered by ana" in told and "c is missing" in told and "lunch" in told and "bob" in told


def test_a_run_whose_tool_is_not_registered_any_more_fails_with_its_name(shop: Workshop) -> None:
    """S0.14: a DAG that does not fit the tools is an error that names the task; the run can be resumed with them."""
    shop.executor(decisions="per_layer").execute(
        {"tasks": [task("a"), task("p", "pay", "a", amount=1)]}, run_id="r"
    )
    fewer = Tools()
    fewer.tool(lambda text: text, name="say")  # type: ignore[call-overload]

    with pytest.raises(ExecutionError, match="task 'p': there is no tool 'pay'; did you mean 'say'"):
        shop.executor(fewer).resume("r", "continue")
    assert shop.executor().resume("r").pauses[0].prompt.endswith("p: pay({'amount': 1})")


def test_an_interrupted_task_that_must_not_be_repeated_stops_the_run(tmp_path: Path) -> None:
    """S0.14: a task in doubt is not reported as failed, and not repeated unasked."""
    shop = Workshop(f"sqlite:///{tmp_path}/runs.db")
    tools, once = Tools(), [True]

    @tools.tool(idempotent=False)
    def charge() -> str:
        if once.pop() if once else False:
            raise KeyboardInterrupt
        return "charged"

    with pytest.raises(KeyboardInterrupt):
        shop.executor(tools).execute({"tasks": [task("c", "charge")]}, run_id="r")
    with pytest.raises(ExecutionError, match="may or may not have taken effect"):
        shop.executor(tools).resume("r")
    result = shop.executor(tools).resume("r", if_interrupted="rerun")

    assert result.results["c"]["result"] == "charged"


def test_a_dag_is_submitted_to_workers(shop: Workshop) -> None:
    executor = shop.executor()
    name = executor.submit({"tasks": [task("a")]}, run_id="later")

    assert executor.app.runs()[0].status == "queued" and name == "later"
    assert executor.resume(name).successful_tasks == 1


def test_every_store_keeps_a_dag_and_its_decisions(store: Store) -> None:
    """R0.7, R0.8: approved by one executor and resumed by another, on memory, SQLite, files and PostgreSQL."""
    shop = Workshop("")
    dag = {"tasks": [task("a"), task("p", "pay", "a", amount=3)]}
    first, second = (ControlledExecutor(shop.tools(), store) for _ in range(2))

    paused = first.execute(dag, run_id="r")
    second.approve("r", by="ana")
    result = second.resume("r")

    assert paused.status == "paused" and result.status == "completed" and shop.calls == ["a", ("pay", 3)]
    assert [(each["kind"], each["by"]) for each in result.decisions] == [("approval", "ana")]


def test_a_worker_executes_a_dag_and_leaves_it_at_its_questions(emptied_postgres_url: str) -> None:
    """R0.8: submitted, executed by workers on PostgreSQL, approved from elsewhere, and completed."""
    shop = Workshop(emptied_postgres_url)
    executor = shop.executor(name="orders")
    run_id = executor.submit({"tasks": [task("a"), task("p", "pay", "a", amount=3)]})

    def work() -> None:
        Worker(executor.app.store, [executor.app]).run(until_idle=True)

    work()
    assert executor.app.runs()[0].status == "paused" and shop.calls == ["a"]
    executor.approve(run_id, by="ana")
    executor.app.requeue(run_id)
    work()

    assert executor.app.runs()[0].status == "completed" and shop.calls == ["a", ("pay", 3)]
