"""What a whole workflow file shares: metadata, instructions, the context of agents, the state, imported files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.workflows.foreign import effects_of, source_lines
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.workflow import workflow_of_run
from tests.agents.llm_server import LlmServer, reply
from tests.workflows.workshop import Workshop


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LlmServer]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with LlmServer() as running:
        running.default = reply("hi")
        yield running


def refused(shop: Workshop, text: str) -> list[str]:
    with pytest.raises(WorkflowInvalid) as caught:
        shop.load(text)
    return [
        f"{Path(each.position.file).name}:{each.position.line}: {each.message} ({each.hint})"
        for each in caught.value.problems
    ]


# Metadata.


def test_metadata_is_read_in_templates(shop: Workshop) -> None:
    """R1.1, R2.8: `metadata` is a namespace of templates, with dots and brackets."""
    output = shop.output(
        "  metadata: {owner: {name: Ada}, 'cost-centre': 7}\n"
        "steps: [{name: a, set: {x: \"{{ metadata.owner.name }} {{ metadata['cost-centre'] }}\"}}]\n"
        "output: '{{ steps.a.output.x }}'\n"
    )

    assert output == "Ada 7"


def test_metadata_that_is_not_there_is_refused_with_its_line(shop: Workshop) -> None:
    found = refused(shop, "  metadata: {owner: Ada}\nsteps: [{name: a, set: {x: '{{ metadata.ovner }}'}}]\n")

    assert (
        found[0].startswith("flow.yaml:4: set of step 'a': workflow.metadata has no 'ovner'")
        and "owner" in found[0]
    )


# Instructions and context.


def prompts(server: LlmServer) -> list[tuple[str, str]]:
    """The system text and the prompt of every request."""
    found = []
    for request in server.requests:
        texts = {each["role"]: each["content"] for each in request.body["messages"]}
        found.append((texts.get("system", ""), texts["user"]))
    return found


def agents(server: LlmServer, settings: str, more: str = "") -> str:
    about = f"model: openai:gpt-4o-mini, base_url: '{server.url}', system: Be brief., prompt: Go."
    return (
        f"  inputs: {{topic: {{default: tea}}}}\n  {settings}\nsteps:\n"
        "  - {name: first, set: {fact: 1}}\n  - {name: second, set: {fact: 2}}\n"
        f"  - {{name: ask, agent: {{{about}{more}}}}}\n"
    )


def test_instructions_come_before_the_system_text_of_every_agent(shop: Workshop, server: LlmServer) -> None:
    """R1.1: instructions of the whole workflow, a template."""
    shop.run(agents(server, "instructions: 'You write about {{ inputs.topic }}.'"))

    assert prompts(server) == [("You write about tea.\n\nBe brief.", "Go.")]


INPUTS = 'Inputs:\n{"topic": "tea"}\n\n'
FIRST = "Output of step 'first':\n{\"fact\": 1}\n\n"
SECOND = "Output of step 'second':\n{\"fact\": 2}\n\n"


@pytest.mark.parametrize(
    ("settings", "more", "known"),
    [
        ("context: explicit", "", ""),
        ("description: none", "", ""),
        ("context: accumulate", "", f"{INPUTS}{FIRST}{SECOND}"),
        ("context: {mode: last_only}", "", f"{INPUTS}{SECOND}"),
        ("context: accumulate", ", context: explicit", ""),
        ("context: {mode: accumulate, max_characters: 50}", "", SECOND),
    ],
)  # fmt: skip
def test_an_agent_is_sent_what_its_context_mode_says(
    shop: Workshop, server: LlmServer, settings: str, more: str, known: str
) -> None:
    """R1.8: accumulate, last_only and explicit."""
    shop.run(agents(server, settings, more))

    assert prompts(server) == [("Be brief.", f"{known}Go.")]


# The settings of agents.


RUNTIME = """  runtime:
    model: openai:gpt-4o-mini
    base_url: {url}
    api_key: "{{{{ secrets.MODEL_KEY }}}}"
    temperature: 0.2
    max_tokens: 50
    timeout: 30s
