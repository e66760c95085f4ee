"""`when:` conditions: Python expressions over plain data, of which nothing is run as Python."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.flows.language.evaluation import Evaluation, Part, check_shape
from holdfast.flows.language.expression_syntax import Reader, shortened
from holdfast.flows.language.plain import Misuse

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
