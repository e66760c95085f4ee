"""Crashes of the server while runs execute and while they are claimed: immediate shutdown, a backend killed with -9."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable

import psycopg

from holdfast import StoreError
from tests.proof.server.scene import Scene
from tests.proof.server.statements import finish
from tests.proof.server.trials import Trial, Witnessed

DRIVERS = ("chain", "for_each", "once", "waiting")
ACTS = {"stop": "immediate shutdown and restart", "kill": "a backend killed with SIGKILL"}


class _Crew:
    """Threads that execute one run after the other until they are stopped."""

    def __init__(self, scene: Scene, timeout: float) -> None:
        self._scene, self._timeout = scene, timeout
        self._over = threading.Event()
        self.finished: list[tuple[str, Trial, str]] = []
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, workflows: Iterable[str]) -> None:
        for workflow in workflows:
            with self._scene.store(30.0) as store:
                wanted, _ = self._scene.undisturbed(workflow, store)
            thread = threading.Thread(target=self._drive, args=(workflow, wanted), daemon=True)
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a driver does not come to an end"

    def _drive(self, workflow: str, wanted: str) -> None:
        try:
            url = self._scene.url(timeout=self._timeout)
            while not self._over.is_set():
                self._once(workflow, wanted, url)
        except BaseException as error:
            self.errors.append(error)

    def _once(self, workflow: str, wanted: str, url: str) -> None:
        try:
            store = Witnessed(url)
        except StoreError:  # The server is away for longer than this driver waits: clear, and tried again.
            time.sleep(0.05)
            return
        try:
            trial = self._scene.trial(workflow)
            trial.drive(store, rest=0.1, attempts=300)
            self.finished.append((workflow, trial, wanted))
        finally:
            store.close()


def crashes(scene: Scene, times: int, timeout: float, workflows: Iterable[str] = DRIVERS) -> None:
    """Crash this often while `workflows` are executed by owners with this timeout; then check every run."""
    crew = _Crew(scene, timeout)
    crew.start(workflows)
    for _ in range(times):
        time.sleep(scene.chance.uniform(0.02, 0.25))
        act = scene.chance.choice(tuple(ACTS))
        if act == "stop":
            scene.server.restart("immediate")
        elif not _kill_a_backend(scene):
            continue
        scene.tally.hit("crashes", f"{ACTS[act]}{'' if timeout else ', also while resuming'}")
    _wait_until_up(scene)
    crew.stop()
    for error in crew.errors:
        raise error
    for workflow, trial, wanted in crew.finished:
        finish(scene, trial, "crashes", workflow, wanted, f"timeout {timeout}, {trial.run}", timeout > 0)


def _kill_a_backend(scene: Scene) -> bool:
    try:
        found = scene.control.ask(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' AND backend_type = 'client backend'"
        )
        if not found:
            return False
        os.kill(scene.chance.choice(found)[0], signal.SIGKILL)
    except (psycopg.OperationalError, ProcessLookupError):
        _wait_until_up(scene)
        return False
    return True


def _wait_until_up(scene: Scene, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            scene.control.ask("SELECT 1")
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
