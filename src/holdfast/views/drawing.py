"""Graphs as SVG drawings: nodes in layers, with the states of a run's steps, made without anything but Python."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from holdfast.values import END, START
from holdfast.views.outlines import folded
from holdfast.views.plain import escaped
from holdfast.views.run_view import groups_of, is_function

MOST_NODES = 400
"""Of a larger graph the first nodes are drawn, and how many are left out."""
MOST_BENDS = 2_000
"""Edges over many layers bend in each; when all edges together have so many bends, the rest go straight."""
MOST_EDGES = 2_000
_SAID = 60
"""How many nodes the description for screen readers names."""

_HEIGHT, _GAP, _RISE, _MARGIN = 40.0, 22.0, 34.0, 12.0
_CHAR, _WIDEST = 7.0, 216.0

COLOURS: dict[str, tuple[str, str, str]] = {
    "pending": ("#ffffff", "#8b929c", ""),
    "next": ("#ffffff", "#1f66c1", ""),
    "running": ("#e5f0ff", "#1f66c1", "●"),
    "retrying": ("#fff1db", "#a35c00", "↻"),
    "waiting": ("#fff6d6", "#8a6100", "?"),
    "interrupted": ("#f3eaff", "#7a45c4", "!"),
    "failed": ("#fdeaea", "#c22f2f", "✕"),
    "skipped": ("#f1f2f4", "#737b86", "»"),
    "completed": ("#e4f6ea", "#217a47", "✓"),
}
"""By status: the colours of a node's box and border, and its sign, so that no status is known by colour alone."""

States = Mapping[str, "str | Mapping[str, Any]"]
"""By step: its status, or its facts as `holdfast show --json` has them: status, attempts, items, seconds."""


@dataclass(slots=True)
class _Box:
    """A node, or the bend of an edge, at its place in the drawing."""

    name: str
    width: float = 0.0
    layer: int = 0
    x: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)


class _Line(NamedTuple):
    """An edge. One `choice` of several is dashed."""

    source: str
    target: str
    label: str
    choice: bool


def svg(
    graph: Any,
    states: States | None = None,
    *,
    link: Callable[[str], str] | None = None,
    title: str = "",
) -> str:
    """Return a graph as an SVG drawing.

    `graph` is an `App`, or an outline: plain data, as `App.outline()` and runs have it. `states` says how far each step
    is; the views of a run's steps as JSON, by name, fit. Groups and sub-graphs are one node that says how many of its
    steps are done, and a for-each says how many items are. `link` gives the address that a node leads to.
    """
    whole = graph if isinstance(graph, Mapping) else graph.outline()
    outline = folded(whole, of_file="last" in whole or bool(groups_of(whole)))
    left_out = max(0, len(outline["nodes"]) - MOST_NODES)
    names = [START, *list(outline["nodes"])[:MOST_NODES], END]
    lines = _lines(outline, set(names))
    nodes = (
        {} if is_function(whole) else outline["nodes"]
    )  # The calls of a function are not known beforehand.
    known = {name: _facts(name, nodes.get(name, {}), states or {}) for name in names[1:-1]}
    layout = _Layout(names, lines)
    heading = title or _text(str(outline.get("name") or "workflow"), 80)
    return _Drawing(layout, known, link, left_out).text(heading, lines)


def _lines(outline: Mapping[str, Any], drawn: set[str]) -> list[_Line]:
    """Return every edge between drawn nodes once, in order."""
    found: dict[tuple[str, str], _Line] = {}

    def note(source: str, target: str, label: str = "", choice: bool = False) -> None:
        if {source, target} <= drawn and len(found) < MOST_EDGES:
            found.setdefault((source, target), _Line(source, target, label, choice))

    for source, target, label, conditional in outline["edges"]:
        note(source, target, label, conditional)
    for sources, target in outline["joins"]:
        for source in sources:
            note(source, target)
    for source, targets in outline["routes"]:
        for target in targets:
            note(source, target, "", True)
    reached = {line.target for line in found.values()}
    unknown = [source for source, targets in outline["routes"] if not targets]
    for source in unknown:  # A route that does not say where it leads may lead wherever nothing else does.
        for target in (name for name in outline["nodes"] if name not in reached and name != source):
            note(source, target, "", True)
    leaving = {line.source for line in found.values()}
    for name in outline["nodes"]:
        if name in outline["exits"] or name not in leaving:
            note(name, END, "", name in leaving)
    return list(found.values())


