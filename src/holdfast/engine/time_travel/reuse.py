"""Reuse of results: a step that another run, or this one earlier, has finished takes that result instead of running."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.engine.decide import qualified
from holdfast.engine.graph_changes import brought_over
from holdfast.engine.settings import Settings
from holdfast.engine.time_travel.checkpoints import find_position
from holdfast.errors import CannotReuse, HoldfastError, MigrationFailed, StateInvalid
from holdfast.graph.fingerprint import same_code
from holdfast.graph.graph import Graph, Node
from holdfast.journal.fold import apply, fold
from holdfast.journal.journal import Journal
from holdfast.journal.records import Reusing, StepFinished
from holdfast.journal.run_state import READY, Frame, RunState, Step, node_of, step_id
from holdfast.state.codec import Codec
from holdfast.state.ops import Cells, Op, Slot, make_op, thaw
from holdfast.state.schema import Reducer, Schema, as_mapping
from holdfast.values import step_label
from holdfast.views.projection import GIVEN, FinishedStep, Projection, node_outline, project

logger = logging.getLogger("holdfast")

_OF_A_FILE = ("workflow_file", "run", "replanned")
"""What the config of a run of a workflow file holds for a resume, and not for its steps."""


class ReusableSteps:
    """The finished steps that a run may be given, and how many it was given."""

    def __init__(
        self, graph: Graph, codec: Codec, run: RunState, run_id: str, past: Projection | None
    ) -> None:
        assert run.reuse is not None
        self._graph, self._codec, self._run, self._run_id = graph, codec, run, run_id
        self._rerun = run.reuse.rerun
        self._again = frozenset(self._rerun or ())
        self._given = {each.step: each for each in run.reuse.given}
        self._known = past.available(run.reuse.after, dict(run.reuse.remap)) if past is not None else {}
        self._outline = graph.outline()
        self._equality = _Equality(codec)
        self.steps: dict[str, None] = {}
        """The steps of this execution that took a result."""
        self.seconds = 0.0
        """How long they took when they ran."""
        self.cost = 0.0

    @classmethod
    def of(
        cls, journal: Journal, graph: Graph, codec: Codec, run: RunState, run_id: str
    ) -> ReusableSteps | None:
        """What a run may be given; `None` if nothing. A source that is gone, or cannot be read, has nothing to give."""
        reuse = run.reuse
        if reuse is None:
            return None
        past = None
        try:
            for info in journal.store.runs(key=reuse.key) if reuse.source else [journal.info(run_id)]:
                past = project(journal, codec, info, reuse.upto, inputs=reuse.rerun is None)
        except HoldfastError as error:
            logger.warning("run %s: nothing is taken over from %s: %s", run_id, reuse.source, error)
        return cls(graph, codec, run, run_id, past) if past is not None or reuse.given else None

    def taken(self, step: Step) -> StepFinished | None:
        """The end of a step that is about to begin, if it need not run."""
        if step.status != READY:
            return None
        if step.id in self._given:
            return self._given_to(step)
        if not self._known:
            return None
        name = step_id(
            step.frame, step.node, step.visit, step.key
        )  # Its own id may be of before it was renamed.
        found = self._known.get(name)
        if found is None or not self._may_take(step, found):
            return None
        del self._known[name]
        self.steps[step.id] = None
        record = found.record
        self.seconds += record.seconds
        self.cost += found.cost
        origin = record.origin or found.info.run
        return StepFinished(step.id, record.ops, record.goto, skipped=record.skipped, origin=origin)

    def _given_to(self, step: Step) -> StepFinished | None:
        """The end of a step whose result a person gave, unless it is called with other arguments than it was."""
        given = self._given[step.id]
        if given.item == step.item:
            return StepFinished(step.id, given.ops, skipped=GIVEN)
        logger.warning(
            "run %s: step %s is called with other arguments than those that its output was given for, and runs",
            *(self._run_id, step_label(step.id)),
        )
        return None

    def promised(self) -> dict[str, FinishedStep]:
        """What the run is given when it comes to it, whatever it looks like then."""
        if self._rerun is None:
            return {}
        return {name: each for name, each in self._known.items() if not {name, node_of(name)} & self._again}

    def _may_take(self, step: Step, found: FinishedStep) -> bool:
        try:
            graph = self._graph.at(step.frame)
        except KeyError:
            return False
        node = graph.nodes.get(step.node)
        if node is None or node.graph is not None:
            return False
        if any(target.node not in graph.nodes for target in found.record.goto or ()):
            return False
        if self._run.frames[step.frame].is_body:
            if step.item != found.item:
                return False  # A result is never given for other arguments.
        elif not graph.schema.is_open and any(op.key not in graph.schema.channels for op in found.record.ops):
            return False
        if self._rerun is not None:
            return not {step.id, qualified(step)} & self._again
        return not found.record.skipped and self._is_same(step, node, found)

    # By content.

    def _is_same(self, step: Step, node: Node, found: FinishedStep) -> bool:
        seen, now = found.inputs, node_outline(self._outline, qualified(step))
        if seen is None or not node.reusable or not _is_same_code(seen.outline, now):
            return False
        schema, cells = self._graph.at(step.frame).schema, self._run.frames[step.frame].cells
        if step.item != found.item or not _fits(schema, found.record.ops):
            return False
        if not all(self._is_valid(schema, op, cells) for op in found.record.ops):
            return False
        frame, wanted = self._run.frames[step.frame], {*node.wants, *node.named}
        if node.wants_graph:
            return False  # It may look at any part of the graph.
        if {"config", "ctx"} & wanted and seen.config != self._run.config:
            raws = (seen.config, self._run.config)
            configs = [self._codec.decode(raw, lenient=True) if raw else {} for raw in raws]
            if len({self._codec.encode(_without_places(config)) for config in configs}) > 1:
                return False
        # A person who answered may have looked at anything.
        saw_all = found.asked or (bool(found.record.origin) and "ctx" in wanted)
        return all(
            self._equality.holds((frame.path, key), frame.cells.get(key), seen.cells.get(key))
            for key in _inputs({} if saw_all else seen.outline, now, frame, seen.cells, step.item)
        )

    def _is_valid(self, schema: Schema, op: Op, cells: Cells) -> bool:
        """Whether a step of this schema that returned what this change holds would leave it as it is."""
        channel = schema.channels.get(op.key)
        if channel is None or channel.validate is None or op.kind == "drop":
            return True
        value, slot = thaw(op.value), cells.get(op.key)
        grows = op.kind == "append" and channel.reducer is None and slot is not None
        if grows and slot is not None:
            value = [*thaw(slot.get()), *value]  # It was the whole list that the step returned.
        try:
            checked = channel.validate(value)
            kept = self._codec.encode(value) if grows else op.raw
            return make_op(self._codec, op.kind, op.key, checked).raw == kept
        except HoldfastError:
            return False


def _without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's config its steps may go by: not its tags, by which people find it, nor where its file is."""
    saved = config.get("workflow_file")
    of_file = _OF_A_FILE if isinstance(saved, Mapping) and "path" in saved else ()
    return {key: value for key, value in config.items() if key != "tags" and key not in of_file}


