"""The URL of a store as it may be shown to anybody."""

from __future__ import annotations

import re


def shown_url(url: str) -> str:
    """The URL without what is secret in it: the password, wherever it stands."""
    place, mark, query = url.partition("?")
    if is_cut_short(place.partition("://")[2], query):
        return f"{place.partition('://')[0]}://…"
    place = re.sub(r"(://[^:@]*):.*@", r"\1@", place)
    kept = [part for part in query.split("&") if not re.match("[a-z_]*(password|secret|_key)=", part)]
    return f"{place}{mark if any(kept) else ''}{'&'.join(kept)}"


def is_cut_short(place: str, query: str) -> bool:
    """Whether a `?` in the password parted a URL in its midst: there is no port after the colon, and an `@` follows."""
    hosts = re.sub(r"\[[^\]]*\]", "", place)
    return "@" not in place and "@" in query and re.search(r":(?!\d*(,|/|$))", hosts) is not None
