"""Where journals live: opening a store by URL, path or name, and naming stores of your own."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.errors import StoreError, closest
from holdfast.stores.base import Store, namespace_of
from holdfast.stores.memory import MemoryStore
from holdfast.stores.namespaces import (
    check_namespace,
    is_server,
    namespace_in,
    shown_url,
    split_namespace,
    wanted_namespace,
)
from holdfast.threads import locked

_SCHEMES = ("memory", "sqlite", "file")
SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(.*)", re.DOTALL)


class _SharedMemoryStore(MemoryStore):
    """The store named `memory`: shared by the whole process, so nobody may close it for the others."""

    def close(self) -> None:
        pass


_lock = threading.RLock()
_named: dict[str, Store | Callable[[], Store]] = {"memory": _SharedMemoryStore()}
_further_memory: dict[str, Store] = {}
"""The stores named `memory` of further namespaces."""


def register_store(name: str, store: Store | Callable[[], Store]) -> None:
    """Make `store` available as `get_store(name)`, in place of any earlier store of that name.

    A factory is called once, at the first `get_store(name)`; its store is then shared.
    """
    if not name or ":" in name or "/" in name:
        raise StoreError(f"{name!r} cannot name a store; use a plain word")
    _named[name] = store


def get_store(name: str, *, namespace: str | None = None) -> Store:
    """The store registered as `name`. `"memory"` is one store shared by this whole process, per namespace.

    Without `namespace`, `HOLDFAST_NAMESPACE` decides; a store that is bound to another is refused.
    """
    wanted = wanted_namespace() if namespace is None else check_namespace(namespace)
    return locked(_lock, _found, name, wanted)


def _found(name: str, namespace: str) -> Store:
    if name == "memory" and isinstance(_named[name], _SharedMemoryStore):
        return _shared_memory(namespace)
    if name not in _named:
        raise StoreError(f"unknown checkpoint store: {name}{_hint(name, _named)}")
    store = _named[name]
    if isinstance(store, type) or not isinstance(store, Store):
        store = _named[name] = store()
    return _bound(store, namespace)


def _shared_memory(namespace: str) -> Store:
    default = _named["memory"]
    if isinstance(default, _SharedMemoryStore) and default.namespace == namespace:
        return default
    if namespace not in _further_memory:
        _further_memory[namespace] = _SharedMemoryStore(namespace=namespace)
    return _further_memory[namespace]


def _bound(store: Store, namespace: str | None) -> Store:
    """The store, if it is bound to that namespace or any will do."""
    if namespace is not None and namespace_of(store) != check_namespace(namespace):
        raise StoreError(
            f"the store {store.url} is bound to the namespace {namespace_of(store)!r}, not to {namespace!r}; "
            "open it by its URL in that namespace"
        )
    return store


def open_store(
    url: str | os.PathLike[str] | Store | None = None,
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

    A store is bound to one namespace: `namespace`, or what the URL says with `?namespace=NAME`, else
    `HOLDFAST_NAMESPACE`, else `default`. It neither lists nor reads the runs of another.

    Without `url` the environment decides: `HOLDFAST_STORE`, else `WORKFLOW_CHECKPOINT_BACKEND` with
    `WORKFLOW_CHECKPOINT_DSN`, else the store named `memory`.
    """
    if url is None:
        return _from_environment(environ, namespace)
    if isinstance(url, Store):
        return _bound(url, namespace)
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url):
        raise StoreError(f"{url!r} names no store; give a URL such as sqlite:///runs.db, or a store")
    text = os.fspath(url)
    if not isinstance(url, str):
        return _at_path(text, _chosen(namespace, None, environ))
    if is_server(text):
        return _on_server(text, namespace, environ)
    place, of_url = split_namespace(text)
    chosen = _chosen(namespace, of_url, environ)
    match = _URL.fullmatch(place)
    return _at_url(match[1].lower(), match[2], text, chosen) if match else _at_path(place, chosen)


