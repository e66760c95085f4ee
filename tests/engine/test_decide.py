"""`decide`: every scheduling rule as a table, without a loop, a store or a clock."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import RunStatus, StateGraph
from holdfast.engine.decide import MAX_CRASHES, Rules, decide, qualified
from holdfast.journal.fold import fold
from holdfast.journal.records import (
    Answered,
    Fault,
    FrameOpened,
    Paused,
    Record,
    Resumed,
    RunEnded,
    RunStarted,
    StepFailed,
    StepFinished,
    StepStarted,
    Target,
    WaveFinished,
)
from holdfast.journal.run_state import RunState
from holdfast.state.codec import Codec
from tests.graphs import Log, chain, says

FAULT = Fault("ValueError", "bad")


def look(ctx: Any) -> None:
    return None


def graph() -> StateGraph:
    """Nodes that differ in what an interruption means for them, and a sub-graph."""
    built = StateGraph(Log, max_iterations=3)
    for name in "abc":
        built.add_node(name, says(name))
    for wish in ("skip", "ask", "fail"):
        built.add_node(wish, says(wish), if_interrupted=wish)
    built.add_node("look", says("look"), if_interrupted=look)
    built.add_node("careful", says("careful"), idempotent=False)
    built.add_node("sub", chain("x", "y", name="inner", max_iterations=2))
    return built


GRAPH = graph().build()


def run_of(nodes: str, *records: Record) -> RunState:
    """A run that began with these nodes and went on like that."""
    begun = RunStarted("w", (), tuple(map(Target, nodes.split())), Codec().encode({}), {}, "")
    return fold((record, 1.0) for record in (begun, *records))


def told(run: RunState, rules: Rules = Rules()) -> list[str]:  # noqa: B008
    """The decisions as short text."""
    return [_told(decision) for decision in decide(GRAPH, run, rules)]


def _told(decision: Any) -> str:
    name = type(decision).__name__
    match name:
        case "End":
            return f"End {decision.status}"
        case "RouteOn":
            return f"RouteOn {decision.frame.path or '.'} {decision.steps or 'all'}"
        case "ExceedIterations":
            return f"ExceedIterations {decision.frame.path or '.'} {decision.limit}"
        case "AskWhat":
            return f"AskWhat {decision.step.id} {decision.kind}"
        case "Start":
            return f"Start {decision.step.id}" + ("" if decision.at is None else f" at {decision.at:g}")
    return f"{name} {decision.step.id}"


def started(step: str, attempt: int = 1) -> StepStarted:
    return StepStarted(step, attempt)


def done(step: str) -> list[Record]:
    return [StepStarted(step, 1), StepFinished(step)]


def ask(step: str, name: str = "q", kind: str = "ask") -> Paused:
    return Paused(f"{step}:{name}", kind, step, step.split("#")[0], name)


OPENED = FrameOpened("sub#1", (), (), (Target("x"),))
CRASHES = [record for _ in range(MAX_CRASHES) for record in (StepStarted("a#1", 1), Resumed("me"))]

TABLE: dict[str, tuple[RunState, list[str]]] = {
    "all first steps start together": (run_of("a b"), ["Start a#1", "Start b#1"]),
    "what runs is waited for": (run_of("a b", started("a#1"), started("b#1")), []),
    "a lone running step is waited for": (run_of("a", started("a#1")), []),
    "a finished wave is routed on": (run_of("a b", *done("a#1"), *done("b#1")), ["RouteOn . all"]),
    "a half-finished wave waits": (run_of("a b", *done("a#1"), started("b#1")), []),
    "a lone finished step is routed on": (run_of("a", *done("a#1")), ["RouteOn . all"]),
    "nothing left means completed": (run_of("a", *done("a#1"), WaveFinished("", (), ())), ["End completed"]),
    "a failed attempt is repeated at its time": (
        run_of("a", started("a#1"), StepFailed("a#1", 1, FAULT, 9.0)),
        ["Start a#1 at 9"],
    ),
    "a final failure ends the run": (
        run_of("a", started("a#1"), StepFailed("a#1", 1, FAULT)),
        ["End failed"],
    ),
    "a failure waits for running siblings": (
        run_of("a b", started("a#1"), started("b#1"), StepFailed("a#1", 1, FAULT)),
        [],
    ),
    "a failure starts nothing new": (
        run_of("a b c", started("a#1"), StepFailed("a#1", 1, FAULT), *done("b#1")),
        ["End failed"],
    ),
    "a failure stops retries of siblings": (
        run_of(
            "a b",
            started("a#1"),
            started("b#1"),
            StepFailed("a#1", 1, FAULT),
            StepFailed("b#1", 1, FAULT, 5.0),
        ),
        ["End failed"],
    ),
    "a question pauses the run": (run_of("a", started("a#1"), ask("a#1")), ["End paused"]),
    "a question lets siblings run": (run_of("a b", started("a#1"), ask("a#1")), ["Start b#1"]),
    "a question waits for running siblings": (run_of("a b", started("a#1"), ask("a#1"), started("b#1")), []),
    "a question beside finished siblings pauses": (
        run_of("a b", started("a#1"), ask("a#1"), *done("b#1")),
        ["End paused"],
    ),
    "an answered step starts again": (
        run_of("a", started("a#1"), ask("a#1"), RunEnded("paused"), Answered("a#1:q", b"1"), Resumed("me")),
        ["Start a#1"],
    ),
    "a failure goes before a pause": (
        run_of("a b", started("a#1"), ask("a#1"), started("b#1"), StepFailed("b#1", 1, FAULT)),
        ["End failed"],
    ),
    "a gate behind a finished step stops what follows": (
        run_of(
            "a",
            *done("a#1"),
            WaveFinished("", (), (Target("b"),)),
            Paused("a#1:after", "after", "a#1", "a"),
        ),
        ["End paused"],
    ),
    "an interrupted step is run again": (run_of("a", started("a#1"), Resumed("me")), ["Start a#1"]),
    "an interrupted step is skipped": (run_of("skip", started("skip#1"), Resumed("me")), ["SkipStep skip#1"]),
    "an interrupted step is asked about": (
        run_of("ask", started("ask#1"), Resumed("me")),
        ["AskWhat ask#1 in_doubt"],
    ),
    "an interrupted step is refused": (
        run_of("fail", started("fail#1"), Resumed("me")),
        ["RefuseStep fail#1"],
    ),
    "a step that is not idempotent is refused": (
        run_of("careful", started("careful#1"), Resumed("me")),
        ["RefuseStep careful#1"],
    ),
    "an interrupted step is looked into": (
        run_of("look", started("look#1"), Resumed("me")),
        ["Reconcile look#1"],
    ),
    "a step not yet started is not in doubt": (run_of("fail", Resumed("me")), ["Start fail#1"]),
    "a step that keeps killing the process is asked about": (run_of("a", *CRASHES), ["AskWhat a#1 poison"]),
    "a step that killed the process twice is not": (run_of("a", *CRASHES[2:]), ["Start a#1"]),
    "the answer to an interrupted step counts": (
        run_of(
            "ask",
            started("ask#1"),
            Resumed("me"),
            ask("ask#1", "if_interrupted", "in_doubt"),
            Answered("ask#1:if_interrupted", b"skip"),
        ),
        ["SkipStep ask#1"],
    ),
    "a sub-graph is opened": (run_of("sub"), ["OpenFrame sub#1"]),
    "a sub-graph's steps start": (run_of("sub", OPENED), ["Start sub#1/x#1"]),
    "a sub-graph's wave is routed": (run_of("sub", OPENED, *done("sub#1/x#1")), ["RouteOn sub#1 all"]),
    "a sub-graph that came to its end is closed": (
        run_of("sub", OPENED, *done("sub#1/x#1"), WaveFinished("sub#1", (), ())),
        ["CloseFrame sub#1"],
    ),
    "a sub-graph runs beside plain steps": (run_of("sub a", OPENED), ["Start a#1", "Start sub#1/x#1"]),
    "a failure inside a sub-graph ends the run": (
        run_of("sub", OPENED, started("sub#1/x#1"), StepFailed("sub#1/x#1", 1, FAULT)),
        ["End failed"],
    ),
    "a question inside a sub-graph pauses the run": (
        run_of("sub", OPENED, started("sub#1/x#1"), ask("sub#1/x#1")),
        ["End paused"],
    ),
    "iterations are limited": (
        run_of(
            "a",
            *[
                record
                for n in (1, 2, 3)
                for record in (*done(f"a#{n}"), WaveFinished("", (), (Target("a"),)))
            ],
        ),
        ["ExceedIterations . 3"],
    ),
    "the last iteration may end": (
        run_of(
            "a",
            *[record for n in (1, 2) for record in (*done(f"a#{n}"), WaveFinished("", (), (Target("a"),)))],
            *done("a#3"),
            WaveFinished("", (), ()),
        ),
        ["End completed"],
    ),
    "a sub-graph has iterations of its own": (
        run_of(
            "sub",
            OPENED,
            *[
                record
                for n in (1, 2)
                for record in (*done(f"sub#1/x#{n}"), WaveFinished("sub#1", (), (Target("x"),)))
            ],
        ),
        ["ExceedIterations sub#1 2"],
    ),
}


@pytest.mark.parametrize("rule", TABLE)
def test_what_happens_next(rule: str) -> None:
    run, decisions = TABLE[rule]

    assert told(run) == decisions
    assert told(run) == decisions, "deciding twice must not change anything"


RULES: dict[str, tuple[RunState, Rules, list[str]]] = {
    "a gate before a node": (run_of("a b"), Rules(frozenset("a")), ["Gate a#1", "Start b#1"]),
    "a gate inside a sub-graph": (run_of("sub", OPENED), Rules(frozenset({"sub/x"})), ["Gate sub#1/x#1"]),
    "a gate before a whole sub-graph": (run_of("sub"), Rules(frozenset({"sub"})), ["Gate sub#1"]),
    "a closed gate pauses": (
        run_of("a", Paused("p", "before", "a#1", "a")),
        Rules(frozenset("a")),
        ["End paused"],
    ),
    "a gate opens once": (
        run_of("a", Paused("p", "before", "a#1", "a"), RunEnded("paused"), Resumed("me", approve=True)),
        Rules(frozenset("a")),
        ["Start a#1"],
    ),
    "room for two": (run_of("a b c"), Rules(max_parallel=2), ["Start a#1", "Start b#1"]),
    "room for one beside a running step": (
        run_of("a b c", started("a#1")),
        Rules(max_parallel=2),
        ["Start b#1"],
    ),
    "no room": (run_of("a b", started("a#1")), Rules(max_parallel=1), []),
    "a sub-graph's step takes no room of its own": (
        run_of("sub a", OPENED),
        Rules(max_parallel=1),
        ["Start a#1"],
    ),
    "without a barrier finished steps go on": (
        run_of("a b", *done("a#1"), started("b#1")),
        Rules(barrier=False),
        ["RouteOn . ('a#1',)"],
    ),
    "without a barrier a failure lets nothing go on": (
        run_of("a b", *done("a#1"), started("b#1"), StepFailed("b#1", 1, FAULT)),
        Rules(barrier=False),
        ["End failed"],
    ),
    "without a barrier a pause holds up nobody else": (
        run_of("a b", *done("a#1"), started("b#1"), ask("b#1")),
        Rules(barrier=False),
        ["RouteOn . ('a#1',)"],
    ),
    "the caller decides about interrupted steps": (
        run_of("fail", started("fail#1"), Resumed("me")),
        Rules(if_interrupted="rerun"),
        ["Start fail#1"],
    ),
    "the caller's word goes before the poison breaker": (
        run_of("a", *CRASHES),
        Rules(if_interrupted="skip"),
        ["SkipStep a#1"],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_what_happens_next_under_rules(rule: str) -> None:
    run, rules, decisions = RULES[rule]

    assert told(run, rules) == decisions


def test_a_paused_run_that_gets_no_answer_stays_paused() -> None:
    run = run_of("a", started("a#1"), ask("a#1"), RunEnded("paused"), Resumed("me"))

    [decision] = decide(GRAPH, run, Rules())
    assert decision.status == RunStatus.PAUSED  # type: ignore[union-attr]


def test_a_step_is_named_with_the_nodes_around_it() -> None:
    run = run_of("sub a", OPENED)

    assert [qualified(step) for step in run.active()] == ["sub", "a", "sub/x"]
