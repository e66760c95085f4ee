"""What a model is sent: data cut to a size that it can read, errors with the calls that help, and pauses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mcp_types import CallToolResult, TextContent

from holdfast.errors import HoldfastError, Remedy

Data = dict[str, Any]

Rest = Callable[[str, int], Data | None]
"""Returns the call that reads on at a JSON Pointer into a reply, after so many items; `None` if there is none."""

MOST = 40_000
"""The characters that the JSON of one reply has at most, notes on what was left out not counted."""

LEAST = 200
"""A value that needs to be cut keeps at least so many characters of its JSON, if it has them."""

MOST_NOTES = 20
"""The notes on what was left out; more places are only counted."""


# Data of any size, cut so that it fits.


class Cutter:
    """Cuts values so that their JSON has at most a number of characters, and notes what was left out."""

    def __init__(self, rest: Rest | None = None, most: int = MOST) -> None:
        self._rest, self._most, self.notes, self.more = rest, most, list[Data](), 0

    def cut(self, data: Data) -> Data:
        """Return data that fits, with a list of what was left out under `left_out` if anything was."""
        small = self._value(data, self._most, "")
        if not self.notes:
            return data
        if self.more:
            self.notes.append({"path": "", "kept": 0, "of": self.more, "unit": "more places"})
        return {**small, "left_out": self.notes}

    def _value(self, value: Any, room: int, path: str) -> Any:
        if size(value) <= room:
            return value
        if isinstance(value, str):
            return self._text(value, room, path)
        if isinstance(value, list):
            return self._items(value, room, path)
        return self._fields(value, room, path) if isinstance(value, dict) else value

    def _text(self, value: str, room: int, path: str) -> str:
        kept = value[:room]
        while size(kept) > room:
            kept = kept[: len(kept) // 2]
        self._note(path, len(kept), len(value), "characters")
        return f"{kept}…"

    def _items(self, value: list[Any], room: int, path: str) -> list[Any]:
        kept: list[Any] = []
        for place, item in enumerate(value):
            needed = size(item)
            if needed > room and (kept or room < LEAST):
                break
            kept.append(self._value(item, room, f"{path}/{place}"))
            room -= min(needed, room)
        if len(kept) < len(value):
            self._note(path, len(kept), len(value), "items")
        return kept

    def _fields(self, value: Data, room: int, path: str) -> Data:
        """Keep small values whole, and let large ones share what is left; drop the last ones if nothing is."""
        kept: Data = {}
        left, sizes = room, {name: size(name) + size(item) for name, item in value.items()}
        waiting = sorted(sizes, key=lambda name: sizes[name])
        for place, name in enumerate(waiting):
            share = left // (len(waiting) - place)
            if share < min(LEAST, sizes[name]):
                self._note(path, len(kept), len(value), "keys")
                break
            kept[name] = self._value(value[name], share - size(name), f"{path}/{escaped(name)}")
            left -= min(sizes[name], share)
        return {name: kept[name] for name in value if name in kept}

    def _note(self, path: str, kept: int, total: int, unit: str) -> None:
        if len(self.notes) >= MOST_NOTES:
            self.more += 1
            return
        call = None if self._rest is None else self._rest(path, kept)
        note = {"path": path, "kept": kept, "of": total, "unit": unit}
        self.notes.append(note if call is None else {**note, "read_on_with": call})


def size(value: Any) -> int:
    """Return how many characters the JSON of a value has, about."""
    if isinstance(value, str):
        return len(value) + 2
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def escaped(name: str) -> str:
    """Return a key as a part of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def part_at(value: Any, path: str) -> Any:
    """Return the part of a value that a JSON Pointer such as `/review/output/0` names."""
    if path and not path.startswith("/"):
        raise HoldfastError(f"path {path!r:.100} is no JSON Pointer: write it as /key/0/key, or leave it out")
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, Sequence) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise HoldfastError(f"there is nothing at path {path!r:.100}: {_what_is_there(value, name)}")
    return value


def _what_is_there(value: Any, name: str) -> str:
    if isinstance(value, Mapping):
        return f"no key {name!r:.60} among {', '.join(map(repr, list(value)[:20]))}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"no item {name!r:.60} in a list of {len(value)}"
    return f"{name!r:.60} is looked for in a value that has no parts"


def sliced(value: Any, offset: int, limit: int) -> Any:
    """Return a part of a long text, list or mapping; of anything else all of it."""
    if isinstance(value, Mapping):
        return dict(list(value.items())[offset : offset + limit])
    return value[offset : offset + limit] if isinstance(value, (str, list)) else value


# Errors, with remedies that are calls of tools.


def call(tool: str, **arguments: Any) -> Data:
    """Return the call of a tool as data, without arguments that are `None`."""
    return {
        "tool": tool,
        "arguments": {name: value for name, value in arguments.items() if value is not None},
    }


CALLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "begin_own_run": ("get_state", {"run_id": "{run}"}),
    "cancel": ("cancel", {"run_id": "{run}"}),
    "fork": ("fork", {"run_id": "{run}"}),
    "list_checkpoints": ("list_checkpoints", {}),
    "list_runs": ("list_runs", {}),
    "list_workflows": ("list_workflows", {}),
    "plan": ("plan_resume", {"run_id": "{run}"}),
    "read": ("get_run", {"run_id": "{run}"}),
    "rerun": ("rerun", {"run_id": "{run}", "step": "{step}"}),
    "resume": ("resume", {"run_id": "{run}"}),
    "skip": ("skip", {"run_id": "{run}", "step": "{step}"}),
}
"""The tool of each action of a remedy, and its arguments. An action that is not here is for the operator."""


def call_of(remedy: Remedy) -> Data | None:
    """Return a remedy as the call of a tool, or `None` if only the operator can do it."""
    if remedy.action not in CALLS or (remedy.action == "resume" and remedy.options):
        return None
    tool, arguments = CALLS[remedy.action]
    names = {"run": remedy.run_id, **{name: str(value) for name, value in remedy.options.items()}}
    given = {name: value.format_map(names) for name, value in arguments.items()}
    if not all(given.values()):
        return None
    return call(tool, **given)


def remedy_data(remedies: Iterable[Remedy]) -> Iterator[Data]:
    """Yield what a model can do about an error, or ask its person to do."""
    for remedy in remedies:
        found = call_of(remedy)
        if found is not None:
            yield {"call": found}
        elif remedy.text:
            yield {"text": remedy.text}


def error_data(error: HoldfastError) -> Data:
    """Return an error as a model reads it: its code, what happened, and what can be called now."""
    return {
        "code": error.code,
        "problem": error.public_problem[:MOST],
        "remedies": list(remedy_data(error.remedies)),
    }


def error_reply(error: HoldfastError) -> CallToolResult:
    """Return the reply to a call that failed."""
    return reply({"error": error_data(error)}, is_error=True)


def reply(data: Data, rest: Rest | None = None, *, is_error: bool = False) -> CallToolResult:
    """Return data as the reply to a call: structured, and the same as text; `rest` reads on what was cut."""
    small = Cutter(rest).cut(data)
    text = json.dumps(small, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(content=[TextContent(text=text)], structured_content=small, is_error=is_error)
