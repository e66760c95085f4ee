"""Beginning a run where another stood: by reference to that run's journal, not by copying it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast import clock
from holdfast.engine.commands.control import Update, changes_of, waits_for_worker
from holdfast.engine.commands.handlers import explained, modified, records_of
from holdfast.engine.commands.inbox import EDIT, Change, RunCommand
from holdfast.engine.commands.subject import NeedsGraph, Refused, Subject
from holdfast.engine.graph_changes import brought_over
from holdfast.engine.owner import describe, has_owner
from holdfast.engine.resume import load_latest
from holdfast.engine.routing import meaning
from holdfast.engine.settings import Settings
from holdfast.engine.time_travel.checkpoints import Moment
from holdfast.errors import (
    CannotRerun,
    CheckpointNotFound,
    CommandRefused,
    HoldfastError,
    RunConflict,
    RunFinished,
    StateInvalid,
    problem_of,
)
from holdfast.graph.graph import Graph, base_name, has_parts, whole_of
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark, mark_facts, new_run_key
from holdfast.journal.copying import add_snapshot
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.provenance import set_back
from holdfast.journal.records import Forked, Record, RunEnded, Steered, StepFinished, Target
from holdfast.journal.run_state import DONE, EVERY_STEP, Frame, RunState, Step, at_checkpoint, frame_of
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.stores.base import RunInfo, Store
from holdfast.suggestions import suggestion
from holdfast.values import END, START, RunStatus
from holdfast.views.projection import GIVEN

# Changing a run that nobody drives from outside: its state, perhaps as what one of its nodes returned.


class Hands(NamedTuple):
    """What it takes to change a run: its journal, a codec, and for some changes the run's graph."""

    journal: Journal
    codec: Codec
    graph: Graph | None = None
    durable: bool = True

    @classmethod
    def of(cls, settings: Settings) -> Hands:
        """What a compiled graph has."""
        return cls(settings.journal, settings.codec, settings.graph, settings.policy.durability == "full")

    def writer(self, loaded: Loaded) -> Writer:
        """A writer that goes on where a loaded run ends."""
        return Writer(self.journal, loaded, self.codec, durable=self.durable)


class Edit(NamedTuple):
    """What somebody wants changed: an update of the state, or what a node is to have returned."""

    update: Update | None = None
    as_node: str | None = None
    by: str = ""
    reason: str = ""


def update_state(hands: Hands, run_id: str, edit: Edit) -> str:
    """Change a run that nobody drives, and make that a checkpoint; answer its id."""
    loaded = undriven(hands, run_id, "edit(…) changes its state between two steps")
    info = loaded.info
    if edit.as_node is None:
        if not edit.update:
            raise CommandRefused("give an update, as_node, or both")
        if info.status == RunStatus.COMPLETED:
            raise RunFinished(
                f"run {run_id!r} is completed; give as_node=… to go on from there with what that node is to have "
                "returned, or fork it"
            )
    writer = hands.writer(loaded)
    place = edited(writer, hands, edit)
    facts = dataclasses.replace(info, updated_at=clock.time())
    if edit.as_node is not None:
        status = _status_then(info, paused=bool(writer.run.pauses))
        writer.record(RunEnded(status))
        due_at = info.due_at if info.status == RunStatus.QUEUED else None
        facts = dataclasses.replace(facts, status=status.value, driver="", due_at=due_at)
    writer.mark(place if place is not None else checkpoint_of(writer))
    writer.set_info(facts)
    writer.flush()
    return checkpoint_id(info.key, writer.seq)


def _status_then(info: RunInfo, *, paused: bool) -> RunStatus:
    """How a run stands that is to go on elsewhere: workers that were to go on with it still are."""
    if info.status == RunStatus.QUEUED or waits_for_worker(info.status, info):
        return RunStatus.QUEUED
    return RunStatus.PAUSED if paused else RunStatus.INTERRUPTED


