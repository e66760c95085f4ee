"""Reading bodies of requests, whose size and time are bounded."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from holdfast.web.problems import TooLong, TooSlow

SECONDS = 60.0
"""How long a body may take to arrive; each megabyte adds a second."""


async def read_bytes(request: Request, most: int) -> bytes:
    """Return the body of a request; refuse one that is too long or too slow without reading it all."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise TooLong(f"the body may have {most:,} bytes")
    data = bytearray()
    try:
        async with asyncio.timeout(SECONDS + most / 1_000_000):
            async for part in request.stream():
                data += part
                if len(data) > most:
                    raise TooLong(f"the body may have {most:,} bytes")
    except TimeoutError:
        raise TooSlow("the body took too long to arrive") from None
    except ClientDisconnect:
        raise TooSlow("the client went away before its body had arrived") from None
    return bytes(data)
