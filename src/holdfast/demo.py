"""The demonstration: a workflow of ten steps, a process killed at the ninth, and a resume that repeats nothing."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

from holdfast.errors import HoldfastError
from holdfast.events import Event
from holdfast.functions.steps import StepFunction, step
from holdfast.functions.workflows import WorkflowFunction, workflow

STEPS = ("question", "plan", "search", "read", "notes", "outline", "draft", "check", "revise", "publish")
KILLED = STEPS[8]
"""The step at which the first process is killed."""

WORK, LOOK, STUCK = 0.08, 0.5, 60.0
"""Seconds: what a step takes, how long the step to be killed is shown, and how long that step hangs at most."""

CALLED, DONE = "called", "done"
STORE_VARIABLE = "HOLDFAST_STORE"
_CHILD = "from holdfast.demo import execute; execute()"


class Scene(NamedTuple):
    """Something that happened: a process began, called a step, finished it, or was killed in it."""

    what: str
    run_id: str
    step: str
    process: int


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """One of the two executions of the run: its process, how that ended, and the steps that it finished."""

    process: int
    exit_code: int
    ran: tuple[str, ...]
    called: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class DemoReport:
    """What happened in the demonstration."""

    run_id: str
    store: str
    first: Execution
    killed: str
    plan: dict[str, str]
    second: Execution
    status: str
    calls: dict[str, int]
    checkpoints: int
    parts: tuple[str, ...]


# The workflow, and the process that executes it.


class _Situation:
    """What the steps of this process do beside their work: tell of their calls, and hang in one of them."""

    hangs = ""
    tell: Callable[[str, str], None] | None = None


def _writer(part: str) -> StepFunction[[str], str]:
    @step(name=part)
    def write(topic: str) -> str:
        if _Situation.tell is not None:
            _Situation.tell(CALLED, part)
        time.sleep(STUCK if part == _Situation.hangs else WORK)
        return f"{part} of {topic}"

    return write


WRITERS = {part: _writer(part) for part in STEPS}


def _write(topic: str) -> list[str]:
    return [WRITERS[part](topic) for part in STEPS]


demo = workflow(name="demo")(_write)
"""The workflow of the demonstration, for `--app holdfast.demo:demo`."""


def on_store(url: str) -> WorkflowFunction[[str], list[str]]:
    """Return the workflow on a store; its runs remember that `demo` of this module is their app."""
    found = workflow(name="demo", store=url)(_write)
    found.app._runner.environment.place = f"{__name__}:demo"
    return found


def execute() -> None:
    """Start or continue the run that the arguments of this process name, and print what happens."""
    run_id, _Situation.hangs = sys.argv[1:]

    def tell(what: str, name: str) -> None:
        sys.stdout.write(f"{what} {name}\n")
        sys.stdout.flush()

    def observer(event: Event) -> None:
        if event.type == "node.complete" and event.node in STEPS:
            tell(DONE, event.node)

    _Situation.tell = tell
    on_store(os.environ[STORE_VARIABLE]).run("tides", run_id=run_id, observer=observer)


# The two executions.


def play(url: str, show: Callable[[Scene], None] = lambda scene: None) -> DemoReport:
    """Start the workflow in a process, kill the process with SIGKILL, and continue in another process."""
    run_id = f"demo-{uuid.uuid4().hex[:8]}"
    app = on_store(url).app
    try:
        first = _process(url, run_id, show, kill_at=KILLED)
        plan = {each.node.rpartition("/")[2]: each.what for each in app.plan_resume(run_id).steps}
        second = _process(url, run_id, show)
        called = [*first.called, *second.called]
        return DemoReport(
            run_id=run_id,
            store=app.store.url,
            first=first,
            killed=KILLED,
            plan=plan,
            second=second,
            status=str(app.store.runs(run=run_id)[0].status),
            calls={name: called.count(name) for name in STEPS},
            checkpoints=len(app.checkpoints(run_id)),
            parts=tuple(app.get_state(run_id)["result"]),
        )
    finally:
        app.store.close()


def _process(url: str, run_id: str, show: Callable[[Scene], None], kill_at: str = "") -> Execution:
    """Execute the run in a process of its own, and show what it tells; kill it in the step `kill_at`."""
    happened: dict[str, list[str]] = {CALLED: [], DONE: []}
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, run_id, kill_at],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, STORE_VARIABLE: url},
    )
    try:
        show(Scene("began", run_id, "", child.pid))
        assert child.stdout is not None
        for line in child.stdout:
            what, name = line.split()
            happened[what].append(name)
            show(Scene(what, run_id, name, child.pid))
            if what == CALLED and name == kill_at:
                time.sleep(LOOK)
                child.kill()
                show(Scene("killed", run_id, name, child.pid))
    finally:
        child.kill()
        code = child.wait()
        assert child.stdout is not None
        child.stdout.close()
    if code and not kill_at:
        raise HoldfastError(f"the process of the demonstration ended with exit code {code}")
    return Execution(child.pid, code, tuple(happened[DONE]), tuple(happened[CALLED]))
