"""What a store adds to the plain ones is asked of the store itself."""

from __future__ import annotations

from typing import Any

from holdfast import open_store
from holdfast.stores.base import Store, leases_of


class Standing:
    """Stands for another store, whatever that can do."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_one_that_stands_for_another_has_leases_if_that_has(postgres_url: str) -> None:
    plain, leased = open_store("memory://"), open_store(postgres_url)

    assert leases_of(Standing(plain)) is None  # type: ignore[arg-type]
    assert leases_of(Standing(leased)) is not None  # type: ignore[arg-type]
    assert leases_of(plain) is None and leases_of(leased) is leased
    leased.close()
