"""A workflow file's data as a `Definition`, or every problem it has at once.

The models of `holdfast.workflows.model` decide what fits. Their errors become problems with a place and a cure; what
does not fit is then left out, so that the rest of the file can be checked in the same pass.
"""

from __future__ import annotations

import copy
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from holdfast.errors import did_you_mean
from holdfast.workflows.model import KINDS, Definition, Step, with_runtime
from holdfast.workflows.reading.checks import MADE_UP, Draft, check_names, check_order
from holdfast.workflows.reading.problems import MOST_PROBLEMS, Problem, WorkflowInvalid, given, listed
from holdfast.workflows.reading.source import DataPath, Source
from holdfast.workflows.reading.step_checks import check_kinds, check_texts
from holdfast.workflows.settings import STEP_NAME, Part

_ROUNDS = 20
"""How often what does not fit is left out: what is left may lack something required, and then goes as a whole."""
_LOST: Any = object()

_Error = dict[str, Any]


def parse(source: Source) -> Definition:
    """Return the definition that a file holds; raise `WorkflowInvalid` with everything that is wrong with it."""
    if not isinstance(source.data, dict):
        found = "a list" if isinstance(source.data, list) else "text or a number"
        message = f"expected the fields workflow and steps, got {found}"
        hint = "a workflow file begins with `workflow:` (with a `name`) and has a list of `steps:`"
        raise WorkflowInvalid(
            [source.problem((), "the file is empty" if source.data is None else message, hint)]
        )
    definition, errors = _validated(source.data)
    problems = [*_shape_problems(source, errors), *_kind_problems(source)]
    is_whole = definition is not None and not problems
    draft = Draft(source, definition) if definition and is_whole else _repaired(source, errors)
    if draft is not None:
        checks = (check_names, check_kinds, check_texts, *((check_order,) if is_whole else ()))
        found_later = itertools.chain.from_iterable(check(draft) for check in checks)
        problems += itertools.islice(found_later, MOST_PROBLEMS)
    if problems:
        raise WorkflowInvalid(problems)
    assert definition is not None
    return with_runtime(definition)


def _validated(data: Any) -> tuple[Definition | None, list[_Error]]:
    """Return the definition, or what keeps the data from being one."""
    try:
        return Definition.model_validate(data, by_alias=True, by_name=False), []
    except ValidationError as invalid:
        return None, [dict(error) for error in invalid.errors(include_url=False)]


# Errors of the models as problems: in plain words, with a cure.


_EXPECTED = {
    "string_type": "text",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "dict_type": "fields (`name: value`)",
}
_BOUNDS = {
    "greater_than_equal": "has to be at least {ge}",
    "greater_than": "has to be above {gt}",
    "less_than_equal": "can be at most {le}",
}
_NAME_RULE = "use letters, digits, _ and -; do not begin with a digit; at most 64 characters"


@dataclass
class _Misfit:
    """Everything that the models say of one value: several errors if it may be of several types."""

    path: DataPath
    """The path of the value in the data."""
    rest: DataPath
    """What the error's path has beyond it: a field that is missing, or one of a short form."""
    data: Any
    errors: list[_Error] = field(default_factory=list)


def _misfits(data: Any, errors: Sequence[_Error]) -> list[_Misfit]:
    found: dict[Any, _Misfit] = {}
    for error in errors:
        value, used = data, 0
        for part in error["loc"]:
            inside = _inside(value, part)
            if inside is _LOST:
                break
            value, used = inside, used + 1
        path, rest = error["loc"][:used], error["loc"][used:]
        key = (path, rest if error["type"] == "missing" else ())
        found.setdefault(key, _Misfit(path, rest, value)).errors.append(error)
    return list(found.values())


def _inside(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part, _LOST)
    return value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else _LOST


def _shape_problems(source: Source, errors: Sequence[_Error]) -> Iterator[Problem]:
    for number, misfit in enumerate(_misfits(source.data, errors)):
        error, path = misfit.errors[0], misfit.path
        place = where(source.data, path)
        if error["type"] == "missing":
            name = error["loc"][-1]
            yield source.problem(path, f"{place} has no {name!r}", f"add `{name}: …`", key=True)
        elif error["type"] == "extra_forbidden":
            outer = where(source.data, path[:-1])
            hint = _unknown_hint(path, number < MOST_PROBLEMS)
            yield source.problem(path, f"unknown field {path[-1]!r} in {outer}", hint, key=True)
        elif error["type"] == "value_error" and isinstance(misfit.data, dict):
            message, _, hint = str(error["ctx"]["error"]).partition("; ")
            hint = hint or ("keep one of them" if len(misfit.data) > 1 else "add one of them")
            yield source.problem(path, f"{place}: {message}", hint, key=True)
        else:
            message, hint = _wording(misfit, error)
            yield source.problem(path, f"{place}: {message}", hint)


