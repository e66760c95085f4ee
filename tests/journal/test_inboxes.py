"""Looking into the inboxes of many runs at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import END, START, Outcome, StateGraph, StoreError
from holdfast.engine.commands.control import changes_of
from holdfast.engine.commands.inbox import RunCommand, write_message
from holdfast.journal.commit import Inboxes
from holdfast.state.codec import Codec
from holdfast.stores.base import Message, Store, StoredCheckpoint
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract.writing import create
from holdfast.testing.wrapped_store import WrappedStore


class Counting(WrappedStore):
    """Answers for many runs at once, and remembers how often and in which thread it was asked."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.questions: list[dict[str, int]] = []
        self.threads: set[str] = set()
        self.trouble: Exception | None = None

    def newest_checkpoints(self, runs: Any) -> dict[str, StoredCheckpoint]:
        return {}

    def inboxes(self, after: Any) -> dict[str, list[Message]]:
        self.questions.append(dict(after))
        self.threads.add(threading.current_thread().name)
        if self.trouble is not None:
            raise self.trouble
        return {run: self.inner.inbox(run, number) for run, number in after.items()}


@pytest.fixture
def counting() -> Counting:
    store = Counting(MemoryStore())
    for run in ("a", "b", "c"):
        create(store, run)
        store.post(run, run.encode())
    return store


def test_those_who_look_at_the_same_time_share_one_question(counting: Counting) -> None:
    looks = Inboxes(counting)

    async def work() -> list[list[Message]]:
        return await asyncio.gather(looks.look("a", 0), looks.look("b", 0), looks.look("c", 1))

    for _ in range(2):
        found = asyncio.run(work())
        assert [[each.body for each in messages] for messages in found] == [[b"a"], [b"b"], []]
    assert counting.questions == [{"a": 0, "b": 0, "c": 1}] * 2
    assert threading.main_thread().name not in counting.threads


def test_whoever_gives_up_takes_nothing_from_the_others(counting: Counting) -> None:
    looks = Inboxes(counting)

    async def work() -> list[Message]:
        impatient, patient = asyncio.create_task(looks.look("a", 0)), asyncio.create_task(looks.look("b", 0))
        await asyncio.sleep(0)
        impatient.cancel()
        return await patient

    assert [each.body for each in asyncio.run(work())] == [b"b"]


def test_trouble_is_told_to_each_who_looks(counting: Counting) -> None:
    looks, counting.trouble = Inboxes(counting), StoreError("gone")

    async def work() -> list[Any]:
        return await asyncio.gather(looks.look("a", 0), looks.look("b", 0), return_exceptions=True)

    assert [str(error) for error in asyncio.run(work())] == ["gone", "gone"]
    counting.trouble = None
    assert [each.body for each in asyncio.run(looks.look("a", 0))] == [b"a"]


def test_an_inbox_is_read_without_the_executor_of_the_loop(counting: Counting) -> None:
    """`asyncio.run` starts a thread to end that executor, which fails where no thread can be started."""

    async def work() -> object:
        await asyncio.get_running_loop().shutdown_default_executor()
        async with asyncio.timeout(30):
            return await Inboxes(counting).look("a", 0)

    assert asyncio.run(work()) == counting.inbox("a")


def test_runs_that_end_together_look_together_and_heed_what_came_meanwhile() -> None:
    store = Counting(MemoryStore())
    posted = asyncio.Event()

    async def last(state: Any) -> dict[str, Any]:
        await posted.wait()
        return {"n": state["n"] + 1}

    app = StateGraph(dict).add_node("last", last).add_edge(START, "last").add_edge("last", END).compile(store)

    async def work() -> list[Outcome]:
        runs = [asyncio.create_task(app.ainvoke({"n": n}, run_id=f"r{n}")) for n in range(8)]
        while len(store.runs()) < len(runs):
            await asyncio.sleep(0.01)
        store.questions.clear()
        store.post("r3", write_message(RunCommand("edit", changes=changes_of("edit", {"n": 30}, Codec()))))
        posted.set()
        return await asyncio.gather(*runs)

    outcomes = asyncio.run(work())

    assert [outcome.state["n"] for outcome in outcomes] == [1, 2, 3, 30, 5, 6, 7, 8]
    assert sum(len(question) for question in store.questions) >= 8 > len(store.questions)
