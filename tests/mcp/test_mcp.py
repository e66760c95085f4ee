"""The MCP server with the real client: over stdio and HTTP, old and new revisions of the protocol, killed servers."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import mcp_types as types
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.shared.exceptions import MCPError

from holdfast import END, START, App, StateGraph
from holdfast.dags import ControlledExecutor, Tools
from holdfast.mcp.forms import form_key
from holdfast.mcp.server import McpServer
from holdfast.mcp.tools import TOOLS
from holdfast.service.service import Service
from tests.mcp.servers import (
    Caller,
    HttpServer,
    KnowsTasks,
    Person,
    Task,
    connected,
    ran,
    stdio_server,
    task_request,
    write_workflows,
)

OLD, NEW = "legacy", "auto"


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_workflows(tmp_path / "workflows")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server over HTTP for all tests that kill none."""
    secrets = {"HOLDFAST_SECRET_API_KEY": "hunter2-hunter2"}
    found = HttpServer(write_workflows(tmp_path_factory.mktemp("shared") / "workflows"), env=secrets)
    yield found
    found.kill()


@pytest.fixture(scope="module")
def old(portal: BlockingPortal, shared: HttpServer) -> Iterator[Caller]:
    with connected(portal, shared.url, mode=OLD) as caller:
        yield caller


@pytest.fixture(scope="module")
def new(portal: BlockingPortal, shared: HttpServer) -> Iterator[Caller]:
    with connected(portal, shared.url, mode=NEW) as caller:
        yield caller


def paused_run(caller: Caller) -> str:
    found = caller.call("execute_workflow", workflow="publish", inputs={"topic": "tides"})
    assert found["status"] == "paused"
    return str(found["run_id"])


# Over stdio, as clients start it.


def test_a_new_client_asks_its_person_and_the_same_call_goes_on(portal, folder):
    """R2.4, R2.6: questions of a run become forms; the client fills them in and calls again."""
    person, seen = Person(Publish="yes", good=4), []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total))

    async def whole(client):
        return await client.call_tool(
            "execute_workflow",
            {"workflow": "publish", "inputs": {"topic": "tides"}},
            progress_callback=progress,
        )

    with connected(portal, stdio_server(folder), elicitation_callback=person) as caller:
        assert caller.client.protocol_version >= "2026"
        result = portal.call(whole, caller.client)
    assert result.structured_content["status"] == "completed"
    assert result.structured_content["output"] == "archived"
    assert ran(folder) == ["draft", "publish", "archive"]
    assert [form.message.rpartition("asks: ")[2] for form in person.asked] == [
        "Publish the text?",
        "How good is it?",
    ]
    assert person.asked[0].requested_schema["properties"]["answer"]["enum"] == ["yes", "no"]
    assert person.asked[1].requested_schema["properties"]["answer"]["type"] == "integer"
    assert seen == sorted(seen) and seen[-1] == (5, 5)


def test_an_old_client_gets_the_question_and_the_call_that_answers_it(portal, folder):
    """R2.6: a paused reply has the prompt, the run and the exact call; the run may pause again under the same id."""
    with connected(portal, stdio_server(folder), mode=OLD) as caller:
        assert caller.client.protocol_version < "2026"
        found = caller.call("execute_workflow", workflow="publish", inputs={"topic": "tides"})
        assert found["status"] == "paused" and found["pauses"][0]["prompt"] == "Publish the text?"
        answer = found["pauses"][0]["answer_with"]
        again = caller.call(answer["tool"], **{**answer["arguments"], "value": "yes"})
        assert again["run_id"] == found["run_id"] and again["pauses"][0]["prompt"] == "How good is it?"
        assert again["pauses"][0]["schema"] == {"type": "integer"}
        last = caller.call("resume_workflow", job_id=found["run_id"], response=5)
        assert last["status"] == "completed"
        refused = caller.error("resume_workflow", job_id=found["run_id"], response=5)
        assert refused["code"] in ("not_paused", "run_finished")
    assert ran(folder) == ["draft", "publish", "archive"]


