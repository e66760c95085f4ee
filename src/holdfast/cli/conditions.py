"""What `--fail-on-state` asks of the final state of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.asking.given import value_of
from holdfast.cli.display.wording import all_steps
from holdfast.suggestions import did_you_mean
from holdfast.views.counts import NO_STEPS

if TYPE_CHECKING:
    from holdfast.flows.model import Definition


def check_conditions(conditions: Iterable[str], definition: Definition) -> None:
    """Refuse a condition on a step that the workflow does not have: it would never hold."""
    known = {*NO_STEPS, *(step.name for step in all_steps(definition.steps))}
    for condition in conditions:
        name = condition.partition("=")[0].removeprefix("steps.").partition(".")[0]
        if name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
            raise click.UsageError(f"--fail-on-state {condition!r}: there is no step {name!r}; {hint}")


def first_that_holds(conditions: Iterable[str], state: Any) -> str:
    """The first condition that a state meets; empty if it meets none."""
    for condition in conditions:
        path, _, wanted = condition.partition("=")
        if state_has(state, path, wanted):
            return condition
    return ""


def state_has(state: Any, path: str, wanted: str) -> bool:
    """Whether a state holds a value, JSON or text, at a dotted path such as `review.output.ok`."""
    found: Any = state
    for part in path.removeprefix("steps.").split("."):
        try:
            found = found[int(part)] if isinstance(found, (list, tuple)) else found[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return False
    return bool(found == value_of(wanted)) or found == wanted
