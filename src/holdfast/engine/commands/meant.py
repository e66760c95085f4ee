"""Which steps and frames of a run somebody means by a name; what is not there is refused with what is."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine.driving.decide import qualified
from holdfast.journal.run_state import Frame, RunState, Step
from holdfast.plan.naming import base_name, outline_names
from holdfast.suggestions import suggestion
from holdfast.values import START, readable_step


class Refused(Exception):
    """A command cannot be obeyed; the text says why."""


def meant_steps(run: RunState, name: str) -> list[Step]:
    """The steps that are under way or about to run which a step id or a node's name means, `outer/inner` if nested.

    An item of a for-each is `node[key]`; helper nodes go by the name of the step that they belong to.
    """
    active = [step for step in run.active() if step.node != START]
    found = [step for step in active if step.id == name] or [step for step in active if name in _names(step)]
    if not found:
        raise Refused(_absent(run, active, name))
    return found


def _names(step: Step) -> set[str]:
    own = qualified(step)
    names = {own, base_name(own)}
    return (
        names
        if step.key is None
        else names | {readable_step(step.id), *(f"{each}[{step.key}]" for each in names)}
    )


def meant_frame(run: RunState, name: str) -> Frame:
    """The open frame that a path, or the names of the nodes that it is nested in, means; the run's own without one."""
    if name in run.frames:
        return run.frames[name]
    found = [frame for path, frame in run.frames.items() if path and name in _names_of_path(path)]
    if len(found) == 1:
        return found[0]
    if found:
        paths = ", ".join(repr(frame.path) for frame in found)
        raise Refused(f"{name!r} is under way several times; name one of {paths}")
    open_ = ", ".join(repr(path) for path in run.frames if path) or "none"
    raise Refused(f"no sub-graph {name!r} is under way (open: {open_})")


def _names_of_path(path: str) -> set[str]:
    name = nodes_of(path)
    return {name, base_name(name)}


def nodes_of(path: str) -> str:
    """The nodes that a step's id, or a frame's path, leads through: `outer/inner` for `outer#1/inner#2[a]`."""
    return "/".join(part.partition("[")[0].partition("#")[0] for part in path.split("/"))


def _absent(run: RunState, active: Iterable[Step], name: str) -> str:
    """Why no step is meant: it is over, not yet due, or there is none."""
    plain, known = nodes_of(name), list(outline_names(run.outline))
    bases = {base_name(node) for node in known}
    if plain not in known and plain not in bases:
        near = suggestion(name, [*dict.fromkeys(map(base_name, known)), *(step.id for step in active)])
        return f"there is no step or node {name!r}{near}"
    if _was_there(run, plain):
        return f"step {name!r} is finished"
    now = ", ".join(dict.fromkeys(repr(base_name(qualified(step))) for step in active)) or "nothing"
    return f"it is not the turn of {name!r} yet (now: {now}); ask again when it is"


def _was_there(run: RunState, name: str) -> bool:
    """Whether a node of that name has been visited, as far as the run remembers."""
    outer = name.rpartition("/")[0]
    frames = [frame for path, frame in run.frames.items() if outer in _names_of_path(path)]
    if outer and not frames:
        return _was_there(run, outer)
    inner = name.rpartition("/")[2]
    return any(node == inner or base_name(node) == inner for frame in frames for node in frame.visits)
