"""Just enough of PostgreSQL's protocol, version 3, to count statements and to speak like a dying server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102

STATEMENTS = b"QE"
"""A simple query, and the execution of a prepared one."""
SYNC = b"S"
_PARSE, _BIND, _QUERY, _EXECUTE = b"P", b"B", b"Q", b"E"


class Message(NamedTuple):
    """One message of a client: its type and all its bytes."""

    kind: bytes
    data: bytes


def whole_messages(buffer: bytearray) -> Iterator[Message]:
    """The complete messages at the beginning of a buffer, which loses them."""
    while len(buffer) >= 5:
        size = 1 + int.from_bytes(buffer[1:5])
        if len(buffer) < size:
            return
        data = bytes(buffer[:size])
        del buffer[:size]
        yield Message(data[:1], data)


class Texts:
    """The prepared statements of a connection, to know which of them is executed."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, str] = {}
        self._bound = ""

    def see(self, message: Message) -> str:
        """The text of the statement that a message executes; empty for other messages."""
        body = message.data[5:]
        if message.kind == _QUERY:
            return _text(body.partition(b"\0")[0])
        if message.kind == _PARSE:
            name, _, rest = body.partition(b"\0")
            self._prepared[name] = _text(rest.partition(b"\0")[0])
        elif message.kind == _BIND:
            self._bound = self._prepared.get(body.partition(b"\0")[2].partition(b"\0")[0], "?")
        return self._bound if message.kind == _EXECUTE else ""


def _text(said: bytes) -> str:
    return " ".join(said.decode("utf-8", "replace").split())


def is_ready(reply: bytes | bytearray) -> bool:
    """Whether a reply is complete: it ends in ReadyForQuery."""
    return len(reply) >= 6 and bytes(reply[-6:-1]) == b"Z\0\0\0\5"


def fatal(sqlstate: str, text: str) -> bytes:
    """What a server says before it closes a connection."""
    fields = b"".join(
        key + value.encode() + b"\0"
        for key, value in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", sqlstate), (b"M", text))
    )
    return b"E" + (len(fields) + 5).to_bytes(4) + fields + b"\0"


def backend_of(greeting: bytes | bytearray) -> int | None:
    """Return the process id in a server's BackendKeyData, if this is a greeting with one."""
    place = greeting.find(b"K\0\0\0\x0c")
    return int.from_bytes(greeting[place + 5 : place + 9]) if place >= 0 else None
