"""`Context`: what a node may ask of the engine while it runs."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import functools
import hashlib
import inspect
import logging
import math
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast import clock
from holdfast.engine.once import Onces, PauseSignal, Policy, StopSignal, Terminated, check_policy
from holdfast.errors import AnswerTimeout, CodecError, StateInvalid
from holdfast.journal.records import Noted, Paused, Spent
from holdfast.journal.run_state import (
    EXPIRED,
    INTERRUPTED,
    MORE_BUDGET,
    MORE_ITERATIONS,
    SECRETS_USED,
    SLEEP,
    Step,
    once_question,
)
from holdfast.names import LazyModule
from holdfast.values import step_label

if TYPE_CHECKING:
    from holdfast.engine import answers, app, text_streams
    from holdfast.engine.app import App
    from holdfast.engine.saving import StepHost
else:
    answers = LazyModule("engine.answers")
    app = LazyModule("engine.app")
    text_streams = LazyModule("engine.text_streams")

logger = logging.getLogger("holdfast.nodes")

LONGEST_SLEEP = 100 * 365.25 * 86400
"""A hundred years."""

NOTHING: Any = object()
"""Stands for a value that is not given, where `None` is one."""


class Context:
    """One attempt of one step, as its node sees it."""

    __slots__ = (
        "_asked",
        "_beat",
        "_due",
        "_host",
        "_is_async",
        "_is_over",
        "_left",
        "_once",
        "_onces",
        "_sleeps",
        "_step",
        "attempt",
        "config",
    )

    def __init__(self, host: StepHost, step: Step, config: Mapping[str, Any], is_async: bool) -> None:
        self._host, self._step, self._is_async, self.config = host, step, is_async, config
        self.attempt, self._beat, self._sleeps, self._once = step.attempt, clock.monotonic(), 0, 0
        self._asked: dict[str, int] | None = None
        self._onces, self._is_over = Onces(), False
        """Once this attempt is over (it ended, timed out, or was left), whatever its node asks is a `StopSignal`."""
        self._due: float | None = None
        """When the branch that its node is in has to be over."""
        self._left: PauseSignal | None = None
        """The pause that left the node, which it must not swallow."""

    @property
    def run_id(self) -> str:
        """The run this step belongs to."""
        return self._host.run_id

    @property
    def step(self) -> str:
        """The step's name, unique in the run and the same after every resume."""
        return self._step.id

    @property
    def node(self) -> str:
        """The node's name."""
        return self._step.node

    @property
    def _graph(self) -> App:
        """The compiled graph that the run is executed with."""
        return app.App(self._host.settings)

    @property
    def _resets(self) -> int:
        """How often the run was set back to an earlier checkpoint, or to one of another run."""
        return self._host.run.resets

    async def _has_commands(self) -> bool:
        """Look into the inbox, and return whether commands wait there for the step to end."""
        await self._host.look_now()
        return bool(self._host.inbox.waiting)

    @property
    def visit(self) -> int:
        """How often the run has come to this node, this time included."""
        return self._step.visit

    @property
    def item_key(self) -> str | None:
        """The key of the for-each item that this step is for."""
        return self._step.key

    @property
    def idempotency_key(self) -> str:
        """The same text for every attempt of this step and no other: hand it to services that deduplicate.

        A step that is run again because somebody wants that, or its code is another, has another one; so has a step of
        a function that starts over with other arguments.
        """
        step, host = self._step, self._host
        frame = host.run.frames.get(step.frame)
        is_call = bool(step.item) and frame is not None and frame.is_body
        called = f":{hashlib.blake2b(step.item[-1].raw, digest_size=4).hexdigest()}" if is_call else ""
        return f"{host.run_id}:{step.id}{called}" + (f"~{host.generation}" if host.generation else "")

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records know the run and the step."""
        return logging.LoggerAdapter(logger, {"run_id": self.run_id, "step": self.step})

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants the run to stop; a long node may look at it and return early."""
        host = self._host
        if not self._is_over and host.stop is None and host.inbox.is_due:
            host.inbox.look()
        return self._is_over or host.stop is not None

    def emit(self, message: Any = None, /, **data: Any) -> None:
        """Tell the run's observers and streams something: a `node.message` event."""
        self._refuse_if_over()
        if isinstance(message, Mapping):
            data = {**message, **data}
        elif message is not None:
            data = {"message": message, **data}
        self._host.saving.emit("node.message", self.node, step=self.step, **data)

    def stream(self, text: str) -> None:
        """Show a piece of the text that this step makes, as a model's tokens, at once: a `node.stream` event.

        Nothing of it is stored: return the whole text, or a part of the update, as the step's own output. An attempt
        that is repeated streams from the beginning; `attempt` of the events tells. See `App.follow` for readers that
        come later.
        """
        self._refuse_if_over()
        if not isinstance(text, str):
            raise StateInvalid(f"ctx.stream takes a text, not {type(text).__name__}")
        if text:
            host = self._host
            text_streams.streams.of(host).add(host, self.node, text, step=self.step, attempt=self.attempt)

    def spend(
        self,
        model: str = "",
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost: float | None = None,
        calls: int = 1,
    ) -> None:
        """Write into the run's ledger what this attempt has just used up; `cost` is in US dollars, if it is known.

        It counts whatever becomes of the attempt, and is stored before this returns, so that it is known even if
        the process dies; on an event loop that others share, it is stored with what the run stores next. Inside a
        function given to `once` it is stored together with that function's result, and, like that, never
        twice: this is the place for calls that cost money.
        """
        record = ledger_line(self.step, self.attempt, model, input_tokens, output_tokens, cost, calls)
        self._host.spend(record, not self._once)

    @property
    def spent(self) -> float:
        """US dollars that the steps of this run, over all its resumes, are known to have spent."""
        return self._host.spent()

    @property
    def granted(self) -> float:
        """US dollars that somebody allowed this run beyond its budget."""
        return self._host.run.granted.get(MORE_BUDGET, 0.0)

    def heartbeat(self) -> None:
        """Say that the step is alive: its timeout counts from now."""
        self._refuse_if_over()
        self._beat = clock.monotonic()

    def ask(
        self,
        prompt: str,
        *,
        name: str | None = None,
        schema: Any = None,
        choices: Sequence[Any] | None = None,
        timeout: float | dt.timedelta | None = None,
        default: Any = NOTHING,
    ) -> Any:
        """Wait for somebody's answer: the answer if it is there, else the run pauses and the node is left.

        After the answer the node runs again from its beginning and this call returns. Answers are matched
        by `name` (the prompt, if none is given), not by the order of calls; a name that is asked again in
        one attempt, as when an answer was not good enough, becomes `name#2` and so on. Use `once` for
        effects that must not be repeated. `schema` (a JSON Schema or a type) and `choices` say which
        answers fit; `timeout` (seconds) how long one is taken. When nobody answered in time, the node runs
        again as soon as somebody takes the run up (a worker does so by itself), and this call returns
        `default`, or, without one, raises `AnswerTimeout`. A question without a `timeout` may expire all the same, by
        the `pause_ttl` of a `Retention`: a resume then goes on with the `default`, or asks again.
        """
        known, found = self._answer_to(prompt, name, schema, choices, timeout, default)
        if known:
            return found
        raise self._leaving(found)

    def ask_all(self, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Wait for the answers to several questions, all open at once: the answers by name, when all are there.

        Each name has what `ask` takes: `prompt`, and `schema`, `choices`, `timeout` or `default`. Every answer
        is kept as soon as it is given.
        """
        found = {name: self._answer_to(name=name, **question) for name, question in questions.items()}
        if missing := [paused for known, paused in found.values() if not known]:
            raise self._leaving(*missing)
        return {name: answer for name, (_, answer) in found.items()}

    def _leaving(self, *asked: Paused) -> PauseSignal:
        """Note the pause that leaves the node."""
        self._left = PauseSignal(*asked)
        return self._left

    def _answer_to(
        self,
        prompt: str,
        name: str | None = None,
        schema: Any = None,
        choices: Sequence[Any] | None = None,
        timeout: float | dt.timedelta | None = None,
        default: Any = NOTHING,
    ) -> tuple[bool, Any]:
        """Return whether a question is answered, and the answer, or else the pause that it makes."""
        self._refuse_if_over()
        name = prompt if name is None else name
        if _NUMBERED.search(name):
            raise StateInvalid(f"a question cannot be named {name!r}: #2, #3 … mark questions asked again")
        if self._asked is None:
            self._asked = {}
        times = self._asked[_text(name)] = self._asked.get(name, 0) + 1
        name = name if times == 1 else f"{name}#{times}"
        if name in (INTERRUPTED, MORE_ITERATIONS) or name.startswith(once_question("")):
            raise StateInvalid(f"a question cannot be named {name!r}; that is a question of the engine")
        raw = self._step.answers.get(name)
        if raw == EXPIRED and default is not NOTHING:
            return True, default
        if raw == EXPIRED and timeout is not None:
            raise AnswerTimeout(f"nobody answered {name!r} in time; a resume asks it again")
        if raw is not None and raw != EXPIRED:
            return True, self._host.codec.decode(raw)
        seconds = timeout.total_seconds() if isinstance(timeout, dt.timedelta) else timeout
        described = None
        if schema is not None or choices is not None:
            described = answers.answer_schema(schema, choices)
        return False, Paused(
            pause=f"{self._step.id}:{name}",
            kind="ask",
            step=self._step.id,
            node=self._step.node,
            name=name,
            prompt=prompt,
            schema=self._host.codec.encode(described) if described is not None else b"",
            expires_at=None if seconds is None else self._host.deadline_after(seconds),
            since=clock.time(),
        )

    def _check_left(self) -> None:
        """Refuse a node that was to be left for a pause and went on instead."""
        if self._left is not None:
            raise StateInvalid(
                f"node {self.node!r} went on although it is {self._left}; "
                "a bare `except:` around ctx.ask or ctx.sleep swallows the pause, use `except Exception:`"
            )

    def once(
        self,
        key: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        if_interrupted: Policy | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return `function(*args, **kwargs)`, run at most once in this step and remembered under `key`.

        Later attempts and resumes get the remembered result, and so do a plain fork and a rollback; a step that is
        rerun, or whose state a fork changed, runs it again. With a coroutine function, `await` it. A caller
        while it runs, in another task or thread, waits for it and gets its result, or what it raised; after that a
        new call tries again. Its intent is stored before it runs: if the process dies, or the attempt is left, inside
        of it, it is in doubt, and `if_interrupted` says what the next attempt does: `"rerun"`, `"skip"` (the result is
        `None`), `"ask"`, `"fail"`, or a function of `ctx` that checks (`None` or `False`: not done, `True`
        or a result: done). Without one the node's own `if_interrupted` says so.
        """
        key = self._stored_key(key)
        check_policy(if_interrupted)
        call = functools.partial(function, *args, **kwargs) if args or kwargs else function
        if inspect.iscoroutinefunction(function):
            return self._onces.call_async(self, key, call, if_interrupted)
        return self._onces.call(self, key, call, if_interrupted)

    def _refuse_if_over(self) -> None:
        """Leave a node that still runs although its attempt, or this execution of the run, is over."""
        if self._is_over or self._host.has_left_run:
            raise StopSignal

    def _refuse_if_left(self) -> None:
        """Leave a node that still runs although its attempt or its run was left: somebody else may have it by now."""
        if self._is_over or self._host.stop is not None or self._host.has_left_run:
            raise StopSignal

    def _stored_key(self, key: str) -> str:
        """Return a key as it is stored."""
        return _text(key)

    def _recalled(self, key: str) -> tuple[bool, Any, bool]:
        """Return whether `once` remembers a result under a key, the result, and whether it has to be awaited."""
        for kind in ("once", "awaited"):
            known, value = self._remembered(f"{kind}:{key}")
            if known:
                return True, value, kind == "awaited"
        return False, None, False

    def recall(self, key: str, default: Any = None) -> Any:
        """Return what `once` remembered under `key` in this step, or `default`."""
        known, value, _ = self._recalled(self._stored_key(key))
        return value if known else default

    def _use_secrets(self, names: Sequence[str]) -> Noted:
        """Tell the observers which secrets the step is about to use, and return what the journal says of it."""
        facts = {"step": self.step, "attempt": self.attempt, "names": list(names)}
        self._host.saving.emit("secrets.use", self.node, **facts)
        return self._noted(SECRETS_USED, list(names))

    def _tell_doubt(self, key: str, decision: str) -> None:
        """Tell the observers what is done about a function that was interrupted."""
        self._host.saving.emit("once.in_doubt", self.node, step=self.step, key=key, decision=decision)

    def sleep(
        self, seconds: float | dt.timedelta, *, name: str | None = None
    ) -> Coroutine[Any, Any, None] | None:
        """Wait until `seconds` have passed since this was first called in this step, crashes included.

        In an async node, `await` it. A resumed step waits only for the rest. A worker does not wait for long:
        it leaves the node, and when the time has come, any worker runs it again from its beginning, and this
        call returns at once. Use `once` for effects that must not be repeated.
        """
        length = seconds.total_seconds() if isinstance(seconds, dt.timedelta) else seconds
        if not length <= LONGEST_SLEEP:
            raise StateInvalid(
                f"ctx.sleep of step {step_label(self.step)!r} takes seconds, a hundred years of them at most, "
                f"not {seconds!r}"
            )
        self._refuse_if_left()
        self._sleeps += 1
        key = f"sleep:{self._sleeps if name is None else name}"
        if self._is_async:
            return self._sleep_async(key, self._host.deadline_after(length))
        known, until = self._remembered(key)
        if not known:
            until = self._host.deadline_after(length)
            self._host.note(self._noted(key, until), self)
        self._leave_if_long(key, until)
        while (left := self._host.time_left(until)) > 0:
            if self.cancelled:
                raise StopSignal
            nap = min(left, clock.glance(0.2))
            self._beat = clock.monotonic() + nap
            clock.sleep(nap)
        return None

    async def _sleep_async(self, key: str, until: float) -> None:
        known, earlier = self._remembered(key)
        if known:
            until = earlier
        else:
            await self._host.note_async(self._noted(key, until), self)
        self._leave_if_long(key, until)
        while (left := self._host.time_left(until)) > 0:
            nap = min(left, clock.glance(1.0))
            self._beat = clock.monotonic() + nap
            await asyncio.sleep(nap)

    def _leave_if_long(self, key: str, until: float) -> None:
        """Leave the node, if it is to wait longer than the execution does."""
        idle_timeout = self._host.idle_timeout
        if idle_timeout is not None and self._host.time_left(until) > idle_timeout:
            step = self._step
            raise self._leaving(
                Paused(f"{step.id}:{key}", SLEEP, step.id, step.node, key, "", b"", until, clock.time())
            )

    def _remembered(self, key: str) -> tuple[bool, Any]:
        raw = self._step.notes.get(key)
        return (False, None) if raw is None else (True, self._host.codec.decode(raw))

    def _noted(self, key: str, value: Any) -> Noted:
        """Return what is stored under a key."""
        try:
            return Noted(self.step, key, self._host.codec.encode(value))
        except CodecError as error:
            raise CodecError(f"{key} of step {step_label(self.step)!r}: {error}") from None


_NUMBERED = re.compile(r"#\d+$")

MOST_TOKENS = 1 << 53
"""More than anybody ever spent at once; larger numbers are mistakes."""


def ledger_line(
    step: str, attempt: int, model: str, input_tokens: int, output_tokens: int, cost: float | None, calls: int
) -> Spent:
    """Return a line of the ledger; numbers that cannot be are refused."""

    def refuse(problem: str) -> NoReturn:
        raise StateInvalid(f"ctx.spend of step {step_label(step)!r}: {problem}")

    if not isinstance(model, str):
        refuse(f"model is a name, not {model!r:.80}")
    for name, number in (("input_tokens", input_tokens), ("output_tokens", output_tokens), ("calls", calls)):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST_TOKENS:
            refuse(f"{name} is a whole number, 0 or more, not {number!r:.80}")
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, (int, float, decimal.Decimal))):
        refuse(f"cost is US dollars as a number, not {cost!r:.80}")
    dollars = None if cost is None else float(cost)
    if dollars is not None and not (math.isfinite(dollars) and dollars >= 0):
        refuse(f"cost is finite and 0 or more, not {cost!r}")
    return Spent(step, attempt, model, input_tokens, output_tokens, dollars, calls)


def _text(name: str) -> str:
    """Return a name that can be stored."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise StateInvalid(f"{name!r} cannot be stored as a name: it is not valid text") from None
    return name


__all__ = ["NOTHING", "Context", "PauseSignal", "StopSignal", "Terminated", "ledger_line", "logger"]
