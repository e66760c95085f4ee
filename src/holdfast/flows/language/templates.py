"""`{{ … }}` in texts: the syntax of jinja2 over plain data, bounded, and with none of Python's objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes

from holdfast.errors import HoldfastError
from holdfast.flows.language.evaluation import Part, check_shape
from holdfast.flows.language.plain import MAX_DEPTH, Extent, Misuse
from holdfast.flows.language.template_body import BodyReader, Rendering, Statement
from holdfast.flows.language.template_syntax import parsed

MAX_TEXT = 100_000
MAX_PARTS = 20_000
MAX_TREE = 100_000
_MARKS = ("{{", "{%")
_Path = tuple[str | int, ...]


class TemplateError(HoldfastError):
    """A template cannot be read or rendered; `line` and `column` (from 1) say where in its text.

    `path` holds the keys that lead to the template if it is part of a tree.
    """

    path: _Path = ()

    def __init__(self, message: str, line: int, column: int) -> None:
        self.line, self.column = line, column
        super().__init__(message)


class Template:
    """A template that was read and checked. It can be rendered any number of times, in any thread."""

    def __init__(
        self,
        text: str,
        body: Statement | None,
        single: Part | None,
        paths: set[tuple[str, ...]],
        pieces: list[str | None] | None = None,
    ) -> None:
        self.text, self._body, self._single, self._paths = text, body, single, paths
        self._pieces = pieces

    def __repr__(self) -> str:
        return f"Template({self.text!r:.80})"

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to fill in."""
        return self._body is None

    def paths(self) -> set[tuple[str, ...]]:
        """The dotted paths it reads of the scope, as far as they are fixed: `("steps", "search", "output")`."""
        return set(self._paths)

    def pieces(self) -> list[str | None] | None:
        """Its texts, with `None` for each value; `None` if statements decide what it has."""
        return self._pieces

    def render(self, scope: Mapping[str, Any]) -> str:
        """The text with every value written in: lists and mappings as JSON, null as nothing."""
        return self._rendered(scope, None)

    def render_with(self, scope: Mapping[str, Any], place: Callable[[Any], str]) -> str:
        """The text with `place(value)` written in for every `{{ value }}`."""
        return self._rendered(scope, place)

    def value(self, scope: Mapping[str, Any], extent: Extent | None = None) -> Any:
        """The value itself if the text is one `{{ value }}` and nothing else; otherwise the text.

        Raise `TemplateError` if it comes to more than is left of `extent`.
        """
        single = self._single
        found = self.render(scope) if single is None else self._guarded(single, Rendering(scope, None))
        return (
            found if extent is None else self._guarded(lambda _: extent.take(found), Rendering(scope, None))
        )

    def _rendered(self, scope: Mapping[str, Any], place: Callable[[Any], str] | None) -> str:
        if self._body is None:
            return self.text
        rendering = Rendering(scope, place)
        self._guarded(self._body, rendering)
        return "".join(rendering.written)

    def _guarded(self, work: Callable[[Any], Any], rendering: Rendering) -> Any:
        try:
            return work(rendering)
        except Misuse as error:
            raise _error(error, self.text) from None
        except RecursionError:
            raise TemplateError(f"in {self.text!r:.80}: the values are nested too deeply", 1, 1) from None


def compile_template(text: str) -> Template:
    """Read a template; raise `TemplateError` if it could never work."""
    if not any(mark in text for mark in _MARKS):
        return Template(text, None, None, set(), [text])
    if len(text) > MAX_TEXT:
        raise TemplateError(f"a template can have {MAX_TEXT:,} characters; put this text into a file", 1, 1)
    source = text.replace("\r\n", "\n").replace("\r", "\n")
    reader = BodyReader(source)
    try:
        tree = parsed(source)
        check_shape(tree, lambda node: node.iter_child_nodes(), MAX_PARTS)
        body, single = reader.block(tree.body), _single(tree.body)
        part = None if single is None else reader.part(single)
        return Template(source, body, part, reader.paths, _pieces(tree.body))
    except Misuse as error:
        raise _error(error, source) from None


def _single(body: list[nodes.Node]) -> nodes.Node | None:
    """The only `{{ value }}` of a template that has nothing else."""
    if len(body) == 1 and isinstance(body[0], nodes.Output) and len(body[0].nodes) == 1:
        child = body[0].nodes[0]
        return None if isinstance(child, nodes.TemplateData) else child
    return None


def _pieces(body: list[nodes.Node]) -> list[str | None] | None:
    if not all(isinstance(node, nodes.Output) for node in body):
        return None
    children = [child for node in body if isinstance(node, nodes.Output) for child in node.nodes]
    return [child.data if isinstance(child, nodes.TemplateData) else None for child in children]


def _error(error: Misuse, text: str) -> TemplateError:
    source, offset = error.where or (text.split("\n", 1)[0][:80], 0)
    offset = max(0, min(offset, len(text)))
    line, column = text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1
    return TemplateError(f"in {source!r} (line {line}, column {column}): {error}", line, column)


def compile_tree(value: Any) -> Any:
    """The value with every text in its lists and mappings read as a template; keys stay as they are."""
    return _mapped(value, compile_template, str, (), [MAX_TREE])


def render_tree(compiled: Any, scope: Mapping[str, Any]) -> Any:
    """A compiled tree with the value of each template in its place; refused if these come to too much together."""
    extent = Extent()
    return _mapped(compiled, lambda template: template.value(scope, extent), Template, (), [MAX_TREE])


def tree_paths(compiled: Any) -> set[tuple[str, ...]]:
    """The dotted paths that the templates of a compiled tree read."""
    found: set[tuple[str, ...]] = set()
    _mapped(compiled, lambda template: found.update(template.paths()), Template, (), [MAX_TREE])
    return found


def _mapped(value: Any, change: Callable[[Any], Any], leaf: type, path: _Path, left: list[int]) -> Any:
    """A copy of nested lists and mappings in which every leaf is changed."""
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
