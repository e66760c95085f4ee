"""Running a part of a run again: what is kept, what is not and why, and the entry to go back to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.engine.graph_changes import OTHER_WAY
from holdfast.engine.settings import Settings
from holdfast.engine.time_travel.affected import cone, leads_to, ways
from holdfast.engine.time_travel.checkpoints import meant_finishes, seed_of, unknown_step
from holdfast.errors import CannotRerun, Remedy
from holdfast.graph.graph import Graph, base_name
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.run_state import DONE, RunState, node_of, renamed_path
from holdfast.state.codec import Codec
from holdfast.stores.base import RunInfo
from holdfast.values import START, readable_step
from holdfast.views.projection import FinishedStep, Projection, project, renamed_node

# What becomes of the steps of a run of which a part runs again.


KEPT, RERUN, UNDONE = "kept", "rerun", "undone"


@dataclass(frozen=True, slots=True)
class RerunStep:
    """A finished step, and what becomes of it: it is kept, or runs again; or it is undone, for the run only came to it
    because somebody had it do so later. `seconds` and `cost` are what it took."""

    step: str
    node: str
    what: str
    reason: str
    seconds: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Rerun:
    """A part of a run that is to run again, from where run `base` stood at its entry `seq`.

    Without a `seq` the run need not be taken back; but if it was before, and has not come to all that was to be kept
    then, some of that may have to run again now. 0 is how the run began, before its first entry was whole.
    """

    run_id: str
    seq: int | None
    base: RunInfo
    nodes: dict[str, str]
    """Every affected node, with the reason."""
    steps: tuple[RerunStep, ...] = ()
    """The steps that were finished after that entry."""
    again: tuple[str, ...] = ()
    """The nodes, and the single steps, that are not kept if the run comes to them again."""
    step: str = ""
    """The step to begin with, if it is a single one."""
    source: RunInfo | None = None
    upto: int = 0
    remap: tuple[tuple[str, str], ...] = ()
    needs: tuple[tuple[bytes, int], ...] = ()
    """By run, the entry after which its journal holds what is kept."""

    def of(self, what: str) -> tuple[RerunStep, ...]:
        """The steps that are kept, or that run again."""
        return tuple(step for step in self.steps if step.what == what)

    @property
    def seconds_saved(self) -> float:
        """The time that the kept steps took."""
        return sum(step.seconds for step in self.of(KEPT))

    @property
    def cost_saved(self) -> float:
        """US dollars that the kept steps cost."""
        return sum(step.cost for step in self.of(KEPT))

    def forgotten(self, run: RunState) -> tuple[str, ...]:
        """Of the steps of a run that are under way those that are to run as if for the first time."""
        remap = dict(self.remap)
        noted = [step.id for step in run.active() if step.notes and step.status != DONE]
        return tuple(name for name in noted if self._begins_anew(renamed_path(name, remap)))

    def _begins_anew(self, step: str) -> bool:
        node = node_of(self.step) if self.step else ""
        path = ""
        for part in step.split("/"):
            path = f"{path}/{part}" if path else part
            if node_of(path) == node:
                return path == self.step
        return step in self.again or node_of(step) in self.nodes

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, base, seq, nodes, steps, seconds_saved, cost_saved."""
        names = RerunStep.__slots__
        return {
            "run_id": self.run_id,
            "base": self.base.run,
            "seq": self.seq,
            "nodes": dict(self.nodes),
            "steps": [{name: getattr(step, name) for name in names} for step in self.steps],
            "seconds_saved": self.seconds_saved,
            "cost_saved": self.cost_saved,
        }


