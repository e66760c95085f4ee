"""Damaging what stores hold, on every kind of store, behind their backs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from holdfast.stores.base import Store
from holdfast.stores.files import frames
from holdfast.stores.files.run_folder import folder_name
from holdfast.stores.files.store import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore


def flipped(data: bytes, place: int = -1, by: int = 0x10) -> bytes:
    """Bytes of which one is another."""
    changed = bytearray(data)
    changed[place] ^= by
    return bytes(changed)


def sql(store: SqliteStore, statement: str, *values: Any) -> list[Any]:
    """Change a database, or ask it, with a connection of its own."""
    connection = apsw.Connection(str(store.path))
    rows = connection.execute(statement, values).fetchall()
    connection.close()
    return rows


def number_of(store: SqliteStore, run: str) -> int:
    ((number,),) = sql(store, "SELECT no FROM runs WHERE run = ?", run)
    return int(number)


def damage_entry(store: Store, run: str, seq: int) -> None:
    """Change a byte of an entry's body."""
    (entry,) = store.read(run, seq - 1, seq)
    broken = flipped(entry.body)
    match store:
        case MemoryStore():
            stored = store._runs[run]
            stored.entries[seq - stored.first] = entry._replace(body=broken)
        case SqliteStore():
            place = number_of(store, run) << 32 | seq
            sql(store, "UPDATE entries SET body = ? WHERE id = ?", broken, place)
        case FileStore():
            _replace_bytes(store.directory / folder_name(run) / "journal", entry.body, broken)
        case PostgresStore():
            _server(
                store,
                "UPDATE entry SET body = %s WHERE run_no = (SELECT no FROM run WHERE run = %s) AND seq = %s",
                broken,
                run,
                seq,
            )


def damage_snapshot(store: Store, run: str, seq: int) -> None:
    """Change a byte of a snapshot's body."""
    snapshot = store.snapshot(run, seq)
    assert snapshot is not None and snapshot.seq == seq
    broken = flipped(snapshot.body)
    match store:
        case MemoryStore():
            from dataclasses import replace

            store._runs[run].snapshots[seq] = replace(snapshot, body=broken)
        case SqliteStore():
            sql(
                store, "UPDATE snapshots SET body = ? WHERE id = ?", broken, number_of(store, run) << 32 | seq
            )
        case FileStore():
            path = store.directory / folder_name(run) / "snapshots" / f"{seq:010}"
            _replace_bytes(path, snapshot.body, broken)
        case PostgresStore():
            _server(
                store,
                "UPDATE snapshot SET body = %s WHERE run_no = (SELECT no FROM run WHERE run = %s) AND seq = %s",
                broken,
                run,
                seq,
            )


def _replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def _server(store: PostgresStore, statement: str, *values: Any) -> None:
    with store.transaction() as connection:
        connection.execute(statement.encode(), values)


def cut(store: Store, run: str, seq: int) -> None:
    """Remove the entries from `seq` on, and the snapshots there."""
    match store:
        case MemoryStore():
            stored = store._runs[run]
            del stored.entries[seq - stored.first :]
            for number in [number for number in stored.snapshots if number >= seq]:
                del stored.snapshots[number]
        case SqliteStore():
            first, last = number_of(store, run) << 32 | seq, (number_of(store, run) + 1) << 32
            for table in ("entries", "snapshots"):
                sql(store, f"DELETE FROM {table} WHERE id >= ? AND id < ?", first, last)
        case FileStore():
            folder = store.directory / folder_name(run)
            with (folder / "journal").open("r+b") as file:
                size = (folder / "journal").stat().st_size
                found = list(frames.scan(file.fileno(), 0, size, run))
                file.truncate(next(frame.start for frame in found if frame.after + 1 == seq))
            for path in folder.glob("snapshots/*"):
                if int(path.name) >= seq:
                    path.unlink()
        case PostgresStore():
            for table in ("entry", "snapshot"):
                of_run = "run_no = (SELECT no FROM run WHERE run = %s)"
                _server(store, f"DELETE FROM {table} WHERE {of_run} AND seq >= %s", run, seq)


def lose_message(store: Store, run: str, number: int) -> None:
    """Remove a message."""
    match store:
        case MemoryStore():
            del store._runs[run].inbox[number - 1]
        case SqliteStore():
            sql(store, "DELETE FROM inbox WHERE id = ?", number_of(store, run) << 32 | number)
        case FileStore():
            (store.directory / folder_name(run) / "inbox" / f"{number:010}").unlink()
        case PostgresStore():
            of_run = "run_no = (SELECT no FROM run WHERE run = %s)"
            _server(store, f"DELETE FROM inbox WHERE {of_run} AND number = %s", run, number)
