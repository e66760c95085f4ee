"""Calls that fail: which are worth another try, what they say, and what they cost."""

from __future__ import annotations

import pickle
import socket
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.agents.provider import AgentError, AgentRequest, Tool, TransientAgentError, Usage
from holdfast.agents.pydantic_ai_provider import PydanticAIProvider
from tests.agents.conftest import Ask
from tests.agents.llm_server import (
    Behaviour,
    LlmServer,
    disconnect,
    failing,
    hang,
    malformed,
    rate_limit,
    reply,
    server_error,
    tool_call,
    truncated,
    unauthorized,
)

provider = PydanticAIProvider()

LISTENERS: list[Callable[[str], None] | None] = [None, lambda _: None]
ways = pytest.mark.parametrize("on_text", LISTENERS, ids=["whole", "streamed"])


def failed(request: AgentRequest, on_text: Callable[[str], None] | None = None) -> AgentError:
    with pytest.raises(AgentError) as caught:
        provider.complete(request, on_text)
    return caught.value


@ways
@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        (rate_limit(), "429"),
        (failing(408), "408"),
        (failing(409), "409"),
        (failing(425), "425"),
        (server_error(), "500: something broke"),
        (server_error(502), "502"),
        (server_error(503), "503"),
        (server_error(529), "529"),
        (malformed(), "cannot be used"),
        (malformed("<html>busy</html>"), "cannot be used"),
        (malformed("{}"), "cannot be used"),
        (truncated(), ""),
        (disconnect(), "broke off"),
    ],
)
def test_what_may_pass_is_transient_and_was_asked_only_once(
    server: LlmServer, ask: Ask, behaviour: Behaviour, says: str, on_text: Any
) -> None:
    server.script([behaviour])

    error = failed(ask(), on_text)

    assert isinstance(error, TransientAgentError)
    assert says in str(error) and "openai:gpt-4o-mini at http://127.0.0.1:" in str(error)
    assert error.retry_after is None
    assert len(server.requests) == 1


@ways
@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        (failing(400, "too hot"), "400: too hot"),
        (failing(422, "too odd"), "422: too odd"),
        (failing(404, "no model"), "404.*no model.*base_url"),
        (failing(403), "403.*OPENAI_API_KEY"),
        (unauthorized(), "401.*OPENAI_API_KEY"),
        (failing(429, "pay first", code="insufficient_quota"), "quota.*pay first"),
    ],
)
def test_what_does_not_pass_is_not_transient(
    server: LlmServer, ask: Ask, behaviour: Behaviour, says: str, on_text: Any
) -> None:
    server.script([behaviour])

    with pytest.raises(AgentError, match=says) as caught:
        provider.complete(ask(), on_text)

    assert not isinstance(caught.value, TransientAgentError)
    assert caught.value.usage == Usage()
    assert len(server.requests) == 1


@pytest.mark.parametrize(("header", "seconds"), [(0, 0.0), (7, 7.0), ("1.5", 1.5)])
def test_the_service_says_how_long_to_wait(server: LlmServer, ask: Ask, header: Any, seconds: float) -> None:
    server.script([rate_limit(retry_after=header)])

    error = failed(ask())

    assert isinstance(error, TransientAgentError) and error.retry_after == seconds


@pytest.mark.parametrize("header", ["soon", "-1", "inf", "nan"])
def test_a_wait_that_makes_no_sense_is_no_wait(server: LlmServer, ask: Ask, header: str) -> None:
    server.script([rate_limit(retry_after=header)])

    error = failed(ask())

    assert isinstance(error, TransientAgentError) and error.retry_after is None


def test_waiting_may_be_told_as_a_date(server: LlmServer, ask: Ask) -> None:
    server.script([rate_limit(retry_after="Fri, 01 Jan 2100 00:00:00 GMT")])

    error = failed(ask())

    assert isinstance(error, TransientAgentError)
    assert error.retry_after is not None and error.retry_after > 0


