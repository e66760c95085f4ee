"""The ledger: what runs used up, counted once over failures, crashes, resumes and forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, App, ExecutionError, Retry, Send, StateGraph, StateInvalid, open_store
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store
from holdfast.views.charges import rows
from holdfast.views.family import relatives
from holdfast.views.usage import KnownCharges, charges_of, ledger
from tests.cli.processes import call
from tests.graphs import Heard

SOURCE = Path(__file__).parents[2] / "src"


def paid(cost: float | None, model: str = "m", **state: Any) -> Any:
    """A node that pays for one call."""

    def node(state_: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend(model, input_tokens=10, output_tokens=2, cost=cost)
        return state

    return node


def line(*nodes: tuple[str, Any], **options: Any) -> StateGraph:
    graph = StateGraph(dict)
    for name, function in nodes:
        graph.add_node(name, function, **options)
    for (one, _), (other, _) in zip([(START, None), *nodes], [*nodes, (END, None)], strict=True):
        graph.add_edge(one, other)
    return graph


def costs(app: App, run: str = "r", **options: Any) -> dict[str, float]:
    return {row.name: row.spent.cost for row in app.cost(run).by_step(**options) if row.spent.calls}


def test_each_step_and_each_model_has_its_line(store: Store) -> None:
    """Tokens, money and time by step, by model and in all, on every store."""
    app = line(("a", paid(0.25)), ("b", paid(0.5, "large")), ("c", paid(None))).compile(store)
    outcome = app.invoke({}, run_id="r")

    found = app.cost("r")
    assert costs(app) == {"a": 0.25, "b": 0.5, "c": 0.0}
    assert {row.name: row.spent.cost for row in found.by_model()} == {"m": 0.25, "large": 0.5}
    own = found.own
    assert (own.steps, own.spent.calls, own.spent.input_tokens, own.spent.output_tokens) == (3, 3, 30, 6)
    assert (found.total.cost, found.total.unpriced, outcome.stats.cost) == (0.75, 1, 0.75)
    assert 0 < own.seconds <= found.executed_seconds


def test_what_a_failed_attempt_paid_is_counted_once_as_in_vain(store: Store) -> None:
    calls: list[int] = []

    def flaky(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend("m", cost=1.0)
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise ConnectionError("lost")
        return {}

    app = line(("a", flaky), retry=Retry(attempts=2, delay=0)).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")
    assert app.resume("r").stats.cost == 3.0

    own = app.cost("r").own
    assert (own.spent.cost, own.wasted.cost, own.spent.calls, own.steps) == (3.0, 2.0, 3, 1)
    assert app.cost("r").kept.cost == 1.0


def test_what_once_remembers_is_paid_for_once_and_not_in_vain() -> None:
    def node(state: Any, ctx: Any) -> dict[str, Any]:
        def call() -> str:
            ctx.spend("m", cost=1.0)
            return "reply"

        ctx.once("reply", call)
        if ctx.attempt < 3:
            raise ValueError("later")
        return {}

    app = line(("a", node), retry=Retry(attempts=3, delay=0)).compile("memory://")
    app.invoke({}, run_id="r")

    own = app.cost("r").own
    assert (own.spent.cost, own.spent.calls, own.wasted.cost) == (1.0, 1, 0.0)


def test_a_resume_says_what_it_saved_and_pays_for_nothing_twice(store: Store) -> None:
    broken = [True]

    def last(state: Any, ctx: Any) -> dict[str, Any]:
        if broken:
            raise ValueError("not yet")
        return {}

    app = line(("a", paid(0.25)), ("b", paid(0.5)), ("c", last)).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")
    broken.clear()
    app.resume("r")

    found = app.cost("r")
    assert (found.resumes, found.saved.steps, found.saved.cost) == (1, 2, 0.75)
    assert 0 < found.saved.seconds < found.own.seconds
    assert (found.own.spent.cost, found.own.steps) == (0.75, 3)


def test_a_fork_inherits_and_a_family_counts_once(store: Store) -> None:
    """Over forks nothing is counted twice: what was paid before the fork is the parent's."""
    app = line(("a", paid(1.0)), ("b", paid(2.0)), ("c", paid(4.0))).compile(store)
    app.invoke({}, run_id="r")
    point = app.checkpoints("r")[0]
    fork = app.resume(point.id).run_id

    found, journal = app.cost(fork), app._settings.journal
    assert (found.inherited.cost, found.own.spent.cost, found.total.cost) == (1.0, 6.0, 7.0)
    assert costs(app, fork) == {"b": 2.0, "c": 4.0}
    members = [info.run for info, _ in relatives(store, journal.info(fork))]
    assert members == ["r", fork] == [info.run for info, _ in relatives(store, journal.info("r"))]
    assert sum(charge.spent.cost for charge in charges_of(journal, members)) == 13.0
    by_run = {row.name: row.spent.cost for row in rows(charges_of(journal, members), "run")}
    assert by_run == {"r": 7.0, fork: 6.0}


