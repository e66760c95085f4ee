"""Group look: the inboxes of many runs are read in one question."""

from __future__ import annotations

import asyncio
from functools import partial

from holdfast.journal.threads import in_background
from holdfast.stores.base import Message, Store, inboxes

_Asked = list[tuple[str, int, asyncio.Future[list[Message]]]]


class Inboxes:
    """Reads inboxes without blocking an event loop; those that are asked for in one turn of it are read together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: dict[asyncio.AbstractEventLoop, _Asked] = {}

    async def look(self, run: str, after: int) -> list[Message]:
        """The messages of a run after number `after`; maybe some more, if others have asked for those."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Message]] = loop.create_future()
        asked = self._asked.get(loop)
        if asked is None:
            asked = []
            # After the callbacks that are ready now: what their runs ask for joins this question.
            loop.call_soon(self._send, loop, asked)
            self._asked[loop] = asked
        asked.append((run, after, future))
        return await future

    def _send(self, loop: asyncio.AbstractEventLoop, asked: _Asked) -> None:
        try:
            self._asked.pop(loop, None)
            wanted: dict[str, int] = {}
            for run, after, _ in asked:
                wanted[run] = min(after, wanted.get(run, after))
            reading = loop.create_task(in_background(inboxes, self._store, wanted))
            reading.add_done_callback(partial(_answer, asked))
        except BaseException as error:  # The loop is about to end, or something came in between.
            for _, _, future in asked:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, RuntimeError):
                raise


def _answer(asked: _Asked, reading: asyncio.Future[dict[str, list[Message]]]) -> None:
    error = None if reading.cancelled() else reading.exception()
    for run, _, future in asked:
        if future.done():
            continue
        if reading.cancelled():
            future.cancel()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(reading.result().get(run, []))
