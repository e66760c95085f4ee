"""`parallel`: steps that run together, and what becomes of them as a whole."""

from __future__ import annotations

from typing import Any

from holdfast.data.state import State
from holdfast.engine.driving.context import Context
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
        self._long = [member.name for member in members(self.step) if is_long(member)]
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

    def meet(self, state: State) -> Command:
        """Where members of several nodes come to when they are through: it leads on when all are.

        It looks at what was when it began, so that a member which is through meanwhile is counted when it comes.
        """
        visit = self.layout.visits(state, self.step.name)
        records = [self.layout.record(state, name) for name in self._long]
        under_way = any(found.get("round") == visit and not found.get("over") for found in records)
        return Command(goto=() if under_way else (self.done_node,))

    def gather(self, state: State, ctx: Context) -> Any:
        """The group's last node: what became of its members. One that the file has now is begun."""
        name = self.step.name
        if self.layout.status(state, name) != "running":
            return None
        results = self.layout.results_of_members(state, name, self.layout.visits(state, name))
        new = [member for member in self.names if member not in results]
        if new:
            return Command(goto=tuple(new))
        failed = {member: found for member, found in results.items() if found["status"] == "failed"}
        blamed = {member: found for member, found in failed.items() if member not in self._excused}
        if not blamed or on_error_of(self.step) == "continue":
            return self._end(state, "every member failed" if len(failed) == len(results) else "")
        told = "; ".join(f"{member}: {found.get('error')}" for member, found in blamed.items())
        told = f"{len(blamed)} of {len(results)} members failed ({told})"
        if self._goes_on:
            return self._end(state, told)
        if ctx.attempt == 1:
            raise StepFailed(f"{told}; a resume tries those again")
        return Command(goto=list(blamed))

    def _end(self, state: State, error: str) -> dict[str, Any] | None:
        result = {"status": "failed", "error": error} if error else {"status": "completed"}
        return self._work.over(state, **result)


def on_error_of(group: Step) -> OnError:
    """What a group does when members fail."""
    return group.parallel.on_error if isinstance(group.parallel, Parallel) else "fail_fast"


def is_long(member: Step) -> bool:
    """Whether a member is made of several nodes, one after the other."""
    return member.for_each is not None or member.workflow is not None