def test_nobody_listens(ask: Ask) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = failed(ask(base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1"))

    assert isinstance(error, TransientAgentError) and "cannot be reached" in str(error)


@ways
def test_a_service_that_never_answers_is_left_after_the_timeout(
    server: LlmServer, ask: Ask, on_text: Any
) -> None:
    server.script([hang()])

    error = failed(ask(timeout=2.0), on_text)

    assert isinstance(error, TransientAgentError) and len(server.requests) == 1
    assert "holdfast-agent" not in {thread.name for thread in threading.enumerate()}


def test_a_stream_that_stops_moving_is_left_after_the_timeout(server: LlmServer, ask: Ask) -> None:
    heard: list[str] = []
    server.script([hang("some text")])

    error = failed(ask(timeout=3.0), heard.append)

    assert isinstance(error, TransientAgentError) and "".join(heard) == "some text"


def test_the_timeout_is_for_all_turns_together(server: LlmServer, ask: Ask) -> None:
    server.script([tool_call("wait", {}), hang()])

    error = failed(ask(timeout=3.0, tools=(Tool("wait", lambda: "waited"),)))

    assert isinstance(error, TransientAgentError)
    assert error.usage == Usage(10, 5, 1)


@pytest.mark.parametrize("last", [rate_limit(), failing(400), malformed()])
def test_a_failure_after_some_turns_says_what_they_cost(server: LlmServer, ask: Ask, last: Behaviour) -> None:
    server.script([tool_call("look", {}, tokens=(100, 50)), last])

    assert failed(ask(tools=(Tool("look", lambda: "seen"),))).usage == Usage(100, 50, 1)


def test_a_model_that_declines_is_not_asked_again(server: LlmServer, ask: Ask) -> None:
    server.default = reply("", reason="content_filter")

    error = failed(ask())

    assert not isinstance(error, TransientAgentError) and "declined" in str(error)
    assert len(server.requests) == 1 and error.usage == Usage(10, 5, 1)


def test_no_token_is_left_for_an_answer(server: LlmServer, ask: Ask) -> None:
    server.default = reply("", reason="length")

    error = failed(ask(max_tokens=1))

    assert not isinstance(error, TransientAgentError)
    assert "max_tokens" in str(error) and error.usage == Usage(10, 5, 1)


@pytest.mark.parametrize("given", ["request", "environment"])
def test_no_message_and_no_traceback_shows_the_key(
    server: LlmServer, ask: Ask, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    key = "sk-very-secret"
    if given == "environment":
        monkeypatch.setenv("OPENAI_API_KEY", key)
    request = ask(api_key=key if given == "request" else None)
    server.script([unauthorized(), failing(400, f"bad header {key}"), failing(500, f"oops {key}")])

    for _ in range(3):
        error = failed(request)
        assert key not in "".join(traceback.format_exception(error))
        assert key not in repr(error) + repr(request)

    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {key}"] * 3


def test_a_refused_key_of_the_request_is_not_blamed_on_the_environment(server: LlmServer, ask: Ask) -> None:
    server.script([unauthorized()])

    message = str(failed(ask(api_key="key-3")))

    assert "api_key" in message and "OPENAI_API_KEY" not in message


def test_an_address_of_the_environment_is_not_shown(
    server: LlmServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    server.script([server_error()])

    assert (
        str(failed(ask(base_url=None)))
        == "openai:gpt-4o-mini at the service answered HTTP 500: something broke"
    )


def test_the_address_in_a_message_shows_no_password(server: LlmServer, ask: Ask) -> None:
    server.script([server_error()])

    message = str(failed(ask(base_url=server.url.replace("http://", "http://ann:hidden@"))))

    assert "127.0.0.1" in message and "hidden" not in message


@pytest.mark.parametrize("base_url", ["127.0.0.1:8000/v1", "file:///etc", "[", ""])
def test_an_address_that_is_none_is_refused(ask: Ask, base_url: str) -> None:
    error = failed(ask(base_url=base_url))

    assert not isinstance(error, TransientAgentError) and "must begin with http://" in str(error)


class Opaque:
    """Nothing that JSON can express."""


def takes_opaque(thing: Opaque) -> None:
    """Takes a thing."""


@pytest.mark.parametrize(
    "tools",
    [
        (Tool("opaque", takes_opaque),),
        (Tool("same", lambda: 1), Tool("same", lambda: 2)),
        (Tool("final_result", lambda: 1),),
    ],
)
def test_tools_that_cannot_be_offered_are_refused_before_anything_is_asked(
    server: LlmServer, ask: Ask, tools: tuple[Tool, ...]
) -> None:
    error = failed(ask(tools=tools, output_schema={"type": "object"}))

    assert tools[0].name in str(error) and not isinstance(error, TransientAgentError)
    assert server.requests == []


def test_a_missing_key_is_told_before_anything_is_asked() -> None:
    with pytest.raises(AgentError, match="set OPENAI_API_KEY"):
        provider.complete(AgentRequest("openai:gpt-4o-mini", "hello"))


def test_a_missing_package_is_named() -> None:
    pytest.importorskip("pydantic_ai")
    try:
        import anthropic  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(AgentError, match=r"anthropic.*holdfast\[agents\]"):
            provider.complete(AgentRequest("anthropic:claude-sonnet-4-5", "hello"))
    else:
        pytest.skip("the package is there")


def test_errors_survive_pickling(server: LlmServer, ask: Ask) -> None:
    server.script([rate_limit(retry_after=3)])

    error = pickle.loads(pickle.dumps(failed(ask())))

    assert isinstance(error, TransientAgentError)
    assert (error.retry_after, error.usage) == (3.0, Usage())