def test_a_person_who_declines_leaves_the_run_paused(portal, folder):
    """R2.6: nobody is asked twice, and the run waits; a wrong answer is asked for again, with the reason."""
    with Service(f"sqlite:///{folder}/runs.db", [folder]) as service:
        server = McpServer(service).server
        with connected(portal, server, elicitation_callback=Person()) as caller:
            found = caller.call("execute_workflow", workflow="publish", inputs={"topic": "tides"})
            assert found["status"] == "paused" and found["next_calls"][0]["tool"] == "answer"
        person = Person(taken=3, good="very")
        with connected(portal, server, elicitation_callback=person) as caller:
            done = caller.call("answer", run_id=found["run_id"], value="yes")
            assert done["status"] == "completed" and done["output"] == "archived"
        assert "not taken" in person.asked[1].message


def gated_app(url: str) -> App:
    """A graph that waits before its second step."""
    graph = StateGraph(dict, name="gated-graph")
    graph.add_node("one", lambda state: {"one": 1}).add_node("two", lambda state: {"two": 2})
    graph.add_edge(START, "one").add_edge("one", "two").add_edge("two", END)
    return graph.compile(url, interrupt_before=["two"])


def test_a_person_who_does_not_pass_a_gate_leaves_the_run_paused(portal, tmp_path):
    """R2.6: "no" at a gate is as good as declining: nobody is asked again; "yes" goes on."""
    url = f"sqlite:///{tmp_path}/runs.db"
    with Service(url, [gated_app(url)]) as service:
        server = McpServer(service).server
        person = Person(before=False)
        with connected(portal, server, elicitation_callback=person) as caller:
            found = caller.call("execute_workflow", workflow="gated-graph")
            assert found["status"] == "paused" and found["next_calls"][0]["tool"] == "resume"
        assert len(person.asked) == 1
        with connected(portal, server, elicitation_callback=Person(before=True)) as caller:
            done = caller.call("execute_workflow", workflow="gated-graph")
            assert done["status"] == "completed" and done["output"] == {"one": 1, "two": 2}


# Every tool.


@pytest.mark.parametrize("revision", [OLD, NEW])
def test_every_tool_says_what_it_does_and_returns_what_it_declares(portal, shared, revision):
    """R2.4: the tools, with structured output that the client checks against their schemas."""
    with connected(portal, shared.url, mode=revision) as caller:
        listed = {tool.name: tool for tool in portal.call(caller.client.list_tools).tools}
        assert set(listed) == set(TOOLS) - {"execute_inline_workflow"}
        for tool in listed.values():
            assert tool.description and tool.output_schema and tool.annotations
            assert all(field.get("description") for field in tool.input_schema.get("properties", {}).values())
        assert listed["get_run"].annotations.read_only_hint
        assert listed["delete_checkpoint"].annotations.destructive_hint

        names = [each["name"] for each in caller.call("list_workflows")["workflows"]]
        assert names == ["fragile", "large", "publish", "secret"]
        assert caller.call("get_workflow_info", workflow="publish")["steps"][1]["name"] == "approve"
        assert "topic" in caller.call("get_workflow_schema", workflow="publish")["schema"]["properties"]
        assert "steps" in caller.call("get_workflow_schema")["schema"]["properties"]
        checked = caller.call("validate_workflow", text="workflow: x\nsteps:\n  - name: a\n")
        assert not checked["valid"] and checked["problems"]
        assert caller.call("reload_workflows") == {"added": [], "changed": [], "removed": []}

        run_id = paused_run(caller)
        assert caller.call("get_run", run_id=run_id)["progress"] == {"done": 1, "total": 5}
        assert caller.call("get_job_status", job_id=run_id)["status"] == "paused"
        assert caller.call("get_step", run_id=run_id, step="draft")["step"]["output"] == "all about tides"
        assert run_id in [run["run_id"] for run in caller.call("list_runs", status="paused")["runs"]]
        assert len(caller.call("list_jobs", limit=1)["runs"]) == 1
        assert caller.call("get_state", run_id=run_id, path="/draft/output")["state"] == "all about tides"
        points = caller.call("history", run_id=run_id)["checkpoints"]
        assert caller.call("list_checkpoints", run_id=run_id)["checkpoints"]
        ident = points[-1]["checkpoint_id"]
        point = caller.call("get_checkpoint_info", checkpoint_id=points[0]["checkpoint_id"])
        assert point["run_id"] == run_id and point["progress"] == {"done": 1, "total": 5}
        assert caller.call("diff", a=ident, b=points[0]["checkpoint_id"])["diff"]
        planned = caller.call("plan_resume", run_id=run_id)
        assert [step["what"] for step in planned["steps"]][:2] == ["kept", "asked"]
        assert "queues" in caller.call("queue_stats")

        forked = caller.call("fork", run_id=run_id, checkpoint=points[0]["checkpoint_id"])
        assert forked["run_id"] != run_id and forked["status"] == "paused"
        assert caller.call("cancel", run_id=forked["run_id"])["status"] == "cancelled"
        rerun = caller.call("rerun", run_id=run_id, step="draft", update={"inputs.topic": "moons"})
        assert (
            caller.call("get_state", run_id=rerun["run_id"])["state"]["draft"]["output"] == "all about moons"
        )
        assert caller.call("cancel_job", job_id=rerun["run_id"])["status"] == "cancelled"
        assert caller.call("delete_checkpoint", checkpoint_id=points[-1]["checkpoint_id"])["deleted"]


