"""Functions told apart by their source: comments, layout, docstrings and annotations left out."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LONG = 1_000_000
"""Files of more bytes than this are not read; byte code tells their functions apart."""

_IGNORED = frozenset({"ctx", "type_comment", "kind", "annotation", "returns", "type_params", "simple"})

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class _Module(NamedTuple):
    """A source file: the code that it compiles to, and where its functions are."""

    codes: frozenset[types.CodeType]
    functions: dict[tuple[str, int], list[Defined]]


@functools.lru_cache(maxsize=2048)
def source_of(code: types.CodeType) -> str | None:
    """What a function does by its source, in a form that all versions of Python agree on.

    `None` where there is no source, or where it is not what the function was made of: it may have been edited
    since.
    """
    try:
        module = _module(code.co_filename)
        if module is None or code not in module.codes:
            return None
        found = module.functions.get((code.co_name, code.co_firstlineno), [])
        node = found[0] if len(found) == 1 else _meant(code, found)
        return None if node is None else _own(node)
    except RecursionError:
        return None


def _module(file: str) -> _Module | None:
    try:
        facts = Path(file).stat()
    except (OSError, ValueError):
        lines = linecache.getlines(file)
        return _parsed(file, "".join(lines).encode(), 0) if lines else None
    if facts.st_size > _LONG:
        return None
    return _of_file(file, facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(maxsize=64)
def _of_file(file: str, modified: int, size: int) -> _Module | None:
    try:
        return _parsed(file, Path(file).read_bytes(), size)
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _parsed(file: str, source: bytes, size: int) -> _Module | None:
    try:
        tree = ast.parse(source)
        codes = frozenset(_codes(compile(tree, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return None
    functions: dict[tuple[str, int], list[Defined]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            functions.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions.setdefault((node.name, first), []).append(node)
    return _Module(codes, functions)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _meant(code: types.CodeType, found: list[Defined]) -> Defined | None:
    """Of several lambdas in one line the one that this is the code of: where it returns, its body is."""
    places = [place for place in code.co_positions() if None not in place]
    for node in found:
        if isinstance(node, ast.Lambda):
            body = node.body
            if places and places[-1] == (
                body.lineno,
                body.end_lineno,
                body.col_offset,
                body.end_col_offset,
            ):
                return node
    return None


def _own(node: Defined) -> str:
    """A function without its name, decorators and defaults: these count as the values that they are."""
    given = node.args
    kinds = (given.posonlyargs, given.args, [given.vararg], given.kwonlyargs, [given.kwarg])
    names = [[argument.arg for argument in kind if argument is not None] for kind in kinds]
    body = [node.body] if isinstance(node, ast.Lambda) else _undocumented(node.body)
    return f"{type(node).__name__}({names}, {[_dump(part) for part in body]})"


def _undocumented(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body


def _dump(node: object) -> str:
    """A syntax tree as text, without what is empty: that differs between versions of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__}:{node!r}"
    if isinstance(node, ast.JoinedStr):
        return f"JoinedStr({','.join(_pieces(node))})"
    parts = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            value = _undocumented(value)
        if name not in _IGNORED and value is not None and value != []:
            parts.append(f"{name}={_dump(value)}")
    if isinstance(node, ast.Constant) and not parts:
        parts.append("None")
    return f"{type(node).__name__}({','.join(parts)})"


def _pieces(text: ast.JoinedStr) -> Iterator[str]:
    """The pieces of a formatted text; some versions of Python cut the plain ones more often, or leave empty ones."""
    plain = ""
    for piece in text.values:
        if isinstance(piece, ast.Constant):
            plain += str(piece.value)
            continue
        if plain:
            yield repr(plain)
        plain = ""
        yield _dump(piece)
    if plain:
        yield repr(plain)
