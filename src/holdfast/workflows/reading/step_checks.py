"""What a step's fields mean together, whether values are of the form that its kind needs, and what texts name."""

from __future__ import annotations

import datetime as dt
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from holdfast.agents.schema import pattern_problem, patterns_in
from holdfast.errors import did_you_mean
from holdfast.graph.validation import executor_problems
from holdfast.workflows.folders import checked_path
from holdfast.workflows.language.templates import TemplateError, compile_expression, compile_template
from holdfast.workflows.model import (
    KINDS,
    Agent,
    Ask,
    CheckpointFile,
    File,
    Http,
    JsonState,
    Query,
    Question,
    Shell,
    Sql,
    SubWorkflow,
    Wait,
    WhileLoop,
)
from holdfast.workflows.reading.checks import RESERVED, SCOPE, Draft, Placed, check_declared
from holdfast.workflows.reading.problems import Problem, listed
from holdfast.workflows.reading.source import DataPath
from holdfast.workflows.scripts import (
    INTERPRETED,
    OWN_PARAMS,
    UnsafePlace,
    check_script,
    program_problem,
    sql_parameters,
)
from holdfast.workflows.settings import Part

_INSIDE = "give it to the steps inside"
_OPTIONS: tuple[tuple[str, set[str], dict[str, str]], ...] = (
    (
        "for_each",
        {"parallel", "while_loop", "end", "checkpoint"},
        dict.fromkeys(
            ("parallel", "while_loop"),
            "put what is done for each item into a workflow file, and call that with for_each",
        ),
    ),
    (
        "with",
        {*KINDS} - {"python", "workflow"},
        {"": "remove it; `with` gives arguments to python and inputs to workflow steps"},
    ),
    *(
        (
            option,
            {"parallel", "while_loop", "workflow", "end"},
            dict.fromkeys(("parallel", "while_loop", "workflow"), _INSIDE),
        )
        for option in ("retry", "circuit_breaker")
    ),
    (
        "timeout",
        {*KINDS} - {"python", "shell", "http", "agent", "file", "json_state", "sql"},
        {
            "ask": "put it inside `ask`: how long the question takes an answer",
            **dict.fromkeys(("parallel", "while_loop", "workflow"), _INSIDE),
        },
    ),
    ("executor", {*KINDS} - {"python"}, {"": "remove it; only python steps are run elsewhere"}),
)
"""The options of steps, the kinds that do not take them, and the cure by kind."""
_TARGET = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[^:]+\.py):[A-Za-z_]\w*")
_PATTERN_HINT = (
    "write a regular expression without look-around and references back, or check the text in a later step"
)
_MODEL = re.compile(r"[A-Za-z][\w.-]*:\S+")


def check_kinds(draft: Draft) -> Iterator[Problem]:
    """Find problems of steps by their kind, and of the inputs' values."""
    for name, declared in draft.definition.workflow.inputs.items():
        path, choices = ("workflow", "inputs", name), declared.choices or []
        yield from check_declared(draft, path, f"input {name!r}", declared.type, choices, declared.default)
    if (model := draft.definition.workflow.runtime.model) is not None:
        yield from _model(draft, ("workflow", "runtime", "model"), model)
    for placed in draft.steps:
        if placed.path not in draft.unread:
            kind = placed.step.kind
            yield from _options(draft, placed)
            if placed.inside is not None:
                yield from _member(draft, placed)
            if kind in _CHECKS:
                yield from _CHECKS[kind](draft, placed, (*placed.path, kind), getattr(placed.step, kind))


def is_template(text: str) -> bool:
    """Return True if a text has places for values."""
    return "{{" in text or "{%" in text


def _options(draft: Draft, placed: Placed) -> Iterator[Problem]:
    step, kind, problem = placed.step, placed.step.kind, draft.source.problem
    for field, kinds, hints in _OPTIONS:
        given = step.with_ or None if field == "with" else getattr(step, field)
        if given is not None and kind in kinds:
            name = "`with`" if field == "with" else field
            hint = hints.get(kind) or hints.get("") or f"remove {'it' if field != 'for_each' else field}"
            message = f"{placed.title} is of kind {kind}, which takes no {name}"
            yield problem((*placed.path, field), message, hint, key=True)
    loop = "" if step.for_each is None else step.for_each.in_
    if step.for_each is not None and isinstance(loop, str):
        bare = loop.strip()  # Text has to be one template, for any other text is no list.
        if not (bare.startswith("{{") and bare.endswith("}}")) or bare.count("{{") != 1:
            name = "steps.NAME.output" if is_template(bare) or not bare else bare
            hint = f'write one template, such as "{{{{ {name} }}}}", or a list'
            path = (*placed.path, "for_each", "in")
            yield problem(path, f"for_each of {placed.title} is over text", hint)


