"""`{{ … }}` in texts: the syntax of jinja2 over plain data, bounded, and with none of Python's objects."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2.lexer
from jinja2 import TemplateSyntaxError, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from holdfast.errors import HoldfastError
from holdfast.workflows.language.evaluation import (
    Evaluation,
    Part,
    Place,
    at,
    binary,
    call,
    check_shape,
    comparison,
    concatenate,
    conditional,
    constant,
    either,
    exists,
    item,
    listing,
    mapping,
    name,
    negative,
    opposite,
    piece,
    positive,
)
from holdfast.workflows.language.expressions import shortened
from holdfast.workflows.language.functions import TESTS, calling, calling_method, testing
from holdfast.workflows.language.values import (
    MAX_DEPTH,
    Extent,
    Misuse,
    as_text,
    describe,
    elements,
    exact,
    fits,
    kind,
    size,
    truth,
)

# jinja2's syntax tree of a template, turned into parts. jinja2 only reads; nothing of it is run.


_ARITHMETIC: Mapping[type, str] = {
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.Div: "/",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
}
_COMPARISONS: Mapping[str, str] = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "lteq": "<=",
    "gt": ">",
    "gteq": ">=",
    "in": "in",
    "notin": "not in",
}


class _Lexer(jinja2.lexer.Lexer):
    """Gives every token its offset (from 1) in place of its line, so that errors know their column."""

    def tokeniter(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> Iterator[tuple[int, str, str]]:
        offset = 0
        try:
            for _, token, value in super().tokeniter(source, name, filename, state):
                offset = source.index(value, offset)
                yield offset + 1, token, value
                offset += len(value)
        except TemplateSyntaxError as error:
            error.lineno = offset + 1
            raise


class _Environment(ImmutableSandboxedEnvironment):
    """Reads templates; a block tag that stands alone on a line leaves no empty line.

    There are no comments: `{#` is part of `${#name}` in shell scripts.
    """

    def __init__(self) -> None:
        super().__init__(
            comment_start_string="\0{#",
            comment_end_string="#}\0",
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
            cache_size=0,
        )
        self._offsets = _Lexer(self)

    @property
    def lexer(self) -> jinja2.lexer.Lexer:
        return self._offsets


_ENVIRONMENT = _Environment()


def parsed(text: str) -> nodes.Template:
    """The syntax tree, in which each `lineno` is an offset (from 1)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Parser(_ENVIRONMENT, text).parse()
    except TemplateSyntaxError as error:
        reason = (error.message or "it cannot be read").split(" at ")[0].rstrip(".")
        misuse = Misuse(f"this is not a template: {reason}; see {{{{ value }}}}, {{% if %}}, {{% for %}}")
        misuse.where = source_at(text, error.lineno - 1)
        raise misuse from None
    except RecursionError:
        raise Misuse("this is nested too deeply; do some of it in a step before") from None
    except ValueError as error:
        raise Misuse(f"this cannot be read: {error}") from None


def source_at(text: str, offset: int) -> Place:
    """What stands at the offset, up to the end of its tag."""
    rest = text[offset : offset + 200]
    ends = [rest.index(mark) for mark in ("}}", "%}", "{{", "{%", "\n") if mark in rest]
    found = shortened(rest[: min(ends, default=len(rest))])
    return found or shortened(text[text.rfind("\n", 0, offset) + 1 :].split("\n", 1)[0]), offset


