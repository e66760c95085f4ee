"""Running one target in this process: inputs, outcomes, and what was found, within bounds of time and memory."""

from __future__ import annotations

import contextlib
import gc
import logging
import resource
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

from tests.fuzz.minimising import minimised
from tests.fuzz.mutating import Mutator
from tests.fuzz.target import Check, Hang, Target, place_of

CORPUS = Path(__file__).parent / "corpus"
LARGEST_POOL = 600
TICK = 0.25
SLOT = struct.Struct(">QI")
"""What a process tells of the input it is at: its number and its length; the input follows."""

SLOT_BYTES = 1 << 20
MOST_FINDINGS = 12


class Finding(NamedTuple):
    """An input that a target neither took nor refused as it should."""

    target: str
    what: str
    where: str
    data: bytes


class Tally(NamedTuple):
    """What came of the inputs of one target in one process."""

    inputs: int
    outcomes: dict[str, int]
    findings: list[Finding]
    novel: list[bytes]
    """The inputs that led to a new outcome."""


class Watch:
    """Raises `Hang` in an input that takes too much processor time; costs nothing per input."""

    def __init__(self, seconds: float) -> None:
        self._most = max(2, round(seconds / TICK))
        self.number = 0
        self._seen, self._ticks = -1, 0

    def __enter__(self) -> Watch:
        self._before = signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _tick(self, number: int, frame: FrameType | None) -> None:
        if self._seen != self.number:
            self._seen, self._ticks = self.number, 0
            return
        self._ticks += 1
        if self._ticks >= self._most:
            self._ticks = 0
            raise Hang("it took too long")


def bound_memory(target: Target) -> None:
    """Let this process grow by no more than the target may; it cannot be undone."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + target.memory, hard))


def corpus(target: Target) -> list[bytes]:
    """What is known to be worth changing: the committed inputs and those made of real data."""
    folder = CORPUS / target.name
    kept = [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []
    return [*kept, *target.seeds()] or [b"\0"]


def inputs(target: Target, rng: Random, pool: list[bytes]) -> Iterator[bytes]:
    """The corpus as it is, and then inputs without end."""
    yield from list(pool)
    changed, random, make, fresh = (
        Mutator(rng, pool, target.words, target.longest),
        rng.random,
        target.make,
        target.fresh,
    )
    if make is None:
        while True:
            yield changed()
    while True:
        yield make(rng)[: target.longest] if random() < fresh else changed()


def outcome(target: Target, check: Check, data: bytes) -> str:
    """What comes of one input; raises what is a finding."""
    try:
        return check(data)
    except target.refused as error:
        return place_of(error)


def run_target(
    target: Target,
    seed: str,
    go_on: Callable[[int], bool],
    slot: memoryview | None = None,
    most_findings: int = MOST_FINDINGS,
) -> Tally:
    """Try inputs until `go_on` (asked now and then, with the number of inputs so far) says no."""
    with silence():
        return _tried(target, seed, go_on, slot, most_findings)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Let nobody log meanwhile: what is tried is warned of by the thousand."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _tried(
    target: Target,
    seed: str,
    go_on: Callable[[int], bool],
    slot: memoryview | None,
    most_findings: int,
) -> Tally:
    check = target.open()
    rng, pool = Random(f"{seed}/{target.name}"), corpus(target)
    seen: dict[str, int] = {}
    findings: dict[str, Finding] = {}
    novel: list[bytes] = []
    refused, number = target.refused, 0
    gc.freeze()
    with Watch(target.seconds) as watch:
        for data in inputs(target, rng, pool):
            if (number < 256 or number & 63 == 0) and not go_on(number):
                break
            number += 1
            watch.number = number
            if slot is not None:
                SLOT.pack_into(slot, 0, number, len(data))
                slot[SLOT.size : SLOT.size + len(data)] = data
            try:
                try:
                    what = check(data)
                except refused as error:
                    what = place_of(error)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                what = place_of(error)
                if what not in findings:
                    told = "".join(traceback.format_exception(error))[-3000:]
                    small = _smallest(target, check, data, what, watch)
                    findings[what] = Finding(target.name, told, what, small)
                    if len(findings) >= most_findings:
                        break
            if what in seen:
                seen[what] += 1
            else:
                seen[what] = 1
                novel.append(data)
                if len(pool) < LARGEST_POOL:
                    pool.append(data)
    return Tally(number, seen, list(findings.values()), novel)


def _smallest(target: Target, check: Check, data: bytes, what: str, watch: Watch) -> bytes:
    def shows(candidate: bytes) -> bool:
        watch.number += 1
        try:
            outcome(target, check, candidate)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return place_of(error) == what
        return False

    with contextlib.suppress(Hang):
        return minimised(data, shows, 4 if what.startswith("Hang") else 3000)
    return data


def replay(target: Target, data: bytes) -> str:
    """What comes of one input, in words; a traceback if it is a finding."""
    logging.disable(logging.CRITICAL)
    check = target.open()
    bound_memory(target)
    with Watch(target.seconds) as watch:
        watch.number = 1
        try:
            return f"fine: {outcome(target, check, data)}"
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return "FOUND: " + "".join(traceback.format_exception(error))
