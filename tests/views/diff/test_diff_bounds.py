"""What a difference of two states costs: large values are named with their sizes, unless they are asked for."""

from __future__ import annotations

import pytest

from holdfast import END, START, StateGraph
from holdfast.state import standard_types as budget


def test_values_that_need_too_much_together_are_named_and_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "MOST_TOGETHER", 100_000)
    graph = StateGraph(dict)
    graph.add_node("make", lambda state: {name: [[]] * 1000 for name in "abc"} | {"small": 1})
    graph.add_edge(START, "make")
    graph.add_edge("make", END)
    app = graph.compile(store="memory:")
    app.invoke({"a": 0, "b": 0, "c": 0, "small": 0}, run_id="run-1")

    found = app.diff("run-1@0", "run-1@1")
    named = app.diff("run-1@0", "run-1@1", keys=["a", "b", "c"])

    assert set(found.after) == {"a", "small"}
    assert set(found.not_compared) == {"b", "c"}
    assert "name it with --key" in found.not_compared["b"]
    assert set(named.after) == {"a", "b", "c"}
    assert not named.not_compared
