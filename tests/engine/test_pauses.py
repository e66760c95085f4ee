"""Pausing: gates, questions and their answers, and what a node may rely on when it runs again."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest

from holdfast import (
    END,
    START,
    AnswerRejected,
    App,
    CodecError,
    CommandRefused,
    Context,
    ExecutionError,
    HoldfastError,
    NotPaused,
    Outcome,
    Retention,
    Retry,
    RunFinished,
    RunStatus,
    Send,
    StateGraph,
    StateInvalid,
)
from holdfast.stores.base import Store
from tests.graphs import Heard, Log, chain, fan, one, says


def asks(prompt: str = "Publish?", **options: Any) -> Any:
    """A node that asks and logs the answer."""

    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        return {"log": [f"{ctx.node}: {ctx.ask(prompt, **options)}"]}

    return ask


def names(out: Outcome) -> list[str]:
    return [pause.name for pause in out.pauses]


# Gates.


def test_a_run_stops_before_a_node_and_goes_on_when_it_is_resumed(store: Store) -> None:
    """S4.8, S4.11"""
    app = chain("a", "b", "c").compile(store, interrupt_before=["b"])

    out = app.invoke(run_id="r")
    assert out.status == RunStatus.PAUSED and out.state["log"] == ["a"]
    assert [(pause.kind, pause.node, pause.step) for pause in out.pauses] == [("before", "b", "b#1")]

    assert app.resume("r").state["log"] == ["a", "b", "c"]


def test_a_run_stops_after_a_node(store: Store) -> None:
    """S4.8"""
    app = chain("a", "b", "c").compile(store, interrupt_after=["b"])

    out = app.invoke(run_id="r")
    assert out.status == RunStatus.PAUSED and out.state["log"] == ["a", "b"]
    assert [(pause.kind, pause.node) for pause in out.pauses] == [("after", "b")]

    assert app.resume("r").state["log"] == ["a", "b", "c"]


def test_a_gate_after_the_last_node_still_stops() -> None:
    app = chain("a").compile("memory://", interrupt_after=["a"])

    assert app.invoke(run_id="r").status == RunStatus.PAUSED
    assert app.resume("r").status == RunStatus.COMPLETED


def test_gates_before_and_after_one_node_both_stop() -> None:
    app = chain("a", "b", "c").compile("memory://", interrupt_before=["b"], interrupt_after=["b"])

    assert [app.invoke(run_id="r").status, app.resume("r").status] == ["paused", "paused"]
    assert app.resume("r").state["log"] == ["a", "b", "c"]


def test_a_gate_in_a_loop_stops_each_time_round() -> None:
    graph = StateGraph(Log).add_node("work", lambda s: {"n": s["n"] + 1}).add_edge(START, "work")
    graph.add_edge("work", "work", when=lambda s: s["n"] < 3).add_edge("work", END)
    app = graph.compile("memory://", interrupt_before=["work"])

    out = app.invoke({"n": 0}, run_id="r")
    seen = []
    while out.status == RunStatus.PAUSED:
        seen.append((out.state["n"], out.pauses[0].step))
        out = app.resume("r")

    assert seen == [(0, "work#1"), (1, "work#2"), (2, "work#3")] and out.state["n"] == 3


def test_siblings_run_while_one_of_them_waits_at_its_gate() -> None:
    app = fan("a", "b", "c").compile("memory://", interrupt_before=["b"])

    out = app.invoke(run_id="r")
    assert out.status == RunStatus.PAUSED and out.stats.steps_run == 2

    out = app.resume("r")
    assert out.state["log"] == ["a", "b", "c"] and out.stats.steps_run == 1 and out.stats.steps_kept == 2


def test_gates_reach_into_sub_graphs() -> None:
    graph = StateGraph(Log).add_node("sub", chain("x", "y", name="inner")).add_edge(START, "sub")
    app = graph.compile("memory://", interrupt_before=["sub/y"], interrupt_after=["sub/x"])

    assert [pause.step for pause in app.invoke(run_id="r").pauses] == ["sub#1/x#1"]
    assert [pause.step for pause in app.resume("r").pauses] == ["sub#1/y#1"]
    assert app.resume("r").state["log"] == ["x", "y"]


def test_notify_only_tells_and_the_run_goes_on(heard: Heard) -> None:
    app = chain("a", "b", "c").compile(
        "memory://", interrupt_before=["b"], interrupt_after=["c"], interrupt="notify"
    )
    out = app.invoke(observer=heard)

    assert out.status == RunStatus.COMPLETED and out.state["log"] == ["a", "b", "c"]
    told = [(event.node, event.data["kind"], event.data["notify"]) for event in heard.of("interrupt")]
    assert told == [("b", "before", True), ("c", "after", True)]
    assert heard.of("interrupt")[0].data["state"]["log"] == ["a"]


def test_a_gate_takes_approval_but_no_other_answer() -> None:
    app = chain("a", "b").compile("memory://", interrupt_before=["b"])
    app.invoke(run_id="r")

    with pytest.raises(AnswerRejected, match="waits at a gate, which takes no answer"):
        app.resume("r", "yes")
    assert app.resume("r", True).status == RunStatus.COMPLETED


def test_the_state_can_be_edited_while_a_run_waits(store: Store) -> None:
    app = chain("a", "b").compile(store, interrupt_before=["b"])
    app.invoke({"n": 1}, run_id="r")

    out = app.resume("r", update={"n": 7, "log": ["edited"]})

    assert out.state == {"n": 7, "log": ["a", "edited", "b"]}


def test_an_edit_is_seen_by_a_sub_graph_that_waits() -> None:
    inner = chain("x", "y", nodes={"y": lambda s: {"log": [f"y saw {s['n']}"]}}, name="inner")
    graph = StateGraph(Log).add_node("sub", inner).add_edge(START, "sub")
    app = graph.compile("memory://", interrupt_before=["sub/y"])
    app.invoke({"n": 1}, run_id="r")

    assert app.resume("r", update={"n": 7}).state["log"] == ["x", "y saw 7"]


def test_a_gate_has_the_pause_event_with_the_state(heard: Heard) -> None:
    """S4.10"""
    chain("a", "b").compile("memory://", interrupt_before=["b"]).invoke({"n": 1}, observer=heard)

    [event] = heard.of("interrupt")
    assert event.type == "pause" and event.node == "b" and event.data["state"] == {"n": 1, "log": ["a"]}
    assert event.data["kind"] == "before" and event.data["checkpoint_path"] is None


# Questions.


def test_a_node_asks_and_gets_its_answer(store: Store) -> None:
    """S2.1, S2.11, S2.14"""
    app = chain("a", "ask", "c", nodes={"ask": asks()}).compile(store)

    out = app.invoke(run_id="r")
    assert out.status == RunStatus.PAUSED and out.state["log"] == ["a"]
    [pause] = out.pauses
    assert (pause.kind, pause.node, pause.step, pause.name, pause.prompt) == (
        "ask",
        "ask",
        "ask#1",
        "Publish?",
        "Publish?",
    )
    assert pause.schema is None and pause.expires_at is None and pause.since.tzinfo is not None
    assert [(found.id, found.prompt) for found in app.pauses("r")] == [(pause.id, pause.prompt)]
    assert app.runs()[0].status == "paused"

    out = app.resume("r", "yes")
    assert out.state["log"] == ["a", "ask: yes", "c"] and out.stats.steps_kept == 1


@pytest.mark.parametrize("answer", [False, 0, "", [], {}, None])
def test_an_answer_may_be_anything_also_nothing(answer: Any) -> None:
    app = one(asks(name="q")).compile("memory://")
    app.invoke(run_id="r")

    assert app.resume("r", answers={"q": answer}).state["log"] == [f"work: {answer}"]


def test_answers_are_matched_by_name_not_by_order_of_calls() -> None:
    order = ["first", "second"]

    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        return {"log": [f"{name}={ctx.ask(name)}" for name in order]}

    app = one(ask).compile("memory://")
    assert names(app.invoke(run_id="r")) == ["first"]
    order.reverse()
    out = app.resume("r", answers={"first": 1})
    assert names(out) == ["second"]

    assert app.resume("r", answers={"second": 2}).state["log"] == ["second=2", "first=1"]


def test_a_node_may_ask_several_questions_one_after_the_other() -> None:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.ask("name?"), ctx.ask("colour?")]}

    app = one(ask).compile("memory://")
    app.invoke(run_id="r")
    app.resume("r", "ann")

    assert app.resume("r", "blue").state["log"] == ["ann", "blue"]


def test_a_node_may_ask_again_until_the_answer_is_good() -> None:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        while not str(age := ctx.ask("age?")).isdigit():
            ctx.emit("that is no age")
        return {"log": [age]}

    app = one(ask).compile("memory://")
    app.invoke(run_id="r")

    assert [pause.name for pause in app.resume("r", "old").pauses] == ["age?#2"]
    assert app.resume("r", "42").state["log"] == ["42"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_node_that_swallows_its_pause_fails_loudly(is_async: bool) -> None:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        try:
            return {"log": [ctx.ask("well?")]}
        except:  # noqa: E722
            return {"log": ["swallowed"]}

    async def ask_async(state: Any, ctx: Context) -> dict[str, Any]:
        return ask(state, ctx)

    app = one(ask_async if is_async else ask).compile("memory://")

    with pytest.raises(
        ExecutionError, match=r"went on although it is waiting for an answer to 'well\?'; a bare"
    ):
        app.invoke(run_id="r")
    assert app.get_state("r")["log"] == []


async def test_async_nodes_ask_too() -> None:
    async def ask(state: Any, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": [ctx.ask("well?")]}

    app = one(ask).compile("memory://")
    assert (await app.ainvoke(run_id="r")).status == RunStatus.PAUSED
    assert (await app.aresume("r", "fine")).state["log"] == ["fine"]


def test_several_siblings_ask_at_once_and_may_be_answered_in_parts(store: Store) -> None:
    calls: list[str] = []

    def counted(name: str) -> Any:
        def ask(state: Any, ctx: Context) -> dict[str, Any]:
            calls.append(name)
            return {"log": [f"{name}={ctx.ask(name)}"]}

        return ask

    app = fan("a", "b", "c", "plain", nodes={name: counted(name) for name in "abc"}).compile(store)
    out = app.invoke(run_id="r")
    assert sorted(names(out)) == ["a", "b", "c"]

    out = app.resume("r", answers={"b": 2})
    assert out.status == RunStatus.PAUSED and sorted(names(out)) == ["a", "c"] and out.state["log"] == []
    out = app.resume("r", answers={"a": 1, "c": 3})

    assert out.state["log"] == ["a=1", "b=2", "c=3", "plain"]
    assert sorted(calls) == ["a", "a", "b", "b", "c", "c"]


def test_resuming_a_waiting_run_without_an_answer_changes_nothing(store: Store) -> None:
    calls: list[int] = []

    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        calls.append(1)
        return {"log": [ctx.ask("well?")]}

    app = one(ask).compile(store)
    first = app.invoke(run_id="r")
    before = list(store.read("r"))

    again = app.resume("r")

    assert again.status == RunStatus.PAUSED and names(again) == names(first) and calls == [1]
    assert list(store.read("r")) == before


# Answers that do not fit.


def asking(**options: Any) -> Any:
    app = one(asks(name="q", **options)).compile("memory://")
    app.invoke(run_id="r")
    return app


class Decision(TypedDict):
    verdict: Literal["yes", "no"]
    reason: str


@dataclass
class Score:
    points: int
    note: str = ""


@pytest.mark.parametrize(
    ("options", "good", "bad", "reason"),
    [
        ({"choices": ["yes", "no"]}, "yes", "maybe", "the answer must be one of 'yes', 'no', not 'maybe'"),
        ({"choices": [1, 2]}, 1, True, "must be one of 1, 2, not True"),
        ({"schema": str}, "x", 1, "must be of type string, not int"),
        ({"schema": int}, 1, True, "must be of type integer, not bool"),
        ({"schema": float}, 1, "1", "must be of type number"),
        ({"schema": bool}, False, 0, "must be of type boolean"),
        ({"schema": int | None}, None, "x", "must be of type integer.*must be of type null"),
        ({"schema": list[int]}, [1], [1, "x"], r"the answer\[1\] must be of type integer"),
        ({"schema": Literal["a", "b"]}, "a", "c", "must be one of 'a', 'b'"),
        ({"schema": Decision}, {"verdict": "no", "reason": ""}, {"verdict": "no"}, "reason"),
        (
            {"schema": Decision},
            {"verdict": "no", "reason": ""},
            {"verdict": "?", "reason": ""},
            r"\['verdict'\]",
        ),
        ({"schema": Score}, {"points": 1}, {"points": 1, "x": 2}, "unknown key 'x'"),
        ({"schema": {"type": "integer", "minimum": 1, "maximum": 5}}, 5, 6, "must be at most 5, not 6"),
        ({"schema": {"type": "integer", "minimum": 1}}, 1, 0, "must be at least 1, not 0"),
        ({"schema": {"type": "string", "minLength": 2, "maxLength": 3}}, "ab", "a", "length of at least 2"),
        ({"schema": {"type": "array", "minItems": 1, "maxItems": 2}}, [1], [1, 2, 3], "length of at most 2"),
        ({"schema": {"const": 3}}, 3, 4, "must be 3, not 4"),
        ({"schema": {"type": ["string", "null"]}}, None, 1, "string or null"),
        ({"schema": dict[str, int]}, {"a": 1}, [1], "must be of type object"),
    ],
)
def test_an_answer_of_the_wrong_shape_is_refused_with_the_reason(
    options: dict[str, Any], good: Any, bad: Any, reason: str
) -> None:
    app = asking(**options)
    assert app.pauses("r")[0].schema is not None

    with pytest.raises(AnswerRejected, match=reason):
        app.resume("r", answers={"q": bad})
    assert app.runs()[0].status == "paused"
    assert app.resume("r", answers={"q": good}).status == RunStatus.COMPLETED


@pytest.mark.parametrize("schema", [object, {"pattern": "x"}, {"properties": {"a": {"$ref": "#"}}}, set])
def test_a_schema_that_cannot_be_checked_fails_the_step(schema: Any) -> None:
    with pytest.raises(ExecutionError) as caught:
        asking(schema=schema)
    assert isinstance(caught.value.cause, HoldfastError)


def test_an_answer_to_nothing_is_refused() -> None:
    app = asking()

    with pytest.raises(AnswerRejected, match="has no pause 'quux' \\(it waits for: 'q'\\)"):
        app.resume("r", answers={"quux": 1})
    with pytest.raises(AnswerRejected, match="either answer= or answers="):
        app.resume("r", 1, answers={"q": 1})


def test_one_wrong_answer_of_several_refuses_them_all() -> None:
    app = fan("a", "b", nodes={"a": asks(name="a", schema=int), "b": asks(name="b", schema=int)}).compile(
        "memory://"
    )
    app.invoke(run_id="r")

    with pytest.raises(AnswerRejected):
        app.resume("r", answers={"a": 1, "b": "x"})
    assert len(app.pauses("r")) == 2


def test_an_answer_to_a_run_that_does_not_wait_is_refused(store: Store) -> None:
    app = chain("a", "b", nodes={"b": lambda s: 1 / 0}).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke(run_id="failed")
    done = chain("a").compile(store)
    done.invoke(run_id="done")

    for how in ({"answer": 1}, {"answers": {"q": 1}}):
        with pytest.raises(NotPaused, match="'failed' is not waiting for an answer \\(it is failed\\)"):
            app.resume("failed", **how)
        with pytest.raises(RunFinished, match="execution already complete"):
            done.resume("done", **how)


def test_one_answer_for_several_questions_is_ambiguous() -> None:
    app = fan("a", "b", nodes={"a": asks(name="x"), "b": asks(name="y")}).compile("memory://")
    app.invoke(run_id="r")

    with pytest.raises(AnswerRejected, match=r"waits for several answers; say which .*'x', 'y'"):
        app.resume("r", "yes")


def test_a_name_that_two_pauses_share_is_ambiguous_and_their_ids_are_not(store: Store) -> None:
    app = fan("a", "b", nodes={"a": asks(), "b": asks()}).compile(store)
    out = app.invoke(run_id="r")

    with pytest.raises(AnswerRejected, match="several pauses named 'Publish\\?'; answer by id"):
        app.resume("r", answers={"Publish?": 1})
    ids = {pause.node: pause.id for pause in out.pauses}
    assert app.resume("r", answers={ids["b"]: "no", ids["a"]: "yes"}).state["log"] == ["a: yes", "b: no"]


def test_an_answer_that_cannot_be_stored_is_refused_and_the_run_still_waits() -> None:
    app = asking()

    with pytest.raises(CodecError):
        app.resume("r", object())
    assert app.resume("r", 1).status == RunStatus.COMPLETED


def test_an_answer_after_its_time_is_refused() -> None:
    app = asking(timeout=0.01)
    [pause] = app.pauses("r")
    assert pause.expires_at - pause.since < dt.timedelta(seconds=1)
    time.sleep(0.02)

    with pytest.raises(AnswerRejected, match="the answer to 'q' of run 'r' comes too late: it was due by"):
        app.resume("r", 1)


def test_the_retention_limits_how_long_a_pause_may_be_answered(memory: Store) -> None:
    """S2.5"""
    graph = one(asks(name="q"))
    graph.compile(memory).invoke(run_id="r")
    time.sleep(0.02)

    with pytest.raises(AnswerRejected, match="too late"):
        graph.compile(memory, retention=Retention(pause_ttl=dt.timedelta(milliseconds=10))).resume("r", 1)
    assert graph.compile(memory, retention=Retention()).resume("r", 1).status == RunStatus.COMPLETED


@pytest.fixture
def stale(memory: Store) -> Callable[..., App]:
    """A run `r` whose question `q` has expired by the retention of its app."""

    def made(**question: Any) -> App:
        retention = Retention(pause_ttl=dt.timedelta(milliseconds=10))
        app = one(asks(name="q", **question)).compile(memory, retention=retention)
        app.invoke(run_id="r")
        time.sleep(0.03)
        return app

    return made


def test_a_pause_says_when_it_expires_by_the_retention(memory: Store) -> None:
    """S2.5: 24 hours by default, for a Retention without arguments."""
    app = one(asks(name="q")).compile(memory, retention=Retention())

    [pause] = app.invoke(run_id="r").pauses

    assert pause.expires_at is not None and pause.expires_at - pause.since == dt.timedelta(hours=24)
    assert app.pauses("r") == (pause,) and app.resume("r").pauses == (pause,), "it is left as it is"
    assert one(asks(name="q")).compile(memory).pauses("r")[0].expires_at is None, "without a retention"


def test_an_expired_question_is_asked_again_by_a_resume(stale: Callable[..., App]) -> None:
    """S2.5: never a dead end."""
    app = stale()
    [old] = app.pauses("r")

    [new] = app.resume("r").pauses

    assert new.id == old.id and old.expires_at is not None and new.since > old.expires_at


def test_an_expired_question_is_settled_by_its_default(stale: Callable[..., App]) -> None:
    """S2.5"""
    out = stale(default="never mind").resume("r")

    assert out.status == RunStatus.COMPLETED and out.state["log"] == ["work: never mind"]


@pytest.mark.parametrize("which", ["", "q", "work#1:q"])
def test_an_expired_question_can_be_extended_and_answered(stale: Callable[..., App], which: str) -> None:
    """S2.5: the error about the late answer names the way out."""
    app = stale()
    with pytest.raises(AnswerRejected, match=r"too late.*app\.resume\('r'\).*app\.extend\('r'\)"):
        app.resume("r", "late")

    assert app.extend("r", dt.timedelta(days=2), pause=which, by="ann") == "paused"

    [pause] = app.pauses("r")
    assert pause.expires_at is not None
    assert pause.expires_at > dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    assert app.resume("r").pauses == (pause,), "it is not stale any more"
    assert app.answer("r", "in time").status == "applied"
    assert app.resume("r").state["log"] == ["work: in time"]


def test_only_open_questions_are_extended_and_by_sensible_times(stale: Callable[..., App]) -> None:
    app = stale()
    for duration in (0, -1, float("nan"), 1e30, "1h", True):
        with pytest.raises(StateInvalid, match="from 0 seconds to 100 years"):
            app.extend("r", duration)  # type: ignore[arg-type]
    with pytest.raises(CommandRefused, match=r"no open question 'other'.*'q'"):
        app.extend("r", pause="other")
    app.extend("r")
    app.resume("r", "done")
    with pytest.raises(RunFinished):
        app.extend("r")


def test_an_extension_never_shortens_a_time(memory: Store) -> None:
    limited = one(asks(name="q", timeout=dt.timedelta(days=2))).compile(memory)
    limited.invoke(run_id="limited")
    before = limited.pauses("limited")[0].expires_at
    limited.extend("limited", dt.timedelta(minutes=1))
    kept = one(asks(name="q")).compile(memory, retention=Retention(pause_ttl=dt.timedelta(days=1)))
    kept.invoke(run_id="kept")
    since = kept.pauses("kept")[0].expires_at
    kept.extend("kept", dt.timedelta(minutes=1))
    free = one(asks(name="q")).compile(memory)
    free.invoke(run_id="free")

    assert limited.pauses("limited")[0].expires_at == before
    assert since is not None and kept.pauses("kept")[0].expires_at == since
    with pytest.raises(CommandRefused, match="'q' can be answered at any time"):
        free.extend("free", dt.timedelta(minutes=1))


def test_a_longer_time_of_its_own_beats_the_retention(memory: Store) -> None:
    graph = one(asks(name="q", timeout=dt.timedelta(hours=1)))
    app = graph.compile(memory, retention=Retention(pause_ttl=dt.timedelta(milliseconds=1)))
    app.invoke(run_id="r")
    time.sleep(0.01)

    assert app.resume("r", 1).status == RunStatus.COMPLETED


# What a node may rely on.


def test_except_exception_cannot_swallow_a_pause() -> None:
    def careless(state: Any, ctx: Context) -> dict[str, Any]:
        try:
            answer = ctx.ask("well?")
        except Exception:
            answer = "swallowed"
        return {"log": [answer]}

    app = one(careless).compile("memory://")
    assert app.invoke(run_id="r").status == RunStatus.PAUSED
    assert app.resume("r", "fine").state["log"] == ["fine"]


def test_what_was_done_once_before_a_question_is_not_done_again(store: Store) -> None:
    charged: list[str] = []

    def charge(amount: int, *, to: str) -> dict[str, Any]:
        charged.append(to)
        return {"receipt": len(charged), "amount": amount}

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        receipt = ctx.once("charge", charge, 5, to="ann")
        return {"log": [f"{receipt} {ctx.ask('ship?')}"]}

    app = one(work).compile(store)
    app.invoke(run_id="r")

    assert app.resume("r", "yes").state["log"] == ["{'receipt': 1, 'amount': 5} yes"] and charged == ["ann"]


def test_what_was_done_once_survives_a_failure_and_its_retries() -> None:
    calls: list[int] = []
    broken = [True]

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        first = ctx.once("a", lambda: calls.append(1) or len(calls))
        if broken[0]:
            raise OSError
        return {"n": first, "log": [str(ctx.once("none", lambda: None))]}

    app = one(work).compile("memory://")
    with pytest.raises(ExecutionError):
        app.invoke(run_id="r")
    broken[0] = False

    assert app.resume("r").state == {"n": 1, "log": ["None"]} and calls == [1]


def test_different_keys_and_different_steps_remember_apart() -> None:
    calls: list[str] = []

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        for key in ("x", "y", "x"):
            ctx.once(key, lambda key=key: calls.append(f"{ctx.step} {key}"))
        return {"n": state["n"] + 1}

    graph = StateGraph(Log).add_node("work", work).add_edge(START, "work")
    graph.add_edge("work", "work", when=lambda s: s["n"] < 2).add_edge("work", END)
    graph.compile("memory://").invoke({"n": 0})

    assert calls == ["work#1 x", "work#1 y", "work#2 x", "work#2 y"]


async def test_once_awaits_coroutines() -> None:
    calls: list[int] = []

    async def fetch(n: int) -> int:
        calls.append(n)
        return n * 2

    async def work(state: Any, ctx: Context) -> dict[str, Any]:
        one = await ctx.once("a", fetch, 1)
        two = await ctx.once("b", lambda: fetch(2))
        return {"log": [f"{one} {two} {ctx.ask('well?')}"]}

    app = one(work).compile("memory://")
    await app.ainvoke(run_id="r")
    out = await app.aresume("r", "ok")

    assert out.state["log"] == ["2 4 ok"] and calls == [1, 2]


def test_once_names_its_key_when_a_result_cannot_be_stored() -> None:
    with pytest.raises(ExecutionError, match="once:thing of step 'work'"):
        one(lambda s, ctx: ctx.once("thing", object)).compile("memory://").invoke()


def test_once_is_stored_before_the_node_goes_on(store: Store) -> None:
    seen: list[int] = []

    def work(state: Any, ctx: Context) -> None:
        before = len(list(store.read("r")))
        ctx.once("x", lambda: 1)
        seen.append(len(list(store.read("r"))) - before)

    one(work).compile(store).invoke(run_id="r")
    assert seen == [2], "its intent, and its result"


def test_a_sleep_waits_and_does_not_wait_again_after_a_pause(store: Store) -> None:
    slept: list[float] = []

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        begun = time.monotonic()
        ctx.sleep(0.2)
        slept.append(time.monotonic() - begun)
        return {"log": [ctx.ask("well?")]}

    app = one(work).compile(store)
    app.invoke(run_id="r")
    app.resume("r", "fine")

    assert slept[0] >= 0.19 and slept[1] < slept[0]


def test_a_long_sleep_that_is_over_costs_a_resume_nothing() -> None:
    from holdfast.journal.records import Noted

    asked = [False]

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        if asked[0]:
            ctx.sleep(dt.timedelta(days=3), name="grace")
        asked[0] = True
        return {"log": [ctx.ask("well?")]}

    app = one(work).compile("memory://")
    app.invoke(run_id="r")
    journal = app._settings.journal
    writer = app._runner.writer(journal.load(journal.info("r"), app._settings.codec))
    writer.record(Noted("work#1", "sleep:grace", app._settings.codec.encode(time.time() - 1)))
    writer.flush()

    assert app.resume("r", "fine").state["log"] == ["fine"]


async def test_an_async_sleep_leaves_the_loop_free() -> None:
    ticks: list[int] = []

    async def work(state: Any, ctx: Context) -> dict[str, Any]:
        await ctx.sleep(0.05)
        return {"log": ["slept"]}

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0.005)

    ticking = asyncio.ensure_future(tick())
    out = await one(work).compile("memory://").ainvoke()
    ticking.cancel()

    assert out.state["log"] == ["slept"] and len(ticks) > 2


def test_the_idempotency_key_is_the_same_for_every_attempt_and_no_other_step() -> None:
    keys: list[str] = []

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        keys.append(ctx.idempotency_key)
        return {"log": [ctx.ask("well?")]}

    app = fan("a", "b", nodes={"a": work, "b": work}).compile("memory://")
    out = app.invoke(run_id="r")
    app.resume("r", answers={pause.id: "x" for pause in out.pauses})

    assert sorted(keys) == ["r:a#1", "r:a#1", "r:b#1", "r:b#1"]


# Questions in odd places.


def test_items_of_a_for_each_ask_each_for_itself(store: Store) -> None:
    calls: list[int] = []

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        calls.append(state["n"])
        answer = ctx.ask(f"item {state['n']}?", name=f"q{state['n']}") if state["n"] % 2 else "even"
        return {"log": [f"{state['n']}={answer}"]}

    graph = StateGraph(Log).add_node("item", work).add_node("end", says("end")).add_edge("item", "end")
    graph.add_conditional_edges(START, lambda s: [Send("item", {"n": n}, f"k{n}") for n in range(4)])
    app = graph.compile(store)

    out = app.invoke(run_id="r")
    assert sorted(names(out)) == ["q1", "q3"] and {pause.step for pause in out.pauses} == {
        "item#1[k1]",
        "item#1[k3]",
    }
    app.resume("r", answers={"q3": "c"})
    out = app.resume("r", answers={"q1": "a"})

    assert out.state["log"] == ["0=even", "1=a", "2=even", "3=c", "end"]
    assert sorted(calls) == [0, 1, 1, 2, 3, 3]


def test_a_node_of_a_sub_graph_asks(store: Store) -> None:
    inner = chain("x", "y", nodes={"y": asks(name="deep")}, name="inner")
    middle = StateGraph(Log, name="middle").add_node("in", inner).add_edge(START, "in")
    graph = (
        StateGraph(Log)
        .add_node("mid", middle)
        .add_node("z", says("z"))
        .add_edge(START, "mid")
        .add_edge("mid", "z")
    )
    app = graph.compile(store)

    out = app.invoke(run_id="r")
    assert [(pause.step, pause.name) for pause in out.pauses] == [("mid#1/in#1/y#1", "deep")]

    assert app.resume("r", "down here").state["log"] == ["x", "y: down here", "z"]


def test_a_sub_graph_per_item_asks_per_item(store: Store) -> None:
    inner = chain("x", nodes={"x": asks()}, name="inner")
    graph = StateGraph(Log).add_node("each", inner)
    graph.add_conditional_edges(START, lambda s: [Send("each", {"n": n}, f"k/{n}") for n in range(3)])
    app = graph.compile(store)

    out = app.invoke(run_id="r")
    assert len(out.pauses) == 3
    out = app.resume("r", answers={pause.id: index for index, pause in enumerate(out.pauses)})

    assert out.status == RunStatus.COMPLETED and sorted(out.state["log"]) == ["x: 0", "x: 1", "x: 2"]


def test_a_question_in_a_loop_is_asked_anew_each_time_round(store: Store) -> None:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [ctx.ask("again?")]}

    graph = StateGraph(Log).add_node("ask", ask).add_edge(START, "ask")
    graph.add_edge("ask", "ask", when=lambda s: s["log"][-1] != "stop").add_edge("ask", END)
    app = graph.compile(store)

    app.invoke({"n": 0}, run_id="r")
    assert app.resume("r", "more").status == RunStatus.PAUSED
    assert app.resume("r", "more").status == RunStatus.PAUSED
    assert app.resume("r", "stop").state == {"n": 3, "log": ["more", "more", "stop"]}


def test_a_node_with_a_timeout_asks_too() -> None:
    app = one(asks(name="q"), timeout=30).compile("memory://")
    app.invoke(run_id="r")

    assert app.resume("r", "in time").state["log"] == ["work: in time"]


def test_retries_after_an_answer_keep_the_answer() -> None:
    calls: list[str] = []

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        calls.append(ctx.ask("well?"))
        if len(calls) < 3:
            raise OSError("flaky")
        return {"log": calls}

    app = one(work, retry=Retry(attempts=3, delay=0)).compile("memory://")
    app.invoke(run_id="r")

    assert app.resume("r", "fine").state["log"] == ["fine"] * 3


def test_without_a_barrier_the_rest_goes_on_while_one_step_waits(store: Store) -> None:
    graph = StateGraph(Log).add_node("a", says("a")).add_node("ask", asks(name="q")).add_node("c", says("c"))
    graph.add_node("end", says("end")).add_edge(START, "a").add_edge(START, "ask").add_edge("a", "c")
    app = graph.add_edge(["ask", "c"], "end").compile(store, barrier=False)

    assert app.invoke(run_id="r").state["log"] == ["a", "c"]
    assert app.resume("r", 1).state["log"] == ["a", "c", "ask: 1", "end"]


def test_a_gate_of_a_cancelled_run_is_still_closed() -> None:
    app = chain("a", "b").compile("memory://", interrupt_before=["b"])
    app.invoke(run_id="r")
    app.cancel("r")

    assert app.resume("r").status == RunStatus.PAUSED
    assert app.resume("r").status == RunStatus.COMPLETED


def test_a_failed_sibling_does_not_lose_a_question() -> None:
    broken = [True]

    def fails(state: Any) -> None:
        if broken[0]:
            raise ValueError("once")

    app = fan("a", "b", nodes={"a": asks(name="q"), "b": fails}).compile("memory://")
    with pytest.raises(ExecutionError, match="once"):
        app.invoke(run_id="r")
    broken[0] = False

    assert names(app.resume("r", answers={"q": "kept"})) == []
    assert app.get_state("r")["log"] == ["a: kept"]


def test_a_question_beside_a_gate_is_answered_and_the_gate_passed() -> None:
    app = fan("a", "b", nodes={"a": asks(name="q")}).compile("memory://", interrupt_before=["b"])
    out = app.invoke(run_id="r")
    assert sorted(pause.kind for pause in out.pauses) == ["ask", "before"]

    assert app.resume("r", answers={"q": 1}).state["log"] == ["a: 1", "b"]


def test_streams_take_answers() -> None:
    app = one(asks(name="q")).compile("memory://")
    first = [event.type for event in app.stream(run_id="r")]
    second = list(app.stream(checkpoint="r", answers={"q": "streamed"}))

    assert first[-1] == "pause" and second[-1].type == "graph.complete"
    assert app.get_state("r")["log"] == ["work: streamed"]
