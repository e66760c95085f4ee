"""Copying runs from the command line: how it goes on, stopping it between runs, and what is told of it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.text import count, one_line
from holdfast.cli.output import CLEAR_LINE, control
from holdfast.engine.moving.copy_report import CopiedRun, CopyOutcome, CopyReport

if TYPE_CHECKING:
    from types import FrameType

_EVERY = 0.1
"""How many seconds pass at least between two lines that tell how it goes on."""


class Progress:
    """A line on stderr that says how far a copy is, if a terminal shows it."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began, self._told = time.monotonic(), 0.0

    def __call__(self, copied: CopiedRun, done: int, total: int) -> None:
        """Tell of one more run."""
        now = time.monotonic()
        if self._shown and (now - self._told >= _EVERY or done == total):
            self._told = now
            speed = done / max(now - self._began, 0.001)
            _clear()
            click.echo(f"{done} of {total} runs, {speed:,.0f} runs/s", nl=False, err=True)

    def close(self) -> None:
        """Take the line away."""
        if self._shown and self._told:
            _clear()


def _clear() -> None:
    """Take a line away again, on a terminal."""
    if sys.stderr.isatty():
        control(CLEAR_LINE, err=True)


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Let Ctrl+C only be remembered, the first time; whether it came."""
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        _clear()
        click.echo("stopping after this run; press Ctrl+C again to stop at once", err=True)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)


def report_as_json(report: CopyReport, source: str, target: str) -> dict[str, Any]:
    """Keys: from, to, stopped, counts, runs."""
    counts = {str(outcome): report.count(outcome) for outcome in CopyOutcome}
    runs = [run_as_json(run) for run in report.runs]
    return {"from": source, "to": target, "stopped": report.stopped, "counts": counts, "runs": runs}


def run_as_json(copied: CopiedRun) -> dict[str, Any]:
    """Keys: run_id, workflow, outcome, entries, bytes, note."""
    return {
        "run_id": copied.run,
        "workflow": copied.workflow,
        "outcome": str(copied.outcome),
        "entries": copied.entries,
        "bytes": copied.size,
        "note": copied.note or None,
    }


def tell(report: CopyReport, source: str, target: str) -> None:
    """Tell people what became of the runs: in one line, and what they should know of single ones on stderr."""
    from holdfast.views.plain import size_text

    for run in report.runs:
        if run.note:
            label = f"left out ({run.outcome})" if run.is_problem else "note"
            click.echo(f"{label}: run {one_line(run.run)}: {one_line(run.note, 500)}", err=True)
    entries = sum(run.entries for run in report.runs)
    size = sum(run.size for run in report.runs)
    became = [
        f"{count(report.count(outcome), 'run')} {outcome}" for outcome in CopyOutcome if report.count(outcome)
    ]
    stopped = "stopped: " if report.stopped else ""
    noun = "entry" if entries == 1 else "entries"
    brought = f" ({entries:,} new {noun}, {size_text(size)})" if entries else ""
    click.echo(f"{stopped}{', '.join(became) or 'no runs to copy'}{brought}, from {source} to {target}")