class Reader:
    """Turns jinja2's nodes of expressions into parts; whatever it does not know is refused."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.paths: set[tuple[str, ...]] = set()
        self.bound: set[str] = set()

    def place(self, node: nodes.Node) -> Place:
        """Where a node stands in the text."""
        while isinstance(node, nodes.Getattr | nodes.Getitem | nodes.Filter | nodes.Test | nodes.Call):
            if node.node is None:
                break
            node = node.node
        return source_at(self._text, (node.lineno or 1) - 1)

    def part(self, node: nodes.Node) -> Part:
        """The part that a node stands for."""
        try:
            return at(self.place(node), self._read(node))
        except Misuse as error:
            error.where = error.where or self.place(node)
            raise

    def parts(self, several: Sequence[nodes.Node]) -> list[Part]:
        """The parts that nodes stand for."""
        return [self.part(node) for node in several]

    def _read(self, node: nodes.Node) -> Part:
        match node:
            case nodes.Const():
                return self._literal(node.value)
            case nodes.Name() | nodes.Getattr() | nodes.Getitem():
                return self._path(node)
            case nodes.Call():
                return self._call(node)
            case nodes.Filter(node=nodes.Node() as value):
                values, named = self._given(node)
                return calling(node.name, [self.part(value), *values], named)
            case nodes.Test():
                return self._test(node)
            case nodes.Compare():
                rest = [(_COMPARISONS[operand.op], self.part(operand.expr)) for operand in node.ops]
                return comparison(self.part(node.expr), rest)
            case nodes.CondExpr():
                otherwise = constant(None) if node.expr2 is None else self.part(node.expr2)
                return conditional(self.part(node.test), self.part(node.expr1), otherwise)
            case nodes.And() | nodes.Or():
                return either(self.parts([node.left, node.right]), stop_at=isinstance(node, nodes.Or))
            case nodes.Not():
                return opposite(self.part(node.node))
            case nodes.Neg() | nodes.Pos():
                sign = negative if isinstance(node, nodes.Neg) else positive
                return call(sign, [self.part(node.node)], {})
            case nodes.Concat():
                return call(concatenate, self.parts(node.nodes), {})
            case nodes.List() | nodes.Tuple():
                return listing(self.parts(node.items))
            case nodes.Dict():
                return mapping([(self.part(pair.key), self.part(pair.value)) for pair in node.items])
            case nodes.BinExpr() if type(node) in _ARITHMETIC:
                return binary(_ARITHMETIC[type(node)], self.part(node.left), self.part(node.right))
        if isinstance(node, nodes.Pow):
            raise Misuse("** is not available; multiply instead")
        raise Misuse(f"{type(node).__name__} is not available in templates; do it in a step before")

    def _literal(self, value: Any) -> Part:
        if not fits(value):
            raise Misuse("the number is too large to be worked with")
        return constant(value)

    def _path(self, node: nodes.Node) -> Part:
        """A name with everything that is read of it: `steps.search.output[0].title`."""
        links: list[nodes.Getattr | nodes.Getitem] = []
        while isinstance(node, nodes.Getattr | nodes.Getitem):
            links.append(node)
            node = node.node
        if isinstance(node, nodes.Name) and node.name == "null" and not links:
            return constant(None)
        open_ended = not isinstance(node, nodes.Name) or node.name in self.bound
        fixed = [node.name] if isinstance(node, nodes.Name) and not open_ended else []
        called = node.name if isinstance(node, nodes.Name) else "the value"
        result = at(self.place(node), name(node.name)) if isinstance(node, nodes.Name) else self.part(node)
        for link in reversed(links):
            key = _fixed_key(link)
            open_ended = open_ended or not isinstance(key, str)
            fixed += [] if open_ended else [str(key)]
            result = at(self.place(link), self._link(link, result, called))
            called += f".{key}" if isinstance(key, str) else f"[{'…' if key is None else key}]"
        if fixed:
            self.paths.add(tuple(fixed))
        return result

    def _link(self, link: nodes.Getattr | nodes.Getitem, container: Part, called: str) -> Part:
        if isinstance(link, nodes.Getattr):
            return item(container, constant(link.attr), shortened(called))
        if isinstance(link.arg, nodes.Slice):
            ends = (link.arg.start, link.arg.stop, link.arg.step)
            return piece(container, [constant(None) if end is None else self.part(end) for end in ends])
        return item(container, self.part(link.arg), shortened(called))

    def _given(self, node: nodes.Call | nodes.Filter | nodes.Test) -> tuple[list[Part], dict[str, Part]]:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise Misuse("* and ** are not available; name the values one by one")
        named = {str(pair.key): self.part(pair.value) for pair in node.kwargs}
        return self.parts(node.args), named

    def _call(self, node: nodes.Call) -> Part:
        values, named = self._given(node)
        if isinstance(node.node, nodes.Name) and node.node.name not in self.bound:
            return calling(node.node.name, values, named)
        if isinstance(node.node, nodes.Getattr):
            return calling_method(node.node.attr, self.part(node.node.node), values, named)
        raise Misuse("only the functions of the table can be called, such as range(…)")

    def _test(self, node: nodes.Test) -> Part:
        values, named = self._given(node)
        value = self.part(node.node)
        if node.name in ("defined", "undefined") and not values:
            return exists(value) if node.name == "defined" else opposite(exists(value))
        if node.name not in TESTS or named:
            raise Misuse(f"there is no test {node.name!r:.60}; there are defined, {', '.join(sorted(TESTS))}")
        return testing(node.name, TESTS[node.name], [value, *values])


def _fixed_key(link: nodes.Getattr | nodes.Getitem) -> str | int | None:
    if isinstance(link, nodes.Getattr):
        return link.attr
    value = link.arg.value if isinstance(link.arg, nodes.Const) else None
    return value if isinstance(value, str | int) else None


# The text, `{{ }}`, `{% if %}`, `{% for %}` and `{% set %}` of templates, and rendering them.


MAX_RENDERED = 2_000_000

_TAGS: Mapping[type, str] = {
    nodes.Macro: "macro",
    nodes.CallBlock: "call",
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
    nodes.Block: "block",
    nodes.FilterBlock: "filter",
    nodes.With: "with",
    nodes.AssignBlock: "set … endset",
}


class Rendering(Evaluation):
    """One rendering: an evaluation that collects text, as much as is allowed."""

    def __init__(self, scope: Mapping[str, Any], place: Callable[[Any], str] | None) -> None:
        super().__init__(scope)
        self._place = place
        self._length = 0
        self.written: list[str] = []

    def write(self, text: str) -> None:
        """Add text, or refuse it before there is too much."""
        self.characters(len(text))
        self._length += len(text)
        if self._length > MAX_RENDERED:
            raise Misuse(f"the text would have more than {MAX_RENDERED:,} characters")
        self.written.append(text)

    def put(self, value: Any) -> None:
        """Add a value in the way that was asked for."""
        self.write(as_text(self, value) if self._place is None else self._place(value))


Statement = Callable[[Any], None]


class BodyReader(Reader):
    """Turns jinja2's nodes of statements into functions that write."""

    def block(self, body: Sequence[nodes.Node]) -> Statement:
        """Several statements, one after the other."""
        statements: list[Statement] = []
        for node in body:
            try:
                statements += self._statements(node)
            except Misuse as error:
                error.where = error.where or self.place(node)
                raise

        def run(rendering: Rendering) -> None:
            for statement in statements:
                statement(rendering)

        return run

    def _statements(self, node: nodes.Node) -> Iterator[Statement]:
        match node:
            case nodes.Output():
                yield from (self._output(child) for child in node.nodes)
            case nodes.If():
                yield self._if(node)
            case nodes.For():
                yield self._for(node)
            case nodes.Assign():
                yield self._set(node)
            case _:
                tag = _TAGS.get(type(node), type(node).__name__.lower())
                raise Misuse(f"{{% {tag} %}} is not available in templates; there are if, for and set")

    def _output(self, node: nodes.Node) -> Statement:
        if isinstance(node, nodes.TemplateData):
            text = node.data
            return placed(self.place(node), lambda rendering: rendering.write(text))
        part = self.part(node)
        return placed(self.place(node), lambda rendering: rendering.put(part(rendering)))

    def _if(self, node: nodes.If) -> Statement:
        branches = [(self.part(each.test), self.block(each.body)) for each in (node, *node.elif_)]
        otherwise = self.block(node.else_)

        def run(rendering: Rendering) -> None:
            for test, body in branches:
                if truth(test(rendering)):
                    return body(rendering)
            return otherwise(rendering)

        return placed(self.place(node.test), run)

    def _set(self, node: nodes.Assign) -> Statement:
        value = self.part(node.node)
        names = self._targets(node.target)

        def run(rendering: Rendering) -> None:
            rendering.items(len(rendering.local))
            rendering.local = {**rendering.local, **_unpacked(names, value(rendering))}

        return placed(self.place(node), run)

    def _for(self, node: nodes.For) -> Statement:
        if node.recursive:
            raise Misuse("a recursive loop is not available in templates; do it in a step before")
        values, outside = self.part(node.iter), set(self.bound)
        names = self._targets(node.target)
        test = None if node.test is None else self.part(node.test)
        self.bound.add("loop")
        body = self.block(node.body)
        self.bound = outside
        otherwise = self.block(node.else_)

        def run(rendering: Rendering) -> None:
            rounds = _rounds(rendering, values(rendering), names, test)
            outer = rendering.local
            for index, found in enumerate(rounds):
                rendering.charge(1)
                rendering.items(len(outer))
                rendering.local = {**outer, **found, "loop": _loop(index, len(rounds))}
                body(rendering)
            rendering.local = outer
            if not rounds:
                otherwise(rendering)

        return placed(self.place(node.iter), run)

    def _targets(self, target: nodes.Node) -> str | list[str]:
        """The name or names that are given values, which are no longer those of the scope."""
        names = target.items if isinstance(target, nodes.Tuple) else [target]
        if not all(isinstance(each, nodes.Name) for each in names):
            misuse = Misuse("only plain names can be given a value")
            misuse.where = self.place(target)
            raise misuse
        found = [each.name for each in names if isinstance(each, nodes.Name)]
        self.bound.update(found)
        return found if isinstance(target, nodes.Tuple) else found[0]


