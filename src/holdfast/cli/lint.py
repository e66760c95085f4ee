"""What is allowed in a workflow file and yet is probably not meant: warnings of `holdfast validate`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.flows.model import Agent, Definition, Http, Step
from holdfast.flows.scope import members

WRITING = ("POST", "PATCH")


def warnings_of(definition: Definition, text: str) -> list[str]:
    """Every warning about a workflow, in plain words with the way out; `text` is the file's."""
    found = [*_unused(definition, text)]
    for step in definition.steps:
        for each in (step, *members(step)):
            found += _about(each)
    if _has_agents(definition) and definition.workflow.limits.budget is None:
        found.append("agents may spend without bounds; set limits.budget, in US dollars")
    return found


def _unused(definition: Definition, text: str) -> Iterator[str]:
    if _calls_python(definition):
        return
    for kind, names in (("inputs", definition.workflow.inputs), ("vars", definition.workflow.vars)):
        if not names or re.search(rf"\b{kind}\s*+(?![\s.\[:\w])", text):
            continue
        used = _used(kind, text)
        for name in names:
            if name not in used:
                yield f"{kind}.{name} is declared and never used; use it or remove it"


def _used(kind: str, text: str) -> set[str]:
    """The names that are read of `inputs` or `vars`. After a dot, `a-b` may be one name, or one less another."""
    found: set[str] = set()
    for dotted, quoted in re.findall(
        rf"\b{kind}\s*+(?:\.\s*+([\w-]++)|\[\s*+['\"]([^'\"]{{0,200}}+)['\"])", text
    ):
        words = dotted[:200].split("-")
        found.update("-".join(words[:count]) for count in range(1, len(words) + 1))
        found.add(quoted)
    return found


def _calls_python(definition: Definition) -> bool:
    """Whether a function may be given all inputs and constants."""
    return any(each.python is not None for step in definition.steps for each in (step, *members(step)))


def _about(step: Step) -> Iterator[str]:
    if isinstance(step.agent, Agent) and step.agent.api_key and "secrets" not in step.agent.api_key:
        yield f"step {step.name!r} has its api_key in the file; write {{{{ secrets.NAME }}}} instead"
    if step.shell is not None and step.timeout is None:
        yield f"step {step.name!r} may run for ever; give it a timeout"
    if _writes(step) and step.idempotent and step.if_interrupted is None:
        yield (
            f"step {step.name!r} sends a {_method(step)}, which is repeated if the process dies in it; "
            "say `idempotent: false`, or `if_interrupted: rerun` if that does no harm"
        )


def _writes(step: Step) -> bool:
    return _method(step) in WRITING


def _method(step: Step) -> str:
    if not isinstance(step.http, Http):
        return ""
    return step.http.method or (
        "POST" if step.http.json_ is not None or step.http.body is not None else "GET"
    )


def _has_agents(definition: Definition) -> bool:
    return any(each.agent is not None for step in definition.steps for each in (step, *members(step)))
