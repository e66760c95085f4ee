"""What differs between two values, as a frozen tree: what was replaced, edited, inserted and removed."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from holdfast.errors import StateInvalid
from holdfast.state.codec import stored_class
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


# Which items of two sequences are the same ones: near-linear, whatever the sequences are.


class Block(NamedTuple):
    """`length` items that are the same, from `before` on in one sequence and from `after` on in the other."""

    before: int
    after: int
    length: int


class Region(NamedTuple):
    """A stretch of each sequence: from the first index up to the second."""

    before: int
    before_end: int
    after: int
    after_end: int


Pairs = Iterable[tuple[int, int]]

_SMALL = 4096
"""How large the product of the lengths of two stretches may be to be compared exhaustively."""


def align(one: Sequence[int], other: Sequence[int]) -> list[Block]:
    """The blocks that both have, in order and without overlap.

    What both begin and end with first; then items that each has once; between those again; and what
    is left exhaustively if it is little, else by occurrences: the second of a kind is taken for the second.
    """
    ways = (_unique, _unique, _rest)
    return list(_joined(_blocks(one, other, Region(0, len(one), 0, len(other)), ways)))


def _blocks(
    one: Sequence[int], other: Sequence[int], region: Region, ways: tuple[Callable[..., Pairs], ...]
) -> Iterator[Block]:
    start = _same_start(one, other, region)
    end = _same_end(one, other, region, start)
    if start:
        yield Block(region.before, region.after, start)
    before, before_end = region.before + start, region.before_end - end
    after, after_end = region.after + start, region.after_end - end
    if ways and before < before_end and after < after_end:
        inner = Region(before, before_end, after, after_end)
        for i, j in [*rising(ways[0](one, other, inner)), (before_end, after_end)]:
            if before < i and after < j:
                yield from _blocks(one, other, Region(before, i, after, j), ways[1:])
            if i < before_end:
                yield Block(i, j, 1)
            before, after = i + 1, j + 1
    if end:
        yield Block(before_end, after_end, end)


def _same_start(one: Sequence[int], other: Sequence[int], region: Region) -> int:
    length = min(region.before_end - region.before, region.after_end - region.after)
    for offset in range(length):
        if one[region.before + offset] != other[region.after + offset]:
            return offset
    return length


def _same_end(one: Sequence[int], other: Sequence[int], region: Region, start: int) -> int:
    length = min(region.before_end - region.before, region.after_end - region.after) - start
    for offset in range(length):
        if one[region.before_end - 1 - offset] != other[region.after_end - 1 - offset]:
            return offset
    return length


def _unique(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """The places of what each stretch has exactly once."""
    mine = Counter(one[region.before : region.before_end])
    theirs = Counter(other[region.after : region.after_end])
    places = {
        other[place]: place
        for place in range(region.after, region.after_end)
        if theirs[other[place]] == 1 and mine.get(other[place]) == 1
    }
    for place in range(region.before, region.before_end):
        if one[place] in places:
            yield place, places[one[place]]


def _rest(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """What is left: as many pairs as there can be in a small stretch, else by occurrences."""
    rows, columns = region.before_end - region.before, region.after_end - region.after
    return (_most if rows * columns <= _SMALL else _occurrences)(one, other, region)


def _most(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """A longest common subsequence, by the table of those of all ends."""
    mine = one[region.before : region.before_end]
    theirs = other[region.after : region.after_end]
    table = [[0] * (len(theirs) + 1) for _ in range(len(mine) + 1)]
    for i in range(len(mine) - 1, -1, -1):
        row, below = table[i], table[i + 1]
        for j in range(len(theirs) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if mine[i] == theirs[j] else max(below[j], row[j + 1])
    i = j = 0
    while i < len(mine) and j < len(theirs):
        if mine[i] == theirs[j]:
            yield region.before + i, region.after + j
            i, j = i + 1, j + 1
        elif table[i + 1][j] >= table[i][j + 1]:
            i += 1
        else:
            j += 1


def _occurrences(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """The places of the first of a kind in each, of the second, and so on."""
    places: dict[int, list[int]] = {}
    for place in range(region.after_end - 1, region.after - 1, -1):
        places.setdefault(other[place], []).append(place)
    for place in range(region.before, region.before_end):
        left = places.get(one[place])
        if left:
            yield place, left.pop()


def rising(pairs: Pairs) -> list[tuple[int, int]]:
    """The most pairs, which are given in order of their first part, whose second parts rise too."""
    found = list(pairs)
    tops: list[int] = []
    at_top: list[int] = []
    below: list[int] = []
    for index, (_, second) in enumerate(found):
        pile = bisect_left(tops, second)
        if pile == len(tops):
            tops.append(second)
            at_top.append(index)
        else:
            tops[pile], at_top[pile] = second, index
        below.append(at_top[pile - 1] if pile else -1)
    chosen = []
    index = at_top[-1] if at_top else -1
    while index >= 0:
        chosen.append(found[index])
        index = below[index]
    return chosen[::-1]


def _joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """Blocks that touch as one."""
    last: Block | None = None
    for block in blocks:
        if last is not None and (last.before + last.length, last.after + last.length) == block[:2]:
            last = Block(last.before, last.after, last.length + block.length)
            continue
        if last is not None:
            yield last
        last = block
    if last is not None:
        yield last


def gaps(blocks: Iterable[Block], one_length: int, other_length: int) -> Iterator[Region]:
    """What lies between the blocks, before the first and after the last."""
    before = after = 0
    for block in [*blocks, Block(one_length, other_length, 0)]:
        if block.before > before or block.after > after:
            yield Region(before, block.before, after, block.after)
        before, after = block.before + block.length, block.after + block.length


# Differences of texts: by lines, and within one long line by what stands between its equal ends.


LONG = 80
"""A text of more characters, or of several lines, is compared inside."""

AROUND = 3
"""How many lines are shown around a change."""

NEARBY = 30
"""How many characters are shown around a replaced span."""

MOST_LINES = 1_000_000
"""Texts that differ in a stretch of more lines are compared as one line."""


def is_long(text: str) -> bool:
    """Whether a text is compared inside."""
    return len(text) > LONG or "\n" in text


def text_change(one: str, other: str) -> TextEdited | SpanReplaced:
    """What differs between two texts that differ."""
    start = common_start(one, other)
    end = common_end(one, other, start)
    middle = _Middle.of(one, other, start, end)
    if middle is None:
        return _span(one, other, start, end)
    return TextEdited(tuple(_hunks(middle)))


def _span(one: str, other: str, start: int, end: int) -> SpanReplaced:
    stop = len(one) - end
    lead, trail = one[max(0, start - NEARBY) : start], one[stop : stop + NEARBY]
    return SpanReplaced(start, one[start:stop], other[start : len(other) - end], lead, trail)


def common_start(one: str, other: str) -> int:
    """How many characters both begin with. Halves are compared, so that it is done at the speed of memory."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_end(one: str, other: str, start: int) -> int:
    """How many characters both end with, apart from the `start` that they begin with."""
    low, high = 0, min(len(one), len(other)) - start
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    return low


