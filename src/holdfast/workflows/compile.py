"""A workflow's definition as a graph: every step becomes a node or a few."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.graph.builder import StateGraph
from holdfast.graph.fingerprint import Fingerprint, definition_fingerprint, fingerprint
from holdfast.graph.graph import CircuitBreaker, Command
from holdfast.graph.graph import Route as GraphRoute
from holdfast.graph.source_code import digest
from holdfast.graph.validation import THREADS
from holdfast.state.ops import thaw
from holdfast.state.schema import add, append, merge
from holdfast.state.state import State, origin_of
from holdfast.values import END, START
from holdfast.workflows.kinds.kind import Kind, Paths, Tree
from holdfast.workflows.language.templates import Expression, TemplateError, compile_expression
from holdfast.workflows.model import END_ROUTE, Definition, Route, Step
from holdfast.workflows.scope import (
    GUIDANCE,
    InputInvalid,
    Layout,
    NoRoute,
    Resources,
    Scope,
    StepFailed,
    names_run,
    read_inputs,
    steps_named,
    values_named,
)
from holdfast.workflows.step import (
    Group,
    Items,
    Loop,
    Nested,
    Several,
    Work,
    error_text,
    never_skipped,
    on_error_of,
    retry_of,
)

# How steps follow each other: by order, by `after`, by routes, as edges of a graph.


class Router:
    """The routing function of one step. `following` is the node that follows if no route holds, if there is one."""

    def __init__(self, step: Step, layout: Layout, following: str | None) -> None:
        self._step, self._layout, self._following = step, layout, following
        self._routes: list[tuple[Route, str, Expression | None]] = [
            (
                route,
                END if route.to == END_ROUTE else route.to,
                None if route.when is None else compile_expression(route.when),
            )
            for route in step.routes or ()
        ]
        self._names = steps_named({path for *_, when in self._routes if when for path in when.paths})

    def edge(self, source: str) -> GraphRoute:
        """Return the route of a graph, each of its choices with the fingerprint of its condition."""
        workflow, choices = self._layout.definition.workflow, []
        for route, node, when in self._routes:
            values = [] if when is None else values_named(when.paths, workflow)
            choices.append((node, fingerprint(repr((route.when, values)))))
        if self._following is not None:
            choices.append((self._following, fingerprint("else")))
        return GraphRoute(source, self, {node: node for node, _ in choices}, tuple(choices))

    def __call__(self, state: State) -> str:
        """Return the node that follows."""
        record = self._layout.view(state, self._step.name)
        is_skipped = record["status"] == "skipped"
        facts = {name: record.get(name) for name in ("output", "answer", "status", "error")}
        scope = Scope(self._layout, state, self._names, **facts)
        for number, (route, node, when) in enumerate(self._routes, 1):
            try:
                if when is None or (not is_skipped and when.value(scope)):
                    return node
            except TemplateError as error:
                raise self._error(f"route {number} (to: {route.to}) cannot be evaluated: {error}") from None
        if self._following is not None:
            return self._following
        if is_skipped:
            raise self._error("it was skipped, and none of its routes is without a condition; add one")
        raise self._error("no route holds; add one without `when` (to: $end, perhaps)")

    def _error(self, reason: str) -> NoRoute:
        return NoRoute(self._step.name, f"step {self._step.name!r}: {reason}")


class Edges:
    """The edges between the steps of a workflow. `last` names the last node of each step."""

    def __init__(self, graph: StateGraph, layout: Layout, last: Mapping[str, str]) -> None:
        self._graph, self._layout, self._last = graph, layout, last
        self._steps = layout.definition.steps
        self._waits = {step.name: names_waited_for(step) for step in self._steps}
        self._by_order = follow_by_order(self._steps)
        self._onward: dict[str, str] = {}
        """The nodes that steps lead to if none of their routes holds."""

    def add(self) -> None:
        """Add every edge to the graph."""
        joined = {name for waits in self._waits.values() if len(waits) > 1 for name in waits}
        for index, step in enumerate(self._steps):
            if self._by_order:
                followers = [following.name for following in self._steps[index + 1 : index + 2]]
            else:
                followers = [name for name, waits in self._waits.items() if waits == [step.name]]
            if step.routes:
                self._add_routes(step, followers)
            elif step.end is not None or not (followers or step.name in joined):
                self._graph.add_edge(self._last[step.name], END)
            else:
                for name in followers:
                    self._graph.add_edge(self._last[step.name], name)
        self._begin()

    def _add_routes(self, step: Step, followers: list[str]) -> None:
        following = None
        if not self._by_order and any(step.name in waits for waits in self._waits.values()):
            following = self._onward[step.name] = f"{step.name}:on"
            self._graph.add_node(following, _nothing, version="nothing", on_skip=never_skipped)
            for name in followers:
                self._graph.add_edge(following, name)
        self._graph.add_route(Router(step, self._layout, following).edge(self._last[step.name]))

    def _begin(self) -> None:
        """The edges from the start, and those of steps that wait for several."""
        entry = self._layout.definition.workflow.entry
        if self._by_order:
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


def names_waited_for(step: Step) -> list[str]:
    """Return the names of the steps that a step waits for."""
    return list(dict.fromkeys(after.step for after in step.after))


def _nothing(state: State) -> None:
    """A node that only stands for a place."""


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
        steps = [] if by_order else layout.definition.steps
        routed = {route.to for step in steps for route in step.routes or ()}
        choosing = {step.name for step in steps if step.routes}
        self.expected = [
            step for step in steps if step.name not in routed and not choosing & set(names_waited_for(step))
        ]
        """The steps that are to be done in every run: those that no route leads to or past."""

    def finish(self, state: State) -> Any:
        """The workflow's output, unless steps that were added while the run was under way are still to be done."""
        if self._layout.has_failed(state):
            return None
        done = {step.name for step in self._layout.definition.steps if self._layout.record(state, step.name)}
        due = [
            step.name
            for step in self.expected
            if step.name not in done and done.issuperset(names_waited_for(step))
        ]
        if due:
            return Command(goto=tuple(due))
        return handed_over(self._layout, state, {"status": "completed", "output": self._result(state)})

    def _result(self, state: State) -> Any:
        if self._layout.definition.output is None:
            return last_output(self._layout, state)
        try:
            return self._resources.hide(self._output.fill(Scope(self._layout, state)))
        except StepFailed as error:
            raise HoldfastError(f"the workflow's {error}") from None


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
    ended = layout.ended(state, layout.steps)
    if not layout.is_item:
        record = thaw(state[layout.shared])
        kept = {name: record[name] for name in ("visits", "round") if name in record}
        ended = [now + before for now, before in zip(ended, record.get("done", (0, 0)), strict=True)]
        return {layout.shared: {**kept, **result, "done": ended}}
    each = thaw(state[f"{layout.shared}:each"])
    kept = {name: each[name] for name in ("index", "visit")}
    if result["status"] == "failed":
        kept |= {name: each[name] for name in ("item", "inputs")}
    return {f"{layout.shared}:items": {each["key"]: {**kept, **result, "done": ended}}}


