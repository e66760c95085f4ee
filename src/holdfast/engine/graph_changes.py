"""How the graph at hand differs from the one that a run was saved with: node by node, and in words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.engine.decide import qualified
from holdfast.engine.resume import ResumeOptions, edits, renamed_keys
from holdfast.engine.settings import Settings
from holdfast.errors import GraphChanged, HoldfastError, MigrationFailed, Remedy, closest, suggestion
from holdfast.graph.fingerprint import same_code, short_digests
from holdfast.graph.graph import Edge, Graph, Join, base_name, outline_at, outline_names
from holdfast.journal import records
from holdfast.journal.fold import apply
from holdfast.journal.records import Migrated
from holdfast.journal.run_state import DONE, Frame, RunState, Step, copy_run, names_within, renamed_path
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, advance, freeze, make_op, thaw
from holdfast.state.schema import as_mapping
from holdfast.values import START

Outline = Mapping[str, Any]
NEW_NODE = "new"
OTHER_WAY = "what leads to it chooses otherwise"


def renamed_outline(outline: Outline, remap: Mapping[str, str], prefix: str = "") -> Outline:
    """Return an outline in which nodes have the names that `remap` gives them."""
    if not remap:
        return outline

    def name(node: str) -> str:
        return name_now(prefix + node, remap).rpartition("/")[2]

    nodes = {
        name(own): {**node, "graph": renamed_outline(node["graph"], remap, f"{prefix}{own}/")}
        if "graph" in node
        else node
        for own, node in outline.get("nodes", {}).items()
    }
    parts: dict[str, Callable[[Any], Any]] = {
        "edges": lambda found: [[name(source), name(target), *rest] for source, target, *rest in found],
        "routes": lambda found: [[name(source), sorted(map(name, targets))] for source, targets in found],
        "joins": lambda found: [[list(map(name, sources)), name(target)] for sources, target in found],
        "exits": lambda found: sorted(map(name, found)),
        "last": name,
        "choices": lambda found: {
            name(source): [[name(target), code] for target, code in chosen]
            for source, chosen in found.items()
        },
    }
    wired = {part: parts[part](found) for part, found in outline.items() if part in parts and found}
    return {**outline, **wired, "nodes": nodes}


def changed_nodes(
    saved: Outline, now: Outline, remap: Mapping[str, str] | None = None, prefix: str = ""
) -> dict[str, str]:
    """Return the nodes of a graph that are not as they were saved, with the reason; `outer/inner` in a sub-graph.

    `remap` says which nodes were renamed since. A node that is gone is none of them; those that it led to are.
    """
    saved = renamed_outline(saved, remap or {})
    old, before, after = saved.get("nodes", {}), predecessors(saved), predecessors(now)
    turned = _turned(saved, now)
    found: dict[str, str] = {}
    for name, node in now.get("nodes", {}).items():
        if name not in old:
            found[prefix + name] = NEW_NODE
            continue
        inner = "graph" in old[name] and "graph" in node
        reason = "" if inner else why_changed(old[name], node)
        if not reason and before.get(name, set()) != after.get(name, set()):
            reason = f"its predecessors changed ({_place(after.get(name, set()))})"
        if name in turned:
            reason = f"{reason}, and {OTHER_WAY}" if reason else OTHER_WAY
        if reason:
            found[prefix + name] = reason
        if inner:
            found |= changed_nodes(old[name]["graph"], node["graph"], None, f"{prefix}{name}/")
    return found


def changes_between(
    saved: Outline, now: Outline, remap: Mapping[str, str] | None = None, prefix: str = ""
) -> list[str]:
    """Return what differs between two outlines, in words."""
    remap, known = remap or {}, set(outline_names(now)) if remap else ()
    saved = renamed_outline(saved, remap)
    old, new = saved.get("nodes", {}), now["nodes"]
    changes = [
        f"{base_name(name)!r} was renamed to {base_name(to)!r}"
        for name, to in remap.items()
        if to in known and name != to
    ]
    changes += [f"{base_name(prefix + name)!r} was removed" for name in old if name not in new]
    changes += [f"{base_name(prefix + name)!r} was added" for name in new if name not in old]
    for name in old:
        if name not in new:
            continue
        if "graph" in old[name] and "graph" in new[name]:
            changes += changes_between(old[name]["graph"], new[name]["graph"], None, f"{prefix}{name}/")
        elif why_changed(old[name], new[name]):
            changes.append(f"the code of {base_name(prefix + name)!r} changed")
    where = f"of {prefix.rstrip('/')} " if prefix else ""
    changes += [
        f"the {part} {where}changed"
        for part in ("edges", "routes", "joins", "exits", "last")
        if saved.get(part) != now.get(part)
    ]
    changes += [
        f"the way on from {'the beginning' if source == START else repr(prefix + source)} is chosen otherwise"
        for source in sources_turned(saved, now)
    ]
    if (one := saved.get("version", "")) != (other := now.get("version", "")):
        changes.append(f"the version {where}changed from {one!r} to {other!r}")
    return changes


def _turned(saved: Outline, now: Outline) -> set[str]:
    """Return the nodes that may follow where the next node is chosen otherwise now, or the node that chooses."""
    found: set[str] = set()
    for source in sources_turned(saved, now):
        routes = [targets for start, targets in now.get("routes", ()) if start == source]
        targets = {target for start, target, *_ in now.get("edges", ()) if start == source}
        targets.update(target for each in routes for target in each)
        is_open = source != START and not all(routes)
        found |= {source} if is_open else targets if all(routes) else set(now.get("nodes", ()))
    return found


def sources_turned(saved: Outline, now: Outline) -> list[str]:
    """Return the nodes after which the next node is chosen otherwise now; of older outlines that is not known."""
    before, found = saved.get("choices", {}), []
    for source, chosen in now.get("choices", {}).items():
        pairs = itertools.zip_longest(before.get(source, chosen), chosen, fillvalue=("", ""))
        if not all(one == other and same_code(code, present) for (one, code), (other, present) in pairs):
            found.append(source)
    return found


def look_alike(saved: Outline, now: Outline, node: str) -> str:
    """The only new node that does what a node which is gone did, if there is one; of two outlines' nodes."""
    if node not in saved:
        return ""
    found = [name for name in now if name not in saved and not why_changed(saved[node], now[name])]
    return found[0] if len(found) == 1 and "graph" not in now[found[0]] else ""


