"""The pages of workflows: which can be started, what each does, and a form that starts a run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from markupsafe import Markup
from starlette.routing import BaseRoute

from holdfast.engine.submission import DEFAULT_QUEUE
from holdfast.errors import HoldfastError, RunExists, UnknownWorkflow
from holdfast.service.reading import RequestInvalid
from holdfast.service.requests import Keyed, once
from holdfast.views.drawing import svg
from holdfast.web.pages.fields import Field, fields_of, read_fields
from holdfast.web.pages.rendering import Asked, Page, Pages, run_path, segment
from holdfast.web.problems import status_of

NUMBERS = {"priority": "0", "delay": "", "timeout": ""}
"""The numbers that say how a run is executed, and what their fields have at first."""


def routes(pages: Pages) -> list[BaseRoute]:
    """Return the routes of the pages of workflows."""
    return [
        pages.view("/workflows", show_workflows),
        pages.view("/workflows/{name}", show_workflow),
        pages.form("/workflows/{name}", start_run),
    ]


def workflow_path(name: str) -> str:
    """Return the path of a workflow's page."""
    return f"/workflows/{segment(name)}"


def show_workflows(asked: Asked) -> Page:
    """Show the workflows that can be started here."""
    lines = [
        {**line, "path": workflow_path(line["name"]), "fields": fields_of(line["inputs"])}
        for line in asked.service.workflows()
    ]
    return Page("workflows.html", "Workflows", {"workflows": lines})


def show_workflow(asked: Asked) -> Page:
    """Show what a workflow does, and the form that starts it."""
    name = unquote(asked.path["name"])
    return _page(asked, name, fields_of(asked.service.schema(name)), {}, [], 200)


def _page(
    asked: Asked,
    name: str,
    fields: Sequence[Field],
    form: Mapping[str, str],
    problems: Sequence[str],
    status: int,
) -> Page:
    facts = {
        "workflow": asked.service.workflow(name),
        "drawing": Markup(svg(asked.service.catalogue.find(name).app, title=name)),
        "fields": fields,
        "form": {"run_id": "", "tags": "", "queue": DEFAULT_QUEUE, **NUMBERS, **form},
        "is_more_given": any(form.get(each) for each in ("run_id", "tags", "delay", "timeout")),
        "key": secrets.token_urlsafe(16),
        "problems": problems,
        "path": workflow_path(name),
        "has_worker": asked.service.has_worker,
        "read_only": asked.service.read_only,
    }
    return Page("workflow.html", name, facts, status)


def start_run(asked: Asked) -> str | Page:
    """Start a run as the form says, and show it; or show the form again with what is wrong."""
    name, form = unquote(asked.path["name"]), asked.form
    inputs, fields = read_fields(fields_of(asked.service.schema(name)), form)
    if any(field.problem for field in fields):
        return _page(asked, name, fields, form, ["Some fields need another value."], 400)
    try:
        return run_path(_started(asked, name, inputs)["run_id"])
    except UnknownWorkflow:
        raise
    except HoldfastError as error:
        helps = [remedy.text for remedy in error.remedies if remedy.text]
        if isinstance(error, RunExists):
            helps = ["Choose another id, or leave it empty."]
        return _page(asked, name, fields, form, [error.public_problem, *helps], status_of(error))


def _started(asked: Asked, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Start a run. A form that is sent twice starts one run."""
    form = asked.form
    given: dict[str, Any] = {
        "workflow": name,
        "inputs": inputs,
        "tags": [tag.strip() for tag in form.get("tags", "").split(",") if tag.strip()],
        "queue": form.get("queue", "").strip() or DEFAULT_QUEUE,
        "priority": int(_number(form, "priority") or 0),
        "delay": _number(form, "delay"),
        "timeout": _number(form, "timeout"),
    }
    who = asked.caller.name
    if run_id := form.get("run_id", "").strip():
        return asked.service.execute(**given, run_id=run_id, who=who)
    keyed = Keyed.of(who, asked.caller.namespace, f"form {form.get('key', '')}", given)
    found: dict[str, Any] = once(asked.service, keyed, "execute", given)
    return found


def _number(form: Mapping[str, str], name: str) -> float | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise RequestInvalid(f"{name} must be a number, not {text!r:.80}") from None
