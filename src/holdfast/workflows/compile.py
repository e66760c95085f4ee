"""A workflow's definition as a graph: every step becomes a node or a few."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from holdfast.errors import HoldfastError, suggestion
from holdfast.graph.builder import StateGraph
from holdfast.graph.fingerprint import Fingerprint, definition_fingerprint
from holdfast.graph.graph import Route
from holdfast.graph.source_code import digest
from holdfast.graph.validation import THREADS
from holdfast.state.schema import merge
from holdfast.state.state import State
from holdfast.workflows.edges import (
    OUTPUT,
    Ending,
    Group,
    Items,
    Ways,
    ended_early,
    follow_by_order,
    is_long,
    on_error_of,
)
from holdfast.workflows.errors import InputInvalid, StepFailed
from holdfast.workflows.kinds.kind import Kind, Paths
from holdfast.workflows.model import Definition, Input, Step, WorkflowSettings
from holdfast.workflows.reading.checks import fits
from holdfast.workflows.reading.problems import given
from holdfast.workflows.scope import Layout, Resources, names_run, values_named
from holdfast.workflows.step import Work, never_skipped, retry_of, work_of

# What a workflow is given: checked against what it declares, with its defaults.


_TRUE, _FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}


def read_inputs(
    workflow: WorkflowSettings,
    values: Mapping[str, Any],
    text: Mapping[str, str] | None = None,
    how: str = "--input {name}=…",
) -> dict[str, Any]:
    """Every declared input; `values` as they are, `text` read as their types say. `InputInvalid` tells all problems.

    `how` says in these how an input is given.
    """
    problems: list[str] = []
    found: dict[str, Any] = {}
    text = text or {}
    for name in (*values, *text):
        if name not in workflow.inputs:
            problems.append(_unknown(name, workflow))
    for name, declared in workflow.inputs.items():
        try:
            found[name] = _value(name, declared, values, text, how.format(name=name))
        except ValueError as error:
            problems.append(f"input {name!r} {error}")
    if problems:
        raise InputInvalid(workflow.name, problems)
    return found


def _value(name: str, declared: Input, values: Mapping[str, Any], text: Mapping[str, str], how: str) -> Any:
    if name in text:
        value = _read(declared.type, text[name])
    elif name in values:
        value = values[name]
    elif declared.required and declared.default is None:
        about = f" ({declared.description})" if declared.description else ""
        raise ValueError(f"is missing{about}; give it with {how}")
    else:
        return declared.default
    return _checked(declared, value)


def _checked(declared: Input, value: Any) -> Any:
    if value is None and not declared.required:
        return value
    if not fits(declared.type, value):
        raise ValueError(f"must be of type {declared.type}, not {given(value)}")
    if declared.choices is not None and not any(_same(value, choice) for choice in declared.choices):
        listed = ", ".join(json.dumps(choice, ensure_ascii=False, default=str) for choice in declared.choices)
        raise ValueError(f"must be one of {listed}, not {given(value)}")
    return value


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _read(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    if kind == "boolean":
        word = text.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(f"must be true or false, not {text!r:.80}")
        return word in _TRUE
    if kind == "array" and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",")] if text.strip() else []
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        if kind == "any":
            return text
        raise ValueError(f"must be of type {kind}, not {text!r:.80}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number that can be stored")


def _unknown(name: str, workflow: WorkflowSettings) -> str:
    declared = ", ".join(workflow.inputs) or "none"
    return f"there is no input {name!r}{suggestion(name, workflow.inputs)} (declared: {declared})"


# `workflow`: another workflow file as a step of this one.


class Nested:
    """The nodes around another workflow's graph: the one that begins, and the one that it ends in."""

    def __init__(self, work: Work, definition: Definition, file: str, goes_on: bool = False) -> None:
        self.step, self.work, self.definition, self._goes_on = work.step, work, definition, goes_on
        self._outer, self._file = work.layout, file
        assert isinstance(work.kind, Inputs)
        self._with = work.kind.values

    def layout(self) -> Layout:
        """Return where the other workflow keeps its things."""
        key = self._outer.key(self.step.name)
        return Layout(self.definition, prefix=f"{key}/", shared=key, is_item=self.step.for_each is not None)

    def inputs(self, scope: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the other workflow is given."""
        try:
            return read_inputs(self.definition.workflow, self._with.render(scope), how="`with`")
        except InputInvalid as error:
            raise StepFailed(f"with: {self._file} cannot begin: {'; '.join(error.problems)}") from None

    def begin(self, state: State) -> dict[str, Any]:
        """Run the step's first node: the other workflow's inputs."""
        reason = self.work.why_skipped(state)
        if reason:
            return self.work.begun(state, {"status": "skipped", "reason": reason})
        inputs = self.inputs(self.work.scope(state))
        return self.work.begun(state, {"status": "running", "inputs": inputs})

    def enter(self, state: State) -> str:
        """Return what follows the first node."""
        runs = self._outer.status(state, self.step.name) == "running"
        return f"{self.step.name}:{'workflow' if runs else 'done'}"

    def done(self, state: State) -> dict[str, Any] | None:
        """Run the step's last node; a failure that ended the other workflow early is one of this step."""
        record = self._outer.record(state, self.step.name)
        if record.get("status") == "failed" and not self._goes_on:
            raise StepFailed(str(record.get("error")))
        return self.work.over(state)


class Inputs(Kind):
    """The inputs of another workflow; other nodes do its work."""

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        self.values = self.tree("with", dict(step.with_))


MAX_DEPTH = 10
"""How deep sub-workflows may be nested."""

_KINDS = {
    "python": "python.CallPython",
    "shell": "shell.RunCommand",
    "http": "http.SendRequest",
    "agent": "agent.CallAgent",
    "ask": "ask.AskQuestions",
    "set": "kind.SetValues",
    "wait": "kind.Wait",
    "checkpoint": "ask.UseCheckpointFile",
    "end": "kind.End",
}
"""The modules and classes of kinds; each is imported when a file uses it."""


def kind_of(step: Step, resources: Resources) -> Kind:
    """Make what does the work of a step that is no group and no workflow."""
    module, _, name = _KINDS[step.kind].partition(".")
    made: Kind = getattr(importlib.import_module(f"holdfast.workflows.kinds.{module}"), name)(step, resources)
    return made


Load = Callable[[Path], Definition]
"""Reads another workflow file."""


class StepInvalid(HoldfastError):
    """A step cannot be made ready; `step` is its name, with those of the steps that it is nested in."""

    def __init__(self, step: str, reason: str) -> None:
        self.step, self.reason = step, reason
        super().__init__(f"step {step!r}: {reason}")


class StepsInvalid(HoldfastError):
    """Some steps cannot be made ready; `problems` has every one of them."""

    def __init__(self, problems: Sequence[StepInvalid]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, problems)))


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
    compiler = _Compiler(definition, Layout(definition), resources, load, (path.resolve(),))
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
        self._inner: dict[str, tuple[Nested, _Compiler]] = {}
        self._kinds: dict[str, Kind] = {}
        for step in definition.steps:
            for each, group in [(step, None), *((member, step) for member in step.members)]:
                if each.workflow is not None:
                    self._inner[each.name] = self._nested(each, group)
        limit = definition.workflow.limits.max_iterations or max(100, 10 * len(layout.steps))
        self._graph = StateGraph(self._schema(), name=definition.workflow.name, max_iterations=limit)
        self._result = Compiled(self._graph)

    def make_kinds(self) -> list[StepInvalid]:
        """Make what does the work of every step, sub-workflows included; return all that keeps some from it."""
        problems: list[StepInvalid] = []
        for name, step in self.layout.steps.items():
            if name in self._inner:
                inner = self._inner[name][1].make_kinds()
                problems += [StepInvalid(f"{name}/{error.step}", error.reason) for error in inner]
            elif step.parallel is None:
                try:
                    self._kinds[name] = kind_of(step, self.resources)
                except HoldfastError as error:
                    problems.append(StepInvalid(name, str(error)))
        return problems

    def compiled(self) -> Compiled:
        for step in self.definition.steps:
            self._add(step)
        Ways(self._graph, self.layout, self._result.last).add()
        by_order = follow_by_order(self.definition.steps)
        if self.definition.output is not None or self.layout.shared or not by_order:
            self._add_ending(by_order)
        self._note_gates()
        return self._result

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
        for name, step in layout.steps.items():
            keys[layout.key(name)] = dict
            if step.for_each is not None:
                keys[layout.each_key(name)] = dict
                keys[layout.items_key(name)] = Annotated[dict, merge]
        return keys

    # Steps.

    def _add(self, step: Step, group: Step | None = None) -> None:
        """Add the nodes of a step."""
        self._result.first[step.name] = step.name
        if step.parallel is not None:
            self._add_group(step)
        elif step.workflow is not None:
            self._add_workflow(step, group)
        else:
            work = work_of(
                step, self._kinds[step.name], self.layout, self.resources, group.name if group else ""
            )
            goes_on = self._goes_on(step, group)
            if step.for_each is None:
                self._add_work(step.name, work, goes_on)
                self._result.last[step.name] = step.name
                return
            items = Items(work, goes_on=goes_on)
            gathered = goes_on or self._ends_early or step.for_each.on_error != "fail_fast"
            self._add_work(items.item_node, work, gathered)
            self._surround(items, goes_on)

    def _add_work(self, name: str, work: Work, goes_on: bool) -> None:
        step = work.step
        self._graph.add_node(
            name,
            work if work.kind.asks_engine or work.kind.is_async else work.alone,
            retry=retry_of(step, work.kind),
            timeout=step.timeout if step.python is not None else None,
            if_interrupted=self._if_interrupted(step),
            version=self._version(work),
            on_error=self._stand_in(work, goes_on),
            on_skip=work.skipped,
            max_parallel=_max_parallel(step),
            executor=step.executor if step.executor == THREADS else None,  # Any other the step uses itself.
            reads=work.reads,
            reusable=not names_run(work.paths),
        )

    def _named(self, paths: Paths) -> list[tuple[str, Any]]:
        return values_named(paths, self.definition.workflow)

    def _version(self, work: Work) -> Fingerprint:
        """What tells whether a step is still the same: what it does, not how it is called, routed or described."""
        step = work.step
        own = step.model_dump(mode="json", by_alias=True, exclude=_NO_PART_OF_THE_WORK)
        del own["name"]
        own["named"] = self._named(work.paths)
        if step.for_each is not None:
            own["for_each"] = step.for_each.as_  # The others are for the nodes around the work.
        text = json.dumps(own, sort_keys=True, default=str)
        return definition_fingerprint(text, work.kind.functions())

    def _if_interrupted(self, step: Step) -> str:
        if step.if_interrupted is not None:
            return step.if_interrupted
        return "rerun" if step.idempotent else "ask" if self.resources.interactive else "fail"

    def _goes_on(self, step: Step, group: Step | None = None) -> bool:
        """Return True if the run goes on after a failure of this step as a whole, if only to the end of its group."""
        if group is not None and self._ends_early:
            return True
        if step.on_error == "continue" or self.definition.workflow.checkpoint.on_failure == "continue":
            return True
        on_error = on_error_of(group) if group is not None else "fail_fast"
        # A sub-workflow that fails unless all succeed fails where it is, so that a resume goes on from there.
        return on_error == "continue" or (on_error == "all_or_nothing" and step.workflow is None)

    def _stand_in(self, work: Work, goes_on: bool = False) -> Callable[[Any, BaseException], Any] | None:
        """Return what stands in for a failed node: its failure as data, the end of the workflow, or nothing."""
        if goes_on:
            return work.failed
        return functools.partial(ended_early, work) if self._ends_early else None

    # Steps of several nodes.

    def _surround(self, items: Items, goes_on: bool) -> None:
        """The nodes before and after the items of a for-each."""
        name, stand_in = items.step.name, self._stand_in(items.work)
        self._graph.add_node(
            name,
            items.begin,
            version=_part(items.step, "begin", self._named(items.paths)),
            reusable=not names_run(items.paths),
            goto=[items.done_node],
            on_error=items.not_begun if goes_on else stand_in,
            on_skip=items.skipped,
        )
        self._graph.add_edge(name, items.item_node)
        self._graph.add_node(
            items.done_node,
            items.gather,
            version=_part(items.step, "gather"),
            goto=[items.item_node],
            on_error=stand_in,
            on_skip=items.work.broken_off,
        )
        self._graph.add_edge(items.item_node, items.done_node)
        self._result.last[name] = items.done_node

    def _add_group(self, step: Step) -> None:
        work = Work(step, Kind(step, self.resources), self.layout, self.resources)
        goes_on = self._goes_on(step)
        group, stand_in = Group(work, goes_on), self._stand_in(work, goes_on)
        self._graph.add_node(
            step.name,
            group.begin,
            version=_part(step, "begin", self._named(work.paths)),
            reusable=not names_run(work.paths),
            on_error=stand_in,
            on_skip=work.skipped,
        )
        for member in step.members:
            self._add(member, step)
        self._fan_out(step.name, group.fan_out, [*group.names, group.done_node])
        self._graph.add_node(
            group.done_node,
            group.gather,
            version=_part(step, "gather"),
            goto=group.names,
            on_error=stand_in,
            on_skip=work.broken_off,
        )
        meeting = group.done_node
        if any(map(is_long, step.members)):
            meeting = group.meeting_node
            self._graph.add_node(meeting, group.meet, version="meet", on_skip=never_skipped)
            self._graph.add_edge(meeting, group.done_node)
        for member in step.members:
            self._graph.add_edge(self._result.last[member.name], meeting)
        self._result.last[step.name] = group.done_node

    def _nested(self, step: Step, group: Step | None) -> tuple[Nested, _Compiler]:
        """Another workflow as a step of this one, and its own way to a graph."""
        assert step.workflow is not None
        file = step.workflow.file
        path = (self.resources.base / file).resolve()
        if path in self._files:
            raise StepInvalid(step.name, f"{file} contains itself; use a route back to repeat something")
        if len(self._files) > MAX_DEPTH:
            raise StepInvalid(step.name, f"workflows are nested more than {MAX_DEPTH} deep")
        work = Work(
            step, Inputs(step, self.resources), self.layout, self.resources, group.name if group else ""
        )
        goes_on = self._goes_on(step, group)
        nested = Nested(work, self._load(path), file, goes_on)
        each = step.for_each
        ends_early = goes_on or self._ends_early or (each is not None and each.on_error == "continue")
        resources = dataclasses.replace(self.resources, base=path.parent)
        try:
            inner = _Compiler(
                nested.definition, nested.layout(), resources, self._load, (*self._files, path), ends_early
            )
        except StepInvalid as error:
            raise StepInvalid(f"{step.name}/{error.step}", error.reason) from error
        return nested, inner

    def _add_workflow(self, step: Step, group: Step | None) -> None:
        nested, inner = self._inner[step.name]
        goes_on = self._goes_on(step, group)
        compiled = inner.compiled()
        if step.for_each is not None:
            items = Items(nested.work, nested.inputs, goes_on)
            self._take_in(step.name, items.item_node, compiled)
            limit, skipped = _max_parallel(step), nested.work.skipped
            self._graph.add_node(items.item_node, compiled.graph, max_parallel=limit, on_skip=skipped)
            self._surround(items, goes_on)
            return
        sub_graph, done = f"{step.name}:workflow", f"{step.name}:done"
        stand_in = self._stand_in(nested.work, goes_on)
        self._take_in(step.name, sub_graph, compiled)
        skipped, broken_off = nested.work.skipped, nested.work.broken_off
        self._graph.add_node(
            step.name,
            nested.begin,
            version=self._version(nested.work),
            reusable=not names_run(nested.work.paths),
            on_error=stand_in,
            on_skip=skipped,
        )
        self._fan_out(step.name, nested.enter, [sub_graph, done])
        self._graph.add_node(sub_graph, compiled.graph, on_skip=broken_off)
        self._graph.add_node(done, nested.done, version="done", on_error=stand_in, on_skip=broken_off)
        self._graph.add_edge(sub_graph, done)
        self._result.last[step.name] = done

    def _fan_out(self, name: str, choose: Callable[..., Any], targets: list[str]) -> None:
        """What follows the first node of a step: whatever the file says, this is chosen in one way."""
        self._graph.add_route(Route(name, choose, {target: target for target in targets}, ()))

    def _take_in(self, name: str, node: str, inner: Compiled) -> None:
        """Know the steps of a sub-workflow by the names that they have from here."""
        result = self._result
        result.first |= {f"{name}/{step}": f"{node}/{first}" for step, first in inner.first.items()}
        result.last |= {f"{name}/{step}": f"{node}/{last}" for step, last in inner.last.items()}
        result.before += [f"{name}/{step}" for step in inner.before]
        result.after += [f"{name}/{step}" for step in inner.after]

    # The whole.

    def _add_ending(self, by_order: bool) -> None:
        ending = Ending(self.layout, self.resources, by_order)
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

    def _note_gates(self) -> None:
        workflow, steps = self.definition.workflow, self.layout.steps.values()
        self._result.before += [
            *workflow.interrupt_before,
            *(s.name for s in steps if s.interrupt == "before"),
        ]
        self._result.after += [*workflow.interrupt_after, *(s.name for s in steps if s.interrupt == "after")]


def _max_parallel(step: Step) -> int | None:
    if step.for_each is None:
        return None
    return 1 if step.for_each.mode == "sequential" else step.for_each.max_parallel


_NO_PART_OF_THE_WORK = {"description", "routes", "after", "retry", "timeout", "parallel", "executor"}


def _part(step: Step, name: str, named: Sequence[tuple[str, Any]] = ()) -> Fingerprint:
    """The same for a node around the work of a step: what the file says of beginning it, or of gathering results.

    `named` are the values of the file that this names.
    """
    said = {"when", "with_", "after"} if name == "begin" else {"on_error"}
    own = step.model_dump(mode="json", by_alias=True, include=said)
    if step.for_each is not None:
        own["for_each"] = step.for_each.model_dump(mode="json", exclude={"max_parallel", "mode"})
    if step.parallel is not None:
        own["members"] = [[member.name, member.on_error] for member in step.members]
        own["on_error"] = on_error_of(step)
    text = json.dumps([own, named], sort_keys=True, default=str)
    return Fingerprint(f"around:{digest(text)}")
