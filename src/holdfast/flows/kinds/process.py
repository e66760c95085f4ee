"""Running a command so that it never outlives its step: not a timeout, not Ctrl+C, not kill -9."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.engine.driving.context import StopSignal
from holdfast.flows.errors import StepFailed, StepTimedOut
from holdfast.flows.kinds.child import Child

MAX_OUTPUT = 10_000_000
KEPT_ERRORS = 64 * 1024
STOPPING = {"message": "stopping: the command is asked to end", "stopping": True}
"""What is said while a command of a step that is to stop is waited for."""
_LONGEST_LINE = 16 * 1024
_TICK = 0.1
_PATIENCE = 0.5
"""How long, in seconds, output may still come from what a command that is over left running."""


@dataclass
class Finished:
    """What a command left. Of a long standard error only the end is kept."""

    code: int
    stdout: str
    stderr: str


@dataclass
class Command:
    """A script for a shell, with what surrounds it. `scrub` takes secrets out of text before any of it is cut."""

    script: str
    shell: str = "sh"
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout: float | None = None
    scrub: Callable[[str], str] = field(default=lambda text: text)

    def run(self, stopped: Callable[[], bool], say: Callable[[Any], None]) -> Finished:
        """Run it to its end. `say` is given lines of its standard error, and `STOPPING` while it is waited for after
        a stop; a stop or a timeout ends it.
        """
        child = Child(self.script, self.shell, self.cwd or Path.cwd(), self.env)
        try:
            return _Watch(child, self, stopped, say).finished()
        except BaseException as error:
            try:
                if child.poll() is None and (stopped() or not isinstance(error, Exception)):
                    with contextlib.suppress(Exception):  # The step may be over for its run.
                        say(STOPPING)
            finally:
                child.kill()
            raise
        finally:
            child.release()


class _Watch:
    """Reads what a command writes, within bounds, until it is over."""

    def __init__(
        self, child: Child, command: Command, stopped: Callable[[], bool], say: Callable[[Any], None]
    ) -> None:
        self._child, self._command, self._stopped, self._say = child, command, stopped, say
        self._out, self._errors, self._line = bytearray(), bytearray(), bytearray()
        self._unsent = memoryview(command.stdin)
        self._deadline = None if command.timeout is None else time.monotonic() + command.timeout
        self._over_at: float | None = None

    def finished(self) -> Finished:
        child = self._child
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ, self._read_output)
            selector.register(child.stderr, selectors.EVENT_READ, self._read_errors)
            if self._unsent:
                os.set_blocking(child.stdin.fileno(), False)
                selector.register(child.stdin, selectors.EVENT_WRITE, self._send)
            else:
                child.stdin.close()
            while selector.get_map() and not self._is_long_over():
                for key, _ in selector.select(_TICK):
                    if not key.data():
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                self._look()
        code = self._wait()
        errors = self._command.scrub(self._errors.decode("utf-8", "replace"))
        return Finished(code, self._out.decode("utf-8", "replace"), errors[-KEPT_ERRORS:])

    def _is_long_over(self) -> bool:
        """Whether the command is over, and whoever has its output open has had the time to write."""
        if self._child.poll() is None:
            return False
        self._over_at = self._over_at or time.monotonic()
        return time.monotonic() - self._over_at > _PATIENCE

    def _wait(self) -> int:
        nap = 0.0005
        while (code := self._child.poll()) is None:
            self._look()
            time.sleep(nap)
            nap = min(2 * nap, _TICK)
        return code

    def _look(self) -> None:
        """Leave a command that takes too long, or whose run is to stop."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise StepTimedOut(f"the command took longer than {self._command.timeout:g} s and was ended")
        if self._stopped():
            raise StopSignal

    def _read_output(self) -> bool:
        data = os.read(self._child.stdout.fileno(), 65536)
        self._out += data
        if len(self._out) > MAX_OUTPUT:
            raise StepFailed(
                f"the command wrote more than {MAX_OUTPUT // 1_000_000} MB; write it to a file and print its name"
            )
        return bool(data)

    def _read_errors(self) -> bool:
        data = os.read(self._child.stderr.fileno(), 65536)
        # Twice of what is shown: a secret that is cut in two at the beginning could not be recognised.
        self._errors += data
        del self._errors[: -2 * KEPT_ERRORS]
        self._line += data
        *lines, rest = self._line.split(b"\n")
        self._line = bytearray(rest[:_LONGEST_LINE])
        if lines:
            line = self._command.scrub(lines[-1][:_LONGEST_LINE].decode("utf-8", "replace"))
            self._say(line[:1000])
        return bool(data)

    def _send(self) -> bool:
        try:
            sent = os.write(self._child.stdin.fileno(), self._unsent[:65536])
        except BrokenPipeError:
            return False
        self._unsent = self._unsent[sent:]
        return len(self._unsent) > 0
