"""Workflow files: what runs again after a change, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.workflows.workflow import load_workflow

FLOW = """
workflow:
  name: report
  inputs:
    topic: {type: string, default: tides}
    tone: {type: string, default: dry}
steps:
  - name: fetch
    python: acts.py:say
    with: {word: "fetch {{ inputs.topic }}"}
  - name: each
    for_each: {in: [a, b, c], as: letter}
    python: acts.py:say
    with: {word: "each {{ letter }} of {{ steps.fetch.output }}"}
  - name: aside
    python: acts.py:say
    with: {word: "aside {{ steps.fetch.output }}"}
  - name: draft
    python: acts.py:say
    with: {word: "draft {{ steps.each.outputs }}"}
  - name: publish
    python: acts.py:say
    with: {word: "publish {{ steps.draft.output }}"}
"""

ACTS = """
def say(word):
    with open("ran.txt", "a") as file:
        file.write(word.split()[0] + "\\n")
    return word
"""


class Desk:
    """A folder with a workflow file, and the command line in it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        (folder / "acts.py").write_text(ACTS)
        self.write()

    def write(self, *changes: tuple[str, str]) -> None:
        text = FLOW
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (self.folder / "flow.yaml").write_text(text)

    def call(self, *words: str, code: int = 0) -> str:
        found = main([*words, "--store", f"sqlite:///{self.folder / 'runs.db'}"])
        said = self._capsys.readouterr()
        assert found == code, said.out + said.err
        return said.out + said.err

    def ran(self) -> list[str]:
        path = self.folder / "ran.txt"
        found = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    monkeypatch.chdir(tmp_path)
    made = Desk(tmp_path, capsys)
    made.call("run", "flow.yaml", "--run-id", "first", "-i", "topic=moon", "-q")
    assert made.ran() == ["fetch", "each", "each", "each", "aside", "draft", "publish"]
    return made


@pytest.mark.parametrize(
    ("change", "ran"),
    [
        (('"draft {{', '"draft: {{'), ["draft:", "publish"]),
        (("workflow:\n", "# Written anew.\nworkflow:\n"), []),
        (("  - name: draft\n", "  - name: draft\n    description: now with a description\n"), []),
        (('"aside {{', '"Aside {{'), ["Aside"]),
        (("in: [a, b, c]", "in: [a, x, c]"), ["each", "draft", "publish"]),
        (('"fetch {{', '"Fetch {{'), ["Fetch", "each", "each", "each", "aside", "draft", "publish"]),
    ],
    ids=["a prompt", "a comment", "a description", "a step that nobody reads", "an item", "the first"],
)
def test_run_reuse_pays_for_what_changed_and_for_what_saw_it(
    desk: Desk, change: tuple[str, str], ran: list[str]
) -> None:
    """R0.11: change step 6, pay for 6 onward; inputs that are not given are those of the run that is reused."""
    desk.write(change)

    said = desk.call("run", "flow.yaml", "--reuse", "first", "--run-id", "second")

    assert desk.ran() == ran
    assert "completed" in said and ("reused" in said) == ("Fetch" not in ran)
    state = load_workflow("flow.yaml").open(f"sqlite:///{desk.folder / 'runs.db'}").get_state("second")
    assert state["inputs"]["topic"] == "moon"


def test_independent_steps_in_another_order_are_all_kept(desk: Desk) -> None:
    text = (desk.folder / "flow.yaml").read_text()
    head, each, aside, draft = _parts(text)
    (desk.folder / "flow.yaml").write_text(head + aside + each + draft)

    desk.call("run", "flow.yaml", "--reuse", "report", "-q")

    assert desk.ran() == []


def _parts(text: str) -> tuple[str, str, str, str]:
    each, aside, draft = (text.index(f"  - name: {name}") for name in ("each", "aside", "draft"))
    return text[:each], text[each:aside], text[aside:draft], text[draft:]


def test_another_input_counts_where_it_is_looked_at(desk: Desk) -> None:
    desk.call("run", "flow.yaml", "--reuse", "first", "-i", "topic=sun", "-q")
    assert desk.ran()[0] == "fetch"


def test_submit_reuse_stores_it_for_workers(desk: Desk) -> None:
    desk.write(('"publish {{', '"Publish {{'))
    desk.call("submit", "flow.yaml", "--reuse", "first", "--run-id", "later")
    assert desk.ran() == []

    desk.call("worker", "--workflow", "flow.yaml", "--until-idle")

    assert desk.ran() == ["Publish"]


def test_resume_rerun_changed_takes_the_run_itself_back(desk: Desk) -> None:
    """S2.18: a completed run, too."""
    desk.write(('"draft {{', '"Draft {{'))
    said = desk.call("resume", "first", "--rerun-changed")

    assert desk.ran() == ["Draft", "publish"]
    assert "kept 2 steps and 3 items" in said and "ran 2 steps" in said
    assert "is completed" in desk.call("resume", "first", "--rerun-changed", code=2)


def test_rerun_begins_with_a_step_and_keeps_the_rest(desk: Desk) -> None:
    planned = desk.call("rerun", "report", "--from", "draft", "--plan")
    assert "draft    runs again  asked for" in planned and "nothing was touched" in planned
    assert desk.ran() == []

    desk.call("rerun", "first", "--from", "draft", "--run-id", "second", "-q")
    assert desk.ran() == ["draft", "publish"]
    said = desk.call("rerun", "first", "--from", "each[1]", "-i", "letter=z")
    assert desk.ran() == ["each", "aside", "draft", "publish"]
    assert "reused 0 steps and 2 items" in said
    said = desk.call("rerun", "first", "--from", "draft", "--output", "by hand")
    assert desk.ran() == ["publish"] and "publish by hand" in said
    said = desk.call("rerun", "first", "--from", "fetch", "--set", "inputs.topic=sun")
    assert "of fetch sun" in said
    desk.ran()
    desk.call("rerun", "first", "--from", "publish", "--in-place", "-q")
    assert desk.ran() == ["publish"]


def test_rerun_says_what_is_wrong(desk: Desk) -> None:
    assert "did you mean 'draft'" in desk.call("rerun", "first", "--from", "drat", code=2)
    assert "made of others" in desk.call("rerun", "first", "--from", "each", "--output", "1", code=2)
    assert "give either an input or an output" in desk.call(
        "rerun", "first", "--from", "draft", "--output", "1", "-i", "inputs.topic=x", code=2
    )
    assert "give either a run id for the new run, or in-place" in desk.call(
        "rerun", "first", "--from", "draft", "--in-place", "--run-id", "x", code=2
    )
    desk.write(("name: report", "name: other"))
    assert "only steps of the same workflow" in desk.call("run", "flow.yaml", "--reuse", "first", code=2)
    assert desk.ran() == []


def test_both_answer_in_json(desk: Desk) -> None:
    plan = json.loads(desk.call("rerun", "first", "--from", "publish", "--plan", "--json"))
    assert plan["nodes"] == {"publish": "asked for"} and plan["steps"][0]["what"] == "rerun"

    ended = json.loads(desk.call("run", "flow.yaml", "--reuse", "first", "--json"))
    assert (ended["stats"]["steps_reused"], ended["stats"]["steps_run"]) == (5, 0)
    assert ended["stats"]["seconds_saved"] > 0
