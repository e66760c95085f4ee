"""Running a command so that it never outlives its step: not a timeout, not Ctrl+C, not kill -9."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.flows.errors import StepFailed, StepTimedOut

MAX_OUTPUT = 10_000_000
KEPT_ERRORS = 64 * 1024
_TICK = 0.1
_GRACE = 2.0

# The command's process group ends with us: the watcher reads from a pipe that only we can write to. A line says that
# the command is over; the end of the pipe without one says that we are gone.
_GUARDED = (
    '(if read -r _; then exit 0; fi; kill -KILL -$$) <&9 >/dev/null 2>&1 & exec 9<&-; exec "$1" -c "$2"'
)


@dataclass
class Finished:
    """What a command left."""

    code: int
    stdout: str
    stderr: str


@dataclass
class Command:
    """A script for a shell, with what surrounds it."""

    script: str
    shell: str = "sh"
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout: float | None = None

    def run(self, stopped: Callable[[], bool], say: Callable[[str], None]) -> Finished:
        """Run it to its end. `say` is given each line of its standard error; a stop or a timeout ends it."""
        reading, writing = os.pipe()
        try:
            process = self._start(reading)
        except FileNotFoundError as error:
            os.close(writing)
            raise StepFailed(f"the command cannot be started: {error.strerror}: {error.filename}") from None
        finally:
            os.close(reading)
        try:
            return _Watch(process, self, stopped, say).finished()
        except BaseException:
            _kill(process)
            raise
        finally:
            with os.fdopen(writing, "wb") as pipe:
                _ignoring_broken_pipe(pipe.write, b"\n")
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    _ignoring_broken_pipe(stream.close)

    def _start(self, guard: int) -> subprocess.Popen[bytes]:
        def as_nine() -> None:
            os.dup2(guard, 9)

        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARDED, "sh", self.shell, self.script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.cwd,
            env=dict(self.env),
            start_new_session=True,
            pass_fds=(guard, 9) if guard != 9 else (9,),
            preexec_fn=as_nine if guard != 9 else None,
        )


class _Watch:
    """Reads what a command writes, within bounds, until it is over."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        command: Command,
        stopped: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self.process, self.command, self.stopped, self.say = process, command, stopped, say
        self.out, self.errors, self.line = bytearray(), bytearray(), bytearray()
        self.unsent = memoryview(command.stdin)

    def finished(self) -> Finished:
        process, deadline = self.process, None
        if self.command.timeout is not None:
            deadline = time.monotonic() + self.command.timeout
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, self._read_output)
            selector.register(process.stderr, selectors.EVENT_READ, self._read_errors)
            if self.unsent:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE, self._send)
            else:
                process.stdin.close()
            over_at: float | None = None
            while selector.get_map():
                for key, _ in selector.select(_TICK):
                    if not key.data():
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                if process.poll() is not None:
                    # What it left running in the background may keep its output open for ever.
                    over_at = over_at or time.monotonic()
                    if time.monotonic() - over_at > _GRACE / 4:
                        break
                self._look(deadline)
        while process.poll() is None:
            self._look(deadline)
            time.sleep(_TICK / 10)
        text = self.out.decode("utf-8", "replace")
        return Finished(process.returncode, text, self.errors.decode("utf-8", "replace"))

    def _look(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise StepTimedOut(f"the command took longer than {self.command.timeout:g} s and was ended")
        if self.stopped():
            raise StepFailed("the run is to stop, so the command was ended")

    def _read_output(self) -> bool:
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 65536)
        self.out += data
        if len(self.out) > MAX_OUTPUT:
            raise StepFailed(
                f"the command wrote more than {MAX_OUTPUT // 1_000_000} MB; write it to a file and print its name"
            )
        return bool(data)

    def _read_errors(self) -> bool:
        assert self.process.stderr is not None
        data = os.read(self.process.stderr.fileno(), 65536)
        self.errors += data
        del self.errors[:-KEPT_ERRORS]
        self.line += data
        *lines, rest = self.line.split(b"\n")
        self.line = bytearray(rest[-1000:])
        if lines:
            self.say(lines[-1][:1000].decode("utf-8", "replace"))
        return bool(data)

    def _send(self) -> bool:
        assert self.process.stdin is not None
        try:
            sent = os.write(self.process.stdin.fileno(), self.unsent[:65536])
        except BrokenPipeError:
            return False
        self.unsent = self.unsent[sent:]
        return len(self.unsent) > 0


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and all that it started: asked first, then made to."""
    for sign, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sign)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    _ignoring_broken_pipe(lambda: process.wait(0.1) if process.poll() is None else None)


def _ignoring_broken_pipe(action: Callable[..., object], *args: object) -> None:
    try:
        action(*args)
    except (BrokenPipeError, ProcessLookupError, subprocess.TimeoutExpired, ValueError):
        return