def _wording(misfit: _Misfit, error: _Error) -> tuple[str, str]:
    """Return what is wrong with a value, and the cure."""
    kind, context, data = error["type"], error.get("ctx", {}), misfit.data
    if kind == "value_error":
        return f"{context['error']}, got {given(data)}", "write it as 30s, 5m, 1h30m or 2d"
    if kind == "string_pattern_mismatch":
        rule = _NAME_RULE if context["pattern"] == STEP_NAME else f"it has to match {context['pattern']}"
        return f"{data!r} cannot be a name", rule
    if kind in _BOUNDS:
        rule = _BOUNDS[kind].format(**context)
        return f"the value {rule}, got {data}", f"give a number that fits: it {rule}"
    if kind == "too_short":
        return "the list is empty", "add an item, or leave the field out"
    expected = " or ".join(dict.fromkeys(_expected(each, misfit.path) for each in misfit.errors))
    model = _model_at(misfit.path)
    if model and model.short and misfit.rest[:1] == (model.short,) and not isinstance(data, dict):
        expected = f"{expected} or {_fields_of(model)}"
    return f"expected {expected}, got {given(data)}", _cure(data, error, expected)


def _expected(error: _Error, path: DataPath) -> str:
    if error["type"] == "list_type":
        return f"a list of {error['loc'][-1] if isinstance(error['loc'][-1], str) else 'values'}"
    if error["type"] == "literal_error":
        return f"one of {listed(_words(error))}"
    if error["type"] in ("model_type", "model_attributes_type"):
        return _fields_of(_model_at(path))
    return _EXPECTED.get(error["type"], "a value")


def _words(error: _Error) -> list[str]:
    return re.findall("'([^']*)'", error["ctx"]["expected"])


def _cure(data: Any, error: _Error, expected: str) -> str:
    if data is None:
        return "give it a value, or leave the field out"
    is_word = error["type"] == "literal_error" and isinstance(data, str)
    if is_word and (close := did_you_mean(data, _words(error))):
        return close
    if "a list" in expected and not isinstance(data, list):
        return "begin each item with `- `"
    if expected.startswith("fields"):
        return "write its fields on lines of their own, each as `name: value`"
    if isinstance(data, (int, float, bool)) and expected.startswith("text"):
        return f'put it in quotes: "{given(data).removeprefix("the number ")}"'
    return f"write {expected}"


_OTHER_NAMES = {
    **dict.fromkeys(("agents", "blocks", "nodes"), "`steps`"),
    "outputs": "`output`",
    "entry_point": "`entry`",
    "input": "`inputs`",
    "variables": "`vars` of `workflow`",
    "default_model": "`model`",
    "provider": "a part of `model`, which is provider:name",
    "max_agent_iterations": "`max_turns`",
    "max_session_seconds": "`timeout`",
    "config": "`checkpoint` of `workflow`",
    "checkpoint_dir": "`dir` of `checkpoint` of `workflow`",
    "depends_on": "`after`",
    "condition": "`when`",
    "goto": "`routes`",
    "while": "`while_loop`",
    "dynamic_parallel": "`for_each`",
    **dict.fromkeys(("script", "Shell"), "`shell`"),
    "run": "`python` or `shell`",
    **dict.fromkeys(("human_gate", "questions", "Prompt", "prompt"), "`ask`"),
    "terminate": "`end`",
    **dict.fromkeys(("create_file", "edit_file", "read_files"), "`file: {create|edit|read: PATH}`"),
    **{f"{verb}_json_state": f"`json_state: {{{verb}: PATH}}`" for verb in ("read", "write", "merge")},
    "llm_call": "`agent`",
    "http_call": "`http`",
    "type": "the kind itself, such as `shell:` or `agent:`",
    "continue_on_error": "`on_error: continue`",
    "for_each_mode": "`mode` of `for_each`",
    "timeout_seconds": "`timeout`",
    "budget_usd": "`budget`",
    "max_attempts": "`attempts`",
    "delay_seconds": "`delay`",
    "retry_on": "`on`",
    "id": "`name`",
    "source": "`in`",
    "max_concurrent": "`max_parallel`",
    "key_by": "`key`",
    "failure_mode": "`on_error`",
    "every_agent": "`interval: 1`, which is the default",
    "keep_last": "`max_checkpoints` of `retention`",
    "dsn": "`url`",
}
"""Names that other systems have for fields."""


def _unknown_hint(path: DataPath, may_search: bool) -> str:
    model, name = _model_at(path[:-1]) or Definition, str(path[-1])
    known = _fields(model)
    inner = {place: _model_of(declared) for place, declared in _fields(model).items()}
    inside = [f"`{place}`" for place, part in inner.items() if part is not None and name in _fields(part)]
    if inside and name not in ("type", "condition"):
        return f"it belongs inside {' or '.join(inside)}"
    close = did_you_mean(name, known) if may_search else ""
    if other := _OTHER_NAMES.get(name):
        close = f"here it is {other};"
    return f"{close} allowed here: {listed(known)}".strip()


def _fields(model: type[Part]) -> dict[str, Any]:
    return {declared.alias or name: declared.annotation for name, declared in model.model_fields.items()}


def _fields_of(model: type[Part] | None) -> str:
    return f"fields ({listed(_fields(model), 6)})" if model is not None else "fields"


