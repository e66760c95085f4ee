"""Every error Holdfast raises on purpose: one tree; each has a code, its facts, and remedies as data."""

from __future__ import annotations

import difflib
import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

FAILED, INVALID, CONFIGURATION = 1, 2, 3
"""Exit codes of a command that ends with an error: the work failed, the request is wrong, something is missing."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way out of an error as data: an action on a run with its options, which each front end words itself.

    `text` is a remedy in words that hold everywhere. `app` is what the app is called in Python.
    """

    action: str = ""
    run_id: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    app: str = "app"

    def __str__(self) -> str:
        if self.text:
            return self.text
        given = "".join(f", {name}={value!r}" for name, value in self.options.items())
        words = IN_PYTHON.get(self.action, "").replace("app.", f"{self.app}.")
        return words.format(run=self.run_id, given=given, **self.options)


IN_PYTHON = {
    "answer": "answer with app.answer({run!r}, …)",
    "begin_own_run": "begin a run of your own with what the run holds",
    "cancel": "stop it with app.cancel({run!r})",
    "choose_run_id": "give the new run another run_id",
    "confirm": "look at `disclosure` of this error, what it would run with, then app.resume({run!r}, trust=True)",
    "delete": "remove it with app.delete({run!r})",
    "export": "holdfast.capsules.export_run(…) writes one",
    "extend": "give it more time with app.extend({run!r})",
    "fork": "app.resume(app.fork({run!r})) begins a run there",
    "list_checkpoints": "app.checkpoints(…) lists those that are there",
    "list_schedules": "Schedules.lines() lists those that are there",
    "list_runs": "app.runs() lists those that are there",
    "make_keys": "holdfast.capsules.make_key_pair(…) makes a pair",
    "migrate": "run `holdfast store migrate` as the owner of the schema",
    "plan": "plan the resume again with app.plan_resume({run!r})",
    "read": "read it with app.get_state({run!r})",
    "replace_schedule": "replace it with replace=True, or choose another name",
    "repair": "`holdfast store fsck --repair` restores it from the journal",
    "rerun": "app.rerun({run!r}, {step!r}) runs this one again",
    "resume": "resume with app.resume({run!r}{given})",
    "reuse": "app.invoke(reuse={run!r}) starts a new run that reuses what is still the same",
    "set_max_iterations": "use StateGraph(…, max_iterations={limit}) or more, then app.resume({run!r})",
    "skip": "app.skip({run!r}, {step!r}) leaves its result out, and then app.resume({run!r}) goes on",
    "settle": "look what became of it, then resume with app.resume({run!r}, if_interrupted='rerun') or 'skip'",
    "use_own_file": "go on with a workflow file of your own",
}
"""What each action is in Python; `{run}` is the run's id, `{given}` the options as arguments.

An action that is not here has no words in Python: nothing is said of it.
"""


def with_remedies(problem: str, remedies: Iterable[object]) -> str:
    """Return a problem followed by what can be done about it."""
    return "; ".join(filter(None, [problem, ", or ".join(filter(None, map(str, remedies)))]))


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises on purpose.

    `code` names the kind of error for programs. `problem` says what happened, in words that hold for Python and for the
    command line alike; `remedies` say what can be done about it. `str()` is both, in the words of Python.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = FAILED
    public_text: ClassVar[str] = ""
    """What clients of a server see instead of the problem, of a kind whose problems say where things are."""
    remedies: tuple[Remedy, ...] = ()
    store: str = ""
    """The URL of the store that it is about, which clients of a server do not see."""

    def __init_subclass__(cls) -> None:
        if "code" not in cls.__dict__:
            cls.code = "".join(f"_{char.lower()}" if char.isupper() else char for char in cls.__name__).strip(
                "_"
            )

    def __init__(self, problem: str = "", *, remedies: Remedy | Iterable[Remedy] = (), **facts: Any) -> None:
        super().__init__(problem)
        if remedies:
            self.remedies = (remedies,) if isinstance(remedies, Remedy) else tuple(remedies)
        for name, value in facts.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no fact {name!r}")
            setattr(self, name, value)

    @property
    def problem(self) -> str:
        """What happened, without what can be done about it."""
        said = str(self.args[0]) if self.args else ""
        return f"{said} (in {self.store})" if self.store else said

    @property
    def public_problem(self) -> str:
        """What happened, as clients of a server see it: without where things are on its machine."""
        return self.public_text or (str(self.args[0]) if self.args else "")

    def __str__(self) -> str:
        return with_remedies(self.problem, self.remedies)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (type(self), self.args, self.__dict__))


