"""JSON Schemas of what a service returns, for the faces that declare their replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.values import RunStatus

Data = dict[str, Any]

TEXT: Data = {"type": "string"}
MAYBE_TEXT: Data = {"type": ["string", "null"]}
COUNT: Data = {"type": "integer"}
MAYBE_COUNT: Data = {"type": ["integer", "null"]}
AMOUNT: Data = {"type": "number"}
MAYBE_AMOUNT: Data = {"type": ["number", "null"]}
FLAG: Data = {"type": "boolean"}
OBJECT: Data = {"type": "object"}
MAYBE_OBJECT: Data = {"type": ["object", "null"]}
STATUS: Data = {"type": "string", "enum": [str(status) for status in RunStatus]}


def shape(needed: Data | None = None, **optional: Data) -> Data:
    """Return the schema of an object; it may have more than what is named."""
    fields = needed or {}
    return {"type": "object", "properties": {**fields, **optional}, "required": list(fields)}


def listed(item: Data, about: str = "") -> Data:
    """Return the schema of a list."""
    return {"type": "array", "items": item, **({"description": about} if about else {})}


# Runs.


RUN_NAMED: Data = {"run_id": TEXT, "workflow": TEXT, "status": STATUS}
"""What every account of a run begins with."""

QUESTION: Data = {
    "prompt": {**MAYBE_TEXT, "description": "The question, in the words of the workflow or the run."},
    "schema": {**MAYBE_OBJECT, "description": "The JSON Schema of the answer."},
    "choices": {"type": ["array", "null"], "description": "The answers to choose from."},
    "until": {**MAYBE_TEXT, "description": "When it is too late to answer."},
}
"""What a run asks, in each of its pauses."""

_LINE: Data = {
    **RUN_NAMED,
    "dead": FLAG,
    "started_at": TEXT,
    "updated_at": TEXT,
    "wave": MAYBE_COUNT,
    "next": listed(TEXT),
    "queue": MAYBE_TEXT,
    "priority": COUNT,
    "due_at": MAYBE_TEXT,
    "tags": listed(TEXT),
}
_PAUSE = shape(
    {"id": TEXT, "kind": TEXT, "name": TEXT, **QUESTION, "since": TEXT, "takes_answer": FLAG},
    question={**MAYBE_TEXT, "description": "What an answer is given as `question`."},
)
_ERROR: Data = {
    **shape({"step": TEXT, "type": TEXT, "message": TEXT, "trace": TEXT}),
    "type": ["object", "null"],
}
_SPENT: Data = {
    "calls": COUNT,
    "input_tokens": COUNT,
    "output_tokens": COUNT,
    "cost": MAYBE_AMOUNT,
    "unpriced": COUNT,
}
_COST_ROW = shape({"name": TEXT, "steps": COUNT, "seconds": AMOUNT, **_SPENT})
_PROGRESS = shape({"done": COUNT, "total": COUNT})
_STATUS_FIELDS: Data = {**_LINE, "pauses": listed(_PAUSE), "held": MAYBE_TEXT, "goes_on": FLAG}
_RUN_STATUS = shape(_STATUS_FIELDS, output={}, error=_ERROR)
_STEP_FIELDS: Data = {
    "name": TEXT,
    "status": TEXT,
    "visits": COUNT,
    "attempts": COUNT,
    "seconds": AMOUNT,
    "started_at": MAYBE_TEXT,
    "ended_at": MAYBE_TEXT,
    "retry_at": MAYBE_TEXT,
    "items": MAYBE_OBJECT,
    "error": _ERROR,
}
_RUN = shape(
    {
        **_LINE,
        "inputs": {},
        "output": {},
        "error": _ERROR,
        "steps": listed(shape(_STEP_FIELDS)),
        "pauses": listed(_PAUSE),
        "progress": _PROGRESS,
        "ledger": shape(_SPENT),
        "checkpoints": COUNT,
        "held": MAYBE_TEXT,
    }
)
_EVENT = shape(
    {"id": TEXT, "seq": COUNT, "at": TEXT, "type": TEXT, "step": MAYBE_TEXT, "text": TEXT, "data": {}}
)
_CHANGED = shape({"applied": FLAG, "run": _RUN_STATUS})
_MOVED = shape({"checkpoint_id": TEXT, "run": _RUN_STATUS})
_POINT: Data = {
    "checkpoint_id": TEXT,
    "seq": COUNT,
    "wave": MAYBE_COUNT,
    "next": listed(TEXT),
    "created_at": TEXT,
    "bytes": COUNT,
}
_GRAPH = shape(
    {
        "name": TEXT,
        "nodes": listed(shape({"name": TEXT, "status": MAYBE_TEXT})),
        "edges": listed(shape({"from": TEXT, "to": TEXT})),
    }
)
_WORKFLOW: Data = {"name": TEXT, "description": MAYBE_TEXT, "kind": TEXT, "inputs": MAYBE_OBJECT}
_PLAN_STEP = shape({"step": TEXT, "what": TEXT, "reason": MAYBE_TEXT})
_LINK = shape({"question": TEXT, "prompt": TEXT, "until": MAYBE_TEXT, "link": TEXT})
_DIFFERENCE = shape(
    {"one": OBJECT, "other": OBJECT, "same": FLAG, "changes": COUNT, "facts": OBJECT, "state": {}}
)

RELOADED = shape({"added": listed(TEXT), "changed": listed(TEXT), "removed": listed(TEXT)})

REPLIES: Mapping[str, Data] = {
    "health": shape({"status": TEXT, "worker": FLAG}),
    "ready": shape({"status": TEXT, "worker": FLAG}),
    "workflows": listed(shape(_WORKFLOW)),
    "workflow": shape({**_WORKFLOW, "steps": listed(shape({"name": TEXT}))}),
    "schema": OBJECT,
    "graph": _GRAPH,
    "reload": RELOADED,
    "validate": shape({"valid": FLAG, "problems": listed(OBJECT), "warnings": listed({})}),
    **dict.fromkeys(
        ("execute", "execute_inline", "status", "wait", "pause", "cancel", "resume"), _RUN_STATUS
    ),
    **dict.fromkeys(("fork", "rerun"), shape({**_STATUS_FIELDS, "parent": TEXT})),
    **dict.fromkeys(("edit", "skip", "replan", "annotate"), _CHANGED),
    **dict.fromkeys(("promote", "rollback"), _MOVED),
    "answer": shape({"run_id": TEXT, "status": TEXT, "run": _RUN_STATUS}),
    "answer_links": shape({"run_id": TEXT, "links": listed(_LINK)}),
    "runs": shape({"runs": listed(shape(_LINE)), "next": MAYBE_TEXT}, counts=OBJECT),
    "run": _RUN,
    "delete": shape({"run_id": TEXT, "deleted": FLAG}),
    "plan_resume": shape({**RUN_NAMED, "id": TEXT, "steps": listed(_PLAN_STEP)}),
    "steps": listed(shape(_STEP_FIELDS)),
    "step": shape({**_STEP_FIELDS, "output": {}, "cost": MAYBE_OBJECT, "events": listed(_EVENT)}),
    "state": shape({"run_id": TEXT, "checkpoint_id": MAYBE_TEXT, "state": OBJECT}),
    "history": shape({**RUN_NAMED, "checkpoints": listed(shape(_POINT)), "more": FLAG, "next": MAYBE_TEXT}),
    "forks": shape({"run_id": TEXT, "members": listed(shape({"run_id": TEXT})), "more": FLAG}),
    "cost": shape(
        {**RUN_NAMED, "total": shape(_SPENT), "steps": listed(_COST_ROW), "models": listed(_COST_ROW)}
    ),
    "events": listed(_EVENT),
    "import_": shape({"run_id": TEXT, "outcome": TEXT, "entries": COUNT, "bytes": COUNT, "confirmed": FLAG}),
    "checkpoints": listed(shape({**_POINT, "run_id": TEXT})),
    "checkpoint": shape({**_POINT, **RUN_NAMED, "progress": _PROGRESS, "state": {}}),
    "delete_checkpoint": shape({"checkpoint_id": TEXT, "deleted": FLAG}),
    "diff": _DIFFERENCE,
    "compare": shape({"one": OBJECT, "other": OBJECT, "related": FLAG, "same": COUNT, "state": {}}),
    "costs": shape({"by": TEXT, "runs": COUNT, "total": _COST_ROW, "rows": listed(_COST_ROW)}),
    "fleet": shape(
        {
            "queues": listed(shape({"queue": TEXT, "queued": COUNT, "due": COUNT, "running": COUNT})),
            "schedules": listed(OBJECT),
            "workers": listed(shape({"host": TEXT, "pid": COUNT, "runs": listed(TEXT)})),
        }
    ),
}
"""What each method of a service that HTTP calls returns; `health` and `ready` as strangers see them."""
