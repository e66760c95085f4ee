"""`ctx.once`: a function that runs once in a step, however often, and from wherever, it is called there."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.errors import HoldfastError, StateInvalid
from holdfast.graph.graph import IF_INTERRUPTED
from holdfast.journal.records import OnceFailed, OnceStarted, Paused
from holdfast.journal.run_state import BEGUN, ONCE_IN_DOUBT, SLEEP, Step, once_question
from holdfast.state.codec import Codec
from holdfast.threads import locked
from holdfast.values import step_label

if TYPE_CHECKING:
    from holdfast.engine.context import Context


class PauseSignal(BaseException):
    """Leaves a node that waits for an answer. No `except Exception` can swallow it."""

    def __init__(self, *asked: Paused) -> None:
        self.asked = asked
        what = "its time" if asked[0].kind == SLEEP else f"an answer to {asked[0].prompt!r}"
        super().__init__(f"waiting for {what}")


class BodyLeft(BaseException):
    """Leaves the function of a workflow, to run it again later: a step that it called waits, or commands do."""


class StopSignal(BaseException):
    """Leaves a node because the run is to stop, or because this attempt was left: it timed out, or the run went on.

    Every call of `ctx` that has an effect raises it in an attempt that was left, before the effect.
    """


class Terminated(SystemExit):
    """SIGTERM arrived. Any other `SystemExit` is a node's own, and a failure like another."""


class StepInterrupted(HoldfastError):
    """An interrupted step, or a function given to `once`, may not be repeated unasked."""


Policy = str | Callable[[Any], Any]
"""What to do with a function that was interrupted: as `if_interrupted` of nodes."""

_INTERRUPTIONS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, StopSignal, Terminated)
"""What leaves a function in the middle, so that nobody knows how far it came."""

_NOBODY: Any = object()
"""The outcome of an interrupted call: others who wait for it try themselves."""

_GLANCE = 0.2
"""How often, in seconds, a waiting thread looks whether its attempt was left."""

_inside: ContextVar[tuple[_Call, ...]] = ContextVar("holdfast-once", default=())
"""The calls that the code at hand is a part of, the innermost last."""


class _Call:
    """One run of a function given to `once`. Others who call it meanwhile wait for its outcome."""

    __slots__ = ("guard", "is_awaited", "key", "loop", "outcome", "waits_for")

    def __init__(self, key: str) -> None:
        self.key, self.loop = key, asyncio._get_running_loop()
        self.is_awaited = False
        self.outcome: Future[Any] = Future()
        self.outcome.set_running_or_notify_cancel()  # Nobody who stops waiting cancels it for the others.
        self.waits_for: set[_Call] = set()
        self.guard: weakref.ref[Any] | None = None


