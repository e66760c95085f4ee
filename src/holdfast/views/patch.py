"""JSON Patch (RFC 6902): the operations between two values, and applying operations to a document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import StateInvalid
from holdfast.views.changes import Change, ItemChanged, ItemsRemoved, ListEdited, MapEdited
from holdfast.views.differences import difference
from holdfast.views.plain import MOST_PARTS, Room, plain

Operation = dict[str, Any]

_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]*")
_MEMBERS = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("path", "from"),
    "copy": ("path", "from"),
    "test": ("path", "value"),
}


class PatchError(StateInvalid):
    """A JSON Patch is malformed, or does not fit the document."""


def json_patch(one: Any, other: Any) -> list[Operation]:
    """Return the operations that turn the JSON form of `one` into that of `other`: add, remove and replace.

    The JSON form is that of `plain`, which every `--json` prints: dates as text, tuples as lists, bytes
    and what else JSON lacks as an object with `$type`. Values of the same form make no operation.
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
    """Yield the operations that make the value at `path` equal to `after`."""
    if isinstance(change, MapEdited):
        for key in change.removed:
            yield {"op": "remove", "path": pointer((*path, key))}
        for key, value in change.added.items():
            yield {"op": "add", "path": pointer((*path, key)), "value": value}
        for key, inner in change.changed.items():
            yield from _operations(inner, after[key], (*path, key))
    elif isinstance(change, ListEdited):
        for edit in change.edits:
            # All before this index is done, so the next item is where the new list has it.
            if isinstance(edit, ItemsRemoved):
                yield from ({"op": "remove", "path": pointer((*path, edit.after))} for _ in edit.items)
            elif isinstance(edit, ItemChanged):
                yield from _operations(edit.change, after[edit.after], (*path, edit.after))
            else:
                for place, value in enumerate(edit.items, edit.after):
                    yield {"op": "add", "path": pointer((*path, place)), "value": value}
    else:
        yield {"op": "replace", "path": pointer(path), "value": after}


def pointer(tokens: Iterable[str | int]) -> str:
    """Return the JSON Pointer (RFC 6901) of the part that keys and indexes lead to."""
    return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def tokens_of(text: Any) -> list[str]:
    """Return the keys and indexes of a JSON Pointer."""
    if not isinstance(text, str):
        raise PatchError(f"a JSON Pointer is text, not {type(text).__name__}")
    if text and not text.startswith("/"):
        raise PatchError(f"the JSON Pointer {text!r} does not begin with '/'")
    if _BAD_ESCAPE.search(text):
        raise PatchError(f"the JSON Pointer {text!r} has a '~' that is neither '~0' nor '~1'")
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def index_of(token: str, length: int, where: str) -> int:
    """Return the index that a token means in a list of `length` items."""
    if token == "-":
        raise PatchError(f"{where}: '-' means the end of a list, where there is no item")
    if not _INDEX.fullmatch(token):
        raise PatchError(f"{where}: {token!r} is not the index of an item")
    if len(token) > len(str(length)) or int(token) >= length:
        raise PatchError(f"{where}: there is no place {token} in a list of {length}")
    return int(token)


def _key(container: Any, token: str, where: str) -> Any:
    """Return the key or the index of a part of an object or list that a token names."""
    if isinstance(container, list):
        return index_of(token, len(container), where)
    if not isinstance(container, dict):
        raise PatchError(f"{where}: {token!r} would be inside of what is neither an object nor a list")
    if token not in container:
        raise PatchError(f"{where}: there is no key {token!r}")
    return token


def _part(document: Any, tokens: Iterable[str], where: str) -> Any:
    for token in tokens:
        document = document[_key(document, token, where)]
    return document


def apply_patch(document: Any, patch: Sequence[Mapping[str, Any]]) -> Any:
    """Return a JSON document with the operations applied in order: all of them, or none and `PatchError`.

    The operations are add, remove, replace, move, copy and test. The document itself stays as it is.
    """
    if not isinstance(patch, (list, tuple)):
        raise PatchError(f"a JSON Patch is a list of operations, not {type(patch).__name__}")
    holder = [_copied(document)]
    for number, operation in enumerate(patch):
        where = f"operation {number}"
        if not isinstance(operation, Mapping):
            raise PatchError(f"{where} is not an object")
        name = operation.get("op")
        if not isinstance(name, str) or name not in _MEMBERS:
            raise PatchError(f"{where}: {name!r} is none of {', '.join(_MEMBERS)}")
        for member in _MEMBERS[name]:
            if member not in operation:
                raise PatchError(f"{where}: {name} needs {member!r}")
        _apply(holder, name, operation, f"{where} ({name} {operation['path']!r})")
    return holder[0]


def _apply(holder: list[Any], name: str, operation: Mapping[str, Any], where: str) -> None:
    """Apply one operation to the document that is the only item of `holder`."""
    path = ["0", *tokens_of(operation["path"])]
    if name in ("move", "copy"):
        source = ["0", *tokens_of(operation["from"])]
        value = _part(holder, source, where)
        if name == "copy":
            value = _copied(value)
        elif source == path:
            return
        elif path[: len(source)] == source:
            raise PatchError(f"{where}: {operation['from']!r} cannot be moved into itself")
        else:
            _remove(holder, source, where)
        _add(holder, path, value, where)
    elif name == "add":
        _add(holder, path, _copied(operation["value"]), where)
    elif name == "remove":
        _remove(holder, path, where)
    elif name == "replace":
        parent = _part(holder, path[:-1], where)
        parent[_key(parent, path[-1], where)] = _copied(operation["value"])
    elif not _is_equal(_part(holder, path, where), operation["value"]):
        raise PatchError(f"{where}: the document has another value there")


def _add(holder: list[Any], path: list[str], value: Any, where: str) -> None:
    parent, last = _part(holder, path[:-1], where), path[-1]
    if parent is holder:
        holder[0] = value
    elif isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else index_of(last, len(parent) + 1, where), value)
    else:
        _key(parent, last, where)


def _remove(holder: list[Any], path: list[str], where: str) -> None:
    if len(path) == 1:
        raise PatchError(f"{where}: the whole document cannot be removed, only replaced")
    parent = _part(holder, path[:-1], where)
    del parent[_key(parent, path[-1], where)]


def _copied(document: Any) -> Any:
    """Return a copy of a document, however deep it is."""
    holder = [document]
    waiting: list[Any] = [holder]
    for container in waiting:
        for key, part in list(container.items() if isinstance(container, dict) else enumerate(container)):
            if isinstance(part, (dict, list)):
                container[key] = own = dict(part) if isinstance(part, dict) else list(part)
                waiting.append(own)
    return holder[0]


def _is_equal(one: Any, other: Any) -> bool:
    """Return True if two documents are equal as JSON: 1 is 1.0, but neither is true."""
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
