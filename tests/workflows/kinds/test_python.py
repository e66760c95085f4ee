"""`python` steps: which functions they find, what they hand over, and what they make of results and failures."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ExecutionError
from holdfast.values import RunStatus
from holdfast.workflows.reading.problems import WorkflowInvalid
from tests.graphs import Heard
from tests.workflows.workshop import Workshop


@pytest.fixture(autouse=True)
def tidy_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def call(shop: Workshop, code: str, with_: dict[str, Any] | None = None, around: str = "") -> Any:
    """The output of a step that calls `f` of that code."""
    return shop.step(text(shop, code, with_, around))["output"]


def text(shop: Workshop, code: str, with_: dict[str, Any] | None = None, around: str = "") -> str:
    shop.write(code, "own.py")
    arguments = f"with: {json.dumps(with_)}" if with_ is not None else ""
    return f"""
        workflow:
          name: test
          inputs: {{n: {{type: integer, default: 3}}, list: {{type: array, default: [3, 1, 2]}}}}
          vars: {{unit: km}}
        steps:
          - name: x
            python: own.py:f
            {arguments}
            {around}
        """


def refused(shop: Workshop, code: str, with_: dict[str, Any] | None = None, around: str = "") -> str:
    with pytest.raises(WorkflowInvalid) as caught:
        shop.open(text(shop, code, with_, around))
    return str(caught.value)


# Arguments.


def test_parameters_name_what_they_are_given(shop: Workshop) -> None:
    code = "def f(inputs, vars, workflow, visits, steps, state, ctx, extra=5):\n    return [inputs['n'], vars['unit'], "
    code += "workflow['run_id'], visits['x'], steps['x']['status'], state.run_id, ctx.step, extra]\n"

    assert call(shop, code) == [3, "km", "r", 0, "pending", "r", "x#1", 5]


def test_arguments_are_filled_in_and_keep_their_types(shop: Workshop) -> None:
    code = "def f(n, text, deep, ctx):\n    return [n, text, deep, ctx.node]\n"
    given = {
        "n": "{{ inputs.n }}",
        "text": "{{ inputs.n }} {{ vars.unit }}",
        "deep": {"list": ["{{ inputs.list }}"]},
    }

    assert call(shop, code, given) == [3, "3 km", {"list": [[3, 1, 2]]}, "x"]


def test_positional_only_and_keyword_only_parameters(shop: Workshop) -> None:
    assert call(
        shop, "def f(a, b=2, c=3, /, *, d):\n    return [a, b, c, d]\n", {"a": 1, "c": 5, "d": 4}
    ) == [1, 2, 5, 4]


def test_any_parameters(shop: Workshop) -> None:
    assert call(shop, "def f(*args, **kwargs):\n    return [args, kwargs]\n", {"a": 1, "b": 2}) == [
        (),
        {"a": 1, "b": 2},
    ]


def test_a_function_without_parameters(shop: Workshop) -> None:
    assert call(shop, "def f():\n    return 1\n") == 1


def test_an_async_function_is_awaited_and_may_sleep(shop: Workshop) -> None:
    code = """
        import asyncio
        async def f(ctx):
            await asyncio.sleep(0)
            await ctx.sleep(0.01)
            return await ctx.once("k", later)
        async def later():
            return "later"
        """

    assert call(shop, code) == "later"


def test_an_async_function_that_takes_too_long(shop: Workshop) -> None:
    with pytest.raises(ExecutionError, match="longer than its timeout"):
        call(shop, "import asyncio\nasync def f():\n    await asyncio.sleep(60)\n", around="timeout: 200ms")


def test_a_function_that_takes_too_long(shop: Workshop) -> None:
    with pytest.raises(ExecutionError, match="longer than its timeout"):
        call(shop, "import time\ndef f():\n    time.sleep(3)\n", around="timeout: 200ms")


def test_async_functions_fail_like_others(shop: Workshop) -> None:
    with pytest.raises(ExecutionError, match="ValueError: no"):
        call(shop, "async def f():\n    raise ValueError('no')\n")


@pytest.mark.parametrize(
    ("code", "with_", "words"),
    [
        (
            "def f(a):\n    pass\n",
            None,
            "needs an argument 'a'; give it with `with: {a: …}`, or use one of inputs",
        ),
        ("def f(item):\n    pass\n", None, "needs an argument 'item'"),
        ("def f(secrets):\n    pass\n", None, "needs an argument 'secrets'"),
        ("def f(a, b, /):\n    pass\n", {"a": 1}, "needs an argument 'b'"),
        ("def f(a):\n    pass\n", {"a": 1, "b": 2}, "takes no argument 'b'; it takes a"),
        ("def f():\n    yield 1\n", None, "is a generator, which yields; let it return a list"),
        ("async def f():\n    yield 1\n", None, "is a generator"),
        ("class f:\n    pass\n", None, "is a class; name a function that uses it"),
        ("f = 5\n", None, "is not a function but int"),
        ("def g():\n    pass\ndef _h():\n    pass\n", None, "has no function 'f'; it has g"),
        (
            "import not_there_at_all\n",
            None,
            "own.py:1: ModuleNotFoundError: No module named 'not_there_at_all'",
        ),
        ("\n\ndef broken(:\n", None, "own.py:3: SyntaxError"),
        ("a = 1\nb = a / 0\n", None, "own.py:2: ZeroDivisionError"),
        ("import sys\n\nsys.exit(3)\n", None, "own.py:3: SystemExit"),
    ],
)
def test_a_function_that_cannot_be_used_is_told_with_the_place_in_the_file(
    shop: Workshop, code: str, with_: dict[str, Any] | None, words: str
) -> None:
    told = refused(shop, code, with_)

    assert "flow.yaml:" in told and "step 'x'" in told and words in told
    line = (shop.folder / "flow.yaml").read_text().splitlines().index("    python: own.py:f") + 1
    assert f"flow.yaml:{line}:" in told


def test_a_module_that_is_not_there(shop: Workshop) -> None:
    with pytest.raises(WorkflowInvalid, match=r"there is no module 'nowhere_to_be.found'; install it"):
        shop.open("steps: [{name: x, python: 'nowhere_to_be.found:f'}]")


# Where functions are found.


def test_a_module_of_the_standard_library(shop: Workshop) -> None:
    assert shop.step("steps: [{name: x, python: 'json:dumps', with: {obj: [1]}}]")["output"] == "[1]"


def test_a_package_beside_the_workflow(shop: Workshop) -> None:
    shop.write("", "mypackage_a/__init__.py")
    shop.write("VALUE = 7\n", "mypackage_a/values.py")
    shop.write("from .values import VALUE\ndef f():\n    return VALUE\n", "mypackage_a/work.py")

    assert shop.step("steps: [{name: x, python: 'mypackage_a.work:f'}]")["output"] == 7


def test_files_of_one_name_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shop = Workshop(tmp_path / name)
        shop.write(f"def f():\n    return '{name}'\n", "same.py")
        outcome = shop.run("steps: [{name: a, python: 'same.py:f'}, {name: b, python: 'same:f'}]")
        assert [outcome.state[step]["output"] for step in "ab"] == [name, name]


def test_packages_of_one_name_are_told_apart_or_refused(tmp_path: Path) -> None:
    shops = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shops.append(Workshop(tmp_path / name))
        shops[-1].write("", "mypackage_b/__init__.py")
        shops[-1].write(f"def f():\n    return '{name}'\n", "mypackage_b/work.py")

    assert shops[0].step("steps: [{name: x, python: 'mypackage_b.work:f'}]")["output"] == "one"
    with pytest.raises(
        WorkflowInvalid, match=r"is loaded from .*one.* already, not from .*two.*; rename one"
    ):
        shops[1].open("steps: [{name: x, python: 'mypackage_b.work:f'}]")


def test_a_file_that_is_called_like_a_module_of_the_standard_library_hides_nothing(shop: Workshop) -> None:
    shop.write("raise RuntimeError('the wrong module')\n", "colorsys.py")
    shop.write("import colorsys\ndef f():\n    return colorsys.rgb_to_hls(0, 0, 0)\n", "own.py")
    sys.modules.pop("colorsys", None)

    assert shop.step("steps: [{name: x, python: 'own.py:f'}]")["output"] == (0.0, 0, 0.0)


def test_modules_beside_a_file_can_be_imported_by_it(shop: Workshop) -> None:
    shop.write("VALUE = 5\n", "sub/helper_of_own.py")
    shop.write("from helper_of_own import VALUE\ndef f():\n    return VALUE\n", "sub/own.py")

    assert shop.step("steps: [{name: x, python: 'sub/own.py:f'}]")["output"] == 5


def test_a_file_that_changed_is_loaded_anew(shop: Workshop) -> None:
    shop.write("def f():\n    raise ValueError('broken')\n", "own.py")
    shop.error("steps: [{name: x, python: 'own.py:f'}]")
    shop.write("def f():\n    return 'repaired'\n", "own.py")

    assert shop.resume().state["x"]["output"] == "repaired"


# Results.


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def f():\n    return object()\n", "'x'"),
        ("def f():\n    return {'a': [lambda: 1]}\n", "'x'"),
        ("def f():\n    return (n for n in [1])\n", "own.py:f returned a generator, which cannot be stored"),
        ("def f():\n    a = []\n    a.append(a)\n    return a\n", "contains itself"),
    ],
)
def test_a_result_that_cannot_be_stored(shop: Workshop, code: str, words: str) -> None:
    told = shop.error(text(shop, code))

    assert words in told


def test_a_value_that_was_given_cannot_be_changed(shop: Workshop) -> None:
    told = shop.error(text(shop, "def f(values):\n    values.sort()\n", {"values": "{{ inputs.list }}"}))

    assert "own.py:2" in told and "changed a value that it was given" in told and "list(value)" in told


def test_a_copy_can_be_changed(shop: Workshop) -> None:
    code = "import copy\ndef f(values):\n    values = list(values)\n    values.sort()\n    return values\n"

    assert call(shop, code, {"values": "{{ inputs.list }}"}) == [1, 2, 3]


def test_constant_arguments_are_fresh_each_time(shop: Workshop) -> None:
    shop.write("def f(values):\n    values.append(1)\n    return values\n", "own.py")
    outcome = shop.run(
        """
        steps:
          - name: x
            python: own.py:f
            with: {values: [0]}
            routes: [{to: x, when: "visits.x < 3"}, {to: $end}]
        """
    )

    assert outcome.state["x"] == {"status": "completed", "output": [0, 1], "visits": 3}


def test_failures_are_told_with_their_type(shop: Workshop) -> None:
    told = shop.error(text(shop, "def f():\n    return {}['missing']\n"))

    assert "'x' failed: KeyError: 'missing'" in told


def test_failures_as_data(shop: Workshop) -> None:
    found = shop.step(text(shop, "def f():\n    raise ValueError('no')\n", around="on_error: continue"))

    assert found == {"status": "failed", "error": "ValueError: no", "visits": 1}


def test_connection_errors_are_transient(shop: Workshop) -> None:
    code = """
        tries = []
        def f():
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError("x")
            return len(tries)
        """

    assert call(shop, code, around="retry: {attempts: 3, delay: 1ms, on: transient}") == 3


def test_a_question_asked_by_a_function(shop: Workshop) -> None:
    paused = shop.run(text(shop, "def f(ctx):\n    return ctx.ask('which?', name='which')\n"))

    assert paused.status == RunStatus.PAUSED
    assert shop.resume(answer="this").state["x"]["output"] == "this"


def test_messages_and_logs_of_a_function(shop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    with caplog.at_level(logging.INFO):
        shop.run(
            text(shop, "def f(ctx):\n    ctx.emit('hello')\n    ctx.log.info('n is %d', 3)\n"), observer=heard
        )

    assert [e.data["message"] for e in heard.events if e.type == "node.message"] == ["hello"]
    assert "n is 3" in caplog.text


def test_a_function_that_is_given_secrets_streams_without_them(shop: Workshop) -> None:
    """In whole lines, lest one comes in pieces."""
    shop.env["HOLDFAST_SECRET_TOKEN"] = "abcdefghijkl"
    pieces = ("one\ntwo abcd", "efghijkl three\nfour abc", "defghijkl")
    code = f"def f(ctx, token):\n    for piece in {pieces!r}:\n        ctx.stream(piece)\n"
    heard = Heard()
    shop.run(text(shop, code, {"token": "{{ secrets.TOKEN }}"}), observer=heard)

    streamed = [event.data["text"] for event in heard.of("node.stream")]
    assert streamed == ["one\n", "two *** three\n", "four ***"]
