"""`holdfast validate`, `inspect`, `draw`, `schema` and `init`."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, State, StateGraph
from holdfast.checkpoints.store import JournalCheckpointStore
from holdfast.cli.commands.workflow import TEMPLATES
from holdfast.views.outlines import dot, folded, outline_text, steps_of
from tests.cli.in_process import Call, caller
from tests.graphs import chain, says


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    monkeypatch.chdir(tmp_path)
    return caller(capsys)


def written(folder: Path, text: str, name: str = "flow.yaml") -> str:
    (folder / name).write_text(text)
    return name


LOOP = """
workflow: {name: hunt, limits: {max_iterations: 30}}
steps:
  - name: seek
    set: {found: "{{ visits.seek > 1 }}"}
    routes:
      - {to: report, when: "output.found"}
      - {to: seek}
  - name: both
    parallel:
      - {name: left, set: {x: 1}}
      - {name: right, set: {x: 2}}
  - name: each
    for_each: {in: [1, 2]}
    set: {y: "{{ item }}"}
  - name: report
    set: {text: done}
output: "{{ steps.report.output.text }}"
"""

DAG = """
workflow: {name: tree}
steps:
  - {name: root, set: {x: 1}}
  - {name: one, after: root, set: {x: 1}}
  - {name: two, after: root, set: {x: 1}}
  - {name: tip, after: [one, two], set: {x: 1}}
"""

GROUPED = LOOP.replace("{to: report, when", "{to: both, when")


# validate


def test_a_good_file_is_valid(call: Call, tmp_path: Path) -> None:
    told = call("validate", written(tmp_path, DAG))

    assert (told.code, told.out.strip()) == (0, "flow.yaml: valid, 4 steps")


def test_every_problem_of_every_file_is_told(call: Call, tmp_path: Path) -> None:
    one = written(tmp_path, DAG.replace("after: root", "after: rot"), "one.yaml")
    two = written(tmp_path, DAG.replace("set: {x: 1}", "sett: {x: 1}"), "two.yaml")
    good = written(tmp_path, DAG, "good.yaml")

    told = call("validate", one, two, good, "missing.yaml")
    data = call("validate", one, two, good, "missing.yaml", "--json").json

    assert told.code == 2 and "one.yaml:5:" in told.out and "two.yaml:4:" in told.out
    assert "did you mean" in told.out and "good.yaml: valid" in told.out
    assert data["valid"] is False
    assert [bool(file["problems"]) for file in data["files"]] == [True, True, False, True]
    first = data["files"][0]["problems"][0]
    assert first["line"] == 5 and first["file"] == one and first["message"]


def test_functions_that_are_not_there_are_found(call: Call, tmp_path: Path) -> None:
    flow = written(tmp_path, 'workflow: {name: w}\nsteps:\n  - {name: a, python: "acts.py:nobody"}\n')
    (tmp_path / "acts.py").write_text("def somebody(): pass\n")

    told = call("validate", flow)

    assert told.code == 2 and "nobody" in told.out
    (tmp_path / "acts.py").write_text("def nobody(:\n")
    broken = call("validate", flow)
    assert broken.code == 2 and "acts.py" in broken.out


RISKY = """
workflow:
  name: risky
  inputs: {unused: {default: x}}
  vars: {seen: 1, idle: 2}
steps:
  - {name: send, http: {url: "http://127.0.0.1/{{ vars.seen }}", json: {a: 1}}}
  - {name: wait, shell: sleep 1}
  - name: think
    agent: {model: "openai:gpt-x", prompt: hi, api_key: sk-123}
