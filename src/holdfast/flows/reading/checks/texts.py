"""Every expression and template of a file: it can be read, and what it names is there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from holdfast.flows.language.expressions import ExpressionError, compile_expression
from holdfast.flows.language.templates import TemplateError, compile_template
from holdfast.flows.reading.checks.places import Text, texts
from holdfast.flows.reading.checks.reading import Reading
from holdfast.flows.reading.problems import Problem, listed
from holdfast.suggestions import did_you_mean

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


def check_texts(reading: Reading) -> Iterator[Problem]:
    """Problems of all expressions and templates."""
    check = _Names(reading)
    for text in texts(reading):
        paths = _read(reading, text)
        if isinstance(paths, Problem):
            yield paths
        else:
            yield from check.problems(text, paths)


def _read(reading: Reading, text: Text) -> set[tuple[str, ...]] | Problem:
    """The paths that a text names, or why it cannot be read."""
    try:
        if text.expression:
            return compile_expression(text.value).names()
        return compile_template(text.value).paths()
    except ExpressionError as error:
        return _unreadable(reading, text, error, error.column - 1, _EXPRESSION)
    except TemplateError as error:
        lines = text.value.splitlines(keepends=True)[: error.line - 1]
        return _unreadable(reading, text, error, sum(map(len, lines)) + error.column - 1, _TEMPLATE)


def _unreadable(reading: Reading, text: Text, error: Exception, offset: int, hint: str) -> Problem:
    offset = min(max(0, offset), len(text.value))
    return reading.source.problem_inside(text.path, offset, f"{text.place}: {_told(error)}", hint)


def _told(error: Exception) -> str:
    """What an error says, without the place in the text: the problem has the place in the file."""
    return re.sub(r" \((?:line \d+, )?column \d+\)", "", str(error), count=1)


class _Names:
    """What can be named where."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._known: dict[str, tuple[str, Any]] = {
            "inputs": ("no input is called", reading.declared("inputs")),
            "steps": ("there is no step", reading.names or None),
            "visits": ("there is no step", reading.names or None),
            "vars": ("workflow.vars has no", reading.declared("vars")),
            "workflow": ("`workflow` has no", _WORKFLOW),
        }

    def problems(self, text: Text, paths: set[tuple[str, ...]]) -> Iterator[Problem]:
        """Names in a text that lead to nothing; of very many, some."""
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
            if not close and top in ("steps", "visits") and not self._reading.all_named:
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
        """A name with a dash after a dot would be read as a subtraction."""
        for found in _DASHED.finditer(text.value):
            top, name = found[1], found[2]
            if name in (self._known[top][1] or ()) and _is_code(text, found.start()):
                message = f"{text.place}: after a dot {name!r} is read as a subtraction"
                hint = f"write {top}['{name}']"
                return self._reading.source.problem_inside(
                    text.path, found.start(), message, hint, len(found[0])
                )
        return None

    def _at(self, text: Text, path: tuple[str, ...], message: str, hint: str) -> Problem:
        offset = _offset(text.value, path)
        width = len(".".join(path)) if text.value.startswith(".".join(path), offset) else 1
        return self._reading.source.problem_inside(text.path, offset, message, hint, width)


def _is_code(text: Text, offset: int) -> bool:
    """Whether a place of a text is inside an expression, not in the words around it."""
    if text.expression:
        return True
    before = text.value[:offset]
    return max(before.rfind("{{"), before.rfind("{%")) > max(before.rfind("}}"), before.rfind("%}"))


def _offset(text: str, path: tuple[str, ...]) -> int:
    """Where a path is named in a text; its beginning if that cannot be told."""
    dotted = r"\s*\.\s*".join(map(re.escape, path))
    for pattern in (rf"(?<![\w.]){dotted}(?!\w)", rf"['\"]{re.escape(path[-1])}['\"]", re.escape(path[-1])):
        for found in re.finditer(pattern, text):
            return found.start()
    return 0