def plan_rerun(
    settings: Settings,
    loaded: Loaded,
    history: Projection | None,
    seeds: Mapping[str, str],
    remap: Mapping[str, str] | None = None,
) -> Rerun:
    """What runs again if the nodes of `seeds` do, each of which has a reason in words.

    `history` is the past of the run up to where it is loaded; without one it is read. `remap` says which nodes
    were renamed since; steps are then known by the new names.
    """
    past = history or project(settings.journal, settings.codec, loaded.info, loaded.seq)
    past = past.renamed(remap) if remap else past
    nodes = cone(settings.graph, seeds, past.followed, past.written())
    saved = _predecessors(loaded.run.outline, remap or {})
    turns = _turns(settings.graph, saved, _predecessors(settings.outline, {}), seeds, past)
    _refuse_forgotten(past, {*seeds, *turns})
    seeded = [found for found in past.finishes.values() if _is_of(found, seeds)]
    turned = [found for found in past.finishes.values() if _is_turn(found, turns)]
    begins_anew = START in turns and not past.finishes and past.begun is not None
    if seeded or turned or begins_anew:
        planned = _from(settings, past, loaded, nodes, seeded, turned)
        return replace(planned, remap=tuple((remap or {}).items()))
    steps = tuple(_fate(found, nodes, nodes) for found in past.spare.values())
    again = tuple(nodes) if any(step.what == RERUN for step in steps) else ()
    info, renamings = loaded.info, tuple((remap or {}).items())
    needs = _needs(past.spare.values(), steps)
    stays = Rerun(info.run, None, info, nodes, steps, again, "", info, loaded.seq, needs=needs)
    # Taken back to where it stands, so that what its changed steps noted is forgotten.
    changed = replace(stays, seq=loaded.seq, again=tuple(nodes), remap=renamings)
    only_seeds = replace(changed, nodes={name: nodes[name] for name in seeds if name in nodes}, again=())
    return changed if only_seeds.forgotten(loaded.run) else stays


def plan_rerun_from(
    settings: Settings, loaded: Loaded, step: str, history: Projection | None = None
) -> Rerun:
    """What runs again if a step does, which is named by its id, or by its node for its last visit."""
    past = history or project(settings.journal, settings.codec, loaded.info, loaded.seq)
    meant = meant_finishes(past, loaded.run, step)
    if not meant:
        return _unfinished(settings, past, loaded, step)
    single = meant[0].step == step or ("[" in step and len(meant) == 1)
    seed = seed_of(meant, step)
    nodes = cone(settings.graph, {seed: "asked for"}, past.followed, past.written())
    if not nodes:
        raise CannotRerun(f"{readable_step(step)!r} cannot run again: the workflow no longer has it")
    planned = _from(settings, past, loaded, nodes, meant)
    alone = single or (meant[0].node == seed and len([each for each in meant if each.node == seed]) == 1)
    return replace(planned, step=meant[0].step) if alone else planned


def _from(
    settings: Settings,
    past: Projection,
    loaded: Loaded,
    nodes: dict[str, str],
    seeded: Sequence[FinishedStep],
    turned: Sequence[FinishedStep] = (),
) -> Rerun:
    """What is to be done to have the steps of `seeded` run again, and what came after them and after `turned`.

    Without any of these the run begins anew.
    """
    origin = {found.step for found in (*seeded, *turned)}
    first = next((found for found in past.finishes.values() if found.step in origin), None)
    base, seq = _place_before(settings.journal, settings.codec, past, first) if first else (loaded.info, 1)
    after = [*_finished_after(past, base, seq, first), *past.spare.values()]
    affected = _affected(past, nodes, seeded, turned)
    kept = {found.node for found in past.finishes.values()} - {node_of(step) for step in affected}
    nodes = {node: reason for node, reason in nodes.items() if node not in kept}
    again = _listed(after, affected)
    steps = tuple(_undone(found, base, seq) or _fate(found, nodes, affected) for found in after)
    needs = _needs(after, steps)
    return Rerun(loaded.info.run, seq, base, nodes, steps, again, "", loaded.info, loaded.seq, needs=needs)


