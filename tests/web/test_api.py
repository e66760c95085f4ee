"""The HTTP API: workflows, runs, commands, events, capsules, and errors as problem documents."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import holdfast
from holdfast import END, START, StateGraph
from holdfast.errors import StoreError
from holdfast.service import Service
from holdfast.service.roles import NEEDS
from holdfast.web import asgi
from holdfast.web.endpoints import ENDPOINTS, openapi
from tests.service.conftest import GREET, REVIEW

API = "/api/v1"


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(f"{API}{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(client: TestClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(f"{API}{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def paused(client: TestClient) -> str:
    found = post(client, "/workflows/review/runs", wait=60)
    assert found["status"] == "paused"
    return str(found["run_id"])


def test_every_endpoint_names_a_method_of_the_service_and_its_role() -> None:
    for endpoint in ENDPOINTS:
        assert callable(getattr(Service, endpoint.call)), endpoint.path
        assert not endpoint.acts or endpoint.call in (*NEEDS, "validate"), endpoint.path


def test_a_run_is_submitted_executed_listed_and_shown(client: TestClient) -> None:
    """R3.7: a workflow is executed by POST, and its runs and stages are listed and shown."""
    done = post(client, "/workflows/greet/runs", inputs={"name": "Ada"}, run_id="web-1", wait=60, tags=["x"])
    assert (done["status"], done["output"]) == ("completed", "hello Ada")
    assert [line["run_id"] for line in get(client, "/runs", tag="x", status="completed")["runs"]] == ["web-1"]
    run = get(client, "/runs/web-1")
    assert run["output"] == "hello Ada" and [step["name"] for step in run["steps"]] == ["write"]
    assert get(client, "/runs/web-1/steps/write")["output"] == "hello Ada"
    assert get(client, "/runs/web-1/state", keys="inputs")["state"]["inputs"]["name"] == "Ada"
    assert get(client, "/runs/web-1/wait", seconds=1)["status"] == "completed"
    assert len(get(client, "/runs/web-1/history")["checkpoints"]) == len(
        get(client, "/checkpoints", run_id="web-1")
    )
    assert get(client, "/workflows/greet")["inputs"]["required"] == ["name"]
    assert get(client, "/costs", by="day")["total"]["cost"] == 0
    assert client.get("/metrics").text.count('holdfast_runs{status="completed"} 1') == 1


def test_a_question_is_answered_over_http(client: TestClient) -> None:
    """R2.6: a paused run carries its prompt; the call that answers it is in the problem of a resume."""
    run = paused(client)
    [pause] = get(client, f"/runs/{run}/status")["pauses"]
    assert pause["prompt"] == "Publish it?"
    refused = post(client, f"/runs/{run}/resume", status=409)
    assert refused["code"] == "command_refused"
    assert refused["remedies"][0]["path"] == f"{API}/runs/{run}/answer"

    post(client, f"/runs/{run}/answer", value="yes", question=pause["question"])

    assert get(client, f"/runs/{run}/wait", seconds=60)["output"] == "published yes"


def test_runs_are_steered_forked_and_moved(client: TestClient) -> None:
    run = paused(client)
    assert post(client, f"/runs/{run}/edit", update={"inputs.topic": "ebb"})["applied"]
    fork = post(client, f"/runs/{run}/fork", at="@draft")["run_id"]
    assert get(client, f"/runs/{fork}/wait", seconds=60)["status"] == "paused"
    assert post(client, f"/runs/{fork}/cancel", reason="no")["status"] == "cancelled"
    again = post(client, f"/runs/{run}/rerun", step="draft")["run_id"]
    assert get(client, f"/runs/{again}/wait", seconds=60)["status"] == "paused"
    assert post(client, f"/runs/{again}/promote")["run"]["run_id"] == run
    assert get(client, "/diff", one=fork, other=again)
    capsule = client.get(f"{API}/runs/{run}/capsule")
    assert capsule.headers["content-type"] == "application/octet-stream"
    assert client.delete(f"{API}/runs/{fork}").json()["deleted"]
    imported = client.post(f"{API}/runs/import", content=capsule.content)
    assert imported.status_code == 200 and imported.json()["outcome"] == "unchanged"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/runs/nobody", 404, "run_not_found"),
        ("/workflows/nothing", 404, "unknown_workflow"),
        ("/runs?limit=0", 400, "request_invalid"),
        ("/runs?limit=x", 400, "request_invalid"),
        ("/runs?colour=red", 400, "request_invalid"),
        ("/runs?status=ill", 400, "request_invalid"),
        ("/runs?cursor=!", 400, "request_invalid"),
        ("/diff", 400, "request_invalid"),
        ("/diff?one=nobody", 404, "run_not_found"),
        ("/nowhere", 404, "no_such_path"),
    ],
)
def test_errors_are_problem_documents(client: TestClient, path: str, status: int, code: str) -> None:
    answer = client.get(f"{API}{path}")

    assert answer.status_code == status and answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code and answer.json()["detail"]
    assert "sqlite" not in answer.text


@pytest.mark.parametrize("root", ["", "/jobs"])
def test_names_may_have_any_signs(tmp_path: Path, root: str) -> None:
    """A quoted slash is a part of a name; no path of the API hides a workflow."""
    (tmp_path / "schema.yaml").write_text(GREET.replace("name: greet", "name: schema"))
    (tmp_path / "slash.yaml").write_text(REVIEW.replace("name: review", "name: the review"))
    inner = asgi(f"sqlite:///{tmp_path / 'runs.db'}", [tmp_path], hosts=("testserver",))
    app = Starlette(routes=[Mount(root, inner)], lifespan=lambda _: inner.router.lifespan_context(inner))
    with TestClient(app if root else inner) as client:
        for name in ("a/b", "100%", "a%2Fb", "x/state", "ü?&#", "/"):
            quoted = quote(name, safe="")
            body = {"run_id": name, "wait": 60}
            made = client.post(f"{root}{API}/workflows/the%20review/runs", json=body)
            assert made.json()["status"] == "paused", made.text
            assert client.get(f"{root}{API}/runs/{quoted}").json()["run_id"] == name
            assert client.get(f"{root}{API}/runs/{quoted}/state").json()["run_id"] == name
            assert client.get(f"{root}{API}/runs/{quoted}/steps/draft").json()["output"] == "on tides"
            assert client.post(f"{root}{API}/runs/{quoted}/cancel").status_code == 200
            while client.get(f"{root}{API}/runs/{quoted}/status").json()["status"] != "cancelled":
                time.sleep(0.01)  # Its execution may be about to end, and takes the command then.
        assert client.get(f"{root}{API}/workflows/schema").json()["name"] == "schema"
        assert "name" in client.get(f"{root}{API}/workflows/schema/schema").json()["properties"]
        assert "steps" in client.get(f"{root}{API}/schema").json()["properties"]


def test_errors_do_not_say_where_things_are_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the store nor the code of Holdfast: the frames of a trace are those of the user."""

    def fail(state: dict[str, Any]) -> None:
        raise ValueError("no such luck")

    graph = StateGraph(dict, name="unlucky").add_node("fail", fail)
    graph.add_edge(START, "fail").add_edge("fail", END)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with TestClient(asgi(url, [graph], hosts=("testserver",))) as client:
        done = post(client, "/workflows/unlucky/runs", wait=60, run_id="r")
        twice = post(client, "/workflows/unlucky/runs", status=409, run_id="r")
        assert twice["detail"] == "run 'r' exists and is failed" and str(tmp_path) not in str(twice)
        step = get(client, "/runs/r/steps/fail")
        for error in (done["error"], get(client, "/runs/r")["error"], step["error"]):
            assert "test_api.py" in error["trace"] and "ValueError: no such luck" in error["trace"]
            assert str(Path(holdfast.__file__).parent) not in error["trace"]
        store = client.app.state.context.services["default"].store  # type: ignore[attr-defined]

        def lost(**given: Any) -> Any:
            raise StoreError(f"{url} cannot be read")

        monkeypatch.setattr(store, "runs", lost)
        answer = client.get(f"{API}/runs")
        assert answer.status_code == 503 and str(tmp_path) not in answer.text