class Onces:
    """The functions that one attempt of a step runs once. May be used from any thread and task."""

    __slots__ = ("_lock", "_running")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, _Call] = {}

    def call(self, context: Context, key: str, function: Callable[[], Any], policy: Policy | None) -> Any:
        """Return what a sync function comes to; if that is an awaitable, one that comes to its result."""
        while True:
            context._refuse_if_left()
            known, value, is_awaited = context._recalled(key)
            if known:
                return _ready(value) if is_awaited else value
            call, is_own = self._begin(key)
            if is_own:
                return self._run(context, call, function, policy)
            if call.is_awaited:
                return self._after(context, call, function, policy)
            value = self._wait(context, call)
            if value is not _NOBODY:
                return value

    async def call_async(
        self, context: Context, key: str, function: Callable[[], Any], policy: Policy | None
    ) -> Any:
        """As `call`, of a coroutine function."""
        while True:
            context._refuse_if_left()
            known, value, _ = context._recalled(key)
            if known:
                return value
            call, is_own = self._begin(key)
            if is_own:
                return await self._run_async(context, call, function, policy)
            value = await self._wait_async(call)
            if value is not _NOBODY:
                return value

    # Running it.

    def _run(self, context: Context, call: _Call, function: Callable[[], Any], policy: Policy | None) -> Any:
        key = call.key
        with self._ending(call):
            known, value, is_awaited = context._recalled(key)  # It may have been finished just now.
            decision = None if known else _doubt(context, key, policy)
            if callable(decision):
                value = decision(context)
                if inspect.isawaitable(value):
                    getattr(value, "close", lambda: None)()
                    raise StateInvalid(
                        f"if_interrupted of once {key!r} must be a plain function, as {key!r} is"
                    )
                known, decision = _found(context, key, value)
                value = None if value is True else value
            known = known or decision == "skip"
            if not known:
                with _starting(context, key):
                    context._host.note(
                        OnceStarted(context.step, key, context.attempt, decision is not None), context
                    )
                    context._refuse_if_left()  # Storing may take long, and another attempt may be at work by now.
                with _within(context, call):
                    value = function()
                    if inspect.isawaitable(value):
                        return self._hand_out(context, call, value)
                    noted = context._noted(f"once:{key}", value)
                context._host.note(noted, context)
            elif decision is not None:
                context._host.note(context._noted(f"once:{key}", value), context)
            context._refuse_if_over()
            self._end(call, value)
            return _ready(value) if is_awaited else value

    def _hand_out(self, context: Context, call: _Call, awaitable: Any) -> Any:
        """Return a coroutine that comes to the result of an awaitable, and lets the others know."""
        finishing = self._finish(context, call, awaitable)
        call.is_awaited = True
        # If nobody ever awaits it, nothing ran, and nobody has to wait for it.
        call.guard = weakref.ref(finishing, lambda _: self._end(call, _NOBODY))
        return finishing

    async def _finish(self, context: Context, call: _Call, awaitable: Any) -> Any:
        with self._ending(call):
            with _within(context, call):
                value = await awaitable
                noted = context._noted(f"awaited:{call.key}", value)
            await context._host.note_async(noted, context)
            context._refuse_if_over()
            self._end(call, value)
            return value

    async def _run_async(
        self, context: Context, call: _Call, function: Callable[[], Any], policy: Policy | None
    ) -> Any:
        key = call.key
        with self._ending(call):
            known, value, _ = context._recalled(key)
            decision = None if known else _doubt(context, key, policy)
            if callable(decision):
                value = decision(context)
                if inspect.isawaitable(value):
                    value = await value
                known, decision = _found(context, key, value)
                value = None if value is True else value
            known = known or decision == "skip"
            if not known:
                started = OnceStarted(context.step, key, context.attempt, decision is not None)
                with _starting(context, key):
                    await context._host.note_async(started, context)
                    context._refuse_if_left()
                with _within(context, call):
                    value = await function()
                    noted = context._noted(f"once:{key}", value)
                await context._host.note_async(noted, context)
            elif decision is not None:
                await context._host.note_async(context._noted(f"once:{key}", value), context)
            context._refuse_if_over()
            self._end(call, value)
            return value

    async def _after(
        self, context: Context, call: _Call, function: Callable[[], Any], policy: Policy | None
    ) -> Any:
        """Wait for an awaitable that another call of the same key was given."""
        value = await self._wait_async(call)
        if value is _NOBODY:
            value = self.call(context, call.key, function, policy)
            value = await value if inspect.isawaitable(value) else value
        return value

    @contextlib.contextmanager
    def _ending(self, call: _Call) -> Iterator[None]:
        """End a call with whatever leaves this block: others who wait for it get the error, or try themselves."""
        try:
            yield
        except _INTERRUPTIONS:
            self._end(call, _NOBODY)
            raise
        except BaseException as error:
            self._end(call, None, error)
            raise

    # Waiting for it.

    def _begin(self, key: str) -> tuple[_Call, bool]:
        """Return the call of a key, and whether it is the caller's to run."""
        return locked(self._lock, self._found_or_begun, key, _inside.get())

    def _found_or_begun(self, key: str, inside: Sequence[_Call]) -> tuple[_Call, bool]:
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Call(key)
            return running, True
        if _leads_to(running, inside):
            raise StateInvalid(
                f"once {key!r} is called from inside the function that it runs, and would wait for itself for "
                "ever; give the inner call another key"
            )
        if inside:
            inside[-1].waits_for.add(running)
        return running, False

    def _wait(self, context: Context, call: _Call) -> Any:
        if call.loop is not None and call.loop is asyncio._get_running_loop():
            raise StateInvalid(
                f"once {call.key!r} runs a coroutine function in this event loop, which a plain function cannot "
                "wait for: give both calls coroutine functions, or different keys"
            )
        try:
            while True:
                try:
                    return call.outcome.result(timeout=_GLANCE)
                except TimeoutError:
                    if call.outcome.done():
                        raise  # The function's own.
                    context._refuse_if_left()
        finally:
            self._waited(call)

    async def _wait_async(self, call: _Call) -> Any:
        try:
            return await asyncio.wrap_future(call.outcome)
        finally:
            self._waited(call)

    def _waited(self, call: _Call) -> None:
        if inside := _inside.get():
            locked(self._lock, inside[-1].waits_for.discard, call)

    def _end(self, call: _Call, value: Any, error: BaseException | None = None) -> None:
        if not locked(self._lock, self._forget, call):
            return
        if error is not None:
            call.outcome.set_exception(error)
        else:
            call.outcome.set_result(value)

    def _forget(self, call: _Call) -> bool:
        """Remove a call; return whether it was there still."""
        if self._running.get(call.key) is not call:
            return False
        del self._running[call.key]
        return True


