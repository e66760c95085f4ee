"""`holdfast run`: what it prints, what it leaves, and how it ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast import open_store
from tests.cli.processes import (
    ASKING,
    CHAIN,
    PROGRAM,
    SLOW,
    call,
    environment,
    pasted,
    ran,
    resume_command,
    start,
    until,
    wait_for,
    write,
)

INPUTS = """
workflow:
  name: inputs
  inputs:
    text: {type: string, required: true}
    pages: {type: integer, default: 2}
    tags: {type: array, default: []}
steps:
  - {name: echo, python: "acts.py:echo", with: {value: "{{ inputs }}"}}
output: "{{ steps.echo.output }}"
"""


def test_a_run_tells_each_step_in_a_line_and_ends_with_its_output(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    done = call(tmp_path, "run", "chain.yaml", "--run-id", "r1")

    assert done.returncode == 0 and done.stderr == ""
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    assert lines[0] == "run r1 started"
    assert [line for line in lines if line.endswith("started")][1:] == [
        "first started",
        "second started",
        "gated started",
    ]
    assert "second done in 0.0s" in lines and "output started" not in lines
    assert "\ncompleted in " in done.stdout and '"result": "through"' in done.stdout
    assert (tmp_path / ".holdfast" / "runs.db").exists()


def test_a_failure_says_what_failed_what_is_kept_and_the_command_that_goes_on(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    done = call(tmp_path, "run", "chain.yaml", "--run-id", "r 1")

    assert done.returncode == 1
    assert "failed: run r 1: step 'gated' failed: RuntimeError: the gate is closed" in done.stderr
    assert "2 finished steps kept" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "open").touch()
    again = pasted(tmp_path, resume_command(done.stderr))
    assert again.returncode == 0, again.stderr
    assert "kept 2 steps (0.0 s saved), ran 1" in again.stdout
    assert ran(tmp_path) == ["first", "second", "gated", "gated"]


def test_the_resume_command_names_a_store_that_is_not_the_default(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    done = call(tmp_path, "run", "chain.yaml", "--store", "sqlite:///my runs.db")

    words = shlex.split(resume_command(done.stderr))
    assert words[words.index("--store") + 1] == f"sqlite:///{tmp_path}/my runs.db"
    (tmp_path / "open").touch()
    (tmp_path / "elsewhere").mkdir()
    assert pasted(tmp_path / "elsewhere", resume_command(done.stderr)).returncode == 1
    assert pasted(tmp_path, resume_command(done.stderr)).returncode == 0


def test_a_store_that_the_workflow_file_names_is_found_again(tmp_path: Path) -> None:
    elsewhere = CHAIN.replace("{name: chain}", "{name: chain, checkpoint: {path: kept}}")
    write(tmp_path, "chain.yaml", elsewhere)

    done = call(tmp_path, "run", "chain.yaml")

    assert (tmp_path / "kept" / "runs.db").exists() and not (tmp_path / ".holdfast").exists()
    assert "--store" in resume_command(done.stderr)
    (tmp_path / "open").touch()
    assert pasted(tmp_path, resume_command(done.stderr)).returncode == 0


def test_nothing_is_promised_of_a_run_in_memory(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    done = call(tmp_path, "run", "chain.yaml", "--store", "memory://")

    assert done.returncode == 1
    assert "nothing of the run is kept" in done.stderr and "resume with" not in done.stderr


def test_json_is_one_document(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    failed = call(tmp_path, "run", "chain.yaml", "--json", "--run-id", "r1")
    (tmp_path / "open").touch()
    done = call(tmp_path, "run", "chain.yaml", "--json", "--run-id", "r2")

    assert failed.returncode == 1 and failed.stderr == ""
    told = json.loads(failed.stdout)
    assert told["status"] == "failed" and told["output"] is None and told["stats"]["steps_run"] == 2
    assert told["error"] == {"step": "gated", "attempt": 1, "message": "RuntimeError: the gate is closed"}
    assert told["resume"].endswith(" resume r1")
    told = json.loads(done.stdout)
    assert (told["status"], told["run_id"], told["workflow"]) == ("completed", "r2", "chain")
    assert told["output"] == {"result": "through", "count": 2}
    assert told["stats"]["steps_run"] == 3 and "steps_run" not in told
    assert told["cost"] == 0 and told["pauses"] == [] and told["error"] is None and told["resume"] is None


def test_quiet_prints_the_output_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    done = call(tmp_path, "run", "chain.yaml", "-q")

    assert json.loads(done.stdout) == {"result": "through", "count": 2} and done.stderr == ""


def test_a_question_without_anybody_there_ends_with_4_and_two_commands(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    done = call(tmp_path, "run", "asking.yaml", "--run-id", "r1")

    assert done.returncode == 4 and "approve: Publish it?" in done.stdout
    assert "choices: yes, no" in done.stdout and "    since 2" in done.stdout
    command = next(line for line in done.stdout.splitlines() if line.startswith("answer and resume: "))
    again = pasted(tmp_path, command.partition(": ")[2])
    assert again.returncode == 0 and '"approved": "yes"' in again.stdout
    assert ran(tmp_path) == ["first", "second"]


def test_a_pause_in_json_has_all_that_is_needed_to_answer(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    told = json.loads(call(tmp_path, "run", "asking.yaml", "--run-id", "r1", "--json").stdout)

    (pause,) = told["pauses"]
    assert told["status"] == "paused" and told["resume"].endswith("resume r1 --answer yes")
    assert (pause["kind"], pause["name"], pause["prompt"]) == ("ask", "approve", "Publish it?")
    assert pause["schema"] == {"enum": ["yes", "no"]} and pause["until"] is None
    shown = json.loads(call(tmp_path, "show", "r1", "--json").stdout)
    assert shown["pauses"] == told["pauses"] and pause["command"].endswith("answer r1 approve=yes")


def test_skipped_gates_ask_nothing(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    done = call(tmp_path, "run", "asking.yaml", "--skip-gates", "-q")

    assert done.returncode == 0 and json.loads(done.stdout) == {"approved": "yes"}


def test_inputs_come_as_text_files_and_json(tmp_path: Path) -> None:
    write(tmp_path, "inputs.yaml", INPUTS)
    (tmp_path / "text.txt").write_text("from a file")
    (tmp_path / "inputs.json").write_text('{"text": "overridden", "tags": ["a"]}')

    done = call(
        tmp_path,
        "run",
        "inputs.yaml",
        "-q",
        "--inputs",
        "inputs.json",
        "-i",
        "text=@text.txt",
        "-i",
        "pages:=7",
    )
    piped = call(tmp_path, "run", "inputs.yaml", "-q", "--inputs", "-", given='{"text": "=x=", "pages": 1}')
    plain = call(tmp_path, "run", "inputs.yaml", "-q", "--input", "text=a=b", "-i", "pages=3")

    assert json.loads(done.stdout) == {"text": "from a file", "pages": 7, "tags": ["a"]}
    assert json.loads(piped.stdout) == {"text": "=x=", "pages": 1, "tags": []}
    assert json.loads(plain.stdout) == {"text": "a=b", "pages": 3, "tags": []}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "'text' is missing"),
        (["-i", "text=x", "-i", "pages=many"], "'pages' must be of type integer"),
        (["-i", "text=x", "-i", "page=3"], "did you mean 'pages'"),
        (["-i", "text"], "'text' is not NAME=VALUE"),
        (["-i", "=x"], "is not NAME=VALUE"),
        (["-i", "text:={"], "not JSON"),
        (["-i", "text=@missing.txt"], "missing.txt cannot be read"),
        (["--inputs", "list.json"], "must hold a JSON object"),
        (["-i", "text=x", "--json", "--events", "-"], "both write to stdout"),
        (["-i", "text=x", "--fail-on-state", "odd"], "is not KEY=VALUE"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path, words: list[str], hint: str
) -> None:
    write(tmp_path, "inputs.yaml", INPUTS)
    (tmp_path / "list.json").write_text("[]")

    done = call(tmp_path, "run", "inputs.yaml", *words)

    assert done.returncode == 2 and hint in done.stderr and "Traceback" not in done.stderr
    assert ran(tmp_path) == [] and not (tmp_path / ".holdfast").exists()


def test_an_invalid_workflow_is_told_with_every_place(tmp_path: Path) -> None:
    write(tmp_path, "bad.yaml", "workflow: {nam: x}\nsteps:\n  - {name: a, shel: 'true'}\n")

    done = call(tmp_path, "run", "bad.yaml")

    assert done.returncode == 2
    assert "bad.yaml:1:" in done.stderr and "bad.yaml:3:" in done.stderr and "Traceback" not in done.stderr
    assert call(tmp_path, "run", "missing.yaml").returncode == 2


def test_a_store_that_cannot_be_opened_is_a_matter_of_configuration(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    for url in ("postgresql://x/y?timeout=0", "sqlite:///acts.py", "nowhere://x"):
        done = call(tmp_path, "run", "chain.yaml", "--store", url)
        assert done.returncode == 3 and done.stderr.startswith("holdfast: "), done.stderr


def test_a_missing_secret_is_a_matter_of_configuration_and_a_used_one_is_never_shown(tmp_path: Path) -> None:
    flow = """
