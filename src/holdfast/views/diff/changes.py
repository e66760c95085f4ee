"""What differs between two values, as a frozen tree: what was replaced, edited, inserted and removed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.data.marks import stored_class
from holdfast.views.plain import named, plain


@dataclass(frozen=True, slots=True)
class Replaced:
    """One value in the place of another."""

    before: Any
    after: Any

    @property
    def delta(self) -> int | float | None:
        """By how much a number changed; `None` if it is no such change."""
        if not (_is_number(self.before) and _is_number(self.after)):
            return None
        try:
            found: int | float = self.after - self.before
        except OverflowError:
            return None
        return found if isinstance(found, int) or math.isfinite(found) else None

    @property
    def types(self) -> tuple[str, str] | None:
        """The names of both types, if they differ."""
        names = _type_name(self.before), _type_name(self.after)
        return names if names[0] != names[1] else None

    @property
    def count(self) -> int:
        return 1

    def as_json(self) -> dict[str, Any]:
        """Keys: kind, from, to; of numbers also delta, and types if those differ."""
        found: dict[str, Any] = {"kind": "value", "from": plain(self.before), "to": plain(self.after)}
        if self.delta is not None:
            found["delta"] = self.delta
        if self.types is not None:
            found["types"] = list(self.types)
        return found


@dataclass(frozen=True, slots=True)
class Hunk:
    """A stretch of lines around a change. Places count from 0; each line is `" "`, `"-"` or `"+"` and its text."""

    before: int
    after: int
    lines: tuple[tuple[str, str], ...]

    @property
    def heading(self) -> str:
        """Its place as unified diffs say it: `@@ -3,4 +3,5 @@`."""
        old = sum(sign != "+" for sign, _ in self.lines)
        new = sum(sign != "-" for sign, _ in self.lines)
        return f"@@ -{self.before + bool(old)},{old} +{self.after + bool(new)},{new} @@"

    def as_json(self) -> dict[str, Any]:
        """Keys: before, after, lines."""
        lines = [sign + plain(text) for sign, text in self.lines]
        return {"before": self.before, "after": self.after, "lines": lines}


@dataclass(frozen=True, slots=True)
class TextEdited:
    """A text of several lines that became another."""

    hunks: tuple[Hunk, ...]

    @property
    def count(self) -> int:
        return len(self.hunks)

    def as_json(self) -> dict[str, Any]:
        """Keys: kind, hunks."""
        return {"kind": "text", "hunks": [hunk.as_json() for hunk in self.hunks]}


@dataclass(frozen=True, slots=True)
class SpanReplaced:
    """A part of a text, from character `at` on, in whose place another came; `lead` and `trail` stand around it."""

    at: int
    removed: str
    added: str
    lead: str
    trail: str

    @property
    def count(self) -> int:
        return 1

    def as_json(self) -> dict[str, Any]:
        """Keys: kind, at, removed, added."""
        return {"kind": "span", "at": self.at, "removed": plain(self.removed), "added": plain(self.added)}


@dataclass(frozen=True, slots=True)
class MapEdited:
    """A mapping some of whose keys came, went, or have another value."""

    added: Mapping[Any, Any]
    removed: Mapping[Any, Any]
    changed: Mapping[Any, Change]

    @property
    def count(self) -> int:
        return len(self.added) + len(self.removed) + sum(change.count for change in self.changed.values())

    def as_json(self) -> dict[str, Any]:
        """Keys: kind, added, removed, changed."""
        return {
            "kind": "map",
            "added": plain(self.added),
            "removed": plain(self.removed),
            "changed": {name: change.as_json() for name, change in named(self.changed.items())},
        }


@dataclass(frozen=True, slots=True)
class _Items:
    """Items that only one of two lists has."""

    edit: ClassVar[str]
    before: int
    after: int
    items: tuple[Any, ...]

    @property
    def count(self) -> int:
        return len(self.items)

    def as_json(self) -> dict[str, Any]:
        """Keys: edit, before, after, items."""
        return {"edit": self.edit, "before": self.before, "after": self.after, "items": plain(self.items)}


class ItemsRemoved(_Items):
    """Items that a list had from index `before` on; in the new list they would be at `after`."""

    __slots__ = ()
    edit = "removed"


class ItemsInserted(_Items):
    """Items that the new list has from index `after` on; in the old one they come before index `before`."""

    __slots__ = ()
    edit = "inserted"


@dataclass(frozen=True, slots=True)
class ItemChanged:
    """An item that is still there, and differs in itself."""

    before: int
    after: int
    change: Change

    @property
    def count(self) -> int:
        return self.change.count

    def as_json(self) -> dict[str, Any]:
        """Keys: edit, before, after, change."""
        return {
            "edit": "changed",
            "before": self.before,
            "after": self.after,
            "change": self.change.as_json(),
        }


ItemEdit = ItemsRemoved | ItemsInserted | ItemChanged


@dataclass(frozen=True, slots=True)
class ListEdited:
    """A list or tuple whose items came, went, or changed; in the order of their places."""

    edits: tuple[ItemEdit, ...]

    @property
    def count(self) -> int:
        return sum(edit.count for edit in self.edits)

    def as_json(self) -> dict[str, Any]:
        """Keys: kind, edits."""
        return {"kind": "list", "edits": [edit.as_json() for edit in self.edits]}


@dataclass(frozen=True, slots=True)
class SetEdited:
    """A set some of whose items came or went."""

    added: tuple[Any, ...]
    removed: tuple[Any, ...]

    @property
    def count(self) -> int:
        return len(self.added) + len(self.removed)

    def as_json(self) -> dict[str, Any]:
        """Keys: kind, added, removed."""
        return {"kind": "set", "added": plain(self.added), "removed": plain(self.removed)}


@dataclass(frozen=True, slots=True)
class ObjectEdited:
    """A value of a type that is not known here, whose data changed."""

    type_name: str
    change: Change

    @property
    def count(self) -> int:
        return self.change.count

    def as_json(self) -> dict[str, Any]:
        """Keys: kind, type, change."""
        return {"kind": "object", "type": self.type_name, "change": self.change.as_json()}


Change = Replaced | TextEdited | SpanReplaced | MapEdited | ListEdited | SetEdited | ObjectEdited


@dataclass(frozen=True, slots=True)
class Difference:
    """What makes one value another; false if nothing does."""

    change: Change | None = None

    def __bool__(self) -> bool:
        return self.change is not None

    @property
    def count(self) -> int:
        """How many values, items and stretches of text differ."""
        return 0 if self.change is None else self.change.count

    def as_json(self) -> dict[str, Any] | None:
        """The tree as plain data; `None` if there is no difference."""
        return None if self.change is None else self.change.as_json()


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _type_name(value: Any) -> str:
    cls = stored_class(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
