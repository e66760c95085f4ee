"""What a run has finished, and with which inputs, from its journal and those of the runs that it was forked from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from holdfast.data.codec import Codec
from holdfast.data.ops import Cells, Op
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal
from holdfast.journal.records import (
    Forked,
    Record,
    Reset,
    Reusing,
    RunStarted,
    Spent,
    StepFinished,
    StepStarted,
    WaveFinished,
)
from holdfast.journal.run_state import RunState, node_of, renamed_path
from holdfast.stores.base import RunInfo
from holdfast.values import START


class Seen(NamedTuple):
    """What a step was given: the state of its graph, the run's config, and how its graph described it then."""

    cells: Cells
    config: bytes
    outline: Mapping[str, Any]


class Finish(NamedTuple):
    """The end of a step: in which run, at which entry, with which changes; and what it was given and spent."""

    info: RunInfo
    seq: int
    record: StepFinished
    item: tuple[Op, ...]
    seen: Seen | None
    cost: float
    began: int = 0
    """When it began and ended, counted in records: what began after the end of another may be because of it."""
    ended: int = 0
    asked: bool = False
    """Whether somebody answered it."""

    @property
    def step(self) -> str:
        """The step's id."""
        return self.record.step

    @property
    def node(self) -> str:
        """The step's node, with those that it is nested in."""
        return node_of(self.record.step)


@dataclass(slots=True)
class Past:
    """What is known of a run up to some entry: each step's last finish, in the order in which they came."""

    info: RunInfo
    finishes: dict[str, Finish] = field(default_factory=dict)
    spare: dict[str, Finish] = field(default_factory=dict)
    """What the run had finished before it was taken back, is to be used again, and has not been come to since."""
    gone: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """By run: the entries that it was taken back behind, those between the first and the second of each pair."""
    followed: dict[str, set[str]] = field(default_factory=dict)
    """The nodes that were seen to follow each node."""
    forgotten: tuple[str, ...] = ()
    """The nodes of steps of which only this is known: they finished before what is stored."""
    begun: RunStarted | None = None
    seq: int = 0
    """The last entry that was read."""
    clock: int = 0
    """How many records were read, those of the runs that it was forked from included."""
    run: RunState = field(default_factory=RunState)

    def renamed(self, remap: Mapping[str, str]) -> Past:
        """The same with the steps known by the names that their nodes have now."""

        def moved(finishes: dict[str, Finish]) -> dict[str, Finish]:
            names = {name: renamed_path(name, remap) for name in finishes}
            return {
                names[name]: each._replace(record=each.record._replace(step=names[name]))
                for name, each in finishes.items()
            }

        followed = {
            renamed_node(name, remap): {renamed_node(each, remap) for each in names}
            for name, names in self.followed.items()
        }
        return replace(self, finishes=moved(self.finishes), spare=moved(self.spare), followed=followed)

    def written(self) -> dict[str, set[str]]:
        """The keys that the finished steps of each node have written."""
        found: dict[str, set[str]] = {}
        for finish in self.finishes.values():
            found.setdefault(finish.node, set()).update(op.key for op in finish.record.ops)
        return found


def past_of(
    journal: Journal, codec: Codec, info: RunInfo, upto: int | None = None, *, inputs: bool = False
) -> Past:
    """The past of a run, up to and with entry `upto`; with `inputs` also what its steps were given."""
    start, history = journal.history(info, codec, upto)
    past = Past(info, run=start)
    if start.frames:
        past.forgotten = tuple(start.path)
    reader = _Reader(journal, codec, past, inputs)
    for entry, found in history:
        for record in found:
            reader.take(record, entry.seq)
            apply(past.run, record, entry.at)
        past.seq = entry.seq
    return past


