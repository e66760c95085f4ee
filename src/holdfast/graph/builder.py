"""`StateGraph`: writing a graph in Python."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from holdfast.engine.app import App
from holdfast.engine.blocking import EventStream
from holdfast.engine.decide import Rules
from holdfast.engine.environment import checked_facts
from holdfast.engine.settings import ON_CHANGE, CheckpointPolicy, Outcome, Retention, Settings, one_of
from holdfast.errors import (
    GraphInvalid,
    HoldfastError,
    suggestion,
)
from holdfast.events import ObserverLike, resolve_observer
from holdfast.graph.graph import (
    RESULTS,
    CircuitBreaker,
    Edge,
    Graph,
    Join,
    Migration,
    Node,
    Reconcile,
    Retry,
    Route,
)
from holdfast.graph.validation import check
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.names import LazyModule
from holdfast.state.codec import Codec
from holdfast.state.schema import Schema
from holdfast.state.state import StateT
from holdfast.state.types import BUILTIN
from holdfast.stores import open_store
from holdfast.stores.base import KeepsCheckpoints, Store, is_in_memory
from holdfast.values import START

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from holdfast.engine import speculation
    from holdfast.engine.speculation import Guesses
    from holdfast.graph import branches
    from holdfast.state.state import State
    from holdfast.views import notebook

    class _Options(TypedDict, total=False):
        """What `StateGraph` takes besides the schema, for type checkers."""

        name: str
        max_iterations: int
        checkpoint_dir: str | Path | None
        raise_exceptions: bool
        version: str
else:
    branches = LazyModule("graph.branches")
    speculation, notebook = LazyModule("engine.speculation"), LazyModule("views.notebook")

_GIVEN = ("state", "ctx", "config", "node", "graph")
_GIVEN_WITHOUT_DEFAULT = ("node", "graph")
"""What is given only to a parameter without a default: a loop that adds nodes may bind its own variables so."""


class StateGraph(Generic[StateT]):
    """A graph of nodes over one state. Add nodes and edges, then `compile`.

    `schema` is a TypedDict, a dataclass, a pydantic model, a mapping of annotations, or `dict` for any
    keys. Problems are collected and reported together by `compile`. `version` names the shape of the state;
    `migrate` says how a run that was saved under another version comes to it.
    """

    @overload
    def __init__(
        self: StateGraph[State],
        schema: type[dict[Any, Any]] | Mapping[str, Any] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...

    @overload
    def __init__(self, schema: type[StateT], **options: Unpack[_Options]) -> None: ...

    @overload
    def __init__(self: StateGraph[State], schema: object, **options: Unpack[_Options]) -> None: ...

    def __init__(
        self,
        schema: Any = None,
        *,
        name: str = "graph",
        max_iterations: int = 1000,
        checkpoint_dir: str | Path | None = None,
        raise_exceptions: bool = True,
        version: str = "",
    ) -> None:
        self.name, self.max_iterations, self.version = name, max_iterations, version
        self._migrations: dict[tuple[str, str], Migration] = {}
        self._schema = Schema.of(schema)
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []
        self._plain_edges: set[tuple[str, str]] = set()
        self._routes: dict[str, Route] = {}
        self._joins: list[Join] = []
        self._branches: list[branches.Branch] = []
        self._fan_ins: set[str] = set()
        self._exits: set[str] = set()
        self._problems: list[str] = []
        self._is_dag = False
        self._last: str | None = None
        self._checkpoint_dir, self.raise_exceptions = checkpoint_dir, raise_exceptions
        self._app: App[StateT] | None = None

    def add_node(
        self,
        name: str | Callable[..., Any],
        function: Callable[..., Any] | StateGraph | App | None = None,
        *,
        after: str | Iterable[str] | None = None,
        retry: Retry | None = None,
        timeout: float | dt.timedelta | None = None,
        if_interrupted: str | Reconcile | None = None,
        idempotent: bool = True,
        version: str | None = None,
        goto: Iterable[str] = (),
        on_error: Callable[[Any, BaseException], Any] | None = None,
        on_skip: Callable[[Any, str], Any] | None = None,
        max_parallel: int | None = None,
        executor: str | Executor | None = None,
        reads: Iterable[str] | None = None,
        reusable: bool = True,
        circuit_breaker: CircuitBreaker | None = None,
        pure: bool = False,
    ) -> Self:
        """Add a node: a function, sync or async, or another graph.

        A function receives what it names of `state`, `ctx`, `config`, `node` (the name of the node) and `graph`
        (the compiled graph, an `App`), and returns an update of the state, a `Command`, a whole `State`, or nothing.

        - `after`: the nodes it waits for (DAG style); with several it runs when all have finished.
        - `retry`, `timeout` (seconds): how often and how long it is tried.
        - `if_interrupted`: what a resume does if the node was running when the process died: "rerun",
          "skip", "ask", "fail", or a function `(ctx)` that looks and answers `None` (not done), `True`
          or an update (done). The default is "rerun", and "fail" for a node with `idempotent=False`. For
          another graph set it on the nodes in it.
        - `version`: names the node's code in place of its fingerprint.
        - `goto`: the nodes that its `Command`s may lead to, where no edge does.
        - `on_error`: a function of the state and the error of a failure that is final; what it returns
          stands in for the node's own result, the failure becomes a warning, and the run goes on. Raising
          the error again declines.
        - `on_skip`: a function of the state and a reason, called when somebody has a step passed over; what it
          returns stands in for the node's own result. Raising an error refuses.
        - `max_parallel`: how many steps of this node (items of a for-each) run at once.
        - `executor`: where its function is run: "threads", "processes" (as many as there are processors, or
          "processes:4"), "dask:tcp://host:port", or a `concurrent.futures.Executor`, which is yours to shut
          down. By default a sync function runs in the caller's thread, or in another beside siblings.
        - `reads`: the keys of the state that it looks at. It is given no others (asking for one raises
          `KeyError`), so that a change of any other key is known not to concern it.
        - `reusable`: `False` says that other runs do not take over what it returned (`reuse=`), but run it: it goes by
          more than its state, such as the time, or the id of its run.
        - `circuit_breaker`: after how many failures in a row its steps fail at once, and for how long.
        - `pure`: `True` says that it has no effects, so that it may run on inputs that are only guessed, for nothing
          if the guess was wrong; see `speculate` of `compile`.
        """
        if callable(name) and not isinstance(name, str):
            function = name
            name = str(getattr(function, "__name__", type(function).__name__))
        if name in self._nodes:
            self._problems.append(f"node {name!r} is added twice; names must be unique")
            return self
        if if_interrupted is None:
            if_interrupted = "rerun" if idempotent else "fail"
        options: dict[str, Any] = {
            "retry": retry,
            "timeout": _seconds(timeout),
            "if_interrupted": if_interrupted,
            "version": version,
            "goto": tuple(goto),
            "on_error": on_error,
            "on_skip": on_skip,
            "max_parallel": max_parallel,
            "executor": executor,
            "reads": None if reads is None else self._reads(name, reads),
            "reusable": reusable,
            "circuit_breaker": circuit_breaker,
            "pure": pure,
        }
        self._nodes[name] = self._node(name, function, options)
        if after is not None:
            self._is_dag = True
            self._add_after(name, after)
        return self

    def _node(self, name: str, function: Any, options: Mapping[str, Any]) -> Node:
        if isinstance(function, (StateGraph, App)):
            graph = function.graph if isinstance(function, App) else function.build()
            return Node(name, graph=graph, **options)
        if callable(function):
            wants, named = self._wants(name, function)
            return Node(name, function, wants=wants, named=named, is_async=_is_async(function), **options)
        self._problems.append(f"node {name!r} needs a function or a graph, not {function!r}")
        return Node(name, _nothing, **options)

    def _add_after(self, name: str, after: str | Iterable[str]) -> None:
        sources = [after] if isinstance(after, str) else list(dict.fromkeys(after)) or [START]
        if len(sources) == 1:
            self._plain_edges.add((sources[0], name))
            self._edges.append(Edge(sources[0], name))
        else:
            self._joins.append(Join(tuple(sources), name))

    def _reads(self, name: str, reads: Iterable[str]) -> tuple[str, ...]:
        is_one = isinstance(reads, str) or not isinstance(reads, Iterable)
        keys: tuple[Any, ...] = (reads,) if is_one else tuple(reads)
        known = self._schema.channels
        strange = [key for key in keys if not isinstance(key, str)]
        if strange:
            self._problems.append(f"node {name!r}: reads= names keys of the state, not {strange[0]!r:.80}")
            return ()
        keys = tuple(dict.fromkeys(keys))
        for key in keys:
            if not self._schema.is_open and key not in known:
                self._problems.append(
                    f"node {name!r} reads {key!r}, which is no key of the state{suggestion(key, known)}"
                )
        return keys

    def migrate(self, since: str, until: str) -> Callable[[Migration], Migration]:
        """Return a decorator: this function brings a state of version `since` to version `until`.

        It gets the state as a plain `dict` of its own, and returns the new state, or changes the one that it was
        given. A run that was saved under another `version` than the graph has now is brought to it, by as few
        migrations as lead there, when it is resumed; runs of graphs without a version have the version `""`.
        """

        def taken(function: Migration) -> Migration:
            if (since, until) in self._migrations:
                self._problems.append(f"there are two migrations from version {since!r} to {until!r}")
            elif since == until:
                self._problems.append(f"a migration leads from version {since!r} to itself")
            elif not self.version:
                self._problems.append(
                    f"there is a migration to version {until!r}, and the graph has none: StateGraph(…, version=…)"
                )
            self._migrations[since, until] = function
            return function

        return taken

    def add_edge(
        self,
        source: str | Iterable[str],
        target: str,
        when: Callable[..., Any] | None = None,
        *,
        label: str = "",
    ) -> Self:
        """Let `target` follow `source`.

        Several plain edges from one node fan out. Edges with `when` (a function of the state) are an
        ordered choice: the first that is true is taken, and an edge without `when` is the fallback.
        With a list of sources, `target` waits until all have finished.
        """
        if not isinstance(source, str):
            sources = tuple(dict.fromkeys(source))
            if when is not None:
                self._problems.append(
                    f"the join before {target!r} cannot have a condition; put it on an edge"
                )
            if len(sources) > 1:
                self._joins.append(Join(sources, target))
                return self
            if not sources:
                self._problems.append(f"the join before {target!r} has no sources")
                return self
            source = sources[0]
        if when is not None and not callable(when):
            self._problems.append(
                f"edge {source!r} -> {target!r}: when is a function of the state, not {when!r:.80}, such as "
                "when=lambda state: state['n'] > 0"
            )
        edge = Edge(source, target, when, label or getattr(when, "__name__", "").replace("<lambda>", ""))
        if when is None:
            if (source, target) in self._plain_edges:
                self._problems.append(f"edge {source!r} -> {target!r} is added twice")
                return self
            self._plain_edges.add((source, target))
        self._edges.append(edge)
        return self

    def add_parallel_edge(
        self,
        source: str,
        target: str,
        fan_in: str,
        *,
        timeout: float | dt.timedelta | None = None,
        retry: Retry | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        fail_fast: bool = True,
    ) -> Self:
        """Begin a branch with `target` after `source`, beside the other branches; `fan_in` runs when all have ended.

        A branch goes along its edges until one leads to `fan_in`, on a copy of the state. What it changed is not
        merged: `fan_in` finds the final states of all branches as the list `parallel_results` in its state, in the
        order of their first nodes, and returns what is to be kept of them.

        - `timeout`: how many seconds the branch may take in one execution.
        - `retry`, `circuit_breaker`: for the nodes of the branch that have none of their own.
        - `fail_fast=False`: a failure ends the branch, and not the run; its result then has an `error`.
        """
        options: dict[str, Any] = {"timeout": _seconds(timeout), "retry": retry, "fail_fast": fail_fast}
        branch = branches.Branch(source, target, fan_in, circuit_breaker=circuit_breaker, **options)
        if any(branch.target == target for branch in self._branches):
            self._problems.append(f"parallel edge {source!r} -> {target!r}: {target!r} begins two branches")
        else:
            self._branches.append(branch)
        return self

    def add_fanin_node(self, name: str, function: Callable[..., Any], **options: Any) -> Self:
        """Add a node that runs when the branches of parallel edges have ended; see `add_parallel_edge` and `add_node`.

        Its function may name `parallel_results` among its parameters.
        """
        self._fan_ins.add(name)
        return self.add_node(name, function, **options)

    def add_conditional_edges(
        self,
        source: str,
        route: Callable[..., Any],
        mapping: Mapping[Any, str] | Iterable[str] | None = None,
    ) -> Self:
        """Let a function of the state choose what follows `source`.

        It returns a node's name, `END`, a `Send`, or a list of them. `mapping` translates what it returns
        (or lists the possible nodes), so that the graph can be checked and drawn.
        """
        if not callable(route):
            self._problems.append(
                f"the routes of {source!r}: what chooses is a function of the state that returns a node's name, not "
                f"{route!r:.80}"
            )
        if mapping is not None and not isinstance(mapping, Mapping):
            mapping = {name: name for name in mapping}
        return self.add_route(Route(source, route, mapping))

    def add_route(self, route: Route) -> Self:
        """Add a routing function as a value; `add_conditional_edges` makes one of what it is given."""
        if route.source in self._routes:
            self._problems.append(f"node {route.source!r} has two routing functions; use one")
            return self
        self._routes[route.source] = route
        return self

    def set_entry_point(self, name: str) -> Self:
        """Begin with this node: `add_edge(START, name)`."""
        return self.add_edge(START, name)

    def set_exit_point(self, name: str) -> Self:
        """End the run after this node, whatever edges lead on from it. There may be several."""
        self._exits.add(name)
        return self

    set_finish_point = set_exit_point

    def set_last_node(self, name: str) -> Self:
        """Run this node when nothing else is left to run, whichever way the run came to its end."""
        self._last = name
        return self

    def build(self) -> Graph:
        """Return the frozen graph, not yet checked."""
        graph = self._without_branches()
        return branches.with_branches(graph, self._branches) if self._branches else graph

    def _without_branches(self) -> Graph:
        edges = list(self._edges)
        if self._is_dag:
            entered = {edge.target for edge in edges} | {join.target for join in self._joins}
            routed = any(route.mapping is None for route in self._routes.values())
            entered |= {
                target for route in self._routes.values() for target in (route.mapping or {}).values()
            }
            entered |= {self._last} if self._last else set()
            if not routed:
                edges += [Edge(START, name) for name in self._nodes if name not in entered]
        return Graph(
            name=self.name,
            schema=self._schema,
            nodes=dict(self._nodes),
            edges=tuple(edges),
            routes=tuple(self._routes.values()),
            joins=tuple(self._joins),
            exits=frozenset(self._exits),
            max_iterations=self.max_iterations,
            last=self._last,
            version=self.version,
            migrations=dict(self._migrations),
        )

    def _found(self, graph: Graph) -> list[str]:
        """Return what is wrong with the graph; parallel edges come first, because the rest depends on them."""
        lonely = self._fan_ins - {branch.fan_in for branch in self._branches}
        if not lonely and not self._branches:
            return check(graph)
        found = [
            *(
                f"fan-in node {name!r} has no parallel edge: add_parallel_edge(…, …, {name!r})"
                for name in sorted(lonely)
            ),
            *branches.problems_of(self._without_branches(), self._branches),
        ]
        return found or check(graph)

    def _repr_html_(self) -> str:
        return notebook.graph_html(self.build().outline(), self.problems())

    def problems(self) -> list[str]:
        """Everything that keeps this graph from being compiled; empty if nothing does."""
        return [*self._problems, *self._found(self.build())]

    def validate(self) -> None:
        """Raise a `GraphInvalid` with all problems of this graph, if it has any; `compile` does the same."""
        self._refuse(self.problems())

    def _refuse(self, problems: list[str]) -> None:
        if problems:
            raise GraphInvalid(self.name, list(dict.fromkeys(problems)))

    def compile(
        self,
        store: Store | KeepsCheckpoints | str | os.PathLike[str] | None = None,
        *,
        interrupt_before: Iterable[str] = (),
        interrupt_after: Iterable[str] = (),
        interrupt: str = "stop",
        durability: str | None = None,
        policy: CheckpointPolicy | None = None,
        retention: Retention | None = None,
        barrier: bool = True,
        max_parallel: int = 256,
        on_change: str = "warn",
        checkpoint_dir: str | Path | None = None,
        time_limit: float | dt.timedelta | None = None,
        on_limit: str = "fail",
        observer: ObserverLike = None,
        dialect: str | None = None,
        encryption_key: str | bytes | None = None,
        encryption: str | None = None,
        facts: bool | Mapping[str, Any] = True,
        raise_exceptions: bool | None = None,
        speculate: Mapping[str, Any] | None = None,
        max_ahead: int | None = None,
    ) -> App[StateT]:
        """Check the graph and bind it to a store. Every problem is reported in one `GraphInvalid`.

        - `store`: a store, its URL, or a `CheckpointStore`; else `HOLDFAST_STORE` says, or runs are kept in memory.
        - `interrupt_before`, `interrupt_after`: nodes to pause at; `interrupt="notify"` only tells.
        - `durability`: short for `policy=CheckpointPolicy(durability=…)`.
        - `retention`: how long runs are kept; without one nothing is ever deleted.
        - `barrier=False`: a node starts as soon as its own predecessors are done, not with its wave.
        - `max_parallel`: how many steps run at once.
        - `on_change`: what a resume does when the graph changed: "warn", "fail" or "use_saved".
        - `checkpoint_dir`: where a checkpoint file is written at every interrupt.
        - `time_limit`: seconds that one execution of a run may take; then it fails, and a resume has them again.
        - `dialect`: how events are named in streams, and for `observer`; see `stream`.
        - `on_limit="ask"`: a run that has used up its `max_iterations` pauses and asks for more; by default it fails.
        - `encryption_key`: encrypts everything but ids, kinds, names and times; by default `HOLDFAST_KEY`.
        - `encryption="require"`: nothing unencrypted is written or read; without a key it is an error. So does
          `HOLDFAST_ENCRYPTION=require`.
        - `facts`: what a run's journal records of its environment: by default host, versions and git commit; a mapping
          is added to these; `False`, like `HOLDFAST_FACTS=0`, notes nothing.
        - `raise_exceptions`: `False` returns a failure as an `Outcome` with an `error`, after its `graph.fail` event,
          instead of raising it; the default is that of the graph, which is `True`.
        - `speculate`: what nodes are expected to return, by name: a function of the state (`None`: no guess), an
          update, a `Command`, or the name of the node that follows. Steps that this leads to and that are `pure` run
          ahead, at most `max_ahead` (8) at once; what they return counts once their inputs have come to be the same.
        """
        graph = self.build()
        interrupt_before, interrupt_after = _placed(graph, interrupt_before), _placed(graph, interrupt_after)
        guesses = self._checked(graph, [*interrupt_before, *interrupt_after], speculate, max_ahead)
        _check_options(interrupt, on_change, on_limit, max_parallel)
        directory = checkpoint_dir if checkpoint_dir is not None else self._checkpoint_dir
        seal = _seal(encryption_key, encryption, directory)
        codec = Codec(_types(graph))
        noted, opened = checked_facts(facts, codec), open_store(store)
        app = self._app = App(
            Settings(
                graph=graph,
                journal=Journal(opened, seal),
                codec=codec,
                policy=_policy(policy, durability),
                retention=retention,
                rules=Rules(frozenset(interrupt_before), barrier, max_parallel, None, on_limit == "ask"),
                interrupt_after=frozenset(interrupt_after),
                notify=interrupt == "notify",
                checkpoint_dir=None if directory is None else Path(directory),
                observer=resolve_observer(observer, dialect),
                dialect=dialect,
                on_change=on_change,
                time_limit=_time_limit(time_limit),
                outline=graph.outline(),
                is_memory_default=store is None and is_in_memory(opened),
                guesses=guesses,
                facts=noted,
                raise_exceptions=self.raise_exceptions if raise_exceptions is None else raise_exceptions,
            )
        )
        return app

    def _checked(
        self, graph: Graph, gates: list[str], speculate: Mapping[str, Any] | None, max_ahead: int | None
    ) -> Guesses | None:
        """Return the guesses that a graph is compiled with; raise `GraphInvalid` with all that is wrong with both."""
        problems, guesses = [*self._problems, *self._found(graph), *_interrupt_problems(graph, gates)], None
        if speculate is not None or max_ahead is not None:
            guesses = speculation.Guesses.of(graph, speculate, max_ahead, problems)
        self._refuse(problems)
        return guesses

    # What the app of the last `compile` does, for those who keep the graph.

    def invoke(self, input: Any = None, **options: Any) -> Outcome[StateT]:
        """Start a run with the graph as it was compiled last; see `App.invoke`."""
        return self._last_compiled().invoke(input, **options)

    def stream(self, input: Any = None, **options: Any) -> EventStream:
        """Start a run with the graph as it was compiled last, and yield its events; see `App.stream`."""
        return self._last_compiled().stream(input, **options)

    def save_checkpoint(
        self,
        file_path: str | Path,
        state: Mapping[str, Any],
        node: str,
        config: Mapping[str, Any] | None = None,
    ) -> Path | None:
        """Write a state and the node to go on with into a file; see `App.save_checkpoint`."""
        return self._last_compiled().save_checkpoint(file_path, state, node, config)

    @classmethod
    def load_checkpoint(cls, file_path: str | Path) -> dict[str, Any]:
        """Return the content of a checkpoint file; see `App.load_checkpoint`."""
        return App.load_checkpoint(file_path)

    def resume_from_checkpoint(
        self, file_path: str | Path, config: Mapping[str, Any] | None = None, *, update: Any = None
    ) -> Any:
        """Start a new run from a checkpoint file, and yield its events; see `App.resume_from_checkpoint`."""
        target: Any = file_path
        return self._last_compiled().resume_from_checkpoint(target, config, update=update)

    def _last_compiled(self) -> App[StateT]:
        if self._app is None:
            raise GraphInvalid(self.name, ["it is not compiled yet: call compile() first"])
        return self._app

    def _wants(self, name: str, function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return which of `_GIVEN` a node's function takes, by position and by name."""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return ("state",), ()
        wants: list[str] = []
        named: list[str] = []
        by_name = False
        for index, parameter in enumerate(parameters):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            bound = parameter.name in _GIVEN_WITHOUT_DEFAULT and parameter.default is not parameter.empty
            is_results = parameter.name == RESULTS and name in self._fan_ins
            if is_results or (parameter.name in _GIVEN and not bound):
                is_named = by_name or parameter.kind == parameter.KEYWORD_ONLY
                (named if is_named else wants).append(parameter.name)
            elif index == 0 and parameter.kind != parameter.KEYWORD_ONLY:
                wants.append("state")
            elif parameter.default is parameter.empty:
                self._problems.append(
                    f"node {name!r}: its parameter {parameter.name!r} is none of {', '.join(_GIVEN)} and has no default"
                )
            else:
                by_name = True
        return tuple(wants), tuple(named)


