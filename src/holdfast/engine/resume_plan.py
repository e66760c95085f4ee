"""What a resume would do with every step of a run, and why, before it does anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.engine.driving.decide import MAX_CRASHES, qualified
from holdfast.engine.resume import changes_between, find_run, refuse_finished
from holdfast.engine.settings import Settings
from holdfast.journal.fold import apply
from holdfast.journal.journal import Loaded
from holdfast.journal.records import Forked, GraphChanged, StepFinished
from holdfast.journal.run_state import (
    DONE,
    FAILED,
    GATED,
    IN_DOUBT,
    RETRYING,
    RUNNING,
    STILL_IN_DOUBT,
    WAITING,
    RunState,
    Step,
    node_of,
)
from holdfast.plan.fingerprint import same_code
from holdfast.plan.graph import Graph
from holdfast.values import START

KEPT, RERUN, IN_QUESTION, ASKED, NEXT, ORPHANED, NEW = (
    "kept",
    "rerun",
    "in_doubt",
    "asked",
    "next",
    "orphaned",
    "new",
)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step and what becomes of it: kept, rerun, in_doubt, asked, next, orphaned or new."""

    step: str
    node: str
    what: str
    reason: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a resume would do. `seconds_saved` is the time that the kept steps took."""

    run_id: str
    workflow: str
    status: str
    steps: tuple[PlannedStep, ...]
    changes: tuple[str, ...]
    """How the graph differs from the one that the run was saved with."""
    seconds_saved: float

    def of(self, what: str) -> tuple[PlannedStep, ...]:
        """The steps that this becomes of."""
        return tuple(step for step in self.steps if step.what == what)


def plan_resume(
    settings: Settings,
    target: str,
    if_interrupted: str | None = None,
    remap: Mapping[str, str] | None = None,
) -> ResumePlan:
    """The plan for what `target` names; a run that is completed, or not there, is refused."""
    journal = settings.journal
    info, seq = find_run(journal.store, target)
    loaded = journal.load(info, settings.codec, seq)
    if seq is None:
        refuse_finished(info)
    run = loaded.run
    if remap:
        apply(run, GraphChanged(run.outline, tuple(remap.items())), run.updated_at)
    changes = changes_between(run.outline, settings.outline) if run.outline else []
    kept = list(_kept(settings, loaded, seq))
    kept_ids = {step.step for step in kept}
    active = [
        _planned(settings.graph, step, run, if_interrupted)
        for step in run.active()
        if step.node != START and step.id not in run.frames and step.id not in kept_ids
    ]
    steps = (*kept, *active, *_new(run, settings.graph))
    saved = sum(step.seconds for step in kept)
    return ResumePlan(info.run, info.workflow, str(run.status), steps, tuple(changes), saved)


def _kept(settings: Settings, loaded: Loaded, seq: int | None) -> Iterator[PlannedStep]:
    """The finished steps, in order; of those before a pruned horizon or a fork only the node is known."""
    start, history = settings.journal.history(loaded.info, settings.codec, seq)
    for node in start.path:
        yield PlannedStep("", node, KEPT, "finished")
    for _, records in history:
        for record in records:
            if isinstance(record, Forked):
                for node in record.run.path:
                    yield PlannedStep("", node, KEPT, "finished before the fork")
            elif isinstance(record, StepFinished):
                node = node_of(record.step)
                yield PlannedStep(
                    record.step, node, KEPT, _why_kept(settings, loaded.run, node, record), record.seconds
                )


def _why_kept(settings: Settings, run: RunState, node: str, record: StepFinished) -> str:
    if record.skipped:
        return f"passed over: {record.skipped}"
    saved, now = _facts(run.outline, node), _facts(settings.outline, node)
    if run.outline and saved is not None and now is None:
        return "finished; the graph no longer has it"
    if saved and now and not same_code(saved["fingerprint"], now["fingerprint"]):
        return "finished; its code changed since"
    return "finished"


def _facts(outline: Any, node: str) -> dict[str, Any] | None:
    found: Any = {"graph": outline}
    for part in node.split("/"):
        found = (found.get("graph") or {}).get("nodes", {}).get(part)
        if found is None:
            return None
    return dict(found)


def _planned(graph: Graph, step: Step, run: RunState, wish: str | None) -> PlannedStep:
    what, reason = _fate(graph, step, run, wish)
    return PlannedStep(step.id, qualified(step), what, reason)


def _fate(graph: Graph, step: Step, run: RunState, wish: str | None) -> tuple[str, str]:
    try:
        node = graph.at(step.frame).nodes.get(step.node)
    except KeyError:
        node = None
    if node is None:
        return ORPHANED, "the graph no longer has its node; put it back, or resume with remap"
    if step.status == DONE:
        return KEPT, "finished"
    if step.status == FAILED and STILL_IN_DOUBT in step.notes:
        return _doubt(step, wish or node.if_interrupted)
    if step.status == FAILED:
        return RERUN, f"it failed: {step.fault}"
    if step.status == RETRYING:
        return RERUN, f"attempt {step.attempt} failed: {step.fault}"
    if step.status in (WAITING, GATED):
        prompts = [pause.prompt or pause.kind for pause in run.pauses.values() if pause.step == step.id]
        return (
            ASKED,
            f"it waits for an answer: {'; '.join(prompts)}"
            if step.status == WAITING
            else "it waits at a gate",
        )
    if step.status in (RUNNING, IN_DOUBT):
        return _doubt(step, wish or node.if_interrupted)
    return NEXT, "it comes next"


def _doubt(step: Step, wish: Any) -> tuple[str, str]:
    cause = "it was running when its process stopped"
    if step.crashes + 1 >= MAX_CRASHES and step.status == RUNNING:
        return ASKED, f"{cause}, {MAX_CRASHES} times by now: somebody has to say what to do with it"
    if callable(wish):
        return IN_QUESTION, f"{cause}; its own function looks whether it was done"
    fates = {
        "rerun": (RERUN, f"{cause}; it runs again"),
        "skip": (IN_QUESTION, f"{cause}; it is skipped"),
        "ask": (ASKED, f"{cause}; somebody is asked what to do with it"),
        "fail": (IN_QUESTION, f"{cause} and may not be repeated unasked: the run fails"),
    }
    return fates[str(wish)]


def _new(run: RunState, graph: Graph) -> Iterator[PlannedStep]:
    known = run.outline.get("nodes", {})
    for name in graph.nodes:
        if run.outline and name not in known:
            yield PlannedStep("", name, NEW, "the graph has it now")
