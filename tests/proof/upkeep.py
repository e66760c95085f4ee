"""Housekeeping and repairs of a store, to be killed and failed at each system call."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import apsw

from holdfast import open_store
from holdfast.integrity import check_store, repair_store
from holdfast.stores.base import Store
from tests.crash.flips import fill
from tests.proof.places import Site, url_in
from tests.proof.power.opening import Expected, examine
from tests.proof.power.scenes import keep_house


class Upkeep(NamedTuple):
    """What there is before, what is done to it, and what a fresh process finds broken afterwards."""

    stores: tuple[str, ...]
    prepare: Callable[[Site], None]
    work: Callable[[Site], None]
    look: Callable[[Site], list[str]]


def _nothing(site: Site) -> None: ...


def _kept_house(site: Site) -> list[str]:
    expected = Expected(site.ledger.lines())
    return [str(one) for one in examine(site.home, site.case.scheme, expected, check=True)]


def _bring_damaged_store(site: Site) -> None:
    """A store with a run whose journal is damaged in the middle."""
    store = open_store(site.url)
    fill(store)
    store.close()
    _note(site, site.url)
    folder = site.home / "new" / "store"
    if site.case.scheme == "file":
        journal = folder / "long" / "journal"
        data = bytearray(journal.read_bytes())
        data[len(data) * 3 // 4] ^= 1
        journal.write_bytes(data)
    else:
        connection = apsw.Connection(str(folder / "runs.db"))
        where = "(SELECT (no << 32) + 4 FROM runs WHERE run = 'long')"
        connection.execute(f"UPDATE entries SET body = zeroblob(length(body)) WHERE id = {where}")
        connection.close()


def _repair(site: Site) -> None:
    store = open_store(site.url)
    repair_store(store)
    store.close()


def _repaired(site: Site) -> list[str]:
    """A second repair ends what the first began: nothing is left to do, and all other runs are as they were."""
    store = open_store(site.url)
    try:
        repair_store(store)
        found = [f"after another repair: {problem}" for problem in check_store(store).problems]
        if not (again := repair_store(store)).did_nothing:
            found.append(f"a repair that comes after another one did something: {again}")
    finally:
        store.close()
    return [*found, *_differing(site, {"long"})]


def _note(site: Site, url: str) -> None:
    """Write into the ledger what a store holds, by another name than what is acknowledged."""
    store = open_store(url)
    for key, chain in sorted(_entries(store).items()):
        site.ledger.write("had", key, chain)
    store.close()


def _differing(site: Site, but: set[str]) -> list[str]:
    """The entries that a store does not hold any more, or not as they were."""
    store = open_store(url_in(site.home, site.case.scheme))
    try:
        now = _entries(store, but)
        return [
            f"entry {line.key} is {'another' if line.key in now else 'gone'}"
            for line in site.ledger.lines()
            if line.what == "had"
            and line.key.rpartition(":")[0] not in but
            and now.get(line.key) != line.detail
        ]
    finally:
        store.close()


def _entries(store: Store, but: Collection[str] = ()) -> dict[str, str]:
    return {
        f"{info.run}:{entry.seq}": entry.chain.hex()
        for info in store.runs()
        if info.run not in but
        for entry in store.read(info.run)
    }


UPKEEP = {
    "housekeeping": Upkeep(("sqlite", "file"), _nothing, keep_house, _kept_house),
    "repair": Upkeep(("sqlite", "file"), _bring_damaged_store, _repair, _repaired),
}
