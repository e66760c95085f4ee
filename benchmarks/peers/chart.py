"""The chart of the results: bars on a logarithmic axis, as plain SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from results import NAMES, Results
from table import STORES, seconds, times_of, title

LEFT, WIDTH, BAR, GAP, PANEL = 300, 560, 13, 16, 58
COLOURS = {
    "holdfast": "#2f7de1",
    "holdfast_process": "#7fb2f0",
    "langgraph": "#2a9d74",
    "langgraph_delta": "#8cc9b2",
    "dbos": "#d9822b",
    "burr": "#b0578d",
    "raw": "#8a8f98",
}
STYLE = """
text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1f2328 }
.ground { fill: #ffffff } .grid { stroke: #d0d7de } .small { font-size: 10px }
.head { font-weight: 600; font-size: 14px }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .ground { fill: #0d1117 } .grid { stroke: #3d444d }
}
"""


def svg(results: Results) -> str:
    """Draw the wall times of all contenders: a panel for each store, a group of bars for each workload."""
    axis = Axis.over([sample.wall for sample in results.samples])
    drawn, y = [], 46
    for store in results.stores():
        drawn.append(f'<text class="head" x="12" y="{y}">{STORES[store]}</text>')
        top = y + 12
        bars, bottom = _panel(results, store, axis, top)
        drawn += [*_grid(axis, top, bottom), *bars]
        y = bottom + PANEL
    note = f"Wall time, median of the rounds, logarithmic; shorter is better. {_versions(results)}"
    drawn.append(f'<text class="small" x="12" y="{y - 16}">{escape(note)}</text>')
    wide, high = LEFT + WIDTH + 110, y
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
        f'aria-label="Wall times of Holdfast and its peers"><style>{STYLE}</style>'
        f'<rect class="ground" width="{wide}" height="{high}"/>\n'
        + "\n".join([*_legend(results), *drawn])
        + "\n</svg>\n"
    )


class Axis:
    """Map seconds to positions, a power of ten for each line of the grid."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    @classmethod
    def over(cls, values: list[float]) -> Axis:
        return cls(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))))

    def at(self, value: float) -> float:
        return WIDTH * (math.log10(value) - self.least) / max(1, self.most - self.least)


def _panel(results: Results, store: str, axis: Axis, y: int) -> tuple[list[str], int]:
    drawn = []
    for workload in results.workloads():
        y += GAP // 2
        middle = y
        for contender in results.contenders():
            wall = results.median(store, workload, contender, "wall")
            if wall is None:
                continue
            length, ratio = axis.at(wall), results.ratio(store, workload, contender, "wall")
            label = seconds(wall) if contender == "holdfast" or ratio is None else times_of(ratio)
            drawn.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 3}" rx="2" '
                f'fill="{COLOURS[contender]}"><title>{NAMES[contender]}: {seconds(wall)}</title></rect>'
                f'<text class="small" x="{LEFT + length + 5:.1f}" y="{y + BAR - 5}">{label}</text>'
            )
            y += BAR
        name = escape(title(results, workload))
        place = (middle + y) // 2 + 2
        drawn.append(f'<text x="{LEFT - 10}" y="{place}" text-anchor="end">{name}</text>')
        y += GAP // 2
    return drawn, y


def _grid(axis: Axis, top: int, bottom: int) -> Iterator[str]:
    for power in range(axis.least, axis.most + 1):
        x = LEFT + axis.at(10.0**power)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        place = f'x="{x:.1f}" y="{bottom + 14}" text-anchor="middle"'
        yield f'<text class="small" {place}>{_power(power)}</text>'


def _power(power: int) -> str:
    return f"{10**power:g} s" if power >= 0 else f"{10 ** (power + 3):g} ms"


def _legend(results: Results) -> Iterator[str]:
    x = 12
    for contender in results.contenders():
        yield (
            f'<rect x="{x}" y="12" width="11" height="11" rx="2" fill="{COLOURS[contender]}"/>'
            f'<text x="{x + 16}" y="22">{NAMES[contender]}</text>'
        )
        x += 34 + 7 * len(NAMES[contender])


def _versions(results: Results) -> str:
    named = ("langgraph", "dbos", "burr", "PostgreSQL", "Python")
    return ", ".join(f"{name} {results.facts[name]}" for name in named if name in results.facts)
