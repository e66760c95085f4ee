"""Holdfast: workflows that journal every step before and after it runs, and resume after anything.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.capsules.export import ExportedRun, export_run
    from holdfast.capsules.import_run import ImportedRun, import_run
    from holdfast.capsules.signing import make_key_pair
    from holdfast.capsules.summary import CapsuleInfo, inspect_capsule
    from holdfast.checkpoints import (
        CheckpointConfig,
        CheckpointData,
        CheckpointStore,
        GraphConfig,
        PauseMetadata,
        pause_workflow,
        resume_workflow,
    )
    from holdfast.engine.app import App
    from holdfast.engine.blocking import RunInterrupted, RunTerminated
    from holdfast.engine.commands.control import Receipt
    from holdfast.engine.context import Context
    from holdfast.engine.once import StopSignal
    from holdfast.engine.resume_plan import PlannedStep, ResumePlan
    from holdfast.engine.retention import periodic_cleanup
    from holdfast.engine.settings import CheckpointPolicy, Outcome, Pause, Retention, Stats
    from holdfast.engine.time_travel.checkpoints import run_forks, run_history
    from holdfast.engine.time_travel.compare import compare_runs, diff_states
    from holdfast.engine.time_travel.rerun import Rerun, RerunStep
    from holdfast.engine.transfer import CopyReport, copy_runs
    from holdfast.errors import (
        AnswerRejected,
        AnswerTimeout,
        CannotRerun,
        CannotReuse,
        CapsuleInvalid,
        CapsuleLocked,
        CheckpointNotFound,
        CodecError,
        CommandRefused,
        CorruptJournal,
        ExecutionError,
        ExecutorLost,
        ForeignRun,
        GraphChanged,
        GraphInvalid,
        HoldfastError,
        MaxIterationsExceeded,
        MigrationFailed,
        NotPaused,
        PlanOutdated,
        ResourceExhausted,
        RunConflict,
        RunExists,
        RunFinished,
        RunNotFound,
        StateInvalid,
        StepTimeout,
        StoreError,
    )
    from holdfast.events import (
        CallbackObserver,
        Event,
        LoggingObserver,
        MultiObserver,
        NoOpObserver,
        Observer,
        get_observer,
        register_observer,
    )
    from holdfast.fleet.catalog import Catalog
    from holdfast.fleet.postgres_claims import Limits, Rate
    from holdfast.fleet.schedules import Cron, Schedule, Schedules
    from holdfast.fleet.worker import Worker, WorkerEvent
    from holdfast.graph.builder import ConfiguredGraph, StateGraph
    from holdfast.graph.graph import Command, Send
    from holdfast.graph.retry import Retry
    from holdfast.integrity.check import check_store
    from holdfast.integrity.repair import Repair, StoreRepair, repair_run, repair_store
    from holdfast.integrity.report import Damage, RunReport, StoreReport
    from holdfast.journal.checkpoint_ids import Checkpoint
    from holdfast.state.codec import Unknown
    from holdfast.state.schema import TaskResult, WorkflowState, add, append, keep_last, merge, union
    from holdfast.state.state import State
    from holdfast.state.types import register_type
    from holdfast.stores import get_store, open_store, register_store
    from holdfast.stores.base import RunInfo
    from holdfast.tracing import TraceObserver
    from holdfast.values import END, START, RunStatus
    from holdfast.views.comparison import Comparison
    from holdfast.views.diff.changes import Difference
    from holdfast.views.diff.difference import apply_difference, difference
    from holdfast.views.diff.patch import PatchError, apply_patch, json_patch
    from holdfast.views.diff.states import StateDifference
    from holdfast.views.family import Family
    from holdfast.views.history import History
    from holdfast.views.usage import RunLedger
    from holdfast.workflows.reading.problems import WorkflowInvalid
    from holdfast.workflows.workflow import Workflow, load_workflow

_NAMES = {
    "holdfast.capsules.export": (
        "ExportedRun",
        "export_run",
    ),
    "holdfast.capsules.import_run": (
        "ImportedRun",
        "import_run",
    ),
    "holdfast.capsules.signing": ("make_key_pair",),
    "holdfast.capsules.summary": (
        "CapsuleInfo",
        "inspect_capsule",
    ),
    "holdfast.checkpoints": (
        "CheckpointConfig",
        "CheckpointData",
        "CheckpointStore",
        "GraphConfig",
        "PauseMetadata",
        "pause_workflow",
        "resume_workflow",
    ),
    "holdfast.engine.app": ("App",),
    "holdfast.engine.blocking": (
        "RunInterrupted",
        "RunTerminated",
    ),
    "holdfast.engine.commands.control": ("Receipt",),
    "holdfast.engine.context": ("Context",),
    "holdfast.engine.once": ("StopSignal",),
    "holdfast.engine.resume_plan": (
        "PlannedStep",
        "ResumePlan",
    ),
    "holdfast.engine.retention": ("periodic_cleanup",),
    "holdfast.engine.settings": (
        "CheckpointPolicy",
        "Stats",
        "Outcome",
        "Pause",
        "Retention",
    ),
    "holdfast.engine.time_travel.checkpoints": (
        "run_forks",
        "run_history",
    ),
    "holdfast.engine.time_travel.compare": (
        "compare_runs",
        "diff_states",
    ),
    "holdfast.engine.time_travel.rerun": (
        "Rerun",
        "RerunStep",
    ),
    "holdfast.engine.transfer": (
        "CopyReport",
        "copy_runs",
    ),
    "holdfast.errors": (
        "AnswerRejected",
        "AnswerTimeout",
        "CannotRerun",
        "CannotReuse",
        "CapsuleInvalid",
        "CapsuleLocked",
        "CheckpointNotFound",
        "CodecError",
        "CommandRefused",
        "CorruptJournal",
        "ExecutionError",
        "ExecutorLost",
        "ForeignRun",
        "GraphChanged",
        "GraphInvalid",
        "HoldfastError",
        "MaxIterationsExceeded",
        "MigrationFailed",
        "NotPaused",
        "PlanOutdated",
        "ResourceExhausted",
        "RunConflict",
        "RunExists",
        "RunFinished",
        "RunNotFound",
        "StateInvalid",
        "StepTimeout",
        "StoreError",
    ),
    "holdfast.events": (
        "CallbackObserver",
        "Event",
        "LoggingObserver",
        "MultiObserver",
        "NoOpObserver",
        "Observer",
        "get_observer",
        "register_observer",
    ),
    "holdfast.fleet.catalog": ("Catalog",),
    "holdfast.fleet.postgres_claims": (
        "Limits",
        "Rate",
    ),
    "holdfast.fleet.schedules": (
        "Cron",
        "Schedule",
        "Schedules",
    ),
    "holdfast.fleet.worker": (
        "Worker",
        "WorkerEvent",
    ),
    "holdfast.graph.builder": (
        "ConfiguredGraph",
        "StateGraph",
    ),
    "holdfast.graph.graph": (
        "Command",
        "Send",
    ),
    "holdfast.graph.retry": ("Retry",),
    "holdfast.integrity.check": ("check_store",),
    "holdfast.integrity.repair": (
        "Repair",
        "StoreRepair",
        "repair_run",
        "repair_store",
    ),
    "holdfast.integrity.report": (
        "Damage",
        "RunReport",
        "StoreReport",
    ),
    "holdfast.journal.checkpoint_ids": ("Checkpoint",),
    "holdfast.state.codec": ("Unknown",),
    "holdfast.state.schema": (
        "TaskResult",
        "WorkflowState",
        "add",
        "append",
        "keep_last",
        "merge",
        "union",
    ),
    "holdfast.state.state": ("State",),
    "holdfast.state.types": ("register_type",),
    "holdfast.stores": (
        "get_store",
        "open_store",
        "register_store",
    ),
    "holdfast.stores.base": ("RunInfo",),
    "holdfast.tracing": ("TraceObserver",),
    "holdfast.values": (
        "END",
        "RunStatus",
        "START",
    ),
    "holdfast.views.comparison": ("Comparison",),
    "holdfast.views.diff.changes": ("Difference",),
    "holdfast.views.diff.difference": (
        "apply_difference",
        "difference",
    ),
    "holdfast.views.diff.patch": (
        "PatchError",
        "apply_patch",
        "json_patch",
    ),
    "holdfast.views.diff.states": ("StateDifference",),
    "holdfast.views.family": ("Family",),
    "holdfast.views.history": ("History",),
    "holdfast.views.usage": ("RunLedger",),
    "holdfast.workflows.reading.problems": ("WorkflowInvalid",),
    "holdfast.workflows.workflow": (
        "Workflow",
        "load_workflow",
    ),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("holdfast")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = [
    "END",
    "START",
    "AnswerRejected",
    "AnswerTimeout",
    "App",
    "CallbackObserver",
    "CannotRerun",
    "CannotReuse",
    "CapsuleInfo",
    "CapsuleInvalid",
    "CapsuleLocked",
    "Catalog",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointData",
    "CheckpointNotFound",
    "CheckpointPolicy",
    "CheckpointStore",
    "CodecError",
    "Command",
    "CommandRefused",
    "Comparison",
    "ConfiguredGraph",
    "Context",
    "CopyReport",
    "CorruptJournal",
    "Cron",
    "Damage",
    "Difference",
    "Event",
    "ExecutionError",
    "ExecutorLost",
    "ExportedRun",
    "Family",
    "ForeignRun",
    "GraphChanged",
    "GraphConfig",
    "GraphInvalid",
    "History",
    "HoldfastError",
    "ImportedRun",
    "Limits",
    "LoggingObserver",
    "MaxIterationsExceeded",
    "MigrationFailed",
    "MultiObserver",
    "NoOpObserver",
    "NotPaused",
    "Observer",
    "Outcome",
    "PatchError",
    "Pause",
    "PauseMetadata",
    "PlanOutdated",
    "PlannedStep",
    "Rate",
    "Receipt",
    "Repair",
    "Rerun",
    "RerunStep",
    "ResourceExhausted",
    "ResumePlan",
    "Retention",
    "Retry",
    "RunConflict",
    "RunExists",
    "RunFinished",
    "RunInfo",
    "RunInterrupted",
    "RunLedger",
    "RunNotFound",
    "RunReport",
    "RunStatus",
    "RunTerminated",
    "Schedule",
    "Schedules",
    "Send",
    "State",
    "StateDifference",
    "StateGraph",
    "StateInvalid",
    "Stats",
    "StepTimeout",
    "StopSignal",
    "StoreError",
    "StoreRepair",
    "StoreReport",
    "TaskResult",
    "TraceObserver",
    "Unknown",
    "Worker",
    "WorkerEvent",
    "Workflow",
    "WorkflowInvalid",
    "WorkflowState",
    "add",
    "append",
    "apply_difference",
    "apply_patch",
    "check_store",
    "compare_runs",
    "copy_runs",
    "diff_states",
    "difference",
    "export_run",
    "get_observer",
    "get_store",
    "import_run",
    "inspect_capsule",
    "json_patch",
    "keep_last",
    "load_workflow",
    "make_key_pair",
    "merge",
    "open_store",
    "pause_workflow",
    "periodic_cleanup",
    "register_observer",
    "register_store",
    "register_type",
    "repair_run",
    "repair_store",
    "resume_workflow",
    "run_forks",
    "run_history",
    "union",
]
