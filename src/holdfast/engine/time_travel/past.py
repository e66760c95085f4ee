"""What a run has finished, and with which inputs, from its journal and those of the runs that it was forked from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from holdfast.graph.graph import Graph
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal
from holdfast.journal.records import (
    Forked,
    Record,
    Reset,
    Reusing,
    RunStarted,
    Spent,
    StateEdited,
    Steered,
    StepFinished,
    StepStarted,
    WaveFinished,
)
from holdfast.journal.run_state import RunState, node_of, renamed_path
from holdfast.state.codec import Codec
from holdfast.state.ops import Cells, Op
from holdfast.stores.base import RunInfo
from holdfast.values import END, START

GIVEN = "its result was given"
"""How it begins why a step was passed over whose result somebody said."""


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
    outline: Mapping[str, Any] = {}
    """The graph that it was done with."""
    added: int = 0
    """The entry at which somebody had the run come to it; 0 if it came to it by itself."""

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
    reach: dict[bytes, int] = field(default_factory=dict)
    """By run that it was forked from, directly or not: up to which entry what that one did is its own past."""
    forgotten: tuple[str, ...] = ()
    """The nodes of steps of which only this is known: they finished before what is stored."""
    lost: str = ""
    """Why no more is known of them, in words."""
    begun: RunStarted | None = None
    seq: int = 0
    """The last entry that was read."""
    clock: int = 0
    """How many records were read, those of the runs that it was forked from included."""
    run: RunState = field(default_factory=RunState)

    def renamed(self, remap: Mapping[str, str]) -> Past:
        """The same with the steps known by the names that their nodes have now."""
        followed = {
            renamed_node(name, remap): {renamed_node(each, remap) for each in names}
            for name, names in self.followed.items()
        }
        return replace(
            self, finishes=_moved(self.finishes, remap), spare=_moved(self.spare, remap), followed=followed
        )

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
        past.forgotten, past.lost = tuple(start.path), f"run {info.run!r} was pruned"
    reader = _Reader(journal, codec, past, inputs)
    for entry, found in history:
        reader.begin(entry.seq if start.frames else 0)
        for record in found:
            reader.take(record, entry.seq)
            apply(past.run, record, entry.at)
            reader.taken(record, entry.seq)
        past.seq = entry.seq
    return past


class _Era(NamedTuple):
    """What was known when a run had just been set to a place, and what it finished since then."""

    seq: int
    past: Past
    since: list[tuple[int, Finish | tuple[str, set[str]]]]

    def at(self, seq: int) -> Past:
        """What was known at a later entry, before the next era."""
        found = _copy(self.past)
        for _, what in (each for each in self.since if each[0] <= seq):
            if isinstance(what, Finish):
                found.finishes.pop(what.step, None)
                found.spare.pop(what.step, None)
                found.finishes[what.step] = what
            else:
                found.followed.setdefault(what[0], set()).update(what[1])
        return found


def _copy(past: Past) -> Past:
    """The same, to be changed."""
    return replace(
        past,
        finishes=dict(past.finishes),
        spare=dict(past.spare),
        gone=dict(past.gone),
        followed={node: set(names) for node, names in past.followed.items()},
        reach=dict(past.reach),
    )


class _Reader:
    """Learns from one record after the other what was finished."""

    def __init__(self, journal: Journal, codec: Codec, past: Past, inputs: bool) -> None:
        self._journal, self._codec, self._past, self._inputs = journal, codec, past, inputs
        self._seen: dict[str, Seen] = {}
        self._costs: dict[str, float] = {}
        self._began: dict[str, int] = {}
        self._put_back: dict[str, Finish] | None = None
        """What the run was just taken back behind, until it says what of it is used again."""
        self._eras: list[_Era] = []
        self._edit: StateEdited | None = None
        """The change of the state that was just made from outside, for it may be what a step is to have returned."""
        self._added: dict[str, int] = {}
        """By step that somebody had the run come to, the entry."""

    def taken(self, record: Record, seq: int) -> None:
        """Learn from a record that was folded."""
        if isinstance(record, StateEdited):
            self._edit = record
        elif isinstance(record, Steered):
            steps = self._past.run.frames[record.frame].active
            new = list(steps)[len(steps) - len(record.add) :] if not record.anew else ()
            self._added |= dict.fromkeys(new, seq)
        else:
            self._edit = None

    def begin(self, seq: int) -> None:
        """Say from which entry on all is read, if that is not known."""
        if not self._eras:
            self._remember(seq)

    def _remember(self, seq: int) -> None:
        self._eras.append(_Era(seq, _copy(self._past), []))

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
                self._follow(record, seq)
            case RunStarted():
                self._past.begun = record
            case Forked():
                self._fork(record)
                self._remember(seq)
            case Reset():
                self._reset(record, seq)
                self._remember(seq)
            case Reusing():
                self._reuse(record)
                self._remember(seq)

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
        before = past.spare.pop(name, None)
        step, seen, cost = past.run.step(name), self._seen.pop(name, None), self._costs.pop(name, 0.0)
        began, asked = self._began.pop(name, past.clock), bool(step.answers)
        outline, added = self._made_with(record, before), self._added.pop(name, 0)
        if self._edit is not None and record.skipped.startswith(GIVEN) and not record.ops:
            record = record._replace(ops=self._edit.ops)
        found = Finish(
            past.info, seq, record, step.item, seen, cost, began, past.clock, asked, outline, added
        )
        past.finishes[name] = found
        self._eras[-1].since.append((seq, found))

    def _made_with(self, record: StepFinished, before: Finish | None) -> Mapping[str, Any]:
        """The graph that a result comes from: of one that was taken over, that of the step that ran."""
        if record.origin and before is not None:
            return before.outline
        return self._past.run.outline

    def _follow(self, record: WaveFinished, seq: int) -> None:
        frame = self._past.run.frames[record.frame]
        names = frame.active if record.steps is None else record.steps
        prefix = f"{node_of(record.frame)}/" if record.frame else ""
        for name in names:
            after = {prefix + target.node for target in record.next}
            self._past.followed.setdefault(node_of(name), set()).update(after)
            self._eras[-1].since.append((seq, (node_of(name), after)))

    def _fork(self, record: Forked) -> None:
        past = self._past
        parent = self._journal.store.runs(key=record.key) if record.key else []
        if parent:
            self._take_over(past_of(self._journal, self._codec, parent[0], record.seq, inputs=self._inputs))
        else:
            past.forgotten = tuple(record.run.path)
            past.lost = f"run {record.parent!r}, which run {past.info.run!r} was forked from, is gone"

    def _reset(self, record: Reset, seq: int) -> None:
        past, own = self._past, self._past.info.key
        before = {**past.spare, **past.finishes}
        if record.is_of(past.info.run):
            known = next((era.at(record.seq) for era in self._eras[::-1] if era.seq <= record.seq), None)
            point = record.seq
        else:
            known = self._elsewhere(record)
            point = known.reach.get(own, 0) if known is not None else 0
        if known is None:
            name = record.source or past.info.run
            lost = f"what run {name!r} did up to its entry {record.seq} is no longer stored"
            known = Past(past.info, forgotten=tuple(record.run.path), lost=lost, gone=dict(past.gone))
        gone = [*known.gone.get(own, ()), (point, seq)]
        self._take_over(known)
        past.spare, past.gone[own] = dict(known.spare), gone
        self._put_back = {name: each for name, each in before.items() if name not in past.finishes}
        self._seen, self._costs, self._began, self._added = {}, {}, {}, {}

    def _elsewhere(self, record: Reset) -> Past | None:
        """The past of the run whose place this one took, up to there; `None` if it is not all there any more."""
        store = self._journal.store
        for info in store.runs(key=record.key) if record.key else store.runs(run=record.source):
            known = past_of(self._journal, self._codec, info, record.seq, inputs=self._inputs)
            if known.seq == record.seq:
                return known
        return None

    def _reuse(self, record: Reusing) -> None:
        past = self._past
        if record.rerun is not None:
            again, pool = set(record.rerun), self._pool(record)
            past.spare = {name: each for name, each in pool.items() if not {name, node_of(name)} & again}
        self._put_back = None

    def _pool(self, record: Reusing) -> dict[str, Finish]:
        """What was finished, by this run earlier or by another, and may be used again."""
        past, remap, found = self._past, dict(record.remap), dict[str, Finish]()
        if not record.source or record.key == past.info.key:
            found = _moved(past.spare if self._put_back is None else self._put_back, remap)
        else:
            for info in self._journal.store.runs(key=record.key):
                source = past_of(self._journal, self._codec, info, record.upto, inputs=self._inputs)
                found = available(source, record.after, remap)
        return {name: each for name, each in found.items() if name not in past.finishes}

    def _take_over(self, other: Past) -> None:
        past = self._past
        past.finishes, past.followed = other.finishes, other.followed
        past.clock = max(past.clock, other.clock)
        past.forgotten, past.lost, past.begun = other.forgotten, other.lost, past.begun or other.begun
        past.gone, past.reach = dict(other.gone), dict(other.reach)
        if other.info.key != past.info.key:
            past.reach[other.info.key] = other.seq


def available(past: Past, after: int, remap: Mapping[str, str]) -> dict[str, Finish]:
    """What can be taken over: with `after`, of what is not put aside only what the run finished after that entry."""
    own, finishes = past.info.key, past.finishes.items()
    late = {name: each for name, each in finishes if not after or (each.info.key == own and each.seq > after)}
    return _moved({**past.spare, **late}, remap)


def _moved(finishes: dict[str, Finish], remap: Mapping[str, str]) -> dict[str, Finish]:
    """Steps by the names that they have after nodes were renamed."""
    if not remap:
        return finishes
    names = {name: renamed_path(name, remap) for name in finishes}
    return {
        names[name]: each._replace(record=each.record._replace(step=names[name]))
        for name, each in finishes.items()
    }


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


# The cone of a change: which nodes have to run again when others do.


Ways = dict[str, set[str]]
"""The nodes that each node leads to, `START` included; in a sub-graph both are `outer/inner`."""


def cone(
    graph: Graph,
    seeds: Mapping[str, str],
    followed: Mapping[str, Collection[str]] | None = None,
    written: Mapping[str, Collection[str]] | None = None,
) -> dict[str, str]:
    """The nodes that are affected if those of `seeds` are, each with the reason in words.

    These are the seeds and all that comes after them in the graph; a sub-graph is affected as a whole by what comes
    before it, but a change inside of it affects only what follows there, and what follows the sub-graph. `followed`
    is what has followed what, for routing functions that do not say where they lead. `written` are the keys that
    the nodes have written: whoever declares to read one of an affected node is affected, too.
    """
    leads = ways(graph, followed or {})
    found = {name: reason for name, reason in seeds.items() if _exists(graph, name)}
    root, todo = {name: name for name in found}, list(found)
    while todo:
        while todo:
            name = todo.pop(0)
            if root[name] == name:
                found |= {inner: f"inside of {name!r}" for inner in inside(graph, name) if inner not in found}
            for other in _following(graph, leads, name):
                if other not in found:
                    found[other], root[other] = f"downstream of {root[name]!r}", root[name]
                    todo.append(other)
        todo = list(_readers(graph, found, written or {}))
        root |= {name: name for name in todo}
    order = {name: place for place, name in enumerate(all_nodes(graph))}
    return dict(sorted(found.items(), key=lambda pair: order[pair[0]]))


def ways(graph: Graph, followed: Mapping[str, Collection[str]], prefix: str = "") -> Ways:
    """What may follow each node of a graph and of its sub-graphs."""
    found: Ways = {prefix + name: set() for name in (START, *graph.nodes)}

    def note(source: str, *targets: str) -> None:
        found[prefix + source].update(prefix + target for target in targets if target != END)

    for edge in graph.edges:
        note(edge.source, edge.target)
    for join in graph.joins:
        for source in join.sources:
            note(source, join.target)
    for node in graph.nodes.values():
        note(node.name, *node.goto)
    for route in graph.routes:
        if route.mapping is not None:
            note(route.source, *route.mapping.values())
        else:
            found[prefix + route.source].update(followed.get(prefix + route.source, ()))
    for route in graph.routes:
        if route.mapping is None:
            found[prefix + route.source] |= _unreached(graph, found, prefix)
    for name in graph.nodes:
        if graph.last is not None and name != graph.last:
            note(name, graph.last)
        if (inner := graph.nodes[name].graph) is not None:
            found |= ways(inner, followed, f"{prefix}{name}/")
    return found


def leads_to(leads: Ways, name: str) -> set[str]:
    """The nodes, `START` included, after which a node may come directly."""
    return {source for source, targets in leads.items() if name in targets}


def all_nodes(graph: Graph, prefix: str = "") -> Iterator[str]:
    """The names of all nodes, those of sub-graphs after their own."""
    for name, node in graph.nodes.items():
        yield prefix + name
        if node.graph is not None:
            yield from all_nodes(node.graph, f"{prefix}{name}/")


def _unreached(graph: Graph, found: Ways, prefix: str) -> set[str]:
    """The nodes to which only a routing function that does not say so can lead."""
    reached = {target for targets in found.values() for target in targets}
    return {prefix + name for name in graph.nodes if prefix + name not in reached and name != graph.last}


def _exists(graph: Graph, name: str) -> bool:
    *outer, own = name.split("/")
    for part in outer:
        node = graph.nodes.get(part)
        if node is None or node.graph is None:
            return False
        graph = node.graph
    return own in graph.nodes


def _following(graph: Graph, leads: Ways, name: str) -> Iterator[str]:
    """What comes directly after a node, or after a sub-graph that it is in, with all that is inside of that."""
    place = name
    while place:
        for other in sorted(leads[place]):
            yield other
            yield from inside(graph, other)
        place = place.rpartition("/")[0]


def inside(graph: Graph, name: str) -> Iterator[str]:
    """The nodes of the sub-graph that a node is; none if it is a function."""
    node = None
    for part in name.split("/"):
        node = graph.nodes[part]
        graph = node.graph if node.graph is not None else graph
    if node is not None and node.graph is not None:
        yield from all_nodes(node.graph, f"{name}/")


def _readers(
    graph: Graph, found: dict[str, str], written: Mapping[str, Collection[str]], prefix: str = ""
) -> Iterator[str]:
    """The nodes that are affected only because of what they declare to read; `found` learns of them."""
    for name, node in graph.nodes.items():
        if node.graph is not None:
            yield from _readers(node.graph, found, written, f"{prefix}{name}/")
        reads = getattr(node, "reads", None)
        if reads is None or prefix + name in found:
            continue
        for writer in found:
            if shared := sorted({*reads} & {*written.get(writer, ())}):
                found[prefix + name] = f"it reads {shared[0]!r}, which {writer!r} writes"
                yield prefix + name
                break
