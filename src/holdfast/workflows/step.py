"""The nodes of one step: its work, with scope, condition, failures and secrets, and the nodes around many."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.errors import HoldfastError, StepTimeout
from holdfast.graph.graph import Command, Retry, Send
from holdfast.state.ops import thaw
from holdfast.state.state import State, origin_of
from holdfast.workflows.kinds.kind import Kind, Paths, Tree
from holdfast.workflows.language.templates import Expression, TemplateError, compile_expression
from holdfast.workflows.language.values import describe_kind, kind
from holdfast.workflows.model import Retry as RetryPolicy
from holdfast.workflows.model import Step
from holdfast.workflows.reading.checks import fits
from holdfast.workflows.reading.problems import given
from holdfast.workflows.scope import (
    GUIDANCE,
    BudgetExceeded,
    Layout,
    Names,
    Resources,
    Scope,
    StepFailed,
    StepTimedOut,
    steps_named,
)
from holdfast.workflows.settings import OnError

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
    tests = {"any": _is_exception, "transient": is_transient, "timeout": is_timeout}
    test = tests[policy.on or ("transient" if kind.transient_only else "any")]
    return Retry(policy.attempts, policy.delay, policy.backoff, policy.max_delay, test)


def _is_exception(error: BaseException) -> bool:
    return isinstance(error, Exception)


def is_transient(error: BaseException) -> bool:
    """Return True if an error may well not happen again."""
    passing = isinstance(error, (StepTimeout, ConnectionError, TimeoutError))
    return passing or bool(getattr(error, "transient", False))


def is_timeout(error: BaseException) -> bool:
    """Return True if an error says that something took too long."""
    late = isinstance(error, (StepTimedOut, StepTimeout, TimeoutError))
    return late or bool(getattr(error, "timed_out", False))


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
        self._uses_tmp = any(path[0] == "tmp" for path in paths)
        resources.scratch.is_used = resources.scratch.is_used or self._uses_tmp
        self._needed = tuple(after.step for after in step.after if after.required)
        self._may_skip = step.for_each is None and bool(self._needed or self._when)
        resources.recognise(self._secrets)
        self.reads = None if self._names is None or kind.takes_state else tuple(self._read())

    def _read(self) -> Iterator[str]:
        """Yield the state keys that the step looks at."""
        layout, known = self.layout, self.layout.steps
        yield self._key
        if self.group:
            yield layout.key(self.group)
        if layout.shared:
            yield layout.failure_key
        if self.step.for_each is not None:
            yield layout.each_key(self.step.name)
        reads_shared = any(path[0] == "state" for path in self.paths)
        if reads_shared or any(path[0] == "inputs" for path in self.paths):
            yield layout.inputs_key
        if self.step.agent is not None:
            yield GUIDANCE
        yield from (layout.shared_key(name) for name in layout.shared_names if reads_shared)
        if any(path[0] == "checkpoint" for path in self.paths):
            yield layout.files_key
        for name in sorted({*(self._names or ()), *self._needed}):
            yield from layout.keys_of(name) if name in known else ()

    def __call__(self, state: State, ctx: Context) -> Update:
        """Do the step's work, for one item if it is done for each; return the update of the state."""
        if reason := self._may_skip and self.why_skipped(state):
            return self.update(state, {"status": "skipped", "reason": reason})
        try:
            scope = self._full_scope(state)
            if self._secrets:
                ctx._host.note(ctx._use_secrets(sorted(self._secrets)), ctx)
            result = self.kind.run(scope, state, ctx)
            return self.update(state, {"status": "completed", **result})
        except Exception as error:
            failure = clean(error, self.resources)
        # Outside the handler: the error that is raised must not carry the one that it replaces.
        raise failure

    async def awaited(self, state: State, ctx: Context) -> Update:
        """Do the same for work that is awaited."""
        if reason := self._may_skip and self.why_skipped(state):
            return self.update(state, {"status": "skipped", "reason": reason})
        try:
            scope = self._full_scope(state)
            if self._secrets:
                await ctx._host.note_async(ctx._use_secrets(sorted(self._secrets)), ctx)
            result = await self.kind.run(scope, state, ctx)
            return self.update(state, {"status": "completed", **result})
        except Exception as error:
            failure = clean(error, self.resources)
        raise failure

    def alone(self, state: State) -> Update:
        """Do the same for work that asks nothing of the engine."""
        return self(state, None)  # type: ignore[arg-type]

    @property
    def function(self) -> Callable[..., Any]:
        """The node function: the form of the work that the kind needs."""
        if self.kind.is_async:
            return self.awaited
        return self if self.kind.asks_engine or self._secrets else self.alone

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
        each, loop = self.each(state), self.step.for_each
        if each is not None and loop is not None:
            more |= {"index": each["index"], "key": each["key"], loop.as_: each["item"]}
        return Scope(self.layout, state, self._names, **more)

    def _full_scope(self, state: State) -> Scope:
        for name in self._secrets:
            self.resources.secrets[name]  # Raise for one that is not set before anything is done.
        more = {"tmp": self._tmp(origin_of(state).run_id)} if self._uses_tmp else {}
        return self.scope(state, secrets=self.resources.secrets, **more)

    def _tmp(self, run_id: str) -> str:
        try:
            return self.resources.scratch.folder(run_id)
        except (OSError, ValueError) as error:
            raise StepFailed(f"tmp: the run has no temporary folder: {error}") from None

    def each(self, state: State) -> Mapping[str, Any] | None:
        """Return the item that this is done for, if it is done for each."""
        if self.step.for_each is None:
            return None
        if found := state.get(self.layout.each_key(self.step.name)):
            return found  # type: ignore[no-any-return]
        # The step may have been renamed since its items were handed out: no other has one here.
        ends = (key for key in state if key.startswith(self.layout.prefix) and key.endswith(":each"))
        old = next(ends, None)
        return (state[old] or None) if old is not None else None

    def update(self, state: State, record: dict[str, Any]) -> Update:
        """Return what the step leaves in the state, without secrets."""
        record = self.resources.hide(record)
        shared, each = self.shared(record.get("output")), self.each(state)
        if self.step.checkpoint is not None and self.step.checkpoint.save:
            shared |= self._saved(record.get("output"))
        if each is None:
            return {**self.begun(state, record), **shared}
        found = {"index": each["index"], "visit": each["visit"], **record}
        return {self.layout.items_key(self.step.name): {each["key"]: found}, **shared}

    def _saved(self, output: Any) -> Update:
        """Return the checkpoint file that the step has saved, for `checkpoint.last`."""
        path = output.get("checkpoint_path") if isinstance(output, dict) else None
        return {self.layout.files_key: {path: clock.visible_time()}} if isinstance(path, str) else {}

    def shared(self, output: Any) -> Update:
        """Return the values of an output that steps share, checked against the workflow's `state_schema`."""
        declared = self.layout.definition.workflow.state_schema
        found: Update = {}
        for name in declared if isinstance(output, dict) else ():
            if name not in output:
                continue
            wanted, got = declared[name].value_type, given(output[name])
            if output[name] is not None and not fits(wanted, output[name]):
                raise StepFailed(f"output.{name}: workflow.state_schema needs the type {wanted}, not {got}")
            found[self.layout.shared_key(name)] = output[name]
        return found

    def begun(self, state: State, record: Mapping[str, Any]) -> Update:
        """Return the update of the step's own record: one more visit, unless the last visit is still running."""
        before = self.layout.record(state, self.step.name)
        counted = {**record, "visits": before.get("visits", 0) + (before.get("status") != "running")}
        if "done" in before and "done" not in record:
            counted["done"] = thaw(before["done"])
        if self.group:
            counted["round"] = self.layout.visits(state, self.group)
        return {self._key: counted}

    def over(self, state: State, **changes: Any) -> Update | None:
        """Return the record of a step of several nodes when its last one is done; nothing if nothing changes.

        A group knows by it, and by nothing that comes earlier, that the step leads on.
        """
        changes |= {"over": True} if self.group else {}
        before = self.layout.record(state, self.step.name)
        return {self._key: {**thaw(before), **changes}} if changes else None

    def skipped(self, state: State, reason: str) -> Any:
        """Return what stands in for the step when somebody has it passed over; one item of it leaves nothing."""
        if self.each(state) is not None:
            return None
        return self.begun(state, {"status": "skipped", "reason": reason})

    def broken_off(self, state: State, reason: str) -> Update | None:
        """Return the same for a step of several nodes that is under way."""
        return self.over(state, status="skipped", reason=reason)

    def failed(self, state: State, error: BaseException) -> Update:
        """The failure as data, so that the run can go on; what was worked on is kept with it, to be tried again."""
        if isinstance(error, BudgetExceeded):
            raise error
        record: dict[str, Any] = {"status": "failed", "error": error_text(error)}
        each = self.each(state)
        if each is not None:
            record |= {name: each[name] for name in ("item", "inputs") if name in each}
        return self.update(state, record)


