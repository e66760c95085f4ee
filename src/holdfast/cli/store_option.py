"""Where the command line keeps its runs: the `--store` option, its defaults, and opening what is there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import RunNotFound

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import Store

DEFAULT_STORE = "sqlite:///.holdfast/runs.db"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def store_option(command: Decorated) -> Decorated:
    """Add `--store URL` to a command."""
    return click.option(
        "--store",
        metavar="URL",
        help="Where the runs are: sqlite:///PATH or file:///DIR. By default HOLDFAST_STORE, else what the "
        f"workflow file says, else {DEFAULT_STORE}.",
    )(command)


def default_url(environ: Mapping[str, str] = os.environ) -> str:
    """The store that a command uses when nothing names one and no workflow file is at hand."""
    return _from_environment(environ) or DEFAULT_STORE


def chosen_url(given: str | None, of_flow: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The store to use: as given, else as the environment says, else as the workflow file says."""
    return given or _from_environment(environ) or of_flow or DEFAULT_STORE


def _from_environment(environ: Mapping[str, str]) -> str:
    url = environ.get("HOLDFAST_STORE", "")
    backend, dsn = environ.get("WORKFLOW_CHECKPOINT_BACKEND", ""), environ.get("WORKFLOW_CHECKPOINT_DSN", "")
    if url or not dsn or "://" in dsn:
        return url or dsn
    return {"sqlite": f"sqlite:///{dsn}", "file": f"file:{dsn}"}.get(backend.strip().lower(), dsn)


def open_existing(url: str) -> Store:
    """Open a store to look for runs; one that is not there yet is refused and not created."""
    from holdfast.stores import open_store

    if not exists(url):
        raise RunNotFound(
            f"there are no runs at {url}: nothing has been run there yet; "
            "give the workflow file, or --store URL, if they are elsewhere"
        )
    return open_store(url)


def exists(url: str) -> bool:
    """Whether a store is there already."""
    place = _place(url)
    return place is None or place.exists()


def same_store(one: str, other: str) -> bool:
    """Whether two URLs mean the same store, seen from this folder."""
    places = [_place(url) for url in (one, other)]
    if None in places:
        return one == other
    first, second = (place.absolute() for place in places if place is not None)
    return first == second


def absolute_url(url: str) -> str:
    """A URL that means the same store from every folder."""
    place = _place(url)
    if place is None or place.is_absolute():
        return url
    scheme = url.partition(":")[0].lower() if ":" in url else "sqlite" if place.suffix else "file"
    return f"sqlite:///{place.absolute()}" if scheme == "sqlite" else f"file://{place.absolute()}"


SHORTEST = 4
"""How many characters of a run's id must be given at least to mean it."""


def meant_run(store: Store, text: str) -> str:
    """The id of the only run whose id begins like `text`; `text` itself if it names something, or nothing."""
    if len(text) < SHORTEST or store.runs(run=text) or store.runs(workflow=text, limit=1):
        return text
    found = [info.run for info in store.runs() if info.run.startswith(text)]
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise click.UsageError(f"{len(found)} runs begin with {text!r}: {some}; give more of the id")
    return found[0] if found else text


def _place(url: str) -> Path | None:
    """The file or folder of a store, if its URL names one."""
    scheme, colon, rest = url.partition(":")
    if not colon:
        return Path(url).expanduser() if "/" in url or "." in url else None
    if scheme.lower() == "sqlite":
        return Path(re.sub("^/{2,3}", "", rest, count=1))
    if scheme.lower() == "file":
        return Path(re.sub("^/+", "/", rest.removeprefix("//")))
    return None


def close_store(store: Store) -> None:
    """Close a store that runs were driven on, once what retention asks for is done."""
    from holdfast.engine.housekeeping import janitor

    janitor.wait(timeout=10)
    store.close()


def open_journal(store: Store, environ: Mapping[str, str] = os.environ) -> Journal:
    """The journals of a store, readable with the key that the environment holds."""
    from holdfast.data.seal import Seal
    from holdfast.journal.journal import Journal

    return Journal(store, Seal.from_environment(environ))
