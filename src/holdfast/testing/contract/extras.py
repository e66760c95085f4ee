"""What some stores add: leases by their own clock, telling of changes, namespaces."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from holdfast import clock
from holdfast.errors import StoreError
from holdfast.stores.base import Leases, Store, Watched, namespace_of
from holdfast.testing.contract.making import add, create, seqs, snapshot
from holdfast.testing.contract.opening import Opening, Reopen

_PATIENCE = 30.0


class LeasesContract(Opening):
    """For a store that tells by its own clock whether a driver is alive; mix it in beside `StoreContract`."""

    def test_a_lease_is_one_name_that_lives_while_its_store_is_open(
        self, store: Store, reopen: Reopen
    ) -> None:
        """`lease` answers the same name every time; other processes see it live, and gone when its store is
        closed.
        """
        assert isinstance(store, Leases)
        other = reopen()
        assert isinstance(other, Leases)
        mine = other.lease()
        assert other.lease() == mine and mine != store.lease()
        assert store.is_live(mine) and other.is_live(mine)
        other.close()
        assert not store.is_live(mine)

    def test_a_lease_that_nobody_has_is_not_live(self, store: Store) -> None:
        """Any text may be asked about: what is no lease, or no longer one, is not live."""
        assert isinstance(store, Leases)
        assert not store.is_live("nonsense")
        assert not store.is_live("0b7e9a40-7b0a-4d3c-9a35-6a9d8a1f2d11")

    def test_lapses_stay_the_same_while_a_lease_is_renewed_in_time(self, store: Store) -> None:
        """`lapses` changes only when this process may have been thought dead; drivers ask before every step."""
        assert isinstance(store, Leases)
        store.lease()
        assert store.lapses() == store.lapses()


class WatchedContract(Opening):
    """For a store that is told of changes; mix it in beside `StoreContract`."""

    def test_a_change_of_another_process_is_told(self, store: Store, reopen: Reopen) -> None:
        """Whoever waits in `changed` is woken by an append and by a message of another process."""
        assert isinstance(store, Watched)
        create(store)
        other = reopen()
        changes: list[Callable[[], object]] = [lambda: add(other, "r", 1), lambda: other.post("r", b"hello")]
        for change in changes:
            while store.changed("r", 0.05):
                continue  # What came before is heard out.
            told: list[bool] = []
            waiting = threading.Thread(target=_hear, args=(store, told))
            waiting.start()
            change()
            waiting.join()
            assert told == [True], "nobody told of the change"

    def test_waiting_for_a_change_ends_with_its_time(self, store: Store) -> None:
        """`changed` answers `False` when nothing has changed for as long as it was to wait."""
        assert isinstance(store, Watched)
        create(store)
        deadline = clock.monotonic() + _PATIENCE
        while store.changed("r", 0.05):
            assert clock.monotonic() < deadline, "it tells of changes for ever"

    def test_a_closed_store_watches_nothing(self, store: Store) -> None:
        """After `close`, waiting for a change is a `StoreError`."""
        assert isinstance(store, Watched)
        create(store)
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.changed("r", 0.0)


class NamespacesContract(Opening):
    """For a store that is bound to one namespace of its place; mix it in beside `StoreContract`."""

    @pytest.fixture
    def beside(self, store: Store) -> Store:
        """A store at the same place as `store`, in another namespace; override this."""
        raise NotImplementedError("override the fixture `beside`: `store`'s place, in another namespace")

    def test_a_store_says_which_namespace_it_is_bound_to(self, store: Store, beside: Store) -> None:
        """The attribute `namespace` names it; without one it is "default"."""
        assert namespace_of(store) != namespace_of(beside)

    def test_the_runs_of_another_namespace_are_neither_listed_nor_read_nor_touched(
        self, store: Store, beside: Store
    ) -> None:
        """No verb reaches a run of another namespace."""
        create(store, "theirs", upto=2)
        assert beside.runs() == [] and seqs(beside, "theirs") == []
        assert beside.marks("theirs") == [] and beside.snapshot("theirs") is None
        conflict = add(beside, "theirs", 2)
        assert conflict is not None and conflict.head is None
        assert not beside.delete("theirs") and beside.prune("theirs", snapshot(2)) == 0
        with pytest.raises(StoreError):
            beside.post("theirs", b"hello")
        assert seqs(store, "theirs") == [1, 2] and store.inbox("theirs") == []

    def test_the_same_run_id_is_free_in_every_namespace(self, store: Store, beside: Store) -> None:
        """Run ids are unique within a namespace only."""
        create(store, "same")
        create(beside, "same", upto=3)
        assert seqs(store, "same") == [1] and seqs(beside, "same") == [1, 2, 3]


def _hear(store: Watched, told: list[bool]) -> None:
    deadline = clock.monotonic() + _PATIENCE
    while not told and clock.monotonic() < deadline:
        if store.changed("r", 1.0):
            told.append(True)
