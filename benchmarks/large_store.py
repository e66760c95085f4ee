"""Benchmarks of a large store against a small one: operations on one run must not depend on the others."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from figures import Row, chain
from on_postgres import connected, opened, url_of

from holdfast import ExecutionError, open_store
from holdfast.checkpoints import JournalCheckpointStore
from holdfast.cli.commands.runs import view_of
from holdfast.cli.session import Session
from holdfast.engine.owner import liveness
from holdfast.engine.retention import janitor
from holdfast.journal.checkpoint_ids import checkpoint_id, moved_mark, new_run_key
from holdfast.journal.journal import Journal, genesis, link
from holdfast.stores.base import Append, Entry, RunInfo, Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.views.runs import run_list

CHECKPOINTS = 50
"""How many checkpoints a run has."""

SMALL, LARGE = 20, 20_000
"""How many runs a store has; from both, as many as the small one has are listed."""

PER_COMMIT = 200


class Herd:
    """A store full of copies of two runs: every second has one step left, the others are completed."""

    def __init__(self, store: Store, runs: int) -> None:
        self.store, self.runs = store, runs
        self.app = chain(CHECKPOINTS, Work()).compile(store)
        self.journal, self.checkpoints = Journal(store), JournalCheckpointStore(self.app)
        self.is_alive = liveness(store)
        self._chance, self._left = random.Random(runs), list(range(runs))
        self._chance.shuffle(self._left)
        templates = _templates()
        for first in range(0, runs, PER_COMMIT):
            numbers = range(first, min(first + PER_COMMIT, runs))
            answers = store.commit([_copy(*templates[number % 2], number, runs) for number in numbers])
            assert not any(answers)
        if isinstance(store, PostgresStore):
            with connected(store, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")

    def some_run(self, left_over: bool) -> RunInfo:
        """Return a run that was not used before: one with a step left, or a completed one."""
        number = next(number for number in self._left if number % 2 == left_over)
        self._left.remove(number)
        return self.journal.info(_name(number))

    # What is measured: each prepares, and answers what is to be timed.

    def list_runs(self) -> Callable[[], object]:
        return lambda: run_list(self.journal, limit=SMALL, is_alive=self.is_alive)

    def show(self) -> Callable[[], object]:
        beginning = _name(self._chance.choice(self._left))[:8]
        return lambda: view_of(Session(journal=self.journal), beginning)

    def resume(self) -> Callable[[], object]:
        run = self.some_run(left_over=True).run
        return lambda: (self.app.resume(run), janitor.wait())

    def prune(self) -> Callable[[], object]:
        info = self.some_run(left_over=False)
        marks = self.store.checkpoints(info.run)
        ident = checkpoint_id(info.key, marks[len(marks) // 2].seq)
        return lambda: self.checkpoints.delete(ident)


class Work:
    """The node of every step; while `is_broken`, the last one fails."""

    def __init__(self) -> None:
        self.is_broken = False

    def __call__(self, state: Any) -> dict[str, Any]:
        if self.is_broken and state["n"] == CHECKPOINTS - 1:
            raise RuntimeError("not yet")
        return {"n": state["n"] + 1}


def _templates() -> list[tuple[RunInfo, list[Entry]]]:
    """Return a completed run, and one that stopped before its last step."""
    store, work = open_store("memory://"), Work()
    app = chain(CHECKPOINTS, work).compile(store)
    app.invoke({"n": 0}, run_id="completed")
    work.is_broken = True
    with suppress(ExecutionError):
        app.invoke({"n": 0}, run_id="left")
    found = [(store.runs(run=run)[0], list(store.read(run))) for run in ("completed", "left")]
    store.close()
    return found


def _name(number: int) -> str:
    return f"{number * 2654435761 % 2**32:08x}-{number:06d}"


def _copy(info: RunInfo, entries: Sequence[Entry], number: int, runs: int) -> Append:
    """Add a run with these entries; the higher its number, the later its last update."""
    run, key, ago = _name(number), new_run_key(), float(runs - number)
    chained, copies = genesis(run, key), []
    for entry in entries:
        at = entry.at - ago
        mark = None if entry.mark is None else moved_mark(entry.mark, key, entry.seq, at)
        chained = link(chained, entry.seq, at, mark, entry.body)
        copies.append(Entry(entry.seq, at, chained, entry.body, mark))
    created, updated = info.created_at - ago, info.updated_at - ago
    facts = replace(info, run=run, key=key, owner="", created_at=created, updated_at=updated)
    return Append(run, 0, copies, facts)


def bench_large(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure listing, showing, resuming and pruning with 1,000,000 checkpoints in the store against 1,000."""
    small, large, rounds = (20, 40, 1) if tiny else (SMALL, LARGE, 5)
    for kind in ("SQLite", "PostgreSQL"):
        with ExitStack() as stack:
            herds = []
            for runs in (small, large):
                store: Store
                if kind == "SQLite":
                    store = open_store(f"sqlite:///{folder / f'{runs}.db'}")
                    stack.callback(store.close)
                else:
                    store = stack.enter_context(opened(url_of(folder / f"runs_{runs}")))
                herds.append(Herd(store, runs))
            yield from _compared(kind, herds[0], herds[1], rounds)


def _compared(kind: str, small: Herd, large: Herd, rounds: int) -> Iterator[Row]:
    checkpoints = f"{large.runs * CHECKPOINTS:,}"
    for name, what, times in (
        ("runs", Herd.list_runs, 8),
        ("show", Herd.show, 8),
        ("resume", Herd.resume, 2),
        ("prune", Herd.prune, 2),
    ):
        mine, floor = [], []
        for _ in range(rounds * times):
            floor.append(_timed(what(small)))
            mine.append(_timed(what(large)))
        slow, quick = _undisturbed(mine), _undisturbed(floor)
        yield Row(
            f"{name} in {checkpoints} checkpoints, {kind}",
            f"{slow * 1e3:.2f} ms",
            f"{quick * 1e3:.2f} ms small",
            slow / quick,
            2.0,
        )


def _undisturbed(seconds: list[float]) -> float:
    """Return the lower quartile: these times are so short that one context switch doubles them."""
    return statistics.quantiles(seconds, n=4, method="inclusive")[0]


def _timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun
