"""Runs that are set to another place more than once, and what becomes of them when others go: nothing is made up."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from holdfast import START, CheckpointPolicy, CommandRefused, ExecutionError, RunFinished, open_store
from holdfast.capsules import export_run, import_run
from holdfast.engine.app import App
from holdfast.engine.retention import expire_runs, prune_workflow
from holdfast.engine.settings import Retention
from holdfast.errors import CannotRerun
from holdfast.journal.copying import prune_run
from holdfast.stores.base import Store
from tests.engine.time_travel.versioned_graphs import DIAMOND, Bench

CHAIN = ((START, "a"), ("a", "b"), ("b", "c"), ("c", "d"))
TWO_WAYS = ((START, "a"), ("a", "b"), ("a", "x"), ("x", "y"), (["b", "y"], "z"))


@pytest.fixture
def bench(memory: Store) -> Bench:
    return Bench(memory)


def log_of(app: App, run: str = "r") -> list[str]:
    return list(app.get_state(run)["log"])


def fates(app: App, run: str = "r", **options: Any) -> dict[str, str]:
    return {step.step or step.node: step.what for step in app.plan_resume(run, **options).steps}


# What a run has finished.


def test_a_run_that_is_rolled_forward_again_has_finished_what_it_had_there(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    points = app.checkpoints("r")
    app.rollback("r", 1)
    app.rollback("r", points[-1].id)

    assert [step.step for step in app.plan_rerun("r", "c").steps] == ["c#1", "d#1"]
    app.rollback("r", points[2].id)
    assert fates(app) == {"a#1": "kept", "b#1": "kept", "c#1": "kept", "d#1": "next"}
    app.rollback("r", points[-1].id)
    bench.taken()
    assert list(bench.app(CHAIN, {"b": "2"}).resume("r", rerun_changed=True).state["log"])[1] == "b.2"
    assert bench.taken() == ["b", "c", "d"]


def test_a_run_that_is_rolled_back_behind_an_promotion_has_not_finished_what_was_promoted(
    bench: Bench,
) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    app.fork("r", 1, run_id="f")
    app.resume("f")
    first = app.checkpoints("r")[0].id
    app.promote("f")
    app.rollback("r", first)
    bench.taken()

    plan = app.plan_resume("r")
    assert {step.step or step.node: step.what for step in plan.steps} == {"a#1": "kept", "b#1": "next"}
    app.resume("r", plan=plan)
    assert bench.taken() == ["b", "c", "d"]


def test_after_an_promotion_a_run_is_taken_back_no_further_than_it_must(bench: Bench) -> None:
    """What the fork was forked from is its own past, and that of the run that promotes it."""
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    app.fork("r", 3, run_id="f")
    app.resume("f")
    app.promote("f")

    assert app.plan_rerun("r", "b").seq == app.checkpoints("r")[0].seq


# What a reset refers to.


@pytest.fixture
def promoted(bench: Bench) -> App:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    app.fork("r", 2, run_id="f", update={"log": ["edited"]})
    app.resume("f")
    app.promote("f")
    return app


@pytest.mark.parametrize("another", [False, True])
def test_a_fork_that_was_promoted_and_deleted_is_missed_and_never_mistaken(
    bench: Bench, promoted: App, another: bool
) -> None:
    assert promoted.delete("f")
    if another:
        promoted.invoke({"log": ["another run"]}, run_id="f")
    before = log_of(promoted)

    with pytest.raises(CannotRerun, match="what run 'f' did up to its entry 4 is no longer stored"):
        bench.app(CHAIN, {"c": "2"}).resume("r", rerun_changed=True)
    with pytest.raises(CannotRerun, match="cannot be taken back to before 'd'"):
        promoted.rerun("r", "d")
    assert log_of(promoted) == before == ["a.1", "b.1", "edited", "c.1", "d.1"]


def test_another_fork_of_the_same_name_is_promoted_too(promoted: App) -> None:
    promoted.delete("f")
    promoted.fork("r", promoted.checkpoints("r")[1].id, run_id="f", update={"log": ["again"]})
    promoted.resume("f")
    promoted.promote("f")

    assert log_of(promoted) == ["a.1", "b.1", "again", "c.1", "d.1"]


def half_way(bench: Bench, **options: Any) -> App:
    """A run of which `b` is run again and fails, so that `x` and `y` are still to be kept."""
    app = bench.app(TWO_WAYS)
    app.invoke({"topic": "t"}, run_id="r")
    bench.broken = {"b"}
    with pytest.raises(ExecutionError):
        app.rerun("r", "b", **options)
    bench.broken = set()
    bench.taken()
    return app


def test_a_run_that_is_imported_under_another_id_knows_what_is_its_own(bench: Bench, tmp_path: Path) -> None:
    export_run(half_way(bench, in_place=True).store, "r", tmp_path / "r.capsule")
    other = Bench(open_store("memory://"))
    import_run(other.store, tmp_path / "r.capsule", run_id="r2", trust=True)
    app = other.app(TWO_WAYS)

    assert fates(app, "r2") == {"a#1": "kept", "x#1": "kept", "y#1": "kept", "b#1": "rerun"}
    app.resume("r2")
    assert other.taken() == ["b", "z"]


# What unfinished runs are to be given.


@pytest.mark.parametrize("options", [{"in_place": True}, {"run_id": "n"}], ids=["in place", "a new run"])
def test_what_is_to_be_kept_is_not_pruned(bench: Bench, options: dict[str, Any]) -> None:
    app = half_way(bench, **options)
    journal, run = app._settings.journal, options.get("run_id", "r")
    prune_run(journal, journal.info("r"), app.checkpoints("r")[-1].seq)
    prune_workflow(journal, app.name, Retention(max_checkpoints=1, per="run", max_age=None))

    assert fates(app, run)["y#1"] == "kept"
    app.resume(run)
    assert bench.taken() == ["b", "z"]
    prune_run(journal, journal.info("r"), app.checkpoints("r")[-1].seq)
    assert len(app.checkpoints("r")) == 1, "once it is given, nothing is held back"


def test_a_run_that_another_needs_is_not_deleted(bench: Bench) -> None:
    app = half_way(bench, run_id="n")
    with pytest.raises(CommandRefused, match="run 'n', which is not finished"):
        app.delete("r")
    app.requeue("n")
    assert expire_runs(bench.store, dt.timedelta(0), keep_successful=False) == 0

    asyncio.run(app.aexecute("n"))
    assert bench.taken() == ["b", "z"]
    assert app.delete("r") and log_of(app, "n")[-1] == "z.1"


def test_a_rerun_in_a_new_run_keeps_its_kept_steps_when_it_is_itself_taken_back(bench: Bench) -> None:
    half_way(bench, run_id="n")
    app = bench.app(TWO_WAYS, {"x": "1", "b": "2", "a": "1"})

    assert fates(app, "n", rerun_changed=True)["y#1"] == "kept"
    app.resume("n", rerun_changed=True)
    assert bench.taken() == ["b", "z"]


# Other code since.


def test_a_plain_resume_does_not_hide_that_a_step_was_done_by_older_code(bench: Bench) -> None:
    bench.broken = {"c"}
    with pytest.raises(ExecutionError):
        bench.app(CHAIN).invoke({"topic": "t"}, run_id="r")
    app = bench.app(CHAIN, {"a": "2"})
    with pytest.raises(ExecutionError):
        app.resume("r")
    bench.broken = set()

    assert fates(app, rerun_changed=True)["a#1"] == "rerun"
    assert list(app.resume("r", rerun_changed=True).state["log"]) == ["a.2", "b.1", "c.1", "d.1"]
    with pytest.raises(RunFinished, match="nothing changed"):
        app.resume("r", rerun_changed=True)
    with pytest.raises(RunFinished, match="nothing changed"):
        app.plan_resume("r", rerun_changed=True)


def test_a_kept_step_is_as_old_as_the_code_that_did_it(bench: Bench) -> None:
    """A step that was given its own earlier result was not done by the code at hand."""
    bench.app(DIAMOND).invoke({"topic": "t"}, run_id="r")
    app = bench.app(DIAMOND, {"c": "2"})
    app.rerun("r", "b", in_place=True)
    bench.taken()

    app.resume("r", rerun_changed=True)
    assert bench.taken() == ["c", "d"]


# Other work.


def keys_of(store: Store, names: str) -> tuple[App, list[str]]:
    seen: list[str] = []

    def node(state: Any, ctx: Any) -> dict[str, Any]:
        seen.append(ctx.idempotency_key)
        return {"log": [ctx.node]}

    edges = list(zip([START, *names], names, strict=False))
    return Bench(store).app(edges, nodes=dict.fromkeys(names, node)), seen


def test_work_that_is_done_again_has_other_idempotency_keys(store: Store) -> None:
    app, seen = keys_of(store, "abc")
    app.invoke({}, run_id="r")
    app.rollback("r", 2)
    app.resume("r")
    assert seen == ["r:a#1", "r:b#1", "r:c#1", "r:c#1"], "a rollback is to do the same again"

    seen.clear()
    app.rerun("r", "b", in_place=True)
    app.rerun("r", "c", in_place=True)
    app.fork("r", app.checkpoints("r")[1].id, run_id="f")
    app.promote("f")
    app.resume("r")
    app.resume("f")
    assert seen == ["r:b#1~1", "r:c#1~1", "r:c#1~2", "r:c#1~3", "f:c#1"]


def test_a_node_that_the_run_no_longer_begins_with_is_visited_for_the_first_time(bench: Bench) -> None:
    bench.app(((START, "a"), (START, "b"), ("a", "c"))).invoke({"topic": "t"}, run_id="r")
    app = bench.app(((START, "a"), ("a", "c"), ("c", "b")))

    app.resume("r", rerun_changed=True)
    assert [step.step for step in app.plan_rerun("r", "b").steps] == ["b#1"]


# Odds and ends.


def test_a_rerun_from_the_very_beginning_is_a_fork_too(store: Store) -> None:
    bench = Bench(store)
    app = bench.app(CHAIN, options={"policy": CheckpointPolicy(durability="exit")})
    app.invoke({"topic": "t"}, run_id="r")
    app.rerun("r", "b", run_id="n")

    assert store.runs(run="n")[0].parent == store.runs(run="r")[0].key
    app.promote("n")
    assert app.delete("r") and log_of(app, "n") == ["a.1", "b.1", "c.1", "d.1"]


def test_a_result_that_somebody_gave_is_kept_with_what_it_was(bench: Bench) -> None:
    bench.broken = {"b"}
    app = bench.app(DIAMOND)
    with pytest.raises(ExecutionError):
        app.invoke({"topic": "t"}, run_id="r")
    app.update_state("r", {"log": ["mine"]}, as_node="b")
    app.resume("r")
    bench.taken()

    outcome = bench.app(DIAMOND, {"c": "2"}).resume("r", rerun_changed=True)
    assert bench.taken() == ["c", "d"]
    assert sorted(outcome.state["log"]) == ["a.1", "c.2", "d.1", "mine"]


def test_what_somebody_had_a_run_do_later_is_undone_by_going_back(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")
    app.update_state("r", {"log": ["mine"]}, as_node="a")
    app.resume("r")
    changed = bench.app(CHAIN, {"b": "2"})

    plan = changed.plan_resume("r", rerun_changed=True)
    assert next(step.what for step in plan.steps if step.step == "a#2") == "orphaned"
    assert list(changed.resume("r", rerun_changed=True, plan=plan).state["log"]) == [
        "a.1",
        "b.2",
        "c.1",
        "d.1",
    ]


def test_a_visit_that_never_was_is_told_from_those_that_were(bench: Bench) -> None:
    app = bench.app(CHAIN)
    app.invoke({"topic": "t"}, run_id="r")

    with pytest.raises(CannotRerun, match="run 'r' never came to 'b#9'; of 'b' it ran b#1"):
        app.rerun("r", "b#9")
