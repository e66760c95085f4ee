"""Checkpoints as plain values over the journal: stores, data, configs, and pausing by checkpoint id."""

from holdfast.checkpoints.config import (
    CheckpointConfig,
    GraphConfig,
    default_checkpoint_config,
    default_graph_config,
)
from holdfast.checkpoints.interactive import Result, pause_workflow, resume_workflow
from holdfast.checkpoints.record import CheckpointData, PauseMetadata
from holdfast.checkpoints.store import CheckpointStore

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
