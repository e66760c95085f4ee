"""The service: what it shows of workflows and runs, what it does with them, and who executes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast import END, START, StateGraph, open_store, step, workflow
from holdfast.errors import (
    AnswerRejected,
    CommandRefused,
    HoldfastError,
    NotPaused,
    RunConflict,
    RunNotFound,
    UnknownWorkflow,
)
from holdfast.service import ReadOnly, RequestInvalid, Service, TooManyRuns
from holdfast.service.catalogue import InlineRefused, SourceInvalid
from holdfast.workflows.scope import InputInvalid
from tests.service.conftest import GREET, REVIEW

SECONDS = 60.0


def paused(service: Service) -> str:
    """A run that waits for an answer."""
    found = service.execute("review", {}, wait=SECONDS)
    assert found["status"] == "paused"
    return str(found["run_id"])


def test_workflows_are_described_with_their_inputs_and_steps(service: Service) -> None:
    """R2.4: list_workflows, get_workflow_info and get_workflow_schema."""
    found = {each["name"]: each for each in service.workflows()}
    assert found["greet"]["description"] == "Say hello." and found["greet"]["steps"] == 1
    assert sorted(found) == ["broken", "greet", "review"]

    steps = service.workflow("review")["steps"]
    assert [(step["name"], step["kind"], step["layer"]) for step in steps] == [
        ("draft", "shell", 1),
        ("approve", "ask", 2),
        ("publish", "shell", 3),
    ]
    schema = service.schema("greet")
    assert schema["required"] == ["name"] and schema["properties"]["times"]["enum"] == [1, 2, None]
    assert service.schema()["title"] == "Holdfast workflow"
    with pytest.raises(UnknownWorkflow, match="did you mean 'greet'"):
        service.workflow("gret")


def test_a_text_is_validated_without_importing_or_reading_what_it_names(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2.4: validate_workflow_yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imported_by_text.py").write_text("raise SystemExit('imported')")
    (tmp_path / "secret.yaml").write_text("{a: 1}")
    assert service.validate(GREET) | {"warnings": []} == {
        "valid": True,
        "workflow": "greet",
        "steps": 1,
        "problems": [],
        "warnings": [],
    }
    python = "workflow: {name: p}\nsteps:\n  - name: a\n    python: imported_by_text:run\n"
    assert service.validate(python)["valid"] is True
    broken = service.validate("workflow: {name: x}\nsteps: []\n")
    assert not broken["valid"] and broken["problems"][0]["line"] == 2


def test_a_run_is_executed_and_shown(service: Service) -> None:
    """R2.4 and R2.5: execute_workflow in both modes, get_job_status, list_jobs; queued, running, completed."""
    done = service.execute("greet", {"name": "Ada"}, run_id="r1", wait=SECONDS, tags=["new"], who="ci")
    assert (done["status"], done["output"], done["run_id"]) == ("completed", "hello Ada", "r1")

    run = service.run("r1")
    assert run["progress"] == {"done": 1, "total": 1} and run["inputs"] == {"name": "Ada", "times": 1}
    assert [step["name"] for step in service.steps("r1")] == ["write"]
    step = service.step("r1", "write")
    assert step["output"] == "hello Ada"
    assert [event["type"] for event in step["events"]] == ["node.start", "node.complete"]
    assert service.state("r1")["state"]["inputs"]["name"] == "Ada"
    listed = service.runs(tag="new", text="GREE", counts=True)
    assert [line["run_id"] for line in listed["runs"]] == ["r1"] and listed["counts"] == {"completed": 1}
    assert service.runs(tag="old")["runs"] == []
    assert json.loads(json.dumps([run, step, listed]))

    later = service.execute("greet", {"name": "Bo"})
    assert later["status"] in ("queued", "running", "completed")
    assert service.wait(later["run_id"], SECONDS)["status"] == "completed"


def test_bad_requests_are_refused_before_anything_is_stored(service: Service) -> None:
    with pytest.raises(InputInvalid, match="'name' is missing"):
        service.execute("greet", {})
    with pytest.raises(RequestInvalid, match="inputs are an object"):
        service.execute("greet", [1])  # type: ignore[arg-type]
    with pytest.raises(RequestInvalid, match="timeout must be"):
        service.execute("greet", {"name": "x"}, timeout=-1)
    with pytest.raises(RequestInvalid, match="no status 'ill'"):
        service.runs(status="ill")
    with pytest.raises(RequestInvalid, match="is no cursor"):
        service.runs(cursor="?!")
    with pytest.raises(RequestInvalid, match="limit must be"):
        service.runs(limit=0)
    with pytest.raises(RunNotFound):
        service.run("nobody")
    assert service.runs()["runs"] == []


def test_a_question_is_answered_and_the_run_goes_on(service: Service) -> None:
    """R2.6 and S2.11 to S2.14: a paused run shows its prompt, takes an answer, goes on; only then it can."""
    run = paused(service)
    [pause] = service.status(run)["pauses"]
    assert pause["prompt"] == "Publish it?" and pause["choices"] == ["yes", "no"] and pause["takes_answer"]
    with pytest.raises(CommandRefused, match="waits for answers"):
        service.resume(run)
    with pytest.raises(AnswerRejected, match="maybe"):
        service.answer(run, "maybe")

    found = service.answer(run, "yes", question=pause["question"], who="ada")

    assert found["status"] == "applied"
    done = service.wait(run, SECONDS)
    assert (done["status"], done["output"]) == ("completed", "published yes")
    assert any(event["type"] == "answer" and "ada" in event["text"] for event in service.events(run))
    with pytest.raises(HoldfastError):
        service.answer(run, "no")


def test_runs_that_the_command_line_started_are_answered_and_executed_here(url: str, workflows: Path) -> None:
    """R2.6: the run of another process, that paused, goes on here."""
    from holdfast import load_workflow

    file = load_workflow(workflows / "review.yaml")
    app = file.open(url)
    run = app.invoke(file.begin(file.read_inputs({})), config=file.config({})).run_id
    app.store.close()
    with Service(url, [workflows]) as service:
        assert service.answer(run, "no")["status"] == "applied"
        assert service.wait(run, SECONDS)["output"] == "published no"


def test_a_failed_run_is_resumed_and_a_cancelled_one_too(service: Service, workflows: Path) -> None:
    """R3.7: runs are cancelled, resumed and deleted; a run that failed or was cancelled is resumed."""
    failed = service.execute("broken", wait=SECONDS)
    assert failed["status"] == "failed" and failed["error"]["step"] == "fails"
    plan = service.plan_resume(failed["run_id"])
    assert [step["what"] for step in plan["steps"]] == ["kept", "rerun"] and not plan["refused"]
    (workflows / "fixed").write_text("")
    assert service.resume(failed["run_id"], who="op")["status"] in ("queued", "running", "completed")
    assert service.wait(failed["run_id"], SECONDS)["status"] == "completed"

    run = paused(service)
    assert service.cancel(run, reason="wrong", who="op")["status"] == "cancelled"
    assert service.resume(run)["status"] in ("queued", "running", "paused")
    assert service.wait(run, SECONDS)["status"] == "paused"
    assert service.delete(run) == {"run_id": run, "deleted": True}
    with pytest.raises(RunNotFound):
        service.status(run)


def test_a_run_is_edited_skipped_forked_rerun_and_promoted(service: Service) -> None:
    run = paused(service)
    assert service.edit(run, {"inputs.topic": "ebb"}, who="op")["applied"]
    assert service.state(run)["state"]["inputs"] == {"topic": "ebb"}

    fork = service.fork(run, "@draft", update={"inputs.topic": "flow"}, who="op")
    assert service.wait(fork["run_id"], SECONDS)["status"] == "paused"
    assert service.skip(fork["run_id"], "approve")["applied"]
    assert service.wait(fork["run_id"], SECONDS)["status"] in ("completed", "failed")
    again = service.rerun(run, "draft", update={"inputs.topic": "moon"}, who="op")
    assert service.wait(again["run_id"], SECONDS)["status"] == "paused"
    assert service.step(again["run_id"], "draft")["output"] == "on moon"
    assert again["parent"] == run and len(service.forks(run)["members"]) == 3
    promoted = service.promote(again["run_id"], who="op")
    assert promoted["run"]["run_id"] == run and promoted["run"]["status"] == "paused"
    assert service.step(run, "draft")["output"] == "on moon"
    assert service.diff(again["run_id"], fork["run_id"])["changes"]


def test_checkpoints_are_listed_shown_and_deleted(service: Service) -> None:
    """R2.4: list_checkpoints, get_checkpoint_info, delete_checkpoint."""
    run = paused(service)
    found = service.checkpoints(run)
    assert len(found) >= 2 and service.history(run, limit=1)["next"] == found[0]["checkpoint_id"]
    shown = service.checkpoint(found[-1]["checkpoint_id"])
    assert shown["run_id"] == run and "state" in shown
    service.delete_checkpoint(found[0]["checkpoint_id"])
    with pytest.raises(RunNotFound):
        service.run(run)


def test_a_run_moves_to_another_service_as_a_capsule(service: Service, tmp_path: Path) -> None:
    run = paused(service)
    data = service.export(run)
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    with Service(other_url, read_only=True) as other, pytest.raises(ReadOnly, match="only shows runs"):
        other.import_(data)
    with Service(other_url, [tmp_path / "workflows"]) as other:
        with pytest.raises(HoldfastError, match=r"^it is not a capsule"):
            other.import_(b"x")
        assert other.import_(data, who="x/../y")["outcome"] == "copied"
        assert other.status(run)["status"] == "paused"


def test_events_have_ids_and_are_read_on_from_any_of_them(service: Service) -> None:
    run = service.execute("greet", {"name": "x"}, wait=SECONDS)["run_id"]
    every = service.events(run)
    ids = [event["id"] for event in every]
    assert len(set(ids)) == len(ids) and every[0]["type"] == "graph.start"
    for place, ident in enumerate(ids):
        assert [event["id"] for event in service.events(run, after=ident)] == ids[place + 1 :]
    with pytest.raises(RequestInvalid, match="no id of an event"):
        service.events(run, after="x.y")


def test_pages_of_runs_follow_each_other(service: Service) -> None:
    runs = [service.execute("greet", {"name": str(n)}, wait=SECONDS)["run_id"] for n in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page: dict[str, Any] = service.runs(limit=2, cursor=cursor, workflow="greet")
        seen += [line["run_id"] for line in page["runs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == runs[::-1]


def test_graphs_show_the_steps_of_a_workflow_and_of_a_run(service: Service) -> None:
    drawn = service.graph(workflow="review")
    assert [node["name"] for node in drawn["nodes"]] == ["draft", "approve", "publish"]
    assert {"from": "$start", "to": "draft", "when": ""} in drawn["edges"]
    statuses = {node["name"]: node["status"] for node in service.graph(run_id=paused(service))["nodes"]}
    assert statuses == {"draft": "completed", "approve": "waiting", "publish": "pending"}


def test_a_program_is_offered_beside_files(url: str) -> None:
    graph = StateGraph(dict, name="count")
    graph.add_node("one", lambda state: {"n": state.get("n", 0) + 1})
    graph.add_edge(START, "one").add_edge("one", END)
    with Service(url, [graph]) as service:
        assert service.workflow("count")["kind"] == "program"
        assert service.execute("count", {"n": 1}, wait=SECONDS)["output"] == {"n": 2}
    with pytest.raises(SourceInvalid, match="two workflows are named"):
        Service(url, [graph, graph])
    with pytest.raises(SourceInvalid, match="no module 'nowhere_at_all'"):
        Service(url, ["nowhere_at_all:app"])


def test_a_client_sends_a_workflow_only_if_the_operator_allows_it(url: str, workflows: Path) -> None:
    """R2.4: execute_inline_workflow."""
    text = GREET.replace("name: greet", "name: own")
    with Service(url, [workflows]) as service, pytest.raises(InlineRefused):
        service.execute_inline(text, {"name": "x"})
    with Service(url, [workflows], allow_inline=True) as service:
        assert service.execute_inline(text, {"name": "x"}, wait=SECONDS)["output"] == "hello x"
        with pytest.raises(InlineRefused, match="choose another name"):
            service.execute_inline(GREET, {"name": "x"})


def test_reading_again_brings_new_workflows_to_the_worker(service: Service, workflows: Path) -> None:
    """R2.4: reload_workflows."""
    (workflows / "new.yaml").write_text(GREET.replace("name: greet", "name: new"))
    (workflows / "review.yaml").write_text(REVIEW.replace("on $TOPIC", "about $TOPIC"))
    assert service.reload(who="op") == {"added": ["new"], "changed": ["review"], "removed": []}
    assert service.execute("new", {"name": "x"}, wait=SECONDS)["status"] == "completed"
    assert service.step(paused(service), "draft")["output"] == "about tides"


def test_no_more_runs_are_taken_than_the_operator_allows(url: str, workflows: Path) -> None:
    """R2.5: at most so many active runs."""
    service = Service(url, [workflows], max_active=1)
    service.execute("greet", {"name": "a"})
    service._counted.forget()
    with pytest.raises(TooManyRuns, match="1 runs are queued or running"):
        service.execute("greet", {"name": "b"})
    service.close()


def test_a_service_that_only_reads_changes_nothing(url: str, workflows: Path) -> None:
    with Service(url, [workflows]) as service:
        run = paused(service)
    with Service(url, [workflows], read_only=True) as service:
        assert not service.has_worker and service.status(run)["status"] == "paused"
        for act in (
            lambda: service.execute("greet", {"name": "x"}),
            lambda: service.answer(run, "yes"),
            lambda: service.cancel(run),
            lambda: service.resume(run),
            lambda: service.delete(run),
        ):
            with pytest.raises(ReadOnly):
                act()


def test_another_run_of_this_service_keeps_what_is_running(service: Service, tmp_path: Path) -> None:
    assert service.health()["worker"] and service.health()["status"] == "ok"
    assert service.fleet()["queues"] == []
    assert service.costs("workflow")["total"]["cost"] == 0
    run = paused(service)
    with pytest.raises(NotPaused):
        service.answer(service.execute("greet", {"name": "x"}, wait=SECONDS)["run_id"], "x")
    assert service.fsck()["runs"] and open_store(service.store.url).runs(run=run)
    assert RunConflict.code == "run_conflict"


def test_a_check_of_the_latest_runs_ends_in_time(url: str, workflows: Path) -> None:
    with Service(url, [workflows]) as service:
        for name in ("a", "b"):
            service.execute("greet", {"name": name}, wait=60)
        whole, some = service.check_latest(), service.check_latest(seconds=-1.0)
        assert (whole["checked"], whole["is_all"], whole["damaged"]) == (2, True, [])
        assert (some["checked"], some["is_all"]) == (0, False)


@step
def double(number: int) -> int:
    return 2 * number


@workflow(name="doubling")
def doubling(
    number: int, times: int = 1, label: str | None = None, mode: Literal["fast", "slow"] = "fast"
) -> int:
    """Double a number."""
    for _ in range(times):
        number = double(number)
    return number


@pytest.mark.parametrize(
    "source", [doubling, f"{__name__}:doubling", doubling.app], ids=["it", "name", "app"]
)
def test_a_function_is_offered_with_its_parameters_as_inputs(url: str, source: Any) -> None:
    with Service(url, [source]) as service:
        assert service.workflow("doubling")["description"] == "Double a number."
        assert service.schema("doubling") == {
            "type": "object",
            "properties": {
                "number": {"type": "integer"},
                "times": {"type": "integer", "default": 1},
                "label": {"type": ["string", "null"]},
                "mode": {"enum": ["fast", "slow"], "default": "fast"},
            },
            "required": ["number"],
            "additionalProperties": False,
        }
        for inputs, problem in (
            ({}, "input 'number' is missing"),
            ({"number": "three"}, "input 'number' must be of type integer"),
            ({"number": 1, "time": 2}, r"no input 'time'; did you mean 'times'\?"),
            ({"number": 1, "mode": "odd"}, "input 'mode' must be one of 'fast', 'slow'"),
        ):
            with pytest.raises(InputInvalid, match=problem):
                service.execute("doubling", inputs)
        assert service.runs()["runs"] == []
        made = service.execute("doubling", {"number": 3, "times": 2, "label": None}, wait=SECONDS)
        assert made["status"] == "completed"