workflow: {name: secret}
steps:
  - {name: echo, python: "acts.py:echo", with: {value: "key {{ secrets.TOKEN_X }}"}}
output: "{{ steps.echo.output }}"
"""
    write(tmp_path, "secret.yaml", flow)

    missing = call(tmp_path, "run", "secret.yaml")
    env = environment(HOLDFAST_SECRET_TOKEN_X="swordfish-1234")
    used = call(tmp_path, "run", "secret.yaml", "--events", "events.jsonl", env=env)

    assert missing.returncode == 3 and "TOKEN_X" in missing.stderr
    assert used.returncode == 0
    assert (
        "swordfish" not in used.stdout + (tmp_path / "events.jsonl").read_text() and "key ***" in used.stdout
    )


def test_what_a_failing_step_says_cannot_command_the_terminal(tmp_path: Path) -> None:
    write(tmp_path, "loud.yaml", 'workflow: {name: loud}\nsteps:\n  - {name: loud, python: "acts.py:loud"}\n')

    done = call(tmp_path, "run", "loud.yaml")

    assert done.returncode == 1 and "red" in done.stderr
    assert not any(sign in done.stdout + done.stderr for sign in ("\x1b", "\x07", "\x9b"))


def test_a_retry_is_told_with_its_delay_and_its_reason(tmp_path: Path) -> None:
    flow = """
