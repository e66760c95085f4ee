"""The base of all kinds of steps, and the kinds that need nothing but the engine: set, wait, ask, checkpoint, end."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from holdfast import clock
from holdfast.engine import checkpoint_files as files
from holdfast.engine.context import Context
from holdfast.state.state import State
from holdfast.workflows.folders import based, resolved_path
from holdfast.workflows.language.templates import (
    Template,
    TemplateError,
    compile_template,
    compile_tree,
    render_tree,
    tree_paths,
)
from holdfast.workflows.model import Question, Step
from holdfast.workflows.scope import EndedInFailure, Resources, StepFailed
from holdfast.workflows.settings import Part

Paths = set[tuple[str, ...]]
Result = dict[str, Any]
"""What a step leaves in the state: its `output`, and whatever else its kind has to tell."""


class Text:
    """One text of a step. Errors name the field that it stands in."""

    def __init__(self, field: str, text: str) -> None:
        self.field, self.template = field, compile_template(text)
        self.paths: Paths = set(self.template.paths)

    def fill(self, scope: Mapping[str, Any]) -> str:
        """Return the text with the scope's values."""
        try:
            return self.template.render(scope)
        except TemplateError as error:
            raise StepFailed(f"{self.field}: {error}") from None


class Tree:
    """A value of a step with texts anywhere in it; `paths` are those that it reads of the scope."""

    def __init__(self, field: str, value: Any) -> None:
        self.field, self._compiled = field, compile_tree(value)
        self.paths = tree_paths(self._compiled)
        self._constant = None if _has_templates(self._compiled) else self.render({})

    def fill(self, scope: Mapping[str, Any]) -> Any:
        """Return the value for a caller that does not change it: one without templates is made once."""
        return self.render(scope) if self._constant is None else self._constant

    def render(self, scope: Mapping[str, Any]) -> Any:
        """Return the value with the scope's values in its texts."""
        try:
            return render_tree(self._compiled, scope)
        except TemplateError as error:
            place = ".".join(str(part) for part in (self.field, *error.path))
            raise StepFailed(f"{place}: {error}") from None


def _has_templates(compiled: Any) -> bool:
    if isinstance(compiled, Template):
        return not compiled.is_plain
    inner = compiled.values() if isinstance(compiled, dict) else compiled
    return isinstance(compiled, (dict, list, tuple)) and any(map(_has_templates, inner))


class Kind:
    """The work of one step. It is made once, when its workflow is loaded, and run any number of times.

    The fields of the step that its model declares as templates are compiled.
    """

    transient_only: ClassVar[bool] = False
    """Whether by default only transient failures are retried, and then are without being asked for."""
    is_async = False
    """Whether `run` returns an awaitable."""
    asks_engine = True
    """Whether `run` needs a context; work without one costs less."""
    takes_state = False
    """Whether `run` reads the state itself, beside the scope."""

    def __init__(self, step: Step, resources: Resources) -> None:
        self._step, self._resources = step, resources
        self._paths: Paths = set()
        self._fields: dict[str, Text | Tree | dict[str, Text]] = {}
        part = getattr(step, step.kind)
        for name, declared in type(part).model_fields.items() if isinstance(part, Part) else ():
            field, value = declared.alias or name, getattr(part, name)
            where = f"{step.kind}.{field}"
            if field not in part.templates or value is None:
                continue
            if declared.annotation == dict[str, str]:
                self._fields[field] = {key: self.text(f"{where}.{key}", text) for key, text in value.items()}
            elif declared.annotation in (str, str | None):
                self._fields[field] = self.text(where, value)
            else:
                self._fields[field] = self.tree(where, value)

    def text(self, field: str, text: str) -> Text:
        """Compile a text of the step."""
        found = Text(field, text)
        self._paths |= found.paths
        return found

    def tree(self, field: str, value: Any) -> Tree:
        """Compile a value of the step with texts in it."""
        found = Tree(field, value)
        self._paths |= found.paths
        return found

    def fill(self, field: str, scope: Mapping[str, Any]) -> Any:
        """Return a field of the step with the scope's values; None if the step does not have it."""
        found = self._fields.get(field)
        if isinstance(found, dict):
            return {name: text.fill(scope) for name, text in found.items()}
        return None if found is None else found.fill(scope)

    def paths(self) -> Paths:
        """Return the paths that the work reads of the scope."""
        return self._paths

    def functions(self) -> Sequence[Callable[..., Any]]:
        """Return the functions that make it other work when they change, beside the definition."""
        return ()

    def settings(self) -> dict[str, Any]:
        """Return the settings of the workflow that make it other work when they change."""
        return {}

    @contextlib.contextmanager
    def _naming(self, field: str, given: str) -> Iterator[None]:
        """Raise what goes wrong with a file as a failure of the step."""
        try:
            yield
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            if isinstance(error, UnicodeDecodeError):
                reason = f"byte {error.start + 1} of it is not UTF-8"
            hint = "; set `outside: true` to allow that" if "workflow file's folder" in reason else ""
            raise StepFailed(f"{self._step.kind}.{field}: {given!r:.200}: {reason}{hint}") from None

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Any:
        """Do the work: return a `Result`, or an awaitable of one."""
        raise AssertionError("other nodes do the work")


