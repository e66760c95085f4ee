"""jinja2's syntax tree of a template, turned into parts. jinja2 only reads; nothing of it is run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2.lexer
from jinja2 import TemplateSyntaxError, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from holdfast.flows.language.evaluation import (
    Part,
    Place,
    at,
    binary,
    call,
    comparison,
    conditional,
    constant,
    either,
    exists,
    item,
    listing,
    mapping,
    name,
    opposite,
    piece,
)
from holdfast.flows.language.expression_syntax import shortened
from holdfast.flows.language.functions import calling, calling_method, testing
from holdfast.flows.language.operators import concatenate, negative, positive
from holdfast.flows.language.plain import Misuse, fits
from holdfast.flows.language.selections import TESTS

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
