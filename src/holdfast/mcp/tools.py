"""The tools: what a language model can ask of workflows and runs, in words for one that has never seen Holdfast."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from holdfast.mcp import outputs
from holdfast.mcp.declaring import ACTS, DESTROYS, ORDERS, READS, BadArguments, Declared, Follow, Reply, tool
from holdfast.mcp.forms import PLACEHOLDER
from holdfast.mcp.replies import Data, Rest, call, part_at, sliced
from holdfast.service.requests import Keyed, once
from holdfast.service.roles import Caller
from holdfast.service.service import Service
from holdfast.stores.base import namespace_of

TOOLS: dict[str, Declared] = {}
"""The tools by their names."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool: on which service, and who asked."""

    service: Service
    who: str
    owner: str = ""
    """Whose key it is: the caller, whatever its client is called."""
    key: str | None = None
    """A call that is repeated with its key acts once."""
    caller: Caller | None = None
    """Whose token the request has; `None` where everybody may do everything."""

    def require(self, method: str) -> None:
        """Raise `Forbidden` if the caller may not use a method of the service."""
        if self.caller is not None:
            self.caller.require(method)

    def act(self, method: str, **given: Any) -> Data:
        """Call a method of the service that changes something; return its reply."""
        if self.key is None:
            found: Data = getattr(self.service, method)(**given, who=self.who)
            return found
        namespace = namespace_of(self.service.store)
        keyed = Keyed.of(self.owner, namespace, self.key, {**given, "call": method})
        repeated: Data = once(self.service, replace(keyed, who=self.who), method, given)
        return repeated


