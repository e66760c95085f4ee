"""The store contract for authors of stores: a store that is right passes, and a wrong one is told its promise."""

from __future__ import annotations

from pathlib import Path

from tests.testing.test_plugin import run

STORES = """
import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract import StoreContract


class NoFence(MemoryStore):
    def commit(self, appends):
        super().commit(appends)
        return [None for _ in appends]


class LostMessages(MemoryStore):
    def post(self, run, body):
        return super().post(run, body) if self.runs(run=run) else 1


class TestRight(StoreContract):
    @pytest.fixture
    def store(self):
        store = MemoryStore()
        yield store
        store.close()


class TestNoFence(StoreContract):
    @pytest.fixture
    def store(self):
        return NoFence()


class TestLostMessages(StoreContract):
    @pytest.fixture
    def store(self):
        return LostMessages()


class TestNothing(StoreContract):
    pass
"""

CHOSEN = (
    "TestRight or (TestNoFence and (stale or beyond)) or (TestLostMessages and a_message_to) "
    "or (TestNothing and empty_batch)"
)


def test_a_store_that_keeps_its_promises_passes_and_one_that_breaks_one_is_told_which(tmp_path: Path) -> None:
    done = run(tmp_path, STORES, "--tb=short", "-rfE", "-k", CHOSEN)

    said = " ".join(done.stdout.split())
    assert "3 failed, 59 passed" in said and "1 error" in said, done.stdout
    assert "FAILED test_shop.py::TestNoFence::test_a_stale_append_is_refused_and_told_the_head" in said
    assert (
        "What a store promises: The append is the fence: one whose `after` is not the last seq is refused"
        in said
    )
    assert "FAILED test_shop.py::TestLostMessages::test_a_message_to_an_unknown_run_is_refused" in said
    assert "What a store promises: A message to a run that is not there is a `StoreError`" in said
    assert "override the fixture `store`: it yields a new, empty store" in said
