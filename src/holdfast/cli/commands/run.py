"""`holdfast run`, `resume` and `submit`: starting and resuming runs, here or by workers."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from holdfast.cli.command_lines import answer_line
from holdfast.cli.execution import Execution, kept_of, resume_target
from holdfast.cli.options import (
    APP,
    AT,
    CONTINUE,
    DELAY,
    EXECUTION,
    INPUT,
    INPUTS_FILE,
    JSON,
    OTHER_WORKFLOW,
    PLAN,
    PRIORITY,
    QUEUE,
    REMAP,
    REUSE,
    RUN_ID,
    RUN_OPTIONS,
    STORE,
    STORE_ONLY,
    TRUST,
    WATCHING,
    WORKFLOW,
    ExecutionOptions,
    Options,
    RunOptions,
    choice,
    flag,
    number,
    read_when,
    repeated,
    value,
)
from holdfast.cli.plans import print_dry_run, resume_plan
from holdfast.cli.programs import Program
from holdfast.cli.questions import question_names, read_answers, read_inputs, read_pairs
from holdfast.cli.render import json_text
from holdfast.cli.session import Session, command, is_workflow_file
from holdfast.cli.store_option import close_store, lasting_url
from holdfast.cli.targets import Confirmation, Target, confirming, find_target, latest_unfinished
from holdfast.engine.commands import control
from holdfast.engine.confirmation import disclose
from holdfast.engine.resume import find_run
from holdfast.engine.submission import DEFAULT_QUEUE, Place, id_of_key, open_questions, requeue
from holdfast.engine.time_travel.checkpoints import find_position
from holdfast.errors import FAILED, AnswerRejected, CannotReuse, HoldfastError, RunConflict
from holdfast.fleet.queues import held_back
from holdfast.journal.provenance import me
from holdfast.names import LazyModule
from holdfast.state.codec import Codec
from holdfast.stores.inspection import exists
from holdfast.values import RunStatus, readable_step
from holdfast.views.plain import View, when
from holdfast.views.projection import project
from holdfast.views.runs import run_pauses
from holdfast.views.terminal import count, one_line
from holdfast.workflows.scope import guided, takes_guidance
from holdfast.workflows.workflow import Workflow, load_workflow

if TYPE_CHECKING:
    from holdfast.cli.commands import serve as serving
    from holdfast.engine.app import App
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo, Store
else:
    serving = LazyModule("cli.commands.serve")

_TO_CONTINUE = [status for status in RunStatus if status not in ("completed", "cancelled", "damaged")]
NEW_RUN = (WORKFLOW, INPUT, INPUTS_FILE, RUN_ID, REUSE)


@command(
    NEW_RUN,
    CONTINUE,
    flag("--dry-run", "Check everything and print the plan; run and write nothing."),
    flag("--web", "Show the run in a browser while it goes, and until Ctrl+C."),
    flag("--no-open", "With --web: print the link and open no browser."),
    RUN_OPTIONS,
    EXECUTION,
    STORE_ONLY,
    JSON,
)
def run(session: Session, options: Options) -> int:
    """Run a workflow file. Every finished step is saved; whatever stops the run, `resume` continues it.

    \b
    Example:
      holdfast run report.yaml -i topic=tides -i pages:=3
      holdfast run report.yaml --inputs inputs.json --json
      holdfast run report.yaml --dry-run
      holdfast run report.yaml --reuse report
      holdfast run report.yaml --continue
      holdfast run report.yaml --web

    With --web, which needs the extra serve, what the run asks can be answered in the browser as well. Ctrl+C ends the
    page then; the exit code is that of the run.

    Exit codes: 0 completed, 1 failed, 2 invalid, 3 configuration, 4 paused, 130 interrupted.
    """
    how, stored = ExecutionOptions.given(options), RunOptions.given(options)
    if options.continues and (options.dry_run or options.reuse is not None):
        raise click.UsageError(
            "--continue takes neither --dry-run nor --reuse; `holdfast resume --plan` prints what would run"
        )
    if (options.web and options.dry_run) or (options.no_open and not options.web):
        raise click.UsageError("--web is for a run that is executed, and --no-open is for --web")
    workflow = load_workflow(options.workflow)
    name, status = _continued(session, workflow, options) if options.continues else (options.run_id, "")
    url, reused, inputs = _new_run(session, workflow, options, exists=bool(status))
    if options.dry_run:
        print_dry_run(workflow, inputs or {}, url, options.skip_gates, session.as_json)
        return 0
    app = stored.open(workflow, url, interactive=how.asks)
    session.callback(close_store, app.store)
    name = name if name is not None else str(uuid.uuid4())
    begun = None if inputs is None else workflow.begin(inputs)
    given: dict[str, Any] = {"run_id": name, "config": stored.config(workflow), "reuse": reused}
    given["if_exists"] = "resume" if options.continues else "fail"
    execution = Execution(workflow, app, url, how, kept_of(app, name) if status else None)

    def execute() -> int:
        if status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
            return execution.show(app.invoke(begun, **given))
        return execution.execute(lambda observer: app.invoke(begun, observer=observer, **given), name)

    if options.web:
        return serving.on_a_page(workflow, app.store, name, execute, no_open=options.no_open)
    return execute()


def _continued(session: Session, workflow: Workflow, options: Options) -> tuple[str, str]:
    """Return the id of the run to continue or to start, and its status, which is empty if there is none.

    The new run after the last one has the same id in every process, so that of two that start it one continues it.
    """
    with Session(session.given) as reading:
        url = reading.url(workflow.store_url())
        store = reading.open(workflow.store_url()).store if exists(url) else None
        if store is None:
            return options.run_id or id_of_key(workflow.name, "--continue"), ""
        if options.run_id is not None:
            return options.run_id, next((info.status for info in store.runs(run=options.run_id)), "")
        for info in store.runs(workflow=workflow.name, status=_TO_CONTINUE, limit=1):
            return info.run, info.status
        last = next((info.run for info in store.runs(workflow=workflow.name, limit=1)), "")
        name = id_of_key(workflow.name, f"--continue {last}".strip())
        while store.runs(run=name):
            name = id_of_key(workflow.name, f"--continue {name}")
        return name, ""


def _new_run(
    session: Session, workflow: Workflow, options: Options, *, exists: bool = False
) -> tuple[str, str | None, dict[str, Any] | None]:
    """Return the store of a run, the run whose results it reuses, and its inputs.

    Inputs that are not given are those of the reused run; of a run that exists `None` if none are given at all.
    """
    typed, text = read_inputs(options.inputs_file, options.pairs)
    reused, saved = None, {}
    if options.reuse is not None:
        with Session(session.given) as reading:
            journal = reading.open(workflow.store_url())
            [reused] = reading.names(options.reuse)
            found = find_position(journal.store, reused)
            if found.info.workflow != workflow.name:
                raise CannotReuse(
                    f"run {found.info.run!r} is of workflow {found.info.workflow!r}, and this file is of "
                    f"{workflow.name!r}; only steps of the same workflow can be reused"
                )
            begun = project(journal, Codec(), found.info, found.seq).begun
        ops = [op for op in begun.ops if op.key == "inputs"] if begun is not None else []
        known = workflow.definition.workflow.inputs.keys() - text.keys()
        saved = {name: value for op in ops for name, value in (op.value or {}).items() if name in known}
    url = session.url(workflow.store_url())
    if exists and not (typed or text):
        return url, reused, None
    return url, reused, workflow.read_inputs({**saved, **typed}, text)


# `holdfast resume`.


IF_INTERRUPTED = ("rerun", "skip", "ask", "fail")
ON_CHANGE = ("warn", "fail", "use_saved")
_TARGET_HELP = """TARGET is a run id or its beginning (4 characters or more), a workflow's name, a checkpoint id,
RUN@3, a workflow file or a checkpoint file (.pkl). A workflow means its latest unfinished run; without TARGET the
latest unfinished run of the store is resumed."""
_TO_ENGINE = ("if_interrupted", "on_change", "takeover", "rerun_changed")
_HERE = (*_TO_ENGINE, "checkpoint_id", "workflow", "app", "as_planned", "pairs", "guidance", "remap", "plan")
"""The options that are only for a resume in this process."""


@command(
    click.argument("target", metavar="[TARGET]", required=False),
    value("--checkpoint-id", "ID", "Start a new run from that checkpoint."),
    repeated("--answer answers", "[NAME=]VALUE", "Answer what the run waits for; VALUE is JSON or text."),
    choice(
        "--if-interrupted",
        IF_INTERRUPTED,
        "What to do with steps that were running when the process died; by default as the workflow says.",
    ),
    INPUT,
    repeated("--guidance", "TEXT", "Tell the agents of the run something, as `steps guide` does."),
    PLAN,
    value(
        "--as-planned",
        "ID",
        "Resume only if exactly what --plan printed under this id, with the same options, would still be done.",
    ),
    flag(
        "--rerun-changed",
        "Run finished steps again that the workflow defines otherwise now, and what comes after them.",
    ),
    OTHER_WORKFLOW,
    APP,
    choice(
        "--on-change",
        ON_CHANGE,
        "What to do if the workflow changed since the run was saved.",
    ),
    REMAP,
    flag("--takeover", "Take the run from a process that hangs."),
    TRUST,
    flag("--detach", "Let workers resume the run, instead of executing it here."),
    QUEUE,
    PRIORITY,
    EXECUTION,
    STORE,
    JSON,
    epilog=_TARGET_HELP,
)
def resume(session: Session, options: Options) -> int:
    """Resume a run where it stopped. Finished steps do not run again.

    Gates and options given to `run` hold for a resume too. A run of a Python program needs --app, which imports it. A
    run that came from outside, and a checkpoint file with a workflow in it, is shown first, and has to be confirmed.

    \b
    Example:
      holdfast resume
      holdfast resume report --answer yes
      holdfast resume 3f2a --plan
      holdfast resume 3f2a --rerun-changed --plan
      holdfast resume 3f2a --answer yes --detach
      holdfast resume 3f2a --app jobs.report:app
    """
    how = ExecutionOptions.given(options)
    confirmation = Confirmation(options.trust, how.asks)
    if options.detach:
        if any(getattr(options, name) for name in (*_HERE, *WATCHING)):
            raise click.UsageError(
                "--detach takes --answer, --queue, --priority and --trust; other options are for a resume here"
            )
        return _detach(session, options, confirmation)
    if options.queue is not None or options.priority is not None:
        raise click.UsageError("--queue and --priority are for workers; add --detach to let them resume it")
    renamed = read_pairs(options.remap, "--remap")
    found = find_target(
        session,
        options.target,
        checkpoint=options.checkpoint_id,
        workflow=options.workflow,
        app=options.app,
        confirmation=confirmation,
    )
    app = found.open(interactive=how.asks, renamed=renamed)
    given: dict[str, Any] = {name: getattr(options, name) for name in _TO_ENGINE}
    given |= _changes(app, found, options, renamed)
    if options.plan:
        if found.file is not None:
            raise click.UsageError("a checkpoint file starts a new run; there is nothing to plan")
        plan = app.plan_resume(str(found.what), **given)
        shown = resume_plan(app, found.run_id, plan, options.if_interrupted)
        click.echo(json_text(shown) if session.as_json else "\n".join(shown.lines()))
        return FAILED if plan.refused else 0
    given["plan"] = options.as_planned
    if found.file is not None and any(given.values()):
        raise click.UsageError("a checkpoint file starts a new run, which takes none of these options")
    return resume_target(found, app, how, given)


def _changes(app: App, found: Target, options: Options, renamed: dict[str, str]) -> dict[str, Any]:
    """Return what changes with a resume: answers, inputs, and the names of steps."""
    answers = update = None
    nodes = renamed
    if options.answers and found.run_id:
        pauses = app.pauses(found.run_id)
        answers = read_answers(options.answers, pauses, lambda: question_names(found.workflow.definition))
    if options.pairs:
        if not found.run_id:
            raise click.UsageError("the inputs of a checkpoint file cannot be changed")
        if isinstance(found.workflow, Program):
            raise click.UsageError(
                "a Python program has no inputs; `holdfast runs edit` changes the state of a run"
            )
        typed, text = read_inputs(None, options.pairs)
        stored = app.get_state(found.run_id).get("inputs", {})
        saved = {name: value for name, value in stored.items() if name not in text}
        update = {"inputs": found.workflow.read_inputs({**saved, **typed}, text)}
    for text in options.guidance:
        if not found.run_id or not takes_guidance(app.graph):
            raise click.UsageError("--guidance is for a stored run that asks models, and this is none")
        update = guided(text, update)
    if renamed and found.run_id and not isinstance(found.workflow, Program):
        nodes = found.workflow.renamed_nodes(app, found.run_id, renamed)
    return {"answers": answers, "update": update, "remap": nodes or None, "rename_keys": renamed or None}


# Runs for workers: `holdfast submit` and `holdfast resume --detach`.


@dataclass(frozen=True, slots=True)
class QueuedRun(View):
    """A run that waits for a worker."""

    JSON: ClassVar[str] = "run_id=info.run status=info.status queue=info.queue priority=info.priority due_at"

    info: RunInfo

    @property
    def due_at(self) -> Any:
        """The time before which it does not start, if there is one."""
        return None if self.info.due_at is None else when(self.info.due_at)


@command(
    NEW_RUN,
    value(
        "--key",
        "TEXT",
        "Submit once: the same workflow and key are the same run, however often this is called.",
    ),
    QUEUE,
    PRIORITY,
    DELAY,
    AT,
    number("--max-active", 1, "N", "Refuse the run if so many of its queue are queued, running or paused."),
    RUN_OPTIONS,
    STORE_ONLY,
    JSON,
)
def submit(session: Session, options: Options) -> None:
    """Store a run for workers to execute, and print its id at once.

    The file and the inputs are checked as `run` checks them. `holdfast worker` on the same store, here or on another
    machine, executes the run; `runs status`, `show`, `answer`, `pause` and `cancel` work meanwhile.

    \b
    Example:
      holdfast submit report.yaml -i topic=tides --store postgresql://localhost/jobs
      holdfast submit report.yaml --queue night --delay 2h --priority 5
      holdfast runs status $(holdfast submit report.yaml --key order-7) --wait
    """
    key = options.key
    if options.run_id is not None and key is not None:
        raise click.UsageError("give either --run-id or --key")
    due = read_when(options.delay, options.at)
    workflow = load_workflow(options.workflow)
    url, reused, inputs = _new_run(session, workflow, options)
    stored = RunOptions.given(options)
    app = stored.open(workflow, lasting_url(url))
    session.callback(close_store, app.store)
    known = app.store.runs(run=id_of_key(workflow.name, key)) if key is not None else []
    if options.max_active is not None and not known:
        _refuse_surplus(app.store, options.queue or DEFAULT_QUEUE, options.max_active)
    name = app.submit(
        workflow.begin(inputs or {}),
        run_id=options.run_id,
        key=key,
        queue=options.queue or DEFAULT_QUEUE,
        priority=options.priority or 0,
        when=due,
        config=stored.config(workflow),
        reuse=reused,
    )
    [info] = app.store.runs(run=name)
    session.print({**QueuedRun(info).as_json(), "created": not known, "store": url}, name)


def _refuse_surplus(store: Store, queue: str, most: int) -> None:
    """Refuse one more run in a queue that has enough of them."""
    unfinished = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED)
    active = sum(info.queue == queue for info in store.runs(status=unfinished))
    if active >= most:
        raise HoldfastError(
            f"queue {queue!r} has {count(active, 'active run')}, and --max-active is {most}; submit it when some have "
            "ended, or `holdfast runs` lists what can be cancelled"
        )


def _detach(session: Session, options: Options, confirmation: Confirmation) -> int:
    """Record the answers, and let workers resume the run."""
    info = _detached_run(session, options.target)
    journal, answers = session.journal, options.answers
    disclosed = disclose(journal, info, journal.load(info, Codec()).run) if info.origin else None
    trust = ""
    if disclosed is not None:
        trust = confirmation.digest(disclosed, confirming(journal.store.url, info.run, info.run))
    if answers:
        given = read_answers(answers, control.waiting(journal, info.run))
        receipt = control.answer(journal, info.run, answers=given, by=me())
        if receipt.status == "refused":
            raise AnswerRejected(f"run {info.run!r}: {receipt.reason}")
    elif held_back(journal.store, info.run) is None:
        _refuse_waiting(journal, info)
    stopped = (RunStatus.INTERRUPTED, RunStatus.FAILED, RunStatus.CANCELLED)
    moves = options.queue is not None or options.priority is not None
    if answers and info.queue and not moves and journal.info(info.run).status not in stopped:
        info = journal.info(info.run)  # The answer queued it: nothing more is confirmed.
    else:
        info = _requeued(journal, info, options, trust)
    if not options.quiet:
        text = f"run {info.run} is {info.status}; a worker of queue {info.queue} resumes it"
        session.print(QueuedRun(info), text)
    return 0


def _detached_run(session: Session, target: str | None) -> RunInfo:
    if target is None:
        return latest_unfinished(session.store)
    if is_workflow_file(target):
        return session.unfinished_run(target)
    [name] = session.names(target)
    info, seq = find_run(session.store, name)
    if seq is not None:
        raise click.UsageError(
            f"{target} is a checkpoint; workers resume whole runs: give the run {info.run}"
        )
    return info


def _refuse_waiting(journal: Journal, info: RunInfo) -> None:
    """Refuse a run that can do nothing before it is answered."""
    missing = {pause.id for pause in open_questions(journal.load(info, Codec()).run, time.time())}
    if not missing:
        return
    pauses = [pause for pause in run_pauses(journal, info) if pause.id in missing]
    questions = [
        f"  {one_line(pause.name or readable_step(pause.step))}: {one_line(pause.prompt)}\n"
        f"    answer with: {answer_line(pause, journal.store.url)}"
        for pause in pauses
    ]
    first = f"run {info.run} waits for {count(len(pauses), 'answer')}; there is nothing to do before:"
    raise click.ClickException("\n".join([first, *questions]))


def _requeued(journal: Journal, info: RunInfo, options: Options, trust: str) -> RunInfo:
    priority = info.priority if options.priority is None else options.priority
    wanted = Place.of(options.queue or info.queue or DEFAULT_QUEUE, priority, None)
    try:
        return requeue(journal, info.run, wanted, trust=trust or False)
    except RunConflict:
        if not (options.answers and info.queue):
            raise
        return journal.info(info.run)  # A worker resumed it as soon as it was answered.