def _member(draft: Draft, placed: Placed) -> Iterator[Problem]:
    step, is_looped = placed.step, "while_loop" in placed.path
    if step.parallel is not None and not is_looped:
        message, hint = "a parallel step is a member of another", "make its members members of the outer one"
        yield draft.source.problem((*placed.path, "parallel"), message, hint, key=True)
    elif step.members:
        message = f"{placed.title} is of kind {step.kind}, inside another step with steps"
        hint = "put it into a workflow file of its own, and call that with `workflow`"
        yield draft.source.problem((*placed.path, step.kind), message, hint, key=True)
    for field, value in (("routes", step.routes), ("after", step.after)):
        if value and is_looped:
            message = f"{placed.title} is inside a loop and has {field!r}"
            hint = f"the steps of a loop run one after the other: put {field!r} on the loop, or use `when`"
            yield draft.source.problem((*placed.path, field), message, hint, key=True)
        elif value:
            message = f"{placed.title} is a member of a parallel step and has {field!r}"
            hint = f"members begin and end together: put {field!r} on the parallel step"
            yield draft.source.problem((*placed.path, field), message, hint, key=True)


def _python(draft: Draft, placed: Placed, path: DataPath, target: str) -> Iterator[Problem]:
    yield from _target(draft, path, target)
    step, place, problem = placed.step, (*placed.path, "executor"), draft.source.problem
    if step.executor is not None and is_template(step.executor):
        hint = "name one, or a variable of the environment: dask:${DASK_SCHEDULER}"
        yield problem(place, f"the executor of {placed.title} cannot be a template", hint)
    elif step.executor is not None:
        repeats = step.idempotent and step.if_interrupted in (None, "rerun")
        for found in executor_problems(step.executor, repeats):
            message, _, hint = found.partition("; ")
            yield problem(place, f"{placed.title} has {message}", hint)


def _target(draft: Draft, path: DataPath, target: str) -> Iterator[Problem]:
    file, _, _ = target.rpartition(":")
    if not _TARGET.fullmatch(target):
        hint = "write module:function, or file.py:function for a file beside the workflow file"
        yield draft.source.problem(path, f"{target!r} does not name a Python function", hint)
    elif file.endswith(".py") and not (draft.source.base / file).is_file():
        hint = "paths are relative to the workflow file"
        yield draft.source.problem(path, f"there is no file {file!r}", hint)


def _http(draft: Draft, placed: Placed, path: DataPath, http: Http) -> Iterator[Problem]:
    if not _could_be_url(http.url.strip()):
        message = f"{http.url!r} is not the address of an HTTP request"
        hint = "begin it with https:// or http://, then a host"
        yield draft.source.problem((*path, "url"), message, hint)


def _could_be_url(url: str) -> bool:
    """Return True if a text is a URL, or may become one once its values are put in."""
    if is_template(url):
        literal, schemes = re.split(r"\{\{|\{%", url, maxsplit=1)[0].strip().lower(), ("http://", "https://")
        return literal.startswith(schemes) or any(scheme.startswith(literal) for scheme in schemes)
    try:
        parts = urlsplit(url)
        is_web = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
        return is_web and not any(unicodedata.category(sign) == "Cc" for sign in url if sign not in "\t\r\n")
    except ValueError:
        return False


def _agent(draft: Draft, placed: Placed, path: DataPath, agent: Agent) -> Iterator[Problem]:
    schema, problem = agent.output, draft.source.problem
    for index, tool in enumerate(agent.tools):
        yield from _target(draft, (*path, "tools", index), tool)
    if "model" in agent.model_fields_set:
        yield from _model(draft, (*path, "model"), agent.model)
    elif not _has_default_model(draft):
        hint = "add `model: provider:name` to it, or to workflow.runtime for all agents"
        yield problem(path, f"agent of {placed.title} has no 'model'", hint, key=True)
    if schema is None:
        return
    hint = "write `type: object` and list the fields under `properties:`"
    if schema.get("type") != "object":
        message = "the JSON Schema of an agent's output has to be that of an object"
        yield problem((*path, "output"), message, hint, key=True)
    elif not isinstance(schema.get("properties", {}), dict):
        yield problem((*path, "output", "properties"), "properties have to be fields", hint)
    for place, pattern in patterns_in(schema):
        if reason := pattern_problem(pattern):
            message = f"the pattern {pattern!r:.200} cannot be matched: {reason}"
            yield problem((*path, "output", *place), message, _PATTERN_HINT)


