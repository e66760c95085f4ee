"""Plain data as expressions and templates see it: kinds, bounds, comparison, and text and JSON forms.

Only null, booleans, numbers, texts, lists, tuples and mappings are ever looked into, and always by the
methods of the built-in types. Any other object may be handed on, but nothing of it is called or read.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.errors import MOST_LOOKED_AT, HoldfastError, suggestion

MAX_STEPS = 1_000_000
"""The cost that one evaluation may have. Reading a value costs 1; many values or long texts cost in proportion."""
MAX_LENGTH = 1_000_000
"""The most characters or items of any value that is made."""
MAX_PARTS_MADE = 1_000_000
"""The most parts (items, keys and values, at any depth) of the values of one field of a step together."""
MAX_CHARACTERS_MADE = 32_000_000
"""The most characters and bytes of their texts together."""
MAX_BITS = 256
"""The size of the largest whole number."""
MAX_DEPTH = 100
"""The deepest nesting of expressions, and of values that are written as JSON."""

_ITEMS_PER_STEP, _CHARACTERS_PER_STEP = 8, 64
_SHOWN_KEYS, _SHOWN_CHARACTERS = 12, 40


class Misuse(HoldfastError):
    """Values that do not allow what was asked; `where` is the source of the expression and its offset."""

    where: tuple[str, int] | None = None


class Missing(Misuse):
    """A name, key or index that is not there.

    The message may be a function that is called when it is shown: a template may ask for thousands of missing keys
    that have defaults.
    """

    def __init__(self, message: str | Callable[[], str]) -> None:
        self.args = (message,)

    @property
    def problem(self) -> str:
        message: str | Callable[[], str] = self.args[0]
        return message() if callable(message) else message


class Meter:
    """The work that one evaluation may still do. It depends on the data alone, so every replay agrees."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps

    def charge(self, steps: int) -> None:
        """Pay for work before it is done."""
        self.left -= steps
        if self.left < 0:
            raise Misuse("this takes too many steps; do it in a python or shell step instead")

    def items(self, count: int) -> None:
        """Pay for handling `count` items at once."""
        self.charge(1 + count // _ITEMS_PER_STEP)

    def characters(self, count: int) -> None:
        """Pay for handling `count` characters at once."""
        self.charge(1 + count // _CHARACTERS_PER_STEP)

    def new_text(self, length: int) -> None:
        """Pay for a new text of that length; raise if it is too long."""
        if length > MAX_LENGTH:
            raise Misuse(f"the text would have {length:,} characters; the limit is {MAX_LENGTH:,}")
        self.characters(length)

    def new_list(self, length: int) -> None:
        """Pay for a new list of that length; raise if it is too long."""
        if length > MAX_LENGTH:
            raise Misuse(f"the list would have {length:,} items; the limit is {MAX_LENGTH:,}")
        self.items(length)


class Extent:
    """The size that the values of one field may still have; what is referred to twice counts twice, as it is stored."""

    def __init__(self) -> None:
        self._parts, self._characters = MAX_PARTS_MADE, MAX_CHARACTERS_MADE

    def take(self, value: Any) -> Any:
        """Return the value; raise if all values together are too large."""
        coming = [value]
        while coming:
            one = coming.pop()
            found = kind(one)
            if found in ("list", "mapping"):
                self._parts -= size(one)
                coming.extend(elements(one))
                if found == "mapping":
                    coming.extend(item for _, item in entries(one))
            elif found == "text" or isinstance(one, (bytes, bytearray)):
                self._characters -= len(one)
            if self._parts < 0 or self._characters < 0:
                raise Misuse(
                    f"the values come to more than {MAX_PARTS_MADE:,} parts or {MAX_CHARACTERS_MADE:,} characters; "
                    "hand on only what is needed of them, or keep them in a file and hand on its path"
                )
        return value


_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("null", (type(None),)),
    ("boolean", (bool,)),
    ("number", (int, float)),
    ("text", (str,)),
    ("list", (list, tuple)),
    ("mapping", (dict,)),
    ("lookup", (Mapping,)),
)
_ARTICLES = {
    "null": "nothing (null)",
    "boolean": "true or false",
    "number": "a number",
    "text": "a text",
    "list": "a list",
    "mapping": "a mapping",
    "lookup": "a mapping that cannot be listed",
}
SCALARS = frozenset({"null", "boolean", "number", "text"})
NUMBERS = frozenset({"number", "boolean"})


def kind(value: Any) -> str:
    """Return `null`, `boolean`, `number`, `text`, `list`, `mapping`, `lookup` (by key only) or `other`."""
    found: type = type(value)
    return _kind_of(found)


@functools.lru_cache(maxsize=512)
def _kind_of(type_: type) -> str:
    return next((name for name, bases in _KINDS if issubclass(type_, bases)), "other")


def exact(value: Any) -> Any:
    """Return the value as a built-in scalar if its type is derived from one, else the value."""
    type_ = type(value)
    if type_ in (str, int, float, bool, list, dict) or value is None:
        return value
    for base, convert in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if issubclass(type_, base):
            return convert(value)
    return value


def describe(value: Any) -> str:
    """Describe a value in a few words without running any of its code."""
    found, value = kind(value), exact(value)
    if found in ("null", "boolean"):
        return {None: "nothing (null)", True: "true", False: "false"}[value]
    if found == "number":
        return f"the number {value}" if fits(value) else "a very large number"
    if found == "text":
        # All of it or nothing: a part of a secret could not be recognised and scrubbed.
        return f"the text {value!r}" if len(value) <= _SHOWN_CHARACTERS else f"a text of {len(value):,}"
    if found in ("list", "mapping"):
        return f"a {found} of {size(value)}"
    return _ARTICLES.get(found) or f"an object of type {type(value).__name__}, which is not plain data"


def describe_kind(value: Any) -> str:
    """Return the kind of a value with its article."""
    return _ARTICLES.get(kind(value), "an object that is not plain data")


def fits(value: Any) -> bool:
    """Return True if a number is small enough to be worked with."""
    return not isinstance(value, int) or value.bit_length() <= MAX_BITS


def size(value: Any) -> int:
    """Return the length of a text, list or mapping by its built-in type."""
    for base in (str, list, tuple, dict):
        if issubclass(type(value), base):
            return int(base.__len__(value))
    raise Misuse(f"{describe(value)} has no length; only texts, lists and mappings have one")


def entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and values of a mapping."""
    if kind(value) != "mapping":
        raise Misuse(f"a mapping is needed here, not {describe(value)}")
    return dict.items(value)


def elements(value: Any) -> Iterable[Any]:
    """Return the items of a list, or the keys of a mapping. Raise for a text, whose items would be a surprise."""
    found = kind(value)
    if found == "list":
        return base_of(value).__iter__(value)  # type: ignore[no-any-return]
    if found == "mapping":
        return dict.__iter__(value)
    hint = "; split(…) makes a list of a text" if found == "text" else ""
    raise Misuse(f"a list is needed here, not {describe(value)}{hint}")


def truth(value: Any) -> bool:
    """Return False for null, false, zero and what is empty, else True."""
    found = kind(value)
    if found in SCALARS:
        return bool(exact(value))
    if found in ("list", "mapping"):
        return size(value) > 0
    raise Misuse(f"{describe(value)} is neither true nor false")


def text(value: Any) -> str:
    """Return the value; raise if it is no text."""
    if kind(value) != "text":
        raise Misuse(f"a text is needed here, not {describe(value)}; str(…) makes one")
    return str.__str__(value)


def whole(value: Any) -> int:
    """Return the value; raise if it is no whole number of ordinary size."""
    value = exact(value)
    if type(value) is not int or not fits(value):
        raise Misuse(f"a whole number is needed here, not {describe(value)}")
    return value


def number(value: Any) -> int | float:
    """Return the value; raise if it is no number of ordinary size."""
    if kind(value) not in NUMBERS:
        raise Misuse(f"a number is needed here, not {describe(value)}")
    value = exact(value)
    if not fits(value):
        raise Misuse("the number is too large to be worked with")
    return value  # type: ignore[no-any-return]


def base_of(value: Any) -> Any:
    """Return the built-in sequence type that a value's type is or is derived from."""
    return next(base for base in (str, list, tuple) if issubclass(type(value), base))


def look_up(value: Any, key: Any, name: str) -> Any:
    """Return the item of a mapping or list that is called `name` in the source."""
    found, key = kind(value), exact(key)
    if found in ("mapping", "lookup"):
        if kind(key) not in SCALARS:
            raise Misuse(f"{describe(key)} cannot be a key of {name}; use a text or a number")
        if found == "lookup":
            return exact(value[key])
        if not dict.__contains__(value, key):
            raise Missing(lambda: missing_text(key, dict.__iter__(value), name))
        return exact(dict.__getitem__(value, key))
    if found in ("list", "text") and type(key) is int:
        if not -size(value) <= key < size(value):
            raise Missing(lambda: f"{name} has {size(value)} item(s), so there is no [{_shown(key)}]")
        return exact(base_of(value).__getitem__(value, key))
    if found == "other":
        raise Misuse(f"{name} is {describe(value)}; let the step return mappings, lists, texts and numbers")
    if found == "list" and type(key) is str:
        raise Missing(
            lambda: f"{name} is {describe(value)}; {_shown(key)} needs an item of it first, such as {name}[0]"
        )
    raise Missing(lambda: f"{name} is {describe(value)}; it has no {_shown(key)}")


def missing_text(key: Any, known: Iterable[Any], name: str | None) -> str:
    """Return a message that a key (or a name) is missing, with those that are there and the one that may be meant."""
    every = (str.__str__(other) for other in known if kind(other) == "text")
    short = (other for other in every if len(other) <= _SHOWN_CHARACTERS)
    texts = list(itertools.islice(short, MOST_LOOKED_AT))
    shown = ", ".join(map(repr, texts[:_SHOWN_KEYS])) + (", …" if len(texts) > _SHOWN_KEYS else "")
    meant = suggestion(key, texts) if type(key) is str else ""
    if name is None:
        return f"there is no {_shown(key)} here; there is {shown or 'nothing'}{meant}"
    return f"there is no {_shown(key)} in {name}; {f'it has {shown}' if texts else 'it is empty'}{meant}"


def _shown(key: Any) -> str:
    found = kind(key)
    whole_key = (found == "text" and size(key) <= 2 * _SHOWN_CHARACTERS) or (found == "number" and fits(key))
    return repr(exact(key)) if whole_key else describe(key)


def equal(meter: Meter, one: Any, other: Any) -> bool:
    """Compare two values item by item; a list and a tuple of the same items are equal."""
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        meter.charge(1)
        kinds = {kind(left), kind(right)}
        if kinds & {"other", "lookup"}:
            culprit = left if kind(left) in ("other", "lookup") else right
            raise Misuse(f"{describe(culprit)} cannot be compared")
        if kinds & SCALARS:
            if kinds == {"text"}:
                meter.characters(min(size(left), size(right)))
            if (len(kinds) > 1 and not kinds <= NUMBERS) or exact(left) != exact(right):
                return False
        elif len(kinds) > 1 or size(left) != size(right):
            return False
        elif left is not right:
            meter.new_list(size(left) + len(pairs))
            if kinds == {"list"}:
                pairs.extend(zip(elements(left), elements(right), strict=True))
                continue
            for key, value in entries(left):
                if kind(key) not in SCALARS or not dict.__contains__(right, key):
                    return False
                pairs.append((value, dict.__getitem__(right, key)))
    return True


def as_text(meter: Meter, value: Any) -> str:
    """Write a value into a text: null as nothing, `true`, numbers, lists and mappings as JSON."""
    found, value = kind(value), exact(value)
    if found not in SCALARS:
        return as_json(meter, value)
    if not fits(value):
        raise Misuse(f"the number has more than {MAX_BITS} bits and cannot be written")
    return {None: "", True: "true", False: "false"}[value] if found in ("null", "boolean") else str(value)


def as_json(meter: Meter, value: Any, indent: int | None = None) -> str:
    """Write plain data of reasonable size and depth as JSON."""
    copied = _copy(meter, value, [0], MAX_DEPTH)
    try:
        written = json.dumps(copied, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        raise Misuse("JSON has no way to write infinity or 'not a number'") from None
    meter.new_text(len(written))
    return written


def _copy(meter: Meter, value: Any, written: list[int], depth: int) -> Any:
    """Copy a value into built-in types, and count on the way: shared parts are written each time."""
    found, value = kind(value), exact(value)
    written[0] += 2 + (len(value) if found == "text" else 0)
    meter.items(1)
    if written[0] > MAX_LENGTH or depth < 0:
        raise Misuse("the value is too large or too deeply nested to be written as text")
    if found == "list":
        return [_copy(meter, item, written, depth - 1) for item in elements(value)]
    if found == "mapping":
        copied = {}
        for key, item in entries(value):
            if kind(key) not in SCALARS or not fits(exact(key)):
                raise Misuse(f"a mapping with {describe(key)} as a key cannot be written as text")
            written[0] += size(key) if kind(key) == "text" else 4
            copied[exact(key)] = _copy(meter, item, written, depth - 1)
        return copied
    if found not in SCALARS:
        raise Misuse(f"{describe(value)} cannot be written as text; let the step return plain data")
    if not fits(value):
        raise Misuse(f"a number has more than {MAX_BITS} bits and cannot be written")
    return value
