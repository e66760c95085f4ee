"""A store of plain files: one folder per run, good for looking at, copying and version control.

`DIRECTORY/RUN/` holds `journal` (frames, append-only), `run.json` (the facts), `snapshots/`, `inbox/`,
`lock` and, of a long run, `index`; `DIRECTORY/.keys/` names the folder of each key, and
`DIRECTORY/@NAME/` is a namespace.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import TypeVar, Unpack

from holdfast import clock
from holdfast.errors import CorruptJournal
from holdfast.stores.base import (
    DEFAULT_NAMESPACE,
    PAGE_BYTES,
    PAGE_ENTRIES,
    Append,
    BaseStore,
    Conflict,
    Entry,
    Footprint,
    Message,
    RunFilter,
    RunInfo,
    RunSize,
    Snapshot,
    StoredCheckpoint,
    check,
    check_namespace,
    folder_of,
    has_other_forks,
    make_folders,
    no_inbox,
    own_url,
    select,
    sync_folder,
)
from holdfast.stores.files import frames
from holdfast.stores.files.disk import explained, lock_file, with_files, write_whole
from holdfast.stores.files.integrity import FileInspector
from holdfast.stores.files.run_folder import (
    Access,
    RunFolder,
    State,
    folder_name,
    in_folder,
    is_folder_name,
    open_folder,
    read_shown,
    remove_folder,
    scan_journal,
)
from holdfast.stores.inspection import Inspector
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast")

Answer = TypeVar("Answer")


class FileStore(BaseStore):
    """A store in `directory`, which is created, for its owner only, if missing.

    Any number of processes may share it, on one machine: each run's folder has a lock. Each further
    namespace is a folder `@NAME` in it, with the folders of its own runs.
    """

    def __init__(self, directory: str | os.PathLike[str], *, namespace: str = DEFAULT_NAMESPACE) -> None:
        place = Path(directory).expanduser().resolve()
        super().__init__(own_url(f"file://{place}", namespace), check_namespace(namespace))
        self.directory = folder_of(place, namespace)
        self._states: dict[str, State] = {}
        with explained(self.directory):
            for folder in dict.fromkeys((place, self.directory)):
                make_folders(folder, 0o700)
                folder.mkdir(mode=0o700, exist_ok=True)
            for trash in self.directory.glob(".trash-*"):
                shutil.rmtree(trash, ignore_errors=True)

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        for append in appends:
            check(append)
        durable = any(append.durable for append in appends)
        creating = {append.run for append in appends if append.after == 0}
        names = {folder_name(append.run): append.run in creating for append in appends}
        for append in appends:
            if append.after == 0 and append.info is not None and append.info.parent:
                # A concurrent delete or prune of the parent waits, and then sees the fork.
                names.setdefault(self._owner(append.info.parent) or folder_name(append.run), False)
        with self._usable():
            return with_files(partial(self._commit, appends, names, durable))

    def _commit(
        self, appends: Sequence[Append], names: Mapping[str, bool], durable: bool, files: list[FileIO]
    ) -> list[Conflict | None]:
        folders: dict[str, RunFolder | None] = {}
        for name, create in sorted(names.items()):
            access = Access.CREATE if create else Access.WRITE
            folders[name] = open_folder(self.directory, name, access, self._states, files)
        opened = [folder for folder in folders.values() if folder is not None]
        try:
            answers = [self._apply(append, folders[folder_name(append.run)]) for append in appends]
            for folder in opened:
                folder.finish(durable)
        except BaseException:
            for folder in opened:
                folder.undo()
            raise
        return answers

    def _page(self, run: str, after: int, last: int) -> tuple[list[Entry], bool]:
        return self._ask(run, lambda folder: _page(folder, after, last)) or ([], False)

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        return self._ask(run, lambda folder: list(islice(_checkpoints(folder, before), limit))) or []

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        return self._ask(run, lambda folder: folder.snapshot(upto))

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        run, key = wanted.get("run"), wanted.get("key")
        with self._usable():
            if run is not None:
                info = self._facts(folder_name(run))
                return select([info] if info else [], **wanted)
            owner = None if key is None else self._owner(key)
            info = self._facts_if_any(owner) if owner is not None else None
            if info is not None and info.key == key:
                return select([info], **wanted)
            infos = [info for info in map(self._facts_if_any, self._names()) if info is not None]
            return select(infos, **wanted)

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        return self._change(
            run,
            lambda folder: folder.prune(horizon) if folder and not self._is_parent(folder, forks) else 0,
        )

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        try:
            return self._change(run, lambda folder: self._delete(run, folder, forks))
        except CorruptJournal:
            with self._usable():
                return with_files(partial(self._delete_damaged, self.directory / folder_name(run)))

    def _delete_damaged(self, path: Path, files: list[FileIO]) -> bool:
        is_there = lock_file(path / "lock", files, create=False)
        if is_there:
            remove_folder(path, self._states)
        return is_there

    def _delete(self, run: str, folder: RunFolder | None, forks: Collection[bytes] | None) -> bool:
        if folder is None and self._given_up(folder_name(run)) is not None:
            raise CorruptJournal(f"run {run!r} has no entries", run=run, seq=1)
        if folder is None or folder.state is None or self._is_parent(folder, forks):
            return False
        key = folder.state.info.key
        # First the folder: as long as it is there, its key leads a concurrent fork to its lock.
        remove_folder(folder.path, self._states)
        if self._owner(key) == folder.name:
            self._key_path(key).unlink(missing_ok=True)
        return True

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        def post(folder: RunFolder | None) -> int:
            if folder is None:
                raise no_inbox(run)
            return folder.post(run, clock.time(), body, number)

        return self._change(run, post)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        entries = self._ask(run, lambda folder: folder.inbox(after)) or []
        return [Message(entry.seq, entry.at, entry.body) for entry in entries]

    def footprint(self) -> Footprint:
        """Return the place and the size of the folder, without those of other namespaces in it."""
        with self._usable():
            own = [self.directory / ".keys", *(self.directory / name for name in self._names())]
            files = (file for folder in own for file in folder.rglob("*"))
            disk = sum(file.stat().st_size for file in files if file.is_file())
        return Footprint("file", str(self.directory), frames.VERSION, disk)

    def sizes(self) -> list[RunSize]:
        """Return how much each run holds, by the headers of its entries; damaged runs are left out."""
        found = []
        with self._usable():
            for name in self._names():
                with suppress(CorruptJournal):
                    found.append(self._ask_folder(name, RunFolder.size))
        return [size for size in found if size is not None]

    def inspector(self) -> Inspector:
        """Return an inspector, which reads the folders past what is damaged in them."""
        with self._usable():
            return FileInspector(self)

    def forget(self, run: str) -> None:
        """Read a run's journal again when it is next used."""
        self._states.pop(folder_name(run), None)

    def _names(self) -> list[str]:
        """Return the folders of the runs."""
        return [path.name for path in self.directory.iterdir() if not path.name.startswith((".", "@"))]

    def close(self) -> None:
        self._closed = True
        self._states.clear()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        self._check_open()
        with explained(self.directory):
            yield

    def _change(self, run: str, action: Callable[[RunFolder | None], Answer]) -> Answer:
        with self._usable():
            return in_folder(self.directory, folder_name(run), Access.WRITE, self._states, action)

    def _ask(self, run: str, question: Callable[[RunFolder], Answer]) -> Answer | None:
        with self._usable():
            return self._ask_folder(folder_name(run), question)

    def _ask_folder(self, name: str, question: Callable[[RunFolder], Answer]) -> Answer | None:
        """Ask without making writers wait; what looks damaged is looked at again with the lock held."""

        def ask(folder: RunFolder | None) -> Answer | None:
            return question(folder) if folder else None

        try:
            return in_folder(self.directory, name, Access.LOOK, self._states, ask)
        except (CorruptJournal, FileNotFoundError):
            return in_folder(self.directory, name, Access.WRITE, self._states, ask)

    def _apply(self, append: Append, folder: RunFolder | None) -> Conflict | None:
        if folder is None:
            return Conflict(append.run, append.after, None)
        new = append.after == 0 and folder.state is None
        if new and append.info is not None and not self._claim(append.info.key, folder.name):
            return Conflict(append.run, 0, None)
        return folder.append(append)

    def _is_parent(self, parent: RunFolder, forks: Collection[bytes] | None) -> bool:
        """Return whether a run has other forks; its lock keeps further ones away."""
        if forks is None or parent.state is None:
            return False
        others = (name for name in self._names() if name != parent.name)
        infos = (info for info in map(self._glance, others) if info is not None)
        return has_other_forks(infos, parent.state.info.key, forks)

    def _glance(self, name: str) -> RunInfo | None:
        """Return the facts of a run as they are, without waiting for a lock."""
        with suppress(CorruptJournal, FileNotFoundError):
            return in_folder(self.directory, name, Access.LOOK, self._states, _info)
        shown = read_shown(self.directory / name)
        return shown.info if shown is not None else None

    def _facts(self, name: str) -> RunInfo | None:
        """Return the facts of the journal; if it is damaged, those of `run.json`, or what is intact of it."""
        try:
            info = self._ask_folder(name, _info)
            return info or self._given_up(name)
        except CorruptJournal:
            if (shown := read_shown(self.directory / name)) is not None:
                return shown.info
            if known := scan_journal(self.directory / name).known:
                return known[-1]
            raise

    def _facts_if_any(self, name: str) -> RunInfo | None:
        """Return `_facts`, or `None` with a warning: one damaged run does not hide the others."""
        try:
            return self._facts(name)
        except CorruptJournal as error:
            logger.warning(
                "%s: %s; the other runs are intact: `holdfast store fsck` tells more", self.url, error.problem
            )
            return None

    def _given_up(self, name: str) -> RunInfo | None:
        """Return the facts of a run of which nothing is left but that it was found damaged."""
        shown = read_shown(self.directory / name)
        return shown.info if shown is not None and shown.info.status == RunStatus.DAMAGED else None

    def _key_path(self, key: bytes) -> Path:
        return self.directory / ".keys" / key.hex()

    def _owner(self, key: bytes) -> str | None:
        """Return the name of the folder that is reserved for `key`; the folder may not hold a run yet."""
        try:
            name = self._key_path(key).read_bytes()
        except FileNotFoundError:
            return None
        return name.decode() if is_folder_name(name) else None

    def _claim(self, key: bytes, name: str) -> bool:
        """Claim `key` for the folder `name`; return `False` if another run has it."""
        owner = self._owner(key)
        # No lock of the other is taken: the caller may hold some.
        if owner not in (None, name) and in_folder(
            self.directory, str(owner), Access.LOOK, self._states, _info
        ):
            return False
        path = self._key_path(key)
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.directory)
        if owner != name:
            write_whole(path, name.encode(), durable=True)
        return True


def _info(folder: RunFolder | None) -> RunInfo | None:
    return folder.state.info if folder and folder.state else None


def _page(folder: RunFolder, after: int, last: int) -> tuple[list[Entry], bool]:
    entries: list[Entry] = []
    size = 0
    for frame in folder.frames_from(after + 1):
        if frame.after >= last:
            break
        if size >= PAGE_BYTES or len(entries) >= PAGE_ENTRIES:
            return entries, True
        for entry in folder.entries(frame):
            if after < entry.seq <= last:
                entries.append(entry)
                size += len(entry.body)
    return entries, False


def _checkpoints(folder: RunFolder, before: int | None) -> Iterator[StoredCheckpoint]:
    head = folder.state.head if folder.state else 0
    last = head if before is None else min(before - 1, head)
    for frame in folder.frames_back(last):
        for entry in reversed(folder.entries(frame)):
            if entry.mark is not None and entry.seq <= last:
                yield StoredCheckpoint.of(entry)
