"""`sql`: bound parameters, one transaction, bounded results, on SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
import tracemalloc
import uuid
from pathlib import Path

import pytest

from holdfast.workflows.foreign import effects_of, reads_of, source_lines
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.scripts import sql_parameters
from tests.postgres import PostgresServer
from tests.workflows.workshop import Workshop

NASTY = "'); DROP TABLE t; -- %s :x $1 \\"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The address of a database, as a workflow file has it."""
    if request.param == "sqlite":
        return "sqlite:///data.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return f"postgresql://postgres@/postgres?host={server.folder}"


@pytest.fixture
def table() -> str:
    return f"t{uuid.uuid4().hex}"


def flow(url: str, *steps: str) -> str:
    listed = "".join(f"  - {step}\n" for step in steps)
    return f"  vars: {{url: '{url}'}}\n  inputs: {{text: {{default: x}}}}\nsteps:\n{listed}"


def step(name: str, query: str, more: str = "") -> str:
    return f"{{name: {name}, sql: {{url: '{{{{ vars.url }}}}', query: \"{query}\"{more}}}}}"


def test_statements_with_parameters(shop: Workshop, url: str, table: str) -> None:
    """R2.3: Sql on SQLite and PostgreSQL; whatever a value has in it, it stays a value."""
    outcome = shop.run(
        flow(
            url,
            step("make", f"CREATE TABLE {table} (n integer, s text)"),
            step("put", f"INSERT INTO {table} VALUES (:n, :s)", ", params: {n: 1, s: '{{ inputs.text }}'}"),
            step(
                "get",
                f"SELECT n, s, ':no' AS q FROM {table} WHERE s = :s",
                ", params: {s: '{{ inputs.text }}'}",
            ),
            step("own", "SELECT :idempotency_key AS k, :run_id AS r"),
        ),
        {"text": NASTY},
    )

    assert outcome.state["put"]["count"] == 1 and outcome.state["put"]["output"] == []
    assert outcome.state["get"]["output"] == [{"n": 1, "s": NASTY, "q": ":no"}]
    assert outcome.state["own"]["output"] == [{"k": "r:own#1", "r": "r"}]


def test_several_statements_are_one_transaction(shop: Workshop, url: str, table: str) -> None:
    made = flow(
        url,
        step("make", f"CREATE TABLE {table} (n integer PRIMARY KEY)"),
        f"{{name: two, on_error: continue, sql: {{url: '{{{{ vars.url }}}}', queries: ["
        f"'INSERT INTO {table} VALUES (1)', "
        f"{{query: 'INSERT INTO {table} VALUES (:n)', params: {{n: 1}}}}]}}}}",
        step("count", f"SELECT count(*) AS n FROM {table}"),
        f"{{name: both, sql: {{url: '{{{{ vars.url }}}}', queries: ["
        f"'INSERT INTO {table} VALUES (1)', 'SELECT sum(n) * 1.5 AS total FROM {table}']}}}}",
    )

    state = shop.run(made).state

    assert state["two"]["status"] == "failed" and state["count"]["output"] == [{"n": 0}]
    assert state["both"]["output"] == [[], [{"total": 1.5}]] and state["both"]["count"] >= 1


@pytest.mark.parametrize(
    ("query", "more", "words"),
    [
        ("SELECT 1 AS n UNION SELECT 2", ", max_rows: 1", "more than 1 rows"),
        ("SELECT 'long long long' AS s", ", max_bytes: 10", "more than 10 bytes"),
        ("SELECT * FROM nowhere_at_all", "", "nowhere_at_all"),
        ("COMMIT", "", "one transaction"),
        ("SELECT 1; SELECT 2", "", "sql: "),
    ],
)
def test_a_failure_says_what_is_wrong(shop: Workshop, url: str, query: str, more: str, words: str) -> None:
    assert words in shop.error(flow(url, step("x", query, more)))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT zeroblob(40000000) AS z", "more than 1,000 bytes"),
        ("SELECT zeroblob(300000000) AS z", "too big; use less of it, or raise max_bytes"),
    ],
)
def test_a_value_that_is_far_too_large_is_not_converted_to_be_refused(
    shop: Workshop, query: str, words: str
) -> None:
    """What Python holds of it is counted; SQLite itself makes no larger value than it is allowed to."""
    tracemalloc.start()
    try:
        assert words in shop.error(flow("sqlite:///data.db", step("x", query, ", max_bytes: 1000")))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 60_000_000


def test_a_statement_that_takes_too_long_is_ended(shop: Workshop, url: str) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    ended = step("x", endless).replace("{name: x,", "{name: x, retry: {attempts: 1}, timeout: 200ms,")

    assert "took longer than 0.2 s" in shop.error(flow(url, ended))


@pytest.mark.parametrize("url", ["sqlite:///../x.db", "sqlite:////tmp/x.db", "sqlite:///link.db"])
def test_a_sqlite_file_is_in_the_folder_of_the_workflow(
    shop: Workshop, tmp_path_factory: pytest.TempPathFactory, url: str
) -> None:
    (shop.folder / "link.db").symlink_to(tmp_path_factory.mktemp("outside") / "x.db")

    assert "folder" in shop.error(flow(url, step("x", "CREATE TABLE t (n)")))


