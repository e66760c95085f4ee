"""Events of runs as server-sent events: one reader for each run that anybody follows, shared by all who do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.service.roles import Caller
from holdfast.service.service import Service, TooManyRuns
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast.web")

POLL = 0.25
"""Seconds between two looks at the journal of a run that is followed."""

KEPT = 2_000
"""How many events of a run are kept for its followers; who is slower reads the journal."""

QUIET = 15.0
"""Seconds after which a comment keeps a quiet connection open."""

MOST_STREAMS = 2_000
"""How many streams are open at once."""

MOST_OF_ONE = 500
"""How many of them one caller has."""

AT_ONCE = 500
"""How many events are read from the journal at once."""

Place = tuple[int, int]


def place_of(event_id: str) -> Place:
    """Return the place of an event, by which events are ordered."""
    seq, _, number = event_id.partition(".")
    return int(seq), int(number or 0)


class LiveRun:
    """A run that somebody follows: its latest events, read once for all."""

    def __init__(self, service: Service, run_id: str) -> None:
        self._service, self._run = service, run_id
        self.events: list[dict[str, Any]] = []
        self.first: Place = (0, 0)
        """All events after this place are kept."""
        self.is_over = False
        self.followers = 0
        self._changed = asyncio.Event()
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read, from the run's end now."""
        self._task = asyncio.get_running_loop().create_task(self._read())

    def stop(self) -> asyncio.Task[None] | None:
        """End reading; return the task that ends."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def started(self) -> None:
        """Wait until it is known from where on events are kept."""
        await self._started.wait()

    async def changed(self, seconds: float) -> bool:
        """Wait for more events, or for the end; `False` after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _read(self) -> None:
        try:
            following = await run_in_threadpool(self._service.follow, self._run, None)
            self.first = following.place
            self._started.set()
            while following.status != RunStatus.COMPLETED:
                found = await run_in_threadpool(lambda: list(following.read()))
                if found:
                    self._add(found)
                else:
                    await asyncio.sleep(POLL)
        except HoldfastError as error:
            logger.warning("the events of run %s cannot be followed: %s", self._run, error)
        finally:
            self.is_over = True
            self._started.set()
            self._changed.set()

    def _add(self, found: list[dict[str, Any]]) -> None:
        events = [*self.events, *found]
        cut = max(0, len(events) - KEPT)
        if cut:
            self.first = place_of(events[cut - 1]["id"])
        self.events = events[cut:]
        self._changed.set()
        self._changed = asyncio.Event()


class StreamResponse(StreamingResponse):
    """Events as a response; `place` is what is closed when it ends, however it does."""

    def __init__(self, events: AsyncIterator[str], place: contextlib.ExitStack) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client goes away."""
        with self._place:
            await super().__call__(scope, receive, send)


def stream_owner(caller: Caller) -> str:
    """Return under which name the streams of a caller are counted."""
    return f"{caller.namespace}/{caller.name}"


class Streams:
    """The runs that are followed now."""

    def __init__(self) -> None:
        self._live: dict[tuple[int, str], LiveRun] = {}
        self._open, self._of = 0, Counter[str]()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def readers(self) -> int:
        """How many runs are read for followers."""
        return len(self._live)

    @contextlib.contextmanager
    def counted(self, who: str) -> Iterator[None]:
        """Count a stream of a caller; raise `TooManyRuns` if there are too many, of all callers or of this one."""
        if self._open >= MOST_STREAMS or self._of[who] >= MOST_OF_ONE:
            raise TooManyRuns("too many streams are open; close some, or read /events page by page")
        self._open += 1
        self._of[who] += 1
        try:
            yield
        finally:
            self._open -= 1
            self._of[who] -= 1
            if not self._of[who]:
                del self._of[who]

    def response(self, events: AsyncIterator[str], caller: Caller) -> Response:
        """Return the response that streams events to a caller; raise `TooManyRuns` if there are too many streams."""
        place = contextlib.ExitStack()
        place.enter_context(self.counted(stream_owner(caller)))
        return StreamResponse(events, place)

    async def follow(self, service: Service, run_id: str, after: str) -> AsyncIterator[str]:
        """Yield the events of a run after one of them, each once and in order, as server-sent events."""
        key = (id(service), run_id)
        live = self._live.get(key)
        if live is None or live.is_over:
            live = self._live[key] = LiveRun(service, run_id)
            live.start()
        live.followers += 1
        try:
            await live.started()
            async for text in self._events(live, service, run_id, after):
                yield text
        finally:
            live.followers -= 1
            if not live.followers:
                self._end(live)
                if self._live.get(key) is live:
                    del self._live[key]

    async def _events(self, live: LiveRun, service: Service, run_id: str, after: str) -> AsyncIterator[str]:
        last, place = after, (place_of(after) if "." in after else (int(after), 1 << 40))
        yield ": follow\n\n"
        while True:
            if place < live.first:  # From the journal: what came before the first event that is kept.
                batch = await run_in_threadpool(service.events, run_id, last, AT_ONCE)
                if not batch:
                    place = max(place, live.first)
            else:
                batch = [event for event in live.events if place_of(event["id"]) > place]
            for event in batch:
                last, place = event["id"], place_of(event["id"])
                yield f"id: {last}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n"
            if batch:
                continue
            if live.is_over:
                yield "event: end\ndata: {}\n\n"
                return
            if not await live.changed(QUIET):
                yield ": quiet\n\n"

    def _end(self, live: LiveRun) -> None:
        if (task := live.stop()) is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all streams, and wait for what reads for them."""
        for live in list(self._live.values()):
            self._end(live)
        await asyncio.gather(*self._ending, return_exceptions=True)
