"""JSON Patch (RFC 6902): the operations between two values, and applying operations to a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.views.diff.changes import (
    Change,
    ItemChanged,
    ItemsRemoved,
    ListEdited,
    MapEdited,
)
from holdfast.views.diff.differing import difference
from holdfast.views.diff.pointers import PatchError, index_of, part_of, pointer, tokens_of
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