# From steps to nodes.


class Inputs(Kind):
    """The inputs of another workflow; other nodes do its work."""

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        self._values = self.tree("with", dict(step.with_))

    def read(self, definition: Definition, scope: Scope) -> dict[str, Any]:
        """Return what the other workflow is given."""
        try:
            return read_inputs(definition.workflow, self._values.render(scope), how="`with`")
        except InputInvalid as error:
            assert self._step.workflow is not None
            problems = "; ".join(error.problems)
            raise StepFailed(f"with: {self._step.workflow.file} cannot begin: {problems}") from None


MAX_DEPTH = 10
"""How deep sub-workflows may be nested."""

_KINDS = {
    "python": "python.CallPython",
    "shell": "shell.RunCommand",
    "http": "http.SendRequest",
    "agent": "agent.CallAgent",
    "ask": "kind.AskQuestions",
    "set": "kind.SetValues",
    "wait": "kind.Wait",
    "file": "files.UseFile",
    "json_state": "files.UseJsonState",
    "sql": "sql.RunSql",
    "checkpoint": "kind.UseCheckpointFile",
    "end": "kind.End",
}
"""The modules and classes of kinds; each is imported when a file uses it."""


def kind_of(step: Step, resources: Resources) -> Kind:
    """Make what does the work of a step that is no group and no workflow."""
    module, _, name = _KINDS[step.kind].partition(".")
    made: Kind = getattr(importlib.import_module(f"holdfast.workflows.kinds.{module}"), name)(step, resources)
    return made


