"""Functions, classes and modules by their source: comments, layout, docstrings left out."""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import opcode
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_LONG = 1_000_000
"""Files of more bytes than this are not read; byte code tells their functions apart."""

_IGNORED = frozenset({"ctx", "type_comment", "kind", "annotation", "returns", "type_params", "simple"})

_IMPORT = opcode.opmap["IMPORT_NAME"]

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class _Module(NamedTuple):
    """A source file: the code that it compiles to, and where its functions are."""

    codes: frozenset[types.CodeType]
    functions: dict[tuple[str, int], list[Defined]]
    classes: dict[str, list[ast.ClassDef]]
    tree: ast.Module


class Import(NamedTuple):
    """An import statement: `from module import names`, `level` dots before it."""

    level: int
    module: str
    names: tuple[str, ...]


class Written(NamedTuple):
    """What a piece of source does, and what it names that is not its own."""

    text: str
    names: frozenset[str]
    attributes: frozenset[str]
    imports: tuple[Import, ...]


@functools.lru_cache(maxsize=2048)
def source_of(code: types.CodeType) -> str | None:
    """Return a function's source in a normal form that is the same in all versions of Python.

    Return `None` if there is no source, or if the source no longer matches the function because it was edited.
    """
    try:
        node = _node_of(code)
        return None if node is None else _own(node)
    except RecursionError:
        return None


@functools.lru_cache(maxsize=2048)
def imports_of(code: types.CodeType) -> tuple[Import, ...]:
    """Return the imports within a function, as far as its source tells."""
    if not _imports(code):
        return ()
    try:
        node = _node_of(code)
    except RecursionError:
        return ()
    return () if node is None else tuple(_imported(node))


def _imports(code: types.CodeType) -> bool:
    """Return whether code imports anything, or code within it does."""
    if _IMPORT in code.co_code[::2]:
        return True
    return any(_imports(each) for each in code.co_consts if isinstance(each, types.CodeType))


def _node_of(code: types.CodeType) -> Defined | None:
    module = _module(code.co_filename)
    if module is None or code not in module.codes:
        return None
    found = module.functions.get((code.co_name, code.co_firstlineno), [])
    return found[0] if len(found) == 1 else _meant(code, found)


@functools.lru_cache(maxsize=512)
def class_written(kind: type, file: str) -> Written | None:
    """Return what a class is by its source in a file; `None` where that is not known, as for functions."""
    methods = [each.__code__ for each in vars(kind).values() if isinstance(each, types.FunctionType)]
    codes = [code for code in methods if code.co_filename == file]
    try:
        module = _module(file)
        if module is None or not module.codes.issuperset(codes):
            return None
        found = module.classes.get(kind.__qualname__, [])
        if len(found) > 1:
            lines = {getattr(kind, "__firstlineno__", 0), *(code.co_firstlineno for code in codes)}
            found = [
                node
                for node in found
                if any(_first(node) <= line <= (node.end_lineno or 0) for line in lines)
            ]
        return _class(found[0]) if len(found) == 1 else None
    except RecursionError:
        return None


def module_written(file: str) -> Written | None:
    """Return what a module is by its source."""
    try:
        module = _module(file)
        return None if module is None else _whole(module.tree)
    except RecursionError:
        return None


@functools.lru_cache(maxsize=512)
def _class(node: ast.ClassDef) -> Written:
    parts = [_dump(node.decorator_list), _dump(node.bases), _dump(node.keywords), _members(node.body)]
    return _written(node, " ".join(parts))


@functools.lru_cache(maxsize=64)
def _whole(node: ast.Module) -> Written:
    return _written(node, _members(node.body))


def _members(body: list[ast.stmt]) -> str:
    """Return the body of a class: what its fields are annotated with counts, texts that stand alone do not."""
    parts = []
    for part in body:
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            continue
        annotated = _dump(part.annotation) if isinstance(part, ast.AnnAssign) else ""
        nested = _class(part).text if isinstance(part, ast.ClassDef) else ""
        parts.append(
            f"{annotated} {part.name if isinstance(part, ast.ClassDef) else ''}{nested or _dump(part)}"
        )
    return "; ".join(parts)


