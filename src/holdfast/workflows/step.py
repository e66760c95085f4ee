"""Executing one step of a workflow as a node: its scope, its condition, its failures, its secrets."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.engine.context import Context
from holdfast.errors import HoldfastError, StepTimeout
from holdfast.graph.graph import Retry
from holdfast.state.ops import thaw
from holdfast.state.state import State
from holdfast.workflows.errors import BudgetExceeded, StepFailed, StepTimedOut
from holdfast.workflows.kinds.kind import Kind, Paths
from holdfast.workflows.language.templates import Expression, TemplateError, compile_expression
from holdfast.workflows.model import Retry as RetryPolicy
from holdfast.workflows.model import Step
from holdfast.workflows.scope import Layout, Names, Resources, Scope, steps_named

# When a failed step is tried again.


def retry_of(step: Step, kind: Kind) -> Retry | None:
    """Return how a step is retried: as it says; and if it says nothing, transient failures of its kind three times.

    A step that is not idempotent is not repeated unless it says so itself.
    """
    policy = step.retry
    if policy is None:
        if not kind.transient_only or not step.idempotent:
            return None
        policy = RetryPolicy()
    reasons = policy.on or ("transient" if kind.transient_only else "any")
    tests = {"any": _any, "transient": is_transient, "timeout": is_timeout}
    return Retry(policy.attempts, policy.delay, policy.backoff, policy.max_delay, tests[reasons])


def is_transient(error: BaseException) -> bool:
    """Return True if an error may well not happen again."""
    return bool(getattr(error, "transient", False)) or isinstance(
        error, (StepTimeout, ConnectionError, TimeoutError)
    )


def is_timeout(error: BaseException) -> bool:
    """Return True if an error says that something took too long."""
    late = isinstance(error, (StepTimedOut, StepTimeout, TimeoutError))
    return late or bool(getattr(error, "timed_out", False))


def _any(error: BaseException) -> bool:
    return isinstance(error, Exception)


Update = dict[str, Any]


class Work:
    """One step's node function, and what stands in for it when it fails for good.

    `group` is the parallel step that it is a member of; its results then say of which round of the group they are.
    """

    def __init__(self, step: Step, kind: Kind, layout: Layout, resources: Resources, group: str = "") -> None:
        self.step, self.layout, self.resources, self.group = step, layout, resources, group
        self.kind, self._key = kind, layout.key(step.name)
        self._when = None if step.when is None else compile_expression(step.when)
        paths = kind.paths()
        self.paths = paths | (set() if self._when is None else self._when.paths)
        """The places of the scope that its texts and its condition read."""
        self._names: Names = steps_named(self.paths)
        self._secrets = {path[1] for path in paths if path[0] == "secrets" and len(path) > 1}
        self._needed = required(step)
        self._may_skip = step.for_each is None and bool(self._needed or self._when)
        resources.recognise(self._secrets)
        self.reads = None if self._names is None or kind.takes_state else tuple(self._read(paths))

    def _read(self, paths: Paths) -> Iterator[str]:
        """Yield the state keys that the step looks at."""
        layout, own, known = self.layout, self.step.name, self.layout.steps
        yield self._key
        if self.group:
            yield layout.key(self.group)
        if layout.shared:
            yield layout.failure_key
        if self.step.for_each is not None:
            yield layout.each_key(own)
        names = set() if self._when is None else self._when.paths
        if any(path[0] == "inputs" for path in paths | names):
            yield layout.inputs_key
        for name in sorted({*(self._names or ()), *self._needed}):
            yield from layout.keys_of(name) if name in known else ()

    def __call__(self, state: State, ctx: Context) -> Update:
        """Do the step's work, for one item if it is done for each; answer the update of the state."""
        reason = self.why_skipped(state) if self._may_skip else ""
        if reason:
            return self.update(state, {"status": "skipped", "reason": reason})
        try:
            result = self.kind.run(self._full_scope(state), state, ctx)
            return self.update(state, {"status": "completed", **result})
        except Exception as error:
            failure = clean(error, self.resources)
        # Outside the handler: the error that is raised must not carry the one that it replaces.
        raise failure

    def alone(self, state: State) -> Update:
        """Return the same for work that asks nothing of the engine."""
        return self(state, None)  # type: ignore[arg-type]

    def why_skipped(self, state: State) -> str:
        """Return why the step is not to be done, or nothing."""
        if self.layout.has_failed(state):
            return "its workflow has failed"
        for name in self._needed:
            status = self.layout.status(state, name)
            if status != "completed":
                return f"it needs {name!r}, which is {status}"
        if self._when is None or evaluated(self._when, self.scope(state), "`when`"):
            return ""
        return f"its condition does not hold: {self.step.when}"

    def scope(self, state: State, **more: Any) -> Scope:
        """Return what the step's templates see."""
        each = self.each(state)
        return Scope(self.layout, state, self._names, **({} if each is None else self._item(each)), **more)

    def _full_scope(self, state: State) -> Scope:
        for name in self._secrets:
            self.resources.secrets[name]  # Raise for one that is not set before anything is done.
        return self.scope(state, secrets=self.resources.secrets)

    def each(self, state: State) -> Mapping[str, Any] | None:
        """Return the item that this is done for, if it is done for each."""
        if self.step.for_each is None:
            return None
        found: Mapping[str, Any] | None = state.get(self.layout.each_key(self.step.name))
        return found or self._each_of_old_name(state)

    def _each_of_old_name(self, state: State) -> Mapping[str, Any] | None:
        """Return the item of a step that was renamed since it was handed out: no other has one here."""
        prefix = self.layout.prefix
        for key in state:
            if key.startswith(prefix) and key.endswith(":each"):
                return state[key] or None
        return None

    def _item(self, each: Mapping[str, Any]) -> dict[str, Any]:
        assert self.step.for_each is not None
        return {"index": each["index"], "key": each["key"], self.step.for_each.as_: each["item"]}

    def update(self, state: State, record: dict[str, Any]) -> Update:
        """Return what the step leaves in the state, without secrets."""
        record = self.resources.hide(record)
        each = self.each(state)
        if each is None:
            return self.begun(state, record)
        found = {"index": each["index"], "visit": each["visit"], **record}
        return {self.layout.items_key(self.step.name): {each["key"]: found}}

    def begun(self, state: State, record: Mapping[str, Any]) -> Update:
        """Return the step's own record, of another visit unless the last one is still under way."""
        before = self.layout.record(state, self.step.name)
        counted = {**record, "visits": before.get("visits", 0) + (before.get("status") != "running")}
        if self.group:
            counted["round"] = self.layout.visits(state, self.group)
        return {self._key: counted}

    def over(self, state: State, **changes: Any) -> Update | None:
        """Return the record of a step of several nodes when its last one is done; nothing if nothing changes.

        A group knows by it, and by nothing that comes earlier, that the step leads on.
        """
        changes |= {"over": True} if self.group else {}
        return (
            {self._key: {**thaw(self.layout.record(state, self.step.name)), **changes}} if changes else None
        )

    def skipped(self, state: State, reason: str) -> Update | None:
        """Return what stands in for the step when somebody has it passed over; one item of it leaves nothing."""
        return None if self.each(state) is not None else self.begun(state, _passed_over(reason))

    def broken_off(self, state: State, reason: str) -> Update | None:
        """Return the same for a step of several nodes that is under way."""
        return self.over(state, **_passed_over(reason))

    def failed(self, state: State, error: BaseException) -> Update:
        """The failure as data, so that the run can go on; what was worked on is kept with it, to be tried again."""
        if isinstance(error, BudgetExceeded):
            raise error
        record: dict[str, Any] = {"status": "failed", "error": error_text(error)}
        each = self.each(state)
        if each is not None:
            record |= {name: each[name] for name in ("item", "inputs") if name in each}
        return self.update(state, record)


