"""A proxy to a PostgreSQL server, by TCP or Unix socket, which disturbs the n-th statement as configured."""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.proof.server.messages import (
    CANCEL_REQUEST,
    GSS_REQUEST,
    SSL_REQUEST,
    STATEMENTS,
    Texts,
    backend_of,
    fatal,
    is_ready,
    whole_messages,
)

PAUSE = 0.03
"""How long a stall lasts, in seconds, if nobody says otherwise."""

CHUNK = 1 << 16


class Act(StrEnum):
    """What happens at a statement."""

    BEFORE = "closed before it is sent"
    REQUEST_CUT = "cut in the middle of it"
    SENT = "closed as soon as it is sent"
    REPLY_LOST = "done, its reply lost"
    REPLY_CUT = "done, cut in the middle of its reply"
    TERMINATED_BEFORE = "backend terminated before it"
    TERMINATED_RUNNING = "backend terminated while it runs"
    TERMINATED_AFTER = "done, backend terminated before the reply"
    CRASH_TOLD = "not sent, told that the server crashed"
    STALLED = "stalled for a moment"
    STALLED_RESET = "sent, stalled, then reset"


class Arrival(StrEnum):
    """What happens to a connection that is being made."""

    REFUSED = "connection refused"
    FULL = "too many connections"
    STARTING = "the server is starting up"
    GREETING_CUT = "cut in the middle of the greeting"


TOLD = {
    Arrival.FULL: fatal("53300", "sorry, too many clients already"),
    Arrival.STARTING: fatal("57P03", "the database system is starting up"),
    Act.CRASH_TOLD: fatal("57P02", "terminating connection because of crash of another server process"),
}


class Struck(NamedTuple):
    """A fault that happened: at the how manieth statement or connection, which one, and what it hit."""

    at: int
    act: Act | Arrival
    text: str


class Backends(NamedTuple):
    """How backends are terminated: at once, or in the middle of a statement that `send` sends."""

    terminate: Callable[[int], None]
    terminate_within: Callable[[int, Callable[[], None]], None]


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    backend: int | None = None
    texts: Texts = field(default_factory=Texts)
    losing: Act | None = None
    reply: bytearray = field(default_factory=bytearray)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()

    def cut(self) -> None:
        """Close both sides at once; what was written is sent, for the kernel has it already."""
        for side in (self.client, self.server):
            with suppress(Exception):
                side.transport.abort()


