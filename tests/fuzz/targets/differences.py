"""Differences and JSON Patches: put on the one they give the other; and what readers are shown of any value."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from holdfast.state.codec import Unknown
from holdfast.views.differences import apply_difference, difference
from holdfast.views.patch import PatchError, apply_patch, json_patch
from holdfast.views.plain import plain, preview
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.making import exact, value
from tests.fuzz.target import Check, Target, Wrong
from tests.views.diff.values import edited


def differences() -> Check:
    """The difference of two values, put on the one, is the other; so is their patch for their JSON."""

    def check(data: bytes) -> str:
        choices = Choices(data)
        one = value(choices)
        if choices.below(3):
            other = edited(one, Random(choices.number(2)))
        else:
            other = value(choices)
        if choices.chance(9):
            one, other = Unknown("Plan", one), Unknown("Plan", other)
        found = difference(one, other)
        made = apply_difference(found, one)
        if _told(made) != _told(other):
            raise Wrong(f"{one!r} to {other!r}: {found!r} makes {made!r}")
        json.dumps(found.as_json())
        before, after = plain(one), plain(other)
        patch = json.loads(json.dumps(json_patch(one, other)))
        patched = apply_patch(before, patch)
        if _told(patched) != _told(after):
            raise Wrong(f"{before!r} to {after!r}: {patch!r} makes {patched!r}")
        return f"{bool(found)}, {min(3, len(patch))}"

    return check


def _told(found: Any) -> Any:
    """A value for comparing; dicts in another order are the same."""
    if isinstance(found, dict) and type(found) is dict:
        told = [(repr(exact(key)), _told(item)) for key, item in found.items()]
        return "dict", sorted(told, key=lambda pair: pair[0])
    if type(found) in (list, tuple):
        return type(found).__name__, [_told(item) for item in found]
    if isinstance(found, Unknown):
        return "Unknown", found.type_name, _told(found.data)
    return exact(found)


def patches() -> Check:
    """Any JSON as a patch of any document: `PatchError`, or another document, and the first is left as it is."""

    def check(data: bytes) -> str:
        try:
            document, patch = json.loads(data)
        except (ValueError, TypeError, RecursionError):
            return "no input"
        before = json.dumps(document)
        try:
            made = apply_patch(document, patch)
        finally:
            if json.dumps(document) != before:
                raise Wrong(f"{before} was changed by {patch!r}")
        json.dumps(made)
        return type(made).__name__

    return check


def patch_text(rng: Random) -> bytes:
    """A document and a patch for it."""
    document = {"a": [1, {"b": 2}, "x"], "c/d": {"~": 0}, "": None, "deep": {"e": [[]]}}
    places = (
        "",
        "/a",
        "/a/0",
        "/a/-",
        "/a/1/b",
        "/c~1d/~0",
        "/",
        "/a/99",
        "/a/01",
        "/deep/e/0",
        "/x",
        "a",
        "/a/-1",
        "/~2",
        "/a/" + "9" * 5000,
        "/a/٣",
    )
    names = ("add", "remove", "replace", "move", "copy", "test", "nope")
    patch: list[Any] = []
    for _ in range(rng.randrange(1, 5)):
        operation: dict[str, Any] = {"op": rng.choice(names), "path": rng.choice(places)}
        if rng.random() < 0.7:
            operation["value"] = rng.choice((1, 1.0, True, None, "x", [1], {"b": 2}, {"~": 0}))
        if rng.random() < 0.7:
            operation["from"] = rng.choice(places)
        patch.append(operation)
    return json.dumps([document, patch]).encode()


def shown() -> Check:
    """What readers are shown: any value as JSON that parses, and as one short line."""

    def check(data: bytes) -> str:
        choices = Choices(data)
        found = value(choices)
        if choices.chance(6):
            found = [found, 7**6000, -(7**6000), {7**6000: 1, b"\xff": 2, ("t", 1.5): 3}, Unknown("T", found)]
        as_json = plain(found)
        if json.loads(json.dumps(as_json, allow_nan=False)) != as_json:
            raise Wrong(f"{as_json!r} is another value once it was JSON")
        width = choices.byte()
        line = preview(found, width)
        if len(line) > max(width, 1) or "\n" in line:
            raise Wrong(f"{line!r} does not fit into {width}")
        return type(as_json).__name__

    return check


TARGETS = [
    Target("differences", differences, (), make=random_choices, share=120, longest=300, fresh=0.5),
    Target(
        "patches",
        patches,
        (PatchError,),
        make=patch_text,
        share=300,
        longest=12_000,
        fresh=0.5,
        words=(b'{"op":"add"', b'"path":"', b'"from":', b'"value":', b"/-"),
    ),
    Target("shown", shown, (), make=random_choices, share=120, longest=300, fresh=0.5),
]
