"""`agent` steps against a real server on loopback: replies, money, failures, and that nothing is paid for twice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.errors import ExecutionError
from holdfast.journal.journal import Journal
from holdfast.stores import open_store
from holdfast.values import RunStatus
from holdfast.views import usage as views
from holdfast.workflows.scope import BudgetExceeded
from tests.agents.llm_server import (
    LlmServer,
    failing,
    hang,
    malformed,
    rate_limit,
    reply,
    server_error,
    structured,
    tool_call,
)
from tests.graphs import Heard
from tests.workflows.workshop import Workshop

PRICE = "price: {input: 100000, output: 200000}"
"""A request of 10 and 5 tokens costs 2 dollars by it."""


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as running:
        yield running


def agent(server: LlmServer, name: str = "x", more: str = PRICE, around: str = "", model: str = "") -> str:
    """One step that asks the model on loopback."""
    about = f"model: {model or 'openai:gpt-4o-mini'}, base_url: '{server.url}', prompt: 'hello {name}'"
    retry = "" if "retry" in around else "retry: {attempts: 3, delay: 1ms}, "
    return f"{{name: {name}, {retry}{around}agent: {{{about}{', ' + more if more else ''}}}}}"


def flow(*steps: str, limits: str = "{}") -> str:
    listed = "\n".join(f"  - {step}" for step in steps)
    return f"workflow:\n  name: test\n  inputs: {{who: {{default: you}}}}\n  limits: {limits}\nsteps:\n{listed}\n"


def ledger(shop: Workshop, run: str = "r") -> list[tuple[str, int, int, float | None]]:
    store = open_store(shop.url)
    try:
        charges = views.ledger(Journal(store), run).charges
    finally:
        store.close()
    paid = [(charge.step, charge.spent) for charge in charges if charge.model is not None]
    return [
        (step, spent.input_tokens, spent.output_tokens, None if spent.unpriced else spent.cost)
        for step, spent in paid
    ]


# Replies.


def test_a_reply_is_the_output_and_is_paid_for(shop: Workshop, server: LlmServer) -> None:
    server.default = reply("hi")
    more = f"{PRICE}, system: 'be kind to {{{{ inputs.who }}}}', temperature: 0.5, max_tokens: 77"
    outcome = shop.run(flow(agent(server, more=more).replace("hello x", "hello {{ inputs.who }}")))

    found = outcome.state["x"]
    assert (found["output"], found["status"]) == ("hi", "completed")
    assert found["usage"] == {"model": "gpt-4o-mini", "input_tokens": 10, "output_tokens": 5, "cost": 2.0}
    assert ledger(shop) == [("x", 10, 5, 2.0)]
    (request,) = server.requests
    assert (request.prompt, request.system) == ("hello you", "be kind to you")
    assert request.body["temperature"] == 0.5
    assert 77 in (request.body.get("max_tokens"), request.body.get("max_completion_tokens"))


def test_what_the_model_says_is_told_as_it_comes(shop: Workshop, server: LlmServer) -> None:
    server.default = reply("several words in pieces")
    heard = Heard()
    shop.run(flow(agent(server)), observer=heard)

    pieces = [event.data["text"] for event in heard.events if event.type == "node.stream"]
    assert "".join(pieces) == "several words in pieces" and len(pieces) > 1


SCHEMA = (
    "output: {type: object, required: [score, why], additionalProperties: false, "
    "properties: {score: {type: integer}, why: {type: string}}}"
)


def test_structured_output_has_fields(shop: Workshop, server: LlmServer) -> None:
    server.default = structured({"score": 7, "why": "good"})
    text = flow(
        agent(server, more=f"{PRICE}, {SCHEMA}"),
        "{name: y, set: {next: '{{ steps.x.output.score + 1 }}', why: '{{ steps.x.output.why }}'}}",
    )

    assert shop.run(text).state["y"]["output"] == {"next": 8, "why": "good"}


def test_structured_output_that_never_fits_fails_and_is_paid_for_once(
    shop: Workshop, server: LlmServer
) -> None:
    server.default = structured({"score": "high"})
    text = flow(agent(server, more=f"{PRICE}, {SCHEMA}", around="on_error: continue, "))
    outcome = shop.run(text)

    assert outcome.state["x"]["status"] == "failed" and "no usable output" in outcome.state["x"]["error"]
    assert ledger(shop) == [("x", 20, 10, 4.0)] and len(server.requests) == 2


def test_tools_are_functions(shop: Workshop, server: LlmServer) -> None:
    shop.write('def add(a: int, b: int) -> int:\n    """Add two numbers."""\n    return a + b\n', "tools.py")
    server.script([tool_call("add", {"a": 2, "b": 3}), reply("five")])
    outcome = shop.run(flow(agent(server, more=f"{PRICE}, tools: ['tools.py:add']")))

    assert outcome.state["x"]["output"] == "five"
    assert server.requests[1].tool_results == ["5"]
    assert server.requests[0].tools["add"]["description"].startswith("Add two numbers.")
    assert ledger(shop) == [("x", 20, 10, 4.0)]


def test_a_tool_that_is_not_there(shop: Workshop, server: LlmServer) -> None:
    with pytest.raises(Exception, match=r"steps.py has no function 'nothing'"):
        shop.open(flow(agent(server, more="tools: ['steps.py:nothing']")))


# Trouble.


@pytest.mark.parametrize(
    "trouble", [rate_limit(retry_after=0), server_error(), server_error(503), malformed()]
)
def test_trouble_that_may_pass_is_retried(shop: Workshop, server: LlmServer, trouble: Any) -> None:
    server.script([trouble, trouble, reply("at last")])
    outcome = shop.run(flow(agent(server)))

    assert outcome.state["x"]["output"] == "at last" and len(server.requests) == 3


def test_trouble_that_does_not_pass_fails_and_can_be_resumed(shop: Workshop, server: LlmServer) -> None:
    server.default = server_error()
    told = shop.error(flow("{name: a, python: 'steps.py:say', with: {word: a}}", agent(server)))
    assert "'x' failed" in told and "500" in told and len(server.requests) == 3

    server.default = reply("back")
    outcome = shop.resume()

    assert outcome.state["x"]["output"] == "back" and shop.calls() == ["a"]
    assert ledger(shop) == [("x", 10, 5, 2.0)]


def test_a_refusal_is_not_retried(shop: Workshop, server: LlmServer) -> None:
    server.default = failing(400, "what is this?")
    assert "what is this?" in shop.error(flow(agent(server))) and len(server.requests) == 1


def test_a_model_that_takes_too_long(shop: Workshop, server: LlmServer) -> None:
    server.script([hang(), reply("in time")])
    outcome = shop.run(
        flow(agent(server, around="timeout: 2s, retry: {attempts: 2, delay: 1ms, on: timeout}, "))
    )

    assert outcome.state["x"]["output"] == "in time"


def test_other_trouble_is_no_timeout(shop: Workshop, server: LlmServer) -> None:
    server.default = server_error()
    shop.error(flow(agent(server, around="timeout: 30s, retry: {attempts: 3, delay: 1ms, on: timeout}, ")))

    assert len(server.requests) == 1


def test_attempts_that_were_paid_for_in_vain_are_in_the_ledger_once(
    shop: Workshop, server: LlmServer
) -> None:
    """Wrong output costs tokens, fails the step, and is not forgotten when a resume succeeds."""
    server.default = structured({"score": "high"})
    text = flow(
        agent(server, more=f"{PRICE}, {SCHEMA}", around="retry: {attempts: 2, delay: 1ms, on: any}, ")
    )
    with pytest.raises(ExecutionError):
        shop.run(text)
    assert len(server.requests) == 4

    server.default = structured({"score": 1, "why": ""}, tokens=(1, 1))
    outcome = shop.resume()

    assert ledger(shop) == [("x", 20, 10, 4.0), ("x", 20, 10, 4.0), ("x", 1, 1, 0.3)]
    assert outcome.stats.cost == 8.3


# Money.


def test_the_budget_ends_the_run_before_the_next_call(shop: Workshop, server: LlmServer) -> None:
    text = flow(*(agent(server, name) for name in "abc"), limits="{budget: 4}")
    with pytest.raises(
        ExecutionError, match=r"spent \$4.0000 of a budget of \$4.0000; raise limits.budget"
    ) as caught:
        shop.run(text)
    assert isinstance(caught.value.cause, BudgetExceeded) and len(server.requests) == 2

    with pytest.raises(ExecutionError, match="budget"):
        shop.resume()
    outcome = shop.resume(text.replace("budget: 4", "budget: 5"))

    assert outcome.status == RunStatus.COMPLETED and len(server.requests) == 3
    assert [entry[0] for entry in ledger(shop)] == ["a", "b", "c"]


def test_no_step_goes_on_without_its_result_because_the_budget_is_spent(
    shop: Workshop, server: LlmServer
) -> None:
    text = flow(
        agent(server, around="for_each: {in: [1, 2, 3], mode: sequential, on_error: continue}, "),
        limits="{budget: 4}",
    )
    with pytest.raises(ExecutionError, match="budget"):
        shop.run(text)
    assert len(server.requests) == 2

    outcome = shop.resume(text.replace("budget: 4", "budget: 40"))
    assert (
        outcome.state["x"] == {"status": "completed", "visits": 1, "count": 3} and len(server.requests) == 3
    )


def test_the_budget_holds_over_resumes_within_a_wave(shop: Workshop, server: LlmServer) -> None:
    """What items have spent counts although their step is not over and its state not yet written."""
    text = flow(
        agent(server, around="for_each: {in: [1, 2, 3, 4], mode: sequential}, "), limits="{budget: 6}"
    )
    server.script([reply("1"), reply("2"), failing(400, "no")])
    shop.error(text)
    assert len(server.requests) == 3

    with pytest.raises(ExecutionError, match=r"spent \$6.0000"):
        shop.resume()
    assert len(server.requests) == 4


def test_what_was_paid_in_vain_counts_over_resumes(shop: Workshop, server: LlmServer) -> None:
    server.default = structured({"score": "high"})
    text = flow(
        agent(server, more=f"{PRICE}, {SCHEMA}", around="retry: {attempts: 1}, "), limits="{budget: 4}"
    )
    shop.error(text)

    with pytest.raises(ExecutionError, match=r"spent \$4.0000"):
        shop.resume()
    assert len(server.requests) == 2


def test_the_budget_in_parallel(shop: Workshop, server: LlmServer) -> None:
    members = ", ".join(agent(server, name) for name in "abcdef")
    text = flow(f"{{name: g, parallel: [{members}]}}", limits="{budget: 6, max_parallel: 2}")
    with pytest.raises(ExecutionError, match="budget"):
        shop.run(text)

    assert len(server.requests) in (3, 4), "as many as fit, and one that was under way"


def test_an_audited_budget_only_tells(
    shop: Workshop, server: LlmServer, caplog: pytest.LogCaptureFixture
) -> None:
    text = flow(*(agent(server, name) for name in "abc"), limits="{budget: 2, budget_mode: audit}")
    with caplog.at_level(logging.WARNING):
        outcome = shop.run(text)

    assert outcome.status == RunStatus.COMPLETED and len(server.requests) == 3
    assert [record.getMessage() for record in caplog.records if "budget" in record.getMessage()] == [
        "run r: the agents of this run have spent $2.0000 of a budget of $2.0000; going on, as "
        "limits.budget_mode is audit"
    ]


def test_runs_do_not_spend_each_others_budget(shop: Workshop, server: LlmServer) -> None:
    flow_ = shop.load(flow(agent(server), limits="{budget: 2}"))
    app = flow_.open(shop.url)

    for _ in range(3):
        assert app.invoke(flow_.begin({})).status == RunStatus.COMPLETED


def test_a_price_that_is_not_known_cannot_be_held_to_a_budget(
    shop: Workshop, server: LlmServer, caplog: pytest.LogCaptureFixture
) -> None:
    text = flow(agent(server, more="", model="openai:nobody-knows-me"), limits="{budget: 1}")
    told = shop.error(text)
    assert "agent.price: what openai:nobody-knows-me costs is not known" in told and server.requests == []

    with caplog.at_level(logging.WARNING):
        outcome = shop.resume(text.replace("budget: 1", "budget: 1, budget_mode: audit"))
    assert outcome.status == RunStatus.COMPLETED and "is not known" in caplog.text
    assert ledger(shop) == [("x", 10, 5, None)]


def test_without_a_budget_no_price_is_needed(shop: Workshop, server: LlmServer) -> None:
    shop.run(flow(agent(server, more="", model="openai:nobody-knows-me")))

    assert ledger(shop) == [("x", 10, 5, None)]


def test_known_prices_come_from_the_list(shop: Workshop, server: LlmServer) -> None:
    server.default = reply("ok", tokens=(1_000_000, 0))
    shop.run(flow(agent(server, more="")))
    ((_, _, _, cost),) = ledger(shop)

    assert cost is not None and 0 < cost < 10


def test_sub_workflows_write_into_one_ledger(shop: Workshop, server: LlmServer) -> None:
    shop.write(flow(agent(server, "inner")), "inner.yaml")
    text = flow(
        "{name: each, for_each: {in: [1, 2]}, workflow: inner.yaml}",
        "{name: one, workflow: inner.yaml}",
        agent(server),
        limits="{budget: 8}",
    )
    shop.run(text)

    assert [entry[0] for entry in ledger(shop)] == ["each/inner", "each/inner", "one/inner", "x"]


def test_a_workflow_without_agents_has_no_ledger(shop: Workshop) -> None:
    outcome = shop.run("steps: [{name: a, set: {}}]")

    assert ledger(shop) == [] and outcome.stats.cost == 0
