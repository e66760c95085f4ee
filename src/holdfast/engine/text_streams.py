"""What steps stream while they run: the last pieces of text of each run of this process. Nothing of it is stored."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.engine.owner import active_runs
from holdfast.errors import HoldfastError, StreamDropped
from holdfast.events import Event, tell

if TYPE_CHECKING:
    from holdfast.engine.saving import StepHost
    from holdfast.engine.settings import Settings

MOST_CHARACTERS = 1_000_000
MOST_PIECES = 10_000
"""How much of the text of a run is kept for readers that come later, whichever is reached first."""
MOST_RUNS = 32
"""How many runs' texts are kept: those that streamed something last."""

_GLANCE = 0.05
"""Seconds after which a reader looks whether the run is still executed."""


class TextStream:
    """The pieces of text of one run, numbered in the order in which its observers get them."""

    def __init__(self, run_id: str) -> None:
        self.run_id, self._name = run_id, secrets.token_hex(4)
        self._lock = threading.RLock()  # An observer may stream something itself.
        self._news = threading.Condition(self._lock)
        self._pieces: deque[Event] = deque()
        self._count = self._characters = 0

    def add(self, host: StepHost, node: str, text: str, **data: Any) -> None:
        """Keep a piece of text, and tell the observers of it."""
        with self._lock:
            self._count += 1
            facts = {**data, "text": text, "cursor": f"{self._name}-{self._count}"}
            event = Event("node.stream", self.run_id, node, facts)
            self._pieces.append(event)
            self._characters += len(text)
            while len(self._pieces) > MOST_PIECES or (
                self._characters > MOST_CHARACTERS and len(self._pieces) > 1
            ):
                self._characters -= len(self._pieces.popleft().data["text"])
            if host.saving.observer is not None and host.saving.hears("node.stream"):
                tell(host.saving.observer, event)
            self._news.notify_all()

    def number(self, cursor: str | None) -> int:
        """Return the number of a cursor's piece; 0 if there is no cursor."""
        if cursor is None:
            return 0
        name, _, number = str(cursor).rpartition("-")
        if name != self._name or not number.isdecimal() or int(number) > self._count:
            reason = f"{cursor!r} is not a cursor of what this process has streamed of run {self.run_id!r}"
            raise self._dropped(reason)
        return int(number)

    def after(self, number: int) -> list[Event]:
        """Return the pieces after one of them."""
        with self._lock:
            first = self._count - len(self._pieces)
            if number < first:
                reason = f"{first - number} pieces of text of run {self.run_id!r} are no longer kept"
                raise self._dropped(reason)
            return list(self._pieces)[number - first :] if number < self._count else []

    def wait(self) -> None:
        """Wait briefly for another piece."""
        with self._news:
            self._news.wait(_GLANCE)

    def _dropped(self, reason: str) -> StreamDropped:
        with self._lock:
            oldest = f"{self._name}-{self._count - len(self._pieces)}"
        return StreamDropped(
            f"{reason}; `oldest` of this error is the cursor with which everything that is kept is read",
            oldest=oldest,
        )


class TextStreams:
    """The streams of the runs that this process executes or has executed last, by the keys of the runs."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget all: a forked child executes no run of its parent."""
        self._lock, self._streams = threading.Lock(), OrderedDict[bytes, TextStream]()

    def of(self, host: StepHost) -> TextStream:
        """Return the stream of a run that is executed."""
        return self._get(host.saving.writer.info.key, host.run_id)

    def find(self, settings: Settings, run_id: str) -> TextStream:
        """Return the stream of a run that is executed here, or was; refuse any other."""
        store = settings.journal.store
        execution = active_runs.find(store, run_id)
        if execution is not None:
            return self._get(execution.saving.writer.info.key, run_id)
        stream = self._streams.get(settings.journal.info(run_id).key)
        if stream is None:
            raise HoldfastError(
                f"nothing that run {run_id!r} streams can be read here: this process does not execute it; read it "
                "where it is executed, and what is finished from its state"
            )
        return stream

    def _get(self, key: bytes, run_id: str) -> TextStream:
        with self._lock:
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = TextStream(run_id)
                while len(self._streams) > MOST_RUNS:
                    self._streams.popitem(last=False)
            else:
                self._streams.move_to_end(key)
            return stream


streams = TextStreams()


def follow(settings: Settings, run_id: str, after: str | None) -> Iterator[Event]:
    """Yield the pieces of text of a run after a cursor, as they come, until its execution here ends."""
    stream = streams.find(settings, run_id)
    return _follow(settings, stream, stream.number(after))


def _follow(settings: Settings, stream: TextStream, number: int) -> Iterator[Event]:
    while True:
        is_executed = active_runs.find(settings.journal.store, stream.run_id) is not None
        pieces = stream.after(number)
        yield from pieces
        number += len(pieces)
        if not pieces and not is_executed:
            return
        if not pieces:
            stream.wait()


async def afollow(settings: Settings, run_id: str, after: str | None) -> AsyncIterator[Event]:
    """As `follow`, without blocking the event loop."""
    stream = streams.find(settings, run_id)
    number = stream.number(after)
    while True:
        is_executed = active_runs.find(settings.journal.store, run_id) is not None
        pieces = stream.after(number)
        for piece in pieces:
            yield piece
        number += len(pieces)
        if not pieces and not is_executed:
            return
        if not pieces:
            await asyncio.sleep(_GLANCE)
