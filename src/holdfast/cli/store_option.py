"""The URL of the store that `--store` and `--namespace` name, its defaults, and opening it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.engine.resume import find_checkpoint
from holdfast.engine.retention import janitor
from holdfast.errors import CheckpointNotFound, HoldfastError, RunNotFound, StoreError
from holdfast.journal.checkpoint_ids import is_checkpoint_id
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import Codec
from holdfast.stores import SQLITE_SUFFIXES, open_store, url_of_environment
from holdfast.stores.base import (
    NAMESPACE_VARIABLE,
    check_namespace,
    in_namespace,
    namespace_in,
    shown_url,
    split_namespace,
    wanted_namespace,
)
from holdfast.stores.inspection import BEFORE_PATHS, exists, store_place, url_parts

if TYPE_CHECKING:
    from holdfast.journal.run_state import RunState
    from holdfast.stores.base import RunInfo, Store


DEFAULT_STORE = "sqlite:///.holdfast/runs.db"
SUFFIXES = (".yaml", ".yml")


def note_namespace(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Remember `--namespace` for `store_in_namespace`."""
    if value is not None:
        try:
            ctx.meta[NAMESPACE_VARIABLE] = check_namespace(value)
        except StoreError as error:
            raise click.BadParameter(str(error), ctx, param) from None


