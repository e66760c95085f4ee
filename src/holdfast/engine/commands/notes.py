"""Saying something of a stored run or checkpoint: which one is meant, and putting it to the run."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine.commands.handlers import remark_of
from holdfast.engine.commands.inbox import REMARK, Wish
from holdfast.engine.commands.posting import ask
from holdfast.engine.time_travel.checkpoints import Moment, Place, checkpoint_at, find_moment, find_place
from holdfast.errors import CheckpointNotFound, CommandRefused
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import Remark
from holdfast.state.codec import Codec, TolerantCodec

AWAITED = 0.2
"""How long, in seconds, a driver is given at least, lest it ends at this very moment without having looked."""


def tag(
    journal: Journal,
    target: str,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    *,
    checkpoint: Place | None = None,
    by: str = "",
    codec: Codec | None = None,
    patience: float = 0.0,
) -> str:
    """Tag a run, or a checkpoint if `target` is one or `checkpoint` is given; `runs(tag=…)` finds tagged runs.

    Answers, as all here, the run's status, or `asked` if its driver has still to write it down. It may be completed.
    """
    moment = _meant(journal, target, checkpoint)
    remark = remark_of(moment.seq or 0, add=add, remove=remove)
    return _said(journal, moment, Wish(REMARK, by=by, remark=remark), codec, patience)


def note(
    journal: Journal,
    target: str,
    text: str,
    *,
    checkpoint: Place | None = None,
    by: str = "",
    codec: Codec | None = None,
    patience: float = 0.0,
) -> str:
    """Write down what is to be known of a run or a checkpoint."""
    moment = _meant(journal, target, checkpoint)
    wish = Wish(REMARK, by=by, remark=remark_of(moment.seq or 0, text))
    return _said(journal, moment, wish, codec, patience)


def keep(
    journal: Journal,
    target: str,
    checkpoint: Place | None = None,
    *,
    keep: bool = True,
    by: str = "",
    codec: Codec | None = None,
    patience: float = 0.0,
) -> str:
    """Have retention leave a checkpoint alone, and the run with it: the newest, if none is named."""
    moment = _meant(journal, target, checkpoint)
    found = checkpoint_at(journal.store, moment)
    if found is None or (moment.seq is not None and found.seq != moment.seq):
        raise CheckpointNotFound(f"run {moment.info.run!r} has no checkpoint to keep there")
    wish = Wish(REMARK, by=by, remark=remark_of(found.seq, keep=keep))
    return _said(journal, moment, wish, codec, patience)


def remarks(journal: Journal, target: str) -> dict[int, Remark]:
    """What was said of a run, by the entry of the checkpoint, 0 for the run as a whole."""
    info = find_moment(journal.store, target).info
    return journal.load(info, TolerantCodec()).run.remarks


def _meant(journal: Journal, target: str, checkpoint: Place | None) -> Moment:
    """The run, with the entry of the checkpoint that is spoken of, if it is one."""
    moment = find_place(journal.store, target, checkpoint)
    if checkpoint is not None and find_moment(journal.store, target).seq is not None:
        raise CommandRefused(f"{target!r} names a checkpoint already; give only one")
    if moment.seq is not None and not _is_checkpoint(journal, moment):
        raise CheckpointNotFound(f"{target!r} is before the first checkpoint; speak of the run itself")
    return moment


def _is_checkpoint(journal: Journal, moment: Moment) -> bool:
    found = checkpoint_at(journal.store, moment)
    return found is not None and found.seq == moment.seq


def _said(journal: Journal, moment: Moment, wish: Wish, codec: Codec | None, patience: float) -> str:
    return ask(journal, moment.info.run, wish, codec or TolerantCodec(), None, max(patience, AWAITED))
