"""The size and shape of the source, as one table: `python -m tests.figures`.

`--words PATH…` lists the words of those files that the glossary rules out instead.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.words import ROOT, counted, everywhere, uses

SOURCE = ROOT / "src" / "holdfast"

FIRST = {
    "modules": "446",
    "lines": "69,103",
    "characters per code line": "38.2",
    "function length p50/p95/max": "7/23/93",
    "module length p50/p95/max": "137/360/693",
    "imports inside functions": "387",
    "names in holdfast.__all__": "122",
    "short modules with one importer": "64",
    "modules loaded by one step on SQLite": "102",
    "modules between a node's return and the commit": "21",
    "modules on a resume up to the first step": "46",
    "ruled-out words": "",
}
"""The same figures of the first version, counted in the same way."""

AIMS = {
    "modules": "<= 190",
    "lines": "<= 42,000",
    "characters per code line": "not more",
    "function length p50/p95/max": "<= 8/30/80",
    "module length p50/p95/max": "200/500/700",
    "imports inside functions": "<= 60",
    "names in holdfast.__all__": "<= 40",
    "short modules with one importer": "<= 25",
    "modules loaded by one step on SQLite": "<= 45",
    "modules between a node's return and the commit": "<= 10",
    "modules on a resume up to the first step": "<= 18",
    "ruled-out words": "0",
}

SHORT = 120
"""Lines of a module that could as well be part of its only importer."""


@dataclass(frozen=True)
class Module:
    """One source file and its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def modules(source: Path = SOURCE) -> list[Module]:
    """Return all modules of a package, empty `__init__` files left out."""
    found = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        parts = path.relative_to(source.parent).with_suffix("").parts
        if text.strip() or path.name != "__init__.py":
            found.append(Module(".".join(parts).removesuffix(".__init__"), text, ast.parse(text)))
    return found


def lengths_of_functions(found: Sequence[Module]) -> list[int]:
    """Return the number of lines of each function, from its `def` to its end."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def imports_inside_functions(found: Sequence[Module]) -> Counter[str]:
    """Count the import statements inside functions, by module."""
    counts: Counter[str] = Counter()
    for module in found:
        inside = {
            id(inner)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Import | ast.ImportFrom)
        }
        counts[module.name] = len(inside)
    return +counts


def importers(found: Sequence[Module]) -> dict[str, set[str]]:
    """Map each module to the modules that import it, inside functions or not."""
    names = {module.name for module in found}
    result: dict[str, set[str]] = {name: set() for name in names}
    for module in found:
        for imported in _imported(module.tree):
            for name in (imported, imported.rpartition(".")[0]):
                if name in names and name != module.name:
                    result[name].add(module.name)
                    break
    return result


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def short_with_one_importer(found: Sequence[Module]) -> list[str]:
    """Return the modules of fewer than 120 lines that exactly one other module imports."""
    by = importers(found)
    return [module.name for module in found if module.lines < SHORT and len(by[module.name]) == 1]


def characters_per_code_line(found: Sequence[Module]) -> float:
    """Return the mean length of the lines that are neither blank, comment nor docstring, without indentation."""
    lengths = [len(line) for module in found for line in _code(module)]
    return sum(lengths) / len(lengths)


def _code(module: Module) -> Iterator[str]:
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(module.text.splitlines(), 1):
        if number not in skipped and line.strip() and not re.match(r"\s*#", line):
            yield line.strip()


TRACED = """
import sys, tempfile, threading
from holdfast import END, START, ExecutionError, StateGraph
seen, ours = set(), lambda frame: frame.f_globals.get("__name__", "")
def profile(frame, event, arg):
    if event == "call" and ours(frame).startswith("holdfast"): seen.add(ours(frame))
def begin():
    seen.clear(); threading.setprofile_all_threads(profile) if hasattr(threading, "setprofile_all_threads") else None
    threading.setprofile(profile); sys.setprofile(profile)
def end():
    sys.setprofile(None); threading.setprofile(None); return len(seen)
def build(first, second):
    graph = StateGraph(dict, name="w")
    graph.add_node("a", first).add_node("b", second)
    return graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
with tempfile.TemporaryDirectory() as folder:
    app = build(lambda s: {"x": 1}, lambda s: {"y": 1}).compile(store=f"sqlite:///{folder}/runs.db")
    app.invoke({}, run_id="r0")
    loaded = len([name for name in sys.modules if name.split(".")[0] == "holdfast"])
    figures, online = [], False
    def one(s): begin(); return {"x": 1}
    def two(s): figures.append(end()); return {"y": 1}
    build(one, two).compile(store=f"sqlite:///{folder}/runs.db").invoke({}, run_id="r1")
    def fails_once(s):
        if not online: raise OSError("offline")
        figures.append(end()); return {"y": 1}
    again = build(lambda s: {"x": 1}, fails_once).compile(store=f"sqlite:///{folder}/runs.db")
    try: again.invoke({}, run_id="r2")
    except ExecutionError: online = True
    begin(); again.resume("r2")
    print(loaded, *figures)
"""
"""Two steps on SQLite: counts the modules loaded, those that run between the two nodes, the commit among it, and those
that run from `resume` to the first step."""


def traced() -> list[str]:
    """Return what TRACED prints: modules loaded, on the way to a commit, on the way of a resume."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, check=True)
    return done.stdout.split()


def quantiles(values: Sequence[int]) -> str:
    """Return median, 95th percentile and maximum as one text."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]}/{ordered[int(len(ordered) * 0.95)]}/{ordered[-1]}"


def figures() -> dict[str, str]:
    """Return all figures of the source as it is."""
    from holdfast import __all__ as names

    found = modules()
    loaded, to_commit, to_step = traced()
    return {
        "modules": str(len(found)),
        "lines": f"{sum(module.lines for module in found):,}",
        "characters per code line": f"{characters_per_code_line(found):.1f}",
        "function length p50/p95/max": quantiles(lengths_of_functions(found)),
        "module length p50/p95/max": quantiles([module.lines for module in found]),
        "imports inside functions": str(imports_inside_functions(found).total()),
        "names in holdfast.__all__": str(len(names)),
        "short modules with one importer": str(len(short_with_one_importer(found))),
        "modules loaded by one step on SQLite": loaded,
        "modules between a node's return and the commit": to_commit,
        "modules on a resume up to the first step": to_step,
        "ruled-out words": f"{sum(counted(uses(everywhere())).values()):,}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Prints the size and shape of the source, with the aims.")
    parser.add_argument(
        "--words", nargs="+", type=Path, metavar="PATH", help="list ruled-out words in these instead"
    )
    parser.add_argument("--count", action="store_true", help="with --words: only count them, by word")
    chosen = parser.parse_args()
    if chosen.words:
        found = list(uses(chosen.words))
        for word, count in counted(found).items():
            print(f"{count:6} {word}")
        for use in () if chosen.count else found:
            print(f"{use.path}:{use.line}: {use.word}")
        return 1 if found else 0
    print(f"{'':48} {'first version':>14} {'now':>14} {'aim':>12}")
    for name, value in figures().items():
        print(f"{name:48} {FIRST[name]:>14} {value:>14} {AIMS[name]:>12}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