def _is_same_code(saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if not saved or not now or "graph" in saved:
        return False
    if "version" in saved and "version" in now:
        return bool(saved["version"] == now["version"])
    return same_code(saved["fingerprint"], now["fingerprint"])


def _inputs(
    saved: Mapping[str, Any], now: Mapping[str, Any], frame: Frame, seen: Cells, item: Iterable[Op]
) -> set[str]:
    """The keys that a step may look at: those that its node declares to read, or all; not what its item lays over."""
    declared = (saved.get("reads"), now.get("reads"))
    keys = {*frame.cells, *seen} if None in declared else {key for reads in declared for key in reads or ()}
    return keys - {op.key for op in item}


def _fits(schema: Schema, ops: Iterable[Op]) -> bool:
    """Whether changes are such as steps of this schema make."""
    for op in ops:
        channel = schema.channels.get(op.key)
        reducer = channel.reducer if channel is not None else None
        if reducer is None:
            fits = op.kind in ("set", "append", "drop")
        elif isinstance(reducer, Reducer):
            fits = op.kind == "drop" or (op.kind == reducer.kind and op.limit == reducer.limit)
        else:
            fits = op.kind in ("reduce", "drop")
        if not fits:
            return False
    return True


class _Equality:
    """Tells whether a key holds the same in two runs, without putting together what is made of many changes."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._digests: dict[int, tuple[Slot, bytes]] = {}
        self._apart: set[tuple[str, str]] = set()
        """The places that are known to have gone different ways."""

    def holds(self, place: tuple[str, str], own: Slot | None, other: Slot | None) -> bool:
        """Whether two slots hold the same value; `place` is the frame and the key."""
        if own is None or other is None:
            return own is other
        wanted = self._digest(other)
        if self._digest(own) == wanted:
            self._apart.discard(place)
            return True
        grows = own._prev is not None and other._prev is not None
        if grows and place in self._apart:
            return False  # What grows on different ground stays different, as good as always.
        if own.encoded(self._codec) != other.encoded(self._codec):
            self._apart.add(place)
            return False
        self._digests[id(own)] = own, wanted
        return True

    def _digest(self, slot: Slot) -> bytes:
        """The digest of a value, or, where it is made of changes, of all of them."""
        chain: list[tuple[Slot, Op]] = []
        found: bytes | None = None
        current: Slot | None = slot
        while current is not None:
            known = self._digests.get(id(current))
            if known is not None:
                found = known[1]
                break
            prev, op = current._prev, current._op
            if op is None or op.kind == "set":
                found = _hashed(b"value", current.encoded(self._codec))
                self._digests[id(current)] = current, found
                break
            chain.append((current, op))
            current = prev
        digest = found or b""
        for each, op in reversed(chain):
            digest = _hashed(f"{op.kind} {op.limit}".encode(), digest, op.raw)
            self._digests[id(each)] = each, digest
        return digest


def _hashed(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\n".join(parts), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class ReuseSource:
    """A run whose finished steps a new one takes over where their code and their inputs are the same."""

    settings: Settings
    past: Projection

    @classmethod
    def find(cls, settings: Settings, target: str) -> ReuseSource:
        """Return the source that a name stands for; raise `CannotReuse` if it is of another workflow."""
        if not isinstance(target, str):
            raise StateInvalid(
                f"reuse= names a run by its id, a checkpoint or a workflow's name, not {target!r:.80}"
            )
        position = find_position(settings.journal.store, target)
        if position.info.workflow != settings.graph.name:
            raise CannotReuse(
                f"run {position.info.run!r} is of workflow {position.info.workflow!r}, and this one is "
                f"{settings.graph.name!r}; only steps of the same workflow can be taken over"
            )
        refuse_unconfirmed(settings.journal, position.info, settings.codec)
        return cls(settings, project(settings.journal, settings.codec, position.info, position.seq))

    @property
    def reusing(self) -> Reusing:
        """What the new run records."""
        return Reusing(self.past.info.run, self.past.info.key, 0, self.past.seq, None)

    def input(self, given: Any) -> Mapping[str, Any]:
        """The input of the new run: as given, or else that of the source."""
        if given is not None:
            return as_mapping(given, "the input")
        if self.past.begun is None:
            raise CannotReuse(
                f"the inputs of run {self.past.info.run!r} are no longer stored; give the new run its own"
            )
        graph, codec, name = self.settings.graph, self.settings.codec, self.past.info.run
        run = fold([(self.past.begun, 0.0)])
        try:
            for record in brought_over(name, run, graph, codec):
                apply(run, record, 0.0)
        except MigrationFailed as error:
            raise CannotReuse(
                f"the inputs of run {name!r} do not fit the graph at hand: {error}; give the new run its own"
            ) from error
        schema = graph.schema
        return {
            key: slot.get()
            for key, slot in run.root.cells.items()
            if schema.is_open or key in schema.channels
        }

    def config(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The config of the new run: that of the source, with what is given laid over it; that of a file is whole."""
        saved = self.past.run.config if "workflow_file" not in (given or {}) else b""
        return {**(self.settings.codec.decode(saved) if saved else {}), **(given or {})}
