"""What tools return: JSON Schemas, and a run as a model reads it, with the calls that come next."""

from __future__ import annotations

from typing import Any

from holdfast.mcp.forms import with_answer_call
from holdfast.mcp.replies import Data, call
from holdfast.service.shapes import COUNT, MAYBE_TEXT, QUESTION, RUN_NAMED, TEXT, listed, shape

CALL = shape({"tool": TEXT, "arguments": {"type": "object"}})
LEFT_OUT = listed(
    shape({"path": TEXT, "kept": COUNT, "of": COUNT, "unit": TEXT}, read_on_with=CALL),
    "What did not fit into this reply, by JSON Pointer, and the call that reads it.",
)

ANY = shape(left_out=LEFT_OUT)

WORKFLOWS = shape(
    {"workflows": listed(shape({"name": TEXT}, description=MAYBE_TEXT))},
    left_out=LEFT_OUT,
)
WORKFLOW = shape({"name": TEXT}, description=MAYBE_TEXT, left_out=LEFT_OUT)
VALIDATION = shape({"valid": {"type": "boolean"}, "problems": listed({})}, left_out=LEFT_OUT)
RUNS = shape(
    {"runs": listed(shape(RUN_NAMED)), "next": MAYBE_TEXT},
    counts={"type": "object"},
    left_out=LEFT_OUT,
)
STATE = shape(
    {"state": {"description": "The state, or the part of it at `path`."}},
    path=TEXT,
    next_offset={"type": "integer", "description": "The offset of what comes after this part."},
    left_out=LEFT_OUT,
)
PAUSE = shape(
    {"id": TEXT},
    **QUESTION,
    answer_with={**CALL, "description": "The call that answers it, with the answer as `value`."},
)
RUN = shape(
    RUN_NAMED,
    output={"description": "The result of a completed run."},
    error={"description": "Why the run failed."},
    pauses=listed(PAUSE, "What a paused run waits for."),
    steps=listed(shape({"name": TEXT, "status": TEXT})),
    next_calls=listed(shape({"why": TEXT, **CALL["properties"]}), "What can be done now."),
    left_out=LEFT_OUT,
)


# A run as a model reads it.


_OF_THE_OPERATOR = (
    "store",
    "workflow_file",
    "facts",
    "owner",
    "bytes",
    "as_of",
    "priority",
    "commands_refused",
)
"""Facts about a run that say something about the machine only."""


def report(run: Data) -> Data:
    """Return a run with the calls that answer its pauses, and those that come next, and without what is empty."""
    run_id = run["run_id"]
    pauses = [with_answer_call(run_id, pause) for pause in run["pauses"]]
    shown = {name: value for name, value in _filled(run).items() if name not in _OF_THE_OPERATOR}
    if run["steps"]:
        shown["steps"] = [_filled(step) for step in run["steps"]]
    return {**shown, "pauses": pauses, "next_calls": _next_calls(run_id, run["status"], pauses)}


def _filled(data: Data) -> Data:
    return {name: value for name, value in data.items() if value not in (None, "", [], {}, False)}


def _next_calls(run_id: str, status: str, pauses: list[Data]) -> list[Data]:
    """Return what can be done with a run now, and why."""
    match status:
        case "queued" | "running":
            return [_because("the run goes on; look again later", "get_run", run_id=run_id)]
        case "paused":
            answers = [pause["answer_with"] for pause in pauses if "answer_with" in pause]
            return [{"why": "the run waits for this", **each} for each in answers] or [
                _because("continue it", "resume", run_id=run_id)
            ]
        case "failed" | "interrupted":
            return [
                _because("see what a resume would do", "plan_resume", run_id=run_id),
                _because(
                    "when the cause is corrected: continue after the last finished step",
                    "resume",
                    run_id=run_id,
                ),
            ]
    return [_because("read all that it left behind", "get_state", run_id=run_id)]


def _because(why: str, tool: str, **arguments: Any) -> Data:
    return {"why": why, **call(tool, **arguments)}