workflow: {name: flaky}
steps:
  - {name: flaky, python: "acts.py:flaky", retry: {attempts: 3, delay: 10ms, backoff: fixed, on: any}}
"""
    write(tmp_path, "flaky.yaml", flow)

    done = call(tmp_path, "run", "flaky.yaml")

    assert done.returncode == 0, done.stderr
    assert "flaky retry 2 in 0.0s: ConnectionError: lost" in done.stdout
    assert "flaky started (attempt 2)" in done.stdout


def test_a_dry_run_shows_the_plan_and_touches_nothing(tmp_path: Path) -> None:
    flow = """
workflow: {name: plan}
steps:
  - {name: fetch, python: "acts.py:first"}
  - {name: draft, after: fetch, agent: {model: "test:large", prompt: "write"}}
  - {name: check, after: fetch, python: "acts.py:second", when: "true"}
  - name: approve
    after: [draft, check]
    ask: {prompt: "Good?", choices: ["yes", {value: "no", label: "Not yet"}]}
"""
    write(tmp_path, "plan.yaml", flow)
    before = sorted(path.name for path in tmp_path.iterdir())

    done = call(tmp_path, "run", "plan.yaml", "--dry-run")
    told = json.loads(call(tmp_path, "run", "plan.yaml", "--dry-run", "--json").stdout)

    assert done.returncode == 0 and "nothing was run or written" in done.stdout
    assert "asks: approve: Good? (yes, no)" in done.stdout and "draft calls test:large" in done.stdout
    assert [[step["step"] for step in wave] for wave in told["waves"]] == [
        ["fetch"],
        ["draft", "check"],
        ["approve"],
    ]
    assert told["agents"] == [{"step": "draft", "model": "test:large"}] and not told["store_exists"]
    assert sorted(path.name for path in tmp_path.iterdir()) == before and ran(tmp_path) == []


def test_events_are_written_in_the_dialect_that_is_asked_for(tmp_path: Path) -> None:
    """S0.12, R4.2, R4.6: flat objects, with the state where the dialect has it."""
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    tasks = call(tmp_path, "run", "chain.yaml", "--events", "-", "--events-dialect", "task")
    states = call(tmp_path, "run", "chain.yaml", "--events", "-", "--events-dialect", "state")
    alone = call(tmp_path, "run", "chain.yaml", "--events-dialect", "task")

    found = [json.loads(line) for line in tasks.stdout.splitlines() if line.startswith("{")]
    (saved, *_) = [event for event in found if event["type"] == "checkpoint_saved"]
    assert {"checkpoint_id", "timestamp", "run_id", "node"} <= set(saved) and "data" not in saved
    assert all("state" not in event for event in found)
    found = [json.loads(line) for line in states.stdout.splitlines() if line.startswith("{")]
    assert {event["type"] for event in found} == {"state", "final"}
    assert all(isinstance(event["state"], dict) for event in found)
    assert alone.returncode == 2 and "--events FILE" in alone.stderr and "Traceback" not in alone.stderr


def test_events_are_appended_line_by_line(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    target = tmp_path / "deep" / "events.jsonl"

    call(tmp_path, "run", "chain.yaml", "-q", "--run-id", "r1", "--events", str(target))
    first = [json.loads(line) for line in target.read_text().splitlines()]
    (tmp_path / "open").touch()
    call(tmp_path, "resume", "r1", "-q", "--events", str(target))
    both = [json.loads(line) for line in target.read_text().splitlines()]

    assert [event["type"] for event in first].count("node.complete") == 3
    assert first[-1]["type"] == "graph.fail" and both[: len(first)] == first
    assert both[-1]["type"] == "graph.complete" and {event["run_id"] for event in both} == {"r1"}
    assert set(first[0]) == {"type", "timestamp", "run_id", "node", "data"}


def test_events_on_stdout_leave_it_to_themselves(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    done = call(tmp_path, "run", "asking.yaml", "--events", "-")

    types = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert types[-1] == "pause" and done.returncode == 4
    assert "first started" in done.stderr and "answer and resume" in done.stderr


def test_an_event_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    done = call(tmp_path, "run", "chain.yaml", "--events", "acts.py/events.jsonl")

    assert done.returncode == 3 and "events cannot be written" in done.stderr and ran(tmp_path) == []


def test_the_final_state_can_be_made_a_failure(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    for condition, code in [
        ("second.output.count=2", 1),
        ("steps.gated.output=through", 1),
        ("second.output.count=3", 0),
        ("output.there=2", 0),
    ]:
        done = call(tmp_path, "run", "chain.yaml", "--fail-on-state", condition)
        assert done.returncode == code, condition
        assert (f"the final state has {condition}" in done.stderr) == bool(code)


def test_a_condition_on_a_step_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    done = call(tmp_path, "run", "chain.yaml", "--fail-on-state", "secnd.output=2")

    assert done.returncode == 2 and "did you mean 'second'?" in done.stderr and ran(tmp_path) == []


def test_what_a_function_logs_is_without_secrets(tmp_path: Path) -> None:
    write(tmp_path, "log.yaml", """
