"""Checkpoints as plain values over the journal: stores, data, configs, and pausing by checkpoint id."""

from holdfast.checkpoints.interactive import (
    CheckpointConfig,
    GraphConfig,
    Result,
    default_checkpoint_config,
    default_graph_config,
    pause_workflow,
    resume_workflow,
)
from holdfast.checkpoints.store import CheckpointData, CheckpointStore, PauseMetadata

__all__ = [
    "CheckpointConfig",
    "CheckpointData",
    "CheckpointStore",
    "GraphConfig",
    "PauseMetadata",
    "Result",
    "default_checkpoint_config",
    "default_graph_config",
    "pause_workflow",
    "resume_workflow",
]
