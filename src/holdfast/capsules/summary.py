"""What a capsule says of its run to those who cannot read journals: definition, ledger, environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.capsules.bounds import unpacked_bytes
from holdfast.errors import CapsuleInvalid, CodecError
from holdfast.journal.run_state import RunState
from holdfast.views.amounts import total
from holdfast.views.plain import ViewCodec, plain
from holdfast.views.state_ledger import spent_by

MOST_PARTS = 1_000_000
"""A value with more parts is not read."""


class CarefulCodec(ViewCodec):
    """Reads no value that has so many parts that a stranger may have meant harm, and no more than a view may."""

    def decode(self, raw: bytes, *, lenient: bool = True) -> Any:
        try:
            unpacked_bytes(raw, MOST_PARTS)
        except CapsuleInvalid as error:
            raise CodecError(f"cannot read the stored value: {error}") from None
        return super().decode(raw, lenient=True)


def summary_of(run: RunState) -> dict[str, Any]:
    """The summary of a run, from its journal alone: the same wherever it is made."""
    flow, codec = flow_of(run), CarefulCodec()
    return {
        "workflow": plain(run.workflow),
        "definition": plain(run.outline),
        "flow": None if flow is None else {key: plain(flow.get(key)) for key in ("path", "digest")},
        "ledger": ledger_of(run, codec),
        "environment": plain(decoded(run.facts, codec)),
        "steps_done": run.steps_done,
        "seconds": round(float(run.seconds), 6),
    }


def ledger_of(run: RunState, codec: CarefulCodec) -> dict[str, Any]:
    """What the run used up: in all, and by node."""
    try:
        whole = spent_by(run, codec)
    except CodecError:
        whole = total(*run.spending.values())
    return {
        **whole._asdict(),
        "nodes": {plain(node): spent._asdict() for node, spent in run.spending.items()},
    }


def flow_of(run: RunState) -> Mapping[str, Any] | None:
    """The workflow file that the run was started with, its source included; `None` for a Python graph."""
    config = decoded(run.config)
    found = config.get("flow") if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else None


def decoded(raw: bytes, codec: CarefulCodec | None = None) -> Any:
    """A stored value; nothing if it is none, or not to be read."""
    try:
        return (codec or CarefulCodec()).decode(raw) if raw else None
    except CodecError:
        return None