steps:
  - {{name: plain, agent: {{prompt: Go.}}}}
  - name: both
    parallel:
      - {{name: own, agent: {{model: "openai:gpt-4o", temperature: 1, max_tokens: 9, prompt: Go.}}, timeout: 5s}}
  - name: repeated
    while_loop: {{condition: iteration < 1, steps: [{{name: looped, agent: {{max_turns: 2, prompt: Go.}}}}]}}
"""


def test_agents_have_the_settings_of_the_runtime_unless_they_say_otherwise(
    shop: Workshop, server: LlmServer
) -> None:
    """R1.1: `runtime` has the default settings of a file's agents; a step's own win, in groups and loops too."""
    shop.env["MODEL_KEY"] = "key-of-the-model"
    flow = shop.load(RUNTIME.format(url=server.url))
    shop.run(RUNTIME.format(url=server.url))

    bodies = [each.body for each in server.requests]
    sent = [(each["model"], each["temperature"], each["max_completion_tokens"]) for each in bodies]
    assert sent == [("gpt-4o-mini", 0.2, 50), ("gpt-4o", 1, 9), ("gpt-4o-mini", 0.2, 50)]
    assert {each.headers["authorization"] for each in server.requests} == {"Bearer key-of-the-model"}
    plain, both, repeated = flow.definition.steps
    assert [plain.timeout, both.members[0].timeout, repeated.members[0].timeout] == [30, 5, 30]


def test_a_setting_that_moves_to_the_runtime_is_no_change_and_another_one_is(shop: Workshop) -> None:
    own = "steps: [{name: a, agent: {model: 'openai:gpt-4o', prompt: Go.}}]\n"
    shared = "  runtime: {model: 'openai:gpt-4o'}\nsteps: [{name: a, agent: {prompt: Go.}}]\n"
    first, moved, changed = (
        shop.load(text).open("memory://").outline()["nodes"]["a"]
        for text in (own, shared, shared.replace("4o'", "5'"))
    )

    assert first == moved != changed


def test_an_agent_without_any_model_is_refused_with_its_line(shop: Workshop) -> None:
    """R1.1: a model that is named nowhere, and a runtime without one."""
    found = refused(shop, "  runtime: {model: null}\nsteps: [{name: a, agent: {prompt: Go.}}]\n")

    assert found == [
        "flow.yaml:4: agent of step 'a' has no 'model' "
        "(add `model: provider:name` to it, or to workflow.runtime for all agents)"
    ]


# The temporary folder of a run.


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder / f"holdfast-{os.geteuid()}"


TMP = """
steps:
  - {name: note, shell: "echo hello > {{ tmp }}/note.txt"}
  - {name: more, file: {create: "{{ tmp }}/deep/more.txt", content: "{{ steps.note.status }}"}}
  - {name: kept, json_state: {merge: "{{ tmp }}/kept.json", state: {n: 1}}}
  - {name: table, sql: {url: "sqlite:///{{ tmp }}/t.db", query: "CREATE TABLE IF NOT EXISTS t (x)"}}
  - {name: point, checkpoint: {save: "{{ tmp }}/point.pkl"}}
  - {name: sub, workflow: sub.yaml}
  - {name: wait, python: "steps:fail_until", with: {word: "{{ tmp }}", fixed: fixed}}
  - {name: texts, file: {read: ["{{ tmp }}/**/*.txt"]}}
  - {name: here, shell: {run: ls, cwd: "{{ tmp }}", output: lines}}
