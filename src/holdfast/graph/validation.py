"""The only validator of graphs: `check` reports every problem at once."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import pickle
import re
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from holdfast.errors import suggestion
from holdfast.graph.graph import Graph
from holdfast.values import END, START

# The `executor` option of a node: what it means, and what is wrong with it.


THREADS, PROCESSES, DASK, OWN = "threads", "processes", "dask", "own"
KINDS = (THREADS, PROCESSES, DASK)
FORMS = "threads, processes, processes:NUMBER, dask:ADDRESS"
_SIZED = re.compile(r"processes:([1-9][0-9]{0,3})")


class ExecutorChoice(NamedTuple):
    """An `executor` option that was understood."""

    kind: str
    size: int | None = None
    """How many processes; by default as many as there are processors."""
    address: str = ""
    own: concurrent.futures.Executor | None = None

    @property
    def in_threads(self) -> bool:
        """Whether the work runs in threads of this process, so that the whole engine is available to it."""
        return self.kind == THREADS or isinstance(self.own, concurrent.futures.ThreadPoolExecutor)

    @property
    def is_dask(self) -> bool:
        """Whether a Dask cluster does the work, which repeats what it loses."""
        return self.kind == DASK or type(self.own).__module__.partition(".")[0] == "distributed"

    @property
    def by_value(self) -> bool:
        """Whether functions that cannot be found by name are sent themselves."""
        return self.is_dask or (self.own is not None and importlib.util.find_spec("cloudpickle") is not None)

    @property
    def tells_beginning(self) -> bool:
        """Whether its futures say when their work has begun."""
        pools = (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor)
        return self.kind == PROCESSES or isinstance(self.own, pools)

    def __str__(self) -> str:
        if self.own is not None:
            return f"the {type(self.own).__name__}"
        if self.kind == DASK:
            return f"the Dask cluster at {self.address}"
        return "a worker process" if self.kind == PROCESSES else "a worker thread"


class ExecutorUnknown(ValueError):
    """An `executor` option that cannot be understood, and what could be meant."""


def choice_of(executor: Any) -> ExecutorChoice:
    """Return what an `executor` option means; raise `ExecutorUnknown` for nonsense."""
    if isinstance(executor, concurrent.futures.Executor):
        return ExecutorChoice(OWN, own=executor)
    if not isinstance(executor, str):
        raise ExecutorUnknown(f"it must be one of {FORMS}, or a concurrent.futures.Executor (an instance)")
    if executor in (THREADS, PROCESSES):
        return ExecutorChoice(executor)
    if sized := _SIZED.fullmatch(executor):
        return ExecutorChoice(PROCESSES, size=int(sized[1]))
    kind, _, address = executor.partition(":")
    if kind == DASK and address.strip("/: "):
        return ExecutorChoice(DASK, address=address)
    raise ExecutorUnknown(f"it must be one of {FORMS}{_hint(kind)}")


def _hint(kind: str) -> str:
    if kind == DASK:
        return "; name the scheduler, as in dask:tcp://host:8786"
    if kind == THREADS:
        return "; max_parallel says how many steps of a node run at once"
    return suggestion(kind, [known for known in KINDS if known != kind])


def executor_problems(
    executor: Any, repeats: bool, function: Callable[..., Any] | None = None
) -> Iterator[str]:
    """Yield why a node cannot be run by `executor`; `repeats` says that it may be run again unasked."""
    try:
        choice = choice_of(executor)
    except ExecutorUnknown as error:
        yield f"executor={executor!r}; {error}"
        return
    if choice.kind == PROCESSES and function is not None:
        for problem in _unimportable(function):
            yield f"executor={executor!r}, and {problem}"
    if choice.is_dask and not repeats:
        yield (
            f"executor={executor!r}, where Dask repeats the steps of a worker that is lost, and may not be "
            "repeated unasked; use processes or threads, or let it be repeated"
        )


def missing_package(executor: Any) -> Iterator[str]:
    """Yield what has to be installed before `executor`, which was understood, can be used."""
    if choice_of(executor).kind == DASK and importlib.util.find_spec("distributed") is None:
        yield f"executor={executor!r}, which needs a package: pip install 'holdfast[dask]'"


def _unimportable(function: Callable[..., Any]) -> Iterator[str]:
    """Yield why another process cannot find a function by its name."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    way_out = "define it with `def` at the top level of a module"
    try:
        packed = pickle.dumps(function)
    except Exception as error:
        reason = "a lambda or a function inside another" if "<" in name else str(error)
        yield f"another process cannot find its function {name!r} ({reason}); {way_out}"
        return
    if b"__main__" in packed and getattr(sys.modules.get("__main__"), "__file__", None) is None:
        yield f"its function {name!r} was typed into this session, where another process cannot find it; {way_out}"


_FORBIDDEN = set("/#[]")
_ANYWHERE = "\0anywhere"
"""Stands for all nodes and the end, so that a thousand routes to anywhere are a thousand edges, not a million."""


