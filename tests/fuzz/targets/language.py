"""Expressions and templates: bounded, never more than plain data, and what Python says where Python says it too."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from holdfast.workflows.language.functions import FUNCTIONS
from holdfast.workflows.language.templates import TemplateError, compile_expression, compile_template
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.target import Check, Target, Wrong

SCOPE: dict[str, Any] = {
    "a": 3, "b": -2.5, "c": "text", "d": [1, 2, [3, "x"]], "e": {"k": 1, "list": [True, None], "é": "\ud800"},
    "n": None, "t": True, "z": 0, "big": 2**200, "long": "ab" * 2000, "many": list(range(3000)), "nan": math.nan,
    "steps": {"one": {"output": {"count": 7, "text": "a b"}}}, "odd": object(), "items": {"items": 1, "__class__": 2},
}  # fmt: skip

_NAMES = (
    *SCOPE,
    "true",
    "null",
    "missing",
    "steps.one.output.count",
    "d[0]",
    "e['k']",
    "e.list",
    "c[1:]",
    "d[-1][0]",
)
_LITERALS = (
    "0",
    "1",
    "-1",
    "2.5",
    "1e308",
    "'x'",
    '"é"',
    "''",
    "[]",
    "{}",
    "[1, 2]",
    "{'a': 1}",
    "10**9",
    "9" * 70,
    "1_0",
    "0x1f",
    "1j",
    "b'x'",
    "...",
    "f'{a}'",
)
_SHARED_BINARY = (
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "in",
    "not in",
    "and",
    "or",
)
_BINARY = (*_SHARED_BINARY, "is", "**", "|", "&", "<<", "~", "@", ":=")
_FUNCTIONS = (*FUNCTIONS, "default", "d", "defined", "eval", "__import__", "open")
_FILTERS = (
    *FUNCTIONS,
    "default('x')",
    "safe",
    "nope",
    "join(', ')",
    "truncate(3)",
    "round(2)",
    "tojson",
    "indent(2)",
    "replace('a', 'b')",
)


_NOTHING, _MUCH = ("[]", "''", "c", "d", "0", "big"), ("9" * 19, "9" * 70, "big", "-big", "many", "1e308")


def _expression(rng: Random, depth: int = 0) -> str:
    kind = rng.randrange(14 if depth < 4 else 5)
    if kind < 3:
        return rng.choice(_NAMES)
    if kind < 5:
        return rng.choice(_LITERALS)
    if rng.random() < 0.02:
        return f"{rng.choice(_NOTHING)} * {rng.choice(_MUCH)}"
    one = _expression(rng, depth + 1)
    if kind < 8:
        return f"{one} {rng.choice(_BINARY)} {_expression(rng, depth + 1)}"
    if kind == 8:
        return f"({one})"
    if kind == 9:
        return f"{rng.choice(('not ', '-', '+', '~', '*'))}{one}"
    if kind == 10:
        return f"{one} if {_expression(rng, depth + 1)} else {_expression(rng, depth + 1)}"
    if kind == 11:
        given = ", ".join(_expression(rng, depth + 2) for _ in range(rng.randrange(3)))
        return f"{rng.choice(_FUNCTIONS)}({given})"
    if kind == 12:
        return f"{one}.{rng.choice(('k', 'upper', 'items', '__class__', 'format', 'output'))}" + rng.choice(
            ("", "()", "(a)")
        )
    return f"{one}[{_expression(rng, depth + 1)}{rng.choice(('', ':', ':2', '::-1'))}]"


def expression_text(rng: Random) -> bytes:
    """An expression, with what is refused in it too."""
    text = _expression(rng)
    return (f"{{{{ {text} }}}}" if rng.random() < 0.1 else text).encode("utf-8", "surrogatepass")


def expressions() -> Check:
    """Any text as a condition: refused with its place, or evaluated to plain data within its bounds."""

    def check(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape" if b"\xed" in data else "replace")
        try:
            expression = compile_expression(text)
            expression.paths
            found = expression.value(SCOPE)
        except TemplateError as error:
            if not 1 <= error.column <= len(text) + 1:
                raise Wrong(f"column {error.column} of {text!r}") from error
            raise
        if type(found) not in (type(None), bool, int, float, str, list, dict, tuple, object):
            raise Wrong(f"{text!r} is {found!r}")
        return type(found).__name__

    return check


_SHARED = {
    "a": 3,
    "b": -2.5,
    "c": "text",
    "d": [1, 2, 3],
    "e": {"k": 1, "x": [0]},
    "n": None,
    "t": True,
    "f": False,
    "z": 0,
}
_SHARED_LEAVES = (
    *_SHARED,
    "0",
    "1",
    "7",
    "2.5",
    "-3",
    "'tex'",
    "''",
    "'k'",
    "[1]",
    "[]",
    "{}",
    "True",
    "None",
    "1e308",
    "9999999999",
)


def _shared(choices: Choices, depth: int = 0) -> str:
    kind = choices.below(10 if depth < 4 else 4)
    if kind < 3:
        return choices.of(_SHARED_LEAVES)
    if kind == 3:
        return choices.of(("d[0]", "e['k']", "d[-1]", "c[1]", "c[1:3]", "d[::2]", "e['x'][0]"))
    one = _shared(choices, depth + 1)
    if kind < 7:
        return f"({one}) {choices.of(_SHARED_BINARY)} ({_shared(choices, depth + 1)})"
    if kind == 7:
        return f"{choices.of(('not', '-', '+'))} ({one})"
    if kind == 8:
        return f"({one}) if ({_shared(choices, depth + 1)}) else ({_shared(choices, depth + 1)})"
    return f"[{one}, {_shared(choices, depth + 1)}]"


_OWN_LIMITS = (
    "limit is",
    "too large",
    "too many",
    "% does not fill",
    "a whole number is needed",
    "have an order",
    "can be worked with",
)


def arithmetic() -> Check:
    """Arithmetic, comparisons and choices on plain data: what Python's own `eval` says, or both refuse."""

    def check(data: bytes) -> str:
        text = _shared(Choices(data))
        theirs: Any = None
        try:
            theirs = eval(text, {"__builtins__": {}}, dict(_SHARED))
            refusal = ""
        except Exception as error:
            refusal = type(error).__name__
        try:
            ours = compile_expression(text).value(_SHARED)
        except TemplateError as error:
            if not refusal and not any(words in str(error) for words in _OWN_LIMITS):
                raise Wrong(f"{text} is {theirs!r}, and is refused: {error}") from error
            return f"refused as {refusal}"
        if refusal == "OverflowError":
            return "more often than Python can count"  # Nothing is nothing all the same.
        if refusal or repr(ours) != repr(theirs):
            raise Wrong(f"{text} is {theirs!r} {refusal}, not {ours!r}")
        return type(ours).__name__

    return check


