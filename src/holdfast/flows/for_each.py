"""`for_each`: the same work for every item, each journalled on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.data.frozen import thaw
from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.flows.errors import StepFailed
from holdfast.flows.expressions import compile_expression
from holdfast.flows.kinds.kind import Texts, rendered
from holdfast.flows.scope import Scope, steps_named
from holdfast.flows.work import Work
from holdfast.plan.graph import Command, Send

MAX_ITEMS = 100_000

Inputs = Callable[[Scope], Mapping[str, Any]]


class Items:
    """The nodes around the work: the one that counts, the one that hands out, the one that gathers."""

    def __init__(self, work: Work, inputs: Inputs | None = None) -> None:
        self.step, self.layout, self._work, self._inputs = work.step, work.layout, work, inputs
        assert self.step.for_each is not None
        self._each = self.step.for_each
        texts = Texts()
        self._in = texts.tree(self._each.in_)
        self._key = None if self._each.key is None else compile_expression(self._each.key)
        paths = texts.paths() | (set() if self._key is None else self._key.names())
        self._names = steps_named(paths) if inputs is None else None

    @property
    def item_node(self) -> str:
        return f"{self.step.name}:item"

    @property
    def done_node(self) -> str:
        return f"{self.step.name}:done"

    def begin(self, state: State) -> dict[str, Any]:
        """The step's first node: it begins another visit, or is skipped."""
        reason = self._work.why_skipped(state)
        record = {"status": "skipped", "reason": reason} if reason else {"status": "running"}
        visits = self.layout.visits(state, self.step.name) + 1
        return {self.layout.key(self.step.name): {**record, "visits": visits}}

    def hand_out(self, state: State) -> list[Any]:
        """What follows the first node: every item on its own."""
        if self.layout.record(state, self.step.name).get("status") == "skipped":
            return [self.done_node]
        return list(self._sends(state)) or [self.done_node]

    def gather(self, state: State, ctx: Context) -> Any:
        """The step's last node: what became of the items."""
        name, record = self.step.name, self.layout.record(state, self.step.name)
        if record.get("status") == "skipped":
            return None
        results = self.layout.results(state, name)
        failed = {key: result["error"] for key, result in results.items() if "error" in result}
        if failed and self._each.on_error == "all_or_nothing":
            if ctx.attempt == 1:
                raise StepFailed(_told(len(results), failed))
            return Command(goto=[send for send in self._sends(state) if send.key in failed])
        status = "failed" if results and len(failed) == len(results) else "completed"
        return {self.layout.key(name): {**thaw(record), "status": status, "count": len(results)}}

    def _sends(self, state: State) -> Iterator[Send]:
        visit = self.layout.visits(state, self.step.name)
        for index, (key, item) in enumerate(self._items(state)):
            each: dict[str, Any] = {"item": item, "index": index, "key": key, "visit": visit}
            if self._inputs is not None:
                each["inputs"] = self._inputs(self._scope(state, item, index, key))
            yield Send(self.item_node, {self.layout.each_key(self.step.name): each}, key)

    def _items(self, state: State) -> list[tuple[str, Any]]:
        found = rendered(self._in, Scope(self.layout, state, self._names))
        if isinstance(found, dict):
            pairs = [(str(key), value) for key, value in found.items()]
        elif isinstance(found, (list, tuple)):
            pairs = [(str(index), value) for index, value in enumerate(found)]
        else:
            kind = type(found).__name__
            raise StepFailed(
                f"for_each of step {self.step.name!r} needs a list or a dict, and `in` gives {kind}: {found!r:.80}"
            )
        if len(pairs) > MAX_ITEMS:
            raise StepFailed(
                f"for_each of step {self.step.name!r} has {len(pairs)} items; at most {MAX_ITEMS} are taken"
            )
        if self._key is not None:
            pairs = [(self._named(state, value, index), value) for index, (_, value) in enumerate(pairs)]
        self._refuse_twins(pairs)
        return pairs

    def _named(self, state: State, item: Any, index: int) -> str:
        assert self._key is not None
        key = str(self._key.evaluate(self._scope(state, item, index, str(index))))
        if not key:
            raise StepFailed(
                f"the key of item {index} of step {self.step.name!r} is empty ({self._each.key})"
            )
        return key

    def _scope(self, state: State, item: Any, index: int, key: str) -> Scope:
        return Scope(self.layout, state, self._names, **{"index": index, "key": key, self._each.as_: item})

    def _refuse_twins(self, pairs: list[tuple[str, Any]]) -> None:
        seen: dict[str, int] = {}
        for index, (key, _) in enumerate(pairs):
            if key in seen:
                raise StepFailed(
                    f"items {seen[key]} and {index} of step {self.step.name!r} have one key, {key!r}; "
                    "give `key` an expression that tells them apart"
                )
            seen[key] = index


def _told(count: int, failed: Mapping[str, str]) -> str:
    first = "; ".join(f"{key}: {error}" for key, error in list(failed.items())[:3])
    return (
        f"{len(failed)} of {count} failed, and all or nothing is wanted ({first}); a resume tries those again"
    )
