"""Random graphs, and random operations on their runs: every remaining checkpoint stays the same."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from holdfast import END, START, App, CommandRefused, HoldfastError, Send, StateGraph, open_store
from holdfast.journal import writer
from holdfast.journal.copying import delete_run, prune_run
from tests.engine.time_travel.mirror_store import Mirrored
from tests.graphs import Log, says

NODES = "abcde"


def node(name: str, kind: str) -> Any:
    """A node that says its name, after asking, or with a large value that changes a little, if it is of that kind."""

    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [f"{name}: {ctx.ask('well?')}"]}

    def write(state: Any) -> dict[str, Any]:
        key = f"text_{name}"
        return {key: state.get(key, "x" * 3000) + f"{name}\n", "log": [name]}

    return {"ask": ask, "write": write}.get(kind) or says(name)


class State(Log, total=False):
    """What nodes that may run together write has a key for each of them."""

    text_a: str
    text_b: str
    text_c: str
    text_d: str
    text_e: str
    text_x: str


@st.composite
def graphs(draw: st.DrawFn) -> StateGraph:
    """A DAG of up to five nodes, of which one may be a sub-graph and one may be repeated for items."""
    count = draw(st.integers(2, len(NODES)))
    names = NODES[:count]
    graph = StateGraph(State, name="w")
    inner = draw(st.sampled_from([*names, None, None]))
    items = draw(st.sampled_from([*names[1:], None]))
    for name in names:
        if name == inner:
            sub = StateGraph(State, name="sub")
            sub.add_node("x", node("x", draw(st.sampled_from(["say", "ask", "write"]))))
            sub.add_node("y", says("y"))
            sub.add_edge(START, "x").add_edge("x", "y").add_edge("y", END)
            graph.add_node(name, sub)
        else:
            kinds = ["say", "say", "ask"] + ["write"] * (name != items)
            graph.add_node(name, node(name, draw(st.sampled_from(kinds))))
    graph.add_edge(START, names[0])
    after: dict[str, set[str]] = {name: set() for name in names}
    for index, name in enumerate(names[1:], 1):
        for source in draw(st.sets(st.sampled_from(names[:index]), min_size=1, max_size=2)):
            after[source].add(name)
    for name, targets in after.items():
        if items in targets and items != inner:
            sends = [Send(items, {"n": number}, key=f"{name}{number}") for number in range(3)]
            rest = sorted(targets - {items})
            graph.add_conditional_edges(
                name, lambda state, sends=sends, rest=rest: [*sends, *rest], sorted(targets)
            )
            continue
        for target in sorted(targets) or [END]:
            graph.add_edge(name, target)
    return graph


class Travels(RuleBasedStateMachine):
    """Runs are begun, answered, edited, forked, set back, promoted, pruned and deleted, in any order."""

    runs = Bundle("runs")
    url = "memory://"

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.kept: set[tuple[str, int]] = set()

    @initialize(graph=graphs())
    def begin(self, graph: StateGraph) -> None:
        self.store = Mirrored(open_store(self.place()))
        self.app: App = graph.compile(self.store)

    def place(self) -> str:
        return self.url

    def name(self) -> str:
        self.count += 1
        return f"r{self.count}"

    def there(self, run: str) -> bool:
        return bool(self.store.runs(run=run))

    def moment(self, run: str, place: int) -> str | None:
        points = self.app.checkpoints(run)
        return points[place % len(points)].id if points else None

    @rule(target=runs, number=st.integers(0, 9))
    def start(self, number: int) -> str:
        run = self.name()
        self.app.invoke({"n": number}, run_id=run)
        return run

    @rule(run=runs, word=st.sampled_from(["yes", "no"]))
    def resume(self, run: str, word: str) -> None:
        if not self.there(run) or self.store.runs(run=run)[0].status == "completed":
            return
        pauses = [pause for pause in self.app.pauses(run) if pause.kind == "ask"]
        self.app.resume(run, answers={pause.id: word for pause in pauses} or None)

    @rule(run=runs, number=st.integers(10, 19), word=st.sampled_from(["edited", "changed"]))
    def edit(self, run: str, number: int, word: str) -> None:
        if self.there(run):
            with contextlib.suppress(CommandRefused, HoldfastError):
                self.app.edit(run, {"n": number, "log": [word]})

    @rule(target=runs, run=runs, place=st.integers(0, 20), number=st.none() | st.integers(20, 29))
    def fork(self, run: str, place: int, number: int | None) -> Any:
        at = self.moment(run, place) if self.there(run) else None
        if at is None:
            return multiple()
        update = None if number is None else {"n": number, "log": ["forked"]}
        before = self.app.get_state(run, checkpoint_id=at).to_dict()
        fork = self.app.fork(run, at=at, update=update, run_id=self.name())
        if update is None:
            assert self.app.get_state(fork).to_dict() == before
        return fork

    @rule(target=runs, run=runs, place=st.integers(0, 20), name=st.sampled_from(NODES))
    def fork_as(self, run: str, place: int, name: str) -> Any:
        at = self.moment(run, place) if self.there(run) else None
        if at is None or name not in self.app.graph.nodes or self.app.graph.nodes[name].graph is not None:
            return multiple()
        try:
            return self.app.fork(run, at=at, update={"log": [f"as {name}"]}, as_node=name, run_id=self.name())
        except HoldfastError:
            return multiple()

    @rule(target=runs, run=runs, place=st.integers(0, 20))
    def fork_and_drive(self, run: str, place: int) -> Any:
        at = self.moment(run, place) if self.there(run) else None
        if at is None or at == self.app.checkpoints(run)[-1].id:
            return multiple()
        return self.app.resume(at).run_id

    @rule(run=runs, place=st.integers(0, 20))
    def roll_back(self, run: str, place: int) -> None:
        at = self.moment(run, place) if self.there(run) else None
        if at is not None:
            before = self.app.get_state(run, checkpoint_id=at).to_dict()
            self.app.rollback(run, to=at)
            assert self.app.get_state(run).to_dict() == before

    @rule(run=runs)
    def promote(self, run: str) -> None:
        if not self.there(run):
            return
        with contextlib.suppress(HoldfastError):
            self.app.promote(run)
            parent = self.store.runs(key=self.store.runs(run=run)[0].parent)[0]
            assert self.app.get_state(parent.run).to_dict() == self.app.get_state(run).to_dict()

    @rule(run=runs, place=st.integers(0, 20))
    def keep(self, run: str, place: int) -> None:
        points = self.app.checkpoints(run) if self.there(run) else []
        if points:
            point = points[place % len(points)]
            self.app.keep(run, point.id)
            self.kept.add((run, point.seq))

    @rule(run=runs, place=st.integers(0, 20))
    def prune(self, run: str, place: int) -> None:
        points = self.app.checkpoints(run) if self.there(run) else []
        if points and not any(kept == run for kept, _ in self.kept):
            prune_run(
                self.app._settings.journal, self.store.runs(run=run)[0], points[place % len(points)].seq
            )

    @rule(run=consumes(runs))
    def delete(self, run: str) -> None:
        if not any(kept == run for kept, _ in self.kept):
            delete_run(self.app._settings.journal, run)

    @invariant()
    def every_moment_is_what_it_was(self) -> None:
        if not hasattr(self, "store"):
            return
        for info in self.store.runs():
            run = info.run
            for point in self.app.checkpoints(run):
                assert self.app.get_state(run, checkpoint_id=point.id).to_dict() == self.store.expected(
                    run, point.seq
                )
            assert self.app.get_state(run).to_dict() == self.store.expected(run)
            assert {pause.id for pause in self.app.pauses(run)} == self.store.waits_for(run)
        for run, seq in self.kept:
            assert seq in [point.seq for point in self.app.checkpoints(run)]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class OnSqlite(Travels):
    """The same in a file."""

    def place(self) -> str:
        self.folder = tempfile.TemporaryDirectory()
        return f"sqlite:///{Path(self.folder.name) / 'runs.db'}"

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(autouse=True)
def many_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SNAPSHOT_FLOOR", 100)


class TestTravels(Travels.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=30, stateful_step_count=20, **COMMON)


class TestOnSqlite(OnSqlite.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=5, stateful_step_count=15, **COMMON)
