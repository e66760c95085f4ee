"""`parallel`: steps that run together, and what becomes of them as a whole."""

from __future__ import annotations

from typing import Any

from holdfast.data.frozen import thaw
from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.flows.errors import StepFailed
from holdfast.flows.model import OnError, Parallel
from holdfast.flows.scope import members
from holdfast.flows.work import Work
from holdfast.plan.graph import Command


class Group:
    """The nodes around the members: the one that begins, and the one that gathers."""

    def __init__(self, work: Work) -> None:
        self.step, self.layout, self._work = work.step, work.layout, work
        self.names = [member.name for member in members(self.step)]

    @property
    def on_error(self) -> OnError:
        return self.step.parallel.on_error if isinstance(self.step.parallel, Parallel) else "fail_fast"

    @property
    def done_node(self) -> str:
        return f"{self.step.name}:done"

    def begin(self, state: State) -> dict[str, Any]:
        """The group's first node: it begins another visit, or is skipped."""
        reason = self._work.why_skipped(state)
        record = {"status": "skipped", "reason": reason} if reason else {"status": "running"}
        visits = self.layout.visits(state, self.step.name) + 1
        return {self.layout.key(self.step.name): {**record, "visits": visits}}

    def fan_out(self, state: State) -> list[str]:
        """What follows the first node: every member."""
        if self.layout.record(state, self.step.name).get("status") == "skipped":
            return [self.done_node]
        return self.names

    def gather(self, state: State, ctx: Context) -> Any:
        """The group's last node: what became of its members."""
        record = self.layout.record(state, self.step.name)
        if record.get("status") == "skipped":
            return None
        failed = {
            name: found["error"]
            for name in self.names
            if "error" in (found := self.layout.record(state, name))
        }
        if failed and self.on_error == "all_or_nothing":
            if ctx.attempt == 1:
                told = "; ".join(f"{name}: {error}" for name, error in failed.items())
                raise StepFailed(
                    f"{len(failed)} of {len(self.names)} failed, and all or nothing is wanted ({told}); "
                    "a resume tries those again"
                )
            return Command(goto=list(self.names))
        status = "failed" if len(failed) == len(self.names) else "completed"
        return {self.layout.key(self.step.name): {**thaw(record), "status": status}}


class Member(Work):
    """The work of one member. What has completed in this visit of its group is not done again."""

    group: Group

    def __call__(self, state: State, ctx: Context) -> Any:
        record, round_ = self.layout.record(state, self.step.name), self._round(state)
        if record.get("status") == "completed" and record.get("round") == round_:
            return None
        return super().__call__(state, ctx)

    def update(self, state: State, record: dict[str, Any]) -> dict[str, Any]:
        return super().update(state, {**record, "round": self._round(state)})

    def _round(self, state: State) -> int:
        return self.layout.visits(state, self.group.step.name)