class SetValues(Kind):
    """`set`: values made of values."""

    asks_engine = False

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        self._values = self.tree("set", step.set)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        return {"output": self._values.fill(scope)}


class Wait(Kind):
    """`wait`: time passes, also while nobody runs."""

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        wait, until = self._step.wait, self.fill("until", scope)
        assert wait is not None
        if until is not None:
            ctx.sleep(max(0.0, _parse_time(until).timestamp() - clock.time()), name="wait")
        elif wait.seconds is not None:
            ctx.sleep(wait.seconds, name="wait")
        return {"output": None}


def _parse_time(text: str) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(text.strip())
        return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    except ValueError:
        raise StepFailed(
            f"wait.until: {text!r:.80} is no date and time; write it as 2026-01-31T09:00:00+01:00, "
            "or without offset in UTC"
        ) from None


class End(Kind):
    """`end`: the run is over, well or not."""

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        reason = self.fill("reason", scope)
        if self._step.end is not None and self._step.end.status == "failure":
            raise EndedInFailure(reason or "the workflow ended in failure")
        return {"output": reason or None, "reason": reason}


class AskQuestions(Kind):
    """`ask`: all questions at once; the run pauses until everything is answered, and keeps each answer when it comes.

    The person who answers may have looked at anything, so that an answer holds only while all of the state is the same.
    """

    takes_state = True

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        ask = step.ask
        assert ask is not None
        self._ask = ask
        alone = {name: getattr(ask, name) for name in Question.model_fields if name != "name"}
        self._prompts = [
            (each, self.text(f"the prompt of question {each.name!r}", each.prompt)) for each in ask.questions
        ] or [(Question(name="answer", **alone), self.text("ask.prompt", ask.prompt))]

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        if self._resources.skip_gates:
            answers = {question.name: self._assumed(question) for question, _ in self._prompts}
        else:
            asked = {
                self._name(question, ctx): self._asked(question, prompt.fill(scope))
                for question, prompt in self._prompts
            }
            found = ctx.ask_all(asked)
            answers = {question.name: found[self._name(question, ctx)] for question, _ in self._prompts}
        if self._ask.questions:
            return {"output": answers, "answers": answers}
        (answer,) = answers.values()
        return {"output": answer, "answer": answer}

    def _asked(self, question: Question, prompt: str) -> dict[str, Any]:
        choices = question.choices
        described = [
            f"  {choice.value}: {' - '.join(text for text in (choice.label, choice.description) if text)}"
            for choice in choices or ()
            if choice.label or choice.description
        ]
        return {
            "prompt": "\n".join([prompt, *described]),
            "schema": None if question.type == "any" else {"type": question.type},
            "choices": None if choices is None else [choice.value for choice in choices],
            "timeout": self._ask.timeout,
            **({} if question.default is None else {"default": question.default}),
        }

    def _name(self, question: Question, ctx: Context) -> str:
        """Return what people answer to: the step, the item that it is asked for, and the question among several."""
        name = self._step.name if ctx.item_key is None else f"{self._step.name}[{ctx.item_key}]"
        return f"{name}.{question.name}" if self._ask.questions else name

    def _assumed(self, question: Question) -> Any:
        if question.default is not None:
            return question.default
        if question.choices:
            return question.choices[0].value
        which = f"question {question.name!r} of `ask`" if self._ask.questions else "`ask`"
        raise StepFailed(
            f"gates are skipped, and {which} has neither choices nor a default; give it a default"
        )


class UseCheckpointFile(Kind):
    """`checkpoint`: writes or reads a checkpoint file; nothing that a file names is ever imported or run."""

    takes_state = True

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        saves = self.fill("save", scope)
        if saves is not None:
            with self._naming("save", saves):
                path = self._path(saves, scope.get("tmp"))
                files.check_replaceable(path)
            saved = files.save(path, state, ctx.node, ctx.config)
            return {"output": {"checkpoint_path": str(saved), "saved": True}}
        loads = self.fill("load", scope)
        with self._naming("load", loads):
            path = self._path(loads, scope.get("tmp"))
        content = files.load(path)
        return {"output": {"checkpoint_state": content["state"], "checkpoint_node": content["node"]}}

    def _path(self, given: str, tmp: str | None) -> Path:
        """Return a path as it may be used. The whole path of a file in the folder, as `save` returns it, is one."""
        assert self._step.checkpoint is not None
        base, inside = based(given, self._resources.base, tmp)
        return resolved_path(base, inside, outside=self._step.checkpoint.outside)


# JSON that comes from outside and goes there: only what can be stored and read by others.


def read_json(text: str | bytes) -> Any:
    """Return the data that a text is; a `ValueError` says why it is none."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(value: Any, field: str) -> bytes:
    """Data as JSON; what JSON has no way to write is refused with the field that it is for."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StepFailed(f"{field}: this cannot be sent as JSON: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number