class _Reader:
    """Learns from one record after the other what was finished."""

    def __init__(self, journal: Journal, codec: Codec, past: Past, inputs: bool) -> None:
        self._journal, self._codec, self._past, self._inputs = journal, codec, past, inputs
        self._seen: dict[str, Seen] = {}
        self._costs: dict[str, float] = {}
        self._began: dict[str, int] = {}
        self._put_back: dict[str, Finish] = {}
        """What the run was taken back behind, until it says what of it is used again."""

    def take(self, record: Record, seq: int) -> None:
        """Learn from a record that is about to be folded."""
        self._past.clock += 1
        match record:
            case StepStarted():
                self._began[record.step] = self._past.clock
                self._look(record.step)
            case Spent():
                self._costs[record.step] = self._costs.get(record.step, 0.0) + (record.cost or 0.0)
            case StepFinished() if not record.promoted:
                self._finish(record, seq)
            case WaveFinished():
                self._follow(record)
            case RunStarted():
                self._past.begun = record
            case Forked():
                self._fork(record)
            case Reset():
                self._reset(record, seq)
            case Reusing():
                self._reuse(record)

    def _look(self, step: str) -> None:
        if self._inputs:
            run = self._past.run
            frame = run.frames[run.step(step).frame]
            self._seen[step] = Seen(frame.cells, run.config, node_outline(run.outline, node_of(step)))

    def _finish(self, record: StepFinished, seq: int) -> None:
        past, name = self._past, record.step
        if name.rpartition("/")[2].startswith(START):
            return
        if name not in self._seen:
            self._look(name)
        past.finishes.pop(name, None)
        past.spare.pop(name, None)
        step, seen, cost = past.run.step(name), self._seen.pop(name, None), self._costs.pop(name, 0.0)
        began, asked = self._began.pop(name, past.clock), bool(step.answers)
        past.finishes[name] = Finish(past.info, seq, record, step.item, seen, cost, began, past.clock, asked)

    def _follow(self, record: WaveFinished) -> None:
        frame = self._past.run.frames[record.frame]
        names = frame.active if record.steps is None else record.steps
        prefix = f"{node_of(record.frame)}/" if record.frame else ""
        for name in names:
            known = self._past.followed.setdefault(node_of(name), set())
            known.update(prefix + target.node for target in record.next)

    def _fork(self, record: Forked) -> None:
        past = self._past
        parent = self._journal.store.runs(key=record.key) if record.key else []
        if parent:
            self._take_over(past_of(self._journal, self._codec, parent[0], record.seq, inputs=self._inputs))
        else:
            past.forgotten = tuple(record.run.path)

    def _reset(self, record: Reset, seq: int) -> None:
        past = self._past
        before, is_own = past.finishes, record.source == past.info.run
        past.gone.setdefault(past.info.key, []).append((record.seq if is_own else 0, seq))
        if is_own:
            kept = {name: each for name, each in before.items() if not _is_after(each, past.info, record.seq)}
            past.finishes = kept
        else:
            past.finishes, source = {}, self._journal.store.runs(run=record.source)
            if source:
                known = past_of(self._journal, self._codec, source[0], record.seq, inputs=self._inputs)
                self._take_over(known)
        put_back = {**past.spare, **before}
        self._put_back = {name: each for name, each in put_back.items() if name not in past.finishes}
        past.spare, self._seen, self._costs, self._began = {}, {}, {}, {}

    def _reuse(self, record: Reusing) -> None:
        if record.key == self._past.info.key and record.rerun is not None:
            again, pool = set(record.rerun), {**self._past.spare, **self._put_back}
            self._past.spare = {name: each for name, each in pool.items() if not {name, each.node} & again}
        self._put_back = {}

    def _take_over(self, other: Past) -> None:
        past = self._past
        past.finishes, past.followed = other.finishes, other.followed
        past.clock = max(past.clock, other.clock)
        past.forgotten, past.begun = other.forgotten, past.begun or other.begun
        past.gone |= {key: places for key, places in other.gone.items() if key != past.info.key}


def _is_after(finish: Finish, info: RunInfo, seq: int) -> bool:
    return finish.info.key == info.key and finish.seq > seq


def renamed_node(node: str, remap: Mapping[str, str]) -> str:
    """What a node, `outer/inner` if it is nested, is called after some were renamed."""
    if not remap:
        return node
    return node_of(renamed_path("/".join(f"{part}#1" for part in node.split("/")), remap))


def node_outline(outline: Mapping[str, Any], node: str) -> Mapping[str, Any]:
    """What an outline says of a node, `outer/inner` if it is nested; nothing if it does not know it."""
    found: Mapping[str, Any] = {"graph": outline}
    for part in node.split("/"):
        found = found.get("graph", {}).get("nodes", {}).get(part, {})
    return found
