"""What `run` was asked for holds for every resume: gates, skipped questions, durability."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.options import RunOptions
from tests.cli.processes import CHAIN, call, ran, write

PAYING = """
workflow: {name: paying}
steps:
  - {name: gated, python: "acts.py:gated"}
  - {name: first, python: "acts.py:first"}
"""


def test_a_gate_holds_after_a_failure_and_a_resume(tmp_path: Path) -> None:
    write(tmp_path, "paying.yaml", PAYING)
    failed = call(tmp_path, "run", "paying.yaml", "--run-id", "r1", "--interrupt-before", "first")
    (tmp_path / "open").touch()

    paused = call(tmp_path, "resume", "r1")

    assert failed.returncode == 1 and paused.returncode == 4, paused.stderr
    assert "paused before 'first'" in paused.stdout and "first" not in ran(tmp_path)
    assert call(tmp_path, "resume", "r1").returncode == 0 and ran(tmp_path)[-1] == "first"


def test_a_gate_holds_when_an_answer_goes_on(tmp_path: Path) -> None:
    asking = PAYING.replace('{name: gated, python: "acts.py:gated"}', '{name: q, ask: "Go?"}')
    write(tmp_path, "paying.yaml", asking)
    call(tmp_path, "run", "paying.yaml", "--run-id", "r1", "--interrupt-before", "first")

    answered = call(tmp_path, "answer", "r1", "yes", "--resume")

    assert answered.returncode == 4 and ran(tmp_path) == []


def test_questions_stay_skipped_after_a_resume(tmp_path: Path) -> None:
    asking = PAYING.replace(
        '{name: first, python: "acts.py:first"}', '{name: q, ask: {prompt: "?", default: x}}'
    )
    write(tmp_path, "paying.yaml", asking)
    call(tmp_path, "run", "paying.yaml", "--run-id", "r1", "--skip-gates")
    (tmp_path / "open").touch()

    assert call(tmp_path, "resume", "r1").returncode == 0


def test_a_gate_at_a_renamed_step_is_not_lost(tmp_path: Path) -> None:
    write(tmp_path, "paying.yaml", PAYING)
    call(tmp_path, "run", "paying.yaml", "--run-id", "r1", "--interrupt-before", "first")
    (tmp_path / "open").touch()
    write(tmp_path, "paying.yaml", PAYING.replace("name: first", "name: pay"))

    refused = call(tmp_path, "resume", "r1")
    paused = call(tmp_path, "resume", "r1", "--remap", "first=pay")

    assert refused.returncode == 2 and "--remap OLD=NEW" in refused.stderr
    assert paused.returncode == 4 and "first" not in ran(tmp_path)


def test_a_gate_at_no_step_is_a_matter_of_usage(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    refused = call(tmp_path, "run", "chain.yaml", "--interrupt-before", "gatd")

    assert refused.returncode == 2 and "no such step" in refused.stderr and "gated" in refused.stderr
    assert "chain.yaml:" not in refused.stderr


def test_wishes_are_read_from_whatever_a_config_holds() -> None:
    options = RunOptions(("a",), ("b",), True, "full")

    assert RunOptions.of({"run": {"interrupt_before": ["a"], "interrupt_after": ["b"], "skip_gates": True,
                              "durability": "full"}}) == options  # fmt: skip
    assert (
        RunOptions.of({})
        == RunOptions.of({"run": 3})
        == RunOptions.of({"run": {"interrupt_before": "x"}})
        == RunOptions()
    )