class Proxy:
    """Carries bytes between clients and one server, in a thread of its own.

    `arm(acts)` restarts the count of statements: the n-th gets `acts[n]`. `arrivals` does so for connections. What
    happened is in `struck`.
    """

    def __init__(
        self,
        target: str | tuple[str, int],
        backends: Backends | None = None,
        *,
        folder: Path | None = None,
        tls: ssl.SSLContext | None = None,
        seed: int = 0,
    ) -> None:
        self._target, self._backends, self._tls = target, backends, tls
        self._chance = random.Random(seed)
        self._acts: dict[int, Act] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._halt_at, self._halts_after, self._rain = 0, False, 0.0
        self.pause = PAUSE
        self.statements = self.connections = 0
        self.texts: list[str] = []
        self.struck: list[Struck] = []
        self.encrypted = 0
        self._links: set[_Link] = set()
        self._halted = False
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._folder, self.port = folder, 0
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    def arm(
        self,
        acts: Mapping[int, Act] | None = None,
        arrivals: Mapping[int, Arrival] | None = None,
        halt_at: int = 0,
        halt_after: bool = False,
        rain: float = 0.0,
    ) -> None:
        """Count from 0 again, and do these things.

        With `halt_at` everything stops before that statement, or after it is sent; with `rain` every statement
        meets some act with this chance.
        """
        self._call(lambda: self._armed(dict(acts or {}), dict(arrivals or {}), halt_at, rain))
        self._halts_after = halt_after

    def halt(self) -> None:
        """Let no byte pass, either way, until `resume`: a partition."""
        self._call(lambda: self._set_halted(True))

    def resume(self) -> None:
        """Let bytes pass again, those first that were held back."""
        self._call(lambda: self._set_halted(False))

    def cut_all(self) -> None:
        """Close every connection."""
        self._call(lambda: [link.cut() for link in list(self._links)])

    def close(self) -> None:
        """Close everything and end the thread."""
        self.cut_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def is_halted(self) -> bool:
        """Whether no byte passes."""
        return self._halted

    def _armed(self, acts: dict[int, Act], arrivals: dict[int, Arrival], halt_at: int, rain: float) -> None:
        self._acts, self._arrivals, self._halt_at, self._rain = acts, arrivals, halt_at, rain
        self.statements = self.connections = 0
        self.struck, self.texts = [], []

    def _set_halted(self, halted: bool) -> None:
        # Only once: what others send later must not bring everything to a halt when nobody expects it.
        self._halted, self._halt_at = halted, 0
        for link in self._links:
            (link.open.clear if halted else link.open.set)()

    def _call(self, action: Callable[[], object]) -> None:
        done = threading.Event()

        def act() -> None:
            try:
                action()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(act)
        if not done.wait(30):
            raise RuntimeError("the proxy does not answer")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        if self._folder is not None:
            path = str(self._folder / ".s.PGSQL.5432")
            server: asyncio.Server = self._loop.run_until_complete(
                asyncio.start_unix_server(self._serve, path, limit=1 << 20)
            )
        else:
            server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
            )
            self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._carry(reader, client)
        with suppress(Exception):
            client.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        startup = await self._startup(reader, client)
        is_cancel = int.from_bytes(startup[4:8]) == CANCEL_REQUEST
        arrival = None if is_cancel else self._arrived()
        if arrival is Arrival.REFUSED:
            return
        if arrival in TOLD:
            client.write(TOLD[arrival])
            await client.drain()
            client.close()
            return
        back, server = await self._connect()
        server.write(startup)
        link = _Link(client, server)
        if arrival is Arrival.GREETING_CUT:
            greeting = await back.read(CHUNK)
            client.write(greeting[: len(greeting) // 2])
            link.cut()
            return
        if self._halted:
            link.open.clear()
        self._links.add(link)
        try:
            ways = [asyncio.create_task(each) for each in (self._up(reader, link), self._down(back, link))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            # What the server said last still goes to the client.
            if ways[0].done() is False and link.losing is None:
                with suppress(Exception):
                    await client.drain()
                    client.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._links.discard(link)
            with suppress(Exception):
                server.transport.abort()

    async def _startup(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> bytes:
        while True:
            size = await reader.readexactly(4)
            packet = size + await reader.readexactly(int.from_bytes(size) - 4)
            code = int.from_bytes(packet[4:8])
            if code == SSL_REQUEST and self._tls is not None:
                client.write(b"S")
                await client.drain()
                await client.start_tls(self._tls)
                self.encrypted += 1
            elif code in (SSL_REQUEST, GSS_REQUEST):
                client.write(b"N")
            else:
                return packet

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target, limit=1 << 20)
        return await asyncio.open_connection(*self._target, limit=1 << 20)

    def _arrived(self) -> Arrival | None:
        self.connections += 1
        arrival = self._arrivals.pop(self.connections, None)
        if arrival is not None:
            self.struck.append(Struck(self.connections, arrival, "connecting"))
        return arrival

    async def _up(self, reader: asyncio.StreamReader, link: _Link) -> None:
        """Carry what the client says, message by message."""
        buffer = bytearray()
        while data := await reader.read(CHUNK):
            await link.open.wait()
            buffer += data
            passing = bytearray()
            for message in whole_messages(buffer):
                text = link.texts.see(message)
                act = None
                if message.kind in STATEMENTS:
                    self.statements += 1
                    self.texts.append(text)
                    act = self._acts.pop(self.statements, None) or self._raining()
                    if self.statements == self._halt_at:
                        self._set_halted(True)
                        if not self._halts_after:
                            await link.open.wait()
                if act is not None:
                    self.struck.append(Struck(self.statements, act, text))
                    left = await self._strike(act, link, bytes(passing), message.data)
                    if left is None:
                        return
                    passing = bytearray(left)
                else:
                    passing += message.data
            link.server.write(bytes(passing))

    def _raining(self) -> Act | None:
        falls = self._rain and self._chance.random() < self._rain
        return self._chance.choice(tuple(Act)) if falls else None

    async def _strike(self, act: Act, link: _Link, before: bytes, data: bytes) -> bytes | None:
        """Do what is to be done at a message; what is still to be sent, or `None` if nothing ever is."""
        server, backend = link.server, link.backend
        match act:
            case Act.BEFORE:
                server.write(before)
                link.cut()
                return None
            case Act.REQUEST_CUT:
                server.write(before + data[: max(1, self._chance.randrange(len(data)))])
                link.cut()
                return None
            case Act.CRASH_TOLD:
                link.client.write(TOLD[act])
                link.client.close()
                return None
            case Act.TERMINATED_BEFORE if self._backends is not None and backend is not None:
                self._backends.terminate(backend)
            case Act.TERMINATED_RUNNING if self._backends is not None and backend is not None:
                self._backends.terminate_within(backend, lambda: server.write(before + data))
                return b""
            case Act.STALLED:
                await self._stall(link)
            case Act.SENT | Act.STALLED_RESET:
                # With the Sync that makes the server do it for good, if it is a statement of its own.
                link.losing = act
                self._loop.call_later(
                    0.0 if act is Act.SENT else self.pause, lambda: self._loop.call_soon(link.cut)
                )
            case _:
                link.losing = act
        return before + data

    async def _stall(self, link: _Link) -> None:
        link.open.clear()
        await asyncio.sleep(self.pause)
        link.open.set()

    async def _down(self, back: asyncio.StreamReader, link: _Link) -> None:
        """Carry what the server says."""
        greeting: bytearray | None = bytearray()
        while data := await back.read(CHUNK):
            await link.open.wait()
            if greeting is not None:
                greeting += data
                if (backend := backend_of(greeting)) is not None:
                    link.backend, greeting = backend, None
            if link.losing is None:
                link.client.write(data)
            elif not await self._lose(link, data):
                return

    async def _lose(self, link: _Link, data: bytes) -> bool:
        """Keep a reply back until it is whole, then spoil it."""
        link.reply += data
        if link.losing in (Act.SENT, Act.STALLED_RESET) or not is_ready(link.reply):
            return True
        if link.losing is Act.REPLY_CUT:
            link.client.write(bytes(link.reply[: self._chance.randrange(len(link.reply))]))
            link.cut()
            return False
        if link.losing is Act.TERMINATED_AFTER and self._backends is not None and link.backend is not None:
            link.losing = None
            self._backends.terminate(link.backend)
            return True
        link.cut()
        return False