def undriven(hands: Hands, run_id: str, way_out: str = "") -> Loaded:
    """A run as its journal tells it; one that somebody drives is refused."""
    journal = hands.journal
    loaded = load_latest(journal, journal.info(run_id), hands.codec)
    refuse_owned(journal.store, loaded.info, way_out)
    return loaded


def refuse_owned(store: Store, info: RunInfo, way_out: str = "") -> None:
    """Refuse a run that somebody drives."""
    if has_owner(store, info):
        who = f" by {describe(info.driver)}" if info.driver else ""
        raise RunConflict(
            f"run {info.run!r} is being executed{who}; pause or cancel it first"
            + (f", or, while it goes on, {way_out}" if way_out else "")
        )


def edited(writer: Writer, hands: Hands, edit: Edit, called: str = "") -> bytes | None:
    """Record what an edit comes to; answers the mark of where the run stands then, if that is elsewhere.

    `called` is what people know the run by, if that is not its own id.
    """
    update, name, by, why = edit
    codec, run_id = hands.codec, called or writer.info.run
    changes = changes_of(EDIT, update, codec) if update else ()
    if hands.graph is not None and (changes or name is not None):
        for record in brought_over(run_id, writer.run, hands.graph, codec):
            writer.record(record)
    ground = Subject(run_id, writer.run, codec, hands.graph)
    try:
        if name is not None:
            return _as_node(writer, ground, name, changes, by, why)
        if changes:
            _record_edit(writer, ground, changes, by, why)
            ground.warn_of_chosen_route()
    except Refused as refusal:
        raise CommandRefused(f"run {run_id!r}: {refusal}") from None
    except NeedsGraph:
        if hands.graph is None:
            raise CommandRefused(
                f"run {run_id!r}: what an update means only its graph can tell; do it in Python, with its app"
            ) from None
        raise CommandRefused(
            f"run {run_id!r} is inside a sub-graph that the graph at hand does not have; change it with the graph "
            "that the run was started with"
        ) from None
    return None


def _record_edit(writer: Writer, ground: Subject, changes: Sequence[Change], by: str, why: str) -> None:
    for record in records_of(ground, RunCommand(EDIT, why, by=by, changes=tuple(changes))):
        writer.record(record)


def _as_node(
    writer: Writer, ground: Subject, name: str, changes: Sequence[Change], by: str, why: str
) -> bytes:
    """Let a node have returned an update, so that what follows it comes next, and nothing else does.

    Steps of its graph that are finished stay so. The update shows at once; only inside a sub-graph it shows with the
    end of the step's wave, for then it is handed up, too.
    """
    if not isinstance(name, str) or not name:
        raise Refused(f"as_node names a node by text, not {name!r:.80}")
    outer, _, node = name.rpartition("/")
    place = ground.frame(outer)
    graph = ground.graph_at(place.path)
    _refuse_unfit(graph, name, node)
    if not place.path and changes:
        _record_edit(writer, ground, changes, by, why)
    own = next((step for step in place.active.values() if _is_its_turn(ground, step, node)), None)
    drop = tuple(step.id for step in place.active.values() if step.status != DONE and step is not own)
    if drop or own is None:
        add = () if own is not None else (Target(node),)
        writer.record(Steered(place.path, drop, (), add, by=by, why=why))
    step = own or next(reversed(place.active.values()))
    ops = _returned(ground, graph, place, step, changes) if place.path else ()
    writer.record(StepFinished(step.id, ops, skipped=explained("its result was given", by, why)))
    return encode_mark(place.waves, [node], _following(graph, node), place.path)


def _refuse_unfit(graph: Graph, name: str, node: str) -> None:
    """Refuse what is no node, or not a whole one."""
    if node == START:
        raise Refused(
            "nothing returns from START; fork the run at @0 with an update instead, or, to have its first nodes chosen "
            "again, start a new run with that input"
        )
    if node not in graph.nodes:
        raise Refused(
            f"there is no node {name!r}{suggestion(node, list(dict.fromkeys(map(base_name, graph.nodes))))}"
        )
    if whole := whole_of(node, graph.nodes):
        raise Refused(f"{name!r} is a part of {whole!r} and does not stand for itself")
    if has_parts(node, graph.nodes):
        raise Refused(f"{name!r} is made of several nodes; name one that stands for itself")


def _is_its_turn(ground: Subject, step: Step, node: str) -> bool:
    """Whether a step is one of that node, not finished, and not split up into items or a graph under way."""
    return step.node == node and step.status != DONE and step.key is None and step.id not in ground.run.frames


def _returned(
    ground: Subject, graph: Graph, place: Frame, step: Step, changes: Sequence[Change]
) -> tuple[Op, ...]:
    state = ground.state_for(step)
    try:
        return meaning(graph, ground.codec, place, step, ground.new_values(state, changes), state)[0]
    except HoldfastError as error:
        raise Refused(problem_of(error)) from None


def _following(graph: Graph, node: str) -> list[str]:
    """The nodes that may follow a node, as far as the graph tells without asking its functions."""
    chosen = [
        target for route in graph.routes if route.source == node for target in (route.mapping or {}).values()
    ]
    joined = [join.target for join in graph.joins if node in join.sources]
    found = [*(edge.target for edge in graph.edges if edge.source == node), *chosen, *joined]
    return [name for name in dict.fromkeys(found) if name != END]


def checkpoint_of(writer: Writer) -> bytes:
    """The mark of a run as it stands: that of its newest checkpoint, with what is to come now."""
    run = writer.run
    upcoming = [step.node for step in run.active() if step.status != DONE and step.id not in run.frames]
    last = [run.root.last_node] if run.root.last_node else []
    return encode_mark(run.root.waves, last, list(dict.fromkeys(upcoming)), "")


_DEEP = 16
"""A fork of a fork of … this often is given a snapshot of its own, so that reading it stays cheap."""


Forgetting = Callable[[RunState], tuple[str, ...]]
"""Names steps of a run."""


def forget_all(run: RunState) -> tuple[str, ...]:
    """Every step: what they noted was meant for another state."""
    return EVERY_STEP


class Fork(NamedTuple):
    """A run that is about to be stored, and the run that it begins as."""

    writer: Writer
    base: Loaded


def begin_fork(
    journal: Journal,
    codec: Codec,
    parent: RunInfo,
    seq: int | None,
    run: str,
    *,
    driver: str = "",
    durable: bool = True,
    forget: Forgetting | None = None,
) -> Fork:
    """A new run that begins where `parent` stood at its entry `seq`, or stands now; nothing is stored yet.

    `forget` says which steps do not remember what they noted for their next attempts.
    """
    base = journal.load(parent, codec, seq)
    if seq is not None and base.seq != seq:
        raise CheckpointNotFound(f"run {parent.run!r} has no entry {seq}; its last is {base.seq}")
    now = clock.time()
    status = RunStatus.RUNNING.value
    info = RunInfo(
        run,
        new_run_key(),
        parent.workflow,
        status,
        now,
        now,
        driver,
        parent.tags,
        parent=parent.key,
        origin=set_back(parent.origin),
    )
    writer = Writer.create(journal, info, codec, durable=durable, base=base)
    start = at_checkpoint(base.run)
    names = forget(start) if forget is not None else ()
    writer.record(Forked(parent.run, base.seq, start, driver, b"", parent.key, base.chain, names))
    found = journal.store.marks(parent.run, base.seq + 1, 1)
    writer.mark(mark_facts(found[0].mark) if found and found[0].seq == base.seq else checkpoint_of(writer))
    return Fork(writer, base)


async def store_fork(fork: Fork) -> None:
    """Store a fork, and see to it that it can be read whatever became of its parent meanwhile."""
    await fork.writer.flush_async()
    _make_safe(fork)


