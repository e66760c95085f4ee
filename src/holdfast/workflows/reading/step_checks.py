"""What a step's fields mean together, and whether values are of the form that its kind needs."""

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
from holdfast.workflows.language.templates import TemplateError, compile_expression, compile_template
from holdfast.workflows.model import Ask, Part, Question
from holdfast.workflows.reading.checks import RESERVED, SCOPE, Draft, Placed, check_declared
from holdfast.workflows.reading.problems import Problem, listed
from holdfast.workflows.reading.source import DataPath
from holdfast.workflows.scripts import INTERPRETED, UnsafePlace, check_script, program_problem

_TIMED = ("python", "shell", "http", "agent")
_NO_RETRY = ("parallel", "workflow", "end")
_NO_LOOP = ("parallel", "end", "checkpoint")
_TARGET = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[^:]+\.py):[A-Za-z_]\w*")
_MODEL = re.compile(r"[A-Za-z][\w.-]*:\S+")
_PATTERN_HINT = (
    "write a regular expression without look-around and references back, or check the text in a later step"
)
_TARGET_HINT = "write module:function, or file.py:function for a file beside the workflow file"


def check_kinds(draft: Draft) -> Iterator[Problem]:
    """Find problems of steps by their kind, and of the inputs' values."""
    for name, declared in draft.definition.workflow.inputs.items():
        path, choices = ("workflow", "inputs", name), declared.choices or []
        yield from check_declared(draft, path, f"input {name!r}", declared.type, choices, declared.default)
    for placed in draft.read():
        for check in _CHECKS:
            yield from check(draft, placed)


def is_template(text: str) -> bool:
    """Return True if a text has places for values."""
    return "{{" in text or "{%" in text


def _options(draft: Draft, placed: Placed) -> Iterator[Problem]:
    step, kind, problem = placed.step, placed.step.kind, draft.source.problem
    if step.for_each is not None and kind in _NO_LOOP:
        hint = "put what is done for each item into a workflow file, and call that with for_each"
        hint = hint if kind == "parallel" else "remove for_each"
        path = (*placed.path, "for_each")
        yield problem(path, f"{placed.title} is of kind {kind}, which takes no for_each", hint, key=True)
    if step.with_ and kind not in ("python", "workflow"):
        hint = "remove it; `with` gives arguments to python and inputs to workflow steps"
        path = (*placed.path, "with")
        yield problem(path, f"{placed.title} is of kind {kind}, which takes no `with`", hint, key=True)
    if step.retry is not None and kind in _NO_RETRY:
        hint = "remove it" if kind == "end" else "give it to the steps inside"
        path = (*placed.path, "retry")
        yield problem(path, f"{placed.title} is of kind {kind}, which takes no retry", hint, key=True)
    if step.for_each is not None and isinstance(step.for_each.in_, str):
        yield from _one_value(draft, placed, step.for_each.in_)
    if step.timeout is not None:
        path = (*placed.path, "timeout")
        if kind not in _TIMED:
            message = f"{placed.title} is of kind {kind}, which takes no timeout"
            yield problem(path, message, _no_timeout(kind), key=True)


def _executor(draft: Draft, placed: Placed) -> Iterator[Problem]:
    step, path, problem = placed.step, (*placed.path, "executor"), draft.source.problem
    if step.executor is None:
        return
    if step.python is None:
        message = f"{placed.title} is of kind {step.kind}, which takes no executor"
        yield problem(path, message, "remove it; only python steps are run elsewhere", key=True)
    elif is_template(step.executor):
        hint = "name one, or a variable of the environment: dask:${DASK_SCHEDULER}"
        yield problem(path, f"the executor of {placed.title} cannot be a template", hint)
    else:
        repeats = step.idempotent and step.if_interrupted in (None, "rerun")
        for found in executor_problems(step.executor, repeats):
            message, _, hint = found.partition("; ")
            yield problem(path, f"{placed.title} has {message}", hint)


