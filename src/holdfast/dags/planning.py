"""Between layers: changes of a DAG, decisions of agents and people, approvals, and what runs next."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from holdfast import clock
from holdfast.dags.definition import (
    ERROR,
    FINISHED,
    LEADS_ON,
    MOST_TASKS,
    PENDING,
    RUNNING,
    SKIPPED,
    DAGInvalid,
    Task,
    Tasks,
    Unresolved,
    call_hash,
    check,
    dag_hash,
    read_tasks,
)
from holdfast.dags.tools import (
    ABORT,
    ALWAYS,
    APPROVE,
    CONTROL,
    CRITICAL_ONLY,
    DECIDE,
    NEVER,
    ToolNode,
    Tools,
    needs_approval,
    resolved,
    task_of,
    task_record,
)
from holdfast.engine.context import Context
from holdfast.engine.settings import one_of
from holdfast.errors import HoldfastError, StepTimeout, problem_of, suggestion
from holdfast.graph.builder import StateGraph
from holdfast.graph.fingerprint import definition_fingerprint
from holdfast.graph.graph import Command, Graph, Send
from holdfast.state.ops import thaw
from holdfast.state.schema import WorkflowState, append, merge
from holdfast.state.state import State
from holdfast.threads import Escaped, in_thread
from holdfast.values import END, START

PER_LAYER, ON_ERROR, MANUAL = "per_layer", "on_error", "manual"
CONTINUE = "continue"
ACTIONS = (CONTINUE, ABORT, "inject", "replan", "skip_layer", "modify")
_SAME = {"approve": CONTINUE, "reject": ABORT}
_SHOWN, _BEGINNING, _MOST_CUT = 20_000, 300, 50
"""How many characters of calls an approval shows whole, how many of a longer call, and how many of these."""
STATE_VERSION = "dag"
"""The version of the state, by which others know that it holds a DAG."""
_TRIES = 3
"""How often an agent is asked when its decision cannot be used."""


class DAGState(WorkflowState, total=False):
    """The state of a DAG's run: messages, tasks, decisions and context, and the DAG itself."""

    dag: dict[str, Any]
    statuses: Annotated[dict[str, str], merge]
    """The status of every task that was begun, by its id."""
    layer: int
    """The number of layers that were begun."""
    running: list[str]
    """The tasks of the layer that runs; empty while a decision is made."""
    requests: Annotated[list[Any], append]
    """Changes that were asked for from outside, first in first out."""
    handled: int
    """How many of these were applied or refused."""
    aborted: str
    task: dict[str, Any]
    """In a step of a tool: its task."""


class DAGAborted(HoldfastError):
    """A run of a DAG was aborted by a decision; a resume does not go on, unless somebody replans it."""

    code = "dag_aborted"


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """What an agent decides by: the finished layer, all results, and the tasks that are left."""

    run_id: str
    layer: int
    """The number of layers that are finished."""
    finished: list[dict[str, Any]]
    """The records of the layer's tasks: task_id, tool, status, result, error, duration."""
    tasks: list[dict[str, Any]]
    """The records of all finished tasks."""
    remaining: list[dict[str, Any]]
    """The tasks that are still to run, as the DAG has them."""
    context: dict[str, Any]
    messages: list[Any]
    problems: tuple[str, ...] = ()
    """What was wrong with the decision before, if it could not be used."""

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The records of the layer's tasks that failed."""
        return [record for record in self.finished if record["status"] == ERROR]


Decide = Callable[..., Any]
"""An agent in the loop: a function, sync or async, of a `DecisionPoint` that returns a decision, as text or a mapping.

One with a parameter `ctx` also gets the `Context` of the step, so that it can `spend` and `emit`.
"""


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


_MUST: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("by", "reason", "message", "task"), ("text", lambda value: isinstance(value, str))),
    "context": ("a mapping", lambda value: isinstance(value, dict)),
    "arguments": ("a mapping", lambda value: isinstance(value, dict)),
    "confidence": ("a number from 0 to 1", _is_share),
}
_NEEDS = {"inject": ("tasks",), "replan": ("tasks",), "modify": ("task", "arguments")}