def _make_safe(fork: Fork) -> None:
    """Give a fork that was just stored a snapshot, if its parent is gone by now, or far away.

    Whoever prunes or deletes the parent later finds the fork, and does the same.
    """
    writer, base = fork
    journal = writer.journal
    there = next(iter(journal.store.read(base.info.run, base.seq - 1, base.seq)), None)
    if base.depth >= _DEEP or there is None or there.chain != base.chain:
        weight, sealed = writer.weight, writer.sealed
        loaded = Loaded(writer.info, writer.run, writer.track, writer.seq, writer.chain, weight, sealed)
        add_snapshot(journal, writer.info.run, journal.make_snapshot(loaded, writer.codec))


def fork_run(
    hands: Hands,
    moment: Moment,
    run: str,
    edit: Edit | None = None,
    *,
    tags: Sequence[str] | None = None,
) -> str:
    """Store a new run, called `run`, that begins at a moment of another, and is not driven; answer its id."""
    edit = edit or Edit()
    forget = forget_all if edit.update or edit.as_node is not None else None
    fork = begin_fork(
        hands.journal, hands.codec, moment.info, moment.seq, run, durable=hands.durable, forget=forget
    )
    writer = fork.writer
    place = edited(writer, hands, edit, moment.info.run)
    if place is not None:
        writer.mark(place)
    writer.record(RunEnded(RunStatus.INTERRUPTED))
    facts = dataclasses.replace(writer.info, status=RunStatus.INTERRUPTED.value, updated_at=clock.time())
    writer.set_info(facts if tags is None else dataclasses.replace(facts, tags=_checked(tags)))
    writer.flush()
    _make_safe(fork)
    return run


def _checked(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not all(isinstance(tag, str) and tag and tag.isprintable() for tag in tags):
        raise StateInvalid(f"tags are a list of printable texts, not {tags!r:.80}")
    return tuple(dict.fromkeys(tags))


# What a person gives a step that runs again: other input, its output, another state.


@dataclass(frozen=True, slots=True)
class Given:
    """What the step that is run again gets: other values than the state has, or, instead of being run, its result.

    `output` is what it is to have returned, or a function of the state that says so.
    """

    input: Update | None = None
    output: Any = ...
    update: Update | None = None
    """Changes of the state, for all."""
    by: str = ""

    @property
    def is_for_one(self) -> bool:
        """Whether anything is given to the step itself."""
        return bool(self.input) or self.output is not ...

    def check(self, step: str, name: str) -> None:
        """Refuse what means nothing for the step that is meant."""
        if self.input is not None and self.output is not ...:
            raise CannotRerun(
                "give either an input or an output: a step whose output is given does not look at its input"
            )
        if self.is_for_one and not step:
            raise CannotRerun(
                f"{name!r} stands for several steps; name one of them by its id, such as 'work#1[key]'"
            )

    def take(self, writer: Writer, settings: Settings, name: str) -> None:
        """Record what is given to a run, and to its step of that id, which is about to run."""
        if self.update:
            edited(writer, Hands.of(settings), Edit(self.update, None, self.by, "rerun"))
        for record in self._records(settings, writer.run, writer.info.run, name) if self.is_for_one else ():
            writer.record(record)

    def _records(self, settings: Settings, run: RunState, run_id: str, name: str) -> list[Record]:
        frame = run.frames.get(frame_of(name))
        step = frame.active.get(name) if frame is not None else None
        if frame is None or step is None:
            raise CannotRerun(
                f"step {name!r} is not what comes next at the checkpoint before it, as not every wave was saved there; "
                "update the state instead"
            )
        ground = Subject(run_id, run, settings.codec, settings.graph)
        try:
            if self.input:
                return modified(
                    ground, name, changes_of("rerun", self.input, settings.codec), self.by, "rerun"
                )
            state, graph = ground.state_for(step), ground.graph_at(step.frame)
            value = self.output(state) if callable(self.output) else self.output
            ops, goto = meaning(graph, settings.codec, frame, step, value, state)
        except Refused as refusal:
            raise CannotRerun(f"run {run_id!r}: {refusal}") from None
        except NeedsGraph:
            raise CannotRerun(f"the graph at hand has no step {name!r}") from None
        return [StepFinished(name, ops, goto, skipped=GIVEN)]
