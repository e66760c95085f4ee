"""What differs between two checkpoints of runs: their states and positions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import CodecError, StateInvalid
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import checkpoint_id
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.run_state import DONE, RunState
from holdfast.state.ops import Slot
from holdfast.state.standard_types import Allowance
from holdfast.state.types import Handler, Types
from holdfast.stores.base import RunInfo
from holdfast.views.diff.changes import Change, Difference, MapEdited
from holdfast.views.diff.difference import difference
from holdfast.views.diff.patch import Operation, json_patch
from holdfast.views.plain import LenientCodec, View, size_text, when

FACTS = ("workflow", "status", "wave", "node", "next", "pauses")
"""The facts about two positions that are compared."""


class _NoTypes(Types):
    def named(self, name: str) -> Handler | None:
        return None


PLAIN_CODEC = LenientCodec(_NoTypes())
"""Reads every type of the user's as plain data, so that it is looked into, none of the user's code is run, and
differences are the same wherever they are made."""


@dataclass(frozen=True, slots=True)
class Side(View):
    """The position of a run at a checkpoint."""

    JSON: ClassVar[str] = "run_id workflow checkpoint_id status wave node next pauses at"
    run_id: str
    workflow: str
    checkpoint_id: str
    """The newest checkpoint there; empty before the first."""
    at: dt.datetime
    status: str
    wave: int
    node: str
    """The node that finished last."""
    next: tuple[str, ...]
    """The nodes that were under way or to run next."""
    pauses: tuple[str, ...]
    """The names of what it waited for."""

    @classmethod
    def of(cls, loaded: Loaded) -> Side:
        """The place of a run as loaded."""
        run = loaded.run
        open_steps = (step for step in run.active() if step.status != DONE)
        upcoming = [step.node for step in open_steps if step.id not in run.frames]
        return cls(
            loaded.info.run,
            loaded.info.workflow,
            checkpoint_id(loaded.info.key, run.saved_seq) if run.saved_seq else "",
            when(run.updated_at),
            str(run.status),
            run.root.waves,
            base_name(run.root.last_node),
            tuple(dict.fromkeys(map(base_name, upcoming))),
            tuple(pause.name or base_name(pause.node) for pause in run.pauses.values()),
        )


@dataclass(frozen=True, slots=True)
class StateDifference(View):
    """What differs between two checkpoints; false if the states do not. Values of user types are plain data in it."""

    JSON: ClassVar[str] = (
        "one other same changes=state.count facts=changed_facts state=state.as_json not_compared"
    )

    one: Side
    other: Side
    state: Difference
    before: Mapping[str, Any]
    """The values of the keys that differ, at the one checkpoint."""
    after: Mapping[str, Any]
    """The same at the other."""
    not_compared: Mapping[str, str]
    """The keys that were not compared, and why: they are too large together, or cannot be read."""

    def __bool__(self) -> bool:
        return bool(self.state) or bool(self.not_compared)

    @property
    def same(self) -> bool:
        """Whether the states are the same, as far as they were compared."""
        return not self

    def changed_facts(self) -> dict[str, dict[str, Any]]:
        """Return what else differs, by name."""
        return {name: {"from": one, "to": other} for name, (one, other) in self.facts.items()}

    @property
    def facts(self) -> dict[str, tuple[Any, Any]]:
        """What else differs: workflow, status, wave, node, next, pauses; each as it was and is."""
        pairs = {name: (getattr(self.one, name), getattr(self.other, name)) for name in FACTS}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def patch(self) -> list[Operation]:
        """The difference of the states as JSON Patch (RFC 6902), on what `holdfast show RUN --state` prints.

        It leaves out the keys of `not_compared`.
        """
        return json_patch(dict(self.before), dict(self.after))


def load_plainly(journal: Journal, info: RunInfo, seq: int | None = None) -> Loaded:
    """Return a run at an entry, for `state_difference`."""
    return journal.load(info, PLAIN_CODEC, seq)


def state_difference(
    one: Loaded, other: Loaded, keys: Sequence[str] = (), allowance: Allowance | None = None
) -> StateDifference:
    """What makes the root state of `one` that of `other`; with `keys` of those keys only.

    Both come from `load_plainly`. A value that is stored as the same bytes in both is not decoded. Unless their keys
    are named, values that `allowance` does not take are not compared.
    """
    allowance = allowance or Allowance()
    mine, theirs = one.run.root.cells, other.run.root.cells
    every = list(dict.fromkeys((*mine, *theirs)))
    wanted = _wanted(every, keys, hide=_is_of_file(one.run, allowance) or _is_of_file(other.run, allowance))
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    changed: dict[str, Change] = {}
    not_compared: dict[str, str] = {}
    for key in wanted:
        slots = [cells[key] for cells in (mine, theirs) if key in cells]
        stored = [slot.written() for slot in slots]
        if len(slots) == 2 and (slots[0] is slots[1] or (stored[0] is not None and stored[0] == stored[1])):
            continue
        raws = [raw for written in stored for _, raw, *_ in written or ()]
        if not keys and not allowance.takes(*raws):
            not_compared[key] = f"changed, {size_text(sum(map(len, raws)))}; name it with --key"
            continue
        try:
            values = list(map(_value, slots))
        except (CodecError, TypeError) as error:
            not_compared[key] = f"it cannot be read here: {error}"
            continue
        if len(slots) == 2:
            found = difference(*values).change
            if found is None:
                continue
            changed[key] = found
        if key in mine:
            before[key] = values[0]
        if key in theirs:
            after[key] = values[-1]
    state = MapEdited(
        {key: value for key, value in after.items() if key not in mine},
        {key: value for key, value in before.items() if key not in theirs},
        changed,
    )
    found_any = Difference(state if before or after else None)
    return StateDifference(Side.of(one), Side.of(other), found_any, before, after, not_compared)


def _wanted(every: Sequence[str], keys: Sequence[str], *, hide: bool) -> list[str]:
    """The keys to compare: those named, else all but what the helper nodes of a workflow file keep."""
    unknown = [key for key in keys if key not in every]
    if unknown:
        known = ", ".join(every) or "none"
        raise StateInvalid(f"neither state has a key {unknown[0]!r}; there are: {known}")
    if keys:
        return list(dict.fromkeys(keys))
    return [key for key in every if not hide or ":" not in key]


def _is_of_file(run: RunState, allowance: Allowance) -> bool:
    config = PLAIN_CODEC.decode(run.config) if run.config and allowance.takes(run.config) else {}
    return isinstance(config, Mapping) and isinstance(config.get("workflow_file"), Mapping)


def _value(slot: Slot) -> Any:
    written = slot.written()
    if written is not None and len(written) == 1 and written[0][0] == "set":
        return PLAIN_CODEC.decode(written[0][1])
    return slot.get()
