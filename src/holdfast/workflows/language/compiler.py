"""A compiler from jinja2's syntax tree to functions of an `Evaluation`: expressions and statements, bounded.

jinja2 only reads; nothing of it is run, and whatever the compiler does not know is refused. Every function pays one
step, and puts its place on the errors that arise in it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2.lexer
from jinja2 import TemplateSyntaxError, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from holdfast.workflows.language.functions import (
    BINARY,
    COMPARISONS,
    FUNCTIONS,
    TESTS,
    UNARY,
    concatenate,
    cut,
    known,
)
from holdfast.workflows.language.values import (
    MAX_DEPTH,
    SCALARS,
    Meter,
    Missing,
    Misuse,
    as_text,
    describe,
    elements,
    exact,
    fits,
    kind,
    look_up,
    missing_text,
    size,
    truth,
)

MAX_RENDERED = 2_000_000

Paths = set[tuple[str, ...]]
"""The dotted paths that a text reads of its scope, as far as they are fixed: `("steps", "search", "output")`."""


class Evaluation(Meter):
    """One evaluation: the values in sight, the text written so far, and the work that may still be done."""

    def __init__(self, scope: Mapping[str, Any], place: Callable[[Any], str] | None = None) -> None:
        super().__init__()
        self._scope, self._place = scope, place
        self.local: dict[str, Any] = {}
        self.written: list[str] = []
        self._length = 0

    def read(self, name: str) -> Any:
        """Return the value of a name."""
        if name in self.local:
            return self.local[name]
        if name not in self._scope:
            known = self.local
            raise Missing(lambda: missing_text(name, [*known, *self._scope], None))
        return exact(self._scope[name])

    def write(self, text: str) -> None:
        """Add text; raise before there is too much."""
        self.characters(len(text))
        self._length += len(text)
        if self._length > MAX_RENDERED:
            raise Misuse(f"the text would have more than {MAX_RENDERED:,} characters")
        self.written.append(text)

    def put(self, value: Any) -> None:
        """Add a value as text, or as the caller of `render_with` writes it."""
        self.write(as_text(self, value) if self._place is None else self._place(value))


Part = Callable[[Evaluation], Any]
"""A compiled expression or statement."""


# Reading: jinja2's lexer and parser.


class _Lexer(jinja2.lexer.Lexer):
    """A lexer that gives every token its offset (from 1) in place of its line, so that errors know their column."""

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
    """The syntax of templates: a block tag that stands alone on a line leaves no empty line.

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


