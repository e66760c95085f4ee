"""Fingerprints: they change with what a node does, and with nothing else."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import StateGraph
from holdfast.graph.fingerprint import fingerprint, same_code
from tests.graphs import Log, chain, says


def made(source: str, **scope: Any) -> Any:
    space: dict[str, Any] = dict(scope)
    exec(textwrap.dedent(source), space)
    return space["f"]


BASE = "def f(state):\n    return {'n': state['n'] + 1}\n"


@pytest.mark.parametrize(
    "same",
    [
        BASE,
        "# a comment\ndef f(state):\n    # another\n    return {'n': state['n'] + 1}\n",
        "\n\n\ndef f(state):\n\n    return {\n        'n': state['n'] + 1\n    }\n",
    ],
)
def test_layout_and_comments_do_not_matter(same: str) -> None:
    assert fingerprint(made(same)) == fingerprint(made(BASE))


@pytest.mark.parametrize(
    "other",
    [
        "def f(state):\n    return {'n': state['n'] + 2}\n",
        "def f(state):\n    return {'m': state['n'] + 1}\n",
        "def f(state):\n    return {'n': state['n'] - 1}\n",
        "def f(state, by=1):\n    return {'n': state['n'] + 1}\n",
        "def f(state):\n    return {'n': len(state) + 1}\n",
    ],
)
def test_a_change_of_code_shows(other: str) -> None:
    assert fingerprint(made(other)) != fingerprint(made(BASE))


def test_defaults_and_closed_over_values_count() -> None:
    assert fingerprint(says("a")) != fingerprint(says("b"))
    assert fingerprint(says("a")) == fingerprint(says("a"))
    assert fingerprint(made("def f(s, by=1): pass")) != fingerprint(made("def f(s, by=2): pass"))
    assert fingerprint(made("def f(s, *, by=1): pass")) != fingerprint(made("def f(s, *, by=2): pass"))


def test_inner_functions_count() -> None:
    source = "def f(s):\n    return sorted(s, key=lambda x: x[{}])\n"

    assert fingerprint(made(source.format(0))) != fingerprint(made(source.format(1)))


def test_methods_callables_partials_and_built_ins_have_one() -> None:
    class Machine:
        def run(self, state: Any) -> int:
            return 1

        def __call__(self, state: Any) -> int:
            return 2

    machine = Machine()
    assert fingerprint(machine.run) == fingerprint(Machine().run)
    assert fingerprint(machine) == fingerprint(Machine()) != fingerprint(machine.run)
    assert fingerprint(functools.partial(says, "a")) == fingerprint(functools.partial(says, "a"))
    assert fingerprint(functools.partial(says, "a")) != fingerprint(functools.partial(says, "b"))
    assert fingerprint(len).startswith("name:") and fingerprint(len) != fingerprint(max)


def test_plain_data_has_one_that_does_not_depend_on_the_python_version() -> None:
    assert fingerprint("v1").startswith("data:") and fingerprint("v1") != fingerprint("v2")
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_code_of_another_python_version_cannot_be_called_different() -> None:
    assert same_code("deep3.11:aa", "deep3.12:bb")
    assert not same_code("deep3.11:aa", "deep3.11:bb")
    assert same_code("data:aa", "data:aa") and not same_code("data:aa", "deep3.11:aa")


def test_a_version_stands_for_the_code() -> None:
    def outline(word: str, version: str | None) -> Any:
        graph = StateGraph(Log).add_node("a", says(word), version=version).set_entry_point("a")
        return graph.build().outline()["nodes"]["a"]["fingerprint"]

    assert outline("x", "1") == outline("y", "1") != outline("x", "2")
    assert outline("x", None) != outline("y", None)


def test_a_sub_graphs_fingerprint_changes_with_its_nodes() -> None:
    def mark(inner: StateGraph) -> Any:
        graph = StateGraph(Log).add_node("sub", inner).set_entry_point("sub")
        return graph.build().outline()["nodes"]["sub"]["fingerprint"]

    assert mark(chain("a")) == mark(chain("a")) != mark(chain("b"))


# Functions of files: their source tells.

Loader = Callable[[str], Any]


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    """Writes a module and gives its function `f`."""
    numbers = itertools.count()

    def loaded(source: str) -> Any:
        file = tmp_path / str(next(numbers)) / "module.py"
        file.parent.mkdir()
        file.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location("module", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.f

    return loaded


WHOLE = """
import functools
PROMPT = "write about {}"
LIMITS = {"words": 100, "tags": {"b", "a", "c"}}
counter = {"runs": 0}

def helper(text):
    return inner(text).strip()

def inner(text):
    return text.upper()

def unused(text):
    return text

