"""`WorkflowState`: the ready-made schema for agent workflows."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from holdfast.data.reducers import append, merge


class TaskResult(TypedDict, total=False):
    """One completed task. Only completed tasks belong into a state."""

    task_id: str
    result: Any
    timestamp: float
    duration: float


class WorkflowState(TypedDict, total=False):
    """Messages, completed tasks and decisions, which grow; and a context, which is merged.

    The id of the checkpoint that a state was taken at is `state.checkpoint_id`.
    """

    messages: Annotated[list[Any], append]
    tasks: Annotated[list[TaskResult], append]
    decisions: Annotated[list[Any], append]
    context: Annotated[dict[str, Any], merge]