def why_changed(saved: Outline, now: Outline) -> str:
    """Return what changed of one node's own work, in words; empty if nothing did, as far as is known."""
    if ("graph" in saved) != ("graph" in now):
        return "it is a sub-graph now" if "graph" in now else "it is no longer a sub-graph"
    one, other = saved.get("version"), now.get("version")
    if one is not None and other is not None:
        return "" if one == other else f"version changed from {one!r} to {other!r}"
    if "graph" in now or same_code(saved["fingerprint"], now["fingerprint"]):
        return ""
    return "code changed from {} to {}".format(*short_digests(saved["fingerprint"], now["fingerprint"]))


def name_now(node: str, remap: Mapping[str, str]) -> str:
    """Return what a node is called now that it, or a sub-graph that it is in, may have been renamed."""
    parts = node.split("/") if remap else [node]
    moved: list[str] = []
    for index, part in enumerate(parts):
        new = remap.get("/".join(parts[: index + 1]))
        moved.append(new.rpartition("/")[2] if new is not None else part)
    return "/".join(moved)


def predecessors(outline: Outline, prefix: str = "") -> dict[str, set[str]]:
    """Return the nodes that may lead to each node, `outer/inner` in sub-graphs."""
    found: dict[str, set[str]] = {prefix + name: set() for name in outline.get("nodes", {})}
    links = [([source], [target]) for source, target, *_ in outline.get("edges", ())]
    links += [([source], list(targets)) for source, targets in outline.get("routes", ())]
    links += [(list(sources), [target]) for sources, target in outline.get("joins", ())]
    for sources, targets in links:
        for target in targets:
            found.setdefault(prefix + target, set()).update(prefix + source for source in sources)
    for name, node in outline.get("nodes", {}).items():
        if "graph" in node:
            found |= predecessors(node["graph"], f"{prefix}{name}/")
    return found