def read_decision(data: Any) -> dict[str, Any]:
    """Return a decision as a mapping with an action; raise `DAGInvalid` with every problem."""
    given = {"action": data} if isinstance(data, str) else data
    if not isinstance(given, Mapping):
        must = f"it must be one of {', '.join(ACTIONS)}, or a mapping with 'action'"
        raise DAGInvalid("the decision", [f"{must}, not {data!r:.80}"])
    found: dict[str, Any] = {str(key): thaw(value) for key, value in given.items() if value is not None}
    action = str(found.get("action"))
    found["action"] = action = _SAME.get(action, action)
    fields = ("action", "tasks", *_MUST)
    problems = [f"unknown field {key!r:.80}{suggestion(key, fields)}" for key in found if key not in fields]
    if action not in ACTIONS:
        near = suggestion(action, ACTIONS)
        problems.append(f"'action' must be one of {', '.join(ACTIONS)}, not {action!r:.80}{near}")
    for key, (must, fits) in _MUST.items():
        if key in found and not fits(found[key]):
            problems.append(f"{key!r} must be {must}, not {found[key]!r:.80}")
    problems += [f"{action} needs {key!r}" for key in _NEEDS.get(action, ()) if key not in found]
    if problems:
        raise DAGInvalid("the decision", problems)
    return found


# The options of a run.

_DEFAULTS: Mapping[str, Any] = {
    "decisions": MANUAL,
    "approval": CRITICAL_ONLY,
    "min_confidence": 0.0,
    "approval_timeout": None,
    "decision_timeout": 60.0,
    "max_replans": 10,
}


def _is_timeout(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and value > 0)


_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "min_confidence": ("a number from 0 to 1", _is_share),
    "approval_timeout": ("seconds above 0, or None", _is_timeout),
    "decision_timeout": ("seconds above 0, or None", _is_timeout),
    "max_replans": ("a whole number, 0 or more", lambda value: isinstance(value, int) and value >= 0),
}


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run, with the defaults of those that are not set; refuse what they cannot be."""
    config = {**_DEFAULTS, **config}
    one_of("decisions", config["decisions"], (PER_LAYER, ON_ERROR, MANUAL))
    one_of("approval", config["approval"], (ALWAYS, CRITICAL_ONLY, NEVER))
    for name, (must, fits) in _RULES.items():
        if not fits(config[name]):
            raise HoldfastError(f"{name} must be {must}, not {config[name]!r}")
    return config


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse options that no run of a DAG has, by their names and values; tags may be among them."""
    for name in config.keys() - {"tags"}:
        if name == "max_concurrency":
            raise HoldfastError("max_concurrency is no option of a run; make the executor with it")
        if name not in _DEFAULTS:
            known = ", ".join(_DEFAULTS)
            near = suggestion(str(name), _DEFAULTS)
            raise HoldfastError(f"a DAG has no option {name!r:.80}; it has {known}{near}")
    checked_config(config)


class PlannedGraph(StateGraph):
    """A graph whose steps are the tasks of a plan, which its state holds; commands add none beside it."""

    def build(self) -> Graph:
        """Return the frozen graph, not yet checked."""
        return dataclasses.replace(super().build(), planner="ControlledExecutor", check_config=check_config)


# A DAG between two layers.


