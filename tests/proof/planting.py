"""Planting one bug into a copy of the source, and seeing whether a proof finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import unmeasured

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
"""Seconds that a proof may take to see a bug; a proof that hangs has not seen it."""


@dataclass(frozen=True)
class Planted:
    """A bug: what is changed where, which promise it breaks, and the proof that has to see it."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    proof: tuple[str, ...]
    """The module to run and its arguments; it must end with 1 here, and with 0 in the tree as it is."""
    also: tuple[tuple[str, str, str], ...] = ()
    """More places to change: file, old, new."""

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        return (self.file, self.old, self.new), *self.also


@dataclass(frozen=True)
class Seen:
    """How a proof ended."""

    code: int
    said: str
    seconds: float

    @property
    def is_caught(self) -> bool:
        return self.code == 1 and "Traceback" not in self.said

    @property
    def finding(self) -> str:
        """The first line that says what was broken."""
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        return next((line for line in lines if "violat" in line.lower()), lines[-1] if lines else "")


@contextmanager
def planted(bug: Planted) -> Iterator[Path]:
    """A copy of the source with the bug in it; a bug whose place is gone is refused."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        source = Path(folder) / "src"
        unneeded = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", source, ignore=unneeded)
        if any(file.startswith("tests/") for file, _, _ in bug.edits):
            shutil.copytree(ROOT / "tests", Path(folder) / "tests", ignore=unneeded)
        for file, old, new in bug.edits:
            path = Path(folder) / file if file.startswith("tests/") else source / "holdfast" / file
            text = path.read_text()
            if text.count(old) != 1:
                raise SystemExit(f"{bug.name}: {file} has {text.count(old)} places like {old!r}, not one")
            path.write_text(text.replace(old, new))
        yield source


def prove(proof: Sequence[str], source: Path = ROOT / "src") -> Seen:
    """Run a proof in a process of its own, with the source given and the tests beside it, if there are any."""
    root = source.parent if (source.parent / "tests").is_dir() else ROOT
    path = os.pathsep.join([str(source), str(root)])
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", *proof],
            capture_output=True,
            text=True,
            cwd=root,
            env=unmeasured(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1"),
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return Seen(124, "no end", PATIENCE)
    return Seen(done.returncode, done.stdout + done.stderr, time.monotonic() - begun)
