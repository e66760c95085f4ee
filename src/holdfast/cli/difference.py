"""A difference as text: a tree of lines, each with its sign, as many as there is room for."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

import click

from holdfast.cli.render import local_time, print_facts, print_styled
from holdfast.views.changes import (
    Change,
    Hunk,
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
from holdfast.views.differences import NEARBY, common_start
from holdfast.views.plain import preview, size_text
from holdfast.views.terminal import count

if TYPE_CHECKING:
    from holdfast.views.comparison import Side, StateDifference


STYLES = {"+": "green", "-": "red", "~": "yellow", "@": "cyan"}
_ODD = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)
_BARE = re.compile(r"[^\W\d][\w.:/-]*")
_INDENT = "    "
_MOST_BITS = 10_000
"""A larger integer takes long to be written out."""

_LEAST = 20
"""How many characters of a value are shown at least, however deep it is."""


class Line(NamedTuple):
    """One line of the tree; `changes` is how many changes it is the whole or the beginning of."""

    depth: int
    sign: str
    text: str
    changes: int = 0


def print_difference(found: StateDifference, url: str, width: int, most: int | None) -> None:
    """Print what differs: the two checkpoints, then the tree of the state in at most `most` lines."""
    print_facts([("from", _side(found.one)), ("to", _side(found.other)), *_facts(found), ("store", url)])
    click.echo()
    print_not_compared(found)
    print_state_changes(found, width, most)


def print_state_changes(found: StateDifference, width: int, most: int | None) -> None:
    """Print the tree of a state's changes in at most `most` lines, or that there are none."""
    change = found.state.change
    if change is None:
        click.echo("the other keys are the same" if found.not_compared else "the states are the same")
        return
    click.echo(f"state: {count(change.count, 'change')}")
    print_changes(change, width, most)


def print_not_compared(found: StateDifference) -> None:
    """Print the keys that were not compared, each with the reason."""
    for key, reason in found.not_compared.items():
        click.echo(f"{escaped(key)} was not compared: {escaped(reason)}")


def print_changes(change: Change, width: int, most: int | None) -> None:
    """Print the tree of a change in at most `most` lines."""
    lines = lines_of(change, width)
    shown = list(itertools.islice(lines, most))
    left = change.count - sum(line.changes for line in shown)
    is_cut = next(lines, None) is not None
    print_styled([(_fitted(line, width), STYLES.get(line.sign, ""))] for line in shown)
    if left and is_cut:
        click.echo(f"… {count(left, 'more change')}; --all shows {'it' if left == 1 else 'them'}")
    elif is_cut:
        click.echo("… the rest of the last change is left out; --all shows it")


def _fitted(line: Line, width: int) -> str:
    text = f"{_INDENT * line.depth}{line.sign if line.sign != '@' else ''} {line.text}".rstrip()
    if line.sign == "@":
        text = f"{_INDENT * line.depth}{line.text}"
    return text if len(text) <= width else f"{text[: max(width - 1, 1)]}…"


def _side(side: Side) -> str:
    after = f"wave {side.wave} after {side.node}" if side.node else f"wave {side.wave}"
    return escaped(f"{side.run_id} ({side.workflow}), {after}, {side.status}, {local_time(side.at)}")


def _facts(found: StateDifference) -> list[tuple[str, str]]:
    names = {"pauses": "waits for"}
    return [
        (names.get(name, name), f"{_fact(before)} → {_fact(after)}")
        for name, (before, after) in found.facts.items()
    ]


