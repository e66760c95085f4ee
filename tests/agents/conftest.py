"""What the tests of agents share: a server to ask, and an environment without keys and proxies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.agents.provider import AgentRequest
from tests.agents.llm_server import LlmServer

Ask = Callable[..., AgentRequest]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither keys nor addresses nor proxies of whoever runs the tests."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    """A model on loopback."""
    with LlmServer() as running:
        yield running


@pytest.fixture
def ask(server: LlmServer) -> Ask:
    """Makes requests to that model."""

    def make(prompt: str = "hello", **settings: Any) -> AgentRequest:
        return AgentRequest(
            **{"model": "openai:gpt-4o-mini", "base_url": server.url, **settings}, prompt=prompt
        )

    return make