# What is known of a node.


class _Facts(NamedTuple):
    status: str = ""
    note: str = ""
    done: int = 0
    total: int = 0
    is_group: bool = False


def _facts(name: str, node: Mapping[str, Any], states: States) -> _Facts:
    own = _state(states.get(name, {}))
    inner = node.get("graph")
    members = [] if inner is None else [_member(name, each, states) for each in inner["nodes"]]
    items = own.get("items")
    total, done = 0, 0
    if isinstance(items, Mapping):
        total, done = _number(items.get("total")), _number(items.get("completed"))
    elif members:
        total, done = len(members), sum(each in ("completed", "skipped") for each in members)
    status = str(own.get("status") or _together(members))
    attempts = _number(own.get("attempts"))
    visits = _number(own.get("visits"))
    parts = [f"{done} of {total}"] if total else []
    parts += [f"attempt {attempts}"] if status == "retrying" else []
    parts += [f"{visits} visits"] if visits > 1 and not total else []
    seconds = own.get("seconds") if own.get("started_at", True) else None
    if not parts and isinstance(seconds, (int, float)) and status in ("completed", "failed"):
        parts.append(f"{seconds:.1f}s" if seconds < 100 else f"{seconds / 60:.0f}m")
    return _Facts(status if status in COLOURS else "", ", ".join(parts), done, total, inner is not None)