"""


def test_warnings_are_told_and_only_strict_takes_them_for_problems(call: Call, tmp_path: Path) -> None:
    flow = written(tmp_path, RISKY)

    told, strict = call("validate", flow), call("validate", flow, "--strict")

    assert told.code == 0 and strict.code == 2
    for phrase in (
        "inputs.unused is declared and never used",
        "vars.idle is declared and never used",
        "'send' sends a POST",
        "'wait' may run for ever",
        "'think' has its api_key in the file",
        "set limits.budget",
    ):
        assert phrase in told.out, phrase
    assert "vars.seen" not in told.out
    assert len(call("validate", flow, "--json").json["files"][0]["warnings"]) == 6


def test_what_is_used_is_not_called_unused(call: Call, tmp_path: Path) -> None:
    text = (
        "workflow: {name: w, inputs: {a: {}, b-c: {}, d: {}}}\n"
        "steps:\n"
        '  - {name: x, set: {a: "{{ inputs.a }}", b: "{{ inputs[\'b-c\'] }}"}}\n'
        '  - {name: y, set: {all: "{{ inputs }}"}}\n'
    )

    assert call("validate", written(tmp_path, text), "--strict").code == 0


def test_what_other_files_use_is_not_called_unused(call: Call, tmp_path: Path) -> None:
    """R4.4: texts of `!file` and imported steps name inputs and constants of the file."""
    (tmp_path / "prompt.txt").write_text("Hello, {{ inputs.name }} {{ vars.own }}")
    (tmp_path / "common.yaml").write_text(
        'vars: {word: Hi}\nsteps:\n  - {name: greet, set: {text: "{{ vars.lib.word }} {{ inputs.other }}"}}\n'
    )
    text = (
        "workflow:\n"
        "  name: w\n"
        "  inputs: {name: {}, other: {}, idle: {}}\n"
        "  vars: {own: 1}\n"
        "  imports: [{file: common.yaml, as: lib}, {file: common.yaml, as: lonely}]\n"
        "steps:\n"
        "  - {name: x, uses: lib.greet}\n"
        "  - {name: y, set: {text: !file prompt.txt}}\n"
    )

    told = call("validate", written(tmp_path, text), "--json").json["files"][0]

    assert told["problems"] == []
    assert told["warnings"] == ["inputs.idle is declared and never used; use it or remove it"]


# inspect and draw


def test_a_file_is_described_by_waves_and_routes(call: Call, tmp_path: Path) -> None:
    told = call("workflow", "inspect", written(tmp_path, DAG))

    assert told.lines == [
        "tree: 4 steps",
        "layer 1",
        "  root  set  -> one; -> two",
        "layer 2",
        "  one   set  -> tip",
        "  two   set  -> tip",
        "layer 3",
        "  tip   set  after all of one, two; -> end",
    ]


def test_conditions_groups_and_items_are_described(call: Call, tmp_path: Path) -> None:
    flow = written(tmp_path, GROUPED)

    data = {step["name"]: step for step in call("workflow", "inspect", flow, "--json").json["steps"]}
    text = call("workflow", "inspect", flow).out

    assert data["seek"]["next"] == [
        {"to": "both", "when": "output.found", "choice": True},
        {"to": "seek", "when": "otherwise", "choice": True},
    ]
    assert list(data) == ["seek", "both", "each", "report"]
    assert [member["name"] for member in data["both"]["steps"]] == ["left", "right"]
    assert data["both"]["kind"] == "parallel" and data["both"]["steps"][0]["kind"] == "set"
    assert data["each"]["kind"] == "set for each" and data["each"]["layer"] == data["both"]["layer"] + 1
    assert (
        "-> both if output.found; -> seek otherwise" in text and ":item" not in text and ":done" not in text
    )
    assert data["report"]["next"] == [{"to": "$end", "when": "", "choice": False}]


def test_a_run_is_described_from_its_journal_when_file_and_code_are_gone(call: Call, tmp_path: Path) -> None:
    flow = written(tmp_path, GROUPED)
    assert call("run", flow, "--run-id", "r", "--quiet").code == 0
    (tmp_path / flow).unlink()

    told = call("workflow", "inspect", "r")

    assert told.code == 0 and told.lines[0] == "hunt: 4 steps"
    assert "-> both (one of)" in told.out and "output" not in told.out
    assert call("workflow", "draw", "hunt").out.startswith("flowchart TD")
    assert_is_dot(call("workflow", "draw", "r", "--format", "dot").out)


def test_a_python_graph_s_run_and_its_sub_graph(call: Call, tmp_path: Path, sqlite_url: str) -> None:
    graph = StateGraph(dict, name='say "hi"\\')
    graph.add_node("a", lambda state: None)
    graph.add_node("sub", chain("x", "y"))
    graph.add_node('odd "name"', says("z"))
    for one, two in ((START, "a"), ("a", "sub"), ("sub", 'odd "name"'), ('odd "name"', END)):
        graph.add_edge(one, two)
    graph.compile(sqlite_url).invoke({}, run_id="r")

    text = call("workflow", "draw", "r", "--format", "dot", "--store", sqlite_url).out

    assert_is_dot(text)
    assert 'subgraph "cluster_n1"' in text and r'label="odd \"name\""' in text
    assert r'digraph "say \"hi\"\\"' in text
    shown = call("workflow", "inspect", "r", "--store", sqlite_url).out
    assert "sub" in shown and "      layer 1\n        x" in shown


def test_a_state_saved_by_hand_has_no_graph(call: Call, sqlite_url: str) -> None:
    JournalCheckpointStore(sqlite_url).save(State({"x": 1}, run_id="r"))

    assert "has no graph" in call("workflow", "inspect", "r", "--store", sqlite_url).err


def test_a_file_that_is_not_there_is_told(call: Call) -> None:
    told = call("workflow", "inspect", "missing.yaml")

    assert told.code == 2 and "missing.yaml" in told.err


def test_draw_draws_mermaid_unless_told_otherwise(call: Call, tmp_path: Path) -> None:
    flow = written(tmp_path, GROUPED)

    assert '|"output.found"|' in call("workflow", "draw", flow).out


def assert_is_dot(text: str) -> None:
    """Read DOT by its grammar, as far as it is used: every node that an edge names is declared, all is quoted."""
    string = r'"(?:[^"\\\n]|\\.)*"'
    tokens = re.findall(rf"{string}|->|[A-Za-z_]+|[{{}}\[\]=,;]|\S", text)
    assert all(re.fullmatch(rf"{string}|->|[A-Za-z_]+|[{{}}\[\]=,;]", token) for token in tokens), tokens
    assert tokens[0] == "digraph" and tokens.count("{") == tokens.count("}")
    assert tokens.count("[") == tokens.count("]")
    declared = set(re.findall(rf"^\s*({string}) \[", text, flags=re.MULTILINE))
    edges = re.findall(rf"({string}) -> ({string})", text)
    assert edges and {end for edge in edges for end in edge} <= declared


def outline(edges: list[tuple[str, str]], nodes: str = "abcd", **more: Any) -> dict[str, Any]:
    listed = [[source, target, "", False] for source, target in edges]
    empty: dict[str, Any] = {"routes": [], "joins": [], "exits": []}
    return {"name": "g", "nodes": {name: {} for name in nodes}, "edges": listed, **empty, **more}


def test_waves_are_numbered_by_the_longest_way_and_loops_do_no_harm() -> None:
    found = steps_of(outline([(START, "a"), ("a", "b"), ("b", "c"), ("a", "c"), ("c", "a"), ("c", END)]))

    assert [(place.name, place.layer) for place in found] == [("a", 1), ("b", 2), ("c", 3), ("d", 0)]
    assert "not reached by any known route" in outline_text(outline([(START, "a")]), {})


def test_a_graph_of_many_steps_is_no_trouble() -> None:
    names = [f"n{number}" for number in range(3000)]
    edges = [(START, names[0]), *itertools.pairwise(names)]
    big = outline(edges)
    big["nodes"] = {name: {} for name in names}

    assert steps_of(big)[-1].layer == 3000 and dot(big).count("->") == 3001


def test_folding_keeps_true_loops_and_drops_ways_inside_a_step() -> None:
    given = outline(
        [(START, "p"), ("p:item", "p:done"), ("p:done", "q"), ("q", "q"), ("q", "last"), ("last", END)],
        last="last",
    )
    given["nodes"] = {name: {} for name in ("p", "p:item", "p:done", "q", "last")}
    given["routes"] = [["p", ["p:item", "p:done"]]]

    result = folded(given, of_file=True)

    assert list(result["nodes"]) == ["p", "q"] and result["routes"] == []
    assert [edge[:2] for edge in result["edges"]] == [[START, "p"], ["p", "q"], ["q", "q"], ["q", END]]
    assert "last" in folded(given, of_file=False)["nodes"]


# schema


def test_the_schema_is_printed_or_written(call: Call, tmp_path: Path) -> None:
    printed = call("workflow", "schema").json
    told = call("workflow", "schema", "-o", "deep/flow.schema.json")

    assert printed["$schema"].startswith("https://json-schema.org/") and "steps" in printed["properties"]
    assert json.loads((tmp_path / "deep" / "flow.schema.json").read_text()) == printed
    assert "# yaml-language-server: $schema=deep/flow.schema.json" in told.out


# init


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_valid_and_runs(call: Call, tmp_path: Path, template: str) -> None:
    told = call("init", "my first.yaml", "--template", template)
    text = (tmp_path / "my first.yaml").read_text()

    assert told.code == 0 and "name: my-first" in text and text.count("#") >= 3
    assert "holdfast run 'my first.yaml'" in told.out
    assert call("validate", "my first.yaml", "--strict").code == 0
    ran = call("run", "my first.yaml", "--no-interactive", "--json")
    if template == "gate":
        assert ran.code == 4
        ran = call("resume", "my-first", "--answer", "yes", "--no-interactive", "--json")
    assert ran.code == 0, ran.err + ran.out
    assert (
        ran.json["output"]
        == {
            "chain": {"greeting": "HELLO, WORLD!", "length": 13},
            "loop": "128 after 7 times",
            "dag": "9 words on 2 lines",
            "for-each": {"greetings": ["Hello, Ada!", "Hello, Grace!", "Hello, Edsger!"], "failures": {}},
            "gate": {"answer": "yes"},
        }[template]
    )
    assert call("show", "my-first", "--output").json == ran.json["output"]


def test_the_example_of_the_overview_works(call: Call, tmp_path: Path) -> None:
    assert call("init", "hello.yaml").code == 0

    assert call("run", "hello.yaml", "-i", "name=Ada", "--json").json["output"]["greeting"] == "HELLO, ADA!"


def test_a_file_that_is_there_is_kept_unless_forced(call: Call, tmp_path: Path) -> None:
    (tmp_path / "workflow.yaml").write_text("mine")

    refused = call("init")
    assert (
        refused.code == 2 and "--force" in refused.err and (tmp_path / "workflow.yaml").read_text() == "mine"
    )
    assert call("init", "--force").code == 0 and "steps:" in (tmp_path / "workflow.yaml").read_text()


def test_a_path_that_cannot_be_written_is_told(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for words in (["init", "file/flow.yaml"], ["workflow", "schema", "-o", "file/schema.json"]):
        told = call(*words)
        assert told.code == 2 and "choose another path" in told.err


def test_a_flow_run_shows_its_steps_items_and_members(call: Call, tmp_path: Path) -> None:
    """The pictures of a workflow file's run, its helpers folded into its steps."""
    call("run", written(tmp_path, GROUPED), "--run-id", "r", "--quiet")

    data = call("show", "r", "--json").json
    steps = {step["name"]: step for step in data["steps"]}

    assert set(steps) == {"seek", "both", "left", "right", "each", "report"}
    assert {step["status"] for step in steps.values()} == {"completed"}
    assert steps["seek"]["visits"] == steps["seek"]["attempts"] == 3
    assert steps["each"]["items"]["completed"] == 2
    assert call("show", "r", "--step", "each", "--json").json["output"] == [{"y": 1}, {"y": 2}]
    assert call("show", "r", "--step", "both", "--json").json["output"] == {
        "left": {"x": 1},
        "right": {"x": 2},
    }
    assert (
        data["output"] == "done"
        and data["workflow_file"]["path"].endswith("flow.yaml")
        and data["inputs"] == {}
    )


