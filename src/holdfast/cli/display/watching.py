"""Which observers a drive is watched by: the live view or plain lines, and the file of events."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypeVar

import click

from holdfast.cli.display.event_file import STDOUT, event_file
from holdfast.cli.display.lines import Lines
from holdfast.cli.display.progress import Progress
from holdfast.cli.display.text import one_line
from holdfast.cli.errors import worded
from holdfast.events import MultiObserver, Observer

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Display:
    """How a drive is shown."""

    quiet: bool = False
    as_json: bool = False
    events: str | None = None
    heartbeat: float | None = None

    @property
    def is_talkative(self) -> bool:
        """Whether people are told how it goes, on stdout."""
        return not (self.quiet or self.as_json)

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal that can be drawn on."""
        drawable = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        return self.is_talkative and drawable and self.events != STDOUT

    def check(self) -> Display:
        """Itself, unless two things want stdout."""
        if self.as_json and self.events == STDOUT:
            raise click.UsageError("--json and --events - both want stdout; write the events to a file")
        return self

    @property
    def out(self) -> IO[str]:
        """Where people are talked to."""
        return sys.stderr if self.events == STDOUT or self.as_json else sys.stdout


class View(Protocol):
    """Shows a drive from its events."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Watch:
    """Runs drives while their views are shown."""

    def __init__(self, views: Iterable[View], observers: Iterable[Observer], progress: Progress) -> None:
        self._views, self.progress = tuple(views), progress
        observers = tuple(observers)
        self.observer: Observer | None = observers[0] if len(observers) == 1 else None
        if len(observers) > 1:
            self.observer = MultiObserver(*observers)

    def during(self, drive: Callable[[Observer | None], Answer]) -> Answer:
        """What a drive answers, shown while it goes on."""
        for view in self._views:
            view.start()
        try:
            return drive(self.observer)
        finally:
            for view in self._views:
                view.stop()


@contextlib.contextmanager
def watching(
    display: Display, progress: Progress, title: str, run_id: str, store: str, scrub: Callable[[Any], Any]
) -> Iterator[Watch]:
    """The watch that a display asks for. With nothing to show, nobody listens, and nothing is paid for it."""
    views: list[Any] = []
    with contextlib.ExitStack() as stack:
        if display.is_live:
            from holdfast.cli.display.live import LiveView, terminal_console

            views.append(LiveView(progress, title, run_id, store, terminal_console()))
        elif display.is_talkative:
            questions = [row.name for row in progress.rows.values() if row.kind == "ask"]
            views.append(Lines(display.out, scrub, display.heartbeat, questions))
        observers = list(views)
        if display.events is not None:
            observers.append(stack.enter_context(event_file(display.events, scrub)))
        told = bool(views) and not display.is_live
        stack.enter_context(scrubbed_records(scrub))
        stack.enter_context(told_warnings(scrub, logging.ERROR if told else logging.WARNING))
        yield Watch(views, observers, progress)


@contextlib.contextmanager
def told_warnings(scrub: Callable[[Any], Any], level: int = logging.WARNING) -> Iterator[None]:
    """Tell what is logged on stderr, without secrets; plain lines have told the warnings already."""
    handler = _Teller(scrub, level)
    log = logging.getLogger("holdfast")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextlib.contextmanager
def scrubbed_records(scrub: Callable[[Any], Any]) -> Iterator[None]:
    """Keep secrets out of whatever is logged meanwhile, by the workflow's own functions too."""
    before = logging.getLogRecordFactory()

    def make(*args: Any, **facts: Any) -> logging.LogRecord:
        record: logging.LogRecord = before(*args, **facts)
        with contextlib.suppress(TypeError, ValueError, KeyError):
            text = record.getMessage()
            scrubbed = str(scrub(text))
            if scrubbed != text:
                record.msg, record.args = scrubbed, None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = str(scrub(logging.Formatter().formatException(record.exc_info)))
        return record

    logging.setLogRecordFactory(make)
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)


class _Teller(logging.Handler):
    def __init__(self, scrub: Callable[[Any], Any], level: int) -> None:
        super().__init__(level)
        self._scrub = scrub

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"holdfast: {one_line(worded(str(self._scrub(record.getMessage()))), 1000)}\n")