def _model_at(path: DataPath) -> type[Part] | None:
    """Return the model of the part at a path, if there is one."""
    model: type[Part] | None = Definition
    for part in path:
        if isinstance(part, str):
            annotation = _fields(model).get(part) if model is not None else None
            if annotation is None and model is not None and model.short:
                annotation = _fields(model)[model.short]
            model = _model_of(annotation)
    return model


def _model_of(annotation: Any) -> type[Part] | None:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next(filter(None, map(_model_of, typing.get_args(annotation))), None)


def where(data: Any, path: DataPath) -> str:
    """Return a path in words: `step 'search'`, `http.url of step 'search'`, `workflow.limits`."""
    owner, rest, value = "", "", data
    for index, part in enumerate(path):
        value = _inside(value, part)
        before = path[:index]
        if isinstance(part, int) and (before == ("steps",) or {"parallel", "while_loop"} & {*before[-2:]}):
            name = value.get("name") if isinstance(value, dict) else None
            owner, rest = f"step {name!r}" if isinstance(name, str) else f"step {part + 1}", ""
        elif isinstance(part, int):
            rest += f"[{part}]"
        else:
            rest = f"{rest}.{part}" if rest else part
    return f"{rest} of {owner}" if owner and rest else owner or rest or "the file"


# Every step is of one kind.


def _kind_problems(source: Source) -> Iterator[Problem]:
    for path, step in _raw_steps(source.data.get("steps"), ("steps",)):
        kinds = _kinds(step)
        empty = [kind for kind in KINDS if kind in step]
        place = where(source.data, path)
        if len(kinds) > 1:
            hint = "keep one of them, and make the others steps of their own"
            message = f"{place} is of several kinds: {listed(kinds)}"
            yield source.problem((*path, kinds[1]), message, hint, key=True)
        elif not kinds:
            message = f"{place} says {empty[0]!r} without a value" if empty else f"{place} says nothing to do"
            hint = f"give it one of {listed(KINDS)}"
            yield source.problem((*path, *empty[:1]), message, hint, key=bool(empty))


def _kinds(step: dict[str, Any]) -> list[str]:
    return [kind for kind in step if kind in KINDS and step[kind] is not None]


def _raw_steps(steps: Any, path: DataPath) -> Iterator[tuple[DataPath, dict[str, Any]]]:
    """Yield the steps that have fields, those inside parallel steps and loops included."""
    for index, step in enumerate(steps if isinstance(steps, list) else ()):
        if isinstance(step, dict):
            yield (*path, index), step
            for kind in ("parallel", "while_loop"):
                inner, below = step.get(kind), (*path, index, kind)
                if isinstance(inner, dict):
                    inner, below = inner.get("steps"), (*below, "steps")
                yield from _raw_steps(inner, below)


# Leaving out what does not fit, so that the rest can be checked.


def _repaired(source: Source, errors: Sequence[_Error]) -> Draft | None:
    """Return what can be read of a file; a step that cannot keeps its place, without its kind."""
    data = copy.deepcopy(source.data)
    given_names = (step.get("name") for _, step in _raw_steps(data.get("steps"), ("steps",)))
    names = frozenset(name for name in given_names if isinstance(name, str))
    unread: set[DataPath] = set()
    for _ in range(_ROUNDS):
        # From the end, so that no place moves before it is looked at.
        by_place = {
            tuple((isinstance(part, str), part) for part in each.path): each
            for each in _misfits(data, errors)
        }
        for _, misfit in sorted(by_place.items(), reverse=True):
            _leave_out(data, misfit)
        _complete(data, unread)
        definition, errors = _validated(data)
        if definition is not None:
            return Draft(source, definition, frozenset(unread), names)
    return None


def _leave_out(data: Any, misfit: _Misfit) -> None:
    if not misfit.path or (misfit.path in (("workflow",), ("steps",)) and isinstance(misfit.data, dict)):
        return
    *outer, last = misfit.path
    holder = data
    for part in outer:
        holder = _inside(holder, part)
    if isinstance(holder, dict):
        holder.pop(last, None)
    elif isinstance(holder, list) and isinstance(last, int) and last < len(holder):
        if _model_at(misfit.path) is not Step:
            del holder[last]
        elif not isinstance(misfit.data, dict):
            holder[last] = {}


def _complete(data: dict[str, Any], unread: set[DataPath]) -> None:
    """Give the file a name and steps, and every step a name and one kind."""
    if not isinstance(data.get("workflow"), dict):
        data["workflow"] = {}
    data["workflow"].setdefault("name", "unread")
    if not isinstance(data.get("steps"), list) or not data["steps"]:
        data["steps"] = [{"name": MADE_UP, "set": {}}]
    for path, step in list(_raw_steps(data["steps"], ("steps",))):
        if not isinstance(step.get("name"), str):
            step["name"] = MADE_UP + "".join(f"_{part}" for part in path if isinstance(part, int))
            unread.add(path)
        kinds = _kinds(step)
        if len(kinds) != 1:
            for kind in kinds:
                del step[kind]
            step["set"] = {}
            unread.add(path)
