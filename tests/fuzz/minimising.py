"""Making an input that shows something small, while it still shows the same."""

from __future__ import annotations

from collections.abc import Callable

MOST_TRIES = 3000


def minimised(data: bytes, shows: Callable[[bytes], bool], tries: int = MOST_TRIES) -> bytes:
    """The smallest of the inputs tried that still `shows` what the first one did."""
    left = tries

    def still(candidate: bytes) -> bool:
        nonlocal left
        left -= 1
        return shows(candidate)

    size = max(1, len(data) // 2)
    while size and left > 0:
        at, has_shrunk = 0, False
        while at < len(data) and left > 0:
            shorter = data[:at] + data[at + size :]
            if still(shorter):
                data, has_shrunk = shorter, True
            else:
                at += size
        if not has_shrunk or size > len(data):
            size //= 2
    for at in range(len(data)):
        for byte in (0x00, 0x30, 0x61):
            if left > 0 and data[at] > byte and still(data[:at] + bytes([byte]) + data[at + 1 :]):
                data = data[:at] + bytes([byte]) + data[at + 1 :]
                break
    return data
