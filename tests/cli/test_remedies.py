"""What commands say of a mistake: a remedy that works when it is pasted, a name that was meant, the exit code."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from holdfast.cli.commands.doctor import REQUIRED
from tests.cli.in_process import SOURCE
from tests.cli.processes import ASKING, CHAIN, call, environment, pasted, ran, start, write

DOUBTFUL = """
workflow: {name: doubtful}
steps:
  - {name: fatal, python: "fatal.py:die", idempotent: false}
"""
MAYBE = """
import os, pathlib

def die():
    os._exit(9)
"""


def imported(folder: Path, text: str, *more: str) -> Path:
    """A folder with a run, r1, that was imported from a capsule and is not confirmed."""
    write(folder, "flow.yaml", text)
    call(folder, "run", "flow.yaml", "--run-id", "r1", "--no-interactive")
    call(folder, "capsule", "export", "r1", "-o", "r1.holdfast")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere, "flow.yaml", text)
    assert call(elsewhere, "capsule", "import", "../r1.holdfast", *more).returncode == 0
    return elsewhere


def confirming(text: str) -> str:
    found = re.search(r"if you trust all that is shown above: (.+)", text)
    assert found is not None, text
    return found[1].strip()


def test_the_command_that_confirms_a_resume_keeps_what_was_given(tmp_path: Path) -> None:
    folder = imported(tmp_path, ASKING)

    refused = call(folder, "resume", "--answer", "approve=yes", "--no-interactive", "-q")
    command = confirming(refused.stderr)

    assert refused.returncode == 2 and " resume r1 " in command and "--answer approve=yes" in command
    done = pasted(folder, command)
    assert done.returncode == 0 and json.loads(done.stdout) == {"approved": "yes"}


def test_the_command_that_confirms_a_rerun_works(tmp_path: Path) -> None:
    folder = imported(tmp_path, ASKING, "--store", "sqlite:///here.db")

    refused = call(
        folder, "rerun", "flow.yaml", "--from", "first", "--run-id", "-r2", "--store", "here.db", "--json"
    )
    command = confirming(refused.stderr)

    assert refused.returncode == 2 and "--from first" in command and "--run-id -r2" in command
    done = pasted(folder, command)
    assert done.returncode == 4 and json.loads(done.stdout)["run_id"] == "-r2"
    assert ran(folder) == ["first"]


def test_the_command_that_confirms_a_fork_resumes_it(tmp_path: Path) -> None:
    folder = imported(tmp_path, CHAIN)

    refused = call(folder, "fork", "r1", "--run-id", "-f", "--run")

    (folder / "open").touch()
    assert refused.returncode == 2 and pasted(folder, confirming(refused.stderr)).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        "answer asknig yes",
        "pause asknig",
        "rerun asknig --from first",
        "steps skip asknig first",
        "show asknig",
        "history asknig",
        "fork asknig",
    ],
)
def test_an_unknown_run_is_answered_with_a_known_one_and_the_command_that_lists_them(
    tmp_path: Path, words: str
) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", "r1", "--no-interactive")

    told = call(tmp_path, *words.split())

    assert (
        told.returncode == 1 and "did you mean 'asking'?" in told.stderr and "`holdfast runs`" in told.stderr
    )


def test_wrong_names_and_statuses_are_told(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", "r1", "--no-interactive")

    listed = call(tmp_path, "runs", "list")
    assert listed.returncode == 2 and "`holdfast runs` lists them" in listed.stderr
    forked = call(tmp_path, "fork", "r1", "--as-node", "aprove")
    assert "did you mean 'approve'?; there are: first, approve, second" in forked.stderr
    call(tmp_path, "cancel", "r1")
    assert call(tmp_path, "pause", "r1").stdout == "run r1 is cancelled; there is nothing to pause\n"


def test_exit_codes_of_configuration_and_requests(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    call(tmp_path, "run", "chain.yaml")
    assert call(tmp_path, "runs", env=environment(HOLDFAST_KEY="bad")).returncode == 3
    assert call(tmp_path, "run", "chain.yaml", env=environment(HOLDFAST_KEY="bad")).returncode == 3
    assert call(tmp_path, "runs", env=environment(HOLDFAST_ENCRYPTION="require")).returncode == 3
    assert call(tmp_path, "capsule", "keygen", "-o", "k").returncode == 0
    assert call(tmp_path, "capsule", "keygen", "-o", "k").returncode == 2
    (tmp_path / "k.pub").unlink()
    assert call(tmp_path, "capsule", "keygen", "-o", "k").returncode == 2


def test_data_after_the_end_of_a_capsule_is_called_that(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    call(tmp_path, "run", "chain.yaml", "--run-id", "r1")
    call(tmp_path, "capsule", "export", "r1", "-o", "c.holdfast")
    with (tmp_path / "c.holdfast").open("ab") as file:
        file.write(b"x")

    told = call(tmp_path, "capsule", "import", "c.holdfast")

    assert told.returncode == 2 and "data follows its end, from byte " in told.stderr


def test_json_names_the_store_in_one_form(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()
    url = f"sqlite:///{tmp_path}/.holdfast/runs.db"

    for words in (
        "runs --json",
        "checkpoints list --json",
        "run chain.yaml --run-id r1 --json",
        "runs --json",
        "checkpoints list --json",
        "show r1 --json",
        "history r1 --json",
        "runs cost r1 --json",
        "store stats --json",
        "store fsck --json",
        "store migrate --json",
        "fork r1 --json",
        "run chain.yaml --dry-run --json",
        "queue list --json",
    ):
        assert json.loads(call(tmp_path, *words.split()).stdout)["store"] == url, words


def test_an_interrupted_step_is_told_without_the_name_of_a_class(tmp_path: Path) -> None:
    write(tmp_path, "doubtful.yaml", DOUBTFUL)
    (tmp_path / "fatal.py").write_text(MAYBE)
    start(tmp_path, "run", "doubtful.yaml", "--run-id", "r1").communicate(timeout=60)

    for words in (
        "resume r1",
        "show r1",
        "show r1 --step fatal",
        "events r1",
        "history r1",
        "resume r1 --plan",
    ):
        told = call(tmp_path, *words.split())
        assert "interrupted" in told.stdout or "unasked" in told.stdout, words
        assert "StepInterrupted" not in told.stdout + told.stderr, words


def test_doctor_checks_every_package_that_holdfast_requires() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]

    names = {re.split(r"[^A-Za-z0-9_.-]", each)[0] for each in project["dependencies"]}

    assert {name.lower() for name in names} - {"backports.zstd"} == {name.lower() for name in REQUIRED}
