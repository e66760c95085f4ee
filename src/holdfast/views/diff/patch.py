"""JSON Patch (RFC 6902): the operations between two values, and applying operations to a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never

from holdfast.errors import StateInvalid
from holdfast.state.codec import Unknown, stored_class
from holdfast.views.diff.changes import (
    Change,
    Difference,
    ItemChanged,
    ItemsInserted,
    ItemsRemoved,
    ListEdited,
    MapEdited,
    ObjectEdited,
    PatchError,
    Replaced,
    SetEdited,
    SpanReplaced,
    TextEdited,
    index_of,
    part_of,
    pointer,
    tokens_of,
)
from holdfast.views.diff.difference import Numbering, difference
from holdfast.views.plain import MOST_PARTS, Room, plain

__all__ = ["PatchError", "apply_patch", "json_patch"]

Operation = dict[str, Any]


def json_patch(one: Any, other: Any) -> list[Operation]:
    """The operations that make the JSON form of `one` that of `other`: add, remove and replace.

    The JSON form is that of `plain`, which every `--json` prints: dates as text, tuples as lists, bytes
    and what else JSON lacks as an object with `$type`. What has the same form makes no operation.
    """
    before, after = _whole(one), _whole(other)
    change = difference(before, after).change
    return [] if change is None else list(_operations(change, after, ()))


def _whole(value: Any) -> Any:
    room = Room()
    form = plain(value, room=room)
    if room.is_cut:
        raise PatchError(
            f"a value of more than {MOST_PARTS:,} parts has no JSON Patch; compare it without --patch"
        )
    return form


def _operations(change: Change, after: Any, path: tuple[str | int, ...]) -> Iterator[Operation]:
    """The operations at `path`, where `after` is to be when they are done."""
    if isinstance(change, MapEdited):
        for key in change.removed:
            yield {"op": "remove", "path": pointer((*path, key))}
        for key, value in change.added.items():
            yield {"op": "add", "path": pointer((*path, key)), "value": value}
        for key, inner in change.changed.items():
            yield from _operations(inner, after[key], (*path, key))
    elif isinstance(change, ListEdited):
        for edit in change.edits:
            # All before this place is done, so what is next is where the new list has it.
            if isinstance(edit, ItemsRemoved):
                yield from ({"op": "remove", "path": pointer((*path, edit.after))} for _ in edit.items)
            elif isinstance(edit, ItemChanged):
                yield from _operations(edit.change, after[edit.after], (*path, edit.after))
            else:
                for place, value in enumerate(edit.items, edit.after):
                    yield {"op": "add", "path": pointer((*path, place)), "value": value}
    else:
        yield {"op": "replace", "path": pointer(path), "value": after}


def apply_patch(document: Any, patch: Sequence[Mapping[str, Any]]) -> Any:
    """A JSON document with the operations applied in order: all of them, or `PatchError` and nothing is changed.

    Knows add, remove, replace, move, copy and test. The document itself is left as it is.
    """
    if not isinstance(patch, (list, tuple)):
        raise PatchError(f"a JSON Patch is a list of operations, not {type(patch).__name__}")
    holder = [_copied(document)]
    for number, operation in enumerate(patch):
        where = f"operation {number}"
        if not isinstance(operation, Mapping):
            raise PatchError(f"{where} is not an object")
        name = operation.get("op")
        if not isinstance(name, str) or name not in _APPLIED:
            raise PatchError(f"{where}: {name!r} is none of {', '.join(_APPLIED)}")
        for member in ("path", *_MEMBERS[name]):
            if member not in operation:
                raise PatchError(f"{where}: {name} needs {member!r}")
        _APPLIED[name](holder, operation, f"{where} ({name} {operation['path']!r})")
    return holder[0]


def _add(holder: list[Any], operation: Mapping[str, Any], where: str) -> None:
    _put(holder, tokens_of(operation["path"]), _copied(operation["value"]), where)


def _put(holder: list[Any], tokens: list[str], value: Any, where: str) -> None:
    if not tokens:
        holder[0] = value
        return
    parent = part_of(holder[0], tokens[:-1], where)
    if isinstance(parent, dict):
        parent[tokens[-1]] = value
    elif isinstance(parent, list):
        last = tokens[-1]
        parent.insert(len(parent) if last == "-" else index_of(last, len(parent) + 1, where), value)
    else:
        raise PatchError(f"{where}: {tokens[-1]!r} would be inside of what is neither an object nor a list")


def _take(holder: list[Any], tokens: list[str], where: str) -> Any:
    """Remove a part; it is answered."""
    if not tokens:
        raise PatchError(f"{where}: the whole document cannot be removed, only replaced")
    found = part_of(holder[0], tokens, where)
    parent = part_of(holder[0], tokens[:-1], where)
    del parent[tokens[-1] if isinstance(parent, dict) else int(tokens[-1])]
    return found


def _remove(holder: list[Any], operation: Mapping[str, Any], where: str) -> None:
    _take(holder, tokens_of(operation["path"]), where)


def _replace(holder: list[Any], operation: Mapping[str, Any], where: str) -> None:
    tokens = tokens_of(operation["path"])
    part_of(holder[0], tokens, where)
    value = _copied(operation["value"])
    if not tokens:
        holder[0] = value
        return
    parent = part_of(holder[0], tokens[:-1], where)
    parent[tokens[-1] if isinstance(parent, dict) else int(tokens[-1])] = value


def _move(holder: list[Any], operation: Mapping[str, Any], where: str) -> None:
    source, target = tokens_of(operation["from"]), tokens_of(operation["path"])
    if source == target:
        part_of(holder[0], source, where)
        return
    if target[: len(source)] == source:
        raise PatchError(f"{where}: {operation['from']!r} cannot be moved into itself")
    _put(holder, target, _take(holder, source, where), where)


def _copy(holder: list[Any], operation: Mapping[str, Any], where: str) -> None:
    found = part_of(holder[0], tokens_of(operation["from"]), where)
    _put(holder, tokens_of(operation["path"]), _copied(found), where)


def _test(holder: list[Any], operation: Mapping[str, Any], where: str) -> None:
    found = part_of(holder[0], tokens_of(operation["path"]), where)
    if not _is_equal(found, operation["value"]):
        raise PatchError(f"{where}: the document has another value there")


def _copied(document: Any) -> Any:
    """A copy of a document, however deep it is."""
    holder = [document]
    waiting: list[Any] = [holder]
    for container in waiting:
        for key, part in list(container.items() if isinstance(container, dict) else enumerate(container)):
            if isinstance(part, (dict, list)):
                container[key] = own = dict(part) if isinstance(part, dict) else list(part)
                waiting.append(own)
    return holder[0]


def _is_equal(one: Any, other: Any) -> bool:
    """As JSON sees it: 1 is 1.0, but neither is true."""
    waiting = [(one, other)]
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            waiting += [(one[key], other[key]) for key in one]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            waiting += zip(one, other, strict=True)
        elif isinstance(one, bool) != isinstance(other, bool) or one != other:
            return False
    return True


_APPLIED = {"add": _add, "remove": _remove, "replace": _replace, "move": _move, "copy": _copy, "test": _test}
_MEMBERS: dict[str, tuple[str, ...]] = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}


# `apply_difference`: a value with a difference put on it.


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