def _one_value(draft: Draft, placed: Placed, text: str) -> Iterator[Problem]:
    """`in` as text has to be one template, for any other text is no list."""
    bare = text.strip()
    if not (bare.startswith("{{") and bare.endswith("}}")) or bare.count("{{") != 1:
        name = "steps.NAME.output" if is_template(bare) or not bare else bare
        hint = f'write one template, such as "{{{{ {name} }}}}", or a list'
        path = (*placed.path, "for_each", "in")
        yield draft.source.problem(path, f"for_each of {placed.title} is over text", hint)


def _no_timeout(kind: str) -> str:
    if kind == "ask":
        return "put it inside `ask`: how long the question takes an answer"
    return "give it to the steps inside" if kind in ("parallel", "workflow") else "remove it"


def _member(draft: Draft, placed: Placed) -> Iterator[Problem]:
    if placed.inside is None:
        return
    step = placed.step
    if step.parallel is not None:
        message, hint = "a parallel step is a member of another", "make its members members of the outer one"
        yield draft.source.problem((*placed.path, "parallel"), message, hint, key=True)
    for field, value in (("routes", step.routes), ("after", step.after)):
        if value:
            message = f"{placed.title} is a member of a parallel step and has {field!r}"
            hint = f"members begin and end together: put {field!r} on the parallel step"
            yield draft.source.problem((*placed.path, field), message, hint, key=True)


def _targets(draft: Draft, placed: Placed) -> Iterator[Problem]:
    step = placed.step
    targets = {(*placed.path, "python"): step.python} if step.python is not None else {}
    if step.agent is not None:
        tools = enumerate(step.agent.tools)
        targets |= {(*placed.path, "agent", "tools", index): tool for index, tool in tools}
    for path, target in targets.items():
        file, _, _ = target.rpartition(":")
        if not _TARGET.fullmatch(target):
            yield draft.source.problem(path, f"{target!r} does not name a Python function", _TARGET_HINT)
        elif file.endswith(".py") and not (draft.source.base / file).is_file():
            hint = "paths are relative to the workflow file"
            yield draft.source.problem(path, f"there is no file {file!r}", hint)


def _request(draft: Draft, placed: Placed) -> Iterator[Problem]:
    http = placed.step.http
    if http is None:
        return
    if not _could_be_url(http.url):
        message = f"{http.url!r} is not the address of an HTTP request"
        hint = "begin it with https:// or http://, then a host"
        yield draft.source.problem((*placed.path, "http", "url"), message, hint)


def _could_be_url(url: str) -> bool:
    """Return True if a text is a URL, or may become one once its values are put in."""
    literal = re.split(r"\{\{|\{%", url, maxsplit=1)[0].strip().lower()
    if is_template(url):
        schemes = ("http://", "https://")
        return literal.startswith(schemes) or any(scheme.startswith(literal) for scheme in schemes)
    if any(unicodedata.category(sign) == "Cc" for sign in url.strip()):
        return False
    try:
        parts = urlsplit(url.strip())
        return parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _agent(draft: Draft, placed: Placed) -> Iterator[Problem]:
    agent = placed.step.agent
    if agent is None:
        return
    path = (*placed.path, "agent")
    if not is_template(agent.model) and not _MODEL.fullmatch(agent.model):
        message = f"{agent.model!r} does not say whose model it is"
        hint = "write provider:name, such as openai:gpt-4o-mini"
        yield draft.source.problem((*path, "model"), message, hint)
    schema = agent.output
    if schema is None:
        return
    hint = "write `type: object` and list the fields under `properties:`"
    if schema.get("type") != "object":
        message = "the JSON Schema of an agent's output has to be that of an object"
        yield draft.source.problem((*path, "output"), message, hint, key=True)
    elif not isinstance(schema.get("properties", {}), dict):
        yield draft.source.problem((*path, "output", "properties"), "properties have to be fields", hint)
    for place, pattern in patterns_in(schema):
        if reason := pattern_problem(pattern):
            message = f"the pattern {pattern!r:.200} cannot be matched: {reason}"
            yield draft.source.problem((*path, "output", *place), message, _PATTERN_HINT)