def _has_default_model(draft: Draft) -> bool:
    """Return True if `workflow.runtime` has a model, or one that cannot be read."""
    runtime, declared = draft.definition.workflow.runtime, draft.declared("runtime")
    is_unread = "model" not in runtime.model_fields_set and (declared is None or "model" in declared)
    return is_unread or runtime.model is not None


def _model(draft: Draft, path: DataPath, model: str) -> Iterator[Problem]:
    if not is_template(model) and not _MODEL.fullmatch(model):
        message = f"{model!r} does not say whose model it is"
        yield draft.source.problem(path, message, "write provider:name, such as openai:gpt-4o-mini")


def _shell(draft: Draft, placed: Placed, path: DataPath, shell: Shell) -> Iterator[Problem]:
    """Values in a script stand where they can do no harm, and programs that may take them can be named."""
    problem, moves = draft.source.problem, is_template(shell.cwd or "")
    for index, entry in enumerate(shell.programs):
        if reason := program_problem(entry, in_any_folder=moves):
            hint = "name a program and the words that always follow it, such as ./charge.sh"
            hint = "write absolute paths, or remove the value from `cwd`" if moves else hint
            yield problem((*path, "programs", index), f"{entry!r} {reason}", hint)
    for name, text in shell.env.items():
        if is_template(text) and INTERPRETED.fullmatch(name):
            message = f"a value cannot be put into {name}, which decides what shells and programs run"
            hint = "write its text out, or choose another name and use that in the script"
            yield problem((*path, "env", name), message, hint)
    try:
        check_script(compile_template(shell.run), shell.programs)
    except UnsafePlace as error:
        offset = sum(map(len, shell.run.splitlines(keepends=True)[: error.line - 1]))
        yield draft.source.problem_inside((*path, "run"), offset, error.reason, error.remedy)
    except TemplateError:
        return


def _while_loop(draft: Draft, placed: Placed, path: DataPath, loop: WhileLoop) -> Iterator[Problem]:
    if placed.step.on_error == "continue":
        message = f"{placed.title} is a loop, which takes no on_error"
        yield draft.source.problem((*placed.path, "on_error"), message, _INSIDE, key=True)


def _file(
    draft: Draft, placed: Placed, path: DataPath, file: File | JsonState | CheckpointFile
) -> Iterator[Problem]:
    """Find paths that lead out of the workflow's folder, as far as they are known."""
    for field in ("create", "edit", "read", "write", "merge", "save", "load"):
        given = getattr(file, field, None)
        several = given if isinstance(given, list) else [given] if given else []
        for index, each in enumerate(several):
            if is_template(each) or file.outside:
                continue
            try:
                checked_path(each)
            except ValueError as error:
                place = (*path, field, index) if isinstance(given, list) else (*path, field)
                yield draft.source.problem(place, f"{each!r}: {error}", "set `outside: true` to allow that")


def _sql(draft: Draft, placed: Placed, path: DataPath, sql: Sql) -> Iterator[Problem]:
    """Find values in SQL, parameters that are missing, and addresses of other things than databases."""
    queries: list[tuple[DataPath, Sql | Query]] = [(path, sql)] if sql.query else []
    queries += [((*path, "queries", index), each) for index, each in enumerate(sql.queries)]
    for place, each in queries:
        field = (*place, "query")
        if is_template(each.query):
            hint = "write :name in the SQL, and the value under params: {name: …}"
            yield draft.source.problem(field, "values cannot be a part of SQL", hint)
        missing = {name for _, name in sql_parameters(each.query) if name} - {*each.params, *OWN_PARAMS}
        if missing:
            hint = f"add them under params; always there are {listed(OWN_PARAMS)}"
            yield draft.source.problem(field, f"parameters without a value: {listed(sorted(missing))}", hint)
    if not is_template(sql.url) and not sql.url.startswith(("sqlite:///", "postgresql://", "postgres://")):
        hint = "begin it with sqlite:/// or postgresql://"
        yield draft.source.problem((*path, "url"), f"{sql.url!r:.80} is not the address of a database", hint)


