"""`holdfast runs edit`, `skip`, `modify`, `inject` and `replan`: what another terminal changes about a run."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.engine.commands.inbox import POLL
from holdfast.journal.journal import Journal
from holdfast.journal.records import Steered, Target
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.stores import open_store
from tests.cli.processes import ran, start, until, wait_for, write
from tests.graphs import chain

FLOW = """
workflow:
  name: w
  inputs:
    topic: {type: string, default: tides}
    pages: {type: integer, default: 1}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: gated, python: "acts.py:gated"}
  - {name: echo, python: "acts.py:echo", with: {value: "{{ inputs.topic }} {{ inputs.pages }}"}}
  - {name: each, for_each: {in: [a, b], as: letter}, python: "acts.py:echo", with: {value: "{{ letter }}"}}
output: {echo: "{{ steps.echo.output }}", each: "{{ steps.each.outputs }}"}
"""

WAITS = FLOW.replace("acts.py:gated", "acts.py:slow")


class Told:
    """What one command said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Say = Callable[..., Told]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The command line, in this process and in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("holdfast.cli.commands.control.TIMEOUT", 0.1)

    def said(*words: str) -> Told:
        code = main(words)
        captured = capsys.readouterr()
        return Told(code, captured.out, captured.err)

    return said


@pytest.fixture
def failed(tmp_path: Path, say: Say) -> Path:
    """A run `r1` that failed at its step `gated`."""
    write(tmp_path, "w.yaml", FLOW)
    assert say("run", "w.yaml", "--run-id", "r1").code == 1
    return tmp_path


def resumed(say: Say) -> Any:
    return say("resume", "r1", "--json").json["output"]


def test_a_failed_step_is_skipped_and_the_rest_goes_on(failed: Path, say: Say) -> None:
    """R0.6."""
    told = say("steps", "skip", "r1", "gated", "--reason", "not today", "--by", "ann")

    first, second = told.out.splitlines()
    assert told.code == 0 and first == "run r1: gated is skipped" and second.startswith("resume with: ")
    assert resumed(say) == {"echo": "tides 1", "each": ["a", "b"]}
    shown = say("show", "r1", "--step", "gated", "--json").json
    assert shown["status"] == "skipped" and shown["note"] == "asked for by ann: not today"
    assert "skip was asked for by ann: not today" in say("events", "r1").out


def test_inputs_are_edited_as_the_file_declares_them(failed: Path, say: Say) -> None:
    wrong = say("runs", "edit", "r1", "inputs.pages=many")
    unknown = say("runs", "edit", "r1", "inputs.topik=x")
    nowhere = say("runs", "edit", "r1", "topic=x")
    done = say(
        "runs", "edit", "r1", "inputs.topic=7", "inputs.pages=3", "steps.first.output=@w.yaml", "--json"
    )

    assert wrong.code == unknown.code == nowhere.code == 2
    assert "must be of type integer" in wrong.err and "did you mean 'topic'" in unknown.err
    assert "what can be is inputs.NAME and steps.NAME.output" in nowhere.err
    assert done.json == {"run_id": "r1", "command": "edit", "applied": True, "status": "failed"}
    say("steps", "skip", "r1", "gated")
    assert resumed(say)["echo"] == "7 3"
    assert say("show", "r1", "--state", "--json").json["state"]["first"]["output"] == FLOW


def test_one_step_sees_other_inputs_and_one_item_is_another(failed: Path, say: Say) -> None:
    assert say("steps", "replan", "r1", "echo").code == 0
    assert say("steps", "modify", "r1", "echo", "inputs.topic=waves").out.startswith(
        "run r1: echo sees other inputs.topic"
    )
    say("pause", "r1")
    assert resumed(say)["echo"] == "waves 1"
    assert say("show", "r1", "--json").json["inputs"]["topic"] == "tides"


PICKY = """
workflow: {name: picky}
steps:
  - {name: each, for_each: {in: [a, b], as: letter}, python: "mine.py:pick", with: {value: "{{ letter }}"}}
output: "{{ steps.each.outputs }}"
"""


