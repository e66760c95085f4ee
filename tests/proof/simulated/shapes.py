"""Small workflows for schedules: compiled once, executed a million times."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypedDict

from holdfast import END, START, App, CheckpointPolicy, Context, Retry, Send, StateGraph, add, append, clock
from holdfast.stores.memory import MemoryStore

from .stage import stage


class Work(TypedDict, total=False):
    n: int
    total: Annotated[int, add]
    log: Annotated[list[str], append]


Update = Callable[[Any], dict[str, Any]]


class Shape(NamedTuple):
    """A compiled workflow, what it is given, and how often it is to be drawn."""

    name: str
    app: App
    input: Mapping[str, Any]
    is_strict: bool = True
    """Whether it stops when something cannot be saved; else steps may run before their intent is stored."""
    weight: int = 1


def sync(update: Update) -> Callable[..., Any]:
    """A sync body."""

    def body(state: Any, ctx: Context) -> dict[str, Any]:
        stage().begins(ctx)
        if seconds := stage().duration():
            clock.sleep(seconds)
        return update(state)

    return body


def lazy(update: Update) -> Callable[..., Any]:
    """An async body."""

    async def body(state: Any, ctx: Context) -> dict[str, Any]:
        stage().begins(ctx)
        if seconds := stage().duration():
            await asyncio.sleep(seconds)
        return update(state)

    return body


Body = Callable[[Update], Callable[..., Any]]


def _next(index: int) -> Update:
    return lambda s: {"n": s["n"] * 3 + index + 1}


def _say(text: str) -> Update:
    return lambda s: {"log": [f"{text} {s['n']}"]}


def _count(index: int) -> Update:
    return lambda s: {"total": s["n"] + index, "log": [f"w{index}"]}


class Builder:
    """A graph that grows at its end, one segment after the other."""

    def __init__(self, name: str, body: Body) -> None:
        self.graph = StateGraph(Work, name=name)
        self._body, self._last, self._count = body, [START], 0

    def name(self, stem: str) -> str:
        """A new name."""
        self._count += 1
        return f"{stem}{self._count}"

    def link(self, *names: str) -> None:
        """Let nodes follow what was last."""
        for name in names:
            self.graph.add_edge(self._last[0] if len(self._last) == 1 else list(self._last), name)

    def node(self, stem: str, function: Callable[..., Any] | StateGraph, **options: Any) -> str:
        """Add a node at the end."""
        name = self.name(stem)
        self.graph.add_node(name, function, **options)
        self.link(name)
        self._last = [name]
        return name

    def chain(self) -> None:
        self.node("s", self._body(_next(self._count)))

    def wave(self, width: int = 2) -> None:
        names = [self.name("w") for _ in range(width)]
        for index, name in enumerate(names):
            self.graph.add_node(name, self._body(_count(index)))
        self.link(*names)
        self._last = names
        self.node("j", self._body(lambda s: {"n": s["total"] + 1}))

    def loop(self) -> None:
        name = self.name("t")
        limit = 2
        self.graph.add_node(name, self._body(lambda s: {"total": 1, "n": s["n"] + 1}))
        self.link(name)
        after = self.name("u")
        self.graph.add_node(after, self._body(_say("turned")))
        self.graph.add_edge(name, name, when=lambda s: s["n"] % 3 != limit)
        self.graph.add_edge(name, after)
        self._last = [after]

    def for_each(self, width: int = 3) -> None:
        split = self.node("d", self._body(_say("split")))
        item, total = self.name("i"), self.name("e")
        self.graph.add_node(item, self._body(lambda s: {"total": s["n"] ** 2 + 1, "log": [f"item {s['n']}"]}))
        self.graph.add_node(total, self._body(lambda s: {"n": s["total"]}))
        sends = [Send(item, {"n": index}, key=f"k{index}") for index in range(width)]
        self.graph.add_conditional_edges(split, lambda s: list(sends), [item])
        self.graph.add_edge(item, total)
        self._last = [total]

    def ask(self, timeout: float | None = None) -> None:
        def body(state: Any, ctx: Context) -> dict[str, Any]:
            stage().begins(ctx)
            if timeout is None:
                verdict = ctx.ask("Go?", name="go")
            else:
                verdict = ctx.ask("Go?", name="go", timeout=timeout, default="nobody")
            return {"log": [f"said {verdict}"]}

        self.node("a", body)

    def aside(self) -> None:
        """A question with a timeout beside a sleep that is a little longer."""
        before = self._last
        self.ask(0.6)
        asked, self._last = self._last, before
        self.sleep(0.8)
        self._last = [*asked, *self._last]
        self.node("y", self._body(_say("joined")))

    def beside(self) -> None:
        """A question beside a step that takes its time, so that it is answered while the run executes."""

        async def body(state: Any, ctx: Context) -> dict[str, Any]:
            stage().begins(ctx)
            await asyncio.sleep(3.0)
            return {"log": ["worked"]}

        before = self._last
        self.ask()
        asked, self._last = self._last, before
        self.node("b", body)
        self._last = [*asked, *self._last]
        self.node("y", self._body(_say("joined")))

    def sleep(self, seconds: float) -> None:
        def body(state: Any, ctx: Context) -> dict[str, Any]:
            stage().begins(ctx)
            ctx.sleep(seconds)
            stage().fires(ctx)
            return {"log": ["slept"]}

        async def lazily(state: Any, ctx: Context) -> dict[str, Any]:
            stage().begins(ctx)
            waiting = ctx.sleep(seconds)
            assert waiting is not None
            await waiting
            stage().fires(ctx)
            return {"log": ["slept"]}

        self.node("z", body if self._body is sync else lazily)

    def retry(self, delay: float) -> None:
        def body(state: Any, ctx: Context) -> dict[str, Any]:
            stage().begins(ctx)
            if ctx.attempt == 1:
                raise ConnectionError("not yet")
            return {"log": ["tried"]}

        self.node("r", body, retry=Retry(attempts=9, delay=delay, backoff="fixed"))

    def once(self) -> None:
        def effect(ctx: Context, key: str) -> str:
            stage().begins(ctx, key)
            return f"done {key}"

        def body(state: Any, ctx: Context) -> dict[str, Any]:
            stage().begins(ctx)
            said = [ctx.once(key, effect, ctx, key) for key in ("charge", "mail")]
            return {"log": said}

        self.node("o", body)

    def together(self) -> None:
        """Several tasks of one step that call the same `once` at the same time."""

        async def effect(ctx: Context) -> str:
            stage().begins(ctx, "charge")
            if seconds := stage().duration():
                await asyncio.sleep(seconds)
            return "done charge"

        async def body(state: Any, ctx: Context) -> dict[str, Any]:
            stage().begins(ctx)
            return {"log": list(await asyncio.gather(*(ctx.once("charge", effect, ctx) for _ in range(3))))}

        self.node("c", body)

    def nested(self) -> None:
        inner = Builder("inner", self._body)
        inner.chain()
        inner.node("v", self._body(lambda s: {"total": s["n"], "log": ["inner"]}))
        inner.graph.add_edge(inner._last[0], END)
        self.node("g", inner.graph)

    def built(self, weight: int, **options: Any) -> Shape:
        """The workflow."""
        self.link(END)
        app = self.graph.compile(store=MemoryStore(), facts=False, **options)
        goes_on = app._settings.policy.on_save_error == "continue"
        return Shape(self.graph.name, app, {"n": 1}, not goes_on, weight)


_SEGMENTS: tuple[tuple[str, Callable[[Builder], None]], ...] = (
    ("chain", Builder.chain),
    ("wave", Builder.wave),
    ("loop", Builder.loop),
    ("for_each", Builder.for_each),
    ("ask", Builder.ask),
    ("timeout", lambda b: b.ask(2.5)),
    ("nap", lambda b: b.sleep(0.4)),
    ("sleep", lambda b: b.sleep(4.0)),
    ("retry", lambda b: b.retry(0.05)),
    ("late_retry", lambda b: b.retry(3.0)),
    ("once", Builder.once),
    ("nested", Builder.nested),
    ("aside", Builder.aside),
)

_WEIGHTS = {"wave": 3, "for_each": 2, "once": 3}


def _plain(name: str, body: Body, *segments: Callable[[Builder], None], weight: int = 1) -> Shape:
    builder = Builder(name, body)
    for segment in segments:
        segment(builder)
    return builder.built(weight)


def _mixed(seed: int) -> Shape:
    """A random small graph."""
    draw = random.Random(f"graph {seed}")
    builder = Builder(f"mixed{seed}", draw.choice((sync, lazy)))
    for _ in range(draw.randint(2, 3)):
        draw.choice(_SEGMENTS)[1](builder)
    return builder.built(1, barrier=draw.random() < 0.7, max_parallel=draw.choice((2, 256)))


MIXED = 12


@functools.cache
def shapes() -> tuple[Shape, ...]:
    """All shapes; the first is the simplest."""
    found = [
        _plain("step", sync, Builder.chain, weight=150),
        _plain("two", sync, Builder.chain, Builder.chain, weight=90),
        _plain("three", lazy, Builder.chain, Builder.chain, Builder.chain, weight=10),
    ]
    for kind, segment in _SEGMENTS[1:]:
        for body in (sync, lazy):
            name = f"{kind}_{body.__name__}"
            found.append(_plain(name, body, segment, weight=_WEIGHTS.get(kind, 1)))
    stubborn = Builder("stubborn", lazy)
    for _ in range(3):
        stubborn.chain()
    found.append(stubborn.built(4, policy=CheckpointPolicy(on_save_error="continue")))
    together = _plain("together", lazy, Builder.together, Builder.chain, weight=12)
    beside = _plain("beside", lazy, Builder.beside, weight=2)
    return (*found, *(_mixed(seed) for seed in range(MIXED)), together, beside)


@functools.cache
def drawn() -> tuple[Shape, ...]:
    """Each shape as often as it is to be drawn."""
    return tuple(shape for shape in shapes() for _ in range(shape.weight))
