"""What becomes of the steps that a run had not finished, by the very decisions that a drive would make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.engine.driving.decide import (
    MAX_CRASHES,
    AskWhat,
    ExceedIterations,
    Gate,
    OpenFrame,
    Reconcile,
    RefuseStep,
    RouteOn,
    Rules,
    SkipStep,
    Start,
    decide,
    qualified,
)
from holdfast.engine.reconciling import graph_at
from holdfast.engine.settings import Settings
from holdfast.engine.travel.rerun import KEPT, RERUN
from holdfast.engine.travel.reusing import Adoption
from holdfast.journal.run_state import (
    DONE,
    FAILED,
    GATED,
    IN_DOUBT,
    INTERRUPTED,
    RETRYING,
    RUNNING,
    STILL_IN_DOUBT,
    WAITING,
    RunState,
    Step,
    begun_onces,
    step_id,
)
from holdfast.plan.graph import Graph
from holdfast.values import END, START

IN_QUESTION, ASKED, NEXT, ORPHANED = "in_doubt", "asked", "next", "orphaned"
_STOPPED = "it was running when its process stopped"


class Fate(NamedTuple):
    """What becomes of one step."""

    step: str
    node: str
    what: str
    reason: str
    seconds: float = 0.0
    cost: float = 0.0


class Fates:
    """What becomes of the steps of a run: `before` as it was saved, `after` as it is when it is driven on."""

    def __init__(
        self, settings: Settings, rules: Rules, before: RunState, after: RunState, name: str, *, refused: bool
    ) -> None:
        self._graph, self._before, self._after, self._refused = settings.graph, before, after, refused
        self._steps = {step.id: step for step in before.active()}
        # A refused resume decides nothing, nor does one of a run whose open sub-graphs are gone; what can be told is.
        decides = not refused and all(graph_at(settings.graph, path) is not None for path in after.frames)
        self._decisions = _decisions(settings.graph, after, rules) if decides else {}
        self._adoption = Adoption.of(settings.journal, settings.graph, settings.codec, after, name)
        self._told: list[Fate] | None = None

    def told(self) -> list[Fate]:
        """Every step that is about to run, waits, or is done with, and what follows those that are done."""
        if self._told is None:
            steps = [step for step in self._after.active() if step.node != START]
            found = [self._fate(step) for step in steps if step.id not in self._after.frames]
            self._told = [*found, *(() if self._refused else self._following())]
        return self._told

    @staticmethod
    def under_way(run: RunState, later: RunState) -> Iterator[tuple[str, str, str]]:
        """The steps of a run that are not finished: id, node, and what became of them.

        The id is the one that a step has when the run comes to its node again from where it stands `later`.
        """
        for step in run.active():
            if step.node != START and step.status != DONE and step.id not in run.frames:
                why = f"it failed: {step.fault}" if step.fault is not None else "it had not finished"
                frame = later.frames.get(step.frame)
                stays = frame is None or step.id in frame.active
                visit = step.visit if frame is None or stays else frame.visits.get(step.node, 0) + 1
                yield step_id(step.frame, step.node, visit, step.key), qualified(step), why

    def _fate(self, step: Step) -> Fate:
        name, node = step.id, qualified(step)
        inner = graph_at(self._graph, step.frame)
        if inner is None or step.node not in inner.nodes:
            if step.status == DONE and step.goto is not None:
                return Fate(name, node, KEPT, "finished; the graph no longer has it")
            return Fate(
                name, node, ORPHANED, "the graph no longer has its node; put it back, or resume with remap"
            )
        if step.status == DONE:
            return Fate(name, node, KEPT, "finished")
        if isinstance(self._decisions.get(name), Start) and self._adoption is not None:
            taken = self._adoption.taken(step)
            if taken is not None:
                return Fate(name, node, KEPT, f"adopted from {taken.origin!r}")
        what, reason = self._decided(step)
        return Fate(name, node, what, reason + _onces(self._steps.get(name, step)))

    def _decided(self, step: Step) -> tuple[str, str]:
        decision = self._decisions.get(step.id)
        before = self._steps.get(step.id, step)
        doubt = _STOPPED if before.status in (RUNNING, IN_DOUBT) or STILL_IN_DOUBT in before.notes else ""
        match decision:
            case Start() | OpenFrame():
                return _begun(before, step, doubt)
            case Gate():
                return ASKED, "it waits at a gate"
            case AskWhat(kind="poison"):
                return (
                    ASKED,
                    f"{_STOPPED}, {MAX_CRASHES} times by now: somebody has to say what to do with it",
                )
            case AskWhat():
                return ASKED, f"{_STOPPED}; somebody is asked what to do with it"
            case SkipStep():
                return IN_QUESTION, f"{_STOPPED}; it is skipped"
            case RefuseStep():
                return IN_QUESTION, f"{_STOPPED} and may not be repeated unasked: the run fails"
            case Reconcile():
                return IN_QUESTION, f"{_STOPPED}; its own function looks whether it was done"
            case ExceedIterations(limit=limit):
                return IN_QUESTION, f"the iteration budget of {limit} is used up: the run fails before it"
        return self._waiting(before, step, doubt)

    def _waiting(self, before: Step, step: Step, doubt: str) -> tuple[str, str]:
        """What becomes of a step that nothing is decided about for now."""
        if step.status == GATED:
            return ASKED, "it waits at a gate"
        if step.status == WAITING:
            prompts = [
                pause.prompt or pause.kind for pause in self._after.pauses.values() if pause.step == step.id
            ]
            return ASKED, f"it waits for an answer: {'; '.join(prompts)}"
        what, reason = _begun(before, step, doubt)
        return what, reason if self._refused else f"{reason}, when there is room"

    def _following(self) -> Iterator[Fate]:
        """What follows the waves that are finished but for being led on from."""
        for decision in self._decisions.values():
            if not isinstance(decision, RouteOn):
                continue
            frame = decision.frame
            graph = graph_at(self._graph, frame.path)
            prefix = (
                "".join(f"{part.rpartition('#')[0]}/" for part in frame.path.split("/")) if frame.path else ""
            )
            steps = [frame.active[name] for name in decision.steps or frame.active]
            for step in steps if graph is not None else ():
                yield from self._after_step(graph, step, prefix)

    def _after_step(self, graph: Graph | None, step: Step, prefix: str) -> Iterator[Fate]:
        assert graph is not None
        if step.goto is not None:
            for chosen in step.goto:
                yield Fate("", prefix + chosen.node, NEXT, f"it follows {step.node!r}")
            return
        only = graph.only_next.get(step.node)
        if only is not None:
            if only != END:
                yield Fate("", prefix + only, NEXT, f"it follows {step.node!r}")
            return
        targets = {edge.target: edge.when is not None for edge in graph.edges_from.get(step.node, ())}
        route = graph.route_from.get(step.node)
        targets |= dict.fromkeys((route.mapping or {}).values() if route is not None else (), True)
        targets |= {join.target: True for join in graph.joins_from.get(step.node, ())}
        for target, may in targets.items():
            if target != END:
                how = "may follow" if may else "follows"
                yield Fate("", prefix + target, NEXT, f"it {how} {step.node!r}")


def _onces(step: Step) -> str:
    """Of what in a step it is not known either whether it took effect."""
    keys = ", ".join(map(repr, begun_onces(step)))
    return f"; in doubt inside it: once {keys}" if keys else ""


def _begun(before: Step, step: Step, doubt: str) -> tuple[str, str]:
    """Why a step is about to run."""
    if doubt:
        return RERUN, f"{doubt}; it runs again"
    if before.status == FAILED:
        return RERUN, f"it failed: {before.fault}"
    if before.status == RETRYING:
        return RERUN, f"attempt {before.attempt} failed: {before.fault}"
    if before.status == WAITING:
        if INTERRUPTED in step.answers:
            return RERUN, f"{_STOPPED}; it runs again"
        return NEXT, "what it waited for is there"
    if before.status == GATED:
        return NEXT, "its gate is passed"
    return NEXT, "it comes next"


def _decisions(graph: Graph, run: RunState, rules: Rules) -> dict[str, Any]:
    """What is decided first about each step, and, by its path, about each frame."""
    found: dict[str, Any] = {}
    for decision in decide(graph, run, rules):
        if isinstance(decision, RouteOn):
            found[f"{decision.frame.path}:on"] = decision
        elif isinstance(decision, ExceedIterations):
            found |= dict.fromkeys(decision.frame.active, decision)
        elif (step := getattr(decision, "step", None)) is not None:
            found[step.id] = decision
    return found
