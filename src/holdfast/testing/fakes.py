"""Stand-ins for those whom a workflow asks: people, and language models."""

from __future__ import annotations

import json
import re
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
from holdfast.engine.app import App
from holdfast.engine.settings import Outcome, Pause
from holdfast.errors import HoldfastError
from holdfast.testing.ledger import counted_in_run
from holdfast.values import RunStatus

_AGAIN = re.compile(r"#\d+$")
_MOST_PAUSES = 1000


class Answers:
    """Somebody who answers what runs ask: from a mapping, or as a function of the pause says.

    A mapping is looked up by the pause's id, then by its name; for a question that is asked again (`name#2`) by
    the plain name too. A value that can be called is called with the pause. `asked` is what was asked, in order.
    """

    def __init__(self, given: Mapping[str, Any] | Callable[[Pause], Any] | None = None) -> None:
        __tracebackhide__ = True
        if given is not None and not isinstance(given, Mapping) and not callable(given):
            raise HoldfastError(
                f"answers are a mapping by name or a function of the pause, not {type(given).__name__}"
            )
        self._given = given
        self.asked: list[Pause] = []

    @classmethod
    def of(cls, given: Answers | Mapping[str, Any] | Callable[[Pause], Any] | None) -> Answers:
        """The answers themselves, or made of what was given."""
        __tracebackhide__ = True
        return given if isinstance(given, Answers) else cls(given)

    def find(self, pause: Pause) -> tuple[bool, Any]:
        """Whether there is an answer, and the answer. A function says with `NotImplemented` that it has none."""
        self.asked.append(pause)
        given = self._given
        if given is None:
            return False, None
        if not isinstance(given, Mapping):
            value = given(pause)
            return value is not NotImplemented, value
        for name in self.names_of(pause):
            if name in given:
                value = given[name]
                return True, value(pause) if callable(value) else value
        return False, None

    @staticmethod
    def names_of(pause: Pause) -> tuple[str, ...]:
        """The names by which a pause's answer is looked up, in this order."""
        return pause.id, pause.name, _AGAIN.sub("", pause.name)

    def names(self) -> tuple[str, ...]:
        """The names that a mapping has answers to; none of a function."""
        return tuple(self._given) if isinstance(self._given, Mapping) else ()

    def missing(self, pause: Pause) -> HoldfastError:
        """Return the error for a question that the test has no answer to."""
        known = ", ".join(map(repr, self._given)) if isinstance(self._given, Mapping) else ""
        return HoldfastError(
            f"step {pause.step!r} asks {pause.name!r} ({pause.prompt}), and the test has no answer to it"
            + (f"; it has answers to {known}" if known else "; give answers={name: value}")
        )


class Answering:
    """An app with somebody at hand who answers what its runs ask; what `answering` makes."""

    def __init__(self, app: App, answers: Answers) -> None:
        self.app, self.answers = app, answers

    def invoke(self, input: Any = None, **options: Any) -> Outcome:
        """As `App.invoke`, then through every pause until the run waits for nothing."""
        return self._through(self.app.invoke(input, **options), options.get("observer"))

    def resume(self, target: str, **options: Any) -> Outcome:
        """As `App.resume`, then through every pause until the run waits for nothing."""
        return self._through(self.app.resume(target, **options), options.get("observer"))

    def _through(self, outcome: Outcome, observer: Any) -> Outcome:
        for _ in range(_MOST_PAUSES):
            if outcome.status != RunStatus.PAUSED:
                return outcome
            found: dict[str, Any] = {}
            for pause in outcome.pauses:
                if pause.kind in ("before", "after"):
                    continue  # A plain resume passes the gate.
                known, value = self.answers.find(pause)
                if not known:
                    raise self.answers.missing(pause)
                found[pause.id] = value
            outcome = self.app.resume(outcome.run_id, answers=found, observer=observer)
        raise HoldfastError(f"run {outcome.run_id!r} still asks after {_MOST_PAUSES} pauses")


def answering(app: App, answers: Answers | Mapping[str, Any] | Callable[[Pause], Any]) -> Answering:
    """Return an app whose runs go through all their pauses: questions get these answers, gates are passed.

        outcome = answering(app, {"publish": "yes"}).invoke({"text": "…"})

    A question without an answer raises `HoldfastError`.
    """
    return Answering(app, Answers.of(answers))


# A language model that says what a test lets it say.


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
    of delay; they use up no reply. In `crash_everywhere` calls are counted for each run, over all its
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
