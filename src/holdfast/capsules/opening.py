"""Opening the capsule of a sender one may not know: which file, under which passphrase, signed by whom."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from holdfast.capsules.capsule import Capsule, FileOrigin
from holdfast.capsules.sections import ENCRYPTED, HEAD, read_head
from holdfast.capsules.signing import Trust, demand
from holdfast.errors import CapsuleInvalid

LINES = b'{"holdfast":'
"""How a run that was exported as lines of JSON begins."""


def open_capsule(path: str | Path, passphrase: str | None, trust: Trust) -> Capsule:
    """A capsule, verified, and signed as is demanded."""
    is_locked(path)
    capsule = Capsule(path, passphrase)
    try:
        demand(capsule.signed_by, trust)
    except BaseException:
        capsule.close()
        raise
    return capsule


@contextlib.contextmanager
def told(path: str | Path) -> Iterator[None]:
    """Say of which capsule it is that something is wrong."""
    try:
        yield
    except CapsuleInvalid as error:
        raise type(error)(f"{path}: {error}") from None


def is_locked(path: str | Path) -> bool:
    """Whether a capsule is encrypted; what is none is refused."""
    with contextlib.closing(FileOrigin(Path(path))) as origin:
        start = origin.read_at(0, max(len(LINES), HEAD.size))
    if start.startswith(LINES):
        raise CapsuleInvalid(
            "it holds lines of JSON, which are for reading; export the run again without --format jsonl to carry it"
        )
    return read_head(start[: HEAD.size]) == ENCRYPTED
