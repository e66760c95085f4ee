"""The forms in which a secret may turn up in a text: escaped, quoted, encoded, line by line."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import urllib.parse
from collections.abc import Iterator

SHORTEST = 6
"""The fewest characters a secret, or a line of one, may have to be told from ordinary text."""

_BASE64 = r"[A-Za-z0-9+/_\-]?"


def forms(secret: str) -> Iterator[tuple[str, str]]:
    """For every form of a secret, a text that is part of it and the regular expression of all of it."""
    for part in {secret, secret.strip(), *map(str.strip, secret.splitlines())}:
        if len(part) >= SHORTEST:
            yield from ((text, re.escape(text)) for text in _texts(part))
            yield from _base64(part.encode("utf-8", "surrogateescape"))


def _texts(secret: str) -> Iterator[str]:
    raw = secret.encode("utf-8", "surrogateescape")
    yield secret
    yield from (raw.hex(), raw.hex().upper())
    yield from (repr(secret)[1:-1], repr(raw)[2:-1], html.escape(secret), html.escape(secret, quote=False))
    yield from (shlex.quote(secret), secret.replace("'", "'\"'\"'"), secret.replace("'", "'\\''"))
    yield from _json(secret)
    for safe in ("", "/", "/:", "~()*!'"):
        for quote in (urllib.parse.quote, urllib.parse.quote_plus):
            quoted = quote(raw, safe=safe)
            yield from (quoted, re.sub("%..", lambda found: found[0].lower(), quoted))


def _json(secret: str) -> Iterator[str]:
    for ascii_only in (True, False):
        escaped = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield from (escaped, escaped.replace("/", "\\/"))
        yield from (json.dumps(escaped)[1:-1], json.dumps(escaped, ensure_ascii=False)[1:-1])
        for character in "<>&'":
            escaped = escaped.replace(character, f"\\u{ord(character):04x}")
        yield escaped


def _base64(raw: bytes) -> Iterator[tuple[str, str]]:
    """The secret as base64 alone, and as part of something longer, at each of the three alignments."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        alone = encode(raw).decode().rstrip("=")
        yield alone, re.escape(alone) + "=*"
        for before, foreign in ((0, 0), (1, 2), (2, 3)):
            whole = encode(bytes(before) + raw).decode().rstrip("=")
            partial = (before + len(raw)) % 3 != 0
            core = whole[foreign : len(whole) - partial]
            # The characters at the edges hold bits of the secret and of what stands beside it.
            yield core, (_BASE64 if before else "") + re.escape(core) + (_BASE64 if partial else "")