@dataclass
class Board:
    """The DAG of a run between two layers, and the update of the state that is being put together."""

    tasks: Tasks
    statuses: dict[str, str]
    layer: int
    tools: Tools
    records: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    changed: dict[str, Any] = field(default_factory=dict)
    """Further keys of the update."""
    is_changed: bool = False
    """Whether the tasks are others than those of the state."""
    skips_layer: bool = False
    aborted: str | None = None

    @classmethod
    def of(cls, state: Mapping[str, Any], tools: Tools) -> Board:
        """Return the board of a state."""
        tasks = {data["id"]: task_of(data) for data in state["dag"]["tasks"]}
        return cls(tasks, dict(state["statuses"]), state["layer"], tools)

    @property
    def hash(self) -> str:
        """The hash of the DAG as it is now."""
        return dag_hash(self.tasks)

    def status(self, name: str) -> str:
        """Return the status of a task."""
        return self.statuses.get(name, PENDING)

    def remaining(self) -> list[Task]:
        """Return the tasks that have not begun."""
        return [task for task in self.tasks.values() if self.status(task.id) == PENDING]

    def fail_dependents(self) -> None:
        """Let tasks fail that wait, directly or not, for one that failed."""
        failed = [name for name, status in self.statuses.items() if status == ERROR]
        after: dict[str, list[Task]] = {}
        for task in self.remaining() if failed else ():
            for name in task.depends_on:
                after.setdefault(name, []).append(task)
        for name in failed:
            for task in after.get(name, ()):
                if self.status(task.id) == PENDING:
                    self.end(task, ERROR, f"Dependency task {name} failed")
                    failed.append(task.id)

    def ready(self) -> list[Task]:
        """Return the tasks of the next layer."""
        return [
            task
            for task in self.remaining()
            if all(self.status(name) in LEADS_ON for name in task.depends_on)
        ]

    def skip(self, tasks: Iterable[Task], reason: str) -> None:
        """Skip tasks; those that depend on them may run."""
        for task in tasks:
            self.end(task, SKIPPED, reason)

    def end(self, task: Task, status: str, error: str) -> None:
        """End a task that did not run."""
        self.records += task_record(task, status, self.layer, error=error)["tasks"]
        self.statuses[task.id] = status

    def apply(self, decision: Mapping[str, Any]) -> None:
        """Apply what a decision changes; raise `DAGInvalid`, and change nothing, if it cannot be applied."""
        action = decision["action"]
        if action == ABORT:
            self.aborted = decision.get("reason") or "aborted"
        elif action == "skip_layer":
            self.skips_layer = True
        elif action != CONTINUE:
            tasks = getattr(self, f"_{action}")(decision)
            new = {name for name, task in tasks.items() if self.tasks.get(name) is not task}
            left = {name: task for name, task in tasks.items() if name in new or self.status(name) == PENDING}
            problems = check(left, tasks.keys() - left.keys())
            if len(tasks) > MOST_TASKS:
                problems.append(f"there would be {len(tasks):,} tasks; at most {MOST_TASKS:,} are taken")
            if problems:
                raise DAGInvalid(f"the DAG after {action}", problems)
            statuses = {**self.statuses, **dict.fromkeys(new, PENDING)}
            self.tasks, self.statuses, self.is_changed = tasks, statuses, True
        self.changed |= {"context": decision["context"]} if "context" in decision else {}
        if "message" in decision:
            self.changed["messages"] = [
                {"role": decision.get("by") or "agent", "content": decision["message"]}
            ]

    def _inject(self, decision: Mapping[str, Any]) -> Tasks:
        """Return the DAG with further tasks."""
        added = self._read(decision, self.tasks)
        return {**self.tasks, **added}

    def _replan(self, decision: Mapping[str, Any]) -> Tasks:
        """Return the DAG with these tasks in place of all that have not begun; one that failed may run again."""
        fixed = {name for name in self.tasks if self.status(name) in (*LEADS_ON, RUNNING)}
        added = self._read(decision, fixed)
        kept = {name: task for name, task in self.tasks.items() if self.status(name) != PENDING}
        return {**kept, **added}

    def _modify(self, decision: Mapping[str, Any]) -> Tasks:
        """Return the DAG with other arguments of a task that has not begun."""
        name = decision["task"]
        if name not in self.tasks:
            raise DAGInvalid("the change", [f"there is no task {name!r}{suggestion(name, self.tasks)}"])
        if self.status(name) != PENDING:
            raise DAGInvalid("the change", [f"task {name!r} has begun: its status is {self.status(name)}"])
        data = {**self.tasks[name].data(), "arguments": decision["arguments"]}
        return {**self.tasks, **self._read({"action": "modify", "tasks": [data]}, ())}

    def _read(self, decision: Mapping[str, Any], fixed: Collection[str]) -> Tasks:
        tasks, problems = read_tasks(decision["tasks"], self.tools)
        problems += [
            f"task {name!r} is there already, with the status {self.status(name)}; give the new one another id"
            for name in tasks
            if name in fixed
        ]
        if problems:
            raise DAGInvalid(f"what is to be run by {decision['action']}", problems)
        return tasks

    def note(self, kind: str, decision: Mapping[str, Any], **facts: Any) -> None:
        """Add a decision to those of the state."""
        entry = {"kind": kind, "layer": self.layer, "action": decision["action"]}
        entry |= {"by": decision.get("by", ""), "reason": decision.get("reason", "")}
        entry |= {name: decision[name] for name in ("confidence", "task") if name in decision}
        if isinstance(decision.get("tasks"), list):
            entry["tasks"] = [data.get("id") for data in decision["tasks"] if isinstance(data, Mapping)]
        self.decisions.append({**entry, "timestamp": clock.time(), "dag_hash": self.hash, **facts})

    def update(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the update of the state."""
        found = {**self.changed, "tasks": self.records, "decisions": self.decisions}
        found["statuses"] = {
            name: status for name, status in self.statuses.items() if before["statuses"].get(name) != status
        }
        if self.is_changed:
            found["dag"] = {"tasks": [task.data() for task in self.tasks.values()]}
        return found


# The nodes around the tools.


@dataclass(frozen=True)
class Planner:
    """The nodes that decide, approve and abort, for the tools and the agent of an executor."""

    tools: Tools
    agent: Decide | None = None

    def graph(self, name: str) -> StateGraph:
        """Return the graph of all DAGs with these tools: a node for each tool, and those between layers."""
        graph = PlannedGraph(DAGState, name=name, max_iterations=100_000, version=STATE_VERSION)
        nodes = [tool.node for tool in self.tools.values()]
        functions: tuple[Callable[..., Any], ...] = (self.decide, self.approve, self.abort)
        for node, function in zip(CONTROL, functions, strict=True):
            graph.add_node(
                node,
                function,
                goto=(*nodes, *CONTROL),
                version=f"dag:{node}",
                on_skip=_never_skipped,
                reusable=False,
            )
        for tool in self.tools.values():
            work = ToolNode(tool, read_decision)
            graph.add_node(
                tool.node,
                work.run_async if tool.is_async else work.run,
                retry=tool.retry,
                timeout=tool.timeout,
                if_interrupted=tool.if_interrupted,
                max_parallel=tool.max_parallel,
                on_error=work.failed,
                on_skip=work.skipped,
                version=definition_fingerprint(tool.name, [tool.function]),
            )
            graph.add_edge(tool.node, DECIDE)
        return graph.add_edge(START, DECIDE)

    async def decide(self, state: State, ctx: Context, config: Mapping[str, Any]) -> Command:
        """Apply what was asked for, have the decision made that is due, and lead on to the next layer.

        What was asked for while the layer ran may still be in the inbox; it is taken from there first.
        """
        if await ctx._has_commands():
            return Command(goto=DECIDE)
        config = checked_config(config)
        board = Board.of(state, self.tools)
        finished = [name for name in state["running"] if board.status(name) in FINISHED]
        for name in state["running"]:
            if board.status(name) == RUNNING:
                board.end(board.tasks[name], ERROR, "it ended without a result")
                finished.append(name)
        board.changed |= {"running": []} if state["running"] else {}
        self._take_requests(board, state)
        if board.aborted is None:
            self._take_results(board, state, finished)
        if board.aborted is None and finished and _is_due(board, finished, config):
            await self._consult(board, state, finished, ctx, config)
        board.fail_dependents()
        if board.skips_layer:
            board.skip(board.ready(), "its layer was skipped")
            board.fail_dependents()
        if board.aborted is not None:
            return Command({**board.update(state), "aborted": board.aborted}, ABORT)
        tasks = board.ready()
        if problems := read_tasks([task.data() for task in tasks], self.tools)[1]:
            # The tools may be others than those that the DAG was checked with.
            raise DAGInvalid("the next layer", problems)
        if any(needs_approval(self.tools.get(task.tool), task, config) for task in tasks):
            return Command(board.update(state), APPROVE)
        return self._dispatch(board, state, tasks)

    def _take_requests(self, board: Board, state: State) -> None:
        """Apply the changes that were asked for since the last layer, in their order; refuse those that do not fit."""
        requests = thaw(state["requests"])
        for request in requests[state["handled"] :]:
            try:
                decision = read_decision(request)
                board.apply(decision)
            except DAGInvalid as error:
                shown = request if isinstance(request, dict) else {}
                facts = {name: str(shown.get(name, "")) for name in ("action", "by", "reason")}
                board.note("command", facts, refused=problem_of(error))
            else:
                board.note("command", decision)
        if len(requests) > state["handled"]:
            board.changed["handled"] = len(requests)

    def _take_results(self, board: Board, state: State, finished: list[str]) -> None:
        """Apply the decisions that tools of the layer have made."""
        for record in state["tasks"] if finished else ():
            tool = self.tools.get(record["tool"])
            is_new = record["layer"] == board.layer and record["task_id"] in finished
            if tool is not None and tool.decides and is_new and record["status"] == "success":
                decision = {**read_decision(record["result"]), "by": record["task_id"]}
                try:
                    board.apply(decision)
                except DAGInvalid as error:
                    board.note("agent", decision, refused=problem_of(error))
                else:
                    board.note("agent", decision)

    async def _consult(
        self, board: Board, state: State, finished: list[str], ctx: Context, config: Mapping[str, Any]
    ) -> None:
        """Have a decision made by the agent, or, if there is none or it is not sure, by a person."""
        reason, decision = "", None
        if self.agent is not None:
            point = _point(board, state, finished, ctx.run_id)
            limit = config["decision_timeout"]
            key = f"decision {board.layer} {board.hash}"
            decision = await ctx.once(key, self._asked, point, board, limit, ctx)
            reason = _why_not_alone(decision, state, config)
            if not reason:
                board.apply(decision)
                board.note("agent", decision)
                return
        errors = [name for name in finished if board.status(name) == ERROR]
        prompt = f"layer {board.layer} is finished" + (f", {', '.join(errors)} failed" if errors else "")
        prompt += f"; {reason}: approve that, or" if reason else ""
        prompt += f"; tasks left: {len(board.remaining())}; continue, abort, replan, inject or skip_layer?"
        name = f"decision {board.layer} {board.hash[:16]}"
        board.note("human", self._answer(board, ctx, name, prompt, config, decision))

    async def _asked(
        self, point: DecisionPoint, board: Board, limit: float | None, ctx: Context
    ) -> dict[str, Any]:
        """Return a decision of the agent that can be applied; it is asked again with what was wrong."""
        assert self.agent is not None
        for tried in range(1, _TRIES + 1):
            answer = await _called(self.agent, point, limit, ctx)
            try:
                decision = {"by": "agent", **read_decision(answer)}
                dataclasses.replace(board, statuses=dict(board.statuses), changed={}).apply(decision)
            except DAGInvalid as error:
                if tried == _TRIES:
                    raise
                point = dataclasses.replace(point, problems=error.problems)
            else:
                return decision
        raise AssertionError

    def _answer(
        self,
        board: Board,
        ctx: Context,
        name: str,
        prompt: str,
        config: Mapping[str, Any],
        proposed: dict[str, Any] | None = None,
        is_approval: bool = False,
    ) -> dict[str, Any]:
        """Return somebody's decision, which is applied; the run pauses until it is there.

        To approve is to continue, or to do what an agent proposed; to continue is not to approve.
        """
        schema = APPROVAL_SCHEMA if is_approval else ANSWER_SCHEMA
        timeout, late = config["approval_timeout"], {"action": ABORT, "by": "time"}
        late["reason"] = "nobody answered in time"
        how: dict[str, Any] = {} if timeout is None else {"timeout": timeout, "default": late}
        while True:
            answer = ctx.ask(prompt, name=name, schema=schema, **how)
            try:
                decision = read_decision(answer)
                if is_approval and decision["action"] == CONTINUE and not is_approved(answer):
                    raise DAGInvalid("the answer", [NO_APPROVAL])
                if proposed is not None and is_approved(answer):
                    decision = {**proposed, "by": decision.get("by", "")}
                board.apply(decision)
            except DAGInvalid as error:
                prompt = f"{problem_of(error)}\n{prompt}"
            else:
                return decision

    def approve(self, state: State, ctx: Context, config: Mapping[str, Any]) -> Command:
        """Have the next layer approved exactly as it is, or go back to deciding."""
        config = checked_config(config)
        board = Board.of(state, self.tools)
        if len(state["requests"]) > state["handled"]:
            return Command(goto=DECIDE)
        tasks, calls, texts = board.ready(), dict[str, str](), dict[str, str]()
        for task in tasks:
            if needs_approval(self.tools.get(task.tool), task, config):
                arguments = call_arguments(task, state)
                calls[task.id] = call_hash([task.data(), arguments])
                texts[task.id] = f"{task.id}: {task.tool}({arguments!r})"
        if not calls:
            return Command(goto=DECIDE)
        name = f"approval {board.layer} {call_hash([ctx.run_id, board.hash, calls])[:16]}"
        prompt = _approval_prompt(texts, calls, ctx.run_id)
        decision = self._answer(board, ctx, name, prompt, config, is_approval=True)
        if decision["action"] == CONTINUE:
            where = {"run_id": ctx.run_id, "resets": ctx._resets}
            board.note("approval", decision, tasks=list(calls), calls=calls, **where)
            return self._dispatch(board, state, tasks)
        board.note("approval", decision)
        if board.aborted is not None:
            return Command({**board.update(state), "aborted": board.aborted}, ABORT)
        if board.skips_layer:
            board.skip(tasks, "its layer was skipped")
        return Command(board.update(state), DECIDE)

    def _dispatch(self, board: Board, state: State, tasks: list[Task]) -> Command:
        """Lead on to the tools of a layer, or to the end."""
        if not tasks:
            return Command(board.update(state), END)
        board.statuses |= dict.fromkeys((task.id for task in tasks), RUNNING)
        update = {**board.update(state), "layer": board.layer + 1, "running": [task.id for task in tasks]}
        sends: list[str | Send] = [
            Send(self.tools[task.tool].node, {"task": task.data()}, task.id) for task in tasks
        ]
        return Command(update, sends)

    def abort(self, state: State) -> Command:
        """Fail the run, unless somebody has asked for another plan since."""
        changes = [each for each in state["requests"][state["handled"] :] if isinstance(each, Mapping)]
        if any(each.get("action") in ("replan", "inject") for each in changes):
            return Command({"aborted": ""}, DECIDE)
        raise DAGAborted(f"the DAG was aborted: {state['aborted']}")


def _never_skipped(state: State, reason: str) -> None:
    """What stands in for a node between layers: nothing does, as the tasks after it would be left out silently."""
    raise HoldfastError("it leads on to the next layer; use skip_layer, reject or abort of the executor")


def _schema(actions: Iterable[str]) -> dict[str, Any]:
    """Return what fits a question: an action that needs nothing else, or a mapping with any of them."""
    known = [*actions]
    alone = [action for action in known if action not in _NEEDS]
    whole = {"type": "object", "properties": {"action": {"enum": known}}, "required": ["action"]}
    return {"anyOf": [{"enum": alone}, whole]}


ANSWER_SCHEMA = _schema([*ACTIONS, *_SAME])
APPROVAL_SCHEMA = _schema([*_SAME, *ACTIONS[1:]])
NO_APPROVAL = "an approval is asked for, and 'continue' gives none: approve, or reject"


def call_arguments(task: Task, state: Mapping[str, Any]) -> Any:
    """Return the arguments that a task would be called with, or why they are not known."""
    try:
        return resolved(task, state)
    except Unresolved as error:
        return problem_of(error)


def _approval_prompt(texts: Mapping[str, str], digests: Mapping[str, str], run_id: str) -> str:
    """Return the question for an approval of calls, with all of each; where that is too long, it says so."""
    left, lines, cut = _SHOWN, list[str](), 0
    for name, text in texts.items():
        if len(text) <= left:
            left -= len(text)
            lines.append(text)
        elif (cut := cut + 1) <= _MOST_CUT:
            size = f"cut: {len(text):,} characters in all, digest {digests[name]}"
            lines.append(f"{text[:_BEGINNING]}… ({size})")
    if cut:
        lines.append(f"NOT SHOWN WHOLE: {cut} of {len(texts)} calls, digest of all {call_hash(digests)};")
        lines.append(f"see next_calls({run_id!r}) of the executor, or 'dag' and 'tasks' of the run's state")
    return "\n".join(["approve the next layer?", *lines])


def is_approved(answer: Any) -> bool:
    """Return whether an answer says "approve", and not merely "continue"."""
    return bool((answer.get("action") if isinstance(answer, Mapping) else answer) == "approve")


def _is_due(board: Board, finished: list[str], config: Mapping[str, Any]) -> bool:
    """Return whether a decision is due after a layer."""
    mode = config["decisions"]
    return bool(
        mode == PER_LAYER or (mode == ON_ERROR and any(board.status(name) == ERROR for name in finished))
    )


def _point(board: Board, state: State, finished: list[str], run_id: str) -> DecisionPoint:
    records = [*thaw(state["tasks"]), *board.records]
    own = [each for each in records if each["task_id"] in finished and each["layer"] == board.layer]
    return DecisionPoint(
        run_id,
        board.layer,
        own,
        records,
        [task.data() for task in board.remaining()],
        thaw(state["context"]),
        thaw(state["messages"]),
    )


def _why_not_alone(decision: Mapping[str, Any], state: State, config: Mapping[str, Any]) -> str:
    """Return why a person decides instead of the agent; empty if the agent may."""
    confidence, least = decision.get("confidence"), config["min_confidence"]
    shown = f"the agent would {decision['action']}"
    if confidence is not None and confidence < least:
        return f"{shown}, with a confidence of {confidence:g}, below {least:g}"
    planned = ("inject", "replan")
    before = sum(entry["kind"] == "agent" and entry["action"] in planned for entry in state["decisions"])
    if decision["action"] in planned and before >= config["max_replans"]:
        return f"{shown}, after it has changed the plan {before} times already"
    return ""


async def _called(agent: Decide, point: DecisionPoint, limit: float | None, ctx: Context) -> Any:
    """Return what an agent says; a sync one is called in a thread."""
    call = getattr(agent, "__call__", None)  # noqa: B004
    is_async = inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(call)
    more = {"ctx": ctx} if "ctx" in inspect.signature(agent).parameters else {}
    window = asyncio.timeout(limit)
    try:
        async with window:
            answer = agent(point, **more) if is_async else await in_thread(lambda: agent(point, **more))
            return await answer if isinstance(answer, Awaitable) else answer
    except Escaped as escaped:
        raise escaped.error from None
    except TimeoutError:
        if not window.expired():
            raise
        raise StepTimeout(f"the agent said nothing within {limit:g} s") from None