def never_skipped(state: State, reason: str) -> None:
    """What stands in for a node that is no step of the file: nothing does."""
    raise StepFailed("it only leads on to what follows; skip that")


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
    text, after = resources.hide_cut(error_text(error)), getattr(error, "retry_after", None)
    replaced = StepFailed(text, transient=is_transient(error), retry_after=after)
    replaced.timed_out = is_timeout(error)  # type: ignore[attr-defined]
    return replaced


# Steps of several nodes: `for_each`, `parallel`, `while_loop` and `workflow`.


class Several:
    """The nodes around the work of a step: the first one begins, `inner` follow it, the last one gathers.

    With `goes_on`, what fails makes a failed step and not a failed run.
    """

    inner: list[str]
    again: list[str]
    """The nodes that the last one may lead back to."""
    part, shown = "", 3
    excused: Collection[str] = ()
    """The parts whose failures are no failures of the step."""
    on_error: OnError = "fail_fast"

    def __init__(self, work: Work, goes_on: bool = False) -> None:
        self.step, self.layout, self.work, self.goes_on = work.step, work.layout, work, goes_on
        self.paths = work.paths
        """The places of the scope that beginning reads."""
        self.done_node = f"{self.step.name}:done"

    def begin(self, state: State) -> Any:
        """Run the first node: it begins another visit, or is skipped."""
        reason = self.work.why_skipped(state)
        record = {"status": "skipped", "reason": reason} if reason else self._started(state)
        return self.work.begun(state, record)

    def _started(self, state: State) -> dict[str, Any]:
        return {"status": "running"}

    def follow(self, state: State) -> list[str]:
        """Return what follows the first node."""
        return self.inner if self._is_running(state) else [self.done_node]

    def _is_running(self, state: State) -> bool:
        return self.layout.status(state, self.step.name) == "running"

    def skipped(self, state: State, reason: str) -> Any:
        """Return what stands in for a first node that somebody has passed over."""
        return self.work.skipped(state, reason)

    def gather(self, state: State, ctx: Context) -> Any:
        """Run the last node: what became of the parts."""
        raise NotImplementedError

    def _ended(self, state: State, ctx: Context, results: Mapping[str, Any], **more: Any) -> Any:
        """End the step by what became of its parts, or lead back to those that failed."""
        failed = {name: found for name, found in results.items() if "error" in found}
        blamed = {name: found for name, found in failed.items() if name not in self.excused}
        error = ""
        if blamed and self.on_error != "continue":
            texts = [f"{name}: {found['error']}" for name, found in blamed.items()][: self.shown]
            texts += ["…"] if len(texts) < len(blamed) else []
            error = f"{len(blamed)} of {len(results)} {self.part}s failed ({'; '.join(texts)})"
            if not self.goes_on and ctx.attempt == 1:
                raise StepFailed(f"{error}; a resume tries those again")
            if not self.goes_on:
                return Command(goto=self._sent_again(blamed))
        elif failed and len(failed) == len(results):
            error = f"every {self.part} failed"
        result = {"status": "failed", "error": error} if error else {"status": "completed"}
        return self.work.over(state, **result, **more)

    def _sent_again(self, blamed: Mapping[str, Any]) -> list[Any]:
        return list(blamed)


