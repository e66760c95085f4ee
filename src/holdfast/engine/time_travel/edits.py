"""Changes of a run that has no owner: its state, the result of a node, and overrides for a rerun."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from holdfast import clock
from holdfast.engine.commands.control import Update, changes_of, waits_for_worker
from holdfast.engine.commands.handlers import explained, modified, records_of
from holdfast.engine.commands.inbox import EDIT, Change, RunCommand
from holdfast.engine.commands.subject import NeedsGraph, Refused, Subject
from holdfast.engine.decide import meaning, output_of
from holdfast.engine.graph_changes import brought_over
from holdfast.engine.owner import describe, has_owner
from holdfast.engine.resume import load_latest
from holdfast.engine.settings import Settings
from holdfast.engine.time_travel.checkpoints import Position
from holdfast.errors import (
    CannotRerun,
    CommandRefused,
    HoldfastError,
    RunConflict,
    RunFinished,
    problem_of,
    suggestion,
)
from holdfast.graph.graph import Graph, base_name, has_parts, whole_of
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Given, Record, RunEnded, Steered, StepFinished, Target
from holdfast.journal.run_state import DONE, RunState, Step, frame_of
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, advance
from holdfast.state.state import overlaid
from holdfast.stores.base import RunInfo, Store
from holdfast.values import END, START, RunStatus
from holdfast.views.projection import GIVEN


class Access(NamedTuple):
    """What it takes to change a run: its journal, a codec, and for some changes the run's graph."""

    journal: Journal
    codec: Codec
    graph: Graph | None = None
    durable: bool = True

    @classmethod
    def of(cls, settings: Settings) -> Access:
        """Return the access that a compiled graph has."""
        return cls(settings.journal, settings.codec, settings.graph, settings.policy.durability == "full")

    def writer(self, loaded: Loaded) -> Writer:
        """Return a writer that continues a loaded run."""
        return Writer(self.journal, loaded, self.codec, durable=self.durable)

    def load_unowned(self, run_id: str, alternative: str = "") -> Loaded:
        """Return a run as its journal tells it; raise `RunConflict` if a process executes it."""
        loaded = load_latest(self.journal, self.journal.info(run_id), self.codec)
        refuse_owned(self.journal.store, loaded.info, alternative)
        return loaded


def refuse_owned(store: Store, info: RunInfo, alternative: str = "") -> None:
    """Raise `RunConflict` if a process executes a run."""
    if has_owner(store, info):
        who = f" by {describe(info.owner)}" if info.owner else ""
        raise RunConflict(
            f"run {info.run!r} is being executed{who}; pause or cancel it first"
            + (f", or, while it goes on, {alternative}" if alternative else "")
        )


class Edit(NamedTuple):
    """What a person wants changed: an update of the state, or what a node is to have returned."""

    update: Update | None = None
    as_node: str | None = None
    by: str = ""
    reason: str = ""


def update_state(access: Access, run_id: str, edit: Edit) -> str:
    """Change a run that has no owner, and save that as a checkpoint; return its id."""
    loaded = access.load_unowned(run_id, "edit(…) changes its state between two steps")
    info = loaded.info
    if edit.as_node is None:
        if not edit.update:
            raise CommandRefused("give an update, as_node, or both")
        if info.status == RunStatus.COMPLETED:
            raise RunFinished(
                f"run {run_id!r} is completed; give as_node=… to go on from there with what that node is to have "
                "returned, or fork it"
            )
    writer = access.writer(loaded)
    mark = apply_edit(writer, access, edit)
    facts = dataclasses.replace(info, updated_at=clock.time())
    if edit.as_node is not None:
        status = _next_status(info, paused=bool(writer.run.pauses))
        writer.record(RunEnded(status))
        due_at = info.due_at if info.status == RunStatus.QUEUED else None
        facts = dataclasses.replace(facts, status=status.value, owner="", due_at=due_at)
    writer.mark(mark if mark is not None else mark_of(writer.run))
    writer.set_info(facts)
    writer.flush()
    return checkpoint_id(info.key, writer.seq)


def _next_status(info: RunInfo, *, paused: bool) -> RunStatus:
    """Return the status of a run that continues elsewhere: one that waits for a worker still does."""
    if info.status == RunStatus.QUEUED or waits_for_worker(info.status, info):
        return RunStatus.QUEUED
    return RunStatus.PAUSED if paused else RunStatus.INTERRUPTED


