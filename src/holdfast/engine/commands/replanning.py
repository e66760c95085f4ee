"""What changes of a run's plan come to: further steps beside those that are next, or others in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.data.ops import Op, advance
from holdfast.engine.commands.ground import Ground
from holdfast.engine.commands.inbox import Addition
from holdfast.engine.commands.meant import Refused, meant_frame
from holdfast.engine.commands.steering import put, skipped, told
from holdfast.journal.records import Ops, Record, Steered, StepFinished, Target, WaveFinished
from holdfast.journal.run_state import DONE, GATED, READY, RUNNING, Frame, Step, step_id
from holdfast.plan.naming import base_name, has_parts, whole_of
from holdfast.suggestions import suggestion

_NOT_BEGUN = (READY, GATED)


def inject(
    ground: Ground, additions: Sequence[Addition], frame: str, follow: bool, by: str, why: str
) -> list[Record]:
    """Run further steps beside those that are about to run, or are running."""
    placed: dict[str, list[Target]] = {}
    for addition in additions:
        place, target = _placed(ground, addition, frame, follow)
        placed.setdefault(place.path, []).append(target)
    records: list[Record] = []
    for path, targets in placed.items():
        place = ground.run.frames[path]
        _refuse_twins(place, place.active, targets)
        records.append(
            Steered(path, _last(ground, place), add=tuple(targets), one_off=not follow, by=by, why=why)
        )
    return records


def replan(
    ground: Ground, additions: Sequence[Addition], frame: str, follow: bool, by: str, why: str
) -> list[Record]:
    """Run these steps instead of all that are not running, and of what would follow those that are."""
    placed = [_placed(ground, addition, frame, follow) for addition in additions]
    places = {place.path: place for place, _ in placed} or {"": meant_frame(ground.run, frame)}
    if len(places) > 1:
        raise Refused(
            f"one plan is for one graph, and these steps are of {len(places)}; replan one at a time"
        )
    (place,) = places.values()
    outline = ground.outline_at(place.path)
    _refuse_half_done(place, outline)
    targets = [target for _, target in placed]
    replaced = [step for step in place.active.values() if _is_replaceable(ground, step)]
    passed = _passed_over(ground, replaced, {target.node for target in targets}, told("replanned", by, why))
    drop = [step.id for step in replaced if step.id not in passed]
    kept = {name: step for name, step in place.active.items() if name not in drop}
    _refuse_twins(place, kept, targets)
    if not targets and not kept and outline.get("last"):
        targets, follow = [Target(outline["last"])], True
    steered = Steered(place.path, tuple(drop), (), tuple(targets), not follow, replan=True, by=by, why=why)
    if not kept or not all(step.status == DONE or step.id in passed for step in kept.values()):
        return [*passed.values(), steered]
    # All else is finished: what it did shows before the new steps begin.
    ops = [op for step in kept.values() for op in (passed[step.id].ops if step.id in passed else step.ops)]
    wave = WaveFinished(place.path, _reduced(ground, place, ops), ())
    if not targets and outline.get("last") not in (None, *(step.node for step in kept.values())):
        targets, follow = [Target(outline["last"])], True
    added = Steered(place.path, add=tuple(targets), one_off=not follow, by=by, why=why)
    return [*passed.values(), steered._replace(add=()), wave, added]


def _reduced(ground: Ground, place: Frame, ops: Sequence[Op]) -> Ops:
    """What the custom reducers among some changes result in."""
    if not any(op.kind == "reduce" for op in ops):
        return ()
    schema = ground.graph_at(place.path).schema
    return tuple(schema.reduce(ground.codec, advance(place.cells, ops), ops))


def _passed_over(ground: Ground, steps: Sequence[Step], again: set[str], why: str) -> dict[str, StepFinished]:
    """What the replaced steps leave behind whose nodes have something to say to that, by their ids."""
    found = {}
    for step in steps:
        has_say = "on_skip" in ground.outline_at(step.frame).get("nodes", {}).get(step.node, {})
        if has_say and step.node not in again:
            try:
                found[step.id] = skipped(ground, step, why)
            except Refused:
                continue
    return found


def _is_replaceable(ground: Ground, step: Step) -> bool:
    if step.status == DONE or step.id in ground.run.frames:
        return False
    return step.status != RUNNING or not ground.driven


def _refuse_half_done(place: Frame, outline: Mapping[str, Any]) -> None:
    """Refuse to break off a step of several nodes between two of them."""
    nodes = outline.get("nodes", {})
    for step in place.active.values():
        whole = whole_of(step.node, nodes) or (step.node if has_parts(step.node, nodes) else "")
        not_begun = whole == step.node and step.status in _NOT_BEGUN
        through = step.status == DONE and whole not in map(base_name, _following(step, outline))
        if whole and not (not_begun or through):
            raise Refused(f"{whole!r} is half done; skip it first, or ask again when it is through")


def _following(step: Step, outline: Mapping[str, Any]) -> list[str]:
    """The nodes that may follow a finished step, as far as an outline tells."""
    if step.goto is not None:
        return [target.node for target in step.goto]
    edges = [edge[1] for edge in outline.get("edges", ()) if edge[0] == step.node]
    routes = [
        target for source, targets in outline.get("routes", ()) if source == step.node for target in targets
    ]
    return [
        *edges,
        *routes,
        *(target for sources, target in outline.get("joins", ()) if step.node in sources),
    ]


def _placed(ground: Ground, addition: Addition, frame: str, follow: bool) -> tuple[Frame, Target]:
    """The frame and the target that an addition means; `outer/inner` is in the frame of `outer`."""
    outer, _, node = addition.node.rpartition("/")
    if outer and frame:
        raise Refused(f"{addition.node!r} names its graph itself; leave the frame out")
    place = meant_frame(ground.run, outer or frame)
    nodes = ground.outline_at(place.path).get("nodes", {})
    if node not in nodes:
        raise Refused(f"there is no node {addition.node!r}{suggestion(node, map(base_name, nodes))}")
    if whole := whole_of(node, nodes):
        raise Refused(f"{node!r} is a part of {whole!r} and does not stand for itself; name that")
    if not follow and has_parts(node, nodes):
        raise Refused(f"{node!r} is made of several nodes, which follow each other: run it with follow=True")
    item = tuple(put(ground, change.path[0], ground.decoded(change)) for change in addition.item)
    return place, Target(node, addition.key, item)


def _refuse_twins(place: Frame, active: Mapping[str, Step], targets: Sequence[Target]) -> None:
    """Refuse items whose key is taken, by one that is under way or by another of these."""
    rounds = {step.node: step.visit for step in active.values() if step.key is not None}
    taken = set(active)
    for node, key, _ in targets:
        if key is None:
            continue
        name = step_id(place.path, node, rounds.get(node, 0), key)
        if name in taken:
            raise Refused(f"node {node!r} has an item with the key {key!r} already; give another key")
        taken.add(name)


def _last(ground: Ground, place: Frame) -> tuple[str, ...]:
    """The step of the frame's last node, if it is about to run: it comes when all else is through."""
    last = ground.outline_at(place.path).get("last")
    return tuple(step.id for step in place.active.values() if step.node == last and step.status in _NOT_BEGUN)
