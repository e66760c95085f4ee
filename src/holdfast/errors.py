"""Every error Holdfast raises on purpose: one tree; each says what happened and the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (type(self), self.args, self.__dict__))


def _rebuilt(kind: type[HoldfastError], args: tuple[Any, ...], facts: dict[str, Any]) -> HoldfastError:
    """An error as it was before it was pickled, whatever its constructor takes."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class GraphInvalid(HoldfastError):
    """A graph cannot be compiled; `problems` lists every reason at once."""

    def __init__(self, graph: str, problems: Sequence[str]) -> None:
        self.graph, self.problems = graph, tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"graph {graph!r} has {len(self.problems)} problem(s):{lines}")


class StateInvalid(HoldfastError):
    """A state, an input or an update does not fit the schema, or was changed in place."""


class CodecError(HoldfastError):
    """A value cannot be stored, or stored bytes cannot be turned back into a value."""


class StoreError(HoldfastError):
    """A store cannot be opened, read or written."""


class CorruptJournal(StoreError):
    """Stored bytes are not what was written; `run` and `seq` say where."""

    def __init__(self, message: str, *, run: str | None = None, seq: int | None = None) -> None:
        self.run, self.seq = run, seq
        super().__init__(message)


class CapsuleInvalid(HoldfastError):
    """A file is not a capsule, not what was written, not signed as demanded, or more than is read from strangers."""


class CapsuleLocked(CapsuleInvalid):
    """A capsule is encrypted, and the passphrase that opens it was not given."""


class ForeignRun(HoldfastError):
    """A run came from outside, and nobody confirmed what it would run with; `disclosure` is that, as text."""

    def __init__(self, message: str, *, run: str = "", digest: str = "", disclosure: str = "") -> None:
        self.run, self.digest, self.disclosure = run, digest, disclosure
        super().__init__(message)


class ResourceExhausted(HoldfastError):
    """The system gives this process no more threads, descriptors or memory; what is stored can be resumed."""


class RunConflict(HoldfastError):
    """Another driver advanced, or is driving, the same run; this one stopped before its next step."""


class RunExists(HoldfastError):
    """A run id was given to a new run although a run of that id is stored."""


class RunNotFound(HoldfastError):
    """No run of that id, name or path is stored."""


class CheckpointNotFound(HoldfastError):
    """No checkpoint of that id is stored."""


class RunFinished(HoldfastError):
    """The run has completed: there is nothing to resume or to answer."""


class NotPaused(HoldfastError):
    """An answer was given to a run that is not waiting for one."""


class AnswerRejected(HoldfastError):
    """An answer does not fit its pause: wrong name, wrong shape, or too late."""


class CommandRefused(HoldfastError):
    """What was asked of a run cannot be done; the message says why, and so does the run's journal."""


class AnswerTimeout(HoldfastError):
    """Nobody answered a question in time; raised in the node that asked it. A resume asks it anew."""


class GraphChanged(HoldfastError):
    """The graph differs from the one the run started with in a way that stops the resume."""


class MigrationFailed(GraphChanged):
    """The state of a run cannot be brought to the version that the graph has; the run is as it was."""


class PlanOutdated(HoldfastError):
    """A resume would no longer do what was planned; `moved` says, in words, what is different now."""

    def __init__(self, run: str, moved: Sequence[str]) -> None:
        self.run, self.moved = run, tuple(moved)
        told = "; ".join(self.moved)
        super().__init__(f"the plan for run {run!r} no longer holds: {told}. Plan the resume again")


class CannotRerun(HoldfastError):
    """What should run again cannot: it is not known, or the run cannot be taken back that far."""


class CannotReuse(HoldfastError):
    """A new run cannot take over what another has finished."""


class StepTimeout(HoldfastError):
    """A step ran longer than its node's timeout."""


class ExecutorLost(HoldfastError):
    """What was running a step for us is gone: a worker process, a Dask worker or its scheduler. Worth another try."""

    transient = True


class ExecutionError(HoldfastError):
    """A run failed. The run is stored and can be resumed; the message ends with how."""

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        state: Mapping[str, Any] | None = None,
        path: Sequence[str] = (),
        run_id: str | None = None,
        cause: BaseException | None = None,
        resume_hint: str = "",
    ) -> None:
        self.node, self.state, self.path = node, state, tuple(path)
        self.run_id, self.cause = run_id, cause
        super().__init__(f"{message}; {resume_hint}" if resume_hint else message)


class MaxIterationsExceeded(ExecutionError):
    """A run used up its iteration budget, which survives resumes."""
