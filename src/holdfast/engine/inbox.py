"""What the outside may ask of a run: messages in its inbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import ormsgpack

CANCEL, PAUSE, ANSWER = "cancel", "pause", "answer"


class Wish(NamedTuple):
    """One message: a command, and what belongs to it. `value` is an encoded answer to `pause`."""

    command: str
    reason: str = ""
    pause: str = ""
    value: bytes = b""
    by: str = ""
    refused: str = ""
    """Why it is not obeyed; nothing that a message itself could say."""


def write_message(wish: Wish) -> bytes:
    """A message as bytes."""
    return ormsgpack.packb({key: value for key, value in wish._asdict().items() if value})


def read_message(body: bytes) -> Wish:
    """A message; what cannot be read becomes an unknown command."""
    try:
        message = ormsgpack.unpackb(body)
        return _wish(message)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Wish("unreadable")


def _wish(message: Mapping[str, Any]) -> Wish:
    value = message.get("value", b"")
    return Wish(
        command=str(message["command"]),
        reason=str(message.get("reason", "")),
        pause=str(message.get("pause", "")),
        value=value if isinstance(value, bytes) else b"",
        by=str(message.get("by", "")),
    )
