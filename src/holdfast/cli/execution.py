"""Executing a run from the command line: show it, ask at its gates, continue, and print how it ended."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import errors
from holdfast.cli.display.lines import Watch, watching
from holdfast.cli.display.progress import Progress
from holdfast.cli.ending import Ending, Kept, kept_at, kept_of, reused_steps, status_code
from holdfast.cli.inputs import all_steps, check_conditions, first_that_holds, rows_of, wording_of
from holdfast.cli.options import ExecutionOptions, RunOptions
from holdfast.cli.output import visible
from holdfast.cli.questions import (
    GATES,
    AnsweredElsewhere,
    LeftPaused,
    PauseWatch,
    Reply,
    Terminal,
    Terminated,
    ask,
    sigterm_leaves,
)
from holdfast.cli.render import count, json_text, one_line, place_in_code, print_json
from holdfast.cli.session import config_of
from holdfast.cli.store_option import exists
from holdfast.cli.targets import REPLANNED, Target, stored_workflow
from holdfast.engine.blocking import RunInterrupted, RunTerminated
from holdfast.engine.commands.control import answer
from holdfast.engine.environment import settle
from holdfast.engine.once import StepInterrupted
from holdfast.errors import AnswerRejected, ExecutionError, HoldfastError, StateInvalid
from holdfast.events import Observer
from holdfast.graph.graph import base_name
from holdfast.values import RunStatus
from holdfast.views.plain import plain
from holdfast.views.run_view import PauseView, mark_shared_names, steps_in

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.settings import Outcome, Pause
    from holdfast.workflows.model import Ask, Definition, Question, Step
    from holdfast.workflows.workflow import Workflow

Begin = Callable[[Observer | None], "Outcome"]

GIT_TIMEOUT = 0.3
"""How many seconds git may take to say whether the working copy has changes."""


def resume_target(found: Target, app: App, options: ExecutionOptions, given: dict[str, Any]) -> int:
    """Resume what was found, and print how it ended; return the exit code."""
    before = kept_of(app, found.run_id) if found.run_id else None
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


class Execution:
    """One command's work on one run."""

    def __init__(
        self, workflow: Workflow, app: App, url: str, options: ExecutionOptions, before: Kept | None = None
    ) -> None:
        self._workflow, self._app, self._url = workflow, app, url
        self._options, self._before = options, before
        self._began = time.monotonic()
        self._terminal = Terminal(options.out)
        self._replanned: Any = None
        """When the run was last given another version of its workflow file, as far as is known."""

    def execute(self, begin: Begin, run_id: str = "") -> int:
        """Start, continue past every gate that somebody opens, print how it ended; return the exit code."""
        check_conditions(self._options.fail_on_state, self._workflow.definition)
        settle(GIT_TIMEOUT)
        progress = Progress(rows_of(self._workflow.definition.steps), self._workflow.scrub)
        if self._before is not None:
            progress.keep(dict(self._before.statuses))
            progress.keep_items(dict(self._before.items))
            progress.cost = self._before.spent
        self._replanned = self._config(run_id).get(REPLANNED)
        with watching(
            self._options, progress, self._workflow.name, run_id, self._url, self._workflow.scrub
        ) as watch:
            announcer = self._workflow.announcer()
            announcer.started(run_id)
            ending, code = self._ended(watch, begin)
            if ending is not None:
                announcer.ended(ending.run_id, str(ending.status), ending.error or "")
        if ending is not None:
            self._print(ending)
        return code

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
            if ending.status == RunStatus.COMPLETED and self._meets_condition(outcome):
                return ending, errors.FAILED
        return ending, ending.exit_code

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
        only_gates = all(pause.kind in GATES for pause in outcome.pauses)
        if self._options.auto_continue and only_gates:
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
                return ask(terminal, pauses, lambda pause: wording_of(definition, pause), commit)
        except AnsweredElsewhere as elsewhere:
            terminal.say(f"\n{elsewhere}")
            if watch.status != RunStatus.PAUSED:
                raise _ContinuedElsewhere(status_code(watch.status)) from None
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
            steps_run=max(0, steps_in(state) - (self._before.steps if self._before else 0) - reused.steps),
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
                    pause.id,
                    pause.kind,
                    base_name(pause.node),
                    pause.name,
                    self._scrubbed(pause.prompt),
                    pause.schema,
                    pause.since,
                    pause.expires_at,
                    pause.node,
                )
                for pause in outcome.pauses
            ]
        )

    def _failure(self, error: ExecutionError) -> Ending:
        kept = kept_of(self._app, error.run_id or "")
        cause = error.cause if error.cause is not None else error.__cause__
        text = errors.explain_error(error) if cause is None else _cause_text(cause)
        return replace(
            self._ending(RunStatus.FAILED, error.run_id or ""),
            error=self._scrubbed(text),
            colliding=next((each.options["step"] for each in error.remedies if each.action == "skip"), ""),
            is_in_doubt=isinstance(cause, StepInterrupted),
            place=self._scrubbed(place_in_code(cause)) if not isinstance(cause, HoldfastError) else "",
            trace=self._scrubbed("".join(traceback.format_exception(cause))) if cause and is_debug() else "",
            node=(error.node or "").partition(":")[0],
            cost=kept.spent if kept is not None else 0.0,
            kept=kept,
            steps_run=self._steps_run(kept),
        )

    def _stopped(self, run_id: str, reason: str) -> Ending:
        kept = kept_of(self._app, run_id)
        cost = kept.spent if kept is not None else 0.0
        return replace(
            self._ending(RunStatus.INTERRUPTED, run_id),
            reason=reason,
            kept=kept,
            cost=cost,
            steps_run=self._steps_run(kept),
        )

    def _steps_run(self, kept: Kept | None) -> int:
        if kept is None:
            return 0
        before = kept.reused if self._before is None else self._before.steps
        return max(0, kept.steps - before)

    def _ending(self, status: RunStatus, run_id: str) -> Ending:
        seconds = time.monotonic() - self._began
        before = self._before if status in (RunStatus.COMPLETED, RunStatus.PAUSED) else None
        return Ending(status, run_id, self._workflow.name, self._url, seconds, before=before)

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

    def _meets_condition(self, outcome: Outcome) -> bool:
        condition = first_that_holds(self._options.fail_on_state, outcome.state)
        if condition:
            click.echo(f"holdfast: the final state has {condition}", err=True)
        return bool(condition)


def _cause_text(cause: BaseException) -> str:
    return (
        errors.explain_error(cause)
        if isinstance(cause, HoldfastError)
        else f"{type(cause).__name__}: {cause}"
    )


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


# `holdfast run --dry-run`: what a run would do, without doing any of it.


def print_dry_run(
    workflow: Workflow, inputs: Mapping[str, Any], url: str, skip_gates: bool, json: bool
) -> None:
    """Print what a run with these inputs would do."""
    plan = dry_run(workflow, inputs, url, skip_gates)
    click.echo(json_text(plan) if json else "\n".join(_lines(plan)))


def dry_run(workflow: Workflow, inputs: Mapping[str, Any], url: str, skip_gates: bool) -> dict[str, Any]:
    """Return what a run would do, as plain data."""
    definition = workflow.definition
    steps = list(all_steps(definition.steps))
    return {
        "workflow": workflow.name,
        "file": str(workflow.path),
        "inputs": dict(inputs),
        "store": url,
        "store_exists": exists(url),
        "waves": [[_described(step) for step in wave] for wave in waves(definition)],
        "asks": [] if skip_gates else [ask for step in steps for ask in _asks(step)],
        "gates": _gates(definition, steps),
        "agents": [{"step": s.name, "model": s.agent.model} for s in steps if s.agent is not None],
    }


def waves(definition: Definition) -> list[list[Step]]:
    """Return the steps in the order they run: one after the other, or with `after` as soon as they can.

    Routes may lead elsewhere; they are notes of their steps.
    """
    steps = definition.steps
    if not any(step.after for step in steps):
        return [[step] for step in steps]
    levels: dict[str, int] = {}
    waited = {step.name: waits_for(step) for step in steps}
    for _ in steps:
        for name, before in waited.items():
            levels[name] = max((levels.get(other, 0) + 1 for other in before), default=0)
    return [[step for step in steps if levels[step.name] == level] for level in sorted(set(levels.values()))]


def waits_for(step: Step) -> list[str]:
    """Return the names of the steps that a step waits for."""
    return [after.step for after in step.after]


def _described(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {"step": step.name, "kind": step.kind, "notes": list(_notes(step))}
    if inner := step.members:
        found["steps"] = [_described(member) for member in inner]
    return found


def _notes(step: Step) -> Iterable[str]:
    if before := waits_for(step):
        yield f"after {', '.join(before)}"
    if step.when is not None:
        yield f"only if {step.when}"
    if step.for_each is not None:
        how = "one by one" if step.for_each.mode == "sequential" else f"{step.for_each.max_parallel} at once"
        yield f"for each of {one_line(str(step.for_each.in_), 60)}, {how}"
    if step.agent is not None:
        yield f"model {step.agent.model}"
    if step.retry is not None and step.retry.attempts > 1:
        yield f"up to {step.retry.attempts} attempts"
    for route in step.routes or ():
        yield f"then {route.to}" + (f" if {route.when}" if route.when else "")


def _asks(step: Step) -> Iterable[dict[str, Any]]:
    asked: Sequence[Ask | Question] = () if step.ask is None else step.ask.questions or (step.ask,)
    for question in asked:
        values = [choice.value for choice in question.choices or ()]
        yield {"step": step.name, "prompt": question.prompt, "choices": values or None}


def _gates(definition: Definition, steps: Iterable[Step]) -> list[str]:
    workflow = definition.workflow
    own = [f"{step.interrupt} {step.name}" for step in steps if step.interrupt]
    before = [f"before {name}" for name in workflow.interrupt_before]
    return list(dict.fromkeys([*before, *(f"after {name}" for name in workflow.interrupt_after), *own]))


def _lines(plan: dict[str, Any]) -> Iterable[str]:
    number = sum(len(wave) for wave in plan["waves"])
    yield f"workflow {plan['workflow']!r} ({plan['file']}) is valid; {count(number, 'step')}:"
    for place, wave in enumerate(plan["waves"], 1):
        for index, step in enumerate(wave):
            yield from _step_lines(step, f"{place:>3}" if index == 0 else "   ")
    yield f"inputs: {json_text(plan['inputs'], None)}"
    for question in plan["asks"]:
        choices = f" ({', '.join(map(str, question['choices']))})" if question["choices"] else ""
        yield f"asks: {question['step']}: {one_line(question['prompt'])}{choices}"
    yield from (f"pauses: {gate}" for gate in plan["gates"])
    yield from (f"agent: {agent['step']} calls {agent['model']}" for agent in plan["agents"])
    yield f"store: {plan['store']}" + ("" if plan["store_exists"] else " (would be created)")
    yield "nothing was run or written"


def _step_lines(step: dict[str, Any], mark: str, indent: str = "  ") -> Iterable[str]:
    notes = f"  {'; '.join(step['notes'])}" if step["notes"] else ""
    yield f"{mark}{indent}{step['step']:<16} {step['kind']:<10}{notes}".rstrip()
    for member in step.get("steps", ()):
        yield from _step_lines(member, "   ", f"{indent}  ")
