"""The reference of workflow files: it is fresh, complete, and its examples are workflows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from holdfast.workflows.model import json_schema
from holdfast.workflows.reading.source import read_source
from holdfast.workflows.reading.validation import parse
from tests.docs.test_docs import ROOT, environment

PAGE = ROOT / "docs/reference/workflow.md"


def test_the_reference_of_workflow_files_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/make_workflow_reference.py", "--check"],
        capture_output=True,
        text=True,
        env=environment() | {"PYTHONPATH": str(ROOT / "src")},
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_every_part_and_every_field() -> None:
    text = PAGE.read_text("utf-8")
    schema = json_schema()

    for part, described in schema["$defs"].items():
        assert f"\n## {part}\n" in text
        for field in described["properties"]:
            assert f"\n| `{field}` |" in text, (part, field)


def test_its_examples_are_workflows() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)

    assert examples
    for example in examples:
        assert parse(read_source(Path("example.yaml"), env={}, text=example)).steps
