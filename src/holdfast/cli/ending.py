"""How a command's work on a run ended: finished steps, the message for people, one JSON document, the exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.cli import errors
from holdfast.cli.command_lines import answerable, command_line, doubt_lines, skip_lines
from holdfast.cli.display.progress import DONE, HELPERS, PENDING, place_of
from holdfast.cli.output import visible
from holdfast.cli.render import duration, local_time, money, one_line, shortened
from holdfast.engine.runner import state_of
from holdfast.errors import HoldfastError
from holdfast.journal.records import StepFinished
from holdfast.journal.run_state import DONE as FINISHED
from holdfast.journal.run_state import FAILED
from holdfast.values import RunStatus
from holdfast.views.charges import total
from holdfast.views.plain import View
from holdfast.views.run_view import NOTHING, Counts, counted, statuses, steps_in
from holdfast.views.usage import ledger

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.settings import Stats
    from holdfast.journal.journal import Loaded
    from holdfast.stores.base import RunInfo
    from holdfast.views.run_view import PauseView

MANY_ENTRIES = 5000
"""A journal with more entries is not read as a whole to sum up the time of the finished steps."""

EXIT_CODES = {
    RunStatus.COMPLETED: errors.COMPLETED,
    RunStatus.RUNNING: errors.COMPLETED,
    RunStatus.QUEUED: errors.COMPLETED,
    RunStatus.PAUSED: errors.PAUSED,
    RunStatus.INTERRUPTED: errors.INTERRUPTED,
}


def status_code(status: str) -> int:
    """Return the exit code of a run's status; a run that is still running is no failure."""
    return EXIT_CODES.get(RunStatus(status), errors.FAILED)


@dataclass(frozen=True, slots=True)
class Kept:
    """The finished steps of a stored run and what they cost; and the attempt that failed, if one did."""

    counts: Counts = NOTHING
    """The finished steps and items, those of open sub-workflows included."""
    steps: int = 0
    """The finished steps of the workflow itself."""
    seconds: float = 0.0
    cost: float = 0.0
    spent: float = 0.0
    """US dollars that the run has spent, wasted ones included."""
    failed_step: str = ""
    failed_attempt: int = 0
    statuses: tuple[tuple[str, str], ...] = ()
    """Each finished step of a workflow file with its status."""
    items: tuple[tuple[str, str], ...] = ()
    """The items of for-each steps under way, by the names of their steps: done, failed or pending."""
    reused: int = 0
    """How many of the steps reused results of another run."""


def kept_of(app: App, run_id: str) -> Kept | None:
    """Return what is finished of a run; `None` if nothing is stored, or the store cannot be read."""
    settings = app._settings
    try:
        loaded = settings.journal.load(settings.journal.info(run_id), settings.codec)
        kept = _kept(app, loaded)
        if loaded.seq <= MANY_ENTRIES:
            part = ledger(settings.journal, loaded.info.run).kept
            kept = replace(kept, seconds=min(part.seconds, kept.seconds), cost=part.cost)
        run = loaded.run
        failed = next((step for step in run.active() if step.status == FAILED), None)
        items = [step for step in run.active() if step.key is not None]
        return replace(
            kept,
            failed_step="" if failed is None else place_of(failed.id, failed.node).label,
            failed_attempt=0 if failed is None else failed.attempt,
            items=tuple((step.id, DONE if step.status == FINISHED else PENDING) for step in items),
            reused=_reused(app, loaded) if run.reuse is not None else 0,
        )
    except HoldfastError:
        return None


def kept_at(app: App, info: RunInfo, seq: int | None) -> Kept | None:
    """Return what is finished of a run at an entry of its journal; `None` if nothing is."""
    if not seq:
        return None
    try:
        kept = _kept(app, app._settings.journal.load(info, app._settings.codec, seq))
    except HoldfastError:
        return None
    return kept if kept.steps else None


