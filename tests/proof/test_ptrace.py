"""The tracer sees what a process asks of the disk, and can kill it there, or fail it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT, unmeasured
from tests.proof.ptrace import Untraceable, count_syncs

TRACED = """
import errno, json, os, sys, threading
from tests.proof.ptrace import Fail, Verdict, trace

folder, fault, at = sys.argv[1], sys.argv[2], sys.argv[3]
VERDICTS = {"fail": Fail(errno.ENOSPC), "short": Verdict.SHORT, "before": Verdict.KILL_BEFORE,
            "after": Verdict.KILL_AFTER, "pass": Verdict.PASS}
seen, heard = [], []

def work():
    descriptor = os.open(f"{folder}/f", os.O_CREAT | os.O_RDWR)
    try:
        written = os.write(descriptor, b"0123456789")
    except OSError as error:
        written = errno.errorcode[error.errno]
    os.pwrite(descriptor, str(written).encode(), 100)
    thread = threading.Thread(target=os.fsync, args=(descriptor,))
    thread.start()
    thread.join()
    os.rename(f"{folder}/f", f"{folder}/g")

def watch(call):
    if not call.paths() or not call.paths()[0].startswith(folder):
        return Verdict.PASS
    data = [call.offset(), call.data().decode()] if "write" in call.name else []
    seen.append([call.name, *[os.path.relpath(path, folder) for path in call.paths()], *data])
    return VERDICTS[fault] if call.name == at else Verdict.PASS

code = trace(work, watch, lambda call, result: heard.append(result))
print(json.dumps({"code": code, "seen": seen, "heard": len(heard)}))
"""

COUNTED = """
import os, subprocess, sys, threading
folder = sys.argv[1]
def sync(number):
    descriptor = os.open(f"{folder}/{number}", os.O_CREAT | os.O_RDWR)
    os.write(descriptor, b"x")
    os.fsync(descriptor)
threads = [threading.Thread(target=sync, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
child = "import os, sys; d = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR | os.O_DSYNC); "
child += "os.write(d, b'1'); os.write(d, b'2'); os.fdatasync(d)"
subprocess.run([sys.executable, "-c", child, f"{folder}/child"], check=True)
"""


def traced(folder: Path, fault: str = "pass", at: str = "") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", TRACED, str(folder), fault, at],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=unmeasured(),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_call_that_changes_a_file_is_seen_with_its_path_and_its_bytes(tmp_path: Path) -> None:
    found = traced(tmp_path)

    assert found["code"] == 0
    assert found["seen"] == [
        ["openat", "f"],
        ["write", "f", 0, "0123456789"],
        ["pwrite64", "f", 100, "10"],
        ["fsync", "f"],
        ["rename", "f", "g"],
    ]
    assert found["heard"] >= 5


def test_a_call_can_fail_and_a_write_can_be_short(tmp_path: Path) -> None:
    (tmp_path / "failed").mkdir()
    (tmp_path / "short").mkdir()
    traced(tmp_path / "failed", "fail", "write")
    traced(tmp_path / "short", "short", "write")

    assert (tmp_path / "failed" / "g").read_bytes() == bytes(100) + b"ENOSPC"
    assert (tmp_path / "short" / "g").read_bytes() == b"01234" + bytes(95) + b"5"


@pytest.mark.parametrize(("fault", "name"), [("before", "f"), ("after", "g")])
def test_a_process_can_be_killed_right_before_and_right_after_a_call(
    tmp_path: Path, fault: str, name: str
) -> None:
    found = traced(tmp_path, fault, "rename")

    assert found["code"] == -9
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_syncs_of_a_command_are_counted_in_all_its_threads_and_children(tmp_path: Path) -> None:
    counts = count_syncs([sys.executable, "-c", COUNTED, str(tmp_path)])

    assert counts == {"fsync": 3, "fdatasync": 1, "O_DSYNC writes": 2}


def test_a_command_that_fails_is_not_counted() -> None:
    with pytest.raises(Untraceable, match="ended with 3"):
        count_syncs([sys.executable, "-c", "raise SystemExit(3)"])