def test_what_a_run_was_set_back_before_was_in_vain(store: Store) -> None:
    app = line(("a", paid(1.0)), ("b", paid(2.0)), ("c", paid(4.0))).compile(store)
    app.invoke({}, run_id="r")
    app.rollback("r", "a")
    assert app.cost("r").kept.cost == 1.0
    app.resume("r")

    found = app.cost("r")
    assert (found.own.spent.cost, found.own.wasted.cost, found.kept.cost) == (13.0, 6.0, 7.0)
    assert (found.own.steps, found.saved.steps, found.saved.cost) == (3, 1, 1.0)


def test_promoting_a_fork_leaves_each_cost_where_it_was_paid(store: Store) -> None:
    app = line(("a", paid(1.0)), ("b", paid(2.0))).compile(store)
    app.invoke({}, run_id="r")
    fork = app.fork("r", "a")
    app.resume(fork)
    app.promote(fork)
    other = app.fork(fork, "b")
    app.promote(other, into="r")

    own, journal = app.cost("r").own, app._settings.journal
    assert (own.spent.cost, own.wasted.cost, app.cost("r").kept.cost) == (3.0, 2.0, 1.0)
    members = [info.run for info, _ in relatives(store, journal.info("r"))]
    assert sum(charge.spent.cost for charge in charges_of(journal, members)) == 5.0


@pytest.mark.parametrize("deep", [False, True])
def test_work_before_a_promoted_fork_that_is_deleted_is_not_wasted(store: Store, deep: bool) -> None:
    app = line(("a", paid(1.0)), ("b", paid(2.0)), ("c", paid(4.0))).compile(store)
    app.invoke({}, run_id="r")
    first = app.fork("r", "b")
    fork = app.fork(first) if deep else first
    app.resume(fork)
    app.promote(fork, into="r")
    before = app.cost("r").own.wasted.cost
    app.delete(fork)

    found = app.cost("r")
    assert (before, found.own.wasted.cost, found.kept.cost) == (4.0, 4.0, 3.0)


def test_results_of_another_run_cost_nothing_and_are_told(store: Store) -> None:
    def build(last: float) -> App:
        return line(("a", paid(1.0)), ("b", paid(2.0)), ("c", paid(last))).compile(store)

    build(4.0).invoke({}, run_id="r")
    app = build(8.0)
    app.invoke(run_id="s", reuse="r")

    found = app.cost("s")
    assert costs(app, "s") == {"c": 8.0}
    assert (found.reused.steps, found.reused.cost, found.own.spent.cost) == (2, 3.0, 8.0)


def test_what_is_kept_of_a_rerun_in_place_is_not_in_vain(store: Store) -> None:
    graph = StateGraph(dict)
    for name, cost in (("a", 1.0), ("b", 2.0), ("c", 4.0)):
        graph.add_node(name, paid(cost, **{name: 1}))
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c")
    app = graph.compile(store)
    app.invoke({}, run_id="r")
    app.rerun("r", "a", in_place=True)

    found = app.cost("r")
    assert found.own.spent.cost == 12.0 and found.own.wasted.cost == 5.0
    assert found.kept.cost == 7.0 and found.reused.steps == 0


def test_a_pruned_journal_still_knows_what_was_spent(store: Store) -> None:
    from holdfast.journal.copying import prune_run

    app = line(("a", paid(1.0)), ("b", paid(2.0)), ("c", paid(4.0))).compile(store)
    app.invoke({}, run_id="r")
    journal, newest = app._settings.journal, app.checkpoints("r")[-1]
    prune_run(journal, journal.info("r"), newest.seq)

    assert costs(app) == {"a": 1.0, "b": 2.0, "c": 4.0}
    assert app.cost("r").total.cost == 7.0