def _kept(app: App, loaded: Loaded) -> Kept:
    run, state = loaded.run, state_of(loaded, app._settings)
    spent = total(*run.spending.values()).cost
    return Kept(
        counts=counted(run),
        steps=steps_in(state),
        seconds=run.seconds,
        cost=spent,
        spent=spent,
        statuses=tuple(statuses(state)),
    )


def _reused(app: App, loaded: Loaded) -> int:
    settings = app._settings
    _, history = settings.journal.history(loaded.info, settings.codec)
    found = [record for _, records in history for record in records if isinstance(record, StepFinished)]
    return reused_steps(app, {record.step for record in found if record.origin}).steps


def reused_steps(app: App, ids: Iterable[str]) -> Counts:
    """Return how many steps of the workflow itself, and items, are finished by reused results."""
    nodes = app._settings.graph.nodes
    own = {place_of(name) for name in ids if "/" not in name}
    whole = [place for place in own if place.role == "done" or f"{place.path[0]}:done" not in nodes]
    steps = {place.path for place in whole if place.role not in HELPERS.values()}
    return Counts(len(steps), sum(place.key is not None for place in own))


@dataclass(frozen=True, slots=True)
class Ending(View):
    """How a command's work on a run ended. `before` is what was finished before."""

    JSON: ClassVar[str] = (
        "status run_id workflow store output! stats=stats_json cost "
        "pauses=answerable_pauses error=fault warnings resume"
    )

    status: RunStatus
    run_id: str
    workflow: str
    store: str
    seconds: float = 0.0
    output: Any = None
    stats: Stats | None = None
    steps_run: int = 0
    cost: float = 0.0
    pauses: tuple[PauseView, ...] = ()
    error: str = ""
    node: str = ""
    kept: Kept | None = None
    before: Kept | None = None
    warnings: tuple[str, ...] = ()
    reason: str = ""
    place: str = ""
    """Where the user's own code failed."""
    trace: str = ""
    """The traceback of a failed step, if it is wanted."""
    reused: Counts = NOTHING
    """How many steps and items reused results of an earlier run."""
    colliding: str = ""
    """The step that failed because another one set the same key."""
    is_in_doubt: bool = False
    """Whether it failed at an interrupted step that may not be repeated unasked."""

    @property
    def exit_code(self) -> int:
        """The exit code of the status."""
        return status_code(self.status)

    @property
    def resume(self) -> str | None:
        """The command that resumes the run; `None` if there is nothing to resume."""
        lost = self.store.startswith("memory:") or (self.kept is None and not self.pauses)
        if self.status == RunStatus.COMPLETED or lost:
            return None
        asking = [word for text in self._examples() for word in ("--answer", text)]
        return command_line("resume", self.run_id, *asking, store=self.store)

    @property
    def stats_json(self) -> dict[str, Any]:
        """The stats as plain data, with the steps of the workflow itself; of a failed execution only these."""
        own = {"steps_run": self.steps_run, "steps_reused": self.reused.steps}
        return own if self.stats is None else {**asdict(self.stats), **own}

    @property
    def answerable_pauses(self) -> list[dict[str, Any]]:
        """The pauses as plain data, with the commands that answer them."""
        return answerable(self.pauses, self.store)

    @property
    def failed_step(self) -> str:
        """The step that failed; empty if none did."""
        return (self.kept.failed_step if self.kept else "") or self.node

    @property
    def fault(self) -> dict[str, Any] | None:
        """The failure as plain data."""
        if not self.error:
            return None
        attempt = self.kept.failed_attempt if self.kept else 0
        return {"step": self.failed_step, "attempt": attempt or None, "message": self.error}

    def lines(self) -> list[str]:
        """Return the message for people."""
        tell = {
            RunStatus.COMPLETED: self._completed,
            RunStatus.PAUSED: self._paused,
            RunStatus.FAILED: self._failed,
        }.get(self.status, self._stopped)
        return [*self._saved_line(), *tell(), *(f"warning: {one_line(text)}" for text in self.warnings)]

    def _saved_line(self) -> list[str]:
        before, stats, parts = self.before, self.stats, []
        if before is not None and (self.status == RunStatus.COMPLETED or self.steps_run):
            parts.append(f"kept {before.counts} ({_saved(before.seconds, before.cost)} saved)")
        if stats is not None and stats.steps_reused:
            parts.append(f"reused {self.reused} ({_saved(stats.seconds_saved, stats.cost_saved)} saved)")
        return [f"{', '.join(parts)}, ran {self.steps_run}"] if parts else []

    def _completed(self) -> list[str]:
        cost = f", {money(self.cost)}" if self.cost else ""
        lines = [f"completed in {duration(self.seconds)}: run {self.run_id}{cost}"]
        if self.output is not None and self.output != {}:
            whole = command_line("show", self.run_id, "--output", store=self.store)
            lines += ["output:", shortened(self.output, whole)]
        return lines

    def _failed(self) -> list[str]:
        step, attempts = self.failed_step, self.kept.failed_attempt if self.kept else 0
        attempt = f" (attempt {attempts})" if attempts > 1 else ""
        what = f"step {step!r} failed{attempt}" if step else "failed"
        trace = [visible(self.trace).rstrip()] if self.trace else []
        lines = [*trace, f"failed: run {self.run_id}: {what}: {visible(self.error)}"]
        if self.place:
            name = step.partition("[")[0].partition(" ")[0]
            more = command_line("show", self.run_id, "--step", name, store=self.store)
            lines += [f"  at {visible(self.place)}", f"  more: {more}"]
        return [*lines, *self._how_to_resume()]

    def _stopped(self) -> list[str]:
        reason = f" ({one_line(self.reason)})" if self.reason else ""
        return [f"{self.status}{reason}: run {self.run_id} is saved", *self._how_to_resume()]

    def _how_to_resume(self) -> list[str]:
        kept, resume = self.kept, self.resume
        if not resume:
            return ["nothing of the run is kept"]
        lines = (
            []
            if kept is None
            else [f"{kept.counts.text('finished')} kept ({_saved(kept.seconds, kept.cost)})"]
        )
        if self.colliding:
            return [*lines, *skip_lines(self.run_id, self.colliding, self.store)]
        if not self.is_in_doubt:
            return [*lines, f"resume with: {resume}"]
        doubt = "find out whether it took effect, then resume with one of:"
        return [*lines, doubt, *doubt_lines(self.run_id, self.store)]

    def _paused(self) -> list[str]:
        lines = [f"paused: run {self.run_id}"]
        for pause in self.pauses:
            lines += _pause_lines(pause)
        resume, given = self.resume, self._examples()
        if not resume:
            return [*lines, "nothing of the run is kept"]
        if not given:
            return [*lines, f"resume with: {resume}"]
        only = command_line("answer", self.run_id, *given, store=self.store)
        return [*lines, f"answer and resume: {resume}", f"answer only:       {only}"]

    def _examples(self) -> list[str]:
        """Return an example of an answer for every question, as a command takes it."""
        questions = [pause for pause in self.pauses if not pause.is_gate]
        named = len(questions) > 1
        return [f"{pause.handle}={pause.example}" if named else pause.example for pause in questions]


def _saved(seconds: float, cost: float) -> str:
    return f"{seconds:.1f} s{f', {money(cost)}' if cost else ''}"


def _pause_lines(pause: PauseView) -> list[str]:
    name = f"{one_line(pause.name)}: " if pause.name and pause.name != pause.prompt else ""
    prompt = visible(pause.prompt).replace("\n", "\n    ")
    lines = [f"  {name}{prompt}"]
    if pause.choices:
        lines.append(f"    choices: {', '.join(visible(str(choice)) for choice in pause.choices)}")
    until = f", until {local_time(pause.until)}" if pause.until is not None else ""
    return [*lines, f"    since {local_time(pause.since)}{until}"]
