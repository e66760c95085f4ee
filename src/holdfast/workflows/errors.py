"""What goes wrong when a workflow's steps are executed."""

from __future__ import annotations

from holdfast.engine.decide import RouteFailed
from holdfast.errors import INVALID, HoldfastError


class StepFailed(HoldfastError):
    """A step did not do what it was to do. A `transient` failure may well not happen again."""

    def __init__(self, message: str, *, transient: bool = False, retry_after: float | None = None) -> None:
        self.transient, self.retry_after = transient, retry_after
        super().__init__(message)


class StepTimedOut(StepFailed):
    """A step took longer than its timeout allows."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class NoRoute(RouteFailed, HoldfastError):
    """None of a step's routes holds, or one cannot be evaluated; `node` is the step's name."""


class BudgetExceeded(HoldfastError):
    """The agents of a run have spent what the workflow allows. No step goes on without its result."""


class EndedInFailure(HoldfastError):
    """The workflow itself says that the run failed."""


class InputInvalid(HoldfastError):
    """The inputs do not fit what the workflow declares; `problems` lists every reason."""

    exit_code = INVALID

    def __init__(self, workflow: str, problems: list[str]) -> None:
        self.problems = tuple(problems)
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"workflow {workflow!r} cannot begin with these inputs:{listed}")