FAILING = """
workflow: {name: soft}
steps:
  - {name: never, when: "1 > 2", set: {x: 1}}
  - {name: bad, shell: exit 3, on_error: continue}
  - name: some
    for_each: {in: [0, 1, 2], on_error: continue}
    shell: {run: 'test "$I" != 1', env: {I: "n{{ index }}"}}
  - {name: last, set: {x: "{{ steps.bad.status }}"}}
"""


def test_skipped_and_failed_steps_of_a_flow_say_why(call: Call, tmp_path: Path) -> None:
    call("run", written(tmp_path, FAILING.replace("!= 1", "!= n1")), "--run-id", "r", "--quiet")

    data = call("show", "r", "--json").json
    steps = {step["name"]: step for step in data["steps"]}

    assert data["status"] == "completed" and data["output"] == {"x": "failed"}
    assert steps["never"]["status"] == "skipped" and "1 > 2" in steps["never"]["note"]
    assert steps["bad"]["status"] == "failed" and "3" in steps["bad"]["error"]["message"]
    assert steps["some"]["items"] == {"total": 3, "completed": 2, "failed": 1, "skipped": 0, "running": 0}
    text = call("show", "r").out
    assert "2/3, 1 failed" in text


NESTED = """
workflow: {name: outer}
steps:
  - {name: sub, workflow: inner.yaml, with: {word: hi}}
  - {name: many, workflow: inner.yaml, for_each: {in: [a, b]}, with: {word: "{{ item }}"}}
"""

