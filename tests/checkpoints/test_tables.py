"""`write_tables` and `holdfast store tables`: runs as ordinary SQL tables, brought up to date call by call."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, ExecutionError, Retention, StoreError, open_store
from holdfast.checkpoints import write_tables
from holdfast.engine.retention import janitor
from holdfast.state import WorkflowState
from holdfast.stores.base import Store
from tests.cli.in_process import caller
from tests.graphs import chain, one
from tests.integrity.damage import damage_entry
from tests.postgres import PostgresServer
from tests.stores.copied_runs import asking

Ask = Callable[[str], list[tuple[Any, ...]]]
S0 = "id, workflow_id, timestamp, layer_index, state, dag_structure, execution_config"
S1 = (
    "id, workflow_name, workflow_inputs, current_agent, in_progress, completed_agents, agent_outputs, "
    "context_snapshot, iteration, created_at, updated_at"
)
S2 = (
    "checkpoint_id, workflow_name, workflow_inputs, execution_waves, completed_waves, context, created_at, "
    "pause_metadata"
)
KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"


class Tables:
    """The tables of one target, as any program reads them."""

    def __init__(self, url: str, ask: Ask, decoded: bool) -> None:
        self.url, self.ask, self._decoded = url, ask, decoded

    def json(self, value: Any) -> Any:
        return value if self._decoded or value is None else json.loads(value)

    def runs(self) -> list[str]:
        return [run for (run,) in self.ask("SELECT run_id FROM runs ORDER BY run_id")]

    def count(self, table: str) -> int:
        return int(self.ask(f"SELECT count(*) FROM {table}")[0][0])


@pytest.fixture(params=["sqlite", "postgres"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    if request.param == "sqlite":
        path = tmp_path / "plain.db"

        def read(query: str) -> list[tuple[Any, ...]]:
            connection = sqlite3.connect(path)
            try:
                return connection.execute(query).fetchall()
            finally:
                connection.close()

        yield Tables(f"sqlite:///{path}", read, decoded=False)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.schema() as schema:

        def ask(query: str) -> list[tuple[Any, ...]]:
            place = {"host": str(server.folder), "user": "postgres", "dbname": "postgres"}
            with psycopg.connect(**place, options=f"-c search_path={schema}") as connection:
                return connection.execute(query.encode()).fetchall()

        yield Tables(server.url(schema), ask, decoded=True)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    yield store
    store.close()


def paused(store: Store) -> App:
    app = asking(store)
    app.invoke({"n": 1}, run_id="asked", config={"speculation": False})
    return app


def test_the_tables_have_the_columns_and_indexes_of_the_designs(source: Store, tables: Tables) -> None:
    """S0.1, S0.2, S1.13, S2.18: three column sets, with JSON that SQL can look into, and their indexes."""
    app = paused(source)
    report = write_tables(source, tables.url)
    assert (report.runs, report.checkpoints, report.left_out) == (1, 2, {})

    points = app.checkpoints("asked")
    rows = tables.ask(f"SELECT {S0} FROM workflow_checkpoints ORDER BY timestamp DESC")
    assert {row[0] for row in rows} == {point.id for point in points}
    ident, workflow, _, layer, state, outline, config = rows[0]
    assert (workflow, layer, tables.json(config)) == ("asking", 1, {"speculation": False})
    assert tables.json(state) == {"n": 1, "log": ["a"], "checkpoint_id": ident}
    assert set(tables.json(outline)["nodes"]) == {"a", "b", "c"}

    row = dict(
        zip(
            S1.split(", "),
            tables.ask(f"SELECT {S1} FROM checkpoints ORDER BY created_at DESC")[0],
            strict=True,
        )
    )
    assert (row["workflow_name"], row["current_agent"], row["iteration"]) == ("asking", "b", 1)
    assert tables.json(row["workflow_inputs"])["n"] == 1 and tables.json(row["completed_agents"]) == ["a"]
    assert tables.json(row["agent_outputs"]) == {"a": {"log": ["a"]}}
    assert tables.json(row["context_snapshot"]) == {"n": 1, "log": ["a"]}

    row = dict(
        zip(
            S2.split(", "),
            tables.ask(f"SELECT {S2} FROM checkpoint_states ORDER BY created_at DESC")[0],
            strict=True,
        )
    )
    assert tables.json(row["execution_waves"]) == [["a"], ["b"]] and row["completed_waves"] == 1
    assert tables.json(row["pause_metadata"]) == {"block_id": "q", "prompt": "What now?", "response": None}
    is_sqlite = tables.url.startswith("sqlite")
    indexes = tables.ask(
        "SELECT name FROM sqlite_master WHERE type = 'index'"
        if is_sqlite
        else "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()"
    )
    wanted = {"idx_checkpoints_workflow", "idx_workflow_name", "idx_updated_at", "idx_created_at"}
    assert {name for (name,) in indexes} >= wanted


def test_a_second_call_writes_what_is_new_and_removes_what_is_gone(source: Store, tables: Tables) -> None:
    """S0.1: a resumed run gets its new rows, a deleted run and pruned checkpoints go, others stay as they are."""
    app = paused(source)
    chain("a", "b", name="short").compile(source).invoke({}, run_id="short")
    assert write_tables(source, tables.url).runs == 2
    again = write_tables(source, tables.url)
    assert (again.runs, again.checkpoints, again.unchanged) == (0, 0, 2)

    app.resume("asked", answer="go")
    source.delete("short")
    after = write_tables(source, tables.url)
    assert (after.runs, after.checkpoints, after.removed) == (1, 2, 1)
    assert (
        tables.runs() == ["asked"]
        and tables.count("checkpoints") == tables.count("workflow_checkpoints") == 4
    )
    assert tables.ask("SELECT status, left_out FROM runs") == [("completed", None)]
    steps = tables.ask("SELECT name, status FROM steps WHERE run_id = 'asked' ORDER BY number")
    assert steps == [("a", "completed"), ("b", "completed"), ("c", "completed")]
    assert tables.count("ledger") >= 3

    pruning = asking(source, retention=Retention(max_checkpoints=1, per="run"))
    pruning.invoke({"n": 2}, run_id="asked-2")
    assert janitor.wait()
    write_tables(source, tables.url)
    stored = {point.id for run in ("asked", "asked-2") for point in app.checkpoints(run)}
    assert {ident for (ident,) in tables.ask("SELECT id FROM checkpoints")} == stored
    assert {ident for (ident,) in tables.ask("SELECT id FROM workflow_checkpoints")} == stored


def test_any_store_is_a_source(store: Store, tmp_path: Path) -> None:
    """S0.1: memory, SQLite, files and PostgreSQL."""
    paused(store)
    report = write_tables(store, f"sqlite:///{tmp_path}/out/plain.db")
    assert (report.runs, report.checkpoints) == (1, 2)
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(StoreError, match=r"there is no store at .*other\.db; check its path"):
        write_tables(other, f"sqlite:///{tmp_path}/out/plain.db")
    assert not (tmp_path / "other.db").exists()
    open_store(other).close()
    with pytest.raises(StoreError, match="has the tables of"):
        write_tables(other, f"sqlite:///{tmp_path}/out/plain.db")


def test_values_that_json_lacks_have_their_plain_form(source: Store, tables: Tables) -> None:
    """S2.15: bytes, dates, odd numbers and characters of a state can be stored as JSON everywhere."""
    odd = {"raw": b"\0\1", "nan": float("nan"), "text": "a\0b\ud800\\u0000", "big": 10**30, "set": {3, 1}}
    one(lambda state: odd, dict).compile(source).invoke({}, run_id="r")
    write_tables(source, tables.url)

    ((state,),) = tables.ask("SELECT state FROM workflow_checkpoints")
    found = tables.json(state)
    assert found["raw"] == {"$type": "bytes", "base64": "AAE="} and found["nan"] == "nan"
    assert found["set"] == [1, 3] and found["big"] == 10**30
    assert found["text"] == "a\\u0000b\\ud800\\u0000"


def test_encrypted_and_damaged_runs_are_left_out_and_named(
    source: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.4: no value of an encrypted run is written in the clear, not even by somebody who has the key."""
    chain("a", "b", name="w").compile(source, encryption_key=KEY).invoke(
        {"n": "hidden words"}, run_id="sealed"
    )
    chain("a", "b", name="w").compile(source).invoke({}, run_id="broken")
    chain("a", "b", name="w").compile(source).invoke({}, run_id="good")
    damage_entry(source, "broken", 2)
    monkeypatch.setenv("HOLDFAST_KEY", KEY)

    for _ in range(2):
        report = write_tables(source, tables.url)
        assert set(report.left_out) == {"sealed", "broken"} and report.damaged == 1
        assert "encrypted" in report.left_out["sealed"] and "damaged" in report.left_out["broken"]
    assert tables.ask("SELECT DISTINCT run_id FROM checkpoints") == [("good",)]
    assert tables.ask("SELECT run_id FROM runs WHERE left_out IS NULL") == [("good",)]
    every = [
        row
        for name in ("runs", "steps", "workflow_checkpoints")
        for row in tables.ask(f"SELECT * FROM {name}")
    ]
    assert "hidden words" not in repr(every)


