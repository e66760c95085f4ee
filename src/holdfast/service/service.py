"""`Service`: the workflows and runs of one store, for every face: reading, acting, and a worker in this process."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast import clock
from holdfast.capsules.exports import write_capsule
from holdfast.capsules.imports import import_data
from holdfast.checkpoints.store import JournalCheckpointStore
from holdfast.engine.app import App
from holdfast.engine.blocking import run_blocking
from holdfast.engine.commands import control
from holdfast.engine.commands.inbox import RunCommand
from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.engine.owner import has_owner
from holdfast.engine.resume import find_checkpoint
from holdfast.engine.settings import Retention
from holdfast.engine.submission import DEFAULT_QUEUE, Place, open_questions, requeue
from holdfast.engine.time_travel.checkpoints import Position, find_place
from holdfast.engine.time_travel.edits import Access, Edit, RerunOptions
from holdfast.engine.time_travel.rewind import fork_run, promote_fork, queue_rerun, roll_back
from holdfast.errors import (
    INVALID,
    AnswerRejected,
    CommandRefused,
    HoldfastError,
    NotPaused,
    Remedy,
    RunConflict,
    StoreError,
    UnknownWorkflow,
)
from holdfast.events import CallbackObserver
from holdfast.fleet.worker import History, Worker, WorkerEvent
from holdfast.journal.copying import delete_run
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import NO_ANSWER, RunState
from holdfast.journal.sealing import Seal
from holdfast.service.calls import CallJournal
from holdfast.service.catalogue import Catalogue, Offered, Source, program_inputs
from holdfast.service.closeup import CloseReader
from holdfast.service.metrics import Meter, metrics
from holdfast.service.reading import GOING_ON, RequestInvalid
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.stores import open_store
from holdfast.stores.base import RunInfo, Store, wait_for_change
from holdfast.values import RunStatus
from holdfast.views.plans import PlanView
from holdfast.views.runs import run_pauses
from holdfast.workflows.scope import place_in_state
from holdfast.workflows.workflow import Workflow, returned

logger = logging.getLogger("holdfast.service")

LONGEST_WAIT = 3600.0
"""The most seconds that a caller can wait for a run."""

TIMEOUT = 2.0
"""Seconds to wait for the process that executes a run to apply a command."""

_LOOK = 0.05
_SHORT = 0.005
_PASSING = 1.0
"""Seconds that an execution of this process may take from its last save to its end."""


class ReadOnly(HoldfastError):
    """A service that only shows runs was asked to change something."""

    exit_code = INVALID


class NotReady(StoreError):
    """A service cannot do its work now."""

    public_text = ""


class TooManyRuns(HoldfastError):
    """As many runs are queued or running as the operator allows."""


def _work(worker: Worker) -> None:
    try:
        worker.run()
    except HoldfastError as error:
        logger.error("the worker of this service has ended: %s", error)


class Service(CloseReader):
    """The workflows and runs of one store; every method returns plain data, and may be called from any thread.

    `workflows` are folders, workflow files, `module:app`, or apps of this program: clients can start these and no
    others, except that `allow_inline` lets them send workflow files. As a context manager, or between `start` and
    `close`, a worker of this process executes what was submitted to the store, `concurrency` runs at once; runs of a
    process that was killed go on here. `read_only` starts no worker and refuses whatever changes anything.
    `max_active` bounds how many runs may be queued and running; `history` is what is kept of runs that have ended.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        workflows: Iterable[Source] = (),
        *,
        read_only: bool = False,
        allow_inline: bool = False,
        concurrency: int = 3,
        max_active: int = 500,
        history: History | None = None,
        tell: Callable[[WorkerEvent], None] | None = None,
    ) -> None:
        is_open = isinstance(store, Store)
        opened: Store = store if is_open else open_store(store)  # type: ignore[assignment]
        self._closes_store, self.read_only = not is_open, read_only
        journal = Journal(opened, Seal.from_environment(os.environ))
        super().__init__(journal, Catalogue(opened, workflows, inline=allow_inline))
        self._concurrency, self._max_active, self._history, self._tell = (
            concurrency,
            max_active,
            history,
            tell,
        )
        self._workers: list[tuple[Worker, threading.Thread]] = []
        self.meter = Meter()
        """What this process has executed."""
        self.calls = CallJournal(opened, journal.seal)
        """Who called which tool."""
        if self._closes_store:
            self.meter.time_commits(opened)

    # The worker.

    def start(self) -> Service:
        """Let a worker in this process execute the runs of the store; a service that only reads has none."""
        if not self.read_only and not self.has_worker:
            worker = Worker(
                self.store,
                self.catalogue.for_workers(),
                concurrency=self._concurrency,
                history=self._history,
                observer=CallbackObserver(self.meter),
                tell=self._tell,
            )
            thread = threading.Thread(target=_work, args=(worker,), name="holdfast-worker")
            self._workers = [*self._workers, (worker, thread)]
            thread.start()
        return self

    def close(self, *, at_once: bool = False) -> None:
        """Let the steps under way finish, save the runs, and close the store if this service opened it."""
        self._stop_workers(at_once)
        for _, thread in self._workers:
            thread.join()
        try:
            self.calls.close()
        except StoreError as error:
            logger.warning("the journal of calls could not be closed: %s", error)
        finally:
            if self._closes_store:
                self.store.close()

    def _stop_workers(self, at_once: bool = False) -> None:
        for worker, _ in self._workers:
            worker.stop(at_once=at_once)

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def concurrency(self) -> int:
        """How many runs a worker of this process executes at once."""
        return self._concurrency

    @property
    def has_worker(self) -> bool:
        """Whether a worker of this process executes runs."""
        return any(thread.is_alive() and not worker.is_stopping for worker, thread in self._workers)

    def _look(self) -> None:
        for worker, _ in self._workers:
            worker.look()

    def health(self) -> dict[str, Any]:
        """Return whether the store answers, and whether runs are executed here."""
        self.store.runs(limit=1)
        return {
            "status": "ok",
            "store": self.store.url,
            "read_only": self.read_only,
            "worker": self.has_worker,
            "workflows": len(self.catalogue.offered),
        }

    def ready(self) -> dict[str, Any]:
        """Return the health of a service that can do its work; raise `NotReady` otherwise."""
        found = self.health()
        if not self.read_only and not self.has_worker:
            raise NotReady("no worker of this service executes runs")
        return found

    def metrics(self) -> str:
        """Return runs, queues, steps, costs and the time of commits in the text format of Prometheus."""
        return metrics(self, self.meter)

    # New runs.

    def execute(
        self,
        workflow: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        wait: float | None = None,
        timeout: float | None = None,
        tags: Sequence[str] = (),
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        delay: float | None = None,
        who: str = "",
    ) -> dict[str, Any]:
        """Submit a run of a workflow; with `wait`, return once it has stopped, or after so many seconds.

        `timeout` is how many seconds one execution may take; `delay` is how many pass before it begins.
        """
        self._refuse_reading("execute")
        found = self.catalogue.find(workflow)
        return self._submitted(
            found, inputs, run_id, wait, timeout, tags, who, Place.of(queue, priority, delay)
        )

    def execute_inline(
        self,
        text: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        wait: float | None = None,
        timeout: float | None = None,
        tags: Sequence[str] = (),
        who: str = "",
    ) -> dict[str, Any]:
        """Submit a run of the workflow in a text, if the operator allows that."""
        self._refuse_reading("execute_inline")
        return self._submitted(self.catalogue.inline(text), inputs, run_id, wait, timeout, tags, who, Place())

    def _submitted(
        self,
        found: Offered,
        inputs: Mapping[str, Any] | None,
        run_id: str | None,
        wait: float | None,
        timeout: float | None,
        tags: Sequence[str],
        who: str,
        place: Place,
    ) -> dict[str, Any]:
        self._refuse_surplus()
        app, given, config = self._begun(found, {} if inputs is None else inputs, timeout)
        config["tags"] = [*config.get("tags", ()), *map(str, tags)]
        if who:
            config["submitted_by"] = who
        delay = None if place.due_at is None else max(0.0, place.due_at - clock.time())
        name = app.submit(
            given, run_id=run_id, queue=place.queue, priority=place.priority, when=delay, config=config
        )
        self._look()
        return self.wait(name, wait)

    def _begun(
        self, found: Offered, inputs: Mapping[str, Any], timeout: float | None
    ) -> tuple[App, Mapping[str, Any], dict[str, Any]]:
        """Return the graph, the input and the config of a new run."""
        if not isinstance(inputs, Mapping):
            raise RequestInvalid(f"inputs are an object with a value for each name, not {inputs!r:.80}")
        if found.file is None:
            if timeout is not None:
                raise RequestInvalid(f"workflow {found.name!r} is a program, which has its own timeouts")
            return found.app, program_inputs(found, inputs), {}
        if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout <= 86_400):
            raise RequestInvalid(
                f"timeout must be more than 0 and at most 86400 seconds, not {timeout!r:.80}"
            )
        options: dict[str, Any] = {} if timeout is None else {"timeout": float(timeout)}
        values = found.file.read_inputs(inputs)
        return found.file.open(self.store, **options), found.file.begin(values), found.file.config(options)

    def _refuse_surplus(self) -> None:
        counts = self.status_counts()
        active = sum(counts[status].runs for status in GOING_ON if status in counts)
        if active >= self._max_active:
            raise TooManyRuns(
                f"{active} runs are queued or running, and this service takes {self._max_active}",
                remedies=Remedy(text="try again when some have ended"),
            )

    def wait(self, run_id: str, seconds: float | None) -> dict[str, Any]:
        """Return the status of a run once nobody goes on with it, or after so many seconds; at once without any."""
        if seconds is not None and not (isinstance(seconds, (int, float)) and 0 <= seconds <= LONGEST_WAIT):
            raise RequestInvalid(f"wait must be from 0 to {LONGEST_WAIT:g} seconds, not {seconds!r:.80}")
        end = clock.monotonic() + (seconds or 0.0)
        while True:
            info = self._info(run_id)
            left = end - clock.monotonic()
            if left <= 0 or info.status not in GOING_ON:
                break
            wait_for_change(self.store, run_id, min(_LOOK, left))
        facts = self.status(run_id)
        if facts["status"] == RunStatus.COMPLETED or facts["status"] == RunStatus.FAILED:
            found = self.run(run_id)
            facts |= {"output": found["output"], "error": found["error"]}
        return facts

    def _unowned(self, run_id: str) -> RunInfo:
        """Return the facts of a run, once an execution of this process that has stopped has left it."""
        end = clock.monotonic() + _PASSING
        while True:
            info = self._info(run_id)
            is_leaving = info.status != RunStatus.RUNNING and has_owner(self.store, info)
            if not is_leaving or clock.monotonic() > end:
                return info
            clock.sleep(_SHORT)

    def _refuse_owned(self, run_id: str) -> None:
        if has_owner(self.store, self._unowned(run_id)):
            raise RunConflict(f"run {run_id!r} is executed by a process", remedies=Remedy("cancel", run_id))

    # Commands to runs.

    def answer(
        self,
        run_id: str,
        value: Any = None,
        *,
        question: str | None = None,
        answers: Mapping[str, Any] | None = None,
        who: str = "",
    ) -> dict[str, Any]:
        """Answer what a run waits for: one question, which has to be named if there are several, or some by name.

        Workers then go on with the run, unless a process executes it or other questions are open.
        """
        self._refuse_reading("answer")
        info = self._info(run_id)
        given = self._answers(info, value, question, answers)
        codec, retention = self._codec(info), self._retention(info)
        receipt = control.answer(
            self.journal, info.run, answers=given, by=who, codec=codec, retention=retention
        )
        if receipt.status == control.APPLIED:
            self.go_on(info.run)
        return {**receipt.as_json(), "run": self.status(info.run)}

    def _answers(
        self, info: RunInfo, value: Any, question: str | None, answers: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        if answers is not None:
            if question is not None or value is not None:
                raise RequestInvalid("give either a value, perhaps with its question, or answers by question")
            return answers
        if question is not None:
            return {question: value}
        pauses = [pause for pause in run_pauses(self.journal, info) if not (pause.is_gate or pause.is_wait)]
        if not pauses:
            raise NotPaused(f"run {info.run!r} is {info.status} and asks nothing")
        if len(pauses) > 1:
            names = ", ".join(repr(pause.handle) for pause in pauses)
            raise AnswerRejected(f"run {info.run!r} asks several questions; say which one is meant: {names}")
        return {pauses[0].id: value}

    def go_on(self, run_id: str) -> None:
        """Queue an answered run that workers would not find, and let the worker look."""
        info = self._unowned(run_id)
        is_known = any(offered.name == info.workflow for offered in self.catalogue.offered)
        if not info.queue and is_known and not has_owner(self.store, info) and info.status != "completed":
            run = self.journal.load(info, self._codec(info)).run
            is_answered = not [pause for pause in run.pauses.values() if pause.kind not in NO_ANSWER]
            if is_answered and not self._is_continued(run_id):
                with contextlib.suppress(RunConflict):  # Somebody goes on with it after all.
                    requeue(self.journal, run_id, codec=self._codec(info))
        self._look()

    def pause(self, run_id: str, *, reason: str = "paused", who: str = "") -> dict[str, Any]:
        """Pause a run after the steps under way, wherever it is executed."""
        return self._stop(run_id, "pause", reason, who)

    def cancel(self, run_id: str, *, reason: str = "cancelled", who: str = "") -> dict[str, Any]:
        """Stop a run, wherever it is executed. Finished steps are kept."""
        return self._stop(run_id, "cancel", reason, who)

    def _stop(self, run_id: str, kind: str, reason: str, who: str) -> dict[str, Any]:
        self._refuse_reading(kind)
        info = self._info(run_id)
        control.stop(self.journal, info.run, kind, reason, by=who, codec=self._codec(info))
        return self.status(info.run)

    def resume(
        self, run_id: str, *, queue: str | None = None, priority: int | None = None, who: str = ""
    ) -> dict[str, Any]:
        """Let workers go on with a run that stopped, past its gates. A run that asks something has to be answered."""
        self._refuse_reading("resume")
        info = self._unowned(run_id)
        self._refuse_unknown(info)
        codec = self._codec(info)
        asked = open_questions(self.journal.load(info, codec).run, clock.time())
        if asked:
            names = ", ".join(repr(pause.name) for pause in asked)
            raise CommandRefused(
                f"run {run_id!r} waits for answers, and there is nothing to do before: {names}",
                remedies=Remedy("answer", run_id),
            )
        place = Place.of(
            queue or info.queue or DEFAULT_QUEUE, info.priority if priority is None else priority, None
        )
        requeue(self.journal, info.run, place, codec=codec, by=who)
        self._look()
        return self.status(info.run)

    def plan_resume(self, run_id: str) -> dict[str, Any]:
        """Return what `resume` would do with every step of a run, and why, and what that may cost; change nothing."""
        info = self._info(run_id)
        app = self._known_app(info)
        run = self.journal.load(info, self._codec(info)).run
        return PlanView.of(app.plan_resume(info.run), run, app.graph.nodes).as_json()

    def edit(
        self, run_id: str, update: Mapping[str, Any], *, reason: str = "", who: str = ""
    ) -> dict[str, Any]:
        """Change the state of a run between two steps.

        A place is named `inputs.NAME` or `steps.STEP.output` in a workflow file, else by a key, or `key.part`.
        """
        self._refuse_reading("edit")
        info = self._info(run_id)
        codec = self._codec(info)
        changes = self._changes(self.journal.load(info, codec).run, info, update)
        return self._send(info, control.edit(changes, codec), reason, who)

    def skip(self, run_id: str, step: str, *, reason: str = "", who: str = "") -> dict[str, Any]:
        """Skip a step that is about to run, waits, failed or was interrupted."""
        self._refuse_reading("skip")
        return self._send(self._info(run_id), control.skip(step), reason, who)

    def replan(self, run_id: str, steps: Sequence[str], *, reason: str = "", who: str = "") -> dict[str, Any]:
        """Run these steps instead of all that are neither running nor finished; none ends the run."""
        self._refuse_reading("replan")
        info = self._info(run_id)
        return self._send(info, control.replan(list(steps), self._codec(info)), reason, who)

    def _send(self, info: RunInfo, command: RunCommand, reason: str, who: str) -> dict[str, Any]:
        graph = None
        if (app := self._app(info)) is not None:
            refuse_unconfirmed(self.journal, info, self._codec(info))
            graph = app.graph
        codec = self._codec(info)
        answer = control.send(
            self.journal,
            info.run,
            command,
            by=who,
            reason=reason,
            codec=codec,
            graph=graph,
            timeout=TIMEOUT,
        )
        self._look()
        return {"applied": answer != control.ASKED, "run": self.status(info.run)}

    def annotate(
        self,
        run_id: str,
        *,
        note: str = "",
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        keep: bool | None = None,
        checkpoint: str | None = None,
        who: str = "",
    ) -> dict[str, Any]:
        """Note a text, add or remove tags, or keep a checkpoint, of a run or of one of its checkpoints."""
        self._refuse_reading("annotate")
        info = self._info(run_id)
        said: dict[str, Any] = {"text": note, "add": add, "remove": remove, "keep": keep}
        answer = control.annotate(
            self.journal, info.run, checkpoint=checkpoint, by=who, timeout=TIMEOUT, **said
        )
        return {"applied": answer != control.ASKED, "run": self.status(info.run)}

    # The past of runs.

    def fork(
        self,
        run_id: str,
        at: str | None = None,
        *,
        update: Mapping[str, Any] | None = None,
        new_run_id: str | None = None,
        start: bool = True,
        tags: Sequence[str] | None = None,
        reason: str = "",
        who: str = "",
    ) -> dict[str, Any]:
        """Start a new run at a checkpoint of another: an id, or `@3`, `@-1`, `@STEP`; workers execute it if `start`."""
        self._refuse_reading("fork")
        position = self._position(run_id, at)
        info, app = position.info, self._app(position.info)
        if start:
            self._refuse_unknown(info)
        if update and app is None:
            raise self._unknown(info)
        access = Access(self.journal, TolerantCodec()) if app is None else Access.of(app._settings)
        changes = None
        if update:
            refuse_unconfirmed(self.journal, info, access.codec)
            loaded = self.journal.load(info, access.codec, position.seq)
            changes = self._changes(loaded.run, info, update)
        name = app._runner.new_run_id(new_run_id) if app is not None else self._free_id(new_run_id)
        fork_run(access, position, name, Edit(changes, None, who, reason), tags=tags)
        if start:
            self.start_fork(name)
        return {**self.status(name), "parent": info.run}

    def start_fork(self, run_id: str) -> None:
        """Let workers execute a fork, unless that was asked before."""
        info = self._info(run_id)
        if not info.queue and info.status == RunStatus.INTERRUPTED:
            requeue(self.journal, run_id, codec=self._codec(info))
        self._look()

    def rerun(
        self,
        run_id: str,
        step: str,
        *,
        update: Mapping[str, Any] | None = None,
        output: Any = ...,
        new_run_id: str | None = None,
        who: str = "",
    ) -> dict[str, Any]:
        """Run a step of a run, and all that comes after it, again, in a new run that workers execute."""
        self._refuse_reading("rerun")
        info = self._info(run_id)
        app = self._known_app(info)
        run = self.journal.load(info, self._codec(info)).run
        changes = self._changes(run, info, update) if update else None
        if output is not ... and self._file(info) is not None:
            output = returned(app.graph, app.plan_rerun(run_id, step).step, output)
        options = RerunOptions(update=changes, output=output, run_id=new_run_id, by=who)
        place = Place(info.queue or DEFAULT_QUEUE, info.priority)
        made = run_blocking(lambda: queue_rerun(app._runner, run_id, step, options, place))
        self._look()
        return {**self.status(made.run), "parent": info.run}

    def plan_rerun(self, run_id: str, step: str) -> dict[str, Any]:
        """Return what `rerun` would run again, and what it would keep, and why; change nothing."""
        return self._known_app(self._info(run_id)).plan_rerun(run_id, step).as_json()

    def promote(
        self, run_id: str, *, into: str | None = None, reason: str = "", who: str = ""
    ) -> dict[str, Any]:
        """Promote a fork's result to its parent run, or to an earlier ancestor."""
        self._refuse_reading("promote")
        own, target = self._unowned(run_id), None if into is None else self._unowned(into)
        access = Access(self.journal, TolerantCodec())
        ident = promote_fork(access, own, target, by=who, reason=reason)
        info, _ = find_checkpoint(self.store, ident)
        return {"checkpoint_id": ident, "run": self.status(info.run)}

    def rollback(self, run_id: str, to: str, *, reason: str = "", who: str = "") -> dict[str, Any]:
        """Roll a run back to an earlier checkpoint of it; `resume` continues from there."""
        self._refuse_reading("rollback")
        ident = roll_back(
            Access(self.journal, TolerantCodec()), self._position(run_id, to), by=who, reason=reason
        )
        return {"checkpoint_id": ident, "run": self.status(run_id)}

    def _position(self, run_id: str, at: str | None) -> Position:
        found = find_place(self.store, self._info(run_id).run, at)
        if found.info.run != run_id:
            raise RequestInvalid(f"checkpoint {at!r:.80} is one of run {found.info.run!r}")
        return found

    # Deleting and moving runs.

    def delete(self, run_id: str, *, who: str = "") -> dict[str, Any]:
        """Delete a run with all that belongs to it; one that a process executes is refused."""
        self._refuse_reading("delete")
        self._refuse_owned(run_id)
        logger.info("run %s is deleted by %s", run_id, who or "somebody")
        return {"run_id": run_id, "deleted": delete_run(self.journal, run_id)}

    def delete_checkpoint(self, ident: str, *, who: str = "") -> dict[str, Any]:
        """Delete a checkpoint with those before it; with its newest checkpoint goes the whole run."""
        self._refuse_reading("delete_checkpoint")
        kept = JournalCheckpointStore(self.store)
        self._refuse_owned(find_checkpoint(self.store, ident)[0].run)
        logger.info("checkpoint %s is deleted by %s", ident, who or "somebody")
        kept.delete(ident)
        return {"checkpoint_id": ident, "deleted": True}

    def export(self, run_id: str) -> bytes:
        """Return a run as a capsule, which `import_` of any service takes."""
        sink = io.BytesIO()
        write_capsule(self.store, self._info(run_id).run, sink, seal=self.journal.seal)
        return sink.getvalue()

    def import_(self, data: bytes, *, run_id: str | None = None, who: str = "") -> dict[str, Any]:
        """Take a run out of a capsule. It is a run from outside: nothing of it runs before it is confirmed."""
        self._refuse_reading("import")
        return import_data(self.store, data, who, run_id=run_id, seal=self.journal.seal).as_json()

    # What is known of the workflow of a run.

    def reload(self, *, who: str = "") -> dict[str, Any]:
        """Read the workflow files again; return what was added, changed and removed."""
        self._refuse_reading("reload")
        found, works = self.catalogue.reload(), self.has_worker
        if any(found.values()) and works:
            # The runs of the worker that knows the old files are handed over as their steps finish.
            self._stop_workers()
            self._workers = [each for each in self._workers if each[1].is_alive()]
            self.start()
            logger.info("workflows read again for %s: %s", who or "somebody", found)
        return found

    def _offered_of(self, info: RunInfo) -> Offered | None:
        return next((each for each in self.catalogue.offered if each.name == info.workflow), None)

    def _app(self, info: RunInfo) -> App | None:
        offered = self._offered_of(info)
        return None if offered is None else offered.app

    def _file(self, info: RunInfo) -> Workflow | None:
        offered = self._offered_of(info)
        return None if offered is None else offered.file

    def _codec(self, info: RunInfo) -> Codec:
        app = self._app(info)
        return TolerantCodec() if app is None else app._settings.codec

    def _retention(self, info: RunInfo) -> Retention | None:
        app = self._app(info)
        return None if app is None else app._settings.retention

    def _known_app(self, info: RunInfo) -> App:
        app = self._app(info)
        if app is None:
            raise self._unknown(info)
        return app

    def _refuse_unknown(self, info: RunInfo) -> None:
        """Refuse to queue a run that no worker of this service would execute; those of a queue may have others."""
        if self._app(info) is None and not info.queue and not self.catalogue.allows_inline:
            raise self._unknown(info)

    def _unknown(self, info: RunInfo) -> UnknownWorkflow:
        return UnknownWorkflow(
            f"run {info.run!r} is of workflow {info.workflow!r}, which this service does not have",
            remedies=Remedy("list_workflows"),
        )

    def _free_id(self, run_id: str | None) -> str:
        if run_id is None:
            return str(uuid.uuid4())
        if self.store.runs(run=run_id) or not run_id.isprintable() or not run_id.strip():
            raise RequestInvalid(f"{run_id!r:.200} cannot be the id of a new run, or a run has it")
        return run_id

    def _changes(self, run: RunState, info: RunInfo, update: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
        """Return changes by their places in the state; those of declared inputs are checked."""
        if not isinstance(update, Mapping) or not update:
            raise RequestInvalid(f"an update is an object with a value for each place, not {update!r:.80}")
        file = self._file(info)
        config = self._codec(info).decode(run.config) if run.config else {}
        if "workflow_file" not in config:
            known = {name for frame in run.frames.values() for name in frame.cells}
            return {
                (name,) if name in known else tuple(name.split(".")): value for name, value in update.items()
            }
        prefix = "inputs."
        inputs = {name.removeprefix(prefix): update[name] for name in update if name.startswith(prefix)}
        own = {name: value for name, value in inputs.items() if "." not in name}
        if own and file is not None:
            slot = run.root.cells.get("inputs")
            file.read_inputs({**(dict(slot.get() or {}) if slot is not None else {}), **own})
        return {place_in_state(run.outline, name.split(".")): value for name, value in update.items()}

    def _refuse_reading(self, what: str) -> None:
        if self.read_only:
            raise ReadOnly(f"this service only shows runs, so that {what.replace('_', ' ')} is refused")
