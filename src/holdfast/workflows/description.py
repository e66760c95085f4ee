"""What a workflow file is and what is wrong with it, as plain data: its steps, its inputs, problems and warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.views.outlines import folded, steps_of, with_conditions
from holdfast.workflows.model import Agent, Definition, Step
from holdfast.workflows.reading.problems import Problem, WorkflowInvalid
from holdfast.workflows.scope import Layout
from holdfast.workflows.settings import Input
from holdfast.workflows.workflow import Workflow, load_workflow


def validated(path: Path) -> dict[str, Any]:
    """Return what is to say of a workflow file: every problem, or its name and warnings."""
    report: dict[str, Any] = {"file": str(path), "workflow": None, "steps": 0, "problems": [], "warnings": []}
    try:
        loaded = load_workflow(path)
        report |= {"workflow": loaded.name, "steps": len(loaded.definition.steps)}
        loaded.open("memory://").store.close()
    except WorkflowInvalid as error:
        report["problems"] = [problem_facts(problem) for problem in error.problems]
        return report
    report["warnings"] = warnings_of(loaded.definition, path.read_text("utf-8"))
    return report


def problem_facts(problem: Problem) -> dict[str, Any]:
    """Return a problem of a file with its place."""
    file, line, column = problem.position
    place = {"file": file, "line": line, "column": column}
    return {**place, "message": problem.message, "hint": problem.hint, "text": str(problem)}


def outline_of(loaded: Workflow) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the outline of a workflow's steps, and the kind of each."""
    app = loaded.open("memory://")
    app.store.close()
    steps = Layout(loaded.definition).steps
    outline = with_conditions(folded(app.outline(), of_file=True), _routes(steps))
    kinds = {name: f"{step.kind} for each" if step.for_each else step.kind for name, step in steps.items()}
    return outline, kinds


def _routes(steps: Mapping[str, Step]) -> dict[str, list[tuple[str, str]]]:
    return {
        name: [
            (route.to, route.when or ("otherwise" if len(step.routes) > 1 else "")) for route in step.routes
        ]
        for name, step in steps.items()
        if step.routes
    }


def described(outline: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the steps of an outline by layers, each with its kind, what follows it and what it waits for."""
    steps = [
        {
            "name": step.name,
            "kind": kinds.get(step.name),
            "layer": step.layer or None,
            "next": [route.as_json() for route in step.routes],
            "waits_for": step.waits_for,
            "steps": None if step.inner is None else described(step.inner, kinds)["steps"],
        }
        for step in steps_of(outline)
    ]
    return {"name": outline["name"], "steps": steps}


_JSON_TYPES = {"list": "array", "any": None}


def inputs_schema(inputs: Mapping[str, Input]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a workflow's inputs."""
    needed = [name for name, each in inputs.items() if each.required and each.default is None]
    return {
        "type": "object",
        "properties": {name: _input_schema(each) for name, each in inputs.items()},
        "required": needed,
        "additionalProperties": False,
    }


def _input_schema(declared: Input) -> dict[str, Any]:
    kind = _JSON_TYPES.get(declared.type, declared.type)
    found: dict[str, Any] = {} if kind is None else {"type": kind if declared.required else [kind, "null"]}
    if declared.description:
        found["description"] = declared.description
    if declared.default is not None:
        found["default"] = declared.default
    if declared.choices is not None:
        found["enum"] = [*declared.choices, *([] if declared.required else [None])]
    return found


# Warnings about a workflow that is valid.


WRITING = ("POST", "PATCH")


def warnings_of(definition: Definition, text: str) -> list[str]:
    """Return every warning about a workflow, with the remedy; `text` is the file's, without those it takes in."""
    steps = [each for step in definition.steps for each in (step, *step.members)]
    calls_python = any(step.python is not None for step in steps)  # It may get all inputs and constants.
    texts = "\n".join((text, *_texts(definition.model_dump())))
    found = [] if calls_python else [*_unused(definition, texts)]
    for step in steps:
        found += _about(step)
    if any(step.agent is not None for step in steps) and definition.workflow.limits.budget is None:
        found.append("agents may spend without bounds; set limits.budget, in US dollars")
    return found


def _texts(data: Any) -> Iterator[str]:
    """Yield every text in data, also those that come from other files."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, (dict, list, tuple)):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _texts(value)


def _unused(definition: Definition, text: str) -> Iterator[str]:
    imported = [each.as_ for each in definition.workflow.imports]
    for kind, names in (("inputs", definition.workflow.inputs), ("vars", definition.workflow.vars)):
        if not names or re.search(rf"\b{kind}\s*+(?![\s.\[:\w])", text):
            continue
        used = {*_used(kind, text), *(imported if kind == "vars" else ())}
        for name in names:
            if name not in used:
                yield f"{kind}.{name} is declared and never used; use it or remove it"


def _used(kind: str, text: str) -> set[str]:
    """Return the names that are read of `inputs` or `vars`; after a dot, `a-b` may be a name, or a difference."""
    found: set[str] = set()
    for dotted, quoted in re.findall(
        rf"\b{kind}\s*+(?:\.\s*+([\w-]++)|\[\s*+['\"]([^'\"]{{0,200}}+)['\"])", text
    ):
        words = dotted[:200].split("-")
        found.update("-".join(words[:count]) for count in range(1, len(words) + 1))
        found.add(quoted)
    return found


def _about(step: Step) -> Iterator[str]:
    if isinstance(step.agent, Agent) and step.agent.api_key and "secrets" not in step.agent.api_key:
        yield f"step {step.name!r} has its api_key in the file; write {{{{ secrets.NAME }}}} instead"
    if step.shell is not None and step.timeout is None:
        yield f"step {step.name!r} may run for ever; give it a timeout"
    method = ""
    if (http := step.http) is not None:
        method = http.method or ("POST" if http.json_ is not None or http.body is not None else "GET")
    if method in WRITING and step.idempotent and step.if_interrupted is None:
        yield (
            f"step {step.name!r} sends a {method}, which is repeated if the process dies in it; "
            "say `idempotent: false`, or `if_interrupted: rerun` if that does no harm"
        )
