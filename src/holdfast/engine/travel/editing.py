"""Changing a run that nobody drives from outside: its state, perhaps as what one of its nodes returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from holdfast import clock
from holdfast.data.codec import Codec
from holdfast.data.ops import Op
from holdfast.engine.commands.ground import Ground, NeedsGraph, warn_of_decided_route
from holdfast.engine.commands.inbox import EDIT, Change, Wish
from holdfast.engine.commands.meant import Refused, meant_frame
from holdfast.engine.commands.obeying import decided
from holdfast.engine.commands.phrasing import Update, changes_of
from holdfast.engine.commands.steering import told
from holdfast.engine.commands.wishing import waits_for_worker
from holdfast.engine.driver import describe, is_driven
from holdfast.engine.driving.changes import meaning
from holdfast.engine.reconciling import brought_over
from holdfast.engine.resume import load_latest
from holdfast.engine.settings import Settings
from holdfast.errors import CommandRefused, HoldfastError, RunConflict, RunFinished
from holdfast.journal.checkpoints import checkpoint_id, encode_mark
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import RunEnded, Steered, StepFinished, Target
from holdfast.journal.run_state import DONE, Frame, Step
from holdfast.journal.writer import Writer
from holdfast.plan.graph import Graph
from holdfast.plan.naming import base_name, has_parts, whole_of
from holdfast.stores.base import RunInfo, Store
from holdfast.suggestions import suggestion
from holdfast.values import END, START, RunStatus


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
    refuse_driven(journal.store, loaded.info, way_out)
    return loaded


def refuse_driven(store: Store, info: RunInfo, way_out: str = "") -> None:
    """Refuse a run that somebody drives."""
    if is_driven(store, info):
        who = f" by {describe(info.driver)}" if info.driver else ""
        raise RunConflict(
            f"run {info.run!r} is being driven{who}; pause or cancel it first"
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
    ground = Ground(run_id, writer.run, codec, hands.graph, driven=False)
    try:
        if name is not None:
            return _as_node(writer, ground, name, changes, by, why)
        if changes:
            _record_edit(writer, ground, changes, by, why)
            warn_of_decided_route(ground)
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


def _record_edit(writer: Writer, ground: Ground, changes: Sequence[Change], by: str, why: str) -> None:
    for record in decided(ground, Wish(EDIT, why, by=by, changes=tuple(changes))):
        writer.record(record)


def _as_node(
    writer: Writer, ground: Ground, name: str, changes: Sequence[Change], by: str, why: str
) -> bytes:
    """Let a node have returned an update, so that what follows it comes next, and nothing else does.

    Steps of its graph that are finished stay so. The update shows at once; only inside a sub-graph it shows with the
    end of the step's wave, for then it is handed up, too.
    """
    if not isinstance(name, str) or not name:
        raise Refused(f"as_node names a node by text, not {name!r:.80}")
    outer, _, node = name.rpartition("/")
    place = meant_frame(ground.run, outer)
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
    writer.record(StepFinished(step.id, ops, skipped=told("its result was given", by, why)))
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


def _is_its_turn(ground: Ground, step: Step, node: str) -> bool:
    """Whether a step is one of that node, not finished, and not split up into items or a graph under way."""
    return step.node == node and step.status != DONE and step.key is None and step.id not in ground.run.frames


def _returned(
    ground: Ground, graph: Graph, place: Frame, step: Step, changes: Sequence[Change]
) -> tuple[Op, ...]:
    state = ground.state_for(step)
    try:
        return meaning(graph, ground.codec, place, step, ground.settled(state, changes), state)[0]
    except HoldfastError as error:
        raise Refused(str(error)) from None


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