def f(state, by=1, *, sep="-"):
    def twice(x):
        return [y for y in (x, x)]
    counter["runs"] += 1
    return {"n": sep.join(twice(helper(PROMPT.format(state["topic"])))), "k": LIMITS["words"], "in": state in {1, 2}}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(state", "# why\n\n\ndef f(state"),
        ("    counter", "    # more\n    counter"),
        ("    def twice", '    """What it does."""\n    def twice'),
        ("        return [y", '        """Inner words."""\n        return [y'),
        ('sep="-"):', 'sep: str = "-") -> dict:'),
        ('{"n": sep', '{\n        "n": sep'),
        ("def unused(text):\n    return text", "def unused(text):\n    return None"),
        ('counter = {"runs": 0}', 'counter = {"runs": 7}'),
        ('{"b", "a", "c"}', '{"c", "b", "a"}'),
        ("import functools", "import functools\nimport json"),
    ],
)
def test_what_does_not_change_what_a_function_does_does_not_show(load: Loader, old: str, new: str) -> None:
    """S0.15: comments, layout, docstrings, annotations, places, and whatever it does not use."""
    assert old in WHOLE
    one, other = load(WHOLE), load(WHOLE.replace(old, new))

    assert fingerprint(one).startswith("deep:")
    assert same_code(fingerprint(one), fingerprint(other))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("by=1", "by=2"),
        ('sep="-"', 'sep="+"'),
        ("(x, x)", "(x, x, x)"),
        ("return text.upper()", "return text.lower()"),
        ("inner(text).strip()", "inner(text)"),
        ("write about", "sing about"),
        ('"words": 100', '"words": 200'),
        ("in {1, 2}", "in {1, 3}"),
        ("def f(", "async def f("),
    ],
)
def test_what_changes_what_a_function_does_shows(load: Loader, old: str, new: str) -> None:
    """S0.15: defaults, inner functions, helpers of its module however indirectly, constants."""
    assert old in WHOLE

    assert not same_code(fingerprint(load(WHOLE)), fingerprint(load(WHOLE.replace(old, new))))