def _written(node: ast.AST, text: str) -> Written:
    inside = list(ast.walk(node))
    names = frozenset(each.id for each in inside if isinstance(each, ast.Name))
    attributes = frozenset(each.attr for each in inside if isinstance(each, ast.Attribute))
    return Written(text, names, attributes | names, tuple(_imported(node)))


def _imported(node: ast.AST) -> Iterator[Import]:
    for each in ast.walk(node):
        if isinstance(each, ast.ImportFrom):
            yield Import(each.level, each.module or "", tuple(alias.name for alias in each.names))
        elif isinstance(each, ast.Import):
            yield from (Import(0, alias.name, ()) for alias in each.names)


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
        tree = _tree(source)
        codes = frozenset(_codes(compile(tree, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return None
    functions: dict[tuple[str, int], list[Defined]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            functions.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.setdefault((node.name, _first(node)), []).append(node)
    classes: dict[str, list[ast.ClassDef]] = {}
    for name, found in _classes(tree, ""):
        classes.setdefault(name, []).append(found)
    return _Module(codes, functions, classes, tree)


def _tree(source: bytes) -> ast.Module:
    """Parse a module. Some versions of CPython raise SystemError if another thread parses at the same time."""
    for _ in range(10):
        with suppress(SystemError):
            return ast.parse(source)
    return ast.parse(source)


def _first(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes in a piece of source, by their full names."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            yield f"{prefix}{each.name}", each
            yield from _classes(each, f"{prefix}{each.name}.")
        elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _classes(each, f"{prefix}{each.name}.<locals>.")
        elif isinstance(each, ast.stmt):
            yield from _classes(each, prefix)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _meant(code: types.CodeType, found: list[Defined]) -> Defined | None:
    """Return the lambda, of several on one line, whose body is at the position of the code's return instruction."""
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
    """Return a function without its name, decorators and defaults: these count as the values that they are."""
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
    """Return a syntax tree as text without empty fields, which differ between versions of Python."""
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
    """Yield the pieces of a formatted text; versions of Python differ in how they cut the plain ones."""
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


# Functions by their byte code, for code that has no source at hand.


PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_LOAD, _STORE, _EXTENDED = (opcode.opmap[name] for name in ("LOAD_GLOBAL", "STORE_GLOBAL", "EXTENDED_ARG"))
_A_FUNCTION = 0x1
"""The flag of code that is a function's, and not a class's or a module's."""


def digest(text: str) -> str:
    """Return a short text that differs for different texts."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def byte_code(code: types.CodeType) -> tuple[Any, ...]:
    """Return what a piece of code does, without its docstrings; only comparable within one version of Python."""
    constants = list(code.co_consts)
    documented = code.co_flags & _A_FUNCTION and not code.co_name.startswith("<")
    if documented and constants and isinstance(constants[0], str):
        constants[0] = None
    inner = [byte_code(item) if isinstance(item, types.CodeType) else _simple(item) for item in constants]
    return code.co_code.hex(), tuple(inner), code.co_names, code.co_varnames, code.co_freevars


@functools.lru_cache(maxsize=2048)
def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the names of its module that a piece of code reads, but does not set itself."""
    read: set[str] = set()
    set_here: set[str] = set()
    raw, names, extended = code.co_code, code.co_names, 0
    for place in range(0, len(raw), 2) if names else ():
        operation, argument = raw[place], raw[place + 1] | extended
        extended = argument << 8 if operation == _EXTENDED else 0
        if operation == _LOAD:
            read.add(names[argument >> 1])
        elif operation == _STORE:
            set_here.add(names[argument])
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            read |= globals_of(constant)
    return frozenset(read - set_here)


@functools.lru_cache(maxsize=2048)
def names_of(code: types.CodeType) -> frozenset[str]:
    """Return all names that a piece of code uses, those of attributes too."""
    inner = (names_of(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inner)


def _simple(value: Any) -> str:
    if isinstance(value, (str, int, float, bool, bytes, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({','.join(map(_simple, value))})"
    if isinstance(value, frozenset):
        return f"frozenset({','.join(sorted(map(_simple, value)))})"
    if isinstance(value, types.FunctionType):
        return repr(byte_code(value.__code__))
    return type(value).__qualname__