_REDUCED: dict[str, Any] = {
    "replace": object,
    "append": Annotated[list, append],
    "merge": Annotated[dict, merge],
    "add": Annotated[float, add],
}
"""The types of shared values in the state, by their reducers."""


Load = Callable[[Path], Definition]
"""Reads another workflow file."""


class StepInvalid(NamedTuple):
    """A step cannot be made ready; `step` is its name, with those of the steps that it is nested in."""

    step: str
    reason: str


class StepsInvalid(HoldfastError):
    """Some steps cannot be made ready; `problems` has every one of them."""

    def __init__(self, problems: Iterable[StepInvalid], inside: str = "") -> None:
        self.problems = [StepInvalid(f"{inside}{each.step}", each.reason) for each in problems]
        super().__init__("; ".join(f"step {each.step!r}: {each.reason}" for each in self.problems))


@dataclass
class Compiled:
    """A workflow's graph, and its steps' first and last nodes; steps of sub-workflows are named `outer/inner`."""

    graph: StateGraph
    first: dict[str, str] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    """The steps that the files say a run pauses before."""
    after: list[str] = field(default_factory=list)


def compile_workflow(definition: Definition, resources: Resources, load: Load, path: Path) -> Compiled:
    """Return the graph of the workflow that was read from `path`."""
    resources = dataclasses.replace(resources, workflow=definition.workflow)
    compiler = _Compiler(
        definition, Layout(definition, base=resources.base), resources, load, (path.resolve(),)
    )
    if problems := compiler.make_kinds():
        raise StepsInvalid(problems)
    return compiler.compiled()


