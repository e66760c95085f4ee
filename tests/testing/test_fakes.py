"""Stand-ins: people who answer, and a model that says what a test lets it say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, Context, ExecutionError, HoldfastError, StateGraph, load_workflow
from holdfast.agents.provider import AgentError, AgentOutputInvalid, AgentRequest, provider_for
from holdfast.stores.base import Store
from holdfast.testing import Answers, FakeModel, answering, crash_everywhere, skipping_time

SCORE = {"type": "object", "required": ["score"], "properties": {"score": {"type": "integer"}}}


def asking() -> StateGraph:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        answers = [
            ctx.ask("Name?", name="name"),
            ctx.ask("Name?", name="name"),
            ctx.ask("Sure?", name="sure"),
        ]
        return {"answers": answers}

    graph = StateGraph(dict, name="asking")
    graph.add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    return graph


def test_a_run_is_driven_through_all_its_questions_and_gates(memory: Store) -> None:
    app = asking().compile(memory, interrupt_before=["ask"])

    driven = answering(app, {"name": lambda pause: pause.name, "name#2": "Bob", "sure": True})
    outcome = driven.invoke({}, run_id="r")

    assert outcome.status == "completed" and outcome.state["answers"] == ["name", "Bob", True]
    assert [pause.name for pause in driven.answers.asked] == ["name", "name#2", "sure"]


def test_a_function_answers_or_says_that_it_cannot(memory: Store) -> None:
    app = asking().compile(memory)
    app.invoke({}, run_id="r")

    with pytest.raises(HoldfastError, match=r"asks 'sure' \(Sure\?\), and the test has no answer to it"):
        answering(app, lambda pause: NotImplemented if pause.name == "sure" else "x").resume("r")
    assert answering(app, Answers({"sure": 1})).resume("r").state["answers"] == ["x", "x", 1]


def request(prompt: str, schema: dict[str, Any] | None = None) -> AgentRequest:
    return AgentRequest("fake:small", prompt, output_schema=schema)


def test_replies_come_in_turn_and_everything_is_written_down() -> None:
    with FakeModel(["a draft", {"score": 7}, '{"score": 8}'], cost=0.5) as model:
        heard: list[str] = []
        first = provider_for("fake:small").complete(request("write it"), heard.append)
        assert (first.output, first.usage.input_tokens, first.usage.output_tokens) == ("a draft", 2, 2)
        assert heard == ["a ", "draft "] and (first.cost, first.model) == (0.5, "small")
        assert model.complete(request("judge", SCORE)).output == {"score": 7}
        assert model.complete(request("again", SCORE)).output == {"score": 8}
        with pytest.raises(AgentError, match="was given 3 replies and is asked once more: 'more'"):
            model.complete(request("more"))
    assert model.prompts == ["write it", "judge", "again", "more"] and model.usage.requests == 3
    with pytest.raises(AgentError, match="unknown provider 'fake'"):
        provider_for("fake:small")


def test_replies_that_do_not_fit_are_refused_as_a_provider_refuses_them() -> None:
    model = FakeModel(
        {"data": {"score": "high"}, "text": "no json", "prose": ["a list"], "fail": ValueError("x")}
    )
    for prompt in ("data", "text"):
        with pytest.raises(AgentOutputInvalid):
            model.complete(request(prompt, SCORE))
    with pytest.raises(HoldfastError, match="asked for text"):
        model.complete(request("prose"))
    with pytest.raises(ValueError, match="x"):
        model.complete(request("fail"))
    with pytest.raises(AgentError, match="no reply to 'other'"):
        model.complete(request("other"))
    with pytest.raises(HoldfastError, match="not one text"):
        FakeModel("hello")


FLOW = """
workflow: {name: essay}
steps:
  - {name: draft, retry: {attempts: 3, delay: 30s, max_delay: 15m}, agent: {model: 'openai:gpt-5', prompt: write}}
  - {name: judge, agent: {model: 'openai:gpt-5', prompt: 'judge: {{ steps.draft.output }}',
     output: {type: object, required: [score], properties: {score: {type: integer}}}}}
output: '{{ steps.judge.output.score }}'
"""


def test_a_workflow_file_asks_the_fake_model_and_waits_out_a_rate_limit_in_skipped_time(
    tmp_path: Path,
) -> None:
    flow = load_workflow(tmp_path / "essay.yaml", text=FLOW)
    replies = {"judge: a draft": {"score": 7}, "write": "a draft"}

    with (
        FakeModel(replies, prefix="openai", rate_limit_at=[1], retry_after=600) as model,
        skipping_time() as skipped,
    ):
        state = flow.open("memory://").invoke(flow.begin({})).state
        assert skipped.skipped() > 500

    assert flow.output(state) == 7 and model.prompts == ["write", "write", "judge: a draft"]


def test_agents_are_killed_everywhere(tmp_path: Path) -> None:
    (tmp_path / "essay.yaml").write_text(FLOW)
    with FakeModel(lambda asked: {"score": 7} if asked.output_schema else "a draft", prefix="openai"):
        report = crash_everywhere(tmp_path / "essay.yaml", {}, mode="fast", limit=12)

    assert report.passed and report.kills == 12


def test_a_model_that_fails_fails_the_step() -> None:
    flow = load_workflow("essay.yaml", text=FLOW)
    with FakeModel([AgentError("refused")], prefix="openai"), pytest.raises(ExecutionError, match="refused"):
        flow.open("memory://").invoke(flow.begin({}))
