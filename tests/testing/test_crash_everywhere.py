"""`crash_everywhere`: careless workflows fail with what to change, careful ones pass."""

from __future__ import annotations

import asyncio
import operator
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, HoldfastError, Retry, StateGraph, open_store
from holdfast.stores import RunInfo
from holdfast.stores.base import Append, Conflict, Entry, Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import (
    CrashFailure,
    CrashReport,
    RunSeen,
    WrappedStore,
    crash_everywhere,
    record_effect,
    recorded_effects,
    skipping_time,
)
from holdfast.testing.boundaries import Boundary, sampled
from tests.crash.workflows import WORKFLOWS
from tests.invariants import Ledger
from tests.testing.shops import (
    Order,
    ask,
    careful_shop,
    chain,
    charge,
    pack,
    pay_carefully,
    pay_carelessly,
    pay_once,
    pay_something,
    pay_then_ask,
    pay_under_any_key,
)

ORDER: Any = {"amount": 10}
YES = {"ship": "yes"}


def broken(graph: Any, inputs: Any = ORDER, **options: Any) -> CrashReport:
    """The report of a workflow that must not pass, and does not."""
    with pytest.raises(CrashFailure) as caught:
        crash_everywhere(graph, inputs, **{"mode": "fast", **options})
    report = caught.value.report
    assert str(caught.value) == str(report) and not report.passed
    return report


@pytest.mark.parametrize(("mode", "limit"), [("fast", None), ("process", 5)])
def test_a_side_effect_before_a_question_and_without_a_key_is_caught_and_told_what_to_change(
    mode: str, limit: int | None
) -> None:
    report = broken(chain("shop", ("pay", pay_then_ask)), answers=YES, mode=mode, limit=limit)

    text = " ".join(str(report).split())
    assert report.first is not None and report.first.boundary is None
    assert "BREAKS WITHOUT ANY CRASH" in text
    assert (
        "step 'pay#1' did 'charge' twice: once before `ctx.ask('ship')`, and again when the answer comes"
        in text
    )
    assert "Side effect before `ctx.ask`" in text and "into a node of its own before" in text
    assert "`ctx.once('charge', …)`" in text and "idempotency_key=ctx.idempotency_key" in text
    assert "EFFECT 'charge' amount=10" in text and "step 'pay#1' is left: it asks (ship)" in text


@pytest.mark.parametrize(("mode", "limit"), [("fast", None), ("process", 8)])
def test_a_careful_workflow_passes(mode: str, limit: int | None) -> None:
    graph = chain("shop", ("pay", pay_carefully), ("ask", ask), ("pack", pack))
    seen: list[RunSeen] = []

    def charged_once(run: RunSeen) -> bool:
        seen.append(run)
        return [effect.name for effect in run.effects] == ["charge"] and run["receipt"] == "paid 10"

    report = crash_everywhere(graph, ORDER, answers=YES, invariant=charged_once, mode=mode, limit=limit)

    assert report.passed and report.first is None and report.kills == report.resumes == report.tried
    assert report.boundaries > 15 and report.tried == (limit or report.boundaries)
    assert ("killed with SIGKILL" in str(report).splitlines()[0]) == (mode == "process")
    assert ("simulated within this process" in str(report).splitlines()[0]) == (mode == "fast")
    assert ("spread evenly" in str(report)) == (limit is not None)
    if mode == "fast":  # In processes of their own they see what this one does not.
        assert len(seen) == report.tried + 2 and {run.outcome for run in seen} == {"completed"}
        assert any(run.steps.count("pay#1") == 2 for run in seen)


def test_those_who_resume_can_be_killed_too() -> None:
    graph = chain("shop", ("pay", pay_carefully), ("ask", ask), ("pack", pack))

    report = crash_everywhere(graph, ORDER, answers=YES, mode="fast", kill_resumes=True)

    assert report.kills == report.resumes and 2 * report.tried - 6 <= report.kills <= 2 * report.tried
    careless = broken(chain("shop", ("pay", pay_carelessly)), kill_resumes=True, points=["ran"])
    assert str(careless).count("KILLED") == 2


def test_an_effect_that_a_crash_repeats_is_caught_where_that_begins() -> None:
    report = broken(chain("shop", ("pay", pay_carelessly), ("pack", pack)))

    first, text = report.first, " ".join(str(report).split())
    assert first is not None and first.boundary is not None
    assert (first.boundary.point, first.boundary.number) == ("effect", 1)
    assert "IT BREAKS if the process dies right after effect 1: 'charge' of step 'pay#1'" in text
    assert "died before its outcome was stored, and the resume ran it again" in text
    assert "expected: 'charge' once in step 'pay#1'" in text and "KILLED right after effect 1" in text
    assert "if_interrupted=look" in text and "narrows the gap" in text
    assert [str(each.boundary) for each in report.breaks][1:] == [
        "when the body of step 'pay#1' had run, before its outcome was stored",
        "before commit 2 was stored: step 'pay#1' is finished, step 'pack#1' begins",
    ]