def test_tables_of_other_programs_are_left_alone(source: Store, tables: Tables, tmp_path: Path) -> None:
    paused(source)
    with pytest.raises(StoreError, match="has tables of another program"):
        write_tables(source, f"sqlite:///{tmp_path}/runs.db")
    for wrong in ("file:folder", "memory://", "notes.txt", f"sqlite:///{tmp_path}/x.db?namespace=team"):
        with pytest.raises(StoreError, match="tables are written to sqlite:///PATH or postgresql://"):
            write_tables(source, wrong)
    with pytest.raises(StoreError, match="say where to write them"):
        write_tables(open_store("memory://"))


def test_tables_beside_a_store_may_be_moved_with_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with closing(open_store(f"sqlite:///{tmp_path}/{name}/runs.db?namespace=team")) as store:
            if name == "one":
                paused(store)
            report = write_tables(store)
        assert report.into == f"sqlite:///{tmp_path}/{name}/runs@team.tables.db"
        if name == "one":
            (tmp_path / "one").rename(tmp_path / "two")
    assert report.unchanged == 1


def test_the_state_of_a_layered_workflow_is_as_its_design_has_it(source: Store, tables: Tables) -> None:
    """S0.1, S0.8: messages, tasks, decisions, context and the checkpoint's id."""
    one(lambda state: {"messages": ["hi"], "context": {"k": 1}}, WorkflowState).compile(source).invoke(
        {}, run_id="r"
    )
    write_tables(source, tables.url)

    ((ident, state),) = tables.ask("SELECT id, state FROM workflow_checkpoints")
    found = tables.json(state)
    assert found["messages"] == ["hi"] and found["context"] == {"k": 1} and found["checkpoint_id"] == ident