def _wait(draft: Draft, placed: Placed, path: DataPath, wait: Wait) -> Iterator[Problem]:
    try:
        if wait.until is not None and not is_template(wait.until):
            dt.datetime.fromisoformat(wait.until)
    except ValueError:
        hint = "write an ISO 8601 date and time, such as 2030-01-31T09:00:00Z"
        yield draft.source.problem((*path, "until"), f"{wait.until!r} is not a date and time", hint)


def _workflow(draft: Draft, placed: Placed, path: DataPath, sub: SubWorkflow) -> Iterator[Problem]:
    file, path, source, target = sub.file, (*path, "file"), draft.source, draft.source.base / sub.file
    if is_template(file):
        yield source.problem(path, "the file of a workflow step cannot be a template", "name one file")
    elif not source.has_file(target):
        hint = "paths are relative to the workflow file"
        yield source.problem(path, f"there is no workflow file {file!r}", hint)
    elif target.resolve() == (source.base / source.path.name).resolve():
        hint = "use a route back to an earlier step to repeat something"
        yield source.problem(path, "a workflow cannot be a step of itself", hint)


def _ask(draft: Draft, placed: Placed, path: DataPath, ask: Ask) -> Iterator[Problem]:
    """Find defaults and choices of questions that do not fit."""
    every: list[tuple[DataPath, Ask | Question]] = [(path, ask)]
    every += [((*path, "questions", index), question) for index, question in enumerate(ask.questions)]
    for place, asked in every:
        choices = [choice.value for choice in asked.choices or ()]
        owner = f"the question of {placed.title}"
        yield from check_declared(draft, place, owner, asked.type, choices, asked.default)


_CHECKS: Mapping[str, Callable[[Draft, Placed, DataPath, Any], Iterator[Problem]]] = {
    "python": _python,
    "shell": _shell,
    "http": _http,
    "agent": _agent,
    "ask": _ask,
    "wait": _wait,
    "workflow": _workflow,
    "while_loop": _while_loop,
    "file": _file,
    "json_state": _file,
    "checkpoint": _file,
    "sql": _sql,
}


# Where a file has expressions and templates, and what may be named at each place.


_EXECUTED = ("shell", "http", "agent", "sql")


@dataclass(frozen=True, slots=True)
class Text:
    """An expression, or else a template: its place in the file and in words, and the names it may use."""

    path: DataPath
    value: str
    names: frozenset[str]
    place: str
    expression: bool = False
    is_key: bool = False
    """Whether it is the key of the value at its path, which cannot be a template."""


def texts(draft: Draft) -> Iterator[Text]:
    """Yield every expression and template of a file."""
    for name, script in draft.definition.workflow.hooks.model_dump(exclude_none=True).items():
        path = ("workflow", "hooks", name)
        yield Text(path, script, SCOPE | {"output", "status", "error"}, f"the hook {name}")
    workflow = draft.definition.workflow
    yield Text(("workflow", "instructions"), workflow.instructions, SCOPE, "workflow.instructions")
    for field, value in _templates(workflow.runtime):
        place = f"workflow.runtime.{field[0]}"
        yield from _tree(("workflow", "runtime", *field), value, SCOPE | {"secrets"}, place)
    for placed in draft.steps:
        yield from _conditions(placed)
        if placed.path not in draft.unread:
            yield from _body(placed)
    yield from _tree(("output",), draft.definition.output, SCOPE, "the workflow's output")


def _conditions(placed: Placed) -> Iterator[Text]:
    step, name, path = placed.step, placed.title, placed.path
    if step.when is not None:
        yield Text((*path, "when"), step.when, SCOPE, f"`when` of {name}", expression=True)
    known = SCOPE | {"output", "status", "error"} | ({"answer"} if step.ask is not None else set())
    for index, route in enumerate(step.routes or ()):
        if route.when is not None:
            place = (*path, "routes", index, "when")
            yield Text(place, route.when, known, f"a route of {name}", expression=True)
    if step.while_loop is not None:
        place, names = (*path, "while_loop", "condition"), SCOPE | {"iteration"}
        condition = step.while_loop.condition
        yield Text(place, condition, names, f"while_loop.condition of {name}", expression=True)
    loop = step.for_each
    if loop is not None:
        yield from _tree((*path, "for_each", "in"), loop.in_, SCOPE, f"for_each.in of {name}")
    if loop is not None and loop.key is not None:
        names, place = SCOPE | {loop.as_, "index", "key"}, (*path, "for_each", "key")
        yield Text(place, loop.key, names, f"for_each.key of {name}", expression=True)