def test_an_effect_in_once_is_told_of_the_gap_that_is_left() -> None:
    report = broken(chain("shop", ("pay", pay_once)))

    assert {each.boundary and each.boundary.point for each in report.breaks} == {"effect", "before"}
    assert "remembers a result only after the function has returned" in " ".join(str(report).split())


def test_what_may_happen_twice_is_let_through() -> None:
    graph = chain("shop", ("pay", pay_then_ask))

    assert crash_everywhere(graph, ORDER, answers=YES, mode="fast", repeatable=["charge"]).passed
    assert crash_everywhere(graph, ORDER, answers=YES, mode="fast", repeatable="pay").passed


def test_a_retry_that_repeats_an_effect_is_caught() -> None:
    def flaky(state: Any, ctx: Context) -> dict[str, Any]:
        charge(1)
        if ctx.attempt == 1:
            raise ConnectionError("lost")
        return {}

    report = broken(chain("shop", ("pay", flaky), retry=Retry(attempts=3, delay=600)))

    text = " ".join(str(report).split())
    assert "BREAKS WITHOUT ANY CRASH" in text and "its attempt failed (ConnectionError: lost)" in text
    assert "A retry, and a resume after a failure, run the whole body again" in text


def test_a_request_that_is_computed_anew_under_the_same_key_is_caught() -> None:
    report = broken(chain("shop", ("pay", pay_something)))

    assert "asked for 'charge' again under the same key, for something else" in str(report)
    assert 'ctx.once("charge request", make_request)' in " ".join(str(report).split())


def test_a_key_that_is_another_one_each_time_is_caught() -> None:
    assert "each time under another key" in str(broken(chain("shop", ("pay", pay_under_any_key))))


def test_an_effect_that_is_passed_over_is_missed() -> None:
    report = broken(
        chain("shop", ("pay", pay_carelessly), if_interrupted="skip"), same=lambda one, other: True
    )

    assert "did 'charge' not at all" in str(report) and 'if_interrupted="skip"' in str(report)


def test_the_person_who_is_asked_about_an_interrupted_step_looks_at_the_world() -> None:
    graph = chain("shop", ("pay", pay_carelessly), if_interrupted="ask")

    report = crash_everywhere(graph, ORDER, mode="fast")

    assert "decided for interrupted steps: rerun pay#1, skip pay#1" in str(report)


def test_a_step_that_may_not_be_repeated_unasked_stops_the_run_and_that_is_said() -> None:
    report = crash_everywhere(chain("shop", ("pay", pay_carelessly), idempotent=False), ORDER, mode="fast")

    assert "a step may not be repeated unasked" in str(report)


def test_a_function_that_looks_whether_it_was_done_makes_any_service_safe() -> None:
    def look(ctx: Context) -> dict[str, Any] | None:
        done = recorded_effects("charge")
        return {"receipt": f"paid {done[0].facts['amount']}"} if done else None

    graph = chain("shop", ("pay", pay_carelessly), if_interrupted=look)

    assert crash_everywhere(graph, ORDER, mode="fast").passed
    assert recorded_effects() == []


_in_memory: list[str] = []


def remember(state: Any) -> dict[str, Any]:
    _in_memory.append("paid")
    return {}


def recall(state: Any) -> dict[str, Any]:
    return {"verdict": ",".join(_in_memory)}


def test_what_only_the_memory_of_the_process_holds_is_missed_by_a_real_kill() -> None:
    graph = chain("shop", ("remember", remember), ("recall", recall))

    report = broken(graph, {}, mode="process", points=["acknowledged"])

    assert report.first is not None and "step 'recall#1' begins" in str(report.first.boundary)
    assert "expected: ['verdict'] = 'paid'" in str(report) and "happened: ['verdict'] = ''" in str(report)
    assert "a global variable" in " ".join(str(report).split()) and _in_memory == []


def test_what_differs_anyway_is_not_compared_and_that_is_said() -> None:
    def stamp(state: Any) -> dict[str, Any]:
        return {"receipt": str(time.perf_counter_ns()), "verdict": "good"}

    report = crash_everywhere(chain("shop", ("stamp", stamp)), {}, mode="fast")

    assert "not compared: ['receipt'], which differs between undisturbed runs" in str(report)


def test_an_invariant_that_does_not_hold_is_told_with_what_happened() -> None:
    def never(run: RunSeen) -> None:
        assert len(run.requests) == 1, f"asked {len(run.requests)} times"

    graph = chain("shop", ("pay", pay_carefully))
    report = broken(graph, invariant=never)
    assert "the invariant 'never' does not hold" in str(report) and "asked 2 times" in str(report)
    assert report.first is not None and report.first.boundary is not None
    assert "answered False" in str(broken(graph, invariant=lambda run: False))
    assert "ZeroDivisionError" in str(broken(graph, invariant=lambda run: 1 / 0))


