"""Pausing a run at a gate, or because nobody knows what became of a step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from holdfast import clock
from holdfast.engine import files
from holdfast.engine.driving.saving import Saving
from holdfast.errors import CodecError, StoreError
from holdfast.journal.records import Paused
from holdfast.journal.run_state import DONE, INTERRUPTED, Step
from holdfast.values import END, readable_step

logger = logging.getLogger("holdfast")

_QUESTIONS = {
    "poison": "was started {crashes} times without a stored outcome",
    "in_doubt": "was interrupted and may or may not have taken effect",
}


class Gates:
    """Records the pauses of one drive, and writes the checkpoint files of its gates."""

    def __init__(self, saving: Saving, config: Mapping[str, Any]) -> None:
        self._saving, self._settings, self._config = saving, saving.settings, config
        self.files: dict[str, str | None] = {}
        """The checkpoint file of each pause."""

    def before(self, step: Step) -> None:
        """Pause before a step, or only say so."""
        self._close("before", step)
        if self._settings.notify:
            step.passed = True

    def after(self, step: Step) -> None:
        """Pause after a step, or only say so."""
        self._close("after", step)

    def ask_what(self, step: Step, kind: str) -> None:
        """Pause until somebody says what to do with an interrupted step."""
        what = _QUESTIONS[kind].format(crashes=step.crashes)
        prompt = f"step {readable_step(step.id)!r} {what}; rerun, skip or fail it?"
        schema = self._settings.codec.encode({"enum": ["rerun", "skip", "fail"]})
        pause = f"{step.id}:{kind}"
        self._saving.record(
            Paused(pause, kind, step.id, step.node, INTERRUPTED, prompt, schema, since=clock.time())
        )

    def _close(self, kind: str, step: Step) -> None:
        path = self._save_file(step, kind)
        if self._settings.notify:
            facts = {"kind": kind, "step": step.id, "state": self._saving.state(), "notify": True}
            self._saving.say("pause", step.node, **facts, checkpoint_path=path)
            return
        pause = f"{step.id}:{kind}"
        self.files[pause] = path
        prompt = f"paused {kind} {step.node!r}"
        self._saving.record(Paused(pause, kind, step.id, step.node, prompt=prompt, since=clock.time()))

    def _save_file(self, step: Step, kind: str) -> str | None:
        """Write the checkpoint file of a gate, if there is a folder for them; its path."""
        directory = self._settings.checkpoint_dir
        if directory is None:
            return None
        run = self._saving.run
        upcoming = [other for other in run.active() if other.status != DONE]
        if len(upcoming) > 1 or step.frame:
            logger.warning(
                "run %s: a checkpoint file at node %r holds the main state only; %d other steps are under way",
                self._saving.run_id,
                step.node,
                len(upcoming) - (kind == "before"),
            )
        nodes = tuple(dict.fromkeys(other.node for other in run.root.active.values() if other.status != DONE))
        nodes = nodes or (END,)
        gate = step.node if kind == "before" and not step.frame else ""
        path = files.automatic_path(directory, step.node)
        try:
            files.save(path, self._saving.state(), gate or nodes[0], self._config, nodes, gate)
        except (StoreError, CodecError) as error:
            self._saving.failed(error if isinstance(error, StoreError) else StoreError(str(error)))
            return None
        return str(path)
