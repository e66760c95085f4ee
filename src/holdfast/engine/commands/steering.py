"""What changes to single steps of a run come to: passing over them, giving them other arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.data.ops import Op, make_op
from holdfast.engine.commands.ground import Ground, NeedsGraph, checked
from holdfast.engine.commands.inbox import Change
from holdfast.engine.commands.meant import Refused, meant_steps
from holdfast.engine.driving.changes import meaning
from holdfast.errors import HoldfastError
from holdfast.journal.records import Ops, Record, Steered, StepFinished, Target
from holdfast.journal.run_state import (
    DONE,
    FAILED,
    GATED,
    READY,
    RETRYING,
    RUNNING,
    STILL_IN_DOUBT,
    Step,
)
from holdfast.values import readable_step

_BEGINS_ANEW = (READY, GATED, RETRYING, FAILED)


def told(what: str, by: str, why: str) -> str:
    """What was done, by whom and why, in one line."""
    return what + (f" by {by}" if by else "") + (f": {why}" if why else "")


# Passing over.


def skip(ground: Ground, name: str, why: str) -> list[Record]:
    """Pass over a step, or over all steps of a node that can be."""
    found = meant_steps(ground.run, name)
    able = [step for step in found if not _why_kept(ground, step)]
    if not able:
        raise Refused(_why_kept(ground, found[0]))
    return [skipped(ground, step, why) for step in able]


def _why_kept(ground: Ground, step: Step) -> str:
    """Why a step cannot be passed over, or nothing."""
    if step.status == DONE:
        return f"step {readable_step(step.id)!r} is finished"
    if step.id in ground.run.frames:
        name = readable_step(step.id)
        return f"step {name!r} is a graph that is under way; name a step inside it, as in 'outer/inner'"
    if step.status == RUNNING and ground.driven:
        return f"step {readable_step(step.id)!r} is running; wait for it, or cancel the run"
    return ""


def skipped(ground: Ground, step: Step, why: str) -> StepFinished:
    """A step passed over."""
    ops, goto = _stand_in(ground, step, why)
    return StepFinished(step.id, ops, goto, skipped=why)


def _stand_in(ground: Ground, step: Step, why: str) -> tuple[Ops, tuple[Target, ...] | None]:
    """What its node says that a step leaves behind when it is passed over."""
    if ground.graph is None:
        if "on_skip" in ground.outline_at(step.frame).get("nodes", {}).get(step.node, {}):
            raise NeedsGraph
        return (), None
    graph = ground.graph_at(step.frame)
    node = graph.nodes.get(step.node)
    if node is None:
        raise NeedsGraph
    if node.on_skip is None:
        return (), None
    state = ground.state_for(step)
    try:
        value = node.on_skip(state, why)
        return meaning(graph, ground.codec, ground.run.frames[step.frame], step, value, state)
    except Exception as error:
        reason = str(error) if isinstance(error, HoldfastError) else repr(error)
        raise Refused(f"step {readable_step(step.id)!r} cannot be passed over: {reason}") from None


# Other arguments.


def modify(ground: Ground, name: str, changes: Sequence[Change], by: str, why: str) -> list[Record]:
    """Let steps that are still to begin see other values than the state has."""
    found = meant_steps(ground.run, name)
    able = [step for step in found if not _why_unchanged(ground, step)]
    if not able:
        raise Refused(_why_unchanged(ground, found[0]))
    items: dict[str, list[tuple[str, Ops]]] = {}
    for step in able:
        items.setdefault(step.frame, []).append((step.id, _other_item(ground, step, changes)))
    return [Steered(frame, items=tuple(changed), by=by, why=why) for frame, changed in items.items()]


def _why_unchanged(ground: Ground, step: Step) -> str:
    """Why the arguments of a step cannot be changed, or nothing."""
    if step.status in _BEGINS_ANEW and STILL_IN_DOUBT not in step.notes:
        return ""
    if step.status in (DONE, RUNNING) and (kept := _why_kept(ground, step)):
        return kept
    return f"step {readable_step(step.id)!r} has begun, and its arguments may have been used; skip it, or let it go on"


def _other_item(ground: Ground, step: Step, changes: Sequence[Change]) -> Ops:
    values = ground.settled(ground.state_for(step), changes)
    item = {op.key: op for op in step.item}
    own = {key: value for key, value in values.items() if key in item}
    others = {key: value for key, value in values.items() if key not in item}
    for key, value in {**own, **_known(ground, step, others)}.items():
        item[key] = put(ground, key, value)
    return tuple(item.values())


def _known(ground: Ground, step: Step, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values of keys that the state of the step's graph has."""
    if ground.graph is None:
        if any(key not in ground.run.frames[step.frame].cells for key in values):
            raise NeedsGraph
        return values
    return checked(ground.graph_at(step.frame).schema, values)


def put(ground: Ground, key: str, value: Any) -> Op:
    """A value for a step to see in place of the state's."""
    try:
        return make_op(ground.codec, "set", key, value)
    except HoldfastError as error:
        raise Refused(str(error)) from None
