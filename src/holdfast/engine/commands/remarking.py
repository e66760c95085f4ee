"""Tags, notes and keeping: what people say of a run or of one of its checkpoints, at any time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.engine.commands.inbox import Wish
from holdfast.engine.commands.meant import Refused
from holdfast.errors import CommandRefused
from holdfast.journal.records import Remarked
from holdfast.journal.wire import safe_text
from holdfast.stores.base import RunInfo

LONGEST_TAG = 200
LONGEST_NOTE = 100_000
MOST_TAGS = 100
"""How many tags one remark may add or remove."""


def remark_of(
    at: int, text: str = "", add: Iterable[str] = (), remove: Iterable[str] = (), keep: bool | None = None
) -> dict[str, Any]:
    """A remark as a message carries it; one that says nothing, or too much, is refused."""
    found = {"add": _tags(add), "remove": _tags(remove)}
    text = safe_text(text) if isinstance(text, str) else text
    if not isinstance(text, str) or len(text) > LONGEST_NOTE:
        raise CommandRefused(f"a note is text of at most {LONGEST_NOTE} characters, not {text!r:.80}")
    if both := sorted({*found["add"]} & {*found["remove"]}):
        raise CommandRefused(f"a tag is either added or removed, not both: {', '.join(both)}")
    if not text.strip() and not any(found.values()) and keep is None:
        raise CommandRefused("there is nothing to say: give a text, or tags")
    return {"at": at, "text": text, **found, "keep": keep}


def _tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str):
        raise CommandRefused(f"tags are several words, not one text: {tags!r:.80}")
    given = list(tags)
    for tag in given:
        is_word = isinstance(tag, str) and 0 < len(tag) <= LONGEST_TAG and tag.isprintable()
        if not is_word or tag != tag.strip() or "," in tag:
            raise CommandRefused(
                f"a tag is printable text of at most {LONGEST_TAG} characters without commas, not {tag!r:.80}"
            )
    found = list(dict.fromkeys(given))
    if len(found) > MOST_TAGS:
        raise CommandRefused(f"at most {MOST_TAGS} tags at once, not {len(found)}")
    return found


def remarked(wish: Wish) -> Remarked:
    """The record that a message comes to."""
    said: Mapping[str, Any] = wish.remark or {}
    try:
        checked = remark_of(
            int(said.get("at", 0)),
            str(said.get("text", "")),
            map(str, said.get("add", ())),
            map(str, said.get("remove", ())),
            None if said.get("keep") is None else bool(said["keep"]),
        )
    except CommandRefused as error:
        raise Refused(str(error)) from None
    return Remarked(
        checked["at"],
        checked["text"],
        tuple(checked["add"]),
        tuple(checked["remove"]),
        checked["keep"],
        wish.by,
    )


def tags_after(info: RunInfo, record: Remarked) -> RunInfo:
    """A run's plain facts once a remark is made: what is said of the run as a whole changes its tags."""
    if record.at or not (record.add or record.remove):
        return info
    left = [tag for tag in info.tags if tag not in record.remove]
    return dataclasses.replace(info, tags=tuple(dict.fromkeys([*left, *record.add])))
