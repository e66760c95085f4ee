"""Frozen pictures of runs for every reader: read through the journal, with none of the workflow's code."""

from holdfast.views.plain import plain, preview
from holdfast.views.run_view import Driver, FaultView, Items, Ledger, PauseView, RunLine, RunView, StepView
from holdfast.views.runs import find_checkpoint_info, find_run_info, run_line, run_list, run_pauses, run_view
from holdfast.views.timeline import Timeline, TimelineEvent, timeline

__all__ = [
    "Driver",
    "FaultView",
    "Items",
    "Ledger",
    "PauseView",
    "RunLine",
    "RunView",
    "StepView",
    "Timeline",
    "TimelineEvent",
    "find_checkpoint_info",
    "find_run_info",
    "plain",
    "preview",
    "run_line",
    "run_list",
    "run_pauses",
    "run_view",
    "timeline",
]