def _script(draft: Draft, placed: Placed) -> Iterator[Problem]:
    """Values in a script stand where they can do no harm, and programs that may take them can be named."""
    shell, path = placed.step.shell, (*placed.path, "shell")
    if shell is None:
        return
    for index, entry in enumerate(shell.programs):
        if reason := program_problem(entry, in_any_folder=is_template(shell.cwd or "")):
            hint = "name a program and the words that always follow it, such as ./charge.sh"
            if is_template(shell.cwd or ""):
                hint = "write absolute paths, or remove the value from `cwd`"
            yield draft.source.problem((*path, "programs", index), f"{entry!r} {reason}", hint)
    yield from _variables(draft, (*path, "env"), shell.env)
    try:
        check_script(compile_template(shell.run), shell.programs)
    except UnsafePlace as error:
        offset = sum(map(len, shell.run.splitlines(keepends=True)[: error.line - 1]))
        yield draft.source.problem_inside((*path, "run"), offset, error.reason, error.remedy)
    except TemplateError:
        return


def _variables(draft: Draft, path: DataPath, env: Mapping[str, str]) -> Iterator[Problem]:
    """No value is put into a variable that a shell, a loader or an interpreter takes code or programs from."""
    for name, text in env.items():
        if is_template(text) and INTERPRETED.fullmatch(name):
            message = f"a value cannot be put into {name}, which decides what shells and programs run"
            hint = "write its text out, or choose another name and use that in the script"
            yield draft.source.problem((*path, name), message, hint)


def _until(draft: Draft, placed: Placed) -> Iterator[Problem]:
    wait = placed.step.wait
    if wait is None or wait.until is None or is_template(wait.until):
        return
    try:
        dt.datetime.fromisoformat(wait.until)
    except ValueError:
        path = (*placed.path, "wait", "until")
        hint = "write an ISO 8601 date and time, such as 2030-01-31T09:00:00Z"
        yield draft.source.problem(path, f"{wait.until!r} is not a date and time", hint)


def _sub_workflow(draft: Draft, placed: Placed) -> Iterator[Problem]:
    sub = placed.step.workflow
    if sub is None:
        return
    file, path = sub.file, (*placed.path, "workflow", "file")
    source, target = draft.source, draft.source.base / file
    if is_template(file):
        yield source.problem(path, "the file of a workflow step cannot be a template", "name one file")
    elif not source.has_file(target):
        hint = "paths are relative to the workflow file"
        yield source.problem(path, f"there is no workflow file {file!r}", hint)
    elif target.resolve() == (source.base / source.path.name).resolve():
        hint = "use a route back to an earlier step to repeat something"
        yield source.problem(path, "a workflow cannot be a step of itself", hint)


def _questions(draft: Draft, placed: Placed) -> Iterator[Problem]:
    """Find defaults and choices of questions that do not fit."""
    ask = placed.step.ask
    if ask is None:
        return
    path, owner = (*placed.path, "ask"), f"the question of {placed.title}"
    every: list[tuple[DataPath, Ask | Question]] = [(path, ask)]
    every += [((*path, "questions", index), question) for index, question in enumerate(ask.questions)]
    for place, asked in every:
        choices = [choice.value for choice in asked.choices or ()]
        yield from check_declared(draft, place, owner, asked.type, choices, asked.default)


_CHECKS: tuple[Callable[[Draft, Placed], Iterator[Problem]], ...] = (
    _options,
    _executor,
    _member,
    _targets,
    _request,
    _agent,
    _script,
    _until,
    _sub_workflow,
    _questions,
)


# Where a file has expressions and templates, and what may be named at each place.


_EXECUTED = ("shell", "http", "agent")


@dataclass(frozen=True, slots=True)
class Text:
    """An expression, or else a template: its place in the file and in words, and the names it may use."""

    path: DataPath
    value: str
    names: frozenset[str]
    place: str
    expression: bool = False


