"""What the outside may ask of a run: messages in its inbox."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ormsgpack

from holdfast.errors import CodecError, CorruptJournal
from holdfast.journal.journal import Journal
from holdfast.journal.wire import safe_text
from holdfast.stores.base import Message, RunInfo

CANCEL, PAUSE, ANSWER = "cancel", "pause", "answer"
EDIT, SKIP, MODIFY, INJECT, REPLAN = "edit", "skip", "modify", "inject", "replan"
REMARK = "remark"
"""Says something of the run; the only command that a completed run still takes."""

UNREADABLE = "unreadable"
"""The command of a message that is not what was sent, or is sealed with a key that is not here."""

STOPS = (CANCEL, PAUSE)
OF_WHAT_IS_NEXT = (SKIP, MODIFY, INJECT, REPLAN)
"""Commands that speak of the steps that come next, so that what is finished has to lead on before."""

STALE = "it was meant for an earlier drive of this run"
LATE = "the run is about to go on with another definition; ask again when it does"


class Change(NamedTuple):
    """Another value at a place of the state: `("inputs", "topic")` is inside `inputs`. `value` is encoded."""

    path: tuple[str, ...]
    value: bytes


class Addition(NamedTuple):
    """Another step: a node, and what a `Send` to it would say. The values of `item` are encoded."""

    node: str
    key: str | None = None
    item: tuple[Change, ...] = ()


class Wish(NamedTuple):
    """One message: a command, and what belongs to it. `value` is an encoded answer to `pause`."""

    command: str
    reason: str = ""
    pause: str = ""
    value: bytes = b""
    by: str = ""
    refused: str = ""
    """Why it is not obeyed; nothing that a message itself could say."""
    step: str = ""
    """The step, or the node, that is meant."""
    changes: tuple[Change, ...] = ()
    additions: tuple[Addition, ...] = ()
    frame: str = ""
    follow: bool = False
    """Whether what usually follows the additions follows them."""
    definition: Mapping[str, Any] | None = None
    """Of a workflow that the run is to go on with: its name, its outline, its part of the config, renamed steps."""

    remark: Mapping[str, Any] | None = None
    """What is said of the run, or of one of its checkpoints: at, text, add, remove, keep."""

    @property
    def redefines(self) -> bool:
        """Whether the run is to go on with another definition of its workflow."""
        return self.command == REPLAN and self.definition is not None


def write_message(wish: Wish) -> bytes:
    """A message as bytes."""
    message = _safe({key: value for key, value in wish._asdict().items() if value})
    body = ormsgpack.packb(message)
    return _HEAD + _digest(body) + body


_HEAD, _DIGEST_BYTES = b"\x01", 8
"""What the first versions wrote had no checksum, and begins with the byte of a MessagePack map."""


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _safe(value: Any) -> Any:
    """A value as MessagePack can hold it: somebody at a terminal may type bytes that are no text."""
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, Mapping):
        return {_safe(key): _safe(item) for key, item in value.items()}
    return [_safe(item) for item in value] if isinstance(value, (list, tuple)) else value


def read_message(body: bytes) -> Wish:
    """A message; what cannot be read becomes an unknown command."""
    if body[:1] == _HEAD:
        digest, body = body[1 : 1 + _DIGEST_BYTES], body[1 + _DIGEST_BYTES :]
        if digest != _digest(body):
            return Wish(UNREADABLE)
    try:
        return _wish(ormsgpack.unpackb(body))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Wish(UNREADABLE)


def open_message(journal: Journal, info: RunInfo, message: Message, *, sealed: bool) -> Wish:
    """A stored message, as `read_message` reads it; one that is encrypted needs the journal's key.

    A run that is `sealed` takes no message that is not. What is wrong with one is the reason for which it is refused.
    """
    try:
        return read_message(journal.bodies(info).open_message(message, sealed=sealed))
    except CodecError:
        return Wish(UNREADABLE)
    except CorruptJournal as error:
        return Wish(UNREADABLE, refused=str(error))


def _wish(message: Mapping[str, Any]) -> Wish:
    value = message.get("value", b"")
    definition, remark = message.get("definition"), message.get("remark")
    return Wish(
        command=str(message["command"]),
        reason=str(message.get("reason", "")),
        pause=str(message.get("pause", "")),
        value=value if isinstance(value, bytes) else b"",
        by=str(message.get("by", "")),
        step=str(message.get("step", "")),
        changes=_changes(message.get("changes", ())),
        additions=tuple(_addition(*wire) for wire in message.get("additions", ())),
        frame=str(message.get("frame", "")),
        follow=message.get("follow") is True,
        definition=definition if isinstance(definition, dict) else None,
        remark=remark if isinstance(remark, dict) else None,
    )


def _changes(wires: Sequence[Any]) -> tuple[Change, ...]:
    changes = tuple(Change(tuple(map(str, path)), value) for path, value in wires)
    if not all(change.path and isinstance(change.value, bytes) for change in changes):
        raise ValueError("a change of nothing, or to what is no stored value")
    return changes


def _addition(node: Any, key: Any, item: Sequence[Any]) -> Addition:
    return Addition(str(node), None if key is None else str(key), _changes(item))
