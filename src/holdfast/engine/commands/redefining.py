"""What going on with another version of a workflow's definition comes to, before anybody has compiled it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.ops import Op, advance
from holdfast.engine.commands.ground import Ground
from holdfast.engine.commands.meant import Refused
from holdfast.engine.driving.decide import qualified
from holdfast.engine.saved_config import check_config
from holdfast.errors import CodecError
from holdfast.journal.records import GraphChanged, Record, StateEdited
from holdfast.journal.run_state import DONE, Frame, RunState, names_within, renamed_path
from holdfast.plan.naming import base_name, outline_at, outline_names, renamed, renamed_nodes
from holdfast.plan.outline import is_outline
from holdfast.suggestions import suggestion
from holdfast.values import START

_NONE = "what came with it is not a definition of a workflow"


def redefine(ground: Ground, definition: Mapping[str, Any], by: str) -> list[Record]:
    """Go on with another definition: its `outline`, its part of the `config`, and steps renamed by `names`.

    The workflow has to be the same by its name, and have every node that the run still needs.
    """
    run, codec = ground.run, ground.codec
    workflow, outline, names = _read(definition)
    if workflow != run.workflow:
        raise Refused(f"the run is of workflow {run.workflow!r}, and the new definition of {workflow!r}")
    if not any(run.active()):
        raise Refused("nothing of the run is left to do")
    _refuse_unknown(names, run)
    remap = renamed_nodes(names, run.outline)
    _refuse_missing(run, outline, remap)
    config = _laid_over(run.config, definition["config"], codec)
    records: list[Record] = [GraphChanged(outline, tuple(remap.items()), config, by)]
    return [*records, *_renamed_results(run, names, remap, ground, by)]


def _read(definition: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return the workflow, the outline and the renamed steps of a definition; anybody may have written it."""
    workflow, outline, names = (definition.get(name) for name in ("workflow", "outline", "names"))
    if not isinstance(workflow, str) or not isinstance(outline, dict) or not is_outline(outline):
        raise Refused(f"{_NONE}: it has no workflow's name, or no outline of a graph")
    if not isinstance(definition.get("config"), bytes):
        raise Refused(f"{_NONE}: it has no config")
    if names and not (isinstance(names, dict) and all(isinstance(name, str) for name in names.values())):
        raise Refused(f"{_NONE}: its renamed steps are not names of steps")
    return workflow, outline, dict(names or {})


def _laid_over(own: bytes, given: bytes, codec: Codec) -> bytes:
    """Return the config of a run once that of a definition is laid over it; what could never be taken is refused."""
    try:
        config = codec.decode(given)
        if not isinstance(config, Mapping):
            raise Refused(f"{_NONE}: its config is a {type(config).__name__}")
        merged = {**_mapping(codec.decode(own)), **config}
        check_config(merged, "give the workflow file again")
        return codec.encode(merged)
    except CodecError as error:
        raise Refused(f"{_NONE}: {error}") from None


def _mapping(config: Any) -> dict[str, Any]:
    return dict(config) if isinstance(config, Mapping) else {}


def _refuse_unknown(names: Mapping[str, str], run: RunState) -> None:
    known = list(dict.fromkeys(map(base_name, outline_names(run.outline))))
    for old in names:
        if old not in known:
            raise Refused(f"{old!r} cannot be renamed: the run has no such step{suggestion(old, known)}")


def _refuse_missing(run: RunState, outline: Mapping[str, Any], remap: Mapping[str, str]) -> None:
    """Refuse an outline without a node that the run is to run, or to follow, or without a join that it waits at."""
    for frame in run.frames.values():
        own, names = outline_at(outline, _path(frame, remap)), names_within(frame.path, remap)
        nodes = own.get("nodes", {})
        for step in frame.active.values():
            name = names.get(step.node, step.node)
            leads_itself = step.node == START or (step.status == DONE and step.goto is not None)
            if name not in nodes and not leads_itself:
                near = suggestion(name, nodes)
                raise Refused(
                    f"the run is to go on with {qualified(step)!r}, which the new definition lacks{near}"
                )
        known = {"/".join([target, *sorted(sources)]) for sources, target in own.get("joins", ())}
        for join in frame.waiting:
            target, *sources = (names.get(node, node) for node in join.split("/"))
            if "/".join([target, *sorted(sources)]) not in known:
                raise Refused(f"the run waits at the join before {target!r}, which the new definition lacks")


def _path(frame: Frame, remap: Mapping[str, str]) -> str:
    return renamed_path(frame.path, remap) if frame.path else ""


def _renamed_results(
    run: RunState, names: Mapping[str, str], remap: Mapping[str, str], ground: Ground, by: str
) -> Iterator[StateEdited]:
    """What renamed steps have left in the state, under their new names, the unfinished wave's included."""
    for frame in run.frames.values():
        finished = [op for step in frame.active.values() if step.status == DONE for op in step.ops]
        cells = advance(frame.cells, finished)
        ops = tuple(
            Op("set", new, cells[old].encoded(ground.codec), codec=ground.codec)
            for old, new in renamed(names, cells).items()
        )
        if ops:
            yield StateEdited(_path(frame, remap), ops, by)