def _body(placed: Placed) -> Iterator[Text]:
    """Yield the templates of what a step does."""
    step = placed.step
    names = SCOPE | {"tmp"} | ({step.for_each.as_, "index", "key"} if step.for_each is not None else set())
    executed = names | {"secrets"} if step.kind in _EXECUTED else names
    for field, value in _templates(getattr(step, step.kind)):
        path = (*placed.path, step.kind, *field)
        where = ".".join(str(part) for part in (step.kind, *field))
        yield from _tree(path, value, executed, f"{where} of {placed.title}")
    arguments = names | {"secrets"} if step.kind == "python" else names
    yield from _tree((*placed.path, "with"), step.with_, arguments, f"`with` of {placed.title}")


def _templates(body: Any) -> Iterator[tuple[DataPath, Any]]:
    """Yield the fields of a part that may hold templates, and those of the parts in it; all of plain data may."""
    if isinstance(body, dict):
        yield (), body
    if not isinstance(body, Part):
        return
    for name, declared in type(body).model_fields.items():
        field, value = declared.alias or name, getattr(body, name)
        if field in body.templates:
            yield (field,), value
        for index, inner in enumerate(value if isinstance(value, list) else ()):
            yield from (((field, index, *path), found) for path, found in _templates(inner))


def _tree(path: DataPath, value: Any, names: frozenset[str], place: str) -> Iterator[Text]:
    """Yield the templates in a value, however deep, and keys that look like templates."""
    if isinstance(value, str):
        yield Text(path, value, names, place)
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str) and is_template(key):
                yield Text((*path, key), key, names, place, is_key=True)
            yield from _tree((*path, key), item, names, place)


# Every expression and template of a file: it can be read, and what it names is there.


_EXPRESSION = "write it like `output.count > 3 and inputs.mode == 'fast'`"
_TEMPLATE = "write values as {{ inputs.name }}, and {{ '{{' }} for the braces themselves"
_KEY = 'write the key itself, or make the fields in one template, as in "{{ {inputs.name: 1} }}"'
_DASHED = re.compile(r"(?<![\w.])(inputs|steps|vars|visits|metadata|state)\.([A-Za-z_]\w*-[\w-]*)")
_MOST_OF_A_TEXT = 50
_WORKFLOW, _CHECKPOINT = ("name", "run_id"), ("dir", "last")
_STEP = ("status", "output", "error", "outputs", "errors", "answer", "answers", "exit_code", "stderr",
         "status_code", "headers", "usage", "reason", "count", "visits", "iterations")  # fmt: skip
_IN_A_LOOP = ("is known only in a step with for_each", "add for_each, or name the value in full")
_ELSEWHERE = {
    "output": ("is known only in routes", "write steps.NAME.output"),
    "answer": ("is known only in the routes of an ask step", "write steps.NAME.answer"),
    **dict.fromkeys(("item", "index", "key"), _IN_A_LOOP),
    "secrets": (
        "cannot be used in {place}",
        "secrets are for python `with`, shell, http, agent and sql steps",
    ),
    "tmp": ("cannot be used in {place}", "it is for what steps do: a folder of the run for their files"),
    "env": ("is not known", "write ${NAME} for a variable of the environment, secrets.NAME for a secret"),
}


def check_texts(draft: Draft) -> Iterator[Problem]:
    """Find problems of all expressions and templates."""
    names = _Names(draft)
    for text in texts(draft):
        if text.is_key:
            message = f"{text.place}: a key cannot be a template, and {text.value!r:.80} looks like one"
            yield draft.source.problem(text.path, message, _KEY, key=True)
            continue
        try:
            read = compile_expression if text.expression else compile_template
            yield from names.problems(text, read(text.value).paths)
        except TemplateError as error:
            hint = _EXPRESSION if text.expression else _TEMPLATE
            message = f"{text.place}: {error.reason}"
            yield draft.source.problem_inside(text.path, error.offset, message, hint)


