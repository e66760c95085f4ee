"""A PostgreSQL server of one's own: started for a folder when it is needed, stopped by the last who used it."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import StoreError
from holdfast.stores.postgres.programs import Programs

SUPERUSER = "postgres"
PORT = 5432

_LONGEST_SOCKET = 100
"""Bytes; systems allow a little more."""

_SETTINGS = "listen_addresses = ''\nlogging_collector = off\n"


@dataclass
class _Use:
    """That this process uses a server: how many stores do, and the lock that tells other processes."""

    count: int
    lock: int


_uses: dict[Path, _Use] = {}
_mutex = threading.RLock()


class EmbeddedServer:
    """The server whose data is in `folder/data`. Processes that use it share a lock, which a killed one loses.

    So whoever leaves and can have the lock alone knows that it was the last, and stops the server. One that
    was killed last leaves the server running until somebody comes, and leaves.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.socket_folder = _socket_folder(self.data)
        self._entered_by = 0

    def enter(self) -> None:
        """Use the server from now on: start it, or join those who use it already.

        Asked before every connection: a folder in the temporary directory may have been swept away, and be another's.
        """
        if self.socket_folder != self.data and os.path.lexists(self.socket_folder):
            Programs.find().check_private(self.socket_folder)
        if self._entered_by == os.getpid():
            return
        with _mutex:
            use = _uses.get(self.folder)
            if use is None:
                use = _uses[self.folder] = _Use(0, self._join())
            use.count += 1
            self._entered_by = os.getpid()

    def leave(self) -> None:
        """Use the server no longer; the last to leave stops it."""
        if self._entered_by != os.getpid():
            return
        with _mutex:
            self._entered_by = 0
            use = _uses.get(self.folder)
            if use is None:
                return
            use.count -= 1
            if use.count <= 0:
                del _uses[self.folder]
                self._part(use.lock)

    def revive(self) -> None:
        """Start the server again if it died."""
        with _mutex, self._alone():
            self._start()

    def _join(self) -> int:
        """Tell others that this process uses the server, which then runs; the lock that tells it."""
        programs = self._prepared()
        with self._alone():
            lock = os.open(self.folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                self._create(programs)
                self._start()
            except BaseException:
                os.close(lock)
                raise
        return lock

    def _part(self, lock: int) -> None:
        try:
            with self._alone():
                try:
                    # Letting go first: a lock that was inherited by a child counts as this one.
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
                self._stop()
        finally:
            os.close(lock)

    def _prepared(self) -> Programs:
        """The folder, and the programs for what is in it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            version = (self.data / "PG_VERSION").read_text().strip() if self.data.exists() else ""
        except OSError as error:
            raise StoreError(f"cannot use {self.folder} for a server: {error.strerror}") from error
        programs = Programs.find(version)
        programs.check_way_to(self.folder)
        return programs

    def _create(self, programs: Programs) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        fresh = self.folder / "data.new"
        programs.make_folder(fresh, emptied=True)
        programs.run(
            "initdb",
            "-D",
            str(fresh),
            "-U",
            SUPERUSER,
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
        )
        with (fresh / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS)
        fresh.rename(self.data)

    def _start(self) -> None:
        programs = self._prepared()
        if self.socket_folder != self.data:
            # Before anybody connects: whoever owns the folder decides who answers there.
            programs.make_folder(self.socket_folder)
        if _accepts(self.socket_folder):
            return
        options = f"-c port={PORT} -c unix_socket_directories={shlex.quote(str(self.socket_folder))}"
        log = self.data / "server.log"
        programs.run(
            "pg_ctl", "start", "-w", "-t", "300", "-D", str(self.data), "-l", str(log), "-o", options, log=log
        )

    def _stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            Programs.find((self.data / "PG_VERSION").read_text().strip()).run(
                "pg_ctl", "stop", "-w", "-t", "300", "-m", "fast", "-D", str(self.data)
            )
        if self.socket_folder != self.data:
            with suppress(OSError):
                self.socket_folder.rmdir()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While this block runs, no other process starts or stops the server."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _socket_folder(data: Path) -> Path:
    """Where the server's socket is: with its data, or elsewhere if that path is too long for a socket."""
    if len(os.fsencode(data / f".s.PGSQL.{PORT}")) <= _LONGEST_SOCKET:
        return data
    digest = hashlib.blake2b(os.fsencode(data), digest_size=8).hexdigest()
    return Path("/tmp") / f"holdfast-{os.geteuid()}-{digest}"


def _accepts(folder: Path) -> bool:
    """Whether a server listens there."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(folder / f".s.PGSQL.{PORT}"))
        return True
    return False


def _leave_all() -> None:
    with _mutex:
        left = list(_uses.items())
        _uses.clear()
    for folder, use in left:
        with suppress(StoreError, OSError):
            EmbeddedServer(folder)._part(use.lock)


def _after_fork() -> None:
    """A child uses no server until it enters one; closing its copies leaves its parent's locks alone."""
    global _mutex
    _mutex = threading.RLock()
    for use in _uses.values():
        os.close(use.lock)
    _uses.clear()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_after_fork)
