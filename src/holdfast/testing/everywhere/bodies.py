"""Node functions that say when they begin and how they end; everything else about a graph stays what it was."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.engine.driving.context import PauseSignal
from holdfast.plan.executor_choice import choice_of
from holdfast.plan.fingerprint import Fingerprint
from holdfast.plan.graph import Graph, Node
from holdfast.testing.crashing_store import Crash
from holdfast.testing.everywhere.effects import OpenLedger, current_pass, effects_elsewhere
from holdfast.testing.everywhere.watching import FAILED, LEFT, LOOKS, RETURNED, Pass, Watch
from holdfast.testing.ledger import START, FileLedger


def watched_graph(graph: Graph, outline: Mapping[str, Any], watch: Watch) -> Graph:
    """A graph that does the same, watched: fingerprints (from its outline), names and edges are the original's."""
    facts = outline.get("nodes", {})
    nodes = {name: _watched_node(node, facts.get(name, {}), watch) for name, node in graph.nodes.items()}
    return dataclasses.replace(graph, nodes=nodes)


def _watched_node(node: Node, facts: Mapping[str, Any], watch: Watch) -> Node:
    if node.graph is not None:
        return dataclasses.replace(node, graph=watched_graph(node.graph, facts.get("graph", {}), watch))
    if node.function is None:
        return node
    version = node.version
    if version is None:
        version = Fingerprint(facts.get("fingerprint") or node.fingerprint())
    if runs_here(node):
        function = (_watched_async if node.is_async else _watched)(node.function, watch)
    elif isinstance(watch.ledger, (FileLedger, OpenLedger)):
        function = Elsewhere(node.function, str(watch.ledger.path))
    else:
        return node
    look = node.if_interrupted
    return dataclasses.replace(
        node,
        function=function,
        version=version,
        wants=("ctx", *node.wants),
        if_interrupted=look if isinstance(look, str) else _watched(look, watch, LOOKS),
    )


def runs_here(node: Node) -> bool:
    """Whether its function runs in this process; another has nobody who watches it."""
    return node.executor is None or choice_of(node.executor).in_threads


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A node's function that runs in another process: what it does there is written to the same ledger."""

    function: Callable[..., Any]
    path: str

    def __call__(self, ctx: Any, *given: Any, **named: Any) -> Any:
        with self._passing(ctx.step) as ledger:
            value = self.function(*given, **named)
            if not inspect.isawaitable(value):
                ledger.write(RETURNED, ctx.step)
                return value
        return self._awaited(value, ctx.step)

    async def _awaited(self, value: Any, step: str) -> Any:
        with self._passing(step, begins=False) as ledger:
            result = await value
            ledger.write(RETURNED, step)
            return result

    @contextlib.contextmanager
    def _passing(self, step: str, begins: bool = True) -> Iterator[FileLedger]:
        ledger = FileLedger(self.path, sync=False)
        if begins:
            ledger.write(START, step)
        try:
            with effects_elsewhere(ledger, step):
                yield ledger
        except Exception as error:
            ledger.write(FAILED, step, _told(error))
            raise


def _watched(function: Callable[..., Any], watch: Watch, begins: str = START) -> Callable[..., Any]:
    gives_context = begins == LOOKS

    @functools.wraps(function)
    def body(ctx: Any, *given: Any, **named: Any) -> Any:
        with _passing(Pass(ctx.step, ctx, watch), begins):
            value = function(*((ctx,) if gives_context else ()), *given, **named)
            if not inspect.isawaitable(value):
                _returned(ctx.step, watch)
                return value
        return _awaited(value, Pass(ctx.step, ctx, watch))

    return body


def _watched_async(function: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    @functools.wraps(function)
    async def body(ctx: Any, *given: Any, **named: Any) -> Any:
        with _passing(Pass(ctx.step, ctx, watch)):
            value = await function(*given, **named)
            _returned(ctx.step, watch)
            return value

    return body


async def _awaited(value: Any, passing: Pass) -> Any:
    with _passing(passing, ""):
        result = await value
        _returned(passing.step, passing.watch)
        return result


def _returned(step: str, watch: Watch) -> None:
    watch.ledger.write(RETURNED, step)
    watch.reached("ran", f"step {step!r}")


@contextlib.contextmanager
def _passing(passing: Pass, begins: str = START) -> Iterator[None]:
    """Note in the ledger how a pass goes, and let effects know whose they are."""
    watch, step = passing.watch, passing.step
    watch.refuse_if_dead()
    if begins:
        watch.ledger.write(begins, step)
    token = current_pass.set(passing)
    try:
        yield
    except Crash:
        raise
    except PauseSignal as left:
        if not watch.dead:
            watch.ledger.write(LEFT, step, json.dumps([left.asked[0].kind, left.asked[0].name]))
        raise
    except Exception as error:
        if not watch.dead:
            watch.ledger.write(FAILED, step, _told(error))
        raise
    finally:
        current_pass.reset(token)


def _told(error: Exception) -> str:
    return json.dumps(f"{type(error).__name__}: {error}")
