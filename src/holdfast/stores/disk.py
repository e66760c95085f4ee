"""Small promises about files: locked, whole or absent, really on the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import StoreError


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


def lock_file(path: Path, *, create: bool) -> int | None:
    """Wait for the lock at `path` and hold it until the descriptor given back is closed.

    `None` if the file is missing and not to be created; its folder is created with it. A lock whose
    file was removed or replaced meanwhile does not count.
    """
    while True:
        if create:
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700)
        try:
            fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            if create and path.parent.parent.is_dir():
                continue
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(fd), os.stat(path)):  # noqa: PTH116
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


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
            case _:
                advice = "check the disk and resume"
        raise StoreError(f"cannot use {error.filename or place}: {error.strerror}; {advice}") from error
