"""A service on a SQLite file, with workflows of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.service import Service

GREET = """\
workflow:
  name: greet
  description: Say hello.
  inputs:
    name: {type: string, required: true, description: Whom to greet.}
    times: {type: integer, default: 1, choices: [1, 2]}
steps:
  - name: write
    shell: {run: 'echo "hello $NAME"', env: {NAME: "{{ inputs.name }}"}}
    timeout: 30
output: "{{ steps.write.output }}"
"""

REVIEW = """\
workflow: {name: review, inputs: {topic: {type: string, default: tides}}}
steps:
  - name: draft
    shell: {run: 'echo "on $TOPIC"', env: {TOPIC: "{{ inputs.topic }}"}}
    timeout: 30
  - name: approve
    ask: {prompt: "Publish it?", choices: ["yes", "no"]}
  - name: publish
    shell: {run: 'echo "published $SAID"', env: {SAID: "{{ steps.approve.output }}"}}
    timeout: 30
output: "{{ steps.publish.output }}"
"""

BROKEN = """\
workflow: {name: broken}
steps:
  - name: first
    shell: 'true'
    timeout: 30
  - name: fails
    shell: 'test -e fixed'
    timeout: 30
"""


@pytest.fixture
def workflows(tmp_path: Path) -> Path:
    """A folder with three workflow files."""
    folder = tmp_path / "workflows"
    folder.mkdir()
    for name, text in (("greet", GREET), ("review", REVIEW), ("broken", BROKEN)):
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def service(url: str, workflows: Path) -> Iterator[Service]:
    """A service whose worker executes what is submitted."""
    with Service(url, [workflows]) as started:
        yield started
