"""The commit that the code in a folder is at: read from git's files at once, whether it is changed from git, later."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.locks import locked
from holdfast.starting import started

FRESH = 1.0
"""How long, in seconds, what was read is taken to be so."""

OFTEN = 60.0
"""How often, in seconds, git is asked whether something is changed."""

_PATIENCE = 60.0
_MOST = 16 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Head(NamedTuple):
    """Where a working copy stands. `dirty` is `None` as long as nobody knows."""

    commit: str
    branch: str = ""
    dirty: bool | None = None


def read_head(folder: Path) -> Head | None:
    """The commit and the branch that a folder's working copy is at; `None` if it is none, or has no commit."""
    own = _git_folder(folder)
    text = "" if own is None else _read(own / "HEAD")
    if own is None or not text.startswith("ref: "):
        return Head(text) if _COMMIT.fullmatch(text) else None
    ref = text.removeprefix("ref: ")
    shared = own / (_read(own / "commondir") or ".")
    branch = ref.removeprefix("refs/heads/")
    for place in (own / ref, shared / ref):
        if _COMMIT.fullmatch(commit := _read(place)):
            return Head(commit, branch)
    for line in _read(shared / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref and _COMMIT.fullmatch(commit):
            return Head(commit, branch)
    return None


def _git_folder(folder: Path) -> Path | None:
    """Where git keeps what belongs to the working copy that a folder is in; a worktree's is elsewhere."""
    for place in (folder, *folder.parents):
        found = place / ".git"
        if found.is_dir():
            return found
        if found.is_file():
            named = _read(found)
            return place / named.removeprefix("gitdir: ") if named.startswith("gitdir: ") else None
    return None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""


class Repository:
    """What this process knows of the working copy that it works in. Asking never waits."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Begin anew, as a forked child does."""
        self._lock = threading.Lock()
        self._folder, self._head, self._read_at = "", None, float("-inf")
        self._asked_at, self._thread = float("-inf"), None
        self._is_asking = False
        self._dirty: tuple[str, str, bool] | None = None
        """Of which folder at which commit it is known whether it is changed."""
        self._waiting: list[Callable[[], None]] = []

    _head: Head | None
    _thread: threading.Thread | None

    def head(self) -> Head | None:
        """Where the working copy stands, as far as it is known."""
        return locked(self._lock, self._found, time.monotonic())

    def _found(self, now: float) -> Head | None:
        if now - self._read_at > FRESH:
            self._look(now)
        head = self._head
        if head is None:
            return None
        known = self._dirty
        if known is not None and known[:2] == (self._folder, head.commit):
            return head._replace(dirty=known[2])
        return head

    def _look(self, now: float) -> None:
        try:
            here = Path.cwd()
            folder, head = str(here), read_head(here)
        except OSError:
            folder, head = "", None
        is_other = (folder, head) != (self._folder, self._head)
        self._folder, self._head, self._read_at = folder, head, now
        is_due = now - self._asked_at > OFTEN or (is_other and self._asked_at == float("-inf"))
        if head is not None and is_due and not self._is_asking:
            self._ask(folder, head.commit, now)

    def _ask(self, folder: str, commit: str, now: float) -> None:
        import shutil

        git = shutil.which("git")
        self._asked_at = now
        if git is None:
            return
        asking = threading.Thread(
            target=self._status, args=(git, folder, commit), name="holdfast-git", daemon=True
        )
        try:
            started(asking)
        except (RuntimeError, MemoryError):
            return  # There can be no more threads, or the process is about to end.
        self._is_asking, self._thread = True, asking

    def _status(self, git: str, folder: str, commit: str) -> None:
        dirty = _is_changed(git, folder)
        if dirty is not None:
            self._dirty = (folder, commit, dirty)
        waiting = locked(self._lock, self._asked)
        for call in waiting if dirty is not None else ():
            call()

    def _asked(self) -> list[Callable[[], None]]:
        """Who waits to be told, now that there is an answer."""
        waiting, self._waiting, self._is_asking = self._waiting, [], False
        return waiting

    def when_known(self, call: Callable[[], None]) -> bool:
        """Have `call` called, from another thread, as soon as git has answered; `False` if it was not asked."""
        return locked(self._lock, self._kept, call)

    def _kept(self, call: Callable[[], None]) -> bool:
        if not self._is_asking:
            return False
        self._waiting.append(call)
        return True

    def forget(self, call: Callable[[], None]) -> None:
        """Have `call` called no more."""
        locked(self._lock, self._forget, call)

    def _forget(self, call: Callable[[], None]) -> None:
        self._waiting = [other for other in self._waiting if other != call]

    def settle(self, seconds: float) -> None:
        """Wait for git's answer, and until those who wait for it are told, for so long at most."""
        self.head()
        thread = self._thread
        if thread is not None:
            thread.join(seconds)


def _is_changed(git: str, folder: str) -> bool | None:
    """Whether files of a working copy are changed or new; `None` if git cannot tell."""
    # Neither locks that are in somebody's way nor programs that a working copy may name.
    command = [git, "--no-optional-locks", "-c", "core.fsmonitor=false", "status", "--porcelain"]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return bool(done.stdout.strip()) if done.returncode == 0 else None


repository = Repository()
