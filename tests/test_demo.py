"""`python -m holdfast demo`: the first thing that a newcomer runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import CodecError, open_store
from holdfast.__main__ import main
from holdfast.demo import STEPS


@pytest.fixture
def holdfast(tmp_path: Path) -> Any:
    """Runs the command line in a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "holdfast", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


def test_the_demo_tells_what_happened_and_leaves_nothing_behind(holdfast: Any, tmp_path: Path) -> None:
    """S1.15: a rate limit at step 9 ends in a resume that repeats no finished step."""
    done = holdfast("demo")

    assert done.returncode == 0 and done.stderr == ""
    assert "9  revise    FAILED, the service answered 429" in done.stdout
    assert "finished steps are kept; resume with app.resume('demo-" in done.stdout
    assert "The run is completed: 8 steps kept, 2 run after the resume" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_can_be_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0

    story = json.loads(capsys.readouterr().out)
    assert story["first"]["ran"] == list(STEPS[:8]) and story["first"]["failed"] == STEPS[8]
    assert story["second"]["ran"] == list(STEPS[8:]) and story["second"]["kept"] == 8
    assert story["calls"] == {name: 2 if name == STEPS[8] else 1 for name in STEPS}
    assert story["resume"] == f"app.resume({story['run_id']!r})"


def test_the_demo_keeps_its_runs_where_it_is_told_to(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--store", store_url]) == 0
    assert main(["demo", "--store", store_url]) == 0

    assert "is gone" not in capsys.readouterr().out
    if store_url != "memory://":
        store = open_store(store_url)
        assert [info.status for info in store.runs(workflow="demo")] == ["completed", "completed"]
        store.close()


def test_a_failure_is_a_message_and_an_exit_code_and_no_traceback(holdfast: Any) -> None:
    done = holdfast("demo", "--store", "nowhere://x")

    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith("holdfast: no store is known for 'nowhere://x'")
    assert "Traceback" not in done.stderr


def test_a_bad_key_in_the_environment_is_a_message_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "short")

    assert main(["demo"]) == 3

    assert "HOLDFAST_KEY" in capsys.readouterr().err


def test_a_wrong_command_is_refused_with_the_usage(holdfast: Any) -> None:
    for arguments in ([], ["dmeo"], ["demo", "--sotre", "x"]):
        done = holdfast(*arguments)
        assert done.returncode == 2 and "Usage: holdfast" in done.stderr and "Traceback" not in done.stderr


def test_every_command_and_option_has_help(holdfast: Any) -> None:
    assert "rate limit" in holdfast("--help").stdout
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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stops(url: str) -> None:
        raise error

    monkeypatch.setattr("holdfast.cli.commands.run.play", stops)

    assert main(["demo"]) == code

    assert text in capsys.readouterr().err


def test_a_reader_who_leaves_early_is_no_error_to_talk_about(tmp_path: Path) -> None:
    script = f"{sys.executable} -u -m holdfast demo | true"

    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert "Traceback" not in done.stderr