def texts(draft: Draft) -> Iterator[Text]:
    """Yield every expression and template of a file."""
    for name, script in draft.definition.workflow.hooks.model_dump(exclude_none=True).items():
        path = ("workflow", "hooks", name)
        yield Text(path, script, SCOPE | {"output", "status", "error"}, f"the hook {name}")
    for placed in draft.steps:
        yield from _conditions(placed)
        if placed.path not in draft.unread:
            yield from _body(placed)
    yield from _tree(("output",), draft.definition.output, SCOPE, "the workflow's output")


def _conditions(placed: Placed) -> Iterator[Text]:
    step, name = placed.step, placed.title
    if step.when is not None:
        yield Text((*placed.path, "when"), step.when, SCOPE, f"`when` of {name}", expression=True)
    known = SCOPE | {"output", "status", "error"} | ({"answer"} if step.ask is not None else set())
    for index, route in enumerate(step.routes or ()):
        if route.when is not None:
            path = (*placed.path, "routes", index, "when")
            yield Text(path, route.when, known, f"a route of {name}", expression=True)
    loop = step.for_each
    if loop is None:
        return
    path = (*placed.path, "for_each")
    yield from _tree((*path, "in"), loop.in_, SCOPE, f"for_each.in of {name}")
    if loop.key is not None:
        names = SCOPE | {loop.as_, "index", "key"}
        yield Text((*path, "key"), loop.key, names, f"for_each.key of {name}", expression=True)


def _body(placed: Placed) -> Iterator[Text]:
    """Yield the templates of what a step does."""
    step = placed.step
    names = SCOPE | ({step.for_each.as_, "index", "key"} if step.for_each is not None else set())
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
    """Yield the templates in a value, however deep; keys are plain."""
    if isinstance(value, str):
        yield Text(path, value, names, place)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tree((*path, key), item, names, place)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _tree((*path, index), item, names, place)


# Every expression and template of a file: it can be read, and what it names is there.


_EXPRESSION = "write it like `output.count > 3 and inputs.mode == 'fast'`"
_TEMPLATE = "write values as {{ inputs.name }}, and {{ '{{' }} for the braces themselves"
_DASHED = re.compile(r"(?<![\w.])(inputs|steps|vars|visits)\.([A-Za-z_]\w*-[\w-]*)")
_MOST_OF_A_TEXT = 50
_WORKFLOW = ("name", "run_id")
_STEP = ("status", "output", "error", "outputs", "errors", "answer", "answers", "exit_code", "stderr",
         "status_code", "headers", "usage", "reason", "count", "visits")  # fmt: skip
_ELSEWHERE = {
    "output": ("is known only in routes", "write steps.NAME.output"),
    "answer": ("is known only in the routes of an ask step", "write steps.NAME.answer"),
    "item": ("is known only in a step with for_each", "add for_each, or name the value in full"),
    "index": ("is known only in a step with for_each", "add for_each, or name the value in full"),
    "key": ("is known only in a step with for_each", "add for_each, or name the value in full"),
    "secrets": ("cannot be used in {place}", "secrets are for python `with`, shell, http and agent steps"),
    "env": ("is not known", "write ${NAME} for a variable of the environment, secrets.NAME for a secret"),
    "state": ("is not known", "write steps.NAME.output for what a step gave, inputs.NAME for an input"),
}


def check_texts(draft: Draft) -> Iterator[Problem]:
    """Problems of all expressions and templates."""
    check = _Names(draft)
    for text in texts(draft):
        paths = _read(draft, text)
        if isinstance(paths, Problem):
            yield paths
        else:
            yield from check.problems(text, paths)


def _read(draft: Draft, text: Text) -> frozenset[tuple[str, ...]] | Problem:
    """Return the paths that a text names, or why it cannot be read."""
    try:
        return (compile_expression if text.expression else compile_template)(text.value).paths
    except TemplateError as error:
        hint = _EXPRESSION if text.expression else _TEMPLATE
        return draft.source.problem_inside(text.path, error.offset, f"{text.place}: {error.reason}", hint)