class Nested(Several):
    """The nodes around another workflow's graph."""

    def __init__(self, work: Work, inputs: Callable[[Scope], dict[str, Any]], goes_on: bool = False) -> None:
        super().__init__(work, goes_on)
        self.inputs, self.inner, self.again = inputs, [f"{self.step.name}:workflow"], []

    def _started(self, state: State) -> dict[str, Any]:
        return {"status": "running", "inputs": self.inputs(self.work.scope(state))}

    def gather(self, state: State, ctx: Context) -> Any:
        """Run the step's last node; a failure that ended the other workflow early is one of this step."""
        record = self.layout.record(state, self.step.name)
        if record.get("status") == "failed" and not self.goes_on:
            raise StepFailed(str(record.get("error")))
        return {**(self.work.over(state) or {}), **self.work.shared(record.get("output"))} or None


class Group(Several):
    """The nodes around the members of a parallel step; those of several nodes meet before they are gathered."""

    part, shown = "member", 1000

    def __init__(self, work: Work, goes_on: bool = False) -> None:
        super().__init__(work, goes_on)
        members = self.step.members
        self.inner = self.again = [member.name for member in members]
        self.long = [member.name for member in members if member.for_each or member.workflow]
        """The members that are made of several nodes, one after the other."""
        self.excused = {member.name for member in members if member.on_error == "continue"}
        self.on_error = on_error_of(self.step)
        self.meeting_node = f"{self.step.name}:met" if self.long else self.done_node

    def meet(self, state: State) -> Command:
        """Lead on when all members of several nodes are through.

        It looks at what was when it began, so that a member which is through meanwhile is counted when it comes.
        """
        visit = self.layout.visits(state, self.step.name)
        records = [self.layout.record(state, name) for name in self.long]
        under_way = any(found.get("round") == visit and not found.get("over") for found in records)
        return Command(goto=() if under_way else (self.done_node,))

    def gather(self, state: State, ctx: Context) -> Any:
        """Run the group's last node: what became of its members. One that the file has now is begun."""
        name = self.step.name
        if not self._is_running(state):
            return None
        results = self.layout.results_of_members(state, name, self.layout.visits(state, name))
        new = [member for member in self.inner if member not in results]
        if new:
            return Command(goto=tuple(new))
        return self._ended(state, ctx, results)