def _place(sources: set[str]) -> str:
    names = [repr(name) for name in sorted(sources - {START})]
    if START in sources:
        names.insert(0, "the beginning")
    return f"now after {', '.join(names)}" if names else "now nothing leads to it"


# Bringing the state of a run from the version that it was saved under to the one that the graph has now.


Path = list[tuple[str, str]]


def migrations(
    name: str, run: RunState, graph: Graph, remap: Mapping[str, str], codec: Codec
) -> list[Migrated]:
    """What brings the state of a run, and of its open sub-graphs, to the versions that their graphs have now.

    Nothing is changed here. What cannot be brought over, or comes to something that the schema refuses, raises
    `MigrationFailed`.
    """
    found: list[Migrated] = []
    for frame, path, steps in _migrations(f"run {name!r}", run, graph, remap):
        where = f"run {name!r}" if not path else f"run {name!r}, sub-graph {path!r}"
        found += _migrated(where, frame, path, graph.at(path), steps, codec)
    return found


def planned_migrations(run: RunState, graph: Graph, remap: Mapping[str, str]) -> list[str]:
    """Return the migrations that a resume would apply, in words."""
    return [
        f"the state{f' of {path!r}' if path else ''} is migrated from version {start!r} to {end!r}"
        for _, path, steps in _migrations("", run, graph, remap)
        for start, end in steps
    ]


def _migrations(
    where: str, run: RunState, graph: Graph, remap: Mapping[str, str]
) -> Iterator[tuple[Frame, str, Path]]:
    """Yield the frames whose state has another version than their graph, with their paths and the migrations."""
    for frame in run.frames.values() if run.outline else ():
        path = renamed_path(frame.path, remap)
        now, since = graph.at(path), str(outline_at(run.outline, frame.path).get("version", ""))
        if since != now.version:
            yield frame, path, _path(f"{where}, sub-graph {path!r}" if path else where, now, since)


def _path(where: str, graph: Graph, since: str) -> Path:
    """The fewest migrations that lead to the graph's version."""
    ways: dict[str, Path] = {since: []}
    todo = [since]
    while todo:
        version = todo.pop(0)
        if version == graph.version:
            return ways[version]
        for start, end in graph.migrations:
            if start == version and end not in ways:
                ways[end] = [*ways[version], (start, end)]
                todo.append(end)
    known = ", ".join(f"{start!r} to {end!r}" for start, end in graph.migrations) or "none"
    raise MigrationFailed(
        f"{where} was saved under version {since!r} and the graph has version {graph.version!r}, but no migration "
        f"leads there (there are: {known}); add one with @graph.migrate({since!r}, {graph.version!r})"
    )


def _migrated(
    where: str, frame: Frame, path: str, graph: Graph, steps: Path, codec: Codec
) -> Iterator[Migrated]:
    finished = [op for step in frame.active.values() if step.status == DONE for op in step.ops]
    cells = advance(frame.cells, finished)
    if any(op.kind == "reduce" for op in finished):
        try:
            cells = advance(cells, graph.schema.reduce(codec, cells, finished))
        except HoldfastError as error:
            raise MigrationFailed(
                f"{where}: what its unfinished wave has done cannot be taken in: {error}"
            ) from error
    known = {key: slot.encoded(codec) for key, slot in cells.items()}
    state = {key: thaw(slot.get()) for key, slot in cells.items()}
    for start, end in steps:
        what = f"{where}: the migration from version {start!r} to {end!r}"
        try:
            made = graph.migrations[start, end](state)
            state = state if made is None else dict(as_mapping(made, "what it returns"))
        except Exception as error:
            raise MigrationFailed(
                f"{what} failed, and nothing was changed: {type(error).__name__}: {error}"
            ) from error
        ops = list(_changes(what, known, state, codec))
        if (start, end) == steps[-1]:
            ops = _fitted(what, graph, state, ops, known, codec)
        yield Migrated(path, start, end, tuple(ops))
        known = {key: raw for key, raw in known.items() if key in state}
        known |= {op.key: op.raw for op in ops if op.kind == "set"}


