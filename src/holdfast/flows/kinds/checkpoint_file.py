"""`checkpoint`: saving the state into a checkpoint file, and reading one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.data.state import State
from holdfast.engine import files
from holdfast.engine.driving.context import Context
from holdfast.flows.kinds.kind import Plain, Result
from holdfast.flows.model import CheckpointFile, Step
from holdfast.flows.world import World


class UseCheckpointFile(Plain):
    """Writes or reads a checkpoint file; nothing that a file names is ever imported or run."""

    takes_state = True

    def __init__(self, step: Step, world: World) -> None:
        super().__init__()
        assert isinstance(step.checkpoint, CheckpointFile)
        self._saves, self._base = step.checkpoint.save is not None, world.base
        field = f"checkpoint.{'save' if self._saves else 'load'}"
        self._path = self.texts.text(field, step.checkpoint.save or step.checkpoint.load or "")

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        path = self._base / Path(self._path.render(scope)).expanduser()
        if self._saves:
            saved = files.save(path, state, ctx.node, ctx.config)
            return {"output": {"checkpoint_path": str(saved), "saved": True}}
        content = files.load(path)
        return {"output": {"checkpoint_state": content["state"], "checkpoint_node": content["node"]}}
