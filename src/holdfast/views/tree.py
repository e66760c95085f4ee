"""Any value as indented lines: complete, obeyed by no terminal, and never the same lines for two values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.codec import Unknown
from holdfast.errors import CodecError
from holdfast.views.plain import MAX_DEPTH

_MOST_BITS = 14_000
_PLAIN = (type(None), bool, int, float, str)
_WORDS = ("null", "true", "false")


def tree_lines(value: Any, indent: str = "") -> list[str]:
    """Return a value as indented lines; what is not plain data shows its type. `CodecError` if nested too deep."""
    return list(_lines(value, indent, 0))


def _lines(value: Any, indent: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise CodecError(f"it is nested more than {MAX_DEPTH} deep, which is too deep to be shown")
    for label, item in _pairs(value):
        mark, inner = _opened(item)
        if inner is not None:
            yield f"{indent}{label}{mark}"
            yield from _lines(inner, f"{indent}  ", depth + 1)
        elif type(item) is str and "\n" in item:
            yield f"{indent}{label} |"
            yield from (f"{indent}  {text_line(line)}" for line in item.split("\n"))
        else:
            yield f"{indent}{label} {scalar(item)}"


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{_key(key)}:", item) for key, item in value.items())
    else:
        yield from (("-", item) for item in value)


def _opened(value: Any) -> tuple[str, Any]:
    """What is inside a value that has parts, and how its type is marked; nothing inside of what is one line."""
    kind = type(value)
    if kind in _PLAIN or (kind in (dict, list, tuple) and not value):
        return "", None
    if kind in (dict, list):
        return "", value
    if kind is Unknown:
        return f" (unknown type) {scalar(value.type_name)}", [value.data]
    mark = f" ({type_name(value)})"
    if isinstance(value, (set, frozenset)):
        return (mark, sorted(value, key=repr)) if value else ("", None)
    if hasattr(value, "_fields"):
        return mark, dict(zip(value._fields, value, strict=True))
    if isinstance(value, (Mapping, list, tuple)):
        return (mark, dict(value) if isinstance(value, Mapping) else list(value)) if value else ("", None)
    if dataclasses.is_dataclass(value):
        return mark, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        return f"{mark} {getattr(value, 'dtype', '')}", [value.tolist()]
    return "", None


def _key(key: Any) -> str:
    if type(key) is not str:
        return scalar(key, typed=True)
    if key.isidentifier() and key.isprintable():
        return key
    if any(char in key for char in ':"\\') or not key.isprintable() or key != scalar(key):
        text = key.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{"".join(map(_char, text))}"'
    return key


def scalar(value: Any, typed: bool = False) -> str:
    """Return what has no parts on one line; a text that could be taken for something else is quoted."""
    kind = type(value)
    if kind is str:
        text = escaped(value)
        if text != value:
            return f'\\"{text}"'
        return f'"{text}"' if _is_ambiguous(text) else text
    if kind in _PLAIN:
        text = "null" if value is None else str(value).lower() if kind is bool else _number(value)
    elif kind in (dict, list, tuple) and not value:
        return str(value)
    else:
        try:
            text = escaped(repr(value))
        except ValueError:
            raise CodecError(f"a {type_name(value)} is too large to be shown") from None
        typed = True
    return f"({type_name(value)}) {text}" if typed else text


def _number(value: float) -> str:
    return hex(value) if isinstance(value, int) and value.bit_length() > _MOST_BITS else repr(value)


def _is_ambiguous(text: str) -> bool:
    if not text or text != text.strip() or text in _WORDS or text[0] in '"({[\\|' or text[:1] == "-":
        return True
    try:
        float(text)
    except ValueError:
        return text.lstrip("-").startswith("0x")
    return True


def text_line(line: str) -> str:
    """Return a line of a longer text behind a bar, or behind a backslash if characters of it are escaped."""
    text = escaped(line)
    return f"| {text}" if text == line else f"\\ {text}"


def escaped(text: str) -> str:
    """Return text with every character as `\\x1b` that does not show as itself: controls, directions, halves.

    A text that has such characters has its backslashes doubled.
    """
    if text.isprintable() or text.replace("\t", "").isprintable():
        return text
    return "".join("\\\\" if char == "\\" else char if char == "\t" else _char(char) for char in text)


def _char(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char.encode("unicode_escape").decode()


def type_name(value: Any) -> str:
    """Return the name of a value's type, with its module unless it is built in."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
