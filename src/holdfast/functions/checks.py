"""Warnings of what makes a workflow's function come to something else when it runs again: read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.functions.steps import BoundStep, Keyed, StepFunction
from holdfast.functions.workflows import WorkflowFunction

_USE = "holdfast.functions"

TIMES = f"the time differs whenever the function runs; use {_USE}.now()"
CHANCE = f"it differs whenever the function runs; use {_USE}.random(), or make it a step"
IDS = f"it differs whenever the function runs; use {_USE}.uuid()"
WAITS = "it waits again whenever the function runs; use holdfast.sleep()"
EFFECT = "what it finds or does is not recorded, and happens again whenever the function runs; make it a step"
ORDER = "the order of a set differs from process to process; use sorted(…)"

_CALLS = {
    "time.time": TIMES,
    "time.time_ns": TIMES,
    "time.monotonic": TIMES,
    "time.perf_counter": TIMES,
    "time.localtime": TIMES,
    "time.gmtime": TIMES,
    "datetime.datetime.now": TIMES,
    "datetime.datetime.utcnow": TIMES,
    "datetime.datetime.today": TIMES,
    "datetime.date.today": TIMES,
    "time.sleep": WAITS,
    "asyncio.sleep": WAITS,
    "uuid.uuid1": IDS,
    "uuid.uuid4": IDS,
    "os.urandom": CHANCE,
    "os.getenv": EFFECT,
    "os.system": EFFECT,
    "builtins.open": EFFECT,
    "builtins.input": "the answer is not recorded; use holdfast.ask()",
}
"""What is warned of, by the name under which Python knows it."""

_MODULES = {
    "random": CHANCE,
    "secrets": CHANCE,
    "numpy.random": CHANCE,
    "requests": EFFECT,
    "httpx": EFFECT,
    "aiohttp": EFFECT,
    "urllib.request": EFFECT,
    "http.client": EFFECT,
    "socket": EFFECT,
    "subprocess": EFFECT,
    "smtplib": EFFECT,
    "sqlite3": EFFECT,
    "psycopg": EFFECT,
    "openai": EFFECT,
    "anthropic": EFFECT,
    "boto3": EFFECT,
}
"""Modules of which every call is warned of."""


@dataclass(frozen=True, slots=True)
class FunctionWarning:
    """Something in a workflow's function that may differ when it runs again, with its place."""

    workflow: str
    what: str
    why: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: workflow {self.workflow!r} has {self.what} outside of a step: {self.why}"


def check_function(workflow: WorkflowFunction[Any, Any]) -> list[FunctionWarning]:
    """Return what in a workflow's function, outside of its steps, may come to something else on a resume.

    The source is read, and nothing is run. Plain functions of the same module that it calls are looked at, too; what
    they call elsewhere is not. Without a source there is nothing to warn of.
    """
    found: dict[tuple[str, int, str], FunctionWarning] = {}
    waiting, seen = [workflow.function], set[Any]()
    while waiting:
        function = waiting.pop(0)
        if function in seen:
            continue
        seen.add(function)
        reader = _Reader(workflow.name, function)
        for warning in reader.read():
            found[warning.file, warning.line, warning.what] = warning
        waiting += reader.called
    return sorted(found.values(), key=lambda warning: (warning.file, warning.line))


class _Reader(ast.NodeVisitor):
    """Reads one function: what it calls, and over which sets it goes."""

    def __init__(self, workflow: str, function: Any) -> None:
        self._workflow, self._function = workflow, function
        self._module = function.__module__
        self._scope = {**getattr(function, "__builtins__", {}), **function.__globals__}
        self._scope.update(inspect.getclosurevars(function).nonlocals)
        self._found: list[FunctionWarning] = []
        self.called: list[Any] = []

    def read(self) -> Iterator[FunctionWarning]:
        """Yield what is found."""
        try:
            lines, self._first = inspect.getsourcelines(self._function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            return
        for each in tree.body:
            for statement in getattr(each, "body", ()):  # Without the decorators and the defaults.
                self.visit(statement)
        yield from self._found

    def visit_Call(self, node: ast.Call) -> None:
        """Look at what is called."""
        target = self._object(node.func)
        if isinstance(target, (StepFunction, WorkflowFunction, Keyed, BoundStep)):
            self.generic_visit(node)
            return
        name = _full_name(target) if target is not None else ""
        if why := _CALLS.get(name) or next(
            (_MODULES[each] for each in _parents(name) if each in _MODULES), ""
        ):
            self._note(node, f"{ast.unparse(node.func)}(…)", why)
        elif isinstance(target, types.FunctionType) and target.__module__ == self._module:
            self.called.append(target)
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        """Look at what a loop goes over."""
        if _is_set(node.iter, self._scope):
            self._note(node.iter, f"a loop over {ast.unparse(node.iter)}", ORDER)
        self.generic_visit(node)

    visit_AsyncFor = visit_comprehension = visit_For  # noqa: N815

    def _note(self, node: Any, what: str, why: str) -> None:
        file = inspect.getsourcefile(self._function) or "?"
        self._found.append(FunctionWarning(self._workflow, what, why, file, self._first + node.lineno - 1))

    def _object(self, node: ast.expr) -> Any:
        """Return what an expression such as `time.time` names, as far as that is known without running anything."""
        if isinstance(node, ast.Name):
            return self._scope.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._object(node.value)
            if isinstance(owner, (types.ModuleType, type)):
                return getattr(owner, node.attr, None)
        return None


def _full_name(target: Any) -> str:
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{target.__name__}"
    if isinstance(owner, types.ModuleType):
        return f"{_PLAIN.get(owner.__name__, owner.__name__)}.{target.__name__}"
    module = getattr(target, "__module__", None)
    if module is None and owner is not None:
        module = type(owner).__module__
    name = getattr(target, "__qualname__", getattr(target, "__name__", ""))
    return f"{_PLAIN.get(module or '', module or '')}.{name}"


_PLAIN = {
    "posix": "os",
    "nt": "os",
    "_io": "builtins",
    "io": "builtins",
    "asyncio.tasks": "asyncio",
    "_random": "random",
}
"""The modules that people know for those that Python has functions in."""


def _parents(name: str) -> Iterator[str]:
    """Yield the modules that a name may be in, the innermost first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _is_set(node: ast.expr, scope: dict[str, Any]) -> bool:
    """Return whether an expression makes a set: its order is not the same in every process."""
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset") and scope.get(node.func.id) in (set, frozenset)
    return False