def test_a_failed_run_is_resumed_and_repeats_nothing(portal, folder):
    """R2.4, R2.5: the reply says why the run failed and which calls come next; finished steps are kept."""
    with (
        Service(f"sqlite:///{folder}/runs.db", [folder]) as service,
        connected(portal, McpServer(service).server) as caller,
    ):
        found = caller.call("execute_workflow", workflow="fragile")
        assert found["status"] == "failed" and "the gate is closed" in str(found["error"])
        assert [each["tool"] for each in found["next_calls"]] == ["plan_resume", "resume"]
        (folder / "open").touch()
        assert caller.call("resume", run_id=found["run_id"])["output"] == "through"
        assert ran(folder) == ["first", "gated", "gated"]
        prompt = portal.call(caller.client.get_prompt, "explain_run", {"run_id": found["run_id"]})
        attached = prompt.messages[-1].content
        assert isinstance(attached, types.EmbeddedResource) and found["run_id"] in attached.resource.text


def test_a_run_can_be_started_without_waiting_for_it_and_paused(new):
    """R2.4, R2.5: mode async returns at once; the run is looked at by its id."""
    found = new.call(
        "execute_workflow", workflow="publish", inputs={"topic": "tides"}, mode="async", run_id="by-name"
    )
    assert found["run_id"] == "by-name" and found["status"] in ("queued", "running", "paused")
    assert new.error("execute_workflow", workflow="publish", inputs={"topic": "x"}, run_id="by-name")[
        "code"
    ] == ("run_exists")


# Errors.


def test_errors_name_the_calls_that_help(new):
    """R2.4: remedies are calls of tools; bad arguments are all named, with what was meant."""
    unknown = new.error("execute_workflow", workflow="publsh")
    assert "publish" in unknown["problem"]
    assert unknown["remedies"] == [{"call": {"tool": "list_workflows", "arguments": {}}}]
    missing = new.error("get_run", run_id="nowhere")
    assert missing["code"] == "run_not_found" and "sqlite" not in str(missing)
    assert {"call": {"tool": "list_runs", "arguments": {}}} in missing["remedies"]
    wrong = new.error("get_run", runid="x", more=1)
    assert "did you mean 'run_id'" in wrong["problem"] and "'more'" in wrong["problem"]
    assert wrong["code"] == "bad_arguments"
    assert "topic" in new.error("execute_workflow", workflow="publish", inputs={"topik": "x"})["problem"]
    assert "stands for" in new.error("answer", run_id="x", value="<the answer>")["problem"]
    assert "there is no tool" in new.error("get_runn")["problem"]
    with pytest.raises(MCPError, match="no resource"):
        new.portal.call(new.client.read_resource, "holdfast://elsewhere/x")
    with pytest.raises(MCPError, match="nowhere"):
        new.portal.call(new.client.read_resource, "holdfast://runs/nowhere")


