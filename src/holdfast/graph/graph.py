"""The compiled graph: frozen values without I/O, the same for every way of writing a workflow."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from holdfast.errors import ExecutorLost, HoldfastError
from holdfast.graph.fingerprint import Fingerprint, fingerprint
from holdfast.state.schema import Schema
from holdfast.values import END, START

Reconcile = Callable[..., Any]
Migration = Callable[[dict[str, Any]], Mapping[str, Any] | None]
IF_INTERRUPTED = ("rerun", "skip", "ask", "fail")
RESULTS = "parallel_results"
"""The key of the state that has the final states of parallel branches when their fan-in runs."""

_SHORT = 60
"""Versions of more characters than this are compared, but not shown."""


@dataclass(frozen=True, slots=True)
class Send:
    """One item of a for-each: run `node` with the state overlaid by `item`.

    `key` names the item and must be unique among the items sent to that node at once; without one the
    item's index is taken. Items are journalled one by one, so a resume runs only the unfinished.
    """

    node: str
    item: Mapping[str, Any]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A node's return value that both updates the state and chooses what runs next."""

    update: Mapping[str, Any] | None = None
    goto: str | Send | tuple[str | Send, ...] | list[str | Send] | None = None


Reasons = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy of a step. Attempts are journalled, so a crash does not reset them.

    `delay` seconds pass before the second attempt; `backoff="exponential"` doubles it each time, up to
    `max_delay`. `on` says which failures are worth it: exception types, or a function of the exception. An
    exception with a number `retry_after` asks for at least so many seconds, which pass up to `max_delay`.
    """

    attempts: int = 3
    delay: float | dt.timedelta = 0.5
    backoff: str = "exponential"
    max_delay: float = 60.0
    on: Reasons = Exception

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise HoldfastError(f"Retry: attempts must be at least 1, not {self.attempts!r}")
        if self.backoff not in ("exponential", "fixed"):
            raise HoldfastError(f"Retry: backoff must be 'exponential' or 'fixed', not {self.backoff!r}")
        if not isinstance(self.delay, (int, float, dt.timedelta)) or self._base() < 0 or self.max_delay < 0:
            raise HoldfastError(
                f"Retry: delays must be seconds or timedeltas and not negative: {self.delay!r}"
            )
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not callable(self.on) and not all(isinstance(kind, type) for kind in kinds):
            raise HoldfastError(f"Retry: on must be exception types or a function, not {self.on!r}")

    def delay_after(self, tried: int, error: BaseException) -> float | None:
        """Seconds to wait before the next attempt, or `None` to give up after `tried` attempts."""
        if tried >= self.attempts:
            return None
        on = self.on
        if not (isinstance(error, on) if isinstance(on, (type, tuple)) else on(error)):
            return None
        delay = self._base()
        if self.backoff == "exponential":
            delay *= 2.0 ** min(tried - 1, 60)
        wanted = getattr(error, "retry_after", None)
        if isinstance(wanted, (int, float)) and wanted > delay:
            delay = float(min(wanted, self.max_delay))
        return min(delay, self.max_delay)

    def _base(self) -> float:
        return self.delay.total_seconds() if isinstance(self.delay, dt.timedelta) else self.delay


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """When a node is left alone for a while because it keeps failing.

    After `failures` failed attempts in a row its steps fail at once, with `CircuitOpen`, for `reset` seconds. Then one
    attempt is let through: if it succeeds, the node is as before, else it is left alone again. The count is shared by
    all runs of a compiled graph in one process; another process begins with its own.
    """

    failures: int = 5
    reset: float | dt.timedelta = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.failures, int) or self.failures < 1:
            raise HoldfastError(f"CircuitBreaker: failures must be at least 1, not {self.failures!r}")
        if not isinstance(self.reset, (int, float, dt.timedelta)) or not self.seconds > 0:
            raise HoldfastError(f"CircuitBreaker: reset must be more than 0 seconds, not {self.reset!r}")

    @property
    def seconds(self) -> float:
        """How long the node is left alone."""
        return self.reset.total_seconds() if isinstance(self.reset, dt.timedelta) else self.reset


AFTER_A_LOSS = Retry(attempts=3, delay=0.25, on=ExecutorLost)
"""The policy of nodes that have none: only steps whose executor was lost are tried again."""


_MUST: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "retry": ("a Retry(attempts=…)", lambda value: isinstance(value, Retry)),
    "timeout": (
        "a number of seconds above 0",
        lambda value: isinstance(value, (int, float)) and value > 0,
    ),
    "if_interrupted": (
        f"one of {', '.join(IF_INTERRUPTED)}, or a function",
        lambda value: not isinstance(value, str) or value in IF_INTERRUPTED,
    ),
    "circuit_breaker": ("a CircuitBreaker(failures=…)", lambda value: isinstance(value, CircuitBreaker)),
    "max_parallel": ("a whole number of at least 1", lambda value: isinstance(value, int) and value >= 1),
    "pure": ("True or False", lambda value: isinstance(value, bool)),
}
"""What options of a node must be, if they are set, and how that is checked."""

_OF_FUNCTION = frozenset(
    {
        "retry",
        "timeout",
        "if_interrupted",
        "on_error",
        "executor",
        "reads",
        "reusable",
        "circuit_breaker",
        "pure",
    }
)
"""The options that say nothing of a sub-graph."""


@dataclass(frozen=True, slots=True)
class Node:
    """A named piece of work: a function, or a sub-graph; and its options."""

    name: str
    function: Callable[..., Any] | None = None
    graph: Graph | None = None
    wants: tuple[str, ...] = ("state",)
    """What its function is given by position."""
    named: tuple[str, ...] = ()
    """What its function is given by name."""
    is_async: bool = False
    retry: Retry | None = None
    timeout: float | None = None
    if_interrupted: str | Reconcile = "rerun"
    version: str | None = None
    goto: tuple[str, ...] = ()
    on_error: Callable[..., Any] | None = None
    """Called with the state and the error of a final failure; what it returns replaces the node's own result."""
    on_skip: Callable[..., Any] | None = None
    """Called with the state and the reason when a step is skipped; what it returns replaces the node's own result."""
    max_parallel: int | None = None
    """How many of its steps run at once."""
    executor: str | Executor | None = None
    """Where its function is run; that is no part of what it does."""
    reads: tuple[str, ...] | None = None
    """The keys of the state that it reads, if that is declared; it is given no others."""
    reusable: bool = True
    """Whether other runs may reuse its results."""
    circuit_breaker: CircuitBreaker | None = None
    is_branch: bool = False
    """Whether it is a parallel branch: a sub-graph whose state becomes a result, instead of being merged."""
    branch_timeout: float | None = None
    """How many seconds the branch that it is in may take."""
    clears: tuple[str, ...] = ()
    """The keys of the state that are gone once it has finished."""
    pure: bool = False
    """Whether it has no effects, so that it may run on inputs that are only guessed."""
    wants_state_only: bool = field(init=False, default=False)
    wants_context: bool = field(init=False, default=False)
    wants_graph: bool = field(init=False, default=False)
    runs_inline: bool = field(init=False, default=False)
    """Whether an execution may run it in its own thread."""
    is_plain: bool = field(init=False, default=False)
    """Whether there is nothing to do before and after it: a function without a circuit breaker that clears no key."""

    def __post_init__(self) -> None:
        wanted = {*self.wants, *self.named}
        object.__setattr__(self, "wants_state_only", self.wants == ("state",) and not self.named)
        object.__setattr__(self, "wants_graph", "graph" in wanted)
        is_timed = self.timeout is not None or self.branch_timeout is not None
        object.__setattr__(self, "wants_context", "ctx" in wanted or self.wants_graph or is_timed)
        inline = not self.is_async and not is_timed and self.executor is None and self.graph is None
        object.__setattr__(self, "runs_inline", inline)
        plain = self.graph is None and self.circuit_breaker is None and not self.clears
        object.__setattr__(self, "is_plain", plain)

    def arguments(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return what of `given` its function takes, by position and by name."""
        return [given[name] for name in self.wants], {name: given[name] for name in self.named}

    def option_problems(self) -> Iterator[str]:
        """Yield what is wrong with its options; those of functions must not be set for a sub-graph."""
        if self.wants_graph and self.executor not in (None, "threads"):
            yield (
                f"node {self.name!r}: its parameter 'graph' cannot be sent to executor={self.executor!r}; "
                "run it here, or leave it out"
            )
        for each in fields(self):
            value, (must, check) = getattr(self, each.name), _MUST.get(each.name, ("", bool))
            if not (must or each.name in _OF_FUNCTION) or value == each.default:
                continue
            if self.graph is not None and each.name in _OF_FUNCTION:
                yield f"node {self.name!r} is a sub-graph and takes no {each.name}; set it on its nodes"
            elif must and not check(value):
                yield f"node {self.name!r} has {each.name}={value!r}; it must be {must}"

    def fingerprint(self) -> str:
        """Return a text that changes when what the node does changes, as far as can be known."""
        return fingerprint(self.version if self.version is not None else self.function)

    def facts(self) -> dict[str, Any]:
        """Return the node as plain data."""
        if self.graph is not None:
            inner = self.graph.outline()
            facts: dict[str, Any] = {"fingerprint": fingerprint(inner), "graph": inner}
        else:
            facts = {"fingerprint": self.fingerprint()}
            version = self.version
            if version is not None and not isinstance(version, Fingerprint) and len(version) <= _SHORT:
                facts["version"] = version
        if self.on_skip is not None:
            facts["on_skip"] = True
        if self.reads is not None:
            facts["reads"] = list(self.reads)
        if not self.reusable:
            facts["reusable"] = False
        return facts


@dataclass(frozen=True, slots=True)
class Edge:
    """From one node to the next. Edges with a condition are an ordered choice; one without is the fallback."""

    source: str
    target: str
    when: Callable[..., Any] | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A function that chooses what runs after a node; `mapping`, if any, translates what it returns."""

    source: str
    choose: Callable[..., Any]
    mapping: Mapping[Any, str] | None = None
    choices: tuple[tuple[str, str], ...] | None = None
    """Its choices, in order: each node with the fingerprint of its condition. Without them the function's counts."""

    def fingerprints(self) -> list[list[str]]:
        """Return what changes when it chooses otherwise: pairs of a node, or nothing, and a fingerprint."""
        if self.choices is not None:
            return [list(choice) for choice in self.choices]
        translated = [
            [node, fingerprint(repr(key))]
            for key, node in (self.mapping or {}).items()
            if key != node and isinstance(key, (str, int, Enum, type(None)))
        ]
        return [["", fingerprint(self.choose)], *sorted(translated)]


@dataclass(frozen=True, slots=True)
class Join:
    """A node that waits until all of several nodes have finished."""

    sources: tuple[str, ...]
    target: str

    @property
    def id(self) -> str:
        return "/".join([self.target, *sorted(self.sources)])


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and edges, frozen."""

    name: str
    schema: Schema
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...] = ()
    routes: tuple[Route, ...] = ()
    joins: tuple[Join, ...] = ()
    exits: frozenset[str] = frozenset()
    max_iterations: int = 1000
    last: str | None = None
    """The node that runs when nothing else is left to run."""
    version: str = ""
    """Names the shape of its state."""
    migrations: Mapping[tuple[str, str], Migration] = field(default_factory=dict)
    """How a state of one version becomes one of another."""
    planner: str = ""
    """The class that plans its steps, if commands must not add or replace any."""
    check_config: Callable[[Mapping[str, Any]], object] | None = None
    """Raises an error if a run cannot have a config."""
    order: Mapping[str, int] = field(init=False, default_factory=dict)
    edges_from: Mapping[str, tuple[Edge, ...]] = field(init=False, default_factory=dict)
    route_from: Mapping[str, Route] = field(init=False, default_factory=dict)
    joins_from: Mapping[str, tuple[Join, ...]] = field(init=False, default_factory=dict)
    only_next: Mapping[str, str] = field(init=False, default_factory=dict)
    """The next node, `END` included, of each node after which there is no choice to make."""
    parallel_limits: Mapping[str, int] = field(init=False, default_factory=dict)
    has_breakers: bool = field(init=False, default=False)
    """Whether a node, of this graph or of one inside it, has a circuit breaker."""

    def __post_init__(self) -> None:
        edges: dict[str, list[Edge]] = {}
        joins: dict[str, list[Join]] = {}
        for edge in self.edges:
            edges.setdefault(edge.source, []).append(edge)
        for join in self.joins:
            for source in join.sources:
                joins.setdefault(source, []).append(join)
        object.__setattr__(self, "order", {name: index for index, name in enumerate(self.nodes)})
        object.__setattr__(self, "edges_from", {source: tuple(found) for source, found in edges.items()})
        object.__setattr__(self, "route_from", {route.source: route for route in self.routes})
        object.__setattr__(self, "joins_from", {source: tuple(found) for source, found in joins.items()})
        limits = {name: node.max_parallel for name, node in self.nodes.items() if node.max_parallel}
        object.__setattr__(self, "parallel_limits", limits)
        guarded = (
            node.circuit_breaker or (node.graph and node.graph.has_breakers) for node in self.nodes.values()
        )
        object.__setattr__(self, "has_breakers", any(guarded))
        simple = {name: self._simple_next(name) for name in self.nodes}
        object.__setattr__(self, "only_next", {name: after for name, after in simple.items() if after})

    def is_sink(self, name: str) -> bool:
        """Return whether a branch ends after this node because nothing follows it."""
        return name not in self.edges_from and name not in self.route_from and name not in self.joins_from

    def _simple_next(self, name: str) -> str | None:
        if name in self.exits:
            return END
        edges = self.edges_from.get(name)
        if edges is None or len(edges) != 1 or edges[0].when is not None:
            return None
        if name in self.route_from or name in self.joins_from:
            return None
        return edges[0].target

    def at(self, path: str) -> Graph:
        """Return the (sub-)graph that the frame of that path runs: `outer#1/inner#2` is `outer` then `inner`."""
        graph = self
        for part in path.split("/") if path else ():
            inner = graph.nodes[part.rpartition("#")[0]].graph
            if inner is None:
                raise KeyError(part)
            graph = inner
        return graph

    def outline(self) -> dict[str, Any]:
        """Return the graph as plain data: what a run needs to be drawn and compared where its code is not installed.

        It is made once: what functions hold may change as they run.
        """
        return self._outline

    @functools.cached_property
    def _outline(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "nodes": {name: node.facts() for name, node in self.nodes.items()},
            **({"choices": choices} if (choices := self._choices()) else {}),
            "edges": [[edge.source, edge.target, edge.label, edge.when is not None] for edge in self.edges],
            "routes": [[route.source, sorted(set((route.mapping or {}).values()))] for route in self.routes],
            "joins": [[list(join.sources), join.target] for join in self.joins],
            "exits": sorted(self.exits),
            "max_iterations": self.max_iterations,
            **({"last": self.last} if self.last else {}),
            **({"version": self.version} if self.version else {}),
            **({"planner": self.planner} if self.planner else {}),
        }

    def _choices(self) -> dict[str, list[list[str]]]:
        """Return by node what changes when its successor is chosen otherwise."""
        found: dict[str, list[list[str]]] = {}
        for route in self.routes:
            if choices := route.fingerprints():
                found[route.source] = choices
        for edge in self.edges:
            if edge.when is not None:
                found.setdefault(edge.source, []).append([edge.target, fingerprint(edge.when)])
        return found


# How the names of nodes belong together: `fetch:item` is a part of `fetch`, `outer/inner` is inside `outer`.


Successors = dict[str, set[str]]
"""The nodes that each node leads to, `START` included; in a sub-graph both are `outer/inner`."""


def all_successors(
    graph: Graph, followed: Mapping[str, Collection[str]], prefix: str = "", outer: tuple[Graph, ...] = ()
) -> Successors:
    """Return what may follow each node of a graph and of its sub-graphs.

    `followed` is what has followed what, for routing functions that do not say where they lead. A graph within itself,
    of a function that calls itself, has no further nodes of its own; `outer` are the graphs that this one is in.
    """
    found: Successors = {prefix + name: set() for name in (START, *graph.nodes)}

    def note(source: str, *targets: str) -> None:
        found[prefix + source].update(prefix + target for target in targets if target != END)

    for edge in graph.edges:
        note(edge.source, edge.target)
    for join in graph.joins:
        for source in join.sources:
            note(source, join.target)
    for node in graph.nodes.values():
        note(node.name, *node.goto)
    for route in graph.routes:
        if route.mapping is not None:
            note(route.source, *route.mapping.values())
        else:
            found[prefix + route.source].update(followed.get(prefix + route.source, ()))
    for route in graph.routes:
        if route.mapping is None:
            # It may lead wherever nothing else does.
            reached = {target for targets in found.values() for target in targets}
            own = [name for name in graph.nodes if name != graph.last and prefix + name not in reached]
            found[prefix + route.source].update(prefix + name for name in own)
    for name in graph.nodes:
        if graph.last is not None and name != graph.last:
            note(name, graph.last)
        if (inner := graph.nodes[name].graph) is not None:
            if not _is_within(inner, (*outer, graph)):
                found |= all_successors(inner, followed, f"{prefix}{name}/", (*outer, graph))
            if (
                graph.nodes[name].function is not None
            ):  # Only the function knows which steps it calls, and when.
                for each in [each for each in followed if each.startswith(f"{prefix}{name}/")]:
                    found.setdefault(each, set()).update(followed[each])
    return found


def all_nodes(graph: Graph, prefix: str = "") -> Iterator[str]:
    """Yield the names of all nodes, those of sub-graphs after their own; a graph within itself has no others."""
    for name, _ in named_nodes(graph, prefix):
        yield name


def named_nodes(graph: Graph, prefix: str = "", outer: tuple[Graph, ...] = ()) -> Iterator[tuple[str, Node]]:
    """Yield all nodes with their names, as `all_nodes`."""
    for name, node in graph.nodes.items():
        yield prefix + name, node
        if node.graph is not None and not _is_within(node.graph, (*outer, graph)):
            yield from named_nodes(node.graph, f"{prefix}{name}/", (*outer, graph))


def _is_within(graph: Graph, outer: tuple[Graph, ...]) -> bool:
    return any(each is graph for each in outer)


def inside(graph: Graph, name: str) -> Iterator[str]:
    """Yield the nodes of the sub-graph that a node is; none if it is a function."""
    node = None
    for part in name.split("/"):
        node = graph.nodes[part]
        graph = node.graph if node.graph is not None else graph
    if node is not None and node.graph is not None:
        yield from all_nodes(node.graph, f"{name}/")


def base_name(name: str) -> str:
    """Return the step that a node belongs to: `outer/publish` for its helper `outer:workflow/publish:item`."""
    if ":" not in name:
        return name
    return "/".join(part.partition(":")[0] or part for part in name.split("/"))


def whole_of(node: str, nodes: Collection[str]) -> str:
    """Return the node that a node is only a part of: `fetch` for `fetch:item`; empty if it stands for itself."""
    base = node.partition(":")[0]
    return base if base != node and base in nodes else ""


def has_parts(node: str, nodes: Iterable[str]) -> bool:
    """Return whether other nodes are parts of this one, so that it is not over when its own step is."""
    return any(name.startswith(f"{node}:") for name in nodes)


def renamed(names: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the new names, by old name, of renamed nodes and of what is a part of them or inside them."""
    return {
        name: f"{new}{name.removeprefix(old)}"
        for name in known
        for old, new in names.items()
        if name == old or name.startswith((f"{old}:", f"{old}/"))
    }


def renamed_nodes(names: Mapping[str, str], outline: Mapping[str, Any]) -> dict[str, str]:
    """Return the new names of all nodes of renamed steps, also in sub-graphs; steps are `outer/inner`."""
    found: dict[str, str] = {}
    for node in outline_names(outline):
        home, _, own = node.rpartition("/")
        step, new_home = base_name(node), found.get(home, home)
        if step in names:
            part = own.removeprefix(step.rpartition("/")[2])
            own = names[step].rpartition("/")[2] + part
        new = f"{new_home}/{own}" if new_home else own
        if new != node:
            found[node] = new
    return found


def outline_names(outline: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of all nodes of an outline, those of sub-graphs after their own."""
    for name, node in outline.get("nodes", {}).items():
        yield prefix + name
        if "graph" in node:
            yield from outline_names(node["graph"], f"{prefix}{name}/")


def outline_at(outline: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the outline of the (sub-)graph that the frame of a path runs; empty if there is none."""
    for part in path.split("/") if path else ():
        node = outline.get("nodes", {}).get(part.rpartition("#")[0], {})
        outline = node.get("graph", {})
    return outline


# A graph as a Mermaid drawing, made of its outline.


_MOST_ANYWHERE = 50
"""In a larger graph a route that may lead to any node is drawn as one arrow, not as one to each."""


def mermaid(outline: dict[str, Any]) -> str:
    """Mermaid text of a graph's outline; works where the graph's code is not installed."""
    lines = ["flowchart TD"]
    _draw(outline, "", lines, "    ")
    return "\n".join(lines) + "\n"


def _draw(outline: dict[str, Any], prefix: str, lines: list[str], indent: str) -> None:
    ids = {START: f"{prefix}start", END: f"{prefix}finish"}
    lines.append(f"{indent}{ids[START]}((start))")
    for number, (name, node) in enumerate(outline["nodes"].items()):
        ids[name] = f"{prefix}n{number}"
        if "graph" in node:
            lines.append(f'{indent}subgraph {ids[name]}["{_label(name)}"]')
            _draw(node["graph"], f"{ids[name]}_", lines, indent + "    ")
            lines.append(f"{indent}end")
        else:
            lines.append(f'{indent}{ids[name]}["{_label(name)}"]')
    lines.append(f"{indent}{ids[END]}((end))")
    leaving = set()
    for source, target, label, conditional in outline["edges"]:
        leaving.add(source)
        text = f'|"{_label(label)}"|' if label else ""
        lines.append(f"{indent}{ids[source]} {'-.->' if conditional else '-->'}{text} {ids[target]}")
    for source, targets in outline["routes"]:
        leaving.add(source)
        anywhere = [*outline["nodes"], END] if len(outline["nodes"]) <= _MOST_ANYWHERE else []
        for target in targets or anywhere:
            lines.append(f"{indent}{ids[source]} -.-> {ids[target]}")
        if not targets and not anywhere:
            lines.append(f"{indent}{ids[source]} -.-> {prefix}anywhere{{{{any node}}}}")
    for sources, target in outline["joins"]:
        for source in sources:
            leaving.add(source)
            lines.append(f"{indent}{ids[source]} --> {ids[target]}")
    exits = set(outline["exits"])
    for name in outline["nodes"]:
        if name in exits or name not in leaving:
            lines.append(f"{indent}{ids[name]} --> {ids[END]}")


def _label(text: str) -> str:
    text = " ".join(text.split())
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


# The shape of an outline: the description of a graph in its runs, which a stranger may have written.


_DEEPEST = 50


def is_outline(outline: Any, depth: int = 0) -> bool:
    """Return whether a graph can be drawn of an outline: named nodes, and lists of names between them."""
    if not isinstance(outline, Mapping) or depth > _DEEPEST:
        return False
    nodes = outline.get("nodes", {})
    return (
        isinstance(outline.get("name", ""), str)
        and isinstance(nodes, Mapping)
        and all(isinstance(name, str) and _is_node(node, depth) for name, node in nodes.items())
        and _are_rows(outline.get("edges", []), (str, str, str, bool))
        and _are_rows(outline.get("routes", []), (str, list))
        and _are_rows(outline.get("joins", []), (list, str))
        and _are_names(outline.get("exits", []))
        and isinstance(outline.get("last", ""), str)
    )


def _is_node(node: Any, depth: int) -> bool:
    if not isinstance(node, Mapping):
        return False
    inner = node.get("graph")
    return inner is None or is_outline(inner, depth + 1)


def _are_rows(rows: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether `rows` is a list of rows whose values have these types; `list` stands for a list of names."""
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == len(kinds) and all(map(_is_cell, row, kinds)) for row in rows
    )


def _is_cell(value: Any, kind: type) -> bool:
    return _are_names(value) if kind is list else isinstance(value, kind)


def _are_names(names: Any) -> bool:
    return isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
