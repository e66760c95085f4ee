"""A scripted model that loses its connection at every call, and its server now and then: nothing is done twice."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anyio.from_thread import start_blocking_portal

from holdfast.service.service import Service
from tests.mcp.servers import HttpServer, connected, ran, write_workflows


class Model:
    """Makes each call three times with the same key: it loses the first connection at once, and the second reply."""

    def __init__(self, portal: Any, server: HttpServer) -> None:
        self._portal, self._server, self._calls = portal, server, 0

    def call(self, tool: str, *, kills: bool = False, **arguments: Any) -> dict[str, Any]:
        """Return what the last of the calls says."""
        self._calls += 1
        given = {**arguments, "idempotency_key": f"call {self._calls}"}
        self._lose(tool, given, at_once=True)
        self._lose(tool, given, at_once=False)
        if kills:
            self._server.kill()
            self._server.start()
        mode = ("legacy", "auto")[self._calls % 2]  # Clients of old and new revisions of the protocol.
        with connected(self._portal, self._server.url, mode=mode) as caller:
            return caller.call(tool, **given)

    def _lose(self, tool: str, arguments: dict[str, Any], *, at_once: bool) -> None:
        place = urlsplit(self._server.url)
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        }
        body = json.dumps(message).encode()
        head = (
            f"POST {place.path}/ HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-06-18\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        with socket.create_connection((place.hostname or "", place.port or 0)) as connection:
            connection.sendall(head.encode() + body)
            reply = b""
            while not at_once and (part := connection.recv(65_536)):
                reply += part
            assert at_once or (reply.startswith(b"HTTP/1.1 200") and b'"isError":true' not in reply), reply


def test_a_model_that_loses_every_reply_does_nothing_twice(tmp_path: Path) -> None:
    """R2.4, R2.6: submitted, answered, forked, rerun, resumed and cancelled once each; every call is repeated."""
    folder = write_workflows(tmp_path / "workflows")
    server = HttpServer(folder)
    with start_blocking_portal() as portal:
        model = Model(portal, server)
        try:
            run = model.call("execute_workflow", workflow="publish", inputs={"topic": "tides"}, kills=True)
            assert run["status"] == "paused"
            answered = model.call("answer", run_id=run["run_id"], value="yes")
            assert answered["pauses"][0]["prompt"] == "How good is it?"
            fork = model.call("fork", run_id=run["run_id"], kills=True)
            again = model.call("rerun", run_id=run["run_id"], step="publish")
            assert model.call("resume_workflow", job_id=fork["run_id"], response=5)["status"] == "completed"
            assert model.call("cancel", run_id=again["run_id"])["status"] == "cancelled"
            failed = model.call("execute_workflow", workflow="fragile")
            (folder / "open").touch()
            assert model.call("resume", run_id=failed["run_id"], kills=True)["status"] == "completed"
        finally:
            server.kill()
    service = Service(f"sqlite:///{folder}/runs.db", read_only=True)
    listed = {each["run_id"] for each in service.runs()["runs"]}
    assert listed == {each["run_id"] for each in (run, fork, again, failed)}
    answers = [each["data"] for one in listed for each in service.events(one) if each["type"] == "answer"]
    assert len(answers) == 2, answers
    service.close()
    # The steps that were under way when the server was killed run again; no other does.
    assert [ran(folder).count(name) for name in ("archive", "first")] == [1, 1], ran(folder)
