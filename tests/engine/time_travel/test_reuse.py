"""A new run that is given what another has finished, where code and inputs are the same."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import (
    END,
    START,
    CheckpointPolicy,
    Command,
    ExecutionError,
    RunNotFound,
    Send,
    StateGraph,
    append,
    keep_last,
    open_store,
)
from holdfast.engine.app import App
from holdfast.errors import CannotReuse, StateInvalid
from holdfast.journal.copying import delete_run, prune_run
from holdfast.stores.base import Append, Store
from holdfast.testing import Crash, CrashingStore, raise_crash
from tests.engine.time_travel.versioned_graphs import DIAMOND, Bench, Facts
from tests.graphs import Heard


@pytest.fixture
def bench(memory: Store) -> Bench:
    return Bench(memory)


CHAIN = tuple(zip((START, *"abcdefgh"), (*"abcdefgh", END), strict=True))


def test_a_changed_step_is_paid_for_and_what_follows_and_nothing_else(store: Store) -> None:
    """R0.11: change step 6, pay for 6 onward."""
    bench = Bench(store)
    bench.app(CHAIN).invoke({"topic": "t"}, run_id="r")
    bench.taken()

    app = bench.app(CHAIN, {"f": "2"})
    outcome = app.invoke(reuse="r", run_id="new")

    assert bench.taken() == ["f", "g", "h"]
    assert outcome.stats.steps_reused == 5
    assert list(outcome.state["log"]) == ["a.1", "b.1", "c.1", "d.1", "e.1", "f.2", "g.1", "h.1"]
    assert outcome.state["topic"] == "t" and app.get_state("new") == outcome.state
    assert app.get_state("r")["found"]["f"] == "1 of t"
    assert [point.wave for point in app.checkpoints("new")] == list(range(1, 9))


def test_the_same_again_runs_nothing(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    first = app.invoke({"topic": "t"}, run_id="r")
    bench.taken()

    again = app.invoke(reuse="r")

    assert bench.taken() == [] and again.status == "completed"
    assert again.stats.steps_reused == 4 and again.stats.steps_run == 0
    assert again.state == first.state and again.stats.seconds == 0.0
    assert again.stats.seconds_saved == pytest.approx(first.stats.seconds)


def test_another_input_runs_what_may_see_it(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    bench.taken()

    assert app.invoke({"topic": "other"}, reuse="r").state["found"]["a"] == "1 of other"
    assert sorted(bench.taken()) == ["a", "b", "c", "d"]
    app.invoke({"topic": "other"}, reuse="facts")
    assert bench.taken() == []


def test_a_changed_step_that_comes_to_the_same_result_affects_nothing(bench: Bench) -> None:
    def same(state: Any) -> dict[str, Any]:
        bench.ran.append("b")
        return {"log": ["same"]}

    for version, ran in (("1", ["a", "b", "c", "d"]), ("2", ["b"])):
        app = bench.app(DIAMOND, {"b": version}, {"b": same})
        app.invoke({"topic": "t"}, run_id=version, reuse=None if version == "1" else "1")
        assert sorted(bench.taken()) == ran


def declared(bench: Bench, versions: dict[str, str]) -> App:
    """Two branches that look at nothing of each other, and a node that looks at both."""

    class Parts(TypedDict, total=False):
        topic: str
        left: str
        right: str
        whole: str

    graph = StateGraph(Parts, name="parts")

    def writes(key: str, *reads: str) -> Any:
        version = versions.get(key, "1")

        def work(state: Any) -> dict[str, Any]:
            bench.ran.append(key)
            return {key: f"{key}.{version}({','.join(str(state[each]) for each in reads)})"}

        return work

    graph.add_node("left", writes("left", "topic"), reads=["topic"], version=versions.get("left", "1"))
    graph.add_node("right", writes("right", "topic"), reads=["topic"], version=versions.get("right", "1"))
    graph.add_node("whole", writes("whole", "left", "right"), reads=["left", "right"], version="1")
    for one, other in zip(
        (START, *versions["order"].split()), (*versions["order"].split(), END), strict=True
    ):
        graph.add_edge(one, other)
    return graph.compile(bench.store)


def test_a_step_that_says_what_it_reads_is_kept_whatever_else_changed(bench: Bench) -> None:
    declared(bench, {"order": "left right whole"}).invoke({"topic": "t"}, run_id="r")
    bench.taken()

    outcome = declared(bench, {"order": "left right whole", "left": "2"}).invoke(reuse="r")
    assert bench.taken() == ["left", "whole"]
    assert outcome.state["whole"] == "whole.1(left.2(t),right.1(t))"

    declared(bench, {"order": "right left whole"}).invoke(reuse="r")
    assert bench.taken() == []


def test_a_step_that_sets_what_was_so_already_sets_it_anew_where_it_was_not(bench: Bench) -> None:
    """What a step does not read, it must not be taken to have found."""

    class Flags(TypedDict, total=False):
        flag: str
        log: Annotated[list[str], append]

    def app(first: str) -> App:
        graph = StateGraph(Flags, name="flags")
        graph.add_node("first", lambda state: {"flag": first}, version=first)
        graph.add_node("then", lambda state: {"flag": "up"}, reads=[], version="1")
        for one, other in ((START, "first"), ("first", "then"), ("then", END)):
            graph.add_edge(one, other)
        return graph.compile(bench.store)

    app("up").invoke({}, run_id="r")
    outcome = app("down").invoke({}, reuse="r")

    assert outcome.state["flag"] == "up"
    assert outcome.stats.steps_reused == 1


def items(bench: Bench, version: str = "1") -> App:
    graph = StateGraph(Facts, name="items")
    graph.add_node("plan", lambda state: {"log": ["plan"]}, version="1")
    graph.add_node("work", bench.node("work", version), version=version)
    graph.add_node("sum", bench.node("sum"), version="1")
    graph.add_edge(START, "plan")
    graph.add_conditional_edges(
        "plan", lambda state: [Send("work", {"item": n}, str(n)) for n in state["items"]]
    )
    graph.add_edge("work", "sum")
    graph.add_edge("sum", END)
    return graph.compile(bench.store)


def test_of_a_for_each_the_items_that_are_the_same_are_kept(bench: Bench) -> None:
    class Given(TypedDict, total=False):
        items: list[int]
        item: int
        log: Annotated[list[str], append]

    def app() -> App:
        graph = StateGraph(Given, name="each")

        def work(state: Any) -> dict[str, Any]:
            bench.ran.append(f"work{state['item']}")
            return {"log": [str(state["item"])]}

        graph.add_node("work", work, reads=["item"], version="1")
        graph.add_conditional_edges(
            START, lambda state: [Send("work", {"item": n}, str(n)) for n in state["items"]]
        )
        graph.add_edge("work", END)
        return graph.compile(bench.store)

    app().invoke({"items": [1, 2, 3]}, run_id="r")
    bench.taken()

    outcome = app().invoke({"items": [3, 4, 1]}, reuse="r")

    assert bench.taken() == ["work4"] and list(outcome.state["log"]) == ["3", "4", "1"]
    items(bench).invoke({"items": [1, 2]}, run_id="i")
    bench.taken()
    items(bench, "2").invoke(reuse="i")
    assert sorted(bench.taken()) == ["sum", "work1", "work2"]


def test_steps_of_sub_graphs_and_choices_are_kept_one_by_one(bench: Bench) -> None:
    def app(version: str = "1") -> App:
        inner = bench.graph(((START, "x"), ("x", "y"), ("y", END)), {"y": version}, name="inner")
        graph = bench.graph(((START, "in"), ("b", END), ("c", END)), nodes={"in": inner})
        graph.add_node(
            "pick", lambda state: Command({"log": ["pick"]}, goto="c"), goto=["b", "c"], version="1"
        )
        graph.add_edge("in", "pick")
        return graph.compile(bench.store)

    first = app().invoke({"topic": "t"}, run_id="r")
    bench.taken()

    assert app().invoke(reuse="r").state == first.state
    assert bench.taken() == []
    app("2").invoke(reuse="r")
    assert bench.taken() == ["y", "c"]


def test_config_is_an_input_of_those_who_take_it(bench: Bench) -> None:
    def app() -> App:
        graph = StateGraph(Facts, name="config")

        def plain(state: Any) -> dict[str, Any]:
            bench.ran.append("plain")
            return {}

        def configured(state: Any, config: Any) -> dict[str, Any]:
            bench.ran.append("configured")
            return {"log": [config["model"]]}

        graph.add_node("plain", plain, version="1")
        graph.add_node("configured", configured, version="1")
        for one, other in ((START, "plain"), ("plain", "configured"), ("configured", END)):
            graph.add_edge(one, other)
        return graph.compile(bench.store)

    app().invoke({}, run_id="r", config={"model": "small", "tags": ["x"]})
    bench.taken()
    for config, ran in ((None, []), ({"tags": ["y"]}, []), ({"model": "large"}, ["configured"])):
        app().invoke(reuse="r", config=config)
        assert sorted(bench.taken()) == ran


def test_an_answer_that_a_person_gave_keeps_its_effect(bench: Bench) -> None:
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("how?", name="how")]}

    app = bench.app(((START, "ask"), ("ask", "z"), ("z", END)), nodes={"ask": ask})
    app.invoke({}, run_id="r")
    app.resume("r", "so")

    again = app.invoke(reuse="r")

    assert again.status == "completed" and again.state["log"][0] == "so"


def test_an_answer_holds_only_while_all_is_as_it_was(memory: Store) -> None:
    """Whoever approved a draft has not approved another, whatever the question says."""

    def app(draft: str) -> App:
        graph = StateGraph(dict, name="w")
        graph.add_node("draft", lambda state: {"draft": draft}, version=draft)
        graph.add_node("approve", lambda state, ctx: {"ok": ctx.ask("fine?")}, reads=["topic"])
        graph.add_node("send", lambda state: {"sent": True}, reads=["ok"])
        for source, target in pairwise([START, "draft", "approve", "send", END]):
            graph.add_edge(source, target)
        return graph.compile(memory)

    app("one").invoke({"topic": "t"}, run_id="r")
    app("one").resume("r", "yes")

    assert app("one").invoke(reuse="r", run_id="same").stats.steps_reused == 3
    for source, run in (("r", "new"), ("same", "newer")):
        outcome = app("two").invoke(reuse=source, run_id=run)
        assert outcome.status == "paused" and [pause.name for pause in outcome.pauses] == ["fine?"]
        assert app("two").resume(run, "no").stats.steps_run == 2


def test_what_failed_or_was_passed_over_is_not_taken_over(bench: Bench) -> None:
    bench.broken = {"b"}
    app = bench.app(DIAMOND, options={"policy": CheckpointPolicy(on_failure="continue")})
    app.invoke({"topic": "t"}, run_id="r")
    bench.broken = set()
    bench.taken()

    app.invoke(reuse="r")

    assert bench.taken() == ["b", "d"]


def test_a_run_that_did_not_get_to_its_end_gives_what_it_has(bench: Bench) -> None:
    bench.broken = {"d"}
    app = bench.app(DIAMOND)
    with pytest.raises(ExecutionError):
        app.invoke({"topic": "t"}, run_id="r")
    bench.broken = set()
    bench.taken()

    app.invoke(reuse="r", run_id="second")
    assert bench.taken() == ["d"]
    app.invoke(reuse="second")
    assert bench.taken() == []


def test_a_fork_gives_what_was_finished_before_it_too(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    fork = app.resume(app.checkpoints("r")[3].id).run_id
    bench.taken()

    bench.app(CHAIN, {"h": "2"}).invoke(reuse=fork)

    assert bench.taken() == ["h"]


def test_a_graph_that_changed_half_way_counts_as_it_was_when_a_step_ran(bench: Bench) -> None:
    bench.broken = {"c"}
    with pytest.raises(ExecutionError):
        bench.app(DIAMOND).invoke({"topic": "t"}, run_id="r")
    bench.broken = set()
    bench.app(DIAMOND, {"a": "2", "d": "2"}).resume("r")
    bench.taken()

    bench.app(DIAMOND, {"a": "2", "d": "2"}).invoke(reuse="r")
    assert sorted(bench.taken()) == ["a", "b", "c", "d"]
    bench.app(DIAMOND, {"d": "2"}).invoke(reuse="r")
    assert bench.taken() == []


def test_a_list_that_grows_and_is_trimmed_is_compared_as_a_whole(bench: Bench) -> None:
    class Talk(TypedDict, total=False):
        said: Annotated[list[int], keep_last(3)]
        all: list[int]

    def app(version: str = "1") -> App:
        graph = StateGraph(Talk, name="talk")

        def say(state: Any) -> dict[str, Any]:
            bench.ran.append("say")
            return {"said": [len(state["all"])], "all": [*state["all"], len(state["all"])]}

        graph.add_node("say", say, version="1")
        graph.add_node("end", bench.node("end"), version=version)
        graph.add_edge(START, "say")
        graph.add_conditional_edges(
            "say", lambda state: "say" if len(state["all"]) < 30 else "end", ["say", "end"]
        )
        graph.add_node("stop", lambda state: {"all": []}, version=version)
        graph.add_edge("end", "stop")
        graph.add_edge("stop", END)
        return graph.compile(bench.store)

    def end(state: Any) -> dict[str, Any]:
        return {}

    bench.node = lambda name, version="1": end  # type: ignore[method-assign,assignment]
    app().invoke({"all": []}, run_id="r")
    bench.taken()

    outcome = app("2").invoke(reuse="r")

    assert bench.taken() == [] and list(outcome.state["said"]) == [27, 28, 29]
    assert outcome.stats.steps_reused == 30


def test_a_changed_reducer_is_a_change(bench: Bench) -> None:
    def app(annotation: Any) -> App:
        graph = StateGraph({"x": annotation}, name="reduced")
        graph.add_node("a", lambda state: {"x": [1]}, version="1")
        graph.add_edge(START, "a")
        graph.add_edge("a", END)
        return graph.compile(bench.store)

    app(list).invoke({"x": [0]}, run_id="r")

    assert list(app(Annotated[list, append]).invoke({"x": [0]}, reuse="r").state["x"]) == [0, 1]


def test_it_works_in_an_event_loop_and_in_the_fleet(store: Store) -> None:
    bench = Bench(store)
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    bench.taken()

    assert asyncio.run(app.ainvoke(reuse="r")).stats.steps_reused == 4
    changed = bench.app(DIAMOND, {"d": "2"})
    submitted = changed.submit(reuse="r")
    outcome = asyncio.run(changed.aexecute(submitted))

    assert bench.taken() == ["d"] and outcome.state["found"]["d"] == "2 of t"


def test_the_events_and_the_journal_say_where_results_came_from(bench: Bench) -> None:
    heard = Heard()
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    app.invoke(reuse="r", run_id="second")
    app.invoke(reuse="second", observer=heard)

    assert [(event.data["step"], event.data["origin"]) for event in heard.of("node.reuse")] == [
        (step, "r") for step in ("a#1", "b#1", "c#1", "d#1")
    ]
    assert len(heard.of("checkpoint.save")) == 3


def test_a_source_that_is_gone_before_it_was_needed_just_means_that_steps_run(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    submitted = app.submit(reuse="r")
    delete_run(app._settings.journal, "r")
    bench.taken()

    asyncio.run(app.aexecute(submitted))

    assert sorted(bench.taken()) == ["a", "b", "c", "d"]


def test_a_pruned_source_gives_what_is_left_but_no_inputs(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    journal = app._settings.journal
    prune_run(journal, journal.info("r"), app.checkpoints("r")[1].seq)
    bench.taken()

    with pytest.raises(CannotReuse, match="give the new run its own"):
        app.invoke(reuse="r")
    app.invoke({"topic": "t"}, reuse="r")
    assert bench.taken() == ["a", "b"]


def test_nonsense_is_refused(bench: Bench) -> None:
    app = bench.app(DIAMOND)
    app.invoke({"topic": "t"}, run_id="r")
    other = bench.app(DIAMOND, name="other")

    with pytest.raises(CannotReuse, match="is of workflow 'facts', and this one is 'other'"):
        other.invoke({"topic": "t"}, reuse="r")
    with pytest.raises(RunNotFound):
        app.invoke({"topic": "t"}, reuse="nobody")
    with pytest.raises(StateInvalid, match="not both"):
        app.invoke(checkpoint="r", reuse="r")
    with pytest.raises(StateInvalid, match="reuse= names a run"):
        app.invoke({}, reuse=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("point", ["before", "committed"])
def test_a_crash_at_any_moment_of_it_repeats_nothing(point: Any) -> None:
    """S0.9: kill it at every commit; what is resumed ends as what was not interrupted."""
    for at in range(1, 12):
        store = open_store("memory://")
        bench = Bench(store)
        bench.app(CHAIN).invoke({"topic": "t"}, run_id="r")
        bench.taken()
        dying = CrashingStore(store, at, point, raise_crash)
        crashed = False
        try:
            bench.graph(CHAIN, {"f": "2"}).compile(dying).invoke(reuse="r", run_id="new")
        except Crash:
            crashed = True
        app = bench.app(CHAIN, {"f": "2"})
        if not store.runs(run="new"):
            app.invoke(reuse="r", run_id="new")
        elif store.runs(run="new")[0].status != "completed":
            app.resume("new")
        ran = bench.taken()

        assert list(dict.fromkeys(ran)) == ["f", "g", "h"] and len(ran) <= 4
        assert list(app.get_state("new")["log"])[5:] == ["f.2", "g.1", "h.1"]
        if not crashed:
            assert ran == ["f", "g", "h"]
            return
    raise AssertionError("it never got through")


def test_a_large_list_is_known_again_after_a_crash_though_it_was_put_together_meanwhile(
    memory: Store,
) -> None:
    """The second execution reads a snapshot, which no longer has the parts of the list."""
    ran: list[str] = []

    class Long(TypedDict, total=False):
        said: Annotated[list[str], append]
        mood: str
        sum: int

    def app(version: str, store: Any) -> App:
        graph = StateGraph(Long, name="long")

        def say(number: int) -> Any:
            return lambda state: {"said": [str(number) * 100_000]}

        def feel(state: Any) -> dict[str, Any]:
            ran.append("feel")
            return {"mood": version}

        def total(state: Any) -> dict[str, Any]:
            ran.append("total")
            return {"sum": sum(map(len, state["said"]))}

        names = [f"say{number}" for number in range(6)]
        for number, name in enumerate(names):
            graph.add_node(name, say(number), version="1")
        graph.add_node("feel", feel, reads=["said"], version=version)
        graph.add_node("rest", lambda state: {}, reads=["mood"], version="1")
        graph.add_node("total", total, reads=["said"], version="1")
        order = (START, *names, "feel", "rest", "total", END)
        for one, other in pairwise(order):
            graph.add_edge(one, other)
        return graph.compile(store)

    app("1", memory).invoke({}, run_id="r")
    ran.clear()
    for at in range(1, 6):
        with contextlib.suppress(Crash):
            app("2", CrashingStore(memory, at, "committed", raise_crash)).invoke(reuse="r", run_id=f"new{at}")
        journal = app("2", memory)._settings.journal
        loaded = journal.load(journal.info(f"new{at}"), app("2", memory)._settings.codec)
        journal.store.commit(
            [
                Append(
                    f"new{at}",
                    loaded.seq,
                    [],
                    None,
                    (journal.make_snapshot(settled(loaded), app("2", memory)._settings.codec),),
                )
            ]
        )
        if journal.info(f"new{at}").status != "completed":
            app("2", memory).resume(f"new{at}")
        assert "total" not in ran, at


def settled(loaded: Any) -> Any:
    """A run whose values were all looked at."""
    for slot in loaded.run.root.cells.values():
        slot.get()
    return loaded
