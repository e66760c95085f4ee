"""The URL of a store as it may be shown to anybody."""

from __future__ import annotations

import re


def shown_url(url: str) -> str:
    """The URL without what is secret in it: the password, wherever it stands."""
    place, mark, query = url.partition("?")
    place = re.sub(r"(://[^:@]*):.*@", r"\1@", place)
    kept = [part for part in query.split("&") if not re.match("[a-z_]*(password|secret|_key)=", part)]
    return f"{place}{mark if any(kept) else ''}{'&'.join(kept)}"
