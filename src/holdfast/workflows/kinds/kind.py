"""What every kind of step has in common."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

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

Paths = set[tuple[str, ...]]
Result = dict[str, Any]
"""What a step leaves in the state: its `output`, and whatever else its kind has to tell."""


class Kind(Protocol):
    """One step's work. It is made once, when its workflow is loaded, and run any number of times."""

    transient_only: ClassVar[bool]
    """Whether by default only transient failures are worth another attempt, and then are given one."""

    @property
    def is_async(self) -> bool:
        """Whether `run` gives an awaitable."""
        ...

    @property
    def asks_engine(self) -> bool:
        """Whether `run` needs a context; what does without one costs less."""
        ...

    @property
    def takes_state(self) -> bool:
        """Whether `run` looks at the state itself, beside the scope."""
        ...

    def paths(self) -> Paths:
        """The places of the scope that the work reads."""
        ...

    def functions(self) -> Sequence[Callable[..., Any]]:
        """The functions that, beside the definition, make it other work when they change."""
        ...

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Any:
        """Do the work: a `Result`, or an awaitable of one."""
        ...


class Text:
    """One text of a step. What goes wrong with it is told with the field that it stands in."""

    def __init__(self, field: str, text: str) -> None:
        self.field, self.template = field, compile_template(text)

    def render(self, scope: Mapping[str, Any]) -> str:
        """The text with the scope's values."""
        try:
            return self.template.render(scope)
        except TemplateError as error:
            raise StepFailed(f"{self.field}: {error}") from None


class Tree:
    """A value of a step with texts anywhere in it."""

    def __init__(self, field: str, value: Any) -> None:
        self.field, self._compiled = field, compile_tree(value)
        self._constant = None if _has_templates(self._compiled) else self.render({})

    def paths(self) -> Paths:
        return tree_paths(self._compiled)

    def look(self, scope: Mapping[str, Any]) -> Any:
        """As `render`, for whoever does not change it: a value without templates is made once."""
        return self.render(scope) if self._constant is None else self._constant

    def render(self, scope: Mapping[str, Any]) -> Any:
        """The value with the scope's values in its texts."""
        try:
            return render_tree(self._compiled, scope)
        except TemplateError as error:
            place = ".".join(str(part) for part in (self.field, *error.path))
            raise StepFailed(f"{place}: {error}") from None


class Texts:
    """The templates of one step, compiled once."""

    def __init__(self) -> None:
        self._paths: Paths = set()

    def text(self, field: str, text: str) -> Text:
        found = Text(field, text)
        self._paths |= found.template.paths
        return found

    def texts(self, field: str, texts: Mapping[str, str]) -> dict[str, Text]:
        return {name: self.text(f"{field}.{name}", text) for name, text in texts.items()}

    def tree(self, field: str, value: Any) -> Tree:
        found = Tree(field, value)
        self._paths |= found.paths()
        return found

    def paths(self) -> Paths:
        """The places that the templates read."""
        return self._paths


class Plain:
    """A kind whose work is told by its definition alone."""

    transient_only: ClassVar[bool] = False
    is_async = False
    asks_engine = True
    takes_state = False

    def __init__(self) -> None:
        self.texts = Texts()

    def paths(self) -> Paths:
        return self.texts.paths()

    def functions(self) -> Sequence[Callable[..., Any]]:
        return ()

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Any:
        raise AssertionError("other nodes do the work")


def _has_templates(compiled: Any) -> bool:
    if isinstance(compiled, Template):
        return not compiled.is_plain
    inner = compiled.values() if isinstance(compiled, dict) else compiled
    return isinstance(compiled, (dict, list, tuple)) and any(map(_has_templates, inner))


# The kinds that need nothing but the state: set, wait, end.


class SetValues(Plain):
    """`set`: values made of values."""

    asks_engine = False

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._values = self.texts.tree("set", step.set)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        return {"output": self._values.look(scope)}


class WaitAWhile(Plain):
    """`wait`: time passes, also while nobody runs."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        wait = step.wait
        assert wait is not None
        self._seconds = wait.seconds
        self._until = None if wait.until is None else self.texts.text("wait.until", wait.until)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        seconds = self._seconds
        if self._until is not None:
            seconds = max(0.0, _moment(self._until.render(scope)).timestamp() - clock.time())
        assert seconds is not None
        ctx.sleep(seconds, name="wait")
        return {"output": None}


def _moment(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    except ValueError:
        raise StepFailed(
            f"wait.until: {text!r:.80} is no date and time; write it as 2026-01-31T09:00:00+01:00, "
            "or without offset in UTC"
        ) from None


class EndHere(Plain):
    """`end`: the run is over, well or not."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        end = step.end
        assert end is not None
        self._fails = end.status == "failure"
        self._reason = self.texts.text("end.reason", end.reason)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        reason = self._reason.render(scope)
        if self._fails:
            raise EndedInFailure(reason or "the workflow ended in failure")
        return {"output": reason or None, "reason": reason}


# JSON that comes from outside and goes there: only what can be stored and read by others.


def read_json(text: str | bytes) -> Any:
    """The data that a text is; a `ValueError` says why it is none."""
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
