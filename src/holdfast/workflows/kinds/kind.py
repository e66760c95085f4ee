"""The base of all kinds of steps, and the kinds that need nothing but the state: set, wait, end."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.state.state import State
from holdfast.workflows.errors import EndedInFailure, StepFailed
from holdfast.workflows.language.templates import (
    Template,
    TemplateError,
    compile_template,
    compile_tree,
    render_tree,
    tree_paths,
)
from holdfast.workflows.model import Step
from holdfast.workflows.scope import Resources

Paths = set[tuple[str, ...]]
Result = dict[str, Any]
"""What a step leaves in the state: its `output`, and whatever else its kind has to tell."""


class Text:
    """One text of a step. Errors name the field that it stands in."""

    def __init__(self, field: str, text: str) -> None:
        self.field, self.template = field, compile_template(text)

    def render(self, scope: Mapping[str, Any]) -> str:
        """Return the text with the scope's values."""
        try:
            return self.template.render(scope)
        except TemplateError as error:
            raise StepFailed(f"{self.field}: {error}") from None


class Tree:
    """A value of a step with texts anywhere in it; `paths` are those that it reads of the scope."""

    def __init__(self, field: str, value: Any) -> None:
        self.field, self._compiled = field, compile_tree(value)
        self.paths = tree_paths(self._compiled)
        self._constant = None if _has_templates(self._compiled) else self.render({})

    def look(self, scope: Mapping[str, Any]) -> Any:
        """Return the value for a caller that does not change it: one without templates is made once."""
        return self.render(scope) if self._constant is None else self._constant

    def render(self, scope: Mapping[str, Any]) -> Any:
        """Return the value with the scope's values in its texts."""
        try:
            return render_tree(self._compiled, scope)
        except TemplateError as error:
            place = ".".join(str(part) for part in (self.field, *error.path))
            raise StepFailed(f"{place}: {error}") from None


def _has_templates(compiled: Any) -> bool:
    if isinstance(compiled, Template):
        return not compiled.is_plain
    inner = compiled.values() if isinstance(compiled, dict) else compiled
    return isinstance(compiled, (dict, list, tuple)) and any(map(_has_templates, inner))


class Kind:
    """The work of one step. It is made once, when its workflow is loaded, and run any number of times."""

    transient_only: ClassVar[bool] = False
    """Whether by default only transient failures are retried, and then are without being asked for."""
    is_async = False
    """Whether `run` returns an awaitable."""
    asks_engine = True
    """Whether `run` needs a context; work without one costs less."""
    takes_state = False
    """Whether `run` reads the state itself, beside the scope."""

    def __init__(self, step: Step, resources: Resources) -> None:
        self._step, self._resources = step, resources
        self._paths: Paths = set()

    def text(self, field: str, text: str) -> Text:
        """Compile a text of the step."""
        found = Text(field, text)
        self._paths |= found.template.paths
        return found

    def optional_text(self, field: str, text: str | None) -> Text | None:
        """Compile a text of the step, if it has one."""
        return None if text is None else self.text(field, text)

    def texts(self, field: str, texts: Mapping[str, str]) -> dict[str, Text]:
        """Compile several texts of the step."""
        return {name: self.text(f"{field}.{name}", text) for name, text in texts.items()}

    def tree(self, field: str, value: Any) -> Tree:
        """Compile a value of the step with texts in it."""
        found = Tree(field, value)
        self._paths |= found.paths
        return found

    def paths(self) -> Paths:
        """Return the paths that the work reads of the scope."""
        return self._paths

    def functions(self) -> Sequence[Callable[..., Any]]:
        """Return the functions that make it other work when they change, beside the definition."""
        return ()

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Any:
        """Do the work: return a `Result`, or an awaitable of one."""
        raise AssertionError("other nodes do the work")


# The kinds that need nothing but the state: set, wait, end.


class SetValues(Kind):
    """`set`: values made of values."""

    asks_engine = False

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        self._values = self.tree("set", step.set)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        return {"output": self._values.look(scope)}


class Wait(Kind):
    """`wait`: time passes, also while nobody runs."""

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        wait = step.wait
        assert wait is not None
        self._seconds = wait.seconds
        self._until = self.optional_text("wait.until", wait.until)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        seconds = self._seconds
        if self._until is not None:
            seconds = max(0.0, _parse_time(self._until.render(scope)).timestamp() - clock.time())
        assert seconds is not None
        ctx.sleep(seconds, name="wait")
        return {"output": None}


def _parse_time(text: str) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(text.strip())
        return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    except ValueError:
        raise StepFailed(
            f"wait.until: {text!r:.80} is no date and time; write it as 2026-01-31T09:00:00+01:00, "
            "or without offset in UTC"
        ) from None


class End(Kind):
    """`end`: the run is over, well or not."""

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        end = step.end
        assert end is not None
        self._fails = end.status == "failure"
        self._reason = self.text("end.reason", end.reason)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        reason = self._reason.render(scope)
        if self._fails:
            raise EndedInFailure(reason or "the workflow ended in failure")
        return {"output": reason or None, "reason": reason}


# JSON that comes from outside and goes there: only what can be stored and read by others.


def read_json(text: str | bytes) -> Any:
    """Return the data that a text is; a `ValueError` says why it is none."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(value: Any, field: str) -> bytes:
    """Data as JSON; what JSON has no way to write is refused with the field that it is for."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StepFailed(f"{field}: this cannot be sent as JSON: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number
