"""The table of the HTTP API: paths, parameters, bodies and roles; what routes requests is also its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.service import shapes
from holdfast.service.reading import MOST_LISTED, RequestInvalid
from holdfast.service.requests import LONGEST_KEY
from holdfast.service.roles import NEEDS
from holdfast.service.service import LONGEST_WAIT
from holdfast.service.shapes import REPLIES, shape
from holdfast.values import RunStatus

PREFIX = "/api/v1"

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string", "maxLength": 10_000}
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 1_000}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
KEYS: Schema = {"type": "array", "items": {**NAME, "maxLength": 200}, "maxItems": 50}
NAMES: Schema = {"type": "array", "items": NAME, "maxItems": 1_000}
LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 50}
SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT}
TIME: Schema = {"type": "number", "minimum": 0, "maximum": 1e11}
PRIORITY: Schema = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path: the method of `Service` that answers it, and what that takes."""

    method: str
    path: str
    call: str
    summary: str
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Mapping[str, Schema] | None = None
    """The fields of a JSON object; those in `needed` have to be given."""
    needed: tuple[str, ...] = ()
    answers: str = "json"
    """What it answers with: `json`, `events`, `capsule` or `text`."""
    takes_capsule: bool = False
    is_open: bool = False
    """Whether it needs no token."""

    @property
    def role(self) -> str:
        """The role that its callers need."""
        return NEEDS.get(self.call, "read")

    @property
    def acts(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET"


def _post(path: str, call: str, summary: str, needed: Sequence[str] = (), **body: Schema) -> Endpoint:
    return Endpoint("POST", path, call, summary, body=body, needed=tuple(needed))


RUN = "/runs/{run_id}"
_NEW_RUN: dict[str, Any] = {
    "inputs": OBJECT,
    "run_id": NAME,
    "wait": SECONDS,
    "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400},
    "tags": NAMES,
}

ENDPOINTS = (
    Endpoint("GET", "/health", "health", "Whether the store answers", is_open=True),
    Endpoint("GET", "/ready", "ready", "Whether runs are executed here", is_open=True),
    Endpoint("GET", "/schema", "schema", "The JSON Schema of workflow files"),
    Endpoint("GET", "/workflows", "workflows", "The workflows that can be started"),
    _post("/workflows/reload", "reload", "Read the workflow files again"),
    _post(
        "/workflows/validate",
        "validate",
        "Check the text of a workflow file",
        ["text"],
        text={"type": "string"},
    ),
    Endpoint("GET", "/workflows/{name}", "workflow", "A workflow: its inputs and its steps"),
    Endpoint("GET", "/workflows/{name}/schema", "schema", "The JSON Schema of a workflow's inputs"),
    Endpoint("GET", "/workflows/{workflow}/graph", "graph", "The nodes and edges of a workflow"),
    _post(
        "/workflows/{workflow}/runs",
        "execute",
        "Submit a run; with `wait`, answer when it has stopped, or after so many seconds",
        queue=NAME,
        priority=PRIORITY,
        delay={"type": "number", "minimum": 0, "maximum": 1e9},
        **_NEW_RUN,
    ),
    _post(
        "/runs/inline",
        "execute_inline",
        "Submit a run of the workflow in a text, if the operator allows that",
        ["text"],
        text={"type": "string"},
        **_NEW_RUN,
    ),
    Endpoint(
        "GET",
        "/runs",
        "runs",
        "A page of runs, the last updated first",
        query={
            "status": {"type": "array", "items": {"type": "string", "enum": [*map(str, RunStatus)]}},
            "workflow": NAME,
            "tag": NAME,
            "text": NAME,
            "since": TIME,
            "until": TIME,
            "limit": LIMIT,
            "cursor": NAME,
            "counts": FLAG,
        },
    ),
    _post(
        "/runs/import", "import_", "Take a run out of a capsule; nothing of it runs before it is confirmed"
    ),
    Endpoint("GET", RUN, "run", "A run: status, steps, what it waits for, inputs, output, costs"),
    Endpoint("DELETE", RUN, "delete", "Delete a run and all that belongs to it"),
    Endpoint("GET", f"{RUN}/status", "status", "The status of a run and what it waits for"),
    Endpoint(
        "GET", f"{RUN}/wait", "wait", "The status of a run when it has stopped", query={"seconds": SECONDS}
    ),
    Endpoint("GET", f"{RUN}/plan", "plan_resume", "What a resume would do with every step of a run, and why"),
    Endpoint("GET", f"{RUN}/steps", "steps", "The steps of a run"),
    Endpoint(
        "GET", f"{RUN}/steps/{{name:path}}", "step", "A step of a run: output, error, attempts, cost, events"
    ),
    Endpoint(
        "GET",
        f"{RUN}/state",
        "state",
        "The state of a run, now or at a checkpoint (an id, or @3, @-1, @STEP)",
        query={"checkpoint": NAME, "keys": KEYS},
    ),
    Endpoint(
        "GET",
        f"{RUN}/history",
        "history",
        "A page of a run's checkpoints, each with what happened since the one before",
        query={"limit": LIMIT, "before": NAME},
    ),
    Endpoint("GET", f"{RUN}/forks", "forks", "The runs that a run comes from, and its forks"),
    Endpoint("GET", f"{RUN}/graph", "graph", "The steps of a run as nodes and edges, each with its status"),
    Endpoint("GET", f"{RUN}/cost", "cost", "What a run has used, by step and by model"),
    Endpoint(
        "GET",
        f"{RUN}/events",
        "events",
        "The events of a run after one of them; with Accept: text/event-stream, as they happen",
        query={"after": {"type": "string", "pattern": r"^[0-9]{1,10}(\.[0-9]{1,10})?$"}, "limit": LIMIT},
        answers="events",
    ),
    Endpoint("GET", f"{RUN}/capsule", "export", "A run as a capsule, in one file", answers="capsule"),
    _post(
        f"{RUN}/answer",
        "answer",
        "Answer what a run waits for: a value, perhaps with its question, or several answers by question",
        value={},
        question=NAME,
        answers=OBJECT,
    ),
    _post(
        f"{RUN}/answer-links",
        "answer_links",
        "Links for the questions of a run; each answers once, without a login",
    ),
    _post(f"{RUN}/pause", "pause", "Pause a run after the steps under way", reason=TEXT),
    _post(f"{RUN}/cancel", "cancel", "Stop a run; finished steps are kept", reason=TEXT),
    _post(
        f"{RUN}/resume", "resume", "Let workers go on with a run that stopped", queue=NAME, priority=PRIORITY
    ),
    _post(f"{RUN}/edit", "edit", "Change the state of a run", ["update"], update=OBJECT, reason=TEXT),
    _post(f"{RUN}/skip", "skip", "Skip a step", ["step"], step=NAME, reason=TEXT),
    _post(f"{RUN}/replan", "replan", "Run these steps next", ["steps"], steps=NAMES, reason=TEXT),
    _post(
        f"{RUN}/annotate",
        "annotate",
        "Note a text, add or remove tags, or keep a checkpoint",
        note=TEXT,
        add=NAMES,
        remove=NAMES,
        keep=FLAG,
        checkpoint=NAME,
    ),
    _post(
        f"{RUN}/fork",
        "fork",
        "Start a new run at a checkpoint of another",
        at=NAME,
        update=OBJECT,
        new_run_id=NAME,
        start=FLAG,
        tags=NAMES,
        reason=TEXT,
    ),
    _post(
        f"{RUN}/rerun",
        "rerun",
        "Run a step and what follows it again, in a new run",
        ["step"],
        step=NAME,
        update=OBJECT,
        output={},
        new_run_id=NAME,
    ),
    _post(f"{RUN}/promote", "promote", "Promote a fork's result to its parent run", into=NAME, reason=TEXT),
    _post(f"{RUN}/rollback", "rollback", "Roll a run back to a checkpoint", ["to"], to=NAME, reason=TEXT),
    Endpoint(
        "GET",
        "/checkpoints",
        "checkpoints",
        "The newest checkpoints, of a run, of a workflow or of all",
        query={"run_id": NAME, "workflow": NAME, "limit": LIMIT},
    ),
    Endpoint("GET", "/checkpoints/{ident}", "checkpoint", "A checkpoint with its state"),
    Endpoint(
        "DELETE", "/checkpoints/{ident}", "delete_checkpoint", "Delete a checkpoint with those before it"
    ),
    Endpoint(
        "GET",
        "/diff",
        "diff",
        "What differs between two checkpoints, or between one and the one before it",
        query={"one": {**NAME, "required": True}, "other": NAME, "keys": KEYS},
    ),
    Endpoint(
        "GET",
        "/compare",
        "compare",
        "What two runs did differently",
        query={"one": {**NAME, "required": True}, "other": {**NAME, "required": True}},
    ),
    Endpoint(
        "GET",
        "/costs",
        "costs",
        "What the latest runs used",
        query={
            "by": {"type": "string", "enum": ["workflow", "model", "run", "step", "day"]},
            "since": TIME,
        },
    ),
    Endpoint("GET", "/fleet", "fleet", "Queues, schedules, and the processes that execute runs"),
)


# Reading what a request gives.


def read_query(endpoint: Endpoint, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the query of a request as its endpoint declares it."""
    found: dict[str, Any] = {}
    for name, text in pairs:
        schema = endpoint.query.get(name)
        if schema is None:
            known = ", ".join(endpoint.query) or "none"
            raise RequestInvalid(f"there is no parameter {name!r:.80}; there are: {known}")
        if schema.get("type") == "array":
            found.setdefault(name, []).append(_value(name, schema["items"], text))
        elif name in found:
            raise RequestInvalid(f"{name!r} is given twice")
        else:
            found[name] = _value(name, schema, text)
    for name, schema in endpoint.query.items():
        if schema.get("required") and name not in found:
            raise RequestInvalid(f"the parameter {name!r} is missing")
    return found


def _value(name: str, schema: Schema, text: str) -> Any:
    value: Any = text
    try:
        match schema.get("type"):
            case "integer":
                value = int(text) if text.lstrip("-").isdecimal() and len(text) < 20 else text
            case "number":
                value = float(text)
            case "boolean":
                value = {"true": True, "false": False}.get(text, text)
    except ValueError:
        pass
    check(name, schema, value)
    return value


_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def check(name: str, schema: Schema, value: Any) -> None:
    """Raise `RequestInvalid` if a value does not fit a schema of this table."""
    kind = schema.get("type")
    if kind is None:
        return
    if not isinstance(value, _KINDS[kind]) or (kind != "boolean" and isinstance(value, bool)):
        raise RequestInvalid(f"{name} must be of type {kind}, not {value!r:.80}")
    size = len(value) if isinstance(value, (str, list)) else 0
    amount = value if isinstance(value, (int, float)) else 0
    problems = {
        f"must have from {schema.get('minLength', 0)} to {schema.get('maxLength')} characters": (
            isinstance(value, str) and not schema.get("minLength", 0) <= size <= schema.get("maxLength", size)
        ),
        f"may have {schema.get('maxItems')} items": (
            isinstance(value, list) and size > schema.get("maxItems", size)
        ),
        f"must be from {schema.get('minimum')} to {schema.get('maximum')}": (
            kind in ("integer", "number")
            and not schema.get("minimum", amount) <= amount <= schema.get("maximum", amount)
        ),
        f"must be more than {schema.get('exclusiveMinimum')}": (
            "exclusiveMinimum" in schema and amount <= schema["exclusiveMinimum"]
        ),
        f"must be one of {schema.get('enum')}": "enum" in schema and value not in schema["enum"],
    }
    for problem, holds in problems.items():
        if holds:
            raise RequestInvalid(f"{name} {problem}, not {value!r:.80}")
    for place, item in enumerate(value) if isinstance(value, list) and "items" in schema else ():
        check(f"{name}[{place}]", schema["items"], item)


def read_body(endpoint: Endpoint, body: Any) -> dict[str, Any]:
    """Return the fields of a body as its endpoint declares them."""
    fields = endpoint.body or {}
    if not isinstance(body, dict):
        raise RequestInvalid(f"the body must be a JSON object, not {body!r:.80}")
    for name, value in body.items():
        if name not in fields:
            raise RequestInvalid(f"there is no field {name!r:.80}; there are: {', '.join(fields) or 'none'}")
        check(name, fields[name], value)
    missing = [name for name in endpoint.needed if name not in body]
    if missing:
        raise RequestInvalid(f"the field {missing[0]!r} is missing")
    return body


# The OpenAPI document.


def openapi(has_tokens: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the API; callers need a token where the server has any."""
    paths: dict[str, dict[str, Any]] = dict(_beside())
    for endpoint in ENDPOINTS:
        path = f"{PREFIX}{endpoint.path.replace(':path', '')}"
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": "1", "description": "Workflows and their runs."},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": PROBLEM},
        },
        "security": [{"token": []}, *([] if has_tokens else [{}])],
    }


