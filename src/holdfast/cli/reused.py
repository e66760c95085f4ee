"""The run that a new one takes finished steps over from, as the command line names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.cli.moments import meant_moment
from holdfast.cli.store_option import open_existing, open_journal
from holdfast.data.codec import Codec
from holdfast.engine.travel.moments import find_moment
from holdfast.engine.travel.past import past_of
from holdfast.errors import CannotReuse

if TYPE_CHECKING:
    from holdfast.flows.flow import Flow


@dataclass(frozen=True, slots=True)
class Reused:
    """A run that is reused, or none; `saved` are the inputs that it began with."""

    flow: Flow
    moment: str | None = None
    saved: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, text: str | None, url: str, flow: Flow) -> Reused:
        """The run that is meant, which is one of the same workflow."""
        if text is None:
            return cls(flow)
        store = open_existing(url)
        try:
            moment = meant_moment(store, text)
            found = find_moment(store, moment)
            own = found.info.workflow
            if own != flow.name:
                raise CannotReuse(
                    f"run {found.info.run!r} is of workflow {own!r}, and this file is of {flow.name!r}; "
                    "only steps of the same workflow can be taken over"
                )
            begun = past_of(open_journal(store), Codec(), found.info, found.seq).begun
        finally:
            store.close()
        ops = [op for op in begun.ops if op.key == "inputs"] if begun is not None else []
        declared = flow.definition.workflow.inputs
        saved = {name: value for op in ops for name, value in (op.value or {}).items() if name in declared}
        return cls(flow, moment, saved)

    def inputs(self, typed: Mapping[str, Any], text: Mapping[str, str]) -> dict[str, Any]:
        """The inputs of the new run: those that are given, and else those of the reused one."""
        saved = {name: value for name, value in self.saved.items() if name not in text}
        return self.flow.read_inputs({**saved, **typed}, text)
