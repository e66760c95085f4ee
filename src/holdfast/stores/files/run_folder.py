"""The folder of one run of the file store: what it holds, and in which order that is written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from holdfast.errors import CorruptJournal, HoldfastError, problem_of
from holdfast.stores.base import (
    Append,
    Conflict,
    Entry,
    RunInfo,
    RunSize,
    Snapshot,
    check_number,
    pruned_before,
    sync_folder,
)
from holdfast.stores.files import frames
from holdfast.stores.files.disk import (
    lock_file,
    open_file,
    reading,
    replacing,
    sync,
    with_files,
    write_at,
    write_whole,
)
from holdfast.stores.files.frames import Frame

INDEX = "index"
"""The file with what was last seen of a long journal, so that a reopened store need not read it all."""
_CHECK = 8

Answer = TypeVar("Answer")

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_IN_NAMES = _SAFE | frozenset(b"%~")
_LONGEST_NAME = 120
_COPY_BYTES = 1 << 20
_KEYS_TRIED = 16
_APART = 16
"""The entries between two frames whose positions are remembered."""
_WORTHWHILE = 32
"""The positions that are worth writing."""


def folder_name(run: str) -> str:
    """Return a run id as a file name on any system; different ids never share one.

    Everything but `a-z 0-9 - _ .` is percent-encoded, as is a leading dot; a long id ends in a hash.
    """
    encoded = "".join(
        chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in run.encode("utf-8", "surrogatepass")
    )
    if encoded.startswith("."):
        encoded = "%2e" + encoded[1:]
    if len(encoded) > _LONGEST_NAME:
        encoded = f"{encoded[:48]}~{hashlib.sha256(run.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return encoded


def is_folder_name(name: bytes) -> bool:
    """Return whether that may be the name of a run's folder."""
    return bool(name) and not name.startswith(b".") and _IN_NAMES.issuperset(name)


def is_in_store(path: Path) -> bool:
    """Return whether a path is in the folder of a run, or in that of a file store that has runs."""
    return any(_has_journal(folder) or _has_runs(folder) for folder in path.parents)


def _has_journal(folder: Path) -> bool:
    return _beginning(folder / "journal", len(frames.MAGIC)) == frames.MAGIC


def _has_runs(root: Path) -> bool:
    try:
        with os.scandir(root / ".keys") as keys:
            names = [_beginning(Path(key), 2 * _LONGEST_NAME) for key in islice(keys, _KEYS_TRIED)]
    except OSError:
        return False
    return any(_has_journal(root / os.fsdecode(name)) for name in names if is_folder_name(name))


def _beginning(path: Path, size: int) -> bytes:
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


