"""Runs the programs for other systems that the pages "Coming from …" show, and compares what they print.

    python docs/try_peers.py --environments .peers            all of them; installs what is missing there
    python docs/try_peers.py --environments .peers prefect    only this one

Each system gets an environment of its own below the folder, because their requirements contradict each other. Of each
page, the commands that it shows for after.py are called for before.py. Temporal needs a server, which pip does not
bring: without one on this machine the program is imported, and its activity is called.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PAGES = Path(__file__).parent / "howto"
REQUIREMENTS = {
    "dbos": ("dbos==3.3.0",),
    "langgraph": ("langgraph==1.2.20", "langgraph-checkpoint-sqlite==3.1.2"),
    "prefect": ("prefect==3.8.8", "fastapi<0.140"),
    "temporal": ("temporalio==1.35.0",),
}
"""What is installed for each page."""

SERVER = ("localhost", 7233)
QUIET = {
    "PYTHONUNBUFFERED": "1",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
IMPORTED = """
import asyncio
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer
from before import Report, fetch
Replayer(workflows=[Report])
print(asyncio.run(ActivityEnvironment().run(fetch, "ebb")))
"""

_PROGRAM = re.compile(r'^```python title="before.py"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Wrong(Exception):
    """A program did not do what its page shows."""


def page_of(peer: str) -> str:
    return (PAGES / f"coming-from-{peer}.md").read_text("utf-8")


def program_of(peer: str) -> str:
    """Return the program that a page shows for the other system."""
    found = _PROGRAM.search(page_of(peer))
    assert found is not None, f"the page on {peer} shows no before.py"
    return found[1]


def calls_of(peer: str) -> list[tuple[str, list[str]]]:
    """Return what each command of a page kills, if it does, and what the program prints."""
    found: list[tuple[str, list[str]]] = []
    block = _CONSOLE.search(page_of(peer))
    assert block is not None, f"the page on {peer} shows no commands"
    for line in block[1].splitlines():
        if line.startswith("$ "):
            killed = re.match(r"\$ CRASH=(\w+) ", line)
            found.append((killed[1] if killed else "", []))
        else:
            found[-1][1].append(line)
    return found


def call(command: list[str], folder: Path, crash: str = "") -> tuple[int, list[str]]:
    """Return how a program ended and what it printed; what it left running is ended."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = inherited | QUIET | {"PREFECT_HOME": str(folder / "prefect")}
    environment |= {"CRASH": crash} if crash else {}
    with (folder / "printed").open("w+", encoding="utf-8") as printed, (folder / "log").open("w") as log:
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=printed, stderr=log, start_new_session=True
        )
        try:
            code = child.wait(300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        printed.seek(0)
        return code, printed.read().splitlines()


def try_program(peer: str, python: str) -> None:
    """Raise if the program for a system does not print what its page shows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "before.py").write_text(program_of(peer), "utf-8")
        if peer == "temporal" and not has_server():
            _expect(folder, [python, "-c", IMPORTED], "", ["fetched ebb", "EBB"])
            return
        for crash, shown in calls_of(peer):
            _expect(folder, [python, "before.py"], crash, shown)


def _expect(folder: Path, command: list[str], crash: str, shown: list[str]) -> None:
    code, printed = call(command, folder, crash)
    expected = -signal.SIGKILL if crash else 0
    if (code, printed) != (expected, shown):
        log = (folder / "log").read_text("utf-8", "replace")[-2000:]
        raise Wrong(f"ended with {code} instead of {expected}, printed {printed} instead of {shown}\n{log}")


def has_server() -> bool:
    """Return True if something listens where a Temporal server would."""
    try:
        socket.create_connection(SERVER, timeout=1).close()
    except OSError:
        return False
    return True


def install(peer: str, environments: Path) -> str:
    """Return the interpreter of an environment that has a system, made unless it is there and complete."""
    folder, wanted = environments / peer, "\n".join(REQUIREMENTS[peer])
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists() or installed.read_text("utf-8") != wanted:
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]]
        if subprocess.run(command).returncode:
            raise SystemExit(f"cannot install {', '.join(REQUIREMENTS[peer])} into {folder}")
        installed.write_text(wanted, "utf-8")
    return str(python.absolute())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "peers", nargs="*", metavar="PEER", help=f"of {', '.join(REQUIREMENTS)}; all if none is named"
    )
    parser.add_argument(
        "--environments", type=Path, required=True, metavar="DIR", help="where they are installed"
    )
    options = parser.parse_args()
    unknown = {*options.peers} - {*REQUIREMENTS}
    if unknown:
        parser.error(f"no page on {', '.join(sorted(unknown))}; there are {', '.join(REQUIREMENTS)}")
    wrong = 0
    for peer in options.peers or REQUIREMENTS:
        python = install(peer, options.environments)
        try:
            try_program(peer, python)
        except Wrong as error:
            wrong += 1
            sys.stdout.write(f"{peer}: {error}\n")
        else:
            partly = peer == "temporal" and not has_server()
            sys.stdout.write(
                f"{peer}: {'imported; it needs a server' if partly else 'does what its page shows'}\n"
            )
    raise SystemExit(wrong)


if __name__ == "__main__":
    main()
