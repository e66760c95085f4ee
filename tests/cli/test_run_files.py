"""The files that an execution writes beside its run, and inputs that are given all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import CHAIN, call, environment, ran, write

GIVEN = """
workflow:
  name: given
  inputs: {word: {type: string}, times: {type: integer, default: 1}}
steps:
  - {name: echo, python: "acts.py:echo", with: {value: "{{ [inputs.word, inputs.times] }}"}}
output: "{{ steps.echo.output }}"
"""

SECRET = """
workflow: {name: secret}
steps:
  - {name: one, shell: {run: 'echo "got $TOKEN"', env: {TOKEN: "{{ secrets.TOKEN }}"}, output: text}}
  - {name: two, python: "acts.py:echo", with: {value: "{{ steps.one.output }}"}}
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_file_has_the_lines_of_every_execution_and_how_it_ended(tmp_path: Path) -> None:
    """R1.9: --log-file."""
    write(tmp_path, "chain.yaml", CHAIN)
    call(tmp_path, "run", "chain.yaml", "-q", "--run-id", "r1", "--log-file", "logs/run.log")
    (tmp_path / "open").touch()
    done = call(tmp_path, "resume", "r1", "-q", "--log-file", "logs/run.log")

    text = (tmp_path / "logs" / "run.log").read_text()
    assert done.returncode == 0 and "first started" in text
    assert "failed: run r1: step 'gated' failed" in text and "holdfast resume r1" in text
    assert (
        text.rstrip().splitlines()[-1].startswith('  "result"')
        or "completed in" in text.split("resume with")[1]
    )


def test_a_trace_file_has_a_span_per_attempt_and_execution(tmp_path: Path) -> None:
    """R4.6: --trace-file."""
    write(tmp_path, "chain.yaml", CHAIN)
    trace = tmp_path / "trace.jsonl"
    call(tmp_path, "run", "chain.yaml", "-q", "--run-id", "r1", "--trace-file", str(trace))
    first = lines(trace)
    (tmp_path / "open").touch()
    call(tmp_path, "resume", "r1", "-q", "--trace-file", str(trace))
    later = lines(trace)[len(first) :]

    assert [(span["name"], span["status"]) for span in first] == [
        ("first", "ok"),
        ("second", "ok"),
        ("gated", "error"),
        ("run", "error"),
    ]
    assert "the gate is closed" in first[2]["error"] and first[2]["attempt"] == 1
    assert all(span["seconds"] >= 0 and span["run_id"] == "r1" for span in first)
    names = [(span["name"], span["status"]) for span in later]
    assert ("gated", "ok") in names and names[-1] == ("resume", "ok")
    assert ("first", "ok") not in names


LOUD = """
workflow: {name: loud}
steps:
  - {name: f, shell: 'echo bad >&2; exit 3', retry: {attempts: 2, delay: 0s}}
"""


def test_a_trace_beside_other_files_tells_failures_as_failures(tmp_path: Path) -> None:
    write(tmp_path, "loud.yaml", LOUD)
    call(tmp_path, "run", "loud.yaml", "-q", "--trace-file", "t", "--events", "e", "--debug-state", "states")

    assert [(span["name"], span["status"]) for span in lines(tmp_path / "t")] == [
        ("f", "error"),
        ("f", "error"),
        ("run", "error"),
    ]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "states").iterdir()} == {0o600}


def test_states_are_written_after_each_checkpoint_and_never_overwritten(tmp_path: Path) -> None:
    """R4.6: --debug-state DIR."""
    write(tmp_path, "chain.yaml", CHAIN)
    call(tmp_path, "run", "chain.yaml", "-q", "--run-id", "r1", "--debug-state", "states")
    first = sorted(path.name for path in (tmp_path / "states").iterdir())
    (tmp_path / "open").touch()
    call(tmp_path, "resume", "r1", "-q", "--debug-state", "states")
    files = sorted((tmp_path / "states").iterdir())

    assert [path.name for path in files][: len(first)] == first and len(files) > len(first)
    found = {path.name[5:-5]: json.loads(path.read_text()) for path in files}
    assert found["first"]["state"]["first"]["output"] == "one" and "second" not in found["first"]["state"]
    assert found["second"]["state"]["second"]["output"] == {"count": 2} and found["second"]["run_id"] == "r1"


def test_no_file_holds_a_secret(tmp_path: Path) -> None:
    write(tmp_path, "secret.yaml", SECRET)
    files = ("--log-file", "log", "--trace-file", "trace", "--debug-state", "states", "--events", "events")

    done = call(tmp_path, "run", "secret.yaml", *files, env=environment(TOKEN="hush-3141592"))

    written = [tmp_path / name for name in ("log", "trace", "events")] + [*(tmp_path / "states").iterdir()]
    assert done.returncode == 0 and len(written) > 4
    assert not [path for path in written if "hush-3141592" in path.read_text()]


@pytest.mark.parametrize("flag", ["--log-file", "--trace-file", "--debug-state"])
def test_what_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, flag: str) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    done = call(tmp_path, "run", "chain.yaml", flag, "acts.py/x")

    assert done.returncode == 3 and "cannot be written to acts.py/x" in done.stderr and ran(tmp_path) == []


def test_stream_prints_events_and_excludes_another_place_for_them(tmp_path: Path) -> None:
    """R4.6: --stream."""
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    done = call(tmp_path, "run", "chain.yaml", "--stream")
    both = call(tmp_path, "run", "chain.yaml", "--stream", "--events", "x")

    assert [json.loads(line)["type"] for line in done.stdout.splitlines()][-1] == "graph.complete"
    assert both.returncode == 2 and "not both" in both.stderr


def test_all_inputs_are_given_as_json_or_by_a_file(tmp_path: Path) -> None:
    """R4.6: --input with a JSON object, or with @FILE."""
    write(tmp_path, "given.yaml", GIVEN)
    (tmp_path / "inputs.json").write_text('{"word": "from a file", "times": 2}')

    for given, found in [
        (["@inputs.json"], ["from a file", 2]),
        (['{"word": "here"}'], ["here", 1]),
        (["word=first", "@inputs.json", "times:=7"], ["from a file", 7]),
    ]:
        pairs = [word for pair in given for word in ("--input", pair)]
        done = call(tmp_path, "run", "given.yaml", "-q", *pairs)
        assert done.returncode == 0 and json.loads(done.stdout) == found

    for wrong, message in [("@nowhere.json", "cannot be read"), ("{", "not JSON"), ("@acts.py", "not JSON")]:
        done = call(tmp_path, "run", "given.yaml", "--input", wrong)
        assert done.returncode == 2 and message in done.stderr


def test_past_events_are_replayed(tmp_path: Path) -> None:
    """R1.9: replay."""
    write(tmp_path, "chain.yaml", CHAIN)
    call(tmp_path, "run", "chain.yaml", "-q", "--run-id", "r1")
    plain = call(tmp_path, "events", "r1")
    replayed = call(tmp_path, "events", "r1", "--replay", "--speed", "1000")
    both = call(tmp_path, "events", "r1", "--replay", "--follow")

    assert replayed.returncode == 0 and replayed.stdout == plain.stdout
    assert both.returncode == 2 and "one of them" in both.stderr