class _Compiler:
    """One workflow on its way to a graph.

    `files` are the workflow's own file and those that it is nested in. With `ends_early`, a step that fails ends
    this workflow, which then is a failed step of another, and not the run.
    """

    def __init__(
        self,
        definition: Definition,
        layout: Layout,
        resources: Resources,
        load: Load,
        files: tuple[Path, ...],
        ends_early: bool = False,
    ) -> None:
        self.definition, self.layout, self.resources = definition, layout, resources
        self._load, self._files, self._ends_early = load, files, ends_early
        self._kinds: dict[str, Kind] = {}
        self._groups = {
            member.name: step for step in definition.steps if step.parallel for member in step.members
        }
        self._inner = {
            name: self._nested(step) for name, step in layout.steps.items() if step.workflow is not None
        }
        inside = (compiler.asks_models for _, compiler in self._inner.values())
        self.asks_models: bool = any(step.agent for step in layout.steps.values()) or any(inside)
        limit = definition.workflow.limits.max_iterations or max(100, 10 * len(layout.steps)) + _looped(
            definition
        )
        self._graph = StateGraph(self._schema(), name=definition.workflow.name, max_iterations=limit)
        self._result = Compiled(self._graph)

    def _nested(self, step: Step) -> tuple[Nested, _Compiler]:
        """Another workflow as a step of this one, and its own way to a graph."""
        assert step.workflow is not None
        file, each = step.workflow.file, step.for_each
        path = (self.resources.base / file).resolve()
        if path in self._files:
            problem = f"{file} contains itself; use a route back to repeat something"
            raise StepsInvalid([StepInvalid(step.name, problem)])
        if len(self._files) > MAX_DEPTH:
            raise StepsInvalid([StepInvalid(step.name, f"workflows are nested more than {MAX_DEPTH} deep")])
        goes_on, definition, kind = self._goes_on(step), self._load(path), Inputs(step, self.resources)
        nested = Nested(self._work(step, kind), functools.partial(kind.read, definition), goes_on)
        ends_early = goes_on or self._ends_early or (each is not None and each.on_error == "continue")
        resources = dataclasses.replace(self.resources, base=path.parent, workflow=definition.workflow)
        key = self.layout.key(step.name)
        layout = Layout(definition, f"{key}/", shared=key, is_item=each is not None, base=path.parent)
        try:
            files = (*self._files, path)
            return nested, _Compiler(definition, layout, resources, self._load, files, ends_early)
        except StepsInvalid as error:
            raise StepsInvalid(error.problems, f"{step.name}/") from error

    def _work(self, step: Step, kind: Kind) -> Work:
        group = self._groups.get(step.name)
        return Work(step, kind, self.layout, self.resources, group.name if group else "")

    def _schema(self) -> dict[str, Any]:
        """The state's keys. Those with reducers, which cost every step something, only where they are needed."""
        layout = self.layout
        keys: dict[str, Any] = {}
        if layout.shared:
            keys |= {layout.shared: dict, layout.failure_key: dict}
            if layout.is_item:
                keys[f"{layout.shared}:each"] = dict
                keys[f"{layout.shared}:items"] = Annotated[dict, merge]
        else:
            keys |= {"inputs": dict, OUTPUT: object}
        if self.asks_models:
            keys[GUIDANCE] = Annotated[dict, merge]
        for name, declared in self.definition.workflow.state_schema.items():
            keys[layout.shared_key(name)] = _REDUCED[declared.reducer]
        if any(step.checkpoint is not None and step.checkpoint.save for step in layout.steps.values()):
            keys[layout.files_key] = Annotated[dict, merge]
        for name, step in layout.steps.items():
            keys[layout.key(name)] = dict
            if step.for_each is not None:
                keys[layout.each_key(name)] = dict
                keys[layout.items_key(name)] = Annotated[dict, merge]
        return keys

    def make_kinds(self) -> list[StepInvalid]:
        """Make what does the work of every step, sub-workflows included; return all that keeps some from it."""
        problems: list[StepInvalid] = []
        for name, step in self.layout.steps.items():
            if name in self._inner:
                inner = self._inner[name][1].make_kinds()
                problems += [StepInvalid(f"{name}/{error.step}", error.reason) for error in inner]
            elif not step.members:
                try:
                    self._kinds[name] = kind_of(step, self.resources)
                except HoldfastError as error:
                    problems.append(StepInvalid(name, str(error)))
        return problems

    def compiled(self) -> Compiled:
        workflow, steps = self.definition.workflow, self.layout.steps.values()
        for step in self.definition.steps:
            self._add(step)
        Edges(self._graph, self.layout, self._result.last).add()
        by_order = follow_by_order(self.definition.steps)
        if self.definition.output is not None or self.layout.shared or not by_order:
            self._add_ending(Ending(self.layout, self.resources, by_order))
        self._result.before += workflow.interrupt_before
        self._result.before += [step.name for step in steps if step.interrupt == "before"]
        self._result.after += workflow.interrupt_after
        self._result.after += [step.name for step in steps if step.interrupt == "after"]
        return self._result

    def _add_ending(self, ending: Ending) -> None:
        text = json.dumps(self.definition.output, sort_keys=True, default=str)
        named = json.dumps(self._named(ending.paths), default=str)
        self._graph.add_node(
            OUTPUT,
            ending.finish,
            version=Fingerprint(f"output:{digest(f'{text} {named}')}"),
            reusable=not names_run(ending.paths),
            goto=[step.name for step in ending.expected],
            on_skip=never_skipped,
        )
        self._graph.set_last_node(OUTPUT)

    def _add(self, step: Step) -> None:
        """Add the nodes of a step."""
        name, goes_on = step.name, self._goes_on(step)
        self._result.first[name] = self._result.last[name] = name
        if step.parallel is not None:
            self._add_group(Group(self._work(step, Kind(step, self.resources)), goes_on))
        elif step.while_loop is not None:
            self._add_loop(Loop(self._work(step, Kind(step, self.resources)), goes_on))
        elif step.workflow is not None:
            self._add_workflow(step, *self._inner[name], goes_on)
        elif step.for_each is None:
            self._add_work(name, self._work(step, self._kinds[name]), goes_on)
        else:
            items = Items(self._work(step, self._kinds[name]), goes_on=goes_on)
            gathered = goes_on or self._ends_early or step.for_each.on_error != "fail_fast"
            self._add_work(items.item_node, items.work, gathered)
            self._surround(items)

    def _add_work(self, name: str, work: Work, goes_on: bool) -> None:
        step, breaker = work.step, work.step.circuit_breaker
        if_interrupted = "rerun" if step.idempotent else "ask" if self.resources.interactive else "fail"
        self._graph.add_node(
            name,
            work.function,
            retry=retry_of(step, work.kind),
            timeout=step.timeout if step.python is not None else None,
            circuit_breaker=CircuitBreaker(breaker.failures, breaker.reset) if breaker else None,
            if_interrupted=step.if_interrupted or if_interrupted,
            version=self._version(work),
            on_error=self._stand_in(work, goes_on),
            on_skip=work.skipped,
            max_parallel=_max_parallel(step),
            executor=step.executor if step.executor == THREADS else None,  # Any other the step uses itself.
            reads=work.reads,
            reusable=not names_run(work.paths),
        )

    def _add_group(self, group: Group) -> None:
        self._surround(group)
        for member in group.step.members:
            self._add(member)
            self._graph.add_edge(self._result.last[member.name], group.meeting_node)
        if group.long:
            self._graph.add_node(group.meeting_node, group.meet, version="meet", on_skip=never_skipped)
            self._graph.add_edge(group.meeting_node, group.done_node)

    def _add_loop(self, loop: Loop) -> None:
        """Add the steps of a loop, which follow each other and lead back to its first node."""
        self._surround(loop)
        before = ""
        for member in loop.step.members:
            self._add(member)
            if before:
                self._graph.add_edge(before, member.name)
            before = self._result.last[member.name]
        self._graph.add_edge(before, loop.step.name)

    def _add_workflow(self, step: Step, nested: Nested, inner: _Compiler, goes_on: bool) -> None:
        """Add the graph of a sub-workflow; its steps get the names that they have from here."""
        compiled, result, work = inner.compiled(), self._result, nested.work
        around = nested if step.for_each is None else Items(work, nested.inputs, goes_on)
        (node,), name = around.inner, step.name
        result.first |= {f"{name}/{step}": f"{node}/{first}" for step, first in compiled.first.items()}
        result.last |= {f"{name}/{step}": f"{node}/{last}" for step, last in compiled.last.items()}
        result.before += [f"{name}/{step}" for step in compiled.before]
        result.after += [f"{name}/{step}" for step in compiled.after]
        skip = work.broken_off if step.for_each is None else work.skipped
        self._surround(around)
        self._graph.add_node(node, compiled.graph, max_parallel=_max_parallel(step), on_skip=skip)
        if step.for_each is None:
            self._graph.add_edge(node, nested.done_node)

    def _surround(self, several: Several) -> None:
        """Add the first and the last node of a step of several nodes, and what follows the first."""
        name, done, step, work = several.step.name, several.done_node, several.step, several.work
        stand_in, is_loop = self._stand_in(work, several.goes_on), isinstance(several, Items)
        is_nested = isinstance(several, Nested)
        self._graph.add_node(
            name,
            several.iterate if isinstance(several, Loop) else several.begin,
            version=self._version(work) if is_nested else _part(step, "begin", self._named(several.paths)),
            reusable=not names_run(several.paths),
            goto=[done] if is_loop else (),
            on_error=several.not_begun if isinstance(several, Items) and several.goes_on else stand_in,
            on_skip=several.skipped,
        )
        self._graph.add_node(
            done,
            several.gather,
            version="done" if is_nested else _part(step, "gather"),
            goto=several.again,
            on_error=stand_in,
            on_skip=work.broken_off,
        )
        if is_loop:
            self._graph.add_edge(name, several.inner[0])
            self._graph.add_edge(several.inner[0], done)
        else:
            targets = {target: target for target in (*several.inner, done)}
            self._graph.add_route(GraphRoute(name, several.follow, targets, ()))
        self._result.last[name] = done

    def _goes_on(self, step: Step) -> bool:
        """Return True if the run goes on after a failure of this step as a whole, if only to the end of its group."""
        group = self._groups.get(step.name)
        if group is not None and self._ends_early:
            return True
        if step.on_error == "continue" or self.definition.workflow.checkpoint.on_failure == "continue":
            return True
        on_error = on_error_of(group) if group is not None else "fail_fast"
        # A sub-workflow that fails unless all succeed fails where it is, so that a resume goes on from there.
        return on_error == "continue" or (on_error == "all_or_nothing" and step.workflow is None)

    def _stand_in(self, work: Work, goes_on: bool) -> Callable[[Any, BaseException], Any] | None:
        """Return what stands in for a failed node: its failure as data, the end of the workflow, or nothing."""
        if goes_on:
            return work.failed
        return functools.partial(ended_early, work) if self._ends_early else None

    def _named(self, paths: Paths) -> list[tuple[str, Any]]:
        return values_named(paths, self.definition.workflow)

    def _version(self, work: Work) -> Fingerprint:
        """Return a fingerprint of what a step does, without its name, routes and description.

        Fields with their default value do not count, so that a new optional field changes no existing step.
        """
        step = work.step
        own = step.model_dump(mode="json", by_alias=True, exclude=_NO_PART_OF_THE_WORK, exclude_defaults=True)
        own["named"] = self._named(work.paths)
        own |= work.kind.settings()
        if step.for_each is not None:
            own["for_each"] = step.for_each.as_  # The others are for the nodes around the work.
        text = json.dumps(own, sort_keys=True, default=str)
        return definition_fingerprint(text, work.kind.functions())


