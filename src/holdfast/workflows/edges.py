"""How steps follow each other: by order, by `after`, by routes, as edges of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.engine.context import Context
from holdfast.errors import HoldfastError
from holdfast.graph.builder import StateGraph
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.graph import Command, Send
from holdfast.graph.graph import Route as GraphRoute
from holdfast.state.ops import thaw
from holdfast.state.state import State, origin_of
from holdfast.values import END, START
from holdfast.workflows.errors import NoRoute, StepFailed
from holdfast.workflows.kinds.kind import Tree
from holdfast.workflows.language.templates import Expression, TemplateError, compile_expression
from holdfast.workflows.language.values import describe_kind, kind
from holdfast.workflows.model import END_ROUTE, OnError, Route, Step
from holdfast.workflows.scope import Layout, Resources, Scope, steps_named, values_named
from holdfast.workflows.step import Work, error_text, evaluated, never_skipped

# Choosing what follows a step: the first of its routes that holds.


class Router:
    """The routing function of one step. `following` is the node that follows if no route holds, if there is one."""

    def __init__(self, step: Step, layout: Layout, following: str | None) -> None:
        self._step, self._layout, self._following = step, layout, following
        self._routes: list[tuple[Route, Expression | None]] = [
            (route, None if route.when is None else compile_expression(route.when))
            for route in step.routes or ()
        ]
        self._names = steps_named({path for _, when in self._routes if when for path in when.paths})

    def choices(self) -> tuple[tuple[str, str], ...]:
        """Return where its routes lead, each with the fingerprint of its condition and of the values that it names."""
        workflow = self._layout.definition.workflow
        whens = [
            (route, [] if when is None else values_named(when.paths, workflow))
            for route, when in self._routes
        ]
        choices = [(_node(route), fingerprint(repr((route.when, values)))) for route, values in whens]
        return (*choices, *([] if self._following is None else [(self._following, fingerprint("else"))]))

    def targets(self) -> list[str]:
        """Return every node that may follow."""
        found = [_node(route) for route, _ in self._routes]
        return list(dict.fromkeys([*found, self._following] if self._following is not None else found))

    def __call__(self, state: State) -> str:
        """Return the node that follows."""
        record = self._layout.view(state, self._step.name)
        if record["status"] == "skipped":
            return self._unconditional()
        facts = {name: record.get(name) for name in ("output", "answer", "status", "error")}
        scope = Scope(self._layout, state, self._names, **facts)
        for number, (route, when) in enumerate(self._routes, 1):
            if when is None or self._holds(number, route, when, scope):
                return _node(route)
        if self._following is None:
            raise self._error("no route holds; add one without `when` (to: $end, perhaps)")
        return self._following

    def _holds(self, number: int, route: Route, when: Expression, scope: Scope) -> bool:
        try:
            return bool(when.value(scope))
        except TemplateError as error:
            raise self._error(f"route {number} (to: {route.to}) cannot be evaluated: {error}") from None

    def _unconditional(self) -> str:
        """Return where a step that was skipped leads to: its route without condition, or else what comes next."""
        for route, when in self._routes:
            if when is None:
                return _node(route)
        if self._following is not None:
            return self._following
        raise self._error("it was skipped, and none of its routes is without a condition; add one")

    def _error(self, reason: str) -> NoRoute:
        return NoRoute(self._step.name, f"step {self._step.name!r}: {reason}")


def _node(route: Route) -> str:
    return END if route.to == END_ROUTE else route.to


# The end of a workflow: its output, what is still due, and how a sub-workflow hands over what became of it.


OUTPUT = "output"
"""The last node, and the state key of what it makes."""


class Ending:
    """The last node of a workflow."""

    def __init__(self, layout: Layout, resources: Resources, by_order: bool) -> None:
        self._layout, self._resources = layout, resources
        self._output = Tree("output", layout.definition.output)
        self.paths = self._output.paths
        """The places of the scope that the output reads."""
        self.expected = [] if by_order else _expected(layout.definition.steps)

    def finish(self, state: State) -> Any:
        """The workflow's output, unless steps that were added while the run was under way are still to be done."""
        if self._layout.has_failed(state):
            return None
        due = [step.name for step in self.expected if self._is_due(state, step)]
        if due:
            return Command(goto=tuple(due))
        return handed_over(self._layout, state, {"status": "completed", "output": self._result(state)})

    def _result(self, state: State) -> Any:
        if self._layout.definition.output is None:
            return last_output(self._layout, state)
        try:
            return self._resources.hide(self._output.look(Scope(self._layout, state)))
        except StepFailed as error:
            raise HoldfastError(f"the workflow's {error}") from None

    def _is_due(self, state: State, step: Step) -> bool:
        if self._layout.record(state, step.name):
            return False
        return all(self._layout.record(state, name) for name in names_waited_for(step))


def _expected(steps: list[Step]) -> list[Step]:
    """Return the steps that are to be done in every run: those that no route leads to or past."""
    routed = {route.to for step in steps for route in step.routes or ()}
    choosing = {step.name for step in steps if step.routes}
    return [step for step in steps if step.name not in routed and not choosing & set(names_waited_for(step))]


def names_waited_for(step: Step) -> list[str]:
    """Return the names of the steps that a step waits for."""
    return list(dict.fromkeys(after.step for after in step.after))


def last_output(layout: Layout, state: State) -> Any:
    """Return the output of the step that ran last."""
    name = origin_of(state).checkpoint_node.partition(":")[0]
    return layout.view(state, name).get("output") if name in layout.steps else None


def ended_early(work: Work, state: State, error: BaseException) -> Command:
    """Return what stands in for a failed step whose workflow is to fail as a step of another, and not fail the run."""
    layout = work.layout
    if layout.has_failed(state):
        return Command(work.failed(state, error), goto=[])
    reason = work.resources.hide(f"step {work.step.name!r}: {error_text(error)}")
    over = handed_over(layout, state, {"status": "failed", "error": reason})
    return Command({**work.failed(state, error), **over, layout.failure_key: {"error": reason}}, goto=[])


def handed_over(layout: Layout, state: State, result: Mapping[str, Any]) -> dict[str, Any]:
    """What a workflow results in: the run's output, or the record of the step that it is of another workflow."""
    if not layout.shared:
        return {OUTPUT: result["output"]}
    if not layout.is_item:
        record = thaw(state[layout.shared])
        kept = {name: record[name] for name in ("visits", "round") if name in record}
        return {layout.shared: {**kept, **result}}
    each = thaw(state[f"{layout.shared}:each"])
    kept = {name: each[name] for name in ("index", "visit")}
    if result["status"] == "failed":
        kept |= {name: each[name] for name in ("item", "inputs")}
    return {f"{layout.shared}:items": {each["key"]: {**kept, **result}}}


