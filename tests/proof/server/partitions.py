"""An owner that is cut off from the server for longer than its lease, while another takes its run over."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable

from holdfast.engine.saving import OLD_NEWS
from tests.invariants import NOT_STRANDED, Violation
from tests.proof.server.scene import Scene
from tests.proof.server.statements import finish
from tests.proof.server.trials import WORK, Trial, Witnessed

LEASE = 0.3
PATIENCE = 30.0
HELD = 2 * OLD_NEWS
"""A partition lasts longer than a driver goes by an answer about others: within that time no look can help it."""


def partitions(scene: Scene, times: int, workflows: tuple[str, ...] = tuple(WORK)) -> None:
    """So many partitions, each at another statement."""
    with (
        scene.store(PATIENCE, lease=LEASE) as cut_off,
        Witnessed(scene.server.url(scene.schema, lease=LEASE)) as heir,
    ):
        for number in range(times):
            workflow = workflows[number % len(workflows)]
            wanted, length = scene.undisturbed(workflow, cut_off)
            at = scene.chance.randrange(1, length + 1)
            # An heir that dies at once leaves the run where the first driver believes to be, or one entry further.
            heir.commits_left = scene.chance.choice((None, 0, 1))
            _one(scene, cut_off, heir, workflow, wanted, at, number % 2 == 0)
            heir.commits_left = None


def _one(
    scene: Scene, cut_off: Witnessed, heir: Witnessed, workflow: str, wanted: str, at: int, is_sent: bool
) -> None:
    trial = scene.trial(workflow)
    failure: list[BaseException] = []
    scene.proxy.arm(halt_at=at, halt_after=is_sent)
    driver = threading.Thread(target=_drive, args=(trial, cut_off, failure), daemon=True)
    driver.start()
    try:
        _wait_for(lambda: scene.proxy.is_halted or not driver.is_alive())
        if scene.proxy.is_halted:
            was_taken_over = _outlive(trial, cut_off, heir)
            what = "overtaken during a partition" if was_taken_over else "partition, nothing to take over"
            scene.tally.hit("partitions", what)
            time.sleep(HELD)
    finally:
        scene.proxy.resume()
    driver.join(30)
    if driver.is_alive():
        faulthandler.dump_traceback()  # Where it hangs is all that is left to know.
        trial.result.violations.append(Violation(NOT_STRANDED, "the driver does not come to an end"))
    if failure:
        raise failure[0]
    text = scene.proxy.texts[at - 1] if len(scene.proxy.texts) >= at else ""
    place = f"halted {'after' if is_sent else 'before'} {at} [{text[:60]}], {trial.run}"
    finish(scene, trial, "partitions", workflow, wanted, place, False)


def _drive(trial: Trial, store: Witnessed, failure: list[BaseException]) -> None:
    try:
        trial.drive(store)
    except BaseException as error:
        failure.append(error)


def _outlive(trial: Trial, cut_off: Witnessed, heir: Witnessed) -> bool:
    """Wait until the owner's lease has expired, and take its run over, if there is one."""
    if not heir.runs(run=trial.run):
        return False
    lease = cut_off.lease()
    _wait_for(lambda: not heir.is_live(lease))
    return trial.take_over(heir)


def _wait_for(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
