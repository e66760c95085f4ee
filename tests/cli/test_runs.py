"""`holdfast runs`, `show` and `status`."""

from __future__ import annotations

import contextlib
import os
import pty
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import START, StateGraph, open_store
from holdfast.cli.render import print_table
from holdfast.state import standard_types as budget
from tests.cli.in_process import SOURCE, Call, abandon, caller, command, three_runs
from tests.graphs import chain, one


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> Call:
    monkeypatch.setenv("HOLDFAST_STORE", sqlite_url)
    return caller(capsys)


# runs


def test_runs_are_listed(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    listed = call("runs")

    assert listed.code == 0
    assert listed.lines[0].split() == ["RUN", "WORKFLOW", "STATUS", "STARTED", "UPDATED", "NEXT"]
    assert [line.split()[:3] for line in listed.lines[1:]] == [
        ["asked", "gate", "paused"],
        ["bad", "broken", "failed"],
        ["good", "fine", "completed"],
    ]


def test_runs_as_json_and_filtered(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    def ids(*options: str) -> list[str]:
        return [run["run_id"] for run in call("runs", "--json", *options).json["runs"]]

    assert ids("--status", "failed", "--status", "paused") == ["asked", "bad"]
    assert ids("--workflow", "fine") == ["good"]
    assert ids("--limit", "2") == ["asked", "bad"]
    assert ids("--workflow", "nobody") == []
    assert call("runs", "--json").json["store"] == sqlite_url
    assert "that match" in call("runs", "--workflow", "nobody").out


def test_listing_where_nothing_was_run_creates_nothing(call: Call, tmp_path: Path) -> None:
    listed = call("runs")

    assert listed.code == 0 and "start one with: holdfast run" in listed.out
    assert call("runs", "--json").json["runs"] == [] and list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_opened_is_told(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_text(
        "this is not a database at all, it is a text that is long enough to be read"
    )

    told = call("runs")

    assert told.code == 3 and "is not a SQLite database" in told.err and told.out == ""


def test_a_run_whose_process_died_is_dead_everywhere(call: Call, sqlite_url: str, tmp_path: Path) -> None:
    abandon(sqlite_url, "r", folder=tmp_path)
    chain("a", name="fine").compile(open_store(sqlite_url)).invoke({"n": 1}, run_id="good")

    assert [line["run_id"] for line in call("runs", "--status", "dead", "--json").json["runs"]] == ["r"]
    assert call("runs", "--status", "running", "--json").json["runs"] == []
    shown = call("show", "lost")
    assert "dead (running, but its process is gone)" in shown.out and "app.resume('r" in shown.out
    assert "second  interrupted" in shown.out
    told = call("runs", "status", "r", "--wait")
    assert told.code == 130 and "dead" in told.out


# show


def test_values_of_a_large_state_are_left_out_and_each_is_read_by_its_key(
    call: Call, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {f"k{number}": [[]] * 400 for number in range(5)}
    store = open_store(sqlite_url)
    StateGraph(dict, name="w").add_node("a", lambda state: values).add_edge(START, "a").compile(store).invoke(
        run_id="run-1"
    )
    store.close()
    monkeypatch.setattr(budget, "MOST_TOGETHER", 70_000)

    whole = call("show", "run-1", "--state").json
    one = call("show", "run-1", "--key", "k4", "--key", "k3").json
    output, text = call("show", "run-1", "--output").json, call("show", "run-1").out
    checkpoint = call("checkpoints", "show", "run-1@1", "--json").json["state"]

    assert whole["k0"] == [[]] * 400 and whole["k4"]["$type"] == "unread"
    assert "`holdfast show RUN --key KEY`" in whole["k4"]["text"]
    assert one == {"k4": [[]] * 400, "k3": [[]] * 400}
    assert output == checkpoint == whole and "not read" in text
    refused = call("show", "run-1", "--key", "k9")
    assert refused.code == 2 and "has no key 'k9'; it has: k0, k1" in refused.err
    assert "only one of --state, --key" in call("show", "run-1", "--key", "k1", "--state").err


def test_a_failed_run_shows_what_failed_and_how_to_go_on(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    shown = call("show", "broken")

    assert shown.code == 0
    assert "error        b: ValueError: no luck" in shown.lines
    assert any(line.split()[:2] == ["c", "pending"] for line in shown.lines)
    assert shown.lines[-1] == "resume with: app.resume('bad') in its program"
    assert "\x1b" not in shown.out


def test_a_store_that_was_given_is_named_in_the_commands(
    call: Call, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_runs(sqlite_url)
    monkeypatch.delenv("HOLDFAST_STORE")

    shown = call("show", "asked", "--store", sqlite_url)
    assert shown.lines[-1].endswith(f"answer asked q=a --store {sqlite_url}")


def test_a_paused_run_shows_the_question_and_the_command_that_answers(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    shown, data = call("show", "asked"), call("show", "asked", "--json").json

    assert "  Which one?\n  Say so.\n  takes one of a, b\n" in shown.out
    assert shown.lines[-1].endswith("holdfast answer asked q=a")
    assert data["pauses"][0]["choices"] == ["a", "b"]
    assert data["pauses"][0]["command"] in shown.out


def test_the_command_that_is_shown_answers(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)
    words = shlex.split(call("show", "asked", "--json").json["pauses"][0]["command"])

    assert call(*words[words.index("holdfast") + 1 :]).code == 0

    assert call("show", "asked", "--json").json["pauses"] == []


def test_state_step_and_output(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    assert call("show", "good", "--state").json == {"n": 1, "log": ["a", "b"]}
    assert call("show", "good", "--output").json == {"n": 1, "log": ["a", "b"]}
    assert call("show", "bad", "--output").json is None
    assert call("show", "good", "--state", "--json").json["state"]["n"] == 1
    step = call("show", "good", "--step", "b", "--json").json
    assert step["output"] == {"log": ["b"]} and step["status"] == "completed"
    text = call("show", "bad", "--step", "b").out
    assert "attempts" in text and "in boom" in text and "\x1b" not in text
    assert '"log": [' in call("show", "good", "--step", "b").out


def test_wrong_uses_of_show(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    unknown = call("show", "good", "--step", "x")
    assert unknown.code == 2 and "it has: a, b" in unknown.err
    assert call("show", "good", "--state", "--output").code == 2
    missing = call("show", "nobody")
    assert missing.code == 1 and "no run, checkpoint or workflow 'nobody'" in missing.err


def test_a_long_output_is_cut_in_text_and_whole_in_json(call: Call, sqlite_url: str) -> None:
    one(lambda state: {"text": "x" * 9000}, dict).compile(sqlite_url).invoke({}, run_id="r")

    shown = call("show", "r")

    assert "more characters" in shown.out and len(shown.out) < 6000
    assert len(call("show", "r", "--output").json["text"]) == 9000


def test_an_encrypted_run_asks_for_its_key(
    call: Call, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "b" * 64)
    chain("a").compile(sqlite_url).invoke({"n": 1}, run_id="r")
    monkeypatch.delenv("HOLDFAST_KEY")

    told = call("show", "r")

    assert told.code != 0 and "set HOLDFAST_KEY" in told.err
    assert call("runs").code == 0


# status


@pytest.mark.parametrize(
    ("run", "code", "text"),
    [
        ("good", 0, "good completed"),
        ("bad", 1, "bad failed, next: b"),
        ("gate", 4, "asked paused: q: Which one? Say so."),
    ],
)
def test_the_exit_code_mirrors_the_run(call: Call, sqlite_url: str, run: str, code: int, text: str) -> None:
    three_runs(sqlite_url)

    told = call("runs", "status", run)

    assert (told.code, told.out.strip()) == (code, text)
    assert call("runs", "status", run, "--json").json["exit_code"] == code


def test_a_run_that_runs_is_running_and_waiting_ends_with_it(sqlite_url: str, tmp_path: Path) -> None:
    """In processes of their own: a run that waits for a file, somebody who looks, and somebody who waits."""
    program = tmp_path / "waits.py"
    program.write_text(
        "import pathlib, sys, time\n"
        "from holdfast import START, END, StateGraph\n"
        "def work(state):\n"
        "    while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.02)\n"
        "graph = StateGraph(dict, name='slow')\n"
        "graph.add_node('work', work)\n"
        "graph.add_edge(START, 'work'); graph.add_edge('work', END)\n"
        "graph.compile(sys.argv[1]).invoke({'n': 0}, run_id='r')\n"
    )
    go = tmp_path / "go"
    running = subprocess.Popen(
        [sys.executable, program, sqlite_url, str(go)], env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    try:
        while not (tmp_path / "runs.db").exists() or not open_store(sqlite_url).runs(run="r"):
            assert running.poll() is None
            time.sleep(0.02)
        with command("runs", "status", "slow", "--store", sqlite_url) as looking:
            out, _ = looking.communicate(timeout=60)
        assert looking.returncode == 0 and "r running" in out
        with command("runs", "status", "r", "--wait", "--every", "0.05", "--store", sqlite_url) as waiting:
            go.touch()
            out, _ = waiting.communicate(timeout=60)
        assert waiting.returncode == 0 and out.strip() == "r completed"
    finally:
        go.touch()
        running.wait(timeout=60)


# What a terminal sees.


def test_on_a_terminal_the_list_is_coloured_and_data_is_not_obeyed(sqlite_url: str) -> None:
    trick = "\x1b]0;title\x07[red]x[/red]"
    one(lambda state: {"text": trick}, dict).compile(sqlite_url).invoke({}, run_id="r")

    seen = on_a_terminal(["runs", "--store", sqlite_url]) + on_a_terminal(
        ["show", "r", "--store", sqlite_url]
    )

    assert "\x1b[32mcompleted" in seen and "[red]x[/red]" in seen
    assert "\x1b]0;title" not in seen


def test_what_a_terminal_would_obey_is_printed_nowhere(
    call: Call, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trick = "a\x9b2J\u202eb\x1b[31m"
    one(lambda state: {"text": trick}, dict).compile(sqlite_url).invoke({}, run_id="r")

    for words in (
        ["show", "r"],
        ["show", "r", "--step", "work"],
        ["show", "r", "--json"],
        ["events", "r", "--json"],
    ):
        told = call(*words)
        assert told.code == 0 and not {"\x9b", "\u202e", "\x1b"} & set(told.out), words
    assert call("show", "r", "--output").json == {"text": trick}
    print_table(("a", "b"), [["completed", trick]])
    assert not {"\x9b", "\u202e", "\x1b"} & set(capsys.readouterr().out)


def on_a_terminal(words: list[str]) -> str:
    """What a command writes to a terminal that is wide enough."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", "PYTHONPATH": str(SOURCE)}
    environment.pop("NO_COLOR", None)
    program = [sys.executable, "-m", "holdfast", *words]
    running = subprocess.Popen(program, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):
        while part := os.read(master, 65536):
            seen += part
    running.wait(timeout=60)
    os.close(master)
    return seen.decode()


def test_every_reading_command_teaches(call: Call) -> None:
    for words in (
        ["runs"], ["show"], ["runs", "status"], ["events"], ["checkpoints"], ["checkpoints", "list"],
        ["checkpoints", "show"], ["checkpoints", "prune"], ["checkpoints", "clear"], ["validate"],
        ["workflow", "inspect"], ["workflow", "draw"], ["workflow", "schema"], ["init"], ["doctor"],
    ):  # fmt: skip
        told = call(*words, "--help")
        assert told.code == 0 and "Example:" in told.out, words
        assert f"holdfast {words[0]}" in told.out.split("Example:")[1], words


def test_looking_imports_neither_yaml_nor_pydantic(sqlite_url: str) -> None:
    three_runs(sqlite_url)
    heavy: Any = ("yaml", "pydantic", "jinja2", "rich", "pydantic_ai", "httpx")
    program = (
        "import sys\nfrom holdfast.cli.main import main\n"
        "for words in (['runs'], ['show', 'bad'], ['runs', 'status', 'good'], ['events', 'good']):\n"
        f"    main([*words, '--store', {sqlite_url!r}])\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
        capture_output=True,
        text=True,
    )

    assert done.stdout.splitlines()[-1] == "[]", done.stderr