def _changes(what: str, known: Mapping[str, bytes], state: Mapping[str, Any], codec: Codec) -> Iterator[Op]:
    """What a migration changed; what it left as it was is not written again."""
    for key in known:
        if key not in state:
            yield Op("drop", key, b"")
    for key, value in state.items():
        try:
            op = make_op(codec, "set", key, freeze(value)[0])
        except HoldfastError as error:
            raise MigrationFailed(f"{what} leaves what cannot be stored: {error}") from error
        if known.get(key) != op.raw:
            yield op


def _fitted(
    what: str, graph: Graph, state: Mapping[str, Any], ops: list[Op], known: Mapping[str, bytes], codec: Codec
) -> list[Op]:
    """The changes of the last migration as the schema takes them; one that it refuses is an error."""
    schema, changed = graph.schema, {op.key for op in ops if op.kind == "set"}
    fitted = [op for op in ops if op.kind != "set"]
    for key, value in state.items():
        if key not in changed and not schema.is_open and key not in schema.channels:
            continue  # What the schema no longer declares stays in the state of old runs.
        try:
            found = schema.replace(codec, {}, {key: value})
        except HoldfastError as error:
            raise MigrationFailed(
                f"{what} comes to a state that does not fit: {error}; nothing was changed"
            ) from error
        fitted += [op for op in found if op.raw != known.get(key)]
    return fitted


# Going on with a graph that may not be the one a run was saved with: what fits, and what is recorded about.


class Reconciled(NamedTuple):
    """What to go on with, how it differs from what was saved, and what is recorded before anything runs."""

    settings: Settings
    changes: tuple[str, ...]
    records: tuple[records.Record, ...]


def reconcile(settings: Settings, run: RunState, name: str, options: ResumeOptions) -> Reconciled:
    """Compare the graph with the one that a run was saved with, and make the run fit it; nothing is changed yet."""
    on_change = options.on_change or settings.on_change
    remap = options.remap or {}
    check_names(name, run, settings.graph, remap)
    differs = run.outline and run.outline != settings.outline
    changes = changes_between(run.outline, settings.outline, remap) if differs else []
    if changes and on_change == "fail":
        raise GraphChanged(f"the workflow changed since run {name!r} was saved: {'; '.join(changes)}")
    if changes and on_change == "use_saved":
        graph, outline = as_saved(settings.graph, run.outline), _at_version(run.outline, settings.graph)
        settings = dataclasses.replace(settings, graph=graph, outline=outline)
        changes = []
    else:
        check_nodes(name, run, settings.outline, remap)
    return Reconciled(settings, tuple(changes), tuple(_preparations(settings, run, name, options)))


def _preparations(
    settings: Settings, run: RunState, name: str, options: ResumeOptions
) -> Iterator[records.Record]:
    """What is recorded before anything runs, each record as the ones before it leave the run."""
    graph, codec, remap, known = settings.graph, settings.codec, options.remap or {}, bool(run.outline)
    migrated, saved = migrations(name, run, graph, remap, codec), run

    def made(record: records.Record) -> records.Record:
        nonlocal run
        if run is saved:
            run = copy_run(saved)
        apply(run, record, run.updated_at)
        return record

    if settings.outline != run.outline or remap:
        yield made(records.GraphChanged(settings.outline, tuple(remap.items())))
    for record in migrated:
        yield made(record)
    for path, ops in list(renamed_keys(run, options.rename_keys or {}, codec, graph)):
        yield made(records.StateEdited(path, ops))
    there = run.root.cells.keys() | {key for node in graph.nodes.values() for key in node.clears}
    if known and not there >= graph.schema.begun_keys:
        fresh = [op for op in graph.schema.initial(codec, {}) if op.key not in there]
        yield made(records.StateEdited("", tuple(fresh)))
    for edit in edits(graph, run, options.update or {}, codec):
        yield made(edit)