output: {texts: "{{ steps.texts.output }}", sub: "{{ steps.sub.output }}", here: "{{ steps.here.output }}"}
"""
READS_TMP = """workflow: {name: sub}
steps: [{name: a, json_state: {read: "{{ tmp }}/kept.json"}}]
output: "{{ steps.a.output }}"
"""


def test_the_steps_of_a_run_share_a_temporary_folder_until_it_has_completed(
    shop: Workshop, temporary: Path
) -> None:
    """R2.8: the namespace `tmp` is a folder of the run, which survives failures and resumes and is gone at the end."""
    shop.write(READS_TMP, "sub.yaml")
    assert "is broken" in shop.error(TMP)
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "point.pkl").is_file()
    (shop.folder / "fixed").touch()

    output = shop.load().output(shop.resume().state)

    texts = {str(folder / "note.txt"): "hello\n", str(folder / "deep/more.txt"): "completed"}
    here = ["deep", "kept.json", "note.txt", "point.pkl", "t.db"]
    assert output == {"texts": texts, "sub": {"n": 1}, "here": here}
    assert list(temporary.iterdir()) == []


def test_every_run_has_a_temporary_folder_of_its_own(shop: Workshop, temporary: Path) -> None:
    text = "steps: [{name: x, set: {tmp: '{{ tmp }}'}}, {name: y, ask: 'Go on?'}]\n"
    flow = shop.load(text)
    folders = set()
    for store in (shop.url, f"{shop.url}.other.db", "memory://"):
        app = flow.open(store)
        for run in ("one", "two"):
            folders.add(app.invoke(flow.begin({}), run_id=run).state["x"]["output"]["tmp"])

    assert folders == set(map(str, temporary.iterdir())) and len(folders) == 6


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ('{name: a, when: "tmp", set: {}}', "'tmp' cannot be used in `when` of step 'a'"),
        ("{name: a, for_each: {in: [1], as: tmp}, set: {}}", "'tmp' is reserved"),
    ],
)
def test_the_temporary_folder_is_for_what_steps_do(shop: Workshop, step: str, reason: str) -> None:
    (problem,) = refused(shop, f"steps:\n  - {step}\n")

    assert problem.startswith("flow.yaml:4: ") and reason in problem


def test_a_temporary_folder_that_others_can_enter_is_refused(shop: Workshop, temporary: Path) -> None:
    temporary.mkdir(mode=0o700)
    temporary.chmod(0o777)

    assert "not a folder of this user alone" in shop.error("steps: [{name: a, set: {x: '{{ tmp }}'}}]\n")


@pytest.mark.parametrize("path", ["{{ tmp }}/../other/x", "{{ vars.theirs }}/x", "{{ tmp }}x"])
def test_no_step_leaves_the_temporary_folder_of_its_run(shop: Workshop, temporary: Path, path: str) -> None:
    step = f"{{name: x, file: {{create: '{path}', content: '{{{{ tmp }}}}'}}}}"

    assert "workflow file's folder" in shop.error(f"  vars: {{theirs: {temporary}/other}}\nsteps: [{step}]\n")


# Checkpoint files.


FILES = """
  checkpoint: {dir: points}
  interrupt_after: [a]
steps:
  - {name: a, set: {last: "{{ checkpoint.last }}"}}
  - {name: b, set: {dir: "{{ checkpoint.dir }}", last: "{{ checkpoint.last }}"}}
  - {name: c, checkpoint: {save: "{{ checkpoint.dir }}/mine.pkl"}}
  - {name: d, checkpoint: {load: "{{ checkpoint.last }}"}, when: "checkpoint.last"}
output: {a: "{{ steps.a.output.last }}", b: "{{ steps.b.output }}", d: "{{ steps.d.output.checkpoint_node }}"}
"""


def test_templates_name_the_folder_of_checkpoint_files_and_the_newest_of_the_run(shop: Workshop) -> None:
    """R4.4: `{{ checkpoint.dir }}` and `{{ checkpoint.last }}`, of interrupts and of steps."""
    other = shop.load(FILES)
    app = other.open(shop.url)
    assert shop.run(FILES).status == "paused"
    (own,) = (shop.folder / "points").iterdir()
    app.invoke(other.begin({}), run_id="other", config=other.config())

    output = shop.load().output(shop.resume().state)

    folder = shop.folder.resolve() / "points"
    assert output == {"a": None, "b": {"dir": str(folder), "last": str(folder / own.name)}, "d": "c"}


def test_the_folder_of_checkpoint_files_is_named_and_stays_beside_the_file(shop: Workshop) -> None:
    """R4.4: what is not there is refused with its line."""
    steps = "steps: [{name: a, set: {x: '{{ checkpoint.dir }} {{ checkpoint.lst }}'}}]\n"

    nowhere, misspelt = refused(shop, steps)
    (away,) = refused(shop, "  checkpoint: {dir: ../there}\nsteps: [{name: a, set: {}}]\n")
    (foreign,) = refused(shop, "  checkpoint_dir: here\nsteps: [{name: a, set: {}}]\n")

    assert nowhere.startswith("flow.yaml:3: ") and "workflow.checkpoint has no `dir`" in nowhere
    assert "`checkpoint` has no 'lst'" in misspelt and "last" in misspelt
    assert away.startswith("flow.yaml:3: checkpoint.dir: '../there'") and "`dir` of `checkpoint`" in foreign


def test_what_is_written_at_interrupts_is_shown_before_a_foreign_run_is_confirmed(shop: Workshop) -> None:
    effects = effects_of({"source": f"workflow:\n  name: test{FILES}"})

    assert (
        "checkpoint",
        "writes checkpoint files at interrupts into points, in the folder of the workflow file",
    ) in [(each.name, each.reach) for each in effects]


# The state.


STATE = """  inputs: {name: {default: Ada}}
  state_schema:
    name: string
    count: {type: integer, default: 0}
    notes: {reducer: append}
    total: {reducer: add}
