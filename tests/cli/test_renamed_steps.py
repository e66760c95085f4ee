"""A step that gets another name between a failure and its resume."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.processes import call

ITEMS = """
workflow: {name: names}
steps:
  - {name: first, set: {n: 1}}
  - name: fetch
    for_each: {in: [1, 2, 3], as: number, max_parallel: 1}
    shell: {run: 'echo $N >> ran; test $N != 2 -o -e open; echo $N', env: {N: "{{ number }}"}}
output: {first: "{{ steps.first.output.n }}", fetched: "{{ steps.fetch.outputs }}"}
"""


def failed(folder: Path, text: str) -> None:
    (folder / "names.yaml").write_text(text)
    assert call(folder, "run", "names.yaml", "--run-id", "r").returncode == 1
    (folder / "open").touch()


def test_a_for_each_under_way_and_a_finished_step_keep_what_they_have(tmp_path: Path) -> None:
    """R1.11: a renamed step goes on with its items, and what it has finished is found under the new name."""
    failing = ITEMS.replace("-o -e open;", "-o -e open ||  exit 1;")
    failed(tmp_path, failing)
    (tmp_path / "names.yaml").write_text(
        failing.replace("name: fetch", "name: get")
        .replace("steps.fetch", "steps.get")
        .replace("name: first", "name: begin")
        .replace("steps.first", "steps.begin")
    )

    plan = call(tmp_path, "resume", "r", "--remap", "fetch=get", "--remap", "first=begin", "--plan", "--json")
    assert plan.returncode == 0 and "orphaned" not in plan.stdout, plan
    done = call(tmp_path, "resume", "r", "--remap", "fetch=get", "--remap", "first=begin", "--json")

    assert done.returncode == 0, done
    assert json.loads(done.stdout)["output"] == {"first": 1, "fetched": [1, 2, 3]}
    assert (tmp_path / "ran").read_text().split() == ["1", "2", "2", "3"]


def test_a_name_that_no_step_had_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    failed(tmp_path, ITEMS.replace("-o -e open;", "-o -e open ||  exit 1;"))
    before = call(tmp_path, "events", "r", "--json").stdout

    done = call(tmp_path, "resume", "r", "--remap", "fetsch=fetch")

    assert done.returncode == 2 and "fetsch" in done.stderr and "Traceback" not in done.stderr
    assert call(tmp_path, "events", "r", "--json").stdout == before