def _nothing(state: Any) -> None:
    return None


def _seconds(length: float | dt.timedelta | None) -> float | None:
    return length.total_seconds() if isinstance(length, dt.timedelta) else length


def _policy(policy: CheckpointPolicy | None, durability: str | None) -> CheckpointPolicy:
    if policy is None:
        return CheckpointPolicy(durability=durability or "full")
    if durability is not None and durability != policy.durability:
        raise HoldfastError("durability is given twice, and differently: as itself and in policy")
    return policy


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _check_options(interrupt: str, on_change: str, on_limit: str, max_parallel: int) -> None:
    one_of("interrupt", interrupt, ("stop", "notify"))
    one_of("on_change", on_change, ON_CHANGE)
    one_of("on_limit", on_limit, ("fail", "ask"))
    if max_parallel < 1:
        raise HoldfastError(f"max_parallel must be at least 1, not {max_parallel!r}")


def _time_limit(given: float | dt.timedelta | None) -> float | None:
    limit = _seconds(given)
    if limit is not None and not limit > 0:
        raise HoldfastError(f"time_limit must be more than 0 seconds, not {limit!r}")
    return limit


def _placed(graph: Graph, names: Iterable[str]) -> list[str]:
    """Return nodes to pause at with the branches that they are in; what is not known stays as it is."""
    if not any(node.is_branch for node in graph.nodes.values()):
        return list(names)
    return [place for name in names for place in branches.qualified_places(graph, name) or [name]]


def _seal(key: str | bytes | None, encryption: str | None, directory: str | Path | None) -> Seal | None:
    seal = Seal.chosen(key, encryption, os.environ)
    if seal is not None and directory is not None:
        raise HoldfastError(
            "checkpoint files are not encrypted: give either an encryption key or checkpoint_dir"
        )
    return seal


def _interrupt_problems(graph: Graph, names: list[str]) -> list[str]:
    problems = []
    for name in names:
        inner: Graph | None = graph
        *outer, last = name.split("/")
        for part in outer:
            node = inner.nodes.get(part) if inner is not None else None
            inner = node.graph if node is not None else None
        if inner is None or last not in inner.nodes:
            problems.append(f"interrupts: node not found: {name}{suggestion(name, graph.nodes)}")
    return problems


def _types(graph: Graph) -> Any:
    types = graph.schema.types(BUILTIN)
    for node in graph.nodes.values():
        if node.graph is not None:
            types = types.including(_types(node.graph).classes())
    return types
