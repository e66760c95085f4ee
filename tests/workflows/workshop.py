"""A folder with a workflow file in it, the functions that its steps call, and a store for its runs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.engine.app import App
from holdfast.engine.settings import Outcome
from holdfast.errors import ExecutionError
from holdfast.workflows.workflow import Workflow, load_workflow, workflow_of_run

SOURCE = Path(__file__).parents[2] / "src"

STEPS = '''
import os
from pathlib import Path

HERE = Path(__file__).parent


def note(word):
    """Write down that a step is at work."""
    with (HERE / "calls").open("a") as file:
        file.write(f"{word}\\n")


def say(word, ctx=None):
    note(word)
    return word


def fail_until(word, fixed):
    """Fail until a file of that name is there."""
    note(word)
    if not (HERE / fixed).exists():
        raise ValueError(f"{word} is broken")
    return f"{word} works"


def die_until(word, fixed):
    """End the whole process until a file of that name is there."""
    note(word)
    if not (HERE / fixed).exists():
        (HERE / fixed).touch()
        os._exit(9)
    return f"{word} lives"
'''

RUN = """
import sys
from holdfast.workflows.workflow import load_workflow
flow = load_workflow("flow.yaml")
app = flow.open(sys.argv[1])
if app.store.runs(run="r"):
    app.resume("r", config=flow.config())
else:
    app.invoke(flow.begin({}), run_id="r", config=flow.config())
"""


class Workshop:
    """Writes workflow files, and runs them here or in a process of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.env = folder, dict(os.environ)
        self.write(STEPS, "steps.py")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'runs.db'}"

    def write(self, text: str, name: str = "flow.yaml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
        return path

    def load(self, text: str | None = None) -> Workflow:
        """The workflow; a text without a head is one of steps only."""
        if text is not None:
            text = textwrap.dedent(text).strip("\n")
            self.write(text if "workflow:\n  name:" in text else f"workflow:\n  name: test\n{text}\n")
        return load_workflow(self.folder / "flow.yaml", env=self.env)

    def open(self, text: str | None = None, **options: Any) -> App:
        return self.load(text).open(self.url, **options)

    def run(
        self, text: str | None = None, inputs: Mapping[str, Any] | None = None, **options: Any
    ) -> Outcome:
        """What became of a run, which is called `r`."""
        flow = self.load(text)
        app = flow.open(self.url, **options)
        try:
            begun = flow.begin(flow.read_inputs(inputs or {}))
            return app.invoke(begun, run_id="r", config=flow.config())
        finally:
            app.store.close()

    def resume(self, text: str | None = None, target: str = "r", **options: Any) -> Outcome:
        """Return the result of the run after a resume, perhaps with another text of its file."""
        flow = self.load(text)
        app = flow.open(self.url)
        try:
            return app.resume(target, config=flow.config(), **options)
        finally:
            app.store.close()

    def step(self, text: str, inputs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """What one step, called `x`, leaves in the state."""
        return self.run(text, inputs, **options).state["x"]

    def error(self, text: str | None = None, inputs: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Return the message of a run that fails."""
        try:
            outcome = self.run(text, inputs, **options)
        except ExecutionError as error:
            return str(error)
        raise AssertionError(f"it did not fail: {outcome}")

    def output(self, text: str, inputs: Mapping[str, Any] | None = None) -> Any:
        """What a run results in."""
        outcome = self.run(text, inputs)
        return self.load().output(outcome.state)

    def drive(self) -> int:
        """Run or resume the workflow in a process of its own; the code that it ends with."""
        return self.start().wait(60)

    def start(self, before: str = "") -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", f"{before}\n{RUN}", self.url],
            cwd=self.folder,
            env={**self.env, "PYTHONPATH": str(SOURCE)},
            stderr=subprocess.DEVNULL,
        )

    def state(self, run_id: str = "r") -> Any:
        app = self.open()
        try:
            return app.get_state(run_id)
        finally:
            app.store.close()

    def stored_workflow(self, run_id: str = "r", **options: Any) -> Workflow:
        """The workflow by what a run remembers of it."""
        app = self.open() if (self.folder / "flow.yaml").exists() else None
        assert app is not None
        config = app._settings.journal.load(
            app._settings.journal.info(run_id), app._settings.codec
        ).run.config
        return workflow_of_run(app._settings.codec.decode(config), **options)

    def fix(self, name: str = "fixed") -> None:
        (self.folder / name).touch()

    def calls(self) -> list[str]:
        """What the steps wrote down, in order."""
        path = self.folder / "calls"
        return path.read_text("utf-8").splitlines() if path.exists() else []
