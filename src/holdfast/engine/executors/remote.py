"""Work of a node in another process: what is sent, what is done there, what is brought back."""

from __future__ import annotations

import asyncio
import collections
import copyreg
import dataclasses
import importlib
import inspect
import io
import logging
import pickle
import traceback
import uuid
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

from holdfast.engine.context import Context, ledger_line, logger
from holdfast.errors import ExecutorLost, HoldfastError
from holdfast.graph.graph import Command
from holdfast.graph.validation import ExecutorChoice
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, ReadOnlyDict, ReadOnlyList, ReadOnlySet, Slot, frozen_dict, frozen_list
from holdfast.state.state import State, changed_since, check_untouched, origin_of, state_view
from holdfast.state.types import Handler, Types, handler_for
from holdfast.threads import Escaped

MOST_LINES = 1000
"""How many log messages of one step are brought back, the last ones."""

MOST_SPENT = 10_000
"""How many lines of the ledger one step may bring back."""

_ELSEWHERE = "put it into a node of its own without that executor"
WAYS_OUT = {
    "ask": _ELSEWHERE,
    "ask_all": _ELSEWHERE,
    "once": "put what must not be repeated into a node of its own",
    "recall": "put what must not be repeated into a node of its own",
    "sleep": _ELSEWHERE,
    "emit": "return what is to be known, or use ctx.log",
    "stream": "put it into a node of its own without that executor, or return the whole text",
    "heartbeat": "give the node a longer timeout",
    "cancelled": "a run that stops does not wait for it",
    "spent": "look at it in a node of its own without that executor",
    "granted": "look at it in a node of its own without that executor",
}


class Unavailable(HoldfastError):
    """A node asked something that cannot be asked from another process."""


class Facts(NamedTuple):
    """Which attempt of which step this is."""

    run_id: str
    step: str
    node: str
    visit: int
    item_key: str | None
    attempt: int
    idempotency_key: str
    config: Mapping[str, Any]
    where: str
    log_level: int

    @classmethod
    def of(cls, context: Context, where: str) -> Facts:
        own = [getattr(context, name) for name in cls._fields[:7]]
        return cls._make((*own, dict(context.config), where, logger.getEffectiveLevel()))


class Kept(logging.Handler):
    """Log messages, and lines of the ledger, that are brought back with the step's result."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[tuple[Any, ...]] = []
        self._lines: collections.deque[tuple[int, str]] = collections.deque(maxlen=MOST_LINES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, self.format(record)))
        self._count += 1

    def lines(self) -> list[tuple[int, str]]:
        """Return what was logged; of too much the end, and how much is left out."""
        left_out = self._count - len(self._lines)
        note = [(logging.WARNING, f"{left_out} earlier messages of this step are left out")]
        return [*(note if left_out else ()), *self._lines]


class RemoteContext:
    """One attempt of one step, as its node sees it from another process.

    It knows what `Context` knows; whatever needs the engine raises `Unavailable`, which names the alternative.
    """

    unit = "node"
    """What is to be written otherwise where something does not work: a node of a graph, or a step of a function."""

    def __init__(self, facts: Facts, kept: Kept) -> None:
        self._facts, self._kept = facts, kept
        # Of its own: what is logged is logged where the run is executed, not here.
        self._logger = logging.Logger(logger.name, facts.log_level)
        self._logger.addHandler(kept)

    def __getattr__(self, name: str) -> Any:
        if name in WAYS_OUT:
            return self._refuse(name)
        if name in Facts._fields and not name.startswith("_"):
            return getattr(self._facts, name)
        raise AttributeError(name)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger; its messages are logged where the run is executed, when the step is over."""
        return logging.LoggerAdapter(self._logger, {"run_id": self.run_id, "step": self.step})

    def spend(
        self,
        model: str = "",
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost: float | None = None,
        calls: int = 1,
    ) -> None:
        """Write into the run's ledger what this attempt has used up; it is stored when the step is over.

        If this process dies before that, nobody knows of it.
        """
        facts, spent = self._facts, self._kept.spent
        line = ledger_line(facts.step, facts.attempt, model, input_tokens, output_tokens, cost, calls)
        if len(spent) == MOST_SPENT:
            raise Unavailable(
                f"ctx.spend was called {MOST_SPENT} times in {facts.where}; add up what was spent, and say it at once"
            )
        spent.append(tuple(line))

    def _refuse(self, name: str) -> NoReturn:
        way_out = WAYS_OUT[name].replace("node", self.unit)
        raise Unavailable(
            f"ctx.{name} does not work in {self._facts.where}, which has no way back to the run: {way_out}"
        )