workflow: {name: log}
steps:
  - {name: log, python: "log.py:log", with: {value: "{{ secrets.TOKEN_X }}"}}
""")  # fmt: skip
    (tmp_path / "log.py").write_text(
        "import logging\n\ndef log(value):\n    logging.getLogger('mine').warning('key %s', value)\n"
    )

    done = call(tmp_path, "run", "log.yaml", env=environment(HOLDFAST_SECRET_TOKEN_X="swordfish-1234"))

    assert "key ***" in done.stderr and "swordfish" not in done.stdout + done.stderr


def test_gates_from_the_command_line_pause_or_are_passed(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()
    gates = ("--interrupt-before", "second", "--interrupt-after", "second")

    paused = call(tmp_path, "run", "chain.yaml", "--run-id", "r1", *gates)
    passed = call(tmp_path, "run", "chain.yaml", "--run-id", "r2", *gates, "--auto-continue", "-q")
    unknown = call(tmp_path, "run", "chain.yaml", "--interrupt-before", "secnod")

    assert paused.returncode == 4 and "paused before 'second'" in paused.stdout
    assert "resume with: " in paused.stdout
    assert passed.returncode == 0 and json.loads(passed.stdout)["result"] == "through"
    assert unknown.returncode == 2 and "secnod" in unknown.stderr


def test_gates_can_be_answered_without_a_terminal_if_that_is_wanted(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    done = call(
        tmp_path, "run", "chain.yaml", "--interactive", "--interrupt-before", "second", given="what\nc\n"
    )
    left = call(tmp_path, "run", "chain.yaml", "--interactive", "--interrupt-before", "second", given="a\n")
    nobody = call(tmp_path, "run", "chain.yaml", "--interactive", "--interrupt-before", "second")

    assert done.returncode == 0 and "Write c, u or a." in done.stdout
    assert left.returncode == 4 and nobody.returncode == 4


def test_piped_answers_reach_one_question_after_the_other(tmp_path: Path) -> None:
    flow = """
workflow: {name: two}
steps:
  - {name: title, ask: {prompt: "Title?"}}
  - {name: pages, ask: {prompt: "Pages?", type: integer}}
output: {title: "{{ steps.title.answer }}", pages: "{{ steps.pages.answer }}"}
"""
    write(tmp_path, "two.yaml", flow)
    done = call(tmp_path, "run", "two.yaml", "--interactive", given="Tides\nmany\n3\n")

    assert done.returncode == 0 and "must be of type integer" in done.stdout
    assert json.loads(done.stdout.rpartition("output:\n")[2]) == {"title": "Tides", "pages": 3}


def test_a_long_step_is_told_of_now_and_then(tmp_path: Path) -> None:
    write(tmp_path, "slow.yaml", SLOW)

    process = start(tmp_path, "run", "slow.yaml", "--heartbeat", "0.1")
    wait_for(process, "slow still running (")
    (tmp_path / "open").touch()
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0 and "slow done in" in out


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "Ctrl+C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_signal_saves_the_run_and_says_how_to_go_on(
    tmp_path: Path, number: int, code: int, word: str
) -> None:
    """R1.12: Ctrl+C saves the run, and the line that it prints resumes it."""
    write(tmp_path, "slow.yaml", SLOW)

    process = start(tmp_path, "run", "slow.yaml", "--run-id", "r1")
    wait_for(process, "slow started")
    until(lambda: "slow" in ran(tmp_path))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)

    assert process.returncode == code and f"interrupted ({word}): run r1 is saved" in err, err
    assert "1 finished step kept" in err and "Traceback" not in err
    (tmp_path / "open").touch()
    again = pasted(tmp_path, resume_command(err))
    assert again.returncode == 0 and "kept 1 step (" in again.stdout
    assert ran(tmp_path) == ["first", "slow", "slow"]


def test_impatient_signals_corrupt_nothing(tmp_path: Path) -> None:
    write(tmp_path, "slow.yaml", SLOW)

    process = start(tmp_path, "run", "slow.yaml", "--run-id", "r1")
    wait_for(process, "slow started")
    until(lambda: "slow" in ran(tmp_path))
    for _ in range(5):
        os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)

    assert process.returncode in (130, -signal.SIGINT)
    (tmp_path / "open").touch()
    again = call(tmp_path, "resume", "r1", "--takeover")
    assert again.returncode == 0, again.stderr
    assert ran(tmp_path).count("first") == 1


def test_a_reader_who_leaves_does_not_stop_the_run(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()
    script = f"{shlex.join(PROGRAM)} run chain.yaml --run-id r1 | true; exit ${{PIPESTATUS[0]}}"

    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment()
    )

    assert "Traceback" not in done.stderr and ran(tmp_path) == ["first", "second", "gated"]
    store = open_store(f"sqlite:///{tmp_path / '.holdfast' / 'runs.db'}")
    assert store.runs(run="r1")[0].status == "completed"
    store.close()


def test_a_run_id_that_is_taken_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    call(tmp_path, "run", "asking.yaml", "--run-id", "r1")
    done = call(tmp_path, "run", "asking.yaml", "--run-id", "r1")

    assert done.returncode == 2 and "'r1'" in done.stderr


def test_json_is_json_in_a_narrow_encoding(tmp_path: Path) -> None:
    text = "na\u00efve \u263a \U0001f600"
    write(
        tmp_path,
        "plain.yaml",
        f'workflow: {{name: plain}}\nsteps:\n  - {{name: a, set: {{x: "{text}"}}}}\n'
        'output: "{{ steps.a.output.x }}"\n',
    )

    done = subprocess.run(
        [*PROGRAM, "run", "plain.yaml", "--json"],
        cwd=tmp_path,
        capture_output=True,
        env=environment(PYTHONIOENCODING="cp1252"),
    )

    assert done.returncode == 0 and json.loads(done.stdout.decode("cp1252"))["output"] == text
