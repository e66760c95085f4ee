"""Namespaces: a store is bound to one, and neither lists nor reads the runs of another."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.errors import StoreError
from holdfast.stores.base import DEFAULT_NAMESPACE


def shown_url(url: str) -> str:
    """Return the URL without its password, wherever that stands."""
    place, mark, query = url.partition("?")
    if is_cut_short(place.partition("://")[2], query):
        return f"{place.partition('://')[0]}://…"
    place = re.sub(r"(://[^:@]*):.*@", r"\1@", place)
    kept = [part for part in query.split("&") if not re.match("[a-z_]*(password|secret|_key)=", part)]
    return f"{place}{mark if any(kept) else ''}{'&'.join(kept)}"


def is_cut_short(place: str, query: str) -> bool:
    """Return whether a `?` in the password cut a URL short: no port follows the colon, and an `@` comes later."""
    hosts = re.sub(r"\[[^\]]*\]", "", place)
    return "@" not in place and "@" in query and re.search(r":(?!\d*(,|/|$))", hosts) is not None


VARIABLE = "HOLDFAST_NAMESPACE"
"""The environment variable that names the namespace of stores whose URL names none."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_GIVEN = re.compile(r"[?&]namespace=([^?&]*)")
_QUERY = re.compile(r"\?([^?=/]*)=[^?/]*$")


def is_server(url: str) -> bool:
    """Return whether a URL is of a PostgreSQL server."""
    return url.lower().startswith(("postgres:", "postgresql:", "pg-embedded:"))


def check_namespace(name: str) -> str:
    """Return `name`; raise `StoreError` if it cannot name a namespace."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise StoreError(
            f"{name!r} cannot name a namespace; use at most 63 of a-z, A-Z, digits, '-', '_' and '.'"
        )
    return name


def split_namespace(url: str) -> tuple[str, str | None]:
    """Split a URL or a path into the part before `?namespace=NAME`, and that name if there is one."""
    found = _QUERY.search(url)
    if found is None:
        return url, None
    if found[1] != "namespace":
        raise StoreError(
            f"{shown_url(url)!r} has the parameter {found[1]!r}; only ?namespace=NAME is known here"
        )
    return url[: found.start()], check_namespace(found[0].partition("=")[2])


def in_namespace(url: str, name: str) -> str:
    """Return the URL of the same store in that namespace; raise `StoreError` if it names another."""
    check_namespace(name)
    found = _GIVEN.search(url)
    if found is None:
        joint = "&" if "?" in url and is_server(url) else "?"
        return f"{url}{joint}namespace={name}"
    if found[1] != name:
        raise StoreError(
            f"{shown_url(url)} names the namespace {found[1]!r}, and {name!r} is wanted; give one of them"
        )
    return url


def namespace_in(url: str) -> str | None:
    """Return the namespace that a URL of any kind names, if it names one."""
    found = _GIVEN.search(url)
    return found[1] if found else None


def wanted_namespace(environ: Mapping[str, str] = os.environ) -> str:
    """Return the namespace of a store whose URL names none."""
    name = environ.get(VARIABLE, "")
    return check_namespace(name) if name else DEFAULT_NAMESPACE


def chosen_namespace(given: str | None, of_url: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the namespace to open; raise `StoreError` if a URL names another than the one that is given."""
    if given is not None and of_url not in (None, check_namespace(given)):
        raise StoreError(f"the URL names the namespace {of_url!r}, and {given!r} is wanted; give one of them")
    return check_namespace(of_url) if of_url is not None else given or wanted_namespace(environ)


def own_url(place: str, namespace: str) -> str:
    """Return a store's URL, which opens the same namespace again whatever the environment says."""
    by_default = os.environ.get(VARIABLE) or DEFAULT_NAMESPACE
    return place if namespace == by_default == DEFAULT_NAMESPACE else f"{place}?namespace={namespace}"


def file_of(path: Path, namespace: str) -> Path:
    """Return the database file of a namespace: the file itself, or one beside it, `runs@NAME.db`."""
    if namespace == DEFAULT_NAMESPACE:
        return path
    return path.with_name(f"{path.stem}@{_on_disk(namespace)}{path.suffix}")


def folder_of(folder: Path, namespace: str) -> Path:
    """Return the folder of a namespace: the folder itself, or `@NAME` in it, which no run's folder is called."""
    return folder if namespace == DEFAULT_NAMESPACE else folder / f"@{_on_disk(namespace)}"


def _on_disk(namespace: str) -> str:
    """Return a name that differs from all others also where file names have no case."""
    return re.sub("[A-Z]", lambda found: f"%{ord(found[0]):02x}", namespace)


# The folders that stores are kept in.


def sync_folder(folder: Path) -> None:
    """Return once the folder's names survive a power loss."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it that are missing, so that their names survive a power loss."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=mode if place == folder else 0o777, exist_ok=True)
        # A process that may make a folder there need not be allowed to read it.
        with suppress(PermissionError):
            sync_folder(place.parent)
