"""What a graph is compiled with, and what comes of an execution."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from holdfast import clock
from holdfast.engine.decide import Rules
from holdfast.errors import CircuitOpen, HoldfastError
from holdfast.events import Observer
from holdfast.graph.graph import CircuitBreaker, Graph
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import NO_ANSWER, RunState
from holdfast.journal.run_state import Pause as StoredPause
from holdfast.names import LazyModule
from holdfast.state.codec import Codec
from holdfast.state.state import StateT
from holdfast.values import RunStatus, utc_time

if TYPE_CHECKING:
    from holdfast.engine.speculation import Guesses
    from holdfast.views import notebook
else:
    notebook = LazyModule("views.notebook")

DURABILITY = ("full", "process", "exit")
ON_FAILURE = ("pause", "continue", "rollback")
ON_SAVE_ERROR = ("fail", "continue")
PRESERVE = ("last", "all", "none")
ON_CHANGE = ("warn", "fail", "use_saved")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not among the allowed."""
    if value not in allowed:
        raise HoldfastError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When a run is saved, and what a failure means.

    - `interval`: 1 saves every wave, n every n-th, 0 none; pauses and failures are always saved.
    - `on_failure`: "pause" stops so that the run can be resumed; "continue" goes on without the failed
      step's update; "rollback" deletes the run.
    - `on_save_error`: "fail" stops the run; "continue" goes on, tells `checkpoint.fail`, and saves what
      it owes with the next checkpoint; only that the run was resumed has to be saved either way.
    - `preserve`: what a completed run leaves. "last" leaves it to retention, which always keeps the last
      successful run; "all" is never pruned; "none" deletes the run when it completes.
    - `durability`: "full" survives a power loss, "process" survives kill -9, "exit" saves only at a pause,
      a failure or the end.
    """

    interval: int = 1
    on_failure: str = "pause"
    on_save_error: str = "fail"
    preserve: str = "last"
    durability: str = "full"

    def __post_init__(self) -> None:
        if not isinstance(self.interval, int) or self.interval < 0:
            raise HoldfastError(f"interval must be 0 (off), 1 (every wave) or more, not {self.interval!r}")
        one_of("on_failure", self.on_failure, ON_FAILURE)
        one_of("on_save_error", self.on_save_error, ON_SAVE_ERROR)
        one_of("preserve", self.preserve, PRESERVE)
        one_of("durability", self.durability, DURABILITY)

    def saves_wave(self, wave: int) -> bool:
        """Return whether the run is saved after its `wave`-th wave."""
        return self.durability != "exit" and self.interval > 0 and wave % self.interval == 0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long runs and their checkpoints are kept. `None` means without limit.

    - `max_age`: a run untouched for longer is deleted.
    - `max_checkpoints`: how many checkpoints are kept, oldest dropped first, `per` "workflow" or "run"; also while a
      run is executed.
      The newest checkpoint of a run that can still be resumed is never dropped by count.
    - `keep_successful`: the last successful run of a workflow outlives both.
    - `pause_ttl`: a question unanswered for longer has expired: it takes no answer until `App.extend` gives it more
      time, and a resume goes on with its default, or asks it again.
    """

    max_age: dt.timedelta | None = dt.timedelta(days=7)
    max_checkpoints: int | None = None
    keep_successful: bool = True
    pause_ttl: dt.timedelta | None = dt.timedelta(hours=24)
    per: str = "workflow"

    def __post_init__(self) -> None:
        if self.max_checkpoints is not None and self.max_checkpoints < 1:
            raise HoldfastError(f"max_checkpoints must be at least 1 or None, not {self.max_checkpoints!r}")
        one_of("per", self.per, ("workflow", "run"))
        for name in ("max_age", "pause_ttl"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, dt.timedelta) and value > dt.timedelta(0)):
                raise HoldfastError(f"{name} must be a timedelta of more than zero, or None, not {value!r}")

    @classmethod
    def recent(cls, count: int = 5) -> Retention:
        """Keep the `count` newest checkpoints of each workflow."""
        return cls(max_checkpoints=count)

    @classmethod
    def latest_only(cls) -> Retention:
        """Keep one checkpoint a run: each save replaces the one before."""
        return cls(max_checkpoints=1, per="run")


