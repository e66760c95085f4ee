"""What the outside may ask of a driven run, done between its steps or refused with the reason."""

from __future__ import annotations

from holdfast.engine.inbox import ANSWER, Wish
from holdfast.engine.mailbox import STOPS
from holdfast.engine.saving import Saving
from holdfast.journal.records import Answered
from holdfast.plan.graph import Graph


def obey(saving: Saving, graph: Graph, wish: Wish) -> str:
    """Record what a message asks for; answers why it is refused, or nothing."""
    if wish.command == ANSWER:
        if wish.pause not in saving.run.pauses:
            return f"nothing waits for {wish.pause!r} any more"
        saving.record(Answered(wish.pause, wish.value, wish.by))
        return ""
    if wish.command not in STOPS:
        return f"unknown command {wish.command!r}"
    return ""