INNER = """
workflow: {name: inner, inputs: {word: {}}}
steps:
  - {name: echo, set: {said: "{{ inputs.word }}"}}
output: "{{ steps.echo.output.said }}"
"""


def test_the_steps_of_other_files_are_shown_below_theirs(call: Call, tmp_path: Path) -> None:
    written(tmp_path, INNER, "inner.yaml")
    assert call("run", written(tmp_path, NESTED), "--run-id", "r", "--quiet").code == 0

    data = call("show", "r", "--json").json

    assert [(step["name"], step["status"]) for step in data["steps"]] == [
        ("sub", "completed"), ("sub/echo", "completed"), ("many", "completed"), ("many/echo", "completed"),
    ]  # fmt: skip
    assert call("show", "r", "--step", "sub", "--json").json["output"] == "hi"
    assert call("show", "r", "--step", "sub/echo", "--json").json["output"] == {"said": "hi"}
    assert data["output"] == ["a", "b"]
    assert "sub" in call("workflow", "inspect", "flow.yaml").out


def test_every_wrong_python_target_of_a_file_and_of_its_sub_workflows_is_told(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "steps.py").write_text("def good():\n    return 1\n")
    inner = 'workflow: {name: inner}\nsteps: [{name: deep, python: "steps.py:missing_deep"}]\n'
    written(tmp_path, inner, "inner.yaml")
    text = """
    workflow: {name: outer}
    steps:
      - {name: one, python: "steps.py:missing_one"}
      - {name: two, python: "steps.py:good", with: {n: 1}}
      - {name: group, parallel: [{name: member, python: "no_such_module:f"}, {name: fine, python: "steps.py:good"}]}
      - {name: sub, workflow: inner.yaml}
    """
    shown = call("validate", written(tmp_path, text), "--json")

    problems = shown.json["files"][0]["problems"]
    assert shown.code == 2
    assert [problem["message"].split("'")[1] for problem in problems] == [
        "one",
        "two",
        "member",
        "sub/deep",
    ]
    assert [problem["line"] for problem in problems[:2]] == [4, 5]


@pytest.mark.parametrize("command", ["run", "submit", "validate"])
@pytest.mark.parametrize(
    ("program", "start", "app"),
    [
        ("report.py", "python report.py", "report.py:NAME"),
        ("report.py:report", "python report.py", "report.py:report"),
        ("jobs.report:report", "python -m jobs.report", "jobs.report:report"),
        ("my report.py", "python 'my report.py'", "'my report.py:NAME'"),
    ],
)
def test_a_python_program_is_no_workflow_file_and_the_message_says_what_to_do(
    call: Call, tmp_path: Path, command: str, program: str, start: str, app: str
) -> None:
    written(tmp_path, "report = None\n", program.partition(":")[0])
    if command == "validate" and ":" in program:
        return
    refused = call(command, program)
    told = refused.err
    assert refused.code == 2
    assert f"{program} is a Python program, not a workflow file: start its runs with `{start}`" in told
    assert f"`holdfast resume RUN --app {app}`" in told and f"`holdfast validate {app}`" in told
