"""What templates and expressions of a workflow see of a run's state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from holdfast.data.state import State, origin_of
from holdfast.flows.model import Definition, Parallel, Step, Workflow

Names = Collection[str] | None
"""Which steps are looked at; `None` means all."""


class Layout:
    """Where a workflow keeps what in the state, and which steps it has, members of groups included.

    A sub-workflow keeps its own things under a `prefix`, and what it shares with its parent under the parent's
    step: `shared` is that step's key.
    """

    def __init__(
        self, definition: Definition, prefix: str = "", shared: str = "", is_item: bool = False
    ) -> None:
        self.definition, self.prefix, self.shared, self.is_item = definition, prefix, shared, is_item
        self.steps: dict[str, Step] = {}
        for step in definition.steps:
            self.steps[step.name] = step
            for member in members(step):
                self.steps[member.name] = member

    def key(self, name: str) -> str:
        """The state key of a step."""
        return f"{self.prefix}{name}"

    def items_key(self, name: str) -> str:
        """The state key of what the items of a for-each step result in."""
        return f"{self.prefix}{name}:items"

    def each_key(self, name: str) -> str:
        """The state key under which one item of a for-each step finds itself."""
        return f"{self.prefix}{name}:each"

    @property
    def failure_key(self) -> str:
        """The state key under which a sub-workflow that ends early notes that it failed."""
        return f"{self.prefix}:failed"

    def has_failed(self, state: Mapping[str, Any]) -> bool:
        """Whether this is a sub-workflow that has failed and only finishes what was under way."""
        return bool(self.shared) and bool(state.get(self.failure_key))

    def inputs(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs of this workflow."""
        if not self.shared:
            return state.get("inputs") or {}
        holder = state[f"{self.shared}:each"] if self.is_item else state[self.shared]
        return holder.get("inputs") or {}

    @property
    def inputs_key(self) -> str:
        """The state key that the inputs of this workflow are under."""
        if not self.shared:
            return "inputs"
        return f"{self.shared}:each" if self.is_item else self.shared

    def keys_of(self, name: str) -> Iterator[str]:
        """The state keys that a step as templates see it is made of."""
        step = self.steps[name]
        yield self.key(name)
        if step.for_each is not None:
            yield self.items_key(name)
        for member in members(step):
            yield from self.keys_of(member.name)

    def record(self, state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """What a step has left in the state."""
        return state.get(self.key(name)) or {}

    def status(self, state: Mapping[str, Any], name: str) -> str:
        """How far a step has come: pending, running, completed, failed or skipped."""
        return str(self.record(state, name).get("status", "pending"))

    def visits(self, state: Mapping[str, Any], name: str) -> int:
        """How often the run has come to a step."""
        return int(self.record(state, name).get("visits", 0))

    def visits_over(self, state: Mapping[str, Any], name: str) -> int:
        """How often the run has come to a step and is through with it: what the step's own templates see."""
        return self.visits(state, name) - (self.status(state, name) == "running")

    def view(self, state: Mapping[str, Any], name: str) -> dict[str, Any]:
        """A step as templates see it."""
        step, seen = self.steps[name], {"status": "pending", **self.record(state, name)}
        if step.for_each is not None:
            results = self.results(state, name, self.visits_over(state, name))
            seen["outputs"] = [result.get("output") for result in results.values() if "error" not in result]
            seen["errors"] = {key: result["error"] for key, result in results.items() if "error" in result}
            seen["output"] = seen["outputs"]
        elif step.parallel is not None:
            records = self.results_of_members(state, name, self.visits_over(state, name))
            seen["outputs"] = {key: found["output"] for key, found in records.items() if "output" in found}
            seen["errors"] = {key: found["error"] for key, found in records.items() if "error" in found}
            seen["output"] = seen["outputs"]
        return seen

    def results(self, state: Mapping[str, Any], name: str, visit: int) -> dict[str, Any]:
        """What the items of one visit of a for-each step resulted in, by item key, in the items' order."""
        found = state.get(self.items_key(name)) or {}
        current = [(key, value) for key, value in found.items() if value["visit"] == visit]
        return dict(sorted(current, key=lambda pair: pair[1]["index"]))

    def results_of_members(
        self, state: Mapping[str, Any], name: str, visit: int
    ) -> dict[str, dict[str, Any]]:
        """The members of a group that took part in one of its visits, as templates see them."""
        seen = {member.name: self.view(state, member.name) for member in members(self.steps[name])}
        return {member: found for member, found in seen.items() if found.get("round") == visit}


class Scope(Mapping[str, Any]):
    """The names that one step, or one route, may use. Nothing is looked at before it is asked for."""

    __slots__ = ("_layout", "_names", "_state", "_values")

    def __init__(self, layout: Layout, state: State, names: Names = None, **more: Any) -> None:
        self._layout, self._state, self._names, self._values = layout, state, names, more

    def __getitem__(self, name: str) -> Any:
        values = self._values
        if name not in values:
            values[name] = _FOUND[name](self)
        return values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in _FOUND

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_FOUND, *self._values]))

    def __len__(self) -> int:
        return len(dict.fromkeys([*_FOUND, *self._values]))

    def _known(self) -> Collection[str]:
        steps = self._layout.steps
        return steps if self._names is None else [name for name in self._names if name in steps]

    def _steps(self) -> dict[str, Any]:
        return {name: self._layout.view(self._state, name) for name in self._known()}

    def _visits(self) -> dict[str, int]:
        return {name: self._layout.visits_over(self._state, name) for name in self._known()}

    def _workflow(self) -> dict[str, str]:
        return {"name": self._layout.definition.workflow.name, "run_id": origin_of(self._state).run_id}


_FOUND: dict[str, Callable[[Scope], Any]] = {
    "inputs": lambda scope: scope._layout.inputs(scope._state),
    "steps": Scope._steps,
    "visits": Scope._visits,
    "vars": lambda scope: scope._layout.definition.workflow.vars,
    "workflow": Scope._workflow,
}


def members(step: Step) -> list[Step]:
    """The steps of a group; none for any other step."""
    if step.parallel is None:
        return []
    return step.parallel.steps if isinstance(step.parallel, Parallel) else step.parallel


def values_named(paths: Collection[tuple[str, ...]], workflow: Workflow) -> list[tuple[str, Any]]:
    """What paths find in the file and not in the state: variables, and the workflow's name."""
    found: dict[str, Any] = {}
    for path in paths:
        if path[0] == "vars":
            known = workflow.vars
            found |= {f"vars.{name}": known.get(name) for name in (path[1:2] or known)}
        elif path == ("workflow",) or path[:2] == ("workflow", "name"):
            found["workflow.name"] = workflow.name
    return sorted(found.items())


def names_run(paths: Collection[tuple[str, ...]]) -> bool:
    """Whether paths lead to what is another in every run: its id."""
    return any(path == ("workflow",) or path[:2] == ("workflow", "run_id") for path in paths)


def steps_named(paths: Collection[tuple[str, ...]]) -> Names:
    """The steps that some paths lead to; `None` if they may lead to any."""
    named: set[str] = set()
    for path in paths:
        if path[0] in ("steps", "visits"):
            if len(path) < 2:
                return None
            named.add(path[1])
    return named
