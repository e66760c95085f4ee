"""The bytes of the file store: frames, each all or nothing, checked before they are believed.

A frame is a header, then the run's facts as JSON (perhaps none), then entries. A journal is a row
of frames; a snapshot and a message are each a file of one frame with one entry.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from holdfast.errors import CorruptJournal, HoldfastError, StoreError
from holdfast.stores.base import Entry, RunInfo

_MAGIC, VERSION = b"HFJ", 1
_HEADER = struct.Struct(">3sBQIIIQI")
"""Magic, version, after, entries, facts' size and checksum, entries' size and checksum."""
_CHECK = struct.Struct(">I")
_ENTRY = struct.Struct(">QdHQq")
"""Seq, time, sizes of chain, body and mark (-1: no mark)."""

HEADER_SIZE = _HEADER.size + _CHECK.size
_SECTOR = 512
"""What a disk writes all or nothing of."""
_CHUNK = 1 << 14
"""How much of a journal is looked at at once: most frames are small, and their headers close together."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a frame lies in its file, and what its header says."""

    start: int
    header: bytes
    after: int
    count: int
    facts_size: int
    facts_crc: int
    entries_size: int
    entries_crc: int

    @property
    def end(self) -> int:
        return self.start + HEADER_SIZE + self.facts_size + self.entries_size

    @property
    def head(self) -> int:
        return self.after + self.count


def encode(after: int, entries: Sequence[Entry], info: RunInfo | None = None) -> bytes:
    """One frame as bytes."""
    facts = b"" if info is None else facts_json(info)
    body = b"".join(part for entry in entries for part in _entry_parts(entry))
    header = _HEADER.pack(
        _MAGIC, VERSION, after, len(entries), len(facts), crc32(facts), len(body), crc32(body)
    )
    return b"".join((header, _CHECK.pack(crc32(header)), facts, body))


def scan(fd: int, start: int, size: int, run: str) -> Iterator[Frame]:
    """The frames from byte `start` on, by their headers alone.

    Stops before a torn tail: a last frame of which the file holds only the beginning, or in whose header
    are only zeros, or a sector of zeros, as a power loss leaves them. Anything else that is no frame raises
    `CorruptJournal`.
    """
    known, begin = b"", start
    while start < size:
        place = start - begin
        if place + HEADER_SIZE > len(known):
            known, begin, place = os.pread(fd, _CHUNK, start), start, 0
        header = known[place : place + HEADER_SIZE]
        if len(header) < HEADER_SIZE:
            return
        if not any(header) and not any(os.pread(fd, size - start, start)):
            return
        try:
            frame = parse(header, start, run)
        except CorruptJournal:
            if _has_lost_sector(header, start) and not _is_followed(fd, start, size, run):
                return
            raise
        if frame.end > size:
            return
        yield frame
        start = frame.end


def scan_whole(fd: int, start: int, size: int, run: str) -> Iterator[Frame]:
    """As `scan`, but also without a last frame that a power loss took sectors from, which was never acknowledged."""
    last = None
    try:
        for frame in scan(fd, start, size, run):
            if last is not None:
                yield last
            last = frame
    except HoldfastError:
        if last is not None:
            yield last
        raise
    if last is not None and not is_torn(fd, last):
        yield last


def is_torn(fd: int, frame: Frame) -> bool:
    """Whether a frame is not as it was written, and that because the disk never got some of its sectors."""
    data = os.pread(fd, frame.end - frame.start, frame.start)
    facts_end = HEADER_SIZE + frame.facts_size
    if crc32(data[HEADER_SIZE:facts_end]) == frame.facts_crc and crc32(data[facts_end:]) == frame.entries_crc:
        return False
    return _has_lost_sector(data, frame.start)


def _has_lost_sector(data: bytes, start: int) -> bool:
    """Whether of some sector all that belongs to `data`, which begins at `start`, is zeros."""
    edges = [0, *range(_SECTOR - start % _SECTOR, len(data), _SECTOR), len(data)]
    return any(not any(data[begin:end]) for begin, end in itertools.pairwise(edges))


def _is_followed(fd: int, start: int, size: int, run: str) -> bool:
    """Whether a frame begins somewhere after `start`: what lies before it was not written last."""
    data = os.pread(fd, size - start, start)
    place = data.find(_MAGIC, 1)
    while place >= 0:
        with suppress(CorruptJournal, StoreError, struct.error):
            parse(data[place : place + HEADER_SIZE], start + place, run)
            return True
        place = data.find(_MAGIC, place + 1)
    return False