def brought_over(name: str, run: RunState, graph: Graph, codec: Codec) -> list[records.Record]:
    """What brings the state of a run to the version that the graph has, before it is changed by that graph's keys.

    Else the run stays one of the graph that it was saved with.
    """
    if not all(graph_at(graph, path) is not None for path in run.frames):
        return []
    migrated = migrations(name, run, graph, {}, codec)
    return [records.GraphChanged(_at_version(run.outline, graph)), *migrated] if migrated else []


_MOST_NAMES = 20
_PUT_BACK = Remedy(text="put it back")


def check_nodes(run_id: str, run: RunState, outline: Outline, remap: Mapping[str, str]) -> None:
    """Refuse a graph that lacks a node which the run is to run, or to follow the edges of, next."""
    steps, joins = missing_parts(run, outline, remap)
    renames: dict[str, str] = {}
    lacking: list[str] = []
    for step in steps:
        inner = outline_at(outline, renamed_path(step.frame, remap)) or outline
        hint, found = _new_name(run, inner["nodes"], step.frame, step.node)
        lacking.append(f"{base_name(qualified(step))!r}{hint}")
        renames |= found
    problem = f"is to go on with {', '.join(dict.fromkeys(lacking))}" if lacking else ""
    for target, *sources in joins if not lacking else ():
        problem = f"waits at the join of {', '.join(map(repr, sources))} before {target!r}"
    if problem:
        raise GraphChanged(
            f"run {run_id!r} {problem}, which the workflow no longer has",
            remedies=(_PUT_BACK, Remedy("resume", run_id, {"remap": renames or {"OLD": "NEW"}})),
        )


def missing_parts(
    run: RunState, outline: Outline, remap: Mapping[str, str]
) -> tuple[list[Step], list[list[str]]]:
    """Return the steps that a run is to go on with whose nodes a graph lacks, and the joins that it lacks.

    A join is its target, followed by its sources.
    """
    steps, joins = list[Step](), list[list[str]]()
    for frame in run.frames.values():
        if frame.is_body:
            continue  # Which steps it has its function says.
        own, names = outline_at(outline, renamed_path(frame.path, remap)), names_within(frame.path, remap)
        for step in frame.active.values():
            leads_itself = step.node == START or (step.status == DONE and step.goto is not None)
            if not leads_itself and names.get(step.node, step.node) not in own.get("nodes", {}):
                steps.append(step)
        known = [[target, *sorted(sources)] for sources, target in own.get("joins", ())]
        for join in frame.waiting if own else ():
            target, *sources = (names.get(node, node) for node in join.split("/"))
            if [target, *sorted(sources)] not in known:
                joins.append([target, *sources])
    return steps, joins


def graph_at(graph: Graph, path: str) -> Graph | None:
    """The (sub-)graph that the frame of a path runs, if there is one."""
    try:
        return graph.at(path)
    except KeyError:
        return None


def check_names(run_id: str, run: RunState, graph: Graph, remap: Mapping[str, str]) -> None:
    """Refuse a remap of or to nodes that there are not, or from one graph to another."""
    saved, now = list(outline_names(run.outline)), list(outline_names(graph.outline())) if remap else []
    for old, new in remap.items():
        if new not in now:
            raise GraphChanged(f"remap leads to {new!r}, which is not a node{_known(new, now)}")
        if saved and old not in saved:
            raise GraphChanged(f"remap renames {old!r}, which run {run_id!r} has not{_known(old, saved)}")
        if _home(old, remap) != new.rpartition("/")[0]:
            raise GraphChanged(
                f"remap leads from {old!r} to {new!r}, which is in another graph; nodes stay in theirs"
            )


