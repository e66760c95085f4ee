"""Which finished steps of a run somebody means by a name."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from holdfast.engine.travel.past import Finish, Past
from holdfast.errors import CannotRerun
from holdfast.journal.run_state import (
    RunState,
    node_of,
)
from holdfast.plan.naming import base_name
from holdfast.suggestions import suggestion
from holdfast.values import readable_step


def meant_finishes(past: Past, run: RunState, name: str) -> list[Finish]:
    """The finished steps that a step's id, or a node's name for its last visit, means; the first one first."""
    found = list(past.finishes.values())
    for written in (str, readable_step, _numbered):
        if exact := [each for each in found if written(each.step) == name]:
            return exact
    if inner := [each for each in found if each.step.startswith(f"{name}/")]:
        return inner
    if "[" in name:
        named = [each for each in found if _said(each.step) == name]
        named = named or [each for each in found if _said(each.step).startswith(f"{name}/")]
        return _last_visit(named, name.count("/"))
    named = [each for each in found if name in (each.node, base_name(each.node))]
    named = named or [each for each in found if _is_inside(each.node, name)]
    own = [each for each in named if each.node == name]
    if not own:
        return _last_visit(named, name.count("/"))
    first = _last_visit(own, name.count("/"))[0]
    return named[named.index(first) :]


def _last_visit(found: list[Finish], level: int) -> list[Finish]:
    """Of some steps those of the last visit, as far as the outermost nodes are concerned."""
    return [each for each in found if _visit(each.step, level) == _visit(found[-1].step, level)]


def _said(step: str) -> str:
    """A step as people name it who leave the visits out: `outer[key]/inner`."""
    return "/".join(node + bracket + key for node, _, bracket, key in _parts(step))


def _numbered(step: str) -> str:
    """A step as people name it who give the visits: `each#1[key]` for an item of a workflow file's `each`."""
    return "/".join(f"{node}#{visit}{bracket}{key}" for node, visit, bracket, key in _parts(step))


def _parts(step: str) -> Iterator[tuple[str, str, str, str]]:
    """The step's own node and those that it is nested in, as they are named, with visit and key."""
    for part in step.split("/"):
        node, _, rest = part.partition("#")
        visit, bracket, key = rest.partition("[")
        yield base_name(node), visit, bracket, unquote(key)


def _is_inside(node: str, name: str) -> bool:
    return node.startswith(f"{name}/") or base_name(node).startswith(f"{name}/")


def _visit(step: str, level: int) -> tuple[str, ...]:
    """Which time each of the outermost nodes of a step's place is visited."""
    parts = [part.partition("[")[0] for part in step.split("/")[: level + 1]]
    return tuple(part.rpartition("#")[2] for part in parts)


def seed_of(meant: list[Finish], name: str) -> str:
    """The node that is to run again: that of the first step, or the sub-graph that all of them are in."""
    node, level = meant[0].node, name.partition("[")[0].count("/")
    if meant[0].step == name:
        return node
    return "/".join(node.split("/")[: level + 1])


def unknown_step(past: Past, name: str) -> CannotRerun:
    """Says what ran instead of a step that did not, or that nothing more is known of it."""
    node, run = node_of(name) if "#" in name else name.partition("[")[0], past.info.run
    of_node = [each for each in past.finishes.values() if node in (each.node, base_name(each.node))]
    if of_node and name != node:
        steps = ", ".join(readable_step(each.step) for each in of_node[-_FEW:])
        more = f"{len(of_node)} steps, the last of them " if len(of_node) > _FEW else ""
        return CannotRerun(f"run {run!r} never came to {name!r}; of {node!r} it ran {more}{steps}")
    if node in past.forgotten or node in map(base_name, past.forgotten):
        return CannotRerun(
            f"{past.lost}, so that run {run!r} cannot be taken back to before {node!r}; "
            f"start a new run that reuses what is still the same: reuse={run!r}"
        )
    shown = [step for step in past.finishes if base_name(step) == step]
    ran = dict.fromkeys(map(base_name, (*past.forgotten, *(each.node for each in past.finishes.values()))))
    known = [*shown, *ran]
    return CannotRerun(
        f"run {run!r} has no step {name!r} that ran{suggestion(name, known)}; it ran {', '.join(ran) or 'nothing'}"
    )


_FEW = 3
"""How many steps of a node are listed."""


# What is recorded.
