"""The live view of a run on a terminal: the steps, what they are doing, and what they have cost."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleRenderable, Group
from rich.live import Live
from rich.text import Text

from holdfast.events import Event, MultiObserver, ObserverLike
from holdfast.threads import started
from holdfast.views.progress import (
    DONE,
    FAILED,
    KEPT,
    PENDING,
    RETRYING,
    RUNNING,
    SKIPPED,
    STOPPED,
    WAITING,
    Progress,
    Row,
    graph_rows,
)
from holdfast.views.terminal import count, duration, gated_console, money, one_line

FRAMES_PER_SECOND = 10
BAR = 20

_ICONS = {
    PENDING: ("·", ".", "dim"),
    DONE: ("✓", "+", "green"),
    KEPT: ("✓", "=", "dim green"),
    SKIPPED: ("–", "-", "dim"),
    FAILED: ("✗", "x", "bold red"),
    WAITING: ("?", "?", "bold yellow"),
    RETRYING: ("↻", "~", "yellow"),
    STOPPED: ("■", "#", "yellow"),
}
_SPINNER = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\")
_OVER = (DONE, KEPT, SKIPPED)


_screen = threading.Lock()
"""Held by the view that is drawn: one of a process at a time, so that a run inside a step is not drawn over its own."""


class _Display(Live):
    """A display that ends with the first drawing that fails, as on a terminal that is gone, and never raises."""

    _is_lost = False

    def refresh(self) -> None:
        """Draw, unless that has failed before."""
        if not self._is_lost:
            try:
                super().refresh()
            except Exception:
                self._is_lost = True


class LiveView:
    """A view that draws a `Progress` ten times a second in a thread of its own, unless another view is drawn."""

    def __init__(
        self, progress: Progress, title: str, run_id: str, store: str, console: Console | None = None
    ) -> None:
        self.progress, self._console = progress, console or gated_console()
        self._title, self._run_id, self._store = title, run_id, store
        self._plain = not (self._console.encoding or "").lower().startswith("utf")
        self._earlier: set[tuple[str, ...]] = set()
        self._live: Live | None = None
        self._began, self._has_screen = time.time(), False

    def start(self) -> None:
        """Start to draw, unless another view is drawn."""
        self._has_screen = self._has_screen or _screen.acquire(blocking=False)
        if self._has_screen:
            self._start()

    def stop(self) -> None:
        """Draw the last time, and leave that on the screen."""
        if self._has_screen:
            try:
                self._stop()
            finally:
                self._has_screen = False
                _screen.release()

    def _start(self) -> None:
        """Start to draw. What is finished already was drawn before and is only counted."""
        self._earlier = {
            path
            for path, row in self.progress.rows.items()
            if row.status in _OVER and (row.status != KEPT or self._live is not None)
        }
        self._live = _Display(
            get_renderable=self.render,
            console=self._console,
            refresh_per_second=FRAMES_PER_SECOND,
            redirect_stdout=True,
            redirect_stderr=True,
        )
        self._live.start()

    def _stop(self) -> None:
        if self._live is not None and self._live.is_started:
            self._live.stop()

    @property
    def wants(self) -> Collection[str]:
        """The events that change the view."""
        return self.progress.wants

    def on_event(self, event: Event) -> None:
        """Add an event; the next drawing shows it."""
        if event.run_id:
            self._run_id = event.run_id
        self.progress.on_event(event)

    def render(self) -> ConsoleRenderable:
        """Return the view as it is now."""
        now = time.time()
        with self.progress.lock:
            rows = [row for path, row in self.progress.rows.items() if path not in self._earlier]
            hidden = len(self._earlier)
            cost, shown = self.progress.cost, [copy.copy(row) for row in self._chosen(rows)]
            left = [row.name for row in rows if row.status == STOPPED] if self.progress.is_stopped else []
        parts: list[ConsoleRenderable] = [self._header()]
        if others := hidden + len(rows) - len(shown):
            dots = "..." if self._plain else "…"
            parts.append(Text(f"  {dots} {count(others, 'other step')}", style="dim"))
        parts += [*self._steps(shown, now), self._footer(now, cost, left)]
        return Group(*parts)

    def _chosen(self, rows: list[Row]) -> list[Row]:
        """Return as many rows as there is room for; finished ones are left out first."""
        room = max(3, self._console.size.height - 5)
        if len(rows) <= room or self._live is None or not self._live.is_started:
            return rows
        active = [row for row in rows if row.status not in (*_OVER, PENDING)]
        waiting = [row for row in rows if row.status == PENDING]
        over = [row for row in rows if row.status in _OVER]
        best = [*active, *waiting[: max(2, room // 3)], *reversed(over), *waiting[max(2, room // 3) :]][:room]
        chosen = {id(row) for row in best}
        return [row for row in rows if id(row) in chosen]

    def _header(self) -> Text:
        text = Text(one_line(self._title), style="bold")
        if self._run_id:
            text.append(f"  {one_line(self._run_id)}", style="cyan not bold")
        if cell_len(text.plain) + cell_len(self._store) + 2 <= self._console.width:
            text.append(f"  {self._store}", style="dim not bold")
        return text

    def _steps(self, rows: list[Row], now: float) -> list[ConsoleRenderable]:
        """Return a line per step. Laying out a table ten times a second would cost too much."""
        room = max(10, min(40, self._console.width // 3))
        names = [f"{'  ' * row.depth}{{}} {one_line(row.name, room)}" for row in rows]
        width = max((cell_len(name) for name in names), default=0) - 1
        return [self._step(row, name, width, now) for row, name in zip(rows, names, strict=True)]

    def _step(self, row: Row, name: str, width: int, now: float) -> Text:
        indent, _, rest = name.partition("{}")
        icon, style = self._icon(row, now)
        line = Text(f"  {indent}", no_wrap=True, overflow="ellipsis")
        line.append(icon, style)
        line.append(rest, "dim" if row.status in (PENDING, KEPT, SKIPPED) else "")
        line.append(f"{' ' * (width - cell_len(indent) - cell_len(rest))}{_time(row, now):>7}  ", "dim")
        _append_about(line, row, now, min(BAR, max(0, (self._console.width - 50) // 2)))
        return line

    def _icon(self, row: Row, now: float) -> tuple[str, str]:
        if row.status == RUNNING:
            frames = _SPINNER[self._plain]
            return frames[int(now * FRAMES_PER_SECOND) % len(frames)], "cyan"
        pretty, simple, style = _ICONS[row.status]
        return simple if self._plain else pretty, style

    def _footer(self, now: float, cost: float, left: list[str]) -> Text:
        text = Text(f"  {duration(now - self._began)}", style="dim")
        if left and self._live is not None and self._live.is_started:
            names = ", ".join(one_line(name) for name in left[:3]) + (" …" if len(left) > 3 else "")
            text.append(f"  stopped and saved; waits until {names} ends", style="yellow not dim")
        if cost:
            text.append(f"  {money(cost)}")
        return text


class NotebookView(LiveView):
    """The same view in the output of a notebook's cell, drawn again while it changes."""

    def __init__(self, progress: Progress, title: str, store: str) -> None:
        self._printed = io.StringIO()
        console = Console(file=self._printed, width=100, record=True, force_jupyter=False, highlight=False)
        super().__init__(progress, title, "", store, console)
        self._plain, self._ended, self._thread = False, threading.Event(), threading.Thread(target=self._draw)
        self._display: Any = None
        self._ipython: Any = None

    def _start(self) -> None:
        self._ipython = importlib.import_module("IPython.display")  # Notebooks have it.
        self._display = self._ipython.display(self._ipython.HTML(self._html()), display_id=True)
        self._thread.daemon = True
        with contextlib.suppress(RuntimeError, MemoryError):  # Without a thread only the end is drawn.
            started(self._thread)

    def _stop(self) -> None:
        self._ended.set()
        self._update()

    def _draw(self) -> None:
        with contextlib.suppress(Exception):  # The cell may be gone, or its kernel.
            while not self._ended.wait(2 / FRAMES_PER_SECOND):
                self._update()

    def _update(self) -> None:
        with self._drawing:
            if self._display is not None:
                self._display.update(self._ipython.HTML(self._html()))

    def _html(self) -> str:
        self._console.print(self.render())
        self._printed.seek(0)
        self._printed.truncate()  # What is shown is what was recorded.
        form = '<pre style="line-height:1.3">{code}</pre>'
        return str(self._console.export_html(inline_styles=True, code_format=form))

    _drawing = threading.Lock()


