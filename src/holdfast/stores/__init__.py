"""Where journals live: opening a store by URL, path or name, and naming stores of your own."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import StoreError, closest
from holdfast.names import LazyModule
from holdfast.stores.base import (
    KeepsCheckpoints,
    Store,
    check_namespace,
    chosen_namespace,
    is_server,
    namespace_in,
    namespace_of,
    shown_url,
    split_namespace,
    wanted_namespace,
)
from holdfast.stores.base import (
    RunInfo as RunInfo,
)
from holdfast.threads import locked

if TYPE_CHECKING:
    from holdfast.stores import memory
    from holdfast.stores.files import run_folder
    from holdfast.stores.sqlite import connection
else:
    memory = LazyModule("stores.memory")
    run_folder = LazyModule("stores.files.run_folder")
    connection = LazyModule("stores.sqlite.connection")

_SCHEMES = ("memory", "sqlite", "file")
SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(.*)", re.DOTALL)


def memory_store() -> Store:
    """Return the store named `memory`: shared by the whole process."""
    return locked(_lock, _found, "memory", wanted_namespace())


_lock = threading.RLock()
_named: dict[str, Any] = {"memory": memory_store}
"""Stores, stores of checkpoints, and functions that make one, by name."""
_memory: dict[str, Store] = {}
"""The stores named `memory`, by their namespaces."""
_custom: Any = LazyModule("checkpoints.custom")
"""Makes stores of what only keeps checkpoints. It is far above this package, and loaded only for such a store."""


def is_part_of_store(path: Path) -> bool:
    """Return whether a path, without symbolic links in it, is a file of a store on this machine, or is to be in one."""
    return run_folder.is_in_store(path) or connection.is_store(path)


def register_store(
    name: str, store: Store | KeepsCheckpoints | Callable[[], Store | KeepsCheckpoints]
) -> None:
    """Make `store` available as `get_store(name)`, in place of any earlier store of that name.

    It is a store, a `holdfast.checkpoints.CheckpointStore` or another object with its methods, or a factory of
    one, which is called once, at the first `get_store(name)`; its store is then shared.
    """
    if not isinstance(name, str) or not name or ":" in name or "/" in name:
        raise StoreError(f"{name!r} cannot name a store; use a plain word")
    if not (isinstance(store, Store) or callable(store)):
        _custom.adapted(store)  # Refuse what is none now, not when it is first used.
    _named[name] = store


def get_store(name: str, *, namespace: str | None = None) -> Store:
    """The store registered as `name`. `"memory"` is one store shared by this whole process, per namespace.

    Without `namespace`, `HOLDFAST_NAMESPACE` decides; a store that is bound to another is refused.
    """
    wanted = wanted_namespace() if namespace is None else check_namespace(namespace)
    return locked(_lock, _found, name, wanted)


def _found(name: str, namespace: str) -> Store:
    if name not in _named:
        raise StoreError(f"unknown checkpoint store: {name}{_hint(name, _named)}")
    store = _named[name]
    if store is memory_store:
        if namespace not in _memory:
            _memory[namespace] = memory.SharedMemoryStore(namespace=namespace)
        return _memory[namespace]
    if isinstance(store, type) or not (isinstance(store, Store) or _keeps_checkpoints(store)):
        store = _named[name] = store()
    return _bound(_whole(store), namespace)


def _keeps_checkpoints(given: Any) -> bool:
    return hasattr(given, "save") and hasattr(given, "load")


def _whole(given: Any) -> Store:
    """Return a store as it is, and the store that is made of something that only keeps checkpoints."""
    if isinstance(given, Store) and not isinstance(given, type):
        return given
    adapted: Store = _custom.adapted(given)
    return adapted


def _bound(store: Store, namespace: str | None) -> Store:
    """Return the store; raise `StoreError` if a namespace is given and the store is bound to another one."""
    if namespace is not None and namespace_of(store) != check_namespace(namespace):
        raise StoreError(
            f"the store {store.url} is bound to the namespace {namespace_of(store)!r}, not to {namespace!r}; "
            "open it by its URL in that namespace"
        )
    return store


def open_store(
    url: str | os.PathLike[str] | Store | KeepsCheckpoints | None = None,
    *,
    namespace: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Store:
    """Open a store, creating its file or folder if missing.

    `memory://` is a fresh store in memory; `sqlite:///runs.db` a file relative to the working
    directory and `sqlite:////var/runs.db` an absolute one; `file:///var/runs` a folder,
    `file:runs` a relative one. A path ending in `.db` or `.sqlite` is SQLite, an existing folder a
    folder of files, a registered name that store. A store is answered as it is.

    `postgresql://USER@HOST/DATABASE` is a schema of a PostgreSQL database, `holdfast` unless
    `?schema=NAME` says otherwise; `pg-embedded:PATH` one on a server of its own, with its data in that
    folder, that is started and stopped as needed.

    A `holdfast.checkpoints.CheckpointStore`, or another object with its methods, becomes a store, too; what such
    a store promises is in docs/howto/writing-a-store.md.

    A store is bound to one namespace: `namespace`, or what the URL says with `?namespace=NAME`, else
    `HOLDFAST_NAMESPACE`, else `default`. It neither lists nor reads the runs of another.

    Without `url` the environment decides: `HOLDFAST_STORE`, else `WORKFLOW_CHECKPOINT_BACKEND` with
    `WORKFLOW_CHECKPOINT_DSN`, else the store named `memory`.
    """
    if url is None:
        url = url_of_environment(environ)
    if not isinstance(url, (str, os.PathLike)):
        return _bound(_whole(url), namespace)
    if not os.fspath(url):
        raise StoreError(f"{url!r} names no store; give a URL such as sqlite:///runs.db, or a store")
    text = os.fspath(url)
    if not isinstance(url, str):
        return _at_path(text, chosen_namespace(namespace, None, environ))
    if is_server(text):
        try:
            from holdfast.stores.postgres.store import PostgresStore
        except ImportError as error:
            package = f"the package {error.name}: pip install 'holdfast[postgres]'"
            raise StoreError(f"PostgreSQL stores need {package}") from error
        if namespace is None and namespace_in(text) is None:
            namespace = wanted_namespace(environ)
        return PostgresStore(text, namespace=namespace)
    place, of_url = split_namespace(text)
    chosen = chosen_namespace(namespace, of_url, environ)
    match = _URL.fullmatch(place)
    return _at_url(match[1].lower(), match[2], text, chosen) if match else _at_path(place, chosen)


def url_of_environment(environ: Mapping[str, str]) -> str:
    """Return the URL or the name of the store that the environment names."""
    backend = environ.get("WORKFLOW_CHECKPOINT_BACKEND", "").strip().lower()
    dsn, wanted = environ.get("WORKFLOW_CHECKPOINT_DSN", ""), f"WORKFLOW_CHECKPOINT_BACKEND={backend}"
    match = _URL.fullmatch(dsn)
    if url := environ.get("HOLDFAST_STORE"):
        return url
    if backend == "memory" or not (backend or dsn):
        return "memory"
    if backend in ("", "postgres", "postgresql"):
        if backend and not is_server(dsn):
            raise StoreError(f"{wanted} needs postgresql://USER@HOST/DATABASE in WORKFLOW_CHECKPOINT_DSN")
        return dsn
    if backend not in _SCHEMES:
        hint = _hint(backend, _SCHEMES)
        raise StoreError(f"unknown checkpoint store: {backend} (from WORKFLOW_CHECKPOINT_BACKEND){hint}")
    if not dsn:
        raise StoreError(f"{wanted} needs a path in WORKFLOW_CHECKPOINT_DSN")
    if match and match[1].lower() != backend:
        raise StoreError(f"{wanted} does not fit WORKFLOW_CHECKPOINT_DSN={shown_url(dsn)}")
    return dsn if match else f"{backend}:{'///' if backend == 'sqlite' else ''}{dsn}"


def _at_url(scheme: str, rest: str, text: str, namespace: str) -> Store:
    if scheme not in _SCHEMES:
        raise StoreError(
            f"no store is known for {shown_url(text)!r}{_hint(scheme, (*_SCHEMES, 'postgresql'), '://')}; "
            "write sqlite:///PATH for a SQLite file or file:///DIR for a folder"
        )
    if scheme == "memory":
        return memory.MemoryStore(namespace=namespace)
    is_sqlite = scheme == "sqlite"
    path = re.sub("^/{2,3}", "", rest, count=1) if is_sqlite else re.sub("^/+", "/", rest.removeprefix("//"))
    if path in ("", "/"):
        raise StoreError(f"{text!r} names no path; write {scheme}:{'////' if is_sqlite else '///'}PATH")
    return _open(scheme, path, namespace)


def _at_path(text: str, namespace: str) -> Store:
    path = _expanded(text)
    if text in _named:
        return get_store(text, namespace=namespace)
    try:
        if path.is_dir():
            return _open("file", text, namespace)
    except OSError as error:
        raise StoreError(f"cannot open {str(path)!r:.300}: {error.strerror}; choose another path") from None
    if path.suffix.lower() in SQLITE_SUFFIXES:
        return _open("sqlite", text, namespace)
    if "/" not in text and os.sep not in text and "." not in text:
        return get_store(text, namespace=namespace)
    raise StoreError(
        f"cannot tell what kind of store {text!r} is; write sqlite:///{text} for a SQLite file "
        f"or file:{text} for a folder"
    )


def _expanded(text: str) -> Path:
    if "\0" in text:
        raise StoreError(f"{text!r} has a NUL character, which no path can have; choose another path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise StoreError(f"{text!r} begins with the home of nobody known here; write out the path") from None


def _open(scheme: str, path: str, namespace: str) -> Store:
    _expanded(path)
    if scheme == "sqlite":
        if path == ":memory:":
            raise StoreError("SQLite in memory cannot be shared by threads and processes; use memory://")
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(path, namespace=namespace)
    try:
        from holdfast.stores.files.store import FileStore
    except ImportError as error:
        raise StoreError("the file store needs POSIX file locks; use sqlite:///PATH here") from error
    return FileStore(path, namespace=namespace)


def _hint(name: str, known: Collection[str], suffix: str = "") -> str:
    close = closest(name, known)
    question = f"; did you mean {close}{suffix}?" if close else ""
    return f"{question} (known: {', '.join(f'{each}{suffix}' for each in sorted(known))})"
