"""One shell at work on a script: its pipes, its end, and a guard that ends it when we are gone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from holdfast.flows.errors import StepFailed

GRACE = 2.0
"""How long, in seconds, a command that is to end may take before it is made to."""

_ABOVE = 10
"""The first descriptor that is none of those a command is given."""

# The process group ends with us: the watcher reads from a pipe that only we can write to. A line says that the command
# is over; the end of the pipe without one says that we are gone. It is no child of the command, which may wait for its
# own.
_GUARDED = (
    "( (read -r _ || kill -KILL -$$) <&9 >/dev/null 2>&1 & ); exec 9<&-; "
    'cd -- "$2" || exit 126; exec "$1" -c "$3"'
)


class Child:
    """A process group of its own. It is spawned without running any code of ours in it, as threads require."""

    def __init__(self, script: str, shell: str, folder: Path, env: Mapping[str, str]) -> None:
        program = shutil.which(shell, path=env.get("PATH", os.defpath)) or shutil.which(shell, path="/bin")
        if program is None:
            raise StepFailed(f"there is no {shell!r} on the PATH; install it, or choose another shell")
        pipes = _pipes(4)
        theirs = {0: pipes[0][0], 1: pipes[1][1], 2: pipes[2][1], 9: pipes[3][0]}
        ours = [pipes[0][1], pipes[1][0], pipes[2][0], pipes[3][1]]
        try:
            self._pid = _spawned([program, str(folder.absolute()), script], env, theirs)
        except BaseException:
            _close(ours)
            raise
        finally:
            _close(theirs.values())
        self._code: int | None = None
        self.stdin: BinaryIO = os.fdopen(ours[0], "wb", 0)
        self.stdout: BinaryIO = os.fdopen(ours[1], "rb", 0)
        self.stderr: BinaryIO = os.fdopen(ours[2], "rb", 0)
        self._guard: BinaryIO = os.fdopen(ours[3], "wb", 0)

    def poll(self) -> int | None:
        """The code that it ended with, a signal's number below zero; `None` while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                self._code = 0  # Somebody else waited for it, and keeps to himself how it ended.
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def kill(self) -> None:
        """End it and all that it started: asked first, then made to."""
        for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self._pid, number)
            except (ProcessLookupError, PermissionError):
                break
            self._wait(patience)

    def _wait(self, patience: float) -> None:
        until, nap = time.monotonic() + patience, 0.001
        while self.poll() is None and time.monotonic() < until:
            time.sleep(nap)
            nap = min(2 * nap, 0.05)

    def release(self) -> None:
        """Close the pipes. What it left running in the background goes on, unless it is itself not over."""
        if self.poll() is not None:
            with contextlib.suppress(OSError):
                self._guard.write(b"\n")
        for pipe in (self.stdin, self.stdout, self.stderr, self._guard):
            with contextlib.suppress(OSError):
                pipe.close()


def _spawned(arguments: list[str], env: Mapping[str, str], ends: Mapping[int, int]) -> int:
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _GUARDED, "sh", *arguments],
            env,
            file_actions=[
                *((os.POSIX_SPAWN_CLOSE, number) for number in _inheritable()),
                *((os.POSIX_SPAWN_DUP2, end, number) for number, end in ends.items()),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise StepFailed(
                "the script or a value in it is too long for a command; hand large values over with `stdin`"
            ) from None
        raise StepFailed(f"the command cannot be started: {error.strerror}") from None
    except ValueError as error:
        raise StepFailed(f"the command cannot be started: {error}") from None


def _pipes(count: int) -> list[tuple[int, int]]:
    """Pipes to read from and to write to, none of them inherited unless it is said so."""
    found: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            found.append(os.pipe())
            found[-1] = (_moved(found[-1][0]), _moved(found[-1][1]))
    except OSError as error:
        _close(end for pipe in found for end in pipe)
        raise StepFailed(f"the command cannot be started: {error.strerror}", transient=True) from None
    return found


def _inheritable() -> list[int]:
    """Descriptors that we were given ourselves and that are no business of a command."""
    found = []
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError, ValueError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def _moved(end: int) -> int:
    """The same descriptor under a number that a command is not given, should it have one of those."""
    if end >= _ABOVE:
        return end
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(end)
    return moved


def _close(ends: Iterable[int]) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)