def _passed_over(reason: str) -> dict[str, str]:
    return {"status": "skipped", "reason": reason}


def never_skipped(state: State, reason: str) -> None:
    """What stands in for a node that is no step of the file: nothing does."""
    raise StepFailed("it only leads on to what follows; skip that")


class AsyncWork(Work):
    """The same for work that is awaited."""

    async def __call__(self, state: State, ctx: Context) -> Update:  # type: ignore[override]
        reason = self.why_skipped(state) if self._may_skip else ""
        if reason:
            return self.update(state, {"status": "skipped", "reason": reason})
        try:
            result = await self.kind.run(self._full_scope(state), state, ctx)
            return self.update(state, {"status": "completed", **result})
        except Exception as error:
            failure = clean(error, self.resources)
        raise failure


def work_of(step: Step, kind: Kind, layout: Layout, resources: Resources, group: str = "") -> Work:
    """Return the node function of a step."""
    return (AsyncWork if kind.is_async else Work)(step, kind, layout, resources, group)


def required(step: Step) -> tuple[str, ...]:
    """Return the steps that must have completed before this one."""
    return tuple(after.step for after in step.after if after.required)


def evaluated(expression: Expression, scope: Scope, field: str) -> Any:
    """Evaluate an expression; errors name the field that it stands in."""
    try:
        return expression.value(scope)
    except TemplateError as error:
        raise StepFailed(f"{field}: {error}") from None


def error_text(error: BaseException) -> str:
    """Return a failure in one line, with its type unless it is an error of ours."""
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"


def clean(error: Exception, resources: Resources) -> Exception:
    """Return the error, or one without its secrets if there are any in it or in what led to it."""
    if not resources.secrets.remembered():
        return error
    shown = "".join(traceback.format_exception(error))
    if resources.scrubber.scrub(shown) == shown:
        return error
    replaced = StepFailed(
        resources.hide_cut(error_text(error)),
        transient=is_transient(error),
        retry_after=getattr(error, "retry_after", None),
    )
    replaced.timed_out = is_timeout(error)  # type: ignore[attr-defined]
    return replaced
