"""Links that answer one question of a run without a login, signed with a key of the operator."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from typing import NamedTuple

from holdfast import clock
from holdfast.errors import CONFIGURATION, HoldfastError, Remedy
from holdfast.stores.base import RunInfo
from holdfast.views.run_view import PauseView

KEY_VARIABLE = "HOLDFAST_LINK_KEY"
"""The environment variable with the key that answer links are signed with."""

SHORTEST_KEY = 32
LONGEST = 8_000
"""How many characters a link may have that is looked at."""

_PURPOSE = b"holdfast answer link\n"


class NoLinks(HoldfastError):
    """This service has no key for answer links."""

    exit_code = CONFIGURATION


class KeyTooShort(HoldfastError):
    """A key can be guessed."""

    exit_code = CONFIGURATION


class LinkRefused(HoldfastError):
    """An answer link that is no use: forged, used, expired, or of a question that is over."""


class Question(NamedTuple):
    """The question that a link answers: which pause of which run, and since when it is open."""

    namespace: str
    run_id: str
    key: str
    """The key of the run in hexadecimal: another run with the same id has another."""
    pause: str
    since: str

    @classmethod
    def of(cls, namespace: str, info: RunInfo, pause: PauseView) -> Question:
        """Return the question that a pause asks."""
        return cls(namespace, info.run, info.key.hex(), pause.id, pause.since.isoformat())


class AnswerLinks:
    """Makes and reads links; a link says which question it answers, and nobody without the key can make one."""

    def __init__(self, key: str, base: str = "") -> None:
        if len(key) < SHORTEST_KEY:
            raise KeyTooShort(
                f"the key of answer links needs {SHORTEST_KEY} characters or more",
                remedies=Remedy(text="make one with: openssl rand -hex 32"),
            )
        self._key, self._base = key.encode(), base.rstrip("/")

    def link(self, question: Question) -> str:
        """Return the link of a question: always the same one."""
        said = json.dumps(question, separators=(",", ":")).encode()
        return f"{self._base}/answer/{_text(said)}.{_text(self._signature(said))}"

    def read(self, token: str) -> Question:
        """Return the question of the last part of a link; raise `LinkRefused` if it was not made with this key."""
        said, _, signature = token.partition(".")
        try:
            given = _bytes(said)
            if len(token) > LONGEST or not hmac.compare_digest(_bytes(signature), self._signature(given)):
                raise LinkRefused("this link was not made by this server, or is not complete")
        except (binascii.Error, ValueError):
            raise LinkRefused("this link is not complete") from None
        return Question(*json.loads(given))

    def _signature(self, said: bytes) -> bytes:
        return hmac.new(self._key, _PURPOSE + said, hashlib.sha256).digest()


def refuse_late(pause: PauseView) -> None:
    """Raise `LinkRefused` if it is too late to answer."""
    if pause.until is not None and pause.until.timestamp() <= clock.time():
        raise LinkRefused(f"it is too late to answer: the time was over at {pause.until:%Y-%m-%d %H:%M} UTC")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