def _chosen(given: str | None, of_url: str | None, environ: Mapping[str, str]) -> str:
    """The namespace to open; a URL that names another than the one that is wanted is refused."""
    if given is not None and of_url not in (None, check_namespace(given)):
        raise StoreError(f"the URL names the namespace {of_url!r}, and {given!r} is wanted; give one of them")
    return given or of_url or wanted_namespace(environ)


def _from_environment(environ: Mapping[str, str], namespace: str | None) -> Store:
    if url := environ.get("HOLDFAST_STORE"):
        return open_store(url, namespace=namespace, environ=environ)
    backend = environ.get("WORKFLOW_CHECKPOINT_BACKEND", "").strip().lower()
    dsn = environ.get("WORKFLOW_CHECKPOINT_DSN", "")
    if not backend and dsn:
        return open_store(dsn, namespace=namespace, environ=environ)
    if not backend or backend == "memory":
        return get_store("memory", namespace=_chosen(namespace, None, environ))
    if backend in ("postgres", "postgresql"):
        if not is_server(dsn):
            raise StoreError(
                f"WORKFLOW_CHECKPOINT_BACKEND={backend} needs postgresql://USER@HOST/DATABASE in "
                "WORKFLOW_CHECKPOINT_DSN"
            )
        return open_store(dsn, namespace=namespace, environ=environ)
    if backend not in _SCHEMES:
        hint = _hint(backend, _SCHEMES)
        raise StoreError(f"unknown checkpoint store: {backend} (from WORKFLOW_CHECKPOINT_BACKEND){hint}")
    if not dsn:
        raise StoreError(f"WORKFLOW_CHECKPOINT_BACKEND={backend} needs a path in WORKFLOW_CHECKPOINT_DSN")
    match = _URL.fullmatch(dsn)
    if match and match[1].lower() != backend:
        raise StoreError(
            f"WORKFLOW_CHECKPOINT_BACKEND={backend} does not fit WORKFLOW_CHECKPOINT_DSN={shown_url(dsn)}"
        )
    url = dsn if match else f"{backend}:{'///' if backend == 'sqlite' else ''}{dsn}"
    return open_store(url, namespace=namespace, environ=environ)


def _at_url(scheme: str, rest: str, text: str, namespace: str) -> Store:
    if scheme not in _SCHEMES:
        raise StoreError(
            f"no store is known for {shown_url(text)!r}{_hint(scheme, (*_SCHEMES, 'postgresql'), '://')}; "
            "write sqlite:///PATH for a SQLite file or file:///DIR for a folder"
        )
    if scheme == "memory":
        return MemoryStore(namespace=namespace)
    if scheme == "sqlite":
        path = re.sub("^/{2,3}", "", rest, count=1)
    else:
        path = re.sub("^/+", "/", rest.removeprefix("//"))
    if path in ("", "/"):
        raise StoreError(
            f"{text!r} names no path; write {scheme}:{'////' if scheme == 'sqlite' else '///'}PATH"
        )
    return _open(scheme, path, namespace)


def _at_path(text: str, namespace: str) -> Store:
    path = _expanded(text)
    if text in _named:
        return get_store(text, namespace=namespace)
    if _is_folder(path):
        return _open("file", text, namespace)
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


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise StoreError(f"cannot open {str(path)!r:.300}: {error.strerror}; choose another path") from None


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


def _on_server(url: str, namespace: str | None, environ: Mapping[str, str]) -> Store:
    try:
        from holdfast.stores.postgres.store import PostgresStore
    except ImportError as error:
        raise StoreError(
            f"PostgreSQL stores need the package {error.name}: pip install 'holdfast[postgres]'"
        ) from error
    if namespace is None and namespace_in(url) is None:
        namespace = wanted_namespace(environ)
    return PostgresStore(url, namespace=namespace)


def _hint(name: str, known: Mapping[str, object] | tuple[str, ...], suffix: str = "") -> str:
    close = closest(name, known)
    question = f"; did you mean {close}{suffix}?" if close else ""
    return f"{question} (known: {', '.join(f'{each}{suffix}' for each in sorted(known))})"
