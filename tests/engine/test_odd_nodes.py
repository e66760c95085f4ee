"""Nodes that do unusual things: the run fails with a reason, is saved, and can be resumed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pydantic
import pytest

from holdfast import (
    START,
    Command,
    Context,
    ExecutionError,
    HoldfastError,
    Retry,
    RunStatus,
    Send,
    StateGraph,
    StateInvalid,
    append,
    union,
)
from holdfast.stores.memory import MemoryStore
from holdfast.testing import skipping_time


class S(TypedDict, total=False):
    x: int
    tags: Annotated[set[Any], union]
    log: Annotated[list[Any], append]


def alone(node: Any, schema: Any = S, **options: Any) -> StateGraph:
    return StateGraph(schema).add_node("a", node, **options).add_edge(START, "a")


class Odd(BaseException):
    pass


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def cancels_itself(state: Any) -> None:
    task = asyncio.ensure_future(asyncio.sleep(10))
    task.cancel()
    await task


def raises(error: BaseException) -> Any:
    def node(state: Any) -> None:
        raise error

    return node


ODD = {
    "a BaseException": (raises(Odd("odd")), "Odd: odd"),
    "a cancelled task": (cancels_itself, "CancelledError"),
    "an exception without words": (raises(Speechless()), "Speechless: .its message cannot be shown"),
    "a goto to a number": (lambda s: Command(goto=123), "leads to 123; give node names"),  # type: ignore[arg-type]
    "a goto to a list in a list": (lambda s: Command(goto=[["a"]]), r"leads to \['a'\]; give"),  # type: ignore[list-item]
    "a Send": (lambda s: Send("a", {}), r"returned a Send; return Command\(goto="),
    "a name that is no text": (lambda state, ctx: ctx.once("\ud800", list), "cannot be stored as a name"),
    "a question marked as asked again": (
        lambda state, ctx: ctx.ask("?", name="q#2"),
        "cannot be named 'q#2'",
    ),
    "an unhashable member of a set": (
        lambda s: {"tags": [{"k": 1}]},
        "state key 'tags' is a set, which cannot",
    ),
}


@pytest.mark.parametrize("siblings", [False, True])
@pytest.mark.parametrize("what", ODD)
def test_the_run_fails_and_can_be_resumed(what: str, siblings: bool) -> None:
    node, reason = ODD[what]
    graph = alone(node)
    if siblings:
        graph.add_node("b", lambda s: {"log": ["b"]}).add_edge(START, "b")
    app = graph.compile(MemoryStore())

    with pytest.raises(ExecutionError, match=reason):
        app.invoke(run_id="r")
    assert [info.status for info in app.runs()] == [RunStatus.FAILED]


def test_a_retry_rule_that_fails_repeats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app = alone(raises(ValueError("bad")), retry=Retry(on=lambda e: e.code == 429)).compile("memory://")  # type: ignore[attr-defined]

    with caplog.at_level(logging.ERROR), pytest.raises(ExecutionError, match="ValueError: bad"):
        app.invoke()
    assert "the retry rule of node 'a' failed" in caplog.text


def test_a_key_that_is_none_counts_as_empty() -> None:
    @dataclass
    class Loose:
        log: Annotated[list[str] | None, append] = None

    app = alone(lambda s: {"log": ["a"]}, Loose).compile("memory://")

    assert app.invoke(run_id="r").state["log"] == ["a"] == app.get_state("r")["log"]


def test_a_whole_value_that_its_reducer_cannot_take_is_refused() -> None:
    app = alone(lambda s: s.set("log", 5)).compile("memory://")

    with pytest.raises(ExecutionError, match="state key 'log' has the reducer append, which needs a list"):
        app.invoke()


def test_a_node_receives_what_it_names_wherever_it_names_it() -> None:
    def node(state: Any, x: int = 1, ctx: Context | None = None, *, config: Any = None) -> dict[str, Any]:
        assert ctx is not None
        return {"log": [x, ctx.node, config["who"]]}

    assert alone(node).compile("memory://").invoke(config={"who": "me"}).state["log"] == [1, "a", "me"]


def test_field_validators_of_a_pydantic_model_are_kept() -> None:
    class Mail(pydantic.BaseModel):
        to: str = "a@b"

        @pydantic.field_validator("to")
        @classmethod
        def has_at(cls, value: str) -> str:
            if "@" not in value:
                raise ValueError("no @")
            return value.lower()

    assert alone(lambda s: {"to": "C@D"}, Mail).compile("memory://").invoke().state["to"] == "c@d"
    with pytest.raises(ExecutionError, match="state key 'to' of Mail: Value error, no @"):
        alone(lambda s: {"to": "bad"}, Mail).compile("memory://").invoke()


def test_a_model_validator_cannot_be_kept_and_is_refused() -> None:
    class Order(pydantic.BaseModel):
        n: int = 0

        @pydantic.model_validator(mode="after")
        def small(self) -> Order:
            return self

    with pytest.raises(StateInvalid, match="Order has a model validator"):
        StateGraph(Order)


def test_a_sleep_does_not_count_against_a_timeout() -> None:
    async def node(state: Any, ctx: Context) -> dict[str, Any]:
        pause = ctx.sleep(400)
        assert pause is not None
        await pause
        return {"log": ["slept"]}

    with skipping_time():
        assert alone(node, timeout=200).compile("memory://").invoke().state["log"] == ["slept"]


def test_a_question_cannot_have_the_name_of_the_engines_own() -> None:
    app = alone(lambda state, ctx: ctx.ask("?", name="if_interrupted")).compile("memory://")

    with pytest.raises(ExecutionError, match="cannot be named 'if_interrupted'"):
        app.invoke()


def test_checkpoint_files_and_encryption_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="checkpoint files are not encrypted"):
        alone(lambda s: None).compile("memory://", checkpoint_dir=tmp_path, encryption_key="00" * 32)


def test_only_failures_that_were_passed_over_are_warned_of() -> None:
    from holdfast import CheckpointPolicy

    tries: list[int] = []

    def flaky(state: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")

    graph = alone(flaky, retry=Retry(attempts=2, delay=0)).add_node("b", raises(ValueError("always")))
    graph.add_edge("a", "b")
    out = graph.compile("memory://", policy=CheckpointPolicy(on_failure="continue")).invoke()

    assert out.warnings == ("step 'b' failed and was passed over: ValueError: always",)
