"""`shell`: a command; JSON on its standard output becomes data."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import selectors
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.engine.context import Context, StopSignal
from holdfast.errors import HoldfastError
from holdfast.state.state import State
from holdfast.workflows.kinds.kind import Kind, Result, Text, read_json, write_json
from holdfast.workflows.model import Step
from holdfast.workflows.scope import Resources, StepFailed, StepTimedOut
from holdfast.workflows.scripts import safe_script

# One shell at work on a script: its pipes, its end, and a guard that ends it when we are gone.


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
        """Return the code that it ended with, a signal's number below zero; `None` while it runs."""
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
        for number, grace in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self._pid, number)
            except (ProcessLookupError, PermissionError):
                break
            until, nap = time.monotonic() + grace, 0.001
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
    """Return the same descriptor under a number that a command is not given, should it have one of those."""
    if end >= _ABOVE:
        return end
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(end)
    return moved


def _close(ends: Iterable[int]) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


# Running a command so that it never outlives its step: not a timeout, not Ctrl+C, not kill -9.


MAX_OUTPUT = 10_000_000
KEPT_ERRORS = 64 * 1024
STOPPING = {"message": "stopping: the command is asked to end", "stopping": True}
"""What is said while a command of a step that is to stop is waited for."""
_LONGEST_LINE = 16 * 1024
_TICK = 0.1
_DRAIN_SECONDS = 0.5
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
            over_at = math.inf
            # What a command that is over left running has a little time to write.
            while selector.get_map() and time.monotonic() - over_at <= _DRAIN_SECONDS:
                over_at = time.monotonic() if over_at == math.inf and child.poll() is not None else over_at
                for key, _ in selector.select(_TICK):
                    if not key.data():
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                self._look()
        nap = 0.0005
        while (code := child.poll()) is None:
            self._look()
            time.sleep(nap)
            nap = min(2 * nap, _TICK)
        errors = self._command.scrub(self._errors.decode("utf-8", "replace"))
        return Finished(code, self._out.decode("utf-8", "replace"), errors[-KEPT_ERRORS:])

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


class RunCommand(Kind):
    """Runs a script in the workflow's folder. Values arrive as variables, so they are never run as code."""

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        assert step.shell is not None
        self._shell, self._scrub = step.shell, resources.scrubber.scrub

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        done = self._command(scope, ctx).run(lambda: ctx.cancelled, ctx.emit)
        if done.code in self._shell.ok_codes:
            return {"output": self._data(done.stdout), "exit_code": done.code, "stderr": done.stderr}
        how = f"ended with code {done.code}" if done.code >= 0 else f"was ended by signal {-done.code}"
        said = done.stderr.strip() or str(self._scrub(done.stdout)).strip()
        tail = "\n".join(said.splitlines()[-10:])[-2000:]
        raise StepFailed(f"the command {how}{': ' + tail if tail else ''}")

    def _command(self, scope: Mapping[str, Any], ctx: Context) -> Command:
        env = {**self._resources.command_env(), **self.fill("env", scope)}
        text, stdin = self._fields["run"], self.fill("stdin", scope)
        assert isinstance(text, Text)
        try:
            script, values = safe_script(text.template, scope, self._shell.programs, env)
        except HoldfastError as error:
            raise StepFailed(f"{text.field}: {error}") from None
        folder = self._resources.base / (self.fill("cwd", scope) or "")
        if not folder.is_dir():
            raise StepFailed(
                f"shell.cwd: there is no folder {folder} to run the command in; "
                "the path is relative to the workflow file"
            )
        facts = {"RUN_ID": ctx.run_id, "STEP": ctx.step, "IDEMPOTENCY_KEY": ctx.idempotency_key}
        if stdin is None or isinstance(stdin, str):
            sent = (stdin or "").encode(errors="replace")
        else:
            sent = write_json(stdin, "shell.stdin")
        return Command(
            script,
            shell=self._shell.shell,
            cwd=folder,
            env={**env, **values, **{f"HOLDFAST_{name}": value for name, value in facts.items()}},
            stdin=sent,
            timeout=self._step.timeout,
            scrub=self._scrub,
        )

    def _data(self, text: str) -> Any:
        form = self._shell.output
        if form == "text":
            return text
        if form == "lines":
            return text.removesuffix("\n").split("\n") if text else []
        try:
            return read_json(text)
        except ValueError as error:
            if form == "auto":
                return text.removesuffix("\n").removesuffix("\r")
            shown = str(self._scrub(text))[:200]
            raise StepFailed(
                f"shell.output: the command was to print JSON and did not ({error}): {shown!r}"
            ) from None
