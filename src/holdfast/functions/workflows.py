"""`@workflow`: a plain function whose calls of steps are recorded, so that it goes on where it stopped."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import types
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from holdfast.engine.app import App
from holdfast.engine.blocking import EventStream, RunInterrupted
from holdfast.engine.context import Context
from holdfast.engine.continuation import Existing
from holdfast.engine.settings import CheckpointPolicy, Outcome, Pause, Retention, Settings
from holdfast.errors import (
    AnswerRejected,
    GraphInvalid,
    HoldfastError,
    NotPaused,
    Remedy,
    RunFinished,
    RunPaused,
)
from holdfast.events import ObserverLike, resolve_observer
from holdfast.functions.call_attempts import _current
from holdfast.functions.calls import Calls, current_calls, current_context
from holdfast.functions.step_nodes import StepNodes, steps_graph
from holdfast.functions.steps import Declaration, Parameters, Result, StepFunction, refuse_unknown
from holdfast.graph.graph import Edge, Graph, Node
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import ABOUT_DOUBTS
from holdfast.journal.sealing import Seal
from holdfast.names import LazyModule
from holdfast.state.codec import Codec
from holdfast.state.ops import thaw
from holdfast.state.schema import Channel, Schema
from holdfast.state.state import State
from holdfast.state.types import BUILTIN
from holdfast.stores import open_store
from holdfast.stores.base import Store, in_memory_only, is_in_memory
from holdfast.values import END, RESULT, START, RunStatus

if TYPE_CHECKING:
    from holdfast.functions import checks
    from holdfast.functions.checks import FunctionWarning
    from holdfast.views import notebook
else:
    checks, notebook = LazyModule("functions.checks"), LazyModule("views.notebook")

logger = logging.getLogger("holdfast")

Value = TypeVar("Value")

_RESERVED = (RESULT, "run_id", "answers", "if_exists", "observer", "progress")
"""Parameters of `run`, and the key of the result."""

WORKFLOW_OPTIONS = (
    *("name", "store", "durability", "policy", "retention", "observer"),
    *("encryption_key", "time_limit", "version"),
)

_STORE_OPTION = "give it a store: @workflow(store='sqlite:///runs.db') or HOLDFAST_STORE"


class WorkflowFunction(Declaration[Parameters, Result]):
    """A workflow. `run` starts it, or goes on where it stopped; in another workflow a call of it is a step."""

    def __init__(
        self,
        function: Callable[Parameters, Result],
        *,
        name: str | None = None,
        store: Store | str | os.PathLike[str] | None = None,
        durability: str = "full",
        policy: CheckpointPolicy | None = None,
        retention: Retention | None = None,
        observer: ObserverLike = None,
        encryption_key: str | bytes | None = None,
        time_limit: float | None = None,
        version: str = "",
    ) -> None:
        super().__init__(function, name, "workflow")
        known = list(self.signature.parameters)
        if known[:1] in (["self"], ["cls"]):
            raise GraphInvalid(
                self.name,
                [
                    "a workflow cannot be a method: a resume in another process has no object to call it on; make it a "
                    "plain function, which may call steps that are methods"
                ],
                "workflow",
            )
        taken = [each for each in known if each in _RESERVED]
        if taken:
            raise GraphInvalid(
                self.name,
                [f"parameter {taken[0]!r} has a name that {self.name}.run keeps for itself; rename it"],
                "workflow",
            )
        self._store, self._observer, self._key = store, observer, encryption_key
        self._policy = policy if policy is not None else CheckpointPolicy(durability=durability)
        self._retention, self._time_limit, self._version = retention, time_limit, version
        self._has_warned = False

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        calls = current_calls(self.name)
        if calls is None:
            return self.function(*args, **kwargs)
        return cast(Result, self.as_step.called(calls, args, kwargs))

    # The graph, and the app that runs it.

    @functools.cached_property
    def as_step(self) -> StepFunction[Any, Any]:
        """This workflow as a step of another."""
        step = StepFunction(self.function, name=self.name)
        step.node = self._node(_ChildBody(self), ())
        return step

    def _node(
        self,
        body: Any,
        wants: tuple[str, ...] = ("state", "ctx"),
        within: tuple[WorkflowFunction[Any, Any], ...] = (),
    ) -> Node:
        """Return this workflow as a node. One that calls itself, perhaps through others, is not laid out again."""
        nodes, outer = StepNodes(), (*within, self)
        for each in self._calls:
            if isinstance(each, StepFunction):
                nodes.learn(each.node)
            elif each not in outer:
                nodes.learn(each._node(_ChildBody(each), (), outer))
        inner = steps_graph(self.name, nodes)
        return Node(self.name, body, inner, wants=wants, is_async=self.is_async)

    @functools.cached_property
    def app(self) -> App:
        """The workflow as a compiled graph on its store, with all that can be done with one."""
        node = self._node(_RootBody(self))
        defaults = {name: _default(each) for name, each in self.signature.parameters.items()}
        graph = Graph(
            self.name,
            Schema(
                self.name,
                {key: Channel(key, default=made) for key, made in {**defaults, RESULT: None}.items()},
            ),
            {self.name: node},
            (Edge(START, self.name), Edge(self.name, END)),
            version=self._version,
        )
        declared = [*self.types, *(each for step in self.steps for each in step.types)]
        opened = open_store(self._store)
        settings = Settings(
            graph=graph,
            journal=Journal(opened, Seal.chosen(self._key, None, os.environ)),
            codec=Codec(BUILTIN.including(declared)),
            policy=self._policy,
            retention=self._retention,
            observer=resolve_observer(self._observer),
            time_limit=self._time_limit,
            outline=graph.outline(),
            store_option=_STORE_OPTION,
        )
        app = App(settings)
        app._runner.environment.app = weakref.ref(self)  # This is what a module has under a name.
        return app

    @property
    def steps(self) -> list[StepFunction[Any, Any]]:
        """The steps that the function itself names, or functions of its module that it names; it may call others."""
        return [each for each in self._calls if isinstance(each, StepFunction)]

    @property
    def _calls(self) -> list[StepFunction[Any, Any] | WorkflowFunction[Any, Any]]:
        """These steps, and the workflows that it names so."""
        found: dict[str, StepFunction[Any, Any] | WorkflowFunction[Any, Any]] = {}
        for each in _named_in(self.function, {self.function}):
            found.setdefault(each.name, each)
        return list(found.values())

    def _repr_html_(self) -> str:
        return notebook.function_html(self)

    def validate(self) -> list[FunctionWarning]:
        """Return what in the function, outside of its steps, may come to something else when it runs again.

        The time, random numbers, files, the network, loops over sets: its source is read, and nothing is run.
        """
        return checks.check_function(self)

    # Running it.

    @overload
    def run(
        self: WorkflowFunction[..., Coroutine[Any, Any, Value]],
        *args: Any,
        run_id: str | None = None,
        answers: Mapping[str, Any] | None = None,
        if_exists: str | None = None,
        observer: ObserverLike = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> Value: ...
    @overload
    def run(
        self: WorkflowFunction[..., Value],
        *args: Any,
        run_id: str | None = None,
        answers: Mapping[str, Any] | None = None,
        if_exists: str | None = None,
        observer: ObserverLike = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> Value: ...
    def run(
        self,
        *args: Any,
        run_id: str | None = None,
        answers: Mapping[str, Any] | None = None,
        if_exists: str | None = None,
        observer: ObserverLike = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return what the function returns; start a run, or go on with the run of that id where it stopped.

        A run that is finished gives its recorded result, and runs nothing. Other arguments than those that the run was
        started with are refused. A run that waits raises `RunPaused`; `answers` are given, by name, to its questions.
        With `if_exists` a run of that id is refused (`"fail"`), or what it has come to is returned (`"return"`).
        `progress` says whether the steps are shown while they run; by default in an interactive terminal or notebook.
        """
        how, given, left = self._how(run_id, if_exists), self.bound(args, kwargs), dict(answers or {})
        watched: dict[str, Any] = {"observer": observer, "progress": progress}
        with self._naming_itself():
            outcome = None
            if self._takes_answers(given, how, left):
                with suppress(
                    AnswerRejected, NotPaused, RunFinished
                ):  # It waits for some of them only, or for none.
                    outcome, left = self.app.resume(how["run_id"], answers=left, **watched), {}
            if outcome is None:
                outcome = self.app.invoke(given, **how, **watched)
            while now := _answers_to(outcome, left):
                outcome = self.app.resume(outcome.run_id, answers=now, **watched)
            return self._result(outcome)

    @overload
    async def arun(
        self: WorkflowFunction[..., Coroutine[Any, Any, Value]],
        *args: Any,
        run_id: str | None = None,
        answers: Mapping[str, Any] | None = None,
        if_exists: str | None = None,
        observer: ObserverLike = None,
        **kwargs: Any,
    ) -> Value: ...
    @overload
    async def arun(
        self: WorkflowFunction[..., Value],
        *args: Any,
        run_id: str | None = None,
        answers: Mapping[str, Any] | None = None,
        if_exists: str | None = None,
        observer: ObserverLike = None,
        **kwargs: Any,
    ) -> Value: ...
    async def arun(
        self,
        *args: Any,
        run_id: str | None = None,
        answers: Mapping[str, Any] | None = None,
        if_exists: str | None = None,
        observer: ObserverLike = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `run`, in the running event loop."""
        how, given, left = self._how(run_id, if_exists), self.bound(args, kwargs), dict(answers or {})
        watched: dict[str, Any] = {"observer": observer, "progress": progress}
        with self._naming_itself():
            outcome = None
            if self._takes_answers(given, how, left):
                with suppress(AnswerRejected, NotPaused, RunFinished):
                    outcome, left = await self.app.aresume(how["run_id"], answers=left, **watched), {}
            if outcome is None:
                outcome = await self.app.ainvoke(given, **how, **watched)
            while now := _answers_to(outcome, left):
                outcome = await self.app.aresume(outcome.run_id, answers=now, **watched)
            return self._result(outcome)

    def _takes_answers(
        self, given: Mapping[str, Any], how: Mapping[str, Any], answers: Mapping[str, Any]
    ) -> bool:
        """Return whether there is a run that may wait for answers; refuse other arguments than it began with."""
        if not answers or how.get("if_exists") != "resume":
            return False
        found = Existing.find(self.app._runner, how["run_id"], "resume")
        if found is not None:
            found.refuse_other_input(given)
        return found is not None

    def _how(self, run_id: str | None, if_exists: str | None) -> dict[str, Any]:
        """Return how a run is started: one that has an id may be there already."""
        self._warn_of_memory()
        if run_id is None:
            return {} if if_exists is None else {"if_exists": if_exists}
        return {"run_id": run_id, "if_exists": "resume" if if_exists is None else if_exists}

    @overload
    def resume(
        self: WorkflowFunction[..., Coroutine[Any, Any, Value]],
        run_id: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Value: ...
    @overload
    def resume(
        self: WorkflowFunction[..., Value],
        run_id: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Value: ...
    def resume(
        self, run_id: str, answer: Any = None, *, answers: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Go on with a run where it stopped, and return what the function returns; see `App.resume` for the options."""
        with self._naming_itself():
            try:
                return self._result(self.app.resume(run_id, answer, answers=answers, **options))
            except RunFinished:
                return self._result(self.app.invoke(run_id=run_id, if_exists="return"))

    @overload
    async def aresume(
        self: WorkflowFunction[..., Coroutine[Any, Any, Value]],
        run_id: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Value: ...
    @overload
    async def aresume(
        self: WorkflowFunction[..., Value],
        run_id: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Value: ...
    async def aresume(
        self, run_id: str, answer: Any = None, *, answers: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """As `resume`, in the running event loop."""
        with self._naming_itself():
            try:
                return self._result(await self.app.aresume(run_id, answer, answers=answers, **options))
            except RunFinished:
                return self._result(await self.app.ainvoke(run_id=run_id, if_exists="return"))

    def stream(
        self,
        *args: Any,
        run_id: str | None = None,
        if_exists: str | None = None,
        observer: ObserverLike = None,
        **kwargs: Any,
    ) -> EventStream:
        """Start a run, or go on with the run of that id, and yield its events as they happen; see `App.stream`.

        It shows nothing of the run: the caller has the events.
        """
        how = self._how(run_id, if_exists)
        return self.app.stream(self.bound(args, kwargs), observer=observer, **how)

    def submit(
        self, *args: Any, run_id: str | None = None, if_exists: str | None = None, **kwargs: Any
    ) -> str:
        """Store a run for workers to execute, and return its id; `app.submit` takes a queue, a priority and a time."""
        return self.app.submit(self.bound(args, kwargs), **self._how(run_id, if_exists))

    def inputs_of(self, given: Any) -> dict[str, Any]:
        """Return the arguments by name: of a mapping, of a tuple by position, or of the only argument itself."""
        if isinstance(given, Mapping):
            return self.bound((), given)
        return self.bound(given if isinstance(given, tuple) else () if given is None else (given,), {})

    def _result(self, outcome: Outcome) -> Any:
        if outcome.status == RunStatus.COMPLETED:
            return _plain(outcome.state)
        if outcome.error is not None:
            raise outcome.error
        names, run = [pause.name for pause in outcome.pauses if pause.name], outcome.run_id
        asked = ", ".join(_asked(pause) for pause in outcome.pauses if pause.name)
        waits = f"waits for an answer to {asked}" if names else f"is {outcome.status}"
        given = "…" if len(names) == 1 else f"answers={{{', '.join(f'{name!r}: …' for name in names)}}}"
        remedy = Remedy("answer", run, text=f"answer with {self.function.__name__}.resume({run!r}, {given})")
        raise RunPaused(
            f"run {run!r} of {self.name!r} {waits}",
            remedies=remedy if names else Remedy("resume", run),
            run_id=run,
            outcome=outcome,
        )

    def _warn_of_memory(self) -> None:
        """Warn, once, that runs do not outlive this process, if nobody chose where they are kept."""
        store, is_chosen = self.app.store, self._store is not None or os.environ.get("HOLDFAST_STORE")
        if is_in_memory(store) and not is_chosen and not self._has_warned:
            self._has_warned = True
            kept = in_memory_only(store, _STORE_OPTION)
            logger.warning("runs of workflow %r are kept%s", self.name, kept)

    @contextmanager
    def _naming_itself(self) -> Iterator[None]:
        """Let errors tell what to do by the name of this workflow, which has no variable `app`."""
        try:
            yield
        except (HoldfastError, RunInterrupted) as error:
            error.remedies = tuple(
                replace(each, app=f"{self.function.__name__}.app") for each in error.remedies
            )
            raise


def _answers_to(outcome: Outcome, left: dict[str, Any]) -> dict[str, Any]:
    """Take those of the answers that a run waits for; others are for questions before or after that."""
    asked = {each for pause in outcome.pauses for each in (pause.name, pause.id)}
    return {name: left.pop(name) for name in list(left) if name in asked}


def _asked(pause: Pause) -> str:
    """Return the name of a question, with its choices and, if it is about an interrupted step, with that step."""
    choices = [repr(each) for each in (pause.schema or {}).get("enum", ())]
    given = f" ({' or '.join(filter(None, (', '.join(choices[:-1]), *choices[-1:])))})" if choices else ""
    about = f": {pause.prompt.partition(';')[0]}" if pause.kind in ABOUT_DOUBTS else ""
    return f"{pause.name!r}{given}{about}"


def _plain(state: State) -> Any:
    return thaw(state[RESULT])


class _Body:
    """Runs the function of a workflow with its calls recorded."""

    def __init__(self, workflow: WorkflowFunction[Any, Any]) -> None:
        self._workflow = workflow
        self.__name__, self.__module__ = workflow.name, workflow.function.__module__

    def _calls(self, ctx: Context) -> Calls:
        return Calls(ctx, cast(StepNodes, ctx._host.graph.at(ctx.step).nodes))

    def run_function(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a sync function returns."""
        calls = self._calls(ctx)
        token = _current.set(calls)
        calls.begin()
        try:
            value = self._workflow.function(*args, **kwargs)
        except BaseException as error:
            if not _is_interrupt(error):
                calls.wait_until_idle()
            reason = calls.reason(error)
            if reason is error:
                raise
            raise reason from None
        else:
            calls.wait_until_idle()
            calls.returned()
            return value
        finally:
            calls.close()
            _current.reset(token)

    async def run_coroutine(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a coroutine function returns."""
        calls = self._calls(ctx)
        token = _current.set(calls)
        calls.begin()
        try:
            value = await self._workflow.function(*args, **kwargs)
        except BaseException as error:
            if not _is_interrupt(error):
                await calls.wait_until_idle_async()
            reason = calls.reason(error)
            if reason is error:
                raise
            raise reason from None
        else:
            await calls.wait_until_idle_async()
            calls.returned()
            return value
        finally:
            calls.close()
            _current.reset(token)


def _is_interrupt(error: BaseException) -> bool:
    """Return whether a function was interrupted, or its task cancelled: nobody waits for its steps then."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
        return task is not None and task.cancelling() > 0
    return isinstance(error, (KeyboardInterrupt, SystemExit))


class _RootBody(_Body):
    """The function of a run: its arguments are the state, and its result is a key of it."""

    def __call__(self, state: State, ctx: Context) -> Any:
        args, kwargs = self._arguments(state)
        if self._workflow.is_async:
            return self._awaited(self.run_coroutine(ctx, args, kwargs))
        return {RESULT: self.run_function(ctx, args, kwargs)}

    async def _awaited(self, result: Coroutine[Any, Any, Any]) -> dict[str, Any]:
        return {RESULT: await result}

    def _arguments(self, state: State) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = list[Any](), dict[str, Any]()
        parameters = self._workflow.signature.parameters
        more = any(each.kind == each.VAR_POSITIONAL and state.get(name) for name, each in parameters.items())
        for name, parameter in parameters.items():
            by_position = parameter.kind == parameter.POSITIONAL_ONLY or (
                more and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
            )
            if name not in state:
                if by_position and parameter.default is not parameter.empty:
                    args.append(parameter.default)
                elif parameter.default is parameter.empty and parameter.kind not in (2, 4):
                    raise HoldfastError(
                        f"workflow {self._workflow.name!r} has no value for its parameter {name!r}"
                    )
                continue
            value = thaw(state[name])
            if parameter.kind == parameter.VAR_POSITIONAL:
                args += value
            elif parameter.kind == parameter.VAR_KEYWORD:
                kwargs |= value
            elif by_position:
                args.append(value)
            else:
                kwargs[name] = value
        return args, kwargs


class _ChildBody(_Body):
    """The function of a workflow that another workflow calls."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ctx = current_context(self._workflow.name)
        if self._workflow.is_async:
            return self.run_coroutine(ctx, args, kwargs)
        return self.run_function(ctx, args, kwargs)


def _named_in(function: Any, seen: set[Any]) -> Iterator[StepFunction[Any, Any] | WorkflowFunction[Any, Any]]:
    """Yield the steps and workflows that a function names, and those that helpers in its module name."""
    code = getattr(function, "__code__", None)
    scope = {**getattr(function, "__globals__", {})}
    for name, cell in zip(code.co_freevars if code else (), function.__closure__ or (), strict=False):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            continue
    for name in _names(code) if code is not None else ():
        found = scope.get(name)
        if isinstance(found, (StepFunction, WorkflowFunction)):
            yield found
        elif not isinstance(found, types.FunctionType) or found in seen:
            continue
        elif found.__module__ == function.__module__:
            seen.add(found)
            yield from _named_in(found, seen)


def _default(parameter: inspect.Parameter) -> Callable[[], Any] | None:
    """Return what makes the value that a parameter has if it is not given; `None` if it has to be given."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return tuple if parameter.kind == parameter.VAR_POSITIONAL else dict
    return None if parameter.default is parameter.empty else lambda: parameter.default


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


@overload
def workflow(function: Callable[Parameters, Result], /) -> WorkflowFunction[Parameters, Result]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    durability: str = "full",
    policy: CheckpointPolicy | None = None,
    retention: Retention | None = None,
    observer: ObserverLike = None,
    encryption_key: str | bytes | None = None,
    time_limit: float | None = None,
    version: str = "",
) -> Callable[[Callable[Parameters, Result]], WorkflowFunction[Parameters, Result]]: ...
def workflow(function: Any = None, /, **options: Any) -> Any:
    """Make a function a workflow: `run` executes it, and what its steps have finished is never done again.

    The options are those of `StateGraph.compile`. Without a `store`, `HOLDFAST_STORE` says where runs are kept, or they
    are kept in memory.
    """
    refuse_unknown(options, WORKFLOW_OPTIONS, "workflow")
    return (
        WorkflowFunction(function, **options)
        if function is not None
        else functools.partial(WorkflowFunction, **options)
    )