def _state(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {"status": str(found)}


def _member(group: str, name: str, states: States) -> str:
    found = states.get(f"{group}/{name}", states.get(name, {}))
    return str(_state(found).get("status", ""))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _together(members: Sequence[str]) -> str:
    """Return the status of a group, by those of its members."""
    for status in ("failed", "waiting", "interrupted", "retrying", "running"):
        if status in members:
            return status
    if members and all(each in ("completed", "skipped") for each in members):
        return "completed"
    return "running" if "completed" in members else "pending" if any(members) else ""


# Layout: layers by the longest path, few crossings, nodes near their neighbours.


class _Layout:
    """Where each node is, and the bends of each edge."""

    def __init__(self, names: Sequence[str], lines: Sequence[_Line]) -> None:
        self.boxes = [_Box(name, _width(name)) for name in names]
        self._index = {name: number for number, name in enumerate(names)}
        pairs = [(self._index[line.source], self._index[line.target]) for line in lines]
        self.back = self._loops(pairs)
        down = [(b, a) if (a, b) in self.back else (a, b) for a, b in pairs if a != b]
        self._set_layers(down)
        self.bends = {}
        for pair in pairs:
            self.bends[pair] = (
                self._bend(*(pair[::-1] if pair in self.back else pair)) if pair[0] != pair[1] else []
            )
        self.layers: list[list[int]] = [[] for _ in range(1 + max(box.layer for box in self.boxes))]
        for number, box in enumerate(self.boxes):
            self.layers[box.layer].append(number)
        self._order()
        self._place()

    def _loops(self, pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the edges that lead back, found by walking every path from the start."""
        after: dict[int, list[int]] = {}
        for source, target in pairs:
            after.setdefault(source, []).append(target)
        seen: set[int] = set()
        found: set[tuple[int, int]] = set()
        for root in range(len(self.boxes)):
            if root in seen:
                continue
            seen.add(root)
            stack, open_now = [(root, iter(after.get(root, ())))], {root}
            while stack:
                number, rest = stack[-1]
                target = next(rest, -1)
                if target < 0:
                    stack.pop()
                    open_now.discard(number)
                elif target in open_now:
                    found.add((number, target))
                elif target not in seen:
                    seen.add(target)
                    open_now.add(target)
                    stack.append((target, iter(after.get(target, ()))))
        return {pair for pair in found if pair[0] != pair[1]}

    def _set_layers(self, down: Sequence[tuple[int, int]]) -> None:
        after: dict[int, list[int]] = {}
        waiting = [0] * len(self.boxes)
        for source, target in down:
            after.setdefault(source, []).append(target)
            waiting[target] += 1
        ready = [number for number, count in enumerate(waiting) if not count]
        for number in ready:
            self.boxes[number].layer = max(self.boxes[number].layer, 1 if number else 0)
        while ready:
            number = ready.pop()
            for target in after.get(number, ()):
                self.boxes[target].layer = max(self.boxes[target].layer, self.boxes[number].layer + 1)
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
        end = self._index[END]
        self.boxes[end].layer = 1 + max(box.layer for box in self.boxes if box.name != END)

    def _bend(self, top: int, bottom: int) -> list[int]:
        """Connect two nodes, with a bend in every layer between them; return the bends."""
        first, last = self.boxes[top].layer, self.boxes[bottom].layer
        bends = []
        if len(self.boxes) + last - first < MOST_BENDS:
            for layer in range(first + 1, last):
                bends.append(len(self.boxes))
                self.boxes.append(_Box("", 4.0, layer))
        for above, below in zip([top, *bends], [*bends, bottom], strict=True):
            self.boxes[above].below.append(below)
            self.boxes[below].above.append(above)
        return bends

    def _order(self) -> None:
        """Put each layer into an order with few crossings: near the middle of the neighbours, from both sides."""
        place = {number: float(at) for layer in self.layers for at, number in enumerate(layer)}
        for turn in range(4):
            is_down = turn % 2 == 0
            for layer in self.layers if is_down else reversed(self.layers):
                keys = {}
                for number in layer:
                    near = self.boxes[number].above if is_down else self.boxes[number].below
                    keys[number] = sum(place[each] for each in near) / len(near) if near else place[number]
                layer.sort(key=keys.__getitem__)
                place.update((number, float(at)) for at, number in enumerate(layer))

    def _place(self) -> None:
        """Set every x: as near to the middle of the neighbours as the order and the widths allow."""
        for layer in self.layers:
            x = -sum(self.boxes[number].width + _GAP for number in layer) / 2
            for number in layer:
                self.boxes[number].x = x + self.boxes[number].width / 2
                x += self.boxes[number].width + _GAP
        for turn in range(4):
            is_down = turn % 2 == 0
            for layer in self.layers if is_down else reversed(self.layers):
                aims = []
                for number in layer:
                    box = self.boxes[number]
                    near = (box.above if is_down else box.below) or [number]
                    aims.append(sum(self.boxes[each].x for each in near) / len(near))
                self._settle(layer, aims)

    def _settle(self, layer: Sequence[int], aims: Sequence[float]) -> None:
        """Put the boxes of a layer as near to their aims as their order and the gaps between them allow."""
        offset, offsets = 0.0, []
        for at, number in enumerate(layer):
            if at:
                before, box = self.boxes[layer[at - 1]], self.boxes[number]
                offset += (before.width + box.width) / 2 + (_GAP if before.name or box.name else _GAP / 2)
            offsets.append(offset)
        blocks: list[
            tuple[float, int]
        ] = []  # The sum of what the members of each block want, and their number.
        for aim, shift in zip(aims, offsets, strict=True):
            total, count = aim - shift, 1
            while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
                other = blocks.pop()
                total, count = total + other[0], count + other[1]
            blocks.append((total, count))
        bases = [total / count for total, count in blocks for _ in range(count)]
        for number, base, shift in zip(layer, bases, offsets, strict=True):
            self.boxes[number].x = base + shift

    def y(self, layer: int) -> float:
        """Return the middle of a layer."""
        return _MARGIN + _HEIGHT / 2 + layer * (_HEIGHT + _RISE)

    def number(self, name: str) -> int:
        """Return the number of a node."""
        return self._index[name]


def _width(name: str) -> float:
    if name in (START, END):
        return 52.0
    return min(_WIDEST, max(84.0, _length(_text(name, 60)) * _CHAR + 44))


def _length(text: str) -> int:
    """Return how many narrow characters wide a text is."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _text(text: str, limit: int) -> str:
    """Return a text as one harmless line, cut in the middle."""
    line = " ".join(escaped(text).split())
    if _length(line) <= limit:
        return line
    half = (limit - 1) // (2 if _length(line) == len(line) else 4)
    return f"{line[:half]}…{line[-half:]}"


# Drawing.


class _Drawing:
    """The text of a drawing."""

    def __init__(
        self, layout: _Layout, known: Mapping[str, _Facts], link: Callable[[str], str] | None, left_out: int
    ) -> None:
        self._layout, self._known, self._link, self._left_out = layout, known, link, left_out
        edges = [(box.x - box.width / 2, box.x + box.width / 2) for box in layout.boxes]
        self._shift = _MARGIN - min(left for left, _ in edges)
        self._width = max(right for _, right in edges) + self._shift + _MARGIN + 24
        self._height = layout.y(len(layout.layers) - 1) + _HEIGHT / 2 + _MARGIN + (24 if left_out else 0)

    def text(self, heading: str, lines: Sequence[_Line]) -> str:
        """Return the whole drawing."""
        role = "group" if self._link else "img"
        described = self._description(lines)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="hf-graph" role="{role}" '
            f'aria-label="{escape(f"Graph of {heading}. {described}")}" width="{self._width:.0f}" '
            f'height="{self._height:.0f}" viewBox="0 0 {self._width:.0f} {self._height:.0f}" '
            'font-family="system-ui, sans-serif" font-size="13">',
            f"<title>{escape(f'Graph of {heading}')}</title><desc>{escape(described)}</desc>",
            *(self._line(line) for line in lines),
            *(self._node(box) for box in self._layout.boxes if box.name),
        ]
        if self._left_out:
            parts.append(
                f'<text class="hf-note" x="{_MARGIN}" y="{self._height - _MARGIN:.1f}" fill="#5b636e">'
                f"and {self._left_out:,} more nodes, which are not drawn</text>"
            )
        return "".join([*parts, "</svg>"])

    def _description(self, lines: Sequence[_Line]) -> str:
        """Return the graph in words, for those who do not see it."""
        after: dict[str, list[str]] = {}
        for line in lines:
            after.setdefault(line.source, []).append(
                "the end" if line.target == END else _text(line.target, 60)
            )
        said = []
        for name in (START, *list(self._known)[:_SAID]):
            facts = self._known.get(name, _Facts())
            state = ", ".join(part for part in (facts.status, facts.note) if part)
            subject = "The start" if name == START else _text(name, 60)
            targets = after.get(name, ["the end"])
            more = f" and {len(targets) - 8} more" if len(targets) > 8 else ""
            said.append(f"{subject}{f' ({state})' if state else ''} leads to {', '.join(targets[:8])}{more}.")
        if len(self._known) > _SAID:
            said.append(f"And {len(self._known) - _SAID} more nodes.")
        return " ".join(said)

    def _node(self, box: _Box) -> str:
        x, y = box.x + self._shift, self._layout.y(box.layer)
        if box.name in (START, END):
            word = "start" if box.name == START else "end"
            return (
                f'<g class="hf-ends"><rect x="{x - 26:.1f}" y="{y - 12:.1f}" width="52" height="24" rx="12" '
                f'fill="#ffffff" stroke="#8b929c"/><text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" '
                f'font-size="12" fill="#4a525c">{word}</text></g>'
            )
        facts = self._known[box.name]
        drawn = self._box(box, x, y, facts)
        if self._link is None:
            return drawn
        named = ", ".join(part for part in (_text(box.name, 200), facts.status, facts.note) if part)
        return f'<a href="{escape(self._link(box.name))}" aria-label="{escape(named)}">{drawn}</a>'

    def _box(self, box: _Box, x: float, y: float, facts: _Facts) -> str:
        fill, stroke, sign = COLOURS[facts.status or "pending"]
        left, top, width = x - box.width / 2, y - _HEIGHT / 2, box.width
        dash = ' stroke-dasharray="4 3"' if facts.status in ("next", "skipped") else ""
        common = f'y="{top:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" rx="7"'
        parts = [
            f'<g class="hf-node hf-{facts.status or "plain"}"><title>{escape(_text(box.name, 400))}</title>'
        ]
        if facts.is_group:
            parts.append(
                f'<rect class="hf-box" x="{left + 4:.1f}" y="{top - 4:.1f}" width="{width:.1f}" '
                f'height="{_HEIGHT:.0f}" rx="7" fill="{fill}" stroke="{stroke}"/>'
            )
        parts.append(f'<rect class="hf-box" x="{left:.1f}" {common} fill="{fill}" stroke="{stroke}"{dash}/>')
        label = escape(_text(box.name, int((_WIDEST - 36) / _CHAR)))
        base = y - 2 if facts.note else y + 4.5
        parts.append(f'<text x="{x:.1f}" y="{base:.1f}" text-anchor="middle" fill="#1c2126">{label}</text>')
        if facts.note:
            parts.append(
                f'<text class="hf-note" x="{x:.1f}" y="{y + 13:.1f}" text-anchor="middle" font-size="11" '
                f'fill="#4a525c">{escape(facts.note)}</text>'
            )
        if sign:
            parts.append(
                f'<text class="hf-sign" x="{left + 12:.1f}" y="{y + 4.5:.1f}" text-anchor="middle" '
                f'font-size="12" fill="{stroke}" aria-hidden="true">{sign}</text>'
            )
        if facts.total:
            share = (width - 12) * min(1.0, facts.done / facts.total)
            parts.append(
                f'<rect class="hf-progress" x="{left + 6:.1f}" y="{top + _HEIGHT - 5:.1f}" '
                f'width="{share:.1f}" height="2.5" rx="1.2" fill="{stroke}"/>'
            )
        return "".join([*parts, "</g>"])

    def _line(self, line: _Line) -> str:
        layout = self._layout
        pair = layout.number(line.source), layout.number(line.target)
        if pair[0] == pair[1]:
            return self._self_loop(layout.boxes[pair[0]])
        is_back = pair in layout.back
        ends = pair[::-1] if is_back else pair
        chain = [ends[0], *layout.bends[pair], ends[1]]
        points = [(layout.boxes[each].x + self._shift, layout.y(layout.boxes[each].layer)) for each in chain]
        if is_back:  # Beside the edges that lead on.
            points[0] = (points[0][0] + min(16.0, layout.boxes[ends[0]].width / 4), points[0][1])
            points[-1] = (points[-1][0] + min(16.0, layout.boxes[ends[1]].width / 4), points[-1][1])
        half = [12.0 if layout.boxes[each].name in (START, END) else _HEIGHT / 2 for each in ends]
        points[0] = (points[0][0], points[0][1] + half[0] + (6 if is_back else 0))
        points[-1] = (points[-1][0], points[-1][1] - half[1] - (0 if is_back else 6))
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            bow = (y1 - y0) / 2
            path += f"C{x0:.1f} {y0 + bow:.1f} {x1:.1f} {y1 - bow:.1f} {x1:.1f} {y1:.1f}"
        (x, y), tip = (points[0], -6) if is_back else (points[-1], 6)
        dash = ' stroke-dasharray="5 4"' if line.choice else ""
        label = f"<title>{escape(_text(line.label, 300))}</title>" if line.label else ""
        return (
            f'<g class="hf-edge">{label}<path d="{path}" fill="none" stroke="#8b929c" stroke-width="1.4"{dash}/>'
            f'<path class="hf-arrow" d="M{x - 4:.1f} {y:.1f}h8l-4 {tip}z" fill="#8b929c"/></g>'
        )

    def _self_loop(self, box: _Box) -> str:
        x, y = box.x + self._shift + box.width / 2, self._layout.y(box.layer)
        return (
            f'<g class="hf-edge"><path d="M{x:.1f} {y - 9:.1f}c22 -10 22 28 6 18" fill="none" stroke="#8b929c" '
            f'stroke-width="1.4"/><path class="hf-arrow" d="M{x + 6:.1f} {y + 5:.1f}v8l-6 -4z" fill="#8b929c"/></g>'
        )
