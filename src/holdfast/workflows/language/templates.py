"""Compiled expressions (`when:`), templates (`{{ … }}` in texts) and trees of templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes

from holdfast.errors import INVALID, HoldfastError
from holdfast.workflows.language.compiler import Compiler, Evaluation, Part, Paths, check_shape, parse
from holdfast.workflows.language.values import MAX_DEPTH, Extent, Misuse

MAX_EXPRESSION, MAX_EXPRESSION_PARTS = 4_000, 1_000
MAX_TEMPLATE, MAX_TEMPLATE_PARTS = 100_000, 20_000
MAX_TREE = 100_000
_LINE_END = re.compile("\r\n?")

_TreePath = tuple[str | int, ...]


class TemplateError(HoldfastError):
    """A template or an expression that cannot be read or evaluated.

    `reason` is the message without the place; `line` and `column` (from 1) and `offset` (from 0) say where in the text
    it is. `path` holds the keys that lead to the template if it is part of a tree.
    """

    exit_code = INVALID
    path: _TreePath = ()

    def __init__(self, message: str, line: int, column: int, offset: int = 0, reason: str = "") -> None:
        self.line, self.column, self.offset, self.reason = line, column, offset, reason or message
        super().__init__(message)


class Expression:
    """A compiled expression. It can be evaluated any number of times, in any thread."""

    def __init__(self, text: str, part: Part | None, paths: Paths) -> None:
        self.text, self.paths, self._part = text, frozenset(paths), part

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r:.80})"

    def value(self, scope: Mapping[str, Any]) -> Any:
        """Return the value; raise `TemplateError` if the values of the scope do not allow it."""
        assert self._part is not None
        return self._run(self._part, Evaluation(scope))

    def _run(self, work: Callable[[Evaluation], Any], evaluation: Evaluation) -> Any:
        try:
            return work(evaluation)
        except Misuse as error:
            raise _error(error, self.text) from None
        except RecursionError:
            raise TemplateError(f"in {self.text!r:.80}: the values are nested too deeply", 1, 1) from None


class Template(Expression):
    """A compiled template. `body` is None for a text with nothing to fill in.

    `pieces` are its texts, with None for each value; None if statements decide what it has.
    """

    def __init__(
        self, text: str, body: Part | None, single: Part | None, paths: Paths, pieces: list[str | None] | None
    ) -> None:
        super().__init__(text, single, paths)
        self._body, self.pieces = body, pieces

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to fill in."""
        return self._body is None

    def render(self, scope: Mapping[str, Any], place: Callable[[Any], str] | None = None) -> str:
        """Return the text with every value written in: lists and mappings as JSON, null as nothing.

        With `place`, `place(value)` is written for every `{{ value }}`.
        """
        if self._body is None:
            return self.text
        evaluation = Evaluation(scope, place)
        self._run(self._body, evaluation)
        return "".join(evaluation.written)

    def value(self, scope: Mapping[str, Any], extent: Extent | None = None) -> Any:
        """Return the value itself if the text is one `{{ value }}` and nothing else; otherwise the text.

        Raise `TemplateError` if it is larger than what is left of `extent`.
        """
        found = self.render(scope) if self._part is None else super().value(scope)
        return found if extent is None else self._run(lambda _: extent.take(found), Evaluation(scope))


def compile_expression(text: str) -> Expression:
    """Compile an expression, whole or within `{{ … }}`; raise `TemplateError` if it could never work."""
    bare = text.strip()
    is_wrapped = bare.startswith("{{") and bare.endswith("}}") and "{{" not in bare[2:]
    if len(text) > MAX_EXPRESSION:
        raise TemplateError(
            f"the expression has more than {MAX_EXPRESSION:,} characters; do it in a step", 1, 1
        )
    source = _LINE_END.sub("\n", bare)
    compiler = Compiler(source)
    try:
        if not (bare[2:-2] if is_wrapped else bare).strip():
            raise Misuse("the expression is empty; write a condition such as output.count > 3")
        tree: nodes.Node | None = parse(source, is_expression=not is_wrapped)
        if isinstance(tree, nodes.Template):
            tree = _single(tree.body)
        if tree is None:
            raise Misuse("this is not one expression; check its brackets and commas")
        check_shape(tree, MAX_EXPRESSION_PARTS)
        return Expression(source, compiler.part(tree), compiler.paths)
    except Misuse as error:
        raise _error(error, source) from None


def compile_template(text: str) -> Template:
    """Compile a template; raise `TemplateError` if it could never work."""
    if "{{" not in text and "{%" not in text:
        return Template(text, None, None, set(), [text])
    if len(text) > MAX_TEMPLATE:
        raise TemplateError(
            f"a template can have {MAX_TEMPLATE:,} characters; put this text into a file", 1, 1
        )
    source = _LINE_END.sub("\n", text)
    compiler = Compiler(source)
    try:
        tree = parse(source)
        assert isinstance(tree, nodes.Template)
        check_shape(tree, MAX_TEMPLATE_PARTS)
        body, single, found = compiler.block(tree.body), _single(tree.body), _outputs(tree.body)
        part = None if single is None else compiler.part(single)
        texts = (child.data if isinstance(child, nodes.TemplateData) else None for child in found or ())
        return Template(source, body, part, compiler.paths, None if found is None else list(texts))
    except Misuse as error:
        raise _error(error, source) from None


def _outputs(body: list[nodes.Node]) -> list[nodes.Expr] | None:
    """Return the texts and values of a template that has no statements."""
    if not all(isinstance(node, nodes.Output) for node in body):
        return None
    return [child for node in body if isinstance(node, nodes.Output) for child in node.nodes]


def _single(body: list[nodes.Node]) -> nodes.Node | None:
    """Return the only `{{ value }}` of a template that has nothing else."""
    found = _outputs(body) or []
    return found[0] if len(found) == 1 and not isinstance(found[0], nodes.TemplateData) else None


def _error(error: Misuse, text: str) -> TemplateError:
    source, offset = error.where or (text.split("\n", 1)[0][:80], 0)
    offset = max(0, min(offset, len(text)))
    line, column = text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1
    reason = str(error)
    message = f"in {source!r} (line {line}, column {column}): {reason}"
    return TemplateError(message, line, column, offset, f"in {source!r}: {reason}")


def compile_tree(value: Any) -> Any:
    """Return the value with every text in its lists and mappings as a template; keys stay as they are."""
    return _mapped(value, compile_template, str, (), [MAX_TREE])


def render_tree(compiled: Any, scope: Mapping[str, Any]) -> Any:
    """Return a compiled tree with the value of each template; raise if these are too large together."""
    extent = Extent()
    return _mapped(compiled, lambda template: template.value(scope, extent), Template, (), [MAX_TREE])


def tree_paths(compiled: Any) -> Paths:
    """Return the paths that the templates of a compiled tree read."""
    found: Paths = set()
    _mapped(compiled, lambda template: found.update(template.paths), Template, (), [MAX_TREE])
    return found


def _mapped(value: Any, change: Callable[[Any], Any], leaf: type, path: _TreePath, left: list[int]) -> Any:
    """Copy nested lists and mappings with every leaf changed."""
    left[0] -= 1
    if left[0] < 0 or len(path) > MAX_DEPTH:
        raise TemplateError("there are too many values, or they are nested too deeply", 1, 1)
    if isinstance(value, leaf):
        try:
            return change(value)
        except TemplateError as error:
            error.path = error.path or path
            raise
    if isinstance(value, dict):
        return {key: _mapped(item, change, leaf, (*path, key), left) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change, leaf, (*path, index), left) for index, item in enumerate(value)]
    return value