class Circuits:
    """The circuit breakers of a compiled graph, for all its runs in this process, by node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: dict[str, tuple[int, float | None]] = {}
        """The failures in a row of a node, and, if it is left alone, until when."""

    def refusal(self, node: str, breaker: CircuitBreaker) -> CircuitOpen | None:
        """Return why a step of a node is not to be tried now, or `None`: then the caller has to try it."""
        with self._lock:
            failures, until = self._failing.get(node, (0, None))
            if until is None:
                return None
            now = clock.monotonic()
            if (
                until <= now
            ):  # One is let through; for the others the node stays as it is until that one has ended.
                self._failing[node] = failures, now + breaker.seconds
                return None
        return CircuitOpen(
            f"node {node!r} is not tried: it failed {failures} times in a row, and is left alone for another "
            f"{until - now:.3g} s",
            node=node,
            retry_after=until - now,
        )

    def succeeded(self, node: str) -> bool:
        """Forget the failures of a node; return whether it was left alone."""
        with self._lock:
            return self._failing.pop(node, (0, None))[1] is not None

    def failed(self, node: str, breaker: CircuitBreaker) -> int:
        """Count a failure of a node; return the failures in a row if it is left alone from now on, else 0."""
        with self._lock:
            failures = self._failing.get(node, (0, None))[0] + 1
            is_open = failures >= breaker.failures
            self._failing[node] = failures, clock.monotonic() + breaker.seconds if is_open else None
        return failures if is_open else 0


@dataclass(frozen=True, slots=True)
class Settings:
    """A graph and all that was decided when it was compiled."""

    graph: Graph
    journal: Journal
    codec: Codec
    policy: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    retention: Retention | None = None
    rules: Rules = field(default_factory=Rules)
    interrupt_after: frozenset[str] = frozenset()
    notify: bool = False
    checkpoint_dir: Path | None = None
    observer: Observer | None = None
    on_change: str = "warn"
    time_limit: float | None = None
    """Seconds that one execution may take."""
    outline: dict[str, object] = field(default_factory=dict)
    is_memory_default: bool = False
    """Whether runs are kept in memory because nobody named a store."""
    store_option: str = "compile with store='sqlite:///runs.db'"
    """How to name one, in the words of a message."""
    guesses: Guesses | None = None
    """What nodes are expected to return, if steps are to run ahead on that."""
    facts: Mapping[str, Any] | None = field(default_factory=dict)
    """What is recorded of the environment beside what is found out; `None` if nothing is to be."""
    circuits: Circuits = field(default_factory=Circuits)
    dialect: str | None = None
    """The names of the events of streams that choose none."""
    raise_exceptions: bool = True
    """Whether a failure is raised, or only reported as an event and returned as an outcome."""


def ignore(execution: Any) -> None:
    """Do nothing with an execution."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has a run executed. `private` says that the event loop may be blocked; `hold` is given the execution.

    `idle_timeout` is how long an execution that has nothing to do waits; see `Execution`. `raises` says that the
    failure of a run is raised.
    """

    observer: Observer | None
    private: bool = False
    hold: Callable[[Any], None] = ignore
    idle_timeout: float | None = None
    raises: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    """Something a run waits for.

    `kind` is `ask` (an answer to `ctx.ask`), `before` or `after` (a gate; plain `resume` passes it),
    `in_doubt` or `poison` (what to do with an interrupted step). Answer by `name`, or by `id` where
    several pauses have one name.
    """

    id: str
    kind: str
    node: str
    step: str
    name: str
    prompt: str
    schema: dict[str, Any] | None
    since: dt.datetime
    expires_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class Stats:
    """What an execution did and what it cost."""

    steps_run: int = 0
    """Attempts made by this execution."""
    steps_kept: int = 0
    """Steps that were finished before this execution and did not run again."""
    waves: int = 0
    """Waves completed, over all executions of the run."""
    retries: int = 0
    seconds: float = 0.0
    """Time spent in steps, over all executions of the run."""
    commits: int = 0
    bytes_written: int = 0
    save_errors: int = 0
    cost: float = 0.0
    """US dollars that the run is known to have spent, over all its executions."""
    steps_reused: int = 0
    """Steps that this execution was given the results of, instead of running them."""
    seconds_saved: float = 0.0
    """How long they took where they ran."""
    cost_saved: float = 0.0
    """US dollars that they are known to have cost there."""
    steps_speculated: int = 0
    """Steps that had run ahead on guessed inputs, and whose guess was right."""
    guesses_dropped: int = 0
    """Steps that ran ahead for nothing: the guess was wrong, they failed, or asked for an effect."""
    seconds_gained: float = 0.0
    """How much of the time of the speculated steps nobody had to wait for."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[StateT]):
    """The result of an execution: the run is completed, paused or cancelled.

    A failure is raised instead, or, with `raise_exceptions=False`, an outcome that is `failed` and has the `error`.
    """

    status: RunStatus
    state: StateT
    """The state, which type checkers know as the TypedDict that the graph was made with."""
    run_id: str
    checkpoint_id: str
    pauses: tuple[Pause, ...] = ()
    stats: Stats = field(default_factory=Stats)
    warnings: tuple[str, ...] = ()
    """What went wrong and was passed over: failed steps under on_failure="continue", unsaved checkpoints."""
    reused: tuple[str, ...] = ()
    """The steps that this execution was given the results of, instead of running them, by their ids."""
    error: HoldfastError | None = None
    """Why it failed, where that is not raised."""

    def __str__(self) -> str:
        """Return the outcome in a line, and a line for everything that it waits for."""
        lines = [f"{self.status}: {notebook.summary(self)}"]
        lines += [f"  waits for {pause.name or pause.node!r}: {pause.prompt}" for pause in self.pauses]
        if self.pauses:
            asks = any(pause.kind not in NO_ANSWER for pause in self.pauses)
            how = "answer and go on with" if asks else "go on with"
            lines.append(f"  {how} app.resume({self.run_id!r}{', answer' if asks else ''})")
        return "\n".join([*lines, *(f"  {self.error}" for _ in [self.error] if self.error is not None)])

    def _repr_html_(self) -> str:
        return notebook.outcome_html(self)


def expires_at(pause: StoredPause, retention: Retention | None) -> float | None:
    """Return when a pause expires: as the question itself says, or else as the retention says for questions."""
    ttl = retention.pause_ttl if retention is not None else None
    if pause.expires_at is not None or ttl is None or pause.kind != "ask":
        return pause.expires_at
    return pause.since + ttl.total_seconds()


def public_pauses(run: RunState, codec: Codec, retention: Retention | None = None) -> tuple[Pause, ...]:
    """Return a run's pauses in the order of their steps."""
    order = {step.id: index for index, step in enumerate(run.active())}
    pauses = sorted(run.pauses.values(), key=lambda pause: order.get(pause.step, 0))
    return tuple(
        Pause(
            id=pause.id,
            kind=pause.kind,
            node=pause.node,
            step=pause.step,
            name=pause.name,
            prompt=pause.prompt,
            schema=codec.decode(pause.schema) if pause.schema else None,
            since=utc_time(pause.since),
            expires_at=None if (at := expires_at(pause, retention)) is None else utc_time(at),
        )
        for pause in pauses
    )