def _object(value: Any) -> Any:
    """Return an object that was given as JSON text as the object."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


RunId = Annotated[str, Field(description="The id of a run, as execute_workflow and list_runs return it.")]
JobId = Annotated[str, Field(description="The same as run_id: the id of a run.")]
WorkflowName = Annotated[str, Field(description="The name of a workflow, as list_workflows returns it.")]
Inputs = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_object),
    Field(description="The inputs by name; get_workflow_schema says which there are."),
]
Seconds = Annotated[
    float,
    Field(
        ge=0,
        le=86_400,
        description="How many seconds to wait for the run to pause or end. The run goes on afterwards in any case.",
    ),
]
Mode = Annotated[
    Literal["sync", "async"],
    Field(
        description='"sync" waits until the run pauses or ends; "async" returns at once. Then use get_run.'
    ),
]
Status = Annotated[
    Literal["queued", "running", "paused", "completed", "failed", "cancelled", "interrupted"] | None,
    Field(description="Only runs that have this status."),
]
Checkpoint = Annotated[
    str | None, Field(description="A checkpoint id, as history returns it; by default the newest state.")
]
Update = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_object),
    Field(
        description="Values that the new run has instead, by place: inputs.NAME or steps.STEP.output, "
        "in a Python program the key of the state."
    ),
]
Limit = Annotated[int, Field(ge=1, le=500, description="How many are returned at most.")]
Cursor = Annotated[
    str | None, Field(description="What the last reply said as `next`, to read the page after it.")
]

WAIT = 30.0
"""The seconds that a call waits for a run by default; many clients give up on a call after a minute."""


# Workflows.


@tool("workflows", READS, outputs.WORKFLOWS, TOOLS)
def list_workflows(asked: Call) -> Reply:
    """List the workflows that can be run here. Start with this one.

    A workflow is a fixed sequence of steps (shell commands, HTTP and model calls, questions to people). Every finished
    step is saved, so a run that fails or is interrupted continues where it stopped and repeats nothing.
    """
    return Reply({"workflows": asked.service.workflows()})


@tool("workflow", READS, outputs.WORKFLOW, TOOLS)
def get_workflow_info(asked: Call, workflow: WorkflowName) -> Reply:
    """Describe one workflow: what it is for, its inputs, its steps and their order."""
    return Reply(asked.service.workflow(workflow))


@tool("schema", READS, outputs.ANY, TOOLS)
def get_workflow_schema(
    asked: Call,
    workflow: Annotated[
        str | None,
        Field(description="A workflow whose inputs are described; without it, the format of workflow files."),
    ] = None,
) -> Reply:
    """Return the JSON Schema of a workflow's inputs, or, without a name, of workflow files (YAML).

    Look at the inputs before execute_workflow; look at the format before you write a workflow yourself.
    """
    return Reply({"schema": asked.service.schema(workflow)})


@tool("validate", READS, outputs.VALIDATION, TOOLS)
def validate_workflow(
    asked: Call, text: Annotated[str, Field(description="The YAML text of a workflow file.")]
) -> Reply:
    """Check a workflow file without running it. Every problem is returned, with its line and how to correct it."""
    return Reply(asked.service.validate(text))


@tool("reload", ORDERS, outputs.ANY, TOOLS)
def reload_workflows(asked: Call) -> Reply:
    """Read the workflow files again after they were changed; say which were added, changed and removed."""
    return Reply(asked.service.reload(who=asked.who))


# Starting runs.


@tool("execute", ACTS, outputs.RUN, TOOLS)
def execute_workflow(
    asked: Call,
    workflow: WorkflowName,
    inputs: Inputs = None,
    mode: Mode = "sync",
    timeout_seconds: Seconds = WAIT,
    run_id: Annotated[
        str | None, Field(description="An id for the new run, if it must have a certain one.")
    ] = None,
) -> Follow:
    """Start a run of a workflow, and wait for it to pause or end.

    The reply has the run's id and its status. "completed": `output` is the result. "paused": `pauses` says what
    is asked, and `answer_with` is the call that answers it; ask your person if you do not know the answer. "failed":
    `error` says why; correct the cause and call resume: finished steps are not repeated. "running" or "queued": the
    time was over; the run goes on, look at it with get_run later.
    """
    started = asked.act("execute", workflow=workflow, inputs=inputs or {}, run_id=run_id)
    return _followed(started, mode, timeout_seconds)


@tool("execute_inline", ACTS, outputs.RUN, TOOLS)
def execute_inline_workflow(
    asked: Call,
    text: Annotated[str, Field(description="The YAML text of a workflow file; validate_workflow checks it.")],
    inputs: Inputs = None,
    mode: Mode = "sync",
    timeout_seconds: Seconds = WAIT,
) -> Follow:
    """Run a workflow that you wrote yourself, given as YAML text. It may run commands on the server's machine.

    The reply is that of execute_workflow. get_workflow_schema without arguments describes the format.
    """
    started = asked.act("execute_inline", text=text, inputs=inputs or {})
    return _followed(started, mode, timeout_seconds)


def _followed(run: Mapping[str, Any], mode: str, seconds: float) -> Follow:
    return Follow(run["run_id"], 0.0 if mode == "async" else seconds)


# Looking at runs.


@tool("runs", READS, outputs.RUNS, TOOLS)
def list_runs(
    asked: Call,
    status: Status = None,
    workflow: Annotated[str | None, Field(description="Only runs of this workflow.")] = None,
    tag: Annotated[str | None, Field(description="Only runs that have this tag.")] = None,
    text: Annotated[str | None, Field(description="Only runs whose id or workflow contains this.")] = None,
    since: Annotated[
        dt.datetime | None, Field(description="Only runs that changed at this time or later; UTC by default.")
    ] = None,
    until: Annotated[
        dt.datetime | None, Field(description="Only runs that changed before this time.")
    ] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Reply:
    """List runs, the newest first, with their statuses. `next` in the reply is the cursor of the next page."""
    found = asked.service.runs(
        status=status,
        workflow=workflow,
        tag=tag,
        text=text,
        since=_seconds(since),
        until=_seconds(until),
        limit=limit,
        cursor=cursor,
    )
    return Reply(found)


def _seconds(at: dt.datetime | None) -> float | None:
    if at is None:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)).timestamp()


@tool("run", READS, outputs.RUN, TOOLS)
def get_run(asked: Call, run_id: RunId) -> Reply:
    """Show one run: its status, how far it is, what each step did, what it waits for, its cost, and what to do next."""
    return Reply(outputs.report(asked.service.run(run_id)))


@tool("step", READS, outputs.ANY, TOOLS)
def get_step(
    asked: Call, run_id: RunId, step: Annotated[str, Field(description="The name of a step of the run.")]
) -> Reply:
    """Show one step of a run: its inputs, its output, its error, its attempts, its cost and its log."""
    return Reply({"step": asked.service.step(run_id, step)})


@tool("history", READS, outputs.ANY, TOOLS)
def history(
    asked: Call,
    run_id: RunId,
    limit: Limit = 20,
    before: Annotated[
        str | None, Field(description="`next` of the last reply, to read the page after it.")
    ] = None,
) -> Reply:
    """List the checkpoints of a run, the newest first, each with what happened since the one before.

    A checkpoint is a saved position. Its id can be given to get_state, diff, fork and get_checkpoint_info.
    """
    return Reply(asked.service.history(run_id, limit=limit, before=before))


@tool("state", READS, outputs.STATE, TOOLS)
def get_state(
    asked: Call,
    run_id: RunId,
    checkpoint: Checkpoint = None,
    path: Annotated[
        str, Field(description="A JSON Pointer to the part that is wanted, as /draft/output; by default all.")
    ] = "",
    offset: Annotated[
        int, Field(ge=0, description="How many items or characters of that part to leave out.")
    ] = 0,
    limit: Annotated[
        int, Field(ge=1, le=100_000, description="How many of them are returned at most.")
    ] = 20_000,
) -> Reply:
    """Return the data that a run holds: its inputs and the outputs of its steps, now or at a checkpoint.

    A state may be large. What does not fit into the reply is listed in `left_out`, with the call that reads it.
    """
    found = asked.service.state(run_id, checkpoint)
    whole = part_at(found["state"], path)
    data = {**found, "state": sliced(whole, offset, limit), "path": path}
    if isinstance(whole, (str, list, dict)) and len(whole) > offset + limit:
        data["next_offset"] = offset + limit
    return Reply(data, state_reader(run_id, checkpoint, path, offset))


def state_reader(run_id: str, checkpoint: str | None = None, path: str = "", offset: int = 0) -> Rest:
    """Return what names the call that reads on in the `state` of a reply."""

    def rest(place: str, kept: int) -> Data | None:
        if not place.startswith("/state"):
            return None
        inner = place.removeprefix("/state")
        begin = kept if inner else offset + kept
        return call("get_state", run_id=run_id, checkpoint=checkpoint, path=path + inner, offset=begin)

    return rest


@tool("diff", READS, outputs.ANY, TOOLS)
def diff(
    asked: Call,
    a: Annotated[
        str, Field(description="A run id, a checkpoint id, or RUN@3 for a run after its third wave.")
    ],
    b: Annotated[str, Field(description="Another one.")],
) -> Reply:
    """Say what differs between two states: of two checkpoints of a run, or of two runs."""
    return Reply({"diff": asked.service.diff(a, b)})


@tool("plan_resume", READS, outputs.ANY, TOOLS)
def plan_resume(asked: Call, run_id: RunId) -> Reply:
    """Say what resume would do with a run: which steps are kept, which run, and what that may cost. Runs nothing."""
    return Reply(asked.service.plan_resume(run_id))


@tool("checkpoints", READS, outputs.ANY, TOOLS)
def list_checkpoints(
    asked: Call,
    run_id: Annotated[str | None, Field(description="Only checkpoints of this run.")] = None,
    workflow: Annotated[str | None, Field(description="Only checkpoints of runs of this workflow.")] = None,
    limit: Limit = 20,
) -> Reply:
    """List the newest checkpoints: saved positions of runs, at which a run can be looked at, forked or continued."""
    return Reply({"checkpoints": asked.service.checkpoints(run_id, workflow, limit)})


@tool("checkpoint", READS, outputs.ANY, TOOLS)
def get_checkpoint_info(
    asked: Call, checkpoint_id: Annotated[str, Field(description="The id of a checkpoint.")]
) -> Reply:
    """Show one checkpoint: its run, when it was saved, how far the run was, which steps come next, and its state."""
    return Reply(asked.service.checkpoint(checkpoint_id))


@tool("fleet", READS, outputs.ANY, TOOLS)
def queue_stats(asked: Call) -> Reply:
    """Say how many runs wait and are executed, in which queues, and which workers and schedules there are."""
    return Reply(asked.service.fleet())


# Acting on runs.


@tool("answer", ACTS, outputs.RUN, TOOLS)
def answer(
    asked: Call,
    run_id: RunId,
    value: Annotated[Any, Field(description="The answer, of the type that the question's `schema` says.")],
    question: Annotated[
        str | None,
        Field(description="The `id` of the pause; may be left out if the run asks one thing only."),
    ] = None,
    timeout_seconds: Seconds = WAIT,
) -> Follow:
    """Answer what a paused run asks, and wait for it to go on until it pauses again or ends.

    Never invent the answer to a question that is meant for a person (an approval, a choice, a fact you do not know):
    ask your person first.
    """
    if value == PLACEHOLDER:
        raise BadArguments(f"{PLACEHOLDER!r} stands for the answer; give the answer itself as `value`")
    asked.act("answer", run_id=run_id, value=value, question=question)
    return Follow(run_id, timeout_seconds)


@tool("resume", ACTS, outputs.RUN, TOOLS)
def resume(
    asked: Call,
    run_id: RunId,
    timeout_seconds: Seconds = WAIT,
) -> Follow:
    """Continue a run that failed, was interrupted or paused, or passes a gate. Finished steps are not repeated.

    plan_resume says beforehand what this would do. To answer a question, call answer instead.
    """
    asked.act("resume", run_id=run_id)
    return Follow(run_id, timeout_seconds)


@tool("skip", DESTROYS, outputs.RUN, TOOLS)
def skip(
    asked: Call,
    run_id: RunId,
    step: Annotated[str, Field(description="The step that is left out.")],
    reason: Annotated[str, Field(description="Why, for those who read the run later.")] = "",
) -> Follow:
    """Leave out a step that is about to run, waits, failed or was interrupted. Then call resume."""
    asked.act("skip", run_id=run_id, step=step, reason=reason)
    return Follow(run_id, 0.0)


@tool("pause", ORDERS, outputs.RUN, TOOLS)
def pause(asked: Call, run_id: RunId) -> Follow:
    """Pause a run after the steps that are under way. resume continues it."""
    asked.act("pause", run_id=run_id)
    return Follow(run_id, 0.0)


@tool("cancel", DESTROYS, outputs.RUN, TOOLS)
def cancel(asked: Call, run_id: RunId) -> Follow:
    """Stop a run for good. What it has finished stays stored and can be looked at."""
    asked.act("cancel", run_id=run_id)
    return Follow(run_id, 0.0)


@tool("fork", ACTS, outputs.RUN, TOOLS)
def fork(
    asked: Call,
    run_id: RunId,
    checkpoint: Checkpoint = None,
    update: Update = None,
    timeout_seconds: Seconds = WAIT,
) -> Follow:
    """Start a new run that begins at a checkpoint of another one, with other values if you like.

    The other run stays as it is. Use it to try what would have happened if.
    """
    forked = asked.act("fork", run_id=run_id, at=checkpoint, update=update)
    return Follow(forked["run_id"], timeout_seconds)


@tool("rerun", ACTS, outputs.RUN, TOOLS)
def rerun(
    asked: Call,
    run_id: RunId,
    step: Annotated[str, Field(description="The step that runs again, and after it all that follow it.")],
    update: Update = None,
    timeout_seconds: Seconds = WAIT,
) -> Follow:
    """Run a step of a run again, and the steps after it, in a new run. The run itself stays as it is."""
    made = asked.act("rerun", run_id=run_id, step=step, update=update)
    return Follow(made["run_id"], timeout_seconds)


@tool("delete_checkpoint", DESTROYS, outputs.ANY, TOOLS)
def delete_checkpoint(
    asked: Call,
    checkpoint_id: Annotated[str, Field(description="The id of a checkpoint.")],
) -> Reply:
    """Delete a checkpoint with those before it. With its newest checkpoint, the whole run is deleted."""
    return Reply(asked.service.delete_checkpoint(checkpoint_id, who=asked.who))


# The same by the names that other servers have for it.


@tool("run", READS, outputs.RUN, TOOLS)
def get_job_status(asked: Call, job_id: JobId) -> Reply:
    """The same as get_run."""
    return get_run(asked, job_id)


@tool("runs", READS, outputs.RUNS, TOOLS)
def list_jobs(asked: Call, status: Status = None, limit: Limit = 20) -> Reply:
    """The same as list_runs."""
    return list_runs(asked, status=status, limit=limit)


@tool("cancel", DESTROYS, outputs.RUN, TOOLS)
def cancel_job(asked: Call, job_id: JobId) -> Follow:
    """The same as cancel."""
    return cancel(asked, job_id)


@tool("answer", ACTS, outputs.RUN, TOOLS)
def resume_workflow(
    asked: Call,
    job_id: JobId,
    response: Annotated[Any, Field(description="The answer to what the run asks.")],
) -> Follow:
    """The same as answer, for a run that asks one thing only."""
    return answer(asked, job_id, response)