def test_a_key_that_the_state_does_not_have_is_named(client: TestClient) -> None:
    run = paused(client)
    answer = client.get(f"{API}/runs/{run}/state?keys=drafd")
    assert answer.status_code == 400 and answer.json()["code"] == "request_invalid"
    assert "no key 'drafd'; did you mean 'draft'?; its keys: " in answer.json()["detail"]
    assert "inputs" in answer.json()["detail"]


def test_bad_bodies_are_refused(client: TestClient) -> None:
    path = f"{API}/workflows/greet/runs"
    for body, what in (
        ('{"inputs": 1}', "inputs must be of type object"),
        ('{"wait": -1}', "wait must be from 0"),
        ('{"colour": "red"}', "no field 'colour'"),
        ("[1]", "must be a JSON object"),
        ("{", "no JSON"),
        ('{"wait": NaN}', "no JSON"),
        ("[" * 100_000, "no JSON"),
    ):
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and what in answer.json()["detail"], answer.text
    assert client.post(path, content="{}", headers={"content-type": "text/plain"}).status_code == 400
    missing = post(client, "/workflows/greet/runs", status=422)
    assert "'name' is missing" in missing["detail"]
    many = client.post(path, content=b"x" * 5_000_001, headers={"content-type": "application/json"})
    assert many.status_code == 413


