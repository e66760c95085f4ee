"""The handler of each command: what it asks becomes records, or it is refused with the reason."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine.checkpoint_files import check_config, has_workflow_file
from holdfast.engine.commands.inbox import (
    ANNOTATE,
    ANSWER,
    EDIT,
    EXTEND,
    INJECT,
    MODIFY,
    REPLAN,
    SKIP,
    STOPS,
    Change,
    RunCommand,
    StepRequest,
)
from holdfast.engine.commands.subject import NeedsGraph, Refused, Subject
from holdfast.engine.decide import ParallelWrite, meaning, qualified
from holdfast.engine.graph_changes import missing_parts
from holdfast.engine.resume import edits, renamed_keys
from holdfast.errors import CodecError, CommandRefused, HoldfastError, Remedy, problem_of, suggestion
from holdfast.graph.graph import (
    Graph,
    base_name,
    has_parts,
    is_outline,
    outline_at,
    outline_names,
    renamed_nodes,
    whole_of,
)
from holdfast.journal.encoding import safe_text
from holdfast.journal.records import (
    Answered,
    GraphChanged,
    Ops,
    Paused,
    Record,
    RunAnnotated,
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
    Step,
    renamed_path,
    step_id,
)
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, advance, make_op
from holdfast.stores.base import RunInfo
from holdfast.values import step_label

if TYPE_CHECKING:
    from holdfast.engine.saving import Saving

logger = logging.getLogger("holdfast")


def apply_command(saving: Saving, graph: Graph, command: RunCommand) -> str:
    """Record what a command asks of an executing run; return why it is refused, or ""."""
    subject = Subject(saving.run_id, saving.run, saving.settings.codec, graph, executing=True)
    try:
        found = records_of(subject, command)
    except Refused as refusal:
        return str(refusal)
    except NeedsGraph:
        return "the graph that the run is executed with does not fit"
    for record in found:
        if isinstance(record, StepFinished):
            facts = {"step": record.step, "error": False, "seconds": 0.0}
            update = {op.key: op.value for op in record.ops}
            saving.say("node.complete", saving.run.step(record.step).node, **facts, update=update)
        saving.record(record)
        if isinstance(record, RunAnnotated):
            saving.writer.set_info(tags_after(saving.writer.info, record))
    if command.kind == EDIT:
        subject.warn_of_chosen_route()
    return ""


def records_of(subject: Subject, command: RunCommand) -> list[Record]:
    """Return what a command records; raise `Refused`, or `NeedsGraph` if the run's graph is needed and not known."""
    handler = _HANDLERS.get(command.kind)
    if handler is None:
        raise Refused(f"unknown command {command.kind!r}")
    try:
        return handler(subject, command)
    except (Refused, NeedsGraph):
        raise
    except Exception as error:
        # A message must never bring a run down: it would do so again after every resume.
        logger.exception("run %s: %r cannot be applied", subject.run_id, command.kind)
        raise Refused(f"it cannot be done: {error!r}") from error


# Answers and edits of the state.


def _answer(subject: Subject, command: RunCommand) -> list[Record]:
    given = [(command.pause, command.value), *((change.path[0], change.value) for change in command.changes)]
    for pause, _ in given:
        if pause not in subject.run.pauses:
            raise Refused(
                f"nothing waits for {pause!r} any more: it was answered before, or its time was over"
            )
    return [Answered(pause, value, command.by) for pause, value in given]


def _extend(subject: Subject, command: RunCommand) -> list[Record]:
    """Record the open questions, or the one that is named, once more, with another time at which they expire."""
    asked = [pause for pause in subject.run.pauses.values() if pause.kind == "ask"]
    found = [pause for pause in asked if command.pause in ("", pause.id, pause.name)]
    until = subject.codec.decode(command.value) if command.value else None
    if not isinstance(until, float):
        raise Refused("it does not say until when")
    if not found:
        known = ", ".join(sorted(repr(pause.name) for pause in asked)) or "none"
        which = f"no open question {command.pause!r}" if command.pause else "no open question"
        raise Refused(f"there is {which} (open are: {known})")
    return [
        Paused(
            pause.id,
            pause.kind,
            pause.step,
            pause.node,
            pause.name,
            pause.prompt,
            pause.schema,
            expires_at=max(until, pause.expires_at or until),
            since=pause.since,
        )
        for pause in found
    ]


def _edit(subject: Subject, command: RunCommand) -> list[Record]:
    graph, state = subject.graph_at(""), subject.state(subject.run.root)
    channels = graph.schema.channels
    keys = dict.fromkeys(change.path[0] for change in command.changes)
    # A key without a reducer is set as it is: what unfinished steps were about to do to it no longer counts.
    plain = tuple(key for key in keys if key not in channels or channels[key].reducer is None)
    for change in command.changes:
        if len(change.path) > 1 and change.path[0] not in plain:
            raise Refused(
                f"{change.path[0]!r} has a reducer; give an update of the whole key, for it to take in"
            )
    try:
        found = edits(graph, subject.run, subject.new_values(state, command.changes), subject.codec)
    except KeyError:
        raise NeedsGraph from None
    except HoldfastError as error:
        raise Refused(problem_of(error)) from None
    return [record._replace(by=command.by, over=plain) for record in found if record.ops or plain]


# Single steps: skipping them, giving them other values.

_NOT_BEGUN = (READY, GATED)
_BEGINS_AGAIN = (READY, GATED, RETRYING, FAILED)


def explained(what: str, by: str, why: str) -> str:
    """Return what was done, by whom and why, in one line."""
    return what + (f" by {by}" if by else "") + (f": {why}" if why else "")


def _skip(subject: Subject, command: RunCommand) -> list[Record]:
    """Skip a step, or all steps of a node that can be skipped."""
    why = explained("asked for", command.by, command.reason)
    return [_skipped(subject, step, why) for step in _changeable(subject, command.step, _why_not_skipped)]


def _changeable(subject: Subject, name: str, why_not: Callable[[Subject, Step], str]) -> list[Step]:
    found = subject.steps(name)
    able = [step for step in found if not why_not(subject, step)]
    if not able:
        raise Refused(why_not(subject, found[0]))
    return able


def _why_not_skipped(subject: Subject, step: Step) -> str:
    name = step_label(step.id)
    if step.status == DONE:
        return f"step {name!r} is finished"
    if step.id in subject.run.frames:
        return f"step {name!r} is a graph that is under way; name a step inside it, as in 'outer/inner'"
    if step.status == RUNNING and subject.executing:
        return f"step {name!r} is running; wait for it, or cancel the run"
    return ""


def _skipped(subject: Subject, step: Step, why: str) -> StepFinished:
    """Return the end of a skipped step, with the result that its node's `on_skip` gives.

    One that failed because another step set the same key leaves that key to the other.
    """
    if step.status == FAILED and step.fault is not None and step.fault.type == ParallelWrite.__name__:
        return StepFinished(step.id, skipped=why)
    if subject.graph is None:
        if _has_on_skip(subject, step):
            raise NeedsGraph
        return StepFinished(step.id, skipped=why)
    graph = subject.graph_at(step.frame)
    node = graph.nodes.get(step.node)
    if node is None:
        raise NeedsGraph
    if node.on_skip is None:
        return StepFinished(step.id, skipped=why)
    state = subject.state_for(step)
    try:
        value = node.on_skip(state, why)
        ops, goto = meaning(graph, subject.codec, subject.run.frames[step.frame], step, value, state)
    except Exception as error:
        reason = problem_of(error) if isinstance(error, HoldfastError) else repr(error)
        raise Refused(f"step {step_label(step.id)!r} cannot be passed over: {reason}") from None
    return StepFinished(step.id, ops, goto, skipped=why)


def _has_on_skip(subject: Subject, step: Step) -> bool:
    return "on_skip" in subject.outline_at(step.frame).get("nodes", {}).get(step.node, {})


def modified(subject: Subject, name: str, changes: Sequence[Change], by: str, why: str) -> list[Record]:
    """Return what lets steps that have not begun see other values than the state has."""
    items: dict[str, list[tuple[str, Ops]]] = {}
    for step in _changeable(subject, name, _why_not_modified):
        values, item = (
            subject.new_values(subject.state_for(step), changes),
            {op.key: op for op in step.item},
        )
        others = {key: value for key, value in values.items() if key not in item}
        for key, value in {**values, **_validated(subject, step, others)}.items():
            item[key] = _set(subject, key, value)
        items.setdefault(step.frame, []).append((step.id, tuple(item.values())))
    return [Steered(frame, items=tuple(changed), by=by, why=why) for frame, changed in items.items()]


def _why_not_modified(subject: Subject, step: Step) -> str:
    if step.status in _BEGINS_AGAIN and STILL_IN_DOUBT not in step.notes:
        return ""
    if step.status in (DONE, RUNNING) and (reason := _why_not_skipped(subject, step)):
        return reason
    return f"step {step_label(step.id)!r} has begun, and its arguments may have been used; skip it, or let it go on"


def _validated(subject: Subject, step: Step, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values of keys of the step's state as its schema takes them; refuse unknown keys and wrong types."""
    if subject.graph is None:
        if any(key not in subject.run.frames[step.frame].cells for key in values):
            raise NeedsGraph
        return values
    schema, found = subject.graph_at(step.frame).schema, {}
    try:
        for key, value in values.items():
            validate = schema.channel(key).validate
            found[key] = value if validate is None else validate(value)
    except HoldfastError as error:
        raise Refused(problem_of(error)) from None
    return found


def _set(subject: Subject, key: str, value: Any) -> Op:
    try:
        return make_op(subject.codec, "set", key, value)
    except HoldfastError as error:
        raise Refused(problem_of(error)) from None


# Other steps: beside those that come next, or in their place.


def _inject(subject: Subject, command: RunCommand) -> list[Record]:
    """Run further steps beside those that are about to run, or are running."""
    placed: dict[str, list[Target]] = {}
    for addition in command.additions:
        place, target = _placed(subject, addition, command)
        placed.setdefault(place.path, []).append(target)
    records: list[Record] = []
    for path, targets in placed.items():
        place = subject.run.frames[path]
        _refuse_twins(subject, place, place.active, targets)
        # The last node runs when all else is through: if it is about to run, it waits for these.
        last = subject.outline_at(place.path).get("last")
        drop = tuple(
            step.id for step in place.active.values() if step.node == last and step.status in _NOT_BEGUN
        )
        by, why = command.by, command.reason
        records.append(Steered(path, drop, (), tuple(targets), not command.follow, by=by, why=why))
    return records


def _replan(subject: Subject, command: RunCommand) -> list[Record]:
    """Run these steps instead of all that are not running, and of what would follow those that are."""
    if command.definition is not None:
        return _redefine(subject, command.definition, command.by)
    _refuse_planned(subject)
    by, why, follow = command.by, command.reason, command.follow
    placed = [_placed(subject, addition, command) for addition in command.additions]
    places = {place.path: place for place, _ in placed} or {"": subject.frame(command.frame)}
    if len(places) > 1:
        raise Refused(
            f"one plan is for one graph, and these steps are of {len(places)}; replan one at a time"
        )
    (place,) = places.values()
    outline = subject.outline_at(place.path)
    _refuse_half_done(place, outline)
    targets = [target for _, target in placed]
    fixed = (DONE, RUNNING) if subject.executing else (DONE,)
    replaced = [
        step
        for step in place.active.values()
        if step.status not in fixed and step.id not in subject.run.frames
    ]
    skipped = _skipped_with_result(
        subject, replaced, {target.node for target in targets}, explained("replanned", by, why)
    )
    drop = tuple(step.id for step in replaced if step.id not in skipped)
    kept = {name: step for name, step in place.active.items() if name not in drop}
    is_over = all(step.status == DONE or step.id in skipped for step in kept.values())
    _refuse_twins(subject, place, {} if is_over else kept, targets)
    if not targets and not kept and outline.get("last"):
        targets, follow = [Target(outline["last"])], True
    steered = Steered(place.path, drop, (), tuple(targets), not follow, replan=True, by=by, why=why)
    if not kept or not is_over:
        return [*skipped.values(), steered]
    # All else is finished: what it did shows before the new steps begin.
    ops = [op for step in kept.values() for op in (skipped[step.id].ops if step.id in skipped else step.ops)]
    reduced: list[Op] = []
    if any(op.kind == "reduce" for op in ops):
        schema = subject.graph_at(place.path).schema
        reduced = schema.reduce(subject.codec, advance(place.cells, ops), ops)
    wave = WaveFinished(place.path, tuple(reduced), ())
    if not targets and outline.get("last") not in (None, *(step.node for step in kept.values())):
        targets, follow = [Target(outline["last"])], True
    added = Steered(place.path, add=tuple(targets), one_off=not follow, by=by, why=why)
    return [*skipped.values(), steered._replace(add=()), wave, added]


def _refuse_planned(subject: Subject) -> None:
    """Refuse to add or replace steps where they come from a plan in the state, which would not know of it."""
    planner = subject.outline_at("").get("planner")
    if isinstance(planner, str) and planner.isidentifier():
        raise Refused(
            f"its steps are tasks that a {planner} plans; use inject or replan of the {planner}, with tasks"
        )


def _skipped_with_result(
    subject: Subject, steps: Sequence[Step], again: set[str], why: str
) -> dict[str, StepFinished]:
    """Return the ends of the replaced steps whose nodes have an `on_skip` and do not run again, by step id."""
    found = {}
    for step in steps:
        if _has_on_skip(subject, step) and step.node not in again:
            try:
                found[step.id] = _skipped(subject, step, why)
            except Refused:
                continue
    return found


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
    """Return the nodes that may follow a finished step, as far as an outline tells."""
    if step.goto is not None:
        return [target.node for target in step.goto]
    edges = [edge[1] for edge in outline.get("edges", ()) if edge[0] == step.node]
    routed = [targets for source, targets in outline.get("routes", ()) if source == step.node]
    joined = [target for sources, target in outline.get("joins", ()) if step.node in sources]
    return [*edges, *(target for targets in routed for target in targets), *joined]


def _placed(subject: Subject, addition: StepRequest, command: RunCommand) -> tuple[Frame, Target]:
    """Return the frame and the target of an addition; `outer/inner` is in the frame of `outer`."""
    outer, _, node = addition.node.rpartition("/")
    _refuse_planned(subject)
    if outer and command.frame:
        raise Refused(f"{addition.node!r} names its graph itself; leave the frame out")
    place = subject.frame(outer or command.frame)
    nodes = subject.outline_at(place.path).get("nodes", {})
    if node not in nodes:
        raise Refused(f"there is no node {addition.node!r}{suggestion(node, map(base_name, nodes))}")
    if whole := whole_of(node, nodes):
        raise Refused(f"{node!r} is a part of {whole!r} and does not stand for itself; name that")
    if not command.follow and has_parts(node, nodes):
        raise Refused(f"{node!r} is made of several nodes, which follow each other: inject it with follow")
    item = tuple(_set(subject, change.path[0], subject.decoded(change)) for change in addition.item)
    return place, Target(node, addition.key, item)


def _refuse_twins(
    subject: Subject, place: Frame, active: Mapping[str, Step], targets: Sequence[Target]
) -> None:
    """Refuse items whose key is taken, by one that is under way or by another of these.

    A step of a workflow file has one result, so that it cannot run beside itself.
    """
    config, nodes = subject.run.config, subject.outline_at(place.path).get("nodes", {})
    if config and has_workflow_file(subject.codec.decode(config, lenient=True)):
        known = [whole_of(step.node, nodes) or step.node for step in active.values()]
        for node, _, _ in targets:
            if node in known:
                raise Refused(
                    f"step {node!r} is about to run, or has run beside what is running now, and has one result; "
                    "ask again when that is through"
                )
            known.append(node)
    rounds = {step.node: step.visit for step in active.values() if step.key is not None}
    taken = set(active)
    for node, key, _ in targets:
        if key is None:
            continue
        name = step_id(place.path, node, rounds.get(node, 0), key)
        if name in taken:
            raise Refused(f"node {node!r} has an item with the key {key!r} already; give another key")
        taken.add(name)


# A new definition of the workflow, before anybody has compiled it.

_NO_DEFINITION = "what came with it is not a definition of a workflow"


def _redefine(subject: Subject, definition: Mapping[str, Any], by: str) -> list[Record]:
    """Go on with another definition: its outline, its part of the config, and renamed steps.

    The workflow has to be the same by its name, and have every node that the run still needs.
    """
    run = subject.run
    workflow, outline, names = _read(definition)
    if workflow != run.workflow:
        raise Refused(f"the run is of workflow {run.workflow!r}, and the new definition of {workflow!r}")
    if not any(run.active()):
        raise Refused("nothing of the run is left to do")
    known = list(dict.fromkeys(map(base_name, outline_names(run.outline))))
    for old in names:
        if old not in known:
            raise Refused(f"{old!r} cannot be renamed: the run has no such step{suggestion(old, known)}")
    remap = renamed_nodes(names, run.outline)
    steps, joins = missing_parts(run, outline, remap)
    for step in steps:
        near = suggestion(step.node, outline_at(outline, renamed_path(step.frame, remap)).get("nodes", {}))
        raise Refused(f"the run is to go on with {qualified(step)!r}, which the new definition lacks{near}")
    for target, *_ in joins:
        raise Refused(f"the run waits at the join before {target!r}, which the new definition lacks")
    config = _merged_config(run.config, definition["config"], subject.codec)
    changed = GraphChanged(outline, tuple(remap.items()), config, by)
    results = renamed_keys(run, names, subject.codec)
    return [changed, *(StateEdited(renamed_path(path, remap), ops, by) for path, ops in results)]


def _read(definition: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return the workflow, the outline and the renamed steps of a definition, which anybody may have written."""
    workflow, outline, names = (definition.get(name) for name in ("workflow", "outline", "names"))
    if not isinstance(workflow, str) or not isinstance(outline, dict) or not is_outline(outline):
        raise Refused(f"{_NO_DEFINITION}: it has no workflow's name, or no outline of a graph")
    if not isinstance(definition.get("config"), bytes):
        raise Refused(f"{_NO_DEFINITION}: it has no config")
    if names and not (isinstance(names, dict) and all(isinstance(name, str) for name in names.values())):
        raise Refused(f"{_NO_DEFINITION}: its renamed steps are not names of steps")
    return workflow, outline, dict(names or {})


def _merged_config(own: bytes, given: bytes, codec: Codec) -> bytes:
    """Return the config of a run with that of a definition laid over it."""
    try:
        base, config = codec.decode(own), codec.decode(given)
        if not isinstance(config, Mapping):
            raise Refused(f"{_NO_DEFINITION}: its config is a {type(config).__name__}")
        merged = {**(base if isinstance(base, Mapping) else {}), **config}
        check_config(merged, Remedy(text="give the workflow file again"))
        return codec.encode(merged)
    except CodecError as error:
        raise Refused(f"{_NO_DEFINITION}: {error}") from None


# Annotations: tags, notes and kept checkpoints.

LONGEST_TAG = 200
LONGEST_NOTE = 100_000
MOST_TAGS = 100
"""How many tags one annotation may add or remove."""


def annotation(
    at: int, text: str = "", add: Iterable[str] = (), remove: Iterable[str] = (), keep: bool | None = None
) -> dict[str, Any]:
    """Return an annotation as a command carries it; refuse one that says nothing, or too much."""
    added, removed = _tags(add), _tags(remove)
    text = safe_text(text) if isinstance(text, str) else text
    if not isinstance(text, str) or len(text) > LONGEST_NOTE:
        raise CommandRefused(f"a note is text of at most {LONGEST_NOTE} characters, not {text!r:.80}")
    if both := sorted({*added} & {*removed}):
        raise CommandRefused(f"a tag is either added or removed, not both: {', '.join(both)}")
    if not (text.strip() or added or removed) and keep is None:
        raise CommandRefused("there is nothing to say: give a text, or tags")
    return {"at": at, "text": text, "add": added, "remove": removed, "keep": keep}


def _tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str):
        raise CommandRefused(f"tags are several words, not one text: {tags!r:.80}")
    given = list(tags)
    for tag in given:
        is_word = isinstance(tag, str) and 0 < len(tag) <= LONGEST_TAG and tag.isprintable()
        if not is_word or tag != tag.strip() or "," in tag:
            raise CommandRefused(
                f"a tag is printable text of at most {LONGEST_TAG} characters without commas, not {tag!r:.80}"
            )
    found = list(dict.fromkeys(given))
    if len(found) > MOST_TAGS:
        raise CommandRefused(f"at most {MOST_TAGS} tags at once, not {len(found)}")
    return found


def _annotate(subject: Subject, command: RunCommand) -> list[Record]:
    given: Mapping[str, Any] = command.annotation or {}
    keep = given.get("keep")
    try:
        checked = annotation(
            int(given.get("at", 0)),
            str(given.get("text", "")),
            map(str, given.get("add", ())),
            map(str, given.get("remove", ())),
            None if keep is None else bool(keep),
        )
    except CommandRefused as error:
        raise Refused(problem_of(error)) from None
    add, remove = tuple(checked["add"]), tuple(checked["remove"])
    return [RunAnnotated(checked["at"], checked["text"], add, remove, checked["keep"], command.by)]


def tags_after(info: RunInfo, record: RunAnnotated) -> RunInfo:
    """Return a run's facts after an annotation. Only an annotation of the whole run changes its tags."""
    if record.at or not (record.add or record.remove):
        return info
    left = [tag for tag in info.tags if tag not in record.remove]
    return dataclasses.replace(info, tags=tuple(dict.fromkeys([*left, *record.add])))


_HANDLERS: dict[str, Callable[[Subject, RunCommand], list[Record]]] = {
    **dict.fromkeys(STOPS, lambda subject, command: []),  # The execution itself stops.
    ANSWER: _answer,
    EXTEND: _extend,
    EDIT: _edit,
    SKIP: _skip,
    MODIFY: lambda subject, command: modified(
        subject, command.step, command.changes, command.by, command.reason
    ),
    INJECT: _inject,
    REPLAN: _replan,
    ANNOTATE: _annotate,
}
