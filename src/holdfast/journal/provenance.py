"""Where a run came from, if from outside, and who confirmed that it may run here."""

from __future__ import annotations

import getpass
import hashlib
import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from holdfast import clock
from holdfast.journal.records import Confirmed
from holdfast.journal.run_state import RunState
from holdfast.stores.base import RunInfo

_UNKNOWN = "somewhere unknown"


class Confirmation(NamedTuple):
    """Who confirmed a run from outside, when, and the digest of what was confirmed; none stands for all of it."""

    by: str
    at: float
    digest: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a run from outside came from, by whom it is signed, and whether it may run here.

    `messages` is the number of the last message of its inbox that came with it. Once the run `is_begun` here, what
    changes in it is its owner's own doing, until it is set to another place of its history.
    """

    source: str
    at: float
    signed_by: str = ""
    messages: int = 0
    confirmation: Confirmation | None = None
    is_begun: bool = False

    @classmethod
    def of(cls, info: RunInfo) -> Provenance | None:
        """Return the provenance of a run; `None` for one that was started here."""
        if not info.origin:
            return None
        try:
            known: dict[str, Any] = json.loads(info.origin)
            confirmation = known.pop("confirmation", None)
            return cls(**known, confirmation=Confirmation(*confirmation) if confirmation else None)
        except (ValueError, TypeError, AttributeError):
            return cls(_UNKNOWN, 0.0)

    def text(self) -> str:
        """Return the provenance as the facts of a run hold it."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({name: value for name, value in known.items() if value or name in ("source", "at")})

    def allows(self, digest: str) -> bool:
        """Return whether a run with this digest was confirmed."""
        found = self.confirmation
        return self.is_begun or (found is not None and found.digest in ("", digest))

    def confirmed(self, by: str, digest: str) -> Provenance:
        """Return the provenance with a confirmation of what has this digest."""
        return replace(self, confirmation=Confirmation(by, clock.time(), digest))

    def begun(self) -> Provenance:
        """Return the provenance of the run once it is about to run here."""
        return replace(self, is_begun=True)

    def record(self) -> Confirmed:
        """Return what is recorded of its confirmation."""
        found = self.confirmation or Confirmation("", 0.0, "")
        return Confirmed(found.digest, found.by, self.source, self.signed_by)

    @property
    def signer(self) -> str:
        """Whose signature it came with, in words."""
        return f"signed by {self.signed_by}" if self.signed_by else "signed by nobody"


def set_back(origin: str) -> str:
    """Return the `origin` of a run after a rollback.

    The run counts as not begun: what it runs next must be what was confirmed, or must be confirmed.
    """
    if not origin:
        return ""
    found = Provenance.of(RunInfo("", b"", "", "", 0.0, 0.0, origin=origin))
    return origin if found is None else replace(found, is_begun=False).text()


def definition_digest(run: RunState, messages: Iterable[bytes], config: bytes | None = None) -> str:
    """Return the digest of what a run would run with: its definition, its options, and messages that came with it.

    `config` is the config that it would run with, encoded, if that is another than the run's own.
    """
    digest = hashlib.blake2b(digest_size=16)
    raw = run.config if config is None else config
    for part in (run.workflow.encode("utf-8", "surrogatepass"), raw, *messages):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def me() -> str:
    """Return the user and the host of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
