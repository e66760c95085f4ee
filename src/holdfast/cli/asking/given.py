"""What people write on the command line for inputs, answers and updates, and the values they mean."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.errors import AnswerRejected


def read_inputs(file: str | None, pairs: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The inputs of `--inputs FILE` and `-i`: typed ones, and those whose text is still to be read by type.

    A pair is `name=text`, `name=@file` (the file's text) or `name:=json`. Pairs win over the file.
    """
    typed = _read_file(file) if file is not None else {}
    text: dict[str, str] = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name.rstrip(":"):
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE (or NAME=@FILE, or NAME:=JSON)")
        plain_name = name.removesuffix(":")
        typed.pop(plain_name, None)
        text.pop(plain_name, None)
        if name.endswith(":"):
            typed[plain_name] = _json(value, pair)
        else:
            text[plain_name] = _text_of(Path(value[1:]), pair) if value.startswith("@") else value
    return typed, text


def _read_file(file: str) -> dict[str, Any]:
    text = sys.stdin.read() if file == "-" else _text_of(Path(file), f"--inputs {file}")
    found = _json(text, f"--inputs {file}")
    if not isinstance(found, dict):
        raise click.BadParameter(f"--inputs {file} must hold a JSON object, not {type(found).__name__}")
    return found


def _text_of(path: Path, where: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{where}: {path} cannot be read: {error}") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{where}: not JSON: {error}") from None


def value_of(text: str) -> Any:
    """The value that a text means: JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_pairs(pairs: Iterable[str], what: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping."""
    found = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name:
            raise click.BadParameter(f"{what} {pair!r} is not of the form NAME=VALUE")
        found[name] = value
    return found


def fitting(text: str, schema: Mapping[str, Any] | None) -> Any:
    """The value that a text means where answers must fit a schema; one that fits no way is refused."""
    from holdfast.engine.answers import misfit

    value = value_of(text)
    if not schema:
        return value
    is_boolean = schema.get("type") == "boolean" and "enum" not in schema
    word = text.strip().casefold()
    words = [_WORDS[word]] if is_boolean and word in _WORDS else []
    candidates = [value, text, *_alike(text, schema.get("enum", ())), *words]
    for candidate in candidates:
        if misfit(candidate, schema) is None:
            return candidate
    if is_boolean:
        raise AnswerRejected(f"the answer must be true or false (yes and no will do), not {text!r:.80}")
    raise AnswerRejected(str(misfit(value, schema)))


_WORDS = {
    **dict.fromkeys(("true", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "no", "n", "off", "0"), False),
}
"""What people write for true and false."""


def _alike(text: str, choices: Iterable[Any]) -> list[Any]:
    """The choices that differ from a text only in case."""
    folded = text.strip().casefold()
    return [choice for choice in choices if str(choice).casefold() == folded]
