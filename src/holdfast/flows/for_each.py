"""`for_each`: the same work for every item, each journalled on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.data.state import State
from holdfast.engine.driving.context import Context
from holdfast.flows.errors import StepFailed
from holdfast.flows.kinds.kind import Texts
from holdfast.flows.language.expressions import compile_expression
from holdfast.flows.language.plain import a, kind
from holdfast.flows.scope import Scope, steps_named
from holdfast.flows.work import Work, evaluated
from holdfast.plan.graph import Command, Send

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
        texts = Texts()
        self._in = texts.tree("for_each.in", self._each.in_)
        self._key = None if self._each.key is None else compile_expression(self._each.key)
        paths = texts.paths() | (set() if self._key is None else self._key.names())
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
        """What stands in for a first node that failed: the step has failed, and the run goes on."""
        return Command(self.work.failed(state, error), [self.done_node])

    def skipped(self, state: State, reason: str) -> Command:
        """What stands in for a first node that somebody has passed over: no item is handed out."""
        return Command(self.work.skipped(state, reason), [self.done_node])

    def gather(self, state: State, ctx: Context) -> Any:
        """The step's last node: what became of the items."""
        if self.layout.status(state, self.step.name) != "running":
            return self.work.over(state)
        results, failed = self._results(state), self._failed(state)
        if not failed or self._each.on_error == "continue":
            all_failed = bool(failed) and len(failed) == len(results)
            return self._end(state, len(results), "every item failed" if all_failed else "")
        told = _told(len(results), failed)
        if self._goes_on:
            return self._end(state, len(results), told)
        if ctx.attempt == 1:
            raise StepFailed(f"{told}; a resume tries those again")
        return Command(goto=list(self._again(failed)))

    def _end(self, state: State, count: int, error: str) -> dict[str, Any] | None:
        result = {"status": "failed", "error": error} if error else {"status": "completed"}
        return self.work.over(state, **result, count=count)

    def _is_second_try(self, state: State) -> bool:
        """Whether the group that this is a member of comes back to it within one and the same round."""
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
            raise StepFailed(f"for_each.in: a list or fields are needed, and this gives {a(kind(found))}")
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
                f"for_each.key of item {index}: a text or a number is needed, not {a(kind(key))}"
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


def _told(count: int, failed: Mapping[str, Mapping[str, Any]]) -> str:
    first = "; ".join(f"{key}: {result['error']}" for key, result in list(failed.items())[:3])
    return f"{len(failed)} of {count} items failed ({first}{'; …' if len(failed) > 3 else ''})"
