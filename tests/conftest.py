"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.stores.base import Store
from holdfast.stores.postgres.programs import Programs
from tests.graphs import Heard
from tests.postgres import PostgresServer, running


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what the caller's environment says about stores and keys."""
    for name in (
        "HOLDFAST_STORE",
        "HOLDFAST_NAMESPACE",
        "HOLDFAST_KEY",
        "WORKFLOW_CHECKPOINT_BACKEND",
        "WORKFLOW_CHECKPOINT_DSN",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store of each kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("emptied_postgres_url"))
    urls = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path / 'runs.db'}",
        "file": f"file://{tmp_path / 'runs'}",
    }
    return urls[request.param]


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """A new store of each kind."""
    opened = open_store(store_url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this process, started when a test first asks for it."""
    with running(Programs.find()) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new PostgreSQL store, in a schema of its own."""
    with postgres_server.schema() as name:
        yield postgres_server.url(name)


@pytest.fixture
def emptied_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty PostgreSQL store, whose schema other tests may have used: soon there."""
    with postgres_server.emptied_schema() as name:
        yield postgres_server.url(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a new SQLite store."""
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def memory() -> Iterator[Store]:
    """A new store in memory, for tests in which the kind of store does not matter."""
    opened = open_store("memory://")
    yield opened
    opened.close()


@pytest.fixture
def heard() -> Heard:
    """An observer that remembers every event."""
    return Heard()
