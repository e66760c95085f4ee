"""Holdfast: workflows that journal every step before and after it runs, and resume after anything.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.capsules.exporting import ExportedRun, export_run
    from holdfast.capsules.importing import ImportedRun, import_run
    from holdfast.capsules.inspecting import CapsuleInfo, inspect_capsule
    from holdfast.capsules.signing import make_key_pair
    from holdfast.checkpoints import (
        CheckpointConfig,
        CheckpointData,
        CheckpointStore,
        GraphConfig,
        PauseMetadata,
        pause_workflow,
        resume_workflow,
    )
    from holdfast.data.codec import Unknown
    from holdfast.data.reducers import add, append, keep_last, merge, union
    from holdfast.data.state import State
    from holdfast.data.types import register_type
    from holdfast.data.workflow_state import TaskResult, WorkflowState
    from holdfast.define.builder import StateGraph
    from holdfast.define.configured import ConfiguredGraph
    from holdfast.engine.app import App
    from holdfast.engine.blocking import RunInterrupted, RunTerminated
    from holdfast.engine.commands.receipts import Receipt
    from holdfast.engine.driving.context import Context
    from holdfast.engine.driving.signals import StopSignal
    from holdfast.engine.housekeeping import periodic_cleanup
    from holdfast.engine.moving.copy_report import CopyReport
    from holdfast.engine.moving.transfer import copy_runs
    from holdfast.engine.outcome import Figures, Outcome, Pause
    from holdfast.engine.policy import CheckpointPolicy, Retention
    from holdfast.engine.resume_plan import PlannedStep, ResumePlan
    from holdfast.engine.travel.comparing import compare_runs
    from holdfast.engine.travel.differing import diff_states
    from holdfast.engine.travel.looking import run_forks, run_history
    from holdfast.engine.travel.rerun import Rerun, RerunStep
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
    from holdfast.fleet.cron import Cron
    from holdfast.fleet.limits import Limits, Rate
    from holdfast.fleet.schedules import Schedule, Schedules
    from holdfast.fleet.worker import Worker, WorkerEvent
    from holdfast.flows.flow import Flow, load_flow
    from holdfast.flows.reading.problems import FlowInvalid
    from holdfast.journal.checkpoints import Checkpoint
    from holdfast.plan.graph import Command, Send
    from holdfast.plan.retry import Retry
    from holdfast.repair.repairing import Repair, StoreRepair, repair_run, repair_store
    from holdfast.repair.report import Damage, RunReport, StoreReport
    from holdfast.repair.store_check import check_store
    from holdfast.stores import get_store, open_store, register_store
    from holdfast.stores.base import RunInfo
    from holdfast.tracing import TraceObserver
    from holdfast.values import END, START, RunStatus
    from holdfast.views.comparison import Comparison
    from holdfast.views.diff.applying import apply_difference
    from holdfast.views.diff.changes import Difference
    from holdfast.views.diff.differing import difference
    from holdfast.views.diff.patching import apply_patch, json_patch
    from holdfast.views.diff.pointers import PatchError
    from holdfast.views.diff.states import StateDifference
    from holdfast.views.family import Family
    from holdfast.views.history import History
    from holdfast.views.ledger import RunLedger

_NAMES = {
    "holdfast.capsules.exporting": (
        "ExportedRun",
        "export_run",
    ),
    "holdfast.capsules.importing": (
        "ImportedRun",
        "import_run",
    ),
    "holdfast.capsules.inspecting": (
        "CapsuleInfo",
        "inspect_capsule",
    ),
    "holdfast.capsules.signing": ("make_key_pair",),
    "holdfast.checkpoints": (
        "CheckpointConfig",
        "CheckpointData",
        "CheckpointStore",
        "GraphConfig",
        "PauseMetadata",
        "pause_workflow",
        "resume_workflow",
    ),
    "holdfast.data.codec": ("Unknown",),
    "holdfast.data.reducers": (
        "add",
        "append",
        "keep_last",
        "merge",
        "union",
    ),
    "holdfast.data.state": ("State",),
    "holdfast.data.types": ("register_type",),
    "holdfast.data.workflow_state": (
        "TaskResult",
        "WorkflowState",
    ),
    "holdfast.define.builder": ("StateGraph",),
    "holdfast.define.configured": ("ConfiguredGraph",),
    "holdfast.engine.app": ("App",),
    "holdfast.engine.blocking": (
        "RunInterrupted",
        "RunTerminated",
    ),
    "holdfast.engine.commands.receipts": ("Receipt",),
    "holdfast.engine.driving.context": ("Context",),
    "holdfast.engine.driving.signals": ("StopSignal",),
    "holdfast.engine.housekeeping": ("periodic_cleanup",),
    "holdfast.engine.moving.copy_report": ("CopyReport",),
    "holdfast.engine.moving.transfer": ("copy_runs",),
    "holdfast.engine.outcome": (
        "Figures",
        "Outcome",
        "Pause",
    ),
    "holdfast.engine.policy": (
        "CheckpointPolicy",
        "Retention",
    ),
    "holdfast.engine.resume_plan": (
        "PlannedStep",
        "ResumePlan",
    ),
    "holdfast.engine.travel.comparing": ("compare_runs",),
    "holdfast.engine.travel.differing": ("diff_states",),
    "holdfast.engine.travel.looking": (
        "run_forks",
        "run_history",
    ),
    "holdfast.engine.travel.rerun": (
        "Rerun",
        "RerunStep",
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
    "holdfast.fleet.cron": ("Cron",),
    "holdfast.fleet.limits": (
        "Limits",
        "Rate",
    ),
    "holdfast.fleet.schedules": (
        "Schedule",
        "Schedules",
    ),
    "holdfast.fleet.worker": (
        "Worker",
        "WorkerEvent",
    ),
    "holdfast.flows.flow": (
        "Flow",
        "load_flow",
    ),
    "holdfast.flows.reading.problems": ("FlowInvalid",),
    "holdfast.journal.checkpoints": ("Checkpoint",),
    "holdfast.plan.graph": (
        "Command",
        "Send",
    ),
    "holdfast.plan.retry": ("Retry",),
    "holdfast.repair.repairing": (
        "Repair",
        "StoreRepair",
        "repair_run",
        "repair_store",
    ),
    "holdfast.repair.report": (
        "Damage",
        "RunReport",
        "StoreReport",
    ),
    "holdfast.repair.store_check": ("check_store",),
    "holdfast.tracing": ("TraceObserver",),
    "holdfast.stores.base": ("RunInfo",),
    "holdfast.stores": (
        "get_store",
        "open_store",
        "register_store",
    ),
    "holdfast.values": (
        "END",
        "RunStatus",
        "START",
    ),
    "holdfast.views.comparison": ("Comparison",),
    "holdfast.views.diff.applying": ("apply_difference",),
    "holdfast.views.diff.changes": ("Difference",),
    "holdfast.views.diff.differing": ("difference",),
    "holdfast.views.diff.patching": (
        "apply_patch",
        "json_patch",
    ),
    "holdfast.views.diff.pointers": ("PatchError",),
    "holdfast.views.diff.states": ("StateDifference",),
    "holdfast.views.family": ("Family",),
    "holdfast.views.history": ("History",),
    "holdfast.views.ledger": ("RunLedger",),
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
    "Figures",
    "Flow",
    "FlowInvalid",
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
    "load_flow",
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
