"""The place where a proof runs a workflow: a store in its own folder, a ledger beside it, and the owner."""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import HoldfastError, open_store
from holdfast.integrity import check_store
from holdfast.stores.base import Store
from tests.crash.harness import RUN, Case, Driver, Place, note_what_is_stored
from tests.invariants import (
    CORRUPTION,
    NOT_STRANDED,
    SAME_RESULT,
    FileLedger,
    Violation,
    WitnessedStore,
    check_run,
)

STORES = ("sqlite", "file")
DURABILITIES = ("full", "process")
WORKFLOWS = ("chain", "wave", "for_each", "pausing", "once")


class Site(Place):
    """A place whose store lies in folders that are not there yet, apart from the ledger."""

    def __init__(self, root: Path, case: Case) -> None:
        super().__init__(root, case)
        self.root, self.home = root, root / "home"
        self.home.mkdir()
        self.url = url_in(self.home, case.scheme)
        self.ledger = FileLedger(root / "ledger", sync=False)
        self.found = root / "violations.json"

    def store(self) -> Store:
        return WitnessedStore(open_store(self.url), self.ledger)

    def violations(self) -> list[str]:
        """What the process that looked last found broken."""
        found: list[str] = json.loads(self.found.read_text())
        return found


def url_in(home: Path, scheme: str) -> str:
    """The store of that kind in a home that has no folder for it yet."""
    folder = home / "new" / "store"
    return f"sqlite:///{folder}/runs.db" if scheme == "sqlite" else f"file://{folder}"


def recover(site: Site, wanted: str) -> None:
    """What a fresh process does: hold the ledger against the store, resume, and look again.

    Leaves what it found broken. To be called in a process of its own.
    """
    try:
        found = _recovered(site, wanted)
    except Exception as error:  # A resume that fails is what is looked for.
        found = [str(Violation(NOT_STRANDED, f"the resume failed with {told(error)}"))]
    site.found.write_text(json.dumps(found))


def _recovered(site: Site, wanted: str) -> list[str]:
    site.result.unlink(missing_ok=True)
    found = [f"before the resume: {one}" for one in looked_at(site)]
    note_what_is_stored(site)
    Driver(site).go_on()
    found += [f"after the resume: {one}" for one in looked_at(site)]
    if (result := site.result.read_text()) != wanted:
        found.append(str(Violation(SAME_RESULT, f"the result is {result}, uninterrupted it is {wanted}")))
    return found


def told(error: Exception) -> str:
    """An error as one line, with the place where it came up."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} ({' '.join(str(error).split())}) in {Path(frame.filename).name}:{frame.lineno}"


def looked_at(site: Site) -> list[Violation]:
    """The ledger held against the store as it is, in which `fsck` finds nothing."""
    store = open_store(site.url)
    try:
        problems = check_store(store).problems
        found = [Violation(CORRUPTION, f"fsck: {problem}") for problem in problems]
        return [*found, *check_run(site.ledger.lines(), store, RUN)]
    finally:
        store.close()


def stops_clearly(driver: Driver, site: Site) -> bool:
    """Start the run; return whether an error of ours stopped it, which is then in the ledger."""
    try:
        driver.begin()
    except HoldfastError as error:
        site.ledger.write("error", type(error).__name__, " ".join(str(error).split()))
        return True
    return False


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what comes and goes, in memory where that can be had."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, prefix="holdfast-proof-") as folder:
        yield Path(folder)