steps:
  - {name: a, set: {count: "{{ state.count + 1 }}", notes: [a], total: 2, other: 1}}
  - {name: b, set: {count: "{{ state.count + 1 }}", notes: [b, "{{ state.name }}"], total: 3}}
  - {name: c, for_each: {in: [10, 20]}, set: {total: "{{ item }}"}}
output: "{{ state }}"
"""


def test_steps_share_a_state_with_a_schema(shop: Workshop) -> None:
    """R4.4: `state_schema`, and `{{ state.x }}` in templates."""
    assert shop.output(STATE) == {"name": "Ada", "count": 2, "notes": ["a", "b", "Ada"], "total": 35}


def test_a_value_of_another_type_fails_its_step(shop: Workshop) -> None:
    wrong = STATE.replace('set: {count: "{{ state.count + 1 }}", notes: [a]', "set: {count: many, notes: [a]")

    assert "output.count: workflow.state_schema needs the type integer, not text 'many'" in shop.error(wrong)


def test_a_workflow_step_sets_the_state_and_a_workflow_has_its_own(shop: Workshop) -> None:
    shop.write(
        "workflow: {name: inner, state_schema: {count: {default: 7}}}\n"
        "steps: [{name: i, set: {count: '{{ state.count + 1 }}'}}]\noutput: {count: '{{ state.count }}', x: 1}\n",
        "inner.yaml",
    )
    output = shop.output(
        "  state_schema: {count: {default: 0}, x: any}\n"
        "steps:\n  - {name: sub, workflow: inner.yaml}\noutput: '{{ state }}'\n"
    )

    assert output == {"count": 8, "x": 1}


def test_a_state_that_is_not_declared_is_refused(shop: Workshop) -> None:
    found = refused(shop, "steps: [{name: a, set: {x: '{{ state.count }}'}}]\n")

    assert "flow.yaml:3" in found[0] and "state_schema" in found[0]


# Imports.


LIB = """
vars: {greeting: Hello}
steps:
  - name: greet
    shell: {run: 'echo "$WORD $HOME_OF_NOBODY${SUFFIX:-!}"', env: {WORD: "{{ vars.lib.greeting }}"}}
    retry: {attempts: 2}
  - {name: fail, shell: exit 3}
"""

USING = """  imports: [{file: lib/common.yaml, as: lib}]
steps:
  - {name: one, uses: lib.greet, description: mine}
  - name: both
    parallel:
      - {name: two, uses: lib.greet, retry: {attempts: 1}}
