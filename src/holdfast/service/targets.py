"""Where webhooks are sent: addresses, keys and the events that are wanted, as the operator gives them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.errors import CONFIGURATION, HoldfastError, Remedy
from holdfast.service.roles import private_lines

KEY_VARIABLE = "HOLDFAST_WEBHOOK_KEY"
"""The environment variable with the key that the events for `--webhook` are signed with."""

EVENTS = ("paused", "failed", "completed", "cancelled")
SHORTEST_KEY = 24
_LINE = re.compile(r"(?P<name>[\w.-]{1,64})(?::(?P<events>[a-z,]+))?\s+(?P<url>\S+)\s+(?P<key>\S+)")
_PREFIX = "whsec_"


class WebhookInvalid(HoldfastError):
    """What the operator gave as a webhook cannot be used."""

    exit_code = CONFIGURATION


class Target(NamedTuple):
    """A receiver of events: a name, by which deliveries are known, its address, its key, and what it wants."""

    name: str
    url: str
    key: bytes
    events: tuple[str, ...] = EVENTS

    @classmethod
    def of(cls, url: str, key: str, *, name: str = "", events: Sequence[str] = EVENTS) -> Target:
        """Return a target; raise `WebhookInvalid` if its address or its key cannot be used."""
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise WebhookInvalid(f"a webhook is an address such as https://example.org/hook, not {url!r:.60}")
        if unknown := [event for event in events if event not in EVENTS]:
            raise WebhookInvalid(f"there is no event {unknown[0]!r:.60}; there are {', '.join(EVENTS)}")
        own = f"{parts.hostname}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        return cls(name or own, url, read_key(key), tuple(events))


def read_key(text: str) -> bytes:
    """Return a key; one that begins with whsec_ is written in base64."""
    if len(text.removeprefix(_PREFIX)) < SHORTEST_KEY:
        raise WebhookInvalid(
            f"the key of a webhook needs {SHORTEST_KEY} characters or more",
            remedies=Remedy(
                text=f"set {KEY_VARIABLE}, or write it in the file; openssl rand -hex 32 makes one"
            ),
        )
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise WebhookInvalid(f"what follows {_PREFIX} in the key of a webhook is no base64") from None


def read_targets(
    urls: Sequence[str] = (), path: Path | None = None, environ: Mapping[str, str] = os.environ
) -> list[Target]:
    """Return the targets at these addresses, with the key of the environment, and those of a file.

    A line of the file is `NAME[:EVENTS] URL KEY`, the events with commas between them.
    """
    found = [Target.of(url, environ.get(KEY_VARIABLE, "")) for url in urls]
    for number, line in private_lines(path) if path is not None else ():
        given = _LINE.fullmatch(line)
        if given is None:
            raise WebhookInvalid(f"{path}:{number}: a line is NAME[:EVENTS] URL KEY")
        events = given["events"].split(",") if given["events"] else EVENTS
        try:
            found.append(Target.of(given["url"], given["key"], name=given["name"], events=events))
        except WebhookInvalid as error:
            raise WebhookInvalid(f"{path}:{number}: {error.problem}", remedies=error.remedies) from None
    names = [target.name for target in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise WebhookInvalid(f"two webhooks are named {twice!r}; give one of them another name")
    return found