@pytest.mark.parametrize("name", ["wave", "loop", "for_each", "nested", "async_chain", "once"])
def test_every_shape_of_graph_survives(name: str) -> None:
    def make() -> StateGraph:
        return WORKFLOWS[name](Ledger(), 0.0).graph

    workflow = WORKFLOWS[name](Ledger(), 0.0)
    report = crash_everywhere(make, workflow.input, mode="fast", options=workflow.options, limit=40)

    assert report.kills >= min(report.tried, 12), report


def test_siblings_that_were_not_finished_are_killed_between_each_other() -> None:
    async def slow(state: Any) -> dict[str, Any]:
        record_effect("slow")
        await asyncio.sleep(60)
        return {"verdict": "slow"}

    graph = StateGraph(Order, name="siblings")
    graph.add_node("slow", slow, after=[]).add_node("pay", pay_carefully, after=[])

    report = broken(graph)

    assert {finding.subject for each in report.breaks for finding in each.findings} == {'["slow", "slow#1"]'}


def test_a_workflow_file_is_killed_everywhere_too(tmp_path: Path) -> None:
    (tmp_path / "shop_steps.py").write_text(
        "from holdfast.testing import record_effect\n"
        "def pay(amount, ctx, careful):\n"
        "    record_effect('charge', ctx.idempotency_key if careful else None, amount=amount)\n"
        "    return amount\n"
    )
    flow = tmp_path / "shop.yaml"
    flow.write_text(
        "workflow: {name: shop, inputs: {amount: {type: integer}, careful: {type: boolean}}}\n"
        "steps:\n"
        "  - {name: pay, python: 'shop_steps.py:pay', "
        "with: {amount: '{{ inputs.amount }}', careful: '{{ inputs.careful }}'}}\n"
        "  - {name: rest, wait: 1h}\n"
        "  - {name: ship, ask: 'Ship it?'}\n"
        "output: '{{ steps.pay.output }}: {{ steps.ship.output }}'\n"
    )

    report = crash_everywhere(flow, {"amount": 5, "careful": True}, answers=YES, mode="fast", limit=16)

    assert report.passed and report.workflow == "shop" and report.kills == 16
    careless = str(broken(str(flow), {"amount": 5, "careful": False}, answers=YES, points=["effect"]))
    assert "step 'pay#1' did 'charge' twice" in careless and "$HOLDFAST_IDEMPOTENCY_KEY" in careless


def test_what_a_program_does_that_a_step_starts_is_seen(tmp_path: Path) -> None:
    (tmp_path / "charge.py").write_text(
        "from holdfast.testing import record_effect\nrecord_effect('charge', amount=3)"
    )
    flow = tmp_path / "shop.yaml"
    flow.write_text(
        f"workflow: {{name: shop}}\nsteps:\n  - {{name: pay, shell: '{sys.executable} charge.py'}}\n"
    )

    report = broken(flow, {}, mode="process", points=["ran"])

    assert "step 'pay#1' did 'charge' twice: it ran, the process died" in str(report)


def test_an_app_is_tested_on_stores_of_its_own(tmp_path: Path) -> None:
    app = careful_shop().compile(f"sqlite:///{tmp_path}/mine.db", durability="process")

    assert crash_everywhere(app, ORDER, mode="fast", limit=3).passed
    assert app.runs() == []
    with pytest.raises(HoldfastError, match="compiled already: max_parallel"):
        crash_everywhere(app, ORDER, mode="fast", options={"max_parallel": 1})


def test_a_fresh_interpreter_serves_where_there_is_no_fork() -> None:
    options: dict[str, Any] = {"store": "file", "points": ["committed"], "limit": 1, "same": operator.eq}
    report = crash_everywhere(careful_shop, ORDER, start="spawn", **options)

    assert (report.kills, report.resumes) == (1, 1)
    with pytest.raises(HoldfastError, match="a function of a module that makes the graph"):
        crash_everywhere(lambda: careful_shop(), ORDER, start="spawn")


def test_a_store_of_ones_own_is_used(tmp_path: Path) -> None:
    folders: list[Path] = []

    def place(folder: Path) -> str:
        folders.append(folder)
        return f"file://{folder}/here"

    assert crash_everywhere(careful_shop, ORDER, mode="fast", store=place, limit=2, folder=tmp_path).passed
    assert len(folders) == 4 and all(tmp_path in folder.parents for folder in folders)
    assert list(tmp_path.iterdir()) == []


