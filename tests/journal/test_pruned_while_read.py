"""A run that is pruned between two reads of one load: it is read again, and not reported as damaged."""

from __future__ import annotations

import pytest

from holdfast import END, START, Retention, StateGraph
from holdfast.engine.retention import prune_workflow
from holdfast.errors import CorruptJournal
from holdfast.journal.journal import Journal
from holdfast.state.codec import Codec
from holdfast.stores.base import Snapshot
from holdfast.stores.memory import MemoryStore
from holdfast.testing import WrappedStore


class _PrunedMeanwhile(WrappedStore):
    """A store in which somebody prunes right after a snapshot was asked for."""

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        found = self.inner.snapshot(run, upto)
        prune_workflow(Journal(self.inner), "chain", Retention.latest_only())
        return found


def _stored() -> MemoryStore:
    store, graph = MemoryStore(), StateGraph(dict, name="chain")
    for index in range(3):
        graph.add_node(f"s{index}", lambda state: {"n": state["n"] + 1})
        graph.add_edge(f"s{index - 1}" if index else START, f"s{index}")
    graph.add_edge("s2", END)
    graph.compile(store=store).invoke({"n": 0}, run_id="r")
    return store


def test_a_run_that_is_pruned_while_it_is_loaded_is_loaded() -> None:
    store = _stored()
    journal = Journal(_PrunedMeanwhile(store))
    loaded = journal.load(journal.info("r"), Codec())
    assert loaded.run.status == "completed"
    assert next(iter(store.read("r"))).seq > 1


def test_what_was_pruned_is_gone_all_the_same() -> None:
    journal = Journal(_PrunedMeanwhile(_stored()))
    with pytest.raises(CorruptJournal, match="no entries"):
        journal.load(journal.info("r"), Codec(), 1)