def test_a_pruned_fork_still_knows_what_it_took_itself(store: Store) -> None:
    from holdfast.journal.copying import prune_run

    app = line(("a", paid(1.0)), ("b", paid(2.0)), ("c", paid(4.0))).compile(store)
    app.invoke({}, run_id="r")
    app.fork("r", at=1, run_id="f")
    app.resume("f")
    before, journal = app.cost("f"), app._settings.journal
    prune_run(journal, journal.info("f"), app.checkpoints("f")[-1].seq)

    after = app.cost("f")
    assert 0 < before.own.seconds < app.cost("r").own.seconds + before.own.seconds
    assert after.own.seconds == pytest.approx(before.own.seconds) and after.kept == before.kept
    assert sorted(row.name for row in after.by_step()) == ["(pruned)", "b", "c"]  # And not a, which r ran.


def test_a_moment_of_a_run_has_its_cost() -> None:
    app = line(("a", paid(1.0)), ("b", paid(2.0))).compile("memory://")
    app.invoke({}, run_id="r")

    assert app.cost("r@1").total.cost == 1.0


def test_items_sub_graphs_threads_and_processes_write_into_one_ledger(store: Store) -> None:
    inner = line(("deep", paid(8.0)))
    graph = StateGraph(dict)
    graph.add_node("each", paid(1.0))
    graph.add_node("side", paid(2.0))
    graph.add_node("away", paid_away, executor="processes")
    graph.add_node("outer", inner)
    graph.add_conditional_edges(START, lambda state: [*(Send("each", {"n": n}) for n in range(3)), "side"])
    graph.add_edge("side", "away")
    graph.add_edge("away", "outer")
    app = graph.compile(store)
    app.invoke({}, run_id="r")

    assert costs(app) == {"each": 3.0, "side": 2.0, "away": 4.0, "outer/deep": 8.0}
    assert {name for name in costs(app, ids=True) if name.startswith("each")} == {
        f"each#1[{key}]" for key in range(3)
    }


def paid_away(state: Any, ctx: Any) -> dict[str, Any]:
    ctx.spend("m", cost=4.0)
    return {}


def failing_away(state: Any, ctx: Any) -> dict[str, Any]:
    ctx.spend("m", cost=4.0)
    raise ValueError("in vain")


def test_what_another_process_spent_before_it_failed_is_brought_back() -> None:
    graph = StateGraph(dict)
    graph.add_node("away", failing_away, executor="processes")
    graph.add_edge(START, "away")
    app = graph.compile("memory://")
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")

    own = app.cost("r").own
    assert (own.spent.cost, own.wasted.cost) == (4.0, 4.0)


