"""What is kept and what runs again, as people see it: a row per step, the items of a for-each counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.cli.display.progress import HELPERS, place_of
from holdfast.cli.display.text import count, money, one_line
from holdfast.cli.errors import worded
from holdfast.plan.naming import base_name

if TYPE_CHECKING:
    from holdfast.engine.travel.rerun import Rerun, RerunStep

_WORDS = {"kept": "kept", "rerun": "runs again", "undone": "undone"}


def rerun_lines(back: Rerun) -> list[str]:
    """The plan for people."""
    rows = list(_rows(back))
    width = max((len(name) for name, *_ in rows), default=0)
    where = (
        f"entry {back.seq} of run {back.base.run}" if back.seq else f"the beginning of run {back.base.run}"
    )
    cost = f", {money(back.cost_saved)}" if back.cost_saved else ""
    return [
        f"from {where}, this would be done:",
        *(f"  {name:<{width}}  {_WORDS[what]:<10}  {reason}" for name, what, reason in rows),
        f"{back.seconds_saved:.1f} s{cost} saved after that entry, and all before it; nothing was touched",
    ]


def _rows(back: Rerun) -> Iterator[tuple[str, str, str]]:
    """Each step once; one of several nodes runs again if any of them does."""
    groups: dict[tuple[str, ...], list[RerunStep]] = {}
    for step in back.steps:
        place = place_of(step.step, step.node)
        if place.role not in HELPERS.values():
            groups.setdefault((*place.path, str(place.visit)), []).append(step)
    for (*path, visit), steps in groups.items():
        again = [step for step in steps if step.what == "rerun"]
        items = [step for step in steps if step.step.endswith("]")]
        name = "/".join(path) + (f" ({visit})" if visit != "1" else "")
        some = [step for step in again if step in items]
        if items and some and len(some) < len(items):
            name = f"{name}: {len(some)} of {count(len(items), 'item')}"
        chosen = (again or steps)[0]
        yield name, chosen.what, one_line(worded(_by_step(chosen.reason)), 120)


def _by_step(reason: str) -> str:
    """A reason that names a node with the step that this belongs to."""
    head, quote, rest = reason.partition("'")
    name, end, tail = rest.partition("'")
    return f"{head}{quote}{base_name(name)}{end}{tail}" if quote else reason
