"""Speculation: steps that run on guessed inputs, in memory only, until their own turn confirms or drops them."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from holdfast import clock
from holdfast.engine.attempt import Attempt
from holdfast.engine.context import Context, logger
from holdfast.engine.decide import RouteFailed, RouteOn, Start, decide, meaning, qualified, to_targets
from holdfast.errors import CodecError, HoldfastError, problem_of, suggestion
from holdfast.graph.graph import Command, Graph, Node, Send, all_nodes
from holdfast.journal.fold import apply
from holdfast.journal.records import StepFinished, StepStarted
from holdfast.journal.run_state import RUNNING, Frame, RunState, Step, copy_run
from holdfast.state.codec import Codec
from holdfast.state.ops import Cells, Op, Slot, advance
from holdfast.state.state import State, limited, overlaid, state_view

if TYPE_CHECKING:
    from holdfast.engine.loop import Execution
    from holdfast.engine.waves import Waves

_log = logging.getLogger("holdfast")

Guess = Callable[[State], Any] | Mapping[str, Any] | Command | str
"""What a node is expected to return: a function of its state, an update, a `Command`, or the node that follows."""

Result = TypeVar("Result")

MAX_AHEAD = 8


# What is guessed, checked when the graph is compiled.


@dataclasses.dataclass(frozen=True, slots=True)
class Guesses:
    """What nodes are expected to return, by their names, and how many steps may run ahead of the confirmed ones."""

    by_node: Mapping[str, Callable[[State], Any]]
    max_ahead: int

    @classmethod
    def of(cls, graph: Graph, guesses: Any, max_ahead: int | None, problems: list[str]) -> Guesses | None:
        """Return the guesses that `compile` is given, if any; `problems` gets what is wrong with them."""
        if guesses is None:
            if max_ahead is not None:
                raise HoldfastError(
                    "max_ahead says how far speculation goes; give speculate= too, or neither"
                )
            return None
        ahead = MAX_AHEAD if max_ahead is None else max_ahead
        if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 1:
            raise HoldfastError(f"max_ahead must be a whole number of at least 1, not {max_ahead!r}")
        if not isinstance(guesses, Mapping):
            raise HoldfastError(f"speculate must be a mapping of nodes to guesses, not {guesses!r:.80}")
        nodes = dict(_nodes(graph))
        for name, guess in guesses.items():
            problems += [f"speculate: {problem}" for problem in _guess_problems(nodes, name, guess)]
        pure = [name for name, (_, node) in nodes.items() if node.pure]
        if not pure:
            problems.append("speculate: no node may run ahead; declare those without effects: pure=True")
        problems += [
            f"speculate: node {name!r} is pure and has {what}, which no step that runs ahead goes by; leave out one "
            "of the two"
            for name in pure
            for what, option in (("an executor", "executor"), ("a circuit breaker", "circuit_breaker"))
            if getattr(nodes[name][1], option) is not None
        ]
        return cls({name: _function(guess) for name, guess in guesses.items()}, ahead)


def _nodes(graph: Graph) -> Iterator[tuple[str, tuple[Graph, Node]]]:
    """Yield every node with the graph that it is in, by `outer/inner` names."""
    for name in all_nodes(graph):
        home, own = graph, name
        while "/" in own:
            outer, _, own = own.partition("/")
            inner = home.nodes[outer].graph
            assert inner is not None
            home = inner
        yield name, (home, home.nodes[own])


def _guess_problems(nodes: Mapping[str, tuple[Graph, Node]], name: Any, guess: Any) -> Iterator[str]:
    if name not in nodes:
        yield f"there is no node {name!r}{suggestion(str(name), nodes)}"
        return
    graph, node = nodes[name]
    if node.graph is not None:
        inner = f"{name}/{next(iter(node.graph.nodes), '')}"
        yield f"node {name!r} is a sub-graph; give guesses for its nodes, such as {inner!r}"
    elif inspect.iscoroutinefunction(guess):
        yield f"the guess for node {name!r} is async; what guesses must answer at once"
    elif not (callable(guess) or isinstance(guess, (str, Mapping, Command))):
        yield (
            f"the guess for node {name!r} is a function of the state, an update, a Command or the name of the next "
            f"node, not {guess!r:.80}"
        )
    elif not callable(guess):
        yield from _constant_problems(graph, name, _function(guess)(State()))


def _constant_problems(graph: Graph, name: str, guess: Command | Mapping[str, Any]) -> Iterator[str]:
    update = guess.update if isinstance(guess, Command) else guess
    for key in update or ():
        known = graph.schema.channels
        if not graph.schema.is_open and key not in known:
            meant = suggestion(str(key), known)
            yield f"the guess for node {name!r} sets {key!r}, which is no key of the state{meant}"
    goto = guess.goto if isinstance(guess, Command) else None
    try:
        to_targets(graph, name, goto if isinstance(goto, (list, tuple)) else [goto] if goto else [], Codec())
    except (RouteFailed, HoldfastError) as error:
        yield f"the guess for node {name!r}: {problem_of(error)}"


def _function(guess: Any) -> Callable[[State], Any]:
    if callable(guess):
        return guess  # type: ignore[no-any-return]
    constant = Command(goto=guess) if isinstance(guess, str) else guess
    return lambda state: constant


# One step that runs ahead.


class Inputs(NamedTuple):
    """What the result of a step depends on, beside its config, which is that of the run."""

    attempt: int
    item: tuple[Op, ...]
    last_node: str
    cells: Cells

    @classmethod
    def of(cls, step: Step, frame: Frame) -> Inputs:
        """Return the inputs of a step as they are now."""
        return cls(step.attempt, step.item, frame.last_node, frame.cells)

    def equal(self, other: Inputs, keys: Collection[str] | None, codec: Codec) -> bool:
        """Return whether both are the same by value, as far as they hold these keys of the state, or all."""
        if self[:3] != other[:3]:
            return False
        own, others = self.cells, other.cells
        compared = own.keys() | others.keys() if keys is None else keys
        try:
            return all(_is_same(own.get(key), others.get(key), codec) for key in compared)
        except CodecError:  # A guess need not make sense.
            return False


class SpeculationEnded(BaseException):
    """Leaves a step that runs ahead and asks for an effect, or for what is not known before its turn."""


class AheadContext(Context):
    """The context of a step that runs ahead: facts only. Whatever has an effect ends the speculation."""

    __slots__ = ("_end_it",)

    def __init__(self, end: Callable[[], NoReturn], *facts: Any) -> None:
        super().__init__(*facts)
        self._end_it = end

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """As that of any step; its records say that they are of a guess."""
        return logging.LoggerAdapter(logger, {"run_id": self.run_id, "step": self.step, "speculative": True})

    def _end(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._end_it()

    emit = stream = spend = ask = ask_all = once = sleep = _end
    spent = granted = idempotency_key = _graph = property(_end)


class AheadAttempt(Attempt):
    """The attempt of a step whose turn has not come. Its result is recorded only if it comes with equal inputs."""

    __slots__ = ("_cells", "_inputs", "_is_in_thread", "_is_spoilt", "task")

    def __init__(self, node: Node, step: Step, frame: Frame, host: Execution) -> None:
        facts = (host, step, host.config, node.is_async)
        context = AheadContext(self._end, *facts) if node.wants_context else None
        state = _state(host, frame, step, self._end)
        if node.reads is not None:
            state = limited(state, node.reads, node.name, [op.key for op in step.item])
        super().__init__(node, step, state, context, host.config)
        self._inputs, self._is_in_thread, self._is_spoilt = Inputs.of(step, frame), False, False
        self._cells: Cells = {}
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self.run())

    def call(self) -> Any:
        """As that of any attempt. What would end the process ends the speculation: it comes of a guess."""
        if self.node.is_async:
            return super().call()
        self._is_in_thread = True
        try:
            return super().call()
        except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
            raise SpeculationEnded from error
        finally:
            self._is_in_thread = False

    def _end(self) -> NoReturn:
        # It is over even if the node swallows the exception.
        self._is_spoilt = True
        raise SpeculationEnded

    @property
    def is_busy(self) -> bool:
        """Whether its function still runs, even if nobody waits for it any more."""
        return self._is_in_thread or not self.task.done()

    @property
    def is_good(self) -> bool:
        """Whether it has a result."""
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return False
        return self.error is None and not self._is_spoilt

    def fits(self, step: Step, frame: Frame, codec: Codec) -> bool:
        """Return whether it is an attempt of this step, which has begun, with the same inputs by value."""
        if step.notes or step.answers:
            return False
        return self._inputs.equal(Inputs.of(step, frame), self.node.reads, codec)

    def confirm(self, step: Step, frame: Frame) -> None:
        """Become the attempt of a step that has begun with these inputs."""
        self.step, given, reads = step, self._inputs.cells, self.node.reads
        # What it returns is compared with the very values that it was given: only so does a list that grew show.
        self._cells = {**frame.cells, **{key: given[key] for key in reads or given if key in given}}

    def known(self, frame: Frame) -> Frame:
        """Return the frame as the node saw it."""
        return dataclasses.replace(frame, cells=self._cells)

    def leave(self) -> None:
        """Let the node go. What it still asks of its context is refused."""
        self.task.cancel()
        if self.context is not None:
            self.context._is_over = True


def _is_same(own: Slot | None, other: Slot | None, codec: Codec) -> bool:
    """Return whether two slots hold the same value; changes that both have are not put together for that."""
    one, two = own, other
    while one is not two and one is not None and two is not None:
        before, change = one._prev, one._op
        other_before, other_change = two._prev, two._op
        if change is None or other_change is None or change != other_change:
            break
        if change.kind == "set":
            return True
        one, two = before, other_before
    if one is two:
        return True
    return own is not None and other is not None and own.encoded(codec) == other.encoded(codec)


def _unknown() -> NoReturn:
    raise SpeculationEnded("the checkpoint that a step will begin at is not known ahead")


def _state(host: Execution, frame: Frame, step: Step, unknown: Callable[[], NoReturn] = _unknown) -> State:
    """Return the state as a step that runs ahead sees it. Its checkpoint is `unknown`, which raises."""
    state = state_view(frame.cells, host.codec, host.run_id, unknown, frame.last_node, clock.time())
    return overlaid(state, advance({}, step.item)) if step.item else state


# All of them, of one execution.


class Speculation:
    """The steps of one execution that run ahead.

    What comes next is found as the loop finds it, with `decide`, conditions and `apply`, on a copy of the run in which
    running steps have returned what is guessed. The copy is never written. When a step begins, and it runs ahead with
    equal inputs, that attempt is taken for its own.
    """

    def __init__(self, host: Execution, waves: Waves) -> None:
        assert host.settings.guesses is not None
        self._host, self._waves, self._guesses = host, waves, host.settings.guesses
        self._ahead: dict[str, AheadAttempt] = {}
        """By the ids of their steps."""
        self._begun: dict[str, AheadAttempt] = {}
        """Those whose turn has come."""
        self._left: list[AheadAttempt] = []
        """Those that were dropped and may still run."""
        self._guessed: dict[str, tuple[Inputs, Any]] = {}
        """What was guessed for which step and inputs: a guess is not made twice."""
        self._seen: set[str] = set()
        """The steps of the last plan."""
        self._warned: set[str] = set()
        self._is_open = self._is_full = False
        """Whether steps may be started now, and whether one had to wait for others to end."""
        self.taken, self.dropped, self.gained = 0, 0, 0.0

    def begin(self, launches: Iterable[Step]) -> None:
        """Find which of the steps that have just begun are running ahead, and start others ahead of them."""
        for step in launches:
            attempt = self._ahead.pop(step.id, None)
            if attempt is None:
                continue
            frame = self._host.run.frames[step.frame]
            is_useless = attempt.task.done() and not attempt.is_good
            if is_useless or not attempt.fits(step, frame, self._host.codec):
                self._drop(attempt)
            else:
                attempt.confirm(step, frame)
                self._begun[step.id] = attempt
        self._is_open = True
        self._look_ahead()

    def hold(self) -> None:
        """Start and drop nothing while the run is between two steps."""
        self._is_open = False

    async def finish(self, attempt: Attempt) -> Attempt | None:
        """Wait for the attempt that ran ahead of a step and return it; `None` if the step has to run."""
        step, since = attempt.step, clock.perf_counter()
        ahead = self._begun.get(step.id)
        if ahead is None:
            return None
        try:
            await asyncio.wait({ahead.task})
        except BaseException:
            self._drop(ahead)
            raise
        finally:
            self._begun.pop(step.id, None)
        if not ahead.is_good:
            self._drop(ahead)
            return None
        gained = max(0.0, ahead.seconds - (clock.perf_counter() - since))
        self.taken, self.gained = self.taken + 1, self.gained + gained
        self._host.saving.say("node.speculate", step.node, step=step.id, seconds=ahead.seconds, gained=gained)
        return ahead

    def close(self) -> None:
        """Leave everything that still runs ahead."""
        for attempt in (*self._ahead.values(), *self._begun.values()):
            self._drop(attempt)
        self._ahead, self._begun, self._left = {}, {}, []

    def _drop(self, attempt: AheadAttempt) -> None:
        self.dropped += 1
        attempt.leave()
        self._left.append(attempt)

    def _ended(self, attempt: AheadAttempt, task: asyncio.Task[None]) -> None:
        """Look ahead again if an attempt that has ended leads on, or made room for others."""
        if not task.cancelled():
            task.exception()  # Asked of each task, or asyncio logs that nobody did.
        if self._is_full or self._ahead.get(attempt.step.id) is attempt:
            self._look_ahead()

    # Looking ahead.

    def _look_ahead(self) -> None:
        """Start what the present guesses lead to, and drop what they no longer lead to."""
        host = self._host
        if host.stop is not None or host.pausing is not None or host.has_left_run:
            return
        if not self._is_open or host.run.reuse is not None:
            return
        self._left = [attempt for attempt in self._left if attempt.is_busy]
        try:
            kept = self._plan(copy_run(host.run))
        except Exception:
            _log.exception("run %s: looking ahead failed; the run goes on without", host.run_id)
            return
        for name, attempt in self._ahead.items():
            if kept.get(name) is not attempt:
                self._drop(attempt)
        self._ahead = kept
        self._guessed = {name: found for name, found in self._guessed.items() if name in self._seen}

    def _plan(self, run: RunState) -> dict[str, AheadAttempt]:
        """Return the steps that are to run ahead, started; `run` is a copy to guess on."""
        self._seen.clear()
        self._is_full = False
        kept: dict[str, AheadAttempt] = {}
        room, unknown = self._guesses.max_ahead, set[str]()
        for step in list(run.active()):
            if step.status == RUNNING and step.id not in run.frames:
                self._foresee(run, step, self._begun.get(step.id))
        moves = True
        while moves:
            moves = False
            for decision in decide(self._host.graph, run, self._host.rules):
                if isinstance(decision, Start) and decision.at is None and room > 0:
                    step, room, moves = decision.step, room - 1, True
                    apply(run, StepStarted(step.id, step.attempt + 1), clock.time())
                    self._foresee(run, step, self._started(run, step, kept))
                elif isinstance(decision, RouteOn) and decision.frame.path not in unknown:
                    moves = self._routed(run, decision)
                    if moves:
                        break
                    unknown.add(decision.frame.path)
        return kept

    def _started(self, run: RunState, step: Step, kept: dict[str, AheadAttempt]) -> AheadAttempt | None:
        """Return the attempt of a step that may run ahead, started now if it was not before."""
        frame, known = run.frames[step.frame], self._ahead.get(step.id)
        if known is not None and known.fits(step, frame, self._host.codec):
            kept[step.id] = known
            return known
        node = self._host.graph.at(step.frame).nodes[step.node]
        if not node.pure or node.branch_timeout is not None:
            return None
        if not self._has_place(node, kept):
            self._is_full = True
            return None
        kept[step.id] = attempt = AheadAttempt(node, step, frame, self._host)
        attempt.task.add_done_callback(functools.partial(self._ended, attempt))
        return attempt

    def _has_place(self, node: Node, kept: Mapping[str, AheadAttempt]) -> bool:
        """Return whether one more step may run: those that were dropped, and the run's own, count as well."""
        ahead = {
            id(each): each for each in (*self._ahead.values(), *kept.values(), *self._left) if each.is_busy
        }
        nodes = [step.node for step in self._host.run.active() if step.status == RUNNING]
        both = [*nodes, *(each.node.name for each in ahead.values())]
        if len(ahead) >= self._guesses.max_ahead or len(both) >= self._host.rules.max_parallel:
            return False
        return node.max_parallel is None or both.count(node.name) < node.max_parallel

    def _routed(self, run: RunState, decision: RouteOn) -> bool:
        """End a wave of the copy, unless the run would stop there, or what follows cannot be known at once."""
        frame, names = decision
        steps = [frame.active[name] for name in names or frame.active]
        graph, gates = self._host.graph.at(frame.path), self._host.settings.interrupt_after
        if any(qualified(step) in gates or _asks_async(graph, step) for step in steps):
            return False
        try:
            record, _ = _at_once(self._waves.following(frame, names, None))
        except Exception:
            return False
        apply(run, record, clock.time())
        return True

    def _foresee(self, run: RunState, step: Step, attempt: AheadAttempt | None) -> None:
        """Let a step of the copy return what its attempt has returned, or what is guessed, if anything is."""
        self._seen.add(step.id)
        host, frame = self._host, run.frames[step.frame]
        try:
            state = _state(host, frame, step)
            if attempt is not None and attempt.is_good:
                value, state = attempt.value, attempt.state
            elif (value := self._guess(frame, step, state)) is None:
                return
            ops, goto = meaning(host.graph.at(step.frame), host.codec, frame, step, value, state)
        except (Exception, SpeculationEnded) as error:
            self._warn(qualified(step), error)
            return
        apply(run, StepFinished(step.id, ops, goto), clock.time())

    def _guess(self, frame: Frame, step: Step, state: State) -> Any:
        """Return what a step is expected to return; `None` if nobody knows."""
        guess = self._guesses.by_node.get(qualified(step))
        if guess is None:
            return None
        inputs, known = Inputs.of(step, frame), self._guessed.get(step.id)
        if known is not None and known[0].equal(inputs, None, self._host.codec):
            return known[1]
        value = guess(state)
        if inspect.isawaitable(value):
            getattr(value, "close", lambda: None)()
            raise HoldfastError("it returned something to be awaited; what guesses must answer at once")
        if isinstance(value, Send):
            value = Command(goto=value)
        self._guessed[step.id] = inputs, value
        return value

    def _warn(self, node: str, error: BaseException) -> None:
        """Warn, once for each node, that its guess cannot be used."""
        if node not in self._warned:
            self._warned.add(node)
            text = "run %s: the guess for node %r failed, and nothing runs ahead of it: %s: %s"
            _log.warning(text, self._host.run_id, node, type(error).__name__, problem_of(error))


def _asks_async(graph: Graph, step: Step) -> bool:
    """Return whether what follows a step is found by an async function, which may take its time."""
    if step.goto is not None:
        return False
    route, edges = graph.route_from.get(step.node), graph.edges_from.get(step.node, ())
    asked = [route.choose] if route is not None else [edge.when for edge in edges]
    return any(inspect.iscoroutinefunction(each) for each in asked)


def _at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what a coroutine returns that waits for nothing; one that does is given up."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise HoldfastError("it has to be waited for")
