"""The workloads, their sizes, and the answers that every contender must compute."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Work = Callable[[], Any]
"""The measured work: everything before it is preparation."""


PAGE = 100_000
"""Characters of a page of the large value."""

_numbers = itertools.count(1)


class Place(NamedTuple):
    """The store of a contender: a SQLite file, or a database on a server behind a socket."""

    kind: str
    path: str = ""
    host: str = ""
    database: str = ""
    user: str = "postgres"

    @property
    def conninfo(self) -> str:
        """The database as psycopg's address."""
        return f"host={self.host} dbname={self.database} user={self.user}"


class Racer(Protocol):
    """A contender, in its own process, with its own store. Each method prepares and returns the work."""

    def chain(self, steps: int) -> Work: ...
    def messages(self, steps: int) -> Work: ...
    def wave(self, width: int) -> Work: ...
    def concurrent(self, runs: int, steps: int) -> Work: ...
    def untouched(self, value: list[str], steps: int) -> Work: ...
    def starting(self, steps: int) -> Work: ...
    def resuming(self, steps: int) -> Work: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Workload:
    """One workload: its name, its sizes, its number of steps, and the right answer."""

    name: str
    title: str
    sizes: tuple[int, ...]
    tiny: tuple[int, ...]
    warm_up: tuple[int, ...]
    audited: tuple[tuple[int, ...], tuple[int, ...]]
    """Two sizes: the difference of their syncs is the cost of the additional steps."""

    def steps(self, sizes: tuple[int, ...]) -> int:
        """Return the number of steps."""
        match self.name:
            case "wave":
                return sizes[0] + 2
            case "concurrent":
                return sizes[0] * sizes[1]
            case "untouched":
                return sizes[1]
        return sizes[0]

    def prepare(self, racer: Racer, sizes: tuple[int, ...]) -> Work:
        """Return the work of this contender at these sizes."""
        if self.name == "untouched":
            return racer.untouched(large_value(sizes[0]), sizes[1])
        prepare: Callable[..., Work] = getattr(racer, self.name)
        return prepare(*sizes)

    def check(self, answer: Any, sizes: tuple[int, ...]) -> None:
        """Refuse a wrong answer."""
        right = self._answer(sizes)
        if answer != right:
            raise SystemExit(f"{self.title}: the answer is {str(answer)[:200]}, not {str(right)[:200]}")

    def _answer(self, sizes: tuple[int, ...]) -> Any:
        match self.name:
            case "messages":
                return digest([message(number) for number in range(sizes[0])])
            case "wave":
                return sum(number * number for number in range(sizes[0]))
            case "concurrent":
                return [sizes[1]] * sizes[0]
            case "untouched":
                return [sizes[1], digest(large_value(sizes[0]))]
        return sizes[0]


COLD, WARM = "cold", "warm"
RESUMES = (COLD, WARM)
WORKLOADS: Mapping[str, Workload] = {
    each.name: each
    for each in (
        Workload("chain", "chain of trivial steps", (100,), (8,), (3,), ((10,), (90,))),
        Workload("messages", "growing messages", (200,), (8,), (3,), ((10,), (30,))),
        Workload("wave", "wide wave, then a join", (64,), (4,), (3,), ((8,), (40,))),
        Workload("concurrent", "concurrent runs", (64, 5), (3, 2), (2, 2), ((8, 5), (40, 5))),
        Workload(
            "untouched", "large untouched value", (5_000_000, 50), (20_000, 4), (9, 3), ((9, 10), (9, 30))
        ),
        Workload(COLD, "cold resume", (100, 50), (8, 4), (), ((), ())),
        Workload(WARM, "warm resume", (100, 50), (8, 4), (3,), ((), ())),
    )
}


def message(number: int) -> dict[str, str]:
    """Return a message of about 500 bytes, the same in every run, and different for each index."""
    letters = random.Random(number).choices(string.ascii_letters + "     ", k=470)
    return {"speaker": "user", "text": "".join(letters)}


def large_value(size: int) -> list[str]:
    """Return pages of text that compresses badly, the same in every run."""
    text = random.Random(size).randbytes((size + 1) // 2).hex()[:size]
    return [text[begin : begin + PAGE] for begin in range(0, size, PAGE)]


def digest(value: Any) -> str:
    """Return a short digest of a value, whatever kinds of lists and mappings it is made of."""
    return hashlib.blake2b(_plain(value).encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_plain(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, str):
        return value
    if hasattr(value, "__iter__"):
        return "[" + ",".join(map(_plain, value)) + "]"
    return str(value)


def fresh(name: str) -> str:
    """Return a run id that this process has not used."""
    return f"{name}-{next(_numbers)}"


_watchers: list[Callable[[int], None]] = []


def step_begins(n: int) -> None:
    """Called by the steps of the run that is stopped and resumed, before they do anything."""
    for watcher in _watchers:
        watcher(n)


def watch_steps(watcher: Callable[[int], None]) -> None:
    _watchers.append(watcher)


def die() -> None:
    """Kill this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
