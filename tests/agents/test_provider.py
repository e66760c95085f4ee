"""Which provider answers for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.agents import provider as registry
from holdfast.agents.provider import (
    PREFIXES,
    AgentError,
    AgentReply,
    AgentRequest,
    Provider,
    Usage,
    provider_for,
    register_provider,
)
from holdfast.agents.pydantic_ai_provider import PydanticAIProvider
from holdfast.errors import HoldfastError


class Parrot:
    """A provider of one's own."""

    def complete(self, request: AgentRequest, on_text: Callable[[str], None] | None = None) -> AgentReply:
        if on_text is not None:
            on_text(request.prompt)
        return AgentReply(request.prompt, request.prompt, Usage(requests=1), request.model, None)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Leaves no provider registered."""
    yield
    registry._factories.clear()


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "anthropic:claude-sonnet-4-5", "ollama:qwen:7b"])
def test_known_prefixes_are_served_by_pydantic_ai(model: str) -> None:
    assert isinstance(provider_for(model), PydanticAIProvider)


def test_every_known_prefix_is_known_to_pydantic_ai() -> None:
    from pydantic_ai.providers import infer_provider_class

    for prefix in PREFIXES:
        try:
            infer_provider_class(prefix)
        except ImportError:
            continue  # Known, but its package is not installed.


def test_a_provider_of_ones_own_is_registered_by_its_prefix() -> None:
    parrot: Provider = Parrot()
    register_provider("parrot", lambda: parrot)

    assert provider_for("parrot:any") is parrot
    heard: list[str] = []
    assert provider_for("parrot:any").complete(AgentRequest("parrot:any", "hi"), heard.append).text == "hi"
    assert heard == ["hi"]


def test_a_known_prefix_can_be_taken_over() -> None:
    register_provider("openai", Parrot)

    assert isinstance(provider_for("openai:gpt-4o-mini"), Parrot)


def test_an_unknown_prefix_lists_the_known_ones() -> None:
    register_provider("parrot", Parrot)

    with pytest.raises(AgentError, match=r"unknown provider 'opnai'; known are .*openai.*parrot"):
        provider_for("opnai:gpt-4o-mini")


@pytest.mark.parametrize("model", ["gpt-4o-mini", "", ":gpt", "openai:"])
def test_a_model_must_say_whose_it_is(model: str) -> None:
    with pytest.raises(HoldfastError, match="PROVIDER:NAME"):
        provider_for(model)


@pytest.mark.parametrize("prefix", ["", "a:b", " a"])
def test_a_prefix_is_a_word(prefix: str) -> None:
    with pytest.raises(AgentError, match="prefix"):
        register_provider(prefix, Parrot)


def test_usages_add_up() -> None:
    assert Usage(1, 2, 3) + Usage(10, 20, 30) == Usage(11, 22, 33)
