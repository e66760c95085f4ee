"""Files that are locked, whole or absent, and really on the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar

from holdfast.errors import StoreError
from holdfast.stores.base import sync_folder

Result = TypeVar("Result")


def sync(fd: int) -> None:
    """Return once the file's content survives a power loss."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def write_at(fd: int, data: bytes, position: int) -> None:
    """Write all of `data` at `position`."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, position)
        rest, position = rest[written:], position + written


def write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """Write `data` to `path` so that a reader, or a crash, finds the old file or the new, never half."""
    with replacing(path, durable=durable) as fd:
        write_at(fd, data, 0)


@contextmanager
def replacing(path: Path, *, durable: bool) -> Iterator[int]:
    """Open a new file to fill, which replaces `path` when the block ends without an exception."""
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
    """Return what `action` returns for a list; close the files that it put there, whatever is raised, and wherever.

    A lock that is left taken would keep everybody out, this process included.
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

    Returns `False` if the file is missing and not to be created; its folder is created with it. A lock whose
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
    """Open a file without buffers, created for its owner only."""
    if create and not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return FileIO(path, "r+" if writing else "r")


@contextmanager
def explained(place: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
                remedy = "free some space and resume"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                remedy = "make the folder writable"
            case errno.ENOTDIR | errno.EEXIST:
                remedy = "choose a folder"
            case errno.EMFILE | errno.ENFILE:
                remedy = "close files and sockets of this process or raise its limit (ulimit -n), and resume"
            case _:
                remedy = "check the disk and resume"
        raise StoreError(f"cannot use {error.filename or place}: {error.strerror}; {remedy}") from error


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """Open a file to read for this block."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)