def _rebuilt(kind: type[HoldfastError], args: tuple[Any, ...], facts: dict[str, Any]) -> HoldfastError:
    """Return an error as it was before it was pickled, whatever its constructor takes."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


def problem_of(error: BaseException) -> str:
    """Return an error's text without its remedies, so that it can be stored and shown anywhere."""
    return error.problem if isinstance(error, HoldfastError) else str(error)


class GraphInvalid(HoldfastError):
    """A graph cannot be compiled, or a function cannot be a step or a workflow; `problems` lists every reason at once.

    `what` is what the problems are those of.
    """

    exit_code = INVALID

    def __init__(self, graph: str, problems: Sequence[str], what: str = "graph") -> None:
        self.graph, self.problems = graph, tuple(problems)
        if what != "graph":
            super().__init__(f"{what} {graph!r}: {'; '.join(self.problems)}")
            return
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"graph {graph!r} has {len(self.problems)} problem(s):{lines}")


class StateInvalid(HoldfastError):
    """A state, an input or an update does not fit the schema, or was changed in place."""

    exit_code = INVALID


class CodecError(HoldfastError):
    """A value cannot be stored, or stored bytes cannot be turned back into a value."""


class StoreError(HoldfastError):
    """A store cannot be opened, read or written; `is_closed` if it was closed by its owner.

    `raised` is what a store raised that raises errors of its own.
    """

    exit_code = CONFIGURATION
    public_text = "the store cannot be used now; the log of the server says why"
    is_closed: bool = False
    raised: BaseException | None = None


class CorruptJournal(StoreError):
    """Stored bytes are not what was written; `run` and `seq` say where."""

    exit_code = FAILED
    public_text = "what is stored is damaged; the log of the server says what"
    remedies = (Remedy("check"),)
    run: str | None = None
    seq: int | None = None


class CapsuleInvalid(HoldfastError):
    """A file is not a capsule, is damaged, lacks a required signature, or exceeds the limits for untrusted files."""

    exit_code = INVALID


class CapsuleLocked(CapsuleInvalid):
    """A capsule is encrypted, and the passphrase that opens it was not given."""


class ForeignRun(HoldfastError):
    """A run came from outside, and nobody confirmed its definition and options; `disclosure` lists them as text."""

    exit_code = INVALID
    run: str = ""
    digest: str = ""
    disclosure: str = ""


class ResourceExhausted(HoldfastError):
    """The system gives this process no more threads, descriptors or memory; what is stored can be resumed."""


class RunConflict(HoldfastError):
    """Another process advanced, or executes, the same run; this execution stopped before its next step."""


class RunExists(HoldfastError):
    """A run id was given to a new run although a run of that id is stored."""

    exit_code = INVALID
    run_id: str = ""


class RunNotFound(HoldfastError):
    """No run of that id, name or path is stored."""


class UnknownWorkflow(HoldfastError):
    """This process does not know the workflow of a run; others may."""

    exit_code = INVALID


class CheckpointNotFound(HoldfastError):
    """No checkpoint of that id is stored."""


class RunFinished(HoldfastError):
    """The run has completed: there is nothing to resume or to answer."""

    exit_code = INVALID


class NotPaused(HoldfastError):
    """An answer was given to a run that is not waiting for one."""

    exit_code = INVALID


class AnswerRejected(HoldfastError):
    """An answer does not fit its pause: wrong name, wrong shape, or too late."""

    exit_code = INVALID


class CommandRefused(HoldfastError):
    """What was asked of a run cannot be done; the message says why, and so does the run's journal."""

    exit_code = INVALID


class AnswerTimeout(HoldfastError):
    """Nobody answered a question in time; raised in the node that asked it. A resume asks it again."""


class GraphChanged(HoldfastError):
    """The graph differs from the one the run started with in a way that stops the resume."""

    exit_code = INVALID