def test_only_workflows_of_the_operator_can_be_named(new, portal, folder):
    """R2.4: a client can name no file and no program, and sends workflows only if the operator allows it."""
    for name in ("workflows/publish.yaml", "os:system", "../publish"):
        assert new.error("execute_workflow", workflow=name)["code"] == "unknown_workflow"
    text = "workflow: {name: mine}\nsteps:\n  - name: count\n    set: {sum: '{{ 1 + 2 }}'}\n"
    assert "takes no workflows" in new.error("execute_inline_workflow", text=text)["problem"]
    with (
        Service(f"sqlite:///{folder}/runs.db", [folder], allow_inline=True) as service,
        connected(portal, McpServer(service).server) as caller,
    ):
        assert caller.call("execute_inline_workflow", text=text)["status"] == "completed"


def test_a_read_only_server_lists_and_does_nothing_that_changes_runs(portal, folder):
    """R2.4: read-only: the tools that act are not offered, and refused if they are called."""
    service = Service(f"sqlite:///{folder}/runs.db", [folder], read_only=True).start()
    try:
        with connected(portal, McpServer(service).server) as caller:
            listed = portal.call(caller.client.list_tools).tools
            assert {tool.name for tool in listed} == {name for name, tool in TOOLS.items() if tool.is_reading}
            assert (
                caller.error("execute_workflow", workflow="publish", inputs={"topic": "x"})["code"]
                == "read_only"
            )
            assert caller.error("reload_workflows")["code"] == "read_only"
    finally:
        service.close()
    assert ran(folder) == []


# What is sent.


def test_a_large_state_is_cut_and_can_be_read_to_its_end(new):
    """R2.4: a reply has a bounded size; what was left out is named with the call that reads it."""
    run_id = new.call("execute_workflow", workflow="large")["run_id"]
    result = new.result("get_state", run_id=run_id)
    assert len(result.content[0].text) < 60_000
    left_out = {note["path"]: note for note in result.structured_content["left_out"]}
    note = left_out["/state/fill/output/rows"]
    assert note["of"] == 3_000 and note["unit"] == "items"
    call, rows = note["read_on_with"], result.structured_content["state"]["fill"]["output"]["rows"]
    for _ in range(3):
        found = new.call(call["tool"], **call["arguments"])
        rows += found["state"]
        [note] = found["left_out"]
        call = note["read_on_with"]
    assert [row["number"] for row in rows] == list(range(len(rows))) and len(rows) > 500
    end = new.call("get_state", run_id=run_id, path="/fill/output/rows", offset=2_999)
    assert end["state"][0]["number"] == 2_999 and "left_out" not in end
    text = new.call("get_state", run_id=run_id, path="/fill/output/long", offset=49_990)
    assert text["state"] == "y" * 10
    assert "no key 'nothing'" in new.error("get_state", run_id=run_id, path="/fill/nothing")["problem"]
    resource = new.portal.call(new.client.read_resource, f"holdfast://runs/{run_id}/state").contents[0]
    assert len(resource.text) < 60_000 and "get_state" in resource.text


def test_secrets_are_never_shown(new):
    """R2.7: the value of a secret reaches no reply and no resource."""
    found = new.call("execute_workflow", workflow="secret")
    assert found["status"] == "completed" and "***" in found["output"]
    run_id = found["run_id"]
    for reply in (
        new.result("get_run", run_id=run_id).content[0].text,
        new.result("get_state", run_id=run_id).content[0].text,
        new.result("get_step", run_id=run_id, step="use").content[0].text,
        new.result("history", run_id=run_id).content[0].text,
        new.portal.call(new.client.read_resource, f"holdfast://runs/{run_id}/events").contents[0].text,
    ):
        assert "hunter2" not in reply


