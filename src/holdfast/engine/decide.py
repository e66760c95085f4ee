"""`decide`: what happens next. Pure: no clock, no I/O, no user code; only a graph and a folded run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.graph.graph import Graph
from holdfast.journal.records import Answered
from holdfast.journal.run_state import (
    DONE,
    EXPIRED,
    FAILED,
    GATED,
    IN_DOUBT,
    INTERRUPTED,
    READY,
    RETRYING,
    RUNNING,
    SLEEP,
    WAITING,
    Frame,
    RunState,
    Step,
)
from holdfast.values import RunStatus

MAX_CRASHES = 3
"""A step that was running this many times when its process died is not started again unasked."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of an execution that decisions depend on."""

    interrupt_before: Collection[str] = frozenset()
    barrier: bool = True
    max_parallel: int = 256
    if_interrupted: str | None = None
    """Overrides what the nodes say, for one resume."""


class Start(NamedTuple):
    """Run this step now, or at `at`."""

    step: Step
    at: float | None = None


@dataclass(frozen=True, slots=True)
class OpenFrame:
    """Begin the sub-graph that this step is."""

    step: Step


@dataclass(frozen=True, slots=True)
class CloseFrame:
    """The sub-graph that this step is has come to its end."""

    step: Step


class RouteOn(NamedTuple):
    """These steps are finished, with a barrier all of the frame's: apply their changes and find what comes next."""

    frame: Frame
    steps: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Gate:
    """Pause before this step."""

    step: Step


@dataclass(frozen=True, slots=True)
class AskWhat:
    """Pause until somebody says what to do with this interrupted step; `kind` is in_doubt or poison."""

    step: Step
    kind: str


@dataclass(frozen=True, slots=True)
class SkipStep:
    """Pass over this interrupted step."""

    step: Step


@dataclass(frozen=True, slots=True)
class RefuseStep:
    """This interrupted step may not be repeated: the run fails."""

    step: Step


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Ask the node's own function whether this interrupted step was done."""

    step: Step


