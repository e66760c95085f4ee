"""What readers see of a pause: what is asked, which answers it takes, and the command that gives one."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.journal.run_state import SLEEP
from holdfast.views.plain import iso, plain, preview

_TYPED = {
    "string": "<text>",
    "integer": "<integer>",
    "number": "<number>",
    "boolean": "<true or false>",
    "array": "<JSON list>",
    "object": "<JSON object>",
}
PLACEHOLDERS = frozenset((*_TYPED.values(), "<value>"))
"""What stands for an answer in commands that are shown. None of them is taken for an answer."""


@dataclass(frozen=True, slots=True)
class PauseView:
    """Something a run waits for, and how to give it."""

    run_id: str
    id: str
    kind: str
    step: str
    name: str
    prompt: str
    schema: Mapping[str, Any] | None
    since: dt.datetime
    until: dt.datetime | None = None
    node: str = ""
    is_alone: bool = True
    """Whether no other open pause of the run has its name."""
    is_of_program: bool = False
    """Whether the run is one of a Python program, which alone can go on with it."""

    @property
    def handle(self) -> str:
        """What it is answered by: its name, or its id where several have that name."""
        return self.name if self.name and self.is_alone else self.id

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """The answers to choose from, or `None` if it takes others."""
        found = (self.schema or {}).get("enum")
        return tuple(found) if isinstance(found, (list, tuple)) else None

    @property
    def is_gate(self) -> bool:
        """Whether it takes no answer: resuming the run passes it."""
        return self.kind in ("before", "after")

    @property
    def is_wait(self) -> bool:
        """Whether it waits for nothing but its time."""
        return self.kind == SLEEP

    @property
    def takes(self) -> str:
        """Which answers it takes, in words."""
        if self.is_gate:
            return "no answer; resuming passes it"
        if self.is_wait:
            return "no answer; it goes on when its time has come"
        if self.choices is not None:
            return "one of " + ", ".join(preview(choice, 40) for choice in self.choices)
        kind = (self.schema or {}).get("type")
        if kind == "boolean":
            return "true or false"
        return "any value" if not isinstance(kind, str) else f"a value of type {kind}"

    @property
    def example(self) -> str:
        """An answer that it takes, or what stands for one in a command, such as `<integer>`."""
        if self.choices:
            return str(self.choices[0])
        return _TYPED.get(str((self.schema or {}).get("type")), "<value>" if self.schema else "<text>")

    @property
    def command(self) -> str:
        """The command that answers it, something like `<text>` standing for the answer."""
        run = shlex.quote(self.run_id)
        if self.is_gate or self.is_wait:
            return resume_call(self.run_id) if self.is_of_program else f"holdfast resume {run}"
        return f"holdfast answer {run} {shlex.quote(f'{self.handle}={self.example}')}"

    def as_json(self) -> dict[str, Any]:
        """Keys: id, kind, step, node, name, prompt, choices, schema, takes, since, until, command."""
        return {
            "id": self.id,
            "kind": self.kind,
            "step": self.step,
            "node": self.node,
            "name": plain(self.name),
            "prompt": plain(self.prompt),
            "choices": None if self.choices is None else plain(list(self.choices)),
            "schema": plain(self.schema),
            "takes": self.takes,
            "since": iso(self.since),
            "until": iso(self.until),
            "command": self.command,
        }


def resume_call(run_id: str) -> str:
    """How a run of a Python program goes on, in words."""
    return f"app.resume({run_id!r}) in its program"


def told_apart(pauses: Sequence[PauseView]) -> tuple[PauseView, ...]:
    """The pauses of a run, those that share a name marked as such."""
    names = [pause.name for pause in pauses]
    return tuple(replace(pause, is_alone=names.count(pause.name) == 1) for pause in pauses)