def test_no_other_file_is_attached(shop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("outside") / "x.db"

    assert "ATTACH" in shop.error(flow("sqlite:///a.db", step("x", f"ATTACH '{other}' AS o")))
    assert not other.exists()


def test_no_store_of_runs_is_attached(shop: Workshop) -> None:
    store = shop.folder / "runs.db"
    attach = f"{{query: 'ATTACH :path AS s', params: {{path: '{store}'}}}}"
    queries = f"queries: [{attach}, DELETE FROM s.entries], outside: true"

    error = shop.error(f"steps: [{{name: x, sql: {{url: 'sqlite:///mine.db', {queries}}}}}]")

    assert "sql.query" in error and "belongs to a Holdfast store" in error


def test_the_address_may_be_a_secret_which_is_never_shown(shop: Workshop) -> None:
    shop.env["HOLDFAST_SECRET_DATABASE"] = "postgresql://somebody:opensesame@127.0.0.1:1/x"

    error = shop.error(
        "steps:\n  - {name: x, retry: {attempts: 1}, timeout: 5s, "
        "sql: {url: '{{ secrets.DATABASE }}', query: SELECT 1}}\n"
    )

    assert "opensesame" not in error and "sql: " in error


def test_a_committed_row_is_there(shop: Workshop) -> None:
    shop.run(flow("sqlite:///a.db", step("x", "CREATE TABLE t AS SELECT 1 AS n")))

    with sqlite3.connect(shop.folder / "a.db") as connection:
        assert connection.execute("SELECT n FROM t").fetchall() == [(1,)]
    connection.close()


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT :a, :b, :a", ["a", "b", "a"]),
        ("SELECT ':a' , \":b\", 'it''s :c' -- :d\n, :e /* :f */", ["e"]),
        ("SELECT x::text, E'\\' :a', $$ :b $$, $t$ :c $t$, a[1:2], :d", ["d"]),
        ("SELECT ' :a", []),
        ("/* :a", []),
        ("$$ :a", []),
    ],
)
def test_parameters_are_found_outside_of_quotes(sql: str, names: list[str]) -> None:
    assert [name for _, name in sql_parameters(sql) if name] == names
    assert "".join(part for part, _ in sql_parameters(sql)) == sql


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("{url: 'sqlite:///a.db', query: 'SELECT {{ inputs.x }}'}", "values cannot be a part of SQL"),
        ("{url: 'sqlite:///a.db', query: 'SELECT :x'}", "parameters without a value: x"),
        ("{url: 'sqlite:///a.db', queries: ['SELECT :x']}", "parameters without a value: x"),
        ("{url: 'mysql://a', query: SELECT 1}", "not the address of a database"),
        ("{url: 'sqlite:///a.db'}", "either `query` or `queries`"),
    ],
)
def test_wrong_sql_is_refused_before_the_run(shop: Workshop, sql: str, words: str) -> None:
    with pytest.raises(WorkflowInvalid, match=words) as caught:
        shop.load(f"steps:\n  - {{name: x, sql: {sql}}}\n")

    assert {problem.position.line for problem in caught.value.problems} == {4}


SOURCE = """
workflow: {name: w}
steps:
  - {name: db, sql: {url: "{{ secrets.DB }}", queries: ["DELETE FROM the_table", {query: "SELECT :x", params: {x: 1}}]}}
  - {name: put, file: {create: the-file, content: the-content, outside: true}}
  - {name: get, file: {read: [the-other-file]}}
  - {name: keep, json_state: {merge: the-state, state: {a: the-value}}}
  - name: loop
    while_loop: {condition: the_condition, steps: [{name: inner, shell: touch inside-the-loop}]}
"""


def test_a_stranger_s_statements_and_files_are_shown_before_they_are_confirmed() -> None:
    """R2.3: the complete source of the new kinds, and what each of them reaches."""
    saved = {"path": "/w.yaml", "digest": "", "source": SOURCE, "included": {}, "files": {}}
    shown = "\n".join(source_lines({"workflow_file": saved}))
    reach = {effect.name: effect.reach for effect in effects_of(saved)}

    for text in (
        "DELETE FROM the_table",
        "the-content",
        "the-value",
        "the_condition",
        "touch inside-the-loop",
    ):
        assert text in shown, text
    assert reach["db"] == "runs SQL on {{ secrets.DB }}: DELETE FROM the_table; SELECT :x"
    assert reach["put"] == "writes the-file, anywhere on this machine"
    assert reach["get"] == "reads ['the-other-file'], in the folder of the workflow file"
    assert reach["keep"] == "changes the-state, in the folder of the workflow file"
    assert reach["inner"] == "runs a shell command" and reads_of(saved) == ["secrets.DB"]


def test_the_folder_of_a_workflow_may_be_gone(shop: Workshop, tmp_path: Path) -> None:
    assert "unable to open" in shop.error(flow("sqlite:///nowhere/a.db", step("x", "SELECT 1")))