class Ways:
    """The edges between the steps of a workflow. `last` names the node of each step that its ways leave from."""

    def __init__(self, graph: StateGraph, layout: Layout, last: Mapping[str, str]) -> None:
        self._graph, self._layout, self._last = graph, layout, last
        self._steps = layout.definition.steps
        self._waits = {step.name: names_waited_for(step) for step in self._steps}
        self.by_order = follow_by_order(self._steps)
        self._onward: dict[str, str] = {}
        """The nodes that steps lead to if none of their routes holds."""

    def add(self) -> None:
        """Add every edge to the graph."""
        joined = {name for waits in self._waits.values() if len(waits) > 1 for name in waits}
        for index, step in enumerate(self._steps):
            followers = self._followers(index, step)
            if step.routes:
                self._add_routes(step, followers)
            elif step.end is not None or not (followers or step.name in joined):
                self._graph.add_edge(self._last[step.name], END)
            else:
                for name in followers:
                    self._graph.add_edge(self._last[step.name], name)
        self._begin()

    def _followers(self, index: int, step: Step) -> list[str]:
        """Return the steps that follow if no route is taken, those that wait for several left out."""
        if self.by_order:
            return [following.name for following in self._steps[index + 1 : index + 2]]
        return [name for name, waits in self._waits.items() if waits == [step.name]]

    def _add_routes(self, step: Step, followers: list[str]) -> None:
        following = None
        if not self.by_order and any(step.name in waits for waits in self._waits.values()):
            following = self._onward[step.name] = f"{step.name}:on"
            self._graph.add_node(following, _nothing, version="nothing", on_skip=never_skipped)
            for name in followers:
                self._graph.add_edge(following, name)
        router = Router(step, self._layout, following)
        mapping = {name: name for name in router.targets()}
        self._graph.add_route(GraphRoute(self._last[step.name], router, mapping, router.choices()))

    def _begin(self) -> None:
        """The edges from the start, and those of steps that wait for several."""
        entry = self._layout.definition.workflow.entry
        if self.by_order:
            self._graph.add_edge(START, entry or self._steps[0].name)
            return
        routed = {route.to for step in self._steps for route in step.routes or ()}
        for step in self._steps:
            waits = self._waits[step.name]
            if not waits and (step.name not in routed or step.name == entry):
                self._graph.add_edge(START, step.name)
            if len(waits) > 1:
                self._graph.add_edge([self._onward.get(name, self._last[name]) for name in waits], step.name)


def follow_by_order(steps: list[Step]) -> bool:
    """Whether steps follow each other in the order of the file: so it is unless one of them waits for another."""
    return not any(step.after for step in steps)


def _nothing(state: State) -> None:
    """A node that only stands for a place."""


# `parallel`: steps that run together, and what becomes of them as a whole.


class Group:
    """The nodes around the members: the one that begins, the one where they meet, the one that gathers.

    With `goes_on`, failed members make a failed step and not a failed run.
    """

    def __init__(self, work: Work, goes_on: bool = False) -> None:
        self.step, self.layout, self._work, self._goes_on = work.step, work.layout, work, goes_on
        self.names = [member.name for member in self.step.members]
        self._long = [member.name for member in self.step.members if is_long(member)]
        self._excused = {member.name for member in self.step.members if member.on_error == "continue"}

    @property
    def meeting_node(self) -> str:
        return f"{self.step.name}:met"

    @property
    def done_node(self) -> str:
        return f"{self.step.name}:done"

    def begin(self, state: State) -> dict[str, Any]:
        """Run the group's first node: it begins another visit, or is skipped."""
        reason = self._work.why_skipped(state)
        record = {"status": "skipped", "reason": reason} if reason else {"status": "running"}
        return self._work.begun(state, record)

    def fan_out(self, state: State) -> list[str]:
        """Return what follows the first node: every member."""
        runs = self.layout.status(state, self.step.name) == "running"
        return self.names if runs else [self.done_node]

    def meet(self, state: State) -> Command:
        """Lead on when all members of several nodes are through.

        It looks at what was when it began, so that a member which is through meanwhile is counted when it comes.
        """
        visit = self.layout.visits(state, self.step.name)
        records = [self.layout.record(state, name) for name in self._long]
        under_way = any(found.get("round") == visit and not found.get("over") for found in records)
        return Command(goto=() if under_way else (self.done_node,))

    def gather(self, state: State, ctx: Context) -> Any:
        """Run the group's last node: what became of its members. One that the file has now is begun."""
        name = self.step.name
        if self.layout.status(state, name) != "running":
            return None
        results = self.layout.results_of_members(state, name, self.layout.visits(state, name))
        new = [member for member in self.names if member not in results]
        if new:
            return Command(goto=tuple(new))
        failed = {member: found for member, found in results.items() if found["status"] == "failed"}
        blamed = {member: found for member, found in failed.items() if member not in self._excused}
        if not blamed or on_error_of(self.step) == "continue":
            return self._end(state, "every member failed" if len(failed) == len(results) else "")
        message = "; ".join(f"{member}: {found.get('error')}" for member, found in blamed.items())
        message = f"{len(blamed)} of {len(results)} members failed ({message})"
        if self._goes_on:
            return self._end(state, message)
        if ctx.attempt == 1:
            raise StepFailed(f"{message}; a resume tries those again")
        return Command(goto=list(blamed))

    def _end(self, state: State, error: str) -> dict[str, Any] | None:
        result = {"status": "failed", "error": error} if error else {"status": "completed"}
        return self._work.over(state, **result)