def test_an_item_is_changed_by_the_name_that_the_file_has_for_it(tmp_path: Path, say: Say) -> None:
    (tmp_path / "mine.py").write_text("def pick(value):\n    assert value != 'b'\n    return value\n")
    (tmp_path / "w.yaml").write_text(PICKY)
    assert say("run", "w.yaml", "--run-id", "r1").code == 1

    wrong = say("steps", "modify", "r1", "each[1]", "lettre=z")
    finished = say("steps", "modify", "r1", "each[0]", "letter=z")
    done = say("steps", "modify", "r1", "each[1]", "letter=z")

    assert "what can be is inputs.NAME and steps.NAME.output and letter" in wrong.err
    assert "is finished" in finished.err and done.code == 0, done.err
    assert resumed(say) == ["a", "z"]


def test_a_further_step_runs_and_what_makes_no_sense_is_refused(failed: Path, say: Say) -> None:
    refused = {
        "steps inject r1 ecko": "there is no node 'ecko'; did you mean 'echo'?",
        "steps inject r1 each": "'each' is made of several nodes, which follow each other: inject it with follow",
        "steps inject r1 each:item": "'each:item' is a part of 'each'",
        "steps inject r1 echo --item 5": "--item takes a JSON object",
        "steps inject r1 echo --item {": "--item: not JSON",
        "steps skip r1 echo": "it is not the turn of 'echo' yet (now: 'gated')",
        "steps skip r1 gatde": "did you mean 'gated'?",
        "steps skip r9 gated": "'r9'",
        "steps replan r1": "a workflow file, steps, or --nothing",
        "steps replan r1 echo --nothing": "a workflow file, steps, or --nothing",
        "steps replan r1 gone.yaml": "there is no file gone.yaml",
        "steps replan r1 w.yaml echo": "either one workflow file, or steps",
        "steps replan r1 echo --remap a=b": "--remap is for a workflow file",
        "runs edit r1 inputs.topic": "not NAME=VALUE",
    }
    for words, reason in refused.items():
        told = say(*words.split())
        assert told.code == (1 if reason == "'r9'" else 2) and told.out == "" and reason in told.err, (
            words,
            told.err,
        )

    assert (
        say("steps", "inject", "r1", "echo", "--item", '{"inputs": {"topic": "more", "pages": 9}}').code == 0
    )
    assert say("steps", "skip", "r1", "gated").code == 0
    resumed(say)
    assert ran(failed).count("echo") == 4
    shown = say("show", "r1", "--json").json
    assert shown["commands_refused"] == len(shown["refusals"]) == 5
    assert "refused" in say("show", "r1").out


def test_another_plan_or_none(failed: Path, say: Say) -> None:
    assert say("steps", "replan", "r1", "--nothing", "--reason", "good enough").out.startswith(
        "run r1: it is to end after what is running"
    )
    told = say("resume", "r1", "--json").json
    assert told["status"] == "failed" and "no 'output' in steps.echo" in told["error"]["message"]
    assert say("steps", "replan", "r1", "echo", "each").code == 0
    assert resumed(say)["echo"] == "tides 1"
    assert "'r1' is completed" in say("steps", "replan", "r1", "echo").err


def test_a_run_goes_on_with_a_changed_file(failed: Path, say: Say) -> None:
    changed = FLOW.replace("gated", "mended").replace("acts.py:mended", "acts.py:second")
    (failed / "v2.yaml").write_text(changed)
    (failed / "other.yaml").write_text(changed.replace("name: w\n", "name: v\n"))

    lacking = say("steps", "replan", "r1", "v2.yaml")
    other = say("steps", "replan", "r1", "other.yaml", "--remap", "gated=mended")
    done = say("steps", "replan", "r1", "v2.yaml", "--remap", "gated=mended", "--by", "ann")

    assert lacking.code == other.code == 2
    assert "to go on with 'gated', which the new definition lacks" in lacking.err
    assert "of workflow 'w', and the new definition of 'v'" in other.err
    assert done.code == 0 and done.out.startswith("run r1: it continues with v2.yaml"), done.err
    assert resumed(say)["echo"] == "tides 1" and ran(failed) == ["first", "gated", "second", *["echo"] * 3]
    assert say("show", "r1", "--json").json["workflow_file"]["path"].endswith("v2.yaml")


