"""Warnings of what makes a workflow's function come to something else when it runs again: read from its source."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.functions.steps import BoundStep, Keyed, StepFunction
from holdfast.functions.workflows import WorkflowFunction

_USE = "holdfast"

TIMES = f"the time differs whenever the function runs; use {_USE}.now()"
CHANCE = f"it differs whenever the function runs; use {_USE}.random(), or make it a step"
IDS = f"it differs whenever the function runs; use {_USE}.uuid()"
WAITS = "it waits again whenever the function runs; use holdfast.sleep()"
EFFECT = "what it finds or does is not recorded, and happens again whenever the function runs; make it a step"
PROCESS = "it differs from process to process; make it a step, or use what the input tells apart"
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
    "os.listdir": EFFECT,
    "os.scandir": EFFECT,
    "os.walk": EFFECT,
    **{
        f"os.environ.{name}": EFFECT
        for name in ("get", "items", "keys", "values", "copy", "pop", "setdefault")
    },
    "os.getpid": PROCESS,
    "builtins.hash": PROCESS,
    "builtins.id": PROCESS,
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
    "httpx2": EFFECT,
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

    The source is read, and nothing is run. Workflows, and plain functions of the same module, that it calls are looked
    at, too; what they call elsewhere is not. Without a source there is nothing to warn of.
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
    """Reads one function: what it calls, and the order of which sets it goes by."""

    def __init__(self, workflow: str, function: Any) -> None:
        self._workflow, self._function = workflow, function
        self._module = function.__module__
        self._scope = {**getattr(function, "__builtins__", {}), **function.__globals__}
        self._scope.update(inspect.getclosurevars(function).nonlocals)
        self._imported: dict[str, str] = {}
        """What the function imports itself, by the names that it has there."""
        self._aliases: dict[str, ast.expr] = {}
        """Its variables that are another name of something, and nothing else."""
        self._sets: set[str] = set()
        """Its variables that are sets, and nothing else."""
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
            self._learn(each)
            for statement in getattr(each, "body", ()):  # Without the decorators and the defaults.
                self.visit(statement)
        yield from self._found

    def _learn(self, tree: ast.AST) -> None:
        """Learn what the function imports, and which of its variables are sets or other names of something."""
        others: set[str] = set()
        stored: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                others.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stored.append(node.id)
            elif isinstance(node, ast.Import):
                self._imported |= {each.asname or each.name: each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._imported |= {
                    each.asname or each.name: f"{node.module}.{each.name}" for each in node.names
                }
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {target.id for target in targets if isinstance(target, ast.Name)}
                (self._sets if self._is_set(node.value) else others).update(names)
                if isinstance(node.value, (ast.Name, ast.Attribute)):
                    self._aliases |= dict.fromkeys(names, node.value)
        self._sets -= others
        once = {name for name in self._aliases if stored.count(name) == 1 and name not in self._imported}
        self._aliases = {name: self._aliases[name] for name in once}

    def visit_Call(self, node: ast.Call) -> None:
        """Look at what is called, and at sets whose order it goes by."""
        target = self._object(node.func)
        name = target if isinstance(target, str) else _full_name(target) if target is not None else ""
        if name in _ORDERED or isinstance(target, BoundStep) or _is_map(node.func):
            self._look_at_sets(node.args)
        if isinstance(target, (StepFunction, Keyed, BoundStep)):
            pass
        elif isinstance(target, WorkflowFunction):
            self.called.append(target.function)
        elif why := _CALLS.get(name) or next(
            (_MODULES[each] for each in _parents(name) if each in _MODULES), ""
        ):
            self._note(node, f"{ast.unparse(node.func)}(…)", why)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _OF_FILES:
            self._note(node, f"{ast.unparse(node.func)}(…)", EFFECT)
        elif isinstance(target, types.FunctionType) and target.__module__ == self._module:
            self.called.append(target)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Look for the environment of the process."""
        if self._object(node.value) in (os.environ, "os.environ"):
            self._note(node, ast.unparse(node), EFFECT)
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        """Look at what a loop goes over."""
        self._look_at_sets([node.iter])
        if self._object(node.iter) in (os.environ, "os.environ"):
            self._note(node.iter, f"a loop over {ast.unparse(node.iter)}", EFFECT)
        self.generic_visit(node)

    visit_AsyncFor = visit_comprehension = visit_For  # noqa: N815

    def _look_at_sets(self, nodes: Iterable[ast.expr]) -> None:
        for node in nodes:
            if self._is_set(node):
                self._note(node, f"a loop over {ast.unparse(node)}", ORDER)

    def _is_set(self, node: ast.expr) -> bool:
        """Return whether an expression makes a set: its order is not the same in every process."""
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.BinOp(left, ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right):
                return self._is_set(left) or self._is_set(right)
            case ast.Call(ast.Attribute(owner, name)) if name in _SET_METHODS:
                return self._is_set(owner)
            case ast.Call(ast.Name(name)):
                return name in ("set", "frozenset") and self._scope.get(name) in (set, frozenset)
            case ast.Name(name):
                return name in self._sets or isinstance(self._scope.get(name), (set, frozenset))
        return False

    def _note(self, node: Any, what: str, why: str) -> None:
        file = inspect.getsourcefile(self._function) or "?"
        self._found.append(FunctionWarning(self._workflow, what, why, file, self._first + node.lineno - 1))

    def _object(self, node: ast.expr) -> Any:
        """Return what an expression such as `time.time` names, as far as that is known without running anything.

        Of what the function imports itself that is the full name.
        """
        if isinstance(node, ast.Name) and (meant := self._aliases.get(node.id)) is not None:
            others = {name: each for name, each in self._aliases.items() if name != node.id}
            self._aliases, known = others, self._aliases  # What names itself is looked for outside.
            try:
                return self._object(meant)
            finally:
                self._aliases = known
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, self._scope.get(node.id))
        if isinstance(node, ast.Attribute):
            owner = self._object(node.value)
            if isinstance(owner, str) and self._is_imported(node.value):
                return f"{owner}.{node.attr}"
            if owner is os.environ:
                return f"os.environ.{node.attr}"
            if isinstance(owner, (types.ModuleType, type)):
                return getattr(owner, node.attr, None)
        return None

    def _is_imported(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._imported


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


_ORDERED = {f"builtins.{name}" for name in ("list", "tuple", "iter", "enumerate", "map", "zip", "reversed")}
"""What goes over its arguments in their order."""

_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}


_OF_FILES = {"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob"}
"""Methods that only paths have."""


def _is_map(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "map"


def _parents(name: str) -> Iterator[str]:
    """Yield the modules that a name may be in, the innermost first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
