"""What changes of a run's plan come to: further steps beside those that are next, or others in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.engine.checkpoint_files import check_config
from holdfast.engine.commands.inbox import (
    Addition,
    Change,
    Ground,
    NeedsGraph,
    Refused,
    checked,
    meant_frame,
    meant_steps,
)
from holdfast.engine.decide import qualified
from holdfast.engine.routing import meaning
from holdfast.errors import CodecError, HoldfastError
from holdfast.graph.drawing import is_outline
from holdfast.graph.graph import (
    base_name,
    has_parts,
    outline_at,
    outline_names,
    renamed,
    renamed_nodes,
    whole_of,
)
from holdfast.journal.records import (
    GraphChanged,
    Ops,
    Record,
    StateEdited,
    Steered,
    StepFinished,
    Target,
    WaveFinished,
)
from holdfast.journal.run_state import (
    DONE,
    FAILED,
    GATED,
    READY,
    RETRYING,
    RUNNING,
    STILL_IN_DOUBT,
    Frame,
    RunState,
    Step,
    names_within,
    renamed_path,
    step_id,
)
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, advance, make_op
from holdfast.suggestions import suggestion
from holdfast.values import START, readable_step

# What changes to single steps of a run come to: passing over them, giving them other arguments.


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


# What going on with another version of a workflow's definition comes to, before anybody has compiled it.


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
