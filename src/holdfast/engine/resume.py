"""Resuming: finding the run, taking answers, and the options of a resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from holdfast import clock
from holdfast.engine.decide import elapsed
from holdfast.engine.settings import ON_CHANGE, Retention, Settings, expires_at, one_of
from holdfast.errors import (
    AnswerRejected,
    CheckpointNotFound,
    NotPaused,
    Remedy,
    RunFinished,
    RunNotFound,
    StateInvalid,
    suggestion,
)
from holdfast.graph.graph import IF_INTERRUPTED, Graph, renamed
from holdfast.journal import records
from holdfast.journal.checkpoint_ids import is_checkpoint_id, locate_checkpoint
from holdfast.journal.journal import Journal, Loaded, unknown_run
from holdfast.journal.run_state import (
    ABOUT_DOUBTS,
    DONE,
    EVERY_KEY,
    EXPIRED,
    IN_DOUBT,
    NO_ANSWER,
    READY,
    Pause,
    RunState,
)
from holdfast.names import LazyModule
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, advance
from holdfast.stores.base import RunInfo, Store
from holdfast.values import RunStatus, utc_time

if TYPE_CHECKING:
    from holdfast.engine import answers
else:
    answers = LazyModule("engine.answers")

_NOT_COMPLETED = [status for status in RunStatus if status not in (RunStatus.COMPLETED, RunStatus.DAMAGED)]


def is_checkpoint_file(target: object) -> bool:
    """Return whether a target is a checkpoint file rather than the name of a run, a checkpoint or a workflow."""
    return isinstance(target, Path) or (isinstance(target, str) and target.endswith(".pkl"))


def find_run(store: Store, target: str) -> tuple[RunInfo, int | None]:
    """Return the run that a run id, a checkpoint id or a workflow name means, and the checkpoint's position.

    Of a workflow the run that was touched last and is not completed is meant.
    """
    if found := store.runs(run=target):
        return found[0], None
    if is_checkpoint_id(target):
        return find_checkpoint(store, target)
    if found := store.runs(workflow=target, status=_NOT_COMPLETED, limit=1):
        return found[0], None
    if found := store.runs(workflow=target, limit=1):
        raise RunFinished(
            f"every run of workflow {target!r} is completed (the last is {found[0].run!r}); "
            "there is nothing to resume"
        )
    run, at, _ = target.rpartition("@")
    if at and (store.runs(run=run) or store.runs(workflow=run, limit=1)):
        raise RunNotFound(
            f"{target!r} names a checkpoint in the history of run {run!r}, and no run or checkpoint by its id",
            remedies=Remedy("fork", target),
        )
    raise unknown_run(store, target)


def find_checkpoint(store: Store, ident: str) -> tuple[RunInfo, int]:
    """Return the run and the position that a checkpoint id names; one that is not stored is refused."""
    key, seq = locate_checkpoint(ident)
    found = store.runs(key=key)
    if not found or not store.checkpoints(found[0].run, before=seq + 1, limit=1):
        raise CheckpointNotFound(f"checkpoint not found: {ident}, nor is there such a run", store=store.url)
    if store.checkpoints(found[0].run, before=seq + 1, limit=1)[0].seq != seq:
        raise CheckpointNotFound(
            f"checkpoint not found: {ident} (run {found[0].run!r} has pruned or never had it)"
        )
    return found[0], seq


def as_journalled(loaded: Loaded) -> Loaded:
    """Return a loaded run with the status and the owner that its journal tells.

    Its plain facts were read a little earlier, and another process may have resumed the run in between.
    """
    facts, status, owner = loaded.info, str(loaded.run.status), loaded.run.owner
    if facts.status == status and facts.owner == owner:
        return loaded
    facts = dataclasses.replace(facts, status=status, owner=owner)
    return dataclasses.replace(loaded, info=facts)


def load_latest(journal: Journal, info: RunInfo, codec: Codec) -> Loaded:
    """Return a run as its journal tells it now, for a caller that writes to it.

    Those are read once more after the journal, so that they are never older: what another writer put into them
    meanwhile is either among them, or makes the next append a conflict.
    """
    while True:
        loaded = journal.load(info, codec)
        info = journal.info(info.run)
        if info.key == loaded.info.key:
            return as_journalled(loaded if info is loaded.info else dataclasses.replace(loaded, info=info))


def take_answers(
    info: RunInfo,
    run: RunState,
    answer: Any,
    answers: Mapping[str, Any] | None,
    codec: Codec,
    retention: Retention | None,
) -> list[records.Answered]:
    """Return the answers as records, each checked against its pause; all are taken or none."""
    wanted: dict[str, Any] = dict(answers or {})
    waiting = [pause for pause in run.pauses.values() if pause.kind not in NO_ANSWER]
    if answer is not None:
        if answers:
            raise AnswerRejected("give either answer= or answers=, not both")
        if not run.pauses:
            raise _not_waiting(info)
        if not waiting and answer is True:
            return []
        if not waiting:
            raise AnswerRejected(
                f"run {info.run!r} waits at a gate, which takes no answer: resume it without one"
            )
        if len(waiting) > 1:
            names = ", ".join(sorted(repr(pause.name) for pause in waiting))
            raise AnswerRejected(
                f"run {info.run!r} waits for several answers; say which is answered by its name: {names}"
            )
        wanted = {waiting[0].id: answer}
    if not wanted:
        return []
    if not run.pauses:
        raise _not_waiting(info)
    return [
        _take(info.run, _find(info.run, waiting, name), value, codec, retention)
        for name, value in wanted.items()
    ]


def _not_waiting(info: RunInfo) -> NotPaused:
    if info.status == RunStatus.PAUSED:
        return NotPaused(
            f"run {info.run!r} is not waiting for an answer any more: its questions were answered already",
            remedies=Remedy("resume", info.run),
        )
    return NotPaused(f"run {info.run!r} is not waiting for an answer (it is {info.status})")


def answered_now(
    info: RunInfo, run: RunState, options: ResumeOptions, settings: Settings, *, sleeps: bool
) -> list[records.Answered]:
    """Return all that is answered when a run is resumed: by the caller, by `if_interrupted`, and by time."""
    answered = take_answers(info, run, options.answer, options.answers, settings.codec, settings.retention)
    known, policy = {record.pause for record in answered}, options.if_interrupted
    if policy not in (None, "ask"):
        doubts = [pause.id for pause in run.pauses.values() if pause.kind in ABOUT_DOUBTS]
        answered += [records.Answered(pause, str(policy).encode()) for pause in doubts if pause not in known]
        known.update(doubts)
    has_passed = partial(settings.journal.deadlines.has_passed, info.run)
    over = elapsed(run, has_passed, sleeps=sleeps)
    waiting = [pause for pause in run.pauses.values() if pause.expires_at is None]
    stale = ((pause.id, expires_at(pause, settings.retention)) for pause in waiting)
    over += [records.Answered(pause, EXPIRED, "time") for pause, at in stale if at and has_passed(at)]
    return answered + [record for record in over if record.pause not in known]


def is_at_rest(
    info: RunInfo, run: RunState, options: ResumeOptions, answered: list[records.Answered], barrier: bool
) -> bool:
    """Return whether a resume would leave a paused run as it is: nothing was answered, changed or passed."""
    gated = options.approve and any(pause.kind in ("before", "after") for pause in run.pauses.values())
    changed = not run.pauses or any(
        step.status in (READY, IN_DOUBT) or (step.skipped and not barrier) for step in run.active()
    )
    return info.status == RunStatus.PAUSED and not (answered or changed or gated or options.update)


def _find(run: str, waiting: list[Pause], name: str) -> Pause:
    exact = [pause for pause in waiting if pause.id == name]
    found = exact or [pause for pause in waiting if pause.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(repr(pause.id) for pause in found)
        raise AnswerRejected(f"run {run!r} has several pauses named {name!r}; answer by id: {ids}")
    known = ", ".join(repr(pause.name) for pause in waiting) or "none"
    close = suggestion(name, [pause.name for pause in waiting])
    raise AnswerRejected(f"run {run!r} has no pause {name!r} (it waits for: {known}){close}")


def _take(run: str, pause: Pause, value: Any, codec: Codec, retention: Retention | None) -> records.Answered:
    expires = expires_at(pause, retention)
    if expires is not None and clock.time() > expires:
        when = utc_time(expires).isoformat(timespec="seconds")
        way_out = "a resume goes on without it: with the question's default, or asking it again"
        raise AnswerRejected(
            f"the answer to {pause.name!r} of run {run!r} comes too late: it was due by {when}; {way_out}",
            remedies=(Remedy("resume", run), Remedy("extend", run)),
        )
    if pause.schema:
        reason = answers.misfit(value, codec.decode(pause.schema))
        if reason:
            raise AnswerRejected(f"run {run!r}, pause {pause.name!r}: {reason}")
    raw = str(value).encode() if pause.kind in ABOUT_DOUBTS else codec.encode(value)
    return records.Answered(pause.id, raw)


def refuse_finished(info: RunInfo, *, unchanged: bool = False) -> None:
    """Refuse to resume a run that is completed, also one that is `unchanged` where changes were to be done again."""
    if info.status == RunStatus.COMPLETED:
        why = ": execution already complete, there is nothing to resume or answer"
        if unchanged:
            why = ", and nothing changed that it did: there is nothing to run again"
        raise RunFinished(f"run {info.run!r} is completed{why}")


class ResumeKeywords(TypedDict, total=False):
    """The options of `App.resume` beside the answers; `ResumeOptions` describes them."""

    config: Mapping[str, Any] | None
    update: Mapping[str, Any] | None
    if_interrupted: str | None
    on_change: str | None
    remap: Mapping[str, str] | None
    takeover: bool
    rename_keys: Mapping[str, str] | None
    plan: Any
    trust: bool | str
    rerun_changed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ResumeOptions:
    """The options of a resume."""

    answer: Any = None
    answers: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None
    if_interrupted: str | None = None
    on_change: str | None = None
    remap: Mapping[str, str] | None = None
    takeover: bool = False
    rename_keys: Mapping[str, str] | None = None
    """The new names of keys of the state, with what belongs to them (`old:…`, `old/…`)."""
    plan: Any = None
    """A `ResumePlan`, or the id of one, that has to hold still."""
    approve: bool = True
    """Whether gates that the run waits at are passed."""
    trust: bool | str = False
    """Whether the caller confirms what a run from outside would run with; text is the digest of what was shown."""
    rerun_changed: bool = False
    """Whether the run is taken back to before what the graph at hand does otherwise now."""

    def check(self, graph: Graph) -> None:
        """Refuse values that mean nothing, and a config that runs of the graph cannot have."""
        for name in ("answers", "config", "update", "remap", "rename_keys"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise StateInvalid(f"{name} must be a mapping such as {{'name': value}}, not {value!r:.80}")
        if not isinstance(self.trust, (bool, str)):
            raise StateInvalid(f"trust must be True, or the digest of what was shown, not {self.trust!r:.80}")
        if self.plan is not None and not isinstance(getattr(self.plan, "id", self.plan), str):
            raise StateInvalid(f"plan must be what plan_resume(…) gives, or its id, not {self.plan!r:.80}")
        if self.if_interrupted is not None:
            one_of("if_interrupted", self.if_interrupted, IF_INTERRUPTED)
        if self.on_change is not None:
            one_of("on_change", self.on_change, ON_CHANGE)
        if self.config and graph.check_config is not None:
            graph.check_config(self.config)

    def refuse_rerun(self) -> None:
        """Refuse to take back what begins at an older checkpoint."""
        if self.rerun_changed:
            raise StateInvalid(
                "rerun-changed is for a run, and not an older checkpoint, from which all that follows runs again"
            )

    def refuse_answers(self, what: str) -> None:
        """Refuse answers where there is nothing to answer."""
        if self.answer is not None or self.answers:
            raise AnswerRejected(f"{what} takes no answers")


def edits(graph: Graph, run: RunState, update: Mapping[str, Any], codec: Codec) -> list[records.StateEdited]:
    """Return an update of the state from outside: of the run's own, and of what open sub-graphs share of it."""
    if not update:
        return []
    found = []
    for frame in run.frames.values():
        own = not frame.path or frame.shared == EVERY_KEY
        values = {key: value for key, value in update.items() if own or key in frame.shared}
        schema = graph.at(frame.path).schema
        ops = schema.resolve(codec, frame.cells, values)
        ops += schema.reduce(codec, frame.cells, ops)
        found.append(records.StateEdited(frame.path, tuple(op for op in ops if op.kind != "reduce")))
    return found


def renamed_keys(
    run: RunState, names: Mapping[str, str], codec: Codec, graph: Graph | None = None
) -> Iterator[tuple[str, tuple[Op, ...]]]:
    """Yield, by frame, what is under keys that are called otherwise now, under their new names.

    What finished steps of an unfinished wave did is included. With a `graph` only keys that it has are named.
    """
    for frame in run.frames.values() if names else ():
        schema = graph.at(frame.path).schema if graph is not None else None
        finished = [op for step in frame.active.values() if step.status == DONE for op in step.ops]
        cells = advance(frame.cells, finished)
        ops = tuple(
            Op("set", new, cells[old].encoded(codec), codec=codec)
            for old, new in renamed(names, cells).items()
            if schema is None or schema.is_open or new in schema.channels
        )
        if ops:
            yield frame.path, ops
