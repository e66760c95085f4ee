"""The replies to requests with an idempotency key: kept for a while, and given again to who repeats a request."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from starlette.responses import Response

from holdfast.service.requests import Keyed

HEADER = "idempotency-key"

MOST_KEPT = 2_000
"""How many replies are kept; a request whose reply is gone is looked up in the journal of its run."""

LONGEST_KEPT = 100_000
"""How many bytes a reply may have that is kept."""


class Replies:
    """The latest replies by the key of their request; two requests of one key never act at the same time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, Response]] = OrderedDict()
        self._busy: dict[str, asyncio.Lock] = {}

    async def reply(self, request: Keyed, act: Callable[[], Awaitable[Response]]) -> Response:
        """Return the reply that a request got before, or what `act` returns. An error is not kept."""
        lock = self._busy.setdefault(request.name, asyncio.Lock())
        try:
            async with lock:
                content, kept = self._kept.get(request.name, (request.content, None))
                if content != request.content:
                    raise request.reused()
                if kept is not None:
                    return kept
                found = await act()
                if len(found.body) <= LONGEST_KEPT:
                    self._kept[request.name] = request.content, found
                    while len(self._kept) > MOST_KEPT:
                        self._kept.popitem(last=False)
                return found
        finally:
            if not lock.locked():
                self._busy.pop(request.name, None)
