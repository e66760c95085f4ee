"""The tree of what differs between two values: what was replaced, edited, inserted and removed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.state.codec import stored_class
from holdfast.views.plain import View, plain


class _Change(View):
    """A part of the tree."""

    __slots__ = ()

    @property
    def count(self) -> int:
        """The number of values, items and pieces of text that differ."""
        match self:
            case TextEdited(hunks=parts) | _Items(items=parts):
                return len(parts)
            case SetEdited(added, removed):
                return len(added) + len(removed)
            case MapEdited(added, removed, changed):
                return len(added) + len(removed) + sum(change.count for change in changed.values())
            case ListEdited(edits):
                return sum(edit.count for edit in edits)
            case ItemChanged(change=change) | ObjectEdited(change=change):
                return change.count
        return 1


@dataclass(frozen=True, slots=True)
class Replaced(_Change):
    """One value in the place of another."""

    JSON: ClassVar[str] = "kind from=before! to=after! delta? types?"
    kind: ClassVar[str] = "value"
    before: Any
    after: Any

    @property
    def delta(self) -> int | float | None:
        """The difference of two numbers; `None` for other values, or if it is not finite."""
        if not {type(self.before), type(self.after)} <= {int, float}:
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


@dataclass(frozen=True, slots=True)
class Hunk(View):
    """Changed lines and the lines around them; each line is `" "`, `"-"` or `"+"` and its text."""

    before: int
    after: int
    lines: tuple[tuple[str, str], ...]

    @property
    def heading(self) -> str:
        """The position as unified diffs write it: `@@ -3,4 +3,5 @@`."""
        old = sum(sign != "+" for sign, _ in self.lines)
        new = sum(sign != "-" for sign, _ in self.lines)
        return f"@@ -{self.before + bool(old)},{old} +{self.after + bool(new)},{new} @@"

    def as_json(self) -> dict[str, Any]:
        """Return the keys before, after and lines, each line with its sign."""
        lines = [sign + plain(text) for sign, text in self.lines]
        return {"before": self.before, "after": self.after, "lines": lines}


@dataclass(frozen=True, slots=True)
class TextEdited(_Change):
    """A text of several lines that became another."""

    JSON: ClassVar[str] = "kind hunks"
    kind: ClassVar[str] = "text"
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True, slots=True)
class SpanReplaced(_Change):
    """A part of a text, from character `at` on, that was replaced; `lead` and `trail` surround it."""

    JSON: ClassVar[str] = "kind at removed added"
    kind: ClassVar[str] = "span"
    at: int
    removed: str
    added: str
    lead: str
    trail: str


@dataclass(frozen=True, slots=True)
class MapEdited(_Change):
    """A mapping with added, removed and changed keys."""

    JSON: ClassVar[str] = "kind added removed changed"
    kind: ClassVar[str] = "map"
    added: Mapping[Any, Any]
    removed: Mapping[Any, Any]
    changed: Mapping[Any, Change]


@dataclass(frozen=True, slots=True)
class _Items(_Change):
    """Items that only one of two lists has."""

    JSON: ClassVar[str] = "edit before after items"
    edit: ClassVar[str]
    before: int
    after: int
    items: tuple[Any, ...]


class ItemsRemoved(_Items):
    """Items of the old list from index `before` on; in the new list they would be at `after`."""

    __slots__ = ()
    edit = "removed"


class ItemsInserted(_Items):
    """Items of the new list from index `after` on; in the old list they come before index `before`."""

    __slots__ = ()
    edit = "inserted"


@dataclass(frozen=True, slots=True)
class ItemChanged(_Change):
    """An item that both lists have, and that differs in itself."""

    JSON: ClassVar[str] = "edit before after change"
    edit: ClassVar[str] = "changed"
    before: int
    after: int
    change: Change


ItemEdit = ItemsRemoved | ItemsInserted | ItemChanged


@dataclass(frozen=True, slots=True)
class ListEdited(_Change):
    """A list or tuple with removed, inserted and changed items, in order."""

    JSON: ClassVar[str] = "kind edits"
    kind: ClassVar[str] = "list"
    edits: tuple[ItemEdit, ...]


@dataclass(frozen=True, slots=True)
class SetEdited(_Change):
    """A set with added and removed items."""

    JSON: ClassVar[str] = "kind added removed"
    kind: ClassVar[str] = "set"
    added: tuple[Any, ...]
    removed: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ObjectEdited(_Change):
    """A value of a type that is unknown in this process, with changed data."""

    JSON: ClassVar[str] = "kind type=type_name change"
    kind: ClassVar[str] = "object"
    type_name: str
    change: Change


Change = Replaced | TextEdited | SpanReplaced | MapEdited | ListEdited | SetEdited | ObjectEdited


@dataclass(frozen=True, slots=True)
class Difference:
    """What turns one value into another; false if nothing differs."""

    change: Change | None = None

    def __bool__(self) -> bool:
        return self.change is not None

    @property
    def count(self) -> int:
        """The number of values, items and pieces of text that differ."""
        return 0 if self.change is None else self.change.count

    def as_json(self) -> dict[str, Any] | None:
        """Return the tree as plain data; `None` if nothing differs."""
        return None if self.change is None else self.change.as_json()


def _type_name(value: Any) -> str:
    cls = stored_class(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
