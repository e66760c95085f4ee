"""`workflow` steps: one workflow file as a step of another, its steps kept in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ExecutionError
from holdfast.values import RunStatus
from holdfast.workflows.reading.problems import WorkflowInvalid
from tests.workflows.workshop import Workshop

INNER = """
    workflow:
      name: inner
      inputs: {word: {required: true}, times: {type: integer, default: 2}}
    steps:
      - {name: one, python: "steps.py:say", with: {word: "{{ inputs.word }}-one"}}
      - {name: two, python: "steps.py:say", with: {word: "{{ inputs.word }}-two"}}
    output: {said: "{{ steps.two.output }}", times: "{{ inputs.times }}", visits: "{{ visits.one }}"}
    """
OUTER = """
    steps:
      - {name: one, python: "steps.py:say", with: {word: outer}}
      - {name: x, workflow: inner.yaml, with: {word: "{{ steps.one.output }}!"}}
      - {name: after, set: {said: "{{ steps.x.output.said }}"}}
    """


@pytest.fixture(autouse=True)
def inner(shop: Workshop) -> Path:
    return shop.write(INNER, "inner.yaml")


def test_a_workflow_is_given_inputs_and_gives_its_output(shop: Workshop) -> None:
    outcome = shop.run(OUTER)

    assert outcome.state["x"] == {
        "status": "completed",
        "output": {"said": "outer!-two", "times": 2, "visits": 1},
        "visits": 1,
        "done": [2, 0],
    }
    assert outcome.state["after"]["output"] == {"said": "outer!-two"}
    assert shop.calls() == ["outer", "outer!-one", "outer!-two"]


def test_without_an_output_it_is_that_of_the_last_step(shop: Workshop, inner: Path) -> None:
    inner.write_text(inner.read_text().rpartition("output:")[0])

    assert shop.step("steps: [{name: x, workflow: inner.yaml, with: {word: a}}]")["output"] == "a-two"


def test_steps_and_files_are_looked_for_beside_the_other_file(shop: Workshop) -> None:
    shop.write("def f():\n    return 'deep'\n", "sub/own.py")
    shop.write(
        "workflow: {name: deep}\nsteps: [{name: a, python: 'own.py:f'}, {name: b, shell: pwd}]",
        "sub/deep.yaml",
    )

    assert shop.step("steps: [{name: x, workflow: sub/deep.yaml}]")["output"] == str(shop.folder / "sub")


def test_the_same_workflow_twice(shop: Workshop) -> None:
    outcome = shop.run(
        """
        steps:
          - {name: x, workflow: inner.yaml, with: {word: x}}
          - {name: y, workflow: {file: inner.yaml}, with: {word: y}}
        """
    )

    assert [outcome.state[name]["output"]["said"] for name in "xy"] == ["x-two", "y-two"]


def test_it_is_skipped_as_a_whole(shop: Workshop) -> None:
    outcome = shop.run(
        OUTER.replace("workflow: inner", "when: 'false', workflow: inner").replace(
            "steps.x.output.said", "steps.x.status"
        )
    )

    assert outcome.state["after"]["output"] == {"said": "skipped"} and shop.calls() == ["outer"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{}", "input 'word' is missing; give it with `with`"),
        ("{word: a, wrod: b}", "there is no input 'wrod'; did you mean 'word'?"),
        (
            "{word: a, times: '{{ steps.a.output.n }}'}",
            "input 'times' must be of type integer, not text 'many'",
        ),
        ("{word: '{{ steps.a.output.m }}'}", "with.word: in 'steps.a.output.m'"),
    ],
)
def test_inputs_that_do_not_fit(shop: Workshop, given: str, words: str) -> None:
    told = shop.error(
        f"steps: [{{name: a, set: {{n: many}}}}, {{name: x, workflow: inner.yaml, with: {given}}}]"
    )

    assert "'x'" in told and words in told and "--input" not in told


def test_a_workflow_for_each_item(shop: Workshop) -> None:
    text = """
        steps:
          - name: x
            for_each: {in: [a, b, c], as: letter, mode: sequential}
            workflow: inner.yaml
            with: {word: "{{ letter }}", times: "{{ index }}"}
          - {name: after, set: {outputs: "{{ steps.x.outputs }}"}}
        """
    outcome = shop.run(text)

    found = outcome.state["after"]["output"]["outputs"]
    assert [(item["said"], item["times"]) for item in found] == [("a-two", 0), ("b-two", 1), ("c-two", 2)]
    assert shop.calls() == ["a-one", "a-two", "b-one", "b-two", "c-one", "c-two"]


def test_a_loop_that_comes_back_begins_afresh(shop: Workshop) -> None:
    outcome = shop.run(
        """
        steps:
          - name: x
            workflow: inner.yaml
            with: {word: "w{{ visits.x }}"}
            routes: [{to: x, when: "visits.x < 3"}, {to: $end}]
        """
    )

    assert outcome.state["x"]["visits"] == 3 and outcome.state["x"]["output"]["visits"] == 1
    assert shop.calls() == [f"w{n}-{step}" for n in range(3) for step in ("one", "two")]


def test_workflows_in_workflows(shop: Workshop) -> None:
    shop.write(
        """
        workflow: {name: middle, inputs: {word: {}}}
        steps:
          - {name: x, for_each: {in: [1, 2]}, workflow: inner.yaml, with: {word: "{{ inputs.word }}{{ item }}"}}
        output: "{{ steps.x.outputs | map(attribute='said') | list }}"
        """,
        "middle.yaml",
    )

    found = shop.step("steps: [{name: x, workflow: middle.yaml, with: {word: m}}]")

    assert found["output"] == ["m1-two", "m2-two"]


# Failures.


def broken(inner: Path, how: str = "fail_until") -> None:
    text = inner.read_text().replace(
        '"steps.py:say", with: {word: "{{ inputs.word }}-two"}',
        f'"steps.py:{how}", with: {{word: "{{{{ inputs.word }}}}-two", fixed: "fixed-{{{{ inputs.word }}}}"}}',
    )
    assert how in text
    inner.write_text(text)


def test_a_failure_inside_fails_the_run_and_a_resume_goes_on_there(shop: Workshop, inner: Path) -> None:
    broken(inner)
    assert "'x/two' failed: ValueError: outer!-two is broken" in shop.error(OUTER)

    shop.fix("fixed-outer!")
    outcome = shop.resume()

    assert outcome.state["x"]["output"]["said"] == "outer!-two works"
    assert shop.calls() == ["outer", "outer!-one", "outer!-two", "outer!-two"]


def test_a_crash_inside_repeats_only_the_step_that_was_under_way(shop: Workshop, inner: Path) -> None:
    broken(inner, "die_until")
    shop.load(OUTER)
    assert shop.drive() == 9

    assert shop.resume().state["x"]["output"]["said"] == "outer!-two lives"
    assert shop.calls() == ["outer", "outer!-one", "outer!-two", "outer!-two"]


EACH = """
    steps:
      - name: x
        for_each: {in: [a, b, c], on_error: %s}
        workflow: inner.yaml
        with: {word: "{{ item }}"}
      - {name: after, set: {ok: "{{ steps.x.outputs | map(attribute='said') | list }}", bad: "{{ steps.x.errors }}"}}
    """


def test_a_crash_in_workflows_for_each_item(shop: Workshop, inner: Path) -> None:
    broken(inner, "die_until")
    shop.fix("fixed-a")
    shop.fix("fixed-b")
    shop.load(EACH % "fail_fast")
    assert shop.drive() == 9

    assert shop.resume().state["after"]["output"]["ok"] == ["a-two lives", "b-two lives", "c-two lives"]
    calls = shop.calls()
    assert all(calls.count(f"{letter}-one") == 1 for letter in "abc") and calls.count("c-two") == 2


def test_items_whose_workflow_fails_can_be_passed_over(shop: Workshop, inner: Path) -> None:
    broken(inner)
    shop.fix("fixed-a")
    outcome = shop.run(EACH % "continue")

    assert outcome.state["after"]["output"] == {
        "ok": ["a-two works"],
        "bad": {
            n: f"step 'two': ValueError: {letter}-two is broken" for n, letter in (("1", "b"), ("2", "c"))
        },
    }
    assert outcome.state["x"]["status"] == "completed"


def test_all_or_nothing_goes_on_where_each_workflow_failed(shop: Workshop, inner: Path) -> None:
    broken(inner)
    shop.fix("fixed-a")
    shop.error(EACH % "all_or_nothing")
    shop.fix("fixed-b")
    shop.fix("fixed-c")

    assert len(shop.resume().state["after"]["output"]["ok"]) == 3
    assert all(shop.calls().count(f"{letter}-one") == 1 for letter in "abc")


def test_a_workflow_that_fails_can_be_passed_over(shop: Workshop, inner: Path) -> None:
    broken(inner)
    text = OUTER.replace("workflow: inner", "on_error: continue, workflow: inner").replace(
        "steps.x.output.said", "steps.x.error"
    )
    outcome = shop.run(text)

    assert outcome.state["x"]["status"] == "failed"
    assert outcome.state["after"]["output"] == {"said": "step 'two': ValueError: outer!-two is broken"}


def test_inputs_that_do_not_fit_can_be_passed_over(shop: Workshop) -> None:
    outcome = shop.run("steps: [{name: x, workflow: inner.yaml, on_error: continue}, {name: y, set: {}}]")

    assert outcome.state["x"]["status"] == "failed" and "'word' is missing" in outcome.state["x"]["error"]
    assert outcome.state["y"]["status"] == "completed" and shop.calls() == []


DEEP = {
    "plain": "- {name: bad, shell: exit 1}",
    "each": "- {name: bad, for_each: {in: [0, 1, 2]}, shell: {run: 'exit $I', env: {I: '{{ item }}'}}}",
    "all": "- {name: bad, for_each: {in: [0, 1, 2], on_error: all_or_nothing}, "
    "shell: {run: 'exit $I', env: {I: '{{ item }}'}}}",
    "items": "- {name: bad, for_each: {in: [1], key: index.x}, shell: 'exit 0'}",
    "group": "- {name: bad, parallel: [{name: a, shell: exit 1}, {name: b, shell: exit 0}]}",
    "nested": "- {name: bad, workflow: worse.yaml}",
    "nested_each": "- {name: bad, for_each: {in: [1, 2]}, workflow: worse.yaml}",
    "nested_group": "- {name: bad, parallel: [{name: a, workflow: worse.yaml}, {name: b, shell: exit 0}]}",
    "end": "- {name: bad, end: failure}",
    "waiting": "- {name: bad, shell: exit 1}\n      - {name: other, shell: exit 0}\n"
    "      - {name: joined, after: [bad, other], python: 'steps.py:say', with: {word: never}}",
}


@pytest.mark.parametrize("how", DEEP)
def test_whatever_fails_inside_ends_the_inner_workflow_and_not_the_run(shop: Workshop, how: str) -> None:
    shop.write(
        "workflow: {name: worse}\nsteps: [{name: w, shell: exit 1}, {name: never, set: {}}]", "worse.yaml"
    )
    follows = (
        "" if how in ("end", "waiting") else "- {name: never, python: 'steps.py:say', with: {word: never}}"
    )
    shop.write(
        f"""
    workflow: {{name: inner}}
    steps:
      {DEEP[how]}
      {follows}
    output: never
    """,
        "inner.yaml",
    )
    outcome = shop.run(
        """
        steps:
          - {name: x, workflow: inner.yaml, on_error: continue}
          - {name: after, python: "steps.py:say", with: {word: after}}
        """
    )

    assert outcome.status == RunStatus.COMPLETED
    assert outcome.state["x"]["status"] == "failed" and "step 'bad'" in outcome.state["x"]["error"]
    assert "output" not in outcome.state["x"]
    assert shop.calls() == ["after"]


# Gates and questions inside.


def test_pauses_that_an_inner_workflow_wants(shop: Workshop, inner: Path) -> None:
    inner.write_text(inner.read_text().replace("{name: two", "{name: two, interrupt: before"))
    paused = shop.run(OUTER)

    assert paused.status == RunStatus.PAUSED and shop.calls() == ["outer", "outer!-one"]
    assert shop.resume().status == RunStatus.COMPLETED


def test_pauses_at_inner_steps_by_name(shop: Workshop) -> None:
    paused = shop.run(OUTER, interrupt_before=["x/two"], interrupt_after=["x"])

    assert paused.status == RunStatus.PAUSED and shop.calls() == ["outer", "outer!-one"]
    app = shop.open(interrupt_before=["x/two"], interrupt_after=["x"])
    assert app.resume("r").status == RunStatus.PAUSED
    assert shop.calls() == ["outer", "outer!-one", "outer!-two"]
    assert app.resume("r").status == RunStatus.COMPLETED


def test_questions_inside(shop: Workshop) -> None:
    shop.write(
        "workflow: {name: i}\nsteps: [{name: q, ask: 'Which?'}]\noutput: '{{ steps.q.answer }}'", "inner.yaml"
    )
    shop.run("steps: [{name: x, workflow: inner.yaml}]")

    assert shop.resume(answer="this").state["x"]["output"] == "this"


# Files that cannot be used.


def test_a_workflow_that_contains_itself(shop: Workshop) -> None:
    shop.write("workflow: {name: b}\nsteps: [{name: y, workflow: flow.yaml}]", "b.yaml")

    with pytest.raises(WorkflowInvalid, match=r"step 'x/y': flow.yaml contains itself"):
        shop.open("steps: [{name: x, workflow: b.yaml}]")


def test_workflows_that_are_nested_too_deeply(shop: Workshop) -> None:
    for depth in range(12):
        shop.write(
            f"workflow: {{name: d}}\nsteps: [{{name: s, workflow: d{depth + 1}.yaml}}]", f"d{depth}.yaml"
        )
    shop.write("workflow: {name: d}\nsteps: [{name: s, set: {}}]", "d12.yaml")

    with pytest.raises(WorkflowInvalid, match="nested more than 10 deep"):
        shop.open("steps: [{name: x, workflow: d0.yaml}]")


def test_an_inner_file_that_is_broken_tells_its_own_place(shop: Workshop) -> None:
    shop.write("workflow: {name: b}\nsteps: [{name: y, shel: a}]", "inner.yaml")

    with pytest.raises(WorkflowInvalid, match=r"inner.yaml:2:\d+: .*shel"):
        shop.open("steps: [{name: x, workflow: inner.yaml}]")


def test_a_function_of_an_inner_file_that_cannot_be_used(shop: Workshop) -> None:
    shop.write("workflow: {name: b}\nsteps: [{name: y, python: 'steps.py:nothing'}]", "inner.yaml")

    with pytest.raises(WorkflowInvalid, match=r"step 'x/y': steps.py has no function 'nothing'"):
        shop.open("steps: [{name: x, workflow: inner.yaml}]")


# Inner files that change.


def test_an_inner_step_that_changed(shop: Workshop, inner: Path) -> None:
    broken(inner)
    shop.error(OUTER)
    shop.fix("fixed-outer!")
    inner.write_text(inner.read_text().replace("output: {said:", "output: {new: 1, said:"))

    assert shop.resume().state["x"]["output"]["new"] == 1


def test_an_inner_step_that_is_next_and_was_removed(shop: Workshop, inner: Path) -> None:
    broken(inner)
    shop.error(OUTER)
    text = [line for line in inner.read_text().splitlines() if "name: two" not in line]
    inner.write_text("\n".join(text).replace("steps.two", "steps.one"))

    with pytest.raises(Exception, match="'x/two'"):
        shop.resume()


def kinds(outcome: Any) -> Any:
    return outcome.state.to_dict()


def test_the_run_fails_when_an_inner_run_ends_in_failure(shop: Workshop) -> None:
    shop.write(
        "workflow: {name: b}\nsteps: [{name: y, end: {status: failure, reason: no luck}}]", "inner.yaml"
    )

    with pytest.raises(ExecutionError, match="no luck"):
        shop.run("steps: [{name: x, workflow: inner.yaml}]")