def _known(name: str, nodes: Sequence[str]) -> str:
    """Return the nodes that there are, and the one that may be meant by a name."""
    steps = list(dict.fromkeys(map(base_name, nodes)))
    listed = ", ".join(map(repr, steps[:_MOST_NAMES])) + (", …" if len(steps) > _MOST_NAMES else "")
    return f"{suggestion(name, steps)}; there are {listed or 'none'}"


def _home(node: str, remap: Mapping[str, str]) -> str:
    """The sub-graph that a node is in, as it is called now."""
    home = node.rpartition("/")[0]
    if not home:
        return ""
    return (
        remap[home]
        if home in remap
        else "/".join(filter(None, [_home(home, remap), home.rpartition("/")[2]]))
    )


def _new_name(run: RunState, nodes: Outline, path: str, node: str) -> tuple[str, dict[str, str]]:
    """Return what a missing node may be called now, in words and as a remap."""
    saved = outline_at(run.outline, path).get("nodes", {})
    prefix = "".join(f"{part.rpartition('#')[0]}/" for part in path.split("/")) if path else ""
    found, old = look_alike(saved, nodes, node), base_name(prefix + node)
    if found:
        new = base_name(prefix + found)
        return f" (it looks like {old!r} was renamed to {new!r})", {old: new}
    if base_name(node) in nodes:
        return f", or rather its part {node!r}", {}
    close = closest(base_name(node), map(base_name, nodes))
    return ("", {}) if close is None else (f" (did you mean {close!r}?)", {old: prefix + close})


def as_saved(graph: Graph, outline: Mapping[str, Any]) -> Graph:
    """The graph with the saved structure and the present functions."""
    lost = [name for name in outline["nodes"] if name not in graph.nodes]
    if lost:
        raise GraphChanged(
            f"the saved graph needs nodes {', '.join(map(repr, lost))} that the workflow no longer has"
        )
    edges = []
    for source, target, label, conditional in outline["edges"]:
        when = None
        if conditional:
            matching = [
                e for e in graph.edges if (e.source, e.target) == (source, target) and e.when is not None
            ]
            if not matching:
                raise GraphChanged(
                    f"the saved graph has a condition on {source!r} -> {target!r} that the workflow no longer has"
                )
            when = matching[0].when
        edges.append(Edge(source, target, when, label))
    routes = []
    for source, _ in outline["routes"]:
        if source not in graph.route_from:
            raise GraphChanged(
                f"the saved graph has a routing function on {source!r} that the workflow no longer has"
            )
        routes.append(graph.route_from[source])
    nodes = {name: graph.nodes[name] for name in outline["nodes"]}
    for name, node in nodes.items():
        if node.graph is not None and "graph" in outline["nodes"][name]:
            inner = as_saved(node.graph, outline["nodes"][name]["graph"])
            nodes[name] = dataclasses.replace(node, graph=inner)
    return dataclasses.replace(
        graph,
        nodes=nodes,
        edges=tuple(edges),
        routes=tuple(routes),
        joins=tuple(Join(tuple(sources), target) for sources, target in outline["joins"]),
        exits=frozenset(outline["exits"]),
        last=outline.get("last"),
    )


def _at_version(outline: Mapping[str, Any], graph: Graph) -> dict[str, Any]:
    """A saved outline of a graph whose state is brought to the version that it has now."""
    nodes = {
        name: {**node, "graph": _at_version(node["graph"], inner)}
        if "graph" in node and name in graph.nodes and (inner := graph.nodes[name].graph) is not None
        else node
        for name, node in outline["nodes"].items()
    }
    own = {key: value for key, value in outline.items() if key != "version"}
    return {**own, "nodes": nodes, **({"version": graph.version} if graph.version else {})}