def test_days_of_waiting_pass_at_once() -> None:
    def wait(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.sleep(3 * 86400)
        return {"verdict": ctx.ask("Still?", name="still", timeout=3600, default="no")}

    report = crash_everywhere(chain("shop", ("wait", wait)), {}, answers={"still": "yes"}, mode="fast")

    assert report.passed and report.kills > 12


def test_a_body_that_waits_for_what_died_is_ended_and_told() -> None:
    server: list[int] = []

    def start(state: Any) -> dict[str, Any]:
        server.append(1)
        return {}

    def use(state: Any) -> dict[str, Any]:
        if not server:
            threading.Event().wait()
        return {}

    graph = chain("shop", ("start", start), ("use", use))
    report = broken(graph, {}, mode="process", points=["ran"], timeout=5.0)

    assert "the process did not end within 5 seconds" in str(report)
    assert "waits for something that the new process does not have" in " ".join(str(report).split())


def test_a_workflow_that_fails_by_itself_is_not_killed_at_all() -> None:
    report = broken(chain("shop", ("pay", lambda state: 1 / 0)))
    assert report.boundaries == report.kills == 0
    assert "does not come to its end even when nobody disturbs it" in str(report)
    assert "ZeroDivisionError" in str(report)

    unanswered = broken(chain("shop", ("ask", ask)), answers={"other": 1})
    assert "asks 'ship' (Ship it?), and the test has no answer to it; it has answers to 'other'" in str(
        unanswered
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "quick"}, "mode must be one of 'process', 'fast', not 'quick'"),
        ({"points": ["after"]}, "there is no 'after'"),
        ({"points": []}, "at least one point"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"store": "memory"}, "dies with its process"),
        ({"store": "postgres"}, "store is .sqlite., .file., or a function"),
        ({"start": "thread"}, "start must be 'fork' or 'spawn'"),
        ({"answers": 3}, "answers are a mapping by name or a function of the pause, not int"),
        ({"invariant": True}, "invariant must be a function, not True"),
        ({"same": "=="}, "same must be a function, not '=='"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, not 0"),
        ({"store": lambda folder: None}, "has to return a store or its URL, not None"),
        ({"store": lambda folder: None, "mode": "fast"}, "has to return a store or its URL, not None"),
        ({"store": lambda folder: WrappedStore(MemoryStore())}, "dies with its process; use mode="),
        ({"store": lambda folder: "memory://"}, "dies with its process; use mode="),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        crash_everywhere(careful_shop, ORDER, **options)


def test_only_workflows_are_killed() -> None:
    with pytest.raises(
        HoldfastError,
        match="takes a StateGraph, an App, a function under @workflow",
    ):
        crash_everywhere(3, mode="fast")


def test_a_sample_is_spread_over_the_run_and_over_the_points() -> None:
    everything = [
        Boundary(point, number) for number in range(1, 41) for point in ("before", "committed", "ran")
    ]

    chosen = sampled(everything, 12)

    assert len(chosen) == 12 and {each.point for each in chosen} == {"before", "committed", "ran"}
    assert {1, 40} <= {each.number for each in chosen} and chosen == sorted(chosen, key=everything.index)
    assert sampled(everything, None) == sampled(everything, 500) == everything


def test_an_effect_outside_of_a_crash_test_is_just_let_happen() -> None:
    assert record_effect("charge", "key") and record_effect("charge", "key")
    with pytest.raises(HoldfastError, match="the key of an effect is text"):
        record_effect("charge", key=3)  # type: ignore[arg-type]


class WriteBehind(WrappedStore):
    """Acknowledges first and stores later, as no store may."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._owed: Sequence[Append] = ()

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self._settle()
        self._owed = [append._replace(entries=list(append.entries)) for append in appends]
        return [None for _ in appends]

    def runs(self, **wanted: Any) -> list[RunInfo]:
        self._settle()
        return super().runs(**wanted)

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        self._settle()
        return super().read(run, after, upto)

    def _settle(self) -> None:
        owed, self._owed = self._owed, ()
        if owed:
            assert self.inner.commit(owed) == [None for _ in owed]


def test_a_store_that_acknowledges_before_it_has_stored_is_found_out() -> None:
    def place(folder: Path) -> Store:
        return WriteBehind(open_store(f"file://{folder}/runs"))

    report = broken(careful_shop(), mode="process", store=place, points=["acknowledged"], limit=2)

    assert "a promise of Holdfast is broken: acknowledged: 'run:1' was acknowledged and is" in str(report)


async def test_it_works_inside_a_running_event_loop_and_where_time_is_skipped_already() -> None:
    assert crash_everywhere(careful_shop, ORDER, mode="fast", limit=3).passed
    with skipping_time():
        assert crash_everywhere(careful_shop, ORDER, mode="fast", limit=3).passed
        assert crash_everywhere(careful_shop, ORDER, limit=1).kills == 1
