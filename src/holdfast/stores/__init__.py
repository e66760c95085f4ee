"""Where journals live: opening a store by URL, path or name, and naming stores of your own."""

from __future__ import annotations

import difflib
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.errors import StoreError
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore

_SCHEMES = ("memory", "sqlite", "file")
_SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(.*)", re.DOTALL)


class _SharedMemoryStore(MemoryStore):
    """The store named `memory`: shared by the whole process, so nobody may close it for the others."""

    def close(self) -> None:
        pass


_lock = threading.RLock()
_named: dict[str, Store | Callable[[], Store]] = {"memory": _SharedMemoryStore()}


def register_store(name: str, store: Store | Callable[[], Store]) -> None:
    """Make `store` available as `get_store(name)`, in place of any earlier store of that name.

    A factory is called once, at the first `get_store(name)`; its store is then shared.
    """
    if not name or ":" in name or "/" in name:
        raise StoreError(f"{name!r} cannot name a store; use a plain word")
    with _lock:
        _named[name] = store


def get_store(name: str) -> Store:
    """The store registered as `name`. `"memory"` is one store shared by this whole process."""
    with _lock:
        if name not in _named:
            raise StoreError(f"unknown checkpoint store: {name}{_hint(name, _named)}")
        store = _named[name]
        if isinstance(store, type) or not isinstance(store, Store):
            store = _named[name] = store()
        return store


def open_store(
    url: str | os.PathLike[str] | Store | None = None, *, environ: Mapping[str, str] = os.environ
) -> Store:
    """Open a store, creating its file or folder if missing.

    `memory://` is a fresh store in memory; `sqlite:///runs.db` a file relative to the working
    directory and `sqlite:////var/runs.db` an absolute one; `file:///var/runs` a folder,
    `file:runs` a relative one. A path ending in `.db` or `.sqlite` is SQLite, an existing folder a
    folder of files, a registered name that store. A store is answered as it is.

    Without `url` the environment decides: `HOLDFAST_STORE`, else `WORKFLOW_CHECKPOINT_BACKEND` with
    `WORKFLOW_CHECKPOINT_DSN`, else the store named `memory`.
    """
    if url is None:
        return _from_environment(environ)
    if isinstance(url, Store):
        return url
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url):
        raise StoreError(f"{url!r} names no store; give a URL such as sqlite:///runs.db, or a store")
    text = os.fspath(url)
    if not isinstance(url, str):
        return _at_path(text)
    match = _URL.fullmatch(text)
    return _at_url(match[1].lower(), match[2], text) if match else _at_path(text)


def _from_environment(environ: Mapping[str, str]) -> Store:
    if url := environ.get("HOLDFAST_STORE"):
        return open_store(url)
    backend = environ.get("WORKFLOW_CHECKPOINT_BACKEND", "").strip().lower()
    dsn = environ.get("WORKFLOW_CHECKPOINT_DSN", "")
    if not backend:
        return open_store(dsn) if dsn else get_store("memory")
    if backend == "memory":
        return get_store("memory")
    if backend in ("postgres", "postgresql"):
        raise _postgres()
    if backend not in _SCHEMES:
        hint = _hint(backend, _SCHEMES)
        raise StoreError(f"unknown checkpoint store: {backend} (from WORKFLOW_CHECKPOINT_BACKEND){hint}")
    if not dsn:
        raise StoreError(f"WORKFLOW_CHECKPOINT_BACKEND={backend} needs a path in WORKFLOW_CHECKPOINT_DSN")
    match = _URL.fullmatch(dsn)
    if match and match[1].lower() != backend:
        raise StoreError(f"WORKFLOW_CHECKPOINT_BACKEND={backend} does not fit WORKFLOW_CHECKPOINT_DSN={dsn}")
    return open_store(dsn) if match else _open(backend, dsn)


def _at_url(scheme: str, rest: str, text: str) -> Store:
    if scheme in ("postgres", "postgresql"):
        raise _postgres()
    if scheme not in _SCHEMES:
        raise StoreError(f"no store is known for {text!r}{_hint(scheme, _SCHEMES, '://')}")
    if scheme == "memory":
        return MemoryStore()
    if scheme == "sqlite":
        path = re.sub("^/{2,3}", "", rest, count=1)
    else:
        path = re.sub("^/+", "/", rest.removeprefix("//"))
    if path in ("", "/"):
        raise StoreError(
            f"{text!r} names no path; write {scheme}:{'////' if scheme == 'sqlite' else '///'}PATH"
        )
    return _open(scheme, path)


def _at_path(text: str) -> Store:
    path = Path(text).expanduser()
    with _lock:
        if text in _named:
            return get_store(text)
    if path.is_dir():
        return _open("file", text)
    if path.suffix.lower() in _SQLITE_SUFFIXES:
        return _open("sqlite", text)
    if "/" not in text and os.sep not in text and "." not in text:
        return get_store(text)
    raise StoreError(
        f"cannot tell what kind of store {text!r} is; write sqlite:///{text} for a SQLite file "
        f"or file:{text} for a folder"
    )


def _open(scheme: str, path: str) -> Store:
    if scheme == "sqlite":
        if path == ":memory:":
            raise StoreError("SQLite in memory cannot be shared by threads and processes; use memory://")
        from holdfast.stores.sqlite import SqliteStore

        return SqliteStore(path)
    try:
        from holdfast.stores.files import FileStore
    except ImportError as error:
        raise StoreError("the file store needs POSIX file locks; use sqlite:///PATH here") from error
    return FileStore(path)


def _postgres() -> StoreError:
    return StoreError("PostgreSQL is not available in this version; use sqlite:///PATH or file:///DIR")


def _hint(name: str, known: Mapping[str, object] | tuple[str, ...], suffix: str = "") -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    question = f"; did you mean {close[0]}{suffix}?" if close else ""
    return f"{question} (known: {', '.join(f'{each}{suffix}' for each in sorted(known))})"