def _max_parallel(step: Step) -> int | None:
    if step.for_each is None:
        return None
    return 1 if step.for_each.mode == "sequential" else step.for_each.max_parallel


def _looped(definition: Definition) -> int:
    """Return how many waves the loops of a workflow may take."""
    loops = [step for step in definition.steps if step.while_loop is not None]
    return sum(
        step.while_loop.max_iterations * (3 * len(step.members) + 1) for step in loops if step.while_loop
    )


_NO_PART_OF_THE_WORK = {
    *("name", "description", "routes", "after", "retry", "timeout", "parallel", "while_loop", "executor"),
    "circuit_breaker",
}


def _part(step: Step, name: str, named: Sequence[tuple[str, Any]] = ()) -> Fingerprint:
    """The same for a node around the work of a step: what the file says of beginning it, or of gathering results.

    `named` are the values of the file that this names.
    """
    said = {"when", "with_", "after"} if name == "begin" else {"on_error"}
    own = step.model_dump(mode="json", by_alias=True, include=said, exclude_defaults=True)
    if step.for_each is not None:
        around = {"max_parallel", "mode"}
        own["for_each"] = step.for_each.model_dump(mode="json", exclude=around, exclude_defaults=True)
    if step.while_loop is not None:
        own["while_loop"] = step.while_loop.model_dump(mode="json", exclude={"steps"})
    if step.parallel is not None:
        own["members"] = [[member.name, member.on_error] for member in step.members]
        own["on_error"] = on_error_of(step)
    text = json.dumps([own, named], sort_keys=True, default=str)
    return Fingerprint(f"around:{digest(text)}")
