"""Random programs of functions, killed at their boundaries: each comes to what it comes to undisturbed."""

from __future__ import annotations

import asyncio
import inspect
import random
from typing import Any

import pytest

from holdfast import Retry, ask, sleep, step, workflow
from holdfast.functions import context, uuid
from holdfast.functions import random as number
from holdfast.testing import crash_everywhere, record_effect

Part = list[Any]

MORE = ("at_once", "group", "child", "sync_child", "caught")


@step
def plain(n: int) -> int:
    record_effect("plain", n=n)
    return n * 3 + 1


@step
async def awaited(n: int) -> int:
    await asyncio.sleep(0)
    record_effect("awaited", n=n)
    return n * 2 + 1


@step(retry=Retry(attempts=3, delay=0.0))
def flaky(n: int) -> int:
    if context().attempt == 1:
        raise OSError("flaky")
    return n + 7


@step(timeout=60)
def watched(n: int) -> int:
    return n - 1


@step(executor="threads")
def in_thread(n: int) -> int:
    return n + 100


@step
def refuse(n: int) -> int:
    raise LookupError(n)


SYNC: dict[str, Any] = {
    "plain": plain,
    "flaky": flaky,
    "watched": watched,
    "in_thread": in_thread,
    "map": lambda n: plain.map(range(n)),
    "keyed": lambda n: plain.options(key=f"k{n}")(n),
    "value": lambda n: [0 <= number() < 1, len(str(uuid()))],
    "ask": lambda n: ask("How many?", name=f"q{n}"),
}
ASYNC: dict[str, Any] = {
    "awaited": awaited,
    "map_async": lambda n: awaited.map(range(n), max_parallel=2),
    "threads": lambda n: asyncio.gather(*(asyncio.to_thread(plain, each) for each in range(n))),
    "sleep": lambda n: sleep(0.001),
}


async def done(kind: str, parts: Any) -> Any:
    """Return what a part of a program comes to."""
    match kind:
        case "at_once":
            return list(await asyncio.gather(*(done(*part) for part in parts)))
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(done(*part)) for part in parts]
            return [task.result() for task in tasks]
        case "child":
            return await child(parts)
        case "sync_child":
            return sync_child([part for part in parts if part[0] in SYNC])
        case "caught":
            try:
                return [[await done(*part) for part in parts], refuse(1)]
            except LookupError as error:
                return str(error)
    found = SYNC[kind](parts) if kind in SYNC else ASYNC[kind](parts)
    return await found if inspect.isawaitable(found) else found


@workflow
async def child(parts: list[Part]) -> list[Any]:
    return [await done(*part) for part in parts]


@workflow
def sync_child(parts: list[Part]) -> list[Any]:
    return [SYNC[kind](n) for kind, n in parts]


@workflow
async def program(parts: list[Part]) -> list[Any]:
    return [await done(*part) for part in parts]


def made(chance: random.Random, depth: int = 0) -> Part:
    """Return a random part of a program."""
    kind = chance.choice([*SYNC, *ASYNC, *(MORE if depth < 2 else ()), *(MORE if depth < 2 else ())])
    if kind in MORE:
        return [kind, [made(chance, depth + 1) for _ in range(chance.randint(1, 3))]]
    return [kind, chance.randint(0, 3)]


@pytest.mark.parametrize("seed", [0, 1, 2, 211, 1000, 1001])
def test_a_random_program_survives_crashes(seed: int) -> None:
    """Functions: killed at any boundary, a program of steps, tasks, threads and other workflows returns the same."""
    chance = random.Random(seed)
    parts = [made(chance) for _ in range(chance.randint(2, 4))]
    options: dict[str, Any] = {"answers": {f"q{n}": n for n in range(4)}, "repeatable": ("plain", "awaited")}
    assert crash_everywhere(program, (parts,), mode="fast", limit=6, **options).passed