@dataclass(frozen=True, slots=True)
class ExceedIterations:
    """The frame has used up its iterations."""

    frame: Frame
    limit: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing runs and nothing can: the execution is over."""

    status: RunStatus


Decision = (
    Start
    | OpenFrame
    | CloseFrame
    | RouteOn
    | Gate
    | AskWhat
    | SkipStep
    | RefuseStep
    | Reconcile
    | ExceedIterations
    | End
)

_ANSWERS: dict[str, type[Start] | type[SkipStep] | type[RefuseStep]] = {
    "rerun": Start,
    "skip": SkipStep,
    "fail": RefuseStep,
}


def decide(graph: Graph, run: RunState, rules: Rules) -> list[Decision]:
    """Return what is to be done now. An empty list means: wait for what is running."""
    if len(run.frames) == 1 and not run.pauses and len(run.root.active) == 1:
        return _lone(graph, run, run.root, rules)
    decisions: list[Decision] = []
    running = 0
    failed = False
    for frame in run.frames.values():
        for step in frame.active.values():
            if step.status == RUNNING and step.id not in run.frames:
                running += 1
            elif step.status == FAILED:
                failed = True
    room = rules.max_parallel - running
    for frame in run.frames.values():
        found = _frame(graph.at(frame.path), run, frame, rules, failed, room)
        room -= sum(isinstance(decision, Start) for decision in found)
        decisions += found
    if decisions or running:
        return decisions
    if failed:
        return [End(RunStatus.FAILED)]
    if run.pauses:
        return [End(RunStatus.PAUSED)]
    return [End(RunStatus.COMPLETED)]


def _lone(graph: Graph, run: RunState, frame: Frame, rules: Rules) -> list[Decision]:
    """Decide the common case of a single step, without the bookkeeping that several need."""
    (step,) = frame.active.values()
    status = step.status
    if status == DONE:
        return [RouteOn(frame, None if rules.barrier else (step.id,))]
    if status == RUNNING:
        return []
    if status == FAILED:
        return [End(RunStatus.FAILED)]
    plain = status == READY and not rules.interrupt_before and graph.nodes[step.node].graph is None
    if plain and frame.waves < graph.max_iterations:
        return [Start(step)]
    return _frame(graph, run, frame, rules, False, 1)


def _frame(
    graph: Graph, run: RunState, frame: Frame, rules: Rules, failed: bool, room: int
) -> list[Decision]:
    decisions: list[Decision] = []
    done: list[str] = []
    exhausted = frame.waves >= graph.max_iterations
    places = _places(graph, frame) if graph.parallel_limits else None
    gated = any(pause.kind == "after" for pause in run.pauses.values()) if run.pauses else False
    for step in frame.active.values():
        status = step.status
        if status == DONE:
            done.append(step.id)
        elif status in (RUNNING, WAITING, GATED, FAILED) or failed or gated:
            continue
        elif exhausted and status == READY:
            return [ExceedIterations(frame, graph.max_iterations)]
        elif status == READY:
            if rules.interrupt_before and not step.passed and qualified(step) in rules.interrupt_before:
                decisions.append(Gate(step))
            elif places is not None and not _takes_place(places, step.node):
                continue
            elif graph.nodes[step.node].graph is not None:
                decisions.append(OpenFrame(step))
            elif room > 0:
                room -= 1
                decisions.append(Start(step))
        elif status == RETRYING:
            if room > 0 and (places is None or _takes_place(places, step.node)):
                room -= 1
                decisions.append(Start(step, step.retry_at))
        elif status == IN_DOUBT:
            decision = _in_doubt(graph, step, rules)
            if not isinstance(decision, Start):
                decisions.append(decision)
            elif room > 0 and (places is None or _takes_place(places, step.node)):
                room -= 1
                decisions.append(decision)
    if done and not failed:
        if rules.barrier:
            if len(done) == len(frame.active):
                decisions.append(RouteOn(frame, None))
        elif ready := _settled(frame):
            decisions.append(RouteOn(frame, ready))
    elif frame.path and not frame.active and not gated:
        decisions.append(CloseFrame(run.step(frame.path)))
    return decisions


def _places(graph: Graph, frame: Frame) -> dict[str, int]:
    """Return how many more steps of each limited node may run."""
    places = dict(graph.parallel_limits)
    for step in frame.active.values():
        if step.node in places and step.status == RUNNING:
            places[step.node] -= 1
    return places


def _takes_place(places: dict[str, int], node: str) -> bool:
    """Take a place for one more step of a node; return False if there is none."""
    left = places.get(node)
    if left is None:
        return True
    places[node] = left - 1
    return left > 0


def _settled(frame: Frame) -> tuple[str, ...]:
    """Return the finished steps whose node has no unfinished item left: what follows it may begin."""
    unfinished = {(step.node, step.visit) for step in frame.active.values() if step.status != DONE}
    return tuple(
        step.id
        for step in frame.active.values()
        if step.status == DONE and (step.node, step.visit) not in unfinished
    )


def qualified(step: Step) -> str:
    """Return a step's node with the nodes it is nested in: `outer/inner`."""
    if not step.frame:
        return step.node
    parts = [part.rpartition("#")[0] for part in step.frame.split("/")]
    return "/".join([*parts, step.node])


def elapsed(run: RunState, has_passed: Callable[[float], bool], *, sleeps: bool = False) -> list[Answered]:
    """Return what time has settled: sleeps that are over, and questions that nobody answered in time.

    `has_passed` tells of a deadline whether it has passed. With `sleeps` all sleeps are over: an execution that does
    not leave the run waits for the rest in its nodes. A question that has expired is reported to its
    node, which decides what comes of it.
    """
    over = [
        pause
        for pause in run.pauses.values()
        if (pause.expires_at is not None and has_passed(pause.expires_at)) or (sleeps and pause.kind == SLEEP)
    ]
    return [Answered(pause.id, EXPIRED, "time") for pause in over]


def _in_doubt(graph: Graph, step: Step, rules: Rules) -> Decision:
    answer = step.answers.get(INTERRUPTED)
    if answer is not None:
        return _ANSWERS[answer.decode()](step)
    if step.crashes >= MAX_CRASHES and rules.if_interrupted is None:
        return AskWhat(step, "poison")
    policy = rules.if_interrupted or graph.nodes[step.node].if_interrupted
    if callable(policy):
        return Reconcile(step)
    if policy == "ask":
        return AskWhat(step, "in_doubt")
    return _ANSWERS[policy](step)
