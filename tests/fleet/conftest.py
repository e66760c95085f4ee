"""Fixtures for the fleet tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import open_store
from holdfast.stores.postgres.store import PostgresStore


@pytest.fixture
def pg(postgres_url: str) -> Iterator[PostgresStore]:
    """A new PostgreSQL store, closed after the test."""
    store = open_store(postgres_url)
    assert isinstance(store, PostgresStore)
    yield store
    store.close()