Loads = Callable[[bytes], Any]


class NotSent(HoldfastError):
    """Something cannot be taken to another process, or back."""


class SentState(NamedTuple):
    """A state on its way: its values stay encoded until somebody looks at them."""

    cells: dict[str, bytes]
    types: tuple[bytes, ...]
    run: str
    checkpoint: str
    node: str
    at: float

    @classmethod
    def of(cls, state: State, by_value: bool) -> SentState:
        codec, types = state._codec, list[bytes]()
        for handler in codec.types.handlers():
            # A type that cannot be found elsewhere is left out: a value of it cannot be looked at there.
            for form in (handler, (handler.name, handler.cls)):
                with suppress(Exception):
                    types.append(_dumps(form, by_value))
                    break
        encoded = {key: slot.encoded(codec) for key, slot in state._cells.items()}
        return cls(encoded, tuple(types), *origin_of(state))

    def opened(self, loads: Loads) -> State:
        """Return the state as the node would be given it where the run is executed."""
        handlers: list[Handler] = []
        for raw in self.types:
            with suppress(Exception):
                found = loads(raw)
                handlers.append(found if isinstance(found, Handler) else handler_for(found[1], found[0]))
        codec = Codec(Types.of_handlers(handlers))
        cells = {key: Slot(Op("set", key, raw, codec=codec), None) for key, raw in self.cells.items()}
        return state_view(cells, codec, self.run, self.checkpoint, self.node, self.at)


class Changed(NamedTuple):
    """A state that was returned, as what it changes of the one that was given."""

    values: dict[str, Any]
    dropped: tuple[str, ...]

    @classmethod
    def between(cls, given: State, returned: State) -> Changed:
        dropped = tuple(key for key in given if key not in returned)
        return cls(dict(changed_since(returned, given)), dropped)

    def applied(self, given: State) -> State:
        left = {key: slot for key, slot in given._cells.items() if key not in self.dropped}
        return given._with(left).merge(self.values)


