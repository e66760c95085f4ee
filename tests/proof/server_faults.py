"""Disturbs a real PostgreSQL server, and the connection to it, while runs execute, and checks the invariants.

    python -m tests.proof.server_faults                     the short form, some seconds
    python -m tests.proof.server_faults --full              at least 10,000 faults
    python -m tests.proof.server_faults --kind showers --times 500 --seed 7

Exit code 0: no invariant was violated; 1: one was, and the report says where. A seed chooses places and acts; threads
and the server still go their own ways, so a replay with the same seed is near to the first one, not equal to it.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from holdfast import HoldfastError
from tests.invariants import RECOVERY, Violation
from tests.proof.server import disk, failover
from tests.proof.server.crashes import crashes
from tests.proof.server.fleet import fleet
from tests.proof.server.partitions import partitions
from tests.proof.server.proxy import Act
from tests.proof.server.scene import Scene, scene, tcp_scene
from tests.proof.server.server_errors import every_error
from tests.proof.server.statements import every_arrival, every_statement, showers, together
from tests.proof.server.tally import Tally

FULL = 10_000
PATIENT_DRIVER = 60.0


def _statements(scene: Scene, is_full: bool, times: int) -> None:
    if is_full:
        every_statement(scene)
    else:
        every_statement(scene, ["chain"], every=11)
        every_statement(scene, ["once"], [Act.BEFORE], ["impatient"])


def _connections(scene: Scene, is_full: bool, times: int) -> None:
    if is_full:
        every_arrival(scene)
    else:
        every_arrival(scene, connections=1, statements=0)


def _errors(scene: Scene, is_full: bool, times: int) -> None:
    if is_full:
        every_error(scene)
    else:
        every_error(scene, ["chain"], ["40001", "40P01", "53300", "57P01", "55P03"], every=5)


def _showers(scene: Scene, is_full: bool, times: int) -> None:
    showers(scene, times or (500 if is_full else 12))


def _together(scene: Scene, is_full: bool, times: int) -> None:
    together(scene, times or (1000 if is_full else 10))


def _crashes(scene: Scene, is_full: bool, times: int) -> None:
    count = times or (60 if is_full else 2)
    crashes(scene, count // 2, PATIENT_DRIVER)
    crashes(scene, count - count // 2, 0.0)


def _partitions(scene: Scene, is_full: bool, times: int) -> None:
    partitions(scene, times or (200 if is_full else 4))


def _fleet(scene: Scene, is_full: bool, times: int) -> None:
    if is_full:
        fleet(scene, runs=times or 150, workers=4, rain=0.03, timeout=600.0)
    else:
        fleet(scene, runs=times or 4, workers=2, rain=0.05, every=3.0, acts=("kill",))


IN_SCENE: dict[str, Callable[[Scene, bool, int], None]] = {
    "statements": _statements,
    "connections": _connections,
    "errors": _errors,
    "showers": _showers,
    "together": _together,
    "partitions": _partitions,
    "fleet": _fleet,
    "crashes": _crashes,
}
"""What is done to one server, its proxy and its drivers."""


def _tcp(tally: Tally, is_full: bool, times: int) -> None:
    with tcp_scene(tally) as made:
        if is_full:
            every_statement(made, ["chain"], kind="tcp")
        else:
            every_statement(
                made, ["chain"], [Act.REPLY_LOST, Act.REPLY_CUT], ["patient"], every=7, kind="tcp"
            )
        if not made.proxy.encrypted:
            raise AssertionError("no connection was encrypted")
        tally.note(f"tcp: {made.proxy.encrypted} connections by TLS with SCRAM passwords")


def _disk(tally: Tally, is_full: bool, times: int) -> None:
    disk.full_disks(tally, times or (5 if is_full else 1), always_only=not is_full)


def _failover(tally: Tally, is_full: bool, times: int) -> None:
    for _ in range(times or (4 if is_full else 1)):
        failover.synchronous(tally)
        failover.asynchronous(tally)
        if is_full:
            failover.asynchronous(tally, is_overtaken=False)
            failover.zombie(tally)


ALONE: dict[str, Callable[[Tally, bool, int], None]] = {"tcp": _tcp, "disk": _disk, "failover": _failover}
"""What needs servers of its own."""

KINDS = (*IN_SCENE, *ALONE)


def disturb(tally: Tally, kinds: Iterable[str] = KINDS, *, is_full: bool = False, times: int = 0) -> None:
    """Do what these kinds do; with `is_full` go on with showers until there are enough faults."""
    wanted = list(kinds)
    for kind in wanted:
        if kind in ALONE:
            with _told(tally, kind):
                ALONE[kind](tally, is_full, times)
    if not any(kind in IN_SCENE for kind in wanted):
        return
    with scene(tally) as made:
        for kind in wanted:
            if kind in IN_SCENE:
                with _told(tally, kind):
                    IN_SCENE[kind](made, is_full, times)
        if is_full and set(wanted) == set(KINDS):
            showers(made, max(0, (times or FULL) - tally.total))


@contextmanager
def _told(tally: Tally, kind: str) -> Iterator[None]:
    """While a kind is at work: what it did not expect is a violation too, and does not end the others."""
    try:
        yield
    except (HoldfastError, AssertionError) as error:
        traceback.print_exc()
        tally.judge(kind, "?", "?", [Violation(RECOVERY, f"{type(error).__name__}: {error}")])


def main() -> int:
    """Disturb, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kind", action="append", choices=KINDS, help="only this; may be given several times"
    )
    parser.add_argument("--times", type=int, default=0, help="how many faults, where that can be chosen")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--full", action="store_true", help=f"everything, at least {FULL:,} faults in all")
    given = parser.parse_args()
    for name in ("holdfast", "psycopg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # Thousands of servers that went away.
    tally, began = Tally(given.seed), time.monotonic()
    print(f"seed {given.seed}", file=sys.stderr, flush=True)
    disturb(tally, given.kind or KINDS, is_full=given.full, times=given.times)
    print(tally.table())
    print(json.dumps({**tally.facts(), "seconds": round(time.monotonic() - began)}))
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
