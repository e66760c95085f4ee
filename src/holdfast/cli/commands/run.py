"""`holdfast run`, `resume`, `submit` and `demo`: starting and resuming runs, here or by workers."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from holdfast.cli.command_lines import answer_line
from holdfast.cli.display.plans import resume_plan
from holdfast.cli.execution import Execution, print_dry_run, resume_target
from holdfast.cli.inputs import question_names, read_inputs, read_pairs
from holdfast.cli.options import (
    AT,
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
    TRUST,
    WORKFLOW,
    ExecutionOptions,
    RunOptions,
    read_when,
    repeated,
)
from holdfast.cli.questions import read_answers
from holdfast.cli.render import count, json_text, one_line
from holdfast.cli.session import Session, command, is_workflow_file
from holdfast.cli.store_option import close_store, lasting_url
from holdfast.cli.targets import Confirmation, Target, confirming, find_target, latest_unfinished
from holdfast.demo import STEPS, DemoReport, play
from holdfast.engine.commands import control
from holdfast.engine.confirmation import disclose
from holdfast.engine.resume import find_run
from holdfast.engine.submission import DEFAULT_QUEUE, Place, id_of_key, open_questions, requeue
from holdfast.engine.time_travel.checkpoints import find_position
from holdfast.errors import AnswerRejected, CannotReuse, RunConflict
from holdfast.fleet.queues import held_back
from holdfast.journal.provenance import me
from holdfast.state.codec import Codec
from holdfast.values import RunStatus, readable_step
from holdfast.views.plain import View, when
from holdfast.views.projection import project
from holdfast.views.runs import run_pauses
from holdfast.workflows.workflow import Workflow, load_workflow

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo

NEW_RUN = (WORKFLOW, INPUT, INPUTS_FILE, RUN_ID, REUSE)


@command(
    NEW_RUN,
    click.option(
        "--dry-run", is_flag=True, help="Check everything and print the plan; run and write nothing."
    ),
    RUN_OPTIONS,
    EXECUTION,
    STORE,
    JSON,
)
def run(
    session: Session,
    workflow: Path,
    pairs: tuple[str, ...],
    inputs_file: str | None,
    run_id: str | None,
    reuse: str | None,
    dry_run: bool,
    skip_gates: bool,
    interrupt_before: tuple[str, ...],
    interrupt_after: tuple[str, ...],
    durability: str | None,
    **how: Any,
) -> int:
    """Run a workflow file. Every finished step is saved; whatever stops the run, `resume` continues it.

    \b
    Example:
      holdfast run report.yaml -i topic=tides -i pages:=3
      holdfast run report.yaml --inputs inputs.json --json
      holdfast run report.yaml --dry-run
      holdfast run report.yaml --reuse report

    Exit codes: 0 completed, 1 failed, 2 invalid, 3 configuration, 4 paused, 130 interrupted.
    """
    options = ExecutionOptions(session.as_json, **how)
    loaded = load_workflow(workflow)
    url = session.url(loaded.store_url())
    source = Reused.find(session, reuse, loaded)
    inputs = source.inputs(*read_inputs(inputs_file, pairs))
    if dry_run:
        print_dry_run(loaded, inputs, url, skip_gates, session.as_json)
        return 0
    stored = RunOptions(interrupt_before, interrupt_after, skip_gates, durability)
    app = stored.open(loaded, url, interactive=options.asks)
    session.callback(close_store, app.store)
    name = run_id if run_id is not None else str(uuid.uuid4())
    return Execution(loaded, app, url, options).execute(
        lambda observer: app.invoke(
            loaded.begin(inputs),
            run_id=name,
            config=stored.config(loaded),
            reuse=source.name,
            observer=observer,
        ),
        name,
    )


@dataclass(frozen=True, slots=True)
class Reused:
    """A run whose results are reused, or none; `saved` are the inputs that it started with."""

    workflow: Workflow
    name: str | None = None
    saved: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, session: Session, text: str | None, workflow: Workflow) -> Reused:
        """Return the run that `--reuse` names, which must be one of the same workflow."""
        if text is None:
            return cls(workflow)
        with Session(session.given) as reading:
            journal = reading.open(workflow.store_url())
            [name] = reading.names(text)
            found = find_position(journal.store, name)
            if found.info.workflow != workflow.name:
                raise CannotReuse(
                    f"run {found.info.run!r} is of workflow {found.info.workflow!r}, and this file is of "
                    f"{workflow.name!r}; only steps of the same workflow can be reused"
                )
            begun = project(journal, Codec(), found.info, found.seq).begun
        ops = [op for op in begun.ops if op.key == "inputs"] if begun is not None else []
        declared = workflow.definition.workflow.inputs
        saved = {name: value for op in ops for name, value in (op.value or {}).items() if name in declared}
        return cls(workflow, name, saved)

    def inputs(self, typed: Mapping[str, Any], text: Mapping[str, str]) -> dict[str, Any]:
        """Return the inputs of the new run: the given ones, and else those of the reused run."""
        saved = {name: value for name, value in self.saved.items() if name not in text}
        return self.workflow.read_inputs({**saved, **typed}, text)


# `holdfast resume`.


IF_INTERRUPTED = ("rerun", "skip", "ask", "fail")
ON_CHANGE = ("warn", "fail", "use_saved")
_TARGET_HELP = """TARGET is a run id or its beginning (4 characters or more), a workflow's name, a checkpoint id,
RUN@3, a workflow file or a checkpoint file (.pkl). A workflow means its latest unfinished run; without TARGET the
latest unfinished run of the store is resumed."""


@command(
    click.argument("target", metavar="[TARGET]", required=False),
    click.option("--checkpoint-id", metavar="ID", help="Start a new run from that checkpoint."),
    repeated("--answer", "answers", "[NAME=]VALUE", "Answer what the run waits for; VALUE is JSON or text."),
    click.option(
        "--if-interrupted",
        type=click.Choice(IF_INTERRUPTED),
        help="What to do with steps that were running when the process died; by default as the workflow says.",
    ),
    INPUT,
    PLAN,
    click.option(
        "--as-planned",
        metavar="ID",
        help="Resume only if exactly what --plan printed under this id, with the same options, would still be done.",
    ),
    click.option(
        "--rerun-changed",
        is_flag=True,
        help="Run finished steps again that the workflow defines otherwise now, and what comes after them.",
    ),
    OTHER_WORKFLOW,
    click.option(
        "--on-change",
        type=click.Choice(ON_CHANGE),
        help="What to do if the workflow changed since the run was saved.",
    ),
    REMAP,
    click.option("--takeover", is_flag=True, help="Take the run from a process that hangs."),
    TRUST,
    click.option("--detach", is_flag=True, help="Let workers resume the run, instead of executing it here."),
    QUEUE,
    PRIORITY,
    EXECUTION,
    STORE,
    JSON,
    epilog=_TARGET_HELP,
)
def resume(
    session: Session,
    target: str | None,
    answers: tuple[str, ...],
    pairs: tuple[str, ...],
    remap: tuple[str, ...],
    plan: bool,
    trust: bool,
    detach: bool,
    queue: str | None,
    priority: int | None,
    **given: Any,
) -> int:
    """Resume a run where it stopped. Finished steps do not run again.

    Gates and options given to `run` hold for a resume too. A run that came from outside, and a checkpoint file with a
    workflow in it, is shown first, and has to be confirmed.

    \b
    Example:
      holdfast resume
      holdfast resume report --answer yes
      holdfast resume 3f2a --plan
      holdfast resume 3f2a --rerun-changed --plan
      holdfast resume 3f2a --answer yes --detach
    """
    here = {name: given.pop(name) for name in _HERE}
    options = ExecutionOptions(session.as_json, **given)
    confirmation = Confirmation(trust, options.asks)
    if detach:
        if any([*here.values(), pairs, remap, plan, *_watching(options)]):
            raise click.UsageError(
                "--detach takes --answer, --queue, --priority and --trust; other options are for a resume here"
            )
        return _detach(session, target, answers, (queue, priority), options, confirmation)
    if queue is not None or priority is not None:
        raise click.UsageError("--queue and --priority are for workers; add --detach to let them resume it")
    renamed = read_pairs(remap, "--remap")
    checkpoint, workflow = here.pop("checkpoint_id"), here.pop("workflow")
    found = find_target(session, target, checkpoint=checkpoint, workflow=workflow, confirmation=confirmation)
    app = found.open(interactive=options.asks, renamed=renamed)
    as_planned = here.pop("as_planned")
    here |= {
        "answers": _answers(app, found, answers),
        "update": _changed_inputs(app, found, pairs) or None,
        "remap": _renamed(app, found, renamed) or None,
        "rename_keys": renamed or None,
    }
    if plan:
        _print_plan(session, app, found, here)
        return 0
    here["plan"] = as_planned
    if found.file is not None and any(here.values()):
        raise click.UsageError("a checkpoint file starts a new run, which takes none of these options")
    return resume_target(found, app, options, here)


_HERE = (
    "checkpoint_id",
    "workflow",
    "as_planned",
    "if_interrupted",
    "on_change",
    "takeover",
    "rerun_changed",
)
"""The options that are only for a resume in this process."""


def _watching(options: ExecutionOptions) -> tuple[Any, ...]:
    return (
        options.interactive,
        options.auto_continue,
        options.fail_on_state,
        options.events,
        options.heartbeat,
    )


def _answers(app: App, found: Target, texts: tuple[str, ...]) -> dict[str, Any] | None:
    if not texts or not found.run_id:
        return None
    return read_answers(texts, app.pauses(found.run_id), lambda: question_names(found.workflow.definition))


def _renamed(app: App, found: Target, names: dict[str, str]) -> dict[str, str]:
    """Return the nodes of renamed steps."""
    return found.workflow.renamed_nodes(app, found.run_id, names) if names and found.run_id else names


def _changed_inputs(app: App, found: Target, pairs: tuple[str, ...]) -> dict[str, Any]:
    if not pairs:
        return {}
    if not found.run_id:
        raise click.UsageError("the inputs of a checkpoint file cannot be changed")
    typed, text = read_inputs(None, pairs)
    stored = app.get_state(found.run_id).get("inputs", {})
    saved = {name: value for name, value in stored.items() if name not in text}
    return {"inputs": found.workflow.read_inputs({**saved, **typed}, text)}


def _print_plan(session: Session, app: App, found: Target, given: dict[str, Any]) -> None:
    if found.file is not None:
        raise click.UsageError("a checkpoint file starts a new run; there is nothing to plan")
    plan = app.plan_resume(str(found.what), **given)
    shown = resume_plan(app, found.run_id, plan, given["if_interrupted"])
    click.echo(json_text(shown) if session.as_json else "\n".join(shown.lines()))


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
    click.option(
        "--key",
        metavar="TEXT",
        help="Submit once: the same workflow and key are the same run, however often this is called.",
    ),
    QUEUE,
    PRIORITY,
    DELAY,
    AT,
    RUN_OPTIONS,
    STORE,
    JSON,
)
def submit(
    session: Session,
    workflow: Path,
    pairs: tuple[str, ...],
    inputs_file: str | None,
    run_id: str | None,
    reuse: str | None,
    key: str | None,
    queue: str | None,
    priority: int | None,
    delay: str | None,
    at: str | None,
    **stored: Any,
) -> None:
    """Store a run for workers to execute, and print its id at once.

    The file and the inputs are checked as `run` checks them. `holdfast worker` on the same store, here or on another
    machine, executes the run; `runs status`, `show`, `answer`, `pause` and `cancel` work meanwhile.

    \b
    Example:
      holdfast submit report.yaml -i topic=tides --store postgresql://localhost/jobs
      holdfast submit report.yaml --queue night --delay 2h --priority 5
      holdfast runs status $(holdfast submit report.yaml --key order-7) --wait
    """
    if run_id is not None and key is not None:
        raise click.UsageError("give either --run-id or --key")
    due = read_when(delay, at)
    loaded = load_workflow(workflow)
    url = lasting_url(session.url(loaded.store_url()))
    source = Reused.find(session, reuse, loaded)
    inputs = source.inputs(*read_inputs(inputs_file, pairs))
    options = RunOptions(**stored)
    app = options.open(loaded, url)
    session.callback(close_store, app.store)
    known = app.store.runs(run=id_of_key(loaded.name, key)) if key is not None else []
    name = app.submit(
        loaded.begin(inputs),
        run_id=run_id,
        key=key,
        queue=queue or DEFAULT_QUEUE,
        priority=priority or 0,
        when=due,
        config=options.config(loaded),
        reuse=source.name,
    )
    [info] = app.store.runs(run=name)
    session.print({**QueuedRun(info).as_json(), "created": not known, "store": url}, name)


def _detach(
    session: Session,
    target: str | None,
    answers: Sequence[str],
    place: tuple[str | None, int | None],
    options: ExecutionOptions,
    confirmation: Confirmation,
) -> int:
    """Record the answers, and let workers resume the run."""
    info = _detached_run(session, target)
    journal = session.journal
    trust = _confirmed(journal, info, confirmation) if info.origin else ""
    if answers:
        given = read_answers(answers, control.waiting(journal, info.run))
        receipt = control.answer(journal, info.run, answers=given, by=me())
        if receipt.status == "refused":
            raise AnswerRejected(f"run {info.run!r}: {receipt.reason}")
    elif held_back(journal.store, info.run) is None:
        _refuse_waiting(journal, info)
    if answers and info.queue and place == (None, None) and _resumes_itself(journal, info):
        info = journal.info(info.run)  # The answer queued it: nothing more is confirmed.
    else:
        info = _requeued(journal, info, place, trust, answered=bool(answers))
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


def _resumes_itself(journal: Journal, info: RunInfo) -> bool:
    """Return True if workers resume a run by themselves, or did already."""
    stopped = (RunStatus.INTERRUPTED, RunStatus.FAILED, RunStatus.CANCELLED)
    return journal.info(info.run).status not in stopped


def _refuse_waiting(journal: Journal, info: RunInfo) -> None:
    """Refuse a run that can do nothing before it is answered."""
    run = journal.load(info, Codec()).run
    missing = {pause.id for pause in open_questions(run, time.time())}
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


def _confirmed(journal: Journal, info: RunInfo, confirmation: Confirmation) -> str:
    found = disclose(journal, info, journal.load(info, Codec()).run)
    command = confirming(journal.store.url, info.run, info.run)
    return "" if found is None else confirmation.digest(found, command)


def _requeued(
    journal: Journal, info: RunInfo, place: tuple[str | None, int | None], trust: str, *, answered: bool
) -> RunInfo:
    queue, priority = place
    wanted = Place.of(
        queue or info.queue or DEFAULT_QUEUE, info.priority if priority is None else priority, None
    )
    try:
        return requeue(journal, info.run, wanted, trust=trust or False)
    except RunConflict:
        if not (answered and info.queue):
            raise
        return journal.info(info.run)  # A worker resumed it as soon as it was answered.


# `holdfast demo`.


@command(
    click.option(
        "--store",
        metavar="URL",
        help="Keep the run there (sqlite:///PATH, file:///DIR) instead of in a temporary folder.",
    ),
    JSON,
)
def demo(session: Session) -> None:
    """Run ten steps into a rate limit, stop, and resume; needs no key and no network.

    \b
    Example:
      holdfast demo
      holdfast demo --store sqlite:///demo.db
    """
    if session.given is not None:
        report = play(session.given)
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            report = play(f"sqlite:///{Path(folder) / 'runs.db'}")
    if session.as_json:
        session.print(asdict(report))
    else:
        click.echo("\n".join(_report_lines(report, kept=session.given is not None)))


def _report_lines(report: DemoReport, kept: bool) -> list[str]:
    first, second = report.first, report.second
    lines = [
        "Holdfast demo: ten steps, a rate limit at step 9, and a resume.",
        f"The run is {report.run_id!r} in {report.store}",
        "",
        "First execution:",
        *_step_lines(first.ran, "done"),
        *_step_lines((first.failed,), "FAILED, the service answered 429"),
        "",
        "The run stopped; everything finished is saved. The error says how to resume:",
        f"  {first.error}",
        "",
        "Later the limit is lifted. The store is opened again and the run resumed:",
        f"  {report.resume}",
        "",
        "Second execution:",
        f"   1-{second.kept}  kept, not run again",
        *_step_lines(second.ran, "done"),
        "",
        f"The run is {second.status}: {second.kept} steps kept, {len(second.ran)} run after the resume, "
        f"{len(report.parts)} parts written, {report.checkpoints} checkpoints.",
        f"The service was called {sum(report.calls.values())} times for {len(STEPS)} steps: "
        f"only {first.failed!r}, which was refused, was called twice.",
    ]
    if not kept:
        lines.append("The store was in a temporary folder and is gone; --store sqlite:///demo.db keeps it.")
    return lines


def _step_lines(names: Sequence[str], how: str) -> list[str]:
    return [f"  {STEPS.index(name) + 1:2}  {name:<9} {how}" for name in names]
