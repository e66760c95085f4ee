"""Plans a resume, does it, and holds what the journal says against the plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast import App, ExecutionError, HoldfastError, Outcome
from holdfast.journal.records import Paused, Record, StepFailed, StepFinished, StepStarted
from holdfast.journal.run_state import node_of
from holdfast.views import ResumePlan


@dataclass
class Done:
    """A plan, and what the resume then did."""

    plan: ResumePlan
    outcome: Outcome | None = None
    error: HoldfastError | None = None
    started: list[str] = field(default_factory=list)
    """The steps that were begun, in order."""
    first: list[str] = field(default_factory=list)
    """Those that were begun before any of them was through."""
    given: list[str] = field(default_factory=list)
    """The steps that were given a result of before."""
    passed_over: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    finished_before: list[str] = field(default_factory=list)
    """The steps that had finished before the resume."""

    def told(self, *what: str) -> dict[str, str]:
        """Step (or node) and reason of what is planned so."""
        return {step.step or step.node: step.reason for step in self.plan.steps if step.what in what}


def plan_and_resume(app: App, run: str = "r", **options: Any) -> Done:
    """Plan, resume as planned, and check that the one is what the other said."""
    entries = list(app.store.read(run))
    plan = app.plan_resume(run, **options)
    assert list(app.store.read(run)) == entries, "a plan touches nothing"
    done = Done(plan)
    try:
        done.outcome = app.resume(run, plan=plan, **options)
    except HoldfastError as error:
        done.error = error
    _read(app, run, plan.head, done)
    _compare(app, run, done, len(entries))
    return done


def _read(app: App, run: str, head: int, done: Done) -> None:
    settings = app._settings
    _, history = settings.journal.history(settings.journal.info(run), settings.codec)
    over = False
    for entry, records in history:
        for record in records:
            if entry.seq > head:
                over = _note(record, done, over)
            elif isinstance(record, StepFinished) and not record.promoted:
                done.finished_before.append(record.step)


def _note(record: Record, done: Done, over: bool) -> bool:
    match record:
        case StepStarted():
            done.started.append(record.step)
            if not over:
                done.first.append(record.step)
        case StepFinished(origin="", skipped="", promoted=False) | StepFailed():
            return True
        case StepFinished(promoted=False) if record.origin:
            done.given.append(record.step)
        case StepFinished() if record.skipped:
            done.passed_over.append(record.step)
        case Paused():
            done.asked.append(record.step)
    return over


def _compare(app: App, run: str, done: Done, before: int) -> None:
    plan = done.plan
    if plan.refused:
        assert done.error is not None and not isinstance(done.error, ExecutionError)
        assert len(list(app.store.read(run))) == before, "what is refused changes nothing"
        return
    assert done.error is None or isinstance(done.error, ExecutionError), done.error
    kept = {step.step for step in plan.of("kept") if step.step}
    runs = [step for step in plan.steps if step.what in ("rerun", "next")]
    runs = [step for step in runs if "when there is room" not in step.reason]
    assert not kept & set(done.started), "what is kept does not run"
    if plan.back_to is None:
        named, following = (
            {step.step for step in runs if step.step},
            {step.node for step in runs if not step.step},
        )
        assert named <= set(done.first), "what is planned to run runs first"
        others = {node_of(step) for step in done.first if step not in named}
        # What is skipped, or was done, leads on at once.
        assert others <= following or plan.of("in_doubt"), "nothing runs first that was not planned"
    else:
        # A step that the graph no longer begins with is another visit when the run comes to it.
        assert set(done.given) <= kept
        ran = {node_of(step) for step in done.started}
        assert {step.node for step in plan.of("rerun")} <= ran, "what is planned to run again does"
        before_it = {node_of(step) for step in done.finished_before}
        assert ran & before_it <= {step.node for step in plan.of("rerun")}, (
            "and nothing else that had finished"
        )
    waits = {pause.step for pause in done.outcome.pauses} if done.outcome is not None else None
    if waits is not None:
        assert {step.step for step in plan.of("asked")} <= waits
    assert not {step.step for step in plan.of("in_doubt")} & set(done.first)