output: ["{{ steps.one.output }}", "{{ steps.two.output }}"]
"""


def test_steps_and_variables_are_imported(shop: Workshop) -> None:
    """R4.4: `imports` of other files, whose steps are `uses`d."""
    shop.write(LIB, "lib/common.yaml")
    both = "{a: '{{ steps.one.output }}', b: '{{ steps.two.output }}'}"
    flow = shop.load(USING.partition("output:")[0] + f"output: {both}\n")
    outcome = shop.run()

    assert outcome.state["output"] == {"a": "Hello !", "b": "Hello !"}
    assert [step.retry.attempts for step in flow.definition.steps[:1]] == [2]
    assert flow.definition.steps[1].members[0].retry.attempts == 1


def test_what_is_imported_is_kept_with_the_run_and_shown(shop: Workshop) -> None:
    shop.write(LIB, "lib/common.yaml")
    flow = shop.load(USING.replace("output: [", "# ["))
    saved = flow.config()["workflow_file"]
    shop.run()
    (shop.folder / "lib/common.yaml").unlink()

    assert "exit 3" in saved["included"]["lib/common.yaml"]
    assert workflow_of_run(flow.config(), env=shop.env, prefer="saved").definition == flow.definition
    assert [effect.name for effect in effects_of(saved) if effect.kind == "shell"] == ["one", "two"]
    assert sum('echo "$WORD' in line for line in source_lines({"workflow_file": saved})) == 2


ONE = "  imports: [l.yaml]\nsteps:\n  - "
WRONG = "steps:\n  - {name: s, shell: {rn: ls}}\n"
NO_INPUT = "steps:\n  - {name: s, set: {x: '{{ inputs.no }}'}}\n"


@pytest.mark.parametrize(
    ("library", "text", "place"),
    [
        (
            "",
            ONE.replace("l.yaml", "gone.yaml") + "{name: a, set: {}}",
            "flow.yaml:3: 'gone.yaml' cannot be included",
        ),
        (
            "",
            ONE.replace("l.yaml", "../x.yaml") + "{name: a, set: {}}",
            "may not lead out of the workflow file's folder",
        ),
        ("workflow: {}", ONE + "{name: a, set: {}}", "'l.yaml' cannot be imported"),
        (LIB, ONE.replace("l.yaml", "steps.py") + "{name: a, set: {}}", "'steps.py' cannot be imported"),
        (LIB, ONE + "{name: a, uses: gret}", "flow.yaml:5: there is no imported step 'gret'"),
        ("", "steps:\n  - {name: a, uses: greet}", "list its file under workflow.imports"),
        (WRONG, ONE + "{name: a, uses: s}", "l.yaml:2: unknown field 'rn'"),
        (NO_INPUT, ONE + "{name: a, uses: s}", "l.yaml:2: set of step 'a'"),
        (LIB, ONE + "{name: a, uses: greet, set: {}}", "is of several kinds"),
    ],
)
def test_a_wrong_import_is_refused_at_its_place(shop: Workshop, library: str, text: str, place: str) -> None:
    shop.write(library, "l.yaml")

    assert any(place in each for each in refused(shop, f"{text}\n")), refused(shop, f"{text}\n")


# The names of other systems.


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("steps: [{name: a, set: {}, depends_on: [b]}]\n", "here it is `after`"),
        ("steps: [{name: a, type: shell}]\n", "here it is the kind itself"),
        ("steps: [{name: a, human_gate: x}]\n", "here it is `ask`"),
        ("steps: [{name: a, while: x}]\n", "here it is `while_loop`"),
        ("steps: [{name: a, create_file: x}]\n", "here it is `file: {create|edit|read: PATH}`"),
        ("steps: [{id: a, set: {}}]\n", "here it is `name`"),
        ("steps: [{name: a, set: {}, for_each: {source: [1]}}]\n", "here it is `in`"),
        (
            "steps: [{name: a, set: {}, for_each: {in: [1], max_concurrent: 2}}]\n",
            "here it is `max_parallel`",
        ),
        ("  checkpoint: {keep_last: 5}\nsteps: [{name: a, set: {}}]\n", "`max_checkpoints` of `retention`"),
        ("  entry_point: a\nsteps: [{name: a, set: {}}]\n", "here it is `entry`"),
        ("  limits: {budget_usd: 3}\nsteps: [{name: a, set: {}}]\n", "here it is `budget`"),
        ("agents: [{name: a}]\n", "here it is `steps`"),
    ],
)
def test_a_name_of_another_system_is_refused_with_ours(shop: Workshop, text: str, hint: str) -> None:
    """R1.1, R2.1, R4.4: one format; its errors name the words that stand for those of the others."""
    assert any(hint in each for each in refused(shop, text)), refused(shop, text)
