"""Pause and resume as the decision record of the interactive workflow server describes them, with workflow files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_docs import environment

BLOCKS = """
workflow:
  name: NAME
  inputs: {topic: {type: string, default: tea}}
  checkpoint: {retention: {pause_ttl: 24h}}
steps:
  - {name: collect, shell: "echo collect >> ran.txt; echo facts"}
  - {name: confirm, after: collect, ask: {prompt: "Publish on {{ inputs.topic }}?", type: string}}
  - {name: also, after: collect, ask: "Who signs?"}
  - name: publish
    after: [confirm, also]
    when: steps.confirm.output == 'yes'
    shell: {run: 'printf "%s " publish "{{ steps.also.output }}" >> ran.txt'}
output: {response: "{{ steps.confirm.output }}", published: "{{ steps.publish.status }}"}
"""


class Server:
    """A folder with workflow files, and the commands of the people around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("one", "two"):
            (folder / f"{name}.yaml").write_text(BLOCKS.replace("NAME", name))

    def call(self, *words: str, code: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "holdfast", *words, "--json"],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def ran(self) -> list[str]:
        return (self.folder / "ran.txt").read_text().split()


PAUSED = 4


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_a_run_pauses_for_input_and_goes_on_with_the_responses(server: Server) -> None:
    """S2.1, S2.3, S2.13, S2.14: the responses are the outputs of their blocks, and finished blocks stay."""
    paused = server.call("run", "one.yaml", "--run-id", "r", "--no-interactive", code=PAUSED)
    assert {pause["prompt"] for pause in paused["pauses"]} == {"Publish on tea?", "Who signs?"}

    half = server.call("resume", "r", "--answer", "confirm=yes", "--no-interactive", code=PAUSED)
    assert [pause["prompt"] for pause in half["pauses"]] == ["Who signs?"]
    done = server.call("resume", "r", "--answer", "also=Ada", "--no-interactive")

    assert done["output"] == {"response": "yes", "published": "completed"}
    assert server.ran() == ["collect", "publish", "Ada"]


def test_several_workflows_pause_independently(server: Server) -> None:
    """S2.4: two runs wait at the same time, and an answer to one changes nothing in the other."""
    for name in ("one", "two"):
        server.call("run", f"{name}.yaml", "--run-id", name, "--no-interactive", code=PAUSED)

    server.call("resume", "one", "--answer", "confirm=no", "--answer", "also=Ada", "--no-interactive")

    assert server.call("show", "one")["status"] == "completed"
    assert server.call("show", "two")["status"] == "paused"
    assert server.ran() == ["collect", "collect"], "nothing was published"


def test_a_run_that_is_not_there_is_an_error_with_a_way_out(server: Server) -> None:
    """S2.12: the error names what was not found."""
    server.call("run", "one.yaml", "--run-id", "r", "--no-interactive", code=PAUSED)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "resume", "nowhere"],
        cwd=server.folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode != 0 and "nowhere" in done.stderr and "Traceback" not in done.stderr
