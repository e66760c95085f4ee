"""What an app can ask of runs that are under way, here or elsewhere: stop, take answers, change what is to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.engine.runner import Runner
from holdfast.engine.settings import Settings
from holdfast.journal.journal import Journal
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.commands.control import Step, Update
    from holdfast.engine.commands.posting import Receipt


class Steerable:
    """The part of an app that steers runs, whoever drives them."""

    _settings: Settings
    _runner: Runner

    def cancel(self, run_id: str, reason: str = "cancelled", *, by: str = "") -> RunStatus:
        """Stop a run for good or until it is resumed. A run that is being executed, in any process, stops soon.

        Answers the status the run then has: `running` if its driver has still to notice.
        """
        from holdfast.engine.commands import control

        self._refuse_other_workflow(run_id)
        return control.cancel(self._settings.journal, run_id, reason, by=by, codec=self._settings.codec)

    def pause(self, run_id: str, reason: str = "paused", *, by: str = "") -> RunStatus:
        """Let a run that is driven, in any process, save itself and stop, so that `resume` goes on with it."""
        from holdfast.engine.commands import control

        self._refuse_other_workflow(run_id)
        return control.pause(self._settings.journal, run_id, reason, by=by, codec=self._settings.codec)

    def answer(
        self,
        run_id: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        by: str = "",
        patience: float = 2.0,
    ) -> Receipt:
        """Answer what a run waits for without executing it, and return what became of the answer.

        If nobody executes the run, it is `applied` now, and the next `resume` goes on with it. Otherwise the process
        that does takes it, or refuses it if somebody else was faster; if that is not known within `patience` seconds,
        the receipt is `waiting`, and `answer_status(receipt.handle)` tells later. Answers that do not fit raise.
        """
        from holdfast.engine.commands import control

        self._refuse_other_workflow(run_id)
        settings = self._settings
        return control.answer(
            settings.journal,
            run_id,
            answer,
            answers=answers,
            by=by,
            codec=settings.codec,
            retention=settings.retention,
            patience=patience,
        )

    def answer_status(self, handle: str) -> Receipt:
        """Return what became of an answer that was `waiting`, by its handle; also long after, and in any process."""
        from holdfast.engine.commands import posting as receipts

        return receipts.find(self._settings.journal, handle, self._settings.codec)

    def edit(
        self, run_id: str, update: Update, *, by: str = "", reason: str = "", patience: float = 0.0
    ) -> str:
        """Change the state of a run, as its reducers take the update; a tuple as key is a place inside a value.

        This, like all that steers a run, is done between two of its steps, by whichever process drives it, or at
        once if none does, and its journal tells who asked for it and why. Answers the status that the run
        then has, or `"asked"` if the driver has not come to it within `patience` seconds. What cannot be done
        raises `CommandRefused` with the reason, if it is known by then.
        """
        from holdfast.engine.commands import control

        return control.edit(*self._steered(run_id), update, **self._steering(by, reason, patience))

    def skip(self, run_id: str, step: str, *, by: str = "", reason: str = "", patience: float = 0.0) -> str:
        """Pass over a step that is ready, waits, failed or is in doubt; see `edit` for the answer.

        `step` is a step's id, or a node's name, which means all its steps; `outer/inner` in a sub-graph.
        """
        from holdfast.engine.commands import control

        return control.skip(*self._steered(run_id), step, **self._steering(by, reason, patience))

    def modify(
        self,
        run_id: str,
        step: str,
        update: Update,
        *,
        by: str = "",
        reason: str = "",
        patience: float = 0.0,
    ) -> str:
        """Let a step that is still to begin see other values than the state has; see `edit` for the answer."""
        from holdfast.engine.commands import control

        return control.modify(*self._steered(run_id), step, update, **self._steering(by, reason, patience))

    def inject(
        self,
        run_id: str,
        steps: Step | Iterable[Step],
        *,
        frame: str = "",
        follow: bool = False,
        by: str = "",
        reason: str = "",
        patience: float = 0.0,
    ) -> str:
        """Run further steps now: nodes' names or `Send`s; see `edit` for the answer.

        They join the steps that are about to run, or are running. Their updates count, and nothing follows them,
        unless `follow` says that what usually does shall. `frame` is the sub-graph they are of.
        """
        from holdfast.engine.commands import control

        options = self._steering(by, reason, patience)
        return control.inject(*self._steered(run_id), steps, frame=frame, follow=follow, **options)

    def replan(
        self,
        run_id: str,
        steps: Step | Iterable[Step],
        *,
        frame: str = "",
        follow: bool = True,
        by: str = "",
        reason: str = "",
        patience: float = 0.0,
    ) -> str:
        """Run these steps instead of all that are neither running nor finished; see `edit` for the answer.

        Nothing follows what is running then, so that without steps the run ends after it.
        """
        from holdfast.engine.commands import control

        options = self._steering(by, reason, patience)
        return control.replan(*self._steered(run_id), steps, frame=frame, follow=follow, **options)

    def _steered(self, run_id: str) -> tuple[Journal, str]:
        self._refuse_other_workflow(run_id)
        return self._settings.journal, run_id

    def _steering(self, by: str, reason: str, patience: float) -> dict[str, Any]:
        settings = self._settings
        own = {"codec": settings.codec, "graph": settings.graph}
        return {"by": by, "reason": reason, "patience": patience, **own}

    def _refuse_other_workflow(self, run_id: str) -> None:
        for info in self._settings.journal.store.runs(run=run_id):
            self._runner.refuse_other_workflow(info)
