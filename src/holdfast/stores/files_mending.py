"""What is wrong with the folders of a file store: every file is read, as far as that goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import CorruptJournal, HoldfastError, StoreError
from holdfast.stores import frames
from holdfast.stores.base import Append, Entry, Message, RunInfo, Snapshot
from holdfast.stores.disk import in_plain_words, write_whole
from holdfast.stores.mending import Found, Keep, Listing, Mender
from holdfast.stores.run_folder import folder_name

if TYPE_CHECKING:
    from holdfast.stores.files import FileStore

_KNOWN = ("journal", "run.json", "snapshots", "inbox", "lock")


class FileMender(Mender):
    """Reads frames and files one by one; takes no lock. Whether an entry is whole its chain tells."""

    def __init__(self, store: FileStore) -> None:
        super().__init__(store)
        self._root = store.directory

    def problems(self) -> list[str]:
        with in_plain_words(self._root):
            return [*self._key_problems(), *(f"{path} was put there by nobody" for path in self._strays())]

    def leftovers(self) -> list[str]:
        with in_plain_words(self._root):
            found = [f"{path}: a file that was being written" for path in self._root.rglob(".tmp-*")]
            found += [f"{path}: a run that was being deleted" for path in self._root.glob(".trash-*")]
            return found + [
                f"{path}: a run that was never begun" for path in self._folders() if _is_unborn(path)
            ]

    def _key_problems(self) -> list[str]:
        """Every run has its key in `.keys`, and every key there is that of a run, or of none at all."""
        owners = {info.key.hex(): folder_name(info.run) for info in self.runs().infos}
        found = []
        for key, owner in owners.items():
            if _text(self._key_path(key)) != owner:
                found.append(f"{self._key_path(key)} does not name the folder {owner}")
        for path in self._keys():
            if path.name not in owners and (self._root / (_text(path) or "?")).is_dir():
                found.append(f"{path} is no key of the run whose folder it names")
        return found

    def _key_path(self, key: str) -> Path:
        return self._root / ".keys" / key

    def _keys(self) -> list[Path]:
        folder = self._root / ".keys"
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return [path for path in paths if not path.name.startswith(".tmp-")]

    def _folders(self) -> list[Path]:
        return [
            path for path in sorted(self._root.iterdir()) if path.name[:1] not in (".", "@") and path.is_dir()
        ]

    def _strays(self) -> list[Path]:
        """Files that no version writes."""
        known = (".keys", ".trash-", ".tmp-", "@")
        found = [
            path for path in sorted(self._root.iterdir()) if not path.is_dir() and path.name[:5] != ".tmp-"
        ]
        found += [
            path
            for path in self._root.iterdir()
            if path.is_dir() and path.name.startswith(".") and not path.name.startswith(known)
        ]
        for folder in self._folders():
            for path in sorted(folder.iterdir()):
                if path.name not in _KNOWN and not path.name.startswith(".tmp-"):
                    found.append(path)
            for kind in ("snapshots", "inbox"):
                inside = sorted((folder / kind).iterdir()) if (folder / kind).is_dir() else []
                found += [
                    path for path in inside if not path.name.isdigit() and not path.name.startswith(".tmp-")
                ]
        return found

    def runs(self) -> Listing:
        infos: list[RunInfo] = []
        problems: list[str] = []
        with in_plain_words(self._root):
            for folder in self._folders():
                if _is_unborn(folder):
                    continue
                info = self._facts(folder)
                if info is None:
                    problems.append(f"{folder}: neither its journal nor its run.json says which run it is of")
                else:
                    infos.append(info)
        return Listing(infos, problems)

    def _facts(self, folder: Path) -> RunInfo | None:
        """The newest facts that can be read: of the journal, else of `run.json`."""
        found = None
        with suppress(HoldfastError, OSError, ValueError, TypeError, KeyError):
            for info in self._journalled(folder):
                found = info
        if found is None:
            with suppress(OSError, ValueError, TypeError, KeyError):
                found = frames.parse_facts((folder / "run.json").read_bytes())
        return found if found is not None and folder_name(found.run) == folder.name else None

    def _journalled(self, folder: Path) -> Iterator[RunInfo]:
        """All facts in a journal, in order, up to what is damaged."""
        fd = os.open(folder / "journal", os.O_RDONLY)
        try:
            for frame in frames.scan(fd, 0, os.fstat(fd).st_size, folder.name):
                info = frames.read_facts(fd, frame, folder.name)
                if info is not None:
                    yield info
        finally:
            os.close(fd)

    def facts_problems(self, info: RunInfo) -> list[str]:
        folder = self._root / folder_name(info.run)
        try:
            known = list(self._journalled(folder))
        except (HoldfastError, OSError, ValueError, TypeError, KeyError) as error:
            return [f"its facts cannot be read: {error}"]
        try:
            shown = frames.parse_facts((folder / "run.json").read_bytes())
        except FileNotFoundError:
            shown = None
        except (OSError, ValueError, TypeError, KeyError):
            return ["its run.json cannot be read"]
        if shown is not None and shown.updated_at > max(each.updated_at for each in known):
            return ["its run.json is newer than its journal, of which the end is missing"]
        # A crash may leave it as it was a while ago.
        if shown is not None and shown not in known:
            return ["its run.json says something else than its journal"]
        return super().facts_problems(info)

    def entries(self, run: str) -> Iterator[Entry]:
        name = folder_name(run)
        with in_plain_words(self._root):
            fd = os.open(self._root / name / "journal", os.O_RDONLY)
            try:
                for frame in frames.scan(fd, 0, os.fstat(fd).st_size, name):
                    yield from frames.salvage_entries(fd, frame)
            finally:
                os.close(fd)

    def snapshots(self, run: str) -> list[Found]:
        return self._alone(run, "snapshots", lambda e: Snapshot(e.seq, e.at, e.chain, e.body))

    def messages(self, run: str) -> list[Found]:
        return self._alone(run, "inbox", lambda e: Message(e.seq, e.at, e.body))

    def _alone(self, run: str, kind: str, made: Callable[[Entry], Snapshot | Message]) -> list[Found]:
        folder = self._root / folder_name(run) / kind
        paths = sorted(path for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else []
        found = []
        for path in paths:
            number, raw = int(path.name), path.read_bytes()
            try:
                entry = _only_entry(path)
                problem = "" if entry.seq == number else f"the file {path} holds number {entry.seq}"
                found.append(Found(number, raw, None if problem else made(entry), problem))
            except (HoldfastError, OSError) as error:
                found.append(Found(number, raw, None, str(error)))
        return found

    def drop_snapshot(self, run: str, number: int) -> None:
        self._path(run, "snapshots", number).unlink(missing_ok=True)

    def void_message(self, run: str, number: int) -> None:
        data = frames.encode(number - 1, [Entry(number, 0.0, b"", b"")])
        write_whole(self._path(run, "inbox", number), data, durable=True)

    def _path(self, run: str, kind: str, number: int) -> Path:
        return self._root / folder_name(run) / kind / f"{number:010}"

    def put_facts(self, info: RunInfo, head: int) -> None:
        """In the journal; of a run whose journal is damaged they are read from `run.json`."""
        with suppress(CorruptJournal):
            self.store.commit([Append(info.run, head, (), info)])
        write_whole(self._root / folder_name(info.run) / "run.json", frames.facts_json(info), durable=True)

    def beside(self) -> Path:
        root = self._root
        if root.name.startswith("@"):
            return root.parent.with_name(f"{root.parent.name}{root.name}.lost+found")
        return root.with_name(f"{root.name}.lost+found")

    def mend(self, keep: Keep) -> list[str]:
        done = []
        for info in self.runs().infos:
            path = self._key_path(info.key.hex())
            if _text(path) != folder_name(info.run):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                write_whole(path, folder_name(info.run).encode(), durable=True)
                done.append(f"{path} names its folder again")
        owners = {info.key.hex() for info in self.runs().infos}
        for path in self._keys():
            if path.name not in owners:
                keep(f"keys-{path.name}", path.read_bytes())
                path.unlink()
                done.append(f"{path} is put aside")
        for path in self._strays():
            if path.is_file():
                keep(path.relative_to(self._root).as_posix().replace("/", "-"), path.read_bytes())
                path.unlink()
                done.append(f"{path} is put aside")
        return done


def _is_unborn(folder: Path) -> bool:
    """Whether a folder has no frame of a journal: its creation was cut short."""
    try:
        size = (folder / "journal").stat().st_size
    except FileNotFoundError:
        return not (folder / "run.json").exists()
    return size < frames.HEADER_SIZE and not (folder / "run.json").exists()


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