class MigrationFailed(GraphChanged):
    """The state of a run cannot be brought to the version that the graph has; the run is as it was."""


class StepChanged(GraphChanged):
    """A workflow's function calls a finished step with other arguments than those that its result was recorded for."""

    step: str = ""
    recorded: str = ""
    given: str = ""


class StepError(HoldfastError):
    """Stands for a recorded error of a step whose type is not loaded in this process; `type` is its name."""

    type: str = ""
    message: str = ""


class RunPaused(HoldfastError):
    """A workflow's function cannot return yet: its run waits, for an answer or for a time; `outcome` says for what."""

    run_id: str = ""
    outcome: Any = None

    @property
    def pauses(self) -> tuple[Any, ...]:
        """What the run waits for."""
        return () if self.outcome is None else self.outcome.pauses


class PlanOutdated(HoldfastError):
    """A resume would no longer do what was planned; `moved` says, in words, what is different now."""

    exit_code = INVALID

    def __init__(self, run: str, moved: Sequence[str]) -> None:
        self.run, self.moved = run, tuple(moved)
        problem = f"the plan for run {run!r} no longer holds: {'; '.join(self.moved)}"
        super().__init__(problem, remedies=Remedy("plan", run))


class CannotRerun(HoldfastError):
    """A step cannot be rerun: it is unknown, or the run cannot be rolled back that far."""

    exit_code = INVALID


class CannotReuse(HoldfastError):
    """A new run cannot take over what another has finished."""

    exit_code = INVALID


class StreamDropped(HoldfastError):
    """What was asked for of a run's streamed text is no longer kept; `oldest` is the cursor before all that is."""

    exit_code = INVALID
    oldest: str = ""


class StepTimeout(HoldfastError):
    """A step ran longer than its node's timeout."""


class CircuitOpen(HoldfastError):
    """A step was not tried: its node failed too often in a row, and is not tried again for `retry_after` seconds."""

    node: str = ""
    retry_after: float = 0.0


class ExecutorLost(HoldfastError):
    """What was running a step for us is gone: a worker process, a Dask worker or its scheduler. Worth another try."""

    transient = True


class ExecutionError(HoldfastError):
    """A run failed. The run is stored and can be resumed; `remedies` say how."""

    node: str | None = None
    state: Mapping[str, Any] | None = None
    path: tuple[str, ...] = ()
    run_id: str | None = None
    cause: BaseException | None = None

    @property
    def node_name(self) -> str | None:
        """The name of the node at which the run failed."""
        return self.node

    @property
    def err(self) -> BaseException | None:
        """The exception that the run failed with, as a node or a store raised it, or this one if there is no other."""
        raised = self.cause.raised if isinstance(self.cause, StoreError) else None
        return raised or self.cause or self


class MaxIterationsExceeded(ExecutionError):
    """A run used up its iteration budget, which survives resumes."""


# Corrections of misspelt names, found at a bounded cost however many names there are.


MOST_LOOKED_AT = 1000
"""How many known names are looked at."""

MOST_COMPARED = 50
"""How many of these, the nearest in length, are compared character by character."""

LONGEST = 60
"""Longer names are no misspelt ones."""

_CUTOFF = 0.6


def closest(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """The known name that is most like `name`, or `None`; case, `-` and `_` make no difference."""
    if not name or len(name) > LONGEST:
        return None
    some = [other for other in itertools.islice(known, MOST_LOOKED_AT) if 0 < len(other) <= LONGEST]
    wanted = _folded(name)
    same = next((other for other in some if _folded(other) == wanted), None)
    if same is not None:
        return same
    near = [other for other in some if 2 * min(len(name), len(other)) >= cutoff * (len(name) + len(other))]
    few = heapq.nsmallest(MOST_COMPARED, near, key=lambda other: abs(len(other) - len(name)))
    found = difflib.get_close_matches(name, few, 1, cutoff)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` if a known name is close, else nothing."""
    close = closest(name, known)
    return f"did you mean {close!r}?" if close is not None else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, to be put at the end of a message, if a known name is close, else nothing."""
    asked = did_you_mean(name, known)
    return f"; {asked}" if asked else ""


def _folded(name: str) -> str:
    return name.strip().casefold().replace("-", "_")