class Loop(Several):
    """The nodes around the steps of a loop. The first one begins every iteration, the last one ends the loop."""

    def __init__(self, work: Work, goes_on: bool = False) -> None:
        super().__init__(work, goes_on)
        assert self.step.while_loop is not None
        self._loop, self._condition = self.step.while_loop, compile_expression(self.step.while_loop.condition)
        self.inner, self.again = [self.step.members[0].name], []
        self.paths = work.paths | self._condition.paths

    def iterate(self, state: State, ctx: Context) -> Any:
        """Run the first node: it begins the first iteration of another visit, the next one, or ends the loop."""
        if not self._is_running(state) and (reason := self.work.why_skipped(state)):
            return self.work.begun(state, {"status": "skipped", "reason": reason})
        before = self.layout.record(state, self.step.name) if self._is_running(state) else {}
        done, granted = before.get("iterations", 0), before.get("granted", 0)
        scope = Scope(self.layout, state, None, iteration=done)
        again = bool(evaluated(self._condition, scope, "while_loop.condition"))
        if again and done >= self._loop.max_iterations + granted:
            more = self._more(done, ctx)
            again, granted = more > 0, granted + more
        record = {"status": "running", "iterations": done + again, "again": again}
        return self.work.begun(state, {**record, "granted": granted} if granted else record)

    def _more(self, done: int, ctx: Context) -> int:
        """Return how many more iterations there may be than the file says."""
        if self._loop.on_limit == "stop":
            return 0
        limit = f"the condition still holds after {done} iterations"
        if self._loop.on_limit == "fail":
            raise StepFailed(f"while_loop: {limit}; raise max_iterations in the workflow file, then resume")
        if self.work.resources.skip_gates:
            return 0
        question = f"{self.step.name}: {limit}. How many more? 0 ends the loop."
        return int(ctx.ask(question, name=f"{self.step.name}.more", schema={"type": "integer", "minimum": 0}))

    def follow(self, state: State) -> list[str]:
        """Return what follows the first node: the first step of an iteration, or the end."""
        again = self._is_running(state) and self.layout.record(state, self.step.name).get("again")
        return self.inner if again else [self.done_node]

    def gather(self, state: State, ctx: Context) -> Any:
        """Run the last node: the output of the loop is that of its last step."""
        if not self._is_running(state):
            return None
        last = self.layout.view(state, self.step.members[-1].name)
        before = self.layout.record(state, self.step.name)
        result = {"status": "completed", "iterations": before["iterations"], "output": last.get("output")}
        return {self.layout.key(self.step.name): {**result, "visits": before["visits"]}}


def on_error_of(group: Step) -> OnError:
    """Return what a group does when members fail."""
    return group.parallel.on_error if group.parallel is not None else "fail_fast"


MAX_ITEMS = 100_000