def test_runs_can_be_attached_and_say_who_asked(new):
    """R2.4: resources of a run; what acted on it is journalled with the name of the client."""
    run_id = paused_run(new)
    new.call("answer", run_id=run_id, value="no")
    listed = new.portal.call(new.client.list_resources).resources
    assert f"holdfast://runs/{run_id}" in [str(each.uri) for each in listed]
    templates = new.portal.call(new.client.list_resource_templates).resource_templates
    assert [each.uri_template for each in templates] == [
        "holdfast://runs/{id}",
        "holdfast://runs/{id}/state",
        "holdfast://runs/{id}/events",
    ]
    events = new.portal.call(new.client.read_resource, f"holdfast://runs/{run_id}/events").contents[0].text
    assert '"by": "mcp (mcp' in events
    prompts = new.portal.call(new.client.list_prompts).prompts
    assert [prompt.name for prompt in prompts] == ["resume_what_failed", "explain_run"]


def noted(folder: Path) -> list[dict[str, str]]:
    """The calls that are journalled, those of each process together."""
    with Service(f"sqlite:///{folder}/runs.db?namespace=default.calls", read_only=True) as service:
        names = sorted(run["run_id"] for run in service.runs(limit=500)["runs"])
        found = [each for name in names for each in service.events(name)]
    return [dict(each["data"]) for each in found if each["type"] == "command"]


def test_every_call_is_journalled_with_who_asked(portal, folder):
    """R2.4: calls that look, that act and that are refused, each before it is carried out; no values of inputs."""
    server = HttpServer(folder)
    with connected(portal, server.url, mode=NEW) as caller:
        caller.call("list_workflows")
        run_id = caller.call("execute_workflow", workflow="publish", inputs={"topic": "hunter2"})["run_id"]
        caller.call("get_state", run_id=run_id, path="/inputs")
        caller.error("cancel", run_id=run_id, force=True)
        [newest] = caller.call("list_checkpoints", run_id=run_id, limit=1)["checkpoints"]
        caller.call("delete_checkpoint", checkpoint_id=newest["checkpoint_id"])
        caller.call("reload_workflows")
    server.kill()
    calls = noted(folder)
    assert [call["command"] for call in calls] == [
        *("list_workflows", "execute_workflow", "get_state", "cancel"),
        *("list_checkpoints", "delete_checkpoint", "reload_workflows"),
    ]
    assert all(call["by"].startswith("mcp (mcp") for call in calls)
    said = [call["why"] for call in calls]
    assert said[1].startswith("workflow=publish, inputs") and "hunter2" not in str(calls)
    assert said[2] == f"run_id={run_id}, path=/inputs"
    assert said[5] == f"checkpoint_id={newest['checkpoint_id']}"
    assert [call["refused"] for call in calls] == ["", "", "", "bad_arguments", "", "", ""]


def test_what_is_asked_in_other_ways_is_journalled_too(portal, folder):
    """R2.4: tools that do not exist, resources, and the forms that a call brings; secrets of workflows are left out."""
    with (
        Service(f"sqlite:///{folder}/runs.db", [folder]) as service,
        connected(portal, McpServer(service).server) as caller,
    ):
        run, other = paused_run(caller), paused_run(caller)
        key = form_key(run, service.run(run)["pauses"][0])
        forms = {key: types.ElicitResult(action="accept", content={"answer": "yes"})}

        def with_forms(tool, **arguments):
            call = caller.client.session.call_tool
            return portal.call(
                partial(call, tool, arguments, input_responses=forms, allow_input_required=True)
            )

        assert "cancel asks nothing" in str(with_forms("cancel", run_id=other).content)
        assert "is about" in str(with_forms("answer", run_id=other, value="yes").content)
        assert "execute_workflow is about" in str(with_forms("execute_workflow", workflow="fragile").content)
        assert [service.status(each)["status"] for each in (run, other)] == ["paused", "paused"]
        with_forms("execute_workflow", workflow="publish", inputs={"topic": "tides"})
        assert "no tool" in caller.error("lst_runs")["problem"]
        portal.call(caller.client.read_resource, f"holdfast://runs/{run}/state")
    said = [(call["command"], call["why"], call["refused"]) for call in noted(folder)][2:]
    form = f"form of run_id={run} pause="
    assert [(command, code) for command, _, code in said] == [
        *(("cancel", "bad_arguments"), ("answer", "bad_arguments")),
        *(("execute_workflow", ""), ("execute_workflow", "")),
        *(("lst_runs", "bad_arguments"), ("resources/read", "")),
    ]
    assert said[0][1].startswith(f"run_id={other}, {form}")
    assert said[3][1].startswith(f"workflow=publish, inputs, {form}")
    assert said[5][1] == f"uri=holdfast://runs/{run}/state"


