"""Which class does the work of which kind of step."""

from __future__ import annotations

from holdfast.workflows.kinds.ask import AskSomebody
from holdfast.workflows.kinds.kind import EndHere, Kind, SetValues, WaitAWhile
from holdfast.workflows.kinds.python import CallPython
from holdfast.workflows.model import Step
from holdfast.workflows.scope import World


def kind_of(step: Step, world: World) -> Kind:
    """The work of a step that is no group and no workflow."""
    match step.kind:
        case "python":
            return CallPython(step, world)
        case "set":
            return SetValues(step)
        case "wait":
            return WaitAWhile(step)
        case "end":
            return EndHere(step)
        case "ask":
            return AskSomebody(step, world)
        case _:
            return _with_the_outside(step, world)


def _with_the_outside(step: Step, world: World) -> Kind:
    """The kinds that are imported only where they are used."""
    match step.kind:
        case "shell":
            from holdfast.workflows.kinds.shell import RunCommand

            return RunCommand(step, world)
        case "http":
            from holdfast.workflows.kinds.http import SendRequest

            return SendRequest(step, world)
        case "agent":
            from holdfast.workflows.kinds.agent import CallAgent

            return CallAgent(step, world)
        case "checkpoint":
            from holdfast.workflows.kinds.ask import UseCheckpointFile

            return UseCheckpointFile(step, world)
        case kind:
            raise AssertionError(f"a step of kind {kind!r} has no work of its own")
