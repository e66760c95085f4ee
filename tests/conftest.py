"""Fixtures that every test may use."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast import open_store, stores
from holdfast.engine.runner import known_apps
from holdfast.stores.base import Store
from holdfast.stores.postgres.embedded import Programs
from tests.graphs import Heard
from tests.postgres import PostgresServer, running

settings.register_profile("at any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any speed")

LONGEST = (
    "web/test_idempotency.py",
    "web/test_run_page.py",
    "test_static.py",
    "crash/test_boundaries.py",
    "docs/test_docs.py",
    "testing/test_crash_verdicts.py",
    "engine/time_travel/test_forks.py",
    "proof/test_schedules.py",
    "cli/test_run.py",
    "views/diff/test_difference.py",
    "workflows/test_templates.py",
    "crash/test_moments.py",
    "state/test_codec.py",
    "proof/test_server_faults.py",
    "engine/test_executors.py",
    "engine/time_travel/test_properties.py",
    "test_coverage_gate.py",
    "testing/test_crash_everywhere.py",
    "proof/test_async_exceptions.py",
    "docs/test_console_blocks.py",
    "docs/test_tutorials.py",
    "web/test_pages.py",
    "web/test_runs_page.py",
    "crash/test_kills.py",
    "functions/test_crash_everywhere.py",
)
"""Files that take longest; they come first, so that no worker is left alone with one at the end."""


UNMEASURED = ("crash", "docs", "fuzz", "golden", "proof")
"""Folders of tests that go through code which others cover, over and over or in processes that are killed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    place = {tests / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    for item in items:
        of_proof = (
            item.path.relative_to(tests).parts[0] in UNMEASURED if item.path.is_relative_to(tests) else False
        )
        if of_proof or getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("no_cover")


def pytest_xdist_auto_num_workers() -> int:
    """More workers than processors: tests often wait, for a disk, a process or a time."""
    return (os.cpu_count() or 1) * 3 // 2


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No test depends on what the caller's environment says about stores and keys."""
    if request.node.get_closest_marker("no_cover") is not None:
        monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # Nor are its processes measured.
    for name in (
        "HOLDFAST_STORE",
        "HOLDFAST_NAMESPACE",
        "HOLDFAST_KEY",
        "HOLDFAST_ENCRYPTION",
        "WORKFLOW_CHECKPOINT_BACKEND",
        "WORKFLOW_CHECKPOINT_DSN",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def empty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test meets the runs of another in the store in memory that a process shares, nor its apps."""
    monkeypatch.setattr(stores, "_memory", {})
    monkeypatch.setattr(known_apps, "_in_use", weakref.WeakValueDictionary())


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
