"""What hostile values and files cost: every function pays for its work, and checks grow with the file, not its square.

Work is counted: in steps of the evaluator, in names that are compared, in lines of Python. Where it cannot be counted,
the input is so large that quadratic work would take longer than the time that a test has.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import HoldfastError, load_workflow
from holdfast.workflows import WorkflowInvalid
from holdfast.workflows.language import values as plain
from holdfast.workflows.language.compiler import Evaluation
from holdfast.workflows.language.functions import FUNCTIONS
from holdfast.workflows.language.templates import TemplateError, compile_template, compile_tree, render_tree
from holdfast.workflows.language.values import MAX_STEPS, Misuse

pytestmark = pytest.mark.no_cover  # Lines are counted here, and only one at a time can do that.

ONE_HASH = sys.hash_info.modulus


def test_unique_takes_numbers_of_one_hash_for_what_they_are() -> None:
    """100,000 numbers with one hash would take minutes if they met in a set."""
    numbers = [number * ONE_HASH for number in range(100_000)]

    kept = compile_template("{{ x | unique | length }}").render({"x": [*numbers, *numbers]})

    assert kept == "100000"


def test_unique_keeps_the_first_of_equal_values() -> None:
    found = compile_template("{{ x | unique }}").value(
        {"x": [1, 1.0, True, "1", 0, False, None, None, 0.5, 0.5, [1]]}
    )

    assert found == [1, "1", 0, None, 0.5, [1]]


def test_a_missing_key_with_a_default_is_not_put_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    worded: list[Any] = []
    monkeypatch.setattr(plain, "missing_text", lambda *about: worded.append(about) or "there is none")
    scope = {"wide": {f"key{number}": 1 for number in range(1000)}, "many": list(range(2000))}

    rendered = compile_template("{% for n in many %}{{ wide.kye | default('-') }}{% endfor %}").render(scope)

    assert (rendered, worded) == ("-" * 2000, [])
    with pytest.raises(TemplateError, match="there is none"):
        compile_template("{{ wide.kye }}").render(scope)
    assert len(worded) == 1


COSTLY: dict[str, tuple[Any, ...]] = {
    "strip": ("a" * 1_000_000, "".join(map(chr, range(20_000, 50_000))) + "a"),
    "map": ([{"a": {"a": {"a": {"a": 1}}}}] * 250_000, None, "a.a.a.a"),
    "sort": (list(range(900_000)),),
    "unique": ([{"a": {"a": {"a": {"a": 1}}}}] * 250_000, "a.a.a.a"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_call_is_paid_for(name: str) -> None:
    budget = Evaluation({})
    given, named = COSTLY[name], {}
    if name == "map":
        given, named = given[:1], {"attribute": given[2]}

    with contextlib.suppress(Misuse):
        FUNCTIONS[name](budget, *given, **named)

    assert budget.left < MAX_STEPS / 10


def test_a_loop_pays_for_the_names_around_it() -> None:
    names = "".join(f"{{% set v{number} = 1 %}}" for number in range(2000))
    template = compile_template(names + "{% for n in range(100000) %}{% endfor %}")

    with pytest.raises(TemplateError, match="too many steps"):
        template.render({})


def _lines_run(work: Any) -> int:
    """How many lines of the package are run."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if "holdfast" not in frame.f_code.co_filename:
            return None
        count += 1
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def _chain(count: int) -> str:
    return "".join(f"  - {{name: s{number}, set: {{a: 1}}}}\n" for number in range(count))


def _waiting(count: int) -> str:
    """Each step waits for the next, and one thing leads into none of it."""
    lines = [f"  - {{name: s{number}, set: {{a: 1}}, after: s{number + 1}}}\n" for number in range(count - 1)]
    return "".join([*lines, f"  - {{name: s{count - 1}, set: {{a: 1}}}}\n"])


def _choosing(count: int) -> str:
    step = "  - {{name: s{0}, set: {{a: 1}}, routes: [{{to: s{1}, when: 'true'}}, {{to: $end}}]}}\n"
    return "".join(step.format(number, (number + 1) % count) for number in range(count))


def _circles(count: int) -> str:
    return "".join(
        f"  - {{name: s{number}, set: {{a: 1}}, after: s{number ^ 1}}}\n"
        for number in range(count - count % 2)
    )


