"""The facts of a run as its journal tells them, and what of them it does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from holdfast.data.codec import Codec
from holdfast.engine.runner import tags_of
from holdfast.errors import HoldfastError
from holdfast.journal.run_state import Remark, RunState
from holdfast.stores.base import RunInfo
from holdfast.stores.mending import Standing
from holdfast.values import RunStatus

_WAITING = (RunStatus.QUEUED.value, RunStatus.INTERRUPTED.value)


class Told(NamedTuple):
    """What a journal tells of a run: its state, the tags that were ever removed from it, and whether all of that.

    `parent` is the key of the run that it is read through, `None` where that is not known.
    """

    run: RunState
    removed: frozenset[str]
    from_the_beginning: bool
    parent: bytes | None


class Righted(NamedTuple):
    """Facts that agree with a journal, and what could not be verified of them, in words."""

    info: RunInfo
    unverified: tuple[str, ...] = ()


def righted(standing: Standing, told: Told, codec: Codec) -> Righted:
    """A run's facts as its journal has them; what cannot be believed is kept only where nothing else is known."""
    info, run = standing.info, told.run
    waits = info.status in _WAITING and str(run.status) in _WAITING
    facts = replace(
        info,
        workflow=run.workflow,
        status=info.status if waits else str(run.status),
        driver=run.driver if run.status == RunStatus.RUNNING else "",
        parent=info.parent if told.parent is None else told.parent,
    )
    if not standing.problem:
        return Righted(replace(facts, tags=tuple(dict.fromkeys((*facts.tags, *missing_tags(info, run))))))
    tags, are_known = _tags(info, told, codec)
    facts = replace(facts, created_at=run.started_at, updated_at=run.updated_at, tags=tags)
    others = ("queue", "priority", "due time", "whether the end of its journal is there")
    return Righted(facts, others if are_known else ("tags", *others))


def missing_tags(info: RunInfo, run: RunState) -> list[str]:
    """The tags that a run was given, and its facts lack."""
    return [tag for tag in _given(run) if tag not in info.tags]


def _given(run: RunState) -> tuple[str, ...]:
    return (run.remarks.get(0) or Remark()).tags


def _tags(info: RunInfo, told: Told, codec: Codec) -> tuple[tuple[str, ...], bool]:
    """The tags of a run, and whether they are known: those that it was forked with are in its facts alone."""
    known = told.from_the_beginning and told.parent == b""
    try:
        config = codec.decode(told.run.config) if told.run.config else {}
    except HoldfastError:
        config, known = {}, False
    begun = tags_of(config) if isinstance(config, Mapping) else ()
    first = begun if known else (*begun, *(tag for tag in info.tags if tag.isprintable()))
    left = [tag for tag in first if tag not in told.removed]
    return tuple(dict.fromkeys((*left, *_given(told.run)))), known
