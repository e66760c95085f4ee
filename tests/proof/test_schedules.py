"""Simulated schedules: some thousand with each build; and a seed, or a list of choices, always means the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.invariants import FINISHED_ONCE, INTENT, NOT_STRANDED, TIMERS
from tests.processes import unmeasured
from tests.proof import schedules
from tests.proof.simulated.scenario import ANSWER_SOON, FLEET, PRIVATE, SHARED, Scenario
from tests.proof.simulated.schedule import Verdict, play, replay, run
from tests.proof.simulated.shapes import shapes
from tests.proof.simulated.shrinking import as_test, shrink
from tests.simulator import Choices, Fault, faults

ROOT = Path(__file__).parents[2]
SHORT = int(os.environ.get("HOLDFAST_SCHEDULES", "1500"))


def _shape(name: str) -> Scenario:
    shape = next(shape for shape in shapes() if shape.name == name)
    return Scenario(FLEET, shape, 1, 2, (), "", 0.0)


def _at_every_moment(scenario: Scenario, kind: str, amount: float, moments: range) -> list[Verdict]:
    found = []
    for at in moments:
        disturbed = scenario._replace(faults=(Fault(kind, at, amount),))
        found.append(play(Choices(at), scenario=disturbed))
    return found


@pytest.mark.parametrize("part", range(2))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    total = schedules.campaign(part * SHORT, SHORT, 1)
    assert not total.failing, schedules.failure(total.failing[0])
    assert len(total.faults) == 14, "every kind of fault is to come about"
    assert len(total.workflows) > 20


def test_nothing_real_runs_beside_a_simulation() -> None:
    before = set(threading.enumerate())
    for seed in range(20):
        run(seed)
    assert set(threading.enumerate()) <= before


def test_a_seed_replays_to_the_byte_also_in_another_process() -> None:
    """Traces hold every event, every call of the store and the checksum of every entry."""
    code = (
        "from tests.proof.simulated.schedule import run;"
        "print(' '.join(run(seed, trace=True).digest for seed in range(40)))"
    )
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = unmeasured(PYTHONPATH=path, PYTHONHASHSEED="4711")
    other = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert [run(seed, trace=True).digest for seed in range(40)] == other.stdout.split()


def test_recorded_choices_are_the_schedule_of_their_seed() -> None:
    for seed in range(40):
        verdict = run(seed, trace=True)
        assert replay(verdict.choices, trace=True).digest == verdict.digest


def test_no_choices_at_all_are_a_simple_schedule_without_faults() -> None:
    verdict = replay([])
    assert not verdict.violations and not verdict.scenario.faults and verdict.scenario.shape.name == "step"


def test_a_worker_that_was_stopped_at_once_begins_nothing_more() -> None:
    """A step whose thread had not started, and the functions of `once`, are left to the next owner of the run."""
    for name in ("once_sync", "two", "wave_sync"):
        found = _at_every_moment(_shape(name)._replace(runs=3), faults.STOP, 1.0, range(20, 160))
        assert [verdict for verdict in found if verdict.violations] == []


def test_two_people_who_answer_a_run_that_executes_are_told_what_became_of_their_answers() -> None:
    told: Counter[str] = Counter()
    for seed in range(60):
        scenario = _shape("beside")._replace(wish=ANSWER_SOON, wish_after=0.05 + seed / 100)
        verdict = play(Choices(seed), scenario=scenario)
        assert not verdict.violations, verdict.violations
        told.update(verdict.told)
    assert told["waiting"] and told["refused"], "somebody is faster than another"


def test_a_process_that_stood_still_before_the_thread_of_a_step_began_looks_again() -> None:
    """Another owner has finished the run meanwhile."""
    for name in ("wave_sync", "for_each_sync"):
        scenario = _shape(name)._replace(mode=PRIVATE, machines=2, runs=1)
        found = _at_every_moment(scenario, faults.PAUSE, 1.8, range(1, 40))
        assert [verdict for verdict in found if verdict.violations] == []


def test_a_run_that_is_to_pause_waits_for_its_steps_without_haste() -> None:
    """A question that runs out while a run is to pause does not make it ask again and again."""
    scenario = _shape("aside_lazy")._replace(wish="pause-and-requeue")
    for after in (0.02, 0.1, 0.3, 0.5, 0.7):
        verdict = play(Choices(1), scenario=scenario._replace(wish_after=after))
        assert not verdict.violations
        assert verdict.moments < 1500


def test_a_run_that_is_pruned_while_it_is_read_is_no_damaged_one() -> None:
    """Between asking for its snapshot and for its entries a run may lose its beginning, and get a snapshot for it."""
    choices = [
        17,
        0,
        7,
        0,
        3,
        2,
        0,
        3,
        2,
        1,
        0,
        1,
        0,
        0,
        1,
        3,
        0,
        0,
        1,
        0,
        0,
        0,
        7,
        0,
        0,
        1,
        0,
        0,
        1,
        0,
        2,
        0,
        2,
        0,
        0,
    ]
    choices += [
        1,
        2,
        0,
        0,
        0,
        0,
        0,
        5,
        0,
        2,
        1,
        0,
        1,
        7,
        0,
        7,
        0,
        4,
        0,
        0,
        0,
        1,
        1,
        0,
        1,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        6,
    ]
    assert not replay([*choices, 3, 0, 1, 0, 4]).violations


def test_a_step_that_runs_before_its_intent_is_stored_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.engine.saving import Saving

    async def later(saving: Saving) -> None:
        if saving.run.status != "running":
            await saving.flush_async()

    monkeypatch.setattr(Saving, "save", later)
    verdict = play(Choices(0), scenario=_shape("three")._replace(mode=SHARED, machines=1))
    assert {found.invariant for found in verdict.violations} >= {INTENT}


def test_a_driver_that_does_not_look_after_a_long_sleep_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.engine.saving import LeaseCheck

    monkeypatch.setattr(LeaseCheck, "refuse", lambda overtaking: overtaking._lapses and overtaking._lapses())
    found = _at_every_moment(_shape("three"), faults.PAUSE, 4.0, range(30, 90))
    assert FINISHED_ONCE in {one.invariant for verdict in found for one in verdict.violations}


def test_a_run_that_nobody_claims_any_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.fleet import claims as local_claims

    monkeypatch.setattr(local_claims, "has_owner", lambda store, info: True)
    found = _at_every_moment(_shape("two"), faults.CRASH, 0.2, range(45, 60, 3))
    assert NOT_STRANDED in {one.invariant for verdict in found for one in verdict.violations}


def test_a_failing_schedule_becomes_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast import clock
    from holdfast.engine.loop import Execution

    begin = Execution._begin

    def early(drive: Execution, step: object, at: float | None) -> bool:
        return begin(drive, step, None if at is None or at < clock.time() + 0.25 else at)  # type: ignore[arg-type]

    monkeypatch.setattr(Execution, "_begin", early)
    seed = next(seed for seed in range(3000) if run(seed).violations)
    verdict = run(seed)
    small = shrink(verdict, most=200)
    assert TIMERS in {found.invariant for found in replay(small.choices).violations}
    assert sum(small.choices) < sum(verdict.choices)
    assert as_test(small).count("replay([") == 1
    monkeypatch.undo()
    assert not replay(small.choices).violations


def test_a_worker_that_cannot_say_that_it_has_a_run_does_not_drive_it() -> None:
    """Of two that take a run up one is refused, and does not hear of it; its policy is to go on all the same."""
    choices = [17, 284, 0, 0, 0, 8, 11, 0, 0, 11, 79, *[0] * 9, 1, 8, 4, 0, 0, 0, 0, 0, 2]
    assert replay(choices).scenario.shape.name == "stubborn"
    assert not replay(choices).violations
