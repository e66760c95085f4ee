"""The store contract for authors of stores: a correct store passes, and a wrong one gets the broken promise."""

from __future__ import annotations

import re
from pathlib import Path

from tests.testing.test_plugin import run

STORES = """
import time

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract import StoreContract


class NoFence(MemoryStore):
    def commit(self, appends):
        super().commit(appends)
        return [None for _ in appends]


class LostMessages(MemoryStore):
    def post(self, run, body, number=None):
        return super().post(run, body, number) if self.runs(run=run) else 1


class NewestMessageLost(MemoryStore):
    def inbox(self, run, after=0):
        found = super().inbox(run, after)
        return found[:-1] if len(found) > 3 else found


class RacingMessages(MemoryStore):
    def post(self, run, body, number=None):
        next_one = len(self.inbox(run)) + 1
        time.sleep(0.001)
        return next_one if len(self.inbox(run)) >= next_one else super().post(run, body, number)


class NumbersIgnored(MemoryStore):
    def post(self, run, body, number=None):
        return super().post(run, body)


class ForksIgnored(MemoryStore):
    def prune(self, run, horizon, *, forks=None):
        return super().prune(run, horizon)

    def delete(self, run, *, forks=None):
        return super().delete(run)


class ForksSeenTooEarly(MemoryStore):
    def prune(self, run, horizon, *, forks=None):
        return 0 if self.is_forked(run, forks) else super().prune(run, horizon)

    def delete(self, run, *, forks=None):
        return not self.is_forked(run, forks) and super().delete(run)

    def is_forked(self, run, forks):
        found = [each for each in self.runs(run=run) if forks is not None]
        is_forked = any(fork.key not in forks for each in found for fork in self.runs(parent=each.key))
        time.sleep(0.01)
        return is_forked


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


class TestNewestMessageLost(StoreContract):
    @pytest.fixture
    def store(self):
        return NewestMessageLost()


class TestRacingMessages(StoreContract):
    @pytest.fixture
    def store(self):
        return RacingMessages()


class TestNumbersIgnored(StoreContract):
    @pytest.fixture
    def store(self):
        return NumbersIgnored()


class TestForksIgnored(StoreContract):
    @pytest.fixture
    def store(self):
        return ForksIgnored()


class TestForksSeenTooEarly(StoreContract):
    @pytest.fixture
    def store(self):
        return ForksSeenTooEarly()


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
    assert re.search(r"\b3 failed, \d\d passed", said) and "1 error" in said, done.stdout
    assert "FAILED test_shop.py::TestNoFence::test_a_stale_append_is_refused_with_the_head" in said
    assert (
        "What a store promises: The append is the fence: one whose `after` is not the last seq is refused"
        in said
    )
    assert "FAILED test_shop.py::TestLostMessages::test_a_message_to_an_unknown_run_is_refused" in said
    assert "What a store promises: A message to a run that is not there is a `StoreError`" in said
    assert "override the fixture `store`: it yields a new, empty store" in said


WRONG = {
    "NewestMessageLost": ["test_a_long_inbox_is_kept_whole"],
    "RacingMessages": ["test_messages_of_many_threads_are_all_kept_and_each_has_its_own_number"],
    "NumbersIgnored": ["test_a_message_is_posted_under_the_number_it_was_made_for_or_not_at_all"],
    "ForksIgnored": ["test_a_run_that_others_were_forked_from_goes_only_with_all_forks_known"],
    "ForksSeenTooEarly": [
        f"test_a_fork_is_seen_by_who_drops_its_parent_or_sees_what_is_gone[{verb}]"
        for verb in ("prune", "delete")
    ],
}
"""Stores that broke a promise before which no check stood, and the checks that stand there now."""


def test_stores_that_lose_messages_or_what_forks_need_are_told_so_by_the_check_of_that_promise(
    tmp_path: Path,
) -> None:
    chosen = " or ".join(f"Test{name}" for name in WRONG)
    done = run(tmp_path, STORES, "--tb=no", "-rf", "-k", chosen)

    told = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert told >= {f"test_shop.py::Test{name}::{check}" for name in WRONG for check in WRONG[name]}
    assert all("fork" in check or "message" in check or "inbox" in check for check in told), done.stdout
