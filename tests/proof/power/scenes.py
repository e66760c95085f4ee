"""What is recorded: the workflows of the crash harness, and a store's house-keeping."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast import open_store
from holdfast.journal import writer
from holdfast.journal.copying import prune_run
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store
from holdfast.stores.files import run_folder
from tests.crash.harness import RUN, Case, Driver
from tests.proof.places import WORKFLOWS, Site
from tests.proof.power.recording import Recording, record
from tests.proof.power.witness import PowerWitness

SCENES = (*WORKFLOWS, "housekeeping")


def recorded(root: Path, case: Case) -> tuple[Recording, str]:
    """An uninterrupted run and its result."""
    site = Site(root, case)
    work = (lambda: keep_house(site)) if case.workflow == "housekeeping" else (lambda: run(site))
    return record(work, site.home, site.ledger.path), site.result.read_text()


def run(site: Site) -> None:
    """One run from its beginning to its end."""
    Driver(site, _witnessed(site)).begin()


def keep_house(site: Site) -> None:
    """A run that is asked from outside, forked and pruned; another one that is deleted."""
    # Snapshots and landmarks come early, so that a short run has them; what is pruned has none of its own yet.
    floor, writer.SNAPSHOT_FLOOR, run_folder._APART, run_folder._WORTHWHILE = (
        writer.SNAPSHOT_FLOOR,
        -4000,
        1,
        2,
    )
    site.case = replace(site.case, workflow="pausing")
    store = _witnessed(site)
    driver = Driver(site, store)
    driver.app.invoke({"n": 5}, run_id="gone")
    writer.SNAPSHOT_FLOOR = floor
    driver.app.invoke(driver.workflow.input, run_id=RUN)
    driver.app.fork(RUN, at=1)
    driver.app.answer(RUN, "yes")
    driver.go_on()
    journal = Journal(store)
    prune_run(journal, journal.info(RUN), store.checkpoints(RUN)[0].seq)
    store.delete("gone")


def _witnessed(site: Site) -> Store:
    return PowerWitness(open_store(site.url), site.ledger)
