"""A language model that says what a test lets it say."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from holdfast.agents import provider
from holdfast.agents.provider import (
    AgentError,
    AgentOutputInvalid,
    AgentReply,
    AgentRequest,
    TransientAgentError,
    Usage,
)
from holdfast.agents.schema import misfit
from holdfast.errors import HoldfastError
from holdfast.testing.everywhere.effects import counted_in_run

Reply = Any
"""Text; data, for a request with an output schema; an exception to be raised; or a function of the request."""


class FakeModel:
    """Stands in for a language model, for all models named `fake:…` (or another `prefix`), within a `with` block.

        with FakeModel(["a draft", {"score": 7}], rate_limit_at=[1]) as model:
            app.invoke(...)
        assert model.prompts == ["write", "write", "judge: a draft"]

    `replies` are given in turn; a mapping gives the first reply whose key is part of the prompt, and a function gets
    the `AgentRequest`: these two also serve in `crash_everywhere`, where a step that runs again asks again. A reply is
    text, data for a request that has an output schema, an exception to be raised, or a function of the request.
    `rate_limit_at` are the calls, counted from 1, that fail as a busy service does, asking for `retry_after` seconds
    of patience; they use up no reply. In `crash_everywhere` calls are counted for each run anew, over all its
    processes. Each word counts as a token, and each call costs `cost` dollars. `requests` has
    every `AgentRequest`, `usage` what all calls used up.
    """

    def __init__(
        self,
        replies: Sequence[Reply] | Mapping[str, Reply] | Callable[[AgentRequest], Reply],
        *,
        prefix: str = "fake",
        rate_limit_at: Iterable[int] = (),
        retry_after: float | None = None,
        cost: float = 0.0,
    ) -> None:
        if isinstance(replies, str):
            raise HoldfastError(
                f"replies are a list, a mapping or a function, not one text: [{replies!r:.40}]"
            )
        self._replies, self._prefix, self._cost = replies, prefix, cost
        self._limited, self._retry_after = frozenset(rate_limit_at), retry_after
        self.requests: list[AgentRequest] = []
        self.usage = Usage()
        self._given = 0
        self._lock = threading.Lock()

    @property
    def prompts(self) -> list[str]:
        """What the model was asked, in order, failed calls included."""
        return [request.prompt for request in self.requests]

    def __enter__(self) -> Self:
        self._earlier = provider._factories.get(self._prefix)
        provider.register_provider(self._prefix, lambda: self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._earlier is None:
            provider._factories.pop(self._prefix, None)
        else:
            provider.register_provider(self._prefix, self._earlier)

    def complete(self, request: AgentRequest, on_text: Callable[[str], None] | None = None) -> AgentReply:
        """The next reply; what a `Provider` does."""
        with self._lock:
            self.requests.append(request)
            call = counted_in_run(f"call of {self._prefix}") or len(self.requests)
            if call in self._limited:
                raise TransientAgentError(
                    f"{request.model} answered HTTP 429: too many requests", retry_after=self._retry_after
                )
            reply = self._next(request)
        if isinstance(reply, BaseException):
            raise reply
        text = reply if isinstance(reply, str) else json.dumps(reply)
        usage = Usage(_tokens(request.system) + _tokens(request.prompt), _tokens(text), 1)
        with self._lock:
            self.usage += usage
        output = _output(request, reply, usage)
        for piece in text.split(" ") if on_text is not None and request.output_schema is None else ():
            assert on_text is not None
            on_text(f"{piece} ")
        return AgentReply(output, text, usage, request.model.partition(":")[2], self._cost)

    def _next(self, request: AgentRequest) -> Reply:
        replies = self._replies
        if isinstance(replies, Mapping):
            found = [reply for part, reply in replies.items() if part in request.prompt]
            if not found:
                raise AgentError(f"the fake model has no reply to {request.prompt!r:.200}")
            reply = found[0]
        elif callable(replies):
            reply = replies
        elif (given := self._count_given()) <= len(replies):
            reply = replies[given - 1]
        else:
            raise AgentError(
                f"the fake model was given {len(replies)} replies and is asked once more: {request.prompt!r:.200}"
            )
        return reply(request) if callable(reply) else reply

    def _count_given(self) -> int:
        self._given += 1
        return counted_in_run(f"reply of {self._prefix}") or self._given


def _tokens(text: str) -> int:
    return len(text.split())


def _output(request: AgentRequest, reply: Reply, usage: Usage) -> Any:
    """The reply as the request wants it: text, or data that fits the schema."""
    if request.output_schema is None:
        if not isinstance(reply, str):
            raise HoldfastError(f"the fake model is asked for text, and its reply is {reply!r:.80}")
        return reply
    try:
        data = json.loads(reply) if isinstance(reply, str) else reply
    except ValueError as error:
        raise AgentOutputInvalid(f"the fake model's reply is not JSON: {error}", usage=usage) from error
    if wrong := misfit(data, request.output_schema):
        raise AgentOutputInvalid(f"the fake model's reply does not fit: {wrong}", usage=usage)
    return data