def read_facts(fd: int, frame: Frame, run: str) -> RunInfo | None:
    """The facts a frame carries, if any."""
    if not frame.facts_size:
        return None
    facts = os.pread(fd, frame.facts_size, frame.start + HEADER_SIZE)
    if crc32(facts) != frame.facts_crc:
        raise corrupt(run, frame.start, frame.after + 1)
    return parse_facts(facts)


def read_entries(fd: int, frame: Frame, run: str) -> list[Entry]:
    """The entries of a frame, once their checksum is right."""
    body = os.pread(fd, frame.entries_size, frame.start + HEADER_SIZE + frame.facts_size)
    if len(body) != frame.entries_size or crc32(body) != frame.entries_crc:
        raise corrupt(run, frame.start, frame.after + 1)
    return _parse_entries(frame, body)


def salvage_entries(fd: int, frame: Frame) -> list[Entry]:
    """The entries of a frame whatever their checksum says; none if their sizes do not add up."""
    body = os.pread(fd, frame.entries_size, frame.start + HEADER_SIZE + frame.facts_size)
    try:
        entries = _parse_entries(frame, body)
    except struct.error:
        return []
    size = sum(_ENTRY.size + len(e.chain) + len(e.body) + len(e.mark or b"") for e in entries)
    return entries if size == frame.entries_size else []


def _parse_entries(frame: Frame, body: bytes) -> list[Entry]:
    entries, position = [], 0
    for _ in range(frame.count):
        seq, at, *sizes = _ENTRY.unpack_from(body, position)
        position += _ENTRY.size
        parts: list[bytes | None] = []
        for part_size in sizes:
            parts.append(None if part_size < 0 else body[position : position + part_size])
            position += max(0, part_size)
        chain, content, mark = parts
        entries.append(Entry(seq, at, chain or b"", content or b"", mark))
    return entries


def read_sizes(fd: int, frame: Frame, run: str) -> tuple[int, int]:
    """How many marks the entries of a frame have, and the size of their bodies, by their headers alone."""
    marks, size, position = 0, 0, frame.start + HEADER_SIZE + frame.facts_size
    for _ in range(frame.count):
        header = os.pread(fd, _ENTRY.size, position)
        if len(header) < _ENTRY.size or position >= frame.end:
            raise corrupt(run, frame.start, frame.after + 1)
        _, _, chain_size, body_size, mark_size = _ENTRY.unpack(header)
        marks, size = marks + (mark_size >= 0), size + body_size
        position += _ENTRY.size + chain_size + body_size + max(0, mark_size)
    return marks, size


_UNLESS_GIVEN = ("tags", "queue", "priority", "due_at", "parent", "origin")
"""Facts that are left out where a run has none."""


def facts_json(info: RunInfo, head: int | None = None) -> bytes:
    """A run's facts as people and other programs can read them; with the last entry that there is and a checksum."""
    fields = {**asdict(info), "key": info.key.hex(), "parent": info.parent.hex()}
    plain = {name: value for name, value in fields.items() if name not in _UNLESS_GIVEN or value}
    if head is not None:
        plain["head"] = head
        plain["sum"] = _sum(plain)
    return _json(plain)


def parse_head(facts: bytes) -> int | None:
    """The last entry that facts tell of; 0 if they do not, `None` if they are not as they were written."""
    fields = _fields(facts)
    head, found = fields.get("head", 0), fields.pop("sum", None)
    if found is None and not head:
        return 0
    return head if found == _sum(fields) and isinstance(head, int) else None


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, indent=1).encode()


def _sum(fields: dict[str, Any]) -> str:
    return f"{crc32(_json(fields)):08x}"


def parse_facts(facts: bytes) -> RunInfo:
    """The opposite of `facts_json`; raises `ValueError` or `TypeError` for anything else."""
    fields = {name: value for name, value in _fields(facts).items() if name not in ("head", "sum")}
    keys = {"key": bytes.fromhex(fields["key"]), "parent": bytes.fromhex(fields.get("parent", ""))}
    return RunInfo(**{**fields, **keys, "tags": tuple(fields.get("tags", ()))})


def _fields(facts: bytes) -> dict[str, Any]:
    fields = json.loads(facts)
    if not isinstance(fields, dict):
        raise TypeError("facts are an object")
    return fields


