"""Runs that were saved under another version of their graph: how their state is brought to the present one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest

from holdfast import (
    START,
    CannotReuse,
    ExecutionError,
    GraphChanged,
    GraphInvalid,
    MigrationFailed,
    Send,
    StateGraph,
    append,
)
from holdfast.journal.journal import Journal
from holdfast.journal.records import Migrated
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Crash, CrashingStore, raise_crash
from tests.engine.plan_checks import plan_and_resume

OLD = {"docs": list, "topic": str, "big": str}
NEW = {"papers": list, "topic": str, "big": str, "count": int}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR, "holdfast"):
        yield


def broken(state: Any) -> None:
    raise ValueError("429")


def started(store: Store, version: str = "v1") -> None:
    graph = StateGraph(OLD, name="w", version=version).add_node("b", broken)
    graph.add_node("a", lambda s: {"docs": ["x", "y"], "big": "b" * 100_000})
    with pytest.raises(ExecutionError):
        graph.add_edge(START, "a").add_edge("a", "b").compile(store).invoke({"topic": "t"}, run_id="r")


def newer(schema: Any = NEW, version: str = "v2", **ways: Callable[[dict[str, Any]], Any]) -> StateGraph:
    """The graph as it is now, with migrations such as v1_v2; "none" stands for no version."""
    graph = StateGraph(schema, name="w", version=version).add_node("a", lambda s: None)
    graph.add_node("b", lambda s: {"count": len(s["papers"])}).add_edge(START, "a").add_edge("a", "b")
    for way, function in ways.items():
        since, until = (part.replace("none", "") for part in way.split("_"))
        graph.migrate(since, until)(function)
    return graph


def renamed(state: dict[str, Any]) -> None:
    state["papers"] = state.pop("docs")


def migrations(store: Store, run: str = "r") -> list[tuple[str, str, list[tuple[str, str]]]]:
    journal = Journal(store)
    app = newer().compile(store)
    _, history = journal.history(journal.info(run), app._settings.codec)
    found = [record for _, records in history for record in records if isinstance(record, Migrated)]
    return [(each.since, each.until, [(op.kind, op.key) for op in each.ops]) for each in found]


def test_a_state_is_brought_to_the_version_of_the_graph_on_every_store(store: Store) -> None:
    """S0.15: applied and journalled on resume; what is untouched is not written again."""
    started(store)
    app = newer(v1_v2=renamed).compile(store)
    before = sum(len(entry.body) for entry in store.read("r"))

    done = plan_and_resume(app)

    assert done.outcome is not None
    assert done.outcome.state.to_dict() == {
        "papers": ["x", "y"],
        "count": 2,
        "topic": "t",
        "big": "b" * 100_000,
    }
    assert done.plan.migrations == ("the state is migrated from version 'v1' to 'v2'",)
    assert "the version changed from 'v1' to 'v2'" in done.plan.changes
    assert migrations(store) == [("v1", "v2", [("drop", "docs"), ("set", "papers")])]
    assert sum(len(entry.body) for entry in store.read("r")) - before < 5_000


def test_it_is_applied_once(store: Store) -> None:
    started(store)
    graph = newer(v1_v2=renamed)
    for _ in range(2):
        with pytest.raises(ExecutionError):
            again = StateGraph(NEW, name="w", version="v2").add_node("a", broken).add_node("b", broken)
            again.migrate("v1", "v2")(renamed)
            again.add_edge(START, "a").add_edge("a", "b").compile(store).resume("r")

    assert (
        list(graph.compile(store).resume("r").state["papers"]) == ["x", "y"] and len(migrations(store)) == 1
    )


def test_the_shortest_chain_is_taken() -> None:
    store = MemoryStore()
    started(store, "v1")
    seen: list[str] = []

    def noted(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def step(state: dict[str, Any]) -> dict[str, Any]:
            seen.append(name)
            return {**{key: value for key, value in state.items() if key != "docs"}, "papers": [name]}

        return step

    ways = {"v1_v2": noted("12"), "v2_v3": noted("23"), "v3_v4": noted("34"), "v1_v3": noted("13")}
    newer(version="v4", **ways).compile(store).resume("r")

    assert seen == ["13", "34"]
    assert migrations(store) == [
        ("v1", "v3", [("drop", "docs"), ("set", "papers")]),
        ("v3", "v4", [("set", "papers")]),
    ]


def test_a_run_without_a_version_counts_as_the_empty_one() -> None:
    store = MemoryStore()
    started(store, "")

    assert newer(version="v1", none_v1=renamed).compile(store).resume("r").state["count"] == 2


def test_no_way_to_the_version_is_an_error_that_names_those_known() -> None:
    store = MemoryStore()
    started(store)
    app = newer(version="v9", v1_v2=renamed).compile(store)
    before = list(store.read("r"))

    done = plan_and_resume(app)

    wanted = r"version 'v1' and the graph has version 'v9', but no migration leads there \(there are: 'v1' to 'v2'\)"
    with pytest.raises(MigrationFailed, match=wanted):
        app.resume("r")
    assert "@graph.migrate('v1', 'v9')" in done.plan.refused and list(store.read("r")) == before
    with pytest.raises(MigrationFailed, match="the graph has version ''"):
        newer(version="").compile(store).resume("r")


def fails(state: dict[str, Any]) -> None:
    raise LookupError("no such thing")


def unfit(state: dict[str, Any]) -> dict[str, Any]:
    return {"paperz": state["docs"]}


def unstorable(state: dict[str, Any]) -> dict[str, Any]:
    return {"papers": [object()]}


def wrong_type(state: dict[str, Any]) -> Any:
    return 7


@pytest.mark.parametrize(
    ("migration", "reason"),
    [
        (fails, "failed, and nothing was changed: LookupError: no such thing"),
        (unfit, "comes to a state that does not fit: unknown state key 'paperz'"),
        (unstorable, "leaves what cannot be stored: state key 'papers'"),
        (wrong_type, "failed, and nothing was changed"),
    ],
)
def test_a_failing_migration_changes_nothing(migration: Callable[..., Any], reason: str) -> None:
    store = MemoryStore()
    started(store)
    app = newer(v1_v2=migration).compile(store)
    before = list(store.read("r"))

    with pytest.raises(MigrationFailed, match=f"run 'r': the migration from version 'v1' to 'v2' {reason}"):
        app.resume("r")
    assert reason in app.plan_resume("r").refused
    assert list(store.read("r")) == before


def test_a_fork_from_an_old_checkpoint_is_migrated_too(store: Store) -> None:
    """S0.14, S1.15: an older checkpoint is of the version that it was saved under."""
    started(store)
    app = newer(v1_v2=renamed).compile(store)
    app.resume("r")
    old = app.checkpoints("r")[0]

    forked = app.resume(old.id)

    assert (
        forked.run_id != "r"
        and forked.state["count"] == 2
        and "docs" in app.get_state("r", checkpoint_id=old.id)
    )
    assert migrations(store, forked.run_id) == migrations(store)


def test_an_open_sub_graph_has_a_version_of_its_own() -> None:
    def graph(last: Callable[..., Any], key: str, version: str) -> StateGraph:
        def first(state: Any) -> dict[str, Any]:
            return {key: [1], "n": 1}

        inner = StateGraph({key: list, "n": int}, name="inner", version=version).add_node("x", first)
        inner.add_node("y", last).add_edge(START, "x").add_edge("x", "y")
        if version == "2":
            inner.migrate("1", "2")(lambda state: state.update(new=state.pop("old")))
        made = StateGraph({key: list, "n": int}, name="w", version=version)
        if version == "2":
            made.migrate("1", "2")(lambda state: state.update(new=state.pop("old", [0])))
        return made.add_node("outer", inner).add_edge(START, "outer")

    store = MemoryStore()
    with pytest.raises(ExecutionError):
        graph(broken, "old", "1").compile(store).invoke({"old": [0]}, run_id="r")
    done = plan_and_resume(graph(lambda s: {"n": len(s["new"]) + 4}, "new", "2").compile(store))

    assert done.outcome is not None and done.outcome.state.to_dict() == {"new": [1], "n": 5}
    assert done.plan.migrations == (
        "the state is migrated from version '1' to '2'",
        "the state of 'outer#1' is migrated from version '1' to '2'",
    )


def test_what_finished_siblings_did_is_brought_over_with_the_rest() -> None:
    """The wave is not finished: what its steps did is not yet a part of the state."""

    def graph(key: str, second: Callable[..., Any], version: str) -> StateGraph:
        made = StateGraph({"n": int, key: Annotated[list[int], append]}, name="w", version=version)
        made.add_node("item", second).add_node("end", lambda s: {"n": 0})
        made.add_conditional_edges(START, lambda s: [Send("item", {"n": n}, key=str(n)) for n in range(3)])
        if version:
            made.migrate("", "1")(lambda state: state.update(new=[10 * n for n in state.pop("old")]))
        return made.add_edge("item", "end")

    def even(state: Any) -> dict[str, Any]:
        if state["n"] == 1:
            raise ValueError("odd")
        return {"old": [state["n"] + 1]}

    store = MemoryStore()
    with pytest.raises(ExecutionError):
        graph("old", even, "").compile(store).invoke({}, run_id="r")
    outcome = graph("new", lambda s: {"new": [7]}, "1").compile(store).resume("r")

    assert list(outcome.state["new"]) == [10, 30, 7] and "old" not in outcome.state


@pytest.mark.parametrize("point", ["before", "committed"])
def test_a_crash_at_any_append_migrates_once_in_the_end(point: Any) -> None:
    reference = MemoryStore()
    started(reference)
    wanted = newer(v1_v2=renamed).compile(reference).resume("r").state.to_dict()
    crashes = 0
    while True:
        store = MemoryStore()
        started(store)
        crashing = CrashingStore(store, crashes + 1, point, raise_crash)
        try:
            newer(v1_v2=renamed).compile(crashing).resume("r")
            break
        except Crash:
            crashes += 1
        if store.runs(run="r")[0].status != "completed":
            newer(v1_v2=renamed).compile(store).resume("r", takeover=True)
        assert newer().compile(store).get_state("r").to_dict() == wanted and len(migrations(store)) == 1
    assert crashes == 2


def test_the_saved_structure_is_of_the_new_version_once_its_state_is() -> None:
    store = MemoryStore()
    started(store)
    for _ in range(2):
        graph = newer(v1_v2=renamed).add_node("c", broken).add_edge("b", "c")
        graph._nodes["b"] = StateGraph(NEW).add_node("b", broken).build().nodes["b"]
        with pytest.raises(ExecutionError):
            graph.compile(store).resume("r", on_change="use_saved")

    assert len(migrations(store)) == 1


@pytest.mark.parametrize(
    ("version", "ways", "problem"),
    [
        ("2", [("1", "2"), ("1", "2")], "two migrations from version '1' to '2'"),
        ("2", [("1", "1")], "leads from version '1' to itself"),
        ("", [("1", "2")], "and the graph has none: StateGraph"),
    ],
)
def test_migrations_that_make_no_sense_are_refused(
    version: str, ways: list[tuple[str, str]], problem: str
) -> None:
    graph = StateGraph(dict, version=version).add_node("a", lambda s: None).add_edge(START, "a")
    for way in ways:
        graph.migrate(*way)(renamed)

    with pytest.raises(GraphInvalid, match=problem):
        graph.compile("memory://")


def test_a_graph_without_a_version_has_the_outline_that_it_always_had() -> None:
    outline = newer(version="").build().outline()

    assert "version" not in outline and newer().build().outline()["version"] == "v2"


def test_a_plan_that_goes_back_behind_a_migration_tells_of_it() -> None:
    store = MemoryStore()

    def graph(version: str, key: str, *, code: str = "1", fails: bool = False) -> StateGraph:
        def count(state: Any) -> dict[str, Any]:
            return {"count": 1 // (not fails) * len(state[key])}

        made = StateGraph({key: list, "count": int}, name="w", version=version)
        made.add_node("a", lambda state: {key: ["x"]}, version="1").add_node("b", count, version=code)
        return made.add_edge(START, "a").add_edge("a", "b")

    with pytest.raises(ExecutionError):
        graph("v1", "docs", fails=True).compile(store).invoke(run_id="r")
    now = graph("v2", "papers")
    now.migrate("v1", "v2")(renamed)
    now.compile(store).resume("r")
    then = graph("v2", "papers", code="2")
    then.migrate("v1", "v2")(renamed)
    app = then.compile(store)
    plan = app.plan_resume("r", rerun_changed=True)

    assert plan.back_to and plan.migrations == ("the state is migrated from version 'v1' to 'v2'",)
    assert app.resume("r", rerun_changed=True, plan=plan).state["papers"] == ["x"]
    assert len(migrations(store)) == 2


def test_what_is_changed_of_an_old_state_is_changed_after_it_was_brought_over(store: Store) -> None:
    started(store)
    app = newer(v1_v2=renamed).compile(store, on_change="fail")
    fork = app.fork("r", 1, update={"papers": ["z"]})

    assert dict(app.get_state(fork)) == {"topic": "t", "big": "b" * 100_000, "papers": ["z"]}
    assert [since for since, *_ in migrations(store, fork)] == ["v1"]
    assert "docs" in app.get_state("r")
    with pytest.raises(GraphChanged):
        app.resume(fork)  # Its nodes are others; that its state was brought over does not hide it.
    lenient = newer(v1_v2=renamed).compile(store)
    assert lenient.resume(fork).state["count"] == 1 and len(migrations(store, fork)) == 1
    lenient.update_state("r", {"papers": []})
    assert lenient.resume("r").state["count"] == 0


def test_what_cannot_be_brought_over_is_not_changed() -> None:
    store = MemoryStore()
    started(store)

    with pytest.raises(MigrationFailed, match="no migration leads there"):
        newer().compile(store).fork("r", 1, update={"papers": ["z"]})
    assert len(store.runs()) == 1


def test_the_inputs_of_a_run_that_is_used_again_are_brought_over() -> None:
    store = MemoryStore()

    def graph(version: str, key: str) -> StateGraph:
        made = StateGraph({key: str, "seen": str}, name="w", version=version)
        made.add_node("a", lambda state: {"seen": state.get(key)})
        return made.add_edge(START, "a")

    graph("v1", "topic").compile(store).invoke({"topic": "tides"}, run_id="r")
    now = graph("v2", "subject")
    with pytest.raises(CannotReuse, match=r"no migration leads there.*give the new run its own"):
        now.compile(store).invoke(reuse="r")
    now.migrate("v1", "v2")(lambda state: {"subject": state["topic"]})

    assert dict(now.compile(store).invoke(reuse="r").state) == {"subject": "tides", "seen": "tides"}
