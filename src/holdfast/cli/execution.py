"""Executing a run from the command line: show it, ask at its gates, continue, and print how it ended."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import click

from holdfast.cli import errors
from holdfast.cli.command_lines import answerable, command_line, doubt_lines, skip_lines, store_words
from holdfast.cli.lines import Watch, watching
from holdfast.cli.options import ExecutionOptions, RunOptions
from holdfast.cli.programs import Program
from holdfast.cli.questions import (
    GATES,
    AnsweredElsewhere,
    LeftPaused,
    PauseWatch,
    Reply,
    Terminal,
    Terminated,
    ask,
    check_conditions,
    first_that_holds,
    rows_of,
    sigterm_leaves,
    wording_of,
)
from holdfast.cli.render import json_text, local_time, place_in_code, print_json, shortened
from holdfast.cli.store_option import config_in, config_of
from holdfast.cli.targets import REPLANNED, Target, stored_workflow
from holdfast.engine.blocking import RunInterrupted, RunTerminated
from holdfast.engine.commands.control import answer
from holdfast.engine.environment import settle
from holdfast.engine.once import StepInterrupted
from holdfast.engine.resume import find_checkpoint
from holdfast.engine.runner import state_of
from holdfast.errors import AnswerRejected, ExecutionError, HoldfastError, StateInvalid
from holdfast.events import Observer
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import is_checkpoint_id
from holdfast.journal.run_state import DONE as FINISHED
from holdfast.journal.run_state import FAILED, RunState
from holdfast.values import RunStatus
from holdfast.views.charges import total
from holdfast.views.plain import View, plain
from holdfast.views.progress import DONE, HELPERS, PENDING, Progress, Tally, graph_rows, is_body, place_of
from holdfast.views.run_view import (
    NOTHING,
    Counts,
    PauseView,
    finished_in,
    mark_shared_names,
    statuses,
)
from holdfast.views.terminal import duration, money, one_line, visible
from holdfast.views.usage import ledger
from holdfast.workflows.scope import guided, takes_guidance

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.settings import Outcome, Pause, Stats
    from holdfast.journal.journal import Loaded
    from holdfast.stores.base import RunInfo
    from holdfast.workflows.workflow import Workflow

MANY_ENTRIES = 5000
"""A journal with more entries is not read as a whole to sum up the time of the finished steps."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The finished steps of a stored run and what they cost; and the attempt that failed, if one did."""

    counts: Counts = NOTHING
    """The finished steps and items, those of sub-workflows included."""
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
        # Of a function and a step that it called the step says more.
        failed = max(
            (step for step in run.active() if step.status == FAILED),
            key=lambda step: step.id.count("/") if is_body(app.graph, step.frame) else 0,
            default=None,
        )
        items = [step for step in run.active() if step.key is not None]
        return replace(
            kept,
            failed_step="" if failed is None else place_of(failed.id, failed.node).label,
            failed_attempt=0 if failed is None else failed.attempt,
            items=tuple((step.id, DONE if step.status == FINISHED else PENDING) for step in items),
        )
    except HoldfastError:
        return None


def kept_at(app: App, info: RunInfo, seq: int | None) -> Kept | None:
    """Return the finished steps of a run at an entry of its journal; `None` if there are none."""
    if not seq:
        return None
    try:
        kept = _kept(app, app._settings.journal.load(info, app._settings.codec, seq))
    except HoldfastError:
        return None
    return kept if kept.counts != NOTHING else None


def _kept(app: App, loaded: Loaded) -> Kept:
    run, state = loaded.run, state_of(loaded, app._settings)
    spent = total(*run.spending.values()).cost
    is_of_file = "workflow_file" in config_in(run)
    return Kept(
        counts=finished_in(run),
        seconds=run.seconds,
        cost=spent,
        spent=spent,
        statuses=tuple(statuses(state) if is_of_file else ((name, "completed") for name in _finished(run))),
    )


