"""Going on with a graph that may not be the one a run was saved with: what fits, and what is recorded about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.data.codec import Codec
from holdfast.data.ops import Op, advance
from holdfast.engine.changes import changes_between, look_alike
from holdfast.engine.driving.decide import qualified
from holdfast.engine.migrating import migrations
from holdfast.engine.resume import ResumeOptions, edits
from holdfast.engine.settings import Settings
from holdfast.errors import GraphChanged
from holdfast.journal import records
from holdfast.journal.fold import apply
from holdfast.journal.run_state import DONE, RunState, copy_run, names_within, renamed_path
from holdfast.plan.graph import Edge, Graph, Join, Node
from holdfast.plan.naming import base_name, outline_at, outline_names, renamed
from holdfast.suggestions import closest, suggestion
from holdfast.values import START


class Reconciled(NamedTuple):
    """What to go on with, how it differs from what was saved, and what is recorded before anything runs."""

    settings: Settings
    changes: tuple[str, ...]
    records: tuple[records.Record, ...]


def reconcile(settings: Settings, run: RunState, name: str, options: ResumeOptions) -> Reconciled:
    """Compare the graph with the one that a run was saved with, and make the run fit it; nothing is changed yet."""
    on_change = options.on_change or settings.on_change
    remap = options.remap or {}
    differs = run.outline and run.outline != settings.outline
    changes = changes_between(run.outline, settings.outline, remap) if differs else []
    if changes and on_change == "fail":
        raise GraphChanged(f"the graph changed since run {name!r} was saved: {'; '.join(changes)}")
    if changes and on_change == "use_saved":
        graph, outline = as_saved(settings.graph, run.outline), _at_version(run.outline, settings.graph)
        settings = dataclasses.replace(settings, graph=graph, outline=outline)
        changes = []
    else:
        check_nodes(name, run, settings.graph, remap)
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
    for renaming in list(_renamed_keys(graph, run, options.rename_keys or {}, codec)):
        yield made(renaming)
    if known and not run.root.cells.keys() >= graph.schema.begun_keys:
        fresh = [op for op in graph.schema.initial(codec, {}) if op.key not in run.root.cells]
        yield made(records.StateEdited("", tuple(fresh)))
    for edit in edits(graph, run, options.update or {}, codec):
        yield made(edit)


def brought_over(name: str, run: RunState, graph: Graph, codec: Codec) -> list[records.Record]:
    """What brings the state of a run to the version that the graph has, for whoever changes it by that graph's keys.

    Else the run stays one of the graph that it was saved with.
    """
    if not all(graph_at(graph, path) is not None for path in run.frames):
        return []
    migrated = migrations(name, run, graph, {}, codec)
    return [records.GraphChanged(_at_version(run.outline, graph)), *migrated] if migrated else []


def _renamed_keys(
    graph: Graph, run: RunState, names: Mapping[str, str], codec: Codec
) -> Iterator[records.StateEdited]:
    """What is under keys that are called otherwise now, under their new names, unfinished waves included."""
    for frame in run.frames.values() if names else ():
        schema = graph.at(frame.path).schema
        finished = [op for step in frame.active.values() if step.status == DONE for op in step.ops]
        cells = advance(frame.cells, finished)
        ops = [
            Op("set", new, cells[old].encoded(codec), codec=codec)
            for old, new in renamed(names, cells).items()
            if schema.is_open or new in schema.channels
        ]
        if ops:
            yield records.StateEdited(frame.path, tuple(ops))


def check_nodes(run_id: str, run: RunState, graph: Graph, remap: Mapping[str, str]) -> None:
    """Refuse a graph that lacks a node which the run is to run, or to follow the edges of, next."""
    _check_names(run_id, run, graph, remap)
    missing: dict[str, str] = {}
    for frame in run.frames.values():
        names, path = names_within(frame.path, remap), renamed_path(frame.path, remap) if frame.path else ""
        inner = graph_at(graph, path)
        for step in frame.active.values():
            if step.node == START or (step.status == DONE and step.goto is not None):
                continue
            if inner is None or names.get(step.node, step.node) not in inner.nodes:
                missing[qualified(step)] = _way_out(
                    run, graph if inner is None else inner, frame.path, step.node
                )
        for join in frame.waiting if inner is not None else ():
            _check_join(run_id, inner, join, names)
    if missing:
        told = ", ".join(f"{name!r}{hint}" for name, hint in missing.items())
        raise GraphChanged(
            f"run {run_id!r} is to go on with node {told}, which the graph no longer has; "
            "put it back, or resume with remap={'old': 'new'}"
        )


def graph_at(graph: Graph, path: str) -> Graph | None:
    """The (sub-)graph that the frame of a path runs, if there is one."""
    try:
        return graph.at(path)
    except KeyError:
        return None


def _check_names(run_id: str, run: RunState, graph: Graph, remap: Mapping[str, str]) -> None:
    saved, now = list(outline_names(run.outline)), list(outline_names(graph.outline())) if remap else []
    for old, new in remap.items():
        if new not in now:
            raise GraphChanged(
                f"remap leads to {new!r}, which is not a node{suggestion(new, map(base_name, now))}"
            )
        if saved and old not in saved:
            raise GraphChanged(
                f"remap renames {old!r}, which run {run_id!r} has not{suggestion(old, map(base_name, saved))}"
            )
        if _home(old, remap) != new.rpartition("/")[0]:
            raise GraphChanged(
                f"remap leads from {old!r} to {new!r}, which is in another graph; nodes stay in theirs"
            )


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


def _way_out(run: RunState, graph: Graph, path: str, node: str) -> str:
    """What a missing node may be called now."""
    saved = outline_at(run.outline, path).get("nodes", {})
    prefix = "".join(f"{part.rpartition('#')[0]}/" for part in path.split("/")) if path else ""
    found, old = look_alike(saved, graph.outline()["nodes"], node), base_name(prefix + node)
    if found:
        new = base_name(prefix + found)
        return f" (it looks like {old!r} was renamed to {new!r}: remap={{{old!r}: {new!r}}})"
    close = closest(base_name(node), map(base_name, graph.nodes))
    return "" if close is None else f" (did you mean {close!r}? then remap={{{old!r}: {prefix + close!r}}})"


def _check_join(run_id: str, graph: Graph | None, join: str, names: Mapping[str, str]) -> None:
    target, *sources = (names.get(node, node) for node in join.split("/"))
    joins = () if graph is None else graph.joins
    if not any(known.target == target and sorted(known.sources) == sorted(sources) for known in joins):
        raise GraphChanged(
            f"run {run_id!r} waits at the join of {', '.join(map(repr, sources))} before {target!r}, which the "
            "graph no longer has; put it back, or resume with remap={'old': 'new'}"
        )


def as_saved(graph: Graph, outline: Mapping[str, Any]) -> Graph:
    """The graph with the saved structure and the present functions."""
    lost = [name for name in outline["nodes"] if name not in graph.nodes]
    if lost:
        raise GraphChanged(
            f"the saved graph needs nodes {', '.join(map(repr, lost))} that the graph no longer has"
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
                    f"the saved graph has a condition on {source!r} -> {target!r} that the graph no longer has"
                )
            when = matching[0].when
        edges.append(Edge(source, target, when, label))
    routes = []
    for source, _ in outline["routes"]:
        if source not in graph.route_from:
            raise GraphChanged(
                f"the saved graph has a routing function on {source!r} that the graph no longer has"
            )
        routes.append(graph.route_from[source])
    return dataclasses.replace(
        graph,
        nodes={name: _node_as_saved(graph.nodes[name], saved) for name, saved in outline["nodes"].items()},
        edges=tuple(edges),
        routes=tuple(routes),
        joins=tuple(Join(tuple(sources), target) for sources, target in outline["joins"]),
        exits=frozenset(outline["exits"]),
        last=outline.get("last"),
    )


def _node_as_saved(node: Node, saved: Mapping[str, Any]) -> Node:
    if node.graph is None or "graph" not in saved:
        return node
    return dataclasses.replace(node, graph=as_saved(node.graph, saved["graph"]))


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
