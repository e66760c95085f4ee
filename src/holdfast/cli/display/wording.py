"""How a workflow file words its questions: labels of choices, defaults, and answers of many lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.engine.outcome import Pause
    from holdfast.flows.model import Definition, Step


@dataclass(frozen=True, slots=True)
class Wording:
    """What a question says beside its prompt."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """A choice's value, as text, to its label."""
    default: Any = None
    multiline: bool = False


def wording_of(definition: Definition | None, pause: Pause) -> Wording:
    """The wording of a pause; plain if the workflow file says nothing of it."""
    steps = {step.name: step for step in all_steps(definition.steps)} if definition is not None else {}
    step = steps.get(pause.node.partition(":")[0])
    ask = step.ask if step is not None else None
    if ask is None or isinstance(ask, str) or pause.kind != "ask":
        return Wording()
    for question in ask.questions:
        if pause.name.partition("#")[0].rpartition(".")[2] == question.name:
            return Wording(_labels(question.choices), _plain(question.default), question.multiline)
    return Wording(_labels(ask.choices), _plain(ask.default), ask.multiline)


def all_steps(steps: Iterable[Step]) -> Iterable[Step]:
    """Every step of a list, those inside parallel groups included."""
    for step in steps:
        yield step
        yield from all_steps(members_of(step))


def question_names(definition: Definition) -> set[str]:
    """What the questions of a workflow file can be answered by, whether they are open or not."""
    names = set()
    for step in all_steps(definition.steps):
        if step.ask is None:
            continue
        asked = [] if isinstance(step.ask, str) else [question.name for question in step.ask.questions]
        names |= {step.name, *asked, *(f"{step.name}.{name}" for name in asked)}
    return names


def members_of(step: Step) -> list[Step]:
    """The steps inside a parallel group; none for any other step."""
    if step.parallel is None:
        return []
    return step.parallel if isinstance(step.parallel, list) else step.parallel.steps


def rows_of(steps: Iterable[Step], depth: int = 0) -> Iterable[tuple[str, int, str]]:
    """Every step with its depth and its kind, members of a group below it."""
    for step in steps:
        yield step.name, depth, step.kind
        yield from rows_of(members_of(step), depth + 1)


def _labels(choices: Iterable[Any] | None) -> dict[str, str]:
    found = {}
    for choice in choices or ():
        if isinstance(choice, Mapping) and "value" in choice:
            found[str(choice["value"])] = str(choice.get("label") or choice["value"])
    return found


def _plain(default: Any) -> Any:
    return None if isinstance(default, str) and "{{" in default else default
