"""What a person says to the agents of a run: on a resume, by a command, and at a gate in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.llm_server import LlmServer, reply
from tests.cli.processes import CHAIN, Session, call, environment, write

FILE = """
workflow: {{name: guided}}
steps:
  - name: one
    agent: {{model: "openai:gpt-4o-mini", base_url: "{url}", prompt: "first", system: "Be brief."}}
  - name: inside
    workflow: inner.yaml
  - name: two
    agent: {{model: "openai:gpt-4o-mini", base_url: "{url}", prompt: "second"}}
"""

INNER = """
workflow: {{name: inner}}
steps:
  - name: deep
    agent: {{model: "openai:gpt-4o-mini", base_url: "{url}", prompt: "deep"}}
"""

KEY = environment(OPENAI_API_KEY="none")


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as running:
        running.default = reply("hi")
        yield running


@pytest.fixture
def folder(tmp_path: Path, server: LlmServer) -> Path:
    write(tmp_path, "guided.yaml", FILE.format(url=server.url))
    write(tmp_path, "inner.yaml", INNER.format(url=server.url))
    return tmp_path


def paused(folder: Path) -> None:
    run = ("run", "guided.yaml", "--run-id", "r1", "--interrupt-after", "one", "--no-interactive", "-q")
    assert call(folder, *run, env=KEY).returncode == 4


def test_a_resume_with_guidance_reaches_every_later_agent(folder: Path, server: LlmServer) -> None:
    """R1.11: `resume --guidance`; also of agents in sub-workflows."""
    paused(folder)
    done = call(
        folder, "resume", "r1", "-q", "--guidance", "Cite sources.", "--guidance", "No jokes.", env=KEY
    )

    first, deep, last = server.requests
    assert done.returncode == 0 and first.system == "Be brief."
    for request in (deep, last):
        assert request.system.endswith("newest last:\n- Cite sources.\n- No jokes.")


def test_a_command_guides_a_run_and_what_was_said_stays(folder: Path, server: LlmServer) -> None:
    """R1.9: `guide`."""
    paused(folder)
    told = call(folder, "steps", "guide", "r1", "Cite sources.", "--reason", "asked by Ada")
    call(folder, "steps", "guide", "r1", "No jokes.")
    done = call(folder, "resume", "r1", "-q", env=KEY)
    events = call(folder, "events", "r1")

    assert told.returncode == 0 and "its agents are guided" in told.stdout and "resume with" in told.stdout
    assert done.returncode == 0 and "asked by Ada" in events.stdout
    assert server.requests[-1].system.endswith("- Cite sources.\n- No jokes.")


def test_somebody_at_a_gate_guides_the_agents(folder: Path, server: LlmServer) -> None:
    """R1.12: continue with guidance, at the terminal."""
    session = Session(folder, "run", "guided.yaml", "--interrupt-after", "one", OPENAI_API_KEY="none")
    session.expect("[g]uide the agents")
    session.write("g\n")
    session.expect("Tell the agents:")
    session.write("Cite sources.\n")
    session.expect("[g]uide the agents")
    session.write("c\n")

    assert session.end() == 0 and server.requests[-1].system.endswith("- Cite sources.")


def test_guidance_that_nobody_would_follow_is_refused(folder: Path) -> None:
    write(folder, "chain.yaml", CHAIN)
    call(folder, "run", "chain.yaml", "-q", "--run-id", "c1")
    guide = call(folder, "steps", "guide", "c1", "Be kind.")
    resume = call(folder, "resume", "c1", "--guidance", "Be kind.")
    paused(folder)
    empty = call(folder, "steps", "guide", "r1", " ")

    assert guide.returncode == 2 and "asks no model" in guide.stderr
    assert resume.returncode == 2 and "asks models" in resume.stderr
    assert empty.returncode == 2 and "empty" in empty.stderr
