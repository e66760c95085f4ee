"""JSON Pointers (RFC 6901): the way to a part of a JSON document."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from holdfast.errors import StateInvalid

_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]*")


class PatchError(StateInvalid):
    """A JSON Patch is malformed, or does not fit the document."""


def escaped(token: str) -> str:
    """A key as a pointer has it."""
    return token.replace("~", "~0").replace("/", "~1")


def pointer(tokens: Iterable[str | int]) -> str:
    """The pointer to a part, from the keys and indexes that lead there."""
    return "".join(f"/{escaped(str(token))}" for token in tokens)


def tokens_of(text: Any) -> list[str]:
    """The keys and indexes that lead to a part."""
    if not isinstance(text, str):
        raise PatchError(f"a JSON Pointer is text, not {type(text).__name__}")
    if text and not text.startswith("/"):
        raise PatchError(f"the JSON Pointer {text!r} does not begin with '/'")
    if _BAD_ESCAPE.search(text):
        raise PatchError(f"the JSON Pointer {text!r} has a '~' that is neither '~0' nor '~1'")
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def index_of(token: str, length: int, where: str) -> int:
    """The index that a token means in a list of `length` places."""
    if token == "-":
        raise PatchError(f"{where}: '-' means the end of a list, where there is no item")
    if not _INDEX.fullmatch(token):
        raise PatchError(f"{where}: {token!r} is not the index of an item")
    if len(token) > len(str(length)) or int(token) >= length:
        raise PatchError(f"{where}: there is no place {token} in a list of {length}")
    return int(token)


def step_into(document: Any, token: str, where: str) -> Any:
    """The part of an object or list that a token names."""
    if isinstance(document, dict):
        if token not in document:
            raise PatchError(f"{where}: there is no key {token!r}")
        return document[token]
    if isinstance(document, list):
        return document[index_of(token, len(document), where)]
    raise PatchError(f"{where}: {token!r} would be inside of what is neither an object nor a list")


def part_of(document: Any, tokens: Iterable[str], where: str) -> Any:
    """The part of a document that tokens lead to."""
    for token in tokens:
        document = step_into(document, token, where)
    return document
