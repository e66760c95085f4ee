"""A small tracer: stops a process at the system calls that change files, and may kill it, or fail them, there.

`trace(work, watch)` forks a child that does `work()` and asks `watch` about each such call of any of its
threads and children. `count_syncs(command)` only counts. Needs nothing but Linux on x86_64: a seccomp filter
stops at the interesting calls alone, so that the rest of the program runs at full speed.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn

_CALLS = {
    1: "write",
    2: "open",
    18: "pwrite64",
    20: "writev",
    26: "msync",
    40: "sendfile",
    74: "fsync",
    75: "fdatasync",
    76: "truncate",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    85: "creat",
    86: "link",
    87: "unlink",
    162: "sync",
    257: "openat",
    258: "mkdirat",
    263: "unlinkat",
    264: "renameat",
    265: "linkat",
    277: "sync_file_range",
    285: "fallocate",
    296: "pwritev",
    306: "syncfs",
    316: "renameat2",
    326: "copy_file_range",
    328: "pwritev2",
}
_NUMBERS = {name: number for number, name in _CALLS.items()}
WRITES = frozenset({"write", "pwrite64", "writev", "pwritev", "pwritev2"})
SYNCS = frozenset({"fsync", "fdatasync", "sync_file_range", "msync", "sync", "syncfs"})
_ON_DESCRIPTORS = WRITES | {"fsync", "fdatasync", "sync_file_range", "syncfs", "ftruncate", "fallocate"}
_OPENS = {"open": 1, "openat": 2}
"""Which argument of these calls holds the flags."""
_PATHS: dict[str, tuple[tuple[int | None, int], ...]] = {
    "open": ((None, 0),),
    "creat": ((None, 0),),
    "openat": ((0, 1),),
    "truncate": ((None, 0),),
    "rename": ((None, 0), (None, 1)),
    "renameat": ((0, 1), (2, 3)),
    "renameat2": ((0, 1), (2, 3)),
    "link": ((None, 0), (None, 1)),
    "linkat": ((0, 1), (2, 3)),
    "unlink": ((None, 0),),
    "unlinkat": ((0, 1),),
    "mkdir": ((None, 0),),
    "mkdirat": ((0, 1),),
    "rmdir": ((None, 0),),
}
"""Where the paths of a call are: the argument with the folder's descriptor, if any, and that with the name."""

_TRACEME, _CONT, _KILL, _GETREGS, _SETREGS, _SYSCALL = 0, 7, 8, 12, 13, 24
_SETOPTIONS, _GETEVENTMSG, _LISTEN = 0x4200, 0x4201, 0x4208
_FOLLOW_ALL = 0x02 | 0x04 | 0x08 | 0x10
"""Forks, vforks, clones and executions."""
_OPTIONS = _FOLLOW_ALL | 0x01 | 0x80 | 0x100000
"""And: marked stops at the ends of calls, stops of the filter, and no child outlives its tracer."""
_EVENT_SECCOMP, _EVENT_STOP = 7, 128
_CALL_STOP = signal.SIGTRAP | 0x80
_WALL = 0x40000000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
_X86_64 = 0xC000003E
_RAX, _R10, _R9, _R8, _RDX, _RSI, _RDI, _ORIG_RAX = 10, 7, 9, 8, 12, 13, 14, 15
_ARGUMENTS = (_RDI, _RSI, _RDX, _R10, _R8, _R9)
_REGISTERS = ctypes.c_ulonglong * 27
_AT_CWD = -100
_CREATING = os.O_CREAT | os.O_TRUNC
_SYNCED_WRITES = os.O_DSYNC | (os.O_SYNC & ~os.O_DSYNC)
_RWF_SYNCED = 0x02 | 0x04


class Untraceable(Exception):
    """This machine or this command cannot be traced."""


class Verdict(Enum):
    """What becomes of a call: it happens, wholly or in part, or the process dies right before or after it."""

    PASS = "pass"
    SHORT = "short"
    KILL_BEFORE = "kill before"
    KILL_AFTER = "kill after"


@dataclass(frozen=True)
class Fail:
    """The call does not happen, and the process gets this error."""

    errno: int