def _finished(run: RunState) -> list[str]:
    """Return the nodes of a Python graph whose last steps are finished, as far back as the path of the run goes."""
    active = {step.node for step in run.active() if step.status != FINISHED}
    return [name for name in dict.fromkeys(run.path) if name not in active]


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
    ran: Counts = NOTHING
    """The steps and items that ran."""
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
    app: str = ""
    """What was given as `--app`."""

    @property
    def _app_words(self) -> list[str]:
        return ["--app", self.app] if self.app else []

    @property
    def resume(self) -> str | None:
        """The command that resumes the run; `None` if there is nothing to resume."""
        lost = self.store.startswith("memory:") or (self.kept is None and not self.pauses)
        if self.status == RunStatus.COMPLETED or lost:
            return None
        asking = [word for text in self._examples() for word in ("--answer", text)]
        return command_line("resume", self.run_id, *self._app_words, *asking, store=self.store)

    @property
    def stats_json(self) -> dict[str, Any]:
        """The stats as plain data, with the steps of the workflow itself; of a failed execution only these."""
        ran, reused = self.ran, self.reused.steps
        own = {"steps_run": ran.steps, "items_run": ran.items, "steps_reused": reused}
        return own if self.stats is None else {**asdict(self.stats), **own}

    @property
    def answerable_pauses(self) -> list[dict[str, Any]]:
        """The pauses as plain data, with the commands that answer them."""
        return answerable(self.pauses, self.store)

    @property
    def failed(self) -> tuple[str, int]:
        """The step that failed and its attempt; empty if none did."""
        kept = self.kept or Kept()
        return kept.failed_step or self.node, kept.failed_attempt

    @property
    def fault(self) -> dict[str, Any] | None:
        """The failure as plain data."""
        step, attempt = self.failed
        return {"step": step, "attempt": attempt or None, "message": self.error} if self.error else None

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
        if before is not None and (self.status == RunStatus.COMPLETED or self.ran != NOTHING):
            parts.append(f"kept {before.counts} ({_saved(before.seconds, before.cost)} saved)")
        if stats is not None and stats.steps_reused:
            parts.append(f"reused {self.reused} ({_saved(stats.seconds_saved, stats.cost_saved)} saved)")
        return [f"{', '.join(parts)}, ran {self.ran}"] if parts else []

    def _completed(self) -> list[str]:
        cost = f", {money(self.cost)}" if self.cost else ""
        lines = [f"completed in {duration(self.seconds)}: run {self.run_id}{cost}"]
        if self.output is not None and self.output != {}:
            whole = command_line("show", self.run_id, "--output", store=self.store)
            lines += ["output:", shortened(self.output, whole)]
        return lines

    def _failed(self) -> list[str]:
        step, attempts = self.failed
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
        lines = []
        if kept is not None:
            lines = [f"{kept.counts.text('finished')} kept ({_saved(kept.seconds, kept.cost)})"]
        if self.colliding:
            return [*lines, *skip_lines(self.run_id, self.colliding, self.store, words=self._app_words)]
        if not self.is_in_doubt:
            return [*lines, f"resume with: {resume}"]
        doubt = "find out whether it took effect, then resume with one of:"
        return [*lines, doubt, *doubt_lines(self.run_id, self.store, words=self._app_words)]

    def _paused(self) -> list[str]:
        lines = [f"paused: run {self.run_id}"]
        for pause in self.pauses:
            name = f"{one_line(pause.name)}: " if pause.name and pause.name != pause.prompt else ""
            prompt = visible(pause.prompt).replace("\n", "\n    ")
            lines.append(f"  {name}{prompt}")
            if pause.choices:
                lines.append(f"    choices: {', '.join(visible(str(choice)) for choice in pause.choices)}")
            until = f", until {local_time(pause.until)}" if pause.until is not None else ""
            lines.append(f"    since {local_time(pause.since)}{until}")
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


# One command's work on one run.


Begin = Callable[[Observer | None], "Outcome"]

GIT_TIMEOUT = 0.3
"""How many seconds git may take to say whether the working copy has changes."""


