"""The plan of a resume: what becomes of every step, why, and that the resume does just that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from holdfast import (
    END,
    START,
    App,
    ExecutionError,
    PlanOutdated,
    Retry,
    RunFinished,
    Send,
    StateGraph,
    StateInvalid,
    append,
)
from holdfast.journal.copying import prune_run
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Crash, CrashingStore, raise_crash
from holdfast.views import ResumePlan
from tests.engine.plan_checks import plan_and_resume
from tests.graphs import Log, chain, says


def broken(state: Any) -> None:
    raise ValueError("429")


def stops(state: Any) -> None:
    raise KeyboardInterrupt


def ask(state: Any, ctx: Any) -> dict[str, Any]:
    return {"log": [ctx.ask("Go on?", name="go")]}


def failed(store: Store, graph: StateGraph, **options: Any) -> None:
    with pytest.raises((ExecutionError, KeyboardInterrupt)):
        graph.compile(store, **options).invoke({}, run_id="r")


@pytest.fixture
def empty() -> MemoryStore:
    return MemoryStore()


def words(plan: ResumePlan) -> list[tuple[str, str, str]]:
    return [(step.step or step.node, step.what, step.reason) for step in plan.steps]


def test_a_plan_works_on_every_store(store: Store) -> None:
    """The plan is made from the journal alone, and touches nothing."""
    failed(store, chain("a", "b", "c", nodes={"b": broken}))

    done = plan_and_resume(chain("a", "b", "c").compile(store))

    assert list(done.told("kept")) == ["a#1"] and list(done.told("rerun")) == ["b#1"]
    assert done.started == ["b#1", "c#1"] and done.outcome is not None


def interrupted(if_interrupted: Any) -> StateGraph:
    graph = chain("a", name="w")
    return graph.add_node("b", says("b"), if_interrupted=if_interrupted).add_edge("a", "b")


Options = dict[str, Any]
IN_DOUBT = "it was running when its process stopped"


@pytest.mark.parametrize(
    ("wish", "options", "planned", "first"),
    [
        ("rerun", {}, ("rerun", f"{IN_DOUBT}; it runs again"), ["b#1"]),
        ("skip", {}, ("in_doubt", f"{IN_DOUBT}; it is skipped"), []),
        ("fail", {}, ("in_doubt", f"{IN_DOUBT} and may not be repeated unasked: the run fails"), []),
        ("ask", {}, ("asked", f"{IN_DOUBT}; somebody is asked what to do with it"), []),
        ("ask", {"if_interrupted": "rerun"}, ("rerun", f"{IN_DOUBT}; it runs again"), ["b#1"]),
        ("rerun", {"if_interrupted": "skip"}, ("in_doubt", f"{IN_DOUBT}; it is skipped"), []),
        (lambda ctx: True, {}, ("in_doubt", f"{IN_DOUBT}; its own function looks whether it was done"), []),
    ],
)
def test_an_interrupted_step_is_planned_as_it_is_treated(
    empty: MemoryStore, wish: Any, options: Options, planned: tuple[str, str], first: list[str]
) -> None:
    graph = StateGraph(Log, name="w").add_node("a", says("a")).add_node("b", stops, if_interrupted=wish)
    failed(empty, graph.add_edge(START, "a").add_edge("a", "b"))
    now = StateGraph(Log, name="w").add_node("a", says("a")).add_node("b", says("b"), if_interrupted=wish)

    done = plan_and_resume(now.add_edge(START, "a").add_edge("a", "b").compile(empty), **options)

    step = done.plan.steps[1]
    assert (step.what, step.reason.partition("; code changed")[0]) == planned and done.first == first


def test_an_answer_changes_what_is_planned(empty: MemoryStore) -> None:
    app = chain("ask", "b", nodes={"ask": ask}).compile(empty)
    app.invoke({}, run_id="r")

    waiting = plan_and_resume(app)
    assert waiting.told("asked") == {"ask#1": "it waits for an answer: Go on?"} and not waiting.started
    wrong = app.plan_resume("r", answers={"stop": "yes"})
    assert "has no pause 'stop'" in wrong.refused
    answered = plan_and_resume(app, answers={"go": "yes"})
    assert answered.told("next") == {"ask#1": "what it waited for is there"}
    assert answered.started == ["ask#1", "b#1"]


def test_a_gate_is_passed_by_a_resume_and_the_plan_knows(empty: MemoryStore) -> None:
    app = chain("a", "b", "c").compile(empty, interrupt_before=["b", "c"])
    app.invoke({}, run_id="r")

    done = plan_and_resume(app)

    assert done.told("next") == {"b#1": "its gate is passed"} and done.first == ["b#1"]
    assert done.asked == ["c#1"]


def test_siblings_and_items_are_planned_one_by_one(empty: MemoryStore) -> None:
    def graph(work: Callable[..., Any]) -> StateGraph:
        made = StateGraph({"n": int, "log": Annotated[list[int], append]}).add_node("item", work)
        made.add_conditional_edges(START, lambda s: [Send("item", {"n": n}, key=f"k{n}") for n in range(4)])
        return made

    def odd(state: Any) -> dict[str, Any]:
        if state["n"] % 2:
            raise ValueError("odd")
        return {"log": [state["n"]]}

    failed(empty, graph(odd))
    done = plan_and_resume(graph(lambda s: {"log": [s["n"]]}).compile(empty))

    assert set(done.told("kept")) == {"item#1[k0]", "item#1[k2]"}
    assert set(done.told("rerun")) == {"item#1[k1]", "item#1[k3]"} == set(done.first)


def test_cycles_keep_their_visits(empty: MemoryStore) -> None:
    def count(limit: int) -> Callable[..., Any]:
        def node(state: Any) -> dict[str, Any]:
            if state["n"] == limit:
                raise ValueError("enough")
            return {"n": state["n"] + 1}

        return node

    def graph(limit: int) -> StateGraph:
        made = StateGraph(Log).add_node("count", count(limit)).add_edge(START, "count")
        return made.add_edge("count", "count", when=lambda s: s["n"] < 5).add_edge("count", END)

    with pytest.raises(ExecutionError):
        graph(3).compile(empty).invoke({"n": 0}, run_id="r")
    done = plan_and_resume(graph(9).compile(empty))

    assert list(done.told("kept")) == ["count#1", "count#2", "count#3"]
    assert done.first == ["count#4"] and done.started == ["count#4", "count#5"]
    assert done.plan.steps[-1].expected_seconds is not None


def test_a_retry_and_an_open_sub_graph_are_planned(empty: MemoryStore) -> None:
    inner = chain("x", "y", nodes={"y": broken}, name="inner")
    failed(empty, chain("a", name="w").add_node("sub", inner).add_edge("a", "sub"))
    fixed = chain("a", name="w").add_node("sub", chain("x", "y", name="inner")).add_edge("a", "sub")

    done = plan_and_resume(fixed.compile(empty))

    assert list(done.told("kept")) == ["a#1", "sub#1/x#1"] and list(done.told("rerun")) == ["sub#1/y#1"]
    assert done.plan.steps[-1].node == "sub/y"


def test_an_older_checkpoint_is_planned_as_a_run_from_there(empty: MemoryStore) -> None:
    app = chain("a", "b", "c").compile(empty)
    app.invoke({}, run_id="r")
    point = app.checkpoints("r")[0]

    plan = app.plan_resume(point.id)
    outcome = app.resume(point.id, plan=plan)

    assert words(plan) == [("a#1", "kept", "finished"), ("b#1", "next", "it comes next")]
    assert outcome.run_id != "r" and list(outcome.state["log"]) == ["a", "b", "c"]
    with pytest.raises(RunFinished):
        app.plan_resume("r")


def test_what_an_update_touches_is_told(empty: MemoryStore) -> None:
    def graph(work: Callable[..., Any]) -> StateGraph:
        made = StateGraph({"n": int, "topic": str}).add_node("a", lambda s: {"n": 1})
        made.add_node("b", work, reads=["topic"]).add_node("c", broken, reads=["n"])
        return made.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")

    failed(empty, graph(broken))
    app = graph(lambda s: {"n": len(s["topic"])}).compile(empty)

    plain, changed = app.plan_resume("r", update={"n": 5}), app.plan_resume("r", update={"topic": "x"})

    assert "input changed" not in plain.steps[1].reason
    assert changed.steps[1].reason.endswith("; input changed: 'topic'")
    assert plan_and_resume(app, update={"topic": "x"}).first == ["b#1"]


def test_time_and_money_are_told(empty: MemoryStore) -> None:
    def paid(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend(model="m", input_tokens=10, output_tokens=5, cost=0.25)
        if len(state["log"]) == 1 and not state.get("n"):
            raise ValueError("down")
        return {"log": ["x"]}

    graph = StateGraph(Log).add_node("ask", paid).add_edge(START, "ask")
    graph.add_edge("ask", "ask", when=lambda s: len(s["log"]) < 3).add_edge("ask", END)
    app = graph.compile(empty)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")

    plan = app.plan_resume("r", update={"n": 1})

    assert plan.cost_saved == 0.25 and plan.cost_to_come == 0.25
    assert plan.seconds_saved == plan.steps[0].seconds > 0 and plan.seconds_to_come is not None
    other = chain("a", "b", nodes={"b": broken}).compile(MemoryStore())
    with pytest.raises(ExecutionError):
        other.invoke({}, run_id="r")
    assert other.plan_resume("r").seconds_to_come is None, "b never finished: nobody knows"


# A plan that no longer holds.


@pytest.fixture
def stopped(empty: MemoryStore) -> MemoryStore:
    failed(empty, chain("a", "b", "c", nodes={"b": broken}))
    return empty


def test_a_plan_holds_the_resume_to_it_by_its_id_too(stopped: MemoryStore) -> None:
    app = chain("a", "b", "c").compile(stopped)

    assert list(app.resume("r", plan=app.plan_resume("r").id).state["log"]) == ["a", "b", "c"]


def test_a_run_that_advanced_is_told(stopped: MemoryStore) -> None:
    app = chain("a", "b", "c", nodes={"b": broken}).compile(stopped)
    plan = app.plan_resume("r")
    with pytest.raises(ExecutionError):
        app.resume("r")
    before = list(stopped.read("r"))

    with pytest.raises(
        PlanOutdated, match=rf"advanced from entry {plan.head} to \d+ \(executed by process \d+ on"
    ):
        app.resume("r", plan=plan)
    assert list(stopped.read("r")) == before


def test_code_that_changed_again_is_told(stopped: MemoryStore) -> None:
    plan = chain("a", "b", "c").compile(stopped).plan_resume("r")
    again = chain("a", "b", "c", nodes={"b": lambda state: {"log": ["other"]}}).compile(stopped)

    with pytest.raises(
        PlanOutdated, match="the workflow changed again; 'b' is another since: code changed from"
    ) as caught:
        again.resume("r", plan=plan)
    assert caught.value.run == "r" and len(caught.value.moved) == 2
    with pytest.raises(PlanOutdated, match="the workflow changed again"):
        again.resume("r", plan=plan.id)


def test_other_options_are_told(stopped: MemoryStore) -> None:
    app = chain("a", "b", "c").compile(stopped)

    with pytest.raises(PlanOutdated, match="other options are given"):
        app.resume("r", plan=app.plan_resume("r"), update={"n": 3})
    with pytest.raises(ExecutionError):
        chain("a", "b", "c", nodes={"b": broken}).compile(stopped).invoke({}, run_id="other")
    with pytest.raises(PlanOutdated, match="it was made for run 'other'"):
        app.resume("r", plan=app.plan_resume("other"))


def test_what_is_no_plan_is_refused(stopped: MemoryStore) -> None:
    with pytest.raises(StateInvalid, match="'nonsense' is not the id of a plan"):
        chain("a", "b", "c").compile(stopped).resume("r", plan="nonsense")
    with pytest.raises(StateInvalid, match="plan must be what plan_resume"):
        chain("a", "b", "c").compile(stopped).resume("r", plan=7)  # type: ignore[arg-type]


def test_a_retry_that_is_due_is_planned(empty: MemoryStore) -> None:
    def graph(work: Callable[..., Any]) -> StateGraph:
        made = StateGraph(Log).add_node("a", says("a")).add_edge(START, "a").add_edge("a", "b")
        return made.add_node("b", work, retry=Retry(attempts=2, delay=0))

    failed(empty, graph(broken))
    done = plan_and_resume(graph(says("b")).compile(empty))

    assert "it failed: ValueError: 429" in done.told("rerun")["b#1"] and done.first == ["b#1"]


# Wherever a run was when its process died.


def fanned(wish: str) -> StateGraph:
    made = StateGraph(Log, name="w").add_node("a", says("a")).add_node("e", says("e"))
    for name in "bcd":
        made.add_node(name, says(name), if_interrupted=wish).add_edge("a", name)
    return made.add_edge(START, "a").add_edge(["b", "c", "d"], "e")


def mapped() -> StateGraph:
    made = StateGraph({"n": int, "log": Annotated[list[int], append]}, name="w").add_node("end", says("end"))
    made.add_node("item", lambda s: {"log": [s["n"]]}, max_parallel=2).add_edge("item", "end")
    return made.add_conditional_edges(START, lambda s: [Send("item", {"n": n}, key=str(n)) for n in range(5)])


def looped() -> StateGraph:
    made = StateGraph(Log, name="w").add_node("a", says("a")).add_node("b", says("b")).add_edge(START, "a")
    return made.add_edge("a", "b").add_edge("b", "a", when=lambda s: len(s["log"]) < 6).add_edge("b", END)


def nested() -> StateGraph:
    made = chain("a", name="w").add_node("sub", fanned("rerun")).add_edge("a", "sub")
    return made.add_node("z", says("z")).add_edge("sub", "z")


def asking() -> StateGraph:
    made = StateGraph(Log, name="w").add_node("a", says("a")).add_node("b", says("b")).add_node("q", ask)
    return made.add_edge(START, "a").add_edge(START, "q").add_edge(["a", "q"], "b")


SITUATIONS: dict[str, Callable[[], StateGraph]] = {
    "a chain": lambda: chain("a", "b", "c", name="w"),
    "siblings": lambda: fanned("rerun"),
    "siblings to be skipped": lambda: fanned("skip"),
    "siblings to be asked about": lambda: fanned("ask"),
    "siblings not to be repeated": lambda: fanned("fail"),
    "items": mapped,
    "a loop": looped,
    "a sub-graph": nested,
    "a question": asking,
}


@pytest.mark.parametrize("point", ["before", "committed"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_wherever_a_process_died_the_resume_does_what_was_planned(name: str, point: Any) -> None:
    """At every append boundary; what is started, kept and asked first is what the plan says."""
    crashes = 0
    for at in range(1, 40):
        store = MemoryStore()
        crashing = CrashingStore(store, at, point, raise_crash)
        try:
            SITUATIONS[name]().compile(crashing).invoke({}, run_id="r")
            break
        except Crash:
            crashes += 1
        runs = store.runs(run="r")
        if runs and runs[0].status != "completed":
            plan_and_resume(SITUATIONS[name]().compile(store), takeover=True)
    assert crashes >= 2


def test_a_sub_graph_that_is_gone_while_it_waits_is_planned(empty: MemoryStore) -> None:
    def graph(*, whole: bool) -> StateGraph:
        made = chain("a", name="w")
        if whole:
            made.add_node("sub", chain("x", nodes={"x": ask}, name="inner")).add_edge("a", "sub")
        return made

    graph(whole=True).compile(empty).invoke({}, run_id="r")
    app = graph(whole=False).compile(empty)
    for plan in (app.plan_resume("r"), app.plan_resume("r", rerun_changed=True)):
        assert [(step.step, step.what) for step in plan.steps] == [("a#1", "kept"), ("sub#1/x#1", "orphaned")]
    assert app.resume("r").status == "paused"


def two_ways(store: Store, broken: str = "", **versions: str) -> App:
    """s, then a b c and x y z side by side, then d."""

    def node(name: str) -> Callable[[Any], dict[str, Any]]:
        def work(state: Any) -> dict[str, Any]:
            if name == broken:
                raise ValueError(name)
            return {"log": [name + versions.get(name, "")]}

        return work

    graph = StateGraph(Log, name="w")
    for name in "sabcxyzd":
        graph.add_node(name, node(name), version=versions.get(name, ""))
    for source, target in ((START, "s"), *zip("sabsxy", "abcxyz", strict=True)):
        graph.add_edge(source, target)
    return graph.add_edge(["c", "z"], "d").compile(store)


def fates(plan: ResumePlan) -> dict[str, str]:
    told = [(step.step or step.node, step.what) for step in plan.steps]
    assert len(told) == len(dict(told)), "each is told once"
    return dict(told)


def test_what_changes_after_a_rerun_that_failed_half_way_is_planned(empty: MemoryStore) -> None:
    two_ways(empty).invoke({}, run_id="r")
    with pytest.raises(ExecutionError):
        two_ways(empty, "a", a="2").resume("r", rerun_changed=True)
    app = two_ways(empty, a="2", z="2")
    plan = app.plan_resume("r", rerun_changed=True)

    assert fates(plan) == {"s#1": "kept", "x#1": "kept", "y#1": "kept", "z#1": "rerun", "a#1": "rerun"}
    assert plan.back_to is None
    assert "z2" in app.resume("r", rerun_changed=True, plan=plan).state["log"]


@pytest.mark.parametrize(("fails", "waits"), [("a", "xyz"), ("c", "z")])
def test_what_a_new_run_is_to_be_given_is_planned(empty: MemoryStore, fails: str, waits: str) -> None:
    two_ways(empty).invoke({}, run_id="r")
    with pytest.raises(ExecutionError):
        two_ways(empty, fails).rerun("r", "a", run_id="n")
    app = two_ways(empty)
    before = fates(app.plan_resume("n"))
    kept = [name for name in "sabxyz" if name in waits or name not in "abc" or name < fails]
    assert before == {**{f"{name}#1": "kept" for name in kept}, f"{fails}#1": "rerun"}

    prune_run(app._settings.journal, app._settings.journal.info("n"), app.checkpoints("n")[-1].seq)
    after = fates(app.plan_resume("n"))

    assert {name.partition("#")[0]: what for name, what in after.items()} == {
        name.partition("#")[0]: what for name, what in before.items()
    }
    assert {f"{name}#1" for name in waits} <= set(after) and len(after) == len(before)
