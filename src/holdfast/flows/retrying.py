"""When a failed step is tried again."""

from __future__ import annotations

from holdfast.errors import StepTimeout
from holdfast.flows.errors import StepTimedOut
from holdfast.flows.kinds.kind import Kind
from holdfast.flows.model import Retry as RetryWish
from holdfast.flows.model import Step
from holdfast.plan.retry import Retry


def retry_of(step: Step, kind: Kind) -> Retry | None:
    """How a step is retried: as it says; and if it says nothing, transient failures of its kind three times.

    A step that is not idempotent is not repeated unless it says so itself.
    """
    wish = step.retry
    if wish is None:
        if not kind.transient_only or not step.idempotent:
            return None
        wish = RetryWish()
    reasons = wish.on or ("transient" if kind.transient_only else "any")
    tests = {"any": _any, "transient": is_transient, "timeout": is_timeout}
    return Retry(wish.attempts, wish.delay, wish.backoff, wish.max_delay, tests[reasons])


def is_transient(error: BaseException) -> bool:
    """Whether an error may well not happen again."""
    return bool(getattr(error, "transient", False)) or isinstance(
        error, (StepTimeout, ConnectionError, TimeoutError)
    )


def is_timeout(error: BaseException) -> bool:
    """Whether an error says that something took too long."""
    late = isinstance(error, (StepTimedOut, StepTimeout, TimeoutError))
    return late or bool(getattr(error, "timed_out", False))


def _any(error: BaseException) -> bool:
    return isinstance(error, Exception)
