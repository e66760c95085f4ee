"""Functions of texts for expressions and templates. Results are measured before they are made."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from typing import Any

from holdfast.flows.language.list_functions import field_of, items_of
from holdfast.flows.language.plain import (
    MAX_LENGTH,
    Budget,
    Misuse,
    describe,
    entries,
    kind,
    size,
    text,
    truth,
    whole,
)
from holdfast.flows.language.writing import as_json, as_text


def to_text(budget: Budget, value: Any) -> str:
    return as_text(budget, value)


def recased(change: Callable[[str], str]) -> Callable[..., Any]:
    def run(budget: Budget, value: Any) -> str:
        budget.new_text(3 * size(text(value)) if not text(value).isascii() else size(value))
        return change(text(value))

    return run


def strip(budget: Budget, value: Any, characters: Any = None) -> str:
    budget.new_text(size(text(value)))
    if characters is None:
        return text(value).strip()
    # Each character that is looked at is searched among these.
    unwanted = "".join(set(text(characters)))
    budget.characters(size(characters) + size(value) * len(unwanted))
    return text(value).strip(unwanted)


def split(budget: Budget, value: Any, separator: Any = None, most: Any = -1) -> list[str]:
    budget.new_text(size(text(value)))
    if separator is None:
        budget.new_list(size(value) // 2)
    elif not text(separator):
        raise Misuse("split needs a separator that is not empty, or none at all to split at white space")
    else:
        budget.new_list(text(value).count(text(separator)) + 1)
    return text(value).split(None if separator is None else text(separator), whole(most))


def lines(budget: Budget, value: Any) -> list[str]:
    budget.new_text(size(text(value)))
    budget.new_list(size(value))
    return text(value).splitlines()


def join(budget: Budget, values: Any, separator: Any = "", attribute: Any = None) -> str:
    texts = [as_text(budget, item) for item in map(field_of(budget, attribute), items_of(budget, values))]
    budget.new_text(sum(map(len, texts)) + len(texts) * size(text(separator)))
    return text(separator).join(texts)


def replace(budget: Budget, value: Any, old: Any, new: Any) -> str:
    budget.characters(size(text(value)))
    times = text(value).count(text(old))
    budget.new_text(size(value) + times * max(0, size(text(new)) - size(old)))
    return text(value).replace(text(old), text(new))


def starts_with(budget: Budget, value: Any, beginning: Any) -> bool:
    budget.characters(size(text(beginning)))
    return text(value).startswith(text(beginning))


def ends_with(budget: Budget, value: Any, ending: Any) -> bool:
    budget.characters(size(text(ending)))
    return text(value).endswith(text(ending))


def truncate(budget: Budget, value: Any, length: Any = 255, killwords: Any = False, end: Any = "…") -> str:
    if size(text(value)) <= whole(length):
        return text(value)
    kept = max(0, whole(length) - size(text(end)))
    budget.new_text(kept + size(end))
    cut = text(value)[:kept]
    return (cut if truth(killwords) else cut.rsplit(" ", 1)[0]) + text(end)


def indent(budget: Budget, value: Any, width: Any = 4, first: Any = False) -> str:
    margin = text(width) if kind(width) == "text" else spaces(budget, width)
    budget.characters(size(text(value)))
    budget.new_text(size(value) + (text(value).count("\n") + 1) * len(margin))
    head, *rest = text(value).split("\n")
    indented = [margin + line if line else line for line in rest]
    return "\n".join([margin + head if truth(first) else head, *indented])


def spaces(budget: Budget, width: Any) -> str:
    budget.new_text(max(0, whole(width)))
    return " " * whole(width)


def to_json(budget: Budget, value: Any, indent: Any = None) -> str:
    return as_json(budget, value, None if indent is None else max(0, min(16, whole(indent))))


def from_json(budget: Budget, value: Any) -> Any:
    if size(text(value)) > MAX_LENGTH:
        raise Misuse(f"the JSON has more than {MAX_LENGTH:,} characters; read it in a python step")
    budget.characters(8 * size(value))
    try:
        return json.loads(text(value))
    except RecursionError:
        raise Misuse("the JSON is nested too deeply") from None
    except ValueError as error:
        raise Misuse(f"{describe(value)} is not JSON: {error}") from None


def url_quoted(budget: Budget, value: Any) -> str:
    if kind(value) == "mapping":
        each = [f"{url_quoted(budget, key)}={url_quoted(budget, item)}" for key, item in entries(value)]
        return join(budget, each, "&")
    found = as_text(budget, value)
    budget.new_text(len(found) if found.isascii() and found.isalnum() else 12 * len(found))
    try:
        return urllib.parse.quote(found, safe="")
    except UnicodeEncodeError:
        raise Misuse(f"{describe(value)} has half of a character, which has no place in an address") from None
