"""Running a part of a run again: what the changed graph does otherwise, or a step that somebody names."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    END,
    START,
    CheckpointPolicy,
    Command,
    ExecutionError,
    RunFinished,
    Send,
    StateGraph,
    open_store,
)
from holdfast.engine.app import App
from holdfast.errors import AnswerRejected, CannotRerun, StateInvalid
from holdfast.journal.copying import prune_run
from holdfast.stores.base import Store
from holdfast.testing import Crash, CrashingStore, raise_crash
from tests.engine.time_travel.versioned_graphs import DIAMOND, Bench, Facts
from tests.graphs import Heard


@pytest.fixture
def bench(memory: Store) -> Bench:
    return Bench(memory)


def log_of(app: App, run: str = "r") -> list[str]:
    return list(app.get_state(run)["log"])


# What the graph at hand does otherwise.


def test_only_the_cone_of_a_changed_node_runs_again(store: Store) -> None:
    """S2.18: a finished sibling and what came before are kept, the rest runs with the new code."""
    bench = Bench(store)
    bench.app(DIAMOND).invoke({"topic": "t"}, run_id="r")
    bench.taken()

    app = bench.app(DIAMOND, {"b": "2"})
    outcome = app.resume("r", rerun_changed=True)

    assert bench.taken() == ["b", "d"]
    assert outcome.status == "completed" and outcome.run_id == "r"
    assert list(outcome.state["log"]) == ["a.1", "b.2", "c.1", "d.1"]
    assert outcome.stats.steps_reused == 1
    assert app.get_state("r") == outcome.state


def test_a_completed_run_of_which_nothing_changed_stays_completed(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")

    with pytest.raises(RunFinished):
        app.resume("r", rerun_changed=True)


def test_a_failed_run_of_which_nothing_that_ran_changed_is_just_resumed(bench: Bench) -> None:
    bench.broken = {"d"}
    with pytest.raises(ExecutionError):
        bench.app(DIAMOND).invoke({"topic": "t"}, run_id="r")
    bench.broken = set()
    bench.taken()

    app = bench.app(DIAMOND, {"d": "2"})
    app.resume("r", rerun_changed=True)

    assert bench.taken() == ["d"]
    assert log_of(app) == ["a.1", "b.1", "c.1", "d.2"]


def test_without_being_asked_for_nothing_finished_runs_again(bench: Bench) -> None:
    bench.broken = {"d"}
    with pytest.raises(ExecutionError):
        bench.app(DIAMOND).invoke({"topic": "t"}, run_id="r")
    bench.broken = set()
    bench.taken()

    bench.app(DIAMOND, {"b": "2"}).resume("r")

    assert bench.taken() == ["d"]


CHAIN = ((START, "a"), ("a", "b"), ("b", "c"), ("c", END))


@pytest.mark.parametrize(
    ("edges", "ran", "log"),
    [
        (
            ((START, "a"), ("a", "x"), ("x", "b"), ("b", "c"), ("c", END)),
            ["x", "b", "c"],
            ["a", "x", "b", "c"],
        ),
        (((START, "a"), ("a", "c"), ("c", END)), ["c"], ["a", "c"]),
        (
            ((START, "x"), ("x", "a"), ("a", "b"), ("b", "c"), ("c", END)),
            ["x", "a", "b", "c"],
            ["x", "a", "b", "c"],
        ),
        (((START, "b"), ("b", "c"), ("c", END)), ["b", "c"], ["b", "c"]),
        (((START, "a"), ("a", "c"), ("c", "b"), ("b", END)), ["c", "b"], ["a", "c", "b"]),
        (((START, "a"), ("a", "b"), ("b", "c"), ("c", "x"), ("x", END)), ["x"], ["a", "b", "c", "x"]),
        (
            ((START, "a"), ("a", "b"), ("a", "x"), ("b", "c"), ("x", END), ("c", END)),
            ["x"],
            ["a", "b", "x", "c"],
        ),
    ],
    ids=["inserted", "removed", "a new first", "first removed", "swapped", "appended", "another branch"],
)
def test_a_completed_run_follows_the_new_ways_of_its_graph(
    bench: Bench, edges: Any, ran: list[str], log: list[str]
) -> None:
    bench.app(CHAIN).invoke({"topic": "t"}, run_id="r")
    bench.taken()

    app = bench.app(edges)
    outcome = app.resume("r", rerun_changed=True)

    assert outcome.status == "completed"
    assert bench.taken() == ran
    assert log_of(app) == [f"{name}.1" for name in log]


def test_of_a_sub_graph_only_what_changed_and_follows_runs_again(bench: Bench) -> None:
    def app(version: str) -> App:
        inner = bench.graph(((START, "x"), ("x", "y"), ("y", END)), {"y": version}, name="inner")
        return bench.app(((START, "a"), ("a", "in"), ("in", "z"), ("z", END)), nodes={"in": inner})

    app("1").invoke({"topic": "t"}, run_id="r")
    bench.taken()

    outcome = app("2").resume("r", rerun_changed=True)

    assert bench.taken() == ["y", "z"]
    assert list(outcome.state["log"]) == ["a.1", "x.1", "y.2", "z.1"]


def test_a_sub_graph_may_begin_otherwise(bench: Bench) -> None:
    def app(*edges: tuple[str, str]) -> App:
        inner = bench.graph(edges, name="inner")
        return bench.app(((START, "a"), ("a", "in"), ("in", "z"), ("z", END)), nodes={"in": inner})

    app((START, "x"), ("x", END)).invoke({"topic": "t"}, run_id="r")
    bench.taken()

    outcome = app((START, "w"), ("w", "x"), ("x", END)).resume("r", rerun_changed=True)

    assert bench.taken() == ["w", "x", "z"]
    assert list(outcome.state["log"]) == ["a.1", "w.1", "x.1", "z.1"]


def for_each(bench: Bench, version: str = "1", after: str = "1") -> StateGraph:
    graph = StateGraph(Facts, name="items")
    graph.add_node("plan", bench.node("plan"), version="1")
    graph.add_node("work", bench.node("work", version), version=version)
    graph.add_node("sum", bench.node("sum", after), version=after)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", sends, ["work"])
    graph.add_edge("work", "sum")
    graph.add_edge("sum", END)
    return graph


def sends(state: Any) -> list[Send]:
    return [Send("work", {"item": item}, key=f"i{item}") for item in state["items"]]


def test_a_changed_step_after_a_for_each_keeps_every_item(bench: Bench) -> None:
    for_each(bench).compile(bench.store).invoke({"items": [1, 2, 3]}, run_id="r")
    bench.taken()

    for_each(bench, after="2").compile(bench.store).resume("r", rerun_changed=True)
    assert bench.taken() == ["sum"]

    outcome = for_each(bench, "2", "2").compile(bench.store).resume("r", rerun_changed=True)
    assert sorted(bench.taken()) == ["sum", "work1", "work2", "work3"]
    assert outcome.status == "completed"


def test_a_second_change_before_the_first_has_been_worked_off_keeps_what_the_first_did(bench: Bench) -> None:
    edges = ((START, "a"), (START, "s"), ("a", "b"), ("s", "t"), ("t", "u"), (["b", "u"], "d"), ("d", END))
    bench.app(edges).invoke({"topic": "t"}, run_id="r")
    bench.taken()
    bench.broken = {"a"}
    with pytest.raises(ExecutionError):
        bench.app(edges, {"a": "2"}).resume("r", rerun_changed=True)
    bench.broken = set()
    assert bench.taken() == ["a"]

    app = bench.app(edges, {"a": "2", "u": "2"})
    outcome = app.resume("r", rerun_changed=True)

    assert sorted(bench.taken()) == ["a", "b", "d", "u"]
    assert outcome.state["found"]["u"] == "2 of t" and outcome.state["found"]["t"] == "1 of t"


def test_changes_one_after_the_other_each_run_their_own_cone(bench: Bench) -> None:
    bench.app(DIAMOND).invoke({"topic": "t"}, run_id="r")
    bench.taken()
    for versions, ran in (
        ({"c": "2"}, ["c", "d"]),
        ({"c": "2", "d": "2"}, ["d"]),
        ({"c": "3", "d": "2"}, ["c", "d"]),
    ):
        outcome = bench.app(DIAMOND, versions).resume("r", rerun_changed=True)
        assert bench.taken() == ran
    assert list(outcome.state["log"]) == ["a.1", "b.1", "c.3", "d.2"]


def test_a_fork_can_be_taken_back_into_the_time_before_it(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    fork = app.resume(app.checkpoints("r")[1].id).run_id
    bench.taken()

    changed = bench.app(CHAIN, {"a": "2"})
    outcome = changed.resume(fork, rerun_changed=True)

    assert bench.taken() == ["a", "b", "c"]
    assert list(outcome.state["log"]) == ["a.2", "b.1", "c.1"]
    assert log_of(changed) == ["a.1", "b.1", "c.1"]


def test_what_was_saved_only_at_the_end_can_be_taken_back_too(bench: Bench) -> None:
    bench.app(DIAMOND, options={"durability": "exit"}).invoke({"topic": "t"}, run_id="r")
    bench.taken()

    outcome = bench.app(DIAMOND, {"c": "2"}).resume("r", rerun_changed=True)

    assert bench.taken() == ["c", "d"]
    assert list(outcome.state["log"]) == ["a.1", "b.1", "c.2", "d.1"]


def test_a_renamed_node_is_kept(bench: Bench) -> None:
    bench.app(DIAMOND).invoke({"topic": "t"}, run_id="r")
    bench.taken()
    edges = ((START, "a"), ("a", "b"), ("a", "e"), (["b", "e"], "d"), ("d", END))

    outcome = bench.app(edges, {"b": "2"}).resume("r", rerun_changed=True, remap={"c": "e"})

    assert bench.taken() == ["b", "d"]
    assert list(outcome.state["log"]) == ["a.1", "b.2", "c.1", "d.1"]


def test_a_gate_before_a_kept_step_is_not_asked_again(bench: Bench) -> None:
    gates = {"interrupt_before": ["c"], "interrupt_after": ["c"]}
    app = bench.app(DIAMOND, options=gates)
    outcome = app.invoke({"topic": "t"}, run_id="r")
    while outcome.status == "paused":
        outcome = app.resume("r")
    bench.taken()

    assert bench.app(DIAMOND, {"b": "2"}, options=gates).resume("r", rerun_changed=True).status == "completed"
    assert (
        bench.app(DIAMOND, {"b": "2", "c": "2"}, options=gates).resume("r", rerun_changed=True).status
        == "paused"
    )


def test_options_that_contradict_it_are_refused(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    changed = bench.app(DIAMOND, {"a": "2"})

    with pytest.raises(StateInvalid, match="use_saved"):
        changed.resume("r", rerun_changed=True, on_change="use_saved")
    with pytest.raises(AnswerRejected, match="taken back"):
        changed.resume("r", answers={"x": 1}, rerun_changed=True)
    with pytest.raises(StateInvalid, match="a run, and not an older checkpoint"):
        changed.resume(app.checkpoints("r")[0].id, rerun_changed=True)


@pytest.mark.parametrize("point", ["before", "committed"])
def test_a_crash_at_any_moment_of_it_repeats_nothing_that_is_kept_or_done(point: Any) -> None:
    """S0.9, S2.18: kill it at every commit; what is resumed ends as what was not interrupted."""
    edges = ((START, "a"), ("a", "b"), ("a", "c"), ("c", "e"), (["b", "e"], "d"), ("d", END))
    for at in range(1, 12):
        store = open_store("memory://")
        bench = Bench(store)
        bench.app(edges).invoke({"topic": "t"}, run_id="r")
        bench.taken()
        dying = CrashingStore(store, at, point, raise_crash)
        crashed = False
        try:
            bench.graph(edges, {"b": "2"}).compile(dying).resume("r", rerun_changed=True)
        except Crash:
            crashed = True
        app = bench.app(edges, {"b": "2"})
        if app.runs()[0].status != "completed" or log_of(app)[1] != "b.2":
            app.resume("r", rerun_changed=True)
        ran = bench.taken()

        assert set(ran) == {"b", "d"} and ran.count("b") <= 2 and ran.count("d") <= 2
        assert log_of(app) == ["a.1", "b.2", "c.1", "e.1", "d.1"]
        if not crashed:
            assert ran == ["b", "d"]
            return
    raise AssertionError("it never got through")


# A step that somebody names.


def test_a_step_runs_again_in_a_new_run_and_the_old_one_stays(store: Store) -> None:
    """S1.16: from a step on, with its finished siblings kept."""
    bench = Bench(store)
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    before = app.get_state("r")
    bench.taken()

    outcome = app.rerun("r", "b", run_id="again")

    assert bench.taken() == ["b", "d"]
    assert outcome.run_id == "again" and outcome.state["log"] == before["log"]
    assert app.get_state("r") == before
    assert outcome.stats.steps_reused == 1


def test_the_plan_says_what_is_kept_and_what_runs_again_and_touches_nothing(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")

    plan = app.plan_rerun("r", "b")

    assert {step.step: (step.what, step.reason) for step in plan.steps} == {
        "b#1": ("rerun", "asked for"),
        "c#1": ("kept", "finished, and not affected"),
        "d#1": ("rerun", "downstream of 'b'"),
    }
    assert plan.as_json()["nodes"] == {"b": "asked for", "d": "downstream of 'b'"}
    assert len(app.runs()) == 1


def test_one_item_of_a_for_each_runs_again_and_the_others_are_kept(bench: Bench) -> None:
    app = for_each(bench).compile(bench.store)
    app.invoke({"items": [1, 2, 3]}, run_id="r")
    bench.taken()

    outcome = app.rerun("r", "work#1[i2]")
    assert sorted(bench.taken()) == ["sum", "work2"]
    assert sorted(outcome.state["found"]) == ["plan", "sum", "work1", "work2", "work3"]

    app.rerun("r", "work[i3]", input={"item": 7})
    assert sorted(bench.taken()) == ["sum", "work7"]

    app.rerun("r", "work")
    assert sorted(bench.taken()) == ["sum", "work1", "work2", "work3"]


def looping(bench: Bench, rounds: int, versions: dict[str, str] | None = None) -> StateGraph:
    edges = ((START, "plan"), ("plan", "draft"), ("draft", "review"), ("end", END))
    graph = bench.graph(edges, versions, name="loop")
    graph.add_conditional_edges(
        "review",
        lambda state: "draft" if list(state["log"]).count("draft.1") < rounds else "end",
        ["draft", "end"],
    )
    return graph


def test_a_visit_of_a_cycle_is_named_by_its_number(bench: Bench) -> None:
    app = looping(bench, 3).compile(bench.store)
    app.invoke({}, run_id="r")
    bench.taken()

    app.rerun("r", "draft#2")
    assert bench.taken() == ["draft", "review", "draft", "review", "end"]

    app.rerun("r", "review")
    assert bench.taken() == ["review", "end"]


def test_what_ran_before_a_changed_node_of_a_cycle_is_not_affected_by_it(bench: Bench) -> None:
    looping(bench, 2).compile(bench.store).invoke({}, run_id="r")
    bench.taken()
    graph = looping(bench, 2, {"review": "2"})

    outcome = graph.compile(bench.store).resume("r", rerun_changed=True)

    assert bench.taken() == ["review", "draft", "review", "end"]
    assert list(outcome.state["log"])[:3] == ["plan.1", "draft.1", "review.2"]


def test_another_input_is_for_that_step_alone_and_an_update_for_all(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")

    other = app.rerun("r", "b", input={"topic": "other"})
    assert (other.state["found"]["b"], other.state["found"]["d"]) == ("1 of other", "1 of t")
    assert other.state["topic"] == "t"

    changed = app.rerun("r", "b", update={"topic": "new"})
    assert changed.state["found"] == {"a": "1 of t", "b": "1 of new", "c": "1 of t", "d": "1 of new"}


def test_a_given_output_stands_for_the_step(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    bench.taken()

    outcome = app.rerun("r", "b", output={"log": ["by hand"]})

    assert bench.taken() == ["d"]
    assert list(outcome.state["log"]) == ["a.1", "by hand", "c.1", "d.1"]
    assert list(app.rerun("r", "b", output=lambda state: {"log": [state["topic"]]}).state["log"])[1] == "t"
    with pytest.raises(StateInvalid, match="unknown state key 'nonsense'"):
        app.rerun("r", "b", output={"nonsense": 1})


def test_a_step_may_run_again_in_the_run_itself(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    bench.taken()

    outcome = app.rerun("r", "c", update={"topic": "new"}, in_place=True)

    assert outcome.run_id == "r" and bench.taken() == ["c", "d"]
    assert app.get_state("r")["found"] == {"a": "1 of t", "b": "1 of t", "c": "1 of new", "d": "1 of new"}
    assert [info.run for info in app.runs()] == ["r"]


def test_a_failed_step_runs_again_with_another_input(bench: Bench) -> None:
    bench.broken = {"b"}
    app = bench.app(DIAMOND)
    with pytest.raises(ExecutionError):
        app.invoke({"topic": "t"}, run_id="r")
    bench.broken = set()
    bench.taken()

    outcome = app.rerun("r", "b", input={"topic": "new"})

    assert bench.taken() == ["b", "d"] and outcome.state["found"]["b"] == "1 of new"


def test_a_whole_sub_graph_or_a_step_of_it_runs_again(bench: Bench) -> None:
    inner = bench.graph(((START, "x"), ("x", "y"), ("y", END)), name="inner")
    app = bench.app(((START, "a"), ("a", "in"), ("in", "z"), ("z", END)), nodes={"in": inner})
    app.invoke({"topic": "t"}, run_id="r")
    bench.taken()

    for name, ran in (("in", ["x", "y", "z"]), ("in/y", ["y", "z"]), ("in#1/x#1", ["x", "y", "z"])):
        assert list(app.rerun("r", name).state["log"]) == ["a.1", "x.1", "y.1", "z.1"]
        assert bench.taken() == ran


def test_a_step_that_chose_what_follows_keeps_its_choice(bench: Bench) -> None:
    graph = bench.graph(((START, "a"), (START, "s"), ("b", END), ("c", END), ("s", END)))
    graph.add_node("pick", lambda state: Command({"log": ["pick"]}, goto="c"), goto=["b", "c"], version="1")
    graph.add_edge("a", "pick")
    app = graph.compile(bench.store)
    app.invoke({"topic": "t"}, run_id="r")
    bench.taken()

    outcome = app.rerun("r", "s")

    assert bench.taken() == ["s"]
    assert sorted(outcome.state["log"]) == ["a.1", "c.1", "pick", "s.1"]


def test_a_run_made_by_it_can_be_repeated_from_before_it_began(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    app.rerun("r", "d", run_id="second")
    bench.taken()

    outcome = app.rerun("second", "b", run_id="third")

    assert bench.taken() == ["b", "d"]
    assert list(outcome.state["log"]) == ["a.1", "b.1", "c.1", "d.1"]


def test_what_is_said_of_kept_steps(bench: Bench) -> None:
    heard = Heard()
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    app.rerun("r", "b", run_id="again", observer=heard)

    [reused] = heard.of("node.reuse")
    assert (reused.node, reused.data["step"], reused.data["origin"]) == ("c", "c#1", "r")
    assert [event.node for event in heard.of("node.start")] == ["b", "d"]


def test_nonsense_is_refused_with_what_there_is(bench: Bench) -> None:
    app = for_each(bench).compile(bench.store)
    app.invoke({"items": [1, 2]}, run_id="r")

    with pytest.raises(CannotRerun, match="no step 'wrok' that ran; did you mean 'work'"):
        app.rerun("r", "wrok")
    with pytest.raises(CannotRerun, match="either an input or an output"):
        app.rerun("r", "sum", input={"topic": "x"}, output={})
    with pytest.raises(CannotRerun, match="several steps"):
        app.rerun("r", "work", output={})
    with pytest.raises(CannotRerun, match="either a run id for the new run, or in-place"):
        app.rerun("r", "sum", in_place=True, run_id="x")
    with pytest.raises(CannotRerun, match="and not a checkpoint"):
        app.rerun("r@1", "plan", in_place=True)
    assert len(app.runs()) == 1


def test_a_run_that_was_pruned_cannot_be_taken_back_behind_that(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    journal = app._settings.journal
    prune_run(journal, journal.info("r"), app.checkpoints("r")[1].seq)

    with pytest.raises(CannotRerun, match="pruned"):
        bench.app(CHAIN, {"a": "2"}).resume("r", rerun_changed=True)
    bench.taken()
    bench.app(CHAIN, {"c": "2"}).resume("r", rerun_changed=True)
    assert bench.taken() == ["c"]


def test_where_not_every_wave_is_saved_what_is_in_between_is_kept(bench: Bench) -> None:
    app = bench.app(CHAIN, options={"policy": CheckpointPolicy(interval=3)})
    app.invoke({"topic": "t"}, run_id="r")
    bench.taken()

    assert list(app.rerun("r", "c").state["log"]) == ["a.1", "b.1", "c.1"]
    assert bench.taken() == ["c"]
    with pytest.raises(CannotRerun, match="not every wave was saved"):
        app.rerun("r", "c", input={"topic": "x"})


def test_a_run_that_was_rolled_back_is_repeated_from_where_it_stands(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    app.rollback("r", 1)
    app.resume("r", update={"topic": "new"})
    bench.taken()

    outcome = app.rerun("r", "c")
    assert bench.taken() == ["c"] and outcome.state["found"]["b"] == "1 of new"
    changed = bench.app(CHAIN, {"b": "2"}).resume("r", rerun_changed=True)
    assert bench.taken() == ["b", "c"] and changed.state["found"]["b"] == "2 of t"


def test_a_fork_is_taken_back_in_place_to_before_it_began(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    fork = app.fork("r", 2)
    app.resume(fork)
    bench.taken()

    app.rerun(fork, "a", update={"topic": "new"}, in_place=True)
    app.rerun(fork, "c", in_place=True)
    app.rerun(fork, "b", in_place=True)

    assert bench.taken() == ["a", "b", "c", "c", "b", "c"]
    assert app.get_state(fork)["found"] == dict.fromkeys("abc", "1 of new")


def test_what_a_kept_step_cost_is_saved_and_not_paid_again(bench: Bench) -> None:
    def paid(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend("model", input_tokens=10, cost=0.25)
        return {"log": ["paid"]}

    app = bench.app(DIAMOND, nodes={"b": paid, "d": paid})
    app.invoke({"topic": "t"}, run_id="r")

    plan = app.plan_rerun("r", "c")
    assert plan.cost_saved == 0.25 and [step.cost for step in plan.of("rerun")] == [0.0, 0.25]
    outcome = app.rerun("r", "c")
    assert outcome.stats.cost_saved == 0.25 and outcome.stats.cost == 0.25
    again = app.invoke(reuse="r")
    assert (again.stats.cost_saved, again.stats.cost) == (0.5, 0.0)
