"""One turn of one contender, in its own process: prepares, warms up, works, and prints its measurements as JSON."""

from __future__ import annotations

import time

STARTED = time.monotonic()

import argparse  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from workloads import RESUMES, WARM, WORKLOADS, Place, Racer, Workload, die, watch_steps  # noqa: E402


def timed(racer: Racer, workload: Workload, sizes: tuple[int, ...], place: Place) -> dict[str, Any]:
    """Warm up with a small workload, then measure the work."""
    small = workload.warm_up
    workload.check(workload.prepare(racer, small)(), small)
    work = workload.prepare(racer, sizes)
    had, before = used(place), written(place)
    cpu, wall = time.process_time(), time.perf_counter()
    answer = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = written(place)
    workload.check(answer, sizes)
    return {"wall": wall, "cpu": cpu, "written": after - before, "used": used(place) - had}


def resumes_at_launch(race: type) -> bool:
    """Return whether a contender resumes everything on start, so that it can only be warmed up with another store."""
    return getattr(race, "resumes_at_launch", False)


def stopped(race: type, sizes: tuple[int, ...], place: Place) -> None:
    """Run until the step that will be resumed first starts, and be killed there."""
    steps, stop = sizes
    watch_steps(lambda n: die() if n == stop else None)
    race(place).starting(steps)()
    raise SystemExit("the run was to be killed, and was not")


def resumed(race: type, sizes: tuple[int, ...], place: Place, spawned: float | None) -> dict[str, Any]:
    """Resume a run that was killed; the measurement ends when its next step starts.

    Since the process was spawned, or since everything was ready to take it up.
    """
    begun: list[tuple[int, float, float]] = []
    watch_steps(lambda n: begun.append((n, time.monotonic(), time.process_time())))
    steps, stop = sizes
    racer = race(place)
    if spawned is None and not resumes_at_launch(race):
        racer.chain(3)()
    work = racer.resuming(steps)
    since = (time.monotonic(), time.process_time()) if spawned is None else (spawned, 0.0)
    answer = work()
    done = [n for n, _, _ in begun]
    if answer != steps or done != list(range(stop, steps)):
        raise SystemExit(f"the resumed run answers {answer} and did the steps {done[:3]}…{done[-3:]}")
    racer.close()
    _, wall, cpu = begun[0]
    return {"wall": wall - since[0], "cpu": cpu - since[1], "written": 0, "used": 0}


def written(place: Place) -> int:
    """Return the bytes written so far: by this process, or to the WAL of the server."""
    if place.kind == "sqlite":
        facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(facts["wchar"])
    return int(asked(place, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"))


def used(place: Place) -> int:
    """Return the bytes of the database, read by another process: closing a file would drop this one's locks."""
    if place.kind == "sqlite":
        question = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
            "print(c.execute('SELECT page_count * page_size FROM pragma_page_count, pragma_page_size').fetchone()[0])"
        )
        command = [sys.executable, "-c", question, place.path]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return int(asked(place, "SELECT pg_database_size(current_database())"))


def asked(place: Place, question: str) -> Any:
    import psycopg

    with psycopg.connect(place.conninfo, autocommit=True) as connection:
        row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return row[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("contender")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--place", required=True, help="a place, as JSON")
    parser.add_argument("--sizes", required=True, help="the sizes, as JSON")
    parser.add_argument("--spawned", type=float, default=STARTED, help="when this process was asked for")
    parser.add_argument("--elsewhere", help="a place to warm up at, as JSON")
    parser.add_argument("--stop", action="store_true", help="prepare a cold resume: be killed in mid-run")
    parser.add_argument("--answer", type=Path, help="where to write; libraries may write to stdout too")
    given = parser.parse_args()
    sizes, place = tuple(json.loads(given.sizes)), Place(**json.loads(given.place))
    race = importlib.import_module(f"contenders.{given.contender}").Race
    if given.workload not in RESUMES:
        racer = race(place)
        facts = timed(racer, WORKLOADS[given.workload], sizes, place)
        racer.close()
    elif given.stop:
        stopped(race, sizes, place)
    else:
        if given.workload == WARM and resumes_at_launch(race):
            elsewhere = race(Place(**json.loads(given.elsewhere)))
            elsewhere.chain(3)()
            elsewhere.close()
        facts = resumed(race, sizes, place, None if given.workload == WARM else given.spawned)
    if given.answer is None:
        print(json.dumps(facts), flush=True)
    else:
        given.answer.write_text(json.dumps(facts))
    # Threads that a library left behind are not waited for: what was asked for is done.
    os._exit(0)


if __name__ == "__main__":
    main()