def mark_of(run: RunState) -> bytes:
    """Return the mark of a run as it is: that of its newest checkpoint, with the steps that come next."""
    upcoming = [step.node for step in run.active() if step.status != DONE and step.id not in run.frames]
    last = [run.root.last_node] if run.root.last_node else []
    return encode_mark(run.root.waves, last, list(dict.fromkeys(upcoming)), "")


def apply_edit(writer: Writer, access: Access, edit: Edit, called: str = "") -> bytes | None:
    """Record an edit; return the mark of where the run continues then, if that is elsewhere.

    `called` is the name that people know the run by, if that is not its own id.
    """
    codec, run_id = access.codec, called or writer.info.run
    changes = changes_of(EDIT, edit.update, codec) if edit.update else ()
    if access.graph is not None and (changes or edit.as_node is not None):
        for record in brought_over(run_id, writer.run, access.graph, codec):
            writer.record(record)
    subject = Subject(run_id, writer.run, codec, access.graph)
    try:
        if edit.as_node is not None:
            return _return_from(writer, subject, edit, edit.as_node, changes)
        if changes:
            _record_changes(writer, subject, changes, edit)
            subject.warn_of_chosen_route()
    except Refused as refusal:
        raise CommandRefused(f"run {run_id!r}: {refusal}") from None
    except NeedsGraph:
        raise CommandRefused(
            f"run {run_id!r}: what an update means only its graph can tell; do it in Python, with its app"
            if access.graph is None
            else f"run {run_id!r} is inside a sub-graph that the graph at hand does not have; change it with the graph "
            "that the run was started with"
        ) from None
    return None


def _record_changes(writer: Writer, subject: Subject, changes: Sequence[Change], edit: Edit) -> None:
    command = RunCommand(EDIT, edit.reason, by=edit.by, changes=tuple(changes))
    for record in records_of(subject, command):
        writer.record(record)


def _return_from(writer: Writer, subject: Subject, edit: Edit, name: str, changes: Sequence[Change]) -> bytes:
    """Record that a node returned an update, so that what follows it comes next, and nothing else does.

    Finished steps of its graph stay finished. The update shows at once; only inside a sub-graph it shows with the
    end of the step's wave, for then it is handed up, too.
    """
    if not isinstance(name, str) or not name:
        raise Refused(f"as_node names a node by text, not {name!r:.80}")
    outer, _, node = name.rpartition("/")
    frame = subject.frame(outer)
    graph = subject.graph_at(frame.path)
    _refuse_unfit(graph, name, node)
    if not frame.path and changes:
        _record_changes(writer, subject, changes, edit)
    own = next((step for step in frame.active.values() if _is_due(subject, step, node)), None)
    drop = tuple(step.id for step in frame.active.values() if step.status != DONE and step is not own)
    if drop or own is None:
        add = () if own is not None else (Target(node),)
        writer.record(Steered(frame.path, drop, (), add, by=edit.by, why=edit.reason))
    step = own or next(reversed(frame.active.values()))
    ops: tuple[Op, ...] = ()
    if frame.path:
        state = subject.state_for(step)
        try:
            ops = meaning(graph, subject.codec, frame, step, subject.new_values(state, changes), state)[0]
        except HoldfastError as error:
            raise Refused(problem_of(error)) from None
    writer.record(StepFinished(step.id, ops, skipped=explained(GIVEN, edit.by, edit.reason)))
    targets = [edge.target for edge in graph.edges if edge.source == node]
    for route in graph.routes:
        targets += (route.mapping or {}).values() if route.source == node else ()
    targets += [join.target for join in graph.joins if node in join.sources]
    upcoming = [name for name in dict.fromkeys(targets) if name != END]
    return encode_mark(frame.waves, [node], upcoming, frame.path)


def _refuse_unfit(graph: Graph, name: str, node: str) -> None:
    """Refuse what is not a node, or not a whole one."""
    if node == START:
        raise Refused(
            "nothing returns from START; fork the run at @0 with an update instead, or, to have its first nodes chosen "
            "again, start a new run with that input"
        )
    if node not in graph.nodes:
        known = list(dict.fromkeys(map(base_name, graph.nodes)))
        listed = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
        raise Refused(f"there is no node {name!r}{suggestion(node, known)}; there are: {listed}")
    if whole := whole_of(node, graph.nodes):
        raise Refused(f"{name!r} is a part of {whole!r} and does not stand for itself")
    if has_parts(node, graph.nodes):
        raise Refused(f"{name!r} is made of several nodes; name one that stands for itself")


def _is_due(subject: Subject, step: Step, node: str) -> bool:
    """Return True if a step of a node is not finished, and not split up into items or a graph under way."""
    return (
        step.node == node and step.status != DONE and step.key is None and step.id not in subject.run.frames
    )


class RerunKeywords(TypedDict, total=False):
    """The options of `App.rerun`; `RerunOptions` describes them."""

    input: Update | None
    output: Any
    update: Update | None
    config: Mapping[str, Any] | None
    in_place: bool
    run_id: str | None
    by: str
    trust: bool | str


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """The options of a rerun: other inputs of the step, its output instead of running it, another state, and so on.

    `output` is what the step is to have returned, or a function of the state that says so.
    """

    input: Update | None = None
    output: Any = ...
    update: Update | None = None
    config: Mapping[str, Any] | None = None
    in_place: bool = False
    run_id: str | None = None
    by: str = ""
    trust: bool | str = False

    @property
    def is_for_step(self) -> bool:
        """Whether anything is for the step itself."""
        return bool(self.input) or self.output is not ...

    def check(self, step: str, name: str, position: Position) -> None:
        """Raise `CannotRerun` if the options mean nothing for the step, or contradict each other."""
        refusals = {
            "give either an input or an output: a step whose output is given does not look at its input": (
                self.input is not None and self.output is not ...
            ),
            f"{name!r} stands for several steps; name one of them by its id, such as 'work#1[key]'": (
                self.is_for_step and not step
            ),
            "give either a run id for the new run, or in-place, which goes on with the run itself": (
                self.in_place and self.run_id is not None
            ),
            "a rerun in place goes on with a run as it is; name the run, and not a checkpoint of it": (
                self.in_place and position.seq is not None
            ),
        }
        for reason, holds in refusals.items():
            if holds:
                raise CannotRerun(reason)

    def record(
        self, writer: Writer, settings: Settings, name: str, called: tuple[Op, ...] | None = None
    ) -> None:
        """Record the overrides of a run, and of its step of that id, which is about to run.

        `called` is what the step is called with, if a function calls it; it may not have done so yet.
        """
        if self.update:
            apply_edit(writer, Access.of(settings), Edit(self.update, None, self.by, "rerun"))
        if not self.is_for_step:
            return
        run = writer.run
        frame, body = run.frames.get(frame_of(name)), run.frames.get(name)
        step = frame.active.get(name) if frame is not None else None
        if step is not None and body is not None and body.is_body:
            called = step.item
        if called is not None and self.input:
            raise CannotRerun(
                f"step {name!r} gets its arguments from the function that calls it; give its output, or change what "
                "the function makes them of"
            )
        if called is not None and (step is None or body is not None):
            found = self._of_call(settings, run, writer.info.run, Given(name, called, ()))
        else:
            found = self._of_step(settings, run, writer.info.run, name)
        for record in found:
            writer.record(record)

    def _of_call(self, settings: Settings, run: RunState, run_id: str, given: Given) -> list[Record]:
        """Return what gives a step its output when its function calls it, once again if it has done so."""
        state = Subject(run_id, run, settings.codec, settings.graph).state(run.root)
        value = self.output
        if callable(value):
            value = value(overlaid(state, advance({}, given.item)))
        reuse = run.reuse
        assert reuse is not None  # A rerun reuses what it does not run again.
        found: list[Record] = [reuse._replace(given=(given._replace(ops=output_of(settings.codec, value)),))]
        if given.step in run.frames:
            found.insert(0, Steered(frame_of(given.step), (given.step,), why="its result is given"))
        return found

    def _of_step(self, settings: Settings, run: RunState, run_id: str, name: str) -> list[Record]:
        frame = run.frames.get(frame_of(name))
        step = frame.active.get(name) if frame is not None else None
        if frame is None or step is None:
            raise CannotRerun(
                f"step {name!r} is not what comes next at the checkpoint before it, as not every wave was saved there; "
                "change the state with update= instead"
            )
        subject = Subject(run_id, run, settings.codec, settings.graph)
        try:
            if self.input:
                return modified(
                    subject, name, changes_of("rerun", self.input, settings.codec), self.by, "rerun"
                )
            state, graph = subject.state_for(step), subject.graph_at(step.frame)
            value = self.output(state) if callable(self.output) else self.output
            ops, goto = meaning(graph, settings.codec, frame, step, value, state)
        except Refused as refusal:
            raise CannotRerun(f"run {run_id!r}: {refusal}") from None
        except NeedsGraph:
            raise CannotRerun(f"the graph at hand has no step {name!r}") from None
        return [StepFinished(name, ops, goto, skipped=GIVEN)]