def resume_target(found: Target, app: App, options: ExecutionOptions, given: dict[str, Any]) -> int:
    """Resume what was found, and print how it ended; return the exit code."""
    before = _kept_before(found, app)
    given = {**given, "trust": found.trust or False}
    if found.config is not None:
        given["config"] = found.config
    if (
        given.get("rerun_changed")
        and (plan := app.plan_changes(found.run_id, given.get("remap"))) is not None
    ):
        before = kept_at(app, plan.base, plan.seq)
    return Execution(found.workflow, app, found.url, options, before).execute(
        lambda observer: app.resume(found.what, observer=observer, **given), found.run_id
    )


def _kept_before(found: Target, app: App) -> Kept | None:
    """Return what is finished where a resume begins: at the end of a run, or at the checkpoint that is named."""
    if not found.run_id:
        return None
    if found.what != found.run_id and is_checkpoint_id(str(found.what)):
        info, seq = find_checkpoint(app.store, str(found.what))
        if seq != app._settings.journal.load(info, app._settings.codec).run.saved_seq:
            return kept_at(app, info, seq)
    return kept_of(app, found.run_id)


class Execution:
    """One command's work on one run."""

    def __init__(
        self,
        workflow: Workflow | Program,
        app: App,
        url: str,
        options: ExecutionOptions,
        before: Kept | None = None,
    ) -> None:
        self._workflow, self._app, self._url = workflow, app, url
        self._options, self._before = options, before
        self._began = time.monotonic()
        self._terminal = Terminal(options.out)
        self._tally = Tally(app.graph, of_file=workflow.definition is not None)
        self._replanned: Any = None
        """When the run was last given another version of its workflow file, as far as is known."""

    def execute(self, begin: Begin, run_id: str = "") -> int:
        """Start, continue past every gate that somebody opens, print how it ended; return the exit code."""
        check_conditions(self._options.fail_on_state, self._workflow.definition)
        settle(GIT_TIMEOUT)
        of_file = self._workflow.definition
        rows = rows_of(of_file.steps) if of_file is not None else graph_rows(self._app.graph)
        progress = Progress(rows, self._workflow.scrub, of_file=of_file is not None)
        if self._before is not None:
            progress.keep(dict(self._before.statuses))
            progress.keep_items(dict(self._before.items))
            progress.cost = self._before.spent
        self._replanned = self._config(run_id).get(REPLANNED)

        def read_state(run: str, checkpoint: str) -> Any:
            return self._app.get_state(run, checkpoint_id=checkpoint)

        with watching(
            self._options,
            progress,
            self._workflow.name,
            run_id,
            self._url,
            self._workflow.scrub,
            read_state,
            self._tally,
        ) as watch:
            announcer = self._workflow.announcer()
            announcer.started(run_id)
            ending, code = self._ended(watch, begin)
            if ending is not None:
                announcer.ended(ending.run_id, str(ending.status), ending.error or "")
                watch.note(ending.lines())
        if ending is not None:
            self._print(ending)
        return code

    def show(self, outcome: Outcome) -> int:
        """Print how a run ended that is not executed again; return the exit code."""
        check_conditions(self._options.fail_on_state, self._workflow.definition)
        ending, code = self._of(outcome), errors.STATUS_CODES.get(outcome.status, errors.FAILED)
        self._print(ending)
        return self._checked(outcome, code)

    def _checked(self, outcome: Outcome, code: int) -> int:
        """Return the exit code of an outcome, which fails if its final state has what `--fail-on-state` says."""
        condition = first_that_holds(self._options.fail_on_state, outcome.state)
        if outcome.status != RunStatus.COMPLETED or not condition:
            return code
        click.echo(f"holdfast: the final state has {condition}", err=True)
        return errors.FAILED

    def _ended(self, watch: Watch, begin: Begin) -> tuple[Ending | None, int]:
        try:
            outcome = self._until_stopped(watch, begin)
        except ExecutionError as error:
            ending = self._failure(error)
            if _is_misconfigured(error.cause):
                return ending, errors.CONFIGURATION
        except RunInterrupted as stop:
            ending = self._stopped(stop.run_id, "Ctrl+C")
        except RunTerminated as stop:
            return self._stopped(stop.run_id, "SIGTERM"), errors.TERMINATED
        except _Left as left:
            return self._of(left.outcome), left.code
        except _ContinuedElsewhere as elsewhere:
            return None, elsewhere.code
        else:
            ending = self._of(outcome)
            code = errors.STATUS_CODES.get(ending.status, errors.FAILED)
            return ending, self._checked(outcome, code)
        return ending, errors.STATUS_CODES.get(ending.status, errors.FAILED)

    def _until_stopped(self, watch: Watch, begin: Begin) -> Outcome:
        outcome = watch.during(begin)
        while (reply := self._reply(outcome)) is not None:
            try:
                self._reload_file(outcome.run_id)
                outcome = watch.during(partial(self._resume, outcome.run_id, reply))
            except (AnswerRejected, StateInvalid) as error:
                if not self._options.asks:
                    raise
                click.echo(f"Not taken: {visible(errors.explain_error(error))}", file=self._options.out)
        return outcome

    def _resume(self, run_id: str, reply: Reply, observer: Observer | None) -> Outcome:
        return self._app.resume(
            run_id,
            answers=dict(reply.answers) or None,
            update=dict(reply.update) or None,
            observer=observer,
        )

    def _reload_file(self, run_id: str) -> bool:
        """Switch to another version of the workflow file if somebody replanned the run; return True if so."""
        config = self._config(run_id)
        if config.get(REPLANNED) == self._replanned:
            return False
        self._replanned = config.get(REPLANNED)
        self._workflow = stored_workflow(self._app.store.runs(run=run_id)[0], config)
        self._app = RunOptions.of(config).open(
            self._workflow, self._app.store, interactive=self._options.asks, stored=True
        )
        click.echo(f"continuing with {self._workflow.path}", file=self._options.out)
        return True

    def _config(self, run_id: str) -> dict[str, Any]:
        """Return the stored config of a run; an empty one if nothing is stored."""
        journal = self._app._settings.journal
        found = journal.store.runs(run=run_id) if run_id else []
        return config_of(journal, found[0]) if found else {}

    def _reply(self, outcome: Outcome) -> Reply | None:
        """Return what to continue with; `None` if the run is not paused, or nobody can be asked."""
        if outcome.status == RunStatus.INTERRUPTED and self._reload_file(outcome.run_id):
            return Reply()
        if outcome.status != RunStatus.PAUSED:
            return None
        if self._options.auto_continue and all(pause.kind in GATES for pause in outcome.pauses):
            return Reply()
        return self._asked(outcome) if self._options.asks and outcome.pauses else None

    def _asked(self, outcome: Outcome) -> Reply:
        watch, terminal = PauseWatch(self._app, outcome), self._terminal
        terminal.poll = watch.check
        definition, settings = self._workflow.definition, self._app._settings

        def commit(pause: Pause, value: Any) -> None:
            given, codec = {pause.id: value}, settings.codec
            answer(settings.journal, outcome.run_id, answers=given, codec=codec, retention=settings.retention)
            watch.forget(pause.id)

        try:
            with sigterm_leaves():
                pauses = [replace(pause, prompt=self._scrubbed(pause.prompt)) for pause in outcome.pauses]
                return ask(
                    terminal,
                    pauses,
                    lambda pause: wording_of(definition, pause),
                    commit,
                    guided if takes_guidance(self._app.graph) else None,
                )
        except AnsweredElsewhere as elsewhere:
            terminal.say(f"\n{elsewhere}")
            if watch.status != RunStatus.PAUSED:
                raise _ContinuedElsewhere(errors.STATUS_CODES.get(watch.status, errors.FAILED)) from None
            return Reply()
        except LeftPaused:
            raise _Left(outcome, errors.PAUSED) from None
        except KeyboardInterrupt:
            terminal.say()
            raise _Left(outcome, errors.INTERRUPTED) from None
        except Terminated:
            raise _Left(outcome, errors.TERMINATED) from None

    def _of(self, outcome: Outcome) -> Ending:
        state, reused = outcome.state, reused_steps(self._app, outcome.reused)
        completed = outcome.status == RunStatus.COMPLETED
        return replace(
            self._ending(outcome.status, outcome.run_id),
            output=self._workflow.scrub(self._workflow.output(state)) if completed else None,
            stats=outcome.stats,
            reused=reused,
            cost=outcome.stats.cost,
            pauses=self._pauses(outcome),
            kept=None if completed else kept_of(self._app, outcome.run_id),
            warnings=tuple(self._scrubbed(text) for text in outcome.warnings),
        )

    def _pauses(self, outcome: Outcome) -> tuple[PauseView, ...]:
        return mark_shared_names(
            [
                PauseView(
                    outcome.run_id,
                    each.id,
                    each.kind,
                    base_name(each.node),
                    each.name,
                    self._scrubbed(each.prompt),
                    each.schema,
                    each.since,
                    each.expires_at,
                    each.node,
                )
                for each in outcome.pauses
            ]
        )

    def _failure(self, error: ExecutionError) -> Ending:
        cause = error.cause if error.cause is not None else error.__cause__
        if cause is None or isinstance(cause, HoldfastError):
            said = cause or error
            ways = [errors.for_app(remedy, self._app_name) for remedy in said.remedies]
            text, place = errors.explain(said.problem, ways, store_words(self._url)), ""
        else:
            text, place = f"{type(cause).__name__}: {cause}", place_in_code(cause)
        return replace(
            self._stopped(error.run_id or ""),
            status=RunStatus.FAILED,
            error=self._scrubbed(text),
            colliding=next((each.options["step"] for each in error.remedies if each.action == "skip"), ""),
            is_in_doubt=isinstance(cause, StepInterrupted),
            place=self._scrubbed(place),
            trace=self._scrubbed("".join(traceback.format_exception(cause))) if cause and is_debug() else "",
            node=(error.node or "").partition(":")[0],
        )

    def _stopped(self, run_id: str, reason: str = "") -> Ending:
        ending, kept = self._ending(RunStatus.INTERRUPTED, run_id), kept_of(self._app, run_id)
        if kept is None:
            return replace(ending, reason=reason)
        return replace(ending, reason=reason, kept=kept, cost=kept.spent)

    def _ending(self, status: RunStatus, run_id: str) -> Ending:
        seconds = time.monotonic() - self._began
        before = self._before if status in (RunStatus.COMPLETED, RunStatus.PAUSED) else None
        ran = self._tally.counts()
        return Ending(
            status,
            run_id,
            self._workflow.name,
            self._url,
            seconds,
            ran=ran,
            before=before,
            app=self._app_name,
        )

    @property
    def _app_name(self) -> str:
        """What was given as `--app`."""
        return self._workflow.given if isinstance(self._workflow, Program) else ""

    def _scrubbed(self, text: str) -> str:
        return str(self._workflow.scrub(text))

    def _print(self, ending: Ending) -> None:
        options = self._options
        if options.as_json:
            print_json(ending)
        elif ending.status == RunStatus.COMPLETED and options.quiet:
            if ending.output is not None:
                text = ending.output if isinstance(ending.output, str) else json_text(plain(ending.output))
                click.echo(visible(text), file=options.out)
        elif ending.status in (RunStatus.COMPLETED, RunStatus.PAUSED):
            click.echo("\n".join(ending.lines()), file=options.out)
        else:
            click.echo("\n".join(ending.lines()), err=True)


def _is_misconfigured(cause: BaseException | None) -> bool:
    """Return True if a run failed because of its configuration: a missing secret, a store."""
    while isinstance(cause, HoldfastError):
        if errors.exit_code(cause) == errors.CONFIGURATION:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def is_debug() -> bool:
    """Return True if `--debug` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool((context.find_root().obj or {}).get("debug"))


class _Left(Exception):
    """The run stays paused; `code` is the exit code."""

    def __init__(self, outcome: Outcome, code: int) -> None:
        self.outcome, self.code = outcome, code
        super().__init__()


class _ContinuedElsewhere(Exception):
    """Another process executes the run, or has ended it; `code` is the exit code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__()