class _Middle(NamedTuple):
    """The lines in which two texts differ and some around them; `first` is the number of the first one."""

    first: int
    one: list[str]
    other: list[str]

    @classmethod
    def of(cls, one: str, other: str, start: int, end: int) -> _Middle | None:
        """`None` for texts that are not worth to be compared by lines."""
        if "\n" not in one and "\n" not in other:
            return None
        begin = start
        for _ in range(AROUND + 1):
            begin = one.rfind("\n", 0, max(begin - 1, 0)) + 1 if begin else 0
        stop = len(one) - end
        for _ in range(AROUND + 1):
            found = one.find("\n", stop + 1)
            stop = len(one) if found < 0 else found
        other_stop = len(other) - (len(one) - stop)
        most = max(one.count("\n", begin, stop), other.count("\n", begin, other_stop))
        if most > MOST_LINES:
            return None
        lines = one[begin:stop].split("\n"), other[begin:other_stop].split("\n")
        return cls(one.count("\n", 0, begin), *lines)


def _hunks(middle: _Middle) -> Iterator[Hunk]:
    """The changed stretches with the lines around them, those that are near to each other as one."""
    numbers: dict[str, int] = {}
    one, other = ([numbers.setdefault(line, len(numbers)) for line in lines] for lines in middle[1:])
    group: list[Region] = []
    for gap in gaps(align(one, other), len(one), len(other)):
        if group and gap.before - group[-1].before_end > 2 * AROUND:
            yield _hunk(middle, group)
            group = []
        group.append(gap)
    yield _hunk(middle, group)


def _hunk(middle: _Middle, group: list[Region]) -> Hunk:
    lead = min(AROUND, group[0].before)
    at = group[0].before - lead
    lines: list[tuple[str, str]] = []
    for gap in group:
        lines += [(" ", line) for line in middle.one[at : gap.before]]
        lines += [("-", line) for line in middle.one[gap.before : gap.before_end]]
        lines += [("+", line) for line in middle.other[gap.after : gap.after_end]]
        at = gap.before_end
    lines += [(" ", line) for line in middle.one[at : at + AROUND]]
    first = middle.first - lead
    return Hunk(first + group[0].before, first + group[0].after, tuple(lines))


# JSON Pointers (RFC 6901): the way to a part of a JSON document.


_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]*")


class PatchError(StateInvalid):
    """A JSON Patch is malformed, or does not fit the document."""


def escaped(token: str) -> str:
    """A key as a pointer has it."""
    return token.replace("~", "~0").replace("/", "~1")


def pointer(tokens: Iterable[str | int]) -> str:
    """The pointer to a part, from the keys and indexes that lead there."""
    return "".join(f"/{escaped(str(token))}" for token in tokens)


def tokens_of(text: Any) -> list[str]:
    """The keys and indexes that lead to a part."""
    if not isinstance(text, str):
        raise PatchError(f"a JSON Pointer is text, not {type(text).__name__}")
    if text and not text.startswith("/"):
        raise PatchError(f"the JSON Pointer {text!r} does not begin with '/'")
    if _BAD_ESCAPE.search(text):
        raise PatchError(f"the JSON Pointer {text!r} has a '~' that is neither '~0' nor '~1'")
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def index_of(token: str, length: int, where: str) -> int:
    """The index that a token means in a list of `length` places."""
    if token == "-":
        raise PatchError(f"{where}: '-' means the end of a list, where there is no item")
    if not _INDEX.fullmatch(token):
        raise PatchError(f"{where}: {token!r} is not the index of an item")
    if len(token) > len(str(length)) or int(token) >= length:
        raise PatchError(f"{where}: there is no place {token} in a list of {length}")
    return int(token)


def step_into(document: Any, token: str, where: str) -> Any:
    """The part of an object or list that a token names."""
    if isinstance(document, dict):
        if token not in document:
            raise PatchError(f"{where}: there is no key {token!r}")
        return document[token]
    if isinstance(document, list):
        return document[index_of(token, len(document), where)]
    raise PatchError(f"{where}: {token!r} would be inside of what is neither an object nor a list")


def part_of(document: Any, tokens: Iterable[str], where: str) -> Any:
    """The part of a document that tokens lead to."""
    for token in tokens:
        document = step_into(document, token, where)
    return document