_BITS = ("text ", "\n", "{{ ", " }}", "{% if ", "{% elif ", "{% else %}", "{% endif %}", "{% for i in ",
    "{% for k, v in e.items() %}", " %}", "{% endfor %}",
         "{# ", " #}", "{%- ", " -%}", "{{- ", "i", "loop.index", "loop.last", "{% set x = ", "{% raw %}",
         "{% endraw %}", "{% include 'x' %}", "{% macro m() %}", "é", "\\", "{", "}", "%}", "{{'{{'}}")  # fmt: skip


_TESTS = ("defined", "none", "string", "odd", "in d", "mapping", "divisibleby 2")


def template_text(rng: Random) -> bytes:
    """A template: mostly whole blocks, sometimes loose ends."""
    out = []
    for _ in range(1 + rng.randrange(5)):
        kind = rng.randrange(7)
        inner = _expression(rng, 2)
        if kind < 2:
            out.append(f"{{{{ {inner} }}}}")
        elif kind == 2:
            out.append(f"{{{{ {inner} | {rng.choice(_FILTERS)} }}}}")
        elif kind == 3:
            out.append(f"{{% if {inner} %}}{rng.choice(_BITS)}{{% else %}}{{{{ a }}}}{{% endif %}}")
        elif kind == 4:
            out.append(f"{{% for i in {inner} %}}{{{{ i }}}}{rng.choice(_BITS)}{{% endfor %}}")
        elif kind == 5:
            out.append(f"{{{{ {inner} is {rng.choice(_TESTS)} }}}}")
        else:
            out.append(rng.choice(_BITS) + rng.choice(_BITS))
    return "".join(out).encode("utf-8", "surrogatepass")


def templates() -> Check:
    """Any text as a template: refused with its place, or written out within its bounds."""

    def check(data: bytes) -> str:
        text = data.decode("utf-8", "replace")
        try:
            template = compile_template(text)
            template.paths
            found = template.render(SCOPE)
        except TemplateError as error:
            if error.line < 1 or error.column < 1 or error.line > text.count("\n") + text.count("\r") + 2:
                raise Wrong(f"line {error.line}, column {error.column} of {text!r}") from error
            raise
        if not isinstance(found, str) or len(found) > 1_100_000:
            raise Wrong(f"{text!r} is {found!r:.80}")
        if template.is_plain and found != text:
            raise Wrong(f"{text!r} has nothing to fill in, and is {found!r}")
        return f"text {template.is_plain} {min(3, len(found))}"

    return check


_WORDS = tuple(
    word.encode()
    for word in (*_BINARY, *_NAMES, *_LITERALS, *_FUNCTIONS, "{{", "}}", "lambda: 0", "__class__", "yield")
)

TARGETS = [
    Target(
        "expressions",
        expressions,
        (TemplateError,),
        make=expression_text,
        words=_WORDS,
        share=250,
        longest=600,
        fresh=0.5,
        seeds=lambda: [b"steps.one.output.count > 3 and not t", b"len(d) == 2"],
    ),
    Target("arithmetic", arithmetic, (), make=random_choices, share=250, longest=200, fresh=0.6),
    Target(
        "templates",
        templates,
        (TemplateError,),
        make=template_text,
        words=tuple(map(str.encode, _BITS)),
        share=120,
        longest=800,
        fresh=0.5,
        seeds=lambda: [b"{% for i in d %}{{ i }}, {% endfor %}", b"{{ c | upper }}"],
    ),
]
