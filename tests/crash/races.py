"""Two processes that execute the same run at the same time, again and again.

    python -m tests.crash.races --times 1000 --store sqlite
    python -m tests.crash.races --times 1000 --store postgres

Of each race one process must win and the other be refused, and the journal must be the one of an undisturbed run:
every step finished once, in order, with an unbroken chain of checksums.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import RunConflict, RunFinished
from holdfast.journal.journal import Journal
from holdfast.journal.records import RunEnded, StepFinished
from holdfast.state.codec import Codec
from holdfast.stores import open_store
from holdfast.stores.postgres.embedded import Programs
from tests.crash.fleet_worker import chain
from tests.postgres import running
from tests.processes import unmeasured

STEPS = 5


def racer(url: str) -> None:
    """Execute every run that is named on stdin, beside another process; print how it ended."""
    store = open_store(url)
    app = chain(store, STEPS, 0.002)
    for line in sys.stdin:
        try:
            told = str(app.resume(line.strip(), takeover=True).status)
        except RunConflict:
            told = "conflict"
        except RunFinished:
            told = "late"
        print(told, flush=True)
    store.close()


@contextlib.contextmanager
def racers(url: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that wait for the names of runs."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.crash.races", "--race", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=unmeasured(),
            cwd=Path(__file__).parents[2],
        )
        for _ in range(2)
    ]
    try:
        yield started
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def race(url: str, times: int) -> collections.Counter[tuple[str, str]]:
    """How the races ended, as pairs of what the two said; whatever is wrong with a journal is raised."""
    store = open_store(url)
    app, journal = chain(store, STEPS, 0.002), Journal(store)
    ended: collections.Counter[tuple[str, str]] = collections.Counter()
    with racers(url) as both:
        for number in range(times):
            run = app.submit({}, run_id=f"race-{number}", queue="races")
            for process in both:
                assert process.stdin is not None
                process.stdin.write(f"{run}\n")
                process.stdin.flush()
            told = []
            for process in both:
                assert process.stdout is not None
                told.append(process.stdout.readline().strip())
            ended[min(told), max(told)] += 1
            _check(journal, run, told)
    store.close()
    return ended


def _check(journal: Journal, run: str, told: list[str]) -> None:
    _, entries = journal.history(journal.info(run), Codec())
    records = [record for _, found in entries for record in found]
    finished = [record.step for record in records if isinstance(record, StepFinished)]
    assert finished == [f"step{number}#1" for number in range(1, STEPS + 1)], (run, finished)
    ends = [str(record.status) for record in records if isinstance(record, RunEnded)]
    assert ends == ["queued", "completed"] and journal.info(run).status == "completed", (run, ends)
    assert sorted(told) in (["completed", "conflict"], ["completed", "late"]), (run, told)


def main() -> None:
    """Race, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--race", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.race:
        racer(given.race)
        return
    if given.store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="races-") as folder:
            ended = race(f"sqlite:///{folder}/runs.db", given.times)
    else:
        with running(Programs.find()) as server:
            ended = race(server.url("races"), given.times)
    print(f"{given.times} races on {given.store}; no record lost or doubled; the two processes ended as:")
    for pair, count in ended.most_common():
        print(f"  {' and '.join(pair)}: {count}")


if __name__ == "__main__":
    main()