def _leads_to(call: _Call, ends: Collection[_Call]) -> bool:
    """Return True if a call is one of these, or waits for one of them."""
    seen, left = set[_Call](), [call]
    while left:
        at = left.pop()
        if at in ends:
            return True
        if at not in seen:
            seen.add(at)
            left.extend(at.waits_for)
    return False


@contextlib.contextmanager
def _starting(context: Context, key: str) -> Iterator[None]:
    """Store the intent in this block. If the step is to stop with that, its function is not in doubt."""
    try:
        yield
    except StopSignal:
        with contextlib.suppress(StopSignal):
            context._host.record_of_step(OnceFailed(context.step, key), context)
        raise


@contextlib.contextmanager
def _within(context: Context, call: _Call) -> Iterator[None]:
    """Run the function of a call in this block; if it raises, it is not in doubt."""
    token = _inside.set((*_inside.get(), call))
    context._once += 1
    try:
        yield
    except _INTERRUPTIONS:
        raise
    except BaseException:
        with contextlib.suppress(StopSignal):
            context._host.record_of_step(OnceFailed(context.step, call.key), context)
        raise
    finally:
        context._once -= 1
        with contextlib.suppress(ValueError):  # A coroutine that is closed from elsewhere.
            _inside.reset(token)


async def _ready(value: Any) -> Any:
    return value


def doubt_pause(codec: Codec, step: Step, kind: str, ident: str, name: str, prompt: str) -> Paused:
    """Return a pause until somebody says what to do with something of a step that was interrupted."""
    schema = codec.encode({"enum": ["rerun", "skip", "fail"]})
    return Paused(f"{step.id}:{ident}", kind, step.id, step.node, name, prompt, schema, since=clock.time())


def check_policy(policy: Any) -> None:
    """Refuse a policy that means nothing."""
    if policy is not None and not callable(policy) and policy not in IF_INTERRUPTED:
        raise StateInvalid(
            f"if_interrupted of once is one of {', '.join(IF_INTERRUPTED)}, or a function of ctx, not {policy!r:.80}"
        )


def _doubt(context: Context, key: str, policy: Policy | None) -> Policy | None:
    """Return what to do about a function that was interrupted; `None` if it was not. Asks, or refuses, right here.

    The caller of this execution comes first, then the function's own policy, then the node's.
    """
    step, host = context._step, context._host
    if f"{BEGUN}{key}" not in step.notes:
        return None
    answer = step.answers.get(once_question(key))
    decision = host.rules.if_interrupted or policy
    if answer is not None:
        decision = answer.decode()
    elif decision is None:
        # As the node says, unless it has looked itself, or somebody wants the step to run again.
        decision = host.graph.at(step.frame).nodes[step.node].if_interrupted
        if callable(decision) or step.id in host.wanted_again:
            decision = "rerun"
    context._tell_doubt(key, "look" if callable(decision) else decision)
    what = (
        f"once {key!r} of step {step_label(step.id)!r} was interrupted and may or may not have taken effect"
    )
    if decision == "fail":
        raise StepInterrupted(f"{what}, and may not be repeated unasked")
    if decision == "ask":
        name, prompt = once_question(key), f"{what}; rerun, skip or fail it?"
        raise context._leaving(doubt_pause(host.codec, step, ONCE_IN_DOUBT, name, name, prompt))
    return decision


def _found(context: Context, key: str, value: Any) -> tuple[bool, str]:
    """Return whether it turned out to be done, and what is done about it."""
    is_done = value is not None and value is not False
    context._tell_doubt(key, "done" if is_done else "rerun")
    return is_done, "done" if is_done else "rerun"


__all__ = ["Onces", "Policy", "check_policy"]