def _fact(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return escaped(text) or "nothing"


def lines_of(change: Change, width: int) -> Iterator[Line]:
    """Yield the lines of a state's difference, made as they are taken."""
    return _inside(change, 0, width)


def _inside(change: Change, depth: int, width: int) -> Iterator[Line]:
    """Yield the lines of what differs within a container or a text."""
    match change:
        case MapEdited(added, removed, changed):
            for key, inner in changed.items():
                yield from _labelled(_label(key), inner, depth, width)
            yield from _pairs("-", removed, depth, width)
            yield from _pairs("+", added, depth, width)
        case ListEdited(edits):
            for edit in edits:
                yield from _edit_lines(edit, depth, width)
        case SetEdited(added, removed):
            for sign, items in (("-", removed), ("+", added)):
                for item in items:
                    yield Line(depth, sign, value_text(item, _room(depth, width)), 1)
        case TextEdited(hunks):
            for hunk in hunks:
                yield from _hunk_lines(hunk, depth, _room(depth, width))
        case SpanReplaced():
            yield Line(depth, "~", _span_text(change, _room(depth, width)), 1)
        case Replaced(before, after):
            yield Line(depth, "-", value_text(before, _room(depth, width)), 1)
            yield Line(depth, "+", value_text(after, _room(depth, width)))
        case ObjectEdited(_, inner):
            yield from _inside(inner, depth, width)
        case _:
            assert_never(change)


def _labelled(label: str, change: Change, depth: int, width: int) -> Iterator[Line]:
    """Yield the line that names what changed, and the lines of what differs in it."""
    if isinstance(change, ObjectEdited):
        label, change = f"{label} ({escaped(change.type_name)})", change.change
    if isinstance(change, Replaced):
        yield from _replaced_lines(label, change, depth, width)
    elif isinstance(change, SpanReplaced):
        text = _span_text(change, max(_LEAST, _room(depth, width) - len(label) - 2))
        yield Line(depth, "~", f"{label}: {text}", 1)
    else:
        yield Line(depth, "~", f"{label}:{_summary(change)}")
        yield from _inside(change, depth + 1, width)


def _summary(change: Change) -> str:
    if isinstance(change, TextEdited):
        signs = [sign for hunk in change.hunks for sign, _ in hunk.lines]
        return f" {count(signs.count('-'), 'line')} removed, {signs.count('+')} added"
    if not isinstance(change, ListEdited):
        return ""
    parts = [
        (sum(len(edit.items) for edit in change.edits if isinstance(edit, ItemsRemoved)), "removed"),
        (sum(len(edit.items) for edit in change.edits if isinstance(edit, ItemsInserted)), "inserted"),
        (sum(isinstance(edit, ItemChanged) for edit in change.edits), "changed"),
    ]
    return " " + ", ".join(f"{number} {what}" for number, what in parts if number)


def _replaced_lines(label: str, change: Replaced, depth: int, width: int) -> Iterator[Line]:
    room = _room(depth, width)
    notes = []
    if change.delta is not None:
        notes.append(f"{change.delta:+.12g}" if isinstance(change.delta, float) else _with_sign(change.delta))
    if change.types is not None:
        notes.append(" → ".join(change.types))
    if isinstance(change.before, (bytes, bytearray)) and type(change.before) is type(change.after):
        notes.append(_first_byte(change.before, change.after))
    note = f" ({', '.join(notes)})" if notes else ""
    line = f"{label}: {value_text(change.before, room)} → {value_text(change.after, room)}{note}"
    if len(line) <= room:
        yield Line(depth, "~", line, 1)
        return
    yield Line(depth, "~", f"{label}:{note}", 1)
    inner = _room(depth + 1, width)
    yield Line(depth + 1, "-", value_text(change.before, inner))
    yield Line(depth + 1, "+", value_text(change.after, inner))


def _with_sign(delta: int) -> str:
    return value_text(delta, 40) if delta < 0 else f"+{value_text(delta, 40)}"


def _first_byte(before: bytes | bytearray, after: bytes | bytearray) -> str:
    return f"from byte {common_start(before.decode('latin-1'), after.decode('latin-1'))} on"


def _pairs(sign: str, items: Mapping[Any, Any], depth: int, width: int) -> Iterator[Line]:
    for key, value in items.items():
        label = _label(key)
        room = max(_LEAST, _room(depth, width) - len(label) - 2)
        yield Line(depth, sign, f"{label}: {value_text(value, room)}", 1)


def _edit_lines(edit: ItemsRemoved | ItemsInserted | ItemChanged, depth: int, width: int) -> Iterator[Line]:
    if isinstance(edit, ItemChanged):
        label = f"[{edit.before}]" if edit.before == edit.after else f"[{edit.before} → {edit.after}]"
        yield from _labelled(label, edit.change, depth, width)
        return
    sign, first = ("-", edit.before) if isinstance(edit, ItemsRemoved) else ("+", edit.after)
    for place, item in enumerate(edit.items, first):
        label = f"[{place}] "
        yield Line(depth, sign, label + value_text(item, max(_LEAST, _room(depth, width) - len(label))), 1)


def _hunk_lines(hunk: Hunk, depth: int, room: int) -> Iterator[Line]:
    yield Line(depth, "@", hunk.heading, 1)
    for sign, lines in itertools.groupby(hunk.lines, key=lambda line: line[0] != " "):
        found = list(lines)
        if not sign:
            yield from (Line(depth, " ", _beginning(text, room)) for _, text in found)
        else:
            old = [text for mark, text in found if mark == "-"]
            new = [text for mark, text in found if mark == "+"]
            yield from (Line(depth, "-", text) for text in _focused(old, new, room))
            yield from (Line(depth, "+", text) for text in _focused(new, old, room))


def _focused(lines: Sequence[str], others: Sequence[str], room: int) -> Iterator[str]:
    """Yield lines as far as there is room; of long ones the part where they differ from their counterparts."""
    for index, line in enumerate(lines):
        start = common_start(line, others[index]) if len(lines) == len(others) and len(line) > room else 0
        skipped = max(0, start - room // 3)
        yield f"{'…' if skipped else ''}{_beginning(line[skipped:], room)}"


def _span_text(change: SpanReplaced, room: int) -> str:
    """`…the quick [-brown-]{+red+} fox…`"""
    each = max(_LEAST, (room - len(change.lead) - len(change.trail) - 14) // 2)
    parts = [escaped(_middle_cut(text, each)) for text in (change.removed, change.added)]
    removed = f"[-{parts[0]}-]" if change.removed else ""
    added = f"{{+{parts[1]}+}}" if change.added else ""
    lead = ("…" if change.at > len(change.lead) else "") + escaped(change.lead)
    trail = escaped(change.trail) + ("…" if len(change.trail) >= NEARBY else "")
    return f"{lead}{removed}{added}{trail} (from character {change.at} on)"


def _middle_cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    half = room // 2
    return f"{text[:half]}… {len(text) - 2 * half} more …{text[len(text) - half :]}"


def value_text(value: Any, room: int) -> str:
    """Return a value on one harmless line; texts are quoted, so that they are not mistaken for other values."""
    if isinstance(value, str):
        return escaped(_beginning(json.dumps(value[: room + 1], ensure_ascii=False), room))
    if isinstance(value, (bytes, bytearray)):
        return f"<{size_text(len(value))}>"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"<integer of {value.bit_length()} bits>"
    if value is None or isinstance(value, (bool, int, float)):
        return _beginning(json.dumps(value), room)
    return escaped(_beginning(preview(value, room), room))


def _label(key: Any) -> str:
    if isinstance(key, str):
        return key if _BARE.fullmatch(key) and len(key) <= 100 else value_text(key, 100)
    return escaped(_beginning(repr(key), 100))


def escaped(text: str) -> str:
    """Return text with control and invisible characters escaped as `\\x1b`."""
    return _ODD.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _beginning(text: str, room: int) -> str:
    text = escaped(text[: room + 1])
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}…"


def _room(depth: int, width: int) -> int:
    return max(_LEAST, width - len(_INDENT) * depth - 2)
