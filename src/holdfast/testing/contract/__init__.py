"""What every store promises, as tests that the author of a store runs against it.

from holdfast.testing.contract import StoreContract


class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = MyStore(tmp_path / "runs")
        yield store
        store.close()

    @pytest.fixture
    def reopen(self, store, tmp_path):
        return lambda: MyStore(tmp_path / "runs")
"""

from __future__ import annotations

from holdfast.testing.contract.reading import (
    LeasesContract,
    NamespacesContract,
    Reading,
    Sharing,
    WatchedContract,
)
from holdfast.testing.contract.writing import Appending, Keeping

__all__ = ["LeasesContract", "NamespacesContract", "StoreContract", "WatchedContract"]


class StoreContract(Appending, Reading, Keeping, Sharing):
    """Every promise of `holdfast.stores.base.Store`. Override the fixtures `store` and `reopen` in a class
    `Test…`.
    """