class Task(NamedTuple):
    """A call for another process to make. States and facts among its arguments are opened there.

    `what` and `where` are for messages. No two tasks are equal, whatever they do, so that nobody takes one for
    another that was done already.
    """

    what: str
    where: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    by_value: bool
    ticket: str

    @classmethod
    def of(
        cls,
        what: str,
        choice: ExecutorChoice,
        function: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Task:
        given, ticket = (tuple(args), dict(kwargs or {})), uuid.uuid4().hex
        return cls(what, str(choice), function, *given, choice.by_value, ticket)

    def packed(self) -> bytes:
        """Return the task as bytes."""
        try:
            return _dumps(self, self.by_value)
        except Exception as error:
            trouble = error
        culprit = "it"
        for name, part in (("its arguments", (self.args, self.kwargs)), ("its function", self.function)):
            try:
                _dumps(part, self.by_value)
            except Exception:
                culprit = name
        raise NotSent(f"{self.what}: {culprit} cannot be sent to {self.where}: {trouble}") from trouble

    def done(self, kept: Kept, loads: Loads) -> Any:
        """Return what the call comes to, here."""
        states: list[State] = []

        def opened(given: Any) -> Any:
            if isinstance(given, SentState):
                states.append(given.opened(loads))
                return states[-1]
            return RemoteContext(given, kept) if isinstance(given, Facts) else given

        args = [opened(given) for given in self.args]
        kwargs = {name: opened(given) for name, given in self.kwargs.items()}
        value = awaited(self.function(*args, **kwargs))
        for state in states:
            check_untouched(state)
        return _changed(value, State, partial(Changed.between, states[0])) if states else value


class Reply(NamedTuple):
    """What came of a task: its value, or its error with the traceback as text; what was logged, and what was spent."""

    value: bytes
    error: bytes
    trace: str
    log: list[tuple[int, str]]
    spent: list[tuple[Any, ...]]

    def settled(self, task: Task, given: State | None) -> Any:
        """Return the value, or the error raised."""
        try:
            found = pickle.loads(self.error or self.value)
        except Exception as trouble:
            what = "its error" if self.error else "its result"
            problem = f"{task.what}: {what} cannot be brought back from {task.where}: {_described(trouble)}"
            raise NotSent(f"{problem}\n{self.trace}".rstrip()) from trouble
        if isinstance(found, _NotLoaded):
            raise NotSent(f"{task.what} cannot be loaded in {task.where}: {found}")
        if self.error:
            found.__cause__ = _There(self.trace)
            # No coroutine can raise it itself.
            raise Escaped(found) if isinstance(found, StopIteration) else found
        return found if given is None else _changed(found, Changed, lambda found: found.applied(given))


class _NotLoaded(Exception):
    """A task cannot be understood where it was sent to."""


class _There(Exception):
    """The traceback of an error that happened elsewhere, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def perform(data: bytes, loads: Loads = pickle.loads) -> bytes:
    """Do a task, wherever this is. It always answers a `Reply`, as bytes, and never raises."""
    kept = Kept()
    task: Task | None = None
    try:
        try:
            task = loads(data)
        except Exception as error:
            raise _NotLoaded(_described(error)) from error
        assert task is not None
        value = task.done(kept, loads)
        try:
            raw = _dumps(value, task.by_value)
        except Exception as error:
            what = f"{task.what} returned something that cannot be brought back from {task.where}"
            raise NotSent(f"{what}: {_described(error)}") from None
        reply = Reply(raw, b"", "", kept.lines(), kept.spent)
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        reply = Reply(b"", _packed_error(task, error), trace, kept.lines(), kept.spent)
    return pickle.dumps(tuple(reply))


def awaited(value: Any) -> Any:
    """Return a value, or, if it is still to be awaited, what it comes to in an event loop of its own."""
    return asyncio.run(_coming(value)) if inspect.isawaitable(value) else value


async def _coming(value: Any) -> Any:
    return await value


def _dumps(value: Any, by_value: bool) -> bytes:
    buffer = io.BytesIO()
    pickler: Any
    if by_value:
        cloudpickle: Any = importlib.import_module("cloudpickle")
        pickler = cloudpickle.Pickler(buffer)
        pickler.dispatch_table = ChainMap(_KEPT_READ_ONLY, pickler.dispatch_table)
    else:
        pickler = pickle.Pickler(buffer)
        pickler.dispatch_table = ChainMap(_KEPT_READ_ONLY, copyreg.dispatch_table)
    pickler.dump(value)
    return buffer.getvalue()


# What is read-only here is so over there; elsewhere copies of it are plain and may be changed.
_KEPT_READ_ONLY: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    ReadOnlyList: lambda value: (frozen_list, (list(value), value.care)),
    ReadOnlyDict: lambda value: (frozen_dict, (dict(value), value.care)),
    ReadOnlySet: lambda value: (ReadOnlySet, (set(value),)),
}


def _packed_error(task: Task | None, error: BaseException) -> bytes:
    """Return an error so that it can be raised here: itself if possible, else one that says what it was."""
    if isinstance(error, KeyboardInterrupt):
        error = ExecutorLost(f"{task.what} was interrupted in {task.where}" if task else "interrupted")
    for form in (error, _Remade(error)):
        try:
            raw = _dumps(form, task is not None and task.by_value)
            if type(pickle.loads(raw)) is type(error):
                return raw
        except Exception:
            continue
    return pickle.dumps(NotSent(_described(error)))


class _Remade:
    """Pickles an error whose constructor does not take what it was made of."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return (_remade, (type(self.error), self.error.args, self.error.__dict__))


def _remade(kind: type[BaseException], args: tuple[Any, ...], facts: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return what a node returned, with what is of a kind in it changed: the value itself or a command's update."""
    if isinstance(value, Command) and isinstance(value.update, kind):
        return dataclasses.replace(value, update=change(value.update))
    return change(value) if isinstance(value, kind) else value
