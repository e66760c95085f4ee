"""Filling the corpora from real runs and real files: `python -m tests.fuzz.harvest`. What is there stays."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.state.ops import Op
from tests.fuzz.choices import Choices
from tests.fuzz.making import value
from tests.fuzz.trying import CORPUS
from tests.journal.histories import KINDS, history

ROOT = Path(__file__).parents[2]
LARGEST = 1400
"""What is larger is not kept: changes to small inputs find more."""


def keep(target: str, found: Iterable[bytes], largest: int = LARGEST) -> int:
    """Add inputs to a corpus, each under the name of its digest."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    here = [str(folder).encode() for folder in (ROOT, Path.home(), sys.prefix, sys.base_prefix)]
    some = {data for data in found if len(data) <= largest and not any(each in data for each in here)}
    for data in some:
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    return len(some)


def records() -> Iterator[bytes]:
    """The bodies of entries of runs of every kind."""
    for kind in KINDS:
        told = history(kind)
        seen = 0
        for entry in told.store.read(told.info.run):
            if seen < 3 or entry.mark is None:
                yield entry.body[1:]
                seen += 1


def _resets() -> Iterator[bytes]:
    """Records that hold a whole run."""
    for kind in ("rolled_back", "forked"):
        told = history(kind)
        yield from (entry.body[1:] for entry in told.store.read(told.info.run))


def snapshots() -> Iterator[bytes]:
    """Folded runs of every kind."""
    for kind in KINDS:
        told = history(kind)
        loaded = told.journal.load(told.info, TolerantCodec())
        yield told.journal.make_snapshot(loaded, Codec()).body[17:]


def marks() -> Iterator[bytes]:
    """Marks as they are stored."""
    for kind in ("simple", "nested", "rolled_back"):
        told = history(kind)
        for mark in told.store.checkpoints(told.info.run)[:2]:
            decode_checkpoint(told.info.key, mark, told.info.run)
            yield b"\0" + mark.facts


def codec() -> Iterator[bytes]:
    """Values of every kind, and those of real runs."""
    codec = Codec()
    for number in range(0, 256, 3):
        yield codec.encode(value(Choices(bytes([number, 3, number, 7, 90, 33, 200, number, 5, 60]))))[1:]
    for kind in KINDS:
        for record, _ in history(kind).records[:4]:
            for op in getattr(record, "ops", ()):
                if isinstance(op, Op):
                    yield op.raw[1:]


def flows() -> Iterator[bytes]:
    """Workflow files, good and bad."""
    for folder in ("tests/workflows/good", "tests/workflows/broken", "examples"):
        for path in sorted((ROOT / folder).rglob("*.yaml")):
            yield path.read_bytes()


SOURCES = {"records": records, "snapshots": snapshots, "marks": marks, "codec": codec, "flows": flows}


def main() -> None:
    """Add to every corpus, and report."""
    for target, source in SOURCES.items():
        print(f"{target}: {keep(target, source())} inputs")
    print(f"records, large ones: {keep('records', _resets(), 4000)} inputs")


if __name__ == "__main__":
    main()