@pytest.mark.parametrize("steps", [_chain, _waiting, _choosing, _circles])
def test_checking_a_file_takes_work_in_proportion_to_its_steps(steps: Any, tmp_path: Path) -> None:
    def load(count: int) -> None:
        path = tmp_path / f"{count}.yaml"
        path.write_text(f"workflow: {{name: w}}\nsteps:\n{steps(count)}")
        try:
            load_workflow(path).open("memory://")
        except WorkflowInvalid as error:
            assert len(error.problems) <= 500

    load(10)
    few, many = _lines_run(lambda: load(150)), _lines_run(lambda: load(600))

    assert many < 5 * few


def test_a_file_with_very_many_problems_lists_some() -> None:
    from holdfast.workflows.reading.problems import MOST_PROBLEMS, Position, Problem, WorkflowInvalid

    problems = [Problem("wrong", Position("f", number + 1, 1)) for number in range(MOST_PROBLEMS)]

    assert str(WorkflowInvalid(problems)).endswith("and at least 450 more problems")


def test_unused_inputs_are_found_in_one_pass_over_the_text(tmp_path: Path) -> None:
    from holdfast.workflows.description import _used

    assert _used("inputs", "{{ inputs.a-b }} {{ inputs['c d'] }} inputs . e other.f inputs.g-h-i") == {
        *("a", "a-b", "c d", "e", "g", "g-h", "g-h-i", "")
    }
    assert (
        len(_used("inputs", "inputs " * 300_000 + "inputs['" * 300_000 + "inputs." + "a-" * 1_000_000)) < 200
    )


def test_folding_an_outline_takes_work_in_proportion_to_its_groups() -> None:
    from holdfast.views.outlines import folded, steps_of

    def fold(count: int) -> None:
        names = [f"g{number}" for number in range(count)]
        nodes: dict[str, Any] = {node: {} for name in names for node in (name, f"{name}:done", f"m-{name}")}
        routes = [[name, [f"m-{name}", f"{name}:done"]] for name in names]
        outline = {"name": "w", "nodes": nodes, "edges": [], "routes": routes, "joins": [], "exits": names}
        assert len(steps_of(folded(outline, of_file=True))) >= count

    fold(10)
    few, many = _lines_run(lambda: fold(200)), _lines_run(lambda: fold(800))

    assert many < 5 * few


DOUBLING = {
    "twice the value before": "['{{ steps.a%d.output.v }}', '{{ steps.a%d.output.v }}']",
    "all steps before": "'{{ steps }}'",
}


@pytest.mark.parametrize("name", DOUBLING)
def test_steps_that_double_a_value_stop_at_the_limit_of_what_one_step_makes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "MAX_PARTS_MADE", 5_000)
    text = "workflow: {name: w}\nsteps:\n  - {name: a0, set: {v: xxxxxxxxxx}}\n"
    for number in range(1, 16):
        value = DOUBLING[name].replace("%d", str(number - 1))
        text += f"  - {{name: a{number}, set: {{v: {value}}}}}\n"
    (tmp_path / "w.yaml").write_text(text)
    app = load_workflow(tmp_path / "w.yaml").open(store="memory:")

    with pytest.raises(HoldfastError, match="come to more than 5,000 parts"):
        app.invoke({})


def test_values_are_counted_together_and_as_often_as_they_stand_in_a_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "MAX_PARTS_MADE", 100)
    monkeypatch.setattr(plain, "MAX_CHARACTERS_MADE", 1000)
    scope = {"list": list(range(50)), "text": "x" * 500, "bytes": b"x" * 501, "map": {"k": list(range(99))}}

    for fits in (["{{ list }}"] * 2, ["{{ text }}"] * 2, ["{{ map }}"], ["{{ bytes }}"]):
        assert len(render_tree(compile_tree(fits), scope)) == len(fits)
    for too_much in (
        ["{{ list }}"] * 3,
        {"a": ["{{ text }}"], "b": "{{ bytes }}"},
        ["{{ map }}", "{{ [1] }}"],
    ):
        with pytest.raises(TemplateError, match="hand on only what is needed"):
            render_tree(compile_tree(too_much), scope)
