"""The SQL that the documentation shows: every statement runs, as the role and in the database that its block names."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import END, START, StateGraph, StoreError, open_store
from holdfast.checkpoints import write_tables
from holdfast.fleet.catalog import Catalog
from holdfast.fleet.queues import Limits, Rate
from holdfast.fleet.worker import Worker
from holdfast.stores.base import Store
from tests.docs.test_docs import PAGES, ROOT, name_of
from tests.postgres import PostgresServer

BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WHERE = re.compile(r"-- as (\w+) in (\w+)")
WITH_SQL = [page for page in PAGES if BLOCK.search(page.read_text("utf-8"))]
ROLES = ("red_reader", "red_worker", "holdfast_owner")


def blocks(page: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Each block of a page: the role and the database that its first line names, and its statements."""
    for text in BLOCK.findall(page.read_text("utf-8")):
        where = WHERE.match(text)
        assert where, f"{name_of(page)}: a block of SQL begins with '-- as ROLE in DATABASE': {text}"
        bare = re.sub(r"^\s*--.*$", "", text, flags=re.MULTILINE)
        yield where[1], where[2], [each.strip() for each in bare.split(";\n") if each.strip()]


class Database:
    """The database `jobs` of the documentation, with some runs in it."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def url(self, role: str, namespace: str = "default") -> str:
        return f"postgresql://{role}@/jobs?host={self._server.folder}&namespace={namespace}"

    def ask(self, role: str, database: str, statement: str) -> list[tuple[Any, ...]] | None:
        """What a statement answers; `None` if it is not one that answers."""
        place = {"host": str(self._server.folder), "user": role, "dbname": database}
        with psycopg.connect(**place, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else None

    def create(self) -> None:
        self.ask("postgres", "postgres", "CREATE ROLE holdfast_owner LOGIN")
        self.ask("postgres", "postgres", "CREATE DATABASE jobs OWNER holdfast_owner")

    def drop(self) -> None:
        self.ask("postgres", "postgres", "DROP DATABASE IF EXISTS jobs WITH (FORCE)")
        for role in ROLES:
            self.ask("postgres", "postgres", f"DROP ROLE IF EXISTS {role}")


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    made = Database(postgres_server)
    made.drop()
    yield made
    made.drop()


def reports(store: Store) -> Any:
    def draft(state: Any) -> dict[str, str]:
        if state.get("topic") == "ruins":
            raise ValueError("nothing is left")
        return {"text": "a draft"}

    graph = StateGraph(dict, name="report")
    graph.add_node("draft", draft)
    graph.add_node("review", lambda state, ctx: {"verdict": ctx.ask("Good enough?")})
    graph.add_edge(START, "draft").add_edge("draft", "review").add_edge("review", END)
    return graph.compile(store)


@contextmanager
def populated(database: Database) -> Iterator[None]:
    """Runs of many kinds, an old one and one that is held back among them; limits, a schedule, a store in use."""
    with closing(open_store(database.url("holdfast_owner"))) as store:
        app = reports(store)
        tagged = {"tags": ["monthly"]}
        for run in ("r1", "old"):
            app.invoke({}, run_id=run, config=tagged)
            app.resume(run, answer="yes")
        app.submit({"topic": "ruins"}, run_id="failing")
        app.submit({}, run_id="asking")
        Worker(store, Catalog([app])).run(until_idle=True)
        app.submit({}, run_id="waiting")
        app.submit({}, run_id="held")
        Limits(store).set("mail", max_running=5, rate=Rate(100, 60.0))
        store.lease()
        for change in (
            f"UPDATE holdfast.run SET updated_at = {time.time() - 40 * 86400} WHERE run = 'old'",
            "UPDATE holdfast.run SET held = 'it cannot be read' WHERE run = 'held'",
            "INSERT INTO holdfast.schedule (namespace, name, cron, zone, workflow, config, input, queue, missed, "
            "next_at, trouble) VALUES ('default', 'late', '@daily', 'UTC', 'w', '', '', 'q', 'one', now(), 'no file')",
            "INSERT INTO holdfast.lease VALUES (gen_random_uuid(), 'default', 'gone', 7, now(), now() + '1 hour')",
        ):
            database.ask("holdfast_owner", "jobs", change)
        write_tables(store)
        yield


def test_there_are_blocks() -> None:
    assert {name_of(page) for page in WITH_SQL} >= {"docs/howto/postgresql.md", "docs/howto/production.md"}


@pytest.mark.parametrize("page", WITH_SQL, ids=name_of)
def test_the_sql_of_a_page_runs_in_order_and_every_question_is_answered(
    page: Path, database: Database
) -> None:
    is_populated = False
    with ExitStack() as stack:
        for role, place, statements in blocks(page):
            if place == "jobs" and not is_populated:
                is_populated = True
                if "CREATE DATABASE jobs" not in page.read_text("utf-8"):
                    database.create()
                stack.enter_context(populated(database))
            for statement in statements:
                rows = database.ask(role, place, statement)

                assert rows is None or rows, f"{name_of(page)}: no row answers\n{statement}"


def test_the_roles_of_the_documentation_can_do_their_work_and_no_more(database: Database) -> None:
    """S2.4: the data of teams is isolated, by the roles that the page on production describes."""
    for role, place, statements in list(blocks(ROOT / "docs/howto/production.md"))[:2]:
        if place == "jobs":
            with populated(database):
                pass
        for statement in statements:
            database.ask(role, place, statement)

    with closing(open_store(database.url("red_worker", "red"))) as store:
        app = reports(store)
        app.submit({}, run_id="mine")
        Worker(store, Catalog([app])).run(until_idle=True)
        assert [(info.run, info.status) for info in store.runs()] == [("mine", "paused")]
    with closing(open_store(database.url("red_reader", "red"))) as store:
        assert [info.run for info in store.runs()] == ["mine"]
        with pytest.raises(StoreError, match="permission denied"):
            store.delete("mine")
    for role in ("red_worker", "red_reader"):
        assert database.ask(role, "jobs", "SELECT DISTINCT namespace FROM holdfast.runs") == [("red",)]
        with pytest.raises(StoreError, match="not admitted to the namespace 'default'"):
            open_store(database.url(role, "default"))
