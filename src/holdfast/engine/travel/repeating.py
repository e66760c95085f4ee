"""Beginning again: runs that take over what another has finished, and what is asked for when a step runs again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.data.schema import as_mapping
from holdfast.engine.changes import changed_nodes
from holdfast.engine.resume import ResumeOptions
from holdfast.engine.settings import Settings
from holdfast.engine.travel.forking import Fork, begin_fork
from holdfast.engine.travel.moments import Moment, find_moment
from holdfast.engine.travel.past import Past, past_of
from holdfast.engine.travel.rerunning import Given, Rerun, begun, plan_rerun, reused
from holdfast.errors import CannotRerun, CannotReuse, StateInvalid
from holdfast.journal.checkpoints import new_run_key
from holdfast.journal.journal import Loaded, genesis
from holdfast.journal.records import Reusing, RunStarted
from holdfast.journal.writer import Writer
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus


@dataclass(frozen=True, slots=True)
class Source:
    """A run whose finished steps a new one takes over where their code and their inputs are the same."""

    settings: Settings
    past: Past

    @classmethod
    def find(cls, settings: Settings, target: str) -> Source:
        """The run that is meant, up to the moment that is meant; one of another workflow is refused."""
        if not isinstance(target, str):
            raise StateInvalid(
                f"reuse= names a run by its id, a checkpoint or a workflow's name, not {target!r:.80}"
            )
        moment = find_moment(settings.journal.store, target)
        if moment.info.workflow != settings.graph.name:
            raise CannotReuse(
                f"run {moment.info.run!r} is of workflow {moment.info.workflow!r}, and this graph is "
                f"{settings.graph.name!r}; only steps of the same workflow can be taken over"
            )
        return cls(settings, past_of(settings.journal, settings.codec, moment.info, moment.seq))

    @property
    def reusing(self) -> Reusing:
        """What the new run records."""
        return Reusing(self.past.info.run, self.past.info.key, 0, self.past.seq, None)

    def input(self, given: Any) -> Mapping[str, Any]:
        """The input of the new run: as given, or else that of the source."""
        if given is not None:
            return as_mapping(given, "the input")
        if self.past.begun is None:
            raise CannotReuse(
                f"the inputs of run {self.past.info.run!r} are no longer stored; give the new run its own"
            )
        schema = self.settings.graph.schema
        ops = [op for op in self.past.begun.ops if schema.is_open or op.key in schema.channels]
        return {op.key: op.value for op in ops}

    def config(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The config of the new run: that of the source, with what is given laid over it; that of a file is whole."""
        saved = self.past.run.config if "flow" not in (given or {}) else b""
        return {**(self.settings.codec.decode(saved) if saved else {}), **(given or {})}


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """What a caller of `rerun` may say."""

    given: Given = field(default_factory=Given)
    config: Mapping[str, Any] | None = None
    in_place: bool = False
    run_id: str | None = None

    def check(self, back: Rerun, step: str, moment: Moment) -> None:
        """Refuse what means nothing, or contradicts itself."""
        self.given.check(back.step, step)
        if self.in_place and self.run_id is not None:
            raise CannotRerun("give either run_id= or in_place=True, which goes on with the run itself")
        if self.in_place and moment.seq is not None:
            raise CannotRerun(
                "in_place=True goes on with a run as it stands; name the run, and not a moment of it"
            )


def rerun_of_changes(settings: Settings, loaded: Loaded, options: ResumeOptions) -> Rerun | None:
    """What runs again because the graph at hand does it otherwise; `None` if nothing that is finished is affected."""
    if options.on_change == "use_saved":
        raise StateInvalid(
            "rerun_changed goes on with the graph at hand, and on_change='use_saved' does not; give one"
        )
    if not loaded.run.outline:
        return None
    seeds = changed_nodes(loaded.run.outline, settings.outline, options.remap)
    back = plan_rerun(settings, loaded, None, seeds, options.remap) if seeds else None
    return back if back is not None and (back.seq is not None or back.again) else None


def begin_again(settings: Settings, back: Rerun, run: str, driver: str) -> Fork:
    """A new run, not yet stored, that begins where something is to run again, and keeps what is not affected."""
    journal, codec, durable = settings.journal, settings.codec, settings.policy.durability == "full"
    if back.seq:
        fork = begin_fork(journal, codec, back.base, back.seq, run, driver=driver, durable=durable)
    else:
        fork = _from_the_beginning(settings, back.base, run, driver)
    fork.writer.record(reused(back))
    return fork


def _from_the_beginning(settings: Settings, parent: RunInfo, run: str, driver: str) -> Fork:
    """A new run that begins as another did, of which no entry holds only that."""
    journal, codec, now = settings.journal, settings.codec, time.time()
    started = past_of(journal, codec, parent, 1).begun
    if started is None:
        raise CannotRerun(f"run {parent.run!r} no longer tells how it began")
    info = RunInfo(
        run, new_run_key(), parent.workflow, RunStatus.RUNNING.value, now, now, driver, parent.tags
    )
    writer = Writer.create(journal, info, codec, durable=settings.policy.durability == "full")
    first, track = begun(journal, codec, parent)
    writer.record(RunStarted(*started[:5], driver, (parent.run, 0)))
    return Fork(writer, Loaded(parent, first, track, 0, genesis(parent.run, parent.key), 0))
