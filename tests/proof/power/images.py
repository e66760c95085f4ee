"""The images that a power cut at one point may leave, by four models of a disk.

- `arbitrary`: whatever was not synced is there or not, in any order: each sector of a file, its size, and each
  change of a folder by itself. Grown parts that were not written are zeros. Harsher than any file system.
- `torn`: as that, and a sector may be written in part.
- `stale`: as that, and grown parts that were not written hold what was on the disk before.
- `ordered`: names and sizes come in the order in which they changed, each size with its data; only what was
  overwritten in place may be there in part. A journalling file system, as ext4 with `data=ordered`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.proof.power.disk import Disk, Filling, Image, Naming, end_of, fill, rename
from tests.proof.power.recording import Sized, Wrote

MODELS = ("arbitrary", "ordered", "torn", "stale")
SECTORS = (512, 4096)
_FEW = 5
"""Up to so many things on their way all combinations are tried."""


@dataclass
class Sector:
    """A piece of a file that the disk writes at once, and what it may hold: the oldest first."""

    inode: int
    place: int
    versions: list[bytes]


@dataclass
class Size:
    """How long a file may be: the oldest first."""

    inode: int
    versions: list[int]


@dataclass
class Name:
    """A change of a folder that may have got to the disk."""

    naming: Naming
    versions: tuple[bool, bool] = (False, True)


Atom = Sector | Size | Name
"""What a disk may have or not have, whatever it has of all else."""

Choice = tuple[int, ...]
"""Which version of each atom there is."""


def images(disk: Disk, model: str, sector: int, random_ones: int, dice: random.Random) -> Iterator[Image]:
    """Return images of one point: the extremes, and this many random ones. Some may be the same."""
    if model == "ordered":
        yield from _ordered(disk, sector, random_ones, dice)
        return
    atoms = _atoms(disk, sector)
    if model == "torn":
        for _ in range(random_ones):
            yield from _torn(disk, atoms, dice)
        return
    for choice in _choices(atoms, random_ones, dice):
        stale = dice.getrandbits(32) if model == "stale" else None
        yield _image(disk, atoms, choice, stale)


def _choices(atoms: Sequence[Atom], random_ones: int, dice: random.Random) -> Iterator[Choice]:
    newest = [len(atom.versions) - 1 for atom in atoms]
    count = len(atoms)
    yield (0,) * count
    yield tuple(newest)
    if count <= _FEW:
        for bits in range(1, 2**count - 1):
            yield tuple(newest[i] if bits >> i & 1 else 0 for i in range(count))
    else:
        yield from _edges(newest, min(random_ones, count), dice)
    for _ in range(random_ones if count > _FEW else 0):
        bias = dice.choice((0.2, 0.5, 0.8))
        yield tuple(
            newest[i] if dice.random() < bias else dice.randrange(newest[i] + 1) for i in range(count)
        )


def _edges(newest: Sequence[int], most: int, dice: random.Random) -> Iterator[Choice]:
    """All but one, only one, and only the first or the last so many."""
    count = len(newest)
    for place in dice.sample(range(count), most):
        yield tuple(0 if i == place else new for i, new in enumerate(newest))
        yield tuple(new if i == place else 0 for i, new in enumerate(newest))
        yield tuple(new if i < place else 0 for i, new in enumerate(newest))
        yield tuple(new if i >= place else 0 for i, new in enumerate(newest))


def _torn(disk: Disk, atoms: Sequence[Atom], dice: random.Random) -> Iterator[Image]:
    """The last sector, and another one, written in part, and all else written."""
    sectors = [index for index, atom in enumerate(atoms) if isinstance(atom, Sector)]
    newest = tuple(len(atom.versions) - 1 for atom in atoms)
    for index in {*sectors[-1:], *dice.sample(sectors, min(1, len(sectors)))}:
        atom = atoms[index]
        assert isinstance(atom, Sector)
        old, new = atom.versions[0], atom.versions[-1]
        differing = [place for place in range(len(new)) if old[place] != new[place]]
        if len(differing) > 1:
            half = dice.choice(differing[1:])
            part = Sector(atom.inode, atom.place, [old, new[:half] + old[half:]])
            changed = [part if i == index else other for i, other in enumerate(atoms)]
            yield _image(disk, changed, tuple(1 if i == index else n for i, n in enumerate(newest)), None)


def _atoms(disk: Disk, sector: int) -> list[Atom]:
    """All that may be there or not, in the order in which it was first asked for."""
    found: list[tuple[int, Atom]] = [(at, Name(naming)) for at, naming in disk.namings]
    for inode, fillings in disk.fillings.items():
        if fillings:
            found += _atoms_of(inode, disk.contents.get(inode, b""), fillings, sector)
    return [atom for _, atom in sorted(found, key=lambda pair: pair[0])]


def _atoms_of(
    inode: int, content: bytes, fillings: Sequence[tuple[int, Filling]], sector: int
) -> Iterator[tuple[int, Atom]]:
    now = bytearray(content)
    sizes = [len(now)]
    sectors: dict[int, tuple[int, Sector]] = {}
    for at, filling in fillings:
        begin, end = _reach(filling, len(now))
        fill(now, filling)
        for place in range(begin - begin % sector, end, sector):
            old = content[place : place + sector].ljust(sector, b"\0")
            _, known = sectors.setdefault(place, (at, Sector(inode, place, [old])))
            new = bytes(now[place : place + sector]).ljust(sector, b"\0")
            if new != known.versions[-1]:
                known.versions.append(new)
        if len(now) != sizes[-1]:
            sizes.append(len(now))
    yield from (pair for pair in sectors.values() if len(pair[1].versions) > 1)
    if len(sizes) > 1:
        yield fillings[0][0], Size(inode, sizes)


def _reach(filling: Filling, size: int) -> tuple[int, int]:
    """From where to where a filling changes a file of a size."""
    if isinstance(filling, Sized):
        return min(size, filling.size), max(size, filling.size)
    return min(size, filling.offset), end_of(filling)


def _image(disk: Disk, atoms: Sequence[Atom], choice: Choice, stale: int | None) -> Image:
    tree = disk.copied_tree()
    contents: dict[int, bytearray] = {}
    sizes: dict[int, int] = {}
    garbage = random.Random(stale)
    for atom, version in zip(atoms, choice, strict=True):
        if isinstance(atom, Name):
            if version:
                rename(tree, atom.naming)
        elif isinstance(atom, Size):
            sizes[atom.inode] = atom.versions[version]
        else:
            synced = disk.contents.get(atom.inode, b"")
            data = atom.versions[version]
            if stale is not None and version == 0 and atom.place >= len(synced):
                data = garbage.randbytes(len(data))
            content = contents.setdefault(atom.inode, bytearray(synced))
            fill(content, Wrote(atom.inode, atom.place, data))
    whole: dict[int, bytes] = {}
    for inode in contents.keys() | sizes.keys():
        synced = disk.contents.get(inode, b"")
        size = sizes.get(inode, len(synced))
        whole[inode] = bytes(contents.get(inode, synced))[:size].ljust(size, b"\0")
    return disk.seen(tree, whole)


def _ordered(disk: Disk, sector: int, random_ones: int, dice: random.Random) -> Iterator[Image]:
    ends = sorted(
        {
            disk.at,
            disk.committed,
            *(at for at, _ in disk.namings if at >= disk.committed),
            *(at for pairs in disk.fillings.values() for at, _ in pairs if at >= disk.committed),
        }
    )
    for end in ends if len(ends) <= random_ones else [*dice.sample(ends[:-1], random_ones), disk.at]:
        yield from _committed_upto(disk, end, sector, dice)


def _committed_upto(disk: Disk, end: int, sector: int, dice: random.Random) -> Iterator[Image]:
    """The log has all before `end`; of what was overwritten in place since there is nothing, all, and something."""
    tree = disk.copied_tree()
    for at, naming in disk.namings:
        if at < end:
            rename(tree, naming)
    base: dict[int, bytes] = {}
    in_place: list[Sector] = []
    for inode, fillings in disk.fillings.items():
        content = bytearray(disk.contents.get(inode, b""))
        for at, filling in fillings:
            if at < end:
                fill(content, filling)
        base[inode] = bytes(content)
        later = [
            (at, filling)
            for at, filling in fillings
            if at >= end and isinstance(filling, Wrote) and end_of(filling) <= len(content)
        ]
        in_place += [a for _, a in _atoms_of(inode, base[inode], later, sector) if isinstance(a, Sector)]
    choices: list[Choice] = [(0,) * len(in_place)]
    if in_place:
        newest = tuple(len(atom.versions) - 1 for atom in in_place)
        choices += [newest, tuple(dice.randrange(new + 1) for new in newest)]
    for choice in choices:
        contents = {inode: bytearray(content) for inode, content in base.items()}
        for atom, version in zip(in_place, choice, strict=True):
            size = len(contents[atom.inode])
            data = atom.versions[version][: size - atom.place]
            fill(contents[atom.inode], Wrote(atom.inode, atom.place, data))
        yield disk.seen(tree, {inode: bytes(content) for inode, content in contents.items()})