def on_error_of(group: Step) -> OnError:
    """Return what a group does when members fail."""
    return group.parallel.on_error if group.parallel is not None else "fail_fast"


def is_long(member: Step) -> bool:
    """Return True if a member is made of several nodes, one after the other."""
    return member.for_each is not None or member.workflow is not None


# `for_each`: the same work for every item, each journalled on its own.


MAX_ITEMS = 100_000

Inputs = Callable[[Scope], Mapping[str, Any]]


class Items:
    """The nodes around the work: the one that hands out the items, and the one that gathers.

    `inputs` makes what a sub-workflow is given for an item. With `goes_on`, failed items make a failed step and not
    a failed run.
    """

    def __init__(self, work: Work, inputs: Inputs | None = None, goes_on: bool = False) -> None:
        self.step, self.layout, self.work = work.step, work.layout, work
        self._inputs, self._goes_on = inputs, goes_on
        assert self.step.for_each is not None
        self._each = self.step.for_each
        self._in = Tree("for_each.in", self._each.in_)
        self._key = None if self._each.key is None else compile_expression(self._each.key)
        paths = self._in.paths | (set() if self._key is None else self._key.paths)
        self._names = steps_named(paths) if inputs is None else None
        self.paths = paths | work.paths
        """The places of the scope that beginning reads, or handing out its items."""

    @property
    def item_node(self) -> str:
        return f"{self.step.name}:item"

    @property
    def done_node(self) -> str:
        return f"{self.step.name}:done"

    def begin(self, state: State) -> Command:
        """The step's first node: it hands out the items of another visit, or those that failed, or is skipped."""
        reason = self.work.why_skipped(state)
        if reason:
            skipped = self.work.begun(state, {"status": "skipped", "reason": reason})
            return Command(skipped, [self.done_node])
        if self._is_second_try(state):
            before = self.layout.record(state, self.step.name)
            record = {name: before[name] for name in ("visits", "round")} | {"status": "running"}
            return Command({self.layout.key(self.step.name): record}, list(self._again(self._failed(state))))
        sends = tuple(self._sends(state))
        return Command(self.work.begun(state, {"status": "running"}), sends or (self.done_node,))

    def not_begun(self, state: State, error: BaseException) -> Command:
        """Return what stands in for a first node that failed: the step has failed, and the run goes on."""
        return Command(self.work.failed(state, error), [self.done_node])

    def skipped(self, state: State, reason: str) -> Command:
        """Return what stands in for a first node that somebody has passed over: no item is handed out."""
        return Command(self.work.skipped(state, reason), [self.done_node])

    def gather(self, state: State, ctx: Context) -> Any:
        """Run the step's last node: what became of the items."""
        if self.layout.status(state, self.step.name) != "running":
            return self.work.over(state)
        results, failed = self._results(state), self._failed(state)
        if not failed or self._each.on_error == "continue":
            all_failed = bool(failed) and len(failed) == len(results)
            return self._end(state, len(results), "every item failed" if all_failed else "")
        message = _failures_text(len(results), failed)
        if self._goes_on:
            return self._end(state, len(results), message)
        if ctx.attempt == 1:
            raise StepFailed(f"{message}; a resume tries those again")
        return Command(goto=list(self._again(failed)))

    def _end(self, state: State, count: int, error: str) -> dict[str, Any] | None:
        result = {"status": "failed", "error": error} if error else {"status": "completed"}
        return self.work.over(state, **result, count=count)

    def _is_second_try(self, state: State) -> bool:
        """Return True if the group that this is a member of comes back to it within one and the same round."""
        record, group = self.layout.record(state, self.step.name), self.work.group
        is_same = bool(group) and record.get("round") == self.layout.visits(state, group)
        return is_same and record.get("status") == "failed" and bool(self._failed(state))

    def _failed(self, state: State) -> dict[str, Mapping[str, Any]]:
        return {key: result for key, result in self._results(state).items() if "error" in result}

    def _results(self, state: State) -> dict[str, Any]:
        return self.layout.results(state, self.step.name, self.layout.visits(state, self.step.name))

    def _sends(self, state: State) -> Iterator[Send]:
        visit = self.layout.visits(state, self.step.name) + 1
        for index, (key, item) in enumerate(self._items(state)):
            each: dict[str, Any] = {"item": item, "index": index, "key": key, "visit": visit}
            if self._inputs is not None:
                each["inputs"] = self._inputs(self._scope(state, item, index, key))
            yield self._send(key, each)

    def _again(self, failed: Mapping[str, Mapping[str, Any]]) -> Iterator[Send]:
        """Items that failed once more, as they were: the list they came from may have changed."""
        for key, result in failed.items():
            kept = {name: result[name] for name in ("item", "inputs", "index", "visit") if name in result}
            yield self._send(key, {**kept, "key": key})

    def _send(self, key: str, each: dict[str, Any]) -> Send:
        return Send(self.item_node, {self.layout.each_key(self.step.name): each}, key)

    def _items(self, state: State) -> list[tuple[str, Any]]:
        found = self._in.look(Scope(self.layout, state, self._names))
        if isinstance(found, dict):
            pairs = [(str(key), value) for key, value in found.items()]
        elif isinstance(found, (list, tuple)):
            pairs = [(str(index), value) for index, value in enumerate(found)]
        else:
            raise StepFailed(
                f"for_each.in: a list or fields are needed, and this gives {describe_kind(found)}"
            )
        if len(pairs) > MAX_ITEMS:
            raise StepFailed(f"for_each.in: there are {len(pairs):,} items; at most {MAX_ITEMS:,} are taken")
        if self._key is not None:
            pairs = [(self._named(state, value, index), value) for index, (_, value) in enumerate(pairs)]
        _refuse_twins(pairs)
        return pairs

    def _named(self, state: State, item: Any, index: int) -> str:
        assert self._key is not None
        scope = self._scope(state, item, index, str(index))
        key = evaluated(self._key, scope, f"for_each.key of item {index}")
        if kind(key) not in ("text", "number") or not str(key):
            raise StepFailed(
                f"for_each.key of item {index}: a text or a number is needed, not {describe_kind(key)}"
            )
        return str(key)

    def _scope(self, state: State, item: Any, index: int, key: str) -> Scope:
        return Scope(self.layout, state, self._names, **{"index": index, "key": key, self._each.as_: item})


def _refuse_twins(pairs: list[tuple[str, Any]]) -> None:
    seen: dict[str, int] = {}
    for index, (key, _) in enumerate(pairs):
        if key in seen:
            raise StepFailed(
                f"for_each.key: items {seen[key]} and {index} have one key, {key!r}; "
                "give `key` an expression that tells them apart"
            )
        seen[key] = index


def _failures_text(count: int, failed: Mapping[str, Mapping[str, Any]]) -> str:
    first = "; ".join(f"{key}: {result['error']}" for key, result in list(failed.items())[:3])
    return f"{len(failed)} of {count} items failed ({first}{'; …' if len(failed) > 3 else ''})"
