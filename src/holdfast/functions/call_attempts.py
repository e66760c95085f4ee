"""Attempts of steps that a workflow's function called, and where the code at hand is: in a function, or in its step."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from holdfast.engine.attempt import Attempt
from holdfast.engine.context import Context
from holdfast.graph.graph import Node
from holdfast.journal.run_state import Step
from holdfast.state.state import State

if TYPE_CHECKING:
    from holdfast.functions.calls import Calls
    from holdfast.functions.steps import Call

_NO_STATE = State()


class InsideStep:
    """Stands where the code at hand is a part of a step, whose own calls are not recorded."""

    def __init__(self, context: Context) -> None:
        self.context = context


_current: ContextVar[Calls | InsideStep | None] = ContextVar("holdfast-calls", default=None)


class CallAttempt(Attempt):
    """One attempt of a step that a workflow's function called."""

    __slots__ = ("args", "kwargs")

    def __init__(
        self, node: Node, step: Step, context: Context, args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__(node, step, _NO_STATE, context, context.config)
        self.args, self.kwargs = args, kwargs

    def call(self) -> Any:
        """Call the function with its arguments."""
        assert self.context is not None and self.node.function is not None
        token = _current.set(InsideStep(self.context))
        try:
            given = (
                (self.context, *self.args) if self.node.wants else self.args
            )  # Those who watch steps want it.
            found = self.node.function(*given, **self.kwargs)
            return _inside(self.context, found) if self.node.is_async else found
        finally:
            _current.reset(token)


async def _inside(context: Context, work: Coroutine[Any, Any, Any]) -> Any:
    token = _current.set(InsideStep(context))
    try:
        return await work
    finally:
        _current.reset(token)


class WholeCall:
    """A call with its arguments, for an executor, which gives it the context of its step as that is there."""

    def __init__(self, call: Call) -> None:
        self._function, self._args, self._kwargs = call.function, call.args, dict(call.kwargs)

    def __call__(self, context: Any) -> Any:
        if not isinstance(context, Context):  # This is another process.
            context.unit = "step"
        token = _current.set(InsideStep(context))
        try:
            found = self._function.function(*self._args, **self._kwargs)
            return _inside(context, found) if asyncio.iscoroutine(found) else found
        finally:
            _current.reset(token)
