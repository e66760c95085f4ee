"""Inputs, answers and changes as people write them on the command line, and the values that they mean."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import AnswerRejected, did_you_mean
from holdfast.views.run_view import NO_STEPS

if TYPE_CHECKING:
    from holdfast.engine.settings import Pause
    from holdfast.workflows.model import Definition, Step


def read_inputs(file: str | None, pairs: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the inputs of `--inputs FILE` and `-i`: typed ones, and texts that still have to be read by type.

    A pair is `name=text`, `name=@file` (the file's text) or `name:=json`. Pairs win over the file.
    """
    typed = _read_file(file) if file is not None else {}
    text: dict[str, str] = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name.rstrip(":"):
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE (or NAME=@FILE, or NAME:=JSON)")
        plain_name = name.removesuffix(":")
        typed.pop(plain_name, None)
        text.pop(plain_name, None)
        if name.endswith(":"):
            typed[plain_name] = _json(value, pair)
        else:
            text[plain_name] = _text_of(Path(value[1:]), pair) if value.startswith("@") else value
    return typed, text


def _read_file(file: str) -> dict[str, Any]:
    text = sys.stdin.read() if file == "-" else _text_of(Path(file), f"--inputs {file}")
    found = _json(text, f"--inputs {file}")
    if not isinstance(found, dict):
        raise click.BadParameter(f"--inputs {file} must hold a JSON object, not {type(found).__name__}")
    return found


def _text_of(path: Path, where: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{where}: {path} cannot be read: {error}") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{where}: not JSON: {error}") from None


def value_of(text: str) -> Any:
    """Return the value that a text means: JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_pairs(pairs: Iterable[str], what: str) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a mapping."""
    found = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name:
            raise click.BadParameter(f"{what} {pair!r} is not of the form NAME=VALUE")
        found[name] = value
    return found


def fitting(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Return the value that a text means for a schema; raise `AnswerRejected` if no reading of it fits."""
    from holdfast.engine.answers import misfit

    value = value_of(text)
    if not schema:
        return value
    is_boolean = schema.get("type") == "boolean" and "enum" not in schema
    word = text.strip().casefold()
    words = [_WORDS[word]] if is_boolean and word in _WORDS else []
    candidates = [value, text, *_alike(text, schema.get("enum", ())), *words]
    for candidate in candidates:
        if misfit(candidate, schema) is None:
            return candidate
    if is_boolean:
        raise AnswerRejected(f"the answer must be true or false (yes and no will do), not {text!r:.80}")
    raise AnswerRejected(str(misfit(value, schema)))


_WORDS = {
    **dict.fromkeys(("true", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "no", "n", "off", "0"), False),
}
"""Words for true and false."""


def _alike(text: str, choices: Iterable[Any]) -> list[Any]:
    """Return the choices that differ from a text only in case."""
    folded = text.strip().casefold()
    return [choice for choice in choices if str(choice).casefold() == folded]


# The questions of workflow files: labels of choices, defaults, and answers of many lines.


@dataclass(frozen=True, slots=True)
class Wording:
    """What a question has beside its prompt."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """A choice's value, as text, to its label."""
    default: Any = None
    multiline: bool = False


def wording_of(definition: Definition | None, pause: Pause) -> Wording:
    """Return the wording of a pause; a plain one if the workflow file has none."""
    steps = {step.name: step for step in all_steps(definition.steps)} if definition is not None else {}
    step = steps.get(pause.node.partition(":")[0])
    ask = step.ask if step is not None else None
    if ask is None or pause.kind != "ask":
        return Wording()
    for question in ask.questions:
        if pause.name.partition("#")[0].rpartition(".")[2] == question.name:
            return Wording(_labels(question.choices), _plain(question.default), question.multiline)
    return Wording(_labels(ask.choices), _plain(ask.default), ask.multiline)


def all_steps(steps: Iterable[Step]) -> Iterable[Step]:
    """Yield every step of a list, those inside parallel groups included."""
    for step in steps:
        yield step
        yield from all_steps(step.members)


def question_names(definition: Definition) -> set[str]:
    """Return the names of all questions of a workflow file, whether they are open or not."""
    names = set()
    for step in all_steps(definition.steps):
        if step.ask is None:
            continue
        asked = [question.name for question in step.ask.questions]
        names |= {step.name, *asked, *(f"{step.name}.{name}" for name in asked)}
    return names


def rows_of(steps: Iterable[Step], depth: int = 0) -> Iterable[tuple[str, int, str]]:
    """Yield every step with its depth and its kind, members of a group below it."""
    for step in steps:
        yield step.name, depth, step.kind
        yield from rows_of(step.members, depth + 1)


def _labels(choices: Iterable[Any] | None) -> dict[str, str]:
    return {str(choice.value): choice.label for choice in choices or () if choice.label}


def _plain(default: Any) -> Any:
    return None if isinstance(default, str) and "{{" in default else default


# The conditions of `--fail-on-state`.


def check_conditions(conditions: Iterable[str], definition: Definition) -> None:
    """Refuse a condition on a step that the workflow does not have, because it could never hold."""
    known = {*NO_STEPS, *(step.name for step in all_steps(definition.steps))}
    for condition in conditions:
        name = condition.partition("=")[0].removeprefix("steps.").partition(".")[0]
        if name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
            raise click.UsageError(f"--fail-on-state {condition!r}: there is no step {name!r}; {hint}")


def first_that_holds(conditions: Iterable[str], state: Any) -> str:
    """Return the first condition that a state meets; empty if it meets none."""
    for condition in conditions:
        path, _, wanted = condition.partition("=")
        if state_has(state, path, wanted):
            return condition
    return ""


def state_has(state: Any, path: str, wanted: str) -> bool:
    """Return True if a state has a value, JSON or text, at a dotted path such as `review.output.ok`."""
    found: Any = state
    for part in path.removeprefix("steps.").split("."):
        try:
            found = found[int(part)] if isinstance(found, (list, tuple)) else found[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return False
    return bool(found == value_of(wanted)) or found == wanted
