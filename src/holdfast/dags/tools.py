"""The registry of tools, and the node that a tool is in the graph of a DAG."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from holdfast import clock
from holdfast.dags.definition import (
    ERROR,
    FAILED_SAFE,
    PENDING,
    SKIPPED,
    SUCCESS,
    DAGInvalid,
    Task,
    call_hash,
    read_tasks,
    references,
    resolve,
)
from holdfast.engine.context import Context
from holdfast.engine.once import StepInterrupted, StopSignal
from holdfast.errors import HoldfastError, problem_of
from holdfast.graph.graph import Retry
from holdfast.state.ops import thaw
from holdfast.state.state import State

DECIDE, APPROVE, ABORT = "decide", "approve", "abort"
CONTROL = (DECIDE, APPROVE, ABORT)
"""The nodes of every DAG beside its tools."""

ALWAYS, CRITICAL_ONLY, NEVER = "always", "critical_only", "never"
_NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,199}", re.ASCII)
F = TypeVar("F", bound=Callable[..., Any])
_SLASH = str.maketrans(":/", "..")


class RateLimit:
    """At most so many calls a second, evenly spaced, over all runs of this process."""

    def __init__(self, per_second: float) -> None:
        self._pause, self._next, self._lock = 1.0 / per_second, -math.inf, threading.Lock()

    def reserve(self) -> float:
        """Reserve the next free time, and return it in terms of the monotonic clock."""
        with self._lock:
            at = max(clock.monotonic(), self._next)
            self._next = at + self._pause
        return at


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that tasks may call, and how it is called."""

    name: str
    function: Callable[..., Any]
    critical: bool = False
    """Whether it is called only with somebody's approval, unless approval is "never"."""
    decides: bool = False
    """Whether its result is a decision about the rest of the DAG."""
    retry: Retry | None = None
    timeout: float | None = 30.0
    if_interrupted: str | Callable[..., Any] = "rerun"
    max_parallel: int | None = None
    rate_limit: RateLimit | None = None
    signature: inspect.Signature = field(default_factory=inspect.Signature)

    @property
    def node(self) -> str:
        """The name of its node: `files:read` is `files.read`."""
        return self.name.translate(_SLASH)

    @property
    def is_async(self) -> bool:
        """Whether its function is a coroutine function."""
        call = getattr(self.function, "__call__", None)  # noqa: B004
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    @property
    def takes_context(self) -> bool:
        """Whether its function is given the context of its step, as `ctx`."""
        return "ctx" in self.signature.parameters

    def problems(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Yield why it cannot be called with arguments of these names."""
        parameters = self.signature.parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        named = {
            name: each
            for name, each in parameters.items()
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and name != "ctx"
        }
        for name in arguments:
            if (name not in named and not takes_any) or name == "ctx":
                takes = ", ".join(map(repr, named)) or "nothing"
                yield f"tool {self.name!r} takes no argument {name!r}; it takes {takes}"
        for name, each in named.items():
            if each.default is each.empty and name not in arguments:
                yield f"tool {self.name!r} needs the argument {name!r}"


class Tools(Mapping[str, Tool]):
    """The tools that tasks may name. Data never names anything else: nothing is imported for a DAG.

    `Tools(fetch, summarize)` registers functions under their names; `tool` is a decorator with options.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self._tools: dict[str, Tool] = {}
        self._is_in_use = False
        for function in functions:
            self.tool(function)

    @classmethod
    def named(cls, functions: Mapping[str, Callable[..., Any]]) -> Tools:
        """Return a registry of functions by the names under which tasks call them."""
        found = cls()
        for name, function in functions.items():
            found.tool(name=name)(function)
        return found

    @overload
    def tool(self, function: F) -> F: ...

    @overload
    def tool(
        self,
        function: None = None,
        *,
        name: str | None = None,
        critical: bool = False,
        decides: bool = False,
        retry: Retry | None = None,
        timeout: float | dt.timedelta | None = 30.0,
        if_interrupted: str | Callable[..., Any] | None = None,
        idempotent: bool = True,
        max_parallel: int | None = None,
        rate: float | None = None,
    ) -> Callable[[F], F]: ...

    def tool(self, function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
        """Register a function, sync or async, as a tool; also a decorator, with or without options.

        Tasks call it with their arguments by name; a parameter `ctx` gets the `Context` of the step.

        - `name`: how tasks name it; by default the function's name. `files:read` and `files.read` are fine.
        - `critical`: it is called only with somebody's approval, unless the run's `approval` is "never".
        - `decides`: its result is a decision about the rest of the DAG, such as `{"action": "replan", "tasks": […]}`.
        - `retry`, `timeout` (30 seconds), `if_interrupted`, `idempotent`, `max_parallel`: as for a node of a graph.
        - `rate`: how many calls a second are begun at most, over all runs of this process.
        """
        if function is None:
            return lambda each: self._add(each, **options)
        return self._add(function, **options)

    def _add(
        self,
        function: F,
        *,
        name: str | None = None,
        timeout: float | dt.timedelta | None = 30.0,
        if_interrupted: str | Callable[..., Any] | None = None,
        idempotent: bool = True,
        rate: float | None = None,
        **options: Any,
    ) -> F:
        if not callable(function):
            raise HoldfastError(f"a tool is a function, not {function!r:.80}")
        if self._is_in_use:
            raise HoldfastError(
                "an executor uses these tools already; register all of them before it is made"
            )
        name = str(getattr(function, "__name__", type(function).__name__)) if name is None else name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise HoldfastError(
                f"{name!r:.80} cannot name a tool; use letters, digits, '_', '-', '.', ':' and '/'"
            )
        self._refuse_taken(name)
        if rate is not None and not (isinstance(rate, (int, float)) and 0 < rate < math.inf):
            raise HoldfastError(f"tool {name!r}: rate must be calls per second, above 0, not {rate!r}")
        self._tools[name] = Tool(
            name,
            function,
            timeout=timeout.total_seconds() if isinstance(timeout, dt.timedelta) else timeout,
            if_interrupted=if_interrupted or ("rerun" if idempotent else "fail"),
            rate_limit=None if rate is None else RateLimit(rate),
            signature=inspect.signature(function),
            **options,
        )
        return function

    def use(self) -> None:
        """Take no further tools: an executor has made a graph of these."""
        self._is_in_use = True

    def _refuse_taken(self, name: str) -> None:
        node = name.translate(_SLASH)
        if node in CONTROL:
            raise HoldfastError(f"a tool cannot be named {name!r}, as a part of every DAG is; give it name=…")
        for other in self._tools.values():
            if other.node == node:
                raise HoldfastError(
                    f"there is a tool {other.name!r} already, so that none can be named {name!r}"
                )

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._tools

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


# What a finished task leaves in the state.


def task_record(task: Task, status: str, layer: int, **facts: Any) -> dict[str, Any]:
    """Return the update of the state for a finished task; `facts` are its result or error, and its duration."""
    record = {"task_id": task.id, "tool": task.tool, "status": status, "layer": layer}
    record |= {"result": None, "error": None, "timestamp": clock.time(), "duration": 0.0, **facts}
    return {"tasks": [record], "statuses": {task.id: status}}


def records_of(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the last record of every finished task by its id."""
    return {record["task_id"]: record for record in state["tasks"]}


def task_of(data: Mapping[str, Any]) -> Task:
    """Return a task from stored data, which is checked again before the task runs."""
    return Task(
        str(data["id"]),
        str(data["tool"]),
        data["arguments"],
        tuple(data["depends_on"]),
        bool(data.get("safe_to_fail")),
        data.get("confidence"),
    )


def needs_approval(tool: Tool | None, task: Task, config: Mapping[str, Any]) -> bool:
    """Return whether a task runs only with somebody's approval."""
    mode = config.get("approval", CRITICAL_ONLY)
    if mode in (ALWAYS, NEVER):
        return bool(mode == ALWAYS)
    unsure = task.confidence is not None and task.confidence < config.get("min_confidence", 0.0)
    return unsure or tool is None or tool.critical


class NotApproved(HoldfastError):
    """A task is not what was approved, or nobody approved it."""


class ToolNode:
    """The node that calls a tool for the task of its item. `read_decision` checks the results of tools that decide."""

    def __init__(self, tool: Tool, read_decision: Callable[[Any], object]) -> None:
        self.tool, self._read_decision = tool, read_decision

    def run(self, state: State, ctx: Context, config: Mapping[str, Any]) -> dict[str, Any]:
        """Call a sync tool."""
        task = self._task(state)
        arguments = self._ready(task, state, ctx, config)
        if arguments is None:
            return {"statuses": {task.id: PENDING}}
        for seconds in self._waits(ctx):
            if ctx.cancelled:
                raise StopSignal
            clock.sleep(seconds)
        begun = clock.perf_counter()
        return self._done(state, task, self.tool.function(**arguments), begun)

    async def run_async(self, state: State, ctx: Context, config: Mapping[str, Any]) -> dict[str, Any]:
        """Call an async tool."""
        task = self._task(state)
        arguments = self._ready(task, state, ctx, config)
        if arguments is None:
            return {"statuses": {task.id: PENDING}}
        for seconds in self._waits(ctx):
            await asyncio.sleep(seconds)
        begun = clock.perf_counter()
        return self._done(state, task, await self.tool.function(**arguments), begun)

    def _waits(self, ctx: Context) -> Iterator[float]:
        """Yield how many seconds to wait, until the tool may be called; its timeout does not count them."""
        if self.tool.rate_limit is None:
            return
        at = self.tool.rate_limit.reserve()
        while (left := at - clock.monotonic()) > 0:
            yield min(left, 0.2, (self.tool.timeout or 1.0) / 2)
            ctx.heartbeat()

    def _task(self, state: State) -> Task:
        """Return the task of the step; refuse what is none, as after a change of the step from outside."""
        tasks, problems = read_tasks([thaw(state.get("task"))], {self.tool.name: self.tool})
        if problems:
            raise DAGInvalid("the task of the step", problems)
        return next(iter(tasks.values()))

    def _ready(
        self, task: Task, state: State, ctx: Context, config: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the arguments of the task; refuse one that is not exactly what was approved.

        What was approved in another run, which this one began as a fork of, or before this one was rolled back, is
        asked for again: there are none then.
        """
        arguments = resolved(task, state)
        if needs_approval(self.tool, task, config):
            digest = call_hash([task.data(), arguments])
            approved = [
                (entry.get("run_id"), entry.get("resets"))
                for entry in state["decisions"]
                if entry["kind"] == "approval" and entry.get("calls", {}).get(task.id) == digest
            ]
            if not approved:
                raise NotApproved(f"task {task.id!r} was not approved as it is now, and did not run")
            if (ctx.run_id, ctx._resets) not in approved:
                return None
        if self.tool.takes_context:
            arguments["ctx"] = ctx
        return arguments

    def _done(self, state: State, task: Task, result: Any, begun: float) -> dict[str, Any]:
        if self.tool.decides:
            self._read_decision(result)
        seconds = clock.perf_counter() - begun
        return task_record(task, SUCCESS, state["layer"], result=result, duration=seconds)

    def failed(self, state: State, error: BaseException) -> dict[str, Any]:
        """Return what stands in for a failed task: the failure as data, so that its siblings go on.

        A task that was interrupted and must not be repeated unasked fails the run instead, and so does a step
        without a task.
        """
        if isinstance(error, StepInterrupted):
            raise error
        try:
            task = self._task(state)
        except DAGInvalid:
            raise error from None
        status = FAILED_SAFE if task.safe_to_fail else ERROR
        text = problem_of(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        return task_record(task, status, state["layer"], error=text)

    def skipped(self, state: State, reason: str) -> dict[str, Any]:
        """Return what stands in for a task that somebody skipped."""
        return task_record(self._task(state), SKIPPED, state["layer"], error=reason)


def resolved(task: Task, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a task with what they refer to."""
    named = any(reference.task for reference in references(task.arguments))
    found: dict[str, Any] = resolve(task.arguments, records_of(state) if named else {}, state["context"])
    return found