class _Names:
    """What can be named where."""

    def __init__(self, draft: Draft) -> None:
        self._draft, written = draft, draft.declared("checkpoint")
        self._has_files = written is None or "dir" in written
        self._known: dict[str, tuple[str, Any]] = {
            "inputs": ("no input is called", draft.declared("inputs")),
            "steps": ("there is no step", draft.names or None),
            "visits": ("there is no step", draft.names or None),
            "vars": ("workflow.vars has no", draft.declared("vars")),
            "metadata": ("workflow.metadata has no", draft.declared("metadata")),
            "state": ("workflow.state_schema has no", draft.declared("state_schema")),
            "workflow": ("`workflow` has no", _WORKFLOW),
            "checkpoint": ("`checkpoint` has no", _CHECKPOINT),
        }

    def problems(self, text: Text, paths: frozenset[tuple[str, ...]]) -> Iterator[Problem]:
        """Yield names in a text that lead to nothing; of very many, some."""
        for found in _DASHED.finditer(text.value):
            top, name = found[1], found[2]
            if name in (self._known[top][1] or ()) and _is_code(text, found.start()):
                message = f"{text.place}: after a dot {name!r} is read as a subtraction"
                hint, width = f"write {top}['{name}']", len(found[0])
                yield self._draft.source.problem_inside(text.path, found.start(), message, hint, width)
                return
        each = (self._problem(text, path) for path in sorted(paths))
        yield from itertools.islice(filter(None, each), _MOST_OF_A_TEXT)

    def _problem(self, text: Text, path: tuple[str, ...]) -> Problem | None:
        top = path[0]
        if top not in text.names:
            return self._unknown_top(text, top)
        what, known = self._known.get(top, ("", None))
        if known is None or len(path) == 1:
            return None
        if path[1] not in known:
            close = did_you_mean(path[1], known)
            if not close and top in ("steps", "visits") and not self._draft.all_named:
                return None
            every = f"known are {listed(known)}" if known else f"declare it: workflow.{top} is empty"
            if top == "state":
                every = "declare it in workflow.state_schema; what a step gave is steps.NAME.output"
            return self._at(text, path[:2], f"{what} {path[1]!r}", close or every)
        if path[:2] == ("checkpoint", "dir") and not self._has_files:
            hint = "name a folder there, as in `dir: checkpoints`, in which checkpoint files are written"
            return self._at(text, path[:2], "workflow.checkpoint has no `dir`", hint)
        if top != "steps" or len(path) == 2 or path[2] in _STEP:
            return None
        close = did_you_mean(path[2], _STEP)
        return self._at(text, path[:3], f"a step has no {path[2]!r}", close) if close else None

    def _unknown_top(self, text: Text, top: str) -> Problem:
        message, hint = _ELSEWHERE.get(top, ("is not known", ""))
        if top == "item" and "index" in text.names:
            (called,) = text.names - RESERVED
            message, hint = "is not known", f"the item of this step is called {called!r}"
        elif not hint:
            owners = [name for name in ("inputs", "steps", "vars") if top in (self._known[name][1] or ())]
            hint = did_you_mean(top, text.names) or f"known here are {listed(sorted(text.names))}"
            if owners:
                hint = f"write {owners[0]}.{top}" + (".output" if owners[0] == "steps" else "")
        return self._at(text, (top,), f"{top!r} {message.format(place=text.place)}", hint)

    def _at(self, text: Text, path: tuple[str, ...], message: str, hint: str) -> Problem:
        offset, dotted = _offset(text.value, path), ".".join(path)
        width = len(dotted) if text.value.startswith(dotted, offset) else 1
        message = f"{text.place}: {message}"
        return self._draft.source.problem_inside(text.path, offset, message, hint, width)


def _is_code(text: Text, offset: int) -> bool:
    """Return True if a place of a text is inside an expression, not in the words around it."""
    before = text.value[:offset]
    last_begin, last_end = (max(map(before.rfind, marks)) for marks in (("{{", "{%"), ("}}", "%}")))
    return text.expression or last_begin > last_end


def _offset(text: str, path: tuple[str, ...]) -> int:
    """Return where a path is named in a text; its beginning if it is not found."""
    dotted = r"\s*\.\s*".join(map(re.escape, path))
    for pattern in (rf"(?<![\w.]){dotted}(?!\w)", rf"['\"]{re.escape(path[-1])}['\"]", re.escape(path[-1])):
        if found := re.search(pattern, text):
            return found.start()
    return 0
