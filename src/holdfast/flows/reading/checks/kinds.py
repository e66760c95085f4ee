"""What a step's fields mean together, and whether values are of the form that its kind needs."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from holdfast.agents.patterns import pattern_problem, patterns_in
from holdfast.flows.language.templates import TemplateError, compile_template
from holdfast.flows.model import Http, Shell, SubWorkflow, Wait
from holdfast.flows.reading.checks.reading import Placed, Reading
from holdfast.flows.reading.checks.values import check_ask, check_inputs
from holdfast.flows.reading.problems import Problem
from holdfast.flows.reading.source import DataPath
from holdfast.flows.shell.commands import INTERPRETED, program_problem
from holdfast.flows.shell.words import UnsafePlace, check_script
from holdfast.plan.executor_choice import executor_problems

_TIMED = ("python", "shell", "http", "agent")
_NO_RETRY = ("parallel", "workflow", "end")
_NO_LOOP = ("parallel", "end", "checkpoint")
_TARGET = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[^:]+\.py):[A-Za-z_]\w*")
_MODEL = re.compile(r"[A-Za-z][\w.-]*:\S+")
_PATTERN_HINT = (
    "write a regular expression without look-around and references back, or check the text in a later step"
)
_TARGET_HINT = "write module:function, or file.py:function for a file beside the workflow file"


def check_kinds(reading: Reading) -> Iterator[Problem]:
    """Problems of steps by their kind, and of the inputs' values."""
    yield from check_inputs(reading)
    limit = reading.definition.workflow.limits.timeout
    if limit == 0:
        yield reading.source.problem(("workflow", "limits", "timeout"), "a timeout of 0", "give it above 0")
    for placed in reading.read():
        yield from _surroundings(reading, placed)
        yield from _executor(reading, placed)
        yield from _member(reading, placed)
        yield from _targets(reading, placed)
        yield from _request(reading, placed)
        yield from _agent(reading, placed)
        yield from _script(reading, placed)
        yield from _until(reading, placed)
        yield from _sub_workflow(reading, placed)
        yield from check_ask(reading, placed)


def is_template(text: str) -> bool:
    """Whether a text has places for values."""
    return "{{" in text or "{%" in text


def _surroundings(reading: Reading, placed: Placed) -> Iterator[Problem]:
    step, kind, problem = placed.step, placed.step.kind, reading.source.problem
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
        yield from _one_value(reading, placed, step.for_each.in_)
    if step.timeout is not None:
        path = (*placed.path, "timeout")
        if kind not in _TIMED:
            message = f"{placed.title} is of kind {kind}, which takes no timeout"
            yield problem(path, message, _no_timeout(kind), key=True)
        elif step.timeout == 0:
            yield problem(path, f"the timeout of {placed.title} is 0", "give it above 0, such as 30s")


def _executor(reading: Reading, placed: Placed) -> Iterator[Problem]:
    step, path, problem = placed.step, (*placed.path, "executor"), reading.source.problem
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


def _one_value(reading: Reading, placed: Placed, text: str) -> Iterator[Problem]:
    """`in` as text has to be one template, for any other text is no list."""
    bare = text.strip()
    if not (bare.startswith("{{") and bare.endswith("}}")) or bare.count("{{") != 1:
        name = "steps.NAME.output" if is_template(bare) or not bare else bare
        hint = f'write one template, such as "{{{{ {name} }}}}", or a list'
        path = (*placed.path, "for_each", "in")
        yield reading.source.problem(path, f"for_each of {placed.title} is over text", hint)


def _no_timeout(kind: str) -> str:
    if kind == "ask":
        return "put it inside `ask`: how long the question takes an answer"
    return "give it to the steps inside" if kind in ("parallel", "workflow") else "remove it"


def _member(reading: Reading, placed: Placed) -> Iterator[Problem]:
    if placed.inside is None:
        return
    step = placed.step
    if step.parallel is not None:
        message, hint = "a parallel step is a member of another", "make its members members of the outer one"
        yield reading.source.problem((*placed.path, "parallel"), message, hint, key=True)
    for field, value in (("routes", step.routes), ("after", step.after)):
        if value is not None:
            message = f"{placed.title} is a member of a parallel step and has {field!r}"
            hint = f"members begin and end together: put {field!r} on the parallel step"
            yield reading.source.problem((*placed.path, field), message, hint, key=True)


def _targets(reading: Reading, placed: Placed) -> Iterator[Problem]:
    step = placed.step
    targets = {(*placed.path, "python"): step.python} if step.python is not None else {}
    if step.agent is not None:
        tools = enumerate(step.agent.tools)
        targets |= {(*placed.path, "agent", "tools", index): tool for index, tool in tools}
    for path, target in targets.items():
        file, _, _ = target.rpartition(":")
        if not _TARGET.fullmatch(target):
            yield reading.source.problem(path, f"{target!r} does not name a Python function", _TARGET_HINT)
        elif file.endswith(".py") and not (reading.source.base / file).is_file():
            hint = "paths are relative to the workflow file"
            yield reading.source.problem(path, f"there is no file {file!r}", hint)


