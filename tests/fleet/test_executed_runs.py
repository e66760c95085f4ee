"""Runs that a worker executes, as others see them, however rarely they are saved."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import END, START, CheckpointPolicy, StateGraph
from holdfast.engine.owner import has_owner
from holdfast.fleet import Worker
from holdfast.stores.base import Store


@pytest.mark.parametrize("policy", [{"durability": "exit"}, {"interval": 0}, {"interval": 3}, {}])
def test_a_run_that_is_executed_never_counts_as_waiting(store: Store, policy: dict[str, Any]) -> None:
    """Another worker would claim it too, and run its steps a second time."""
    seen = []

    def look(state: Any, ctx: Any) -> None:
        (info,) = store.runs(run=ctx.run_id)
        seen.append((info.status, bool(info.owner), has_owner(store, info)))

    graph = StateGraph(dict, name="w")
    graph.add_node("first", look).add_node("second", look)
    graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    app = graph.compile(store, policy=CheckpointPolicy(**policy))
    app.submit({})

    Worker(store, [app]).run(until_idle=True)

    assert seen == [("running", True, True)] * 2