AFTER = 0.5
"""Seconds after which a run is shown if nobody asked for that."""


@contextlib.contextmanager
def shown(app: Any, observer: ObserverLike, *, at_once: bool) -> Iterator[ObserverLike]:
    """Show an execution of an app on stdout, at once or after a while; yield the observer that it needs.

    A drawing that fails never makes the run fail.
    """
    progress, url = Progress(graph_rows(app.graph), of_file=False), app.store.url
    is_terminal = sys.stdout.isatty()
    view = LiveView(progress, app.name, "", url) if is_terminal else NotebookView(progress, app.name, url)
    later = Later(view, 0.0 if at_once else AFTER)
    later.start()
    try:
        yield view if observer is None else MultiObserver(view, observer)
    finally:
        later.stop()


class Later:
    """Starts a view after so many seconds, unless it is stopped before; nothing is drawn then."""

    def __init__(self, view: LiveView, seconds: float) -> None:
        self._view, self._seconds, self._lock = view, seconds, threading.Lock()
        self._is_started = self._is_over = False
        self._timer = threading.Timer(seconds, self._begin)
        self._timer.daemon = True

    def start(self) -> None:
        """Start the view, now or later."""
        if not self._seconds:
            self._begin()
            return
        with contextlib.suppress(RuntimeError, MemoryError):  # Without a thread nothing is shown.
            started(self._timer)

    def _begin(self) -> None:
        with self._lock, contextlib.suppress(Exception):
            if not self._is_over:
                self._is_started = True
                self._view.start()

    def stop(self) -> None:
        """Stop the view, if it was started."""
        self._timer.cancel()
        with self._lock, contextlib.suppress(Exception):
            self._is_over = True
            if self._is_started:
                self._view.stop()


