"""What every kind of step has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.flows.templates import Template, compile_template, compile_tree, render_tree

Paths = set[tuple[str, ...]]
Result = dict[str, Any]
"""What a step leaves in the state: its `output`, and whatever else its kind has to tell."""


class Kind(Protocol):
    """One step's work. It is made once, when its workflow is loaded, and run any number of times."""

    transient_only: ClassVar[bool]
    """Whether by default only transient failures are worth another attempt, and then are given one."""

    def paths(self) -> Paths:
        """The places of the scope that the work reads."""
        ...

    def code(self) -> str:
        """What, beside the definition, makes it other work when it changes."""
        ...

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Any:
        """Do the work: a `Result`, or an awaitable of one."""
        ...


class Texts:
    """The templates of one step, compiled once."""

    def __init__(self) -> None:
        self._paths: Paths = set()

    def text(self, text: str) -> Template:
        template = compile_template(text)
        self._paths |= template.paths()
        return template

    def tree(self, value: Any) -> Any:
        compiled = compile_tree(value)
        self._gather(compiled)
        return compiled

    def paths(self) -> Paths:
        """The places that the templates read."""
        return self._paths

    def _gather(self, compiled: Any) -> None:
        if isinstance(compiled, Template):
            self._paths |= compiled.paths()
        elif isinstance(compiled, dict):
            for value in compiled.values():
                self._gather(value)
        elif isinstance(compiled, (list, tuple)):
            for value in compiled:
                self._gather(value)


class Plain:
    """A kind whose work is told by its definition alone."""

    transient_only: ClassVar[bool] = False

    def __init__(self) -> None:
        self.texts = Texts()

    def paths(self) -> Paths:
        return self.texts.paths()

    def code(self) -> str:
        return ""


def rendered(compiled: Any, scope: Mapping[str, Any]) -> Any:
    """A compiled tree of templates with the scope's values."""
    return render_tree(compiled, scope)