class FrameIndex:
    """The positions of some frames of a journal, so that one in the middle is found without reading all before.

    It may be outdated: a frame's own header tells whether it is there.
    """

    def __init__(self, known: Sequence[tuple[int, int]] = ()) -> None:
        self.known = list(known)
        """Pairs of the seq before a frame and the byte where it begins."""
        self.written = len(self.known)
        """How many of them are in the file."""

    @property
    def is_worth_writing(self) -> bool:
        """Return whether enough positions came since they were written."""
        return len(self.known) - self.written >= max(_WORTHWHILE, self.written // 4)

    def note(self, frame: Frame) -> None:
        """Remember a frame, if none was for a while."""
        if not self.known or frame.after - self.known[-1][0] >= _APART:
            self.known.append((frame.after, frame.start))

    def before(self, seq: int) -> tuple[int, int]:
        """Return the last known frame that begins at or before an entry: the seq that it follows, and its byte."""
        index = bisect_left(self.known, (max(1, seq), 0)) - 1
        return self.known[index] if index >= 0 else (0, 0)


@dataclass(frozen=True, slots=True)
class State:
    """A journal as a whole: its first and last seq, and the newest facts."""

    inode: int
    last: Frame
    first: int
    info: RunInfo
    index: FrameIndex = field(default_factory=FrameIndex, compare=False)
    is_anchored: bool = field(default=False, compare=False)
    """Whether this process knows that the names that lead to the journal survive a power loss."""

    @property
    def head(self) -> int:
        return self.last.head


def write_index(folder: Path, state: State) -> None:
    """Write what was seen of a journal, if that is worth it; a disk that refuses is passed over."""
    if not state.index.is_worth_writing:
        return
    data = {
        "start": state.last.start,
        "header": state.last.header.hex(),
        "first": state.first,
        "facts": json.loads(frames.facts_json(state.info)),
        "frames": state.index.known,
    }
    body = json.dumps(data, separators=(",", ":")).encode()
    with suppress(OSError):
        write_whole(folder / INDEX, f"{crc32(body):0{_CHECK}x}".encode() + body, durable=False)
    state.index.written = len(state.index.known)


def read_index(folder: Path, journal: int) -> State | None:
    """Return the journal state from the index file, if it is intact. The caller checks that it is current."""
    try:
        raw = (folder / INDEX).read_bytes()
        if int(raw[:_CHECK], 16) != crc32(raw[_CHECK:]):
            return None
        data: dict[str, Any] = json.loads(raw[_CHECK:])
        last = frames.parse(bytes.fromhex(data["header"]), data["start"], folder.name)
        info = frames.parse_facts(json.dumps(data["facts"]).encode())
        if folder_name(info.run) != folder.name or frames.is_torn(journal, last):
            return None
        index = FrameIndex([(after, start) for after, start in data["frames"]])
        return State(os.fstat(journal).st_ino, last, data["first"], info, index)
    except (OSError, ValueError, KeyError, TypeError, struct.error, HoldfastError):
        return None


States = MutableMapping[str, State]
"""What was last seen of each folder, so that only what was added since need be read."""


class Access(Enum):
    """The ways to open a folder. `LOOK` takes no lock: what is seen may change or end meanwhile."""

    LOOK = "look"
    WRITE = "write"
    CREATE = "create"


def in_folder(
    root: Path, name: str, access: Access, states: States, action: Callable[[RunFolder | None], Answer]
) -> Answer:
    """Return what `action` returns for the folder `name`, which is open, and locked as `access` says, meanwhile."""
    return with_files(lambda files: action(open_folder(root, name, access, states, files)))


def open_folder(
    root: Path, name: str, access: Access, states: States, files: list[FileIO]
) -> RunFolder | None:
    """Open the folder `name`, for the caller alone unless it is only looked at, as long as `files` are open.

    Returns `None` if there is no such run and it is not to be created.
    """
    path, lock, create = root / name / "journal", root / name / "lock", access is Access.CREATE
    if access is not Access.LOOK and not lock_file(lock, files, create=create):
        if not path.exists():
            return None
        # A power loss may have taken the name of the lock, which is not synced for itself.
        with suppress(FileNotFoundError):
            os.close(os.open(lock, os.O_RDWR | os.O_CREAT, 0o600))
        if not lock_file(lock, files, create=False):
            return None
    try:
        journal = open_file(path, writing=access is not Access.LOOK, create=create)
    except FileNotFoundError:
        return None
    files.append(journal)
    folder = RunFolder(root / name, journal.fileno(), states)
    return folder if create or folder.state is not None else None


def load_state(fd: int, name: str, seen: State | None = None) -> State | None:
    """Return the state of an open journal, reading only what follows `seen`; `None` if it has no frames yet."""
    stat = os.fstat(fd)
    last, first, info, index, is_anchored = None, 0, None, FrameIndex(), False
    if (
        seen is not None
        and seen.inode == stat.st_ino
        and seen.last.end <= stat.st_size
        and os.pread(fd, frames.HEADER_SIZE, seen.last.start) == seen.last.header
    ):
        if seen.last.end == stat.st_size:
            return seen
        last, first, info, index = seen.last, seen.first, seen.info, seen.index
        is_anchored = seen.is_anchored
    for frame in frames.scan_whole(fd, last.end if last else 0, stat.st_size, name):
        facts = frames.read_facts(fd, frame, name) if frame.facts_size else None
        info = facts or info
        is_foreign = info is None or (facts is not None and folder_name(facts.run) != name)
        if is_foreign or (last and last.head != frame.after):
            raise frames.corrupt(name, frame.start, frame.after + 1)
        last, first = frame, first or frame.after + 1
        index.note(frame)
    return State(stat.st_ino, last, first, info, index, is_anchored) if last and info else None


class Scanned(NamedTuple):
    """The facts in a journal, in order, and its last entry, up to what is damaged."""

    known: list[RunInfo]
    head: int
    problem: str


def scan_journal(folder: Path) -> Scanned:
    """Return what a journal has before it is damaged, or continues with the facts of another run."""
    known: list[RunInfo] = []
    head, problem = 0, ""
    try:
        for fd, frame in journal_frames(folder):
            info = frames.read_facts(fd, frame, folder.name)
            if info is not None and folder_name(info.run) != folder.name:
                raise frames.corrupt(folder.name, frame.start, frame.after + 1)
            known += [info] if info is not None else []
            head = frame.head
    except (HoldfastError, OSError, ValueError, TypeError, KeyError) as error:
        problem = problem_of(error)
    return Scanned(known, head, problem)


def journal_frames(folder: Path) -> Iterator[tuple[int, Frame]]:
    """Yield the frames of a journal, each with the open file."""
    with reading(folder / "journal") as fd:
        for frame in frames.scan_whole(fd, 0, os.fstat(fd).st_size, folder.name):
            yield fd, frame


class Shown(NamedTuple):
    """The content of `run.json`; `head` is `None` if it is not as it was written."""

    info: RunInfo
    head: int | None
    raw: bytes

    def is_ahead_of(self, journal: Scanned) -> bool:
        """Return whether it names entries that are gone: the journal is written first."""
        if self.head is None or (journal.known and journal.known[0].key != self.info.key):
            return False
        return self.head > journal.head


def read_shown(folder: Path) -> Shown | None:
    """Return the content of `run.json`, if that can be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        raw = (folder / "run.json").read_bytes()
        info = frames.parse_facts(raw)
        if isinstance(info.updated_at, (int, float)):
            return Shown(info, frames.parse_head(raw), raw)
    return None


def read_single(path: Path) -> Entry:
    """Return the entry of a file that holds one frame of one entry and nothing else: a snapshot or a message."""
    label = "/".join(path.parts[-3:])
    with reading(path) as fd:
        size = os.fstat(fd).st_size
        found = list(frames.scan(fd, 0, size, label))
        if len(found) == 1 and found[0].end == size and found[0].count == 1:
            return frames.read_entries(fd, found[0], label)[0]
    raise frames.corrupt(label, 0, int(path.name))


class RunFolder:
    """A run's folder while it is open. Only the holder of its lock may change it.

    Appends are written by `append`, then either `finish`ed or undone with `undo`. The journal
    comes first and holds the facts too, so a crash leaves at worst an old `run.json` or a snapshot
    too few; only a journal that begins with a snapshot is written after it. `run.json` is for
    people, and for listing a run whose journal is damaged.
    """

    def __init__(self, path: Path, journal: int, states: States) -> None:
        self.path, self.name = path, path.name
        self._journal, self._states = journal, states
        seen = states.get(self.name) or read_index(path, journal)
        self.state = self._before = load_state(journal, self.name, seen)
        if self.state is not None:
            states[self.name] = self.state
        self._snapshots: list[Snapshot] = []
        self._new_snapshots: list[Path] = []
        self._has_new_facts = False

    def frames(self) -> list[Frame]:
        """Return the complete frames of the journal, in order."""
        return list(frames.scan(self._journal, 0, self.state.last.end if self.state else 0, self.name))

    def frames_from(self, seq: int) -> Iterator[Frame]:
        """Yield the frames from the one with entry `seq` on."""
        if self.state is None:
            return
        _, start = self._known_position(seq)
        for frame in frames.scan(self._journal, start, self.state.last.end, self.name):
            if frame.head >= seq:
                yield frame

    def frames_back(self, seq: int) -> Iterator[Frame]:
        """Yield the frames that begin at or before entry `seq`, the last one first."""
        end = self.state.last.end if self.state else 0
        while end:
            after, start = self._known_position(seq)
            found = list(frames.scan(self._journal, start, end, self.name))
            yield from (frame for frame in reversed(found) if frame.after < seq)
            end, seq = start, after

    def _known_position(self, seq: int) -> tuple[int, int]:
        """Return `FrameIndex.before`; the beginning of the journal, if there is no such frame any more."""
        assert self.state is not None
        after, start = self.state.index.before(seq)
        with suppress(CorruptJournal):
            header = os.pread(self._journal, frames.HEADER_SIZE, start)
            if len(header) == frames.HEADER_SIZE and frames.parse(header, start, self.name).after == after:
                return after, start
        return 0, 0

    def entries(self, frame: Frame) -> list[Entry]:
        return frames.read_entries(self._journal, frame, self.name)

    def append(self, append: Append) -> Conflict | None:
        state = self.state
        if (state.head if state else 0) != append.after:
            return Conflict(append.run, append.after, state.head if state else None)
        info = append.info
        if state is not None and info is not None:
            info = replace(info, key=state.info.key)
        start = state.last.end if state else 0
        before = append.after or pruned_before(append)
        data = frames.encode(before, append.entries, info)
        if os.fstat(self._journal).st_size > start:
            os.ftruncate(self._journal, start)
        if state is None:
            self._begin(append.snapshots if before else ())
        write_at(self._journal, data, start)
        frame = frames.parse(data[: frames.HEADER_SIZE], start, self.name)
        if state is not None:
            state.index.note(frame)
            self.state = replace(state, last=frame, info=info or state.info)
        elif info is not None:
            self.state = State(os.fstat(self._journal).st_ino, frame, before + 1, info)
        self._snapshots += append.snapshots if state is not None or not before else ()
        self._has_new_facts |= info is not None
        return None

    def _begin(self, snapshots: Sequence[Snapshot]) -> None:
        """Write what a new journal begins with, in place of what an interrupted creation left."""
        left = self._numbers("snapshots")
        for seq in left:
            (self.path / "snapshots" / f"{seq:010}").unlink()
        if left:
            sync_folder(self.path / "snapshots")
        for snapshot in snapshots:
            self._keep(snapshot)

    def finish(self, durable: bool) -> None:
        """Make what was appended as durable as asked, and show it to others."""
        if self.state is None or self.state is self._before:
            return
        if durable:
            sync(self._journal)
            if not self.state.is_anchored:
                # Also of a run that is there: its creation need not have been durable.
                sync_folder(self.path)
                sync_folder(self.path.parent)
                self.state = replace(self.state, is_anchored=True)
        for snapshot in self._snapshots:
            self._keep(snapshot)
        if self._has_new_facts:
            facts = frames.facts_json(self.state.info, self.state.head)
            write_whole(self.path / "run.json", facts, durable=durable)
        self._states[self.name] = self.state
        write_index(self.path, self.state)

    def undo(self) -> None:
        """Undo what was appended, as far as a failing disk allows."""
        if self.state is self._before and not self._new_snapshots:
            return
        self._states.pop(self.name, None)
        with suppress(OSError):
            os.ftruncate(self._journal, self._before.last.end if self._before else 0)
            for path in self._new_snapshots:
                path.unlink(missing_ok=True)
            if self._before is None:
                remove_folder(self.path, self._states)
            else:
                facts = frames.facts_json(self._before.info, self._before.head)
                write_whole(self.path / "run.json", facts, durable=False)

    def snapshot(self, upto: int | None) -> Snapshot | None:
        first = self.state.first if self.state else 0
        fitting = [
            seq for seq in self._numbers("snapshots") if seq >= first and (upto is None or seq <= upto)
        ]
        if not fitting:
            return None
        entry = read_single(self.path / "snapshots" / f"{max(fitting):010}")
        return Snapshot(entry.seq, entry.at, entry.chain, entry.body)

    def prune(self, horizon: Snapshot) -> int:
        state = self.state
        if state is None or not state.first <= horizon.seq <= state.head:
            return 0
        self._keep(horizon)
        if horizon.seq > state.first:
            self._rewrite(horizon.seq, state)
        for seq in self._numbers("snapshots"):
            if seq < horizon.seq:
                (self.path / "snapshots" / f"{seq:010}").unlink()
        return horizon.seq - state.first

    def post(self, run: str, at: float, body: bytes, number: int | None) -> int:
        """Do as `Store.post` promises."""
        last = max(self._numbers("inbox"), default=0)
        check_number(run, number, last)
        self._write_alone("inbox", Entry(last + 1, at, b"", body))
        return last + 1

    def inbox(self, after: int) -> list[Entry]:
        numbers = [number for number in self._numbers("inbox") if number > after]
        return [read_single(self.path / "inbox" / f"{number:010}") for number in numbers]

    def size(self) -> RunSize | None:
        """Return how much it holds, by the headers of frames and entries."""
        if self.state is None:
            return None
        found = self.frames()
        entries = [frames.read_sizes(self._journal, frame, self.name) for frame in found]
        return RunSize(
            self.state.info.run,
            sum(frame.count for frame in found),
            sum(marks for marks, _ in entries),
            sum(size for _, size in entries),
            *self._size_alone("snapshots"),
            *self._size_alone("inbox"),
        )

    def _rewrite(self, first: int, state: State) -> None:
        kept = [frame for frame in self.frames() if frame.head >= first]
        remaining = [entry for entry in self.entries(kept[0]) if entry.seq >= first]
        (self.path / INDEX).unlink(missing_ok=True)
        with replacing(self.path / "journal", durable=True) as fd:
            beginning = frames.encode(first - 1, remaining, state.info)
            write_at(fd, beginning, 0)
            shift = len(beginning) - kept[0].end
            for position in range(kept[0].end, state.last.end, _COPY_BYTES):
                size = min(_COPY_BYTES, state.last.end - position)
                write_at(fd, os.pread(self._journal, size, position), position + shift)
        self._states.pop(self.name, None)

    def _keep(self, snapshot: Snapshot) -> None:
        self._write_alone("snapshots", Entry(snapshot.seq, snapshot.at, snapshot.chain, snapshot.body))

    def _numbers(self, kind: str) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self.path / kind) if name.isdigit())  # noqa: PTH208
        except FileNotFoundError:
            return []

    def _write_alone(self, kind: str, entry: Entry) -> None:
        folder = self.path / kind
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
            sync_folder(self.path)
        path = folder / f"{entry.seq:010}"
        if kind == "snapshots" and not path.exists():
            self._new_snapshots.append(path)
        write_whole(path, frames.encode(entry.seq - 1, [entry]), durable=True)

    def _size_alone(self, kind: str) -> tuple[int, int]:
        """Return how many files of that kind there are, and the size of their bodies."""
        count = size = 0
        for number in self._numbers(kind):
            label = f"{self.name}/{kind}/{number:010}"
            with reading(self.path / kind / f"{number:010}") as fd:
                for frame in frames.scan(fd, 0, os.fstat(fd).st_size, label):
                    count, size = count + 1, size + frames.read_sizes(fd, frame, label)[1]
        return count, size


def remove_folder(path: Path, states: States) -> None:
    """Remove a locked folder, in one rename; what is left of it is removed when the store is next opened."""
    trash = path.parent / f".trash-{uuid.uuid4().hex}"
    path.rename(trash)
    sync_folder(trash.parent)
    states.pop(path.name, None)
    shutil.rmtree(trash, ignore_errors=True)
