"""`python -m holdfast demo`: the first thing that a newcomer runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast import CodecError, open_store
from holdfast.__main__ import main
from holdfast.demo import STEPS
from tests.docs.test_recording import make_recording


@pytest.fixture
def holdfast(tmp_path: Path) -> Any:
    """Runs the command line in a process of its own; temporary folders are in `temporary`."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "holdfast", *arguments],
            cwd=tmp_path / "here",
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


def test_the_demo_shows_a_kill_and_a_resume_that_repeats_no_finished_step(
    holdfast: Any, tmp_path: Path
) -> None:
    """S1.15: a process that is killed at step 9 ends in a resume that repeats no finished step."""
    done = holdfast("demo")

    assert done.returncode == 0 and done.stderr == ""
    assert re.search(r"9  revise    ✗ killed: SIGKILL to process \d+", done.stdout)
    assert "1-8  finished before, not run again" in done.stdout
    assert "The run is completed: 8 steps kept, 2 run after the kill." in done.stdout
    assert "11 calls for 10 steps" in done.stdout and "\x1b" not in done.stdout
    assert list((tmp_path / "here").iterdir()) == []


def test_the_three_commands_after_the_demo_work_when_pasted(holdfast: Any, tmp_path: Path) -> None:
    told = holdfast("demo").stdout
    lines = [line.strip() for line in told.partition("Next:")[2].splitlines() if " holdfast " in line]
    assert len(lines) == 3

    def pasted(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    done = [pasted(line) for line in lines]

    assert [each.returncode for each in done] == [0, 0, 0], done
    assert "demo/revise" in done[0].stdout and "(2 attempts)" in done[0].stdout
    assert "publish" in done[1].stdout
    assert (tmp_path / "hello.yaml").is_file()
    _follow(told, lines, done[1].stdout, pasted)


def _follow(told: str, lines: list[str], history: str, pasted: Any) -> None:
    """Fork the run at one of the listed checkpoints, resume that, and make the call that the demo shows."""
    checkpoint = re.findall(r"^[0-9a-f-]{36}", history, re.MULTILINE)[3]
    forked = pasted(re.sub(r"history \S+", f"fork {checkpoint} --run-id f", lines[1]))
    resume = forked.stdout.partition("resume with: ")[2]
    assert "--app holdfast.demo:demo" in resume, forked
    resumed = pasted(resume)
    assert resumed.returncode == 0 and "completed" in resumed.stdout, resumed
    [call] = {line.partition(": ")[2] for line in told.splitlines() if 'demo.run("tides"' in line}
    program = f"from holdfast.demo import demo; print(len({call}))"
    store = lines[0].rpartition("--store ")[2]
    again = pasted(f"HOLDFAST_STORE={store} {sys.executable} -c {shlex.quote(program)}")
    assert again.stdout.strip() == "10", again


def test_a_terminal_shows_each_step_from_its_start_and_in_colour() -> None:
    shown = make_recording.output_of([str(Path(sys.executable).with_name("holdfast")), "demo"])

    running, done = "\x1b[36m… running\x1b[0m", "\x1b[32m✓ done\x1b[0m"
    assert [part in shown for part in (running, done, "\x1b[31m✗ killed")] == [True, True, True]
    assert shown.count(running) == 11 and shown.count(done) == 10


def test_the_demo_can_be_told_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert main(["demo", "--json"]) == 0

    story = json.loads(capsys.readouterr().out)
    assert story["first"]["ran"] == list(STEPS[:8]) and story["first"]["called"] == list(STEPS[:9])
    assert story["first"]["exit_code"] == -signal.SIGKILL and story["killed"] == STEPS[8]
    assert story["plan"] == {**dict.fromkeys(STEPS[:8], "kept"), STEPS[8]: "rerun"}
    assert story["second"]["ran"] == list(STEPS[8:]) == story["second"]["called"]
    assert story["calls"] == {name: 2 if name == STEPS[8] else 1 for name in STEPS}
    assert story["first"]["process"] != story["second"]["process"]


def test_the_demo_keeps_its_runs_where_it_is_told_to(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if store_url == "memory://":
        assert main(["demo", "--store", store_url]) == 2
        assert "the store is in memory, where no other process finds a run" in capsys.readouterr().err
        return
    assert main(["demo", "--store", store_url]) == 0

    store = open_store(store_url)
    assert [info.status for info in store.runs(workflow="demo")] == ["completed"]
    store.close()


def test_the_demo_is_the_first_command_of_the_overview(holdfast: Any) -> None:
    told = holdfast("--help").stdout

    assert re.search(r"Options:(\n  .+)+\n\nRun:\n  demo +Watch", told), told


def test_a_failure_is_a_message_and_an_exit_code_and_no_traceback(holdfast: Any) -> None:
    done = holdfast("demo", "--store", "nowhere://x")

    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith("holdfast: no store is known for 'nowhere://x'")
    assert "Traceback" not in done.stderr


def test_a_bad_key_in_the_environment_is_a_message_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_KEY", "short")

    assert main(["demo"]) == 3

    assert "HOLDFAST_KEY" in capsys.readouterr().err


def test_a_wrong_command_is_refused_with_the_usage(holdfast: Any) -> None:
    for arguments in ([], ["dmeo"], ["demo", "--sotre", "x"]):
        done = holdfast(*arguments)
        assert done.returncode == 2 and "Usage: holdfast" in done.stderr and "Traceback" not in done.stderr


def test_every_command_and_option_has_help(holdfast: Any) -> None:
    assert "is killed" in holdfast("--help").stdout
    assert "--json" in holdfast("demo", "--help").stdout


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("run 'r' was interrupted and saved"), 130, "interrupted and saved"),
        (CodecError("no"), 1, "holdfast: no"),
    ],
)
def test_what_stops_the_demo_is_told_in_words(
    error: BaseException,
    code: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stops(*_: object) -> None:
        raise error

    monkeypatch.setattr("holdfast.cli.commands.demo.play", stops)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert main(["demo"]) == code

    assert text in capsys.readouterr().err


def test_a_reader_who_leaves_early_is_no_error_to_talk_about(tmp_path: Path) -> None:
    script = f"{sys.executable} -u -m holdfast demo | true"

    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert "Traceback" not in done.stderr
