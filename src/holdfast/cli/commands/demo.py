"""`holdfast demo`: a run whose process is killed, shown while it happens."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.command_lines import command_line, program
from holdfast.cli.options import JSON, Options, value
from holdfast.cli.render import is_terminal
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import lasting_url
from holdfast.demo import CALLED, DONE, KILLED, STEPS, DemoReport, Scene, play
from holdfast.views.terminal import BOLD, CLEAR_LINE, CYAN, DIM, GREEN, PLAIN, RED, control


@command(
    value(
        "--store", "URL", "Keep the run there (sqlite:///PATH, file:///DIR) instead of in a temporary folder."
    ),
    JSON,
)
def demo(session: Session, options: Options) -> None:
    """Kill the process of a workflow at step 9 of 10 with SIGKILL, and go on in another; no key, no network.

    \b
    Example:
      holdfast demo
      holdfast demo --store sqlite:///demo.db
    """
    if session.given is not None:
        url = lasting_url(session.given)
    else:
        url = f"sqlite:///{Path(tempfile.mkdtemp(prefix='holdfast-demo-')) / 'runs.db'}"
    if session.as_json:
        session.print(asdict(play(url)))
        return
    screen = Screen(is_terminal())
    screen.end(play(url, screen.show))


class Screen:
    """What the demonstration shows: a line for each step, in a terminal from when the step starts, in colour."""

    def __init__(self, is_live: bool) -> None:
        self._is_live, self._killed, self._kept = is_live, False, len(STEPS)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line, in a style if this is a terminal."""
        self._styled(text, style)
        click.echo()
        sys.stdout.flush()

    def _styled(self, text: str, style: str) -> None:
        if style and self._is_live:
            control(style)
        click.echo(text, nl=False)
        if style and self._is_live:
            control(PLAIN)

    def show(self, scene: Scene) -> None:
        """Show what happens."""
        if scene.what == "began":
            self._begin(scene)
        elif scene.what == CALLED:
            if self._killed and self._kept == len(STEPS):
                self._kept = STEPS.index(scene.step)
                self.line(f"  1-{self._kept}  finished before, not run again", DIM)
            if self._is_live:
                self._step(scene.step, "…", "running", CYAN)
                sys.stdout.flush()
        else:
            if self._is_live:
                control(CLEAR_LINE)
            if scene.what == DONE:
                self._step(scene.step, "✓", "done", GREEN)
            else:
                self._killed = True
                self._step(scene.step, "✗", f"killed: SIGKILL to process {scene.process}", RED)
            self.line()

    def _step(self, name: str, sign: str, how: str, style: str) -> None:
        click.echo(f"  {STEPS.index(name) + 1:3}  {name:<9} ", nl=False)
        self._styled(f"{sign} {how}", style)

    def _begin(self, scene: Scene) -> None:
        if not self._killed:
            self.line("Holdfast demo: a workflow of ten steps. Its process is killed at step 9.", BOLD)
        self.line()
        if self._killed:
            self.line("Nothing could be caught or closed. Another process makes the same call:")
        self._styled(f"Process {scene.process}: ", BOLD)
        self.line(f'demo.run("tides", run_id="{scene.run_id}")')

    def end(self, report: DemoReport) -> None:
        """Print what it came to, and three commands to go on with."""
        kept = sum(what == "kept" for what in report.plan.values())
        ran = len(report.second.ran)
        self.line()
        self.line(f"The run is {report.status}: {kept} steps kept, {ran} run after the kill.", BOLD)
        calls = f"{sum(report.calls.values())} calls for {len(STEPS)} steps"
        self.line(f"{calls}: only {KILLED!r}, which was running, was called again.")
        self.line()
        self.line("Next:", BOLD)
        for text, about in _next_lines(report):
            self.line(f"  # {about}", DIM)
            self.line(f"  {text}", CYAN)


def _next_lines(report: DemoReport) -> list[tuple[str, str]]:
    """Return commands to go on with, each with what it does."""
    return [
        (command_line("show", report.run_id, store=report.store), "all about this run"),
        (
            command_line("history", report.run_id, store=report.store),
            "its checkpoints, to fork and go back to",
        ),
        (" ".join([*program(), "init", "hello.yaml"]), "write a first workflow of your own"),
    ]
