"""What a workflow file says beside its steps counts for the steps that name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.engine.app import App
from holdfast.engine.graph_changes import changed_nodes, changes_between
from holdfast.stores.base import Store
from holdfast.workflows.workflow import load_workflow

ACTS = """
import helper

def say(word):
    with open("ran.txt", "a") as file:
        file.write(word.split()[0] + "\\n")
    return word

def all_vars(vars):
    say("all")
    return sorted(vars)

def help(word):
    say("help")
    return helper.told(word)
"""

SUB = """
workflow: {name: sub, vars: {k: one}}
steps:
  - {name: inner, python: "acts.py:say", with: {word: "inner {{ vars.k }}"}}
output: "{{ steps.inner.output }}"
"""

FLOW = """
workflow:
  name: w
  vars: {tone: dry, names: [x, y], wanted: 1, end: full, unused: 1}
  checkpoint: {retention: {max_checkpoints: 100}}
steps:
  - {name: plain, python: "acts.py:say", with: {word: "plain"}}
  - {name: toned, python: "acts.py:say", with: {word: "toned {{ vars.tone }}"}}
  - {name: each, for_each: {in: "{{ vars.names }}"}, python: "acts.py:say", with: {word: "each {{ item }}"}}
  - {name: gate, when: "vars.wanted == 1", python: "acts.py:say", with: {word: "gate"}}
  - {name: sub, workflow: sub.yaml}
output: {o: "{{ steps.gate.status }} {{ vars.end }} {{ len(steps.each.outputs) }}"}
"""


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acts.py").write_text(ACTS)
    (tmp_path / "helper.py").write_text("def told(word):\n    return word\n")
    (tmp_path / "sub.yaml").write_text(SUB)
    return tmp_path


def opened(text: str, store: Store) -> App:
    Path("flow.yaml").write_text(text)
    return load_workflow("flow.yaml").open(store)


def ran() -> list[str]:
    path = Path("ran.txt")
    found = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


@pytest.mark.parametrize(
    ("file", "old", "new", "runs", "output"),
    [
        ("flow.yaml", "tone: dry", "tone: wet", ["toned"], "completed full 2"),
        ("flow.yaml", "names: [x, y]", "names: [x, y, z]", ["each"], "completed full 3"),
        ("flow.yaml", "wanted: 1", "wanted: 2", [], "skipped full 2"),
        ("flow.yaml", "end: full", "end: short", [], "completed short 2"),
        ("flow.yaml", "unused: 1", "unused: 2", [], "completed full 2"),
        ("sub.yaml", "k: one", "k: two", ["inner"], "completed full 2"),
    ],
    ids=["a text", "the items", "a condition", "the output", "named by nothing", "of a sub-workflow"],
)
def test_a_changed_variable_counts_where_it_is_named(
    desk: Path, store: Store, file: str, old: str, new: str, runs: list[str], output: str
) -> None:
    """R0.11: steps whose texts or conditions name it are not taken over, and run again if changes are to."""
    opened(FLOW, store).invoke({}, run_id="r")
    assert ran() == ["plain", "toned", "each", "each", "gate", "inner"]
    texts = {"flow.yaml": FLOW, "sub.yaml": SUB}
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    Path("sub.yaml").write_text(texts["sub.yaml"])

    again = opened(texts["flow.yaml"], store)

    assert again.invoke(reuse="r").state["output"]["o"] == output
    assert ran() == runs
    planned = again.plan_changes("r")
    assert (planned is None) == ("unused" in old)
    if planned is not None:
        assert again.resume("r", rerun_changed=True).state["output"]["o"] == output


@pytest.mark.parametrize(
    ("step", "change", "runs"),
    [
        ('{name: a, python: "acts.py:all_vars"}', ("{v: 1}", "{v: 1, w: 2}"), ["all"]),
        ('{name: a, python: "acts.py:say", with: {word: "a {{ workflow.run_id }}"}}', ("", ""), ["a"]),
        ('{name: a, python: "acts.py:say", with: {word: "a {{ workflow.name }}"}}', ("", ""), []),
        ('{name: a, python: "acts.py:help", with: {word: x}}', ("", ""), []),
    ],
    ids=[
        "a function that takes them all",
        "the id of the run",
        "the name of the workflow",
        "a module beside it",
    ],
)
def test_values_that_steps_are_given_count(
    desk: Path, store: Store, step: str, change: tuple[str, str], runs: list[str]
) -> None:
    text = f"workflow: {{name: w, vars: {{v: 1}}}}\nsteps:\n  - {step}\n"
    opened(text, store).invoke({}, run_id="r")
    ran()

    opened(text.replace(*change) if change[0] else text, store).invoke(reuse="r")

    assert ran() == runs


def test_a_variable_in_a_route_counts(desk: Path, store: Store) -> None:
    """S2.18: a changed route is followed again; earlier results are kept."""
    text = """
workflow: {name: w, vars: {way: b}}
steps:
  - {name: a, python: "acts.py:say", with: {word: a}, routes: [{to: b, when: "vars.way == 'b'"}, {to: c}]}
  - {name: b, python: "acts.py:say", with: {word: b}, routes: [{to: $end}]}
  - {name: c, python: "acts.py:say", with: {word: c}}
"""
    opened(text, store).invoke({}, run_id="r")
    assert ran() == ["a", "b"]

    opened(text.replace("way: b", "way: c"), store).resume("r", rerun_changed=True)

    assert ran() == ["c"]


def test_a_renamed_step_does_not_make_its_route_another(desk: Path, store: Store) -> None:
    text = """
workflow: {name: w}
steps:
  - {name: a, python: "acts.py:say", with: {word: a}, routes: [{to: b, when: "output == 'a'"}, {to: c}]}
  - {name: b, python: "acts.py:say", with: {word: b}}
  - {name: c, python: "acts.py:say", with: {word: c}}
"""
    one = opened(text, store).outline()
    renamed = text.replace("name: b", "name: bb").replace("to: b", "to: bb")
    other = opened(renamed, store).outline()
    swapped = text.replace("to: b", "to: x").replace("to: c", "to: b").replace("to: x", "to: c")

    assert changes_between(one, other, {"b": "bb"}) == ["'b' was renamed to 'bb'"]
    assert changed_nodes(one, other, {"b": "bb"}) == {}
    assert changes_between(one, opened(swapped, store).outline()) == [
        "the way on from 'a' is chosen otherwise"
    ]