SHAPES = {
    "a closure": """
        def make(n):
            def f(state):
                return n
            return f
        f = make({'a': [1]})
        """,
    "a deep closure": """
        def make(g):
            return lambda state: g(state)
        f = make(lambda state: [1])
        """,
    "a partial": """
        import functools
        def g(n, state):
            return n
        f = functools.partial(g, [1])
        """,
    "a method": """
        class A:
            def __init__(self):
                self.n = [1]
            def g(self, state):
                return self.n
        f = A().g
        """,
    "a method that calls another": """
        class A:
            def h(self):
                return [1]
            def g(self, state):
                return self.h()
        f = A().g
        """,
    "a callable object": """
        class A:
            def __init__(self):
                self.n = [1]
            def __call__(self, state):
                return self.n
        f = A()
        """,
    "a callable dataclass": """
        import dataclasses
        @dataclasses.dataclass
        class A:
            n: list
            def __call__(self, state):
                return self.n
        f = A([1])
        """,
    "a decorated function": """
        import functools
        def deco(g):
            @functools.wraps(g)
            def w(state):
                return g(state)
            return w
        @deco
        def f(state):
            return [1]
        """,
    "a decorator with options": """
        import functools
        def deco(n):
            def around(g):
                @functools.wraps(g)
                def w(state):
                    return g(state) * n
                return w
            return around
        @deco([1])
        def f(state):
            return 2
        """,
    "one of two lambdas in a line": "g, f = (lambda state: [2]), (lambda state: [1])",
    "a cached function": """
        import functools
        @functools.lru_cache
        def f(state):
            return [1]
        """,
    "a cached helper": """
        import functools
        @functools.lru_cache
        def helper():
            return [1]
        def f(state):
            return helper()
        """,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_all_shapes_are_told_apart(load: Loader, shape: str) -> None:
    source = SHAPES[shape]
    one, same, other = (
        load(source),
        load(f"# moved\n\n{textwrap.dedent(source)}"),
        load(source.replace("[1]", "[3]")),
    )

    assert same_code(fingerprint(one), fingerprint(same))
    assert not same_code(fingerprint(one), fingerprint(other))
    assert " at 0x" not in fingerprint(one)


PACKAGES = {
    "a function of a module": (
        "from pkg import helper\ndef f(state): return helper.go()",
        "def go(): return [1]",
    ),
    "a constant of a module": ("from pkg import helper\ndef f(state): return helper.word", "word = '[1]'"),
    "a module of a module": (
        "import pkg.helper\ndef f(state): return pkg.helper.go()",
        "def go(): return [1]",
    ),
    "an import within": (
        "def f(state):\n    from pkg.helper import go\n    return go()",
        "def go(): return [1]",
    ),
    "a relative import within": (
        "def f(state):\n    from . import helper\n    return helper.go()",
        "def go(): return [1]",
    ),
    "an import within of what imports": (
        "def f(state):\n    import pkg.between",
        "def go(): return [1]",
    ),
    "a module beside the package": ("import beside\ndef f(state): return beside.go()", ""),
    "a class": (
        "from pkg.helper import A\ndef f(state): return A().go()",
        "class A:\n    def go(self): return [1]",
    ),
    "what a class uses": (
        "from pkg.helper import A\ndef f(state): return A().go()",
        "class A:\n    def go(self): return go()\ndef go(): return [1]",
    ),
    "a field's annotation": (
        "from pkg.helper import A\ndef f(state): return A(n=1)",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    n: 'list[[1]]'",
    ),
    "a class attribute": ("from pkg.helper import A\ndef f(state): return A.n", "class A:\n    n = [1]"),
    "an enum": (
        "from pkg.helper import A\ndef f(state): return A.n.value",
        "import enum\nclass A(enum.Enum):\n    n = [1]",
    ),
    "an inherited call": (
        "from pkg.helper import B\nclass A(B): pass\nf = A([1])",
        "class B:\n    def __init__(self, n): self.n = n\n    def __call__(self, state): return self.n",
    ),
    "a base class": (
        "from pkg.helper import B\nclass A(B):\n    def __call__(self, state): return super().go()\nf = A()",
        "class B:\n    def go(self): return [1]",
    ),
    "slots": (
        "class A:\n    __slots__ = ('n',)\n    def go(self, state): return self.n\na = A()\na.n = [1]\nf = a.go",
        "",
    ),
    "a class method": (
        "class A:\n    n = [1]\n    @classmethod\n    def go(cls, state): return cls.n\nf = A.go",
        "",
    ),
    "a property": (
        "class A:\n    @property\n    def n(self): return [1]\n    def go(self, state): return self.n\nf = A().go",
        "",
    ),
    "the class of a global object": (
        "from pkg.helper import a\ndef f(state): return a.go()",
        "class A:\n    def go(self): return [1]\na = A()",
    ),
    "a pydantic model": (
        "from pydantic import BaseModel\nclass A(BaseModel):\n    n: list[int]\n"
        "def make(a): return lambda state: a.n\nf = make(A(n=[1]))",
        "",
    ),
    "a partial": (
        "import functools\ndef g(n): return n\ng1 = functools.partial(g, [1])\ndef f(state): return g1()",
        "",
    ),
    "a foreign decorator": (
        "from foreign import deco\nfrom pkg.helper import go\n@deco\ndef f(state): return go()",
        "def go(): return [1]",
    ),
    "deep data": (f"P = {'(' * 12}[1]{',)' * 12}\ndef f(state): return P", ""),
    "a path": ("from pathlib import Path\nP = Path('[1]')\ndef f(state): return P", ""),
    "a decimal": ("from decimal import Decimal\np = Decimal([1][0])\ndef f(state): return p", ""),
    "bytes": ("P = bytearray([1])\ndef f(state): return P", ""),
    "a deque": ("import collections\nP = collections.deque([1])\ndef f(state): return P", ""),
    "a template": ("import string\nP = string.Template('[1]')\ndef f(state): return P", ""),
}


@pytest.mark.parametrize("case", PACKAGES)
def test_what_a_package_holds_counts_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """S0.15: functions, classes and constants of its own package and folder, in whichever way they are reached."""
    nodes, helper = PACKAGES[case]

    def told(number: str) -> str:
        root = tmp_path / number
        installed = root / "site-packages"
        files = {
            root / "pkg" / "__init__.py": "",
            root / "pkg" / "nodes.py": nodes,
            root / "pkg" / "helper.py": f"# {number}\n{helper}\ndef unused(): return '{number}'\n",
            root / "pkg" / "between.py": "from .helper import go",
            root / "beside.py": "def go(): return [1]",
            installed / "foreign.py": "def deco(g):\n    return lambda state: g(state)",
        }
        if "import within" in case:  # Then all of the module counts.
            files[root / "pkg" / "helper.py"] = f"# {number}\n{helper}\n"
        with monkeypatch.context() as patch:
            for file, text in files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                foreign = installed in file.parents
                file.write_text(text.replace("[1]", "[3]") if number == "other" and not foreign else text)
            for folder in (root, installed):
                patch.syspath_prepend(folder)
            for name in ("pkg", "pkg.nodes", "pkg.helper", "pkg.between", "beside", "foreign"):
                patch.delitem(sys.modules, name, raising=False)
            return fingerprint(importlib.import_module("pkg.nodes").f)

    one, same, other = told("one"), told("same"), told("other")

    assert one.startswith("deep:"), "all versions of Python agree"
    assert same_code(one, same) and not same_code(one, other)


def test_what_refers_to_itself_has_a_fingerprint() -> None:
    data: list[Any] = [1]
    data.append(data)

    assert fingerprint(made("def make(d):\n    return lambda state: d\nf = make(d)", d=data)).startswith(
        "deep3"
    )


def test_another_process_with_another_hash_seed_and_folder_finds_the_same(tmp_path: Path) -> None:
    """Fingerprints are stored: they may not depend on where and when they are made."""
    told = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "module.py").write_text(WHOLE)
        code = (
            "import module; from holdfast.graph.fingerprint import fingerprint; print(fingerprint(module.f))"
        )
        told.add(
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=folder,
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )

    assert len(told) == 1


def test_a_file_that_was_edited_since_it_was_loaded_is_not_believed(load: Loader) -> None:
    source = WHOLE.replace("def f(", "\n\n\n\ndef f(")
    function = load(source)
    Path(function.__code__.co_filename).write_text(source.replace("by=1", "by=1, more=2"))

    edited = fingerprint(function)

    assert edited.startswith("deep3") and not same_code(edited, fingerprint(load(WHOLE)))
