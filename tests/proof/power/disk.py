"""What is certainly on a disk at each point of a recording, and what may be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.invariants import Line
from tests.proof.power.recording import (
    Happening,
    Heard,
    Made,
    Moved,
    Recording,
    Removed,
    Sized,
    Synced,
    Wrote,
)

Naming = Made | Moved | Removed
Filling = Wrote | Sized
Tree = dict[int, dict[str, int]]
"""What each folder says: which names there are, and which inodes they mean."""


@dataclass(frozen=True)
class Image:
    """The files and folders that a power cut left, by their paths."""

    files: dict[str, bytes]
    folders: tuple[str, ...]


@dataclass
class Disk:
    """The power fails now: what was synced is there; names and contents that were not are on their way."""

    root: int
    at: int = 0
    """How many things have happened."""
    committed: int = 0
    """Where the names and sizes are kept in a log: it has all of the first so many happenings."""
    lines: list[Line] = field(default_factory=list)
    folders: set[int] = field(default_factory=set)
    tree: Tree = field(default_factory=lambda: defaultdict(dict))
    namings: list[tuple[int, Naming]] = field(default_factory=list)
    contents: dict[int, bytes] = field(default_factory=dict)
    fillings: dict[int, list[tuple[int, Filling]]] = field(default_factory=dict)
    _last_change: dict[int, int] = field(default_factory=dict)
    """When the name, the size, or the names in it, of each file or folder changed last."""
    _sizes: dict[int, int] = field(default_factory=dict)

    def take(self, happening: Happening) -> None:
        """One more thing has happened."""
        at = self.at
        match happening:
            case Heard(line):
                self.lines.append(line)
            case Wrote(inode) | Sized(inode):
                self._fill(inode, happening)
            case Synced(inode, upto):
                self._sync(inode, upto)
            case _:
                self.namings.append((at, happening))
                for changed in folders_of(happening):
                    self._last_change[changed] = at
                if isinstance(happening, Made):
                    self._last_change[happening.inode] = at
                    if happening.is_folder:
                        self.folders.add(happening.inode)
        self.at += 1

    def _fill(self, inode: int, filling: Filling) -> None:
        self.fillings.setdefault(inode, []).append((self.at, filling))
        before = self._sizes.get(inode, 0)
        now = filling.size if isinstance(filling, Sized) else max(before, end_of(filling))
        if now != before:
            self._sizes[inode], self._last_change[inode] = now, self.at

    def _sync(self, inode: int, upto: int) -> None:
        if (changed := self._last_change.get(inode)) is not None and changed < upto:
            self.committed = max(self.committed, changed + 1)
        if inode in self.fillings:
            content = bytearray(self.contents.get(inode, b""))
            for at, filling in self.fillings[inode]:
                if at < upto:
                    fill(content, filling)
            self.contents[inode] = bytes(content)
            self.fillings[inode] = [pair for pair in self.fillings[inode] if pair[0] >= upto]
        left = []
        for at, naming in self.namings:
            if at < upto and inode in folders_of(naming):
                rename(self.tree, naming)
            else:
                left.append((at, naming))
        self.namings = left

    def seen(self, tree: Tree, contents: dict[int, bytes]) -> Image:
        """What can be reached by names; contents that are not given are as they were synced."""
        files: dict[str, bytes] = {}
        folders: list[str] = []
        waiting = [(self.root, "")]
        while waiting:
            folder, path = waiting.pop()
            for name, inode in sorted(tree.get(folder, {}).items()):
                if inode in self.folders:
                    folders.append(path + name)
                    waiting.append((inode, f"{path}{name}/"))
                else:
                    known = contents.get(inode)
                    files[path + name] = self.contents.get(inode, b"") if known is None else known
        return Image(files, tuple(folders))

    def copied_tree(self) -> Tree:
        return defaultdict(dict, {folder: dict(names) for folder, names in self.tree.items()})


def moments(recording: Recording) -> Iterator[Disk]:
    """The disk after each thing that happened; the same one, which goes on with the next."""
    disk = Disk(recording.root)
    for happening in recording.happenings:
        disk.take(happening)
        yield disk


def folders_of(naming: Naming) -> tuple[int, ...]:
    """The folders that a naming changes."""
    return (naming.folder, naming.target_folder) if isinstance(naming, Moved) else (naming.folder,)


def rename(tree: Tree, naming: Naming) -> None:
    """Let a name come, go, or become another one."""
    match naming:
        case Made(folder, name, inode):
            tree[folder][name] = inode
        case Removed(folder, name):
            tree[folder].pop(name, None)
        case Moved(folder, name, target_folder, target_name, inode):
            if tree[folder].get(name) == inode:
                del tree[folder][name]
            tree[target_folder][target_name] = inode


def end_of(filling: Wrote) -> int:
    return filling.offset + len(filling.data)


def fill(content: bytearray, filling: Filling) -> None:
    """Do to a content what was done to its file."""
    size = filling.size if isinstance(filling, Sized) else end_of(filling)
    content.extend(bytes(max(0, size - len(content))))
    if isinstance(filling, Sized):
        del content[size:]
    else:
        content[filling.offset : size] = filling.data
