"""The plan of a rerun: which finished steps are kept, which run again and why, and the entry to go back to."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import unquote

from holdfast.engine.graph_changes import OTHER_WAY, changed_nodes, predecessors, renamed_outline, why_changed
from holdfast.engine.resume import ResumeOptions
from holdfast.engine.settings import Settings
from holdfast.errors import CannotRerun, Remedy, StateInvalid, suggestion
from holdfast.graph.graph import (
    Graph,
    Successors,
    all_nodes,
    all_successors,
    base_name,
    inside,
    named_nodes,
)
from holdfast.journal.journal import Loaded
from holdfast.journal.records import Reusing
from holdfast.journal.run_state import DONE, RunState, frame_of, node_of, renamed_path
from holdfast.state.ops import Op
from holdfast.stores.base import RunInfo
from holdfast.values import START, readable_step, step_label
from holdfast.views.plain import View
from holdfast.views.progress import place_of
from holdfast.views.projection import FinishedStep, Projection, node_outline, project, renamed_node

KEPT, RERUN, UNDONE = "kept", "rerun", "undone"
_ASKED = "asked for"
_FEW = 3
"""How many steps of a node are listed."""


@dataclass(frozen=True, slots=True)
class RerunStep(View):
    """A finished step, and what becomes of it: it is kept, or runs again; or it is undone, for a person added it to the
    run later. `seconds` and `cost` are what it took."""

    step: str
    node: str
    what: str
    reason: str
    seconds: float = 0.0
    cost: float = 0.0


Planned = TypeVar("Planned", bound=RerunStep)


class Savings(Generic[Planned]):
    """The steps of a plan by what becomes of them, and what those that are kept save."""

    __slots__ = ()

    steps: tuple[Planned, ...]

    def of(self, *what: str) -> tuple[Planned, ...]:
        """Return the steps of which this becomes."""
        return tuple(step for step in self.steps if step.what in what)

    @property
    def seconds_saved(self) -> float:
        """The time that the kept steps took."""
        return sum(step.seconds for step in self.of(KEPT))

    @property
    def cost_saved(self) -> float:
        """US dollars that the kept steps cost."""
        return sum(step.cost for step in self.of(KEPT))


@dataclass(frozen=True, slots=True)
class Rerun(Savings[RerunStep], View):
    """A part of a run that is to run again, from entry `seq` of run `base` on.

    Without a `seq` the run is not taken back; but if it was before, and has not come to all that was to be kept then,
    some of that may have to run again now. 0 is the begin of the run, before its first entry was whole.
    """

    JSON: ClassVar[str] = "run_id base=base.run seq nodes steps seconds_saved cost_saved"

    run_id: str
    seq: int | None
    base: RunInfo
    nodes: dict[str, str]
    """Every affected node, with the reason."""
    steps: tuple[RerunStep, ...]
    """The steps that were finished after that entry."""
    again: tuple[str, ...]
    """The nodes, and the single steps, that are not kept if the run comes to them again."""
    step: str
    """The step to begin with, if it is a single one."""
    source: RunInfo
    upto: int
    needs: tuple[tuple[bytes, int], ...]
    """By run, the entry after which its journal holds what is kept."""
    remap: tuple[tuple[str, str], ...] = ()
    called: tuple[Op, ...] | None = None
    """What the step was called with, if a function called it."""

    def reusing(self, *, elsewhere: bool = False) -> Reusing:
        """Return what the run records to keep what is not affected, or what a new run records (`elsewhere`)."""
        after = self.seq or 0 if self.source.key == self.base.key else 0
        name, own = (self.source.run, self.source.key) if elsewhere else ("", b"")
        needs = tuple((own if key == self.source.key else key, seq) for key, seq in self.needs)
        return Reusing(name, own, after, self.upto, self.again, self.remap, needs)

    def forgotten(self, run: RunState) -> tuple[str, ...]:
        """Return the unfinished steps of a run that are to run as if for the first time."""
        remap = dict(self.remap)
        noted = [step.id for step in run.active() if step.notes and step.status != DONE]
        return tuple(name for name in noted if self._is_forgotten(renamed_path(name, remap)))

    def _is_forgotten(self, step: str) -> bool:
        node = node_of(self.step) if self.step else ""
        path = ""
        for part in step.split("/"):
            path = f"{path}/{part}" if path else part
            if node_of(path) == node:
                return path == self.step
        return step in self.again or node_of(step) in self.nodes


def plan_changes(settings: Settings, loaded: Loaded, options: ResumeOptions) -> Rerun | None:
    """Return what runs again because the graph at hand does it otherwise; `None` if no finished step is affected."""
    if options.on_change == "use_saved":
        raise StateInvalid(
            "rerun-changed goes on with the workflow as it is now, and on-change 'use_saved' does not; give one"
        )
    if not loaded.run.outline:
        return None
    remap = options.remap or {}
    past = project(settings.journal, settings.codec, loaded.info, loaded.seq)
    seeds = _outdated(past, settings.outline, remap)
    seeds |= changed_nodes(loaded.run.outline, settings.outline, remap)
    plan = _Planner(settings, loaded, past, remap).of_nodes(seeds) if seeds else None
    return plan if plan is not None and (plan.seq is not None or plan.again) else None


def plan_rerun_from(settings: Settings, loaded: Loaded, step: str) -> Rerun:
    """Return what runs again if a step does, which is named by its id, or by its node for its last visit."""
    past = project(settings.journal, settings.codec, loaded.info, loaded.seq)
    return _Planner(settings, loaded, past, {}).of_step(step)


def _outdated(past: Projection, outline: Mapping[str, Any], remap: Mapping[str, str]) -> dict[str, str]:
    """Return the nodes with a step that was finished by other code than now, with the reason."""
    found: dict[str, str] = {}
    looked_at: set[tuple[int, str]] = set()
    for each in (*past.finishes.values(), *past.spare.values()):
        for node in _with_outer(each.node):
            if (id(each.outline), node) in looked_at:
                break
            looked_at.add((id(each.outline), node))
            now = renamed_node(node, remap)
            one, other = node_outline(each.outline, node), node_outline(outline, now)
            if one and other and (reason := why_changed(one, other)):
                found.setdefault(now, reason)
    return found


def _with_outer(node: str) -> Iterator[str]:
    """Yield a node, and the nodes of the sub-graphs that it is in, the innermost first."""
    while node:
        yield node
        node = node.rpartition("/")[0]


class _Planner:
    """A run, and the graph that it goes on with; steps have the names that their nodes have in that graph."""

    def __init__(
        self, settings: Settings, loaded: Loaded, past: Projection, remap: Mapping[str, str]
    ) -> None:
        self._settings, self._loaded, self._remap = settings, loaded, remap
        self._past = past.renamed(remap) if remap else past

    def of_nodes(self, seeds: Mapping[str, str]) -> Rerun:
        """Return what runs again if these nodes do, each of which has a reason."""
        past, loaded = self._past, self._loaded
        nodes, turns = self._affected_nodes(seeds), self._turns(seeds)
        self._refuse_forgotten({*seeds, *turns})
        seeded = [
            each for each in past.finishes.values() if not seeds.keys().isdisjoint(_with_outer(each.node))
        ]
        turned = [each for each in past.finishes.values() if _follows_turn(each, turns)]
        if seeded or turned or (START in turns and not past.finishes and past.begun is not None):
            return self._plan(nodes, seeded, turned)
        spare = list(past.spare.values())
        steps = [_planned(each, nodes, nodes) for each in spare]
        again = tuple(nodes) if any(step.what == RERUN for step in steps) else ()
        stays = self._rerun(None, loaded.info, nodes, spare, steps, again)
        # Taken back to where it is, so that its changed steps forget what they noted.
        changed = replace(stays, seq=loaded.seq, again=tuple(nodes))
        only_seeds = replace(changed, nodes={name: nodes[name] for name in seeds if name in nodes}, again=())
        return changed if only_seeds.forgotten(loaded.run) else replace(stays, remap=())

    def of_step(self, name: str) -> Rerun:
        """Return what runs again if a step does."""
        body = _body_named(self._past, name)
        meant = _steps_named(self._past, name := body or name)
        if not meant and (whole := self._whole_name(name)) != name:
            return self.of_step(whole)
        if not meant:
            return self._of_unfinished(name)
        seed, level = meant[0].node, name.partition("[")[0].count("/")
        if meant[0].step != name:  # It may name the sub-graph that all of them are in.
            seed = "/".join(seed.split("/")[: level + 1])
        nodes = self._affected_nodes({seed: _ASKED})
        if not nodes:
            raise CannotRerun(f"{readable_step(name)!r} cannot run again: the workflow no longer has it")
        plan = self._plan(nodes, meant)
        is_single = meant[0].step == name or ("[" in name and len(meant) == 1)
        is_alone = meant[0].node == seed and len([each for each in meant if each.node == seed]) == 1
        if body:
            return replace(plan, step=body, called=self._past.bodies[body])
        called = meant[0].item if meant[0].is_call else None
        return replace(plan, step=meant[0].step, called=called) if is_single or is_alone else plan

    def _whole_name(self, name: str) -> str:
        """Return the name with that of the sub-graph, or the function, that alone has a step of this name."""
        own = re.split(r"[#\[]", name, maxsplit=1)[0]
        active = [node_of(step.id) for step in self._loaded.run.active()]
        nodes = [*active, *(each.node for each in self._past.finishes.values())]
        known = dict.fromkeys(map(base_name, nodes))
        inner = [each for each in known if own and each.endswith(f"/{own}")]
        if own in known or not inner:
            return name
        if len(inner) > 1:
            run, listed = self._past.info.run, " or ".join(map(repr, inner))
            raise CannotRerun(f"run {run!r} has several steps {own!r}; did you mean {listed}?")
        return inner[0] + name[len(own) :]

    def _of_unfinished(self, name: str) -> Rerun:
        """Return the same for a step that has not finished: it runs from the newest checkpoint on."""
        active = [step.id for step in self._loaded.run.active() if step.node != START]
        found = [step for step in active if name in (step, node_of(step), base_name(node_of(step)))]
        if not found:
            raise _unknown_step(self._past, name)
        own, info, seq = node_of(found[0]), self._loaded.info, self._loaded.run.saved_seq or 1
        nodes = self._affected_nodes({own: _ASKED})
        after = [*self._finished_after(info, seq, None), *self._past.spare.values()]
        again = (found[0], *(node for node in nodes if node != own))
        steps = [_planned(each, nodes, again) for each in after]
        plan = self._rerun(seq, info, nodes, after, steps, again)
        return replace(plan, step=found[0]) if len(found) == 1 else plan

    def _affected_nodes(self, seeds: Mapping[str, str]) -> dict[str, str]:
        return affected_nodes(self._settings.graph, seeds, self._past.followed, self._past.written())

    def _plan(
        self, nodes: dict[str, str], seeded: Sequence[FinishedStep], turned: Sequence[FinishedStep] = ()
    ) -> Rerun:
        """Return the plan to run the steps of `seeded` again, and what came after them and after `turned`.

        Without any of these the run begins again.
        """
        past, origin = self._past, {each.step for each in (*seeded, *turned)}
        first = next((each for each in past.finishes.values() if each.step in origin), None)
        base, seq = self._entry_before(first) if first else (self._loaded.info, 1)
        after = [*self._finished_after(base, seq, first), *past.spare.values()]
        affected = _affected_steps(past, nodes, seeded, turned)
        kept = {each.node for each in past.finishes.values()} - {node_of(step) for step in affected}
        nodes = {node: reason for node, reason in nodes.items() if node not in kept}
        steps = [_undone(each, base, seq) or _planned(each, nodes, affected) for each in after]
        return self._rerun(seq, base, nodes, after, steps, _by_node(after, affected))

    def _rerun(
        self,
        seq: int | None,
        base: RunInfo,
        nodes: dict[str, str],
        after: Iterable[FinishedStep],
        steps: Sequence[RerunStep],
        again: tuple[str, ...],
    ) -> Rerun:
        kept, needs = {step.step for step in steps if step.what == KEPT}, dict[bytes, int]()
        for each in after:
            if each.step in kept:
                needs[each.info.key] = min(each.seq - 1, needs.get(each.info.key, each.seq))
        info, upto, remap = self._loaded.info, self._loaded.seq, tuple(self._remap.items())
        return Rerun(
            info.run, seq, base, nodes, tuple(steps), again, "", info, upto, tuple(needs.items()), remap
        )

    def _turns(self, seeds: Mapping[str, str]) -> set[str]:
        """Return the nodes, `START` included, whose successors are chosen otherwise now, or are others."""
        before = predecessors(renamed_outline(self._loaded.run.outline, self._remap))
        after = predecessors(self._settings.outline)
        leads = all_successors(self._settings.graph, self._past.followed)
        found: set[str] = set()
        for name, reason in seeds.items():
            if reason.endswith(OTHER_WAY) or name not in before or before[name] != after.get(name):
                found |= before.get(name, set())
                found |= {source for source, targets in leads.items() if name in targets}
        return found

    def _refuse_forgotten(self, nodes: Collection[str]) -> None:
        """Raise `CannotRerun` if what is to run again was finished before the first entry that is stored."""
        parts = {part for node in nodes for part in node.split("/")}
        if lost := sorted(parts & set(self._past.forgotten)):
            raise _lost(self._past, ", ".join(map(repr, lost)))

    def _entry_before(self, first: FinishedStep) -> tuple[RunInfo, int]:
        """Return the newest checkpoint before a step finished, or else the entry that its run began with."""
        journal, info, before = self._settings.journal, first.info, first.seq
        while checkpoints := journal.store.checkpoints(info.run, before, 1):
            before = checkpoints[0].seq
            if self._past.counts(info.key, before):
                return info, before
        entry = next(iter(journal.store.read(info.run)), None)
        if entry is None or entry.seq != 1:
            step = readable_step(first.step)
            raise CannotRerun(
                f"run {info.run!r} was pruned, so that it cannot be taken back to before {step!r}"
            )
        if first.seq > 1:
            return info, 1
        fork = journal.fork_of(info, entry, self._settings.codec)
        parent = journal.store.runs(key=fork.key) if fork is not None else []
        return (parent[0], fork.seq) if fork is not None and parent else (info, 0)

    def _finished_after(self, base: RunInfo, seq: int, first: FinishedStep | None) -> list[FinishedStep]:
        found = list(self._past.finishes.values())
        for place, each in enumerate(found):
            if each is first or (each.info.key == base.key and each.seq > seq):
                return found[place:]
        return []


def _affected_steps(
    past: Projection, nodes: Collection[str], seeded: Sequence[FinishedStep], turned: Sequence[FinishedStep]
) -> set[str]:
    """Return the finished steps that have to run again: `seeded`, and what comes after them in the graph and in time.

    No sibling of a step, such as another item of a for-each, began because of it. What was put aside, and has not
    been come to again, counts if it comes after in the graph.
    """
    keys: dict[str, set[str]] = {}
    for place, key in (item for each in seeded for item in _items(each.step)):
        keys.setdefault(place, set()).add(key)
    since = min((each.ended for each in (*seeded, *turned)), default=0)
    later = (each for each in past.finishes.values() if each.node in nodes and each.began > since)
    return {
        *(each.step for each in seeded),
        *(
            each.step
            for each in later
            if all(key in keys.get(place, (key,)) for place, key in _items(each.step))
        ),
        *(each.step for each in past.spare.values() if each.node in nodes),
    }


def _items(step: str) -> Iterator[tuple[str, str]]:
    """Yield the for-each items that a step is, or is inside of: what all items of it have in common, and its key."""
    path = ""
    for part in step.split("/"):
        own, bracket, key = part.partition("[")
        if bracket:
            yield path + own, key
        path += f"{part}/"


def _by_node(after: Iterable[FinishedStep], affected: Collection[str]) -> tuple[str, ...]:
    """Return the affected steps, those of one node by its name where all of them are affected."""
    of_node: dict[str, list[str]] = {}
    for each in after:
        of_node.setdefault(each.node, []).append(each.step)
    again: list[str] = []
    for node, steps in of_node.items():
        some = [step for step in steps if step in affected]
        again += [node] if len(some) == len(steps) else some
    return tuple(again)


def _planned(found: FinishedStep, nodes: Mapping[str, str], again: Collection[str]) -> RerunStep:
    record = found.record
    what, reason = KEPT, f"passed over: {record.skipped}" if record.skipped else "finished, and not affected"
    if found.step in again or found.node in again:
        what, reason = RERUN, nodes.get(found.node, _ASKED)
    return RerunStep(found.step, found.node, what, reason, record.seconds, found.cost)


def _undone(found: FinishedStep, base: RunInfo, seq: int) -> RerunStep | None:
    """Return what becomes of a step that a person added to the run after the entry that it goes back to."""
    if not found.added or (found.info.key == base.key and found.added <= seq):
        return None
    reason = "it was added to the run later, which is undone"
    return RerunStep(found.step, found.node, UNDONE, reason, found.record.seconds, found.cost)


def _follows_turn(found: FinishedStep, turns: Collection[str]) -> bool:
    """Return True if what follows a step, or the graph that it is in, is to be found again."""
    outer = [*_with_outer(found.node)][1:]
    return not {found.node, START, *outer, *(f"{node}/{START}" for node in outer)}.isdisjoint(turns)


# Which finished steps a name stands for.


def _steps_named(past: Projection, name: str) -> list[FinishedStep]:
    """Return the finished steps that a step's id, or a node's name for its last visit, stands for, in order."""
    found, level = list(past.finishes.values()), name.count("/")
    shown = step_label if "#" in name else lambda step: place_of(step).label if name[-1:] == ")" else ""
    for written in (str, readable_step, lambda step: _written(step, visits=True), shown):
        if exact := [each for each in found if written(each.step) == name]:
            return exact
    if inner := [each for each in found if each.step.startswith(f"{name}/")]:
        return inner
    if "[" in name:
        named = [each for each in found if _written(each.step) == name]
        named = named or [each for each in found if _written(each.step).startswith(f"{name}/")]
        return _last_visit(named, level)
    named = [each for each in found if name in (each.node, base_name(each.node))]
    inside = f"{name}/"
    named = named or [
        each for each in found if each.node.startswith(inside) or base_name(each.node).startswith(inside)
    ]
    own = [each for each in named if each.node == name]
    if not own:
        return _last_visit(named, level)
    return named[named.index(_last_visit(own, level)[0]) :]


def _body_named(past: Projection, name: str) -> str:
    """Return the id of the finished workflow, called by a function, that a name with a number stands for, if any."""
    if "#" not in name and name[-1:] != ")":
        return ""
    called = (each for each in past.bodies if frame_of(each))
    return next((each for each in called if name in (each, step_label(each), place_of(each).label)), "")


def _last_visit(found: list[FinishedStep], level: int) -> list[FinishedStep]:
    """Return the steps of the last visit of the outermost nodes, down to a level."""

    def visits(step: str) -> list[str]:
        parts = [part.partition("[")[0] for part in step.split("/")[: level + 1]]
        return [part.rpartition("#")[2] for part in parts]

    return [each for each in found if visits(each.step) == visits(found[-1].step)]


def _written(step: str, visits: bool = False) -> str:
    """Return a step as people name it: `outer[key]/inner`, or with visits `each#1[key]`."""
    parts = []
    for part in step.split("/"):
        node, _, rest = part.partition("#")
        visit, bracket, key = rest.partition("[")
        parts.append(base_name(node) + (f"#{visit}" if visits else "") + bracket + unquote(key))
    return "/".join(parts)


def _unknown_step(past: Projection, name: str) -> CannotRerun:
    """Return the error for a step that did not run, or of which nothing more is known."""
    node, run = node_of(name) if "#" in name else name.partition("[")[0], past.info.run
    of_node = [each for each in past.finishes.values() if node in (each.node, base_name(each.node))]
    if of_node and name != node:
        steps = ", ".join(readable_step(each.step) for each in of_node[-_FEW:])
        more = f"{len(of_node)} steps, the last of them " if len(of_node) > _FEW else ""
        return CannotRerun(f"run {run!r} never came to {name!r}; of {node!r} it ran {more}{steps}")
    if node in past.forgotten or node in map(base_name, past.forgotten):
        return _lost(past, repr(node))
    shown = [step for step in past.finishes if base_name(step) == step]
    ran = dict.fromkeys(map(base_name, (*past.forgotten, *(each.node for each in past.finishes.values()))))
    known = suggestion(name, [*shown, *ran])
    return CannotRerun(
        f"run {run!r} has no step {name!r} that ran{known}; it ran {', '.join(ran) or 'nothing'}"
    )


def _lost(past: Projection, names: str) -> CannotRerun:
    run = past.info.run
    return CannotRerun(
        f"{past.lost}, so that run {run!r} cannot be taken back to before {names}",
        remedies=Remedy("reuse", run),
    )


# The nodes that have to run again when others do.


def affected_nodes(
    graph: Graph,
    seeds: Mapping[str, str],
    followed: Mapping[str, Collection[str]] | None = None,
    written: Mapping[str, Collection[str]] | None = None,
) -> dict[str, str]:
    """Return the nodes that are affected if those of `seeds` are, each with the reason.

    These are the seeds and all that comes after them in the graph; a sub-graph is affected as a whole by what comes
    before it, but a change inside of it affects only what follows there, and what follows the sub-graph. `followed`
    is what has followed what, for routing functions that do not say where they lead. `written` are the keys that
    the nodes have written: a node that declares to read one of an affected node is affected, too.
    """
    leads = all_successors(graph, followed or {})
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
    return dict(sorted(found.items(), key=lambda pair: order.get(pair[0], len(order))))


def _exists(graph: Graph, name: str) -> bool:
    *outer, own = name.split("/")
    for part in outer:
        node = graph.nodes.get(part)
        if node is None or node.graph is None:
            return False
        graph = node.graph
    return own in graph.nodes


def _following(graph: Graph, leads: Successors, name: str) -> Iterator[str]:
    """Yield what comes directly after a node, or after a sub-graph that it is in, with all that is inside of that."""
    place = name
    while place:
        for other in sorted(leads.get(place, ())):
            yield other
            yield from inside(graph, other)
        place = place.rpartition("/")[0]


def _readers(graph: Graph, found: dict[str, str], written: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield the nodes that are affected only because of what they declare to read; `found` learns of them."""
    for name, node in named_nodes(graph):
        reads = getattr(node, "reads", None)
        if reads is None or name in found:
            continue
        for writer in found:
            if shared := sorted({*reads} & {*written.get(writer, ())}):
                found[name] = f"it reads {shared[0]!r}, which {writer!r} writes"
                yield name
                break
