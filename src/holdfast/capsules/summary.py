"""What a capsule says of its run to those who cannot read journals: definition, ledger, environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.capsules.bounds import unpacked_bytes
from holdfast.errors import CapsuleInvalid, CodecError
from holdfast.journal.run_state import RunState, Spending
from holdfast.views.plain import CODEC, plain

MOST_PARTS = 200_000
"""A value with more parts is not read for a summary."""


def summary_of(run: RunState) -> dict[str, Any]:
    """The summary of a run, from its journal alone: the same wherever it is made."""
    flow = flow_of(run)
    return {
        "workflow": plain(run.workflow),
        "definition": plain(run.outline),
        "flow": None if flow is None else {key: plain(flow.get(key)) for key in ("path", "digest")},
        "ledger": ledger_of(run),
        "environment": plain(decoded(run.facts)),
        "steps_done": run.steps_done,
        "seconds": round(float(run.seconds), 6),
    }


def ledger_of(run: RunState) -> dict[str, Any]:
    """What the run used up: in all, and by node."""
    return {
        **_spent(run.spending.values()),
        "nodes": {plain(node): _spent([spent]) for node, spent in run.spending.items()},
    }


def _spent(lines: Any) -> dict[str, Any]:
    sums = [sum(column) for column in zip(*lines, strict=True)] or [0] * len(Spending._fields)
    return dict(zip(Spending._fields, sums, strict=True))


def flow_of(run: RunState) -> Mapping[str, Any] | None:
    """The workflow file that the run was started with, its source included; `None` for a Python graph."""
    config = decoded(run.config)
    found = config.get("flow") if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else None


def decoded(raw: bytes) -> Any:
    """A stored value, unless it is none, or has so many parts that a stranger may have meant harm."""
    if not raw:
        return None
    try:
        unpacked_bytes(raw, MOST_PARTS)
        return CODEC.decode(raw)
    except (CapsuleInvalid, CodecError):
        return None
