"""Bringing a store's schema up to date, and telling whether that is needed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.errors import StoreError
from holdfast.stores import open_store


class Schema(NamedTuple):
    """How a store's schema stands: its version, 0 if it has none yet, and the newest that is known here."""

    current: int
    newest: int
    missing: tuple[str, ...] = ()
    """The names of the migrations that it lacks."""

    @property
    def is_current(self) -> bool:
        """Whether nothing is to be done."""
        return not self.missing


SERVERS = ("postgres:", "postgresql:", "pg-embedded:")


def schema_of(url: str, place: Path | None) -> Schema:
    """How the schema of a store stands; nothing is changed. `place` is its file or folder, if it has one."""
    if url.lower().startswith(SERVERS):
        return _of_server(url)
    if place is None or place.is_dir():
        return Schema(1, 1)
    return _of_file(place)


def migrate_store(url: str, place: Path | None) -> tuple[Schema, Schema]:
    """Bring a store to the newest schema, creating it if need be; how it stood before, and how it stands now."""
    before = schema_of(url, place)
    if url.lower().startswith(SERVERS):
        from holdfast.stores.postgres.opening import migrate

        migrate(url)
    else:
        open_store(url).close()
    return before, schema_of(url, place)


def _of_server(url: str) -> Schema:
    try:
        from holdfast.stores.postgres.opening import version
    except ImportError as error:
        raise StoreError(
            f"PostgreSQL stores need the package {error.name}: pip install 'holdfast[postgres]'"
        ) from error
    return Schema(*version(url))


def _of_file(path: Path) -> Schema:
    from holdfast.stores.sqlite_file import migration_names, stored_version

    current, names = stored_version(path), migration_names()
    return Schema(current, max(names), tuple(name for number, name in names.items() if number > current))
