"""`Workflow`: opening a workflow file on a store, what a run remembers of it, and what it results in."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.retention import janitor
from holdfast.errors import ExecutionError, HoldfastError
from holdfast.values import RunStatus
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.workflow import load_workflow, workflow_of_run
from tests.graphs import Heard
from tests.workflows.workshop import Workshop

CHAIN = """
    steps:
      - {name: a, python: "steps.py:say", with: {word: a}}
      - {name: b, python: "steps.py:fail_until", with: {word: b, fixed: fixed}}
      - {name: c, python: "steps.py:say", with: {word: c}}
    """


# What a run remembers.


def test_a_flow_knows_itself(shop: Workshop) -> None:
    flow = shop.load("workflow:\n  name: named\n  description: for a test\nsteps: [{name: a, set: {}}]")

    assert (flow.name, flow.description, flow.path) == ("named", "for a test", shop.folder / "flow.yaml")
    assert len(flow.digest) == 64 and flow.digest != shop.load(CHAIN).digest
    assert flow.begin({"a": 1}) == {"inputs": {"a": 1}}


def test_a_run_finds_its_file(shop: Workshop) -> None:
    shop.error(CHAIN)
    flow = shop.stored_workflow()

    assert flow.path == shop.folder / "flow.yaml"


def test_a_run_whose_file_changed_goes_on_with_it_as_it_is_now(shop: Workshop) -> None:
    shop.error(CHAIN)
    config = shop.load().config()
    shop.load(CHAIN.replace("word: c", "word: other"))
    shop.fix()

    flow = workflow_of_run(config)
    flow.open(shop.url).resume("r")

    assert flow.digest != config["workflow_file"]["digest"] and shop.calls() == ["a", "b", "b", "other"]


def test_a_run_whose_file_is_gone_goes_on_with_what_was_saved(shop: Workshop) -> None:
    shop.write("included text", "text.txt")
    text = CHAIN + "  - {name: d, set: {text: !file text.txt}}\n"
    shop.error(text)
    config = json.loads(json.dumps(shop.load().config()))
    (shop.folder / "flow.yaml").unlink()
    (shop.folder / "text.txt").unlink()
    shop.fix()

    outcome = workflow_of_run(config).open(shop.url).resume("r")

    assert outcome.state["d"]["output"] == {"text": "included text"} and shop.calls() == ["a", "b", "b", "c"]


def test_a_run_whose_file_was_moved_is_told_where_it_is(shop: Workshop, tmp_path: Path) -> None:
    shop.error(CHAIN)
    config = shop.load().config()
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("flow.yaml", "steps.py"):
        shutil.move(shop.folder / name, moved / name)
    (moved / "fixed").touch()

    outcome = workflow_of_run(config, file=moved / "flow.yaml").open(shop.url).resume("r")

    assert outcome.status == RunStatus.COMPLETED and (moved / "calls").read_text() == "b\nc\n"


def test_a_run_that_is_of_no_file() -> None:
    with pytest.raises(HoldfastError, match="not started from a workflow file"):
        workflow_of_run({})


def test_a_workflow_may_be_given_as_text(tmp_path: Path) -> None:
    flow = load_workflow(
        tmp_path / "not-there.yaml", text="workflow: {name: t}\nsteps: [{name: a, set: {n: 1}}]"
    )

    assert flow.open("memory://").invoke(flow.begin({})).state["a"]["output"] == {"n": 1}


def test_the_environment_is_put_in_but_not_remembered(shop: Workshop) -> None:
    shop.env["SOME_NUMBER"] = "4711"
    flow = shop.load("steps: [{name: a, set: {n: '${SOME_NUMBER}'}}]")

    assert flow.open(shop.url).invoke(flow.begin({}), config=flow.config()).state["a"]["output"] == {
        "n": "4711"
    }
    assert "4711" not in json.dumps(flow.config())


# Results.


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("output: '{{ steps.a.output.n }}'", 1),
        ("output: {n: '{{ steps.a.output.n }}', name: '{{ workflow.name }}'}", {"n": 1, "name": "test"}),
        ("output: nothing", "nothing"),
        ("", {"n": 2}),
    ],
)
def test_what_a_run_results_in(shop: Workshop, text: str, output: Any) -> None:
    assert shop.output(f"steps: [{{name: a, set: {{n: 1}}}}, {{name: b, set: {{n: 2}}}}]\n{text}") == output


def test_the_last_step_may_be_of_several_nodes(shop: Workshop) -> None:
    assert shop.output("steps: [{name: a, for_each: {in: [1, 2]}, set: {n: '{{ item }}'}}]") == [
        {"n": 1},
        {"n": 2},
    ]


def test_the_end_may_have_a_reason(shop: Workshop) -> None:
    assert shop.output("steps: [{name: a, end: {reason: enough}}]") == "enough"


def test_an_output_that_cannot_be_made_can_be_repaired(shop: Workshop) -> None:
    text = CHAIN + "output: '{{ steps.%s.output.missing }}'"
    shop.fix()
    told = shop.error(text % "c")
    assert "the workflow's output: in 'steps.c.output" in told

    outcome = shop.resume(text.replace(".missing", "") % "c")

    assert shop.load().output(outcome.state) == "c" and shop.calls() == ["a", "b", "c"]


# Pauses.


def test_pauses_before_and_after_steps(shop: Workshop) -> None:
    shop.fix()
    paused = shop.run(CHAIN, interrupt_before=["b"], interrupt_after=["b"])
    assert paused.status == RunStatus.PAUSED and shop.calls() == ["a"]

    app = shop.open(interrupt_before=["b"], interrupt_after=["b"])
    assert app.resume("r").status == RunStatus.PAUSED and shop.calls() == ["a", "b"]
    assert app.resume("r").status == RunStatus.COMPLETED and shop.calls() == ["a", "b", "c"]


def test_pauses_that_the_file_wants(shop: Workshop) -> None:
    shop.fix()
    text = "workflow:\n  name: test\n  interrupt_before: [b]\n" + CHAIN.replace(
        "\n    ", "\n"
    ).strip().replace("{name: c", "{name: c, interrupt: after")
    assert shop.run(text).status == RunStatus.PAUSED and shop.calls() == ["a"]
    assert shop.resume().status == RunStatus.PAUSED and shop.calls() == ["a", "b", "c"]
    assert shop.resume().status == RunStatus.COMPLETED


@pytest.mark.parametrize("kind", ["for_each: {in: [1, 2]}, set: {}", "parallel: [{name: m, set: {}}]"])
def test_pauses_at_steps_of_several_nodes(shop: Workshop, kind: str) -> None:
    text = f"steps: [{{name: x, {kind}}}, {{name: y, set: {{}}}}]"
    app = shop.open(text, interrupt_before=["x"], interrupt_after=["x"])

    before = app.invoke({"inputs": {}}, run_id="r")
    assert before.status == RunStatus.PAUSED and "x" not in before.state
    after = app.resume("r")
    assert after.status == RunStatus.PAUSED and after.state["x"]["status"] == "completed"
    assert app.resume("r").status == RunStatus.COMPLETED


def test_a_pause_at_a_member_of_a_group(shop: Workshop) -> None:
    app = shop.open(
        "steps: [{name: g, parallel: [{name: m, set: {}}, {name: n, set: {}}]}]", interrupt_before=["m"]
    )

    assert app.invoke({"inputs": {}}, run_id="r").status == RunStatus.PAUSED
    assert app.resume("r").state["m"]["status"] == "completed"


def test_a_pause_at_a_step_that_is_not_there(shop: Workshop) -> None:
    with pytest.raises(
        WorkflowInvalid, match="a pause is wanted before 'bb', but there is no such step"
    ) as caught:
        shop.open(CHAIN, interrupt_before=["bb"])

    assert "the steps are a, b, c" in str(caught.value) or "did you mean" in str(caught.value)


@pytest.mark.parametrize("members", ["parallel: [{}]", "parallel: {{steps: [{}]}}"])
def test_a_member_that_cannot_be_used_is_told_with_its_place(shop: Workshop, members: str) -> None:
    member = "{name: m, set: {}},\n      {name: n,\n       python: 'steps.py:nothing'}"
    with pytest.raises(WorkflowInvalid, match=r"step 'n': steps.py has no function 'nothing'") as caught:
        shop.open(f"steps:\n  - name: g\n    {members.format(member)}")

    assert caught.value.problems[0].position.line == 7


# Stores and policies.


@pytest.mark.parametrize(
    ("checkpoint", "url"),
    [
        ("{}", "sqlite:///{cwd}/.holdfast/runs.db"),
        ("{path: 'kept/${workflow.name}'}", "sqlite:///{cwd}/kept/test/runs.db"),
        ("{storage: files, path: kept}", "file:///{cwd}/kept/runs"),
        ("{storage: memory}", "memory://"),
        ("{path: /absolute/place}", "sqlite:////absolute/place/runs.db"),
    ],
)
def test_where_runs_are_kept(shop: Workshop, checkpoint: str, url: str) -> None:
    flow = shop.load(f"workflow:\n  name: test\n  checkpoint: {checkpoint}\nsteps: [{{name: a, set: {{}}}}]")

    assert flow.store_url() == url.format(cwd=Path.cwd())


def test_the_store_of_the_file_is_opened_and_used(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.folder)
    flow = shop.load("workflow:\n  name: test\n  checkpoint: {storage: files}\nsteps: [{name: a, set: {}}]")

    app = flow.open()
    app.invoke(flow.begin({}), run_id="r")

    assert (shop.folder / ".holdfast/runs").is_dir() and app.store.runs(run="r")


def with_checkpoint(checkpoint: str, more: str = "") -> str:
    return f"workflow:\n  name: test\n  checkpoint: {checkpoint}\n{more}" + CHAIN.replace("\n    ", "\n")


def test_on_failure_continue_goes_on_without_the_step(shop: Workshop) -> None:
    outcome = shop.run(with_checkpoint("{on_failure: continue}"))

    assert outcome.status == RunStatus.COMPLETED and shop.calls() == ["a", "b", "c"]
    assert outcome.state["b"] == {"status": "failed", "error": "ValueError: b is broken", "visits": 1}


def test_on_failure_rollback_leaves_nothing(shop: Workshop) -> None:
    told = shop.error(with_checkpoint("{on_failure: rollback}"))

    assert "nothing of it is kept" in told
    assert shop.open().store.runs() == []


def test_checkpoints_can_be_off_but_failures_are_kept(shop: Workshop) -> None:
    shop.error(with_checkpoint("{enabled: false}"))
    shop.fix()

    assert shop.resume().status == RunStatus.COMPLETED and shop.calls() == ["a", "b", "b", "c"]


@pytest.mark.parametrize("preserve", ["last", "all", "none"])
def test_what_is_preserved_of_a_finished_run(shop: Workshop, preserve: str) -> None:
    shop.fix()
    shop.run(with_checkpoint(f"{{preserve: {preserve}}}"))

    assert bool(shop.open().store.runs(run="r")) == (preserve != "none")


def test_a_file_that_says_nothing_has_the_default_retention(shop: Workshop) -> None:
    """S1.5, S1.9: ten checkpoints, seven days, and the last successful run always stays."""
    retention = shop.open(with_checkpoint("{}"))._settings.retention
    assert retention is not None
    assert (retention.max_checkpoints, retention.max_age) == (10, dt.timedelta(days=7))
    assert retention.keep_successful and retention.per == "run" and retention.pause_ttl is None

    assert shop.open(with_checkpoint("{retention: null}"))._settings.retention is None
    over_all = shop.open(with_checkpoint("{retention: {per: workflow}}"))._settings.retention
    assert over_all is not None and (over_all.per, over_all.max_checkpoints) == ("workflow", 10)


def test_a_run_of_a_file_keeps_its_ten_newest_checkpoints(shop: Workshop) -> None:
    """S1.5"""
    steps = "\n".join(f"  - {{name: s{number}, set: {{n: {number}}}}}" for number in range(14))
    app = shop.open(f"steps:\n{steps}")
    assert app.invoke({"inputs": {}}, run_id="r").status == "completed" and janitor.wait()

    assert len(app.checkpoints("r")) == 10 and app.get_state("r")["s0"]["status"] == "completed"


def test_what_came_with_a_run_deletes_only_what_it_says(shop: Workshop) -> None:
    config = shop.load(with_checkpoint("{}")).config()
    assert workflow_of_run(config, prefer="saved").retention() is None
    said = shop.load(with_checkpoint("{retention: {max_age_days: 1}}")).config()
    found = workflow_of_run(said, prefer="saved").retention()
    assert found is not None and found.max_age == dt.timedelta(days=1)


def test_policies_of_the_file_reach_the_engine(shop: Workshop) -> None:
    text = with_checkpoint(
        "{durability: process, interval: 3, on_save_error: fail, preserve: all, "
        "retention: {max_checkpoints: 5, max_age_days: null, keep_successful: false, pause_ttl: 2h}}",
        "  limits: {max_iterations: 7, max_parallel: 3}\n  on_change: fail\n",
    )
    settings = shop.open(text)._settings

    policy, retention = settings.policy, settings.retention
    assert (policy.durability, policy.interval, policy.on_save_error, policy.preserve) == (
        "process",
        3,
        "fail",
        "all",
    )
    assert retention is not None
    assert (retention.max_checkpoints, retention.max_age, retention.keep_successful) == (5, None, False)
    assert retention.pause_ttl is not None and retention.pause_ttl.total_seconds() == 7200
    assert (settings.graph.max_iterations, settings.rules.max_parallel) == (7, 3)
    assert settings.on_change == "fail"
    assert shop.open(durability="exit")._settings.policy.durability == "exit"


@pytest.mark.parametrize("interactive", [True, False])
def test_interrupted_steps_that_may_not_be_repeated(shop: Workshop, interactive: bool) -> None:
    shop.load(
        "steps: [{name: a, python: 'steps.py:die_until', with: {word: a, fixed: fixed}, idempotent: false}]"
    )
    assert shop.drive() == 9

    app = shop.open(interactive=interactive)
    if interactive:
        assert app.resume("r").pauses[0].kind == "in_doubt"
        assert app.resume("r", answer="rerun").status == RunStatus.COMPLETED
    else:
        with pytest.raises(ExecutionError, match="is not repeated unasked"):
            app.resume("r")


@pytest.mark.parametrize(("wish", "calls"), [("rerun", ["a", "a", "b"]), ("skip", ["a", "b"])])
def test_what_a_step_says_about_interruptions(shop: Workshop, wish: str, calls: list[str]) -> None:
    shop.load(
        f"""
        steps:
          - {{name: a, python: "steps.py:die_until", with: {{word: a, fixed: fixed}}, if_interrupted: {wish}}}
          - {{name: b, python: "steps.py:say", with: {{word: b}}}}
        """
    )
    assert shop.drive() == 9

    assert shop.resume().status == RunStatus.COMPLETED and shop.calls() == calls


def test_one_app_drives_several_runs(shop: Workshop) -> None:
    flow = shop.load(
        "workflow:\n  name: test\n  inputs: {n: {type: integer}}\nsteps: [{name: a, set: {n: '{{ inputs.n }}'}}]"
    )
    app = flow.open(shop.url)

    assert [app.invoke(flow.begin({"n": n})).state["a"]["output"]["n"] for n in range(3)] == [0, 1, 2]


def test_an_observer_hears_of_every_step(shop: Workshop) -> None:
    heard = Heard()
    shop.fix()
    shop.run(CHAIN, observer=heard)

    assert [event.node for event in heard.events if event.type == "node.start"] == ["a", "b", "c"]


def test_values_are_shown_without_secrets(shop: Workshop) -> None:
    shop.env["HOLDFAST_SECRET_TOKEN"] = "very-secret-token"
    flow = shop.load("steps: [{name: a, shell: {run: 'true', env: {T: '{{ secrets.TOKEN }}'}}}]")
    flow.open(shop.url)

    assert flow.scrub({"a": ["x very-secret-token y"]}) == {"a": ["x *** y"]}