def _time(row: Row, now: float) -> str:
    if row.status in (PENDING, KEPT, SKIPPED) or not (row.seconds or row.began):
        return ""
    return duration(row.elapsed(now))


def _append_about(text: Text, row: Row, now: float, bar: int = BAR) -> None:
    """Add the details of a step beside its name."""
    if row.total and row.status in (RUNNING, RETRYING, DONE, FAILED, STOPPED):
        text.append(_bar(row, bar), style="cyan")
    if row.visits > 1:
        several = f"{row.visits - len(row.running)} of {row.visits} done  "
        text.append(several if len(row.running) > 1 else f"visit {row.visits}  ", style="dim")
    if row.status == RETRYING:
        left = max(0.0, row.retry_at - now)
        text.append(f"attempt {row.attempt + 1} in {duration(left)}: {one_line(row.error)}", style="yellow")
    elif row.status == FAILED:
        text.append(one_line(row.error), style="red")
    elif row.status == WAITING:
        text.append("waits for an answer", style="yellow")
    elif row.status == RUNNING:
        text.append(f"attempt {row.attempt}  " if row.attempt > 1 else "", style="yellow")
        text.append(one_line(row.message), style="dim")
    elif row.status == KEPT:
        text.append("kept", style="dim")
    elif row.status == SKIPPED:
        text.append("skipped", style="dim")
    elif row.status == STOPPED:
        text.append("stopped; a resume continues it", style="yellow")


def _bar(row: Row, width: int = BAR) -> str:
    over = row.done + row.failed
    filled = width * over // max(row.total, 1)
    failed = f", {row.failed} failed" if row.failed else ""
    drawn = f"[{'=' * filled}{' ' * (width - filled)}] " if width else ""
    return f"{drawn}{over}/{row.total}{failed}  "
