"""The durability of a contender: its real syncs per step, counted from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from places import Ground
from workloads import Place, Workload

sys.path.insert(0, str(Path(__file__).parents[2]))

Command = Callable[[Place, tuple[int, ...]], list[str]]
"""The command of a turn at a place, at these sizes."""

AUDITED = ("chain", "wave", "concurrent")
SYNCED = 0.8
"""Syncs per step of a chain from which on every step counts as synced."""


def syncs_per_step(ground: Ground, store: str, workload: Workload, command: Command) -> float:
    """Return the syncs of a larger turn less those of a smaller one: both include opening and closing."""
    count = _in_the_server if store == "postgres" else _in_the_process
    small, large = workload.audited
    syncs = [count(ground, command, sizes) for sizes in (small, large)]
    return max(0.0, (syncs[1] - syncs[0]) / (workload.steps(large) - workload.steps(small)))


def _in_the_process(ground: Ground, command: Command, sizes: tuple[int, ...]) -> int:
    """Count every fsync, fdatasync and synced write of the process and its threads with a tracer."""
    from tests.proof.ptrace import count_syncs

    with ground.place("sqlite") as place:
        return sum(count_syncs(command(place, sizes)).values())


def _in_the_server(ground: Ground, command: Command, sizes: tuple[int, ...]) -> int:
    """Return the server's own count of WAL syncs."""
    import subprocess

    question = "SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal'"
    with ground.place("postgres") as place:
        before = ground.ask(question)[0][0]
        subprocess.run(command(place, sizes), check=True)
        ground.wait_until_left(place.database)
        return int(ground.ask(question)[0][0]) - int(before)