def test_the_command_writes_beside_the_store_and_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    """S0.1, S1.13: `holdfast store tables`, beside a SQLite file, and in a schema of its own on a server."""
    monkeypatch.chdir(tmp_path)
    call = caller(capsys)
    for url in ("sqlite:///.holdfast/runs.db", postgres_url):
        with closing(open_store(url)) as store:
            paused(store)
            with pytest.raises(ExecutionError):
                chain("x", nodes={"x": lambda state: 1 / 0}).compile(store).invoke({}, run_id="bad")

    first = call("store", "tables")
    assert first.code == 0 and "2 runs and 3 checkpoints written, 0 unchanged, 0 removed" in first.out
    assert (tmp_path / ".holdfast/runs.tables.db").stat().st_mode & 0o777 == 0o600
    assert call("store", "tables", "--json").json["unchanged"] == 2
    on_server = call("store", "tables", "--store", postgres_url, "--json").json
    assert on_server["runs"] == 2 and on_server["into"].endswith("_tables")
    with closing(open_store("sqlite:///.holdfast/runs.db")) as store:
        damage_entry(store, "bad", 1)
    (tmp_path / ".holdfast/runs.tables.db").unlink()
    told = call("store", "tables")
    assert told.code == 1 and "left out: run bad: " in told.err
