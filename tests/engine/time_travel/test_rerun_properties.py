"""Random graphs, run again with random changes: what is taken over, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import END, START, Send, StateGraph, append, open_store
from holdfast.engine.app import App
from holdfast.stores.base import Store
from holdfast.views.projection import project

KEYS = ("p", "q", "r")
SCHEMA = {"p": int, "q": int, "r": int, "item": int, "log": Annotated[list[str], append]}


@dataclass(frozen=True)
class Spec:
    """A node: which nodes it comes after, what it reads (`None`: all) and writes, how often, and its version."""

    after: tuple[int, ...]
    reads: tuple[str, ...] | None
    writes: tuple[str, ...]
    items: int = 0
    again: int = 0
    """How often it sends the run back to itself."""
    version: int = 1


Ran = list[tuple[str, int, tuple[tuple[str, Any], ...]]]


@st.composite
def graphs(draw: st.DrawFn, *, plain: bool = False) -> list[Spec]:
    found = []
    for place in range(draw(st.integers(2, 6))):
        after = tuple(sorted(draw(st.sets(st.integers(0, place - 1), max_size=2)))) if place else ()
        reads = draw(st.none() | st.sets(st.sampled_from(KEYS)).map(lambda keys: tuple(sorted(keys))))
        writes = tuple(sorted(draw(st.sets(st.sampled_from(KEYS), max_size=2))))
        kind = "plain" if plain else draw(st.sampled_from(["plain", "plain", "items", "again"]))
        items, again = (
            draw(st.integers(1, 3)) * (kind == "items"),
            draw(st.integers(1, 2)) * (kind == "again"),
        )
        found.append(Spec(after, reads, () if items > 1 else writes, items, again))
    return _without_parallel_writes(found)


def _without_parallel_writes(specs: list[Spec]) -> list[Spec]:
    """The same nodes, of which no two that may run at the same time set the same key."""
    found: list[Spec] = []
    before: list[set[int]] = []
    for place, spec in enumerate(specs):
        before.append(set(spec.after).union(*(before[other] for other in spec.after)))
        beside = {key for other in range(place) if other not in before[place] for key in found[other].writes}
        found.append(replace(spec, writes=tuple(key for key in spec.writes if key not in beside)))
    return found


def app_of(specs: list[Spec], store: Store, ran: Ran) -> App:
    graph = StateGraph(SCHEMA, name="random")
    for place, spec in enumerate(specs):
        name = f"n{place}"
        graph.add_node(name, worker(name, spec, ran), reads=reads_of(spec), version=str(spec.version))
        if spec.items:
            graph.add_node(f"{name}s", lambda state: {}, reads=[], version="1")
            graph.add_conditional_edges(f"{name}s", sending(name, spec.items), [name])
        if spec.again:
            graph.add_node(f"{name}e", lambda state: {}, reads=[], version="1")
            graph.add_conditional_edges(name, repeating(name, spec.again), [name, f"{name}e"])
    for place, spec in enumerate(specs):
        first = f"n{place}s" if spec.items else f"n{place}"
        before = [f"n{other}e" if specs[other].again else f"n{other}" for other in spec.after] or [START]
        graph.add_edge(before[0] if len(before) == 1 else before, first)
        if not any(place in other.after for other in specs):
            graph.add_edge(f"n{place}e" if spec.again else f"n{place}", END)
    return graph.compile(store)


def reads_of(spec: Spec) -> list[str] | None:
    return None if spec.reads is None else [*spec.reads, *(["item"] if spec.items else [])]


def worker(name: str, spec: Spec, ran: Ran) -> Any:
    def work(state: Mapping[str, Any], ctx: Any) -> dict[str, Any]:
        seen = tuple(
            sorted((key, str(state[key])) for key in state if spec.reads is None or key in reads_of(spec))
        )
        ran.append((ctx.step, spec.version, seen))
        return outcome(name, spec, seen)

    return work


def outcome(name: str, spec: Spec, seen: Any) -> dict[str, Any]:
    # Small results, so that a change now and then comes to the same.
    values = {key: crc32(f"{name} {spec.version} {key} {seen}".encode()) % 3 for key in spec.writes}
    return {**values, "log": [f"{name}.{spec.version}"]}


def sending(name: str, items: int) -> Any:
    return lambda state: [Send(name, {"item": item}, str(item)) for item in range(items)]


def repeating(name: str, again: int) -> Any:
    def choose(state: Mapping[str, Any]) -> str:
        visits = [entry for entry in state["log"] if entry.startswith(f"{name}.")]
        return name if len(visits) <= again else f"{name}e"

    return choose


def changed(specs: list[Spec], places: set[int]) -> list[Spec]:
    return [replace(spec, version=2) if place in places else spec for place, spec in enumerate(specs)]


BEGINNING = {"p": 0, "q": 0, "r": 0}


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sets(st.integers(0, 5), max_size=2), st.booleans())
def test_reusing_ends_as_a_run_from_scratch_and_runs_just_what_is_not_the_same(
    specs: list[Spec], places: set[int], other_input: bool
) -> None:
    store, ran, scratch = open_store("memory://"), Ran(), Ran()
    app_of(specs, store, ran).invoke(BEGINNING, run_id="source")
    before, begin = set(ran), {**BEGINNING, "p": 1} if other_input else BEGINNING
    ran.clear()
    new = changed(specs, places)
    expected = app_of(new, open_store("memory://"), scratch).invoke(begin)

    found = app_of(new, store, ran).invoke(begin, reuse="source")

    assert found.state == expected.state
    assert sorted(ran) == sorted(set(scratch) - before)


@settings(max_examples=40, deadline=None)
@given(graphs(plain=True), st.sets(st.integers(0, 5), min_size=1, max_size=2))
def test_the_cone_of_a_change_runs_again_and_all_else_is_kept_whatever_the_state(
    specs: list[Spec], places: set[int]
) -> None:
    store, ran = open_store("memory://"), Ran()
    app = app_of(specs, store, ran)
    app.invoke(BEGINNING, run_id="r")
    kept = changes_made(app)
    ran.clear()
    new = changed(specs, places)
    again = cone(specs, places, kept)
    if not again:
        return

    found = app_of(new, store, ran).resume("r", rerun_changed=True)

    state, order = model(new, {f"n{place}" for place in again}, kept)
    names, wave = [name.partition("#")[0] for name, *_ in ran], levels(specs)
    assert sorted(names, key=lambda name: (wave[int(name[1:])], name)) == order, "in each wave in any order"
    assert [wave[int(name[1:])] for name in names] == sorted(wave[int(name[1:])] for name in names)
    assert {key: found.state[key] for key in state} == state
    assert app_of(new, store, ran).get_state("r") == found.state


def changes_made(app: App) -> dict[str, dict[str, Any]]:
    """What each node changed: one that set a key to what it held already may have changed nothing."""
    past = project(app._settings.journal, app._settings.codec, app._settings.journal.info("r"))
    return {found.node: {op.key: op.value for op in found.record.ops} for found in past.finishes.values()}


def cone(specs: list[Spec], seeds: set[int], changes: dict[str, dict[str, Any]]) -> set[int]:
    """By the definition: what changed, what comes after it, and who says that it reads what such a node has changed,
    if it ran after the first of those that changed."""
    found = first = {place for place in seeds if place < len(specs)}
    while True:
        after = {place for place, spec in enumerate(specs) if found & set(spec.after)}
        written = {key for place in found for key in changes[f"n{place}"]}
        reading = {
            place for place, spec in enumerate(specs) if spec.reads is not None and written & set(spec.reads)
        }
        if after | reading <= found:
            break
        found = found | after | reading
    level = levels(specs)
    return {place for place in found if place in first or level[place] > min(level[each] for each in first)}


def levels(specs: list[Spec]) -> list[int]:
    """The wave in which each node runs."""
    found: list[int] = []
    for spec in specs:
        found.append(max((found[other] + 1 for other in spec.after), default=0))
    return found


def model(
    specs: list[Spec], again: set[str], kept: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the expected state: affected nodes are computed, the updates of the others are applied again."""
    state: dict[str, Any] = {**BEGINNING, "log": []}
    order: list[str] = []
    places = levels(specs)
    for level in range(max(places) + 1):
        results = []
        for place in [place for place, at in enumerate(places) if at == level]:
            name, spec = f"n{place}", specs[place]
            if name in again:
                order.append(name)
                keys = [key for key in state if spec.reads is None or key in spec.reads]
                seen = tuple(sorted((key, str(state[key])) for key in keys))
                results.append(outcome(name, spec, seen))
            else:
                results.append(kept[name])
        for update in results:
            log = [*state["log"], *update["log"]]
            state = {**state, **update, "log": log}
    return state, order
