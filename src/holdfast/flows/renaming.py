"""A step that was renamed while a run was under way: its nodes, and what it has left in the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.data.ops import advance
from holdfast.journal.run_state import DONE, RunState
from holdfast.plan.naming import renamed

Names = Mapping[str, str]
"""The new name of each step, by its old one."""


def renamed_nodes(names: Names, nodes: Iterable[str]) -> dict[str, str]:
    """The new name of every node of a renamed step. What names no step is left for the engine to refuse."""
    found = renamed(names, nodes)
    return {old: new for old, new in names.items() if old not in found} | found


def renamed_results(names: Names, run: RunState) -> dict[str, Any]:
    """What renamed steps have left, under their new names: an update of the state.

    Items that are finished while others of their wave are not have left something, too.
    """
    finished = [op for step in run.root.active.values() if step.status == DONE for op in step.ops]
    cells = advance(run.root.cells, finished)
    return {new: cells[old].get() for old, new in renamed(names, cells).items()}
