"""The effects of a workflow outside of it, as the fakes of its tests record them; the ledger outlives the process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.engine.context import PauseSignal
from holdfast.errors import HoldfastError
from holdfast.graph.fingerprint import Fingerprint
from holdfast.graph.graph import Graph, Node
from holdfast.graph.validation import choice_of
from holdfast.testing.everywhere.boundaries import (
    BEGINS,
    EXECUTION,
    FAILED,
    LEFT,
    LOOKS,
    RETURNED,
    Pass,
    Watch,
    nodes_of,
)
from holdfast.testing.ledger import EFFECT, START, FileLedger, Line
from holdfast.testing.wrapped_store import Crash

UNKEYED = "effect-without-key"
AGAIN = "effect-known"
COUNTED = "counted"
"""Something that a fake counts; the key is what."""
LEDGER_VARIABLE = "HOLDFAST_TEST_LEDGER"
"""Names the ledger to the programs that a step starts."""
STEP_VARIABLE = "HOLDFAST_STEP"
"""Names the step to the programs that it starts; `shell` steps of workflow files set it."""

current_pass: contextvars.ContextVar[Pass | None] = contextvars.ContextVar("holdfast_pass", default=None)
_elsewhere: contextvars.ContextVar[tuple[FileLedger, str] | None] = contextvars.ContextVar(
    "holdfast_elsewhere", default=None
)
"""The ledger, and the step that is at work, in a process of an executor."""


class Effect(NamedTuple):
    """Something that a workflow did outside of it.

    `step` is who did it, as far as that is known, and `visit` in which of its passes. `again` says that a service that
    knows keys was asked once more under a key that it knew, and did nothing. `in_once`: inside `ctx.once`.
    """

    name: str
    key: str | None
    facts: dict[str, Any]
    step: str = ""
    visit: int = 0
    again: bool = False
    in_once: bool = False

    def __str__(self) -> str:
        facts = "".join(f" {name}={value!r}" for name, value in self.facts.items())
        key = "" if self.key is None else f" key={self.key!r}"
        return f"{self.name!r}{facts}{key}"


_ledger: FileLedger | None = None
"""The ledger that effects are written to now, if there is one."""


def record_effect(name: str, key: str | None = None, **facts: Any) -> bool:
    """Say, from a test's fake of a payment service or the like, that something happens outside of the workflow.

    Without a `key` it happens each time. With one it is asked of a service that knows keys, as payment services do:
    the first time it happens and this answers `True`; asked again under that key, nothing happens: `False`. Outside
    of `crash_everywhere` nothing is written down, and the answer is `True`.
    """
    if key is not None and not isinstance(key, str):
        raise HoldfastError(f"the key of an effect is text, as ctx.idempotency_key is, not {key!r:.80}")
    ledger, step = _place()
    if ledger is None:
        return True
    passing = current_pass.get() if _elsewhere.get() is None else None
    if passing is not None:
        passing.watch.refuse_if_dead()
        step = passing.step
    plain = _plain_facts(name, facts)
    with _alone(ledger):
        known = key is not None and any(
            effect.key == key and effect.name == name for effect in effects_of(ledger.lines())
        )
        what = UNKEYED if key is None else AGAIN if known else EFFECT
        detail = {
            "name": name,
            "key": key,
            "facts": plain,
            "step": step,
            "in_once": passing is not None and passing.is_in_once(),
        }
        ledger.write(what, json.dumps([name, key]), json.dumps(detail))
    if passing is not None and not known:
        passing.watch.reached("effect", f"{name!r} of step {passing.step!r}")
    return not known


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _plain_facts(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts as they are written down: what is not plain data as its `repr`, without the address that it is at."""
    try:
        plain: dict[str, Any] = json.loads(
            json.dumps(facts, default=lambda value: _ADDRESS.sub("", repr(value)))
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise HoldfastError(
            f"the facts of the effect {name!r} cannot be written down ({error}): give numbers, texts, lists and "
            "mappings with texts as keys"
        ) from None
    return plain


def counted_in_run(what: str) -> int | None:
    """How often this was said in this run, whichever process did, this time included; `None` outside of crash tests."""
    ledger, _ = _place()
    if ledger is None:
        return None
    with _alone(ledger):
        ledger.write(COUNTED, what)
        return sum(line.what == COUNTED and line.key == what for line in ledger.lines())


def recorded_effects(name: str | None = None) -> list[Effect]:
    """What has happened so far in this run, whichever process did it; with `name` only that.

    For fakes that tell what they have done, say to a function that is given as `if_interrupted`.
    """
    ledger, _ = _place()
    if ledger is None:
        return []
    happened = [effect for effect in effects_of(ledger.lines()) if not effect.again]
    return [effect for effect in happened if name is None or effect.name == name]


@contextlib.contextmanager
def effects_go_to(ledger: FileLedger) -> Iterator[None]:
    """Let effects be written to this ledger, by this process and those that it starts."""
    global _ledger
    earlier, _ledger = _ledger, ledger
    variable = os.environ.get(LEDGER_VARIABLE)
    os.environ[LEDGER_VARIABLE] = str(ledger.path)
    try:
        with _known_in_pools():
            yield
    finally:
        _ledger = earlier
        if variable is None:
            os.environ.pop(LEDGER_VARIABLE, None)
        else:
            os.environ[LEDGER_VARIABLE] = variable


@contextlib.contextmanager
def _known_in_pools() -> Iterator[None]:
    """Let what a body hands to a pool of threads know whose it is."""
    pool = concurrent.futures.ThreadPoolExecutor
    submit: Callable[..., Any] = pool.submit

    @functools.wraps(submit)
    def known(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        passing = current_pass.get()

        def work() -> Any:
            token = current_pass.set(passing)
            try:
                return function(*args, **kwargs)
            finally:
                current_pass.reset(token)

        return submit(self, work)

    pool.submit = known  # type: ignore[method-assign]
    try:
        yield
    finally:
        pool.submit = submit  # type: ignore[method-assign]


@contextlib.contextmanager
def effects_elsewhere(ledger: FileLedger, step: str) -> Iterator[None]:
    """Let effects be written to this ledger as those of a step, in a process that others may use as well."""
    os.environ[LEDGER_VARIABLE] = str(ledger.path)  # For programs that are started here.
    token = _elsewhere.set((ledger, step))
    try:
        yield
    finally:
        _elsewhere.reset(token)


def _place() -> tuple[FileLedger | None, str]:
    """Where effects are to be written, and whose they are if nobody knows better."""
    elsewhere = _elsewhere.get()
    if elsewhere is not None:
        return elsewhere
    if _ledger is not None:
        return _ledger, ""
    path = os.environ.get(LEDGER_VARIABLE)
    if not path or not Path(path).parent.is_dir():  # A process that outlived its test tells nobody.
        return None, ""
    return FileLedger(path, sync=False), os.environ.get(STEP_VARIABLE, "")


@contextlib.contextmanager
def _alone(ledger: FileLedger) -> Iterator[None]:
    """Keep other threads and processes from the ledger meanwhile."""
    import fcntl

    with Path(f"{ledger.path}.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def effects_of(lines: Iterable[Line]) -> list[Effect]:
    """The effects in a ledger, each with the pass of its step that it belongs to.

    One of which nobody said whose it is belongs to the step whose idempotency key is in its key, or to the only one
    that was under way.
    """
    passes: dict[str, int] = {}
    under_way: set[str] = set()
    found: list[Effect] = []
    for what, key, detail in lines:
        if what in BEGINS:
            passes[key] = passes.get(key, 0) + 1
            under_way.add(key)
        elif what in (LEFT, FAILED, RETURNED):
            under_way.discard(key)
        elif what == EXECUTION:
            under_way.clear()
        elif what in (EFFECT, UNKEYED, AGAIN):
            facts = json.loads(detail)
            step = facts["step"] or _owner(facts["key"], passes, under_way)
            place = (step, passes.get(step, 0), what == AGAIN, facts["in_once"])
            found.append(Effect(facts["name"], facts["key"], facts["facts"], *place))
    return found


def _owner(key: str | None, steps: Iterable[str], under_way: set[str]) -> str:
    named = [step for step in steps if key is not None and f":{step}" in key]
    if named:
        return max(named, key=len)
    return next(iter(under_way)) if len(under_way) == 1 else ""


# The effects of runs: what undisturbed ones agree on, and how another one differs from that.


class ObservedEffect(NamedTuple):
    """An effect as far as it is compared with those of other runs."""

    name: str
    step: str
    facts: str
    """As JSON."""


Group = Callable[[str], str]
"""Which steps are counted together."""


def _by_step(step: str) -> str:
    return step


def _by_node(step: str) -> str:
    return "/".join(nodes_of(step))


def _altogether(step: str) -> str:
    return ""


def observed_effects(effects: Iterable[Effect]) -> list[ObservedEffect]:
    """The observed that effects are."""
    return [
        ObservedEffect(effect.name, effect.step, json.dumps(effect.facts, sort_keys=True))
        for effect in effects
    ]


def subject_of(name: str, group: str) -> str:
    """What a finding about an effect is about."""
    return json.dumps([name, group])


class Other(NamedTuple):
    """A fact of some effects that is not what it usually is: the values that were missed, those that came instead."""

    fact: str
    missed: tuple[Any, ...]
    came: tuple[Any, ...]


class Usual:
    """What undisturbed runs did. What they do not agree on themselves, no other run is held to."""

    def __init__(self, runs: Sequence[Sequence[ObservedEffect]]) -> None:
        self._runs = runs

    def names(self) -> list[str]:
        """Everything that any of them did."""
        return list(dict.fromkeys(each.name for run in self._runs for each in run))

    def grouping(self, name: str, steps: Iterable[str]) -> Group | None:
        """Return how finely effects of a name can be counted: by step, by node, together, or not at all."""
        by_run = [[each.step for each in run if each.name == name] for run in self._runs]
        is_known = all(steps) and all(step for known in by_run for step in known)
        for group in (_by_step, _by_node, _altogether) if is_known else (_altogether,):
            first, *others = [Counter(map(group, known)) for known in by_run]
            if all(other == first for other in others):
                return group
        return None

    def counts(self, name: str, group: Group) -> Counter[str]:
        """How often it was done, by what the steps are grouped by; they agree on that."""
        return Counter(group(each.step) for each in self._runs[0] if each.name == name)

    def varying(self, name: str) -> frozenset[str]:
        """The facts of an effect in which undisturbed runs differ: times, random numbers."""
        first, *others = [_values(run, name, _altogether) for run in self._runs]
        places = {place for run in (first, *others) for place in run}
        return frozenset(
            fact
            for group, fact in places
            if any(o.get((group, fact)) != first.get((group, fact)) for o in others)
        )

    def others(self, name: str, group: Group, effects: Iterable[Effect]) -> Iterator[tuple[str, Other]]:
        """The facts that undisturbed runs agree on, and these effects, as many as usual, do not have."""
        first, *further = [_values(run, name, group) for run in self._runs]
        mine = _values(observed_effects(effects), name, group)
        for place in dict.fromkeys([*first, *mine]):
            usual, found = first.get(place, Counter()), mine.get(place, Counter())
            if usual != found and all(run.get(place, Counter()) == usual for run in further):
                yield place[0], Other(place[1], _listed(usual - found), _listed(found - usual))


def _values(run: Iterable[ObservedEffect], name: str, group: Group) -> dict[tuple[str, str], Counter[str]]:
    """The values of each fact, as JSON, with how often each occurs."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for each in run:
        if each.name == name:
            for fact, value in json.loads(each.facts).items():
                place = found.setdefault((group(each.step), fact), Counter())
                place[json.dumps(value, sort_keys=True)] += 1
    return found


def _listed(values: Counter[str]) -> tuple[Any, ...]:
    return tuple(json.loads(value) for value in sorted(values.elements()))


def repetition(
    requests: Iterable[Effect], varying: Collection[str] = (), *, is_known: bool = False
) -> tuple[Effect, Effect] | None:
    """An effect of a step and its repetition by a later pass of that step, facts that vary anyway aside.

    Requests that a service knew already count for which place an effect has in its pass. If it `is_known` that there
    are too many, two passes of a step that both had an effect are enough.
    """
    met: dict[tuple[str, str, int], Effect] = {}
    places: Counter[tuple[str, int, str]] = Counter()
    first_of: dict[str, Effect] = {}
    pair: tuple[Effect, Effect] | None = None
    for effect in requests:
        alike = _without(effect.facts, varying)
        places[effect.step, effect.visit, alike] += 1
        # What is remembered by the journal is not done again, however alike it is.
        is_vague = effect.in_once and not is_known and any(fact in effect.facts for fact in varying)
        if effect.again or is_vague:
            continue
        place = (effect.step, alike, places[effect.step, effect.visit, alike])
        first = met.setdefault(place, effect)
        if first.visit != effect.visit:
            return first, effect
        earlier = first_of.setdefault(effect.step, effect)
        if is_known and pair is None and earlier.visit != effect.visit:
            pair = earlier, effect
    return pair


def _without(facts: Mapping[str, Any], varying: Collection[str]) -> str:
    return json.dumps({fact: value for fact, value in facts.items() if fact not in varying}, sort_keys=True)


# Node functions that say when they begin and how they end; everything else about a graph stays what it was.


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
    else:
        function = Elsewhere(node.function, str(watch.ledger.path))
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
            ledger.write(FAILED, step, _error_text(error))
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
            watch.ledger.write(FAILED, step, _error_text(error))
        raise
    finally:
        current_pass.reset(token)


def _error_text(error: Exception) -> str:
    return json.dumps(f"{type(error).__name__}: {error}")
