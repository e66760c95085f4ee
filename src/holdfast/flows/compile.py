"""A workflow's definition as a graph: every step becomes a node or a few, every route an edge."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from holdfast.data.reducers import append, merge
from holdfast.data.state import State
from holdfast.define.builder import StateGraph
from holdfast.errors import HoldfastError
from holdfast.flows.for_each import Items
from holdfast.flows.groups import Group, Member
from holdfast.flows.inputs import read_inputs
from holdfast.flows.kinds.kind import Kind, Plain, Texts, rendered
from holdfast.flows.kinds.table import kind_of
from holdfast.flows.model import END_ROUTE, After, Definition, Step, SubWorkflow
from holdfast.flows.retrying import retry_of
from holdfast.flows.scope import Layout, Scope, members
from holdfast.flows.work import Router, Work
from holdfast.flows.world import World
from holdfast.plan.fingerprint import fingerprint
from holdfast.values import END, START

MAX_DEPTH = 10
"""How deep sub-workflows may be nested."""

OUTPUT = "output"
"""The last node, which makes the workflow's output."""

Load = Callable[[Path], tuple[Path, Definition]]
"""Reads another workflow file: its folder, and what it says."""


def compile_flow(definition: Definition, world: World, load: Load) -> StateGraph:
    """The graph of a workflow."""
    return _Compiler(definition, Layout(definition), world, load, ()).graph()


class _Compiler:
    """One workflow on its way to a graph. `outer` are the files that it is nested in."""

    def __init__(
        self, definition: Definition, layout: Layout, world: World, load: Load, outer: tuple[Path, ...]
    ) -> None:
        self.definition, self.layout, self.world, self.load, self.outer = (
            definition,
            layout,
            world,
            load,
            outer,
        )
        self.by_order = not any(step.after for step in definition.steps)
        limits = definition.workflow.limits
        self._graph = StateGraph(
            self._schema(), name=definition.workflow.name, max_iterations=limits.max_iterations
        )
        self._exits: dict[str, str] = {}

    def graph(self) -> StateGraph:
        for step in self.definition.steps:
            self._exits[step.name] = self._add(step)
        for index, step in enumerate(self.definition.steps):
            self._lead_on(index, step)
        self._lead_in()
        if self.definition.output is not None or self.layout.shared:
            self._add_output()
        return self._graph

    # The state.

    def _schema(self) -> dict[str, Any]:
        layout = self.layout
        keys: dict[str, Any] = {"ledger": Annotated[list, append]}
        if layout.shared:
            keys[layout.shared] = dict
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

    # Nodes.

    def _add(self, step: Step) -> str:
        """Add the nodes of a step; the one that its routes leave from."""
        if step.parallel is not None:
            return self._add_group(step)
        if step.workflow is not None:
            return self._add_workflow(step)
        work = Work(step, self._kind(step), self.layout, self.world)
        if step.for_each is not None:
            items = Items(work)
            self._add_node(items.item_node, work, step)
            return self._surround(items)
        self._add_node(step.name, work, step)
        return step.name

    def _kind(self, step: Step) -> Kind:
        try:
            return kind_of(step, self.world)
        except HoldfastError as error:
            raise StepInvalid(step.name, str(error)) from error

    def _add_node(self, name: str, work: Work, step: Step, tolerant: bool = False) -> None:
        each = step.for_each
        goes_on = (
            tolerant
            or step.on_error == "continue"
            or (each is not None and each.on_error != "fail_fast")
            or self.definition.workflow.checkpoint.on_failure == "continue"
        )
        self._graph.add_node(
            name,
            work,
            retry=retry_of(step, work.kind),
            timeout=step.timeout if step.python is not None else None,
            if_interrupted=self._if_interrupted(step),
            version=_version(step, work.kind),
            on_error=work.failed if goes_on else None,
            max_parallel=None if each is None else 1 if each.mode == "sequential" else each.max_parallel,
        )

    def _if_interrupted(self, step: Step) -> str:
        if step.if_interrupted is not None:
            return step.if_interrupted
        return "rerun" if step.idempotent else "ask" if self.world.interactive else "fail"

    def _surround(self, items: Items) -> str:
        """The nodes before and after the items of a for-each."""
        name = items.step.name
        self._graph.add_node(name, items.begin, version="begin")
        self._graph.add_conditional_edges(name, items.hand_out, [items.item_node, items.done_node])
        self._graph.add_node(items.done_node, items.gather, version="gather", goto=[items.item_node])
        self._graph.add_edge(items.item_node, items.done_node)
        return items.done_node

    def _add_group(self, step: Step) -> str:
        group = Group(Work(step, Plain(), self.layout, self.world))  # type: ignore[arg-type]
        self._graph.add_node(step.name, group.begin, version="begin")
        exits = [self._add_member(member, group) for member in members(step)]
        self._graph.add_conditional_edges(step.name, group.fan_out, [*group.names, group.done_node])
        self._graph.add_node(group.done_node, group.gather, version="gather", goto=group.names)
        self._graph.add_edge(exits, group.done_node)
        return group.done_node

    def _add_member(self, member: Step, group: Group) -> str:
        if member.for_each is not None or member.workflow is not None:
            return self._add(member)
        work = Member(member, self._kind(member), self.layout, self.world)
        work.group = group
        self._add_node(member.name, work, member, tolerant=group.on_error != "fail_fast")
        return member.name

    # Sub-workflows.

    def _add_workflow(self, step: Step) -> str:
        nested = _Nested(step, self)
        if step.for_each is not None:
            items = Items(nested.work, nested.inputs)
            self._graph.add_node(items.item_node, nested.graph(), max_parallel=step.for_each.max_parallel)
            return self._surround(items)
        flow, done = f"{step.name}:flow", f"{step.name}:done"
        self._graph.add_node(step.name, nested.begin, version=_version(step, nested.work.kind))
        self._graph.add_conditional_edges(step.name, nested.enter, [flow, done])
        self._graph.add_node(flow, nested.graph())
        self._graph.add_node(done, _nothing, version="nothing")
        self._graph.add_edge(flow, done)
        return done

    # Edges.

    def _lead_in(self) -> None:
        steps, entry = self.definition.steps, self.definition.workflow.entry
        if self.by_order:
            self._graph.add_edge(START, entry or steps[0].name)
            return
        routed = {route.to for step in steps for route in step.routes or ()}
        for step in steps:
            if not step.after and (step.name not in routed or step.name == entry):
                self._graph.add_edge(START, step.name)
            sources = [self._exits[name] for name in _waited_for(step)]
            if len(sources) > 1:
                self._graph.add_edge(sources, step.name)

    def _lead_on(self, index: int, step: Step) -> None:
        """The edges out of a step."""
        leave, followers = self._exits[step.name], self._followers(index, step)
        if step.routes:
            following = self._open_end(step, followers)
            router = Router(step, self.layout, following, lambda name: END if name == END_ROUTE else name)
            self._graph.add_conditional_edges(leave, router, router.targets())
            return
        joined = any(
            len(_waited_for(other)) > 1 and step.name in _waited_for(other) for other in self.definition.steps
        )
        if step.end is not None or (not followers and not joined):
            followers = [END]
        for name in followers:
            self._graph.add_edge(leave, name)

    def _followers(self, index: int, step: Step) -> list[str]:
        """The nodes that follow a step if no route of its own is taken, those that wait for several left out."""
        steps = self.definition.steps
        if self.by_order:
            return [steps[index + 1].name] if index + 1 < len(steps) else []
        return [other.name for other in steps if _waited_for(other) == [step.name]]

    def _open_end(self, step: Step, followers: list[str]) -> str | None:
        """Where a step with routes leads to if none of them holds; `None` if one of them has to."""
        if self.by_order:
            return None
        waiting = [other for other in self.definition.steps if step.name in _waited_for(other)]
        if not waiting:
            return None
        name = f"{step.name}:on"
        self._graph.add_node(name, _nothing, version="nothing")
        for follower in followers:
            self._graph.add_edge(name, follower)
        self._exits[step.name] = name
        return name

    # The end.

    def _add_output(self) -> None:
        texts = Texts()
        compiled = texts.tree(self.definition.output)
        layout, scrub = self.layout, self.world.scrubber.scrub

        def finish(state: State) -> Mapping[str, Any]:
            if self.definition.output is None:
                result = last_output(layout, state)
            else:
                result = rendered(compiled, Scope(layout, state))
            return _result(layout, state, scrub(result))

        version = json.dumps(self.definition.output, sort_keys=True, default=str)
        self._graph.add_node(OUTPUT, finish, version=version)
        self._graph.set_last_node(OUTPUT)