async def test_async_nodes_spend_too() -> None:
    async def node(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend("m", cost=1.0)

        async def call() -> int:
            ctx.spend("n", cost=2.0)
            return 1

        await ctx.once("k", call)
        return {"spent": ctx.spent}

    app = line(("a", node)).compile("memory://")
    outcome = await app.ainvoke({}, run_id="r")

    assert outcome.state["spent"] == 3.0 and app.cost("r").total.cost == 3.0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"input_tokens": -1}, "input_tokens is a whole number, 0 or more, not -1"),
        ({"output_tokens": 1.5}, "output_tokens is a whole number"),
        ({"calls": True}, "calls is a whole number"),
        ({"cost": -0.1}, "cost is finite and 0 or more, not -0.1"),
        ({"cost": float("nan")}, "cost is finite"),
        ({"cost": "free"}, "cost is US dollars as a number, not 'free'"),
        ({"model": None}, "model is a name, not None"),
    ],
)
def test_numbers_that_cannot_be_are_refused(given: dict[str, Any], told: str) -> None:
    def node(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend(**given)
        return {}

    app = line(("a", node)).compile("memory://")
    with pytest.raises(ExecutionError, match=r"ctx.spend of step 'a': ") as caught:
        app.invoke({}, run_id="r")
    assert isinstance(caught.value.cause, StateInvalid) and told in str(caught.value.cause)


def test_whoever_watches_hears_what_is_spent() -> None:
    heard = Heard()
    line(("a", paid(0.5, "large"))).compile("memory://").invoke({}, observer=heard)

    (event,) = [event for event in heard.events if event.type == "node.spend"]
    assert event.node == "a" and (event.data["model"], event.data["cost"]) == ("large", 0.5)


DIES = """
import os, signal, sys
from holdfast import END, START, StateGraph

def pays(state, ctx):
    ctx.spend("m", input_tokens=5, cost=1.5)
    if len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}

graph = StateGraph(dict)
graph.add_node("a", pays)
graph.add_edge(START, "a")
app = graph.compile(sys.argv[1], facts=False)
if len(sys.argv) > 2:
    app.invoke({}, run_id="r")
else:
    app.resume("r")
"""


def test_money_is_not_forgotten_by_a_process_that_is_killed(tmp_path: Path) -> None:
    """What is spent is stored before `ctx.spend` returns, so kill -9 right after it changes nothing."""
    url = f"sqlite:///{tmp_path}/runs.db"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    died = subprocess.run([sys.executable, "-c", DIES, url, "die"], env=env, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    store = open_store(url)
    try:
        assert ledger(Journal(store), "r").total.cost == 1.5
        subprocess.run([sys.executable, "-c", DIES, url], env=env, check=True, timeout=60)
        own = ledger(Journal(store), "r").own
    finally:
        store.close()

    assert (own.spent.cost, own.wasted.cost, own.steps) == (3.0, 1.5, 1)


# The command line.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    url = f"sqlite:///{tmp_path}/.holdfast/runs.db"
    (tmp_path / ".holdfast").mkdir()
    app = line(("a", paid(1.0)), ("b", paid(2.0, "large"))).compile(url)
    app.invoke({}, run_id="first")
    app.resume(app.checkpoints("first")[0].id)
    line(("z", paid(None))).compile(url).invoke({}, run_id="other")
    app.store.close()
    return tmp_path


def test_the_command_tells_one_run_and_many(folder: Path) -> None:
    env = {**os.environ, "HOLDFAST_STORE": f"sqlite:///{folder}/.holdfast/runs.db", "NO_COLOR": "1"}

    told = call(folder, "runs", "cost", "first", env=env)
    assert told.returncode == 0, told.stderr
    assert "spent     $3.00: 2 calls, 20 tokens in, 4 out" in told.stdout
    assert "large" in told.stdout and "in steps, executed for" in told.stdout
    one = json.loads(call(folder, "runs", "cost", "first", "--json", "--ids", env=env).stdout)
    assert [row["name"] for row in one["steps"]] == ["b#1", "a#1"]
    assert one["total"]["cost"] == one["own"]["cost"] == 3.0

    whole = json.loads(call(folder, "runs", "cost", "first", "--family", "--json", env=env).stdout)
    assert (whole["runs"], whole["total"]["cost"]) == (2, 5.0)
    models = json.loads(
        call(folder, "runs", "cost", "--since", "1h", "--by", "model", "--json", env=env).stdout
    )
    assert {row["name"]: row["cost"] for row in models["rows"]} == {"m": 1.0, "large": 4.0}
    days = json.loads(call(folder, "runs", "cost", "--by", "day", "--limit", "1", "--json", env=env).stdout)
    assert days["runs"] == 3 and days["total"]["unpriced"] == 1


def test_the_command_refuses_what_makes_no_sense(folder: Path) -> None:
    env = {**os.environ, "HOLDFAST_STORE": f"sqlite:///{folder}/.holdfast/runs.db"}
    for words, told in [
        (("--family",), "--family takes one RUN"),
        (("first", "--workflow", "w"), "give either RUNs or --workflow"),
        (("--since", "soon"), "--since"),
        (("nothing-like-it",), "nothing-like-it"),
        (("first@1", "--by", "step"), "is a checkpoint"),
        (("--ids", "--by", "model"), "--ids makes rows of steps"),
    ]:
        done = call(folder, "runs", "cost", *words, env=env)
        assert done.returncode == 2 or done.returncode == 1, words
        assert told in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_what_is_known_of_a_run_is_read_again_when_the_run_has_gone_on() -> None:
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend("model", cost=2.0)
        if not state.get("paper"):
            raise RuntimeError("no paper")
        return {}

    store = open_store("memory://")
    app = (
        StateGraph(dict, name="paid")
        .add_node("pay", pay)
        .add_edge(START, "pay")
        .add_edge("pay", END)
        .compile(store)
    )
    known, journal = KnownCharges(Journal(store), most=1), Journal(store)

    def costs() -> list[float]:
        charges, unreadable = known.of(journal.store.runs())
        assert unreadable == []
        return sorted(charge.spent.cost for charge in charges if charge.model)

    for run in ("one", "other"):
        with pytest.raises(ExecutionError):
            app.invoke({}, run_id=run)
    assert costs() == costs() == [2.0, 2.0]
    app.resume("one", update={"paper": True})
    assert costs() == [2.0, 2.0, 2.0]
