"""`apply_difference`: a value with a difference put on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from holdfast.data.codec import Unknown
from holdfast.data.marks import stored_class
from holdfast.errors import StateInvalid
from holdfast.views.diff.changes import (
    Change,
    Difference,
    ItemChanged,
    ItemsInserted,
    ItemsRemoved,
    ListEdited,
    MapEdited,
    ObjectEdited,
    Replaced,
    SetEdited,
    SpanReplaced,
    TextEdited,
)
from holdfast.views.diff.numbering import Numbering


class DoesNotFit(StateInvalid):
    """A difference was put on a value that it is not of."""


def apply_difference(difference: Difference, value: Any) -> Any:
    """`value` with the difference put on it, which is left as it is; a value that it does not fit is refused."""
    return value if difference.change is None else _Applying().to(difference.change, value, "the value")


class _Applying:
    """One difference on its way onto one value; `where` names the part that it has come to."""

    def __init__(self) -> None:
        self.number = Numbering().number

    def to(self, change: Change, value: Any, where: str) -> Any:
        match change:
            case Replaced(before, after):
                self.expect(self.number(before) == self.number(value), where)
                return after
            case SpanReplaced():
                return self.to_span(change, value, where)
            case TextEdited():
                return self.to_text(change, value, where)
            case MapEdited():
                return self.to_map(change, value, where)
            case ListEdited():
                return self.to_list(change, value, where)
            case SetEdited():
                return self.to_set(change, value, where)
            case ObjectEdited(type_name, inner):
                self.expect(isinstance(value, Unknown) and value.type_name == type_name, where)
                return Unknown(type_name, self.to(inner, value.data, where))
            case _:
                assert_never(change)

    def expect(self, holds: bool, where: str) -> None:
        if not holds:
            raise DoesNotFit(
                f"the difference does not fit: {where} is not what it was; apply it to the value that it was made of"
            )

    def to_span(self, change: SpanReplaced, value: Any, where: str) -> str:
        self.expect(type(value) is str and value.startswith(change.removed, change.at), where)
        return f"{value[: change.at]}{change.added}{value[change.at + len(change.removed) :]}"

    def to_text(self, change: TextEdited, value: Any, where: str) -> str:
        self.expect(type(value) is str, where)
        lines, result, at = value.split("\n"), list[str](), 0
        for hunk in change.hunks:
            self.expect(hunk.before >= at, where)
            result += lines[at : hunk.before]
            old = [text for sign, text in hunk.lines if sign != "+"]
            at = hunk.before + len(old)
            self.expect(lines[hunk.before : at] == old, where)
            result += [text for sign, text in hunk.lines if sign != "-"]
        return "\n".join([*result, *lines[at:]])

    def to_map(self, change: MapEdited, value: Any, where: str) -> dict[Any, Any]:
        self.expect(stored_class(value) is dict, where)
        number = self.number
        gone = {number(key) for key in change.removed}
        edits = {number(key): edit for key, edit in change.changed.items()}
        result = {}
        for key, item in value.items():
            name = number(key)
            edit = edits.pop(name, None)
            if edit is not None:
                result[key] = self.to(edit, item, f"{where}[{key!r}]")
            elif name in gone:
                gone.discard(name)
            else:
                result[key] = item
        self.expect(not gone and not edits and not result.keys() & change.added.keys(), where)
        return {**result, **change.added}

    def to_list(self, change: ListEdited, value: Any, where: str) -> Any:
        cls = stored_class(value)
        self.expect(cls is list or cls is tuple, where)
        result: list[Any] = []
        at = 0
        for edit in change.edits:
            self.expect(at <= edit.before <= len(value), where)
            result += value[at : edit.before]
            at = edit.before
            match edit:
                case ItemsRemoved(items=items):
                    at += len(items)
                    self.expect(self.are_same(value[edit.before : at], items), where)
                case ItemsInserted(items=items):
                    result += items
                case ItemChanged(before, _, inner):
                    self.expect(before < len(value), where)
                    result.append(self.to(inner, value[before], f"{where}[{before}]"))
                    at += 1
        result += value[at:]
        return result if cls is list else tuple(result)

    def are_same(self, found: Iterable[Any], wanted: Iterable[Any]) -> bool:
        return [*map(self.number, found)] == [*map(self.number, wanted)]

    def to_set(self, change: SetEdited, value: Any, where: str) -> Any:
        cls = stored_class(value)
        self.expect(cls is set or cls is frozenset, where)
        gone = {self.number(item) for item in change.removed}
        kept = [item for item in value if self.number(item) not in gone]
        self.expect(len(kept) == len(value) - len(gone), where)
        result = {*kept, *change.added}
        return result if cls is set else frozenset(result)
