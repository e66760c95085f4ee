"""Nodes of a stopped run that were renamed, removed, inserted, edited or wired otherwise, case by case.

Of each case the plan names every consequence, and the resume does what the plan says.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import START, ExecutionError, GraphChanged, Send, StateGraph, append
from holdfast.stores.memory import MemoryStore
from tests.engine.plan_checks import plan_and_resume

world: dict[str, set[str]] = {"broken": set()}
"""What is out of order out there; it is no part of any node's code."""


class Log(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


@pytest.fixture(autouse=True)
def mended(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR, "holdfast"):
        yield
    world["broken"] = set()


def says(word: str) -> Callable[[Any], dict[str, Any]]:
    def node(state: Any) -> dict[str, Any]:
        if word in world["broken"]:
            raise ValueError("429")
        return {"log": [word]}

    return node


def graph(
    ways: str, *, name: str = "w", words: dict[str, str] | None = None, **inner: StateGraph
) -> StateGraph:
    """A graph of ways such as "a>b, b>c"; a node says the word that is its name unless `words` has another."""
    pairs = [tuple(way.split(">")) for way in ways.replace(" ", "").split(",")]
    steps = [(one, other) for way in pairs for one, other in itertools.pairwise(way)]
    made = StateGraph(Log, name=name)
    for node in dict.fromkeys(node for way in pairs for part in way for node in part.split("+")):
        word, _, version = (words or {}).get(node, node).partition("@")
        made.add_node(node, inner.get(node) or says(word), version=version or None)
    for one, other in dict.fromkeys(steps):
        made.add_edge(one.split("+") if "+" in one else one, other)
    ends = {other for _, other in steps}
    for node in dict.fromkeys(node for way in pairs for node in way[0].split("+")):
        if node not in ends:
            made.add_edge(START, node)
    return made


def sub(ways: str, **options: Any) -> StateGraph:
    return graph("outer>end", outer=graph(ways, name="inner", **options))


def items(node: str = "item", word: str = "i") -> StateGraph:
    """For each of three items; what comes after them says "end"."""

    def work(state: Any) -> dict[str, Any]:
        if f"{word}{state['n']}" in world["broken"]:
            raise ValueError("429")
        return {"log": [f"{word}{state['n']}"]}

    made = StateGraph(Log, name="w").add_node(node, work).add_node("end", says("end"))
    made.add_conditional_edges(START, lambda s: [Send(node, {"n": n}, key=str(n)) for n in range(3)], [node])
    return made.add_edge(node, "end")


def loop(word: str = "x") -> StateGraph:
    made = (
        StateGraph(Log, name="w").add_node("x", says(word)).add_node("end", says("end")).add_edge(START, "x")
    )
    return made.add_edge("x", "x", when=lambda s: len(s["log"]) < 2).add_edge("x", "end")


@dataclass(frozen=True)
class Case:
    """A run of `saved`, in which what says `broken` failed, is resumed with the graph `now`."""

    saved: StateGraph
    now: StateGraph
    planned: dict[str, str]
    """What becomes of each step (or node), and how the reason begins."""
    log: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    broken: str = "c"
    refused: str = ""
    changes: tuple[str, ...] | None = None


CHAIN = "a>b>c>d"
CHANGED = "code changed from "
FAILED = "rerun: it failed: ValueError: 429"
AGAIN = {"rerun_changed": True}

CASES: dict[str, Case] = {
    "nothing changed": Case(
        graph(CHAIN),
        graph(CHAIN),
        {"a#1": "kept: finished", "b#1": "kept: finished", "c#1": FAILED},
        "a b c d",
        changes=(),
    ),
    "a finished node is edited": Case(
        graph(CHAIN),
        graph(CHAIN, words={"b": "B"}),
        {"a#1": "kept: finished", "b#1": f"kept: finished; {CHANGED}", "c#1": FAILED},
        "a b c d",
        changes=("the code of 'b' changed",),
    ),
    "a finished node is edited and runs again": Case(
        graph(CHAIN),
        graph(CHAIN, words={"b": "B"}),
        {"a#1": "kept: finished", "b#1": f"rerun: {CHANGED}", "c#1": "rerun: downstream of 'b'"},
        "a B c d",
        AGAIN,
    ),
    "the first node is edited and all runs again": Case(
        graph(CHAIN),
        graph(CHAIN, words={"a": "A"}),
        {"a#1": f"rerun: {CHANGED}", "b#1": "rerun: downstream of 'a'", "c#1": "rerun: downstream of 'a'"},
        "A b c d",
        AGAIN,
    ),
    "the failed node is edited": Case(
        graph(CHAIN),
        graph(CHAIN, words={"c": "C"}),
        {"a#1": "kept: finished", "b#1": "kept: finished", "c#1": f"{FAILED}; {CHANGED}"},
        "a b C d",
    ),
    "a node ahead is edited": Case(
        graph(CHAIN),
        graph(CHAIN, words={"d": "D"}),
        {"a#1": "kept: finished", "b#1": "kept: finished", "c#1": FAILED},
        "a b c D",
        changes=("the code of 'd' changed",),
    ),
    "a version changed": Case(
        graph(CHAIN, words={"b": "b@1"}),
        graph(CHAIN, words={"b": "b@2"}),
        {"a#1": "kept: finished", "b#1": "kept: finished; version changed from '1' to '2'", "c#1": FAILED},
        "a b c d",
    ),
    "a version changed, and counts": Case(
        graph(CHAIN, words={"b": "b@1"}),
        graph(CHAIN, words={"b": "B@2"}),
        {"a#1": "kept", "b#1": "rerun: version changed from '1' to '2'", "c#1": "rerun: downstream of 'b'"},
        "a B c d",
        AGAIN,
    ),
    "the code under a version changed": Case(
        graph(CHAIN, words={"b": "b@1"}),
        graph(CHAIN, words={"b": "B@1"}),
        {"a#1": "kept: finished", "b#1": "kept: finished", "c#1": FAILED},
        "a b c d",
        AGAIN,
        changes=(),
    ),
    "the failed node is renamed": Case(
        graph(CHAIN),
        graph("a>b>cc>d", words={"cc": "c"}),
        {
            "a#1": "kept",
            "b#1": "kept",
            "c#1": "orphaned: the workflow no longer has it",
            "cc": "new: the workflow has it now",
        },
        refused="it looks like 'c' was renamed to 'cc'",
    ),
    "the failed node is renamed, and remapped": Case(
        graph(CHAIN),
        graph("a>b>cc>d", words={"cc": "c"}),
        {"a#1": "kept: finished", "b#1": "kept: finished", "c#1": FAILED},
        "a b c d",
        {"remap": {"c": "cc"}},
        changes=("'c' was renamed to 'cc'",),
    ),
    "a finished node is renamed": Case(
        graph(CHAIN),
        graph("a>bb>c>d", words={"bb": "b"}),
        {
            "a#1": "kept: finished",
            "b#1": "kept: finished; the workflow no longer has it",
            "c#1": f"{FAILED}; its predecessors changed (now after 'bb')",
            "bb": "new: the workflow has it now",
        },
        "a b c d",
    ),
    "a finished node is renamed, and remapped": Case(
        graph(CHAIN),
        graph("a>bb>c>d", words={"bb": "b"}),
        {"a#1": "kept: finished", "b#1": "kept: finished; it is called 'bb' now", "c#1": FAILED},
        "a b c d",
        {"remap": {"b": "bb"}},
    ),
    "a remap that leads nowhere": Case(
        graph(CHAIN),
        graph("a>b>cc>d"),
        {"a#1": "kept", "b#1": "kept", "c#1": "orphaned", "cc": "new"},
        options={"remap": {"c": "cx"}},
        refused="remap leads to 'cx', which is not a node",
    ),
    "a finished node is removed": Case(
        graph(CHAIN),
        graph("a>c>d"),
        {
            "a#1": "kept: finished",
            "b#1": "kept: finished; the workflow no longer has it",
            "c#1": f"{FAILED}; its predecessors changed (now after 'a')",
        },
        "a b c d",
        changes=("'b' was removed", "the edges changed"),
    ),
    "a finished node is removed, and what followed it runs again": Case(
        graph(CHAIN),
        graph("a>c>d"),
        {"a#1": "kept", "b#1": "kept", "c#1": "rerun"},
        "a c d",
        AGAIN,
    ),
    "a node ahead is removed": Case(
        graph(CHAIN),
        graph("a>b>c"),
        {
            "a#1": "kept",
            "b#1": "kept",
            "c#1": FAILED,
            "d": "orphaned: removed: the workflow no longer has it, and it has not run",
        },
        "a b c",
    ),
    "the failed node is removed": Case(
        graph(CHAIN),
        graph("a>b>d"),
        {"a#1": "kept", "b#1": "kept", "c#1": "orphaned"},
        refused="is to go on with 'c'",
    ),
    "a node is inserted behind": Case(
        graph(CHAIN),
        graph("a>x>b>c>d"),
        {
            "a#1": "kept: finished",
            "b#1": "kept: finished; its predecessors changed (now after 'x')",
            "c#1": FAILED,
            "x": "new",
        },
        "a b c d",
    ),
    "a node is inserted behind, and it runs": Case(
        graph(CHAIN),
        graph("a>x>b>c>d"),
        {
            "a#1": "kept: finished",
            "b#1": "rerun: its predecessors changed (now after 'x')",
            "c#1": "rerun: downstream of 'b'",
            "x": "new",
        },
        "a x b c d",
        AGAIN,
    ),
    "a node is inserted right before the failed one": Case(
        graph(CHAIN),
        graph("a>b>x>c>d"),
        {
            "a#1": "kept",
            "b#1": "kept",
            "c#1": f"{FAILED}; its predecessors changed (now after 'x')",
            "x": "new",
        },
        "a b c d",
    ),
    "a node is inserted right before the failed one, and it runs": Case(
        graph(CHAIN),
        graph("a>b>x>c>d"),
        {"a#1": "kept", "b#1": "kept", "c#1": "rerun", "x": "new"},
        "a b x c d",
        AGAIN,
    ),
    "a node is inserted ahead": Case(
        graph(CHAIN),
        graph("a>b>c>x>d"),
        {"a#1": "kept", "b#1": "kept", "c#1": FAILED, "x": "new"},
        "a b c x d",
    ),
    "a node is wired otherwise": Case(
        graph(CHAIN),
        graph("a>b>c, b>d"),
        {"a#1": "kept", "b#1": "kept", "c#1": FAILED},
        "a b c",
        changes=("the edges changed",),
    ),
    "a branch is inserted beside": Case(
        graph(CHAIN),
        graph("a>b>c>d, a>x"),
        {"a#1": "kept", "b#1": "kept", "c#1": FAILED, "x": "new"},
        "a b c d",
    ),
    "changes are refused": Case(
        graph(CHAIN),
        graph(CHAIN, words={"b": "B"}),
        {"a#1": "kept", "b#1": "kept", "c#1": FAILED},
        options={"on_change": "fail"},
        refused="the workflow changed since run 'r' was saved: the code of 'b' changed",
    ),
    "the saved structure is used": Case(
        graph(CHAIN),
        graph("a>b>c>x>d"),
        {"a#1": "kept", "b#1": "kept", "c#1": FAILED},
        "a b c d",
        {"on_change": "use_saved"},
        changes=(),
    ),
    "a node of a sub-graph is renamed": Case(
        sub("x>c>y"),
        sub("x>cc>y", words={"cc": "c"}),
        {"outer#1/x#1": "kept", "outer#1/c#1": "orphaned", "outer/cc": "new"},
        refused="it looks like 'outer/c' was renamed to 'outer/cc'",
    ),
    "a node of a sub-graph is renamed, and remapped": Case(
        sub("x>c>y"),
        sub("x>cc>y", words={"cc": "c"}),
        {"outer#1/x#1": "kept: finished", "outer#1/c#1": FAILED},
        "x c y end",
        {"remap": {"outer/c": "outer/cc"}},
        changes=("'outer/c' was renamed to 'outer/cc'",),
    ),
    "an open sub-graph is renamed": Case(
        sub("x>c>y"),
        graph("o2>end", o2=graph("x>c>y", name="inner")),
        {"outer#1/x#1": "kept: finished; it is called 'o2/x' now", "o2#1/c#1": FAILED},
        "x c y end",
        {"remap": {"outer": "o2"}},
    ),
    "an open sub-graph and a node in it are renamed": Case(
        sub("x>c>y"),
        graph("o2>end", o2=graph("x>cc>y", name="inner", words={"cc": "c"})),
        {"outer#1/x#1": "kept", "o2#1/c#1": FAILED},
        "x c y end",
        {"remap": {"outer": "o2", "outer/c": "o2/cc"}},
    ),
    "a finished node of a sub-graph is edited and runs again": Case(
        sub("x>c>y"),
        sub("x>c>y", words={"x": "X"}),
        {"outer#1/x#1": f"rerun: {CHANGED}", "outer#1/c#1": "rerun: downstream of 'outer/x'"},
        "X c y end",
        AGAIN,
    ),
    "a node is inserted in a sub-graph ahead": Case(
        sub("x>c>y"),
        sub("x>c>z>y"),
        {"outer#1/x#1": "kept", "outer#1/c#1": FAILED, "outer/z": "new"},
        "x c z y end",
    ),
    "an open sub-graph is removed": Case(
        sub("x>c>y"),
        graph("a>end"),
        {"outer#1/x#1": "kept", "outer#1/c#1": "orphaned", "outer/y": "orphaned: removed", "a": "new"},
        refused="is to go on with 'outer",
    ),
    "a half-arrived join has a renamed source": Case(
        graph("a, w>c, a+c>e"),
        graph("a2, w>c, a2+c>e", words={"a2": "a"}),
        {"a#1": "kept: finished; it is called 'a2' now", "w#1": "kept", "c#1": FAILED},
        "a w c e",
        {"remap": {"a": "a2"}},
    ),
    "a half-arrived join is gone": Case(
        graph("a, w>c, a+c>e"),
        graph("a, w>c, a+w+c>e"),
        {"a#1": "kept", "w#1": "kept", "c#1": FAILED},
        refused="waits at the join of 'a', 'c' before 'e'",
    ),
    "a branch of a join is edited and runs again alone": Case(
        graph("a>j1, b>c, j1+c>e"),
        graph("a>j1, b>c, j1+c>e", words={"a": "A"}),
        {
            "a#1": f"rerun: {CHANGED}",
            "j1#1": "rerun: downstream of 'a'",
            "b#1": "kept: finished",
            "c#1": FAILED,
        },
        "A b j1 c e",
        AGAIN,
    ),
    "the node of a for-each is renamed, and remapped": Case(
        items(),
        items("each"),
        {"item#1[0]": "kept: finished; it is called 'each' now", "item#1[1]": FAILED, "item#1[2]": "kept"},
        "i0 i1 i2 end",
        {"remap": {"item": "each"}},
        broken="i1",
    ),
    "the node of a for-each is edited": Case(
        items(),
        items(word="I"),
        {"item#1[0]": f"kept: finished; {CHANGED}", "item#1[1]": f"{FAILED}; {CHANGED}", "item#1[2]": "kept"},
        "i0 I1 i2 end",
        broken="i1",
    ),
    "the node of a for-each is edited and all items run again": Case(
        items(),
        items(word="I"),
        {
            "item#1[0]": f"rerun: {CHANGED}",
            "item#1[1]": f"{FAILED}; {CHANGED}",
            "item#1[2]": f"rerun: {CHANGED}",
        },
        "I0 I1 I2 end",
        AGAIN,
        broken="i1",
    ),
    "a cycle is edited and all its visits run again": Case(
        loop(),
        loop("X"),
        {"x#1": f"rerun: {CHANGED}", "x#2": f"rerun: {CHANGED}", "end#1": "rerun: downstream of 'x'"},
        "X X end",
        AGAIN,
        broken="end",
    ),
    "what follows a cycle is edited": Case(
        loop(),
        loop(),
        {"x#1": "kept: finished", "x#2": "kept: finished", "end#1": FAILED},
        "x x end",
        AGAIN,
        broken="end",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_names_each_consequence_and_the_resume_matches_it(name: str) -> None:
    """S0.14, S0.15: rename, remove, insert, edit and rewire nodes of a stopped run."""
    case, store = CASES[name], MemoryStore()
    world["broken"] = {case.broken}
    with pytest.raises(ExecutionError):
        case.saved.compile(store).invoke({}, run_id="r")
    world["broken"] = set()

    done = plan_and_resume(case.now.compile(store), **case.options)

    told = {step.step or step.node: f"{step.what}: {step.reason}" for step in done.plan.steps}
    assert set(told) == set(case.planned), told
    assert {step: told[step][: len(begins)] for step, begins in case.planned.items()} == case.planned
    assert case.changes is None or done.plan.changes == case.changes
    if case.refused:
        assert case.refused in done.plan.refused and case.refused in str(done.error)
        assert isinstance(done.error, GraphChanged)
    else:
        assert done.outcome is not None and " ".join(done.outcome.state["log"]) == case.log


NAMES = ["a", "b", "c", "d", "e"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    saved=st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True),
    now=st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True),
    edited=st.sets(st.sampled_from(NAMES)),
    broken=st.sampled_from(NAMES),
    again=st.booleans(),
)
def test_whatever_was_edited_the_resume_matches_the_plan(
    saved: list[str], now: list[str], edited: set[str], broken: str, again: bool
) -> None:
    """Chains of any nodes in any order: with `rerun_changed` a resume has the same result as a new run."""
    store, words = MemoryStore(), {name: name.upper() for name in edited}
    world["broken"] = {broken if broken in saved else saved[-1]}
    with pytest.raises(ExecutionError):
        graph(">".join(saved)).compile(store).invoke({}, run_id="r")
    world["broken"] = set()

    done = plan_and_resume(graph(">".join(now), words=words).compile(store), rerun_changed=again)

    assert done.plan.refused or done.outcome is not None
    if again and done.outcome is not None:
        assert list(done.outcome.state["log"]) == [words.get(name, name) for name in now]
