"""Statistics of a store, and the version of its schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import StoreError, open_store
from holdfast.stores.base import SCHEMA_VERSION, Append, Store, namespace_of
from holdfast.stores.inspection import schema_version, usage_of
from tests.stores.copied_runs import Lives, Mortal
from tests.stores.journals import create, entry, snapshot


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/runs.db",
        "file": f"file:{tmp_path}/runs",
    }[request.param]


def filled(store: Store) -> None:
    """Three runs: `small`, `large` with two snapshots and two messages, and `pruned`."""
    create(store, "small", status="completed", created_at=5.0, updated_at=50.0)
    create(store, "large", created_at=7.0, updated_at=70.0)
    entries = [entry(2, b"x" * 1000, None), entry(3, b"y" * 500)]
    store.commit([Append("large", 1, entries, None, (snapshot(2), snapshot(3)))])
    store.post("large", b"12345")
    store.post("large", b"678")
    create(store, "pruned", upto=4, status="failed", workflow="other", created_at=6.0, updated_at=60.0)
    store.prune("pruned", snapshot(3))


def test_a_store_tells_what_it_holds(url: str) -> None:
    store = open_store(url)
    filled(store)

    usage = usage_of(store, largest=2)

    assert (usage.runs, usage.statuses) == (3, {"completed": 1, "failed": 1, "running": 1})
    assert (usage.entries, usage.checkpoints, usage.snapshots, usage.messages) == (6, 5, 3, 2)
    assert usage.entry_bytes == 1500 + 4 * len(b"body 1")
    assert usage.snapshot_bytes == 3 * len(b"state at 1") and usage.message_bytes == 8
    assert (usage.oldest, usage.newest) == (5.0, 70.0)
    assert [(large.run, large.status, large.entries) for large in usage.largest] == [
        ("large", "running", 3),
        ("pruned", "failed", 2),
    ]
    assert usage.largest[0].size == 1500 + 6 + 20 + 8
    assert usage.namespace == "default" and usage.kind in ("memory", "sqlite", "file", "postgresql")
    assert (usage.disk_bytes is None) == (usage.kind == "memory") == (usage.schema is None)
    assert not usage.disk_bytes or usage.disk_bytes > 1500
    store.close()


def test_an_empty_store_holds_nothing(url: str) -> None:
    store = open_store(url)

    usage = usage_of(store)

    assert (usage.runs, usage.statuses, usage.entries, usage.largest) == (0, {}, 0, ())
    assert usage.oldest is None is usage.newest
    store.close()


def test_other_namespaces_are_not_counted(url: str) -> None:
    one, other = open_store(url, namespace="one"), open_store(url, namespace="other")
    create(one, "a", upto=3)
    create(other, "b", upto=5)

    assert (usage_of(one).entries, usage_of(other).entries) == (3, 5)
    assert usage_of(other).namespace == namespace_of(other) == "other"
    one.close()
    other.close()


def test_a_damaged_run_does_not_keep_the_others_from_being_counted(tmp_path: Path) -> None:
    store = open_store(f"file:{tmp_path}/runs")
    create(store, "good", upto=2)
    create(store, "bad")
    (tmp_path / "runs" / "bad" / "journal").write_bytes(b"nothing of the kind" * 9)
    store = open_store(store.url)

    usage = usage_of(store)

    assert usage.runs == 2 and usage.entries == 2


def test_a_store_that_cannot_tell_says_so() -> None:
    store = open_store("memory://")
    create(store)

    usage = usage_of(Mortal(store, Lives(0)))

    assert usage.runs == 1 and usage.entries is None is usage.disk_bytes and usage.kind == "unknown"


def test_the_version_of_a_schema_is_read_without_creating_it(tmp_path: Path, postgres_url: str) -> None:
    """S0.3."""
    path, url = tmp_path / "runs.db", f"sqlite:///{tmp_path}/runs.db"
    assert schema_version(url, path) == 0 == schema_version(postgres_url, None) and not path.exists()

    open_store(url).close()
    open_store(postgres_url).close()

    assert schema_version(url, path) == SCHEMA_VERSION == schema_version(postgres_url, None)
    assert schema_version(f"file:{tmp_path}", tmp_path) == SCHEMA_VERSION == schema_version("memory://", None)


def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"this is no database, nor has it ever been one" * 50)

    with pytest.raises(StoreError, match="is not a SQLite database"):
        schema_version(f"sqlite:///{tmp_path}/runs.db", tmp_path / "runs.db")