def store_in_namespace(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return what `--store` and `--namespace` say together, for `chosen_url`."""
    namespace = ctx.meta.get(NAMESPACE_VARIABLE)
    if namespace is None:
        return value
    try:
        return in_namespace(value or "", namespace)
    except StoreError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def default_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return the store of a command if neither an option nor a workflow file names one."""
    return chosen_url(None, None, environ)


def chosen_url(given: str | None, of_file: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the store to use: as given, else as the environment says, else as the workflow file says.

    The URL names the namespace, unless that is the usual one, and has no password.
    """
    url, namespace = split_namespace(given) if given and given.startswith("?") else (given, None)
    url = url or _from_environment(environ) or of_file or DEFAULT_STORE
    if namespace is None and environ.get(NAMESPACE_VARIABLE) and namespace_in(url) is None:
        namespace = wanted_namespace(environ)
    return _discreet(url if namespace is None else in_namespace(url, namespace))


def lasting_url(url: str) -> str:
    """Return the URL; refuse a store in memory, which is gone when the command ends."""
    if url.partition(":")[0] == "memory":
        raise click.UsageError(
            "the store is in memory, where no other process finds a run; give --store URL, as in "
            "sqlite:///.holdfast/runs.db or postgresql://HOST/DATABASE"
        )
    return url


def _discreet(url: str) -> str:
    """Return a URL without its password, which this process remembers, so that the URL still opens."""
    if not url.lower().startswith(("postgres://", "postgresql://")):
        return url
    try:
        from holdfast.stores.postgres.connection import read_address  # It needs psycopg.
    except ImportError:
        return shown_url(url)  # It cannot be opened either; opening it raises the reason.
    return read_address(url).url


def _from_environment(environ: Mapping[str, str]) -> str:
    """Return the store that the environment names; refuse a backend that is not known, or lacks its address."""
    backend = environ.get("WORKFLOW_CHECKPOINT_BACKEND", "").strip().lower()
    is_usual = backend in ("", "sqlite", "memory") and not environ.get("WORKFLOW_CHECKPOINT_DSN")
    return environ.get("HOLDFAST_STORE", "") if is_usual else url_of_environment(environ)


def open_existing(url: str) -> Store:
    """Open a store that exists; raise `RunNotFound` if it does not."""
    if not exists(url):
        raise RunNotFound(
            f"there are no runs at {url}: nothing has been run there yet; "
            "give the workflow file, or --store URL, if they are elsewhere"
        )
    return open_store(url)


def same_store(one: str, other: str) -> bool:
    """Return True if two URLs name the same store, seen from this folder."""
    places = [store_place(url) for url in (one, other)]
    if None in places:
        return one == other
    first, second = (place.absolute() for place in places if place is not None)
    return first == second and _parameters(one) == _parameters(other)


def _parameters(url: str) -> str:
    """Return what distinguishes stores at one path: all parameters of a server, else nothing."""
    scheme, _, rest = url_parts(url)
    return rest if scheme == "pg-embedded" else ""


def absolute_url(url: str) -> str:
    """Return a URL that names the same store from every folder."""
    scheme, path, rest = url_parts(url)
    is_unclear = ":" not in url and scheme == "sqlite" and path and path.suffix.lower() not in SQLITE_SUFFIXES
    if path is None or is_unclear or (":" in url and path.is_absolute()):
        return url
    return f"{BEFORE_PATHS[scheme]}{path.absolute()}{rest}"


SHORTEST = 4
"""How many characters of a run's id are needed at least to name it."""


def is_chosen(given: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if an option or the environment says which store to use, whatever workflow files say."""
    return bool(given and not given.startswith("?")) or bool(_from_environment(environ))


def holds(store: Store, text: str) -> bool:
    """Return True if a store has a run, a workflow or a checkpoint of this name, or a run whose id begins so."""
    if store.runs(run=text) or store.runs(workflow=text, limit=1):
        return True
    if is_checkpoint_id(text):
        with contextlib.suppress(CheckpointNotFound):
            find_checkpoint(store, text)
            return True
    return len(text) >= SHORTEST and bool(store.runs(prefix=text, limit=1))


MOST_FILES, MOST_BYTES = 100, 1_000_000
"""How many workflow files are read to find a store, and how large each may be."""
MOST_ENTRIES = 1_000
"""How many files of a sub-folder are looked at for that."""


def store_of_file(path: Path) -> tuple[str, str]:
    """Return where a workflow file says that its runs are kept, and its workflow's name.

    A path in the file is seen from this folder, or, if nothing is there, from the file's own.
    """
    from holdfast.workflows.workflow import load_workflow

    workflow = load_workflow(path)
    here, there = workflow.store_url(), workflow.store_url(path.resolve().parent)
    is_there = here != there and not exists(here) and exists(there)
    return there if is_there else here, workflow.name


class LikelyStore(NamedTuple):
    """Where runs may be, and the workflow file that says so; without both it is the usual store.

    `is_own` says that the file is the one of the workflow that is looked for.
    """

    url: str | None = None
    path: Path | None = None
    is_own: bool = False


def likely_stores(name: str | None, folder: Path) -> Iterator[LikelyStore]:
    """Yield where the runs of a folder, and of the workflow files in its sub-folders, may be.

    What the file of the workflow `name` says comes first, then the usual store, then what other files say.
    """
    texts = None if name is None else dict(_workflow_texts(folder))
    own = [path for path, text in (texts or {}).items() if name is not None and name in text]
    for path, url, workflow in _named_stores(own):
        if workflow == name:
            yield LikelyStore(url, path, True)
    yield LikelyStore()
    for path, url, _ in _named_stores(texts or dict(_workflow_texts(folder))):
        yield LikelyStore(url, path)


def _named_stores(paths: Iterable[Path]) -> Iterator[tuple[Path, str, str]]:
    """Yield the workflow files that can be read, with their stores and their names."""
    for path in paths:
        with contextlib.suppress(HoldfastError):
            url, workflow = store_of_file(path)
            if not url.startswith("memory"):
                yield path, url, workflow


def _workflow_texts(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the workflow files of a folder and its sub-folders that have a field `checkpoint`: no others name a store.

    Those of the folder come first. Hidden sub-folders are left out.
    """
    for path in itertools.islice(_workflow_paths(folder), MOST_FILES):
        with contextlib.suppress(OSError, ValueError):
            if path.is_file() and path.stat().st_size <= MOST_BYTES:
                text = path.read_text("utf-8")
                if re.search(r"\bcheckpoint\b", text):
                    yield path, text


def _workflow_paths(folder: Path) -> Iterator[Path]:
    own = sorted(folder.iterdir())
    yield from (path for path in own if path.suffix in SUFFIXES)
    for path in own:
        if path.is_dir() and not path.name.startswith("."):
            with contextlib.suppress(OSError):
                inside = sorted(itertools.islice(path.iterdir(), MOST_ENTRIES))
                yield from (each for each in inside if each.suffix in SUFFIXES)


def meant_run(store: Store, text: str) -> str:
    """Return the id of the only run whose id begins with `text`; `text` itself if it names something, or nothing."""
    if len(text) < SHORTEST or store.runs(run=text) or store.runs(workflow=text, limit=1):
        return text
    found = [info.run for info in store.runs(prefix=text)]
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise click.UsageError(f"{len(found)} runs begin with {text!r}: {some}; give more of the id")
    return found[0] if found else text


def close_store(store: Store) -> None:
    """Close a store that runs were executed on, after pending retention work."""
    janitor.wait(timeout=10)
    store.close()


def open_journal(store: Store, environ: Mapping[str, str] = os.environ) -> Journal:
    """Return the journals of a store, with the key of the environment."""
    return Journal(store, Seal.from_environment(environ))


def config_of(journal: Journal, info: RunInfo) -> dict[str, Any]:
    """Return the config that a run was started with; it names the run's workflow file."""
    return config_in(journal.load(info, Codec()).run)


def config_in(run: RunState) -> dict[str, Any]:
    """Return the config of a run that was loaded."""
    found = Codec().decode(run.config, lenient=True) if run.config else {}
    return dict(found) if isinstance(found, dict) else {}
