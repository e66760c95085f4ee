"""How much of a workflow file's run is finished, counted as people see it: steps and items, no helper nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.data.state import State
from holdfast.errors import CodecError
from holdfast.journal.run_state import DONE, RunState, Step
from holdfast.views.plain import CODEC

NO_STEPS = ("inputs", "output", "ledger")
"""Keys of a workflow file's state that are no steps."""


class Counts(NamedTuple):
    """Finished steps, each visit for itself, and finished items of for-each steps."""

    steps: int = 0
    items: int = 0

    def __str__(self) -> str:
        return self.told()

    def told(self, word: str = "") -> str:
        """`1 step`, `3 steps and 12 items`; with a word `3 finished steps and 12 items`."""
        named = f"{word} step" if word else "step"
        steps = f"{self.steps} {named}" if self.steps == 1 else f"{self.steps} {named}s"
        items = "1 item" if self.items == 1 else f"{self.items} items"
        return f"{steps} and {items}" if self.items else steps


NOTHING = Counts()


def counted(run: RunState) -> Counts:
    """What is finished of a run, in its open sub-workflows too, saved or in a wave that is not over."""
    steps = items = 0
    for frame in run.frames.values():
        state = State.view(frame.cells, CODEC, "", "", "", 0.0)
        done = [step for step in frame.active.values() if step.status == DONE and not step.skipped]
        steps += steps_in(state) + sum(_is_whole(step) for step in done)
        items += _items_in(state) + sum(step.key is not None for step in done)
    return Counts(steps, items)


def steps_in(state: Mapping[str, Any]) -> int:
    """How many times steps of a workflow file have come to an end, as its state tells."""
    return sum(_ends(state[name]) for name, _ in statuses(state))


def statuses(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each step that a workflow file's state tells of, with its status."""
    found = []
    for name in state:
        said: Any = state[name] if name not in NO_STEPS and ":" not in name else None
        if isinstance(said, Mapping) and isinstance(said.get("status"), str):
            found.append((name, said["status"]))
    return found


def _ends(record: Mapping[str, Any]) -> int:
    visits = record.get("visits", 1)
    number = visits if isinstance(visits, int) else 1
    return number - (record["status"] in ("running", "skipped"))


def _items_in(state: Mapping[str, Any]) -> int:
    return sum("error" not in item for items in _item_maps(state) for item in items.values())


def _item_maps(state: Mapping[str, Any]) -> Iterator[Mapping[str, Mapping[str, Any]]]:
    for name in state:
        found = state[name] if name.endswith(":items") else None
        if isinstance(found, Mapping) and all(isinstance(item, Mapping) for item in found.values()):
            yield found


def _is_whole(step: Step) -> bool:
    """Whether a finished step, whose wave is not over, is one that people see, and has come to its end."""
    if step.key is not None or ":" in step.node or step.node in NO_STEPS:
        return False
    try:
        said = [op.value for op in step.ops if op.kind == "set" and op.key == step.node]
    except CodecError:
        return False
    return bool(said) and isinstance(said[0], Mapping) and said[0].get("status") in ("completed", "failed")
