"""What readers see of a pause: what is asked, which answers it takes, and the command that gives one."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.views.plain import iso, plain, preview


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
    def takes(self) -> str:
        """Which answers it takes, in words."""
        if self.is_gate:
            return "no answer; resuming passes it"
        if self.choices is not None:
            return "one of " + ", ".join(preview(choice, 40) for choice in self.choices)
        kind = (self.schema or {}).get("type")
        return "any value" if not isinstance(kind, str) else f"a value of type {kind}"

    @property
    def command(self) -> str:
        """The command that answers it, `VALUE` standing for the answer."""
        run = shlex.quote(self.run_id)
        if self.is_gate:
            return f"holdfast resume {run}"
        return f"holdfast answer {run} {shlex.quote(self.name or self.id)}=VALUE"

    def as_json(self) -> dict[str, Any]:
        """Keys: id, kind, step, name, prompt, choices, schema, takes, since, until, command."""
        return {
            "id": self.id,
            "kind": self.kind,
            "step": self.step,
            "name": plain(self.name),
            "prompt": plain(self.prompt),
            "choices": None if self.choices is None else plain(list(self.choices)),
            "schema": plain(self.schema),
            "takes": self.takes,
            "since": iso(self.since),
            "until": iso(self.until),
            "command": self.command,
        }
