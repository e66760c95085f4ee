"""Any text in PostgreSQL's text columns, which cannot hold the character NUL."""

from __future__ import annotations

# Keeps the order of texts: NUL still sorts before U+0001, and that before all others.
_ESCAPES = {"\1": "\1\2", "\0": "\1\1"}


def to_column(text: str) -> str:
    """A text as it is stored; of all but very odd texts, the text itself."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", _ESCAPES["\1"]).replace("\0", _ESCAPES["\0"])
    return text


def from_column(text: str) -> str:
    """A text as it was before it was stored."""
    if "\1" in text:
        return text.replace(_ESCAPES["\0"], "\0").replace(_ESCAPES["\1"], "\1")
    return text
