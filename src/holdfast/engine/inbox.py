"""What the outside may ask of a run: messages in its inbox."""

from __future__ import annotations

import ormsgpack


def cancel_message(reason: str) -> bytes:
    """The wish that a run stop."""
    return ormsgpack.packb({"command": "cancel", "reason": reason})


def read_message(body: bytes) -> tuple[str, str]:
    """A message's command and reason; what cannot be read becomes an unknown command."""
    try:
        message = ormsgpack.unpackb(body)
        return str(message["command"]), str(message.get("reason", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "unreadable", ""
