"""What people write on the command line for inputs, answers and updates, and the values they mean."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import AnswerRejected

if TYPE_CHECKING:
    from holdfast.engine.outcome import Pause


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
    candidates = [value, text, *_alike(text, schema.get("enum", ()))]
    for candidate in candidates:
        if misfit(candidate, schema) is None:
            return candidate
    raise AnswerRejected(str(misfit(value, schema)))


def _alike(text: str, choices: Iterable[Any]) -> list[Any]:
    """The choices that differ from a text only in case."""
    folded = text.strip().casefold()
    return [choice for choice in choices if str(choice).casefold() == folded]


def read_answers(texts: Sequence[str], pauses: Sequence[Pause]) -> dict[str, Any]:
    """Answers by the id of their pause, from `VALUE` or `NAME=VALUE` texts; each is checked.

    A text belongs to a name if what stands before its first `=` is the name or the id of a pause.
    """
    waiting = [pause for pause in pauses if pause.kind not in ("before", "after")]
    found: dict[str, Any] = {}
    for text in texts:
        pause, value = _addressed(text, waiting)
        try:
            found[pause.id] = fitting(value, pause.schema)
        except AnswerRejected as error:
            raise AnswerRejected(f"{pause.name!r}: {error}") from None
    return found


def _addressed(text: str, waiting: Sequence[Pause]) -> tuple[Pause, str]:
    name, mark, value = text.partition("=")
    named = [pause for pause in waiting if name in (pause.id, pause.name)] if mark else []
    if len(named) == 1:
        return named[0], value
    if named:
        ids = ", ".join(repr(pause.id) for pause in named)
        raise AnswerRejected(f"several pauses are named {name!r}; answer by id: {ids}")
    if len(waiting) == 1:
        return waiting[0], text
    known = ", ".join(repr(pause.name) for pause in waiting)
    if not waiting:
        raise AnswerRejected("the run waits for no answer; resume it without one")
    raise AnswerRejected(f"{text!r} names none of the questions; write NAME=VALUE, the names are {known}")
