"""What is wrong with the folders of a file store: every file is read, as far as that goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import CorruptJournal, HoldfastError, StoreError, problem_of
from holdfast.stores.base import Append, Entry, Message, RunInfo, Snapshot
from holdfast.stores.files import frames
from holdfast.stores.files import run_folder as landmarks
from holdfast.stores.files.frames import in_plain_words, lock_file, write_whole
from holdfast.stores.files.run_folder import RunFolder, folder_name, is_folder_name
from holdfast.stores.integrity import Found, Keep, Listing, Mender, Standing, changed_meanwhile
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.stores.files.store import FileStore


_KNOWN = ("journal", "run.json", "snapshots", "inbox", "lock", landmarks.NAME)
_DAMAGED = RunStatus.DAMAGED.value


class FileMender(Mender):
    """Reads frames and files one by one; takes no lock. Whether an entry is whole its chain tells."""

    def __init__(self, store: FileStore) -> None:
        super().__init__(store)
        self._root, self._forget = store.directory, store.forget

    def problems(self) -> list[str]:
        with in_plain_words(self._root):
            return [*self._key_problems(), *(f"{path} was put there by nobody" for path in self._strays())]

    def leftovers(self) -> list[str]:
        with in_plain_words(self._root):
            found = [f"{path}: a file that was being written" for path in self._root.rglob(".tmp-*")]
            found += [f"{path}: a run that was being deleted" for path in self._root.glob(".trash-*")]
            found += [f"{path}: a run that was never begun" for path in self._folders() if _is_unborn(path)]
            keys = {info.key.hex() for info in self.runs().infos}
            unused = (path for path in self._keys() if path.name not in keys)
            return found + [f"{path}: the key of a run that was never begun" for path in unused]

    def _key_problems(self) -> list[str]:
        """Every run has its key in `.keys`. Others are left there by creations that were cut short."""
        owners = {info.key.hex(): folder_name(info.run) for info in self.runs().infos}
        found = []
        for key, owner in owners.items():
            if _text(self._key_path(key)) != owner:
                with _locked(self._root / owner) as is_there:
                    if is_there and _text(self._key_path(key)) != owner:
                        found.append(f"{self._key_path(key)} does not name the folder {owner}")
        return found

    def _key_path(self, key: str) -> Path:
        return self._root / ".keys" / key

    def _keys(self) -> list[Path]:
        return [path for path in _listed(self._root / ".keys") if not path.name.startswith(".")]

    def _named(self, path: Path) -> Path | None:
        """The folder that a key names, if it names one."""
        owner = _text(path) or ""
        return self._root / owner if is_folder_name(owner.encode()) else None

    def _folders(self) -> list[Path]:
        return [path for path in _listed(self._root) if path.name[:1] not in (".", "@") and path.is_dir()]

    def _strays(self) -> list[Path]:
        """Files that no version writes. What begins with a dot is of other programs, such as version control."""
        found = [path for path in _listed(self._root) if not path.is_dir()]
        for folder in self._folders():
            found += [path for path in _listed(folder) if path.name not in _KNOWN]
            for kind in ("snapshots", "inbox"):
                found += [path for path in _listed(folder / kind) if not path.name.isdigit()]
        return [path for path in found if not path.name.startswith(".")]

    def runs(self) -> Listing:
        infos: list[RunInfo] = []
        problems: list[str] = []
        with in_plain_words(self._root):
            for folder in self._folders():
                if _is_unborn(folder):
                    continue
                info = self._facts(folder) or self._facts_in_peace(folder)
                if info is not None:
                    infos.append(info)
                elif folder.is_dir() and not _is_unborn(folder):
                    problems.append(f"{folder}: neither its journal nor its run.json says which run it is of")
        return Listing(infos, problems)

    def standing(self, run: str) -> Standing | None:
        folder = self._root / folder_name(run)
        with in_plain_words(self._root):
            stamp, shown, found = _stamp(folder), _shown(folder), self._scanned(folder)
            info = _newest(folder, shown, found)
            if info is None or _is_unborn(folder):
                return None
            head = found.head
            if shown is not None and _is_ahead(shown, found):
                head = shown.head or head + 1
            return Standing(info, head, stamp, raw=b"" if shown is None else shown.raw)

    def _facts_in_peace(self, folder: Path) -> RunInfo | None:
        """The facts while nobody writes: those of a run that is being created may be half there."""
        with _locked(folder) as is_there:
            return self._facts(folder) if is_there else None

    def _facts(self, folder: Path) -> RunInfo | None:
        shown = _shown(folder)  # The journal is looked at later: it is written first.
        return _newest(folder, shown, self._scanned(folder))

    def _scanned(self, folder: Path) -> _Scanned:
        """All facts in a journal, in order, up to what is damaged, and how far that goes."""
        known: list[RunInfo] = []
        head, problem = 0, ""
        try:
            fd = os.open(folder / "journal", os.O_RDONLY)
            try:
                for frame in frames.scan_whole(fd, 0, os.fstat(fd).st_size, folder.name):
                    info = frames.read_facts(fd, frame, folder.name)
                    known += [info] if info is not None else []
                    head = frame.head
            finally:
                os.close(fd)
        except (HoldfastError, OSError, ValueError, TypeError, KeyError) as error:
            problem = problem_of(error)
        return _Scanned(known, head, problem)

    def facts_problems(self, info: RunInfo) -> list[str]:
        folder = self._root / folder_name(info.run)
        shown, found = _shown(folder), self._scanned(folder)
        if not found.is_whole:
            return []  # That is told of its journal.
        if shown is None and (folder / "run.json").exists():
            return ["its run.json cannot be read"]
        if _is_ahead(shown, found):
            return []
        # A crash may leave it as it was a while ago.
        if shown is not None and (shown.info not in found.known or shown.head is None):
            return ["its run.json says something else than its journal"]
        return super().facts_problems(info)

    def reading_problems(self, run: str) -> list[str]:
        found = self._scanned(self._root / folder_name(run))
        return [] if found.is_whole else [f"the facts in its journal cannot be read: {found.problem}"]

    def entries(self, run: str) -> Iterator[Entry]:
        name = folder_name(run)
        with in_plain_words(self._root):
            fd = os.open(self._root / name / "journal", os.O_RDONLY)
            try:
                for frame in frames.scan_whole(fd, 0, os.fstat(fd).st_size, name):
                    yield from frames.salvage_entries(fd, frame)
            finally:
                os.close(fd)

    def snapshots(self, run: str) -> list[Found]:
        """All but those before the beginning of a pruned journal: who pruned it did not come to remove them."""
        first = self._first(self._root / folder_name(run))
        found = self._alone(run, "snapshots", lambda e: Snapshot(e.seq, e.at, e.chain, e.body))
        return [snapshot for snapshot in found if snapshot.number >= first]

    def _first(self, folder: Path) -> int:
        """The first entry that a journal has, as far as it can be read."""
        with suppress(HoldfastError, OSError):
            fd = os.open(folder / "journal", os.O_RDONLY)
            try:
                for frame in frames.scan_whole(fd, 0, os.fstat(fd).st_size, folder.name):
                    return frame.after + 1
            finally:
                os.close(fd)
        return 0

    def messages(self, run: str) -> list[Found]:
        return self._alone(run, "inbox", lambda e: Message(e.seq, e.at, e.body))

    def _alone(self, run: str, kind: str, made: Callable[[Entry], Snapshot | Message]) -> list[Found]:
        folder = self._root / folder_name(run) / kind
        found = []
        for path in [path for path in _listed(folder) if path.name.isdigit()]:
            try:
                number, raw = int(path.name), path.read_bytes()
            except FileNotFoundError:
                continue  # It was pruned meanwhile.
            except OSError as error:
                found.append(Found(int(path.name), b"", None, problem_of(error)))
                continue
            try:
                entry = _only_entry(path)
                problem = "" if entry.seq == number else f"the file {path} holds number {entry.seq}"
                found.append(Found(number, raw, None if problem else made(entry), problem))
            except (HoldfastError, OSError) as error:
                found.append(Found(number, raw, None, problem_of(error)))
        return found

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        path = self._path(run, "snapshots", number)
        with in_plain_words(path), _locked(path.parent.parent) as is_there:
            if is_there and path.exists() and path.read_bytes() == raw:
                path.unlink()

    def void_message(self, run: str, number: int) -> None:
        data = frames.encode(number - 1, [Entry(number, 0.0, b"", b"")])
        path = self._path(run, "inbox", number)
        with in_plain_words(path), _locked(path.parent.parent) as is_there:
            if is_there:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                write_whole(path, data, durable=True)

    def _path(self, run: str, kind: str, number: int) -> Path:
        return self._root / folder_name(run) / kind / f"{number:010}"

    def put_facts(self, info: RunInfo, head: int, seen: Standing) -> None:
        """In the journal; of a run whose journal is damaged they are read from `run.json`."""
        folder = self._root / folder_name(info.run)
        with in_plain_words(folder), _locked(folder) as is_there:
            if not is_there or _stamp(folder) != seen.stamp:
                raise changed_meanwhile(info.run)
            with suppress(CorruptJournal, FileNotFoundError):
                _append_facts(folder, info)
            write_whole(folder / "run.json", frames.facts_json(info, head), durable=True)
        self._forget(info.run)

    def beside(self) -> Path:
        root = self._root
        if root.name.startswith("@"):
            return root.parent.with_name(f"{root.parent.name}{root.name}.lost+found")
        return root.with_name(f"{root.name}.lost+found")

    def mend(self, keep: Keep) -> list[str]:
        done = []
        for info in self.runs().infos:
            path, name = self._key_path(info.key.hex()), folder_name(info.run)
            if _text(path) == name:
                continue
            with _locked(self._root / name) as is_there:
                if is_there and _text(path) != name:
                    path.parent.mkdir(mode=0o700, exist_ok=True)
                    write_whole(path, name.encode(), durable=True)
                    done.append(f"{path} names its folder again")
        done += [f"{path} is put aside" for path in self._keys() if self._let_go(path, keep)]
        for path in self._strays():
            if path.is_file():
                keep(path.relative_to(self._root).as_posix().replace("/", "-"), path.read_bytes())
                path.unlink()
                done.append(f"{path} is put aside")
        return done

    def _let_go(self, path: Path, keep: Keep) -> bool:
        """Whether a key was that of no run, and was put aside. Whoever begins a run claims its key under its lock."""
        folder = self._named(path)
        if any(info.key.hex() == path.name for info in self.runs().infos):
            return False
        with _locked(folder) if folder is not None else nullcontext(False) as is_there:
            info = self._facts(folder) if folder is not None and is_there else None
            if (info is not None and info.key.hex() == path.name) or not path.exists():
                return False
            keep(f"keys-{path.name}", path.read_bytes())
            path.unlink()
            return True


class _Scanned(NamedTuple):
    """What a journal tells of its run, up to what is damaged."""

    known: list[RunInfo]
    head: int
    problem: str

    @property
    def is_whole(self) -> bool:
        return not self.problem


class _Shown(NamedTuple):
    """What `run.json` tells; `head` is 0 where an earlier version wrote it, `None` if it is damaged."""

    info: RunInfo
    head: int | None
    raw: bytes


def _shown(folder: Path) -> _Shown | None:
    try:
        raw = (folder / "run.json").read_bytes()
        info = frames.parse_facts(raw)
        return (
            _Shown(info, frames.parse_head(raw), raw) if isinstance(info.updated_at, (int, float)) else None
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _newest(folder: Path, shown: _Shown | None, found: _Scanned) -> RunInfo | None:
    """The newest facts that can be read: of the journal, unless `run.json` knows more than is left of that."""
    info = found.known[-1] if found.known else None
    if info is not None and folder_name(info.run) != folder.name:
        info = None  # The journal is another run's.
    if shown is not None:
        given_up = not found.is_whole and shown.info.status == _DAMAGED
        if info is None or given_up or _is_ahead(shown, found):
            info = shown.info
    return info


def _is_ahead(shown: _Shown | None, found: _Scanned) -> bool:
    """Whether `run.json` tells of entries that are not there any more: the journal comes first."""
    if shown is None or shown.head is None or (found.known and found.known[0].key != shown.info.key):
        return False
    if shown.head:
        return shown.head > found.head
    times = [each.updated_at for each in found.known]
    return bool(times) and shown.info not in found.known and shown.info.updated_at > max(times)


def _stamp(folder: Path) -> tuple[int, int, bytes] | None:
    """What tells whether somebody wrote to a run since: an append makes its journal longer, pruning a new file."""
    try:
        stat = (folder / "journal").stat()
        place = (stat.st_ino, stat.st_size)
    except FileNotFoundError:
        place = (0, 0)
    try:
        return (*place, (folder / "run.json").read_bytes())
    except FileNotFoundError:
        return (*place, b"")


def _append_facts(folder: Path, info: RunInfo) -> None:
    """Add facts at the end of a journal whose lock is held; none to one that has no entries."""
    fd = os.open(folder / "journal", os.O_RDWR)
    try:
        opened = RunFolder(folder, fd, {})
        if opened.state is not None:
            opened.append(Append(info.run, opened.state.head, (), info))
            opened.finish(durable=True)
    finally:
        os.close(fd)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a run's folder, so that nobody else writes there; `False` if it is gone.

    Without its lock nobody writes to it at all.
    """
    files: list[FileIO] = []
    try:
        yield lock_file(folder / "lock", files, create=False) or folder.is_dir()
    finally:
        for file in files:
            file.close()


def _listed(folder: Path) -> list[Path]:
    """What is in a folder, which may go while it is looked at."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_unborn(folder: Path) -> bool:
    """Whether a folder has no whole frame of a journal: its creation was cut short."""
    if (folder / "run.json").exists():
        return False
    try:
        fd = os.open(folder / "journal", os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        return next(frames.scan_whole(fd, 0, os.fstat(fd).st_size, folder.name), None) is None
    except HoldfastError:
        return False
    finally:
        os.close(fd)


def _only_entry(path: Path) -> Entry:
    """The entry of a file that holds one frame of one entry and nothing else."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        found = list(frames.scan(fd, 0, size, path.name))
        if len(found) == 1 and found[0].end == size and found[0].count == 1:
            return frames.read_entries(fd, found[0], path.name)[0]
    finally:
        os.close(fd)
    raise StoreError(f"the file {path} is damaged")


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return None
