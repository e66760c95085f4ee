"""Burr: actions and transitions, with a state persister that saves after each action."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from burr import telemetry
from burr.core import ApplicationBuilder, GraphBuilder, State, action, expr
from burr.core.parallelism import MapStates
from burr.core.persistence import SQLitePersister
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister
from burr.integrations.persisters.b_asyncpg import AsyncPostgreSQLPersister
from burr.integrations.persisters.b_psycopg2 import PostgreSQLPersister
from workloads import Place, Work, digest, fresh, message, step_begins

telemetry.disable_telemetry()


class Race:
    """The whole state is saved after each action; there is no intent."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._runner = asyncio.Runner()
        self._closing: list[Callable[[], Any]] = []
        self._persister: Any = None

    def chain(self, steps: int) -> Work:
        graph, last = _chain_graph(steps, _one_more)
        return self._plain(graph, {"n": 0}, "step0", last, fresh("chain"), lambda state: state["n"])

    def messages(self, steps: int) -> Work:
        @action(reads=["n", "messages"], writes=["n", "messages"])
        def talk(state: State) -> State:
            return state.update(n=state["n"] + 1).append(messages=message(len(state["messages"])))

        @action(reads=[], writes=[])
        def end(state: State) -> State:
            return state

        graph = (
            GraphBuilder()
            .with_actions(talk=talk, end=end)
            .with_transitions(("talk", "talk", expr(f"n < {steps}")), ("talk", "end"))
            .build()
        )
        persister = self._synchronous()

        def work() -> str:
            app = _builder(graph, fresh("messages"), persister, {"n": 0, "messages": []}, "talk").build()
            for _ in range(steps):
                app.step()
            return digest(app.state["messages"])

        return work

    def wave(self, width: int) -> Work:
        graph = (
            GraphBuilder()
            .with_actions(begin=_begin, fan=_Fan(width), join=_join)
            .with_transitions(("begin", "fan"), ("fan", "join"))
            .build()
        )
        persister = self._asynchronous()

        async def work() -> int:
            app = await _builder(graph, fresh("wave"), persister, {"squares": []}, "begin").abuild()
            _, _, state = await app.arun(halt_after=["join"])
            total: int = state["total"]
            return total

        return lambda: self._runner.run(work())

    def concurrent(self, runs: int, steps: int) -> Work:
        graph, last = _chain_graph(steps, _one_more_async)
        persister = self._asynchronous()

        async def one() -> int:
            app = await _builder(graph, fresh("run"), persister, {"n": 0}, "step0").abuild()
            _, _, state = await app.arun(halt_after=[last])
            n: int = state["n"]
            return n

        async def work() -> list[int]:
            return list(await asyncio.gather(*(one() for _ in range(runs))))

        return lambda: self._runner.run(work())

    def untouched(self, value: list[str], steps: int) -> Work:
        graph, last = _chain_graph(steps, _one_more)
        return self._plain(
            graph,
            {"n": 0, "value": value},
            "step0",
            last,
            fresh("untouched"),
            lambda state: [state["n"], digest(state["value"])],
        )

    def starting(self, steps: int) -> Work:
        graph, last = _chain_graph(steps, _watched)
        return self._plain(graph, {"n": 0}, "step0", last, "stopped", lambda state: state["n"])

    def resuming(self, steps: int) -> Work:
        graph, last = _chain_graph(steps, _watched)
        persister = self._synchronous()

        def work() -> Any:
            app = (
                ApplicationBuilder()
                .with_graph(graph)
                .with_identifiers(app_id="stopped", partition_key="race")
                .initialize_from(
                    persister,
                    resume_at_next_action=True,
                    default_state={"n": 0},
                    default_entrypoint="step0",
                )
                .with_state_persister(persister)
                .build()
            )
            return app.run(halt_after=[last])[2]["n"]

        return work

    def close(self) -> None:
        for close in reversed(self._closing):
            close()
        self._runner.close()

    def _plain(
        self,
        graph: Any,
        state: dict[str, Any],
        first: str,
        last: str,
        run: str,
        answer: Callable[[Any], Any],
    ) -> Work:
        persister = self._synchronous()

        def work() -> Any:
            app = _builder(graph, run, persister, state, first).build()
            return answer(app.run(halt_after=[last])[2])

        return work

    def _synchronous(self) -> Any:
        if self._persister is None:
            if self._place.kind == "postgres":
                self._persister = PostgreSQLPersister.from_values(*self._address())
            else:
                self._persister = SQLitePersister(self._place.path)
            self._persister.initialize()
            self._closing.append(self._persister.cleanup)
        return self._persister

    def _asynchronous(self) -> Any:
        if self._persister is None:
            self._persister = self._runner.run(self._open())
            self._closing.append(lambda: self._runner.run(self._persister.cleanup()))
        return self._persister

    async def _open(self) -> Any:
        if self._place.kind == "postgres":
            persister: Any = await AsyncPostgreSQLPersister.from_values(*self._address(), use_pool=True)
        else:
            persister = await AsyncSQLitePersister.from_values(self._place.path)
        await persister.initialize()
        return persister

    def _address(self) -> tuple[str, str, str, str, int]:
        place = self._place
        return place.database, place.user, "", place.host, 5432


def _builder(graph: Any, run: str, persister: Any, state: dict[str, Any], first: str) -> Any:
    return (
        ApplicationBuilder()
        .with_graph(graph)
        .with_identifiers(app_id=run, partition_key="race")
        .with_state(**state)
        .with_entrypoint(first)
        .with_state_persister(persister)
    )


def _chain_graph(steps: int, step: Any) -> tuple[Any, str]:
    names = [f"step{number}" for number in range(steps)]
    graph = GraphBuilder().with_actions(**dict.fromkeys(names, step))
    return graph.with_transitions(*itertools.pairwise(names)).build(), names[-1]


@action(reads=["n"], writes=["n"])
def _one_more(state: State) -> State:
    return state.update(n=state["n"] + 1)


@action(reads=["n"], writes=["n"])
async def _one_more_async(state: State) -> State:
    return state.update(n=state["n"] + 1)


@action(reads=["n"], writes=["n"])
def _watched(state: State) -> State:
    step_begins(state["n"])
    return state.update(n=state["n"] + 1)


@action(reads=[], writes=["total"])
async def _begin(state: State) -> State:
    return state.update(total=0)


@action(reads=["squares"], writes=["total"])
async def _join(state: State) -> State:
    return state.update(total=sum(state["squares"]))


@action(reads=["number"], writes=["square"])
async def _square(state: State) -> State:
    return state.update(square=state["number"] * state["number"])


class _Fan(MapStates):
    """The branches: separate applications, saved by the persister of their parent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def action(self, state: State, inputs: dict[str, Any]) -> Any:
        return _square

    async def states(self, state: State, context: Any, inputs: dict[str, Any]) -> Any:
        for number in range(self._width):
            yield state.update(number=number)

    async def reduce(self, state: State, states: Any) -> State:
        squares = [each["square"] async for each in states]
        return state.update(squares=squares)

    def is_async(self) -> bool:
        return True

    @property
    def reads(self) -> list[str]:
        return ["squares"]

    @property
    def writes(self) -> list[str]:
        return ["squares"]
