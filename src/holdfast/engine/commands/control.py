"""Sending commands to runs: to the inbox of the process that executes a run, or, without one, into its journal."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from holdfast import clock
from holdfast.engine.commands.handlers import annotation, records_of, tags_after
from holdfast.engine.commands.inbox import (
    ABOUT_NEXT_STEPS,
    ANNOTATE,
    ANSWER,
    CANCEL,
    EDIT,
    EXTEND,
    INJECT,
    MODIFY,
    REPLAN,
    SKIP,
    STALE,
    STOPS,
    Change,
    RunCommand,
    StepRequest,
    open_message,
    write_message,
)
from holdfast.engine.commands.subject import NeedsGraph, Refused, Subject
from holdfast.engine.owner import active_runs, has_owner, is_alive
from holdfast.engine.resume import load_latest, refuse_finished, take_answers
from holdfast.engine.settings import Pause, Retention, public_pauses
from holdfast.engine.time_travel.checkpoints import Place, checkpoint_at, find_place, find_position
from holdfast.errors import CheckpointNotFound, CommandRefused, HoldfastError, RunConflict, StateInvalid
from holdfast.graph.graph import Graph, Send
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Commanded, Record, RunAnnotated, RunEnded
from holdfast.journal.run_state import DONE, REFUSALS
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.stores.base import RunInfo, wait_for_change
from holdfast.values import RunStatus
from holdfast.views.plain import View

logger = logging.getLogger("holdfast")

Result = TypeVar("Result")

ASKED = "asked"
"""What `send` returns for a command that is in the inbox and not applied yet."""

TRIES = 5
_GLANCE = 0.05
_LONGEST = 100 * 366 * 86_400.0
"""The most seconds that a question can be given."""

_PASSING = 1.0
"""Seconds that an execution of this process may take to its first save, or from its last."""

# Commands as callers write them: values are encoded, malformed arguments are refused at once.

Path = str | tuple[str, ...]
Update = Mapping[Path, Any] | Mapping[str, Any] | Mapping[tuple[str, ...], Any]
"""New values by key; a tuple of keys is a place inside: `("inputs", "topic")`."""

Duration = float | dt.timedelta
"""Seconds, or a `timedelta`."""

Step = str | Send | Mapping[str, Any]
"""A step to run: a node's name, a `Send`, or a mapping with `node` and perhaps `item` and `key`."""


def edit(update: Update, codec: Codec | None = None) -> RunCommand:
    """Return a command that changes the state of a run, as its reducers take the update."""
    return RunCommand(EDIT, changes=changes_of(EDIT, update, codec or Codec()))


def skip(step: str) -> RunCommand:
    """Return a command that skips a step that is not running, or all steps of a node."""
    return RunCommand(SKIP, step=_step_name(SKIP, step))


