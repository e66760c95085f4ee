"""The inspector of a file store: it reads every file of every folder, as far as that goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import CorruptJournal, HoldfastError, problem_of
from holdfast.stores.base import Append, Entry, Message, RunInfo, Snapshot
from holdfast.stores.files import frames
from holdfast.stores.files.disk import explained, lock_file, open_file, write_whole
from holdfast.stores.files.run_folder import (
    INDEX,
    RunFolder,
    Scanned,
    Shown,
    folder_name,
    is_folder_name,
    journal_frames,
    read_shown,
    read_single,
    scan_journal,
)
from holdfast.stores.inspection import (
    Found,
    Inspector,
    Keep,
    Listing,
    Observed,
    changed_meanwhile,
    put_aside,
)
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.stores.files.store import FileStore


_KNOWN = ("journal", "run.json", "snapshots", "inbox", "lock", INDEX)


class FileInspector(Inspector):
    """Reads frames and files one by one; takes no lock. Whether an entry is whole its chain tells."""

    store: FileStore

    def __init__(self, store: FileStore) -> None:
        super().__init__(store)
        self._root = store.directory

    def problems(self) -> list[str]:
        """Return keys that do not name the folder of their run, and files that no version writes."""
        with explained(self._root):
            found = [f"{path} does not name the folder {name}" for path, name in self._wrong_keys()]
            return [*found, *(f"{path} was put there by nobody" for path in self._strays())]

    def _wrong_keys(self) -> Iterator[tuple[Path, str]]:
        """Yield the keys that do not name the folder of their run, which is locked meanwhile."""
        for info in self.runs().infos:
            path, name = self._root / ".keys" / info.key.hex(), folder_name(info.run)
            if _text(path) != name:
                with _locked(self._root / name) as is_there:
                    if is_there and _text(path) != name:
                        yield path, name

    def leftovers(self) -> list[str]:
        with explained(self._root):
            found = [f"{path}: a file that was being written" for path in self._root.rglob(".tmp-*")]
            found += [f"{path}: a run that was being deleted" for path in self._root.glob(".trash-*")]
            found += [f"{path}: a run that was never begun" for path in self._folders() if _is_unborn(path)]
            keys = {info.key.hex() for info in self.runs().infos}
            unused = (path for path in self._keys() if path.name not in keys)
            found += [f"{path}: the key of a run that was never begun" for path in unused]
            return found + put_aside(self.lost_and_found())

    def beside_runs(self) -> list[str]:
        with explained(self._root):
            others = [path for path in _listed(self._root) if path.name.startswith("@") and path.is_dir()]
            return [*self.runs().problems, *(f"another namespace, {path.name}" for path in others)]

    def _keys(self) -> list[Path]:
        return [path for path in _listed(self._root / ".keys") if not path.name.startswith(".")]

    def _folders(self) -> list[Path]:
        return [path for path in _listed(self._root) if path.name[:1] not in (".", "@") and path.is_dir()]

    def _strays(self) -> list[Path]:
        """Return files that no version writes. Names with a leading dot are of other programs, such as git."""
        found = [path for path in _listed(self._root) if not path.is_dir()]
        for folder in self._folders():
            found += [path for path in _listed(folder) if path.name not in _KNOWN]
            for kind in ("snapshots", "inbox"):
                found += [path for path in _listed(folder / kind) if not path.name.isdigit()]
        return [path for path in found if not path.name.startswith(".")]

    def runs(self) -> Listing:
        infos: list[RunInfo] = []
        problems: list[str] = []
        with explained(self._root):
            for folder in self._folders():
                if _is_unborn(folder):
                    continue
                info = _facts(folder)
                if info is None:
                    # While nobody writes: the facts of a run that is being created may be half there.
                    with _locked(folder) as is_there:
                        info = _facts(folder) if is_there else None
                if info is not None:
                    infos.append(info)
                elif folder.is_dir() and not _is_unborn(folder):
                    problems.append(f"{folder}: neither its journal nor its run.json says which run it is of")
        return Listing(infos, problems)

    def observe(self, run: str) -> Observed | None:
        folder = self._root / folder_name(run)
        with explained(self._root):
            version, shown, journal = _version(folder), read_shown(folder), scan_journal(folder)
            info = _newest(shown, journal)
            if info is None or _is_unborn(folder):
                return None
            head = shown.head if shown is not None and shown.is_ahead_of(journal) else None
            return Observed(info, head or journal.head, version, raw=shown.raw if shown else b"")

    def facts_problems(self, info: RunInfo) -> list[str]:
        folder = self._root / folder_name(info.run)
        shown, journal = read_shown(folder), scan_journal(folder)
        if journal.problem:
            return []  # That is reported of its journal.
        if shown is None and (folder / "run.json").exists():
            return ["its run.json cannot be read"]
        if shown is not None and shown.is_ahead_of(journal):
            return []
        # A crash may leave it as it was a while ago.
        if shown is not None and (shown.info not in journal.known or shown.head is None):
            return ["its run.json says something else than its journal"]
        return super().facts_problems(info)

    def reading_problems(self, run: str) -> list[str]:
        problem = scan_journal(self._root / folder_name(run)).problem
        return [f"the facts in its journal cannot be read: {problem}"] if problem else []

    def entries(self, run: str) -> Iterator[Entry]:
        with explained(self._root):
            for fd, frame in journal_frames(self._root / folder_name(run)):
                yield from frames.salvage_entries(fd, frame)

    def snapshots(self, run: str) -> list[Found]:
        """Return all but those before the beginning of a pruned journal, which a crashed prune left."""
        first = 0
        with suppress(HoldfastError, OSError):
            first = next((frame.after + 1 for _, frame in journal_frames(self._root / folder_name(run))), 0)
        found = self._numbered(run, "snapshots", lambda e: Snapshot(e.seq, e.at, e.chain, e.body))
        return [snapshot for snapshot in found if snapshot.number >= first]

    def messages(self, run: str) -> list[Found]:
        return self._numbered(run, "inbox", lambda e: Message(e.seq, e.at, e.body))

    def _numbered(self, run: str, kind: str, made: Callable[[Entry], Snapshot | Message]) -> list[Found]:
        found = []
        for path in _listed(self._root / folder_name(run) / kind):
            if not path.name.isdigit():
                continue
            number, raw = int(path.name), b""
            try:
                raw = path.read_bytes()
                entry = read_single(path)
                problem = "" if entry.seq == number else f"the file {path} holds number {entry.seq}"
                found.append(Found(number, raw, None if problem else made(entry), problem))
            except FileNotFoundError:
                continue  # It was pruned meanwhile.
            except (HoldfastError, OSError) as error:
                found.append(Found(number, raw, None, problem_of(error)))
        return found

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        path = self._path(run, "snapshots", number)
        with explained(path), _locked(path.parent.parent) as is_there:
            if is_there and path.exists() and path.read_bytes() == raw:
                path.unlink()

    def blank_message(self, run: str, number: int) -> None:
        path = self._path(run, "inbox", number)
        with explained(path), _locked(path.parent.parent) as is_there:
            if is_there:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                write_whole(path, frames.encode(number - 1, [Entry(number, 0.0, b"", b"")]), durable=True)

    def _path(self, run: str, kind: str, number: int) -> Path:
        return self._root / folder_name(run) / kind / f"{number:010}"

    def put_facts(self, info: RunInfo, head: int, seen: Observed) -> None:
        """Write the facts to the journal; those of a run whose journal is damaged are read from `run.json`."""
        folder = self._root / folder_name(info.run)
        with explained(folder), _locked(folder) as is_there:
            if not is_there or _version(folder) != seen.version:
                raise changed_meanwhile(info.run)
            with suppress(CorruptJournal, FileNotFoundError):
                _append_facts(folder, info)
            write_whole(folder / "run.json", frames.facts_json(info, head), durable=True)
        self.store.forget(info.run)

    def lost_and_found(self) -> Path:
        root = self._root
        if root.name.startswith("@"):
            return root.parent.with_name(f"{root.parent.name}{root.name}.lost+found")
        return root.with_name(f"{root.name}.lost+found")

    def repair(self, keep: Keep) -> list[str]:
        done = []
        for path, name in self._wrong_keys():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, name.encode(), durable=True)
            done.append(f"{path} names its folder again")
        done += [f"{path} is put aside" for path in self._keys() if self._remove_key(path, keep)]
        for path in self._strays():
            if path.is_file():
                keep(path.relative_to(self._root).as_posix().replace("/", "-"), path.read_bytes())
                path.unlink()
                done.append(f"{path} is put aside")
        return done

    def _remove_key(self, path: Path, keep: Keep) -> bool:
        """Put a key of no run aside; return whether it was one. A run that begins claims its key under its lock."""
        if any(info.key.hex() == path.name for info in self.runs().infos):
            return False
        owner = _text(path) or ""
        folder = self._root / owner if is_folder_name(owner.encode()) else None
        with _locked(folder) if folder is not None else nullcontext(False) as is_there:
            info = _facts(folder) if folder is not None and is_there else None
            if (info is not None and info.key.hex() == path.name) or not path.exists():
                return False
            keep(f"keys-{path.name}", path.read_bytes())
            path.unlink()
            return True


def _facts(folder: Path) -> RunInfo | None:
    shown = read_shown(folder)  # The journal is read later: it is written first.
    return _newest(shown, scan_journal(folder))


def _newest(shown: Shown | None, journal: Scanned) -> RunInfo | None:
    """Return the newest facts that can be read: of the journal, unless `run.json` knows of more than is left there."""
    info = journal.known[-1] if journal.known else None
    if shown is not None:
        is_given_up = journal.problem and shown.info.status == RunStatus.DAMAGED
        if info is None or is_given_up or shown.is_ahead_of(journal):
            return shown.info
    return info


def _version(folder: Path) -> tuple[int, int, bytes]:
    """Return what differs once somebody wrote to a run: an append makes its journal longer, pruning a new file."""
    position, shown = (0, 0), b""
    with suppress(FileNotFoundError):
        stat = (folder / "journal").stat()
        position = (stat.st_ino, stat.st_size)
    with suppress(FileNotFoundError):
        shown = (folder / "run.json").read_bytes()
    return (*position, shown)


def _append_facts(folder: Path, info: RunInfo) -> None:
    """Append facts to a journal whose lock is held; do nothing if it has no entries."""
    with open_file(folder / "journal", writing=True) as journal:
        opened = RunFolder(folder, journal.fileno(), {})
        if opened.state is not None:
            opened.append(Append(info.run, opened.state.head, (), info))
            opened.finish(durable=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a run's folder, without which nobody writes to it; yield `False` if it is gone."""
    files: list[FileIO] = []
    try:
        yield lock_file(folder / "lock", files, create=False) or folder.is_dir()
    finally:
        for file in files:
            file.close()


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder, which may vanish meanwhile."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_unborn(folder: Path) -> bool:
    """Return whether a folder has no whole frame of a journal: its creation was interrupted."""
    if (folder / "run.json").exists():
        return False
    try:
        return next(journal_frames(folder), None) is None
    except FileNotFoundError:
        return True
    except HoldfastError:
        return False


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return None