def test_calls_of_a_read_only_server_are_journalled_too(portal, folder):
    """R2.4: beside the runs, which it leaves as they are; a server that cannot write goes on and logs them."""
    store = f"sqlite:///{folder}/runs.db"
    with Service(store, [folder], read_only=True) as service:
        with connected(portal, McpServer(service).server) as caller:
            caller.call("list_runs", status="failed")
            caller.error("cancel", run_id="r1")
        assert service.runs()["runs"] == []
    said = [(call["command"], call["why"], call["refused"]) for call in noted(folder)]
    assert said == [("list_runs", "status=failed", ""), ("cancel", "run_id=r1", "read_only")]
    for path in folder.glob("runs@default.calls.db*"):
        path.unlink()
    Path(f"{folder}/runs@default.calls.db").write_bytes(b"another file" * 1000)
    with (
        Service(store, [folder], read_only=True) as service,
        connected(portal, McpServer(service).server) as caller,
    ):
        assert caller.call("list_runs")["runs"] == []
    with Service(store, [folder]) as service, connected(portal, McpServer(service).server) as caller:
        assert "calls" in caller.error("list_runs")["problem"]


# Killed servers.


def test_a_long_run_is_a_task_that_survives_a_killed_server(portal, folder):
    """R2.4, R2.5: a task is a run: looked at, answered and finished by a server that was started after a kill -9."""
    server = HttpServer(folder, tasks=True)
    try:
        with connected(portal, server.url, extensions=[KnowsTasks()]) as caller:
            arguments = {"workflow": "publish", "inputs": {"topic": "tides"}}
            call = partial(caller.client.session.call_tool, "execute_workflow", arguments, allow_claimed=True)
            task = portal.call(call)
            assert isinstance(task, Task)
        server.kill()
        server.start()
        with connected(portal, server.url, extensions=[KnowsTasks()]) as caller:
            while (found := task_request(caller, "tasks/get", task.task_id))["status"] == "working":
                pass
            [(key, form)] = found["inputRequests"].items()
            assert "Publish the text?" in form["params"]["message"]
            answer = types.ElicitResult(action="accept", content={"answer": "yes"})
            task_request(caller, "tasks/update", task.task_id, input_responses={key: answer})
            while not (found := task_request(caller, "tasks/get", task.task_id)).get(
                "inputRequests", {}
            ).keys() - {key}:
                assert found["status"] in ("working", "input_required")
            [key] = found["inputRequests"]
            answer = types.ElicitResult(action="accept", content={"answer": 5})
            task_request(caller, "tasks/update", task.task_id, input_responses={key: answer})
            while (found := task_request(caller, "tasks/get", task.task_id))["status"] != "completed":
                assert found["status"] in ("working", "input_required")
            assert found["result"]["structuredContent"]["output"] == "archived"
            task_request(caller, "tasks/cancel", caller_run(caller))
            with pytest.raises(MCPError, match="nowhere"):
                task_request(caller, "tasks/get", "nowhere")
        with connected(portal, server.url) as caller, pytest.raises(MCPError, match="knows tasks"):
            task_request(caller, "tasks/get", task.task_id)
    finally:
        server.kill()
    assert ran(folder).count("draft") == 2 and ran(folder).count("archive") == 1
    said = [(call["command"], call["why"]) for call in noted(folder) if call["command"].startswith("tasks/")]
    assert [command for command, _ in said] == ["tasks/update", "tasks/update", "tasks/cancel"]
    assert said[0][1].startswith(f"task_id={task.task_id}, form of run_id={task.task_id} pause=")


def caller_run(caller: Caller) -> str:
    """A run that waits, started by a client that knows tasks."""
    arguments = {"workflow": "publish", "inputs": {"topic": "tides"}, "mode": "async"}
    return str(caller.call("execute_workflow", **arguments)["run_id"])