@dataclass(frozen=True)
class Call:
    """One system call of a thread that is stopped before it, or, in `heard`, right after it."""

    tid: int
    name: str
    args: tuple[int, ...]

    def paths(self) -> tuple[str, ...]:
        """The files it is about: by their names, or by what the descriptor was opened as."""
        if self.name in _ON_DESCRIPTORS:
            return (self.path_of(self.args[0]),)
        if self.name in ("copy_file_range", "sendfile"):
            return (self.path_of(self.args[2 if self.name == "copy_file_range" else 0]),)
        return tuple(self._named(*where) for where in _PATHS.get(self.name, ()))

    def path_of(self, descriptor: int) -> str:
        try:
            return str(Path(f"/proc/{self.tid}/fd/{descriptor}").readlink())
        except OSError:
            return ""

    def flags(self) -> int:
        """The flags of an `open`."""
        if self.name == "creat":
            return _CREATING
        return self.args[_OPENS[self.name]]

    def data(self) -> bytes:
        """The bytes that a write is to write."""
        if self.name in ("write", "pwrite64"):
            return self._memory(self.args[1], self.args[2])
        vector = self._memory(self.args[1], 16 * self.args[2])
        return b"".join(self._memory(base, size) for base, size in struct.iter_unpack("=QQ", vector))

    def offset(self) -> int:
        """Where in its file a write begins."""
        if self.name not in ("write", "writev"):
            return self.args[3]
        fields = Path(f"/proc/{self.tid}/fdinfo/{self.args[0]}").read_text().split()
        if int(fields[fields.index("flags:") + 1], 8) & os.O_APPEND:
            return os.stat(f"/proc/{self.tid}/fd/{self.args[0]}").st_size  # noqa: PTH116
        return int(fields[fields.index("pos:") + 1])

    def is_synced_write(self) -> bool:
        """Whether a write returns only when it is on the disk."""
        if self.name == "pwritev2" and self.args[5] & _RWF_SYNCED:
            return True
        try:
            fields = Path(f"/proc/{self.tid}/fdinfo/{self.args[0]}").read_text().split()
        except OSError:
            return False
        return bool(int(fields[fields.index("flags:") + 1], 8) & _SYNCED_WRITES)

    def _named(self, folder: int | None, place: int) -> str:
        name = os.fsdecode(self._text(self.args[place]))
        if name.startswith("/"):
            return os.path.normpath(name)
        descriptor = _AT_CWD if folder is None else ctypes.c_int(self.args[folder]).value
        where = (
            str(Path(f"/proc/{self.tid}/cwd").readlink())
            if descriptor == _AT_CWD
            else self.path_of(descriptor)
        )
        return os.path.normpath(f"{where}/{name}")

    def _memory(self, address: int, size: int) -> bytes:
        memory = os.open(f"/proc/{self.tid}/mem", os.O_RDONLY)
        try:
            return os.pread(memory, size, address) if size else b""
        finally:
            os.close(memory)

    def _text(self, address: int) -> bytes:
        found = b""
        while b"\0" not in found:
            room = (
                4096 - (address + len(found)) % 4096
            )  # Never across the end of a page that may be the last.
            found += self._memory(address + len(found), room)
        return found.partition(b"\0")[0]


Watch = Callable[[Call], Verdict | Fail]
Heard = Callable[[Call, int], None]


def trace(work: Callable[[], None], watch: Watch, heard: Heard | None = None) -> int:
    """Do `work` in a forked process under watch; its exit code, negative for the signal that killed it.

    `watch` decides what happens to each interesting call; `heard` gets the results of those that happened. The
    caller has no other children.
    """
    child = _forked(work, _CALLS)
    return _Tracer(child, watch, heard).run()


def _forked(work: Callable[[], None], names: Iterable[int]) -> int:
    _check_machine()
    program = _program(names)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _be_traced(program)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, _WALL)
    if not os.WIFSTOPPED(status):
        raise Untraceable(
            "the process to be traced died before it began; is ptrace or seccomp forbidden here?"
        )
    _ptrace(_SETOPTIONS, child, _OPTIONS)
    _ptrace(_CONT, child, 0)
    return child


class _Tracer:
    """Waits for stops of a process and all that it starts, and lets them go on."""

    def __init__(self, child: int, watch: Watch, heard: Heard | None) -> None:
        self.child, self.watch, self.heard = child, watch, heard
        self.under_way: dict[int, tuple[Call, Verdict | Fail]] = {}

    def run(self) -> int:
        code = None
        while True:
            try:
                tid, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                if code is None:
                    raise Untraceable("the traced process is gone") from None
                return code
            if os.WIFSTOPPED(status):
                self._stopped(tid, status)
            elif tid == self.child:
                code = os.waitstatus_to_exitcode(status)

    def _stopped(self, tid: int, status: int) -> None:
        stop, event = os.WSTOPSIG(status), status >> 16
        try:
            if event == _EVENT_SECCOMP:
                self._before(tid)
            elif stop == _CALL_STOP:
                self._after(tid)
            elif event:
                _ptrace(_CONT, tid, 0)
            else:
                # A new thread begins with a stop that nobody sent.
                _ptrace(_CONT, tid, 0 if stop == signal.SIGSTOP else stop)
        except ProcessLookupError:
            self.under_way.pop(tid, None)  # Killed while it was stopped.

    def _before(self, tid: int) -> None:
        registers = _registers(tid)
        call = Call(
            tid,
            _CALLS[registers[_ORIG_RAX]],
            tuple(_signed(registers[place]) for place in _ARGUMENTS),
        )
        verdict = self.watch(call)
        if verdict is Verdict.KILL_BEFORE:
            self._kill(tid)
            return
        if verdict is Verdict.SHORT and call.name in ("write", "pwrite64") and call.args[2] > 1:
            registers[_RDX] = call.args[2] // 2
            _ptrace_registers(_SETREGS, tid, registers)
        elif isinstance(verdict, Fail):
            registers[_ORIG_RAX] = ctypes.c_ulonglong(-1).value
            registers[_RAX] = ctypes.c_ulonglong(-verdict.errno).value
            _ptrace_registers(_SETREGS, tid, registers)
        if self.heard is None and verdict is not Verdict.KILL_AFTER:
            _ptrace(_CONT, tid, 0)
        else:
            self.under_way[tid] = (call, verdict)
            _ptrace(_SYSCALL, tid, 0)

    def _after(self, tid: int) -> None:
        call, verdict = self.under_way.pop(tid)
        if verdict is Verdict.KILL_AFTER:
            self._kill(tid)
            return
        if self.heard is not None:
            self.heard(call, _signed(_registers(tid)[_RAX]))
        _ptrace(_CONT, tid, 0)

    def _kill(self, tid: int) -> None:
        """Kill the process of a thread; the kernel does not begin a call that is stopped at its filter."""
        fields = Path(f"/proc/{tid}/status").read_text().split()
        os.kill(int(fields[fields.index("Tgid:") + 1]), signal.SIGKILL)