def _beside() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paths that answer with something else than what a service returns."""
    link = {"application/json": {"schema": shape({"path": shapes.TEXT, "seconds": shapes.COUNT})}}
    about = "A link that logs a browser in as the caller, once"
    yield f"{PREFIX}/login-links", {"post": {**_described(about, link), "x-role": "read"}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    yield "/metrics", {"get": {**_described("Metrics for Prometheus", text), "x-role": "read"}}
    document = {"application/json": {"schema": shapes.OBJECT}}
    yield f"{PREFIX}/openapi.json", {"get": {**_described("This document", document), "security": []}}


def _described(summary: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return an operation that answers with a content, or with a problem."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "It worked.", "content": content},
            "default": {"description": "It did not; `remedies` say what can be done.", "content": problem},
        },
    }


PROBLEM: Schema = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "remedies"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "facts": {"type": "object"},
        "remedies": {"type": "array", "items": {"type": "object"}},
    },
}


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {
        **_described(endpoint.summary, _content(endpoint)),
        "operationId": f"{endpoint.method.lower()} {endpoint.path}".translate(
            str.maketrans(" /{}:", "_____")
        ),
        "parameters": list(_parameters(endpoint)),
        **({"security": []} if endpoint.is_open else {"x-role": endpoint.role}),
    }
    if endpoint.answers == "events":
        found["responses"]["204"] = {
            "description": "The run is completed, and there are no more events to stream."
        }
    if endpoint.call == "import_":
        content: dict[str, Any] = {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
        }
        found["requestBody"] = {"required": True, "content": content}
    elif endpoint.body is not None:
        schema = {
            "type": "object",
            "properties": dict(endpoint.body),
            "required": list(endpoint.needed),
            "additionalProperties": False,
        }
        content = {"application/json": {"schema": schema}}
        found["requestBody"] = {"required": bool(endpoint.needed), "content": content}
    return found


def _content(endpoint: Endpoint) -> dict[str, Any]:
    """Return what an endpoint answers with, by its media type."""
    if endpoint.answers == "capsule":
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    content: dict[str, Any] = {"application/json": {"schema": REPLIES[endpoint.call]}}
    if endpoint.answers == "events":
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _parameters(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for part in endpoint.path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}").removesuffix(":path")
            yield {"name": name, "in": "path", "required": True, "schema": dict(NAME)}
    if endpoint.method == "POST":
        about = (
            "A request that is repeated with its key acts once; another request with the same key is refused."
        )
        key = {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[ -~]+$"}
        yield {"name": "Idempotency-Key", "in": "header", "description": about, "schema": key}
    if endpoint.answers == "events":
        about = "The id of the last event that was received; it has precedence over `after`."
        yield {
            "name": "Last-Event-ID",
            "in": "header",
            "description": about,
            "schema": endpoint.query["after"],
        }
    for name, schema in endpoint.query.items():
        plain = {key: value for key, value in schema.items() if key != "required"}
        yield {"name": name, "in": "query", "required": bool(schema.get("required")), "schema": plain}
