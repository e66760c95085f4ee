"""A fault at every statement of every workflow, at every connection, and showers of faults on many runs at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from holdfast import StoreError
from holdfast.events import CallbackObserver
from tests.invariants import RECOVERY, Violation
from tests.proof.server.proxy import Act, Arrival
from tests.proof.server.scene import Scene
from tests.proof.server.trials import WORK, Trial, Witnessed

PATIENT, IMPATIENT = 30.0, 0.0
MODES = {"patient": PATIENT, "impatient": IMPATIENT}


def every_statement(
    scene: Scene,
    workflows: Iterable[str] = tuple(WORK),
    acts: Sequence[Act] = tuple(Act),
    modes: Iterable[str] = tuple(MODES),
    every: int = 1,
    kind: str = "statements",
) -> None:
    """Each disturbance at each statement: an owner with a long timeout notices nothing, others stop and are resumed."""
    for workflow in workflows:
        for mode in modes:
            with scene.store(MODES[mode]) as store:
                _, length = scene.undisturbed(workflow, store)
                for number, act in enumerate(acts):
                    for at in range(1 + number % every, length + 1, every):
                        disturbed(scene, store, workflow, {at: act}, mode, kind)


def showers(scene: Scene, times: int) -> None:
    """Several faults, at random statements, for each of so many runs."""
    left = times
    while left > 0:
        mode = scene.chance.choice(list(MODES))
        with scene.store(MODES[mode]) as store:
            for _ in range(20):
                if left <= 0:
                    return
                workflow = scene.chance.choice(list(WORK))
                _, length = scene.undisturbed(workflow, store)
                places = scene.chance.sample(range(1, 2 * length), k=min(length, 6))
                acts = {at: scene.chance.choice(tuple(Act)) for at in places}
                left -= disturbed(scene, store, workflow, acts, mode, "showers")


def disturbed(
    scene: Scene,
    store: Witnessed,
    workflow: str,
    acts: Mapping[int, Act],
    mode: str,
    kind: str = "statements",
) -> int:
    """One run with these acts; how many of them happened."""
    wanted, _ = scene.undisturbed(workflow, store)
    trial = scene.trial(workflow, scene.chance.choice(("full", "process")))
    scene.proxy.arm(acts)
    trial.drive(store)
    struck = list(scene.proxy.struck)
    place = f"{mode}, {trial.run}: " + "; ".join(
        f"{each.at} {each.act} [{each.text[:60]}]" for each in struck
    )
    finish(scene, trial, kind, workflow, wanted, place, mode == "patient")
    scene.tally.struck(kind, struck)
    return len(struck)


def finish(
    scene: Scene, trial: Trial, kind: str, workflow: str, wanted: str, place: str, is_patient: bool
) -> None:
    """Hold a run against the invariants, and count it."""
    result, tally = trial.check(wanted), scene.tally
    if tally.runs % 10 == 0:
        trial.check_recovery()
    if is_patient and result.stops:
        passing = Violation(RECOVERY, f"the run stopped {result.stops} times over what passes by itself")
        result.violations.append(passing)
    tally.runs += 1
    tally.stops += result.stops
    tally.conflicts += result.conflicts
    tally.judge(kind, workflow, place, result.violations)


def every_arrival(scene: Scene, workflow: str = "chain", connections: int = 4, statements: int = 7) -> None:
    """Each trouble of a connection that is being made, and each act at the statements that open a store."""
    plans: list[tuple[dict[int, Act], dict[int, Arrival]]] = [
        ({}, {at: arrival}) for arrival in Arrival for at in range(1, connections + 1)
    ]
    plans += [({at: act}, {}) for act in Act for at in range(1, statements + 1)]
    for acts, arrivals in plans:
        for mode, timeout in MODES.items():
            trial = scene.trial(workflow)
            scene.proxy.arm(acts, arrivals)
            with _opened(scene, timeout) as store:
                trial.drive(store)
                struck = list(scene.proxy.struck)
            place = f"{mode}: {acts or arrivals}"
            with scene.store(PATIENT) as quiet:
                wanted, _ = scene.undisturbed(workflow, quiet)
            finish(scene, trial, "connections", workflow, wanted, place, mode == "patient")
            scene.tally.struck("connections", struck)


class _opened:
    """A store that is opened as often as it takes; each refusal is a clear error."""

    def __init__(self, scene: Scene, timeout: float) -> None:
        self._scene, self._timeout = scene, timeout

    def __enter__(self) -> Witnessed:
        for _ in range(5):
            try:
                self._store = Witnessed(self._scene.url(timeout=self._timeout))
                return self._store
            except StoreError:
                self._scene.tally.stops += 1
        raise AssertionError("the store cannot be opened")

    def __exit__(self, *_: object) -> None:
        self._store.close()


def together(scene: Scene, times: int, at_once: int = 6) -> None:
    """Many runs in one process, whose appends share commits, under showers of faults."""
    left = times
    with scene.store(PATIENT) as store:
        wanted, length = scene.undisturbed("async_chain", store)
        while left > 0:
            trials = [scene.trial("async_chain") for _ in range(at_once)]
            places = scene.chance.sample(range(1, length * 2), k=5)
            scene.proxy.arm({at: scene.chance.choice(tuple(Act)) for at in places})
            asyncio.run(_gathered(trials, store))
            struck = list(scene.proxy.struck)
            place = "; ".join(f"{each.at} {each.act} [{each.text[:60]}]" for each in struck)
            for trial in trials:
                finish(scene, trial, "together", "async_chain", wanted, place, True)
            scene.tally.struck("together", struck)
            left -= max(1, len(struck))


async def _gathered(trials: Sequence[Trial], store: Witnessed) -> None:
    store.ledger = None

    async def drive(trial: Trial) -> None:
        app = trial.workflow.graph.compile(store, durability="full")
        outcome = await app.ainvoke(
            trial.workflow.input, run_id=trial.run, observer=CallbackObserver(trial.ledger.observe)
        )
        trial.keep(outcome.state)

    await asyncio.gather(*(drive(trial) for trial in trials))
