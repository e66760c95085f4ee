"""Changes single bytes of capsules: none may go unnoticed. `python -m tests.capsules.flips [COUNT] [SEED]`."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from holdfast import CapsuleInvalid, open_store
from holdfast.capsules import import_run
from tests.capsules.samples import exported
from tests.stores.copied_runs import growing


def large_capsule(folder: Path, steps: int = 60) -> Path:
    """A capsule of some hundred kilobytes."""
    store = open_store("memory://")
    growing(store, steps).invoke({}, run_id="large")
    return exported(store, "large", folder)


def unnoticed(
    path: Path, places: list[tuple[int, int]], passphrase: str | None = None
) -> list[tuple[int, int]]:
    """The places of `(place, bits)` at which a changed byte was not noticed, or left something in the store."""
    whole, target = path.read_bytes(), open_store("memory://")
    changed, missed = path.with_suffix(".changed"), list[tuple[int, int]]()
    data = bytearray(whole)
    for place, bits in places:
        data[place] ^= bits
        changed.write_bytes(data)
        data[place] ^= bits
        try:
            import_run(target, changed, passphrase=passphrase)
        except CapsuleInvalid:
            continue
        missed.append((place, bits))
    return missed + ([(-1, 0)] if target.runs() else [])


def random_places(size: int, count: int, seed: int) -> list[tuple[int, int]]:
    """So many places of a capsule, and which bits of the byte there to change."""
    chance = random.Random(seed)
    return [(chance.randrange(size), chance.randrange(1, 256)) for _ in range(count)]


def main(words: list[str]) -> int:
    """Change random bytes of a large capsule, and report."""
    count, seed = int(words[0]) if words else 10_000, int(words[1]) if len(words) > 1 else 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = large_capsule(Path(folder))
        size = path.stat().st_size
        missed = unnoticed(path, random_places(size, count, seed))
    print(
        f"{count} changed bytes of {size}, {len(missed)} unnoticed, {time.monotonic() - began:.0f} s, seed {seed}"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