def check(graph: Graph) -> list[str]:
    """Return every problem of the graph, in the order of its nodes; nothing if it can run."""
    problems = [*_names(graph), *_options(graph), *graph.schema.problems()]
    problems += _missing(graph)
    if not isinstance(graph.max_iterations, int) or graph.max_iterations < 1:
        problems.append(f"max_iterations must be a whole number of at least 1, not {graph.max_iterations!r}")
    if not graph.nodes:
        problems.append("there is no node; add one with add_node(name, function)")
    else:
        problems += _reachability(graph)
    for node in graph.nodes.values():
        if node.graph is not None:
            problems += [f"in sub-graph {node.name!r}: {problem}" for problem in check(node.graph)]
    return problems


def _names(graph: Graph) -> Iterator[str]:
    for name in graph.nodes:
        if not name or name in (START, END):
            yield f"{name!r} cannot be a node's name"
        elif _FORBIDDEN & set(name) or not name.isprintable():
            yield f"node name {name!r} may not contain / # [ ] or control characters"


def _options(graph: Graph) -> Iterator[str]:
    for node in graph.nodes.values():
        yield from node.option_problems()
        if node.executor is not None and node.graph is None:
            repeats = node.if_interrupted == "rerun"
            found = list(executor_problems(node.executor, repeats, node.function))
            found += missing_package(node.executor) if not found else ()
            yield from (f"node {node.name!r} has {problem}" for problem in found)
    for route in graph.routes:
        if route.source in graph.edges_from:
            yield f"node {route.source!r} has both edges and a routing function; use one of them"


def _missing(graph: Graph) -> Iterator[str]:
    starts, ends = {*graph.nodes, START}, {*graph.nodes, END}
    for edge in graph.edges:
        yield from _known(edge.source, starts, f"edge {edge.source!r} -> {edge.target!r}", graph)
        yield from _known(edge.target, ends, f"edge {edge.source!r} -> {edge.target!r}", graph)
    for route in graph.routes:
        yield from _known(route.source, starts, f"the routes of {route.source!r}", graph)
        for target in (route.mapping or {}).values():
            yield from _known(target, ends, f"the routes of {route.source!r}", graph)
    for join in graph.joins:
        for source in join.sources:
            yield from _known(source, graph.nodes, f"the join before {join.target!r}", graph)
        yield from _known(join.target, ends, f"the join of {', '.join(map(repr, join.sources))}", graph)
    for name in sorted(graph.exits):
        yield from _known(name, graph.nodes, "the exit points", graph)
    if graph.last is not None:
        yield from _known(graph.last, graph.nodes, "the last node", graph)
    for node in graph.nodes.values():
        for target in node.goto:
            yield from _known(target, ends, f"goto of node {node.name!r}", graph)


def _known(name: str, known: Collection[str], where: str, graph: Graph) -> Iterator[str]:
    if name not in known:
        if name in (START, END):
            yield f"{where}: {name!r} cannot be used there"
        else:
            yield f"{where}: node not found: {name}{suggestion(name, graph.nodes)}"


def _successors(graph: Graph) -> dict[str, set[str]]:
    """Return every node that may follow each node; a routing function without a mapping may go anywhere."""
    anywhere = {*graph.nodes, END}
    result: dict[str, set[str]] = {name: set() for name in (START, *graph.nodes)}
    result[_ANYWHERE] = anywhere
    for edge in graph.edges:
        result.setdefault(edge.source, set()).add(edge.target)
    for route in graph.routes:
        targets = [_ANYWHERE] if route.mapping is None else route.mapping.values()
        result.setdefault(route.source, set()).update(targets)
    for join in graph.joins:
        for source in join.sources:
            result.setdefault(source, set()).add(join.target)
    for found in result.values():
        if any(name not in anywhere and name != _ANYWHERE for name in found):
            found.add(END)  # A name that is wrong is reported as such; where it would lead is not known.
    for node in graph.nodes.values():
        result[node.name] |= set(node.goto)
        if node.name in graph.exits:
            result[node.name] = {END}
        elif graph.is_sink(node.name) and not graph.exits:
            result[node.name].add(END)
    return result


def _reachability(graph: Graph) -> Iterator[str]:
    after = _successors(graph)
    if not after[START]:
        yield "nothing follows START; add_edge(START, first_node)"
        return
    reached = _walk(START, after)
    if graph.last is not None:
        reached |= {graph.last, *_walk(graph.last, after)}
    for name in graph.nodes:
        if name not in reached:
            yield (
                f"node {name!r} cannot be reached from START; add an edge to it, remove it, or, if only a "
                f"Command leads there, name it in add_node(…, goto=[{name!r}]) of the node that sends it"
            )
    if graph.exits:
        for name in graph.nodes:
            if name not in graph.exits and graph.is_sink(name) and not graph.nodes[name].goto:
                yield f"no outgoing edges from node: {name}; add one, or make it an exit point"
    before: dict[str, set[str]] = {}
    for name, targets in after.items():
        for target in targets:
            before.setdefault(target, set()).add(name)
    ending = _walk(END, before)
    stuck = [name for name in graph.nodes if name in reached and name not in ending]
    if stuck and not all(graph.is_sink(name) for name in stuck):
        listed = ", ".join(map(repr, stuck))
        yield f"cycle without exit: no path leads from {listed} to END; add an edge out of the cycle"


def _walk(start: str, after: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in after.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen
