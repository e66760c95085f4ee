"""`ControlledExecutor`: running DAGs, resuming them by id, and changing them while they run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from holdfast.dags.definition import ERROR, FAILED_SAFE, SUCCESS, call_hash, layers, read_dag
from holdfast.dags.planning import (
    CONTINUE,
    MANUAL,
    NO_APPROVAL,
    ON_ERROR,
    Board,
    DAGAborted,
    Decide,
    Planner,
    call_arguments,
    checked_config,
    is_approved,
    read_decision,
)
from holdfast.dags.tools import (
    APPROVE,
    CONTROL,
    CRITICAL_ONLY,
    Tools,
    records_of,
    task_of,
)
from holdfast.engine.app import App
from holdfast.engine.resume import ResumeKeywords
from holdfast.engine.settings import Outcome, Pause
from holdfast.errors import AnswerRejected, ExecutionError, HoldfastError, NotPaused, RunFinished
from holdfast.events import Event
from holdfast.state.ops import thaw
from holdfast.state.state import State
from holdfast.stores.base import Store
from holdfast.values import RunStatus


@dataclass(frozen=True, slots=True)
class DAGExecutionResult:
    """What became of a run of a DAG: it is completed, paused, cancelled or aborted."""

    run_id: str
    status: str
    state: State
    checkpoint_id: str
    pauses: tuple[Pause, ...]
    """What the run waits for: an approval or a decision."""
    results: dict[str, dict[str, Any]]
    """The record of every finished task by its id: status, result, error, tool, layer, timestamp, duration."""
    total_tasks: int
    layers: int
    """How many layers have run."""
    seconds: float
    """Time spent in tasks, over all executions of the run."""
    reason: str = ""
    """Why it was aborted."""

    @property
    def successful_tasks(self) -> int:
        """How many tasks succeeded."""
        return self._count(SUCCESS)

    @property
    def failed_tasks(self) -> int:
        """How many tasks failed, those that may fail not counted."""
        return self._count(ERROR)

    @property
    def errors(self) -> dict[str, str]:
        """The errors of tasks that failed, by their ids."""
        failed = (ERROR, FAILED_SAFE)
        return {name: record["error"] for name, record in self.results.items() if record["status"] in failed}

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Every decision and approval, in order: kind, action, by, reason, layer, dag_hash, timestamp."""
        found: list[dict[str, Any]] = thaw(self.state["decisions"])
        return found

    def _count(self, status: str) -> int:
        return sum(record["status"] == status for record in self.results.values())


class DAGKeywords(TypedDict, total=False):
    """What a run of a DAG may be given beside the DAG."""

    context: Mapping[str, Any] | None
    messages: Sequence[Any]
    run_id: str | None