def test_the_graph_of_a_program_takes_what_it_can_and_the_rest_waits_for_the_program(
    tmp_path: Path, say: Say
) -> None:
    app = chain("a", "b", "c", nodes={"b": lambda state, ctx: ctx.ask("well?")}).compile(
        f"sqlite:///{tmp_path / 'runs.db'}"
    )
    app.invoke({"n": 1}, run_id="r1")
    where = ("--store", f"sqlite:///{tmp_path / 'runs.db'}")

    waits = say("runs", "edit", "r1", "n=5", 'log:=["x"]', *where)
    told = say("steps", "skip", "r1", "b", *where)

    assert waits.out.splitlines() == [
        "run r1 is asked to change log, n",
        "it does when it is resumed: app.resume('r1') in its program",
    ]
    assert told.out.startswith("run r1 is asked to skip b"), "what was asked for first comes first"
    assert say("steps", "replan", "r1", str(write(tmp_path, "w.yaml", FLOW)), *where).code == 2
    assert app.resume("r1").state == {"n": 5, "log": ["a", "x", "c"]}


def test_the_printed_commands_resume_a_run_whose_step_ran_beside_itself(failed: Path, say: Say) -> None:
    (failed / "open").touch()
    store = open_store(f"sqlite:///{failed}/.holdfast/runs.db")
    journal, codec = Journal(store), Codec()
    writer = Writer(journal, journal.load(journal.info("r1"), codec), codec, durable=True)
    writer.record(Steered("", add=(Target("first"), Target("first")), one_off=True))
    writer.flush()
    store.close()

    told = say("resume", "r1").err
    for text in (told, say("show", "r1").out):
        assert "leave its result out, then resume:" in text and "steps skip r1 " in text
    ways = [shlex.split(line)[3:] for line in told.splitlines() if line.startswith("  ")]
    codes = [say(*words).code for words in ways]

    assert codes == [0, 0] and say("show", "r1", "--json").json["status"] == "completed"


def test_a_driven_run_is_steered_from_another_terminal(tmp_path: Path, say: Say) -> None:
    """R0.6: applied between steps, by the process that executes the run."""
    write(tmp_path, "w.yaml", WAITS)
    process = start(tmp_path, "run", "w.yaml", "--run-id", "r1")
    wait_for(process, "gated started")

    told = [
        say("runs", "edit", "r1", "inputs.pages=8", "--by", "ann"),
        say("steps", "modify", "r1", "echo", "inputs.topic=waves", "--json"),
        say("steps", "inject", "r1", "first"),
        say("steps", "skip", "r1", "fisrt"),
    ]
    time.sleep(POLL)  # The driver looks into the inbox no more often.
    (tmp_path / "open").touch()
    out, err = process.communicate(timeout=60)

    assert told[0].out.startswith("run r1 is asked to change inputs.pages\nit does between two steps; see: ")
    assert told[1].json == {"run_id": "r1", "command": "modify", "applied": False, "status": "running"}
    assert process.returncode == 0, err
    assert '"echo": "waves 1"' in out or '"echo": "waves 8"' in out, out
    assert "edit by ann, as asked for" in out and "skip by" in out and "is refused: " in out
    assert ran(tmp_path).count("first") == 2


def test_a_driven_run_goes_on_at_once_with_a_changed_file(tmp_path: Path, say: Say) -> None:
    write(tmp_path, "w.yaml", WAITS)
    write(
        tmp_path, "v2.yaml", WAITS.replace("name: echo,", "name: told,").replace("steps.echo", "steps.told")
    )
    process = start(tmp_path, "run", "w.yaml", "--run-id", "r1", "--json")
    until(lambda: "slow" in ran(tmp_path))

    told = say("steps", "replan", "r1", "v2.yaml", "--json")
    time.sleep(POLL)  # The driver looks into the inbox no more often.
    (tmp_path / "open").touch()
    out, err = process.communicate(timeout=60)

    assert told.json == {"run_id": "r1", "command": "replan", "applied": False, "status": "running"}
    assert process.returncode == 0 and "continuing with" in err, err
    assert json.loads(out)["output"]["echo"] == "tides 1"
    assert ran(tmp_path) == ["first", "slow", "echo", "echo", "echo"]