def _affected(
    past: Projection, nodes: Collection[str], seeded: Sequence[FinishedStep], turned: Sequence[FinishedStep]
) -> set[str]:
    """The finished steps that have to run again: `seeded`, and what comes after them in the graph and came so in time.

    Of a step's siblings, other items of a for-each say, none began because of it. What was put aside, and has not
    been come to again, counts if it comes after in the graph.
    """
    found = {each.step for each in seeded}
    keys: dict[str, set[str]] = {}
    for place, key in (item for each in seeded for item in _items(each.step)):
        keys.setdefault(place, set()).add(key)
    since = min((each.ended for each in (*seeded, *turned)), default=0)
    for each in past.finishes.values():
        is_other_item = any(key not in keys.get(place, (key,)) for place, key in _items(each.step))
        if each.node in nodes and each.began > since and not is_other_item:
            found.add(each.step)
    return found | {each.step for each in past.spare.values() if each.node in nodes}


def _items(step: str) -> Iterator[tuple[str, str]]:
    """The for-each items that a step is, or is inside of: each as what all items of it have in common, and its key."""
    path = ""
    for part in step.split("/"):
        own, bracket, key = part.partition("[")
        if bracket:
            yield path + own, key
        path += f"{part}/"


def _listed(after: Iterable[FinishedStep], affected: Collection[str]) -> tuple[str, ...]:
    """Affected steps, those of one node by its name where all of them are."""
    of_node: dict[str, list[str]] = {}
    for found in after:
        of_node.setdefault(found.node, []).append(found.step)
    again: list[str] = []
    for node, steps in of_node.items():
        some = [step for step in steps if step in affected]
        again += [node] if len(some) == len(steps) else some
    return tuple(again)


def _fate(found: FinishedStep, nodes: Mapping[str, str], again: Collection[str]) -> RerunStep:
    record = found.record
    seconds, cost = record.seconds, found.cost
    if found.step in again or found.node in again:
        reason = nodes.get(found.node, "asked for")
        return RerunStep(found.step, found.node, RERUN, reason, seconds, cost)
    reason = f"passed over: {record.skipped}" if record.skipped else "finished, and not affected"
    return RerunStep(found.step, found.node, KEPT, reason, seconds, cost)


def _undone(found: FinishedStep, base: RunInfo, seq: int) -> RerunStep | None:
    """What becomes of a step that a run only came to because somebody had it do so after the place it goes back to."""
    if not found.added or (found.info.key == base.key and found.added <= seq):
        return None
    reason = "somebody had the run do it later, which is undone"
    return RerunStep(found.step, found.node, UNDONE, reason, found.record.seconds, found.cost)


# Where to go back to.


def _turns(
    graph: Graph,
    before: Mapping[str, set[str]],
    after: Mapping[str, set[str]],
    seeds: Mapping[str, str],
    past: Projection,
) -> set[str]:
    """The nodes, `START` included, after which another way is to be taken: those before a node that has others now.

    Or that is chosen otherwise now.
    """
    leads = ways(graph, past.followed)
    found: set[str] = set()
    for name in seeds:
        is_other_way = seeds[name].endswith(OTHER_WAY)
        if is_other_way or before.get(name) is None or before[name] != after.get(name):
            found |= before.get(name, set()) | leads_to(leads, name)
    return found


def _predecessors(
    outline: Mapping[str, Any], remap: Mapping[str, str], prefix: str = ""
) -> dict[str, set[str]]:
    """What leads to each node, by the names that they have now."""

    def called(name: str) -> str:
        return renamed_node(prefix + name, remap)

    found: dict[str, set[str]] = {called(name): set() for name in outline.get("nodes", {})}
    ways_in = [([source], [target]) for source, target, *_ in outline.get("edges", ())]
    ways_in += [([source], list(targets)) for source, targets in outline.get("routes", ())]
    ways_in += [(list(sources), [target]) for sources, target in outline.get("joins", ())]
    for sources, targets in ways_in:
        for target in targets:
            found.setdefault(called(target), set()).update(map(called, sources))
    for name, node in outline.get("nodes", {}).items():
        if "graph" in node:
            found |= _predecessors(node["graph"], remap, f"{prefix}{name}/")
    return found


