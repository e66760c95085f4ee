"""The command line in a process of its own that need not start from nothing: forked off one that has imported it all.

Run as a program, this is the process to fork from. It starts no thread, opens no store, and only forks. Coverage
is measured in it and in what is forked off, there from the fork on: what each inherited, each would write again.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import coverage

from tests.processes import ROOT, unmeasured

_MEASURED = ["measured"] if "COVERAGE_PROCESS_CONFIG" in os.environ else []
_STREAMS = (("in", os.O_RDONLY), ("out", os.O_WRONLY), ("err", os.O_WRONLY))
_NEEDED = (
    "holdfast.workflows.workflow",
    "apsw",
    "pydantic",
    "jinja2",
    "rich.console",
    "rich.table",
    "rich.live",
)


class Warm:
    """Asks the process to fork. One call at a time; it ends when whoever started it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def call(
        self, arguments: list[str], folder: Path, given: str, env: dict[str, str], patience: float
    ) -> subprocess.CompletedProcess[str]:
        """The command line, run to its end in a folder, with this input and environment."""
        with self._lock, TemporaryDirectory() as place:
            files = {name: Path(place) / name for name, _ in _STREAMS}
            for path in files.values():
                path.write_text(given if path.name == "in" else "")
            streams = {name: str(path) for name, path in files.items()}
            code = self._ask(
                {"arguments": arguments, "folder": str(folder), "env": env, "patience": patience, **streams}
            )
            return subprocess.CompletedProcess(
                arguments, code, files["out"].read_text(), files["err"].read_text()
            )

    def _ask(self, asked: dict[str, Any]) -> int:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.cli.warm", *_MEASURED],
                cwd=ROOT,
                env=unmeasured(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process


WARM = Warm()


def serve(is_measured: bool) -> None:
    """Fork for each line of stdin, and print how the child ended."""
    measuring = _measuring()
    commands = importlib.import_module("holdfast.cli.commands")
    for module in pkgutil.iter_modules(commands.__path__, "holdfast.cli.commands."):
        importlib.import_module(module.name)
    for name in _NEEDED:
        importlib.import_module(name)
    measuring.stop()
    if is_measured:
        measuring.save()
    gc.collect()
    gc.freeze()  # What is there already, no child needs to look through, not even when it ends.
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            if "COVERAGE_PROCESS_CONFIG" in asked["env"]:
                atexit.register(measuring.save)
                measuring.start()
            _become(asked)
            return
        print(_end(pid, asked["patience"]), flush=True)


def _measuring() -> coverage.Coverage:
    """Started once, for that takes longer than most commands. It notes what ran; the suite knows of all the rest."""
    measuring = coverage.Coverage(
        data_file=str(ROOT / ".coverage"),
        data_suffix=True,
        config_file=False,
        branch=True,
        include=[str(ROOT / "src/holdfast/*")],
    )
    measuring.start()
    return measuring


def _end(pid: int, patience: float) -> int:
    handle = os.pidfd_open(pid)
    if not select.select([handle], [], [], patience)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(asked: dict[str, Any]) -> None:
    """What `python -m holdfast` is, from here on."""
    for number, (name, mode) in enumerate(_STREAMS):
        handle = os.open(asked[name], mode)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv, sys.path[0] = ["holdfast", *asked["arguments"]], asked["folder"]
    runpy.run_module("holdfast", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1:] == ["measured"])
