"""Files below one folder, read and written without ever leaving it, whatever happens to the folder meanwhile.

Every part of a path is opened from the one before it, and none may be a symbolic link: there is no time between
looking at a file and using it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from holdfast.events import Event
from holdfast.stores import is_part_of_store

_LINK = "a symbolic link is not followed; give the path of the file itself"


def checked_path(given: str) -> PurePosixPath:
    """Return a path relative to a folder, checked as text; a `ValueError` says why it is none."""
    path = PurePosixPath(given.strip())
    if not path.parts or path.is_absolute() or Path(given).is_absolute() or path.parts[0] == "~":
        raise ValueError("the path has to be relative to the workflow file's folder")
    if ".." in path.parts or "\\" in given or "\0" in given:
        raise ValueError("the path may not lead out of the workflow file's folder")
    return path


def resolved_path(base: Path, given: str, *, outside: bool) -> Path:
    """Return the path that a step gives, without symbolic links; a `ValueError` says why no step may use it."""
    path = (base / (Path(given).expanduser() if outside else checked_path(given))).resolve()
    if not outside and not path.is_relative_to(base.resolve()):
        raise ValueError("the path may not lead out of the workflow file's folder")
    check_no_store(path)
    return path


def check_no_store(path: Path) -> None:
    """Raise a `ValueError` for a resolved path of what Holdfast keeps runs in, which no step reads or writes."""
    if any(part.casefold() == ".holdfast" for part in path.parts):
        raise ValueError(
            "no step may use what is in a folder .holdfast, where runs are kept; choose another path"
        )
    if is_part_of_store(path):
        raise ValueError("it belongs to a Holdfast store, where runs are kept; choose another path")


def based(given: str, *bases: str | Path | None) -> tuple[Path, str]:
    """Return which of some folders an absolute path is in, and the path from there; other paths are in the first."""
    folders = [Path(base).resolve() for base in bases if base]
    for folder in folders:
        if Path(given).is_relative_to(folder):
            return folder, str(Path(given).relative_to(folder))
    return folders[0], given


class Scratch:
    """The temporary folders of the runs of a store, on this machine: `tmp` in templates. Also an observer.

    A run's folder is made when a step names it, and is gone when the run has completed. Only the user of this process
    can enter it.
    """

    wants = ("graph.complete",)

    def __init__(self) -> None:
        self.store, self.is_used = "", False
        """What distinguishes the store from others, and whether a step names a folder."""

    def folder(self, run_id: str) -> str:
        """Return the folder of a run, which is made if need be."""
        path = self._path(run_id)
        for each in (path.parent, path):
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)
            found = each.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise ValueError(f"{each} is not a folder of this user alone; remove it, or set TMPDIR")
        return str(path)

    def on_event(self, event: Event) -> None:
        """Remove the folder of a run that has completed."""
        if event.type in self.wants:
            shutil.rmtree(self._path(event.run_id), ignore_errors=True)

    def _path(self, run_id: str) -> Path:
        name = hashlib.blake2b(f"{self.store}\0{run_id}".encode("utf-8", "surrogatepass"), digest_size=16)
        return Path(tempfile.gettempdir()).resolve() / f"holdfast-{os.geteuid()}" / name.hexdigest()


class Folder:
    """A folder below a base folder, opened part by part. Use it as a context manager."""

    def __init__(self, base: Path, parts: tuple[str, ...], create: bool = False) -> None:
        self._fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=self._fd)
                above, self._fd = self._fd, _opened(self._fd, part, os.O_DIRECTORY)
                os.close(above)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of a regular file of at most `limit` bytes."""
        with _closing(_opened(self._fd, name, os.O_NONBLOCK)) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("it is not a file")
            with open(fd, "rb", closefd=False) as opened:
                raw = opened.read(limit + 1)
        if len(raw) > limit:
            raise ValueError(f"it is larger than {limit:,} bytes")
        return raw

    def holds(self, name: str, data: bytes) -> bool:
        """Return True if a file has this content; raise `FileNotFoundError` if there is none."""
        try:
            return self.read(name, len(data)) == data
        except ValueError:
            return False

    def write(self, name: str, data: bytes) -> None:
        """Write a file so that a reader, or a crash, finds the old content or the new, never a part of one."""
        mode, fresh = self._mode(name), f".tmp-{uuid.uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _closing(os.open(fresh, flags, 0o666, dir_fd=self._fd)) as fd:
            try:
                with open(fd, "wb", closefd=False) as opened:
                    opened.write(data)
                if mode is not None:
                    os.fchmod(fd, mode)
                os.fsync(fd)
                os.rename(fresh, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(fresh, dir_fd=self._fd)
                raise
        os.fsync(self._fd)

    def lock(self, wait: Callable[[], None]) -> None:
        """Keep other writers out until the folder is closed; `wait` is called while somebody else is inside."""
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait()

    def _mode(self, name: str) -> int | None:
        """Return the permissions of a file that is replaced; refuse to replace anything but a file."""
        try:
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found):
            raise ValueError(_LINK if stat.S_ISLNK(found) else "it is not a file")
        return stat.S_IMODE(found)


def read_beneath(base: Path, name: str, limit: int) -> bytes:
    """Read a regular file in a folder or below it, and nothing else."""
    *folders, file = PurePosixPath(name).parts
    with Folder(base, tuple(folders)) as folder:
        return folder.read(file, limit)


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _opened(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(folder, name):
            raise ValueError(_LINK) from None
        raise


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
