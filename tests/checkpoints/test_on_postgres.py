"""Checkpoints on PostgreSQL: by a connection string or by the environment, and as rows that SQL can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import END, START, App, State, StateGraph, open_store
from holdfast.checkpoints import JournalCheckpointStore, PostgresCheckpointStore, write_tables
from holdfast.stores.base import Store
from tests.postgres import PostgresServer


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    opened = open_store(postgres_url)
    yield opened
    opened.close()


def asking(store: Store) -> App:
    graph = StateGraph(dict, name="asking")
    graph.add_node("fetch", lambda state: {"text": "tide " * 10_000})
    graph.add_node("review", lambda state, ctx: {"verdict": ctx.ask("Good enough?", name="review")})
    graph.add_edge(START, "fetch").add_edge("fetch", "review").add_edge("review", END)
    return graph.compile(store)


def test_a_connection_string_is_enough_and_checkpoints_are_rows(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    """S2.18: tables and indexes are made at the first use; `checkpoint_states` has the columns asked for."""
    checkpoints = PostgresCheckpointStore(connection_string=postgres_url)
    try:
        saved = checkpoints.save(State({"n": 1}).set_checkpoint_node("a"))
        outcome = asking(checkpoints.store).invoke({"topic": "tides"}, run_id="r1")

        data = checkpoints.load(outcome.checkpoint_id)
        write_tables(checkpoints.store)
    finally:
        checkpoints.store.close()

    assert data is not None and data.pause_metadata is not None
    assert (data.workflow_name, data.workflow_inputs, data.pause_metadata.prompt) == (
        "asking",
        {"topic": "tides"},
        "Good enough?",
    )
    schema = checkpoints.store.schema
    columns = (
        "checkpoint_id, workflow_name, workflow_inputs, execution_waves, completed_waves, context, created_at, "
        "pause_metadata"
    )
    rows = postgres_server.sql(f"SELECT {columns} FROM {schema}_tables.checkpoint_states")
    by_id = {row[0]: row for row in rows}
    assert saved in by_id
    row = by_id[outcome.checkpoint_id]
    assert row[1:5] == ("asking", {"topic": "tides"}, [["fetch"], ["review"]], 1)
    assert row[5]["text"].startswith("tide ") and row[6] == data.created_at
    assert row[7] == {"block_id": "review", "prompt": "Good enough?", "response": None}
    indexes = postgres_server.sql(
        "SELECT string_agg(indexdef, ' ') FROM pg_indexes WHERE schemaname = %s", schema
    )[0][0]
    assert "(namespace, workflow, updated_at DESC, run)" in indexes
    assert "(namespace, updated_at DESC, run)" in indexes


@pytest.mark.parametrize("backend", ["postgres", "PostgreSQL"])
def test_the_environment_chooses_postgresql(postgres_url: str, backend: str) -> None:
    """S2.19: by the names of the environment's variables."""
    environ = {"WORKFLOW_CHECKPOINT_BACKEND": backend, "WORKFLOW_CHECKPOINT_DSN": postgres_url}

    store = open_store(environ={**os.environ, **environ})

    try:
        assert store.url == postgres_url and asking(store).invoke({}).status == "paused"
    finally:
        store.close()


def test_a_run_has_its_history_and_can_be_gone_back_to(store: Store) -> None:
    """S3.23: a store in a database, compressed, with every checkpoint of a run, and what it was started with."""
    app = asking(store)
    app.invoke({}, run_id="r1", config={"commit": "c0ffee", "tags": ["monthly"]})
    app.resume("r1", answer="no")

    history = [point for point in app.checkpoints("r1") if "review" in point.next]
    asked = app.resume(history[0].id)
    second: Any = app.resume(asked.run_id, answer="yes")

    assert second.run_id != "r1" and second.state["verdict"] == "yes"
    assert app.get_state("r1")["verdict"] == "no"
    data = JournalCheckpointStore(store).load(second.checkpoint_id)
    assert data is not None and data.config["commit"] == "c0ffee"
    assert {info.tags for info in store.runs()} == {("monthly",)}
    assert sum(len(entry.body) for entry in store.read("r1")) < len("tide " * 10_000) / 10
