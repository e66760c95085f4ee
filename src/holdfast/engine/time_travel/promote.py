"""Letting a run stand where it once stood, or where a fork of it stands: recorded, so that nothing is lost."""

from __future__ import annotations

import dataclasses

from holdfast import clock
from holdfast.engine.confirmation import confirm
from holdfast.engine.resume import as_journalled
from holdfast.engine.time_travel.checkpoints import Moment
from holdfast.engine.time_travel.fork import Hands, checkpoint_of, refuse_owned, undriven
from holdfast.errors import CheckpointNotFound, CommandRefused, RunNotFound
from holdfast.journal.checkpoint_ids import checkpoint_id, mark_facts
from holdfast.journal.encoding import Track, encode_run
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.provenance import set_back
from holdfast.journal.records import Reset, Reusing, RunEnded
from holdfast.journal.run_state import RunState, at_checkpoint, copy_run
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus
from holdfast.views.family import ancestors


def roll_back(hands: Hands, moment: Moment, *, by: str = "", reason: str = "") -> str:
    """Let a run stand where it stood at an earlier entry of its own; answer the id of the new checkpoint.

    As after a fork from there, questions are asked again and gates are closed again. What came after stays in the
    journal and can be gone back to in the same way.
    """
    loaded = undriven(hands, moment.info.run)
    if moment.seq is None:
        raise CheckpointNotFound(
            f"say where run {moment.info.run!r} is to stand: a checkpoint, a wave or a node"
        )
    there = hands.journal.load(moment.info, hands.codec, moment.seq)
    status = RunStatus(there.run.status)
    if status != RunStatus.COMPLETED:
        status = RunStatus.INTERRUPTED
    place = at_checkpoint(there.run)
    facts = dataclasses.replace(loaded.info, due_at=None, origin=set_back(loaded.info.origin))
    return _reset(hands, loaded, there, place, RunEnded(status), facts, by, reason)


def promote_fork(
    hands: Hands, fork: RunInfo, into: RunInfo | None = None, *, by: str = "", reason: str = ""
) -> str:
    """Promote a fork's result to the run that it was forked from, or to an earlier ancestor.

    Answers the id of the checkpoint that this run now stands at. The fork stays; promoting it again changes nothing,
    unless one of the two went on meanwhile.
    """
    journal, store = hands.journal, hands.journal.store
    target = _target(journal, fork, into)
    if fork.workflow != target.workflow:
        raise CommandRefused(
            f"run {fork.run!r} is of workflow {fork.workflow!r}, and {target.run!r} of {target.workflow!r}"
        )
    theirs = as_journalled(journal.load(fork, hands.codec))
    confirm(journal, fork, theirs.run)
    refuse_owned(store, theirs.info)
    loaded = undriven(hands, target.run)
    if _is_promoted(journal, loaded, theirs):
        return checkpoint_id(target.key, loaded.run.saved_seq)
    ended = _ending(theirs, loaded.info)
    due_at = theirs.info.due_at if loaded.info.queue and ended.status == RunStatus.PAUSED else None
    facts = dataclasses.replace(loaded.info, due_at=due_at, origin=loaded.info.origin or fork.origin)
    return _reset(hands, loaded, theirs, copy_run(theirs.run), ended, facts, by, reason)


def _reset(
    hands: Hands,
    loaded: Loaded,
    source: Loaded,
    place: RunState,
    ended: RunEnded,
    facts: RunInfo,
    by: str,
    reason: str,
) -> str:
    track, theirs = Track(), source.info
    track.copy_from(source.track)
    is_own = theirs.key == loaded.info.key
    if not is_own and place.reuse is not None:
        place.reuse = _of_another(place.reuse, theirs)
    body = encode_run(place, track, hands.codec)
    writer = hands.writer(loaded)
    name, key = ("", b"") if is_own else (theirs.run, theirs.key)
    writer.record(Reset(name, source.seq, body, place, by, reason, key=key, renew=not is_own))
    writer.record(ended)
    found = hands.journal.store.marks(source.info.run, source.seq + 1, 1)
    is_marked = bool(found) and found[0].seq == source.seq
    writer.mark(mark_facts(found[0].mark) if is_marked else checkpoint_of(writer))
    writer.set_info(dataclasses.replace(facts, status=str(ended.status), driver="", updated_at=clock.time()))
    writer.flush()
    return checkpoint_id(loaded.info.key, writer.seq)


def _of_another(reuse: Reusing, info: RunInfo) -> Reusing:
    """What a run takes results from, as another says it that takes its place."""
    needs = tuple((key or info.key, seq) for key, seq in reuse.needs)
    source, key = (reuse.source, reuse.key) if reuse.source else (info.run, info.key)
    return reuse._replace(source=source, key=key, needs=needs)


def _ending(theirs: Loaded, target: RunInfo) -> RunEnded:
    """How the fork stands, as the end of the other run: what was under way in it is interrupted there."""
    status = RunStatus(theirs.run.status)
    if status == RunStatus.RUNNING or (status == RunStatus.QUEUED and not target.queue):
        status = RunStatus.INTERRUPTED
    return RunEnded(status, theirs.run.fault, theirs.run.fault_node)


def _is_promoted(journal: Journal, loaded: Loaded, theirs: Loaded) -> bool:
    """Whether the last thing that happened to a run is that it was set to where the fork still stands."""
    last = next(iter(journal.store.read(loaded.info.run, loaded.seq - 1)), None)
    if last is None or last.seq == 1 or last.mark is None:
        return False
    found = journal.skimmed(loaded.info, last, TolerantCodec())
    return any(
        isinstance(record, Reset) and (record.key, record.seq) == (theirs.info.key, theirs.seq)
        for record in found
    )


def _target(journal: Journal, fork: RunInfo, into: RunInfo | None) -> RunInfo:
    """The run to promote a fork into: its parent, or, if it is one, the ancestor that is named."""
    if into is not None and into.key == fork.key:
        raise CommandRefused(f"run {fork.run!r} cannot be promoted to itself")
    if not fork.parent:
        raise CommandRefused(f"run {fork.run!r} is not a fork of another; there is nothing to promote it to")
    found = list(ancestors(journal.store, fork))
    if not found:
        raise RunNotFound(
            f"the run that {fork.run!r} was forked from is gone; there is nothing to promote it to"
        )
    if into is None:
        return found[0]
    for info in found:
        if info.key == into.key:
            return info
    names = ", ".join(repr(info.run) for info in found)
    raise CommandRefused(
        f"run {fork.run!r} was not forked from {into.run!r}; it can be promoted to what it comes from: {names}"
    )
