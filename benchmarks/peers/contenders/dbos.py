"""DBOS: workflow functions whose steps return their results; the state is in the workflow's variables."""

from __future__ import annotations

import asyncio
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID
from workloads import Place, Work, digest, message, step_begins


@DBOS.step()
def one_more(n: int) -> int:
    return n + 1


@DBOS.step()
def watched(n: int) -> int:
    step_begins(n)
    return n + 1


@DBOS.step()
async def one_more_async(n: int) -> int:
    return n + 1


@DBOS.step()
def talk(number: int) -> dict[str, str]:
    return message(number)


@DBOS.step()
async def square(number: int) -> int:
    return number * number


@DBOS.step()
async def add_up(squares: list[int]) -> int:
    return sum(squares)


@DBOS.workflow()
def count(steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = one_more(n)
    return n


@DBOS.workflow()
def count_watched(steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = watched(n)
    return n


@DBOS.workflow()
async def count_async(steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = await one_more_async(n)
    return n


@DBOS.workflow()
def converse(steps: int) -> list[Any]:
    kept: list[Any] = []
    for _ in range(steps):
        kept.append(talk(len(kept)))
    return kept


@DBOS.workflow()
async def fan(width: int) -> int:
    await square(0)
    squares = await asyncio.gather(*(square(number) for number in range(width)))
    return await add_up(list(squares))


@DBOS.workflow()
def hold(value: list[str], steps: int) -> list[Any]:
    n = 0
    for _ in range(steps):
        n = one_more(n)
    return [n, digest(value)]


class Race:
    """Each step is one transaction, written when it has returned; there is no intent."""

    resumes_at_launch = True

    def __init__(self, place: Place) -> None:
        if place.kind == "postgres":
            url = f"postgresql://{place.user}@/{place.database}?host={place.host}"
        else:
            url = f"sqlite:///{place.path}"
        self._config: DBOSConfig = {
            "name": "race",
            "system_database_url": url,
            "application_version": "1",
            "log_level": "ERROR",
        }
        self._is_launched = False
        self._runner = asyncio.Runner()

    def chain(self, steps: int) -> Work:
        self._launch()
        return lambda: count(steps)

    def messages(self, steps: int) -> Work:
        self._launch()
        return lambda: digest(converse(steps))

    def wave(self, width: int) -> Work:
        self._launch()

        async def work() -> int:
            return await fan(width)

        return lambda: self._runner.run(work())

    def concurrent(self, runs: int, steps: int) -> Work:
        self._launch()

        async def work() -> list[int]:
            return list(await asyncio.gather(*(count_async(steps) for _ in range(runs))))

        return lambda: self._runner.run(work())

    def untouched(self, value: list[str], steps: int) -> Work:
        self._launch()
        return lambda: hold(value, steps)

    def starting(self, steps: int) -> Work:
        self._launch()

        def work() -> int:
            with SetWorkflowID("stopped"):
                return count_watched(steps)

        return work

    def resuming(self, steps: int) -> Work:
        """DBOS resumes pending workflows on launch; so the launch is the work."""

        def work() -> Any:
            self._launch()
            return DBOS.retrieve_workflow("stopped").get_result(polling_interval_sec=0.05)

        return work

    def close(self) -> None:
        DBOS.destroy()
        self._runner.close()

    def _launch(self) -> None:
        if not self._is_launched:
            DBOS(config=self._config)
            DBOS.launch()
            self._is_launched = True
