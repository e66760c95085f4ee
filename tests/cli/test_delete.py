"""`holdfast delete`: a run and its data, after confirmation."""

from __future__ import annotations

from pathlib import Path

from tests.cli.processes import ASKING, SLOW, Session, call, start, wait_for, write


def test_a_run_is_deleted_after_confirmation(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    for name in ("one", "two", "three"):
        call(tmp_path, "run", "asking.yaml", "--run-id", name)

    refused = call(tmp_path, "delete", "one")
    assert refused.returncode == 2 and "this would delete run one of asking (paused)" in refused.stderr
    session = Session(tmp_path, "delete", "two")
    session.expect("Delete run two of asking (paused) and all its data? [y/N]")
    session.write("y\n")
    assert session.end() == 0
    done = call(tmp_path, "delete", "three", "--yes", "--json")

    assert done.stdout.split() == ["{", '"run_id":', '"three",', '"deleted":', "true", "}"]
    assert [run for run in ("one", "two", "three") if call(tmp_path, "show", run).returncode == 0] == ["one"]


def test_a_run_that_another_process_executes_is_not_deleted(tmp_path: Path) -> None:
    write(tmp_path, "slow.yaml", SLOW)
    running = start(tmp_path, "run", "slow.yaml", "--run-id", "r")
    wait_for(running, "slow started")

    refused = call(tmp_path, "delete", "r", "--yes")
    (tmp_path / "open").touch()

    assert refused.returncode != 0 and "'r' is executed by a process" in refused.stderr
    assert running.communicate(timeout=60) and running.returncode == 0
    assert call(tmp_path, "delete", "r", "--yes").stdout == "run r is deleted\n"