def count_syncs(command: list[str]) -> dict[str, int]:
    """Run a command and count what it asks of the disk, by the name of the call; all its threads and children.

    Writes to files that were opened with `O_DSYNC` or `O_SYNC` count as `O_DSYNC writes`.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "counts.json"
        done = subprocess.run([sys.executable, __file__, str(answer), *command], check=False)
        if not answer.exists():
            raise Untraceable(f"{command[0]} could not be traced; see above")
        if done.returncode:
            raise Untraceable(f"{' '.join(command)} ended with {done.returncode}")
        counts: dict[str, int] = json.loads(answer.read_text())
        return counts


def _count(command: list[str]) -> tuple[dict[str, int], int]:
    counts: Counter[str] = Counter()
    opened_for_synced_writes = False

    def watch(call: Call) -> Verdict:
        nonlocal opened_for_synced_writes
        if call.name in SYNCS:
            counts[call.name] += 1
        elif call.name in _OPENS:
            opened_for_synced_writes |= bool(call.flags() & _SYNCED_WRITES)
        elif call.name == "pwritev2" or (opened_for_synced_writes and call.name in WRITES):
            counts["O_DSYNC writes"] += call.is_synced_write()
        return Verdict.PASS

    interesting = SYNCS | WRITES | set(_OPENS)
    child = _forked(lambda: _execute(command), (_NUMBERS[name] for name in interesting))
    code = _Tracer(child, watch, None).run()
    return dict(+counts), code


def _execute(command: list[str]) -> NoReturn:
    os.execvp(command[0], command)


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Untraceable(
            f"the tracer knows Linux on x86_64 only, not {sys.platform} on {platform.machine()}; "
            "run this proof on such a machine"
        )


def _program(numbers: Iterable[int]) -> bytes:
    """The filter: stop at these calls; at `open` only where a file may be made, emptied, or written at once."""

    def one(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("=HBBI", code, then, otherwise, value)

    load, equal, has_bits, answer = 0x20, 0x15, 0x45, 0x06
    lines = [one(load, 4), one(equal, _X86_64, 1, 0), one(answer, _ALLOW), one(load, 0)]
    for number in sorted(numbers):
        name = _CALLS[number]
        if name in _OPENS:
            flags = 16 + 8 * _OPENS[name]
            lines += [
                one(equal, number, 0, 4),
                one(load, flags),
                one(has_bits, _CREATING | _SYNCED_WRITES, 0, 1),
                one(answer, _TRACE),
                one(answer, _ALLOW),
            ]
        else:
            lines += [one(equal, number, 0, 1), one(answer, _TRACE)]
    return b"".join([*lines, one(answer, _ALLOW)])


def _be_traced(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))

    given = Program(len(program) // 8, program)
    _ptrace(_TRACEME, 0, 0)
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    # The stop comes first: without a tracer that knows of the filter its calls would fail.
    os.kill(os.getpid(), signal.SIGSTOP)
    _checked(_libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(given), 0, 0), "prctl")


def _registers(tid: int) -> ctypes.Array[ctypes.c_ulonglong]:
    registers = _REGISTERS()
    _ptrace_registers(_GETREGS, tid, registers)
    return registers


def _ptrace_registers(request: int, tid: int, registers: ctypes.Array[ctypes.c_ulonglong]) -> None:
    _checked(_libc.ptrace(request, tid, None, ctypes.addressof(registers)), "ptrace")


def _ptrace(request: int, tid: int, data: int) -> None:
    _checked(_libc.ptrace(request, tid, None, data), "ptrace")


def _checked(answer: int, what: str) -> None:
    if answer < 0:
        number = ctypes.get_errno()
        if number == errno.ESRCH:
            raise ProcessLookupError(number, os.strerror(number))
        raise Untraceable(f"{what}: {os.strerror(number)}")


def _signed(value: int) -> int:
    return ctypes.c_longlong(value).value


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)


def main() -> int:
    found, code = _count(sys.argv[2:])
    Path(sys.argv[1]).write_text(json.dumps(found))
    return code


if __name__ == "__main__":
    sys.exit(main())