def _is_of(found: FinishedStep, nodes: Collection[str]) -> bool:
    """Whether a step is one of these nodes, or inside of one."""
    place = found.node
    while place and place not in nodes:
        place = place.rpartition("/")[0]
    return bool(place)


def _is_turn(found: FinishedStep, turns: Collection[str]) -> bool:
    """Whether what follows a step, or the graph that it is in, is to be found anew."""
    if found.node in turns:
        return True
    place = found.node
    while place:
        place = place.rpartition("/")[0]
        if (f"{place}/{START}" if place else START) in turns or (place and place in turns):
            return True
    return False


def _refuse_forgotten(past: Projection, nodes: Collection[str]) -> None:
    """Refuse to run again what was finished before the first entry that is stored."""
    parts = {part for node in nodes for part in node.split("/")}
    lost = sorted(parts & set(past.forgotten))
    if lost:
        names = ", ".join(map(repr, lost))
        raise CannotRerun(
            f"{past.lost}, so that run {past.info.run!r} cannot be taken back to before {names}",
            remedies=Remedy("reuse", past.info.run),
        )


def _place_before(
    journal: Journal, codec: Codec, past: Projection, first: FinishedStep
) -> tuple[RunInfo, int]:
    """The newest checkpoint before a step finished, or else the entry that its run began with."""
    info, before, store = first.info, first.seq, journal.store
    while marks := store.marks(info.run, before, 1):
        before = marks[0].seq
        if past.counts(info.key, before):
            return info, before
    entry = next(iter(store.read(info.run)), None)
    if entry is None or entry.seq != 1:
        raise CannotRerun(
            f"run {info.run!r} was pruned, so that it cannot be taken back to before {readable_step(first.step)!r}"
        )
    if first.seq > 1:
        return info, 1
    fork = journal.fork_of(info, entry, codec)
    parent = store.runs(key=fork.key) if fork is not None else []
    return (parent[0], fork.seq) if fork is not None and parent else (info, 0)


def _finished_after(
    past: Projection, base: RunInfo, seq: int, first: FinishedStep | None
) -> list[FinishedStep]:
    found = list(past.finishes.values())
    for place, each in enumerate(found):
        if each is first or (each.info.key == base.key and each.seq > seq):
            return found[place:]
    return []


# Which step is meant.


def _unfinished(settings: Settings, past: Projection, loaded: Loaded, name: str) -> Rerun:
    """The same for a step that has not finished: it runs from the newest checkpoint on."""
    active = [step for step in loaded.run.active() if step.node != START]
    found = [step for step in active if name in (step.id, node_of(step.id), base_name(node_of(step.id)))]
    if not found:
        raise unknown_step(past, name)
    nodes = cone(settings.graph, {node_of(found[0].id): "asked for"}, past.followed, past.written())
    seq = loaded.run.saved_seq or 1
    after = _finished_after(past, loaded.info, seq, None)
    again = (found[0].id, *(node for node in nodes if node != node_of(found[0].id)))
    after += past.spare.values()
    steps, info = tuple(_fate(each, nodes, again) for each in after), loaded.info
    only, needs = found[0].id if len(found) == 1 else "", _needs(after, steps)
    return Rerun(info.run, seq, info, nodes, steps, again, only, info, loaded.seq, needs=needs)


def _needs(finishes: Iterable[FinishedStep], steps: Iterable[RerunStep]) -> tuple[tuple[bytes, int], ...]:
    """By run, the entry after which its journal holds all that is kept of some finished steps."""
    kept, found = {step.step for step in steps if step.what == KEPT}, dict[bytes, int]()
    for each in finishes:
        if each.step in kept:
            found[each.info.key] = min(each.seq - 1, found.get(each.info.key, each.seq))
    return tuple(found.items())
