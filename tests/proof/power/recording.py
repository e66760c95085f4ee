"""A recording of what a process does to the files of a store, in order, and of when a write was acknowledged."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.invariants import Line
from tests.proof.ptrace import WRITES, Call, Verdict, trace


@dataclass(frozen=True)
class Made:
    """A name in a folder for a new file or folder."""

    folder: int
    name: str
    inode: int
    is_folder: bool


@dataclass(frozen=True)
class Moved:
    """A name that became another one, and replaced what had that."""

    folder: int
    name: str
    target_folder: int
    target_name: str
    inode: int


@dataclass(frozen=True)
class Removed:
    """A name that is gone."""

    folder: int
    name: str


@dataclass(frozen=True)
class Wrote:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Sized:
    """A file was cut, or grew by zeros."""

    inode: int
    size: int


@dataclass(frozen=True)
class Synced:
    """A file or folder is on the disk as it was after the first `upto` events."""

    inode: int
    upto: int


@dataclass(frozen=True)
class Heard:
    """Something was acknowledged to the outside; everything that follows may rely on it."""

    line: Line


Happening = Made | Moved | Removed | Wrote | Sized | Synced | Heard
NAMING = (Made, Moved, Removed)


@dataclass
class Recording:
    """What happened in a folder that was empty and on the disk before."""

    root: int
    happenings: list[Happening] = field(default_factory=list)


class Unmodelled(Exception):
    """A call that the model of the disk does not know."""


def record(work: Callable[[], None], home: Path, ledger: Path) -> Recording:
    """Do the work in a traced process; what it did below `home`, and the lines that it wrote to `ledger`."""
    recorder = _Recorder(home, ledger)
    code = trace(work, recorder.entered, recorder.left)
    if code:
        raise SystemExit(f"the run to be recorded ended with {code}")
    return recorder.recording


class _Recorder:
    def __init__(self, home: Path, ledger: Path) -> None:
        self.home, self.ledger = str(home), str(ledger)
        self.recording = Recording(home.stat().st_ino)
        self._under_way: dict[int, Callable[[int], list[Happening]]] = {}

    def entered(self, call: Call) -> Verdict:
        paths = call.paths()
        if paths and paths[0] == self.ledger and call.name in WRITES:
            what = Line(*call.data().decode().rstrip("\n").split("\t"))
            self.recording.happenings.append(Heard(what))
        elif paths and paths[0].startswith(self.home) and not paths[0].endswith("-shm"):
            self._under_way[call.tid] = self._effect(call, paths)
        return Verdict.PASS

    def left(self, call: Call, result: int) -> None:
        effect = self._under_way.pop(call.tid, None)
        if effect is not None and result >= 0:
            self.recording.happenings += effect(result)

    def _effect(self, call: Call, paths: tuple[str, ...]) -> Callable[[int], list[Happening]]:
        """What will have happened when the call returns its result, from what is known before it."""
        name, here = call.name, len(self.recording.happenings)
        if name in WRITES:
            inode, offset, data = _inode_of(call, call.args[0]), call.offset(), call.data()
            return lambda result: [Wrote(inode, offset, data[:result])]
        if name in ("fsync", "fdatasync"):
            inode = _inode_of(call, call.args[0])
            return lambda _: [Synced(inode, here)]
        if name == "ftruncate":
            inode, size = _inode_of(call, call.args[0]), call.args[1]
            return lambda _: [Sized(inode, size)]
        folder, base = _folder_of(paths[0]), os.path.basename(paths[0])  # noqa: PTH119
        if name in ("open", "openat"):
            if not os.path.lexists(paths[0]):
                return lambda result: [Made(folder, base, _inode_of(call, result), False)]
            empties = call.flags() & os.O_TRUNC
            return lambda result: [Sized(_inode_of(call, result), 0)] if empties else []
        if name in ("mkdir", "mkdirat"):
            return lambda _: [Made(folder, base, os.stat(paths[0]).st_ino, True)]  # noqa: PTH116
        if name in ("unlink", "unlinkat", "rmdir"):
            return lambda _: [Removed(folder, base)]
        if name in ("rename", "renameat", "renameat2"):
            inode = os.stat(paths[0]).st_ino  # noqa: PTH116
            target, target_base = _folder_of(paths[1]), os.path.basename(paths[1])  # noqa: PTH119
            return lambda _: [Moved(folder, base, target, target_base, inode)]
        raise Unmodelled(f"{name} {paths}")


def _inode_of(call: Call, descriptor: int) -> int:
    return os.stat(f"/proc/{call.tid}/fd/{descriptor}").st_ino  # noqa: PTH116


def _folder_of(path: str) -> int:
    try:
        return os.stat(os.path.dirname(path)).st_ino  # noqa: PTH116, PTH120
    except FileNotFoundError:
        return 0  # The call is going to fail.
