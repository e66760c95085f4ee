"""What was last seen of a journal, kept beside it, so that a store opened anew need not read it all.

A hint that may be missing, old or damaged: the journal itself says whether it holds.
"""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from holdfast.errors import HoldfastError
from holdfast.stores import frames
from holdfast.stores.base import RunInfo
from holdfast.stores.disk import write_whole
from holdfast.stores.frames import Frame

NAME = "landmarks"
_CHECK = 8


class Landmarks(NamedTuple):
    """The last frame that was there, the first seq, the facts, and where some frames begin: (seq before it, byte)."""

    last: Frame
    first: int
    info: RunInfo
    places: list[tuple[int, int]]


def keep(folder: Path, seen: Landmarks) -> None:
    """Write them down; a disk that refuses is passed over."""
    told = {
        "start": seen.last.start,
        "header": seen.last.header.hex(),
        "first": seen.first,
        "facts": json.loads(frames.facts_json(seen.info)),
        "places": seen.places,
    }
    body = json.dumps(told, separators=(",", ":")).encode()
    with suppress(OSError):
        write_whole(folder / NAME, f"{crc32(body):0{_CHECK}x}".encode() + body, durable=False)


def recall(folder: Path) -> Landmarks | None:
    """What was written down, if it is whole."""
    try:
        raw = (folder / NAME).read_bytes()
        if int(raw[:_CHECK], 16) != crc32(raw[_CHECK:]):
            return None
        told: dict[str, Any] = json.loads(raw[_CHECK:])
        last = frames.parse(bytes.fromhex(told["header"]), told["start"], folder.name)
        info = frames.parse_facts(json.dumps(told["facts"]).encode())
        return Landmarks(last, told["first"], info, [(after, start) for after, start in told["places"]])
    except (OSError, ValueError, KeyError, TypeError, struct.error, HoldfastError):
        return None


def forget(folder: Path) -> None:
    """Remove them: the journal is about to be written anew."""
    with suppress(FileNotFoundError):
        os.unlink(folder / NAME)  # noqa: PTH108
