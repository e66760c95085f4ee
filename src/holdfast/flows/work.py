"""Executing one step of a workflow as a node: its scope, its condition, its failures, its secrets."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.flows.errors import StepFailed
from holdfast.flows.expressions import Expression, compile_expression
from holdfast.flows.kinds.kind import Kind
from holdfast.flows.model import After, Step
from holdfast.flows.scope import Layout, Names, Scope, steps_named
from holdfast.flows.world import World

Update = dict[str, Any]


class Work:
    """One step's node function, and what stands in for it when it fails for good."""

    def __init__(self, step: Step, kind: Kind, layout: Layout, world: World) -> None:
        self.step, self.layout, self.world = step, layout, world
        self.kind, self._key = kind, layout.key(step.name)
        self._when = None if step.when is None else compile_expression(step.when)
        paths = kind.paths() | (set() if self._when is None else self._when.names())
        self._names: Names = steps_named(paths)
        self._needed = required(step)

    def __call__(self, state: State, ctx: Context) -> Any:
        """Do the step's work and answer the update of the state, or an awaitable of it."""
        reason = self.why_skipped(state)
        if reason:
            return self.update(state, {"status": "skipped", "reason": reason})
        try:
            result = self.kind.run(self.scope(state, secrets=self.world.secrets), state, ctx)
            if inspect.isawaitable(result):
                return self._later(state, result)
            return self.update(state, {"status": "completed", **result})
        except Exception as error:
            cleaned = clean(error, self.world)
            if cleaned is error:
                raise
            raise cleaned from None

    async def _later(self, state: State, result: Awaitable[Mapping[str, Any]]) -> Update:
        try:
            return self.update(state, {"status": "completed", **await result})
        except Exception as error:
            cleaned = clean(error, self.world)
            if cleaned is error:
                raise
            raise cleaned from None

    def why_skipped(self, state: State) -> str:
        """Why the step is not to be done, or nothing."""
        for name in self._needed:
            status = self.layout.record(state, name).get("status", "pending")
            if status != "completed":
                return f"it needs {name!r}, which is {status}"
        if self._when is not None and not self._when.evaluate(self.scope(state)):
            return f"its condition does not hold: {self.step.when}"
        return ""

    def scope(self, state: State, **more: Any) -> Scope:
        """What the step's templates see."""
        each = self.each(state)
        return Scope(self.layout, state, self._names, **({} if each is None else self._item(each)), **more)

    def each(self, state: State) -> Mapping[str, Any] | None:
        """The item that this is done for, if it is done for each."""
        if self.step.for_each is None:
            return None
        found: Mapping[str, Any] = state[self.layout.each_key(self.step.name)]
        return found

    def _item(self, each: Mapping[str, Any]) -> dict[str, Any]:
        assert self.step.for_each is not None
        return {"index": each["index"], "key": each["key"], self.step.for_each.as_: each["item"]}

    def update(self, state: State, record: dict[str, Any]) -> Update:
        """What the step leaves in the state, without secrets."""
        ledger = record.pop("ledger", None)
        update: Update = {"ledger": ledger} if ledger else {}
        record = self.world.scrubber.scrub(record)
        each = self.each(state)
        if each is None:
            return {**update, self._key: {**record, "visits": self.layout.visits(state, self.step.name) + 1}}
        found = {"index": each["index"], "visit": each["visit"], **record}
        return {**update, self.layout.items_key(self.step.name): {each["key"]: found}}

    def failed(self, state: State, error: BaseException) -> Update:
        """The failure as data, so that the run can go on."""
        message = self.world.scrubber.scrub(f"{type(error).__name__}: {error}")
        spent = getattr(error, "spent", None)
        return self.update(
            state, {"status": "failed", "error": message, **({"ledger": spent} if spent else {})}
        )


def required(step: Step) -> tuple[str, ...]:
    """The steps that must have completed before this one."""
    after = step.after if isinstance(step.after, list) else [step.after] if step.after else []
    names = [(entry.step, entry.required) if isinstance(entry, After) else (entry, True) for entry in after]
    return tuple(name for name, is_required in names if is_required)


def clean(error: Exception, world: World) -> Exception:
    """The error itself, or, if there is a secret in it, what can be told of it."""
    told = "".join(traceback.format_exception(error))
    if world.scrubber.scrub(told) == told:
        return error
    shown = world.scrubber.scrub(str(error))
    transient, later = getattr(error, "transient", False), getattr(error, "retry_after", None)
    replaced = StepFailed(f"{type(error).__name__}: {shown}", transient=transient, retry_after=later)
    if hasattr(error, "spent"):
        replaced.spent = error.spent  # type: ignore[attr-defined]
    return replaced


class Router:
    """Chooses what follows a step: the first of its routes that holds."""

    def __init__(
        self, step: Step, layout: Layout, following: str | None, targets: Callable[[str], str]
    ) -> None:
        self._step, self._layout, self._following = step, layout, following
        self._routes: list[tuple[str, Expression | None]] = [
            (targets(route.to), None if route.when is None else compile_expression(route.when))
            for route in step.routes or ()
        ]
        paths: set[tuple[str, ...]] = set()
        for _, when in self._routes:
            paths |= when.names() if when is not None else set()
        self._names = steps_named(paths)

    def targets(self) -> list[str]:
        """Every node that may follow."""
        found = [target for target, _ in self._routes]
        return list(dict.fromkeys([*found, self._following] if self._following is not None else found))

    def __call__(self, state: State) -> str:
        """The node that follows."""
        record = self._layout.view(state, self._step.name)
        if record["status"] == "skipped":
            return self._default()
        scope = Scope(
            self._layout,
            state,
            self._names,
            output=record.get("output"),
            answer=record.get("answer"),
            status=record["status"],
            error=record.get("error"),
        )
        for target, when in self._routes:
            if when is None or when.evaluate(scope):
                return target
        if self._following is None:
            raise StepFailed(
                f"no route of step {self._step.name!r} holds; add one without `when` to its routes (to: $end, perhaps)"
            )
        return self._following

    def _default(self) -> str:
        """Where a step that was skipped leads to: its route without condition, or else what comes next."""
        for target, when in self._routes:
            if when is None:
                return target
        if self._following is not None:
            return self._following
        raise StepFailed(f"step {self._step.name!r} was skipped, and none of its routes is without condition")
