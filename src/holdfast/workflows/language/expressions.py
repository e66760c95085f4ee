"""`when:` conditions: Python expressions over plain data, of which nothing is run as Python."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from typing import Any

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
    conditional,
    constant,
    either,
    item,
    listing,
    mapping,
    name,
    negative,
    opposite,
    piece,
    positive,
)
from holdfast.workflows.language.functions import calling, calling_method
from holdfast.workflows.language.values import Misuse, fits, kind

# Python's syntax tree of an expression, turned into parts; whatever is not known here is refused.


_WORDS = {"true": True, "false": False, "null": None, "none": None}
_ARITHMETIC: Mapping[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_COMPARISONS: Mapping[type, str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_REFUSED: Mapping[type, str] = {
    ast.Pow: "** is not available; multiply instead",
    ast.BitOr: "| is not available in conditions; write upper(x) for x | upper, and `or` for alternatives",
    ast.BitAnd: "& is not available; write `and`",
    ast.JoinedStr: "f'…' is not available; join texts with +",
    ast.Lambda: "functions cannot be made here; do it in a python step",
    ast.NamedExpr: ":= is not available; nothing can be assigned in a condition",
    ast.Starred: "* is not available; name the values one by one",
    ast.Set: "{…} needs keys and values; write a list as […]",
}


class Reader:
    """Turns Python's syntax tree into parts; whatever it does not know is refused."""

    def __init__(self, text: str, source: str, offset: int) -> None:
        self._text, self._source = text, source
        # Line breaks and brackets: the expression may go over several lines, as it may in YAML.
        self._wrapped, self._offset = f"({source}\n)", offset - 1
        self._starts = [0]
        for line in self._wrapped.encode().split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.names: set[tuple[str, ...]] = set()

    def parsed(self) -> ast.expr:
        if not self._source:
            raise Misuse("the expression is empty; write a condition such as output.count > 3")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self._wrapped, mode="eval").body
        except SyntaxError as error:
            raise self._unreadable(error) from None
        except (RecursionError, MemoryError):
            raise Misuse("this is nested too deeply; do some of it in a step before") from None
        except ValueError as error:
            raise Misuse(f"this cannot be read: {error}") from None
        if (tree.lineno, tree.col_offset) == (1, 0):
            raise Misuse("this is not one expression; check its brackets and commas")
        return tree

    def _unreadable(self, error: SyntaxError) -> Misuse:
        line, column = error.lineno or 1, (error.offset or 1) - 1
        lines = self._wrapped.split("\n")
        before = sum(len(each) + 1 for each in lines[: line - 1])
        place = min(max(before + column + self._offset, 0), max(len(self._text) - 1, 0))
        hint = ""
        if "=" in self._source.replace("==", "").replace("!=", ""):
            hint = "; == compares two values, and nothing can be assigned"
        if "&&" in self._source or "||" in self._source or "!" in self._source.replace("!=", ""):
            hint = "; write and, or, not for &&, ||, !"
        misuse = Misuse(f"this is not an expression: {error.msg.split('. ')[0]}{hint}")
        misuse.where = (self._source, place)
        return misuse

    def _place(self, node: ast.expr) -> Place:
        raw = self._wrapped.encode()
        begin = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return raw[begin:end].decode(), len(raw[:begin].decode()) + self._offset

    def part(self, node: ast.expr) -> Part:
        """The part that a piece of syntax stands for."""
        place = self._place(node)
        try:
            return at(place, self._read(node))
        except Misuse as error:
            error.where = error.where or place
            raise

    def _read(self, node: ast.expr) -> Part:
        match node:
            case ast.Constant():
                return self._literal(node)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._path(node)
            case ast.BoolOp():
                return self._both_or_either(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BinOp():
                return self._binary(node)
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp():
                return self._conditional(node)
            case ast.List() | ast.Tuple():
                return listing([self.part(each) for each in node.elts])
            case ast.Dict():
                return self._mapping(node)
            case ast.Call():
                return self._call(node)
        raise Misuse(_REFUSED.get(type(node), "this is not available in conditions"))

    def _literal(self, node: ast.Constant) -> Part:
        if kind(node.value) in ("other", "lookup") or not fits(node.value):
            raise Misuse(
                "this is not a value that can be used here; use a text, a number, true, false or null"
            )
        return constant(node.value)

    def _path(self, node: ast.expr) -> Part:
        """A name with everything that is read of it: `steps.search.output[0].title`."""
        links: list[ast.Attribute | ast.Subscript] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            links.append(node)
            node = node.value
        fixed: list[str] | None = None
        if isinstance(node, ast.Name):
            if node.id in _WORDS and not links:
                return constant(_WORDS[node.id])
            result, fixed = at(self._place(node), name(node.id)), [node.id]
        else:
            result = self.part(node)
        path, open_ended = list(fixed or []), fixed is None
        for link in reversed(links):
            key = _fixed_key(link)
            open_ended = open_ended or key is None
            if key is not None and not open_ended:
                path.append(key)
            result = at(self._place(link), self._link(link, result))
        if path:
            self.names.add(tuple(path))
        return result

    def _link(self, link: ast.Attribute | ast.Subscript, container: Part) -> Part:
        called = shortened(self._place(link.value)[0])
        if isinstance(link, ast.Attribute):
            return item(container, constant(link.attr), called)
        if isinstance(link.slice, ast.Slice):
            ends = (link.slice.lower, link.slice.upper, link.slice.step)
            return piece(container, [constant(None) if end is None else self.part(end) for end in ends])
        return item(container, self.part(link.slice), called)

    def _both_or_either(self, node: ast.BoolOp) -> Part:
        return either([self.part(each) for each in node.values], stop_at=isinstance(node.op, ast.Or))

    def _unary(self, node: ast.UnaryOp) -> Part:
        operand = self.part(node.operand)
        if isinstance(node.op, ast.Not):
            return opposite(operand)
        if isinstance(node.op, ast.Invert):
            raise Misuse("~ is not available; write `not`")
        return call(negative if isinstance(node.op, ast.USub) else positive, [operand], {})

    def _binary(self, node: ast.BinOp) -> Part:
        symbol = _ARITHMETIC.get(type(node.op))
        if symbol is None:
            raise Misuse(_REFUSED.get(type(node.op), "this operator is not available; use + - * / // %"))
        return binary(symbol, self.part(node.left), self.part(node.right))

    def _compare(self, node: ast.Compare) -> Part:
        rest = []
        for sign, operand in zip(node.ops, node.comparators, strict=True):
            rest.append((_comparison(sign, operand), self.part(operand)))
        return comparison(self.part(node.left), rest)

    def _conditional(self, node: ast.IfExp) -> Part:
        return conditional(self.part(node.test), self.part(node.body), self.part(node.orelse))

    def _mapping(self, node: ast.Dict) -> Part:
        pairs = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise Misuse("** is not available; name the keys one by one")
            pairs.append((self.part(key), self.part(value)))
        return mapping(pairs)

    def _call(self, node: ast.Call) -> Part:
        values = [self.part(value) for value in node.args]
        if any(keyword.arg is None for keyword in node.keywords):
            raise Misuse("** is not available; name the values one by one")
        named = {str(keyword.arg): self.part(keyword.value) for keyword in node.keywords}
        if isinstance(node.func, ast.Name):
            return calling(node.func.id, values, named)
        if isinstance(node.func, ast.Attribute):
            return calling_method(node.func.attr, self.part(node.func.value), values, named)
        raise Misuse("only the functions of the table can be called, such as len(…)")


def shortened(source: str) -> str:
    """Source on one line, short enough for a message."""
    source = " ".join(source.split())
    return source if len(source) <= 80 else source[:79] + "…"


def _fixed_key(link: ast.Attribute | ast.Subscript) -> str | None:
    if isinstance(link, ast.Attribute):
        return link.attr
    value = link.slice.value if isinstance(link.slice, ast.Constant) else None
    return value if isinstance(value, str) else None


def _comparison(sign: ast.cmpop, operand: ast.expr) -> str:
    if isinstance(sign, ast.Is | ast.IsNot):
        literal = operand.value if isinstance(operand, ast.Constant) else ...
        word = operand.id if isinstance(operand, ast.Name) else ""
        if not (literal is None or literal is True or literal is False or word in _WORDS):
            raise Misuse("`is` only tests for null, true and false; write == or !=")
        return "==" if isinstance(sign, ast.Is) else "!="
    return _COMPARISONS[type(sign)]


MAX_TEXT = 4_000
MAX_PARTS = 1_000


class ExpressionError(HoldfastError):
    """An expression cannot be read or evaluated; `column` (from 1) says where in its text."""

    def __init__(self, message: str, column: int) -> None:
        self.column = column
        super().__init__(message)


class Expression:
    """An expression that was read and checked. It can be evaluated any number of times, in any thread."""

    def __init__(self, text: str, run: Part, names: set[tuple[str, ...]]) -> None:
        self.text, self._run, self._names = text, run, names

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def evaluate(self, scope: Mapping[str, Any]) -> Any:
        """What the expression comes to with these values; raise `ExpressionError` if they do not allow it."""
        try:
            return self._run(Evaluation(scope))
        except Misuse as error:
            raise _error(error, self.text) from None
        except RecursionError:
            raise ExpressionError(f"in {self.text!r:.80}: the values are nested too deeply", 1) from None

    def names(self) -> set[tuple[str, ...]]:
        """The dotted paths it reads, as far as they are fixed: `("steps", "search", "output", "count")`."""
        return set(self._names)


def compile_expression(text: str) -> Expression:
    """Read an expression, whole or within `{{ … }}`; raise `ExpressionError` if it could never work."""
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"the expression has more than {MAX_TEXT:,} characters; do it in a step", 1)
    if (odd := _unwritable(text)) is not None:
        raise ExpressionError(f"{text[odd]!r} (column {odd + 1}) is half a character; remove it", odd + 1)
    source, offset = _unwrapped(text)
    reader = Reader(text, source, offset)
    try:
        tree = reader.parsed()
        check_shape(tree, ast.iter_child_nodes, MAX_PARTS)
        return Expression(text, reader.part(tree), reader.names)
    except Misuse as error:
        raise _error(error, text) from None


def _unwritable(text: str) -> int | None:
    """Where a text has what no file can hold, if it does."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _unwrapped(text: str) -> tuple[str, int]:
    """The expression itself, and where in the text it begins."""
    bare = text.strip()
    offset = len(text) - len(text.lstrip())
    if bare.startswith("{{") and bare.endswith("}}") and "{{" not in bare[2:]:
        inner = bare[2:-2]
        return inner.strip(), offset + 2 + len(inner) - len(inner.lstrip())
    return bare, offset


def _error(error: Misuse, text: str) -> ExpressionError:
    source, offset = error.where or (text.strip(), 0)
    column = offset + 1
    return ExpressionError(f"in {shortened(source)!r} (column {column}): {error}", column)
