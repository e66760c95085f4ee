"""Metadata of one run, beside that of its workflow file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.processes import call, write

FILE = """
workflow: {name: noted, metadata: {owner: Ada, ticket: none}}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: gated, python: "acts.py:gated"}
  - {name: echo, python: "acts.py:echo", with: {value: "{{ [metadata.owner, metadata.ticket] }}"}}
output: "{{ steps.echo.output }}"
"""


def test_a_run_keeps_the_metadata_that_it_was_given(tmp_path: Path) -> None:
    """R1.9: --metadata, which a resume keeps."""
    write(tmp_path, "noted.yaml", FILE)
    call(tmp_path, "run", "noted.yaml", "--run-id", "r1", "--metadata", "ticket=17", "-q")
    (tmp_path / "open").touch()
    resumed = call(tmp_path, "resume", "r1", "-q")
    plain = call(tmp_path, "run", "noted.yaml", "-q")
    wrong = call(tmp_path, "run", "noted.yaml", "--metadata", "ticket")

    assert resumed.returncode == 0 and json.loads(resumed.stdout) == ["Ada", 17]
    assert json.loads(plain.stdout) == ["Ada", "none"]
    assert wrong.returncode == 2 and "not NAME=VALUE" in wrong.stderr
