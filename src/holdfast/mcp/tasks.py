"""Runs as tasks: the extension `io.modelcontextprotocol/tasks`. A task is a run, so it survives its server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field

from holdfast.errors import HoldfastError
from holdfast.mcp.outputs import report
from holdfast.mcp.replies import Data, reply
from holdfast.mcp.tools import Call
from holdfast.mcp.waiting import Context, Found, Note, activity, forms_of, in_thread, take_forms

EXTENSION = "io.modelcontextprotocol/tasks"

POLL_EVERY = 1000
"""The milliseconds between two looks at a task."""


class TaskParams(types.RequestParams):
    """Which task is meant."""

    task_id: str


class UpdateParams(TaskParams):
    """Forms of a task that were filled in."""

    input_responses: types.InputResponses = Field(default_factory=dict)


def knows_tasks(context: Context) -> bool:
    """Return True if a client said with this request that it knows tasks."""
    extensions = getattr(context.session.client_capabilities, "extensions", None)
    return EXTENSION in (extensions or {})


def task_of(run: Data) -> Data:
    """Return a run as a task, without its result and its questions."""
    status, forms = run["status"], forms_of(run)
    states = {"queued": "working", "running": "working", "cancelled": "cancelled"}
    state = states.get(status, "completed")
    if status == "paused":
        state = "input_required" if forms else "working"
    return {
        "taskId": run["run_id"],
        "status": state,
        "statusMessage": activity(run),
        "createdAt": run["started_at"],
        "lastUpdatedAt": run["updated_at"],
        "ttlMs": None,
        "pollIntervalMs": POLL_EVERY,
    }


def new_task(run: Data) -> Data:
    """Return the result of a call whose run goes on as a task."""
    return {"resultType": "task", **task_of(run)}


def detailed(run: Data) -> Data:
    """Return a run as a task with what its status brings: forms to fill in, or the result of the call."""
    task = task_of(run)
    if task["status"] == "input_required":
        return {**task, "inputRequests": {key: wire(form) for key, form in forms_of(run).items()}}
    if task["status"] == "completed":
        return {**task, "result": wire(reply(report(run), is_error=run["status"] != "completed"))}
    return task


def wire(model: BaseModel) -> Data:
    """Return a message as it is sent."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


class Tasks:
    """The methods of the extension; `call_of` says who asks, and of which service; `note` journals what acts."""

    def __init__(self, call_of: Callable[[Context, str], Call], note: Note) -> None:
        self._call_of, self._note = call_of, note

    def add_to(self, server: Server[Any]) -> None:
        """Let a server answer the methods of the extension, and say so."""
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    async def _get(self, context: Context, params: TaskParams) -> Data:
        asked = self._asked(context, "run")
        return detailed(await self._done(lambda: asked.service.run(params.task_id)))

    async def _update(self, context: Context, params: UpdateParams) -> Data:
        asked, filled = self._asked(context, "answer"), params.input_responses
        with protocol_errors():
            await self._note(context, "tasks/update", {"task_id": params.task_id}, filled)
        await self._done(lambda: take_forms(asked, params.task_id, filled))
        return {}

    async def _cancel(self, context: Context, params: TaskParams) -> Data:
        asked = self._asked(context, "cancel")
        with protocol_errors():
            await self._note(context, "tasks/cancel", {"task_id": params.task_id})
        await self._done(lambda: asked.service.cancel(params.task_id, who=asked.who))
        return {}

    def _asked(self, context: Context, method: str) -> Call:
        if not knows_tasks(context):
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                "the client did not say with this request that it knows tasks",
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        with protocol_errors():
            return self._call_of(context, method)

    async def _done(self, act: Callable[[], Found]) -> Found:
        with protocol_errors():
            return await in_thread(act)


@contextmanager
def protocol_errors() -> Iterator[None]:
    """Raise the errors of this block as errors of the protocol."""
    try:
        yield
    except HoldfastError as error:
        raise MCPError(types.INVALID_PARAMS, error.public_problem, {"code": error.code}) from None
