"""The owner of a run, and whether it is alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.owner import describe, is_alive, this_owner
from holdfast.stores.memory import MemoryStore

MEMORY = MemoryStore()


class WithLeases(MemoryStore):
    """A store that several machines share, where one lease is live."""

    def lease(self) -> str:
        return "live"

    def is_live(self, lease: str) -> bool:
        return lease == "live"

    def lapses(self) -> int:
        return 0


def changed(**facts: object) -> str:
    return json.dumps({**json.loads(this_owner(MEMORY)), **facts})


def test_a_driver_in_this_process_is_known_by_the_runs_it_drives_not_by_its_process() -> None:
    assert not is_alive(this_owner(MEMORY), MEMORY)


def test_a_living_process_of_this_machine_may_still_be_driving() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        driver = changed(pid=process.pid, started=started)
        assert is_alive(driver, MEMORY)
        assert describe(driver).startswith(f"process {process.pid} on ")
        process.communicate(b"\n")
    assert not is_alive(driver, MEMORY)


def test_a_process_id_that_was_reused_is_another_process() -> None:
    assert not is_alive(changed(pid=os.getppid(), started="1"), MEMORY)


def test_no_driver_survives_a_reboot_of_its_machine() -> None:
    assert not is_alive(changed(boot="an earlier boot", pid=1), MEMORY)


@pytest.mark.parametrize("facts", [{"host": "elsewhere"}, {"space": "another container"}])
def test_a_driver_that_cannot_be_seen_from_here_counts_as_alive(facts: dict[str, str]) -> None:
    assert is_alive(changed(**facts), MEMORY)


@pytest.mark.parametrize("driver", ["", "{", "[]", "{}"])
def test_what_is_no_driver_is_not_alive(driver: str) -> None:
    assert not is_alive(driver, MEMORY)


def test_where_a_store_has_leases_they_tell_who_is_alive() -> None:
    store = WithLeases()
    elsewhere = {"host": "elsewhere", "boot": "another"}

    assert json.loads(this_owner(store))["lease"] == "live" and "lease" not in json.loads(changed())
    assert is_alive(changed(lease="live", **elsewhere), store)
    assert not is_alive(changed(lease="run out", **elsewhere), store)
    assert not is_alive(changed(lease="live", pid=os.getppid(), started="1"), store)