def _request(reading: Reading, placed: Placed) -> Iterator[Problem]:
    http = placed.step.http
    if http is None:
        return
    url = http.url if isinstance(http, Http) else http
    path = (*placed.path, "http", "url") if isinstance(http, Http) else (*placed.path, "http")
    if not _could_be_url(url):
        message = f"{url!r} is not the address of an HTTP request"
        yield reading.source.problem(path, message, "begin it with https:// or http://, then a host")
    if isinstance(http, Http) and http.json_ is not None and http.body is not None:
        hint = "keep one of them"
        path = (*placed.path, "http", "body")
        message = f"the request of {placed.title} has both json and body"
        yield reading.source.problem(path, message, hint, key=True)


def _could_be_url(url: str) -> bool:
    """Whether a text is a URL, or may become one once its values are put in."""
    literal = re.split(r"\{\{|\{%", url, maxsplit=1)[0].strip().lower()
    if is_template(url):
        schemes = ("http://", "https://")
        return literal.startswith(schemes) or any(scheme.startswith(literal) for scheme in schemes)
    try:
        parts = urlsplit(url.strip())
        return parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _agent(reading: Reading, placed: Placed) -> Iterator[Problem]:
    agent = placed.step.agent
    if agent is None:
        return
    path = (*placed.path, "agent")
    if not is_template(agent.model) and not _MODEL.fullmatch(agent.model):
        message = f"{agent.model!r} does not say whose model it is"
        hint = "write provider:name, such as openai:gpt-4o-mini"
        yield reading.source.problem((*path, "model"), message, hint)
    schema = agent.output
    if schema is None:
        return
    hint = "write `type: object` and list the fields under `properties:`"
    if schema.get("type") != "object":
        message = "the JSON Schema of an agent's output has to be that of an object"
        yield reading.source.problem((*path, "output"), message, hint, key=True)
    elif not isinstance(schema.get("properties", {}), dict):
        yield reading.source.problem((*path, "output", "properties"), "properties have to be fields", hint)
    for place, pattern in patterns_in(schema):
        if reason := pattern_problem(pattern):
            message = f"the pattern {pattern!r:.200} cannot be matched: {reason}"
            yield reading.source.problem((*path, "output", *place), message, _PATTERN_HINT)


def _script(reading: Reading, placed: Placed) -> Iterator[Problem]:
    """Values in a script stand where they can do no harm, and programs that may take them can be named."""
    given = placed.step.shell
    if given is None:
        return
    path: DataPath = (*placed.path, "shell")
    programs: list[str] = []
    if isinstance(given, Shell):
        programs = given.programs
        for index, entry in enumerate(programs):
            if reason := program_problem(entry, in_any_folder=is_template(given.cwd or "")):
                hint = "name a program and the words that always follow it, such as ./charge.sh"
                if is_template(given.cwd or ""):
                    hint = "write absolute paths, or remove the value from `cwd`"
                yield reading.source.problem((*path, "programs", index), f"{entry!r} {reason}", hint)
        yield from _variables(reading, (*path, "env"), given.env)
    script = given.run if isinstance(given, Shell) else given
    path = (*path, "run") if isinstance(given, Shell) else path
    try:
        check_script(compile_template(script), programs)
    except UnsafePlace as error:
        offset = sum(map(len, script.splitlines(keepends=True)[: error.line - 1]))
        yield reading.source.problem_inside(path, offset, error.reason, error.remedy)
    except TemplateError:
        return


def _variables(reading: Reading, path: DataPath, env: Mapping[str, str]) -> Iterator[Problem]:
    """No value is put into a variable that a shell, a loader or an interpreter takes code or programs from."""
    for name, text in env.items():
        if is_template(text) and INTERPRETED.fullmatch(name):
            message = f"a value cannot be put into {name}, which decides what shells and programs run"
            hint = "write its text out, or choose another name and use that in the script"
            yield reading.source.problem((*path, name), message, hint)


def _until(reading: Reading, placed: Placed) -> Iterator[Problem]:
    wait = placed.step.wait
    if not isinstance(wait, Wait) or wait.until is None or is_template(wait.until):
        return
    try:
        dt.datetime.fromisoformat(wait.until)
    except ValueError:
        path = (*placed.path, "wait", "until")
        hint = "write an ISO 8601 date and time, such as 2030-01-31T09:00:00Z"
        yield reading.source.problem(path, f"{wait.until!r} is not a moment in time", hint)


def _sub_workflow(reading: Reading, placed: Placed) -> Iterator[Problem]:
    sub = placed.step.workflow
    if sub is None:
        return
    file = sub.file if isinstance(sub, SubWorkflow) else sub
    path = (*placed.path, "workflow", *(("file",) if isinstance(sub, SubWorkflow) else ()))
    source, target = reading.source, reading.source.base / file
    if is_template(file):
        yield source.problem(path, "the file of a workflow step cannot be a template", "name one file")
    elif not source.has_file(target):
        hint = "paths are relative to the workflow file"
        yield source.problem(path, f"there is no workflow file {file!r}", hint)
    elif target.resolve() == (source.base / source.path.name).resolve():
        hint = "use a route back to an earlier step to repeat something"
        yield source.problem(path, "a workflow cannot be a step of itself", hint)
