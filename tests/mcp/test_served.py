"""The MCP server of `holdfast serve --mcp`: the same tools over streamable HTTP, with the tokens of the HTTP API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from holdfast.mcp.forms import form_key
from holdfast.mcp.server import McpServer
from holdfast.service import Service
from holdfast.web import Caller, Tokens, asgi
from tests.mcp.servers import connected, write_workflows
from tests.mcp.test_mcp import gated_app
from tests.web.test_serve import serving


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_models_are_served_over_http(tmp_path: Path, mode: str) -> None:
    """R2.4: tools over streamable HTTP, for clients of old and new revisions; who asked is journalled."""
    folder, url = write_workflows(tmp_path / "workflows"), f"sqlite:///{tmp_path / 'runs.db'}"
    with (
        serving(tmp_path, str(folder), "--mcp", "--store", url) as (_, facts),
        start_blocking_portal() as portal,
        connected(portal, f"{facts['address']}/mcp", mode=mode) as caller,
    ):
        found = caller.call("execute_workflow", workflow="publish", inputs={"topic": "tides"})
        assert found["status"] == "paused"
        caller.call("answer", run_id=found["run_id"], value="no")
        events = httpx2.get(f"{facts['api']}/runs/{found['run_id']}/events").json()
    assert "local by mcp" in json.dumps([each for each in events if each["type"] == "answer"])


def test_tokens_hosts_and_roles_hold_for_models_too(tmp_path: Path) -> None:
    """R1.13: the same checks as for the HTTP API."""
    folder, url = write_workflows(tmp_path / "workflows"), f"sqlite:///{tmp_path / 'runs.db'}"
    tokens = Tokens([("r" * 20, Caller("reader", "read")), ("o" * 20, Caller("op", "operate"))])
    app = asgi(
        url,
        [folder],
        tokens=tokens,
        hosts=("testserver",),
        mcp=lambda service: McpServer(service).over_http(),
    )

    with TestClient(app) as client:

        def called(token: str, **headers: str) -> Any:
            params = {
                "name": "execute_workflow",
                "arguments": {"workflow": "publish", "inputs": {"topic": "x"}},
            }
            return client.post(
                "/mcp",
                json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
                headers={
                    "authorization": f"Bearer {token}",
                    "accept": "application/json, text/event-stream",
                    "mcp-protocol-version": "2025-06-18",
                    **headers,
                },
            )

        assert called("w" * 20).status_code == 401
        assert called("o" * 20, host="evil.example").status_code == 403
        assert called("o" * 20, origin="https://evil.example").status_code == 403
        assert "needs 'operate'" in called("r" * 20).text.replace('\\"', '"')
        assert (
            client.get("/api/v1/runs", headers={"authorization": f"Bearer {'r' * 20}"}).json()["runs"] == []
        )
        assert "paused" in called("o" * 20).text


def test_a_gate_is_passed_only_by_a_token_that_may_resume(tmp_path: Path) -> None:
    """R1.13: also by its form, which a tool or the extension for tasks brings."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    tokens = Tokens([("a" * 20, Caller("reviewer", "answer")), ("o" * 20, Caller("op", "operate"))])

    def mcp(service: Service) -> Any:
        return McpServer(service, tasks=True).over_http()

    with TestClient(asgi(url, [gated_app(url)], tokens=tokens, hosts=("testserver",), mcp=mcp)) as client:

        def called(token: str, method: str, target: str, **params: Any) -> Any:
            knows = {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
            about = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": knows,
            }
            return client.post(
                "/mcp",
                json={"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": about}},
                headers={
                    "authorization": f"Bearer {token}",
                    "accept": "application/json, text/event-stream",
                    "mcp-protocol-version": "2026-07-28",
                    "mcp-method": method,
                    "mcp-name": target,
                },
            ).text

        operator = {"authorization": f"Bearer {'o' * 20}"}
        made = client.post("/api/v1/workflows/gated-graph/runs", json={"wait": 60}, headers=operator).json()
        run, path = made["run_id"], f"/api/v1/runs/{made['run_id']}/wait?seconds=60"
        forms = {
            form_key(run, made["pauses"][0]): {"action": "accept", "content": {"answer": True}},
        }
        update = {"taskId": run, "inputResponses": forms}
        given = {"name": "answer", "arguments": {"run_id": run, "value": 0}, "inputResponses": forms}
        for refused in (
            called("a" * 20, "tasks/update", run, **update),
            called("a" * 20, "tools/call", "answer", **given),
        ):
            assert "forbidden" in refused and "needs 'operate'" in refused
        assert client.get(path, headers=operator).json()["status"] == "paused"
        called("o" * 20, "tasks/update", run, **update)
        assert client.get(path, headers=operator).json()["status"] == "completed"


def test_an_app_of_another_program_mounts_it(tmp_path: Path) -> None:
    """At a sub-path: the API, its pages and their links."""
    folder, url = write_workflows(tmp_path / "workflows"), f"sqlite:///{tmp_path / 'runs.db'}"
    inner = asgi(url, [folder], hosts=("testserver",))
    outer = Starlette(
        routes=[Mount("/holdfast", inner)], lifespan=lambda _: inner.router.lifespan_context(inner)
    )
    with TestClient(outer) as client:
        body = {"inputs": {"topic": "x"}, "wait": 60}
        run = client.post("/holdfast/api/v1/workflows/publish/runs", json=body).json()
        assert run["status"] == "paused"
        assert client.get(f"/holdfast/api/v1/runs/{run['run_id']}").json()["status"] == "paused"
        page = client.get("/holdfast/", headers={"accept": "text/html"})
        assert (
            page.status_code == 200
            and page.url.path == "/holdfast/runs"
            and 'href="/holdfast/runs"' in page.text
        )
