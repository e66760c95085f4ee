"""The ledger that the first versions kept in the state of workflow files, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.errors import CodecError
from holdfast.journal.run_state import RunState, Spending
from holdfast.views.amounts import total

Line = Mapping[str, Any]
"""What one attempt spent: `id`, `step`, `model`, `input_tokens`, `output_tokens`, `cost`."""

COUNTED = "counted:"
"""What a step remembers, under this and the name of a line that it had remembered, is in the journal's ledger now."""


def lines_of(run: RunState, codec: Codec) -> list[Line]:
    """Every line, each once: of finished waves, of finished steps, and of attempts that only their steps remember."""
    found: dict[str, Line] = {}
    for line in _found(run, codec):
        if isinstance(line, Mapping):
            found.setdefault(str(line.get("id", f"#{len(found)}")), line)
    return list(found.values())


def _found(run: RunState, codec: Codec) -> Iterator[Any]:
    for frame in run.frames.values():
        if "ledger" in frame.cells:
            yield from _listed(frame.cells["ledger"].get())
    for step in run.active():
        for op in step.ops:
            if op.key == "ledger":
                yield from _listed(op.value)
        for key, raw in step.notes.items():
            name = key.removeprefix("once:")
            if name != "reply" and not name.startswith("spent:"):
                continue
            if f"once:{COUNTED}{name}" not in step.notes:
                yield _remembered(raw, codec)


def _listed(lines: Any) -> Iterable[Any]:
    return lines if isinstance(lines, (list, tuple)) else ()


def _remembered(raw: bytes, codec: Codec) -> Any:
    try:
        value = codec.decode(raw)
    except CodecError:
        return None
    return value.get("entry", value if "id" in value else None) if isinstance(value, Mapping) else None


def spending_of(lines: Iterable[Any]) -> Spending:
    """What lines add up to; what is none of them is passed over."""
    found = [line for line in lines if isinstance(line, Mapping)]
    return Spending(
        len(found),
        int(sum(number(line.get("input_tokens")) for line in found)),
        int(sum(number(line.get("output_tokens")) for line in found)),
        float(sum(number(line.get("cost")) for line in found)),
        sum(line.get("cost") is None for line in found),
    )


def number(value: Any) -> float:
    """A number, or 0 for what is none."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def spent_by(run: RunState, codec: Codec) -> Spending:
    """All that a run has spent: what its journal says, in whichever version it was written, each line once."""
    return total(*run.spending.values(), spending_of(lines_of(run, codec)))