# Layers of DAGs.


def test_a_dag_is_continued_replanned_and_aborted_by_its_run_id(portal, tmp_path):
    """R0.8: a run that pauses after each layer is continued, replanned, approved and aborted by tools."""
    done: list[str] = []

    def note(text: str) -> None:
        done.append(text)

    url = f"sqlite:///{tmp_path}/runs.db"
    executor = ControlledExecutor(Tools(note), url, decisions="per_layer")
    tasks = [
        {"id": "a", "tool": "note", "arguments": {"text": "a"}},
        {"id": "b", "tool": "note", "arguments": {"text": "b"}, "depends_on": ["a"]},
        {"id": "c", "tool": "note", "arguments": {"text": "c"}, "depends_on": ["b"]},
    ]
    other = [{"id": "d", "tool": "note", "arguments": {"text": "d"}, "depends_on": ["b"]}]
    with Service(url, [executor.app]) as service, connected(portal, McpServer(service).server) as caller:
        run_id = executor.submit({"tasks": tasks})
        assert followed(caller, run_id)["status"] == "paused"
        assert caller.call("answer", run_id=run_id, value={"action": "continue"})["status"] == "paused"
        assert done == ["a", "b"]
        replanned = caller.call("answer", run_id=run_id, value={"action": "replan", "tasks": other})
        assert replanned["status"] == "paused" and done == ["a", "b", "d"]
        aborted = caller.call("answer", run_id=run_id, value={"action": "abort", "reason": "enough"})
        assert aborted["status"] == "failed" and "enough" in str(aborted["error"])


def followed(caller: Caller, run_id: str) -> dict[str, object]:
    """A run that somebody submitted, when it pauses or ends."""
    while (found := caller.call("get_run", run_id=run_id))["status"] in ("queued", "running"):
        pass
    return found


def test_the_command_names_the_extra_that_is_missing(tmp_path):
    """Without the extra, the command says what to install."""
    code = "import sys; sys.modules['mcp'] = None; from holdfast.__main__ import script; sys.exit(script())"
    done = subprocess.run(
        [sys.executable, "-c", code, "mcp"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 3 and "pip install 'holdfast[mcp]'" in done.stderr


@pytest.mark.parametrize("is_disk_full", [False, True], ids=["", "disk full"])
def test_a_signal_ends_the_server_although_its_client_is_there(folder, is_disk_full):
    """R2.4: Ctrl+C ends a server that waits for its client, with the exit code of an interrupt."""
    server = stdio_server(folder)
    pipe = subprocess.PIPE
    with subprocess.Popen([server.command, *server.args], stdin=pipe, stdout=pipe, text=True) as process:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        assert "survive crashes" in json.loads(process.stdout.readline())["result"]["instructions"]
        if is_disk_full:  # The journal of calls has begun, and cannot be ended.
            for message in (
                {"method": "notifications/initialized"},
                {"id": 2, "method": "tools/call", "params": {"name": "list_workflows", "arguments": {}}},
            ):
                process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == 2
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_a_client_that_goes_away_during_a_call_ends_the_server_quietly(folder):
    """R2.4: both pipes closed at once; the run that was waited for is there, and goes on with the next server."""
    server = stdio_server(folder)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [server.command, *server.args], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
        call = {"name": "execute_workflow", "arguments": {"workflow": "publish", "inputs": {"topic": "x"}}}
        for message in (
            {
                "id": 1,
                "method": "initialize",
                "params": {**hello, "clientInfo": {"name": "x", "version": "1"}},
            },
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        with Service(f"sqlite:///{folder}/runs.db", read_only=True) as service:
            while not (runs := service.runs(status="paused")["runs"]):
                time.sleep(0.01)
        process.stdin.close()
        assert process.wait() == 0 and "Traceback" not in process.stderr.read()
    with Service(f"sqlite:///{folder}/runs.db", [folder]) as service:
        service.answer(runs[0]["run_id"], "no")
        assert service.wait(runs[0]["run_id"], 60)["pauses"][0]["prompt"] == "How good is it?"
