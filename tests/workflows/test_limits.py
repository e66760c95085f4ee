"""Limits of a run: with `on_limit: ask` a person can allow more instead of letting the run fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.errors import ExecutionError, MaxIterationsExceeded, StateInvalid
from holdfast.graph.builder import StateGraph
from holdfast.stores import open_store
from holdfast.values import END, RunStatus
from tests.agents.llm_server import LlmServer, reply
from tests.workflows.workshop import Workshop

LOOP = """  limits: {max_iterations: 2, on_limit: ask}
steps:
  - name: tick
    python: steps.py:say
    with: {word: "tick {{ visits.tick + 1 }}"}
    routes: [{to: tick, when: visits.tick < 6}, {to: $end}]
"""


def prompts(outcome: Any) -> list[str]:
    return [pause.prompt for pause in outcome.pauses]


def test_a_person_is_asked_for_more_iterations(shop: Workshop) -> None:
    """R1.6: at the iteration limit the run pauses; the answer counts over all later resumes."""
    flow = shop.load(LOOP)
    app = flow.open(shop.url)
    outcome = app.invoke(flow.begin({}), run_id="r", config=flow.config())

    assert outcome.status == RunStatus.PAUSED and shop.calls() == ["tick 1", "tick 2"]
    assert prompts(outcome) == [
        "the run has used 2 iterations, all that it may. How many more? 0 lets it fail."
    ]
    app.store.close()
    again = shop.resume(answers={"limits.iterations": 3})
    assert prompts(again)[0].startswith("the run has used 5 iterations")

    outcome = shop.resume(answers={"limits.iterations": 1})

    assert outcome.status == RunStatus.COMPLETED
    assert shop.calls() == [f"tick {number}" for number in range(1, 7)]


def test_no_more_iterations_let_the_run_fail_until_the_file_allows_more(shop: Workshop) -> None:
    shop.run(LOOP)

    with pytest.raises(MaxIterationsExceeded):
        shop.resume(answers={"limits.iterations": 0})
    assert shop.resume(LOOP.replace("max_iterations: 2", "max_iterations: 6")).status == RunStatus.COMPLETED


@pytest.mark.parametrize("answer", [-1, 1.5, "many", True])
def test_an_answer_that_is_no_number_of_iterations_is_refused(shop: Workshop, answer: Any) -> None:
    shop.run(LOOP)

    with pytest.raises(Exception, match=r"limits\.iterations|integer|minimum"):
        shop.resume(answers={"limits.iterations": answer})
    assert shop.calls() == ["tick 1", "tick 2"]


def test_nobody_is_asked_when_gates_are_skipped_or_the_limit_fails(shop: Workshop) -> None:
    with pytest.raises(MaxIterationsExceeded):
        shop.run(LOOP, skip_gates=True)
    with pytest.raises(MaxIterationsExceeded):
        shop.resume(LOOP.replace(", on_limit: ask", ""))


def test_siblings_ask_once(store_url: str) -> None:
    """R1.6: a wave of several steps at the limit is one question, on every store."""
    graph = StateGraph({"n": int}, name="wide", max_iterations=1)
    graph.add_node("start", lambda state: {"n": 0})
    for name in ("a", "b", "c"):
        graph.add_node(name, lambda state: {})
        graph.add_edge("start", name)
        graph.add_edge(name, END)
    graph.set_entry_point("start")
    app = graph.compile(open_store(store_url), on_limit="ask")

    outcome = app.invoke({}, run_id="r")
    assert [pause.name for pause in outcome.pauses] == ["limits.iterations"]
    plan = app.resume("r", answers={"limits.iterations": 1})

    assert plan.status == RunStatus.COMPLETED
    app.store.close()


def test_what_was_allowed_is_kept_by_snapshots_forks_and_resumes(tmp_path: Any) -> None:
    graph = StateGraph({"n": int}, name="loop", max_iterations=3)
    graph.add_node("tick", lambda state: {"n": state.get("n", 0) + 1})
    graph.set_entry_point("tick")
    graph.add_conditional_edges(
        "tick", lambda state: "on" if state["n"] < 9 else "end", {"on": "tick", "end": END}
    )
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    app = graph.compile(url, on_limit="ask")
    app.invoke({}, run_id="r")
    app.resume("r", answers={"limits.iterations": 4})
    fork = app.fork("r")
    app.store.close()
    app = graph.compile(url, on_limit="ask")

    assert app.resume("r", answers={"limits.iterations": 2}).state["n"] == 9
    assert app.resume(fork).status == RunStatus.PAUSED
    assert app.resume(fork, answers={"limits.iterations": 2}).state["n"] == 9
    app.store.close()


def test_a_node_cannot_ask_the_engine_s_question() -> None:
    graph = StateGraph({"n": int}, name="asks")
    graph.add_node("a", lambda state, ctx: ctx.ask("?", name="limits.iterations"))
    graph.set_entry_point("a")
    graph.set_finish_point("a")

    with pytest.raises(ExecutionError, match="a question of the engine") as caught:
        graph.compile("memory://").invoke({})
    assert isinstance(caught.value.__cause__, StateInvalid)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LlmServer]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with LlmServer() as running:
        running.default = reply("hi")
        yield running


def agents(server: LlmServer, count: int, limits: str) -> str:
    price = "price: {input: 100000, output: 200000}"
    about = f"model: openai:gpt-4o-mini, base_url: '{server.url}', prompt: Go., {price}"
    steps = "".join(f"  - {{name: a{number}, agent: {{{about}}}}}\n" for number in range(count))
    return f"  limits: {limits}\nsteps:\n{steps}"


def test_a_person_is_asked_for_more_money(shop: Workshop, server: LlmServer) -> None:
    """R1.6: a spent budget pauses the run; what is allowed counts for the rest of it, not for one step."""
    text = agents(server, 4, "{budget: 2, on_limit: ask}")  # A request costs 2 dollars.
    outcome = shop.run(text)
    assert prompts(outcome) == [
        "the agents of this run have spent $2.0000 of a budget of $2.0000. How many US dollars more? "
        "0 lets the run fail."
    ]

    outcome = shop.resume(answers={"limits.budget": 4})
    assert prompts(outcome)[0].startswith("the agents of this run have spent $6.0000 of a budget of $6.0000")
    with pytest.raises(ExecutionError, match="spent"):
        shop.resume(answers={"limits.budget": 0})

    assert len(server.requests) == 3