def streamed(client: TestClient, run: str, after: str | None, most: int) -> list[dict[str, Any]]:
    """The first events of a stream, which is then dropped."""
    headers = {"accept": "text/event-stream", **({} if after is None else {"last-event-id": after})}
    found: list[dict[str, Any]] = []
    with client.stream("GET", f"{API}/runs/{run}/events", headers=headers) as answer:
        if answer.status_code == 204:
            return []
        for line in answer.iter_lines():
            if line.startswith("data: {") and line != "data: {}":
                found.append(json.loads(line.removeprefix("data: ")))
            if line == "event: end" or len(found) == most:
                break
    return found


def test_a_dropped_stream_goes_on_without_loss_or_repeats(client: TestClient) -> None:
    """R3.7: events as a stream; Last-Event-ID continues after any of them."""
    run = post(client, "/workflows/greet/runs", inputs={"name": "s"}, wait=60)["run_id"]
    every = get(client, f"/runs/{run}/events")
    found: list[dict[str, Any]] = []
    while True:
        page = streamed(client, run, found[-1]["id"] if found else None, 2)
        found += page
        if not page:
            break
    assert found == every and len(every) > 4


def test_the_openapi_document_is_made_of_the_table(client: TestClient) -> None:
    document = client.get(f"{API}/openapi.json").json()
    assert document["openapi"] == "3.1.0" and len(document["paths"]) > 30
    post_ = document["paths"]["/api/v1/runs/{run_id}/answer"]["post"]
    assert post_["x-role"] == "answer"
    events = document["paths"]["/api/v1/runs/{run_id}/events"]["get"]
    assert "204" in events["responses"] and "Last-Event-ID" in [each["name"] for each in events["parameters"]]
    assert {"/metrics", f"{API}/login-links", f"{API}/openapi.json"} <= document["paths"].keys()
    assert document["security"] == [{"token": []}] and openapi(has_tokens=False)["security"][1] == {}
    opened = {
        path for path, methods in document["paths"].items() if methods.get("get", {}).get("security") == []
    }
    assert opened == {f"{API}/health", f"{API}/ready", f"{API}/openapi.json"}
    assert "x-role" not in document["paths"][f"{API}/health"]["get"]
    for path, methods in document["paths"].items():
        for found in methods.values():
            schema = found["responses"]["200"]["content"].get("application/json", {}).get("schema")
            assert schema is None or schema["type"] in ("object", "array"), path


def test_what_workflows_wrote_is_data_and_secrets_stay_out(client: TestClient, folder: Path) -> None:
    run = post(client, "/workflows/greet/runs", inputs={"name": "<script>x</script>"}, wait=60)
    answer = client.get(f"{API}/runs/{run['run_id']}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
