"""What only a PostgreSQL store can keep, and saying so where the store is another."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from holdfast.errors import StoreError
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.showing import shown_url

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore


def is_postgres(store: Store) -> TypeGuard[PostgresStore]:
    """Whether a store is one of PostgreSQL, without importing what that needs."""
    return store.url.startswith(("postgresql:", "pg-embedded:"))


def on_postgres(store: Store, what: str) -> PostgresStore:
    """The store, if it is one of PostgreSQL; `what` needs one."""
    if not is_postgres(store):
        raise _elsewhere(store.url, what)
    return store


def open_postgres(url: str, what: str) -> Store:
    """Open a store of PostgreSQL, for `what` needs one; another is refused and not created."""
    if not url.lower().startswith(("postgres:", "postgresql:", "pg-embedded:")):
        raise _elsewhere(url, what)
    return open_store(url)


def _elsewhere(url: str, what: str) -> StoreError:
    return StoreError(
        f"{what} are kept by PostgreSQL alone, and the store is {shown_url(url)}; use postgresql://USER@HOST/DATABASE, "
        "or pg-embedded:PATH to try it"
    )
