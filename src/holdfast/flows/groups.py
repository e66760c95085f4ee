"""`parallel`: steps that run together, and what becomes of them as a whole."""

from __future__ import annotations

from typing import Any

from holdfast.data.frozen import thaw
from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.flows.errors import StepFailed
from holdfast.flows.model import OnError, Parallel, Step
from holdfast.flows.scope import members
from holdfast.flows.work import Work
from holdfast.plan.graph import Command


class Group:
    """The nodes around the members: the one that begins, the one where they meet, the one that gathers.

    With `goes_on`, failed members make a failed step and not a failed run.
    """

    def __init__(self, work: Work, goes_on: bool = False) -> None:
        self.step, self.layout, self._work, self._goes_on = work.step, work.layout, work, goes_on
        self.names = [member.name for member in members(self.step)]
        self._excused = {member.name for member in members(self.step) if member.on_error == "continue"}

    @property
    def meeting_node(self) -> str:
        return f"{self.step.name}:met"

    @property
    def done_node(self) -> str:
        return f"{self.step.name}:done"

    def begin(self, state: State) -> dict[str, Any]:
        """The group's first node: it begins another visit, or is skipped."""
        reason = self._work.why_skipped(state)
        record = {"status": "skipped", "reason": reason} if reason else {"status": "running"}
        return self._work.begun(state, record)

    def fan_out(self, state: State) -> list[str]:
        """What follows the first node: every member."""
        runs = self.layout.status(state, self.step.name) == "running"
        return self.names if runs else [self.done_node]

    def meet(self, state: State) -> list[str]:
        """What follows when some members are through: nothing while others are under way."""
        under_way = [name for name in self.names if self.layout.status(state, name) == "running"]
        return [] if under_way else [self.done_node]

    def gather(self, state: State, ctx: Context) -> Any:
        """The group's last node: what became of its members. One that the file has now is begun."""
        if self.layout.status(state, self.step.name) != "running":
            return None
        results = self.layout.results_of_members(state, self.step.name)
        new = [name for name in self.names if name not in results]
        if new:
            return Command(goto=tuple(new))
        failed = {name: found for name, found in results.items() if found["status"] == "failed"}
        blamed = {name: found for name, found in failed.items() if name not in self._excused}
        if not blamed or on_error_of(self.step) == "continue":
            return self._end(state, "every member failed" if len(failed) == len(results) else "")
        told = "; ".join(f"{name}: {found.get('error')}" for name, found in blamed.items())
        told = f"{len(blamed)} of {len(results)} members failed ({told})"
        if self._goes_on:
            return self._end(state, told)
        if ctx.attempt == 1:
            raise StepFailed(f"{told}; a resume tries those again")
        return Command(goto=list(blamed))

    def _end(self, state: State, error: str) -> dict[str, Any]:
        record = thaw(self.layout.record(state, self.step.name))
        record |= {"status": "failed", "error": error} if error else {"status": "completed"}
        return {self.layout.key(self.step.name): record}


def on_error_of(group: Step) -> OnError:
    """What a group does when members fail."""
    return group.parallel.on_error if isinstance(group.parallel, Parallel) else "fail_fast"