class ControlledExecutor:
    """Runs DAGs of registered tools, layer by layer, with decision points and approvals between layers.

    - `tools`: a `Tools`; a task can name nothing else.
    - `store`: a store or its URL; without one, `HOLDFAST_STORE` says, else runs are kept in memory.
    - `name`: the name of the workflow that its runs are of.
    - `decide`: an agent in the loop, a function of a `DecisionPoint`, sync or async. It returns "continue", "abort",
      "skip_layer", or a mapping such as `{"action": "replan", "tasks": […], "reason": …, "confidence": 0.9}`.
    - `decisions`: when a decision is due: "per_layer" after every layer, "on_error" after a layer in which a task
      failed (the default with an agent), "manual" only by commands (the default without one). Without an agent the run
      pauses until somebody decides.
    - `approval`: which tasks run only with somebody's approval: "always" all, "critical_only" those of critical tools
      and those that are below `min_confidence`, "never" none.
    - `min_confidence`: a decision of the agent below it is put to a person, too.
    - `approval_timeout`, `decision_timeout`: seconds after which an unanswered question aborts the DAG, and after which
      an agent that says nothing fails the run; a resume asks it again.
    - `max_replans`: how often the agent may change the plan before a person is asked.
    - `max_concurrency`: how many tasks of a layer run at once.

    These are saved with each run, and hold for it after every resume, whatever the executor that resumes it was made
    with; `max_concurrency` is the executor's own. `options` are those of `StateGraph.compile`.
    """

    def __init__(
        self,
        tools: Tools | Mapping[str, Callable[..., Any]],
        store: Store | str | os.PathLike[str] | None = None,
        *,
        name: str = "dag",
        decide: Decide | None = None,
        decisions: str | None = None,
        approval: str = CRITICAL_ONLY,
        min_confidence: float = 0.0,
        approval_timeout: float | None = None,
        decision_timeout: float | None = 60.0,
        max_replans: int = 10,
        max_concurrency: int = 256,
        **options: Any,
    ) -> None:
        if not isinstance(tools, Mapping):
            raise HoldfastError(
                f"tools must be a holdfast.dags.Tools, or functions by name, not {tools!r:.80}"
            )
        registered = tools if isinstance(tools, Tools) else Tools.named(tools)
        if decide is not None and not callable(decide):
            raise HoldfastError(f"decide must be a function of a DecisionPoint, not {decide!r:.80}")
        chosen = decisions if decisions is not None else MANUAL if decide is None else ON_ERROR
        registered.use()
        self.tools = registered
        self.config = checked_config(
            {
                "decisions": chosen,
                "approval": approval,
                "min_confidence": min_confidence,
                "approval_timeout": approval_timeout,
                "decision_timeout": decision_timeout,
                "max_replans": max_replans,
            }
        )
        self.app: App = (
            Planner(registered, decide).graph(name).compile(store, max_parallel=max_concurrency, **options)
        )
        """The app that executes the DAGs, for all that is not here: checkpoints, history, forks, costs."""

    # Running.

    def execute(self, dag: Mapping[str, Any], **options: Unpack[DAGKeywords]) -> DAGExecutionResult:
        """Run a DAG until it is completed, pauses or is aborted; a task that fails does not fail the run.

        A DAG is `{"tasks": [{"id": …, "tool": …, "arguments": {…}, "depends_on": […]}]}`; one that cannot run raises
        `DAGInvalid` with every problem. An argument may be a reference: `{"$ref": "tasks.ID.result"}`, with further
        keys and indexes after it, or `{"$ref": "context.KEY"}`. `context` and `messages` are those of the run's state
        at its beginning, and `run_id` is its id.
        """
        with self._aborted() as aborted:
            return self._result(self.app.invoke(**self._input(dag, **options)))
        return self._stored(*aborted)

    async def aexecute(self, dag: Mapping[str, Any], **options: Unpack[DAGKeywords]) -> DAGExecutionResult:
        """As `execute`, in the running event loop."""
        with self._aborted() as aborted:
            return self._result(await self.app.ainvoke(**self._input(dag, **options)))
        return self._stored(*aborted)

    def execute_stream(
        self, dag: Mapping[str, Any], **options: Unpack[DAGKeywords]
    ) -> Iterator[dict[str, Any]]:
        """As `execute`, and yield what happens: `workflow_start`, `layer_start`, `task_start`, `task_complete`, ….

        The run goes on however slowly the events are taken; leaving the loop early saves and stops it.
        """
        how = self._input(dag, **options)
        events = Events(self.tools, how["input"]["dag"]["tasks"])
        with self._aborted():
            for event in self.app.stream(**how):
                yield from events.of(event)

    async def aexecute_stream(
        self, dag: Mapping[str, Any], **options: Unpack[DAGKeywords]
    ) -> AsyncIterator[dict[str, Any]]:
        """As `execute_stream`, in the running event loop."""
        how = self._input(dag, **options)
        events = Events(self.tools, how["input"]["dag"]["tasks"])
        with self._aborted():
            async for event in self.app.astream(**how):
                for each in events.of(event):
                    yield each

    def _input(
        self,
        dag: Mapping[str, Any],
        *,
        context: Mapping[str, Any] | None = None,
        messages: Sequence[Any] = (),
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """Return what `invoke` and its likes take for a run of a DAG."""
        given = self.initial_state(dag, context, messages)
        return {"input": given, "run_id": run_id, "config": self.config}

    def resume(
        self, target: str, answer: Any = None, **options: Unpack[ResumeKeywords]
    ) -> DAGExecutionResult:
        """Resume a run by its id alone: the DAG, as it was replanned, and the config are those of the run.

        `target` is a run id, a checkpoint id, or the name of the workflow for its latest unfinished run. `answer`
        answers what the run waits for. Finished tasks do not run again; approvals that were not given are asked for.
        """
        with self._aborted() as aborted:
            return self._result(self.app.resume(target, answer, **options))
        return self._stored(*aborted)

    async def aresume(
        self, target: str, answer: Any = None, **options: Unpack[ResumeKeywords]
    ) -> DAGExecutionResult:
        """As `resume`, in the running event loop."""
        with self._aborted() as aborted:
            return self._result(await self.app.aresume(target, answer, **options))
        return self._stored(*aborted)

    def resume_from_checkpoint(
        self, checkpoint_id: str, **options: Unpack[ResumeKeywords]
    ) -> DAGExecutionResult:
        """Resume at a checkpoint; one that is not the newest of its run starts a new run there."""
        return self.resume(checkpoint_id, **options)

    def submit(
        self,
        dag: Mapping[str, Any],
        *,
        context: Mapping[str, Any] | None = None,
        messages: Sequence[Any] = (),
        **options: Any,
    ) -> str:
        """Store a run of a DAG for workers to execute, and return its id; `options` are those of `App.submit`."""
        given = self.initial_state(dag, context, messages)
        return self.app.submit(given, config=self.config, **options)

    def initial_state(
        self,
        dag: Mapping[str, Any],
        context: Mapping[str, Any] | None = None,
        messages: Sequence[Any] = (),
    ) -> dict[str, Any]:
        """Return the input of a run of a DAG, for what `app` does and is not here; raise `DAGInvalid` as `execute`."""
        tasks = [task.data() for task in read_dag(dag, self.tools).values()]
        own = {"layer": 0, "running": [], "handled": 0, "aborted": ""}
        return {
            "dag": {"tasks": tasks},
            "context": dict(context or {}),
            "messages": list(messages),
            **own,
        }

    # Commands, from any process; none of them executes the run.

    def inject(self, run_id: str, tasks: Sequence[Any], *, by: str = "", reason: str = "") -> str:
        """Add tasks to the DAG of a run; where they run is said by their `depends_on`. Return as `send` does."""
        return self.send(run_id, {"action": "inject", "tasks": list(tasks)}, by=by, reason=reason)

    def replan(self, run_id: str, tasks: Sequence[Any], *, by: str = "", reason: str = "") -> str:
        """Put tasks in the place of all that have not begun; one that failed may be among them, and runs again."""
        return self.send(run_id, {"action": "replan", "tasks": list(tasks)}, by=by, reason=reason)

    def modify(
        self, run_id: str, task: str, arguments: Mapping[str, Any], *, by: str = "", reason: str = ""
    ) -> str:
        """Give a task that has not begun other arguments."""
        change = {"action": "modify", "task": task, "arguments": dict(arguments)}
        return self.send(run_id, change, by=by, reason=reason)

    def skip_layer(self, run_id: str, *, by: str = "", reason: str = "") -> str:
        """Skip the next layer; the tasks that depend on it run."""
        return self.send(run_id, {"action": "skip_layer"}, by=by, reason=reason)

    def abort(self, run_id: str, reason: str = "aborted", *, by: str = "") -> str:
        """Abort a run after its layer; a resume does not go on, unless the run is replanned."""
        return self.send(run_id, {"action": "abort"}, by=by, reason=reason)

    def proceed(self, run_id: str, *, by: str = "", reason: str = "") -> str:
        """Answer a decision point with "continue"; an approval takes `approve` or `reject` instead."""
        return self.send(run_id, {"action": "continue"}, by=by, reason=reason)

    def approve(self, run_id: str, *, by: str = "", reason: str = "") -> str:
        """Approve what a run asks for: its next layer, exactly as it is, or what an agent proposed."""
        return self.send(run_id, {"action": "approve"}, by=by, reason=reason)

    def reject(self, run_id: str, *, by: str = "", reason: str = "rejected") -> str:
        """Reject what a run asks for; the DAG is aborted."""
        return self.send(run_id, {"action": "reject"}, by=by, reason=reason)

    def send(self, run_id: str, decision: Mapping[str, Any], *, by: str = "", reason: str = "") -> str:
        """Send a decision to a run, and return what became of it: "applied", or "asked" if it is applied later.

        If the run waits for a decision, this is the answer; else it is applied after the layer that runs. The journal
        and `decisions` of the state record who sent it and why. What cannot be applied raises `DAGInvalid`.
        """
        named = {"by": by or decision.get("by", ""), "reason": reason or decision.get("reason", "")}
        given = {"action": decision.get("action"), **named, **decision, **named}
        checked = read_decision(given)
        state = self.app.get_state(run_id)
        if waiting := [pause for pause in self.app.pauses(run_id) if pause.node in CONTROL]:
            if waiting[0].node == APPROVE and checked["action"] == CONTINUE and not is_approved(given):
                raise AnswerRejected(f"run {run_id!r}: {NO_APPROVAL}")
            Board.of(state, self.tools).apply(checked)
            receipt = self.app.answer(run_id, answers={waiting[0].id: given}, by=by)
            return "applied" if receipt.status == "applied" else "asked"
        if checked["action"] == CONTINUE:
            raise NotPaused(f"run {run_id!r} does not wait for a decision or an approval")
        info = next(iter(self.app.store.runs(run=run_id)))
        if info.status == RunStatus.COMPLETED:
            raise RunFinished(f"run {run_id!r} has completed, so that nothing of it can be changed")
        Board.of(state, self.tools).apply(checked)
        done = self.app.edit(run_id, {"requests": [given]}, by=by, reason=reason)
        return "asked" if done == "asked" else "applied"

    def next_calls(self, run_id: str) -> list[dict[str, Any]]:
        """Return what the next layer of a run would call, complete: `id`, `tool`, `arguments`, `critical`, `digest`.

        The digest is the one that an approval of the call records, and that the question for it shows if it is long.
        """
        state = self.app.get_state(run_id)
        found = []
        for task in Board.of(state, self.tools).ready():
            critical = task.tool not in self.tools or self.tools[task.tool].critical
            arguments = call_arguments(task, state)
            facts = {"id": task.id, "tool": task.tool, "arguments": arguments, "critical": critical}
            found.append({**facts, "digest": call_hash([task.data(), arguments])})
        return found

    # Results.

    @contextlib.contextmanager
    def _aborted(self) -> Iterator[list[str]]:
        """Catch the failure of a run that was aborted; the list has the run's id then."""
        caught: list[str] = []
        try:
            yield caught
        except ExecutionError as error:
            if not isinstance(error.cause, DAGAborted) or error.run_id is None:
                raise
            caught.append(error.run_id)

    def _stored(self, run_id: str) -> DAGExecutionResult:
        """Return the result of an aborted run, from the store."""
        state = self.app.get_state(run_id)
        return self._made(run_id, "aborted", state, state.checkpoint_id, (), state["aborted"])

    def _result(self, outcome: Outcome) -> DAGExecutionResult:
        return self._made(
            outcome.run_id, str(outcome.status), outcome.state, outcome.checkpoint_id, outcome.pauses
        )

    def _made(
        self,
        run_id: str,
        status: str,
        state: State,
        checkpoint_id: str,
        pauses: tuple[Pause, ...],
        reason: str = "",
    ) -> DAGExecutionResult:
        results = {name: thaw(record) for name, record in records_of(state).items()}
        seconds = sum(record["duration"] for record in state["tasks"])
        total = len(state["dag"]["tasks"])
        return DAGExecutionResult(
            run_id, status, state, checkpoint_id, pauses, results, total, state["layer"], seconds, reason
        )


# The events of a DAG, made of those of its run.

_PREVIEW = 200
_SAME = {
    "checkpoint.save": "checkpoint_saved",
    "checkpoint.fail": "checkpoint_failed",
    "graph.cancel": "workflow_abort",
    "command": "command",
}
"""The events that are passed on under the names that DAGs have for them."""

EventData = tuple[str, dict[str, Any]]


class Events:
    """Turns the events of a run into those of its DAG."""

    def __init__(self, tools: Tools, tasks: Iterable[Mapping[str, Any]]) -> None:
        self._names = {tool.node: tool.name for tool in tools.values()}
        self._tasks = {data["id"]: data for data in tasks}
        self._counts = dict.fromkeys((SUCCESS, ERROR, FAILED_SAFE), 0)
        self._abort = ""

    def of(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the event of the DAG that an event of its run stands for, if it stands for one."""
        if event.node in self._names:
            found = self._of_task(event)
        elif event.type == "node.complete":
            found = self._of_layer(event)
        else:
            found = self._of_run(event)
        if found is not None:
            name, data = found
            yield {"type": name, "run_id": event.run_id, "timestamp": event.timestamp, **data}

    def _of_task(self, event: Event) -> EventData | None:
        name = event.data.get("step", "").partition("[")[2].removesuffix("]")
        facts = {"task_id": name, "tool": self._names[event.node]}
        match event.type.removeprefix("node."):
            case "start":
                return "task_start", {**facts, "attempt": event.data["attempt"]}
            case "retry":
                return "task_retry", {**facts, "attempt": event.data["attempt"], "delay": event.data["delay"]}
            case "message" | "stream" as kind:
                return f"task_{kind}", {**facts, **event.data}
            case "warning":
                safe = self._tasks.get(name, {}).get("safe_to_fail", False)
                self._counts[FAILED_SAFE if safe else ERROR] += 1
                return "task_warning" if safe else "task_error", {**facts, "error": event.data["error"]}
            case "complete" if not event.data["error"] and "tasks" in event.data["update"]:
                self._counts[SUCCESS] += 1
                result = thaw(event.data["update"]["tasks"][-1]["result"])
                shown = repr(result)
                sizes = {"preview": shown[:_PREVIEW], "size": len(shown)}
                return "task_complete", {
                    **facts,
                    "result": result,
                    **sizes,
                    "duration": event.data["seconds"],
                }
        return None

    def _of_layer(self, event: Event) -> EventData | None:
        update = event.data.get("update", {})
        if "dag" in update:
            self._tasks = {data["id"]: data for data in update["dag"]["tasks"]}
        self._abort = update.get("aborted", self._abort)
        if update.get("running"):
            return "layer_start", {"layer": update["layer"], "tasks": list(update["running"])}
        return None

    def _of_run(self, event: Event) -> EventData | None:
        match event.type:
            case "graph.start":
                tasks = {name: task_of(each) for name, each in self._tasks.items()}
                return "workflow_start", {"total_tasks": len(tasks), "layers": len(layers(tasks))}
            case "graph.complete":
                return "workflow_complete", {
                    "successful_tasks": self._counts[SUCCESS],
                    "failed_tasks": self._counts[ERROR],
                }
            case "graph.fail":
                name = "workflow_abort" if self._abort else "workflow_failed"
                return name, {"reason": self._abort or event.data.get("error", "")}
            case "state.update":
                return "state_updated", {"keys": event.data["keys"]}
            case "pause":
                kind = "approval" if event.node == APPROVE else "decision"
                return "decision_required", {
                    "kind": kind,
                    "name": event.data.get("name"),
                    "prompt": event.data.get("prompt"),
                }
        return (_SAME[event.type], dict(event.data)) if event.type in _SAME else None
