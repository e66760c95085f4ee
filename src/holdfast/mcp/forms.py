"""Pauses of runs as forms that a client shows to its person, and what the person filled in as answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from holdfast.mcp.replies import Data, call

ANSWER = "answer"
"""The field of a form whose answer is one value."""

PLACEHOLDER = "<the answer>"
"""What stands for the answer in the call that answers a pause; it is not taken for one."""

LONGEST_MESSAGE = 4_000
"""The characters of a question that a form shows at most."""

_KEPT: Mapping[str, tuple[str, ...]] = {
    "string": ("title", "description", "default", "minLength", "maxLength"),
    "integer": ("title", "description", "default", "minimum", "maximum"),
    "number": ("title", "description", "default", "minimum", "maximum"),
    "boolean": ("title", "description", "default"),
}
"""What a form may say of a field, by the field's type."""

_FORMATS = ("email", "uri", "date", "date-time")


# The call that answers a pause.


def is_asking(pause: Data) -> bool:
    """Return True if a person can end a pause: by an answer, or by passing a gate."""
    return bool(pause["takes_answer"]) or pause["kind"] in ("before", "after")


def with_answer_call(run_id: str, pause: Data) -> Data:
    """Return a pause with the call that answers it, or passes its gate."""
    if not is_asking(pause):
        return pause
    if not pause["takes_answer"]:
        return {**pause, "answer_with": call("resume", run_id=run_id)}
    return {
        **pause,
        "answer_with": call("answer", run_id=run_id, question=pause["question"], value=PLACEHOLDER),
    }


# Forms.


def form_of(run_id: str, workflow: str, pause: Data, problem: str = "") -> ElicitRequest:
    """Return the form that asks a person what a run waits for; `problem` says why the last answer was not taken."""
    asked = (
        f"Run {run_id} of workflow {workflow} asks: {pause.get('prompt') or pause.get('name') or 'go on?'}"
    )
    if pause.get("until"):
        asked += f"\n(to be answered before {pause['until']})"
    if problem:
        asked += f"\n(the last answer was not taken: {problem})"
    return ElicitRequest(
        params=ElicitRequestFormParams(
            message=_printable(asked)[:LONGEST_MESSAGE], requested_schema=form_schema(asked_schema(pause))
        )
    )


def asked_schema(pause: Data) -> Any:
    """Return the schema of what a person is asked: the answer, or, at a gate, whether the run goes on."""
    return pause.get("schema") if pause["takes_answer"] else {"type": "boolean", "title": "Continue the run?"}


def form_schema(schema: Any) -> Data:
    """Return the fields of a form for the answers of a schema.

    Forms have no nested fields: an answer that has some is asked for as JSON.
    """
    fields = _fields(schema)
    if fields is not None:
        needed = [name for name in schema.get("required", ()) if name in fields]
        return {"type": "object", "properties": fields, "required": needed}
    own = _field(schema) if schema else {"type": "string"}
    return {"type": "object", "properties": {ANSWER: own or _as_json(schema)}, "required": [ANSWER]}


def answer_in(filled: ElicitResult, schema: Any) -> Any:
    """Return the answer that a filled form holds."""
    content: Data = dict(filled.content or {})
    value = content.get(ANSWER)
    if _fields(schema) is not None or ANSWER not in content:
        return content
    if not schema or _field(schema) is not None or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _fields(schema: Any) -> dict[str, Data] | None:
    """Return the fields of a form for an object of simple values; `None` for any other schema."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object" or not schema.get("properties"):
        return None
    found = {str(name): _field(part) for name, part in dict(schema["properties"]).items()}
    fields = {name: field for name, field in found.items() if field is not None}
    return fields if len(fields) == len(found) else None


def _field(schema: Any) -> Data | None:
    """Return a field of a form, or `None` if a form cannot have it."""
    if not isinstance(schema, Mapping):
        return None
    choices, kind = schema.get("enum"), schema.get("type")
    if isinstance(choices, (list, tuple)):
        all_text = bool(choices) and all(isinstance(each, str) for each in choices)
        return {"type": "string", "enum": list(choices)} if all_text else None
    if not isinstance(kind, str) or kind not in _KEPT:
        return None
    kept = {name: schema[name] for name in _KEPT[kind] if name in schema}
    own_format = {"format": schema["format"]} if schema.get("format") in _FORMATS else {}
    return {"type": kind, **kept, **own_format}


def _as_json(schema: Mapping[str, Any]) -> Data:
    """Return the field for an answer that is written as JSON."""
    choices = schema.get("enum")
    if isinstance(choices, (list, tuple)) and choices:
        return {"type": "string", "enum": [json.dumps(choice) for choice in choices]}
    return {
        "type": "string",
        "description": f"The answer as JSON, by this schema: {json.dumps(schema):.1000}",
    }


def _printable(text: str) -> str:
    """Return text of a run without characters that change how text around them is shown."""
    return "".join(
        sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text
    )


# The keys of forms: a client gives them back beside what was filled in.


def form_key(run_id: str, pause: Data) -> str:
    """Return the key of the form of a pause: it says all that a server needs to know that has just been started."""
    return json.dumps([run_id, pause["id"]])


def read_form_key(key: str) -> tuple[str, str] | None:
    """Return the run and the pause of a form's key; `None` if it is none of ours."""
    try:
        found = json.loads(key)
    except ValueError:
        return None
    is_ours = isinstance(found, list) and len(found) == 2 and all(isinstance(each, str) for each in found)
    return (found[0], found[1]) if is_ours else None