def placed(place: Place, run: Statement) -> Statement:
    """The statement, which says where it stands if it fails."""

    def statement(rendering: Rendering) -> None:
        try:
            rendering.charge(1)
            run(rendering)
        except Misuse as error:
            error.where = error.where or place
            raise

    return statement


def _rounds(
    rendering: Rendering, values: Any, names: str | list[str], test: Part | None
) -> list[dict[str, Any]]:
    """What each round of a loop gives to its names."""
    items = elements(values)
    rendering.new_list(size(values))
    rounds, outer = [], rendering.local
    for value in items:
        found = _unpacked(names, exact(value))
        if test is not None:
            rendering.items(len(outer))
            rendering.local = {**outer, **found}
        if test is None or truth(test(rendering)):
            rounds.append(found)
    rendering.local = outer
    return rounds


def _unpacked(names: str | list[str], value: Any) -> dict[str, Any]:
    if isinstance(names, str):
        return {names: value}
    if kind(value) != "list" or size(value) != len(names):
        raise Misuse(f"{', '.join(names)} need a list of {len(names)}, not {describe(value)}")
    return dict(zip(names, map(exact, elements(value)), strict=True))


def _loop(index: int, length: int) -> dict[str, Any]:
    return {
        "index": index + 1,
        "index0": index,
        "first": index == 0,
        "last": index == length - 1,
        "length": length,
        "revindex": length - index,
        "revindex0": length - index - 1,
    }


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
