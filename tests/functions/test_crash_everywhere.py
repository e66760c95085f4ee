"""Three workflows of functions, killed at their boundaries on every kind of store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import Retry, ask, sleep, step, workflow
from holdfast.functions import carried, context, uuid
from holdfast.testing import crash_everywhere, record_effect

BOUNDARIES = 6


@step(retry=Retry(attempts=2, delay=0.01))
def fetch(url: str) -> str:
    if context().attempt == 1 and url.endswith("1"):
        raise OSError("flaky")
    return url.upper()


@step
async def summarise(text: str) -> str:
    await asyncio.sleep(0)
    return text[:4]


@step
def publish(notes: list[str]) -> str:
    record_effect("publish", notes=notes)
    return "+".join(notes)


@step
def refuse(text: str) -> None:
    raise LookupError(text)


@workflow
async def report(topic: str) -> str:
    """Items, awaited steps and a question."""
    pages = await fetch.map([f"{topic}/{n}" for n in range(3)], max_parallel=2)
    notes = list(await asyncio.gather(*(summarise(page) for page in pages)))
    return publish(notes) if ask("Publish?") == "yes" else "dropped"


@workflow
def threads(topic: str) -> list[str]:
    """Threads, a failure that is handled, and a sleep."""
    with ThreadPoolExecutor(2) as pool:
        pages = list(pool.map(carried(fetch), [f"{topic}/{n}" for n in range(2)]))
    try:
        refuse(topic)
    except LookupError as error:
        pages.append(str(error.args[0]))
    sleep(0.01)
    return [*pages, publish(pages)]


@workflow
async def nested(topic: str) -> list[Any]:
    """Another workflow, and a recorded value."""
    number = str(uuid())
    first = await report(topic)
    return [first, len(number), await summarise(number) == number[:4]]


WORKFLOWS: dict[str, Any] = {"report": report, "threads": threads, "nested": nested}


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def place(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """How `crash_everywhere` is told of each kind of store."""
    if request.param == "memory":
        yield {"mode": "fast"}
    elif request.param == "postgres":
        yield {"store": fresh_schemas(request)}
    else:
        yield {"store": request.param}


def fresh_schemas(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """Return what gives each folder a namespace of its own on the server."""
    url, numbers, known = (
        str(request.getfixturevalue("emptied_postgres_url")),
        itertools.count(),
        dict[str, str](),
    )

    def url_of(folder: Path) -> str:
        name = known.setdefault(str(folder), f"n{next(numbers)}")
        return f"{url}{'&' if '?' in url else '?'}namespace={name}"

    return url_of


@pytest.mark.parametrize("name", WORKFLOWS)
def test_functions_survive_crashes_on_every_store(name: str, place: dict[str, Any]) -> None:
    """Functions: killed at any boundary and resumed, a workflow returns the same and repeats no finished step."""
    options = {"answers": {"Publish?": "yes"}, "repeatable": ("publish",), "limit": BOUNDARIES, **place}
    assert crash_everywhere(WORKFLOWS[name], "tides", **options).passed


@step
def pay(amount: int) -> int:
    record_effect("pay", amount=amount)
    return amount


@workflow
def pays_twice(amount: int) -> int:
    return pay(amount)


@workflow
def pays_in_its_body(amount: int) -> str:
    record_effect("pay", amount=amount)
    return summarise_now(str(amount))


@step
def summarise_now(text: str) -> str:
    return text


def test_the_advice_is_for_functions() -> None:
    with pytest.raises(AssertionError) as failure:
        crash_everywhere(pays_twice, 3, mode="fast")
    text = " ".join(str(failure.value).split())
    assert "`@step(if_interrupted=look)`" in text and "idempotency_key=context().idempotency_key" in text
    assert "of 'pays_twice/pay'" in text and "node" not in text and "sub-graph" not in text

    with pytest.raises(AssertionError) as failure:
        crash_everywhere(pays_in_its_body, 3, mode="fast")
    text = " ".join(str(failure.value).split())
    assert "'pay' is done in the body of the workflow" in text and "make it a step" in text
    assert "global variable" not in text and "node" not in text
