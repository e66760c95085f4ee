"""What the author of a store tells the contract: how the store is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.stores.base import Store

Reopen = Callable[[], Store]


class Opening:
    """The fixtures that an author overrides."""

    is_store_contract = True

    @pytest.fixture
    def store(self) -> Store:
        """A new, empty store; override this, and close the store after its `yield`."""
        raise NotImplementedError("override the fixture `store`: it yields a new, empty store")

    @pytest.fixture
    def reopen(self, store: Store) -> Reopen:
        """A function that opens what `store` holds as another process would; override it if something outlives yours.

        By default it is the same store, which shows less.
        """
        return lambda: store

    def look_for_strays(self, tmp_path: Path) -> None:
        """Called after odd run ids were used: override it to see that nothing was written outside the store's
        place.
        """