def extend(pauses: Sequence[Pause], duration: Duration, pause: str = "") -> RunCommand:
    """Return a command that lets a question, or all that are open, take an answer for so long from now.

    `pauses` is what the run waits for: a question that may be answered for longer, or for ever, is left as it is.
    """
    seconds = duration.total_seconds() if isinstance(duration, dt.timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < _LONGEST:
        raise StateInvalid(f"a question can be given from 0 seconds to 100 years, not {duration!r:.80}")
    found = [each for each in pauses if each.kind == "ask" and pause in ("", each.id, each.name)]
    limits = [each.expires_at.timestamp() for each in found if each.expires_at is not None]
    if found and len(limits) < len(found):
        free = next(each.name for each in found if each.expires_at is None)
        raise CommandRefused(
            f"question {free!r} can be answered at any time; there is nothing to extend"
            + ("; name the question that is meant" if limits else "")
        )
    until = max([clock.time() + seconds, *limits])
    return RunCommand(EXTEND, pause=pause, value=Codec().encode(until))


def modify(step: str, update: Update, codec: Codec | None = None) -> RunCommand:
    """Return a command that lets a step which has not begun see other values than the state has."""
    changes = changes_of(MODIFY, update, codec or Codec())
    return RunCommand(MODIFY, step=_step_name(MODIFY, step), changes=changes)


def inject(
    steps: Step | Iterable[Step], codec: Codec | None = None, *, frame: str = "", follow: bool = False
) -> RunCommand:
    """Return a command that runs further steps beside those that are next; nothing follows them unless `follow`.

    `frame` is the open sub-graph that they belong to; a node can also be named `outer/inner`.
    """
    additions = _requests(INJECT, steps, codec or Codec())
    if not additions:
        raise CommandRefused("inject takes at least one step")
    return RunCommand(INJECT, additions=additions, frame=frame, follow=follow)


def replan(
    steps: Step | Iterable[Step], codec: Codec | None = None, *, frame: str = "", follow: bool = True
) -> RunCommand:
    """Return a command that runs these steps instead of all that are neither running nor finished.

    Without steps the run ends after what is running.
    """
    additions = _requests(REPLAN, steps, codec or Codec())
    return RunCommand(REPLAN, additions=additions, frame=frame, follow=follow)


def redefine(
    workflow: str,
    outline: Mapping[str, Any],
    config: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
) -> RunCommand:
    """Return a command to go on with another definition of the workflow: `config` is laid over the run's.

    `names` renames steps. The execution stops between two waves, as interrupted, or as queued in the fleet; the next
    execution reads the new config.
    """
    encoded, renamed = Codec().encode(dict(config)), dict(names or {})
    definition = {"workflow": workflow, "outline": dict(outline), "config": encoded, "names": renamed}
    return RunCommand(REPLAN, definition=definition)


def changes_of(kind: str, update: Update, codec: Codec) -> tuple[Change, ...]:
    """Return an update as changes."""
    if not isinstance(update, Mapping) or not update:
        raise CommandRefused(
            f"{kind} takes a mapping with values, such as {{'key': value}}, not {update!r:.80}"
        )
    changes = []
    for key, value in update.items():
        path = key if isinstance(key, tuple) else (key,)
        if not path or not all(map(_is_text, path)):
            raise CommandRefused(
                f"{kind} names what it changes by text, or a tuple of texts, not {key!r:.80}"
            )
        try:
            changes.append(Change(path, codec.encode(value)))
        except HoldfastError as error:
            raise CommandRefused(f"{kind}: state key {'.'.join(path)!r}: {error}") from None
    return tuple(changes)


def _is_text(text: Any) -> bool:
    try:
        return isinstance(text, str) and bool(text.encode() or True)
    except UnicodeEncodeError:
        return False


def _step_name(kind: str, step: str) -> str:
    if not isinstance(step, str) or not step:
        raise CommandRefused(f"{kind} names a step by its id or its node's name, not {step!r:.80}")
    return step


def _requests(kind: str, steps: Step | Iterable[Step], codec: Codec) -> tuple[StepRequest, ...]:
    alone = isinstance(steps, (str, Send, Mapping)) or not isinstance(steps, Iterable)
    given: list[Any] = [steps] if alone else list(steps)  # type: ignore[arg-type]
    return tuple(_request(kind, step, codec) for step in given)


def _request(kind: str, step: Any, codec: Codec) -> StepRequest:
    if isinstance(step, str):
        step = {"node": step}
    elif isinstance(step, Send):
        step = {"node": step.node, "item": step.item, "key": step.key}
    if not isinstance(step, Mapping) or "node" not in step or set(step) - {"node", "item", "key"}:
        raise CommandRefused(
            f"{kind} takes nodes' names, Sends, or mappings with node, item and key, not {step!r:.80}"
        )
    node, key, item = step["node"], step.get("key"), step.get("item")
    if not node or not _is_text(node):
        raise CommandRefused(f"{kind} names nodes by text, not {node!r:.80}")
    if key is not None and (not key or not _is_text(key)):
        raise CommandRefused(f"{kind}: the key of an item is text that is not empty, not {key!r:.80}")
    if item is None or item == {}:
        return StepRequest(node, key)
    changes = changes_of(kind, item, codec)
    if any(len(change.path) > 1 for change in changes):
        raise CommandRefused(f"{kind}: the item of {node!r} holds whole values only; name its keys by text")
    return StepRequest(node, key, changes)


# Sending.


def post(journal: Journal, run_id: str, command: RunCommand) -> int:
    """Put a command into a run's inbox; return the number of the message."""
    number = journal.post(run_id, write_message(command))
    execution = active_runs.find(journal.store, run_id)
    if execution is not None:
        execution.request_look()
    return number


def send(
    journal: Journal,
    run_id: str,
    command: RunCommand,
    *,
    by: str = "",
    reason: str = "",
    codec: Codec | None = None,
    graph: Graph | None = None,
    timeout: float = 0.0,
) -> str:
    """Send a command and return the status that the run has when it is applied, or `ASKED` if that comes later.

    The process that executes the run applies it between two steps; without one it is applied here, or, if the run's
    graph is needed and not given, by the next execution. A refusal raises `CommandRefused` if it is known within
    `timeout` seconds; the journal tells it in any case. Annotations are taken by completed runs, too.
    """
    refuse: Callable[[RunInfo], object] = refuse_finished if command.kind != ANNOTATE else bool
    if active_runs.find(journal.store, run_id) is not None and not journal.store.runs(run=run_id):
        raise CommandRefused(
            f"run {run_id!r} is stored only when it stops; until then it can be paused or cancelled"
        )
    refuse(journal.info(run_id))
    number = post(journal, run_id, command._replace(by=by, reason=reason))
    loaded = _seen(
        journal, run_id, number, codec or Codec(), graph=graph, timeout=timeout, check=refuse, grace=_PASSING
    )
    if loaded is None:
        return ASKED
    for refusal in loaded.run.refusals:
        if refusal.number == number:
            raise CommandRefused(f"run {run_id!r}: {refusal.command} is refused: {refusal.reason}")
    return RunStatus(loaded.run.status)


def _seen(
    journal: Journal,
    run_id: str,
    number: int,
    codec: Codec,
    *,
    graph: Graph | None = None,
    timeout: float,
    check: Callable[[RunInfo], object] = bool,
    grace: float = 0.0,
) -> Loaded | None:
    """Return the run once it has seen a message; `None` if it has not within `timeout` seconds.

    If nobody executes the run, its inbox is processed here.
    """
    end, conflicts = clock.monotonic() + timeout, 0
    while True:
        loaded = load_latest(journal, journal.info(run_id), codec)
        if loaded.run.inbox_seen >= number:
            return loaded
        check(loaded.info)
        if has_owner(journal.store, loaded.info):
            passing = 0.0 if loaded.run.status == RunStatus.RUNNING else grace
            if clock.monotonic() >= end + passing:
                return None
            wait_for_change(journal.store, run_id, _GLANCE)
            continue
        try:
            if not apply_inbox(journal, loaded, codec, graph):
                return None
        except RunConflict:
            conflicts += 1  # Somebody recorded something, or resumed the run, at the same time.
            if conflicts == TRIES:
                raise


def _retried(action: Callable[[], Result]) -> Result:
    """Return what `action` returns, tried again while somebody else writes to the run at the same time."""
    for _ in range(TRIES - 1):
        try:
            return action()
        except RunConflict:
            continue
    return action()


def process_inbox(journal: Journal, run_id: str, codec: Codec, graph: Graph | None = None) -> None:
    """Process the pending inbox of a run that has no owner.

    A sender calls this after posting to an executing run, and so does an execution that has left the run: one of
    the two comes after both the message and the end.
    """

    def process() -> None:
        found = journal.store.runs(run=run_id)
        if not found or found[0].status == RunStatus.COMPLETED:
            return
        loaded = load_latest(journal, found[0], codec)
        is_owned = has_owner(journal.store, loaded.info)
        if not is_owned and journal.store.inbox(run_id, loaded.run.inbox_seen):
            apply_inbox(journal, loaded, codec, graph)

    _retried(process)


def apply_inbox(journal: Journal, loaded: Loaded, codec: Codec, graph: Graph | None) -> bool:
    """Record what the inbox of a run without an owner asks for, in order; return whether anything could be.

    A command that needs the run's graph is left, with all after it, to a process that has that.
    """
    name, run = loaded.info.run, loaded.run
    writer, seen = Writer(journal, loaded, codec, durable=True), run.inbox_seen
    is_changed, stop, info = False, None, loaded.info
    for message in journal.store.inbox(name, seen):
        command = open_message(journal, loaded.info, message, sealed=loaded.sealed)
        subject, refused = Subject(name, run, codec, graph), ""
        try:
            stop, found = _effect(subject, loaded.info, command, stop)
        except NeedsGraph:
            is_changed = True
            break
        except Refused as refusal:
            refused, found = str(refusal), []
            logger.info("run %s: %r is refused: %s", name, command.kind, refused)
        for record in found:
            writer.record(record)
            info = tags_after(info, record) if isinstance(record, RunAnnotated) else info
        if command.kind == EDIT and not refused:
            subject.warn_of_chosen_route()
        writer.record(Commanded(message.number, command.kind, refused, command.by, command.reason))
        if command.kind != ANNOTATE:  # An annotation does not touch the run.
            is_changed = is_changed or bool(found)
            info = dataclasses.replace(info, updated_at=clock.time())
        graph = None if command.redefines and not refused else graph
    if stop is None and is_changed and waits_for_worker(run.status, info):
        stop = RunStatus.QUEUED  # A worker looks what there is to do now.
    if stop is not None:
        writer.record(RunEnded(stop))
        info = dataclasses.replace(info, status=stop.value, owner="", due_at=None)
    writer.set_info(info)
    writer.flush()
    return run.inbox_seen > seen


def _effect(
    subject: Subject, info: RunInfo, command: RunCommand, stop: RunStatus | None
) -> tuple[RunStatus | None, list[Record]]:
    """Return the status that a run without an owner stops with, if it does, and what a command records."""
    run = subject.run
    if command.refused:
        raise Refused(command.refused)
    if run.status == RunStatus.COMPLETED and command.kind != ANNOTATE:
        raise Refused("the run is completed")
    if command.kind in STOPS:
        status = _status_after(command.kind, stop or run.status, info)
        if status is None:
            raise Refused(STALE)
        return status, []
    waves = [frame.active.values() for frame in run.frames.values() if frame.active]
    is_over = any(all(step.status == DONE for step in steps) for steps in waves)
    if is_over and command.kind in ABOUT_NEXT_STEPS and command.kind != REPLAN:
        raise NeedsGraph  # Only the graph can tell what follows the finished steps.
    return stop, records_of(subject, command)


def waits_for_worker(status: str, info: RunInfo) -> bool:
    """Return True if workers would go on with a run only later, or when it was answered."""
    waits = status == RunStatus.PAUSED or (status == RunStatus.QUEUED and info.due_at is not None)
    return bool(info.queue) and waits


def _status_after(kind: str, status: str, info: RunInfo) -> RunStatus | None:
    """Return the status that a run without an owner stops with; `None` if there is nothing to stop."""
    if kind == CANCEL:
        return None if status == RunStatus.CANCELLED else RunStatus.CANCELLED
    goes_on_alone = status == RunStatus.PAUSED and info.queue and info.due_at is not None
    if status in (RunStatus.RUNNING, RunStatus.QUEUED) or goes_on_alone:
        return RunStatus.INTERRUPTED
    return None


# Stopping.


def stop(
    journal: Journal, run_id: str, kind: str, reason: str = "", *, by: str = "", codec: Codec | None = None
) -> RunStatus:
    """Cancel or pause a run, until it is resumed; one that is executing, in any process, stops soon.

    Return the status that the run then has: `running` if its owner has still to notice.
    """
    command, execution = RunCommand(kind, reason, by=by), active_runs.find(journal.store, run_id)
    if execution is None:
        return _retried(lambda: _stop_elsewhere(journal, run_id, command, codec or Codec()))
    execution.request(command)
    return RunStatus.RUNNING


def _stop_elsewhere(journal: Journal, run_id: str, command: RunCommand, codec: Codec) -> RunStatus:
    """Stop a run that this process does not execute: by a message, or, without an owner, in its journal."""
    info = journal.info(run_id)
    refuse_finished(info)
    if has_owner(journal.store, info):
        post(journal, run_id, command)
        process_inbox(journal, run_id, codec)
        return RunStatus(journal.info(run_id).status)
    loaded = load_latest(journal, info, codec)
    info = loaded.info
    refuse_finished(info)
    if info.status == RunStatus.RUNNING and is_alive(info.owner, journal.store):
        raise RunConflict(f"run {run_id!r} was resumed by another process just now; ask again")
    status = _status_after(command.kind, info.status, info)
    if status is None:
        return RunStatus(info.status)
    asked = Commanded(loaded.run.inbox_seen, command.kind, "", command.by, command.reason)
    _append(journal, loaded, codec, [asked, RunEnded(status)], status)
    return status


def _append(
    journal: Journal, loaded: Loaded, codec: Codec, found: Sequence[Record], status: RunStatus | None = None
) -> None:
    writer = Writer(journal, loaded, codec, durable=True)
    for record in found:
        writer.record(record)
    info = dataclasses.replace(loaded.info, updated_at=clock.time())
    if status is not None:
        info = dataclasses.replace(info, status=status.value, owner="", due_at=None)
    writer.set_info(info)
    writer.flush()


# Answers, and what became of them.

APPLIED, REFUSED, WAITING = "applied", "refused", "waiting"

ANSWER_TIMEOUT = 2.0
"""Seconds that an answer waits for the process that executes the run to apply or refuse it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt(View):
    """What became of an answer. `status` is `applied`, `refused` (`reason` says why) or `waiting`.

    While it is `waiting`, the process that executes the run has still to take it: ask later with `handle`. `names` are
    the questions that it answers.
    """

    JSON: ClassVar[str] = "run_id status answered=names reason by handle~"

    run_id: str
    status: str
    names: tuple[str, ...] = ()
    reason: str = ""
    by: str = ""
    number: int = 0
    """The number of its message in the run's inbox; 0 if it was applied without one."""

    @property
    def handle(self) -> str:
        """What to ask for it by; empty if it was applied without a message."""
        return f"{self.run_id}#{self.number}" if self.number else ""


def waiting(
    journal: Journal, run_id: str, *, codec: Codec | None = None, retention: Retention | None = None
) -> tuple[Pause, ...]:
    """Return what a run waits for."""
    codec = codec or Codec()
    return public_pauses(journal.load(journal.info(run_id), codec).run, codec, retention)


def answer(
    journal: Journal,
    run_id: str,
    value: Any = None,
    *,
    answers: Mapping[str, Any] | None = None,
    by: str = "",
    codec: Codec | None = None,
    retention: Retention | None = None,
    timeout: float = ANSWER_TIMEOUT,
) -> Receipt:
    """Answer what a run waits for, without executing it: `value` if it is one thing, `answers` by name or id.

    Return what became of it. If nobody executes the run, the answers are recorded now, and the next `resume` goes on
    with them. Otherwise the process that executes it takes them, all or none: if it has not done so within `timeout`
    seconds, the receipt is `waiting`, and `find_receipt` tells more later. If somebody else was faster, or the run
    went on, they are `refused`, which the run's journal tells, too. Answers that do not fit raise `AnswerRejected`.
    """
    codec = codec or Codec()

    def give() -> Receipt:
        loaded = load_latest(journal, journal.info(run_id), codec)
        info = loaded.info
        refuse_finished(info)
        found = take_answers(info, loaded.run, value, answers, codec, retention)
        given = [record._replace(by=by) for record in found]
        names = tuple(loaded.run.pauses[record.pause].name for record in given)
        if has_owner(journal.store, info):
            if not given:
                return Receipt(run_id, APPLIED, names, by=by)
            (pause, sent, _), *more = given
            others = tuple(Change((record.pause,), record.value) for record in more)
            command = RunCommand(ANSWER, pause=pause, value=sent, by=by, changes=others)
            number = post(journal, run_id, command)
            return _settled(journal, Receipt(run_id, WAITING, names, by=by, number=number), codec, timeout)
        if waits_for_worker(info.status, info):
            _append(journal, loaded, codec, [*given, RunEnded(RunStatus.QUEUED)], RunStatus.QUEUED)
        else:
            _append(journal, loaded, codec, given)
        return Receipt(run_id, APPLIED, names, by=by)

    return _retried(give)


def find_receipt(journal: Journal, handle: str, codec: Codec) -> Receipt:
    """Return what became of the answer with this handle so far."""
    if not handle:
        raise CommandRefused(
            "an answer that was applied at once has no handle: its receipt says what became of it"
        )
    run_id, mark, number = handle.rpartition("#")
    if not mark or not number.isdecimal() or int(number) < 1:
        raise CommandRefused(f"{handle!r} is no handle of an answer: those look like RUN#3")
    receipt = Receipt(run_id, WAITING, number=int(number))
    loaded = load_latest(journal, journal.info(run_id), codec)
    if loaded.run.inbox_seen >= receipt.number:
        return _outcome(journal, loaded, receipt, codec)
    for message in journal.store.inbox(run_id, receipt.number - 1):
        if message.number == receipt.number:
            command = open_message(journal, loaded.info, message, sealed=loaded.sealed)
            return _settled(journal, dataclasses.replace(receipt, by=command.by), codec, 0.0)
    raise CommandRefused(f"run {run_id!r} has no message {receipt.number}")


def _settled(journal: Journal, receipt: Receipt, codec: Codec, timeout: float) -> Receipt:
    """Return what becomes of a message within `timeout` seconds, at once in the thread that executes the run."""
    execution = active_runs.find(journal.store, receipt.run_id)
    if execution is not None and execution.thread == threading.get_ident():
        timeout = 0.0
    loaded = _seen(journal, receipt.run_id, receipt.number, codec, timeout=timeout)
    return receipt if loaded is None else _outcome(journal, loaded, receipt, codec)


def _outcome(journal: Journal, loaded: Loaded, receipt: Receipt, codec: Codec) -> Receipt:
    """Return what a run that has seen a message says of it."""
    run, number = loaded.run, receipt.number
    for refusal in run.refusals:
        if refusal.number == number:
            return dataclasses.replace(receipt, status=REFUSED, reason=refusal.reason, by=refusal.by)
    if run.refused > REFUSALS and number < run.refusals[0].number:  # Older than what the run remembers.
        for _, records in journal.history(loaded.info, codec)[1]:
            for record in records:
                if isinstance(record, Commanded) and record.number == number and record.refused:
                    return dataclasses.replace(receipt, status=REFUSED, reason=record.refused, by=record.by)
    return dataclasses.replace(receipt, status=APPLIED)


# Annotations.

ANNOTATION_TIMEOUT = 0.2
"""Seconds to wait at least: an execution may end at the same time without having looked."""


def annotate(
    journal: Journal,
    target: str,
    *,
    text: str = "",
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    keep: bool | None = None,
    checkpoint: Place | None = None,
    by: str = "",
    codec: Codec | None = None,
    timeout: float = 0.0,
) -> str:
    """Note a text, add or remove tags, or keep a checkpoint; return as `send` does.

    It is of the run, or of a checkpoint if `target` or `checkpoint` names one. `keep` has retention leave a checkpoint
    alone, and the run with it: the newest, if none is named. The run may be completed.
    """
    position = find_place(journal.store, target, checkpoint)
    if checkpoint is not None and find_position(journal.store, target).seq is not None:
        raise CommandRefused(f"{target!r} names a checkpoint already; give only one")
    seq = position.seq or 0
    if position.seq is not None or keep is not None:
        found = checkpoint_at(journal.store, position)
        if position.seq is not None and (found is None or found.seq != seq):
            raise CheckpointNotFound(f"{target!r} is before the first checkpoint; speak of the run itself")
        if found is None:
            raise CheckpointNotFound(f"run {position.info.run!r} has no checkpoint to keep there")
        seq = found.seq
    command = RunCommand(ANNOTATE, annotation=annotation(seq, text, add, remove, keep))
    timeout = max(timeout, ANNOTATION_TIMEOUT)
    return send(journal, position.info.run, command, by=by, codec=codec or TolerantCodec(), timeout=timeout)
