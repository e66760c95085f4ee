"""The public names of every package, and the modules that define them: packages load a name when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

PUBLIC: dict[str, dict[str, str]] = {
    "holdfast": {
        "engine.app": "App",
        "engine.blocking": "RunInterrupted RunTerminated",
        "engine.commands.control": "Receipt",
        "engine.context": "Context",
        "engine.once": "StopSignal",
        "engine.runner": "register",
        "engine.settings": "CheckpointPolicy Outcome Pause Retention",
        "errors": "ExecutionError HoldfastError",
        "events": "Event",
        "functions.builtin_steps": "ask now random sleep uuid",
        "functions.steps": "step",
        "functions.workflows": "workflow",
        "graph.builder": "StateGraph",
        "graph.graph": "Command Retry Send",
        "journal.checkpoint_ids": "Checkpoint",
        "state.schema": "add append keep_last merge union",
        "state.state": "State",
        "state.types": "register_type",
        "stores": "open_store",
        "values": "END START RunStatus",
        "workflows.workflow": "Workflow load_workflow resume",
    },
    "holdfast.capsules": {
        "capsules.exports": "ExportedRun export_run",
        "capsules.imports": "ImportedRun import_run",
        "capsules.signing": "make_key_pair",
        "capsules.summary": "CapsuleInfo inspect_capsule",
        "engine.transfer": "CopyReport copy_runs",
    },
    "holdfast.checkpoints": {
        "checkpoints.custom": "CheckpointStore",
        "checkpoints.data": "CheckpointData CheckpointState PauseMetadata",
        "checkpoints.store": "CheckpointConfig CheckpointManager GraphConfig InMemoryCheckpointStore "
        "JournalCheckpointStore PostgresCheckpointStore SQLiteCheckpointStore default_checkpoint_config "
        "default_graph_config get_checkpoint_store register_checkpoint_store",
        "checkpoints.tables": "TablesReport write_tables",
        "engine.retention": "periodic_cleanup",
        "graph.configured": "ConfiguredGraph",
        "workflows.responses": "Result pause_workflow resume_workflow",
    },
    "holdfast.dags": {
        "dags.definition": "DAGInvalid Task",
        "dags.executor": "ControlledExecutor DAGExecutionResult",
        "dags.planning": "DAGAborted DAGState DecisionPoint",
        "dags.tools": "Tool Tools",
    },
    "holdfast.fleet": {
        "fleet.catalog": "Catalog",
        "fleet.cron": "Cron",
        "fleet.queues": "Limits Rate",
        "fleet.schedules": "Schedule Schedules",
        "fleet.worker": "History Worker WorkerEvent",
    },
    "holdfast.functions": {
        "functions.builtin_steps": "ask context now random sleep uuid",
        "functions.calls": "carried",
        "functions.checks": "FunctionWarning check_function",
        "functions.steps": "StepFunction step",
        "functions.workflows": "WorkflowFunction workflow",
    },
    "holdfast.integrity": {
        "integrity.check": "check_store",
        "integrity.repair": "repair_run repair_store",
        "integrity.report": "Damage Repair RunReport StoreRepair StoreReport",
    },
    "holdfast.patterns": {
        "graph.patterns": "ChainResult ParallelResult TaskError chain_node conditional_node parallel_node "
        "process_chain process_conditional process_parallel",
        "graph.predicates": "always and_ key_equals key_exists not_ or_",
    },
    "holdfast.service": {
        "service.catalogue": "Catalogue",
        "service.reading": "Reader RequestInvalid",
        "service.roles": "Caller Tokens",
        "service.service": "ReadOnly Service TooManyRuns",
    },
    "holdfast.state": {
        "state.codec": "Unknown",
        "state.schema": "TaskResult WorkflowState add append keep_last merge union",
        "state.state": "State",
        "state.types": "register_type",
    },
    "holdfast.testing": {
        "testing.crashing": "CrashFailure CrashReport crash_everywhere",
        "testing.ledger": "Effect record_effect recorded_effects",
        "testing.judging": "RunSeen",
        "testing.fakes": "Answers FakeModel answering",
        "testing.time_skipping": "SkippedTime skipping_time",
        "testing.wrapped_store": "Crash CrashingStore WrappedStore kill_process raise_crash",
    },
    "holdfast.views": {
        "engine.time_travel.queries": "compare_runs diff_states run_forks run_history",
        "engine.resume_plan": "PlannedStep ResumePlan",
        "engine.settings": "Stats",
        "engine.time_travel.rerun": "Rerun RerunStep",
        "views.comparison": "Comparison StateDifference",
        "views.changes": "Difference",
        "views.drawing": "svg",
        "views.differences": "apply_difference difference",
        "views.patch": "PatchError apply_patch json_patch",
        "views.family": "Family",
        "views.history": "History",
        "views.usage": "RunLedger",
    },
    "holdfast.web": {
        "service.links": "AnswerLinks",
        "service.roles": "Caller Tokens",
        "service.targets": "Target",
        "web.serving": "asgi",
    },
    "holdfast.workflows": {
        "graph.graph": "CircuitBreaker",
        "workflows.reading.problems": "WorkflowInvalid",
        "workflows.workflow": "Workflow app_of_run load_workflow",
    },
}
"""By package: the modules, without `holdfast.`, and what of each is public.

Beside these, `holdfast.errors`, `holdfast.events`, `holdfast.mcp.server`, `holdfast.stores` and `holdfast.tracing`
define their names themselves, and the root has every error of `holdfast.errors`. `__init__.pyi` of each package says
the same to type checkers; it is written by `docs/make_stubs.py`.
"""


class LazyModule:
    """A module of Holdfast that is loaded when something of it is first used.

    Where few runs need a module, its user writes `if TYPE_CHECKING: from holdfast.views import usage`, for type
    checkers, and `else: usage = LazyModule("views.usage")`.
    """

    def __init__(self, name: str) -> None:
        self._name = f"holdfast.{name}"

    def __getattr__(self, attribute: str) -> object:
        value: object = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)  # Next time it is found without this.
        return value


def homes(package: str) -> dict[str, str]:
    """Return the module that defines each public name of a package."""
    found = PUBLIC[package].items()
    return {name: f"holdfast.{module}" for module, names in found for name in names.split()}


def serve(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return what a package has as `__getattr__`, `__dir__` and `__all__`."""
    known = homes(package)

    def load(name: str) -> object:
        if name not in known:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(known[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *known}), sorted(known)
