"""From data to a definition: good files are read, bad ones are reported completely, and nothing else happens."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.workflows.model import KINDS, Definition, json_schema
from holdfast.workflows.reading.source import WorkflowInvalid, read_source
from holdfast.workflows.reading.validation import parse

GOOD = {path.stem: path for path in sorted((Path(__file__).parents[1] / "good").glob("*.yaml"))}
TEXTS = {name: path.read_text("utf-8") for name, path in GOOD.items()}
DATA = {name: read_source(path, env={}).data for name, path in GOOD.items()}


def read(text: str, base: Path | None = None) -> Definition:
    return parse(read_source(Path("flow.yaml"), env={}, text=text, base=base))


def steps(text: str) -> Definition:
    return read("workflow: {name: x}\nsteps:\n" + text)


def refused(text: str) -> WorkflowInvalid:
    with pytest.raises(WorkflowInvalid) as caught:
        read(text)
    return caught.value


def messages(text: str) -> list[str]:
    return [problem.message for problem in refused("workflow: {name: x}\nsteps:\n" + text).problems]


def test_a_good_file_is_read() -> None:
    definition = read(TEXTS["research"])

    assert definition.workflow.name == "research"
    assert [step.kind for step in definition.steps] == ["http", "ask", "agent", "shell", "parallel", "end"]
    assert definition.workflow.limits.timeout == 5400
    assert definition.steps[3].shell.run == 'echo {{ chapter.title }} "${HOME}"'  # type: ignore[union-attr]
    choices = definition.steps[1].ask.choices  # type: ignore[union-attr]
    assert [choice.value for choice in choices or ()] == ["yes", "no"]


def test_a_good_file_with_after_is_read() -> None:
    definition = read(TEXTS["release"])

    assert definition.workflow.name == "release of nothing"
    assert definition.workflow.checkpoint.path == ".runs/${workflow.name}"
    assert definition.steps[0].shell.run == 'make && echo "${HOME:-none}" $(date)'


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_written_in_its_shortest_form(kind: str, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("workflow: {name: other}\nsteps: [{name: a, set: {}}]\n")
    shortest = {
        "python": "json:dumps",
        "shell": "ls",
        "http": "https://example.org",
        "agent": {"model": "openai:x", "prompt": "p"},
        "ask": "Go on?",
        "set": {},
        "wait": 0,
        "workflow": "other.yaml",
        "parallel": [{"name": "b", "set": {}}],
        "while_loop": {"condition": "false", "steps": [{"name": "b", "set": {}}]},
        "file": {"read": "x"},
        "json_state": {"read": "x"},
        "sql": {"url": "sqlite:///x.db", "query": "SELECT 1"},
        "checkpoint": {"save": "x.pkl"},
        "end": "success",
    }
    data = {"workflow": {"name": "x"}, "steps": [{"name": "a", kind: shortest[kind]}]}

    assert read(json.dumps(data), base=tmp_path).steps[0].kind == kind


def test_all_problems_come_at_once_whatever_their_sort() -> None:
    error = refused(
        "workflow:\n"
        "  nam: x\n"
        "  entry: serach\n"
        "steps:\n"
        "  - name: search\n"
        "    http: {urll: x}\n"
        "    routes: [{to: nowhere, when: 'output.x >'}]\n"
        "  - name: bad name\n"
        "    set: {x: '{{ inputs.y }}'}\n"
        "  - name: none\n"
        "  - name: last\n"
        "    set: {x: '{{ steps.serch.output }}'}\n"
        "    timeout: soon\n"
    )

    assert [problem.position.line for problem in error.problems] == [1, 2, 3, 6, 6, 7, 7, 8, 10, 12, 13]


def test_a_step_with_a_bad_name_is_not_missed_where_it_is_named() -> None:
    assert messages("  - {name: a b, set: {}}\n  - {name: c, set: {x: \"{{ steps['a b'].output }}\"}}\n") == [
        "name of step 'a b': 'a b' cannot be a name"
    ]


def test_a_union_is_told_by_the_shape_of_what_was_given() -> None:
    assert messages("  - {name: a, shell: {rn: ls}}\n") == [
        "shell of step 'a' has no 'run'",
        "unknown field 'rn' in shell of step 'a'",
    ]
    assert messages("  - {name: a, wait: never}\n")[0].endswith("got text 'never'")
    assert (
        messages("  - {name: a, set: {}, after: [b, {stp: c}]}\n")[-1]
        == "unknown field 'stp' in after[1] of step 'a'"
    )
    assert messages("  - {name: a, parallel: text}\n") == [
        "parallel of step 'a': expected a list of steps or fields (steps, on_error), got text 'text'"
    ]


def test_the_names_of_models_are_not_names_of_fields() -> None:
    assert "unknown field 'with_' in step 'a'" in messages("  - {name: a, python: 'm:f', with_: {}}\n")


def test_a_problem_in_an_expression_is_at_its_column() -> None:
    error = refused(
        "workflow: {name: x}\nsteps:\n  - name: a\n    set: {}\n    when: 1 < 2 and inputs.topic == 'x'\n"
    )

    assert error.problems[0].position[1:] == (5, 21)
    assert "^" * len("inputs.topic") in str(error)


def test_a_circle_with_a_way_out_is_fine() -> None:
    steps(
        "  - {name: a, set: {n: 1}}\n  - {name: b, set: {}, routes: [{to: a, when: visits.a < 3}, {to: $end}]}\n"
    )
    steps("  - {name: a, set: {n: 1}}\n  - {name: b, set: {}, routes: [{to: a, when: visits.a < 3}]}\n")


def test_a_step_before_the_entry_is_reached_by_a_route_only() -> None:
    text = "workflow: {name: x, entry: b}\nsteps: [{name: a, end: success}, {name: b, set: {}, routes: [{to: a}]}]\n"
    assert read(text).workflow.entry == "b"
    assert "step 'a' is never reached" in str(refused(text.replace(", routes: [{to: a}]", "")))


def test_with_after_steps_begin_at_once_unless_a_route_leads_to_them() -> None:
    steps("  - {name: a, set: {}}\n  - {name: b, set: {}}\n  - {name: c, set: {}, after: [a, b]}\n")
    assert messages(
        "  - {name: a, set: {}}\n  - {name: b, set: {}, after: a}\n"
        "  - {name: c, set: {}, routes: [{to: d}]}\n"
        "  - {name: d, set: {}, routes: [{to: e, when: visits.d < 2}]}\n"
        "  - {name: e, set: {}, routes: [{to: e, when: visits.e < 2}, {to: $end}]}\n"
        "  - {name: f, set: {}, routes: [{to: f, when: visits.f < 2}, {to: $end}]}\n"
    ) == ["step 'f' is never reached"]


def test_an_item_is_known_by_its_name_in_its_step_only() -> None:
    loop = "for_each: {in: '{{ inputs }}', as: file, key: file.name}"
    steps(f"  - {{name: a, {loop}, shell: 'cat {{{{ file.name }}}} {{{{ index }}}} {{{{ key }}}}'}}\n")
    assert messages(f"  - {{name: a, {loop}, shell: 'cat {{{{ item.name }}}}'}}\n") == [
        "shell.run of step 'a': 'item' is not known"
    ]
    assert "file" in messages(f"  - {{name: a, {loop}, when: file.name == 1, shell: ls}}\n")[0]


def test_secrets_are_for_what_is_executed(tmp_path: Path) -> None:
    for body in (
        "python: 'm:f', with: {k: '{{ secrets.K }}'}",
        "shell: {run: 'echo {{ secrets.K }}', env: {K: '{{ secrets.K }}'}, stdin: ['{{ secrets.K }}']}",
        "http: {url: 'https://example.org', headers: {K: '{{ secrets.K }}'}, json: ['{{ secrets.K }}']}",
        "agent: {model: 'openai:x', prompt: p, api_key: '{{ secrets.K }}'}",
    ):
        steps(f"  - {{name: a, {body}}}\n")
    for body in (
        "ask: 'x {{ secrets.K }}'",
        "ask: {questions: [{name: q, prompt: '{{ secrets.K }}'}]}",
        "end: {reason: '{{ secrets.K }}'}",
        "checkpoint: {save: '{{ secrets.K }}'}",
        "wait: {until: '{{ secrets.K }}'}",
        "set: {}, when: secrets.K",
        "shell: ls, for_each: {in: '{{ secrets.K }}'}",
        "shell: ls, for_each: {in: [1], key: secrets.K}",
    ):
        assert any(
            "'secrets' cannot be used in" in message for message in messages(f"  - {{name: a, {body}}}\n")
        )


def test_a_url_may_begin_with_a_template() -> None:
    steps("  - {name: a, http: '{{ vars }}/x'}\n  - {name: b, http: 'http{{ vars }}://x'}\n")
    assert "not the address" in messages("  - {name: a, http: 'www.{{ vars }}/x'}\n")[0]


def test_the_schema_of_the_format_is_for_editors() -> None:
    schema = json_schema()

    assert schema["$schema"].endswith("2020-12/schema") and schema["title"]
    assert schema["required"] == ["workflow", "steps"] and schema["additionalProperties"] is False
    assert [option["required"] for option in schema["$defs"]["Step"]["oneOf"]] == [
        [kind] for kind in (*KINDS, "uses")
    ]
    assert json.loads(json.dumps(schema)) == schema
    for part in [schema, *schema["$defs"].values()]:
        assert part["description"]
        for name, field in part["properties"].items():
            assert field.get("description") or "$ref" in field, (part["title"], name)
            assert "null" not in json.dumps(field.get("anyOf", "")) and "title" not in field


# Whatever happens to a good file, a definition or WorkflowInvalid comes out.


def settled(text: str) -> None:
    try:
        definition = read(text)
    except WorkflowInvalid as error:
        assert error.problems
        for problem in error.problems:
            assert problem.hint and problem.position.line >= 1 and problem.position.column >= 1, problem
            assert "__unread__" not in str(problem)
    else:
        assert isinstance(definition, Definition)


LETTERS = st.sampled_from(
    [*list("\t\n :-'\"[]{}&*!|>%@`#,?$~.<=0\x00\ufeffé"), "{{", "}}", "{%", "${X}", "  ", "- ", "<<: "]
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(TEXTS)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), LETTERS), max_size=4),
)
def test_changed_letters_are_read_or_refused(name: str, changes: list[tuple[float, int, str]]) -> None:
    text = TEXTS[name]
    for place, removed, added in changes:
        at = int(place * len(text))
        text = text[:at] + added + text[at + removed :]
    settled(text)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=3))
def test_moved_lines_are_read_or_refused(name: str, moves: list[tuple[float, float]]) -> None:
    lines = TEXTS[name].splitlines()
    for source, target in moves:
        lines.insert(int(target * len(lines)), lines.pop(int(source * (len(lines) - 1))))
    settled("\n".join(lines))


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [
            "",
            "a",
            "search",
            "$end",
            "{{ inputs.x }}",
            "{{",
            "output.x >",
            "30s",
            "a b",
            "x" * 70,
            "{{ steps.write }}",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "set",
                    "shell",
                    "to",
                    "when",
                    "steps",
                    "prompt",
                    "url",
                    "in",
                    "x",
                    "parallel",
                    "step",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(found for key in keys for found in places(value[key], (*path, key)))]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(DATA)), st.data())
def test_changed_values_are_read_or_refused(name: str, draw: st.DataObject) -> None:
    data = copy.deepcopy(DATA[name])
    for _ in range(draw.draw(st.integers(1, 3))):
        *path, last = draw.draw(st.sampled_from(places(data)[1:] or [("workflow",)]))
        inner = data
        for key in path:
            inner = inner[key]
        if draw.draw(st.booleans()):
            inner[last] = draw.draw(JUNK)
        elif isinstance(inner, dict) and draw.draw(st.booleans()):
            inner[str(last) + draw.draw(st.sampled_from(["s", "_", "-", ""]))] = inner.pop(last)
        else:
            del inner[last]
    settled(json.dumps(data))
