"""What calls cost."""

from __future__ import annotations

import pytest

from holdfast.agents.provider import Usage, cost
from holdfast.agents.pydantic_ai_provider import PydanticAIProvider
from holdfast.errors import HoldfastError
from tests.agents.conftest import Ask
from tests.agents.llm_server import LlmServer, reply


def test_a_stated_price_wins() -> None:
    usage = Usage(1_000_000, 500_000, 3)

    assert cost("openai:gpt-4o-mini", usage, {"input": 2.0, "output": 10.0}) == 7.0
    assert cost("nobody:knows", usage, {"output": 10.0}) == 5.0
    assert cost("openai:gpt-4o-mini", usage, {"input": 0.0, "output": 0.0}) == 0.0


def test_the_price_list_knows_well_known_models() -> None:
    one = cost("openai:gpt-4o-mini", Usage(1000, 1000, 1))

    assert one is not None and one > 0
    assert cost("openai:gpt-4o-mini", Usage()) == 0.0


def test_the_price_of_many_short_requests_is_not_that_of_a_long_one() -> None:
    """Some models cost more per token when a single request is long."""
    one = cost("anthropic:claude-sonnet-4-5", Usage(100_000, 1_000, 1))
    ten = cost("anthropic:claude-sonnet-4-5", Usage(1_000_000, 10_000, 10))
    odd = cost("anthropic:claude-sonnet-4-5", Usage(1_000_003, 10_007, 10))

    assert one is not None and ten is not None and odd is not None
    assert ten == pytest.approx(10 * one)
    assert ten < odd < ten * 1.01


@pytest.mark.parametrize("model", ["openai:no-such-model", "nobody:gpt-4o-mini", "ollama:llama3"])
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert cost(model, Usage(1000, 1000, 1)) is None


def test_a_price_with_a_wrong_key_is_refused() -> None:
    with pytest.raises(HoldfastError, match="'input' and 'output'"):
        cost("openai:gpt-4o-mini", Usage(1, 1, 1), {"in": 1.0})


def test_a_reply_says_what_it_cost(server: LlmServer, ask: Ask) -> None:
    server.default = reply("ok", tokens=(2000, 1000))
    provider = PydanticAIProvider()

    assert provider.complete(ask()).cost == pytest.approx(cost("openai:gpt-4o-mini", Usage(2000, 1000, 1)))
    assert provider.complete(ask(model="openai:no-such-model")).cost is None
