"""What a caller gives with a command, as parts of a message: values are encoded, nonsense is refused at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.engine.commands.inbox import Addition, Change
from holdfast.errors import CommandRefused, HoldfastError
from holdfast.plan.graph import Send

Path = str | tuple[str, ...]
Update = Mapping[Path, Any] | Mapping[str, Any] | Mapping[tuple[str, ...], Any]
"""New values by key; a tuple of keys is a place inside: `("inputs", "topic")`."""

Step = str | Send | Mapping[str, Any]
"""A step to be run: a node's name, a `Send`, or a mapping with `node` and perhaps `item` and `key`."""

_PARTS = {"node", "item", "key"}


def changes_of(command: str, update: Update, codec: Codec) -> tuple[Change, ...]:
    """An update as changes."""
    if not isinstance(update, Mapping) or not update:
        raise CommandRefused(
            f"{command} takes a mapping with values, such as {{'key': value}}, not {update!r:.80}"
        )
    return tuple(_change(command, key, value, codec) for key, value in update.items())


def _change(command: str, key: Any, value: Any, codec: Codec) -> Change:
    path = key if isinstance(key, tuple) else (key,)
    if not path or not all(isinstance(part, str) and _is_text(part) for part in path):
        raise CommandRefused(f"{command} names what it changes by text, or a tuple of texts, not {key!r:.80}")
    try:
        return Change(path, codec.encode(value))
    except HoldfastError as error:
        raise CommandRefused(f"{command}: state key {'.'.join(path)!r}: {error}") from None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def additions_of(command: str, steps: Step | Iterable[Step], codec: Codec) -> tuple[Addition, ...]:
    """Steps to be run as additions."""
    alone = isinstance(steps, (str, Send, Mapping)) or not isinstance(steps, Iterable)
    given: list[Any] = [steps] if alone else list(steps)  # type: ignore[arg-type]
    return tuple(_addition(command, step, codec) for step in given)


def _addition(command: str, step: Any, codec: Codec) -> Addition:
    if isinstance(step, str):
        step = {"node": step}
    elif isinstance(step, Send):
        step = {"node": step.node, "item": step.item, "key": step.key}
    if not isinstance(step, Mapping) or "node" not in step or set(step) - _PARTS:
        raise CommandRefused(
            f"{command} takes nodes' names, Sends, or mappings with node, item and key, not {step!r:.80}"
        )
    node, key, item = step["node"], step.get("key"), step.get("item")
    if not isinstance(node, str) or not node or not _is_text(node):
        raise CommandRefused(f"{command} names nodes by text, not {node!r:.80}")
    if key is not None and (not isinstance(key, str) or not key or not _is_text(key)):
        raise CommandRefused(f"{command}: the key of an item is text that is not empty, not {key!r:.80}")
    if item is None or item == {}:
        return Addition(node, key)
    changes = changes_of(command, item, codec)
    if any(len(change.path) > 1 for change in changes):
        raise CommandRefused(
            f"{command}: the item of {node!r} holds whole values only; name its keys by text"
        )
    return Addition(node, key, changes)
