"""`workflow`: another workflow file as a step of this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.data.state import State
from holdfast.flows.errors import InputInvalid, StepFailed
from holdfast.flows.inputs import read_inputs
from holdfast.flows.kinds.kind import Plain
from holdfast.flows.model import Definition
from holdfast.flows.scope import Layout
from holdfast.flows.work import Work


class Nested:
    """The nodes around another workflow's graph: the one that begins, and the one that it ends in."""

    def __init__(self, work: Work, definition: Definition, file: str, goes_on: bool = False) -> None:
        self.step, self.work, self.definition, self._goes_on = work.step, work, definition, goes_on
        self._outer, self._file = work.layout, file
        assert isinstance(work.kind, Inputs)
        self._with = work.kind.values

    def layout(self) -> Layout:
        """Where the other workflow keeps its things."""
        key = self._outer.key(self.step.name)
        return Layout(self.definition, prefix=f"{key}/", shared=key, is_item=self.step.for_each is not None)

    def inputs(self, scope: Mapping[str, Any]) -> dict[str, Any]:
        """What the other workflow is given."""
        try:
            return read_inputs(self.definition.workflow, self._with.render(scope), how="`with`")
        except InputInvalid as error:
            raise StepFailed(f"with: {self._file} cannot begin: {'; '.join(error.problems)}") from None

    def begin(self, state: State) -> dict[str, Any]:
        """The step's first node: the other workflow's inputs."""
        reason = self.work.why_skipped(state)
        if reason:
            return self.work.begun(state, {"status": "skipped", "reason": reason})
        inputs = self.inputs(self.work.scope(state))
        return self.work.begun(state, {"status": "running", "inputs": inputs})

    def enter(self, state: State) -> str:
        """What follows the first node."""
        runs = self._outer.status(state, self.step.name) == "running"
        return f"{self.step.name}:{'flow' if runs else 'done'}"

    def done(self, state: State) -> dict[str, Any] | None:
        """The step's last node; a failure that ended the other workflow early is one of this step."""
        record = self._outer.record(state, self.step.name)
        if record.get("status") == "failed" and not self._goes_on:
            raise StepFailed(str(record.get("error")))
        return self.work.over(state)


class Inputs(Plain):
    """The work of handing inputs to another workflow, which is none in itself."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.values = self.texts.tree("with", dict(values))
