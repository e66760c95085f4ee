"""Our own stores keep what every store promises: the contract that authors of stores run, on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.testing.contract import LeasesContract, NamespacesContract, StoreContract, WatchedContract
from tests.postgres import DEBIAN, PostgresServer, debian_programs, running
from tests.stores.journals import create, seqs


@pytest.fixture(scope="session")
def debian_server() -> Iterator[PostgresServer]:
    with running(debian_programs()) as server:
        yield server


@pytest.fixture
def emptied_debian_url(debian_server: PostgresServer) -> Iterator[str]:
    with debian_server.emptied_schema() as name:
        yield debian_server.url(name)


KINDS = ["memory", "sqlite", "file", "postgres", *(["debian"] if DEBIAN.exists() else [])]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place_of(request, tmp_path)


def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store of the kind that is asked for."""
    if request.param in ("postgres", "debian"):
        return str(request.getfixturevalue(f"emptied_{request.param}_url"))
    places = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/runs.db",
        "file": f"file:///{tmp_path}/runs",
    }
    return places[request.param]


class _Opened:
    """How our stores are opened, and opened again."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = open_store(url)
        yield store
        store.close()

    @pytest.fixture
    def reopen(self, url: str, store: Store) -> Iterator[Callable[[], Store]]:
        """What a later process would see; the same store where nothing outlives the process."""
        opened: list[Store] = []

        def again() -> Store:
            if url == "memory://":
                return store
            opened.append(open_store(store.url))
            return opened[-1]

        yield again
        for each in opened:
            each.close()


class TestOurStores(_Opened, StoreContract):
    """The whole contract, for each of our stores."""

    def look_for_strays(self, tmp_path: Path) -> None:
        assert {path.name for path in tmp_path.iterdir()} <= {"runs", "runs.db", "runs.db-wal", "runs.db-shm"}


class TestNamespaces(_Opened, NamespacesContract):
    """Namespaces of our stores that outlive a process."""

    @pytest.fixture(params=[kind for kind in KINDS if kind != "memory"])
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        return place_of(request, tmp_path)

    @pytest.fixture
    def beside(self, url: str, store: Store) -> Iterator[Store]:
        beside = open_store(url, namespace="beside")
        yield beside
        beside.close()


class TestPostgres(_Opened, LeasesContract, WatchedContract):
    """What PostgreSQL adds."""

    @pytest.fixture
    def url(self, emptied_postgres_url: str) -> str:
        return emptied_postgres_url


def test_a_store_is_opened_again_by_its_url(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    create(store)
    again = open_store(store.url)
    assert seqs(again) == [1]
    again.close()
    store.close()