class Items(Several):
    """The nodes around the same work for every item, each journalled on its own: the first one hands out the items.

    `inputs` makes what a sub-workflow is given for an item.
    """

    part = "item"

    def __init__(
        self, work: Work, inputs: Callable[[Scope], Mapping[str, Any]] | None = None, goes_on: bool = False
    ) -> None:
        super().__init__(work, goes_on)
        self.item_node = f"{self.step.name}:item"
        self.inner = self.again = [self.item_node]
        self._inputs = inputs
        assert self.step.for_each is not None
        self._each, self.on_error = self.step.for_each, self.step.for_each.on_error
        self._in = Tree("for_each.in", self._each.in_)
        self._key = None if self._each.key is None else compile_expression(self._each.key)
        paths: Paths = self._in.paths | (set() if self._key is None else self._key.paths)
        self._names = steps_named(paths) if inputs is None else None
        self.paths = paths | work.paths

    def begin(self, state: State) -> Command:
        """Run the first node: it hands out the items of another visit, or those that failed, or is skipped."""
        reason, name, group = self.work.why_skipped(state), self.step.name, self.work.group
        if reason:
            return self.skipped(state, reason)
        before = self.layout.record(state, name)
        if group and before.get("status") == "failed":
            # The group that this is a member of may come back to it within one and the same round.
            failed = {key: found for key, found in self._results(state).items() if "error" in found}
            if failed and before.get("round") == self.layout.visits(state, group):
                record = {"visits": before["visits"], "round": before["round"], "status": "running"}
                return Command({self.layout.key(name): record}, self._sent_again(failed))
        sends, record = tuple(self._sends(state)), dict[str, Any](status="running")
        if before:  # The items of this visit may have the keys of the last one's.
            record["done"] = self.layout.ended(state, [name])
        return Command(self.work.begun(state, record), sends or (self.done_node,))

    def not_begun(self, state: State, error: BaseException) -> Command:
        """Return what stands in for a first node that failed: the step has failed, and the run goes on."""
        return Command(self.work.failed(state, error), [self.done_node])

    def skipped(self, state: State, reason: str) -> Command:
        """Return what stands in for a first node that is passed over: no item is handed out."""
        return Command(self.work.begun(state, {"status": "skipped", "reason": reason}), [self.done_node])

    def gather(self, state: State, ctx: Context) -> Any:
        """Run the step's last node: what became of the items."""
        if not self._is_running(state):
            return self.work.over(state)
        results = self._results(state)
        return self._ended(state, ctx, results, count=len(results))

    def _results(self, state: State) -> dict[str, Any]:
        return self.layout.results(state, self.step.name, self.layout.visits(state, self.step.name))

    def _sends(self, state: State) -> Iterator[Send]:
        visit = self.layout.visits(state, self.step.name) + 1
        for index, (key, item) in enumerate(self._items(state)):
            each: dict[str, Any] = {"item": item, "index": index, "key": key, "visit": visit}
            if self._inputs is not None:
                each["inputs"] = self._inputs(self._scope(state, item, index, key))
            yield self._send(key, each)

    def _sent_again(self, blamed: Mapping[str, Any]) -> list[Any]:
        """Send items that failed once more, as they were: the list they came from may have changed."""
        kept = ("item", "inputs", "index", "visit")
        return [
            self._send(key, {**{name: found[name] for name in kept if name in found}, "key": key})
            for key, found in blamed.items()
        ]

    def _send(self, key: str, each: dict[str, Any]) -> Send:
        return Send(self.item_node, {self.layout.each_key(self.step.name): each}, key)

    def _items(self, state: State) -> list[tuple[str, Any]]:
        """Return the items with their keys; raise if two have the same key, or there are too many."""
        found = self._in.fill(Scope(self.layout, state, self._names))
        if not isinstance(found, (dict, list, tuple)):
            given = describe_kind(found)
            raise StepFailed(f"for_each.in: a list or fields are needed, and this gives {given}")
        if len(found) > MAX_ITEMS:
            raise StepFailed(f"for_each.in: there are {len(found):,} items; at most {MAX_ITEMS:,} are taken")
        pairs = found.items() if isinstance(found, dict) else enumerate(found)
        items: dict[str, Any] = {}
        for index, (place, item) in enumerate(pairs):
            key = str(place) if self._key is None else self._named(self._key, state, item, index)
            if key in items:
                raise StepFailed(
                    f"for_each.key: items {list(items).index(key)} and {index} have one key, {key!r}; "
                    "give `key` an expression that tells them apart"
                )
            items[key] = item
        return list(items.items())

    def _named(self, expression: Expression, state: State, item: Any, index: int) -> str:
        field = f"for_each.key of item {index}"
        key = evaluated(expression, self._scope(state, item, index, str(index)), field)
        if kind(key) not in ("text", "number") or not str(key):
            raise StepFailed(f"{field}: a text or a number is needed, not {describe_kind(key)}")
        return str(key)

    def _scope(self, state: State, item: Any, index: int, key: str) -> Scope:
        return Scope(self.layout, state, self._names, **{"index": index, "key": key, self._each.as_: item})
