"""How much stored bytes ask for once they are read: measured on the bytes, before anything is made of them."""

from __future__ import annotations

import sys

from holdfast.errors import CapsuleInvalid

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_PARTS = 5_000_000
"""How many parts one body may have: texts, numbers, lists. A part needs some 60 bytes once it is read."""

_DEEPEST = 200
_ZSTD = b"\x28\xb5\x2f\xfd"
_LONGEST_HEAD = 18
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8} | {
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17
}  # fmt: skip
"""By the first byte of a part of MessagePack, how many more it has."""

_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_BYTES = (0xC4, 0xC5, 0xC6)
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_OF_A_RECORD = 3
"""How many lists are open where the fields of a record are read."""

_WITH_A_RUN, _RUN = (14, 17), 3
"""The codes of the records that hold a whole run, and the field that it is in."""

_NESTED = 4
"""How many bodies, one in the other, are looked into: a record has a run, a run has values, and these are not read."""


def unpacked_bytes(body: bytes, most_parts: int = MOST_PARTS, within: int = 0) -> int:
    """How many bytes the compressed values of a MessagePack body say that they have; `CapsuleInvalid` for no such body.

    Parts are passed over, not made: a list that claims a billion members costs nothing. Records may hold whole runs,
    whose values count too; `within` says in how many others this one is.
    """
    place, parts, total, open_, fields, code = 1, 0, 0, [1], 0, -1
    while open_:
        if not open_[-1]:
            open_.pop()
            continue
        open_[-1] -= 1
        parts += 1
        if place >= len(body) or parts > most_parts or len(open_) > _DEEPEST:
            raise CapsuleInvalid("a record in it is cut short, nested too deep, or has too many parts")
        first = body[place]
        place += 1
        in_record = len(open_) == _OF_A_RECORD
        field = fields - open_[-1] - 1
        if in_record and field == 0:
            code = first
        if first <= 0x7F or first >= 0xE0:
            continue
        if first <= 0x8F:
            open_.append(2 * (first & 0x0F))
        elif first <= 0x9F:
            open_.append(first & 0x0F)
        elif first <= 0xBF:
            place += first & 0x1F
        elif first in _FIXED:
            place += _FIXED[first]
        elif first in _SIZED:
            width = _SIZED[first]
            size = int.from_bytes(body[place : place + width], "big") + (first in _EXTENSIONS)
            place += width
            if first in _BYTES and body.startswith(_ZSTD, place):
                total += _declared(body[place : place + _LONGEST_HEAD])
            elif in_record and field == _RUN and code in _WITH_A_RUN and size and within < _NESTED:
                total += unpacked_bytes(body[place : place + size], most_parts - parts, within + 1)
            place += size
        elif first in _COUNTED:
            width, each = _COUNTED[first]
            open_.append(each * int.from_bytes(body[place : place + width], "big"))
            place += width
        else:
            raise CapsuleInvalid("a record in it is not MessagePack")
        if len(open_) == _OF_A_RECORD and not in_record:
            fields = open_[-1]
    if place != len(body):
        raise CapsuleInvalid("a record in it is cut short, or has grown")
    return total


def _declared(start: bytes) -> int:
    """What a compressed value says it has; one that only looks compressed says nothing."""
    try:
        return int(zstd.get_frame_info(start).decompressed_size or 0)
    except (zstd.ZstdError, ValueError):
        return 0
