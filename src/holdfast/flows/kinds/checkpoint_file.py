"""`checkpoint`: saving the state into a checkpoint file, and reading one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.data.state import State
from holdfast.engine import files
from holdfast.engine.context import Context
from holdfast.flows.kinds.kind import Plain, Result
from holdfast.flows.model import CheckpointFile, Step


class UseCheckpointFile(Plain):
    """Writes or reads a checkpoint file; nothing that a file names is ever imported or run."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        assert isinstance(step.checkpoint, CheckpointFile)
        self._saves = step.checkpoint.save is not None
        self._path = self.texts.text(step.checkpoint.save or step.checkpoint.load or "")

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        path = Path(self._path.render(scope))
        if self._saves:
            path.parent.mkdir(parents=True, exist_ok=True)
            saved = files.save(path, state.to_dict(), ctx.node, dict(ctx.config))
            return {"output": {"checkpoint_path": str(saved), "saved": True}}
        content = files.load(path)
        return {"output": {"checkpoint_state": content["state"], "checkpoint_node": content["node"]}}
