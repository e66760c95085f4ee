"""Servers and clients for tests: real processes, which can be killed, and the client of the SDK."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import uvicorn
from anyio.from_thread import BlockingPortal
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.mcp.server import McpServer
from holdfast.service.service import Service
from mcp import Client

PUBLISH = """
workflow:
  name: publish
  description: Write about a topic, and publish it if somebody agrees.
  inputs:
    topic: {type: string, description: What to write about}
steps:
  - name: draft
    python: acts.py:draft
  - name: approve
    ask: {prompt: "Publish the text?", choices: ["yes", "no"]}
  - name: publish
    python: acts.py:publish
  - name: rating
    ask: {prompt: "How good is it?", type: integer}
  - name: archive
    python: acts.py:archive
"""

FRAGILE = """
workflow: {name: fragile, description: Fails until the file `open` is there.}
steps:
  - name: first
    python: acts.py:first
  - name: gated
    python: acts.py:gated
"""

LARGE = """
workflow: {name: large, description: Leaves a large state behind.}
steps:
  - name: fill
    python: acts.py:fill
"""

SECRET = """
workflow: {name: secret, description: Uses a secret.}
steps:
  - name: use
    shell: {run: 'echo "the key is $KEY"', env: {KEY: "{{ secrets.API_KEY }}"}}
    timeout: 1m
"""

ACTS = """
import pathlib

HERE = pathlib.Path(__file__).parent

def note(name):
    print("a step prints to stdout:", name)
    with (HERE / "ran.txt").open("a") as file:
        file.write(name + "\\n")

def draft(inputs):
    note("draft")
    return f"all about {inputs['topic']}"

def publish():
    note("publish")
    return "published"

def archive():
    note("archive")
    return "archived"

def first():
    note("first")
    return 1

def gated():
    note("gated")
    if not (HERE / "open").exists():
        raise RuntimeError("the gate is closed")
    return "through"

def fill():
    return {"rows": [{"number": number, "text": "x" * 100} for number in range(3_000)], "long": "y" * 50_000}
"""

WORKFLOWS = {"publish": PUBLISH, "fragile": FRAGILE, "large": LARGE, "secret": SECRET}


def write_workflows(folder: Path) -> Path:
    """Write the workflows of these tests into a folder; what their steps do is noted in `ran.txt`."""
    folder.mkdir(exist_ok=True)
    for name, text in WORKFLOWS.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "acts.py").write_text(ACTS)
    return folder


def ran(folder: Path) -> list[str]:
    """The steps that ran, as often as they did."""
    path = folder / "ran.txt"
    return path.read_text().split() if path.exists() else []


# Servers.


def stdio_server(folder: Path, *options: str) -> StdioServerParameters:
    """What a client starts: the command, as a configuration of a client names it."""
    store = f"sqlite:///{folder}/runs.db"
    args = ["-W", "error", "-m", "holdfast", "mcp", str(folder), "--store", store, *options]
    return StdioServerParameters(command=sys.executable, args=args, env=dict(os.environ))


class HttpServer:
    """A server in a process of its own, which can be killed, and started again on the same store.

    It is forked from a process that has imported what it needs, so that it starts at once.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder, self._options = folder, options
        self.start()

    def start(self) -> None:
        """Start the server; wait until it answers."""
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__])
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        self.process = processes.Process(target=_serve, args=(self._folder, listening, self._options))
        self.process.start()
        listening.close()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def _serve(folder: Path, listening: socket.socket, options: dict[str, Any]) -> None:
    is_tasks = options.pop("tasks", False)
    os.environ.update(options.pop("env", {}))  # It is forked from a process with another environment.
    with Service(f"sqlite:///{folder}/runs.db", [folder], **options) as service:
        manager = McpServer(service, tasks=is_tasks).over_http()
        app = Starlette(routes=[Mount("/mcp", manager.handle_request)], lifespan=lambda _: manager.run())
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listening])


# Clients.


class Person:
    """The person behind a client: fills in forms as it was asked to, and remembers them."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, list[types.ElicitRequestFormParams]()

    async def __call__(self, context: Any, form: types.ElicitRequestFormParams) -> types.ElicitResult:
        self.asked.append(form)
        for words, answer in self.answers.items():
            if words in form.message:
                return types.ElicitResult(action="accept", content={"answer": answer})
        return types.ElicitResult(action="decline")


class Caller:
    """A client that a test uses without an event loop of its own."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self.portal, self.client = portal, client

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return what it says, of which the client has checked that it fits the tool's schema."""
        result = self.result(tool, **arguments)
        assert not result.is_error, result.content
        return data_of(result)

    def error(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that refuses; return the error."""
        result = self.result(tool, **arguments)
        assert result.is_error, result.content
        found: dict[str, Any] = data_of(result)["error"]
        return found

    def result(self, tool: str, **arguments: Any) -> types.CallToolResult:
        """Call a tool."""
        return self.portal.call(self.client.call_tool, tool, arguments)


def data_of(result: types.CallToolResult) -> dict[str, Any]:
    """What a reply says: as structured content, and the same as text."""
    [text] = result.content
    assert isinstance(text, types.TextContent)
    assert json.loads(text.text) == result.structured_content
    return dict(result.structured_content or {})


@contextlib.contextmanager
def connected(portal: BlockingPortal, server: Any, **options: Any) -> Iterator[Caller]:
    """A client that is connected to a server."""
    with portal.wrap_async_context_manager(Client(server, **options)) as client:
        yield Caller(portal, client)


# Tasks, as a client that knows the extension follows them.


class Task(types.Result):
    """The result of a call that became a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class TaskParams(types.RequestParams):
    """Which task is meant, and the forms that were filled in."""

    task_id: str
    input_responses: types.InputResponses | None = None


class TaskRequest(types.Request[TaskParams, str]):
    """A method of the extension."""

    method: str
    params: TaskParams
    name_param = "taskId"


class AnyResult(types.Result):
    """A result as it was sent."""

    model_config = {"extra": "allow"}


class KnowsTasks(ClientExtension):
    """Tells a server that the client knows tasks; a test follows them itself."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> list[ResultClaim[Any]]:
        """The result that is a task."""
        return [ResultClaim(result_type="task", model=Task, resolve=self._resolve)]

    async def _resolve(self, task: Task, context: Any) -> types.CallToolResult:
        raise AssertionError("tests follow tasks themselves")


def task_request(caller: Caller, method: str, task_id: str, **forms: Any) -> dict[str, Any]:
    """Send a request about a task; return the result as it was sent."""
    request = TaskRequest(method=method, params=TaskParams(task_id=task_id, **forms))
    found = caller.portal.call(caller.client.session.send_request, request, AnyResult)
    return dict(found.model_extra or {})
