"""How a drive ends: the run completed, failed, paused, stopped, or left until its time."""

from __future__ import annotations

import dataclasses
import functools
import logging

from holdfast import clock
from holdfast.engine.commands.mailbox import Mailbox
from holdfast.engine.driving.attempt import fault_of
from holdfast.engine.driving.decide import qualified
from holdfast.engine.driving.gates import Gates
from holdfast.engine.driving.parallel_writes import ParallelWrite
from holdfast.engine.driving.results import Results
from holdfast.engine.driving.saving import Saving
from holdfast.engine.driving.signals import StepInterrupted
from holdfast.errors import ExecutionError, MaxIterationsExceeded
from holdfast.journal.records import RunEnded
from holdfast.journal.run_state import DONE, FAILED, Frame
from holdfast.stores.base import RunInfo, in_memory_only
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast")

REFUSED = "look what became of it, then resume with if_interrupted='rerun' or 'skip'"


@functools.cache
def _tell_once(run_id: str, how: str) -> None:
    """Warn, once for each run, that a paused run does not outlive the process."""
    logger.warning("run %s waits, and is kept%s", run_id, how)


class Ending:
    """Records and tells the end of one drive. Why it failed is left in `failure`."""

    def __init__(self, saving: Saving, gates: Gates, results: Results, mailbox: Mailbox) -> None:
        self._saving, self._gates, self._results, self._mailbox = saving, gates, results, mailbox
        self._record, self._say = saving.record, saving.say
        self.failure: ExecutionError | None = None

    def exceed(self, frame: Frame, limit: int) -> None:
        """Fail the run because it has used up its iterations."""
        node = next(iter(frame.active.values())).node
        resume = f"app.resume({self._saving.run_id!r})"
        hint = f"{self._kept}; build the graph with StateGraph(…, max_iterations={2 * limit}) or more, then {resume}"
        self.fail(f"max iterations ({limit}) exceeded", node, None, MaxIterationsExceeded, hint)

    def fail(
        self,
        reason: str,
        node: str,
        cause: BaseException | None,
        kind: type[ExecutionError] = ExecutionError,
        hint: str = "",
    ) -> None:
        """End the run as failed."""
        self.failure = self._execution_error(reason, node, cause, kind, hint or self._hint(cause))
        self.end(RunStatus.FAILED, reason, node)

    def end(self, status: RunStatus, reason: str = "", node: str = "", due_at: float | None = None) -> None:
        """Record how the run ends here; `due_at` is when it wants to be taken up again."""
        run, writer = self._saving.run, self._saving.writer
        if status == RunStatus.FAILED and self.failure is None:
            step = next(step for step in run.active() if step.status == FAILED)
            node, reason = step.node, str(step.fault)
            cause = self._results.causes.get(step.id)
            item = "" if step.key is None else f" (item {step.key!r})"
            hint = self._hint(cause)
            message = f"node {qualified(step)!r}{item} failed: {step.fault}"
            self.failure = self._execution_error(message, node, cause, hint=hint)
        self._mailbox.close(status == RunStatus.COMPLETED)
        if status != RunStatus.COMPLETED and not self._saving.marked:
            self._saving.mark(run.root, [], [step.node for step in run.active() if step.status != DONE])
        fault = fault_of(self.failure) if status == RunStatus.FAILED and self.failure else None
        if status == RunStatus.PAUSED:
            if self._saving.settings.is_memory_default:
                _tell_once(self._saving.run_id, in_memory_only(self._saving.settings.journal.store))
            times = [pause.expires_at for pause in run.pauses.values() if pause.expires_at is not None]
            due_at = min(times, default=None)
        now = clock.time()
        facts = dataclasses.replace(writer.info, status=str(status), updated_at=now, driver="", due_at=due_at)
        writer.together(lambda: self._record_end(RunEnded(status, fault, node), facts))
        if due_at is None:
            self._saving.settings.journal.deadlines.forget(self._saving.run_id)
        if self._saving.observer is not None:
            self._say_end(status, reason)

    def _record_end(self, ended: RunEnded, facts: RunInfo) -> None:
        self._record(ended)
        self._saving.writer.set_info(facts)

    def _hint(self, cause: BaseException | None) -> str:
        """Return the way out of a failure that a plain resume would repeat; empty for all others."""
        if isinstance(cause, StepInterrupted):
            return f"{self._kept}; {REFUSED}"
        if isinstance(cause, ParallelWrite):
            return (
                f"{self._kept}: with the changed graph, app.invoke(reuse={self._saving.run_id!r}) takes over those "
                "that the change does not affect"
            )
        return ""

    @property
    def _kept(self) -> str:
        """What holds of the finished steps of a run that has stopped."""
        return f"finished steps are kept{in_memory_only(self._saving.settings.journal.store)}"

    def _say_end(self, status: RunStatus, reason: str) -> None:
        run = self._saving.run
        if status == RunStatus.COMPLETED:
            self._say("graph.complete", exit_point=run.root.last_node, iterations=run.root.waves)
        elif status == RunStatus.FAILED:
            self._say("graph.fail", error=reason)
        elif status != RunStatus.PAUSED:
            self._say("graph.cancel", status=str(status), reason=reason)
        for pause in run.pauses.values() if status == RunStatus.PAUSED else ():
            self._say(
                "pause",
                pause.node,
                kind=pause.kind,
                pause=pause.id,
                name=pause.name,
                prompt=pause.prompt,
                state=self._saving.state(),
                checkpoint_path=self._gates.files.get(pause.id),
            )

    def _execution_error(
        self,
        message: str,
        node: str,
        cause: BaseException | None,
        kind: type[ExecutionError] = ExecutionError,
        hint: str = "",
    ) -> ExecutionError:
        hint = hint or f"{self._kept}, resume with app.resume({self._saving.run_id!r})"
        if self._saving.policy.on_failure == "rollback":
            hint = "the run was rolled back: nothing of it is kept"
        error = kind(
            f"run {self._saving.run_id!r}: {message}",
            node=node,
            state=self._saving.state(),
            path=[*self._saving.run.path, node],
            run_id=self._saving.run_id,
            cause=cause,
            resume_hint=hint,
        )
        error.__cause__ = cause
        return error
