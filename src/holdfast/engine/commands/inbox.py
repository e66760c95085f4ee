"""What the outside may ask of a run: messages in its inbox."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ormsgpack

from holdfast import clock
from holdfast.engine.decide import qualified
from holdfast.errors import CodecError, CorruptJournal, HoldfastError
from holdfast.graph.graph import Graph, base_name, has_parts, outline_at, outline_names, whole_of
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import DONE, Frame, RunState, Step
from holdfast.journal.wire import safe_text
from holdfast.state.codec import Codec
from holdfast.state.ops import advance, thaw
from holdfast.state.schema import Schema
from holdfast.state.state import State
from holdfast.stores.base import Message, RunInfo
from holdfast.suggestions import suggestion
from holdfast.values import START, readable_step

CANCEL, PAUSE, ANSWER = "cancel", "pause", "answer"
EDIT, SKIP, MODIFY, INJECT, REPLAN = "edit", "skip", "modify", "inject", "replan"
REMARK = "remark"
"""Says something of the run; the only command that a completed run still takes."""

UNREADABLE = "unreadable"
"""The command of a message that is not what was sent, or is sealed with a key that is not here."""

STOPS = (CANCEL, PAUSE)
OF_WHAT_IS_NEXT = (SKIP, MODIFY, INJECT, REPLAN)
"""Commands that speak of the steps that come next, so that what is finished has to lead on before."""

STALE = "it was meant for an earlier drive of this run"
LATE = "the run is about to go on with another definition; ask again when it does"


class Change(NamedTuple):
    """Another value at a place of the state: `("inputs", "topic")` is inside `inputs`. `value` is encoded."""

    path: tuple[str, ...]
    value: bytes


class Addition(NamedTuple):
    """Another step: a node, and what a `Send` to it would say. The values of `item` are encoded."""

    node: str
    key: str | None = None
    item: tuple[Change, ...] = ()


class Wish(NamedTuple):
    """One message: a command, and what belongs to it. `value` is an encoded answer to `pause`."""

    command: str
    reason: str = ""
    pause: str = ""
    value: bytes = b""
    by: str = ""
    refused: str = ""
    """Why it is not obeyed; nothing that a message itself could say."""
    step: str = ""
    """The step, or the node, that is meant."""
    changes: tuple[Change, ...] = ()
    additions: tuple[Addition, ...] = ()
    frame: str = ""
    follow: bool = False
    """Whether what usually follows the additions follows them."""
    definition: Mapping[str, Any] | None = None
    """Of a workflow that the run is to go on with: its name, its outline, its part of the config, renamed steps."""

    remark: Mapping[str, Any] | None = None
    """What is said of the run, or of one of its checkpoints: at, text, add, remove, keep."""

    @property
    def redefines(self) -> bool:
        """Whether the run is to go on with another definition of its workflow."""
        return self.command == REPLAN and self.definition is not None


def write_message(wish: Wish) -> bytes:
    """A message as bytes."""
    message = _safe({key: value for key, value in wish._asdict().items() if value})
    body = ormsgpack.packb(message)
    return _HEAD + _digest(body) + body


_HEAD, _DIGEST_BYTES = b"\x01", 8
"""What the first versions wrote had no checksum, and begins with the byte of a MessagePack map."""


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _safe(value: Any) -> Any:
    """A value as MessagePack can hold it: somebody at a terminal may type bytes that are no text."""
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, Mapping):
        return {_safe(key): _safe(item) for key, item in value.items()}
    return [_safe(item) for item in value] if isinstance(value, (list, tuple)) else value


def read_message(body: bytes) -> Wish:
    """A message; what cannot be read becomes an unknown command."""
    if body[:1] == _HEAD:
        digest, body = body[1 : 1 + _DIGEST_BYTES], body[1 + _DIGEST_BYTES :]
        if digest != _digest(body):
            return Wish(UNREADABLE)
    try:
        return _wish(ormsgpack.unpackb(body))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Wish(UNREADABLE)


def open_message(journal: Journal, info: RunInfo, message: Message, *, sealed: bool) -> Wish:
    """A stored message, as `read_message` reads it; one that is encrypted needs the journal's key.

    A run that is `sealed` takes no message that is not. What is wrong with one is the reason for which it is refused.
    """
    try:
        return read_message(journal.bodies(info).open_message(message, sealed=sealed))
    except CodecError:
        return Wish(UNREADABLE)
    except CorruptJournal as error:
        return Wish(UNREADABLE, refused=str(error))


def _wish(message: Mapping[str, Any]) -> Wish:
    value = message.get("value", b"")
    definition, remark = message.get("definition"), message.get("remark")
    return Wish(
        command=str(message["command"]),
        reason=str(message.get("reason", "")),
        pause=str(message.get("pause", "")),
        value=value if isinstance(value, bytes) else b"",
        by=str(message.get("by", "")),
        step=str(message.get("step", "")),
        changes=_changes(message.get("changes", ())),
        additions=tuple(_addition(*wire) for wire in message.get("additions", ())),
        frame=str(message.get("frame", "")),
        follow=message.get("follow") is True,
        definition=definition if isinstance(definition, dict) else None,
        remark=remark if isinstance(remark, dict) else None,
    )


def _changes(wires: Sequence[Any]) -> tuple[Change, ...]:
    changes = tuple(Change(tuple(map(str, path)), value) for path, value in wires)
    if not all(change.path and isinstance(change.value, bytes) for change in changes):
        raise ValueError("a change of nothing, or to what is no stored value")
    return changes


def _addition(node: Any, key: Any, item: Sequence[Any]) -> Addition:
    return Addition(str(node), None if key is None else str(key), _changes(item))


# Which steps and frames of a run somebody means by a name; what is not there is refused with what is.


class Refused(Exception):
    """A command cannot be obeyed; the text says why."""


def meant_steps(run: RunState, name: str) -> list[Step]:
    """The steps that are under way or about to run which a step id or a node's name means, `outer/inner` if nested.

    An item of a for-each is `node[key]`; helper nodes go by the name of the step that they belong to.
    """
    active = [step for step in run.active() if step.node != START]
    found = [step for step in active if step.id == name] or [
        step for step in active if name in _names_of_step(step)
    ]
    if not found:
        raise Refused(_absent(run, active, name))
    return found


def _names_of_step(step: Step) -> set[str]:
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


# What a command is decided on: the run as it stands, its graph if that is at hand, and values on their way.


logger = logging.getLogger("holdfast")


class NeedsGraph(Exception):
    """Only whoever has the run's graph can do this."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A run that is asked for something. `driven` says that its running steps are really running."""

    run_id: str
    run: RunState
    codec: Codec
    graph: Graph | None
    driven: bool

    def graph_at(self, path: str) -> Graph:
        """The (sub-)graph of a frame."""
        if self.graph is None:
            raise NeedsGraph
        try:
            return self.graph.at(path)
        except KeyError:
            raise NeedsGraph from None

    def outline_at(self, path: str) -> Mapping[str, Any]:
        """The outline of the (sub-)graph of a frame."""
        whole = self.run.outline
        if not whole and self.graph is not None:
            whole = self.graph.outline()
        return outline_at(whole, path)

    def state(self, frame: Frame) -> State:
        """The state of a frame."""
        return State.view(frame.cells, self.codec, self.run_id, "", frame.last_node, clock.time())

    def state_for(self, step: Step) -> State:
        """The state as a step sees it."""
        state = self.state(self.run.frames[step.frame])
        return state.overlaid(advance({}, step.item)) if step.item else state

    def decoded(self, change: Change) -> Any:
        """The value of a change."""
        try:
            return self.codec.decode(change.value)
        except HoldfastError as error:
            raise Refused(f"{'.'.join(change.path)}: {error}") from None

    def settled(self, state: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
        """The whole new values of the keys that changes are made to or inside of."""
        result: dict[str, Any] = {}
        for change in changes:
            key, *inside = change.path
            if not inside:
                result[key] = self.decoded(change)
                continue
            if key not in result:
                if key not in state:
                    raise Refused(f"the state has no {key!r}{suggestion(key, state)}")
                result[key] = thaw(state[key])
            _put(result[key], inside, self.decoded(change), key)
        return result


def _put(whole: Any, path: list[str], value: Any, place: str) -> None:
    for part in path[:-1]:
        if isinstance(whole, dict) and part not in whole:
            raise Refused(f"{place!r} has no {part!r}{suggestion(part, map(str, whole))}")
        whole, place = (whole[part] if isinstance(whole, dict) else None), f"{place}.{part}"
    if not isinstance(whole, dict):
        raise Refused(f"{place!r} has no parts; change it as a whole")
    whole[path[-1]] = value


def checked(schema: Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a schema takes them; undeclared keys and wrong types are refused."""
    try:
        found = {}
        for key, value in values.items():
            validate = schema.channel(key).validate
            found[key] = value if validate is None else validate(value)
        return found
    except HoldfastError as error:
        raise Refused(str(error)) from None


def warn_of_decided_route(ground: Ground) -> None:
    """Warn after an edit that the way on was chosen before it, and say how to have it chosen again."""
    if ground.graph is not None and (note := _decided_route(ground.graph, ground.run)):
        logger.warning("run %s: %s", ground.run_id, note)


def _decided_route(graph: Graph, run: RunState) -> str:
    node = run.root.last_node or START
    chosen = [step.node for step in run.root.active.values() if step.status != DONE]
    edges = graph.edges_from.get(node, ())
    if not chosen or (node not in graph.route_from and all(edge.when is None for edge in edges)):
        return ""
    if node == START:
        return (
            f"the first nodes were chosen before this edit and are not chosen again: next is {_quoted_names(chosen)}; "
            "a new run with the edited values as its input has them chosen"
        )
    if node not in graph.nodes or whole_of(node, graph.nodes) or has_parts(node, graph.nodes):
        return ""
    return (
        f"the way on from {node!r} was chosen before this edit and is not chosen again: next is "
        f"{_quoted_names(chosen)}; a fork with as_node={node!r} has it chosen by the edited state"
    )


def _quoted_names(nodes: Iterable[str]) -> str:
    return ", ".join(repr(base_name(name)) for name in dict.fromkeys(nodes))
