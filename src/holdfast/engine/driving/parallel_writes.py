"""`ParallelWrites`: refuses two parallel steps that set the same key where no reducer puts them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.data.ops import Op
from holdfast.data.schema import Schema
from holdfast.engine.travel.cone import ways
from holdfast.errors import StateInvalid
from holdfast.journal.run_state import DONE, WHOLE, Frame, Step, Write
from holdfast.plan.graph import Graph
from holdfast.values import readable_step


class ParallelWrite(StateInvalid):
    """Two parallel steps set the same key, and nothing says how the two results become one."""


class ParallelWrites:
    """What parallel steps wrote: those of one wave and, without a barrier, those that do not follow each other.

    All that is decided by is a part of the run, so that a resumed run decides as one that was never interrupted.
    """

    def __init__(self, barrier: bool) -> None:
        self._barrier = barrier
        self._siblings: dict[str, tuple[int, dict[str, Write]]] = {}
        self._following: dict[tuple[str, str], frozenset[str]] = {}

    def check(self, graph: Graph, frame: Frame, step: Step, ops: Sequence[Op]) -> None:
        """Raise `ParallelWrite` if these changes of a step and those of a parallel step replace each other.

        They count as written from here on.
        """
        if not ops or (self._barrier and len(frame.active) == 1):
            return
        written = {op.key: op.kind in WHOLE for op in ops}
        siblings = self._written_in(frame)
        for key, whole in written.items():
            write = siblings.get(key)
            if write is not None and write.step != step.id and (whole or write.whole):
                raise ParallelWrite(_refusal(graph.schema, key, write.step, step.id))
        if not self._barrier:
            self._check_earlier(graph, frame, step, written)
        _note(siblings, frame, step, ops)

    def _written_in(self, frame: Frame) -> dict[str, Write]:
        """What the finished steps of a frame's wave have written, by key."""
        waves, siblings = self._siblings.get(frame.path, (-1, {}))
        if waves != frame.waves:
            siblings = {}
            for step in frame.active.values():
                if step.status == DONE:
                    _note(siblings, frame, step, step.ops)
            self._siblings[frame.path] = frame.waves, siblings
        return siblings

    def recount(self) -> None:
        """Forget what was counted of the waves that are under way: steps got their results from elsewhere."""
        self._siblings.clear()

    def _check_earlier(self, graph: Graph, frame: Frame, step: Step, written: dict[str, bool]) -> None:
        for key, whole in written.items():
            write = frame.writes.get(key)
            if write is None or not (whole or write.whole):
                continue
            if write.wave > step.begun or step.node not in self._after(graph, frame, write.node):
                raise ParallelWrite(_refusal(graph.schema, key, write.step, step.id))

    def _after(self, graph: Graph, frame: Frame, node: str) -> frozenset[str]:
        """Every node that may come after a node, directly or not."""
        place = (frame.path, node)
        if place not in self._following:
            leads, found, todo = ways(graph, {}), set[str](), [node]
            while todo:
                fresh = leads.get(todo.pop(), set()) - found
                found |= fresh
                todo += fresh
            self._following[place] = frozenset(found)
        return self._following[place]


def _note(siblings: dict[str, Write], frame: Frame, step: Step, ops: Iterable[Op]) -> None:
    for op in ops:
        if op.key not in siblings or op.kind in WHOLE:
            siblings[op.key] = Write(step.id, step.node, op.kind in WHOLE, frame.waves)


def _refusal(schema: Schema, key: str, one: str, other: str) -> str:
    channel = schema.channels.get(key)
    told = (
        f"the parallel steps {readable_step(one)!r} and {readable_step(other)!r} both set state key {key!r}"
    )
    if channel is None or channel.reducer is None:
        return (
            f"{told}, which has no reducer: one of the two results would be lost; declare how results are put "
            f"together, such as {key}: Annotated[list, append], or let each step set a key of its own"
        )
    return (
        f"{told}, and one of the two replaces what the other adds with the reducer: it returned a whole State "
        f"(return {{{key!r}: …}} instead), or it finished before the key had its reducer"
    )
