"""Fixtures for the checkpoint tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.stores.base import Store


@pytest.fixture(params=["memory", "sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Every kind of store, opened by its URL."""
    urls = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path / 'runs.db'}",
        "file": f"file://{tmp_path / 'runs'}",
    }
    opened = open_store(urls[request.param])
    yield opened
    opened.close()
