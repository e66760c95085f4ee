"""`holdfast events`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import open_store
from tests.cli.in_process import SOURCE, Call, abandon, asks, caller, command, three_runs
from tests.graphs import chain


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> Call:
    monkeypatch.setenv("HOLDFAST_STORE", sqlite_url)
    return caller(capsys)


def test_a_line_a_moment(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    told = call("events", "broken")

    assert told.code == 0 and "\x1b" not in told.out
    texts = [line.split(None, 3)[3] for line in told.lines if "checkpoint" not in line]
    texts = [text for text in texts if not text.startswith("executed on")]
    assert texts[:2] == ["run of broken started", "a#1 started"]
    assert texts[-2:] == ["b#1 failed (attempt 1): ValueError: no luck", "run failed at b"]


def test_every_line_of_json_is_one_object(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    found = [json.loads(line) for line in call("events", "good", "--json").lines]

    assert all(set(each) == {"seq", "at", "type", "step", "text", "data"} for each in found)
    assert found[0]["type"] == "graph.start" and "graph.complete" in [each["type"] for each in found]
    since = [json.loads(line) for line in call("events", "good", "--json", "--since", "2").lines]
    assert since == [each for each in found if each["seq"] > 2]


def test_the_types_are_named_as_another_system_does(call: Call, sqlite_url: str) -> None:
    """S0.12: in the lines of JSON of a stored run."""
    three_runs(sqlite_url)

    found = [json.loads(line)["type"] for line in call("events", "good", "--json", "--dialect", "task").lines]

    assert found[0] == "workflow_start" and {"task_start", "task_complete", "checkpoint_saved"} <= set(found)
    assert call("events", "good", "--dialect", "tasks").code == 2


@pytest.mark.parametrize("more", [(), ("--replay", "--speed", "100000")])
def test_lines_for_people_have_the_names_of_the_dialect(
    call: Call, sqlite_url: str, more: tuple[str, ...]
) -> None:
    """S0.12, R1.9: a stored run is told, or replayed, in the names of another system."""
    three_runs(sqlite_url)

    tasks = call("events", "good", "--dialect", "task", *more).lines
    states = call("events", "good", "--dialect", "state", *more).lines

    named = [line.split(None, 4)[3:] for line in tasks]
    assert named[0] == ["workflow_start", "run of fine started"] and ["task_start", "a#1 started"] in named
    assert [line.split(None, 4)[3] for line in states] == ["final"]


def test_following_a_run_that_is_over_ends_at_once(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    assert call("events", "good", "--follow").out == call("events", "good").out


def test_following_ends_when_the_run_ends(sqlite_url: str, tmp_path: Path) -> None:
    """A paused run is followed by another process until somebody answers and it completes."""
    app = chain("a", "b", "c", nodes={"b": asks}, name="w").compile(sqlite_url)
    app.invoke({"n": 1}, run_id="r")
    seen = []
    with command("events", "r", "-f", "--json", "--every", "0.05", "--store", sqlite_url) as following:
        assert following.stdout is not None
        for line in following.stdout:
            seen.append(json.loads(line)["type"])
            if seen[-1] == "graph.pause":
                app.resume("r", "a")

    assert following.returncode == 0
    assert seen.count("graph.pause") == 1 and seen[-2:] == ["graph.complete", "checkpoint.save"]


def test_following_a_run_whose_process_is_gone_ends_and_says_so(
    call: Call, sqlite_url: str, tmp_path: Path
) -> None:
    abandon(sqlite_url, "r", folder=tmp_path)

    told = call("events", "r", "-f")

    assert told.code == 0 and "is gone; nothing follows until it is resumed" in told.err


def test_ctrl_c_ends_following_quietly(sqlite_url: str) -> None:
    chain("a", nodes={"a": asks}).compile(sqlite_url).invoke({"n": 1}, run_id="r")
    with command("events", "r", "-f", "--every", "0.05", "--store", sqlite_url) as following:
        assert following.stdout is not None
        for line in following.stdout:
            if "run paused" in line:
                break
        following.send_signal(signal.SIGINT)
        _, err = following.communicate(timeout=60)

    assert following.returncode == 130 and err == ""


def test_a_reader_that_goes_away_is_no_trouble(sqlite_url: str) -> None:
    three_runs(sqlite_url)
    with command("events", "good", "--store", sqlite_url) as telling:
        assert telling.stdout is not None and telling.stderr is not None
        telling.stdout.close()

        assert telling.stderr.read() == ""


def test_an_unknown_run_is_refused(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    assert call("events", "nobody").code == 1


def test_a_run_is_followed_while_it_is_driven(sqlite_url: str, tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        "import sys, time\n"
        "from holdfast import START, END, StateGraph\n"
        "graph = StateGraph(dict, name='slow')\n"
        "names = [START, *'abcdef', END]\n"
        "for name in names[1:-1]: graph.add_node(name, lambda state: time.sleep(0.05))\n"
        "for one, two in zip(names, names[1:]): graph.add_edge(one, two)\n"
        "graph.compile(sys.argv[1]).invoke({'n': 0}, run_id='r')\n"
    )
    running = subprocess.Popen(
        [sys.executable, program, sqlite_url], env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    while not (tmp_path / "runs.db").exists() or not open_store(sqlite_url).runs(run="r"):
        assert running.poll() is None
        time.sleep(0.01)
    with command("events", "r", "-f", "--json", "--every", "0.02", "--store", sqlite_url) as following:
        out, err = following.communicate(timeout=60)
    running.wait(timeout=60)

    done = [json.loads(line) for line in out.splitlines()]
    assert following.returncode == 0 and err == ""
    assert [each["step"] for each in done if each["type"] == "node.complete"] == [
        f"{name}#1" for name in "abcdef"
    ]