class StepInvalid(HoldfastError):
    """A step cannot be made ready; `step` is its name."""

    def __init__(self, step: str, reason: str) -> None:
        self.step, self.reason = step, reason
        super().__init__(f"step {step!r}: {reason}")


class _Nested:
    """Another workflow as a step of this one."""

    def __init__(self, step: Step, parent: _Compiler) -> None:
        self.step, self.parent = step, parent
        target = step.workflow.file if isinstance(step.workflow, SubWorkflow) else step.workflow or ""
        self.path = (parent.world.base / target).resolve()
        if self.path in parent.outer or len(parent.outer) >= MAX_DEPTH:
            raise StepInvalid(step.name, f"{target} contains itself, or is nested more than {MAX_DEPTH} deep")
        self.base, self.definition = parent.load(self.path)
        self.texts = Texts()
        self._with = self.texts.tree(step.with_)
        self.work = Work(step, _Inputs(self.texts), parent.layout, parent.world)

    def graph(self) -> StateGraph:
        step, parent = self.step, self.parent
        layout = Layout(
            self.definition,
            prefix=f"{parent.layout.key(step.name)}/",
            shared=parent.layout.key(step.name),
            is_item=step.for_each is not None,
        )
        world = dataclasses.replace(parent.world, base=self.base)
        return _Compiler(self.definition, layout, world, parent.load, (*parent.outer, self.path)).graph()

    def inputs(self, scope: Mapping[str, Any]) -> dict[str, Any]:
        """What the other workflow is given."""
        return read_inputs(self.definition.workflow, rendered(self._with, scope))

    def begin(self, state: State) -> dict[str, Any]:
        """The step's first node: the other workflow's inputs."""
        reason = self.work.why_skipped(state)
        record: dict[str, Any] = {"status": "skipped", "reason": reason}
        if not reason:
            record = {"status": "running", "inputs": self.inputs(self.work.scope(state))}
        return self.work.update(state, record)

    def enter(self, state: State) -> str:
        """What follows the first node."""
        skipped = self.parent.layout.record(state, self.step.name).get("status") == "skipped"
        return f"{self.step.name}:{'done' if skipped else 'flow'}"


class _Inputs(Plain):
    """The work of handing inputs to another workflow, which is none in itself."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts

    def run(self, scope: Mapping[str, Any], state: State, ctx: Any) -> dict[str, Any]:
        raise AssertionError("the other workflow does the work")


def _nothing(state: State) -> None:
    """A node that only stands for a place."""


def last_output(layout: Layout, state: State) -> Any:
    """The output of the step that ran last."""
    name = state.checkpoint_node.partition(":")[0]
    return layout.view(state, name).get("output") if name in layout.steps else None


def _result(layout: Layout, state: State, result: Any) -> dict[str, Any]:
    if not layout.shared:
        return {OUTPUT: result}
    if not layout.is_item:
        visits = int(state[layout.shared].get("visits", 1))
        return {layout.shared: {"status": "completed", "output": result, "visits": visits}}
    each = state[f"{layout.shared}:each"]
    found = {"index": each["index"], "visit": each["visit"], "status": "completed", "output": result}
    return {f"{layout.shared}:items": {each["key"]: found}}


def _waited_for(step: Step) -> list[str]:
    after: Iterable[Any] = step.after if isinstance(step.after, list) else [step.after] if step.after else []
    return list(dict.fromkeys(entry.step if isinstance(entry, After) else entry for entry in after))


def _version(step: Step, kind: Kind) -> str:
    """What tells whether a step is still the same: what it does, not how it is routed or described."""
    own = step.model_dump(
        mode="json", by_alias=True, exclude={"description", "routes", "after", "retry", "timeout", "parallel"}
    )
    return fingerprint(json.dumps(own, sort_keys=True, default=str) + kind.code())
