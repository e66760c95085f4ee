"""What the steps of a workflow are executed with, beside the state: files, secrets, money, manners."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.flows.purse import Purse
from holdfast.flows.secrets import REDACTED, Scrubber, SecretError, Secrets
from holdfast.stores.showing import shown_url

_OURS = re.compile("(?:HOLDFAST|WORKFLOW)_.*(?:KEY|PASS|SECRET|TOKEN)|PG(?:SSL)?PASSWORD", re.IGNORECASE)
"""Variables that hold keys, passphrases, secrets and passwords of ours; no command is given them unasked."""
_URLS = ("HOLDFAST_STORE", "WORKFLOW_CHECKPOINT_DSN")
_SCALARS = (str, bytes, int, float, bool, type(None))
_SHORTEST_PIECE = 4


@dataclass
class World:
    """One loaded workflow's surroundings, shared with its sub-workflows."""

    base: Path
    """The folder of the workflow file: relative paths and modules are looked for there."""
    env: Mapping[str, str]
    secrets: Secrets
    scrubber: Scrubber
    purse: Purse
    skip_gates: bool = False
    interactive: bool = False
    """Whether somebody can be asked what to do with an interrupted step that may not simply be repeated."""

    def hide(self, value: Any) -> Any:
        """A value without secrets, also if it holds things that are not plain data; the same one if it has none."""
        if not self.secrets.remembered():
            return value
        return self._covered(self.scrubber.scrub(value))

    def hide_cut(self, text: str) -> str:
        """A text without secrets that somebody else may have cut short, in the middle of a secret too."""
        text = str(self.scrubber.scrub(text))
        body = text.removesuffix("…")
        for secret in self.secrets.remembered():
            for length in range(len(secret) - 1, _SHORTEST_PIECE - 1, -1):
                if body.endswith(secret[:length]):
                    return f"{body[:-length]}{REDACTED}{text[len(body) :]}"
        return text

    def recognise(self, names: set[str]) -> None:
        """Take note of these secrets where they are set, so that they are hidden wherever they turn up."""
        for name in names:
            try:
                self.secrets[name]
            except SecretError:
                continue

    def command_env(self) -> dict[str, str]:
        """The environment for commands: without secrets, which a workflow hands over by name."""
        kept = {name: value for name, value in self.env.items() if not _OURS.match(name)}
        return kept | {name: shown_url(kept[name]) for name in _URLS if name in kept}

    def _covered(self, value: Any) -> Any:
        """What the scrubber does not look into: it is shown, and replaced by what is shown if that has a secret."""
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, dict):
            covered = {key: self._covered(item) for key, item in value.items()}
            return value if all(covered[key] is value[key] for key in value) else covered
        if isinstance(value, (list, tuple)):
            items = [self._covered(item) for item in value]
            same = all(one is other for one, other in zip(items, value, strict=True))
            return value if same else items
        try:
            shown = repr(value)
        except Exception:
            return REDACTED
        clean = self.scrubber.scrub(shown)
        return value if clean == shown else clean
