"""Fingerprints: they change with what a node does, and with nothing else."""

from __future__ import annotations

import functools
import textwrap
from typing import Any

import pytest

from holdfast import StateGraph
from holdfast.plan.fingerprint import fingerprint, same_code
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
    assert same_code("py3.11:aa", "py3.12:bb")
    assert not same_code("py3.11:aa", "py3.11:bb")
    assert same_code("data:aa", "data:aa") and not same_code("data:aa", "py3.11:aa")


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
