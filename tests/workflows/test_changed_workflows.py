"""Steps of a stopped run whose workflow file was edited: the plan names each consequence, the resume matches it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast import ExecutionError
from holdfast.views.plans import plan_rows
from tests.engine.plan_checks import plan_and_resume
from tests.workflows.workshop import Workshop


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR, "holdfast"):
        yield


def say(name: str, word: str = "", more: str = "") -> str:
    return f'  - {{name: {name}, python: "steps.py:say", with: {{word: {word or name}}}{more}}}\n'


def flaky(name: str, word: str = "", more: str = "") -> str:
    word = word or name
    return f'  - {{name: {name}, python: "steps.py:fail_until", with: {{word: {word}, fixed: "fixed-{word}"}}{more}}}\n'


def steps(*parts: str) -> str:
    return "steps:\n" + "".join(parts)


def inner(*parts: str) -> str:
    return "workflow: {name: inner}\n" + steps(*parts)


EACH = ", for_each: {in: [1, 2, 3], as: n, max_parallel: 1}"
ITEM = (
    '  - {name: NAME, python: "steps.py:fail_until", with: {word: "w{{ n }}", fixed: "fixed-w{{ n }}"}'
    + EACH
    + "}\n"
)
NEST = "  - {name: NAME, workflow: inner.yaml}\n"


@dataclass(frozen=True)
class Case:
    """A run of `saved` whose step `c` failed, resumed with the file as it is `now`; `nested` are sub-workflows."""

    saved: str
    now: str
    planned: dict[str, str]
    calls: str = ""
    """What the resume calls."""
    remap: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    nested: tuple[str, str] = ("", "")
    refused: str = ""


BASE = steps(say("a"), say("b"), flaky("c"), say("d"))
AGAIN = {"rerun_changed": True}
FAILED = "rerun: it failed: ValueError: "
CASES = {
    "nothing but a description": Case(
        BASE,
        BASE.replace("name: b,", "name: b, description: says b,"),
        {"a": "kept: finished", "b": "kept: finished", "c": FAILED},
        "c d",
        options=AGAIN,
    ),
    "a finished step is edited": Case(
        BASE,
        steps(say("a"), say("b", "B"), flaky("c"), say("d")),
        {"a": "kept: finished", "b": "kept: finished; code changed from ", "c": FAILED},
        "c d",
    ),
    "a finished step is edited and runs again": Case(
        BASE,
        steps(say("a"), say("b", "B"), flaky("c"), say("d")),
        {"a": "kept: finished", "b": "rerun: code changed from ", "c": "rerun: downstream of 'b'"},
        "B c d",
        options=AGAIN,
    ),
    "the failed step is renamed": Case(
        BASE,
        steps(say("a"), say("b"), flaky("e", "c"), say("d")),
        {"a": "kept", "b": "kept", "c": "orphaned", "e": "new"},
        refused="it looks like 'c' was renamed to 'e'",
    ),
    "the failed step is renamed, and remapped": Case(
        BASE,
        steps(say("a"), say("b"), flaky("e", "c"), say("d")),
        {"a": "kept", "b": "kept", "c": FAILED},
        "c d",
        {"c": "e"},
    ),
    "a step is inserted ahead and one removed": Case(
        BASE,
        steps(say("a"), say("b"), flaky("c"), say("x")),
        {
            "a": "kept",
            "b": "kept",
            "c": FAILED,
            "d": "orphaned: removed",
            "x": "new: the workflow has it now",
        },
        "c x",
    ),
    "the failed step is removed": Case(
        BASE,
        steps(say("a"), say("b"), say("d")),
        {"a": "kept", "b": "kept", "c": "orphaned"},
        refused="is to go on with 'c'",
    ),
    "a for-each under way is renamed": Case(
        steps(say("a"), ITEM.replace("NAME", "c")),
        steps(say("a"), ITEM.replace("NAME", "e")),
        {"a": "kept: finished", "c": "next: 1 of 3 items: it comes next, when there is room"},
        "w2 w3",
        {"c": "e"},
    ),
    "a step of a sub-workflow is renamed": Case(
        steps(say("a"), NEST.replace("NAME", "sub")),
        steps(say("a"), NEST.replace("NAME", "sub")),
        {"a": "kept", "sub/x": "kept", "sub/c": "orphaned", "sub/e": "new"},
        nested=(inner(say("x"), flaky("c")), inner(say("x"), flaky("e", "c"))),
        refused="it looks like 'sub/c' was renamed to 'sub/e'",
    ),
    "steps of a sub-workflow are renamed, and remapped": Case(
        steps(say("a"), NEST.replace("NAME", "sub"), say("d")),
        steps(say("a"), NEST.replace("NAME", "sub"), say("d")),
        {"a": "kept", "sub/x": "kept: finished; it is called", "sub/c": FAILED},
        "c x d",
        {"sub/c": "sub/e", "sub/x": "sub/y"},
        nested=(
            inner(say("x"), flaky("c"), say("z", '"{{ steps.x.output }}"')),
            inner(say("y", "x"), flaky("e", "c"), say("z", '"{{ steps.y.output }}"')),
        ),
    ),
    "an open sub-workflow is renamed": Case(
        steps(say("a"), NEST.replace("NAME", "sub"), say("d")),
        steps(say("a"), NEST.replace("NAME", "other"), say("d")),
        {"a": "kept", "sub": "kept: finished; it is called 'other' now", "sub/x": "kept", "other/c": FAILED},
        "c x d",
        {"sub": "other"},
        nested=(
            inner(say("x"), flaky("c"), say("z", '"{{ steps.x.output }}"')),
            inner(say("x"), flaky("c"), say("z", '"{{ steps.x.output }}"')),
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_names_each_consequence_and_the_resume_matches_it(shop: Workshop, name: str) -> None:
    """S0.15: steps are known by the names that users gave them."""
    case = CASES[name]
    shop.write(case.nested[0], "inner.yaml")
    for item in ("w1", "w3"):
        (shop.folder / f"fixed-{item}").touch()
    with pytest.raises(ExecutionError):
        shop.run(case.saved)
    before = shop.calls()
    shop.write(case.nested[1], "inner.yaml")
    (shop.folder / "fixed-c").touch()
    (shop.folder / "fixed-w2").touch()
    flow = shop.load(case.now)
    app = flow.open(shop.url)
    try:
        names = case.remap
        renamed = {"remap": flow.renamed_nodes(app, "r", names), "rename_keys": names} if names else {}
        done = plan_and_resume(app, **renamed, **case.options)
        rows = plan_rows(done.plan, app._settings.graph.nodes)
    finally:
        app.store.close()

    told = {row.step: f"{row.what}: {row.reason}" for row in rows if not (row.items and row.what == "kept")}
    assert {
        step: told.get(step, "")[: len(begins)] for step, begins in case.planned.items()
    } == case.planned, told
    assert set(told) == set(case.planned)
    if case.refused:
        assert case.refused in done.plan.refused
    else:
        assert done.outcome is not None and done.outcome.status == "completed", done.error
        assert " ".join(shop.calls()[len(before) :]) == case.calls


def test_a_step_reads_what_its_texts_name(shop: Workshop) -> None:
    flow = shop.load(
        """
        workflow:
          name: reading
          inputs: {go: {type: boolean, default: true}}
        steps:
          - {name: a, set: {n: 1}}
          - {name: b, set: {n: 2}, when: "inputs.go"}
          - {name: c, python: "steps.py:say", with: {word: "{{ steps.a.output.n }}"}}
          - {name: d, set: {all: "{{ steps }}"}}
        """
    )

    nodes = flow.open("memory://").outline()["nodes"]

    assert nodes["a"]["reads"] == ["a"] and nodes["b"]["reads"] == ["b", "inputs"]
    assert nodes["c"]["reads"] == ["c", "a"] and "reads" not in nodes["d"]