def parse(text: str, is_expression: bool = False) -> nodes.Node:
    """Return the syntax tree, in which each `lineno` is an offset (from 1)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not is_expression:
                return Parser(_ENVIRONMENT, text).parse()
            parser = Parser(_ENVIRONMENT, text, state="variable")
            found = parser.parse_expression()
            if not parser.stream.eos:
                rest = parser.stream.current
                parser.fail(f"unexpected {jinja2.lexer.describe_token(rest)!r}", rest.lineno)
            return found
    except TemplateSyntaxError as error:
        reason = (error.message or "it cannot be read").split(" at ")[0].rstrip(".")
        hint = _expression_hint(text) if is_expression else "; see {{ value }}, {% if %}, {% for %}"
        misuse = Misuse(f"this is not {'an expression' if is_expression else 'a template'}: {reason}{hint}")
        misuse.where = _source_at(text, error.lineno - 1)
        raise misuse from None
    except RecursionError:
        raise Misuse("this is nested too deeply; do some of it in a step before") from None
    except ValueError as error:
        raise Misuse(f"this cannot be read: {error}") from None


def _expression_hint(source: str) -> str:
    if "&&" in source or "||" in source or "!" in source.replace("!=", ""):
        return "; write and, or, not for &&, ||, !"
    if "=" in source.replace("==", "").replace("!=", ""):
        return "; == compares two values, and nothing can be assigned"
    return ""


def check_shape(root: nodes.Node, most: int) -> None:
    """Raise if a tree has too many parts or is nested too deeply to be evaluated."""
    level, count = [root], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
        if count + len(level) > most:
            raise Misuse(f"this has more than {most:,} parts; do some of it in a step before")
    raise Misuse(f"this is nested more than {MAX_DEPTH} levels deep; do some of it in a step before")


def _source_at(text: str, offset: int) -> tuple[str, int]:
    """Return what stands at the offset, up to the end of its tag, and the offset."""
    rest = text[offset : offset + 200]
    ends = [rest.index(mark) for mark in ("}}", "%}", "{{", "{%", "\n") if mark in rest]
    found = _shortened(rest[: min(ends, default=len(rest))])
    return found or _shortened(text[text.rfind("\n", 0, offset) + 1 :].split("\n", 1)[0]), offset


def _shortened(source: str) -> str:
    source = " ".join(source.split())
    return source if len(source) <= 80 else source[:79] + "…"


# Compiling: from jinja2's nodes to functions.


_ARITHMETIC: Mapping[type, str] = {
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.Div: "/",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
}
_COMPARED: Mapping[str, str] = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "lteq": "<=",
    "gt": ">",
    "gteq": ">=",
    "in": "in",
    "notin": "not in",
}
_FIRST: Mapping[type, tuple[str, ...]] = {
    **dict.fromkeys((nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Test, nodes.Call), ("node",)),
    **dict.fromkeys((*_ARITHMETIC, nodes.And, nodes.Or, nodes.Pow), ("left",)),
    nodes.Compare: ("expr",),
    nodes.CondExpr: ("expr1",),
}
"""The attribute of a node that holds its first part: its own `lineno` may be that of an operator."""
_TAGS: Mapping[type, str] = {
    nodes.CallBlock: "call",
    nodes.FromImport: "from",
    nodes.FilterBlock: "filter",
    nodes.AssignBlock: "set … endset",
}
_LAZY = ("default", "d", "defined")
"""The functions that look at a value which may be missing."""
_EVERY = frozenset({*FUNCTIONS, *_LAZY})
_METHODS = frozenset(
    {
        *("lower", "upper", "title", "capitalize", "strip", "split", "splitlines", "join", "replace"),
        *("startswith", "endswith", "keys", "values", "items", "get"),
    }
)


def _at(place: tuple[str, int], run: Part) -> Part:
    """Return the part with its payment, and with its place on errors."""

    def placed(evaluation: Evaluation) -> Any:
        try:
            evaluation.charge(1)
            return run(evaluation)
        except Misuse as error:
            error.where = error.where or place
            raise

    return placed


def _constant(value: Any) -> Part:
    return lambda evaluation: value


def _call(work: Callable[..., Any], values: Sequence[Part], named: Mapping[str, Part] | None = None) -> Part:
    """Return a call of an operator or a function with the values of parts."""
    named = named or {}

    def run(evaluation: Evaluation) -> Any:
        given = [value(evaluation) for value in values]
        by_name = {called: value(evaluation) for called, value in named.items()}
        return exact(work(evaluation, *given, **by_name))

    return run


def _exists(value: Part) -> Part:
    def run(evaluation: Evaluation) -> bool:
        try:
            value(evaluation)
        except Missing:
            return False
        return True

    return run


_EMPTY, _FALSE = _constant(""), _constant(False)


def _default(value: Part, fallback: Part = _EMPTY, boolean: Part = _FALSE) -> Part:
    """Return another value where the first is missing or null, or, with `boolean`, not true."""

    def run(evaluation: Evaluation) -> Any:
        try:
            found = value(evaluation)
        except Missing:
            return fallback(evaluation)
        if found is None or (truth(boolean(evaluation)) and not truth(found)):
            return fallback(evaluation)
        return found

    return run


def _function(called: str, values: Sequence[Part], named: Mapping[str, Part]) -> Part:
    """Return a call by name; raise if there is no such function, or it does not take these values."""
    if called in _LAZY:
        lazy = _exists if called == "defined" else _default
        _check_arguments(called, lazy, values, named)
        return lazy(*values, **named)
    if called not in FUNCTIONS:
        raise Misuse(f"there is no function {called!r:.60}; {known(called, _EVERY)}")
    _check_arguments(called, FUNCTIONS[called], [None, *values], named)
    return _call(FUNCTIONS[called], values, named)


def _method(called: str, target: Part, values: Sequence[Part], named: Mapping[str, Part]) -> Part:
    """Return a call of `x.upper()`, which is another way to write `upper(x)`, for a few functions."""
    if called not in _METHODS:
        raise Misuse(f".{called:.60}(…) cannot be called; {known(called, _EVERY)}")
    if called == "join":
        _check_arguments(called, lambda values: None, values, named)
        return _function(called, [*values, target], named)
    return _function(called, [target, *values], named)


def _check_arguments(called: str, work: Any, values: Sequence[Any], named: Mapping[str, Any]) -> None:
    signature = inspect.signature(work)
    try:
        signature.bind(*values, **named)
    except TypeError:
        shown = []
        for each in signature.parameters.values():
            default = (
                "" if each.default is each.empty else "=…" if callable(each.default) else f"={each.default!r}"
            )
            star = "*" if each.kind == each.VAR_POSITIONAL else ""
            shown += [f"{star}{each.name}{default}"] if each.name != "meter" else []
        raise Misuse(f"{called} takes ({', '.join(shown)})") from None


class Compiler:
    """A compiler of one text. `paths` are those that it reads, `bound` the names that the text itself gives values."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.paths: Paths = set()
        self.bound: set[str] = set()

    def place(self, node: nodes.Node) -> tuple[str, int]:
        """Return where a node begins in the text."""
        while inner := [getattr(node, name) for name in _FIRST.get(type(node), ()) if getattr(node, name)]:
            node = inner[0]
        return _source_at(self._text, (node.lineno or 1) - 1)

    def part(self, node: nodes.Node) -> Part:
        """Compile an expression."""
        place = self.place(node)
        try:
            return _at(place, self._expression(node))
        except Misuse as error:
            error.where = error.where or place
            raise

    def parts(self, several: Sequence[nodes.Node]) -> list[Part]:
        """Compile several expressions."""
        return [self.part(node) for node in several]

    def _expression(self, node: nodes.Node) -> Part:
        match node:
            case nodes.Const():
                if not fits(node.value):
                    raise Misuse("the number is too large to be worked with")
                return _constant(node.value)
            case nodes.Name() | nodes.Getattr() | nodes.Getitem():
                return self._path(node)
            case nodes.Call():
                return self._called(node)
            case nodes.Filter(node=nodes.Node() as value):
                values, named = self._arguments(node)
                return _function(node.name, [self.part(value), *values], named)
            case nodes.Test():
                return self._test(node)
            case nodes.Compare():
                return self._comparison(node)
            case nodes.CondExpr():
                test, then = self.part(node.test), self.part(node.expr1)
                otherwise = _constant(None) if node.expr2 is None else self.part(node.expr2)
                return lambda evaluation: (then if truth(test(evaluation)) else otherwise)(evaluation)
            case nodes.And() | nodes.Or():
                return self._either(node)
            case nodes.Not():
                operand = self.part(node.node)
                return lambda evaluation: not truth(operand(evaluation))
            case nodes.Neg() | nodes.Pos():
                return _call(UNARY["-" if isinstance(node, nodes.Neg) else "+"], [self.part(node.node)])
            case nodes.Concat():
                return _call(concatenate, self.parts(node.nodes))
            case nodes.List() | nodes.Tuple():
                items = self.parts(node.items)
                return lambda evaluation: [item(evaluation) for item in items]
            case nodes.Dict():
                return self._mapping(node)
            case nodes.BinExpr() if type(node) in _ARITHMETIC:
                return _call(BINARY[_ARITHMETIC[type(node)]], self.parts([node.left, node.right]))
        if isinstance(node, nodes.Pow):
            raise Misuse("** is not available; multiply instead")
        raise Misuse(f"{type(node).__name__} is not available here; do it in a step before")

    def _path(self, node: nodes.Node) -> Part:
        """Compile a name with everything that is read of it: `steps.search.output[0].title`."""
        links: list[nodes.Getattr | nodes.Getitem] = []
        while isinstance(node, nodes.Getattr | nodes.Getitem):
            links.append(node)
            node = node.node
        if isinstance(node, nodes.Name) and node.name == "null" and not links:
            return _constant(None)
        open_ended = not isinstance(node, nodes.Name) or node.name in self.bound
        fixed = [node.name] if isinstance(node, nodes.Name) and not open_ended else []
        called, result = "the value", None
        if isinstance(node, nodes.Name):
            called = name = node.name
            result = _at(self.place(node), lambda evaluation: evaluation.read(name))
        result = result or self.part(node)
        for link in reversed(links):
            key: Any = link.attr if isinstance(link, nodes.Getattr) else getattr(link.arg, "value", None)
            key = key if isinstance(key, str | int) else None
            open_ended = open_ended or not isinstance(key, str)
            fixed += [] if open_ended else [str(key)]
            result = _at(self.place(link), self._link(link, result, _shortened(called)))
            called += f".{key}" if isinstance(key, str) else f"[{'…' if key is None else key}]"
        if fixed:
            self.paths.add(tuple(fixed))
        return result

    def _link(self, link: nodes.Getattr | nodes.Getitem, container: Part, name: str) -> Part:
        if isinstance(link, nodes.Getitem) and isinstance(link.arg, nodes.Slice):
            ends = (link.arg.start, link.arg.stop, link.arg.step)
            given = [_constant(None) if end is None else self.part(end) for end in ends]
            return _call(cut, [container, *given])
        key = _constant(link.attr) if isinstance(link, nodes.Getattr) else self.part(link.arg)
        return lambda evaluation: look_up(container(evaluation), key(evaluation), name)

    def _arguments(self, node: nodes.Call | nodes.Filter | nodes.Test) -> tuple[list[Part], dict[str, Part]]:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise Misuse("* and ** are not available; name the values one by one")
        named = {str(pair.key): self.part(pair.value) for pair in node.kwargs}
        return self.parts(node.args), named

    def _called(self, node: nodes.Call) -> Part:
        values, named = self._arguments(node)
        if isinstance(node.node, nodes.Name) and node.node.name not in self.bound:
            return _function(node.node.name, values, named)
        if isinstance(node.node, nodes.Getattr):
            return _method(node.node.attr, self.part(node.node.node), values, named)
        raise Misuse("only the functions of the table can be called, such as range(…)")

    def _test(self, node: nodes.Test) -> Part:
        values, named = self._arguments(node)
        value = self.part(node.node)
        if node.name in ("defined", "undefined") and not values:
            found = _exists(value)
            return found if node.name == "defined" else lambda evaluation: not found(evaluation)
        if node.name not in TESTS or named:
            raise Misuse(f"there is no test {node.name!r:.60}; {known(node.name, {*TESTS, 'defined'})}")
        _check_arguments(node.name, TESTS[node.name], [None, value, *values], {})
        return _call(TESTS[node.name], [value, *values])

    def _comparison(self, node: nodes.Compare) -> Part:
        """Compile a chain of comparisons such as `1 < x <= 5`, which stops at the first that does not hold."""
        first = self.part(node.expr)
        tests = [(COMPARISONS[_COMPARED[operand.op]], self.part(operand.expr)) for operand in node.ops]

        def run(evaluation: Evaluation) -> bool:
            left = first(evaluation)
            for test, operand in tests:
                right = operand(evaluation)
                if not test(evaluation, left, right):
                    return False
                left = right
            return True

        return run

    def _either(self, node: nodes.And | nodes.Or) -> Part:
        left, right, stop_at = self.part(node.left), self.part(node.right), isinstance(node, nodes.Or)

        def run(evaluation: Evaluation) -> Any:
            value = left(evaluation)
            return value if truth(value) is stop_at else right(evaluation)

        return run

    def _mapping(self, node: nodes.Dict) -> Part:
        pairs = [(self.part(pair.key), self.part(pair.value)) for pair in node.items]

        def run(evaluation: Evaluation) -> dict[Any, Any]:
            result = {}
            for key, value in pairs:
                found = key(evaluation)
                if kind(found) not in SCALARS:
                    raise Misuse(f"{describe(found)} cannot be a key; use a text or a number")
                result[found] = value(evaluation)
            return result

        return run

    # Statements: the text, `{{ }}`, `{% if %}`, `{% for %}` and `{% set %}` of templates.

    def block(self, body: Sequence[nodes.Node]) -> Part:
        """Compile several statements, one after the other."""
        statements = [statement for node in body for statement in self._statements(node)]

        def run(evaluation: Evaluation) -> None:
            for statement in statements:
                statement(evaluation)

        return run

    def _statements(self, node: nodes.Node) -> Iterator[Part]:
        try:
            match node:
                case nodes.Output():
                    yield from map(self._output, node.nodes)
                case nodes.If():
                    yield _at(self.place(node.test), self._if(node))
                case nodes.For():
                    yield _at(self.place(node.iter), self._for(node))
                case nodes.Assign():
                    yield _at(self.place(node), self._set(node))
                case _:
                    tag = _TAGS.get(type(node), type(node).__name__.lower())
                    raise Misuse(f"{{% {tag} %}} is not available in templates; there are if, for and set")
        except Misuse as error:
            error.where = error.where or self.place(node)
            raise

    def _output(self, node: nodes.Node) -> Part:
        if isinstance(node, nodes.TemplateData):
            text = node.data
            return _at(self.place(node), lambda evaluation: evaluation.write(text))
        part = self.part(node)
        return _at(self.place(node), lambda evaluation: evaluation.put(part(evaluation)))

    def _if(self, node: nodes.If) -> Part:
        branches = [(self.part(each.test), self.block(each.body)) for each in (node, *node.elif_)]
        otherwise = self.block(node.else_)

        def run(evaluation: Evaluation) -> Any:
            for test, body in branches:
                if truth(test(evaluation)):
                    return body(evaluation)
            return otherwise(evaluation)

        return run

    def _set(self, node: nodes.Assign) -> Part:
        value = self.part(node.node)
        names = self._targets(node.target)

        def run(evaluation: Evaluation) -> None:
            evaluation.items(len(evaluation.local))
            evaluation.local = {**evaluation.local, **_unpacked(names, value(evaluation))}

        return run

    def _for(self, node: nodes.For) -> Part:
        if node.recursive:
            raise Misuse("a recursive loop is not available in templates; do it in a step before")
        values, outside = self.part(node.iter), set(self.bound)
        names = self._targets(node.target)
        test = None if node.test is None else self.part(node.test)
        self.bound.add("loop")
        body = self.block(node.body)
        self.bound = outside
        otherwise = self.block(node.else_)

        def run(evaluation: Evaluation) -> None:
            rounds = _rounds(evaluation, values(evaluation), names, test)
            outer = evaluation.local
            for index, found in enumerate(rounds):
                evaluation.charge(1)
                evaluation.items(len(outer))
                left = len(rounds) - index
                loop = {"index": index + 1, "index0": index, "first": not index, "last": left == 1}
                loop |= {"length": len(rounds), "revindex": left, "revindex0": left - 1}
                evaluation.local = {**outer, **found, "loop": loop}
                body(evaluation)
            evaluation.local = outer
            if not rounds:
                otherwise(evaluation)

        return run

    def _targets(self, target: nodes.Node) -> str | list[str]:
        """Return the name or names that are given values, and note that they are no longer those of the scope."""
        names = target.items if isinstance(target, nodes.Tuple) else [target]
        if not all(isinstance(each, nodes.Name) for each in names):
            misuse = Misuse("only plain names can be given a value")
            misuse.where = self.place(target)
            raise misuse
        found = [each.name for each in names if isinstance(each, nodes.Name)]
        self.bound.update(found)
        return found if isinstance(target, nodes.Tuple) else found[0]


def _rounds(
    evaluation: Evaluation, values: Any, names: str | list[str], test: Part | None
) -> list[dict[str, Any]]:
    """Return what each round of a loop gives to its names."""
    items = elements(values)
    evaluation.new_list(size(values))
    rounds, outer = [], evaluation.local
    for value in items:
        found = _unpacked(names, exact(value))
        if test is not None:
            evaluation.items(len(outer))
            evaluation.local = {**outer, **found}
        if test is None or truth(test(evaluation)):
            rounds.append(found)
    evaluation.local = outer
    return rounds


def _unpacked(names: str | list[str], value: Any) -> dict[str, Any]:
    if isinstance(names, str):
        return {names: value}
    if kind(value) != "list" or size(value) != len(names):
        raise Misuse(f"{', '.join(names)} need a list of {len(names)}, not {describe(value)}")
    return dict(zip(names, map(exact, elements(value)), strict=True))
