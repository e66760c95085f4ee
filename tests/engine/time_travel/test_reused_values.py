"""What is taken over of another run is such as the present graph would have made."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, create_model

from holdfast import App, ExecutionError, StateGraph, open_store
from holdfast.engine.time_travel.checkpoints import find_position
from holdfast.errors import CheckpointNotFound, GraphInvalid
from holdfast.stores.base import Store
from tests.graphs import Log, says


def made(store: Store, ran: list[int], returned: Any, kind: Any, default: Any, **options: Any) -> App:
    model: type[BaseModel] = create_model("Model", q=(int, 0), x=(kind, Field(default=default, **options)))
    graph = StateGraph(model, name="w")

    def node(state: Any) -> dict[str, Any]:
        ran.append(1)
        return {"x": returned}

    graph.add_node("n", node, version="1", reads=["q"])
    return graph.set_entry_point("n").compile(store)


@pytest.mark.parametrize(
    ("returned", "before", "now"),
    [(1, (int, 0), (float, 0.0)), ([1], (list[int], []), (list[float], []))],
    ids=["a number", "a list that grew"],
)
def test_a_value_of_another_type_now_is_made_anew(returned: Any, before: Any, now: Any) -> None:
    store, ran = open_store("memory://"), list[int]()
    made(store, ran, returned, *before).invoke({}, run_id="r")
    made(store, ran, returned, *before).invoke(reuse="r")
    assert len(ran) == 1, "the same schema: taken over"

    value = made(store, ran, returned, *now).invoke({}, reuse="r").state["x"]

    assert len(ran) == 2 and repr(value) in ("1.0", "[1.0]")


def test_a_value_that_the_schema_refuses_now_is_refused() -> None:
    store, ran = open_store("memory://"), list[int]()
    made(store, ran, 50, int, 0, le=100).invoke({}, run_id="r")

    with pytest.raises(ExecutionError, match="less than or equal to 10"):
        made(store, ran, 50, int, 0, le=10).invoke({}, reuse="r")


def test_what_says_that_it_is_not_reusable_runs() -> None:
    store, ran = open_store("memory://"), list[int]()

    def node(state: Any) -> dict[str, Any]:
        ran.append(1)
        return {"log": ["n"]}

    def app(reusable: bool) -> App:
        graph = StateGraph(Log, name="w").add_node("n", node, version="1", reusable=reusable)
        return graph.set_entry_point("n").compile(store)

    app(False).invoke({}, run_id="r")
    app(False).invoke(reuse="r")
    assert len(ran) == 2

    inner = StateGraph(Log, name="inner").add_node("a", says("a")).set_entry_point("a")
    with pytest.raises(GraphInvalid, match="takes no reusable"):
        StateGraph(Log).add_node("sub", inner, reusable=False).set_entry_point("sub").compile()


@pytest.mark.parametrize("reads", [[1], 5, ["log", None]])
def test_reads_that_are_no_names_are_refused(reads: Any) -> None:
    graph = StateGraph(Log).add_node("n", says("n"), reads=reads).set_entry_point("n")

    with pytest.raises(GraphInvalid, match=r"node 'n': reads= names keys of the state, not (1|5|None)"):
        graph.compile()


def test_errors_name_steps_and_not_the_nodes_that_they_are_made_of() -> None:
    store = open_store("memory://")
    graph = StateGraph(Log, name="w").add_node("each", says("a")).add_node("each:done", says("b"))
    graph.set_entry_point("each").add_edge("each", "each:done").compile(store).invoke({}, run_id="r")

    with pytest.raises(CheckpointNotFound, match=r"did you mean 'each'\?; the last to finish were each$"):
        find_position(store, "r@eac")
