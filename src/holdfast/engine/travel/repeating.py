"""Beginning again: runs that take over what another has finished, and what is asked for when a step runs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast import clock
from holdfast.data.schema import as_mapping
from holdfast.engine.changes import changed_nodes, why_changed
from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.engine.reconciling import brought_over
from holdfast.engine.resume import ResumeOptions
from holdfast.engine.settings import Settings
from holdfast.engine.travel.forking import Fork, begin_fork, forget_all
from holdfast.engine.travel.given import Given
from holdfast.engine.travel.moments import Moment, find_moment
from holdfast.engine.travel.past import Past, node_outline, past_of, renamed_node
from holdfast.engine.travel.rerun import Rerun
from holdfast.engine.travel.rerunning import plan_rerun
from holdfast.engine.travel.taking_back import begun, reused
from holdfast.errors import CannotRerun, CannotReuse, MigrationFailed, StateInvalid
from holdfast.journal.checkpoints import new_run_key
from holdfast.journal.fold import apply, fold
from holdfast.journal.journal import Loaded, genesis
from holdfast.journal.provenance import set_back
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
        refuse_unconfirmed(settings.journal, moment.info, settings.codec)
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
        graph, codec, name = self.settings.graph, self.settings.codec, self.past.info.run
        run = fold([(self.past.begun, 0.0)])
        try:
            for record in brought_over(name, run, graph, codec):
                apply(run, record, 0.0)
        except MigrationFailed as error:
            raise CannotReuse(
                f"the inputs of run {name!r} do not fit the graph at hand: {error}; give the new run its own"
            ) from error
        schema = graph.schema
        return {
            key: slot.get()
            for key, slot in run.root.cells.items()
            if schema.is_open or key in schema.channels
        }

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
    trust: bool | str = False

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
    remap, past = options.remap or {}, past_of(settings.journal, settings.codec, loaded.info, loaded.seq)
    seeds = _outdated(past, settings.outline, remap)
    seeds |= changed_nodes(loaded.run.outline, settings.outline, remap)
    back = plan_rerun(settings, loaded, past, seeds, remap) if seeds else None
    return back if back is not None and (back.seq is not None or back.again) else None


def _outdated(past: Past, outline: Mapping[str, Any], remap: Mapping[str, str]) -> dict[str, str]:
    """The nodes with a step that was finished by other code than now, even if the run went on with this one since."""
    found: dict[str, str] = {}
    looked_at: set[tuple[int, str]] = set()
    for each in (*past.finishes.values(), *past.spare.values()):
        node = each.node
        while node and (id(each.outline), node) not in looked_at:
            looked_at.add((id(each.outline), node))
            now = renamed_node(node, remap)
            one, other = node_outline(each.outline, node), node_outline(outline, now)
            if one and other and (reason := why_changed(one, other)):
                found.setdefault(now, reason)
            node = node.rpartition("/")[0]
    return found


def begin_again(settings: Settings, back: Rerun, run: str, driver: str, *, updated: bool = False) -> Fork:
    """A new run, not yet stored, that begins where something is to run again, and keeps what is not affected.

    It is said whether its state is going to be `updated`: then no step remembers anything.
    """
    journal, codec, durable = settings.journal, settings.codec, settings.policy.durability == "full"
    if back.seq:
        forget = forget_all if updated else back.forgotten
        fork = begin_fork(
            journal, codec, back.base, back.seq, run, driver=driver, durable=durable, forget=forget
        )
    else:
        fork = _from_the_beginning(settings, back.base, run, driver)
    fork.writer.record(reused(back, anew=True))
    return fork


def _from_the_beginning(settings: Settings, parent: RunInfo, run: str, driver: str) -> Fork:
    """A new run that begins as another did, of which no entry holds only that."""
    journal, codec, now = settings.journal, settings.codec, clock.time()
    started = past_of(journal, codec, parent, 1).begun
    if started is None:
        raise CannotRerun(f"run {parent.run!r} no longer tells how it began")
    info = RunInfo(
        run,
        new_run_key(),
        parent.workflow,
        RunStatus.RUNNING.value,
        now,
        now,
        driver,
        parent.tags,
        parent=parent.key,
        origin=set_back(parent.origin),
    )
    writer = Writer.create(journal, info, codec, durable=settings.policy.durability == "full")
    first, track = begun(journal, codec, parent)
    writer.record(RunStarted(*started[:5], driver, (parent.run, 0)))
    return Fork(writer, Loaded(parent, first, track, 0, genesis(parent.run, parent.key), 0))
