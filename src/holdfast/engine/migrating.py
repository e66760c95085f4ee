"""Bringing the state of a run from the version that it was saved under to the one that the graph has now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.frozen import freeze, thaw
from holdfast.data.ops import Cells, Op, advance, make_op
from holdfast.data.schema import as_mapping
from holdfast.errors import HoldfastError, MigrationFailed
from holdfast.journal.records import Migrated
from holdfast.journal.run_state import DONE, Frame, RunState, renamed_path
from holdfast.plan.graph import Graph
from holdfast.plan.naming import outline_at

Path = list[tuple[str, str]]


def migrations(
    name: str, run: RunState, graph: Graph, remap: Mapping[str, str], codec: Codec
) -> list[Migrated]:
    """What brings the state of a run, and of its open sub-graphs, to the versions that their graphs have now.

    Nothing is changed here. What cannot be brought over, or comes to something that the schema refuses, raises
    `MigrationFailed`.
    """
    found: list[Migrated] = []
    for frame in run.frames.values():
        path = renamed_path(frame.path, remap) if frame.path else ""
        now = graph.at(path)
        since = str(outline_at(run.outline, frame.path).get("version", ""))
        if since != now.version and run.outline:
            where = f"run {name!r}" if not path else f"run {name!r}, sub-graph {path!r}"
            found += _migrated(where, frame, path, now, _path(where, now, since), codec)
    return found


def planned_migrations(run: RunState, graph: Graph, remap: Mapping[str, str]) -> list[str]:
    """The migrations that a resume would apply, in words."""
    told = []
    for frame in run.frames.values():
        path = renamed_path(frame.path, remap) if frame.path else ""
        since = str(outline_at(run.outline, frame.path).get("version", ""))
        for step in (
            _path("", graph.at(path), since) if run.outline and since != graph.at(path).version else ()
        ):
            told.append(
                "the state{} is brought from version {!r} to {!r}".format(
                    f" of {path!r}" if path else "", *step
                )
            )
    return told


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
        cells = advance(cells, _reduced(where, graph, cells, finished, codec))
    known = {key: slot.encoded(codec) for key, slot in cells.items()}
    state = {key: thaw(slot.get()) for key, slot in cells.items()}
    for start, end in steps:
        what = f"{where}: the migration from version {start!r} to {end!r}"
        state = _applied(what, graph, start, end, state)
        ops = list(_changes(what, known, state, codec))
        if (start, end) == steps[-1]:
            ops = _fitted(what, graph, state, ops, known, codec)
        yield Migrated(path, start, end, tuple(ops))
        known = {key: raw for key, raw in known.items() if key in state}
        known |= {op.key: op.raw for op in ops if op.kind == "set"}


def _reduced(where: str, graph: Graph, cells: Cells, ops: list[Op], codec: Codec) -> list[Op]:
    try:
        return graph.schema.reduce(codec, cells, ops)
    except HoldfastError as error:
        raise MigrationFailed(
            f"{where}: what its unfinished wave has done cannot be taken in: {error}"
        ) from error


def _applied(what: str, graph: Graph, start: str, end: str, state: dict[str, Any]) -> dict[str, Any]:
    try:
        made = graph.migrations[start, end](state)
        return state if made is None else dict(as_mapping(made, "what it returns"))
    except Exception as error:
        raise MigrationFailed(
            f"{what} failed, and nothing was changed: {type(error).__name__}: {error}"
        ) from error


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