class _Names:
    """What can be named where."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._known: dict[str, tuple[str, Any]] = {
            "inputs": ("no input is called", draft.declared("inputs")),
            "steps": ("there is no step", draft.names or None),
            "visits": ("there is no step", draft.names or None),
            "vars": ("workflow.vars has no", draft.declared("vars")),
            "workflow": ("`workflow` has no", _WORKFLOW),
        }

    def problems(self, text: Text, paths: frozenset[tuple[str, ...]]) -> Iterator[Problem]:
        """Yield names in a text that lead to nothing; of very many, some."""
        dashed = self._dashed(text)
        if dashed is not None:
            yield dashed
            return
        found = (self._problem(text, path) for path in sorted(paths))
        yield from itertools.islice((problem for problem in found if problem is not None), _MOST_OF_A_TEXT)

    def _problem(self, text: Text, path: tuple[str, ...]) -> Problem | None:
        top = path[0]
        if top not in text.names:
            return self._unknown_top(text, path)
        what, known = self._known.get(top, ("", None))
        if known is None or len(path) == 1:
            return None
        if path[1] not in known:
            close = did_you_mean(path[1], known)
            if not close and top in ("steps", "visits") and not self._draft.all_named:
                return None
            hint = close or self._all(top, known)
            return self._at(text, path[:2], f"{text.place}: {what} {path[1]!r}", hint)
        if top == "steps" and len(path) > 2 and path[2] not in _STEP:
            close = did_you_mean(path[2], _STEP)
            if close:
                return self._at(text, path[:3], f"{text.place}: a step has no {path[2]!r}", close)
        return None

    def _all(self, top: str, known: Any) -> str:
        if not known:
            return f"declare it: workflow.{top} is empty" if top in ("inputs", "vars") else ""
        return f"known are {listed(known)}"

    def _unknown_top(self, text: Text, path: tuple[str, ...]) -> Problem:
        top = path[0]
        if top == "item" and "index" in text.names:
            (called,) = text.names - RESERVED
            message = f"{text.place}: {top!r} is not known"
            return self._at(text, path[:1], message, f"the item of this step is called {called!r}")
        if top in _ELSEWHERE:
            message, hint = _ELSEWHERE[top]
            return self._at(text, path[:1], f"{text.place}: {top!r} {message.format(place=text.place)}", hint)
        owners = [name for name in ("inputs", "steps", "vars") if top in (self._known[name][1] or ())]
        if owners:
            hint = f"write {owners[0]}.{top}" + (".output" if owners[0] == "steps" else "")
        else:
            hint = did_you_mean(top, text.names) or f"known here are {listed(sorted(text.names))}"
        return self._at(text, path[:1], f"{text.place}: {top!r} is not known", hint)

    def _dashed(self, text: Text) -> Problem | None:
        """Find a name with a dash after a dot, which would be read as a subtraction."""
        for found in _DASHED.finditer(text.value):
            top, name = found[1], found[2]
            if name in (self._known[top][1] or ()) and _is_code(text, found.start()):
                message = f"{text.place}: after a dot {name!r} is read as a subtraction"
                hint = f"write {top}['{name}']"
                return self._draft.source.problem_inside(
                    text.path, found.start(), message, hint, len(found[0])
                )
        return None

    def _at(self, text: Text, path: tuple[str, ...], message: str, hint: str) -> Problem:
        offset = _offset(text.value, path)
        width = len(".".join(path)) if text.value.startswith(".".join(path), offset) else 1
        return self._draft.source.problem_inside(text.path, offset, message, hint, width)


def _is_code(text: Text, offset: int) -> bool:
    """Return True if a place of a text is inside an expression, not in the words around it."""
    if text.expression:
        return True
    before = text.value[:offset]
    return max(before.rfind("{{"), before.rfind("{%")) > max(before.rfind("}}"), before.rfind("%}"))


def _offset(text: str, path: tuple[str, ...]) -> int:
    """Return where a path is named in a text; its beginning if it is not found."""
    dotted = r"\s*\.\s*".join(map(re.escape, path))
    for pattern in (rf"(?<![\w.]){dotted}(?!\w)", rf"['\"]{re.escape(path[-1])}['\"]", re.escape(path[-1])):
        for found in re.finditer(pattern, text):
            return found.start()
    return 0