def _entry_parts(entry: Entry) -> tuple[bytes, bytes, bytes, bytes]:
    mark_size = -1 if entry.mark is None else len(entry.mark)
    fixed = _ENTRY.pack(entry.seq, entry.at, len(entry.chain), len(entry.body), mark_size)
    return fixed, entry.chain, entry.body, entry.mark or b""


def parse(header: bytes, start: int, run: str) -> Frame:
    """The frame that begins with `header`; raises `CorruptJournal` if that was never written."""
    magic, version, *fields = _HEADER.unpack_from(header)
    if magic != _MAGIC or _CHECK.unpack_from(header, _HEADER.size)[0] != crc32(header[: _HEADER.size]):
        raise corrupt(run, start, None)
    if version != VERSION:
        raise StoreError(
            f"run {run!r} was written by a newer version of Holdfast "
            f"(format {version}, this version knows {VERSION}); upgrade holdfast"
        )
    return Frame(start, header, *fields)


def corrupt(run: str, start: int, seq: int | None) -> CorruptJournal:
    """The error for damage at byte `start`, where the frame with entry `seq` begins if known."""
    where = f"byte {start}" if seq is None else f"byte {start}, entry {seq}"
    return CorruptJournal(
        f"run {run!r} is damaged at {where}: what is stored is not what was written; restore a backup",
        run=run,
        seq=seq,
    )


# Small promises about files: locked, whole or absent, really on the disk.


Result = TypeVar("Result")


def sync(fd: int) -> None:
    """Return once the file's content survives a power loss."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Return once the folder's names survive a power loss."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it that are missing; their names survive a power loss like what is put there."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=mode if place == folder else 0o777, exist_ok=True)
        with suppress(PermissionError):  # Who may make a folder somewhere need not be allowed to read there.
            sync_folder(place.parent)


def write_at(fd: int, data: bytes, position: int) -> None:
    """Write all of `data` at `position`."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, position)
        rest, position = rest[written:], position + written


def write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """Put `data` at `path` so that a reader, or a crash, finds the old file or the new, never half."""
    with replacing(path, durable=durable) as fd:
        write_at(fd, data, 0)


@contextmanager
def replacing(path: Path, *, durable: bool) -> Iterator[int]:
    """A new file to fill, which takes the place of `path` when the block ends well."""
    fresh = path.parent / f".tmp-{uuid.uuid4().hex}"
    fd = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        try:
            yield fd
            if durable:
                sync(fd)
        finally:
            os.close(fd)
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def with_files(action: Callable[[list[FileIO]], Result]) -> Result:
    """Return what `action` returns. It is given a list for the files that it opens, which are closed in the end.

    Whatever is raised, and wherever: a lock that is left taken would keep everybody out, this process included.
    """
    files: list[FileIO] = []
    try:
        result = action(files)
        _close(files)
        return result
    except BaseException:
        _close(files)
        raise


def _close(files: list[FileIO]) -> None:
    for file in files:
        file.close()


def lock_file(path: Path, files: list[FileIO], *, create: bool) -> bool:
    """Wait for the lock at `path`, which is held as long as the file that is added to `files` is open.

    `False` if the file is missing and not to be created; its folder is created with it. A lock whose
    file was removed or replaced meanwhile does not count.
    """
    while True:
        if create:
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700)
        try:
            file = open_file(path, writing=True, create=create)
        except FileNotFoundError:
            if create and path.parent.parent.is_dir():
                continue
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # noqa: PTH116
                files.append(file)
                return True
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def open_file(path: Path, *, writing: bool, create: bool = False) -> FileIO:
    """Open a file without buffers, created for its owner only; nobody who has it no more has to close it."""
    if create and not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return FileIO(path, "r+" if writing else "r")


@contextmanager
def in_plain_words(place: Path) -> Iterator[None]:
    """Turn an `OSError` into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
                advice = "free some space and resume"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                advice = "make the folder writable"
            case errno.ENOTDIR | errno.EEXIST:
                advice = "choose a folder"
            case errno.EMFILE | errno.ENFILE:
                advice = "close files and sockets of this process or raise its limit (ulimit -n), and resume"
            case _:
                advice = "check the disk and resume"
        raise StoreError(f"cannot use {error.filename or place}: {error.strerror}; {advice}") from error
